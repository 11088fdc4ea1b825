"""The estimates that can be fitted to a classifier: the residual one, and the paper's (BTCP)."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from btcp_tf.attached import held_out, look_again, offer
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.attached.inference import is_dataset
from btcp_tf.attached.model import Estimate, residual_formula
from btcp_tf.core.progress import say
from btcp_tf.core.warning import warn
from btcp_tf.data import named_inputs
from btcp_tf.methods import residual_choice, residual_fit
from btcp_tf.training import phases
from btcp_tf.training.settings import TrainingSettings


def fit_residual(
    classifier: AttachedClassifier,
    samples: Any,
    *,
    reference: Any,
    folds: Sequence[tuple[Any, ...]],
    copies: Sequence[Any] | str,
    ensemble: Sequence[Any],
    evidence: Sequence[str],
    looks: Any,
    cost: float,
    groups: np.ndarray | None,
    seed: int,
) -> Estimate:
    """Fits the residual estimator to held-out samples (inputs, labels) and their groups, from
    `held_out.groups_of`; the other arguments and errors are those of `Judge.fit`."""
    known = None if reference is None else held_out.pair(reference)
    offered, budget = None, offer.check_budget(cost)
    wanted = budget, held_out.pair(samples), known, seed, bool(folds)
    if named := offer.check(looks) and not isinstance(looks, str):
        offered = offer.make(classifier, looks, *wanted)
    _say_passes(classifier, samples, copies, bool(offer.check(looks)))
    # A dataset may give other samples when it is read again.
    at_once = [*offered.looks.values()] if offered and is_dataset(samples[0]) else []
    own = held_out.collect(classifier, samples, reference, copies, looks=at_once, seed=seed)
    held_out.warn_of_one_class(own.held_out.labels, classifier.class_names, "learned from")
    seen, labels = own.held_out.seen, own.held_out.labels
    held_out.warn_if_poor(classifier, seen, labels, held_out.pair(samples))
    learned, hashes = own.held_out, dict(own.hashes)
    if groups is not None:
        learned = dataclasses.replace(learned, groups=groups[own.kept])
    if ensemble:
        mean = held_out.ensemble_probs(classifier, ensemble, own, own.versions)
        learned = dataclasses.replace(learned, ensemble=mean)
    others = held_out.collect_folds(
        classifier, folds, own, at_once, auto_copies=copies == held_out.AUTO, seed=seed
    )
    if others:
        hashes["folds"] = np.concatenate([fold.hashes["fit"] for fold in others])
    if not named and offer.check(looks):
        # Only now: whatever is wrong with an argument is known before minutes of training.
        offered = offer.make_auto(classifier, *wanted)
    if len({len(one.held_out.copies) for one in (own, *others)}) > 1 and copies == held_out.AUTO:
        # A dataset among them has none.
        own, *others = map(held_out.without_copies, (own, *others))
        learned = dataclasses.replace(learned, copies=(), kinds=())
    every = [learned, *(fold.held_out for fold in others)]
    if offered is not None:
        offered, every = look_again.at_held_out([own, *others], every, offered, seed)
    fit, layers, weights, _ = residual_fit.fit_residual(
        every[0],
        every[1:],
        allowed=evidence,
        offer=offered,
        seed=seed,
        batch_size=classifier.batch_size,
        verbose=classifier.verbose,
    )
    residual_choice.warn_of_few_errors(
        fit.errors, fit.samples, "held-out", "give more held-out samples"
    )
    if classifier.verbose and fit.tried:
        print(residual_choice.table_of(fit.tried))
    if classifier.verbose and not fit.evidence and offered is None:
        print('further answers to the same input may say more: fit(..., looks="auto")')
    if classifier.verbose and reference is None and set(evidence) > {"answer"}:
        print(
            "more is learned from the samples that the classifier was trained on: "
            "fit(..., reference=(x_train, y_train))"
        )
    formula = residual_formula(layers, weights)
    return Estimate("residual", formula, dataclasses.asdict(fit), hashes, own.input_range)


def _say_passes(
    classifier: AttachedClassifier, samples: Any, copies: Sequence[Any] | str, looks: bool
) -> None:
    """Says before long work how often the classifier will answer, and what makes it shorter.

    Args:
      classifier: Says it where it is verbose.
      samples: Held-out (inputs, labels), or a dataset.
      copies: See `Judge.fit`.
      looks: Whether any are on offer.
    """
    x, _ = held_out.pair(samples)
    each = 1 + (held_out.makes_copies(classifier, x) if copies == held_out.AUTO else len(copies))
    if each == 1 and not looks:
        return
    try:
        number = "" if is_dataset(x) else f"{named_inputs.count(classifier.rows_of(x)):,} "
    except TypeError:
        return  # They are no arrays, which is about to be told.
    times = "once" if each == 1 else f"{each} times, as it is and as a copy"
    then = "; then it looks again at those that MCP is unsure of" if looks else ""
    shorter = ", ".join(["looks=()"] * looks + ["copies=()"] * (each > 1))
    say(
        f"the classifier answers each of {number}held-out samples {times}{then}; "
        f"fit(..., {shorter}) is faster, and may learn less",
        classifier.verbose,
    )


def fit_btcp(
    classifier: AttachedClassifier, x: Any, y: Any, settings: TrainingSettings
) -> Estimate:
    """Trains the paper's estimator; arguments and errors are those of `Judge.fit_btcp`."""
    samples = classifier.samples(x, y, "training samples")
    held_out.warn_of_one_class(samples.labels, classifier.class_names, "learned from")
    held_out.warn_if_poor(classifier, samples.seen, samples.labels, (x, y))
    probs = special.softmax(samples.seen.logits, axis=1)
    with tempfile.TemporaryDirectory() as folder:
        estimator, facts = phases.fit_estimator(
            samples.seen.features, probs, samples.labels, settings, Path(folder)
        )
    n, errors = len(samples.labels), facts["train_errors"]
    sentence = f"BTCP: {errors} errors among {n} samples, gamma {facts['gamma']:.4g}"
    if facts["collapse"]:
        warn(facts["collapse"])
        sentence += f"; {facts['collapse']}"
    remedy = "fit learns from held-out samples, which have more"
    residual_choice.warn_of_few_errors(errors, n, "training", remedy)
    fit = {"samples": n, "errors": errors, **facts, "words": sentence}

    def formula(inputs: Any, features: Any, logits: Any, z: Any) -> dict[str, Any]:
        return {"uncertainty": estimator(features)}

    return Estimate("btcp", formula, fit, {"fit": samples.hashes}, samples.input_range)
