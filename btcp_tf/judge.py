"""An uncertainty estimator for a classifier that exists already.

    judge = btcp_tf.attach(classifier)
    judge.fit(x_held_out, y_held_out, reference=(x_train, y_train))
    judge.predict(x)["uncertainty"]

The classifier is not trained and not changed. The estimator learns from held-out samples, on which
the classifier makes the errors that it will make later; it may know the labels of its own training
samples by heart. It may look at an input again, where the classifier is unsure: an answer then
takes up to 1.3 passes of the classifier on the mean (`looks`, `cost`). If the estimator does not
find errors better than MCP, it is MCP, and says so.
`Judge.fit_btcp` trains the paper's estimator in its place. The parts are in `btcp_tf.attached`.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np

from btcp_tf import metrics, thresholds
from btcp_tf.attached import decision, estimates, held_out, inference, publish, recalibrating
from btcp_tf.attached import model as judge_model
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.attached.inference import is_dataset
from btcp_tf.attached.model import Estimate
from btcp_tf.attached.scoring import Scored, Scoring
from btcp_tf.core import keras_setup
from btcp_tf.core.warning import warn
from btcp_tf.data import input_checks, named_inputs
from btcp_tf.data.input_checks import Ranges
from btcp_tf.data.known import Overlap
from btcp_tf.evaluation import results
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.methods import residual_fit
from btcp_tf.methods.recalibration import Recalibration
from btcp_tf.methods.residual_choice import MCP
from btcp_tf.methods.residual_fit import EVIDENCE
from btcp_tf.networks.classifiers import named_tensors
from btcp_tf.training.settings import TrainingSettings

_DRAWS = 1000
_LARGEST_SEED = 2**31 - 1


class Judge:
    """A classifier with an estimate of which of its answers are wrong; from `attach` or `load`.

    Attributes:
      model: Functional model, inputs → `probs` `[n, k]` and `uncertainty` `[n, 1]` in [0, 1].

    A classifier of two numbers, which is wrong where they are nearly equal:

    >>> import keras, numpy as np
    >>> classifier = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    >>> classifier.set_weights([2 * np.eye(2), np.zeros(2)])
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(900, 2))
    >>> y = (x + random.normal(size=(900, 2))).argmax(axis=1)
    >>> judge = attach(classifier).fit(x[:300], y[:300], verbose=0)
    >>> [row["method"] for row in judge.evaluate(x[300:600], y[300:600], draws=10)]
    ['mcp', 'residual']
    >>> judge.select_threshold(x[600:], y[600:], rule="target_coverage", coverage=0.5).accepted
    150
    >>> answers = judge.predict(x[:2])
    >>> {name: array.shape for name, array in answers.items()}
    {'predicted': (2,), 'class_name': (2,), 'probs': (2, 2), 'uncertainty': (2,), 'accept': (2,)}
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._scoring = Scoring(model)
        self._calibration_inputs: Any = None
        self._warned_of_mcp = False

    def __repr__(self) -> str:
        return judge_model.describe(self.model)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of `probs`."""
        return self._about["class_names"]

    @property
    def threshold(self) -> thresholds.Threshold | None:
        """What `select_threshold` chose: answers with u < tau are accepted, none where tau is
        None. None before."""
        return judge_model.threshold(self._about)

    @property
    def fitted(self) -> dict[str, Any] | None:
        """How the estimator came about: the fields of `methods.residual_choice.Fit`, or after
        `fit_btcp` samples, errors, gamma, … None before either: u is MCP's."""
        return self._about["fit"]

    @property
    def method(self) -> str:
        """The name of the estimate of `predict`: "residual", or "btcp" after `fit_btcp`."""
        return self._about["method"]

    @property
    def input_range(self) -> Ranges:
        """Range of the inputs of `fit` (before it, of `select_threshold`), an `InputRange`; of
        several inputs a dictionary by name. All inputs are compared with it, see
        `data.input_checks`; set it to None to lift the check."""
        return input_checks.from_json(self._about.get("input_range"))

    @input_range.setter
    def input_range(self, value: Ranges) -> None:
        self._about["input_range"] = input_checks.to_json(value)

    @property
    def _about(self) -> dict[str, Any]:
        return judge_model.about(self.model)

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        reference: Any = None,
        folds: Sequence[tuple[Any, ...]] = (),
        copies: Sequence[Any] | str = "auto",
        ensemble: Sequence[keras.Model | str | os.PathLike] = (),
        evidence: Sequence[str] = EVIDENCE,
        looks: str | Sequence[Any] = "auto",
        cost: float = 1.3,
        groups: Any = None,
        seed: int = 0,
        batch_size: int = 256,
        verbose: int = 1,
    ) -> Self:
        """Learns from held-out samples which answers are wrong.

        Args:
          x: Inputs `[n, ...]` that the classifier was not trained on; several in a dictionary by
            name, or in the model's order in a list or tuple; or a `tf.data.Dataset` of batches
            (inputs, labels), then without `y`. All other methods take the same.
          y: Labels `[n]` or `[n, 1]`, whole numbers from 0 to k - 1; or one-hot `[n, k]`; or the
            names in `class_names`, if they were given. All other methods take the same. Without
            names, words are taken in alphabetical order, and numbers from 1 to k as names, with a
            warning; the other methods take them, too, from then on.
          reference: (inputs, labels) of the classifier's training samples, or a dataset of them:
            a second head learns from them, and those next to a sample are evidence. They go into
            the model. Samples of x that are among them are left out of x, with a warning. None:
            no such evidence.
          folds: (classifier, held-out samples, reference) of further classifiers of the same kind,
            each trained without its held-out samples: with few of the classifier's own, the
            estimator learns more from theirs. Samples and reference as in `reference`. With
            `copies` that are given, those of the fold's samples follow as a fourth.
          copies: Other versions of x, each `[n, ...]` in its order, as they may come: noisier ones,
            say, or blurred. The estimator learns from them what to add to u where an input looks
            like one of them; what else it uses is chosen, and it is judged, by x alone. "auto": of
            images in an array one copy each, corrupted in one of five ways
            (`data.corruptions.random_copy`), which are computed like x; of other inputs, and of a
            dataset, none. Empty: none. Others than "auto" not with a dataset.
          ensemble: Further classifiers for the same inputs and classes, trained without x as this
            one was: the estimator learns 1 − the mean probability of the true class over all of
            them instead of right or wrong, and judges alone afterwards. It is chosen and judged by
            right and wrong. Not with `folds`, nor with a dataset.
          evidence: The evidence that the estimator may use, of `methods.residual_fit.EVIDENCE`;
            that of images exists for images alone. With `methods.residual_fit.NO_INDEX` no
            reference sample goes into the model.
          looks: Further answers to the same input that may be evidence: "auto", those that suit
            the inputs and help most often, or none; or a list of names, layers, functions and
            classifiers; empty: none, and no limit to the cost of the rest.
            Names are those of `methods.LOOKS`, "shifts", "rotations" and "zooms", "dropout" and
            "dropouts", and with a reference "trees", "tokens" and "small_net", which learn from
            it, and "student", which learns the classifier's answers to it, too. Of several inputs
            each is changed that a name suits, token ids excepted, and nothing learns from the
            reference.
            Keras layers change an input but not its class; so do functions on arrays (inputs
            `[n, ...]` → the same shape and type), but with one of these a judge can neither be
            saved nor exported. Classifiers, or paths of their files, have the same classes. Looks
            are chosen by nested cross-validation, and computed only for the inputs that MCP is
            unsure of, also by `predict` and in an exported model. With `folds` only changes of the
            input. A dataset is read once more for them; if it gives other samples then, "auto"
            offers none.
          cost: What an input may cost on the mean, unless `looks` is empty: multiply-adds of all
            evidence, in passes of the classifier, its own included; at least 1. A classifier of
            less than a million multiply-adds counts as that many.
          groups: Whole numbers or strings `[n]`: samples of x with equal ones belong together,
            such as the images of a patient. They stay in one fold of the cross-validation, and
            intervals come from drawing whole groups. Not with a dataset or `folds`.
          seed: Seed of the cross-validation, of the bootstrap and of the second head; from 0 to
            2147483647.
          batch_size: Inputs at once.
          verbose: 1 shows progress bars and a sentence about the result, 0 is silent.

        Warns of a classifier that cannot be right, by the rules by which a run refuses one.

        Raises:
          ValueError: If x or y do not fit the classifier, inputs or answers are not finite, the
            arguments' inputs are on different scales, all of x are in the reference, or another
            argument is not as described.
        """
        residual_fit.check_evidence(evidence)
        seed = metrics.whole_number(
            "seed", seed, f"a whole number from 0 to {_LARGEST_SEED}", 0, _LARGEST_SEED
        )
        with self._names_of(y):
            held_out.check_copies(copies)
            held_out.check_folds(folds, reference, copies)
            held_out.check_ensemble(ensemble, x, folds)
            estimate = estimates.fit_residual(
                AttachedClassifier.of(self.model, batch_size, verbose),
                (x, y),
                reference=reference,
                folds=folds,
                copies=copies,
                ensemble=ensemble,
                evidence=evidence,
                looks=looks,
                cost=cost,
                groups=self._groups(groups, x, folds),
                seed=seed,
            )
        return self._use(estimate, verbose)

    def fit_btcp(
        self, x: Any, y: Any = None, *, batch_size: int = 256, verbose: int = 1, **settings: Any
    ) -> Self:
        """Trains the paper's estimator (BTCP) on the classifier's features, instead of `fit`.

        Four hidden layers of 400 on the features learn 1 − true class probability with the
        distributional focal loss (phase 2 of Li, Zheng and Zhang, 2022). As in the paper it
        learns from samples that the classifier was trained with. There is no fallback on MCP:
        `evaluate` says whether it ranks errors better.

        Args:
          x: Inputs `[n, ...]`, or a `tf.data.Dataset` of batches (inputs, labels), then without
            `y`.
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          batch_size: Inputs at once, when features are computed.
          verbose: 1 shows progress bars and a sentence about the result, 0 is silent.
          **settings: Training settings of `btcp_tf.Config`, such as `gamma`, `epsilon`,
            `estimator_epochs`, `estimator_learning_rate` and `seed`; by default the paper's.

        Raises:
          ValueError: If x or y do not fit the classifier, its answers are not finite, or a setting
            is out of range.
          FloatingPointError: If the loss is no longer finite.
        """
        training = TrainingSettings.from_defaults(verbose=verbose, **settings)
        with self._names_of(y):
            estimate = estimates.fit_btcp(
                AttachedClassifier.of(self.model, batch_size, verbose), x, y, training
            )
        return self._use(estimate, verbose)

    def predict(self, x: Any, *, by: Any = None, batch_size: int = 256) -> dict[str, np.ndarray]:
        """Answers with their uncertainty.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches of them.
          by: The group of each input `[n]`, where the threshold was chosen by group. Nothing is
            accepted of groups that `select_threshold` has not seen; a warning names them.
          batch_size: Inputs at once.

        Returns:
          `predicted` int64 `[n]`, `class_name` str `[n]`, `probs` `[n, k]`, `uncertainty` float64
          `[n]` in [0, 1], and once there is a threshold `accept` bool `[n]`. Where looks are used,
          `second_opinion` int64 `[n]`, the class with the largest mean probability over the
          classifier and its looks, and `second_probability` `[n]`; u, and a promise, is about
          `predicted`.

        Raises:
          ValueError: If inputs do not fit the model, are NaN or infinite, or so far from those of
            `fit` that they must be on another scale (`input_range = None` lets those pass); and if
            `by` is missing where the threshold needs it, or given where it does not.
        """
        groups = self._names(by, x)
        decision.check_by(self.threshold, groups)
        scored = self._scoring(x, None, batch_size, like=self.input_range)
        predicted = scored.predicted
        answers = {
            "predicted": predicted,
            "class_name": np.array(self.class_names)[predicted],
            "probs": scored.probs,
            "uncertainty": scored.uncertainty,
        }
        if scored.second_opinion is not None:
            answers["second_opinion"] = scored.second_opinion.argmax(axis=1)
            answers["second_probability"] = scored.second_opinion.max(axis=1)
        if self.threshold is not None:
            answers["accept"] = decision.accepted(
                self.threshold, groups, predicted, scored.uncertainty
            )
        return answers

    def predictions(
        self, x: Any, y: Any = None, *, groups: Any = None, batch_size: int = 256
    ) -> Predictions:
        """Answers to labeled inputs with u of `method` and, beside it, of "mcp".

        `evaluation.save_predictions` makes a file of them that `python -m btcp_tf.report` reads.
        Row i is of input i: samples that the judge learned from are kept, with a warning, as what
        belongs to the inputs elsewhere would no longer fit; `evaluate` leaves them out.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          groups: As in `fit`; they are kept beside the answers, for intervals and promises.
          batch_size: Inputs at once.
        """
        self._groups(groups, x)
        scored, overlap = self._scored(x, y, batch_size, "threshold")
        if overlap.text:
            kept = "; they are kept, and u looks better on them" if overlap.known.any() else ""
            warn(f"x: {overlap.text}{kept}")
        return scored.predictions(self.method, groups=groups)

    def _scored(self, x: Any, y: Any, batch_size: int, *also: str) -> tuple[Scored, Overlap]:
        """Answers, and which of the samples are known; see `held_out.overlap`."""
        scored = self._scoring(x, y, batch_size, like=self.input_range, hashed=True)
        assert scored.hashes is not None
        known_parts = judge_model.known_parts(self._about)
        return scored, held_out.overlap(scored.hashes, known_parts, also)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        groups: Any = None,
        by: Any = None,
        batch_size: int = 256,
        draws: int = _DRAWS,
        seed: int = 0,
    ) -> list[dict[str, Any]]:
        """How well u finds the errors, beside MCP on the same answers.

        Samples that the judge learned from (x of `fit`, of its folds, the reference) are left out,
        with a warning that says how many; unless there are no more of them than repeat by nature.
        Those of `select_threshold` are counted alone: what is accepted depends on them, u does not.
        Before `fit` a warning says that u is MCP.

        Args:
          x: Inputs `[n, ...]`, or a dataset of batches (inputs, labels).
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          groups: As in `fit`; intervals come from drawing whole groups.
          by: As in `predict`.
          batch_size: Inputs at once.
          draws: Number of bootstrap draws for the intervals.
          seed: Seed of the draws.

        Returns:
          Rows of `evaluation.rows` of "mcp" and of `method`, at the threshold's tau (0.5 without
          one; None where each group has its own). Where looks are used, the second also has
          `looked_at`, the inputs that were looked at again; and the shares of them on which the
          classifier is right (`looked_at_accuracy`) and the second opinion of `predict` is
          (`looked_at_second_accuracy`), NaN where there are none.

        Raises:
          ValueError: As `predict`; and if all samples are known.
        """
        self._warn_if_unfitted()
        self._groups(groups, x)
        names, threshold = self._names(by, x), self.threshold
        decision.check_by(threshold, names)
        scored, overlap = self._scored(x, y, batch_size, "threshold")
        rest = held_out.unknown_rows(overlap, "evaluated")
        answers = scored.predictions(self.method, rest, groups)
        held_out.warn_of_one_class(scored.true_classes()[rest], self.class_names, "measured on")
        limits = None
        if isinstance(threshold, thresholds.GroupThreshold):
            limits = threshold.limits((scored.predicted if names is None else names)[rest])
        mcp, own = results.rows(
            answers,
            dataset="",
            seed=seed,
            stage="frozen",
            classifier_id="",
            split="",
            # Without a tau nothing is accepted.
            tau=0.5 if threshold is None else threshold.tau or 0.0,
            bootstrap_draws=draws,
            bootstrap_seed=seed,
            limits=limits,
        )
        return [mcp, own | scored.about_second_opinion(rest)]

    def select_threshold(
        self,
        x: Any,
        y: Any = None,
        *,
        rule: str = "best_bacc",
        by: Any = None,
        batch_size: int = 256,
        **settings: Any,
    ) -> thresholds.Threshold:
        """Chooses the threshold of `predict` and keeps it in the model.

            judge.select_threshold(x, y, rule="target_risk", risk=0.05, delta=0.05)

        With `by` it is a `thresholds.GroupThreshold`: one for each predicted class or group, whose
        promises hold together with probability 1 - delta. Before `fit` a warning says that u is
        MCP.

        Args:
          x: Inputs `[n, ...]` that neither the classifier nor `fit` has seen, or a dataset of
            batches (inputs, labels).
            Samples that the judge learned from are left out, with a warning, unless there are
            no more of them than repeat by nature.
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`; `target_coverage` needs none.
          rule: One of `thresholds.RULES`.
          by: "predicted", or groups `[n]` that are no inputs of the model, such as the hospital
            (whole numbers or strings; not with a dataset): `target_risk` then promises the error
            rate in each predicted class or group. Where that is not achievable nothing is accepted,
            and a warning names it. Groups are asked for by `predict`, `evaluate` and the exported
            model, too. None: one for all samples.
          batch_size: Inputs at once.
          **settings: Settings of the rule, see `btcp_tf.thresholds`; for a promise about samples
            that belong together also `groups`, as in `fit`.

        Raises:
          ValueError: As the rule; for settings that it does not have, or lacks; and if all
            samples are known, or, for `target_risk`, more than 5 % of them.
        """
        thresholds.check_settings(rule, settings)
        if by is not None:
            thresholds.check_by(thresholds.GROUP, rule)
            if not (isinstance(by, str) and by == thresholds.PREDICTED):
                by = self._names(by, x)
        if "groups" in settings:
            settings["groups"] = self._groups(settings["groups"], x)
        self._warn_if_unfitted()
        scored, overlap = self._scored(x, y, batch_size)
        chosen, rows, about = decision.choose(scored, overlap, rule, settings, by)
        if self.fitted is None and "input_range" not in self._about:
            self.input_range = scored.input_range
        self._calibration_inputs = None if is_dataset(x) else self._rows_of(x, rows)
        seen = (self._about.get("seen") or {}) | about["seen"]
        self._about.update(about | {"seen": seen})
        return chosen

    def recalibrate(
        self,
        x: Any,
        y: Any = None,
        *,
        groups: Any = None,
        seed: int = 0,
        batch_size: int = 256,
        verbose: int = 1,
    ) -> Recalibration:
        """Fits u to new labeled inputs after the data has changed.

        logit(u) becomes alpha · logit(u) + beta + gamma · MCP's logit: u is the error rate again,
        and where the evidence no longer tells what it told, u moves towards MCP. Of these
        parameters as many are fitted as cross-validation shows to help. There is no threshold
        afterwards: choose one with `select_threshold`, on other new inputs.

        Args:
          x: Inputs `[n, ...]` as they come now, or a dataset of batches (inputs, labels).
            Samples that the judge learned from are left out, with a warning.
          y: Labels `[n]`, `[n, 1]` or one-hot `[n, k]`.
          groups: As in `fit`.
          seed: Seed of the cross-validation.
          batch_size: Inputs at once.
          verbose: 1 says what was learned, 0 is silent.

        Returns:
          What was learned, with its gain; `words` is a sentence.

        Raises:
          ValueError: As `predict`; with fewer than 10 wrong, or right, answers; before `fit`, and
            if u is the paper's (`fit_btcp`).
        """
        recalibrating.check(self._about)
        wanted = f"a whole number from 0 to {_LARGEST_SEED}"
        seed = metrics.whole_number("seed", seed, wanted, 0, _LARGEST_SEED)
        together = self._groups(groups, x)
        scored, overlap = self._scored(x, y, batch_size, "threshold")
        rows = held_out.unknown_rows(overlap, "used")
        learned = recalibrating.learn(scored, rows, together, seed)
        assert scored.hashes is not None
        recalibrating.apply(self.model, learned, scored.hashes[rows])
        self._scoring = Scoring(self.model)
        self._calibration_inputs = None
        if verbose:
            print(learned.words)
        return learned

    def save(self, path: str | os.PathLike) -> None:
        """Writes one `.keras` file, for `btcp_tf.load`.

        Classes and functions of one's own in the classifier have to be registered
        (`keras.saving.register_keras_serializable`), and imported wherever the file is read.

        Raises:
          ValueError: If the path does not end with .keras or cannot be written, if Keras could not
            read the file again, or if a function on arrays looks; nothing is written then.
        """
        judge_model.save(self.model, path)

    def export(
        self,
        root: str | os.PathLike,
        name: str,
        sample: Any,
        metadata: Any = None,
        *,
        pixels: str = "auto",
        decide_only: bool = False,
        group_input: str = "",
        verbose: int = 1,
    ) -> Path:
        """Writes a SavedModel `<root>/<name>/<n>/`, see `btcp_tf.serving.saved_model.export`.

        It accepts what the threshold of `select_threshold` accepts, without one u < 0.5. Where that
        was chosen on an array, in this process, the SavedModel must accept just those of its rows
        that `predict` accepts; the array must not have changed since. Before `fit` a warning says
        that u is MCP.

        Args:
          root: Export root.
          name: Directory below it.
          sample: A few inputs, on which the SavedModel is checked in a fresh process.
          metadata: JSON values to keep with the model.
          pixels: The scale that a classifier of float images `[height, width, 1 or 3]` expects of
            pixels from 0 to 255, one of "0_255", "0_1" and "-1_1" (`data.PIXELS`); the SavedModel
            then takes files (`serving_bytes`), and `btcp_tf.predict` folders of them. "auto"
            concludes from the range of the inputs of `fit` (else of `sample`) and a Rescaling layer
            at the start; where this is not clear, the SavedModel takes arrays alone.
          decide_only: True leaves out the looks that cannot change `accept`, which stays the same
            for every input: whatever they answered, u would be on the same side of tau, that of its
            predicted class or group where each has one. For such an
            input `uncertainty` is on that side and no more (what it would be if each look were as
            sure as MCP), and `second_opinion` is `predicted`. So the SavedModel is for its own
            threshold alone: for another one, choose it here and export again.
          group_input: Where the threshold is by group, all signatures take one more input of this
            name, such as "site": the group of each row as text; "": it is called group. Of a group
            that `select_threshold` has not seen nothing is accepted.
          verbose: 1 says what is done, which takes some seconds, 0 is silent.

        Returns:
          The new version directory, the one that a server takes from now on. A warning says if the
          version before promises an error rate that this one does not.

        Raises:
          ValueError: As `serving.saved_model.export`; if `sample` is not finite or on another scale
            than the inputs of `fit`, or `pixels` is; if a function on arrays looks; for
            `decide_only` without looks or without a threshold; and for `group_input` without a
            threshold by group.
        """
        self._warn_if_unfitted()
        return publish.export(
            self.model,
            root,
            name,
            sample,
            metadata,
            pixels,
            self._calibration_inputs,
            decide_only,
            group_input,
            verbose,
        )

    @contextlib.contextmanager
    def _names_of(self, y: Any) -> Iterator[None]:
        """Takes labels as people have them where nobody has named the classes: words in
        alphabetical order, as scikit-learn's `LabelEncoder` and Keras' folders number them, and
        whole numbers from 1 to k."""
        before = self.class_names
        classes = len(before)
        names = input_checks.names_among(y, classes)
        if before == [str(number) for number in range(classes)] and len(names) == classes:
            taken = "are words, taken for the classes in alphabetical order"
            if names == input_checks.names_from_one(classes):
                taken = f"count from 1 to {classes}, and are taken for the classes in this order"
            shown = ", ".join(f"{number} is {name}" for number, name in enumerate(names[:5]))
            more = ", …" * (len(names) > 5)
            warn(
                f"y: the labels {taken} ({shown}{more}); name them with "
                "attach(classifier, class_names=[...]) where it is another"
            )
            self._about["class_names"] = names
        try:
            yield
        except BaseException:
            self._about["class_names"] = before  # The next call may bring others.
            raise

    def _groups(self, groups: Any, x: Any, folds: Any = ()) -> np.ndarray | None:
        """See `held_out.groups_of`."""
        return held_out.groups_of(groups, x, named_tensors(self.model), folds)

    def _names(self, by: Any, x: Any) -> np.ndarray | None:
        """See `held_out.names_of_groups`."""
        return held_out.names_of_groups(by, x, named_tensors(self.model))

    def _rows_of(self, x: Any, rows: np.ndarray) -> Any:
        """Some of the samples of arrays."""
        like = named_tensors(self.model)
        return named_inputs.take(inference.rows_of(x, like), rows)

    def _warn_if_unfitted(self) -> None:
        """Says once that u is MCP, where a result is kept or compared that should be better."""
        if self.fitted is None and not self._warned_of_mcp:
            self._warned_of_mcp = True
            warn(
                "the judge is not fitted, so its u is MCP, one minus the largest probability: call "
                "fit(x, y) first, with samples that the classifier was not trained on"
            )

    def _use(self, estimate: Estimate, verbose: int) -> Self:
        """Puts a new estimate in the place of the present one, without a threshold."""
        classifier, about = AttachedClassifier.of(self.model), self._about | estimate.about
        self.model = judge_model.join(classifier.encoder, classifier.ends, estimate.formula, about)
        self._scoring = Scoring(self.model)
        self._calibration_inputs = None
        if verbose:
            print(estimate.fit["words"])
        return self


def attach(
    classifier: keras.Model | str | os.PathLike,
    features: str = "",
    *,
    class_names: Sequence[str] = (),
    example: Any = None,
    from_logits: bool | None = None,
) -> Judge:
    """Puts an uncertainty estimator on a classifier, which is copied and left as it is.

    Before `fit` the estimate is MCP's: 1 − the largest probability, exact where that is almost 1.

    Args:
      classifier: A built Keras model, or the path of a `.keras` or `.h5` file; see
        `networks.classifiers.take_apart`.
      features: Name of the layer whose output the estimator is fitted on; "": the input of the last
        `Dense` layer.
      class_names: k different names, in the order of the answers; labels may be these names, too.
        Default: the numbers. White space at their ends is left out, with a warning.
      example: A few inputs, for models that do not know the shape of theirs, or read text; several
        in a dictionary by name, or in a tuple.
      from_logits: True says that the answers are logits, False that they are probabilities; None:
        the model tells. A regression, a model without softmax or sigmoid that was compiled with a
        loss such as mse, is refused unless this is True. A `Dense(1)` without activation that was
        not compiled cannot be told from one: it is taken for the logit of the second of two
        classes, and labels other than 0 and 1 are refused by `fit`.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: As `networks.classifiers.take_apart`; and if the names are not k different ones.

    >>> import keras, numpy as np
    >>> keras.utils.set_random_seed(0)
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    >>> judge = attach(model, class_names=["a", "b"])
    >>> judge
    <Judge of a classifier of float32 [n, 4], 2 classes (a, b): residual, not fitted, no threshold>
    >>> answers = judge.predict(np.zeros((3, 4)))
    >>> answers["uncertainty"].tolist()  # Both classes have the probability 1 / 2.
    [0.5, 0.5, 0.5]
    """
    keras_setup.check()
    parts = AttachedClassifier.take_apart(classifier, features, class_names, example, from_logits)
    if wrong := named_inputs.unservable(parts.inputs):
        warn(
            f"inputs called {', '.join(map(repr, wrong))} cannot be exported: if the judge is to "
            "become a SavedModel, give the input layers, or the keys of their dictionary, names of "
            "ASCII letters, digits and _"
        )
    about = {
        "class_names": parts.class_names,
        "method": "residual",
        "fit": None,
        "threshold": None,
        "calibration": None,
        "features": features,
        "from_logits": from_logits,
    }
    formula = judge_model.residual_formula({}, MCP)
    return Judge(judge_model.join(parts.encoder, parts.ends, formula, about))


def load(path: str | os.PathLike) -> Judge:
    """Reads a file that `Judge.save` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no such file.

    >>> import keras, os, tempfile
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "judge.keras")
    ...     attach(model, class_names=["cat", "dog"]).save(path)
    ...     load(path).class_names
    ['cat', 'dog']
    """
    keras_setup.check()
    return Judge(judge_model.load(path))
