"""What is refused before a model answers: inputs that cannot be meant, labels that are none.

One rule for `Judge`, `Scorer` and the SavedModel: NaN and infinity are refused, and so are numbers
so far from those that the estimator was fitted on that they must be on another scale, such as
pixels from 0 to 255 where those were from 0 to 1. No TensorFlow here.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from btcp_tf.core import checks, wording
from btcp_tf.data import folders, named_inputs
from btcp_tf.data.images import PIXELS
from btcp_tf.data.named_inputs import Inputs

FAR = 10.0
"""Numbers farther outside the remembered range than this many times its width are refused.

Outliers of standardized features come nowhere near (a width is about 10 standard deviations);
pixels on the scale of another convention do."""

FLAT = 50.0
"""A sample whose numbers differ by less than the usual difference over this is flat: less than an
image that is nearly black, more than one from 0 to 1 or -1 to 1 among those from 0 to 255."""

_LEAST_NUMBERS = 16
"""A row of fewer numbers may have nearly equal ones by chance: no sample of those is flat."""


@dataclasses.dataclass(frozen=True)
class InputRange:
    """The numbers that an estimator was fitted on, of the model as a whole."""

    low: float
    high: float
    kind: str
    """Of NumPy's types: "f" floats, "i" and "u" whole numbers, "b" bool."""
    whole: bool
    """Whether all were whole numbers."""
    contrast: float | None = None
    """Usual difference (median) between the largest and the smallest number of one sample, constant
    samples aside; None: unknown, or too few numbers in a sample."""

    @classmethod
    def of(cls, x: np.ndarray, kind: str = "") -> Self:
        """Of finite numbers `[n, ...]`, n >= 1; `kind` is that of the type they came in."""
        flat = x.reshape(len(x), -1)
        spread = _spread(flat)
        spread = spread[spread > 0]
        known = flat.shape[1] >= _LEAST_NUMBERS and len(spread)
        return cls(
            float(flat.min()),
            float(flat.max()),
            kind or x.dtype.kind,
            x.dtype.kind != "f" or bool((flat == np.rint(flat)).all()),
            float(np.median(spread)) if known else None,
        )

    @classmethod
    def from_json(cls, content: Any) -> Self | None:
        """From `dataclasses.asdict`; None where there is none.

        Raises:
          ValueError: If it is something else.
        """
        if content is None:
            return None
        try:
            result = cls(**content)
            numbers = (result.low, result.high, result.contrast or 0.0)
            if not all(math.isfinite(number) for number in numbers) or result.low > result.high:
                raise ValueError("its limits are none")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"input_range: expected low, high, kind, whole and contrast, received "
                f"{content!r:.80} ({error})"
            ) from None
        return result

    def joined(self, other: "InputRange") -> "InputRange":
        """Of the numbers of both."""
        contrasts = [c for c in (self.contrast, other.contrast) if c is not None]
        return InputRange(
            min(self.low, other.low),
            max(self.high, other.high),
            self.kind if self.kind == other.kind else "f",
            self.whole and other.whole,
            min(contrasts, default=None),
        )

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest number that is taken."""
        room = FAR * ((self.high - self.low) or abs(self.high) or 1.0)
        return self.low - room, self.high + room

    def far(self, x: np.ndarray, kind: str = "") -> np.ndarray:
        """Which of finite samples `[n, ...]` hold a number beyond `limits`; bool `[n]`."""
        low, high = self.limits
        flat = x.reshape(len(x), -1)
        if (kind or x.dtype.kind) in "iu" and not self.whole:
            # Whole numbers in the place of fractions: of another scale already just outside.
            width = (self.high - self.low) or 1.0
            low, high = self.low - width, self.high + width
        return np.any((flat < low) | (flat > high), axis=1)

    def flat(self, x: np.ndarray) -> np.ndarray:
        """Which of finite samples `[n, ...]` vary as little as no sample does, constant ones aside;
        bool `[n]`."""
        if self.contrast is None:
            return np.zeros(len(x), bool)
        spread = _spread(x.reshape(len(x), -1))
        return (spread > 0) & (spread < self.contrast / FLAT)

    def all_flat(self, x: np.ndarray) -> np.ndarray:
        """Rows of the samples that are flat, if all that vary are; else none."""
        flat = self.flat(x)
        varied = _spread(x.reshape(len(x), -1)) > 0
        return np.flatnonzero(flat) if (flat == varied).all() else np.zeros(0, np.int64)

    def farthest(self, sample: np.ndarray) -> float:
        """The number of a sample that is farthest from the middle of the range."""
        values = sample.reshape(-1).astype(np.float64)
        return float(values[np.argmax(np.abs(values - (self.low + self.high) / 2))])

    @property
    def text(self) -> str:
        numbers = "whole numbers from " if self.whole and self.kind != "b" else ""
        return f"{numbers}{self.low:.6g} to {self.high:.6g}"


_KINDS = {"f": "floats", "i": "whole numbers", "u": "whole numbers", "b": "bool"}

REMEDY = (
    "scale them as for fit, or forget what fit saw: judge.input_range = None (then export again)"
)
"""What to do about a fault of the range."""


def _spread(flat: np.ndarray) -> np.ndarray:
    """Largest less smallest number of each row, float64 `[n]`."""
    return flat.max(axis=1).astype(np.float64) - flat.min(axis=1).astype(np.float64)


class InputWatch:
    """Looks at inputs batch by batch: refuses what cannot be meant, and remembers their range.

    Args:
      known: What the numbers are compared with; None: with nothing.
      name: Of the argument, for messages.
    """

    def __init__(self, known: InputRange | None = None, name: str = "x") -> None:
        self.range: InputRange | None = None
        """Of all numbers so far."""
        self._known = known
        self._name = name
        self._rows = self._varied = self._flat = 0

    def see(self, x: np.ndarray, kind: str = "") -> None:
        """A batch `[n, ...]` of numbers, n >= 1.

        Args:
          x: In the model's type.
          kind: Of the type that they came in; "": that of x.

        Raises:
          ValueError: If one is NaN or infinite, or beyond the known range by far.
        """
        if bad := not_finite(x):
            row, value = bad
            raise ValueError(
                f"{self._name}: expected finite numbers, received {value} in input "
                f"{self._rows + row}; fill in missing values as for the classifier's training, or "
                "leave the input out"
            )
        known, now = self._known, InputRange.of(x, kind)
        if known:
            if (far := known.far(x, kind)).any():
                row = int(np.argmax(far))
                raise ValueError(
                    f"{self._expected} {known.farthest(x[row]):.6g} in input {self._rows + row} "
                    f"({_KINDS.get(now.kind, now.kind)}); {REMEDY}"
                )
            self._varied += int((_spread(x.reshape(len(x), -1)) > 0).sum())
            self._flat += int(known.flat(x).sum())
        self._rows += len(x)
        self.range = now if self.range is None else self.range.joined(now)

    def end(self) -> None:
        """After the last batch.

        Raises:
          ValueError: If all that vary are flat: one may be a dark image, all of them are not.
        """
        if self._flat and self._flat == self._varied and self.range:
            raise ValueError(f"{self._expected} {self.range.text} in all of {self._rows}; {REMEDY}")

    @property
    def _expected(self) -> str:
        assert self._known is not None
        return f"{self._name}: expected numbers like those of fit, {self._known.text}, received"


Ranges = Any
"""An `InputRange`; of several inputs a dictionary of them by name, None for text; None."""


def to_json(ranges: Ranges) -> Any:
    """The JSON value of ranges; None where there are none."""
    return ranges and named_inputs.each(lambda one: one and dataclasses.asdict(one), ranges)


def from_json(content: Any) -> Ranges:
    """The inverse of `to_json`; errors as of `InputRange.from_json`."""
    if isinstance(content, dict) and all(isinstance(one, dict | None) for one in content.values()):
        return {name: InputRange.from_json(one) for name, one in content.items()} or None
    return InputRange.from_json(content)


def joined(first: Ranges, second: Ranges) -> Ranges:
    """Of the numbers of both, for the same inputs."""
    if first is None or second is None:
        return first or second
    if isinstance(first, InputRange):
        return first.joined(second)
    return named_inputs.each(joined, first, second)


class InputsWatch:
    """An `InputWatch` for each input; text has none.

    Args:
      known: What the numbers are compared with, by name where there are several inputs.
      name: Of the argument, for messages.
    """

    def __init__(self, known: Ranges = None, name: str = "x") -> None:
        self._known = known
        self._name = name
        self._watches: dict[str | None, InputWatch | None] = {}

    def see(self, x: Inputs, kinds: Any) -> None:
        """A batch of n >= 1 samples.

        Args:
          x: Arrays in the model's types.
          kinds: Of the types that they came in, by name where there are several.

        Raises:
          ValueError: As `InputWatch.see`, which names the input.
        """
        for name, array in named_inputs.items(x):
            if name not in self._watches:
                known = self._known if name is None else (self._known or {}).get(name)
                is_text = array.dtype.kind not in "biuf"
                where = named_inputs.place(self._name, name)
                self._watches[name] = None if is_text else InputWatch(known, where)
            if watch := self._watches[name]:
                watch.see(array, kinds if name is None else kinds[name])

    def end(self) -> None:
        """After the last batch; errors as of `InputWatch.end`."""
        for watch in filter(None, self._watches.values()):
            watch.end()

    @property
    def range(self) -> Ranges:
        """Of all numbers so far; None: there are none."""
        ranges = {name: watch and watch.range for name, watch in self._watches.items()}
        return ranges[None] if None in ranges else ranges or None


def not_finite(x: np.ndarray) -> tuple[int, float] | None:
    """Row and value of the first number of `[n, ...]` that is NaN or infinite; None: none is."""
    if x.dtype.kind != "f":
        return None
    bad = ~np.isfinite(x.reshape(len(x), -1))
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    return row, float(x.reshape(len(x), -1)[row][bad[row]][0])


def may_be_pixels(seen: InputRange, pixels: str) -> bool:
    """Whether numbers may be pixels from 0 to 255 in the scale of that name, of `data.PIXELS`."""
    scale, offset = PIXELS[pixels]
    low, high = offset, 255 * scale + offset
    room = 1e-4 * (high - low)
    # Some image reaches the upper half: else they may be on any scale.
    return low - room <= seen.low and (low + high) / 2 <= seen.high <= high + room


def pixels_of(seen: InputRange, rescaling: tuple[float, float] | None) -> str | None:
    """The scale of pixels, of `data.PIXELS`, that numbers are on; None: they do not tell.

    Args:
      seen: The numbers.
      rescaling: (scale, offset) of a layer that they go through first: one that brings 0 to 255
        into [0, 1] or [-1, 1] says that pixels are read as they are.
    """
    if rescaling is not None:
        scale, offset = rescaling
        if any(np.allclose((scale, offset), PIXELS[name], rtol=1e-2) for name in ("0_1", "-1_1")):
            return "0_255" if seen.high > 1 and 0 <= seen.low and seen.high <= 255.5 else None
    if may_be_pixels(seen, "-1_1") and seen.low < -0.5:
        return "-1_1"
    return next((name for name in ("0_1", "0_255") if may_be_pixels(seen, name)), None)


def class_numbers(labels: np.ndarray, classes: int, name: str = "y") -> np.ndarray:
    """Labels as they are, one-hot ones `[n, k]` as class numbers `[n]`.

    Args:
      labels: Of any shape.
      classes: k.
      name: Of the argument.

    Raises:
      ValueError: If they are `[n, k]`, but not one-hot.
    """
    if labels.ndim != 2 or labels.shape[1] != classes or classes < 2:
        return labels
    if labels.dtype.kind not in "biuf":
        return labels
    one_hot = ((labels == 0) | (labels == 1)).all(axis=1) & ((labels == 1).sum(axis=1) == 1)
    if not one_hot.all():
        row = int(np.argmin(one_hot))
        raise ValueError(
            f"{name}: expected labels [n], or one-hot ones [n, {classes}], received shares of "
            f"classes in row {row} ({np.array2string(labels[row], threshold=8)}); "
            "take labels.argmax(axis=1) where the likeliest class is the true one"
        )
    return labels.argmax(axis=1)


_NAME_THEM = (
    "name all classes in the order of the classifier's answers: "
    "btcp_tf.attach(classifier, class_names=[...])"
)


def check_labels(
    y: Any, n: int, class_names: Sequence[str], name: str = "y", by_name: str = _NAME_THEM
) -> np.ndarray:
    """Labels as class numbers.

    Args:
      y: `[n]`, `[n, 1]` or one-hot `[n, k]`; or names of classes, unless these are the numbers 0 to
        k - 1. Where classes are called 1 to k, whole numbers count from 1 if k is among them, and
        from 0 if 0 is.
      n: Number of samples.
      class_names: Names of the k classes.
      name: Name of the argument.
      by_name: What to do about names of classes that are not known.

    Returns:
      int64 `[n]`, from 0 to k - 1.

    Raises:
      ValueError: If y is something else.

    >>> check_labels([[0, 1, 0], [1, 0, 0]], 2, ["0", "1", "2"])
    array([1, 0])
    >>> check_labels(["dog", "cat"], 2, ["cat", "dog"])
    array([1, 0])
    >>> check_labels([2, 1], 2, ["1", "2"])
    array([1, 0])
    """
    if y is None:
        raise ValueError(f"{name}: expected labels [n], received none")
    classes = len(class_names)
    given = np.asarray(y)
    labels = class_numbers(given, classes, name)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    texts = _as_text(labels)
    is_text = texts is not None
    if texts is not None and list(class_names) != [str(number) for number in range(classes)]:
        labels, texts = _numbers_of(texts, class_names, name, by_name), None
    whole = labels.dtype.kind in "biu" or (labels.dtype.kind == "f" and (labels % 1 == 0).all())
    if labels.shape != (n,) or not whole:
        remedy = ""
        if texts is not None:
            remedy = f"; to give them by name, {by_name}"
        elif labels.dtype.kind == "f" and not whole:
            remedy = "; a classifier's labels are classes, not quantities"
        raise ValueError(
            f"{name}: expected {n} labels, whole numbers, received {labels.dtype} "
            f"{wording.shape_text(labels.shape)}{remedy}"
        )
    labels = labels.astype(np.int64)
    if given.size == n and not is_text:  # Nor do one-hot labels count from anywhere.
        labels = labels - first_number(labels, class_names, name)
    if not n or labels.min() < 0 or labels.max() >= classes:
        received = f"{labels.min()} to {labels.max()}" if n else "none"
        raise ValueError(
            f"{name}: expected labels from 0 to {classes - 1}, received {received}"
            f"{wording.from_one(labels, classes)}"
        )
    return labels


def names_from_one(classes: int) -> list[str]:
    """What classes are called that are counted from 1.

    >>> names_from_one(3)
    ['1', '2', '3']
    """
    return [str(number) for number in range(1, classes + 1)]


def first_number(labels: np.ndarray, class_names: Sequence[str], name: str) -> int:
    """The number that stands for the first class: 0, or 1 where the classes are called 1 to k and
    whole numbers as labels count so, too.

    Args:
      labels: All labels together, int64 `[n]`.
      class_names: Names of the k classes.
      name: Of the labels, for errors.

    Raises:
      ValueError: If classes are called so and neither 0 nor k is among the labels.

    >>> [first_number(np.array([1, 2]), names, "y") for names in (["1", "2"], ["a", "b"])]
    [1, 0]
    """
    classes = len(class_names)
    if list(class_names) != names_from_one(classes) or not labels.size or labels.min() <= 0:
        return 0
    if labels.max() >= classes:
        return 1
    raise ValueError(
        f"{name}: expected a 0 or a {classes} among the labels, as the classes are called 1 to "
        f"{classes}, received {labels.min()} to {labels.max()}, which may count from 0 or from 1; "
        "give them as text, which is taken for names: labels.astype(str)"
    )


def names_among(y: Any, classes: int) -> list[str]:
    """Names of classes as labels tell them: the different words in alphabetical order, or 1 to k
    where they count so; none: they are numbers from 0, or something else.

    >>> names_among(["dog", "cat", "dog"], 2), names_among([1, 0], 2), names_among([1, 2], 2)
    (['cat', 'dog'], [], ['1', '2'])
    """
    labels = checks.array("y", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind in "iuf" and wording.from_one(labels, classes):
        return names_from_one(classes)
    texts = _as_text(labels) if labels.ndim == 1 else None
    if texts is None:
        return []
    words = set(texts.tolist())
    if words == set(names_from_one(classes)):
        return names_from_one(classes)
    return [] if all(word.isdecimal() for word in words) else sorted(words)


def _as_text(labels: np.ndarray) -> np.ndarray | None:
    """Labels that are text, as `str`; None: they are something else."""
    is_text = labels.dtype.kind in "US" or all(isinstance(one, str | bytes) for one in labels.flat)
    if not is_text or not labels.size:
        return None
    texts = [
        wording.clean(one.decode(errors="replace") if isinstance(one, bytes) else str(one))
        for one in labels.flat
    ]
    return np.array(texts).reshape(labels.shape)


def _numbers_of(
    texts: np.ndarray, class_names: Sequence[str], name: str, by_name: str
) -> np.ndarray:
    """Names of classes as their numbers."""
    numbers = {one: number for number, one in enumerate(class_names)}
    unknown = sorted({str(text) for text in texts.flat} - set(numbers))
    if unknown:
        raise ValueError(
            f"{name}: expected names of classes ({folders.some(class_names)}), received "
            f"{folders.some(unknown)}; {by_name}"
        )
    return np.array([numbers[str(text)] for text in texts.flat]).reshape(texts.shape)
