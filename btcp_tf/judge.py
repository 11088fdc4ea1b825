"""An uncertainty estimator for a classifier that exists already.

    judge = btcp_tf.attach(classifier)
    judge.fit(x_held_out, y_held_out, reference=(x_train, y_train))
    judge.predict(x)["uncertainty"]

The classifier is not trained and not changed. The estimator learns from held-out samples, where the
classifier errs as it will err; on those it was trained with it may know every answer by heart. If
the estimator does not find errors better than MCP, it is MCP, and says so.
"""

import dataclasses
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
from scipy import special

from btcp_tf import classifiers, estimators, evaluation, metrics, thresholds
from btcp_tf.files import atomic_path
from btcp_tf.methods import mcp_of

_FEW_ERRORS = 100
_FOLDS = 5
_STRENGTHS = (0.01, 0.1, 1.0, 10.0)
_DRAWS = 1000


@dataclasses.dataclass(frozen=True)
class Fit:
    """How an estimator came about."""

    samples: int
    """Held-out samples that it learned from."""
    errors: int
    """Wrong answers among them."""
    evidence: tuple[str, ...]
    """What it reads beside MCP, of "answer" and "neighbors"; empty: it is MCP, calibrated."""
    strength: float
    """Inverse of the L2 penalty."""
    difference: dict[str, tuple[float, float, float]]
    """Cross-validated on the same samples, minus MCP: metric → (value, low, high), 95 %."""
    words: str
    """The same in a sentence."""


@keras.saving.register_keras_serializable("btcp_tf")
class Card(keras.layers.Identity):
    """Passes u on, and carries in the model's file what belongs to it.

    Args:
      about: JSON values by name.
    """

    def __init__(self, about: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.about = dict(about)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "about": self.about}


class Judge:
    """A classifier with an estimate of which of its answers are wrong; from `attach` or `load`.

    Attributes:
      model: Functional model, inputs → `probs` `[n, k]` and `uncertainty` `[n, 1]` in [0, 1].
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of `probs`."""
        return self._about["class_names"]

    @property
    def tau(self) -> float | None:
        """Threshold: answers with u < tau are accepted. None before `select_threshold`."""
        return self._about.get("tau")

    @property
    def fitted(self) -> dict[str, Any] | None:
        """How the estimator came about: the fields of `Fit`. None before `fit`: u is MCP's."""
        return self._about.get("fit")

    @property
    def _about(self) -> dict[str, Any]:
        return self.model.get_layer("card").about

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        reference: Any = None,
        seed: int = 0,
        batch_size: int = 256,
        verbose: int = 1,
    ) -> Self:
        """Learns from held-out samples which answers are wrong.

        Args:
          x: Inputs `[n, ...]` that the classifier was not trained on; or a `tf.data.Dataset` of
            batches (inputs, labels), then without `y`.
          y: Labels `[n]` or `[n, 1]`, whole numbers from 0 to k - 1.
          reference: (inputs, labels) of the classifier's training samples, or a dataset of them:
            what is around a sample is evidence. They go into the model. None: no such evidence.
          seed: Of the folds and of the bootstrap.
          batch_size: Inputs at once.
          verbose: 1 shows progress bars and says what came out, 0 is silent.

        Raises:
          ValueError: If x or y do not fit the classifier, or its answers are not finite.
        """
        title = "held-out samples" if verbose else ""
        features, logits, labels = self._answers(x, y, batch_size, title)
        around = None
        if reference is not None:
            known, labels_of = reference if isinstance(reference, tuple) else (reference, None)
            title = "reference samples" if verbose else ""
            points, _, classes = self._answers(known, labels_of, batch_size, title)
            if len(points) < 2:
                raise ValueError(f"reference: expected at least 2 samples, received {len(points)}")
            around = points, classes
        fit, readers, weights = fit_residual(
            features, logits, labels, around, seed=seed, batch_size=batch_size
        )
        self.model = _join(
            self.model.get_layer("encoder"),
            self.model.get_layer("ends"),
            readers,
            weights,
            # As JSON has it, so that a loaded one is equal.
            self._about | {"fit": json.loads(json.dumps(dataclasses.asdict(fit))), "tau": None},
        )
        if fit.errors < _FEW_ERRORS:
            warnings.warn(
                f"the classifier is wrong on only {fit.errors} of {fit.samples} held-out samples; "
                "an estimator learns little from so few errors",
                stacklevel=2,
            )
        if verbose:
            print(fit.words)
        return self

    def predict(self, x: Any, *, batch_size: int = 256) -> dict[str, np.ndarray]:
        """Answers with their uncertainty.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches of them.
          batch_size: Inputs at once.

        Returns:
          `predicted` int64 `[n]`, `probs` `[n, k]`, `uncertainty` `[n]` in [0, 1], and once there
          is a threshold `accept` bool `[n]`.
        """
        probs, uncertainty = _infer(
            keras.Model(
                self.model.input, [self.model.output["probs"], self.model.output["uncertainty"]]
            ),
            x,
            batch_size,
        )
        found = {
            "predicted": probs.argmax(axis=1),
            "probs": probs,
            "uncertainty": uncertainty[:, 0],
        }
        if self.tau is not None:
            found["accept"] = found["uncertainty"] < self.tau
        return found

    def evaluate(
        self, x: Any, y: Any = None, *, batch_size: int = 256, draws: int = _DRAWS, seed: int = 0
    ) -> list[dict[str, Any]]:
        """How well u finds the errors, beside MCP on the same answers.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels `[n]`.
          batch_size: Inputs at once.
          draws: Of the bootstrap intervals.
          seed: Of the draws.

        Returns:
          Rows of `evaluation.rows` of the methods "mcp" and "residual".
        """
        x, y = _pairs(x, y)
        answers = self.predict(x, batch_size=batch_size)
        labels = self._labels(y, len(answers["predicted"]))
        tau = 0.5 if self.tau is None else self.tau
        return evaluation.rows(
            evaluation.Predictions(
                labels,
                answers["probs"],
                answers["predicted"],
                {"mcp": mcp_of(answers["probs"]), "residual": answers["uncertainty"]},
            ),
            dataset="",
            seed=seed,
            stage="frozen",
            classifier_id="",
            split="",
            tau=tau,
            bootstrap_draws=draws,
            bootstrap_seed=seed,
        )

    def select_threshold(
        self, x: Any, y: Any = None, *, rule: str = "best_bacc", batch_size: int = 256
    ) -> thresholds.Threshold:
        """Chooses the threshold of `predict` and keeps it in the model.

        Args:
          x: Inputs `[n, ...]` that neither the classifier nor `fit` has seen, or a dataset of
            batches (inputs, labels).
          y: Labels `[n]`.
          rule: One of `RULES`.
          batch_size: Inputs at once.

        Raises:
          ValueError: As the rule.
        """
        if rule not in RULES:
            raise ValueError(f"rule: expected one of {', '.join(RULES)}, received {rule!r}")
        x, y = _pairs(x, y)
        answers = self.predict(x, batch_size=batch_size)
        is_error = answers["predicted"] != self._labels(y, len(answers["predicted"]))
        chosen = RULES[rule](is_error, answers["uncertainty"])
        self._about["tau"] = chosen.tau
        return chosen

    def save(self, path: str | os.PathLike) -> None:
        """Writes one `.keras` file, for `btcp_tf.load`."""
        path = Path(path)
        if path.suffix != ".keras":
            raise ValueError(f"path: expected a name that ends with .keras, received {path}")
        with atomic_path(path) as temporary:
            # Keras goes by the ending.
            written = temporary.with_name(temporary.name + ".keras")
            try:
                self.model.save(written)
                written.replace(temporary)
            finally:
                written.unlink(missing_ok=True)

    def export(
        self, root: str | os.PathLike, name: str, sample: np.ndarray, metadata: Any = None
    ) -> Path:
        """Writes a SavedModel `<root>/<name>/<n>/`, see `btcp_tf.export.export`.

        Args:
          root: Export root.
          name: Directory below it.
          sample: A few inputs, on which the SavedModel is checked in a fresh process.
          metadata: JSON values that a reader of the model should know.
        """
        from btcp_tf.export import export

        about = {**self._about, **(metadata or {})}
        return export(self.model, root, name, self.class_names, about, np.asarray(sample))

    def _answers(
        self, x: Any, y: Any, batch_size: int, title: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features `[n, d]`, logits `[n, k]` and labels `[n]`."""
        x, y = _pairs(x, y)
        encoder, ends = self.model.get_layer("encoder"), self.model.get_layer("ends")
        vectors = encoder(encoder.input)
        model = keras.Model(encoder.input, [vectors, ends(vectors)[0]])
        features, logits = _infer(model, x, batch_size, title)
        return features, logits, self._labels(y, len(logits))

    def _labels(self, y: Any, n: int) -> np.ndarray:
        if y is None:
            raise ValueError("y: expected labels [n], received none")
        labels = np.asarray(y)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.shape != (n,) or not np.array_equal(labels, np.asarray(labels, np.int64)):
            raise ValueError(
                f"y: expected {n} labels, whole numbers, received {labels.dtype} {labels.shape}"
            )
        labels = labels.astype(np.int64)
        classes = len(self.class_names)
        if not n or labels.min() < 0 or labels.max() >= classes:
            found = f"{labels.min()} to {labels.max()}" if n else "none"
            raise ValueError(f"y: expected labels from 0 to {classes - 1}, received {found}")
        return labels


RULES = {"best_bacc": thresholds.best_bacc}
"""Rules of `select_threshold`: (is_error, uncertainty) → `thresholds.Threshold`."""


def attach(
    classifier: keras.Model | str | os.PathLike,
    features: str = "",
    *,
    class_names: Sequence[str] = (),
    example: np.ndarray | None = None,
) -> Judge:
    """Puts an uncertainty estimator on a classifier, which is copied and left as it is.

    Before `fit` the estimate is MCP's: 1 − max(probs).

    Args:
      classifier: See `classifiers.take_apart`.
      features: Name of the layer whose output the estimator reads; "": what the last `Dense` reads.
      class_names: k names; default: the numbers.
      example: A few inputs, for models that do not know the shape of theirs.

    Raises:
      As `classifiers.take_apart`; and `ValueError` if the number of names is not k.
    """
    encoder, head = classifiers.take_apart(classifier, features, example=example)
    classes = head.output.shape[1]
    names = [str(name) for name in class_names] or [str(number) for number in range(classes)]
    if len(names) != classes:
        raise ValueError(f"class_names: expected {classes} names, received {len(names)}")
    about = {"class_names": names, "tau": None, "fit": None}
    return Judge(_join(encoder, classifiers.both_ends(head), {}, _MCP, about))


def load(path: str | os.PathLike) -> Judge:
    """Reads what `Judge.save` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no such file.
    """
    model = classifiers.load(path)
    if "card" not in [layer.name for layer in model.layers]:
        raise ValueError(f"path: expected a file that Judge.save wrote, received {path}")
    return Judge(model)


Weights = tuple[float, float, np.ndarray]
"""a, b and h of `estimators.Residual`."""

_MCP: Weights = (1.0, 0.0, np.zeros(0))


def fit_residual(
    features: np.ndarray,
    logits: np.ndarray,
    labels: np.ndarray,
    reference: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    seed: int = 0,
    batch_size: int = 256,
) -> tuple[Fit, dict[str, keras.layers.Layer], Weights]:
    """Fits the residual estimator to a classifier's answers to held-out samples.

    Args:
      features: `[n, d]`.
      logits: `[n, k]`.
      labels: `[n]`.
      reference: Features `[m, d]` and labels `[m]` of training samples, m at least 2; None: what is
        around a sample is no evidence.
      seed: Of folds and bootstrap.
      batch_size: Samples at once.

    Returns:
      How it went; the layers that read the evidence, in order; and the weights.
    """
    readers: dict[str, keras.layers.Layer] = {"answer": estimators.AnswerEvidence(name="answer")}
    if reference is not None:
        index = estimators.NeighborEvidence(*reference[0].shape, name="neighbors")
        index.set_points(*reference)
        readers["neighbors"] = index
    z, evidence = _read(readers, features, logits, batch_size)
    fit, weights = choose(logits.argmax(axis=1) != labels, z, evidence, seed)
    return fit, {name: readers[name] for name in fit.evidence}, weights


def score_residual(
    readers: dict[str, keras.layers.Layer],
    weights: Weights,
    features: np.ndarray,
    logits: np.ndarray,
    *,
    batch_size: int = 256,
) -> np.ndarray:
    """u `[n]` of the estimator that `fit_residual` returned."""
    z, evidence = _read(readers, features, logits, batch_size)
    a, b, h = weights
    return special.expit(np.hstack([a * z + b, *evidence.values()]) @ [1.0, *h])


def _read(
    readers: dict[str, keras.layers.Layer],
    features: np.ndarray,
    logits: np.ndarray,
    batch_size: int,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """MCP's logit `[n, 1]`, and the evidence `[n, e]` by name."""
    z = _in_batches(estimators.McpLogit(), [logits], batch_size)
    return z, {
        name: _in_batches(reader, _reads(name, features, logits), batch_size)
        for name, reader in readers.items()
    }


def choose(
    is_error: np.ndarray, z: np.ndarray, evidence: dict[str, np.ndarray], seed: int
) -> tuple[Fit, Weights]:
    """Fits the residual estimator by logistic regression, or falls back on MCP.

    The evidence that is read and the L2 penalty are those of the smallest cross-validated AURC. The
    result counts as better than MCP if the paired 95 % bootstrap interval of its cross-validated
    difference in AUPR-error or AURC excludes zero on the better side, and that of neither on the
    worse side.

    Args:
      is_error: `[n]` bool, whether each held-out answer is wrong.
      z: `[n, 1]`, from `estimators.McpLogit`.
      evidence: By name, `[n, e]`.
      seed: Of folds and bootstrap.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n, errors = len(is_error), int(is_error.sum())
    same = dict(samples=n, errors=errors)
    if min(errors, n - errors) < _FOLDS:
        words = f"{errors} wrong answers among {n} are too few to learn from: u is MCP"
        return Fit(**same, evidence=(), strength=0.0, difference={}, words=words), _MCP

    def model(strength: float) -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))

    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    tried = []
    for names in [(name,) for name in evidence] + [tuple(evidence)] * (len(evidence) > 1):
        x = np.hstack([z, *(evidence[name] for name in names)])
        for strength in _STRENGTHS:
            u = cross_val_predict(model(strength), x, is_error, cv=folds, method="predict_proba")
            tried.append((metrics.aurc(is_error, u[:, 1]), names, strength, u[:, 1]))
    _, names, strength, u = min(tried, key=lambda trial: trial[0])
    difference = _difference(is_error, z[:, 0], u, seed)
    gain = {"aupr_error": 1.0, "aurc": -1.0}
    sides = [np.sort([gain[name] * end for end in difference[name][1:]]) for name in gain]
    better = any(low > 0 for low, _ in sides) and all(high >= 0 for _, high in sides)
    names = names if better else ()
    x = np.hstack([z, *(evidence[name] for name in names)])
    fitted = model(strength if better else 1e6).fit(x, is_error)
    scaler, regression = fitted[0], fitted[-1]
    slopes = regression.coef_[0] / scaler.scale_
    a, b = float(slopes[0]), float(regression.intercept_[0] - slopes @ scaler.mean_)
    figures = "AUPR-error {:+.2f} [{:+.2f}, {:+.2f}] points".format(
        *(100 * value for value in difference["aupr_error"])
    ) + ", AURC x 1000 {:+.2f} [{:+.2f}, {:+.2f}]".format(
        *(1000 * value for value in difference["aurc"])
    )
    words = f"{n} held-out samples, {errors} errors, minus MCP: {figures}; " + (
        "the estimator is used" if better else "not better: u is MCP, calibrated"
    )
    fit = Fit(**same, evidence=names, strength=strength, difference=difference, words=words)
    # MCP whose u rises where its own answer is more certain would be MCP no more.
    return fit, (a, b, slopes[1:]) if better or a > 0 else _MCP


def _difference(
    is_error: np.ndarray, mcp: np.ndarray, u: np.ndarray, seed: int
) -> dict[str, tuple[float, float, float]]:
    table = {name: metrics.METRICS[name] for name in ("aupr_error", "aurc")}
    draws = metrics.bootstrap(
        is_error, {"mcp": mcp, "u": u}, tau=0.5, draws=_DRAWS, seed=seed, table=table
    )
    found = {}
    for name in table:
        function = getattr(metrics, name)
        low, high = metrics.interval(draws["u"][name] - draws["mcp"][name])
        value = function(is_error, u) - function(is_error, mcp)
        found[name] = (float(value), float(low), float(high))
    return found


def _join(
    encoder: keras.Model,
    ends: keras.Model,
    readers: dict[str, keras.layers.Layer],
    weights: Weights,
    about: dict[str, Any],
) -> keras.Model:
    """Inputs → {`probs`, `uncertainty`}."""
    inputs = keras.Input(encoder.input_shape[1:], dtype=encoder.inputs[0].dtype, name="image")
    features = encoder(inputs)
    logits, probs = ends(features)
    z = estimators.McpLogit(name="mcp_logit")(logits)
    read = [reader(*_reads(name, features, logits)) for name, reader in readers.items()]
    a, b, h = weights
    residual = estimators.Residual(read=len(h), name="residual")
    u = residual([z, *read])
    residual.set_weights([np.array(a), np.array(b), *([h[:, None]] if len(h) else [])])
    u = Card(about, name="card")(u)
    return keras.Model(inputs, {"probs": probs, "uncertainty": u}, name="judge")


def _reads(name: str, features: Any, logits: Any) -> list[Any]:
    return [logits] if name == "answer" else [features, logits]


def _pairs(x: Any, y: Any) -> tuple[Any, Any]:
    """Inputs and labels; of a dataset both as iterators over its batches."""
    if y is None and not isinstance(x, np.ndarray) and hasattr(x, "element_spec"):
        labels = [np.asarray(batch[1]) for batch in x]
        return x.map(lambda inputs, *rest: inputs), np.concatenate(labels)
    return x, y


def _infer(model: keras.Model, x: Any, batch_size: int, title: str = "") -> list[np.ndarray]:
    """Outputs of the model for all inputs, in inference mode; checked to be finite."""
    from btcp_tf.training import Inference

    infer = Inference(model, batch_size)
    shape, dtype = tuple(model.inputs[0].shape[1:]), model.inputs[0].dtype
    batches = x if hasattr(x, "element_spec") else [x]
    parts: list[list[np.ndarray]] = []
    for batch in batches:
        batch = np.asarray(batch)
        if dtype != "string":
            if batch.dtype.kind not in "biuf":
                raise ValueError(f"x: expected numbers, received {batch.dtype}")
            batch = batch.astype(dtype, copy=False)
        fits = len(batch.shape) == len(shape) + 1 and all(
            wanted in (None, size) for wanted, size in zip(shape, batch.shape[1:], strict=True)
        )
        if not fits or not len(batch):
            raise ValueError(
                f"x: expected inputs of shape {('n', *shape)}, at least one, received {batch.shape}"
            )
        parts.append(infer(batch, title if len(parts) == 0 and batches is not x else ""))
    outputs = [np.concatenate(column) for column in zip(*parts, strict=True)]
    for output in outputs:
        if not np.isfinite(output).all():
            raise ValueError(
                "classifier: expected finite answers, received NaN or infinity for input "
                f"{int(np.argmin(np.isfinite(output).reshape(len(output), -1).all(axis=1)))}"
            )
    return outputs


def _in_batches(layer: keras.layers.Layer, arrays: list[np.ndarray], batch_size: int) -> np.ndarray:
    starts = range(0, len(arrays[0]), batch_size)
    parts = [layer(*(array[start : start + batch_size] for array in arrays)) for start in starts]
    return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])
