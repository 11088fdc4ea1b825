"""Looks at held-out samples, at those alone for which they may be read: where MCP is unsure."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from btcp_tf.attached import inference
from btcp_tf.attached.held_out import LearnedFrom
from btcp_tf.core import progress
from btcp_tf.data import named_inputs
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.methods import look_choice
from btcp_tf.methods.looks import Offer
from btcp_tf.methods.residual_fit import HeldOut, Seen, groups_of
from btcp_tf.methods.seen import in_batches
from btcp_tf.methods.stacking import Samples
from btcp_tf.networks.evidence_layers import McpLogit

_BATCHES = 4
"""So many batches of inputs are held beside those that were given."""


def at_held_out(
    learned: Sequence[LearnedFrom], held_out: Sequence[HeldOut], offer: Offer, seed: int
) -> tuple[Offer, list[HeldOut]]:
    """Looks at the samples of all classifiers, and at their copies, unless that is done already.

    Args:
      learned: Where the samples are, an entry for each classifier.
      held_out: The classifiers' answers to them, in the same order.
      offer: The looks, and what they may cost.
      seed: That of `fit_residual`.

    Returns:
      The offer, without optional looks that have no finite answer to some of the samples; and the
      answers with the odds of its looks, 0 where they are not read.
    """
    if not offer.looks:
        return offer, list(held_out)
    unsure = _unsure(held_out, offer, seed)
    verbose, names = learned[0].classifier.verbose, [*offer.looks]
    count = int(sum(rows.any(axis=1).sum() for rows in unsure))
    looks = int(sum(rows.sum() for rows in unsure))
    title = (
        f"looking again at {count:,} inputs that MCP is unsure of, {looks:,} looks in all: "
        f"{', '.join(names)}"
    )
    bar = progress.Bar(title, count, shown=bool(verbose))
    done, places = [], iter(unsure)
    for one, answers in zip(learned, held_out, strict=True):
        versions = zip(one.versions, (answers.seen, *answers.copies), strict=True)
        own = [_looked_at(one, x, seen, next(places), offer, bar) for x, seen in versions]
        done.append(dataclasses.replace(answers, seen=own[0], copies=tuple(own[1:])))
    bar.end()
    return _without_lost(offer, done, verbose)


def _unsure(held_out: Sequence[HeldOut], offer: Offer, seed: int) -> list[np.ndarray]:
    """For which inputs each look is read, bool `[n, j]`, of each version of each classifier's."""
    logits = [[seen.logits for seen in (one.seen, *one.copies)] for one in held_out]
    z = [[in_batches(McpLogit(), [part], 4096) for part in own] for own in logits]
    wrong = [own[0].argmax(axis=1) != one.labels for own, one in zip(logits, held_out, strict=True)]
    samples = Samples(
        np.concatenate(wrong),
        np.concatenate([own[0] for own in z]),
        {},
        np.repeat(np.arange(len(held_out)), [len(one) for one in wrong]),
        None,
        groups=groups_of(held_out),
    )
    costs = {name: look.cost for name, look in offer.looks.items()}
    gates = look_choice.lowest_gates(samples, costs, offer.budget, seed)
    return [part > np.array([*gates.values()]) for own in z for part in own]


def _looked_at(
    one: LearnedFrom, x: Any, seen: Seen, rows: np.ndarray, offer: Offer, bar: progress.Bar
) -> Seen:
    """Answers with the odds at some of the inputs, bool `[n, j]`."""
    if seen.odds is not None:
        return seen
    again = one.classifier.look_again([*offer.looks.values()])
    odds = np.where(rows, np.nan, 0.0).astype(np.float32)
    for inputs, places in _inputs(one, x, np.flatnonzero(rows.any(axis=1))):
        odds[places] = again(inputs, seen.logits[places], rows[places].T)
        bar.add(len(places))
    return seen._replace(odds=odds)


def _inputs(one: LearnedFrom, x: Any, wanted: np.ndarray) -> Iterator[tuple[Inputs, np.ndarray]]:
    """The inputs that belong to some of the answers, some at once, and to which."""
    if not inference.is_dataset(x):
        x, some = one.classifier.rows_of(x), _BATCHES * one.classifier.batch_size
        for start in range(0, len(wanted), some):
            places = wanted[start : start + some]
            rows = named_inputs.take(x, one.kept[places])
            yield one.classifier.check_inputs(rows), places
        return
    # Shuffled anew, it comes in another order; and a sample may be there several times.
    places_of: dict[int, list[int]] = {}
    for place, sample in zip(wanted, one.hashes["fit"][one.kept[wanted]].tolist(), strict=True):
        places_of.setdefault(sample, []).append(place)
    for batch, _ in inference.batches(x, None):
        inputs = one.classifier.check_inputs(batch)
        samples = enumerate(named_inputs.sample_hashes(inputs).tolist())
        found = [(row, place) for row, sample in samples for place in places_of.get(sample, ())]
        if found:
            rows, places = np.array(found).T
            yield named_inputs.take(inputs, rows), places


def _without_lost(
    offer: Offer, held_out: Sequence[HeldOut], verbose: int
) -> tuple[Offer, list[HeldOut]]:
    """Without looks that have no finite odds somewhere."""
    seen = [part for one in held_out for part in (one.seen, *one.copies)]
    every = np.concatenate([part.odds for part in seen if part.odds is not None])
    fine = np.isfinite(every).all(axis=0)
    lost = [name for place, name in enumerate(offer.looks) if not fine[place]]
    if not lost:
        return offer, list(held_out)
    if not all(look.optional for look in offer.looks.values()):
        raise ValueError(
            "looks: expected finite answers to all held-out inputs, received others from "
            f"{', '.join(lost)}; leave them out"
        )
    reason = "as they fail for some inputs, or x is a dataset that gives others when read again"
    progress.say(f"not on offer, {reason}: {', '.join(lost)}", verbose)
    looks = {name: look for name, look in offer.looks.items() if name not in lost}

    def rest(seen: Seen) -> Seen:
        assert seen.odds is not None
        return seen._replace(odds=seen.odds[:, fine])

    return dataclasses.replace(offer, looks=looks), [
        dataclasses.replace(one, seen=rest(one.seen), copies=tuple(map(rest, one.copies)))
        for one in held_out
    ]
