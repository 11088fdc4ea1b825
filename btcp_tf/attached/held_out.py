"""What `Judge.fit` learns from: held-out samples, copies, a reference, folds, an ensemble."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from btcp_tf.attached import inference
from btcp_tf.attached.classifier import AttachedClassifier, Samples
from btcp_tf.attached.inference import errors_name, is_dataset
from btcp_tf.core import checks
from btcp_tf.core.groups import numbers
from btcp_tf.core.warning import warn
from btcp_tf.data import corruptions, input_checks, known, named_inputs
from btcp_tf.data.input_checks import InputRange, Ranges
from btcp_tf.data.known import Overlap, Part
from btcp_tf.methods.looks import Look
from btcp_tf.methods.residual_fit import HeldOut
from btcp_tf.methods.seen import Seen
from btcp_tf.networks import plausibility
from btcp_tf.training import adopted

AUTO = "auto"
"""The argument `copies` of `Judge.fit` that stands for a random copy of each image."""

_LEAST = 1e-30
"""Width of a range of pixels of which a copy can be computed."""

_LOOKED_AT = 2000
"""Samples by which it is judged whether a classifier can be right."""


@dataclasses.dataclass(frozen=True, eq=False)
class LearnedFrom:
    """What an estimator learns from, of one classifier."""

    classifier: AttachedClassifier
    versions: tuple[Any, ...]
    """Inputs: the samples, or a dataset of them, then the copies."""
    held_out: HeldOut
    kept: np.ndarray
    """Rows of the samples that are in it."""
    hashes: dict[str, np.ndarray]
    """Hashes of all samples, by part: "fit", "copies", "reference"."""
    input_range: Ranges
    """Range of all inputs; None: text."""


def collect(
    classifier: AttachedClassifier,
    samples: Any,
    reference: Any,
    copies: Sequence[Any] | str,
    like: Ranges = None,
    looks: Sequence[Look] = (),
    seed: int = 0,
) -> LearnedFrom:
    """What an estimator learns from the answers of one classifier.

    Args:
      classifier: Answers the samples.
      samples: Held-out (inputs, labels), or a dataset.
      reference: (inputs, labels) that the classifier was trained on, or a dataset; None: none.
        Held-out samples that are among them are left out, with a warning.
      copies: Other versions of the held-out inputs; "auto": where they are images, a random copy.
      like: The range that inputs are compared with; None: that of the held-out ones.
      looks: At the samples and the copies, all of them.
      seed: Seed of a random copy.

    Raises:
      ValueError: See `Judge.fit`.
    """
    x, y = pair(samples)
    if copies and copies != AUTO and is_dataset(x):
        # Shuffled anew, it would come in another order.
        raise ValueError("copies: expected none beside a dataset, received some")
    title = "held-out samples" + (f", {len(looks)} looks at each" if looks else "")
    own = classifier.samples(x, y, title, like, looks)
    like = like or own.input_range
    kinds: tuple[np.ndarray, ...] = ()
    names = [f"copies[{number}]" for number in range(len(copies))]
    is_given = not isinstance(copies, str)
    if isinstance(copies, str):
        copies, kinds = _random_copies(classifier, x, own.input_range, seed)
        names = ["a corrupted copy of each"] * len(copies)
    copied = [
        _copy(classifier, copy, own.labels, name, like, looks)
        for name, copy in zip(names, copies, strict=True)
    ]
    hashes = {"fit": own.hashes}
    if copied and is_given:
        hashes["copies"] = np.concatenate([copy.hashes for copy in copied])
    ranges = [own.input_range, *(copy.input_range for copy in copied)]
    known_answers, kept = None, np.arange(len(own.labels))
    if reference is not None:
        trained_on = _reference(classifier, reference, like)
        known_answers = (trained_on.seen, trained_on.labels)
        hashes["reference"] = trained_on.hashes
        ranges.append(trained_on.input_range)
        parts = {"reference": Part.of(trained_on.hashes)}
        kept = unknown_rows(known.overlap(own.hashes, parts, parts), "learned from")
    held_out = HeldOut(
        _seen_rows(own.seen, kept),
        own.labels[kept],
        known_answers,
        tuple(_seen_rows(copy.seen, kept) for copy in copied),
        tuple(own_kinds[kept] for own_kinds in kinds),
    )
    joined = functools.reduce(input_checks.joined, ranges)
    return LearnedFrom(classifier, (x, *copies), held_out, kept, hashes, joined)


def without_copies(learned: LearnedFrom) -> LearnedFrom:
    """The same without the copies."""
    held = dataclasses.replace(learned.held_out, copies=(), kinds=())
    return dataclasses.replace(learned, held_out=held, versions=learned.versions[:1])


def makes_copies(classifier: AttachedClassifier, x: Any) -> bool:
    """Whether inputs are of a kind that random copies are made of: images in an array."""
    return classifier.sees_images and not is_dataset(x)


def _random_copies(
    classifier: AttachedClassifier, x: Any, known: Ranges, seed: int
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """A random copy of images, and what was done to each; of other inputs none."""
    if not makes_copies(classifier, x) or not isinstance(known, InputRange):
        return (), ()
    images = np.asarray(classifier.rows_of(x))
    width = known.high - known.low
    # Pixels are computed in single precision.
    if not _LEAST < width < 1 / _LEAST or images.dtype.kind not in "buif":
        return (), ()
    with_channels = images if images.ndim == 4 else images[..., None]
    copied, kinds = corruptions.random_copy(with_channels, seed, known.low, known.high)
    return (copied.reshape(images.shape),), (kinds,)


def _copy(
    classifier: AttachedClassifier,
    x: Any,
    labels: np.ndarray,
    name: str,
    like: Ranges,
    looks: Sequence[Look],
) -> Samples:
    with errors_name(name):
        if is_dataset(x):
            raise ValueError("expected an array, received a dataset")
        if (count := named_inputs.count(classifier.rows_of(x))) != len(labels):
            raise ValueError(f"expected {len(labels)} inputs as in x, received {count}")
        return classifier.samples(x, labels, name, like, looks)


def _reference(classifier: AttachedClassifier, reference: Any, like: Ranges) -> Samples:
    with errors_name("reference"):
        samples = classifier.samples(*pair(reference), "reference samples", like)
        if (count := len(samples.labels)) < 2:
            raise ValueError(f"expected at least 2 samples, received {count}")
    return samples


def pair(samples: Any) -> tuple[Any, Any]:
    """(inputs, labels), or a dataset of both, as two arguments."""
    if not isinstance(samples, tuple | list):
        return samples, None
    if len(samples) != 2:
        raise ValueError(f"expected a pair (inputs, labels), received {len(samples)} parts")
    return samples[0], samples[1]


def _seen_rows(seen: Seen, rows: np.ndarray) -> Seen:
    columns: list[Any] = [None if column is None else column[rows] for column in seen]
    return Seen(*columns)


def overlap(hashes: np.ndarray, parts: Mapping[str, Part], also: Iterable[str] = ()) -> Overlap:
    """Which samples an estimator, or its classifier, learned from.

    Args:
      hashes: Hashes of the samples, uint64 `[n]`.
      parts: Known samples, by name of the part.
      also: Parts that are counted in the words, but do not make a sample known.
    """
    learned = known.overlap(hashes, parts, _LEARNED)
    more = known.overlap(hashes, parts, also)
    return Overlap(learned.known, "; ".join(filter(None, (learned.text, more.text))))


_LEARNED = ("fit", "copies", "folds", "reference", "recalibrate")
"""Parts whose samples u was learned from."""


def unknown_rows(overlap: Overlap, done: str) -> np.ndarray:
    """Rows of the samples that are not known, with a warning that says how many are.

    Args:
      overlap: Which samples are known.
      done: What is done with the others, for the warning.

    Raises:
      ValueError: If none is left.
    """
    rest = np.flatnonzero(~overlap.known)
    if not len(rest):
        raise ValueError(
            f"x: expected samples that have not been seen, received: {overlap.text}; on those "
            "classifier and u look better than they are: give fresh samples"
        )
    if overlap.text:
        left_out = len(overlap.known) - len(rest)
        warn(f"x: {overlap.text}" + (f"; left out, {len(rest)} are {done}" if left_out else ""))
    return rest


def collect_folds(
    classifier: AttachedClassifier,
    folds: Sequence[tuple[Any, ...]],
    own: LearnedFrom,
    looks: Sequence[Look] = (),
    *,
    auto_copies: bool = False,
    seed: int = 0,
) -> list[LearnedFrom]:
    """What an estimator learns from further classifiers.

    Args:
      classifier: The one that the estimator is for.
      folds: See `Judge.fit`.
      own: What is learned from its own answers; inputs of folds are compared with its range, and
        samples that stand in both are a warning.
      looks: See `collect`.
      auto_copies: Whether copies are made as for x.
      seed: See `collect`.
    """
    collected = []
    for number, (fold, samples, reference, *copies) in enumerate(folds):
        with errors_name(f"folds[{number}]"):
            x = samples[0] if isinstance(samples, tuple | list) and samples else samples
            other = classifier.take_alike_apart(fold, x)
            versions = AUTO if auto_copies else copies[0] if copies else ()
            # The same random numbers for all would make the same copies of the same samples.
            collected.append(
                collect(
                    other, samples, reference, versions, own.input_range, looks, seed + 1 + number
                )
            )
    if collected:
        hashes = np.concatenate([fold.hashes["fit"] for fold in collected])
        parts = {"folds": Part.of(hashes)}
        if text := known.overlap(own.hashes["fit"], parts, parts).text:
            warn(f"x: {text}")
    return collected


def ensemble_probs(
    classifier: AttachedClassifier,
    members: Sequence[Any],
    own: LearnedFrom,
    versions: Sequence[Any],
) -> tuple[np.ndarray, ...]:
    """Mean probabilities `[n, k]` of the classifier and the members, for each version of x.

    Args:
      classifier: The one that the estimator is for.
      members: Further classifiers.
      own: What is learned from the classifier's own answers.
      versions: x, then its copies.
    """
    held_out = own.held_out
    totals = [special.softmax(seen.logits, axis=1) for seen in (held_out.seen, *held_out.copies)]
    for number, member in enumerate(members):
        with errors_name(f"ensemble[{number}]"):
            other = classifier.take_alike_apart(member, versions[0])
            for total, x in zip(totals, versions, strict=True):
                total += other.probs(x, f"ensemble[{number}]")[own.kept]
    return tuple(total / (1 + len(members)) for total in totals)


def warn_of_one_class(labels: np.ndarray, class_names: Sequence[str], done: str) -> None:
    """Warns of labels of one class alone, whose answers say nothing of others.

    Args:
      labels: Class numbers `[n]`; a single one is no reason.
      class_names: Names of all classes.
      done: What is done with the samples, for the warning.
    """
    present = np.unique(labels)
    if len(present) == 1 < len(labels):
        warn(
            f"y: expected labels of several classes, received {len(labels):,} of "
            f"{class_names[present[0]]!r} alone: what is {done} them holds for no other class"
        )


def warn_if_poor(
    classifier: AttachedClassifier, seen: Seen, labels: np.ndarray, samples: tuple[Any, Any]
) -> None:
    """Warns of a classifier that cannot be right, by the rules by which a run refuses one.

    A random part of the samples is looked at, so that it takes as long for many as for few.

    Args:
      classifier: Takes no harm.
      seen: Its answers.
      labels: True classes `[n]`.
      samples: The (inputs, labels) that the answers belong to, or (dataset, None).
    """
    rows = np.random.default_rng(0).permutation(len(labels))[:_LOOKED_AT]
    result = plausibility.examine(seen.logits[rows], labels[rows], classifier.class_names)
    if result.problem:
        warn(
            f"the classifier is {result.problem}; suspects are the scale of x (pixels from 0 to "
            "1, say, where it was trained on 0 to 255), the order of the color channels, and "
            "that of the classes in y, or it is not trained"
        )
    elif adopted.may_be_untrained(result) and (network := classifier.copy()):
        x, y = inference.random_rows(*samples, adopted.SHUFFLED_SAMPLES, like=classifier.inputs)
        few = classifier.samples(x, y, "")
        reason = adopted.outdone(network, classifier.check_inputs(x), few.labels, few.seen.logits)
        if reason:
            warn(f"the classifier is {reason}")


def check_list(name: str, value: Any, of: str) -> None:
    """ValueError unless an argument is a list."""
    if not isinstance(value, tuple | list):
        raise ValueError(f"{name}: expected a list of {of}, received {type(value).__name__}")


def check_copies(copies: Any) -> None:
    """ValueError unless the argument `copies` of `Judge.fit` is well formed."""
    is_word = isinstance(copies, str)
    if copies != AUTO if is_word else not isinstance(copies, tuple | list):
        received = repr(copies) if is_word else type(copies).__name__
        raise ValueError(
            f"copies: expected {AUTO}, or a list of arrays (empty: none), received {received}"
        )


def check_folds(folds: Any, reference: Any, copies: Any) -> None:
    """ValueError unless the argument `folds` of `Judge.fit` is well formed."""
    form = "folds: expected (classifier, held-out samples, reference), perhaps copies, received"
    if not isinstance(folds, tuple | list):
        raise ValueError(f"{form} {type(folds).__name__}")
    for number, fold in enumerate(folds):
        if not isinstance(fold, tuple | list) or len(fold) not in (3, 4):
            parts = f" of {len(fold)}" if isinstance(fold, tuple | list) else ""
            raise ValueError(f"{form} {type(fold).__name__}{parts}")
        if (fold[2] is None) != (reference is None):
            wanted, received = ("none", "one") if reference is None else ("one", "none")
            raise ValueError(
                f"folds[{number}]: expected {wanted} for a reference, as beside x, received "
                f"{received}"
            )
        own = fold[3] if len(fold) == 4 else ()
        check_list(f"folds[{number}]: copies", own, "arrays")
        count = 0 if isinstance(copies, str) else len(copies)
        if len(own) != count:
            raise ValueError(
                f"folds[{number}]: expected {count} copies, as of x, received {len(own)}"
            )


def groups_of(groups: Any, x: Any, like: Any, folds: Any = ()) -> np.ndarray | None:
    """The argument `groups` of `Judge`'s methods as numbers `[n]`; None: there are none.

    Args:
      groups: The argument.
      x: Inputs.
      like: The model's symbolic input, or several by name.
      folds: Of `Judge.fit`.

    Raises:
      ValueError: Unless it goes with the others; see `core.groups.numbers`.
    """
    if groups is None:
        return None
    if is_dataset(x) or folds:
        other = "folds" if folds else "a dataset"
        raise ValueError(f"groups: expected none beside {other}, received some")
    return numbers(groups, named_inputs.count(inference.rows_of(x, like)))


def names_of_groups(by: Any, x: Any, like: Any) -> np.ndarray | None:
    """The argument `by` of `Judge`'s methods as names `[n]`; None: there is none.

    Args:
      by: The argument, groups.
      x: Inputs.
      like: The model's symbolic input, or several by name.

    Raises:
      ValueError: Unless there is one of each input.
    """
    if by is None:
        return None
    if isinstance(by, str):
        raise ValueError(
            f"by: expected groups, one of each input, received {by!r}; for a threshold of each "
            'predicted class: select_threshold(..., by="predicted"), and no by elsewhere'
        )
    if is_dataset(x):
        raise ValueError("by: expected groups with inputs in arrays, received them with a dataset")
    return checks.group_names("by", by, named_inputs.count(inference.rows_of(x, like)))


def check_ensemble(ensemble: Any, x: Any, folds: Any) -> None:
    """ValueError unless the argument `ensemble` of `Judge.fit` goes with the others."""
    check_list("ensemble", ensemble, "classifiers")
    if ensemble and folds:
        raise ValueError(
            "ensemble: expected none beside folds, whose held-out samples it was trained on, "
            "received one"
        )
    if ensemble and is_dataset(x):
        # Shuffled anew, it would come in another order.
        raise ValueError("ensemble: expected none beside a dataset, received one")
