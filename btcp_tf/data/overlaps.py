"""Samples that stand in several parts of a data set, found by hashes of what they are.

A sample that was trained on says nothing of how often the classifier errs on new ones. No
TensorFlow here.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btcp_tf import metrics
from btcp_tf.core.rows import pieces

if TYPE_CHECKING:
    from btcp_tf.data.splits import Dataset, Split

PARTS = ("train", "validation", "calibration", "test")
"""Of a data set, in the order in which they become known."""

MOST_KNOWN_TEST = 0.01
"""Up to this share, known test images stay in the evaluation: a published test set is whole."""

MOST_KNOWN_CALIBRATION = 0.05
"""Above this share of known calibration images no error rate is promised, not even on the others:
many of those may be copies, too, that are not equal to the bit."""

LEAST_NEW = 0.1
"""Share of a part that must be new for the part to be of use."""


def sample_hashes(x: Any) -> np.ndarray:
    """One number for each sample, equal for equal samples.

    Equal are samples of the same shape, axes of length 1 aside, and the same numbers, whatever
    their type: pixels as uint8 and as float32 of 0 to 255 have one hash. Real numbers count as
    float32. Of text, each character counts.

    Args:
      x: `[n, ...]`, numbers, words or bytes.

    Returns:
      uint64 `[n]`, of BLAKE2b. Two different ones of a million samples have the same hash with a
      probability of 3e-8.

    Raises:
      ValueError: If x has no axis of samples.

    Example:
      >>> first, second = sample_hashes(np.array([[0, 255], [0, 255]], np.uint8))
      >>> bool(first == second)
      True
    """
    samples = metrics.array("x", x)
    if not samples.ndim:
        raise ValueError("x: expected samples [n, ...], received a single value")
    shape = ",".join(str(length) for length in samples.shape[1:] if length != 1)
    start = hashlib.blake2b(shape.encode(), digest_size=8)
    hashes = np.empty(len(samples), np.uint64)
    for piece in pieces(samples):
        part = samples[piece].reshape(piece.stop - piece.start, -1)
        for row, content in enumerate(_contents(part), piece.start):
            digest = start.copy()
            digest.update(content)
            hashes[row] = int.from_bytes(digest.digest(), "little")
    return hashes


def _contents(rows: np.ndarray) -> list[Any]:
    """What the samples `[n, values]` are, in bytes that do not depend on their type."""
    if rows.dtype.kind not in "buif":
        return [b"".join(_text(value) for value in row) for row in rows.tolist()]
    if rows.dtype == np.uint8:
        return list(np.ascontiguousarray(rows))
    if rows.dtype.kind == "f":
        rows = rows.astype(np.float32)
    with np.errstate(invalid="ignore"):
        pixels = rows.astype(np.uint8)
    whole = (pixels == rows).all(axis=1)
    return [
        # Whole numbers are exact up to 2^53; -0 becomes 0.
        pixel if is_pixel else row.astype(np.float64) + 0.0
        for row, pixel, is_pixel in zip(rows, pixels, whole, strict=True)
    ]


def _text(value: Any) -> bytes:
    content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    # With its length: ("ab", "c") is not ("a", "bc").
    return b"%d " % len(content) + content


@dataclasses.dataclass(frozen=True)
class Overlaps:
    """Which images of a data set stand in several of its parts; from `between`."""

    shared: dict[str, dict[str, int]]
    """Part → earlier part → how many of the part's images stand there, if there are any."""
    known: dict[str, np.ndarray]
    """Part → bool `[n]`: stands in an earlier part."""
    repeats: dict[str, int]
    """Part → how many images repeat another one of the same part, if there are any."""
    two_labels: int
    """Number of different images that have more than one label, in all parts together."""
    example: tuple[tuple[str, int, int], ...] = ()
    """(part, row, label) of two equal images with two labels."""

    def share(self, part: str) -> float:
        """Of the part's images that are known."""
        return float(self.known[part].mean()) if part in self.known else 0.0

    @property
    def left_out(self) -> dict[str, np.ndarray]:
        """Part → bool `[n]`: is left out of choices, calibration and evaluation."""
        keep_test = self.share("test") <= MOST_KNOWN_TEST
        return {
            part: known & (part != "test" or not keep_test) for part, known in self.known.items()
        }

    @property
    def no_promise(self) -> str:
        """Why no error rate can be promised, in words; "": it can be."""
        share = self.share("calibration")
        if share <= MOST_KNOWN_CALIBRATION:
            return ""
        return (
            f"{share:.1%} of the calibration images stand in the training or validation images, "
            f"more than the {MOST_KNOWN_CALIBRATION:.0%} up to which the others are taken for new"
        )

    def as_json(self) -> dict[str, Any]:
        """What `results.json` says of them."""
        return {
            "shared": self.shared,
            "repeats": self.repeats,
            "two_labels": self.two_labels,
            "left_out": {
                part: np.flatnonzero(rows).tolist()
                for part, rows in self.left_out.items()
                if rows.any()
            },
        }


NONE = Overlaps({}, {}, {}, 0)
"""Of parts that were not compared."""


def between(parts: "Mapping[str, Split]") -> Overlaps:
    """Compares all images of all parts.

    Args:
      parts: By name, in the order in which they become known.
    """
    hashes = {name: sample_hashes(part.images) for name, part in parts.items()}
    shared: dict[str, dict[str, int]] = {}
    known = {}
    for number, (name, own) in enumerate(hashes.items()):
        copies = {earlier: np.isin(own, hashes[earlier]) for earlier in list(hashes)[:number]}
        known[name] = np.any([np.zeros(len(own), bool), *copies.values()], axis=0)
        counts = {earlier: int(rows.sum()) for earlier, rows in copies.items() if rows.any()}
        if counts:
            shared[name] = counts
    repeats = {name: len(own) - len(np.unique(own)) for name, own in hashes.items()}
    two_labels, example = _two_labels(parts, hashes)
    return Overlaps(
        shared, known, {name: n for name, n in repeats.items() if n}, two_labels, example
    )


def _two_labels(
    parts: "Mapping[str, Split]", hashes: Mapping[str, np.ndarray]
) -> tuple[int, tuple[tuple[str, int, int], ...]]:
    """How many images have several labels, and two equal ones with two: (part, row, label)."""
    labels = np.concatenate([part.labels for part in parts.values()])
    _, group = np.unique(np.concatenate(list(hashes.values())), return_inverse=True)
    order = np.lexsort((labels, group))
    # Of neighbors in this order, equal images with different labels.
    before, after = order[:-1], order[1:]
    differ = (group[before] == group[after]) & (labels[before] != labels[after])
    if not differ.any():
        return 0, ()
    first = int(np.flatnonzero(differ)[0])
    names, starts = list(parts), np.cumsum([0, *map(len, parts.values())])

    def place(row: int) -> tuple[str, int, int]:
        number = int(np.searchsorted(starts, row, side="right")) - 1
        return names[number], int(row - starts[number]), int(labels[row])

    example = place(before[first]), place(after[first])
    return len(np.unique(group[before][differ])), example


def leave_out(dataset: "Dataset", overlaps: Overlaps) -> "Dataset":
    """The data set with its overlaps, without what is known in its later parts.

    For all that comes after the training: what is trained does not depend on it. So the
    fingerprint, which guards checkpoints, stays.

    Raises:
      ValueError: If less than `LEAST_NEW` of a part is new.
    """
    kept: dict[str, Any] = {}
    for part, rows in overlaps.left_out.items():
        if not rows.any():
            continue
        if overlaps.share(part) > 1 - LEAST_NEW:
            raise ValueError(
                f"{part}: expected images that stand in no other part of {dataset.name}, received "
                f"{rows.sum():,} of {len(rows):,} that do ({_counts(overlaps.shared[part])}); "
                "remove the copies"
            )
        kept[part] = getattr(dataset, part).take(~rows)
    return dataclasses.replace(dataset, overlaps=overlaps, **kept)


def notes(overlaps: Overlaps, class_names: Sequence[str]) -> list[str]:
    """What a reader must know of the overlaps."""
    result = []
    for part, counts in overlaps.shared.items():
        rows = overlaps.known[part]
        row = int(np.flatnonzero(rows)[0])
        what = (
            "they are left out"
            if overlaps.left_out[part].any()
            else f"they stay, as they are at most {MOST_KNOWN_TEST:.0%} of the test images"
        )
        result.append(
            f"{rows.sum():,} of {len(rows):,} {part} images, such as number {row}, also stand in "
            f"other parts ({_counts(counts)}): {what}"
        )
    if overlaps.two_labels:
        where = " and ".join(
            f"as {class_names[label]} ({part} image {row})" for part, row, label in overlaps.example
        )
        result.append(
            f"{overlaps.two_labels:,} image{'s have' if overlaps.two_labels > 1 else ' has'} more "
            f"than one label; one stands there {where}"
        )
    if overlaps.no_promise:
        result.append(f"no error rate is promised: {overlaps.no_promise}")
    return result


def _counts(shared: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} in {part}" for part, count in shared.items())
