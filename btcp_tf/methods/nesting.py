"""Nested cross-validation: how a choice does on samples that had no part in it."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from scipy import special

from btcp_tf import metrics
from btcp_tf.core.progress import Bar
from btcp_tf.methods import corrections, stacking
from btcp_tf.methods.stacking import FOLDS, Columns, Samples


class Choice(Protocol):
    """What a search chooses; what else it holds is known to the search."""

    @property
    def strength(self) -> float:
        """Inverse of the L2 penalty."""


Chosen = TypeVar("Chosen", bound=Choice)


class Nested(NamedTuple):
    """How a choice does on samples that it has not seen."""

    u: np.ndarray
    """`[n]`: each sample had no part in the choice, the penalty or the weights behind its own."""
    corrected: np.ndarray | None
    """The same with what copies teach; None: there are none."""
    on_copies: np.ndarray | None = None
    """AURC on copies of samples that it has not seen, of MCP, without and with what copies teach,
    means over the folds: `[3]`; None: there are none."""


def nested(
    samples: Samples,
    search: Callable[[Samples], Chosen],
    columns: Callable[[Samples, Chosen], Columns],
    seed: int,
    title: str,
    verbose: int = 0,
) -> tuple[Chosen, Nested]:
    """What all samples choose, and how such a choice does on samples that it has not seen.

    The winner of many trials looks better on the folds that it won on than it is. So the whole
    search is repeated without each fold of an outer cross-validation.

    Args:
      samples: All held-out answers; at least `FOLDS` are wrong, and as many right. Copies have no
        part in a choice.
      search: Chooses by the samples that it is given, all or some of them, without copies.
      columns: What the regression of a choice reads, `[v · n, 1 + e]`.
      seed: Seed of the folds.
      title: What is done, for the progress bar.
      verbose: 1 shows how far it is.
    """
    originals = samples.originals()
    outer = stacking.splits(originals, seed, FOLDS)
    bar = Bar(title, len(outer) + 1, shown=bool(verbose))
    chosen = search(originals)
    x = columns(originals, chosen)
    scale = stacking.fitted(x, originals.learned, chosen.strength).of(x)
    bar.add(1)
    plain, corrected = np.empty(samples.n), np.empty(samples.n)
    on_copies = []
    for train, test in outer:
        part, with_copies = samples.take(train), samples.take(test)
        own, held_out = part.originals(), with_copies.originals()
        without = search(own)
        x, new = columns(own, without), columns(held_out, without)
        model = stacking.fitted(x, own.learned, without.strength)
        logits, known = model.of(new), model.of(x)
        plain[test] = stacking.on_scale(logits, known, scale)
        if samples.copies:
            every = columns(part, without)
            added = corrections.learn(part, every.x, model.of(every), seed)
            logits, known = logits + added.of(new.x, held_out), known + added.of(x.x, own)
            corrected[test] = stacking.on_scale(logits, known, scale)
            new = columns(with_copies, without)
            before = model.of(new)
            every_u = (new.x[:, 0], before, before + added.of(new.x, with_copies))
            copies = slice(held_out.n, None)
            wrong = with_copies.all_errors[copies]
            on_copies.append([metrics.aurc(wrong, u[copies]) for u in every_u])
        bar.add(1)
    done = special.expit(corrected) if samples.copies else None
    means = np.mean(on_copies, axis=0) if samples.copies else None
    return chosen, Nested(special.expit(plain), done, means)
