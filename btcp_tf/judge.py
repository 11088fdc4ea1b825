"""An uncertainty estimator for a classifier that exists already.

    judge = btcp_tf.attach(classifier)
    judge.fit(x_held_out, y_held_out, reference=(x_train, y_train))
    judge.predict(x)["uncertainty"]

The classifier is not trained and not changed. The estimator learns from held-out samples, where the
classifier errs as it will err; on those it was trained with it may know every answer by heart. If
the estimator does not find errors better than MCP, it is MCP, and says so. `Judge.fit_btcp` trains
the paper's estimator in its place.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf
from scipy import special

from btcp_tf import metrics, thresholds
from btcp_tf.core import files, keras_setup, wording
from btcp_tf.data import input_checks, known, overlaps
from btcp_tf.data.images import PIXELS, are_image_sizes
from btcp_tf.data.input_checks import InputRange, InputWatch
from btcp_tf.data.known import MOST, Overlap, Part
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods import residual_fit
from btcp_tf.methods.residual_choice import FEW_ERRORS, MCP, Weights
from btcp_tf.methods.residual_fit import EVIDENCE, HeldOut, Seen
from btcp_tf.networks import classifiers, evidence_layers, models, plausibility
from btcp_tf.networks.evidence_layers import McpLogit, View

_DRAWS = 1000
_LARGEST_SEED = 2**31 - 1


@keras.saving.register_keras_serializable("btcp_tf")
class Card(keras.layers.Layer):
    """(u, MCP's logit) → u; carries in the model's file what belongs to it.

    The logit is there to be found beside u, whatever u is made of.

    Args:
      about: JSON values by name.
    """

    passes_on_first = True
    """For `networks.with_logit`, which looks for what u is made of."""

    def __init__(self, about: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.about = dict(about)

    def call(self, inputs: Sequence[Any]) -> Any:
        return inputs[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "about": self.about}


class Judge:
    """A classifier with an estimate of which of its answers are wrong; from `attach` or `load`.

    Attributes:
      model: Functional model, inputs → `probs` `[n, k]` and `uncertainty` `[n, 1]` in [0, 1].
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._inferences: dict[tuple[tuple[str, ...], int], _Inference] = {}
        self._calibration_inputs: Any = None

    def __repr__(self) -> str:
        names, inputs, chosen = self.class_names, self.model.inputs[0], self.threshold
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        shape = ", ".join("?" if size is None else str(size) for size in inputs.shape[1:])
        decision = "no threshold"
        if chosen is not None:
            decision = "accepts nothing" if chosen.tau is None else f"accepts u < {chosen.tau:.4g}"
        return (
            f"<Judge of a classifier of {inputs.dtype} [n, {shape}], {len(names)} classes "
            f"({shown}): {self.method}, {'fitted' if self.fitted else 'not fitted'}, {decision}>"
        )

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of `probs`."""
        return self._about["class_names"]

    @property
    def threshold(self) -> thresholds.Threshold | None:
        """What `select_threshold` chose: answers with u < tau are accepted, none where tau is
        None. None before."""
        found = self._about["threshold"]
        return None if found is None else thresholds.Threshold(**found)

    @property
    def fitted(self) -> dict[str, Any] | None:
        """How the estimator came about: the fields of `estimators.Fit`, or what `fit_btcp` says.
        None before either: u is MCP's."""
        return self._about["fit"]

    @property
    def method(self) -> str:
        """The name of the estimate of `predict`: "residual", or "btcp" after `fit_btcp`."""
        return self._about["method"]

    @property
    def input_range(self) -> InputRange | None:
        """The numbers that `fit` saw (before it `select_threshold`), with which all inputs are
        compared, see `checks.InputWatch`. None: with nothing; set it to None to lift the check."""
        return InputRange.from_json(self._about.get("input_range"))

    @input_range.setter
    def input_range(self, value: InputRange | None) -> None:
        self._about["input_range"] = None if value is None else dataclasses.asdict(value)

    @property
    def _seen(self) -> dict[str, Part]:
        """Samples that are known, by name of the part; none for files of version 0.1.0."""
        return _parts_of(self._about)

    @property
    def _about(self) -> dict[str, Any]:
        return self.model.get_layer("card").about

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        reference: Any = None,
        folds: Sequence[tuple[Any, ...]] = (),
        copies: Sequence[Any] = (),
        ensemble: Sequence[keras.Model | str | os.PathLike] = (),
        evidence: Sequence[str] = EVIDENCE,
        seed: int = 0,
        batch_size: int = 256,
        verbose: int = 1,
    ) -> Self:
        """Learns from held-out samples which answers are wrong.

        Args:
          x: Inputs `[n, ...]` that the classifier was not trained on; or a `tf.data.Dataset` of
            batches (inputs, labels), then without `y`.
          y: Labels `[n]` or `[n, 1]`, whole numbers from 0 to k - 1, or one-hot `[n, k]`.
          reference: (inputs, labels) of the classifier's training samples, or a dataset of them:
            a second head learns from them, and what is around a sample is evidence. They go into
            the model. Samples of x that are among them are left out of x, with a warning. None:
            no such evidence.
          folds: (classifier, held-out samples, reference) of further classifiers of the same kind,
            each trained without its held-out samples: with few of the classifier's own, the
            estimator learns more from theirs. Samples and reference as in `reference`. With
            `copies`, those of the fold's samples follow as a fourth.
          copies: Other versions of x, each `[n, ...]` in its order, as they may come: noisier ones,
            say, or blurred. The estimator learns from them, too, and ranks better on what is like
            them, on x itself perhaps less well; it is chosen and judged by x alone. Not with a
            dataset.
          ensemble: Further classifiers for the same inputs and classes, trained without x as this
            one was: the estimator learns 1 − the mean probability of the true class over all of
            them instead of right or wrong, and judges alone afterwards. It is chosen and judged by
            right and wrong. Not with `folds`, nor with a dataset.
          evidence: What the estimator may read, of `estimators.EVIDENCE`; what is said of images
            there, others do not have. With `estimators.NO_INDEX` no reference sample goes into the
            model.
          seed: Of the cross-validation, of the bootstrap and of the second head; from 0 to
            2147483647.
          batch_size: Inputs at once.
          verbose: 1 shows progress bars and says what came out, 0 is silent.

        Raises:
          ValueError: If x or y do not fit the classifier, inputs or answers are not finite, the
            arguments' inputs are on different scales, all of x are in the reference, or another
            argument is not as described.
        """
        residual_fit.check_evidence(evidence)
        seed = metrics.whole_number(
            "seed", seed, f"a whole number from 0 to {_LARGEST_SEED}", 0, _LARGEST_SEED
        )
        _check_list("copies", copies, "arrays")
        _check_folds(folds, reference, copies)
        _check_ensemble(ensemble, x, folds)
        own = self._held_out((x, y), reference, copies, batch_size, verbose, None)
        held_out, parts = own.held_out, dict(own.hashes)
        self._warn_if_poor(held_out)
        if ensemble:
            mean = self._ensemble_mean(ensemble, own, [x, *copies], batch_size, verbose)
            held_out = dataclasses.replace(held_out, ensemble=mean)
        others = self._folds_learned(folds, batch_size, verbose, own.input_range)
        if others:
            parts["folds"] = np.concatenate([fold.hashes["fit"] for fold in others])
            fold_part = {"folds": Part.of(parts["folds"])}
            if words := known.overlap(parts["fit"], fold_part, fold_part).words:
                warnings.warn(f"x: {words}", stacklevel=2)
        fit, readers, weights, _ = residual_fit.fit_residual(
            held_out,
            [fold.held_out for fold in others],
            allowed=evidence,
            seed=seed,
            batch_size=batch_size,
            verbose=verbose,
        )
        self._put(
            "residual",
            _residual(readers, weights),
            dataclasses.asdict(fit),
            parts,
            own.input_range,
        )
        if fit.errors < FEW_ERRORS:
            _warn_of_few_errors(fit.errors, fit.samples, "held-out")
        if verbose:
            print(fit.words)
        return self

    def fit_btcp(
        self, x: Any, y: Any = None, *, batch_size: int = 256, verbose: int = 1, **settings: Any
    ) -> Self:
        """Trains the paper's estimator (BTCP) on the classifier's features, instead of `fit`.

        Four hidden layers of 400 on the features learn 1 − true class probability with the
        distributional focal loss (SPEC's phase 2; Li, Zheng and Zhang, 2022). As in the paper it
        learns from samples that the classifier was trained with. There is no fallback on MCP:
        `evaluate` says whether it ranks errors better.

        Args:
          x: Inputs `[n, ...]`, or a `tf.data.Dataset` of batches (inputs, labels), then without
            `y`.
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          batch_size: Inputs at once, when features are computed.
          verbose: 1 shows progress bars and says what came out, 0 is silent.
          **settings: Of `btcp_tf.config.Config`, such as `gamma`, `epsilon`, `estimator_epochs`,
            `estimator_learning_rate` and `seed`; without them the paper's.

        Raises:
          ValueError: If x or y do not fit the classifier, its answers are not finite, or a setting
            is out of range.
          FloatingPointError: If the loss is no longer finite.
        """
        from btcp_tf.core.config import Config
        from btcp_tf.training import phases

        names = {field.name for field in dataclasses.fields(Config)}
        if unknown := settings.keys() - names:
            raise ValueError(
                f"settings: expected some of {', '.join(sorted(names))}, received "
                f"{', '.join(sorted(unknown))}" + wording.suggestion(min(unknown), names)
            )
        config = Config(**{"dataset": "digits", "verbose": verbose, **settings})
        found = self._answers(x, y, batch_size, "training samples" if verbose else "", None)
        seen, labels = found.seen, found.labels
        with tempfile.TemporaryDirectory() as folder:
            estimator, facts = phases.fit_estimator(
                seen.features, special.softmax(seen.logits, axis=1), labels, config, Path(folder)
            )
        words = (
            f"BTCP: {facts['train_errors']} errors among {len(labels)} samples, "
            f"gamma {facts['gamma']:.4g}"
        )
        if facts["collapse"]:
            warnings.warn(facts["collapse"], stacklevel=2)
            words += f"; {facts['collapse']}"
        told = {"samples": len(labels), "errors": facts["train_errors"], **facts, "words": words}
        self._put(
            "btcp",
            lambda images, features, logits, z: estimator(features),
            told,
            {"fit": found.hashes},
            found.input_range,
        )
        if facts["train_errors"] < FEW_ERRORS:
            _warn_of_few_errors(facts["train_errors"], len(labels), "training")
        if verbose:
            print(words)
        return self

    def predict(self, x: Any, *, batch_size: int = 256) -> dict[str, np.ndarray]:
        """Answers with their uncertainty.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches of them.
          batch_size: Inputs at once.

        Returns:
          `predicted` int64 `[n]`, `probs` `[n, k]`, `uncertainty` float64 `[n]` in [0, 1], and once
          there is a threshold `accept` bool `[n]`.

        Raises:
          ValueError: If inputs do not fit the model, are NaN or infinite, or so far from those of
            `fit` that they must be on another scale (`input_range = None` lets those pass).
        """
        return self._predict(x, None, batch_size)[0]

    def predictions(self, x: Any, y: Any = None, *, batch_size: int = 256) -> Predictions:
        """Answers to labeled inputs with u of `method` and, beside it, of "mcp".

        `evaluation.save_predictions` makes a file of them that `python -m btcp_tf.report` reads.
        Row i is of input i: samples that the judge learned from are kept, with a warning, as what
        belongs to the inputs elsewhere would no longer fit; `evaluate` leaves them out.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          batch_size: Inputs at once.
        """
        found, overlap = self._predictions(x, y, batch_size)
        if overlap.words:
            kept = "; they are kept, and u looks better on them" if overlap.known.any() else ""
            warnings.warn(f"x: {overlap.words}{kept}", stacklevel=2)
        return found

    def _predictions(self, x: Any, y: Any, batch_size: int) -> tuple[Predictions, Overlap]:
        """What `predictions` answers, and which of the samples are known."""
        names = (*self._scored, "mcp_logit")
        found = self._outputs(names, x, y, batch_size, hashed=bool(self._seen))
        outputs = dict(zip(names, found.outputs, strict=True))
        probs, mcp = outputs["probs"], outputs["mcp_logit"][:, 0].astype(np.float64)
        rows = Predictions(
            self._labels(found.labels, len(probs)),
            probs,
            probs.argmax(axis=1),
            {"mcp": special.expit(mcp), self.method: models.uncertainty_of(outputs)},
        )
        return rows, self._overlap(found.hashes, "threshold")

    def _overlap(self, hashes: np.ndarray | None, *also: str) -> Overlap:
        """Which samples the judge learned from, or its classifier; parts in `also` are counted in
        the words alone."""
        if hashes is None:
            return Overlap(np.zeros(0, bool), "")
        found = known.overlap(hashes, self._seen, ("fit", "copies", "folds", "reference"))
        more = known.overlap(hashes, self._seen, also)
        return Overlap(found.known, "; ".join(filter(None, (found.words, more.words))))

    def evaluate(
        self, x: Any, y: Any = None, *, batch_size: int = 256, draws: int = _DRAWS, seed: int = 0
    ) -> list[dict[str, Any]]:
        """How well u finds the errors, beside MCP on the same answers.

        Samples that the judge learned from (x of `fit`, of its folds, the reference) are left out,
        with a warning that says how many; unless there are no more of them than repeat by nature.
        Those of `select_threshold` are counted alone: what is accepted depends on them, u does not.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          batch_size: Inputs at once.
          draws: Of the bootstrap intervals.
          seed: Of the draws.

        Returns:
          Rows of `evaluation.rows` of "mcp" and of `method`.

        Raises:
          ValueError: As `predict`; and if all samples are known.
        """
        predictions, overlap = self._predictions(x, y, batch_size)
        if overlap.words:
            rest = _rest_of(overlap, "evaluated")
            if len(rest) < len(overlap.known):
                predictions = _rows_of(predictions, rest)
        # Without a tau nothing is accepted.
        tau = 0.5 if self.threshold is None else self.threshold.tau or 0.0
        return results.rows(
            predictions,
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
        self,
        x: Any,
        y: Any = None,
        *,
        rule: str = "best_bacc",
        batch_size: int = 256,
        **settings: Any,
    ) -> thresholds.Threshold:
        """Chooses the threshold of `predict` and keeps it in the model.

            judge.select_threshold(x, y, rule="target_risk", risk=0.05, delta=0.05)

        Args:
          x: Inputs `[n, ...]` that neither the classifier nor `fit` has seen, or a dataset of
            batches (inputs, labels).
            Samples that the judge learned from are left out, with a warning, unless there are
            no more of them than repeat by nature.
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`; `target_coverage` needs none.
          rule: One of `thresholds.RULES`.
          batch_size: Inputs at once.
          **settings: Of the rule, see `btcp_tf.thresholds`.

        Raises:
          ValueError: As the rule; for settings that it does not have, or lacks; and if all
            samples are known, or, for `target_risk`, more than 5 % of them.
        """
        thresholds.check_settings(rule, settings)
        answers, found = self._predict(x, y, batch_size, hashed=True)
        predicted, u = answers["predicted"], answers["uncertainty"]
        labels = None
        if found.labels is not None or thresholds.needs_labels(rule):
            labels = self._labels(found.labels, len(predicted))
        overlap = self._overlap(found.hashes)
        if rule == "target_risk" and overlap.share > MOST:
            raise ValueError(
                f"x: expected samples that classifier and fit have not seen, at most "
                f"{MOST:.0%} others, received: {overlap.words}; a promise on those would not "
                "hold: give fresh samples"
            )
        rest = _rest_of(overlap, "used")
        predicted, u = predicted[rest], u[rest]
        labels = None if labels is None else labels[rest]
        is_error = None if labels is None else predicted != labels
        chosen = thresholds.clear_of(thresholds.choose(rule, is_error, u, **settings), u)
        self._calibration_inputs = None if hasattr(x, "element_spec") else _rows(x)[rest]
        self._about["threshold"] = dataclasses.asdict(chosen)
        assert found.hashes is not None
        part = Part.of(found.hashes[rest]).to_json()
        self._about["seen"] = {**(self._about.get("seen") or {}), "threshold": part}
        if self._about.get("fit") is None and "input_range" not in self._about:
            self.input_range = found.input_range
        # For those who read the exported model.
        self._about["calibration"] = {
            "labels": None if labels is None else labels.tolist(),
            "predicted": predicted.tolist(),
            "uncertainty": u.tolist(),
        }
        if chosen.tau is None:
            least = chosen.least_risk
            warnings.warn(
                f"not achievable with this data, and nothing will be accepted: {chosen.rule}"
                + ("" if least is None else f"; the least that would have been is {least:.4f}"),
                stacklevel=2,
            )
        return chosen

    def save(self, path: str | os.PathLike) -> None:
        """Writes one `.keras` file, for `btcp_tf.load`.

        Classes and functions of one's own in the classifier have to be registered
        (`keras.saving.register_keras_serializable`), and imported wherever the file is read.

        Raises:
          ValueError: If the path does not end with .keras or cannot be written, or if Keras could
            not read the file again; nothing is written then.
        """
        path = files.as_path("path", path)
        if path.suffix != ".keras" or path.is_dir():
            raise ValueError(f"path: expected a name that ends with .keras, received {path}")
        classifiers.check_loadable(self.model)
        files.check_folder("path", path.parent)
        with files.atomic_path(path) as temporary:
            # Keras goes by the ending.
            written = temporary.with_name(temporary.name + ".keras")
            try:
                self.model.save(written)
                written.replace(temporary)
            finally:
                written.unlink(missing_ok=True)

    def export(
        self,
        root: str | os.PathLike,
        name: str,
        sample: np.ndarray,
        metadata: Any = None,
        *,
        pixels: str = "auto",
    ) -> Path:
        """Writes a SavedModel `<root>/<name>/<n>/`, see `btcp_tf.saved_model.export`.

        It accepts what the threshold of `select_threshold` accepts, without one u < 0.5. Where that
        was chosen on an array, in this process, the SavedModel must accept just those of its rows
        that `predict` accepts; the array must not have changed since.

        Args:
          root: Export root.
          name: Directory below it.
          sample: A few inputs, on which the SavedModel is checked in a fresh process.
          metadata: JSON values that a reader of the model should know.
          pixels: What a classifier of float images `[height, width, 1 or 3]` reads for pixels from
            0 to 255, one of "0_255", "0_1" and "-1_1" (`data.PIXELS`); the SavedModel then takes
            files (`serving_bytes`), and `btcp_tf.predict` folders of them. "auto": found by the
            range of the inputs that `fit` saw (else of `sample`) and a Rescaling layer at the
            start; where they do not tell, it takes arrays alone.

        Raises:
          ValueError: As `saved_model.export`; if `sample` is not finite or on another scale than
            what `fit` saw, or `pixels` is.
        """
        from btcp_tf.decisions.exported import COLUMN
        from btcp_tf.serving.saved_model import export

        inputs = self.model.inputs[0]
        kind = metrics.array("sample", sample).dtype.kind
        sample = _check_inputs(sample, inputs.shape[1:], inputs.dtype, "sample")
        found_pixels = None
        if inputs.dtype != "string":
            watch = InputWatch(self.input_range, "sample")
            watch.see(sample, kind)
            watch.end()
            if (seen := self.input_range) and (flat := seen.flat(sample))[0]:
                # One that the SavedModel takes alone stands first: it is tried out with it.
                sample = np.concatenate([sample[~flat], sample[flat]])
            found_pixels = self._pixels(pixels, self.input_range or watch.range)
        threshold, found = self.threshold, self._about.get("calibration")
        if threshold is not None and threshold.tau is None:
            warnings.warn(
                f"the threshold is not achievable, so the SavedModel accepts nothing: "
                f"{threshold.rule}",
                stacklevel=2,
            )
        held_out = {}
        if found:
            held_out["calibration"] = Predictions(
                None if found["labels"] is None else np.array(found["labels"]),
                None,
                np.array(found["predicted"]),
                {COLUMN: np.array(found["uncertainty"], np.float64)},
            )
        return export(
            self.model,
            root,
            name,
            self.class_names,
            sample,
            threshold=threshold or thresholds.DEFAULT,
            held_out=held_out,
            calibration_inputs=None
            if self._calibration_inputs is None
            else _check_inputs(self._calibration_inputs, inputs.shape[1:], inputs.dtype),
            about={
                "uncertainty": {"method": self.method, "stage": "frozen"},
                "fit": self.fitted,
                "metadata": metadata or {},
            },
            input_range=self.input_range,
            pixels=found_pixels,
        )

    def _pixels(self, told: str, seen: InputRange | None) -> str | None:
        """The scale of pixels for a classifier of float images, of `data.PIXELS`; None: unknown.

        Args:
          told: As `export` takes it.
          seen: Numbers that the classifier reads.
        """
        inputs = self.model.inputs[0]
        if told not in ("auto", *PIXELS):
            raise ValueError(
                f"pixels: expected auto or one of {', '.join(PIXELS)}, received {told!r}"
            )
        is_float = "float" in inputs.dtype
        if told != "auto" and (not is_float and told == "0_255"):
            return None  # They are read as they are.
        if told == "auto":
            is_image = are_image_sizes(inputs.shape[1:])
            if not is_float or not is_image or seen is None:
                return None
            return input_checks.pixels_of(seen, self._rescaling())
        if seen is not None and not input_checks.may_be_pixels(seen, told):
            raise ValueError(
                f"pixels: expected the scale of the numbers that fit saw, {seen.words}, received "
                f"{told!r}"
            )
        return told

    def _rescaling(self) -> tuple[float, float] | None:
        """(scale, offset) of a Rescaling layer that is the first of the classifier."""
        for layer in classifiers.flat_layers(self.model.get_layer("encoder")):
            if isinstance(layer, keras.layers.Rescaling):
                if np.ndim(layer.scale) or np.ndim(layer.offset):
                    return None
                return float(layer.scale), float(layer.offset)
            if not isinstance(layer, keras.layers.InputLayer | keras.Model):
                return None
        return None

    def _put(
        self,
        method: str,
        estimate: "_Estimate",
        fit: dict[str, Any],
        seen: dict[str, np.ndarray],
        input_range: InputRange | None,
    ) -> None:
        """Another estimate in the place of the present one, without a threshold.

        Args:
          method: Its name.
          estimate: How u comes about.
          fit: What is said of it.
          seen: Hashes of what it learned from, by part.
          input_range: Of its inputs.
        """
        self.model = _join(
            self.model.get_layer("encoder"),
            self.model.get_layer("ends"),
            estimate,
            self._about
            | {
                "method": method,
                # As JSON has it, so that a loaded one is equal.
                "fit": json.loads(json.dumps(fit)),
                "threshold": None,
                "calibration": None,
                "seen": {name: Part.of(hashes).to_json() for name, hashes in seen.items()},
                "input_range": input_range and dataclasses.asdict(input_range),
            },
        )
        self._inferences = {}
        self._calibration_inputs = None
        self.__dict__.pop("_served", None)

    def _held_out(
        self,
        samples: Any,
        reference: Any,
        copies: Sequence[Any],
        batch_size: int,
        verbose: int,
        like: InputRange | None,
    ) -> "_Learned":
        """What `fit` learns from: samples, around them the reference, and copies, as it takes
        them; their inputs are compared with `like`, and with one another."""

        def answers(pair: Any, title: str, like: InputRange | None) -> "_Answers":
            is_pair = isinstance(pair, tuple | list)
            if is_pair and len(pair) != 2:
                raise ValueError(f"expected a pair (inputs, labels), received {len(pair)} parts")
            x, y = pair if is_pair else (pair, None)
            return self._answers(x, y, batch_size, title if verbose else "", like)

        own = answers(samples, "held-out samples", like)
        ranges, hashes = [own.input_range], {"fit": own.hashes}
        like = like or own.input_range
        if copies and hasattr(_inputs_of(samples), "element_spec"):
            # Shuffled anew, it would come in another order.
            raise ValueError("copies: expected none beside a dataset, received some")
        others, known_copies = [], []
        for number, copy in enumerate(copies):
            with _naming(f"copies[{number}]"):
                if hasattr(copy, "element_spec"):
                    raise ValueError("expected an array, received a dataset")
                if (count := len(_rows(copy))) != len(own.labels):
                    raise ValueError(f"expected {len(own.labels)} inputs as in x, received {count}")
                again = answers((copy, own.labels), f"copies[{number}]", like)
                others.append(again.seen)
                ranges.append(again.input_range)
                known_copies.append(again.hashes)
        if known_copies:
            hashes["copies"] = np.concatenate(known_copies)
        around, kept = None, np.arange(len(own.labels))
        if reference is not None:
            with _naming("reference"):
                trained_on = answers(reference, "reference samples", like)
                if (count := len(trained_on.labels)) < 2:
                    raise ValueError(f"expected at least 2 samples, received {count}")
            around = (trained_on.seen, trained_on.labels)
            ranges.append(trained_on.input_range)
            hashes["reference"] = trained_on.hashes
            parts = {"reference": Part.of(trained_on.hashes)}
            kept = _rest_of(known.overlap(own.hashes, parts, parts), "learned from", stacklevel=4)
        held_out = HeldOut(
            _seen_rows(own.seen, kept),
            own.labels[kept],
            around,
            tuple(_seen_rows(one, kept) for one in others),
        )
        present = [one for one in ranges if one is not None]
        joined = functools.reduce(InputRange.joined, present) if present else None
        return _Learned(held_out, kept, hashes, joined)

    def _warn_if_poor(self, held_out: HeldOut) -> None:
        """Warns of a classifier that knows no more than how frequent the classes are, and of labels
        of which nobody could tell."""
        present = np.unique(held_out.labels)
        if len(present) == 1 < len(held_out.labels):
            warnings.warn(
                f"y: expected labels of several classes, received {len(held_out.labels):,} of "
                f"{self.class_names[present[0]]!r} alone: what is learned from them says nothing "
                "of the other classes",
                stacklevel=3,
            )
        found = plausibility.examine(held_out.seen.logits, held_out.labels, self.class_names)
        if found.words:
            warnings.warn(
                f"the classifier is {found.words}; suspects are the scale of x (pixels from 0 to "
                "1, say, where it was trained on 0 to 255), the order of the color channels, and "
                "that of the classes in y",
                stacklevel=3,
            )

    def _folds_learned(
        self,
        folds: Sequence[tuple[Any, ...]],
        batch_size: int,
        verbose: int,
        like: InputRange | None,
    ) -> list["_Learned"]:
        """What `fit` learns from further classifiers; their inputs are compared with `like`."""
        found = []
        for number, (classifier, samples, trained_on, *more) in enumerate(folds):
            with _naming(f"folds[{number}]"):
                judge = self._like(classifier, samples)
                shapes = [one.model.inputs[0].shape[1:] for one in (self, judge)]
                if evidence_layers.is_image(shapes[0]) != evidence_layers.is_image(shapes[1]):
                    raise ValueError(
                        f"classifier: expected one of inputs {shapes[0]}, received one of "
                        f"{shapes[1]}"
                    )
                again = more[0] if more else ()
                fold = judge._held_out(samples, trained_on, again, batch_size, verbose, like)
            found.append(fold)
        return found

    def _like(self, classifier: Any, samples: Any) -> "Judge":
        """On a further classifier for the same inputs and classes, with features of the same
        name."""
        x = _inputs_of(samples)
        if hasattr(x, "element_spec"):
            x = _inputs_of(next(iter(x), ()))
        inputs = self.model.inputs[0]
        example = _check_inputs(_rows(x)[:4], inputs.shape[1:], inputs.dtype)
        judge = attach(classifier, self._about.get("features", ""), example=example)
        if len(judge.class_names) != len(self.class_names):
            raise ValueError(
                f"classifier: expected one of {len(self.class_names)} classes, received one of "
                f"{len(judge.class_names)}"
            )
        return judge

    def _ensemble_mean(
        self,
        members: Sequence[Any],
        own: "_Learned",
        versions: Sequence[Any],
        batch_size: int,
        verbose: int,
    ) -> tuple[np.ndarray, ...]:
        """Mean probabilities `[n, k]` of the classifier and the members, for each version of x."""
        learned = own.held_out
        totals = [special.softmax(seen.logits, axis=1) for seen in (learned.seen, *learned.copies)]
        for number, member in enumerate(members):
            with _naming(f"ensemble[{number}]"):
                judge = self._like(member, versions[0])
                for total, x in zip(totals, versions, strict=True):
                    title = f"ensemble[{number}]" if verbose else ""
                    passed = judge._outputs(("probs",), x, None, batch_size, title)
                    total += passed.outputs[0][own.kept]
        return tuple(total / (1 + len(members)) for total in totals)

    def _answers(
        self, x: Any, y: Any, batch_size: int, title: str, like: InputRange | None
    ) -> "_Answers":
        """What the evidence is read from, labels, and what is to be remembered of the inputs."""
        encoder, ends = self.model.get_layer("encoder"), self.model.get_layer("ends")
        vectors = encoder(encoder.input)
        outputs = [vectors, ends(vectors)[0]]
        if _has_view(encoder):
            outputs.append(View()(encoder.input))
        infer = _Inference(keras.Model(encoder.input, outputs), batch_size)
        found = infer(x, y, title, like=like, hashed=True)
        # Half precision overflows in what is computed of them.
        seen = Seen(*(output.astype(np.float32) for output in found.outputs))
        labels = self._labels(found.labels, len(seen.logits))
        assert found.hashes is not None
        return _Answers(seen, labels, found.hashes, found.input_range)

    def _predict(
        self, x: Any, y: Any, batch_size: int, hashed: bool = False
    ) -> tuple[dict[str, np.ndarray], "_Found"]:
        """What `predict` answers, and what else came of the inputs."""
        passed = self._outputs(self._scored, x, y, batch_size, hashed=hashed)
        outputs = dict(zip(self._scored, passed.outputs, strict=True))
        probs, u = outputs["probs"], models.uncertainty_of(outputs)
        found = {"predicted": probs.argmax(axis=1), "probs": probs, "uncertainty": u}
        if self.threshold is not None:
            found["accept"] = u < (-np.inf if self.threshold.tau is None else self.threshold.tau)
        return found, passed

    @functools.cached_property
    def _served(self) -> keras.Model:
        """The model as it is exported: with logit(u), if u is made of one."""
        return models.with_logit(self.model)

    @property
    def _scored(self) -> tuple[str, ...]:
        """Outputs of `_served` that an answer is made of."""
        return "probs", "logit" if "logit" in self._served.output else "uncertainty"

    def _outputs(
        self,
        names: Sequence[str],
        x: Any,
        y: Any,
        batch_size: int,
        title: str = "",
        hashed: bool = False,
    ) -> "_Found":
        """Of `_served` or of a layer of it, by name; and what else came of the inputs."""
        if (tuple(names), batch_size) not in self._inferences:
            # Traced once: it takes seconds for a large network.
            whole = self._served.output
            ends = [
                whole[name] if name in whole else self._served.get_layer(name).output
                for name in names
            ]
            model = keras.Model(self._served.input, ends)
            self._inferences[tuple(names), batch_size] = _Inference(model, batch_size)
        infer = self._inferences[tuple(names), batch_size]
        return infer(x, y, title, like=self.input_range, hashed=hashed)

    def _labels(self, y: Any, n: int) -> np.ndarray:
        if y is None:
            raise ValueError("y: expected labels [n], received none")
        classes = len(self.class_names)
        labels = input_checks.class_numbers(np.asarray(y), classes)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        whole = labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and (labels % 1 == 0).all())
        if labels.shape != (n,) or not whole:
            raise ValueError(
                f"y: expected {n} labels, whole numbers, received {labels.dtype} {labels.shape}"
            )
        labels = labels.astype(np.int64)
        if not n or labels.min() < 0 or labels.max() >= classes:
            found = f"{labels.min()} to {labels.max()}" if n else "none"
            raise ValueError(f"y: expected labels from 0 to {classes - 1}, received {found}")
        return labels


def attach(
    classifier: keras.Model | str | os.PathLike,
    features: str = "",
    *,
    class_names: Sequence[str] = (),
    example: np.ndarray | None = None,
) -> Judge:
    """Puts an uncertainty estimator on a classifier, which is copied and left as it is.

    Before `fit` the estimate is MCP's: 1 − the largest probability, exact where that is almost 1.

    Args:
      classifier: See `classifiers.take_apart`.
      features: Name of the layer whose output the estimator reads; "": what the last `Dense` reads.
      class_names: k different names; default: the numbers. White space at their ends is left out,
        with a warning.
      example: A few inputs, for models that do not know the shape of theirs.

    Raises:
      As `classifiers.take_apart`; and `ValueError` if the names are not k different ones.
    """
    keras_setup.check()
    if isinstance(classifier, str | os.PathLike):
        classifier = classifiers.load(classifier, "classifier")
    if isinstance(classifier, Judge) or any(
        isinstance(layer, Card) for layer in getattr(classifier, "layers", ())
    ):
        raise ValueError(
            "classifier: expected a classifier, received a Judge, which has one already; "
            "btcp_tf.load reads it from a file"
        )
    encoder, head = classifiers.take_apart(classifier, features, example=example)
    classes = head.output.shape[1]
    names, note = wording.class_names(_checked_names(class_names, classes), "class_names")
    if note:
        warnings.warn(note, stacklevel=2)
    about = {"class_names": list(names), "method": "residual", "fit": None}
    about |= {"threshold": None, "calibration": None, "features": features}
    return Judge(_join(encoder, classifiers.both_ends(head), _residual({}, MCP), about))


def _checked_names(given: Any, classes: int) -> list[str]:
    told = f"class_names: expected {classes} names"
    # Sets have no order.
    if isinstance(given, str | bytes | Set | Mapping) or not hasattr(given, "__len__"):
        raise ValueError(f"{told} in a list, received {given!r}")
    names = list(given)
    if not names:
        return [str(number) for number in range(classes)]
    for name in names:
        # One that no file can hold is none, nor is the mark of an answer that is missing.
        if not isinstance(name, str) or not name or name.encode("utf-8", "ignore").decode() != name:
            raise ValueError(f"{told}, each some text, received {name!r}")
    name, times = collections.Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{told}, each once, received {name!r} {times} times")
    if len(names) != classes:
        raise ValueError(f"{told}, received {len(names)}")
    return [str(name) for name in names]


def _check_list(name: str, value: Any, of: str) -> None:
    if not isinstance(value, tuple | list):
        raise ValueError(f"{name}: expected a list of {of}, received {type(value).__name__}")


def _check_folds(folds: Any, reference: Any, copies: Any) -> None:
    told = "folds: expected (classifier, held-out samples, reference), perhaps copies, received"
    if not isinstance(folds, tuple | list):
        raise ValueError(f"{told} {type(folds).__name__}")
    for number, fold in enumerate(folds):
        if not isinstance(fold, tuple | list) or len(fold) not in (3, 4):
            parts = f" of {len(fold)}" if isinstance(fold, tuple | list) else ""
            raise ValueError(f"{told} {type(fold).__name__}{parts}")
        if (fold[2] is None) != (reference is None):
            wanted, received = ("none", "one") if reference is None else ("one", "none")
            raise ValueError(
                f"folds[{number}]: expected {wanted} for a reference, as beside x, received "
                f"{received}"
            )
        again = fold[3] if len(fold) == 4 else ()
        _check_list(f"folds[{number}]: copies", again, "arrays")
        if len(again) != len(copies):
            raise ValueError(
                f"folds[{number}]: expected {len(copies)} copies, as of x, received {len(again)}"
            )


def _check_ensemble(ensemble: Any, x: Any, folds: Any) -> None:
    _check_list("ensemble", ensemble, "classifiers")
    if ensemble and folds:
        raise ValueError(
            "ensemble: expected none beside folds, whose held-out samples it was trained on, "
            "received one"
        )
    if ensemble and hasattr(x, "element_spec"):
        # Shuffled anew, it would come in another order.
        raise ValueError("ensemble: expected none beside a dataset, received one")


def load(path: str | os.PathLike) -> Judge:
    """Reads what `Judge.save` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no such file.
    """
    keras_setup.check()
    model = classifiers.load(path)
    card = next((layer for layer in model.layers if layer.name == "card"), None)
    try:
        if not isinstance(card, Card):
            raise ValueError("no card")
        missing = {"class_names", "method", "fit", "threshold", "calibration"} - card.about.keys()
        if missing:
            raise ValueError(f"none of {', '.join(sorted(missing))}")
        _checked_names(card.about["class_names"] or [None], model.output["probs"].shape[-1])
        for name, kind in (("method", str), ("fit", dict | None), ("calibration", dict | None)):
            if not isinstance(card.about[name], kind):
                raise ValueError(f"{name} is {card.about[name]!r:.40}")
        if card.about["threshold"] is not None:
            thresholds.from_json(card.about["threshold"])
        InputRange.from_json(card.about.get("input_range"))
        _parts_of(card.about)
    except ValueError as error:
        raise ValueError(
            f"path: expected a file that Judge.save wrote, received {path} ({error})"
        ) from None
    return Judge(model)


def _parts_of(about: Mapping[str, Any]) -> dict[str, Part]:
    """Samples that are known, by name of the part; ValueError where they cannot be read."""
    seen = about.get("seen") or {}
    if not isinstance(seen, Mapping):
        raise ValueError(f"seen is {seen!r:.40}")
    return {name: Part.from_json(part) for name, part in seen.items()}


_Estimate = Callable[[Any, Any, Any, Any], Any]
"""(inputs, features `[n, d]`, logits `[n, k]`, MCP's logit `[n, 1]`) → u `[n, 1]`, of Keras
tensors."""


def _residual(readers: dict[str, keras.layers.Layer], weights: Weights) -> _Estimate:
    return functools.partial(residual_fit.residual_of, readers, weights)


def _has_view(encoder: keras.Model) -> bool:
    inputs = encoder.inputs[0]
    return inputs.dtype != "string" and evidence_layers.is_image(inputs.shape[1:])


def _join(
    encoder: keras.Model, ends: keras.Model, estimate: _Estimate, about: dict[str, Any]
) -> keras.Model:
    """Inputs → {`probs`, `uncertainty`}."""
    inputs = keras.Input(encoder.input_shape[1:], dtype=encoder.inputs[0].dtype, name="image")
    features = encoder(inputs)
    logits, probs = ends(features)
    z = McpLogit(name="mcp_logit")(logits)
    u = Card(about, dtype="float32", name="card")([estimate(inputs, features, logits, z), z])
    return keras.Model(inputs, {"probs": probs, "uncertainty": u}, name="judge")


def _warn_of_few_errors(errors: int, samples: int, kind: str) -> None:
    warnings.warn(
        f"the classifier is wrong on {errors} of {samples} {kind} samples; an estimator learns "
        "little from so few errors",
        stacklevel=3,
    )


def _rest_of(overlap: Overlap, done: str, stacklevel: int = 3) -> np.ndarray:
    """Rows of the samples that are not known, with a warning that says how many are.

    Args:
      overlap: Which are.
      done: What is done with the others, for messages.
      stacklevel: Of the warning.

    Raises:
      ValueError: If none is left.
    """
    rest = np.flatnonzero(~overlap.known)
    if not len(rest):
        raise ValueError(
            f"x: expected samples that have not been seen, received: {overlap.words}; on those "
            "classifier and u look better than they are: give fresh samples"
        )
    if overlap.words:
        left_out = len(overlap.known) - len(rest)
        told = f"; left out, {len(rest)} are {done}" if left_out else ""
        warnings.warn(f"x: {overlap.words}{told}", stacklevel=stacklevel)
    return rest


def _rows_of(found: Predictions, rows: np.ndarray) -> Predictions:
    """Some of the answers, all of which have labels and probabilities."""
    assert found.labels is not None and found.probs is not None
    return Predictions(
        found.labels[rows],
        found.probs[rows],
        found.predicted[rows],
        {name: u[rows] for name, u in found.uncertainty.items()},
    )


def _seen_rows(seen: Seen, rows: np.ndarray) -> Seen:
    """Of some of the samples."""
    columns: list[Any] = [None if column is None else column[rows] for column in seen]
    return Seen(*columns)


def _inputs_of(samples: Any) -> Any:
    """Without the labels, if there are any."""
    return samples[0] if isinstance(samples, tuple | list) and samples else samples


def _rows(x: Any) -> np.ndarray:
    found = metrics.array("x", x)
    if not found.ndim:
        raise ValueError(f"x: expected inputs [n, ...], received {x!r:.40}")
    return found


@contextlib.contextmanager
def _naming(argument: str) -> Iterator[None]:
    """Says which argument an error is about."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        raise kind(f"{argument}: {error}") from error


class _Found(NamedTuple):
    """What came of n inputs."""

    outputs: list[np.ndarray]
    """Of the model, each `[n, ...]`."""
    labels: Any
    """That came with the inputs, or beside them."""
    hashes: np.ndarray | None
    """uint64 `[n]`; None: not asked for."""
    input_range: InputRange | None
    """None: text."""


class _Answers(NamedTuple):
    """What `fit` takes from n labeled samples."""

    seen: Seen
    labels: np.ndarray
    hashes: np.ndarray
    input_range: InputRange | None


class _Learned(NamedTuple):
    """What `fit` learns from."""

    held_out: HeldOut
    kept: np.ndarray
    """Rows of the samples that are in it."""
    hashes: dict[str, np.ndarray]
    """Of all samples, by part: "fit", "reference"."""
    input_range: InputRange | None
    """Of all inputs."""


class _Inference:
    """A model in inference mode over arrays or datasets, its inputs and outputs checked."""

    def __init__(self, model: keras.Model, batch_size: int) -> None:
        from btcp_tf.training.inference import Inference

        metrics.whole_number("batch_size", batch_size, "a whole number >= 1", 1)
        self._infer = Inference(model, batch_size)
        self._shape = tuple(model.inputs[0].shape[1:])
        self._dtype = model.inputs[0].dtype

    def __call__(
        self,
        x: Any,
        y: Any,
        title: str = "",
        *,
        like: InputRange | None = None,
        hashed: bool = False,
    ) -> _Found:
        """Outputs for all inputs, labels, hashes and range.

        A dataset is gone through once, for inputs and labels together: it may be shuffled anew the
        next time.
        """
        is_dataset = hasattr(x, "element_spec")
        if is_dataset and y is not None:
            raise ValueError("y: expected none beside a dataset, received labels")
        if is_dataset and int(x.cardinality()) == -1:
            raise ValueError("x: expected a dataset that ends, received an infinite one")
        watch = InputWatch(like)
        parts: list[list[np.ndarray]] = []
        labels, hashes = [], []
        for item in x if is_dataset else [x]:
            if is_dataset and isinstance(item, tuple):
                labels += [np.asarray(column) for column in item[1:2]]
                item = item[0]
            checked = _check_inputs(item, self._shape, self._dtype)
            if self._dtype != "string":
                watch.see(checked, np.asarray(item).dtype.kind)
                if not is_dataset:
                    watch.end()
            if hashed:
                hashes.append(overlaps.sample_hashes(checked))
            parts.append(self._answers(checked, "" if is_dataset else title))
        watch.end()
        if not parts:
            raise ValueError("x: expected a dataset of batches, received one without any")
        outputs = [np.concatenate(column) for column in zip(*parts, strict=True)]
        for output in outputs:
            if not np.isfinite(output).all():
                rows = np.isfinite(output).reshape(len(output), -1).all(axis=1)
                raise ValueError(
                    "classifier: expected finite answers, received NaN or infinity for input "
                    f"{int(np.argmin(rows))}"
                )
        return _Found(
            outputs,
            np.concatenate(labels) if labels and y is None else y,
            np.concatenate(hashes) if hashed else None,
            watch.range,
        )

    def _answers(self, inputs: np.ndarray, title: str) -> list[np.ndarray]:
        try:
            answers = self._infer(inputs, title)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(
                "x: expected inputs that the classifier can take, received "
                f"{inputs.shape}: {classifiers.reason(error)}"
            ) from error
        # Of a model with one output there is no list.
        return answers if isinstance(answers, list) else [answers]


def _check_inputs(
    batch: Any, shape: Sequence[int | None], dtype: str, name: str = "x"
) -> np.ndarray:
    """Inputs `[n, *shape]` of that type, or ValueError."""
    batch = metrics.array(name, batch)
    if dtype != "string":
        if batch.dtype.kind not in "biuf":
            raise ValueError(f"{name}: expected numbers, received {batch.dtype}")
        if (dtype == "bool" or "int" in dtype) and batch.dtype != dtype:
            low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            with np.errstate(invalid="ignore"):
                fits = (batch >= low) & (batch <= high) & (batch % 1 == 0)
            if not fits.all():
                raise ValueError(
                    f"{name}: expected {dtype}, received {batch.dtype} with {batch[~fits].flat[0]}"
                )
        batch = batch.astype(dtype, copy=False)
    fits = len(batch.shape) == len(shape) + 1 and all(
        wanted in (None, size) for wanted, size in zip(shape, batch.shape[1:], strict=True)
    )
    if not fits or not len(batch):
        raise ValueError(
            f"{name}: expected inputs of shape {('n', *shape)}, at least one, received "
            f"{batch.shape}"
        )
    return batch
