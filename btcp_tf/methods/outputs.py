"""The inputs of a method: a classifier's outputs, on samples to score and on samples to fit on."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from btcp_tf import metrics
from btcp_tf.core.rows import all_finite, take

if TYPE_CHECKING:
    from btcp_tf.methods.looks import Offer
    from btcp_tf.methods.residual_fit import HeldOut


@dataclasses.dataclass(frozen=True, eq=False)
class Outputs:
    """What a trained classifier answers to n samples.

    Checked on construction; floats become float32, labels int64.

    Raises:
      ValueError: If the shapes do not fit together or a number is not finite; the message names the
        field and the first bad row.

    >>> outputs = Outputs.from_probs([[0.75, 0.25], [0.5, 0.5]], labels=[0, 1])
    >>> outputs.predicted.tolist(), outputs[[1]].labels.tolist()
    ([0, 0], [1])
    """

    features: np.ndarray
    """Input of the last dense layer, [n, d]."""
    logits: np.ndarray
    """[n, k], k > 1."""
    probs: np.ndarray
    """Softmax of the logits, [n, k]."""
    labels: np.ndarray | None = None
    """True classes, [n], integers in [0, k); None where no class is right or it is unknown."""
    sampled: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Mean probabilities [n, k] of the passes with dropout ("dropout") or of the ensemble's members
    ("ensemble"); "few_passes" and "few_members": of as many as the looks of the run cost."""
    view: np.ndarray | None = None
    """[n, v + 1], from `networks.evidence_layers.View`; None: `residual` does without."""
    odds: np.ndarray | None = None
    """[n, j], of each look that `residual_looks` may use the log odds against the predicted class;
    None: no looks."""
    quality: np.ndarray | None = None
    """[n, q], from `networks.image_quality.ImageQuality`; None: they are no images."""

    def __post_init__(self) -> None:
        logits = _finite("logits", self.logits, (None, None))
        n, k = logits.shape
        if k < 2:
            raise ValueError(
                f"logits: expected at least 2 classes, received shape {list(logits.shape)}"
            )
        fields = {
            "features": _finite("features", self.features, (n, None)),
            "logits": logits,
            "probs": _finite("probs", self.probs, (n, k)),
            "sampled": {
                name: _finite(f"sampled[{name!r}]", mean, (n, k))
                for name, mean in self.sampled.items()
            },
        }
        for name in ("view", "odds", "quality"):
            if (columns := getattr(self, name)) is not None:
                fields[name] = _finite(name, columns, (n, None))
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if labels.shape != (n,) or labels.dtype.kind not in "iu":
                raise ValueError(
                    f"labels: expected integers of shape [{n}], "
                    f"received {labels.dtype} of shape {list(labels.shape)}"
                )
            good = (labels >= 0) & (labels < k)
            metrics.check_rows(good, labels, f"labels: expected classes 0 to {k - 1}")
            fields["labels"] = labels.astype(np.int64, copy=False)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_probs(
        cls,
        probs: ArrayLike,
        labels: ArrayLike | None = None,
        features: ArrayLike | None = None,
        **sampled: ArrayLike,
    ) -> "Outputs":
        """Outputs of a classifier of which little more than the probabilities is known.

        Args:
          probs: [n, k].
          labels: [n].
          features: [n, d]; None: the probabilities.
          **sampled: See the attribute.
        """
        p = np.asarray(probs, np.float32)
        logits = np.log(np.maximum(p, np.finfo(np.float32).tiny))
        vectors = p if features is None else np.asarray(features, np.float32)
        means = {name: np.asarray(mean, np.float32) for name, mean in sampled.items()}
        return cls(vectors, logits, p, None if labels is None else np.asarray(labels), means)

    def __getitem__(self, rows: ArrayLike) -> "Outputs":
        """The outputs for some samples, a mask or their numbers."""
        rows = np.asarray(rows)
        return Outputs(
            take(self.features, rows),
            take(self.logits, rows),
            take(self.probs, rows),
            None if self.labels is None else self.labels[rows],
            {name: take(mean, rows) for name, mean in self.sampled.items()},
            None if self.view is None else take(self.view, rows),
            None if self.odds is None else take(self.odds, rows),
            None if self.quality is None else take(self.quality, rows),
        )

    @property
    def predicted(self) -> np.ndarray:
        """The most probable class, [n] int64."""
        return self.probs.argmax(axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """What a method may be fitted on: never test data.

    Raises:
      ValueError: If labels are missing, shapes do not fit together, or a setting is out of range.
    """

    train: Outputs
    """With labels."""
    validation: Outputs
    """With labels."""
    kernel: np.ndarray
    """Weights of the last dense layer, [d, k]."""
    bias: np.ndarray
    """Biases of the last dense layer, [k]."""
    seed: int = 0
    """Seed of the control `random`, and of `residual`."""
    alpha: float = 0.0
    """Share of each class that `trust_score` leaves out, in [0, 1)."""
    neighbors: int = 10
    """Training samples in the ball whose radius is the measure of sparsity in `trust_score`, itself
    among them."""
    folds: tuple[tuple[Outputs, Outputs], ...] = ()
    """Outputs of further classifiers: each on what it was trained on and on what was kept from it,
    with labels; `residual` learns from the latter, too."""
    copies: tuple[tuple[Outputs, ...], ...] = ()
    """Answers to other versions of the samples that `residual` learns from, such as noisy ones: a
    tuple for validation, and one of as many for each of `folds`; empty: none."""
    kinds: tuple[tuple[np.ndarray, ...], ...] = ()
    """What was done to the samples of each of `copies`, see `HeldOut.kinds`; empty: each is a kind
    of its own."""
    groups: tuple[np.ndarray, ...] = ()
    """Which samples belong together, `[n]`: of validation, then of the samples kept from each of
    `folds`; empty: all are independent."""
    distilled: bool = False
    """Whether `residual` learns 1 − the true class probability of `sampled["ensemble"]`, which
    validation and its copies then have, instead of right or wrong; without folds."""
    verbose: int = 0
    """1: `residual` shows how far it is."""
    facts: dict[str, str] = dataclasses.field(default_factory=dict)
    """Filled by methods that are fitted: how it went, by name."""
    offer: "Offer | None" = None
    """What `residual_looks` may use, and what it may cost; validation, its copies and what was kept
    from `folds` then have `odds` of its looks. None: no looks."""
    chosen: dict[int, float] = dataclasses.field(default_factory=dict)
    """Filled by `residual_looks`: of each look that it uses the column of `odds` → its cost in
    passes of the classifier."""

    def __post_init__(self) -> None:
        labels_of("train", self.train)
        labels_of("validation", self.validation)
        d, k = self.train.features.shape[1], self.train.logits.shape[1]
        of_validation = (self.validation.features.shape[1], self.validation.logits.shape[1])
        if of_validation != (d, k):
            raise ValueError(
                f"validation: expected {d} features and {k} classes as in train, "
                f"received {of_validation[0]} and {of_validation[1]}"
            )
        object.__setattr__(self, "kernel", _finite("kernel", self.kernel, (d, k)))
        object.__setattr__(self, "bias", _finite("bias", self.bias, (k,)))
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha: expected a number in [0, 1), received {self.alpha}")
        if self.neighbors < 1:
            raise ValueError(f"neighbors: expected at least 1, received {self.neighbors}")

    @functools.cached_property
    def held_out(self) -> "list[HeldOut]":
        """What `residual` learns from: the classifier's own samples, then those of the folds."""
        # TensorFlow, which the rest of this module does without.
        from btcp_tf.methods.residual_fit import HeldOut, Seen

        pairs = [(self.train, self.validation), *self.folds]
        copies = self.copies or ((),) * len(pairs)
        kinds = self.kinds or ((),) * len(pairs)
        groups = self.groups or (None,) * len(pairs)
        with_index = all(len(train.features) > 1 for train, _ in pairs)

        def seen(outputs: Outputs) -> Seen:
            return Seen(*(getattr(outputs, name) for name in Seen._fields))

        return [
            HeldOut(
                seen(held_out),
                labels_of("held out", held_out),
                (seen(train), labels_of("train", train)) if with_index else None,
                tuple(seen(copy) for copy in others),
                done,
                tuple(
                    samples_of("residual", outputs, "ensemble")
                    for outputs in ((held_out, *others) if self.distilled else ())
                ),
                together,
            )
            for (train, held_out), others, done, together in zip(
                pairs, copies, kinds, groups, strict=True
            )
        ]


Score = Callable[[Outputs], np.ndarray]
"""Outputs of n samples → uncertainty [n], finite, higher = less to be trusted."""


def _finite(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> np.ndarray:
    """`values` as float32 of the given shape, where None is any size but 0."""
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        size > 0 if wanted is None else size == wanted
        for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype.kind != "f":
        sizes = ", ".join("> 0" if wanted is None else str(wanted) for wanted in shape)
        raise ValueError(
            f"{name}: expected floats of shape [{sizes}], "
            f"received {array.dtype} of shape {list(array.shape)}"
        )
    array = array.astype(np.float32, copy=False)
    if not all_finite(array):
        bad = ~np.isfinite(array)
        cells, rows = bad.reshape(len(bad), -1), array.reshape(len(bad), -1)
        first = np.take_along_axis(rows, cells.argmax(axis=1)[:, None], axis=1)[:, 0]
        metrics.check_rows(~cells.any(axis=1), first, f"{name}: expected finite numbers")
    return array


def labels_of(name: str, outputs: Outputs) -> np.ndarray:
    if outputs.labels is None:
        raise ValueError(f"{name}: expected outputs with labels, received none")
    return outputs.labels


def samples_of(method: str, outputs: Outputs, kind: str) -> np.ndarray:
    if kind not in outputs.sampled:
        received = ", ".join(sorted(outputs.sampled)) or "none"
        raise ValueError(
            f"{method}: expected sampled[{kind!r}] in the outputs, received {received}"
        )
    return outputs.sampled[kind]
