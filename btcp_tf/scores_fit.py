"""The residual estimator for those who have answers and no Keras model: fitted from arrays.

    scores = btcp_tf.fit_scores(logits, labels, looks={"flipped": logits_of_flipped})
    scores.predict(new_logits, looks={"flipped": new_logits_of_flipped})["uncertainty"]

The answers come from anywhere: PyTorch, JAX, an API. What is learned is what `Judge.fit` learns
from the same answers. NumPy, SciPy and scikit-learn alone: no TensorFlow.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf.core import checks, files, json_files, wording
from btcp_tf.core.groups import numbers
from btcp_tf.core.warning import warn
from btcp_tf.data import folders, input_checks
from btcp_tf.evaluation.predictions import REFERENCE, Predictions
from btcp_tf.methods import look_choice, residual_choice
from btcp_tf.methods.look_choice import Design
from btcp_tf.methods.residual_choice import Fit, Tried, Weights
from btcp_tf.methods.stacking import Samples
from btcp_tf.networks import evidence_arrays, mcp

_ANSWER = "answer"

_TAKEN = (_ANSWER, "mcp", "looks")
"""What parts of u are called already."""

_NONE: Mapping[str, Any] = {}

METHOD = "residual"
"""Name of the estimator in tables, reports and `ScoresFit.predictions`."""

_LARGEST_SEED = 2**31 - 1

_ENOUGH_ROWS = 10
"""Logits that all look like probabilities are none by chance."""

_LARGEST = 1e30
"""Numbers beyond ± this overflow in what is computed of them."""

_LEAST_PROB = 1e-30
"""Smaller probabilities count as this: the logarithm of 0 is no number."""

_PROB_ROUNDING = 1e-2
"""Rows of probabilities may miss 1 by this: many programs round them."""

_FORMAT, _VERSION = "btcp_tf.ScoresFit", 1

_NUMBER_THEM = "give their numbers, in the order of the columns of logits"


@dataclasses.dataclass(frozen=True, eq=False)
class ScoresFit:
    """The residual estimator, fitted to answers; from `fit_scores` or `load_scores`."""

    fit: Fit
    """How it came about; `fit.looks` and `fit.evidence` say what it uses, `fit.words` how well it
    does on the held-out samples. Without evidence it is MCP, calibrated."""
    classes: int
    """k."""
    are_probs: bool
    """Whether answers and looks are probabilities."""
    class_columns: bool
    """Whether the predicted class is evidence."""
    features: Mapping[str, int]
    """The chosen features, and the numbers that each has for a sample."""
    design: Design
    """What is computed for all samples, and what where MCP is unsure."""
    weights: Weights = dataclasses.field(repr=False)
    """For the columns that the design says."""

    def needs_looks(self, logits: ArrayLike) -> np.ndarray:
        """Which samples need the chosen looks, and the chosen features that are not free.

        Args:
          logits: `[n, k]`, as `fit_scores` has them.

        Returns:
          bool `[n]`: of the others nothing else is read. All False where nothing was chosen that
          has a cost.

        Raises:
          ValueError: If the logits are not as described.
        """
        answers = self._checked("logits", logits)
        return self._needed(mcp.mcp_logit(answers))

    def _checked(self, name: str, values: ArrayLike, rows: np.ndarray | None = None) -> np.ndarray:
        answers = _answers(name, values, self.are_probs, self.classes, rows)
        # Fewer may look like probabilities by chance.
        if len(answers) >= _ENOUGH_ROWS and rows is None:
            _refuse_probs(name, answers, self.are_probs)
        return answers

    def _needed(self, z: np.ndarray) -> np.ndarray:
        if not self.design.paid:
            return np.zeros(len(z), bool)
        return np.ones(len(z), bool) if self.design.gate is None else z > self.design.gate

    def predict(
        self,
        logits: ArrayLike,
        looks: Mapping[str, ArrayLike] = _NONE,
        features: Mapping[str, ArrayLike] = _NONE,
    ) -> dict[str, np.ndarray]:
        """Predicted classes with their uncertainty.

        Args:
          logits: `[n, k]`, as `fit_scores` has them.
          looks: Those of `fit.looks` by name, `[n, k]`; others may be there and are not read. Rows
            of samples that do not need them (`needs_looks`) may hold anything, such as NaN.
          features: The chosen features by name, `[n]` or `[n, e]`; others are not read. Rows of
            samples that do not need them may hold anything if the feature has a cost.

        Returns:
          `predicted`, the class with the largest logit, int64 `[n]`; and `uncertainty`, float64
          `[n]` in [0, 1], higher = less to be trusted.

        Raises:
          ValueError: If an argument is not as described, or a chosen look or feature is missing.
        """
        answers = self._checked("logits", logits)
        z = mcp.mcp_logit(answers)
        needed, every = self._needed(z), np.ones(len(z), bool)
        odds = {}
        for name in self.fit.looks:
            values = _chosen("looks", looks, name)
            look = self._checked(_item("looks", name), values, needed)
            odds[name] = evidence_arrays.odds_against(answers, look)
        evidence = {}
        if _ANSWER in self.fit.evidence:
            evidence[_ANSWER] = evidence_arrays.answer_columns(answers, classes=self.class_columns)
        for name, width in self.features.items():
            values = _chosen("features", features, name)
            rows = needed if name in self.design.paid else every
            evidence[name] = _feature(_item("features", name), values, rows, width)
        # Right and wrong are unknown, and not read.
        samples = Samples(~every, z[:, None], evidence, np.zeros(len(z), int), None, odds)
        read = look_choice.blocks(samples, self.design)
        parts = residual_choice.parts_of(samples.z, read, self.weights)
        u = special.expit(np.sum([*parts.values()], axis=0) + self.weights.b)
        return {"predicted": answers.argmax(axis=1), "uncertainty": u}

    def predictions(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        looks: Mapping[str, ArrayLike] = _NONE,
        features: Mapping[str, ArrayLike] = _NONE,
    ) -> Predictions:
        """Answers to labeled samples with u ("residual") and, beside it, that of MCP ("mcp").

        `evaluation.save_predictions` makes a file of them that `python -m btcp_tf.report` reads;
        `--fit` with the file of `save` lets the report say how u came about.

        Args:
          logits: `[n, k]`, n >= 1, as `fit_scores` has them; samples that had no part in the fit.
          labels: As in `fit_scores`.
          looks: As in `predict`.
          features: As in `predict`.

        Raises:
          ValueError: As `predict`; or if labels are not as described.

        >>> random = np.random.default_rng(0)
        >>> labels = random.integers(0, 2, 900)
        >>> logits = np.eye(2)[labels] + random.normal(size=(900, 2))
        >>> scores = fit_scores(logits[:600], labels[:600], verbose=0)
        >>> sorted(scores.predictions(logits[600:], labels[600:]).uncertainty)
        ['mcp', 'residual']
        """
        answers = self._checked("logits", logits)
        names = [str(number) for number in range(self.classes)]
        labels = input_checks.check_labels(labels, len(answers), names, "labels", _NUMBER_THEM)
        judged = self.predict(logits, looks, features)
        columns = {REFERENCE: mcp.mcp_of(answers), METHOD: judged["uncertainty"]}
        return Predictions(labels, special.softmax(answers, axis=1), judged["predicted"], columns)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON file for `load_scores`, whole or not at all.

        Raises:
          ValueError: If the path does not end with .json or cannot be written.
        """
        file = files.as_path("path", path)
        if file.suffix != ".json" or file.is_dir():
            raise ValueError(f"path: expected a name that ends with .json, received {file}")
        files.check_folder("path", file.parent)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        json_files.write(file, {"format": _FORMAT, "version": _VERSION, **fields}, indent=2)


def fit_scores(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    looks: Mapping[str, ArrayLike] = _NONE,
    features: Mapping[str, ArrayLike] = _NONE,
    costs: Mapping[str, float] = _NONE,
    cost: float = 1.3,
    are_probs: bool = False,
    groups: ArrayLike | None = None,
    seed: int = 0,
    verbose: int = 1,
) -> ScoresFit:
    """Learns from a classifier's answers to held-out samples which of its answers are wrong.

    What `Judge.fit` learns from the same answers without a reference: MCP, corrected by the whole
    answer, and by looks and features where nested cross-validation chooses them. If this does not
    find errors better than MCP, u is MCP, calibrated.

    Args:
      logits: Answers to samples that the classifier was not trained on: logits or
        log-probabilities, `[n, k]`, k >= 2.
      labels: Classes `[n]` or `[n, 1]`, whole numbers from 0 to k - 1; or one-hot `[n, k]`.
      looks: Further answers to the same samples by name, `[n, k]` as logits: of another model, or
        of the same one to a changed input (mirrored, rephrased). They are computed only for the
        samples that MCP is unsure of, see `ScoresFit.needs_looks`.
      features: Other numbers that may tell wrong answers by name, `[n]` or `[n, e]`. They are free
        and may be used for all samples, together with the whole answer; unless `costs` has them:
        then each is chosen as looks are.
      costs: By name of a look or feature, in passes of the classifier, at least 0. A look that is
        not named costs 1.
      cost: With looks or costs, what a sample may cost on the mean, the classifier's own pass
        included; at least 1.
      are_probs: Whether logits and looks, here and in `predict`, are probabilities.
      groups: Whole numbers or strings `[n]`: samples with equal ones belong together, such as the
        images of a patient. They stay in one fold of the cross-validation, and intervals come from
        drawing whole groups.
      seed: Seed of the cross-validation and of the bootstrap; from 0 to 2147483647.
      verbose: 1 shows a progress bar and a sentence about the result, 0 is silent.

    Warns of fewer than 100 errors, and of classes without a sample.

    Raises:
      ValueError: If an argument is not as described: numbers are not finite, shapes differ, looks
        and features share a name, or costs has a name that neither has.

    A look that knows what the classifier does not:

    >>> random = np.random.default_rng(0)
    >>> labels = random.integers(0, 2, 1200)
    >>> first, second = (np.eye(2)[labels] + random.normal(size=(1200, 2)) for _ in range(2))
    >>> scores = fit_scores(first, labels, looks={"second": second}, cost=2.0, verbose=0)
    >>> scores.fit.looks
    ('second',)
    >>> answers = scores.predict(first[:3], looks={"second": second[:3]})
    >>> {name: array.shape for name, array in answers.items()}
    {'predicted': (3,), 'uncertainty': (3,)}
    """
    wanted = f"a whole number from 0 to {_LARGEST_SEED}"
    seed = checks.whole_number("seed", seed, wanted, 0, _LARGEST_SEED)
    wanted = "a number >= 1, in passes of the classifier"
    budget = checks.number("cost", cost, wanted, lambda value: value >= 1)
    _check_names(looks, features)
    priced = _priced(looks, features, costs)
    answers = _answers("logits", logits, are_probs)
    n, classes = answers.shape
    names = [str(number) for number in range(classes)]
    labels = input_checks.check_labels(labels, n, names, "labels", _NUMBER_THEM)
    _refuse_probs("logits", answers, are_probs)
    _warn_of_absent(labels, classes)
    every, is_error = np.ones(n, bool), answers.argmax(axis=1) != labels
    odds = {}
    for name, values in looks.items():
        look = _answers(_item("looks", name), values, are_probs, classes, every)
        _refuse_probs(_item("looks", name), look, are_probs)
        odds[name] = evidence_arrays.odds_against(answers, look)
    class_columns = bool(is_error.sum() >= residual_choice.ENOUGH_ERRORS)
    evidence = {_ANSWER: evidence_arrays.answer_columns(answers, classes=False)}
    for name, values in features.items():
        evidence[name] = _feature(_item("features", name), values, every)
    z = mcp.mcp_logit(answers)[:, None]
    together = None if groups is None else numbers(groups, n)
    predicted = answers.argmax(axis=1) if class_columns else None
    samples = Samples(
        is_error, z, evidence, np.zeros(n, int), None, odds, predicted, classes, together
    )
    fit, weights, design = _fit(samples, priced, budget, seed, verbose)
    residual_choice.warn_of_few_errors(
        fit.errors, fit.samples, "held-out", "give more held-out samples"
    )
    if verbose:
        print("\n".join(filter(None, (residual_choice.table_of(fit.tried), fit.words))))
    widths = {name: evidence[name].shape[1] for name in fit.evidence if name != _ANSWER}
    return ScoresFit(fit, classes, bool(are_probs), class_columns, widths, design, weights)


def _fit(
    samples: Samples, priced: Mapping[str, float], budget: float, seed: int, verbose: int
) -> tuple[Fit, Weights, Design]:
    """As `residual_fit.fit_residual`: with a budget where something has a cost."""
    if priced:
        found, design = look_choice.fit(samples, priced, budget, seed, verbose)
    else:
        found = residual_choice.choose(samples, seed, verbose)
        design = Design(free=found.fit.evidence, strength=found.fit.strength)
    return found.fit, found.weights, design


def load_scores(path: str | os.PathLike) -> ScoresFit:
    """Reads a file that `ScoresFit.save` wrote.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If it is no such file, or of a newer version of its format.

    >>> import os, tempfile
    >>> random = np.random.default_rng(0)
    >>> labels = random.integers(0, 2, 600)
    >>> logits = np.eye(2)[labels] + random.normal(size=(600, 2))
    >>> scores = fit_scores(logits, labels, verbose=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "scores.json")
    ...     scores.save(path)
    ...     load_scores(path).fit == scores.fit
    True
    """
    file = files.as_path("path", path)
    expected = "path: expected a file that ScoresFit.save wrote, received"
    if not file.is_file():
        state = "no file" if file.exists() else "not there"
        raise FileNotFoundError(f"{expected} {file}, which is {state}")
    try:
        return _from_json(_read(file))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else wording.one_line(error)
        raise ValueError(f"{expected} {file} ({reason}); fit and save again") from None


def _read(file: Path) -> dict[str, Any]:
    """What such a file holds."""
    try:
        content = json_files.parse(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"its format is not {_FORMAT}")
    if content.get("version") != _VERSION:
        raise ValueError(
            f"version {content.get('version')!r:.20} of the format, where this btcp_tf reads "
            f"{_VERSION}"
        )
    return content


def _from_json(content: Mapping[str, Any]) -> ScoresFit:
    """What `ScoresFit.save` writes, read; some error of Python's where it is something else."""
    values = dict(content["design"])
    gate = values["gate"]
    if gate is not None:
        checks.number("gate", gate, "a finite number", math.isfinite)
    design = Design(**values | {"free": tuple(values["free"]), "paid": tuple(values["paid"])})
    a, b = (
        checks.number(name, content["weights"][name], "a finite number", math.isfinite)
        for name in "ab"
    )
    weights = Weights(a, b, np.array(content["weights"]["h"], np.float64))
    if weights.h.ndim != 1 or not np.isfinite(weights.h).all():
        raise ValueError("h: expected finite numbers [e]")
    for name in ("are_probs", "class_columns"):
        if not isinstance(content[name], bool):
            raise ValueError(f"{name}: expected true or false, received {content[name]!r:.40}")
    if len({*design.free, *design.paid}) < len(design.free) + len(design.paid):
        raise ValueError("design: expected each name once")
    values = dict(content["fit"])
    values |= {name: tuple(values[name]) for name in ("evidence", "looks")}
    values["tried"] = tuple(
        Tried(**row | {"log_likelihood": tuple(row["log_likelihood"])})
        for row in values.get("tried", ())
    )
    values["difference"] = {name: tuple(row) for name, row in values["difference"].items()}
    result = ScoresFit(
        Fit(**values),
        checks.whole_number("classes", content["classes"], "a whole number >= 2", 2),
        content["are_probs"],
        content["class_columns"],
        {
            name: checks.whole_number(name, width, "a whole number >= 1", 1)
            for name, width in content["features"].items()
        },
        design,
        weights,
    )
    _check_whole(result)
    return result


def _check_whole(scores: ScoresFit) -> None:
    """ValueError unless the parts fit together, shown by their names and the answer to no
    samples."""
    used = {*scores.fit.evidence, *scores.fit.looks}
    if used != {*scores.design.free, *scores.design.paid} or (
        {*scores.features} != {*scores.fit.evidence} - {_ANSWER}
    ):
        raise ValueError("design, features and fit name different evidence")
    none = np.zeros((0, scores.classes))
    features = {name: np.zeros((0, width)) for name, width in scores.features.items()}
    try:
        scores.predict(none, dict.fromkeys(scores.fit.looks, none), features)
    except ValueError:
        raise ValueError("h: expected a number for each column of the design") from None


def _item(argument: str, name: str) -> str:
    return f"{argument}[{name!r}]"


def _check_names(looks: Any, features: Any) -> None:
    """ValueError unless both are mappings whose names differ."""
    for argument, named in (("looks", looks), ("features", features)):
        _check_mapping(argument, named, "arrays by name")
        for name in named:
            if not isinstance(name, str) or not wording.is_utf8(name) or name in ("", *_TAKEN):
                raise ValueError(
                    f"{argument}: expected names other than {', '.join(_TAKEN)}, received "
                    f"{wording.quoted(name)}"
                )
    if both := [name for name in looks if name in features]:
        raise ValueError(
            "features: expected names that no look has, received "
            f"{', '.join(map(wording.quoted, both))}"
        )


def _check_mapping(argument: str, value: Any, wanted: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{argument}: expected a mapping, {wanted}, received {type(value).__name__}"
        )


def _priced(looks: Mapping[str, Any], features: Mapping[str, Any], costs: Any) -> dict[str, float]:
    """What each look, and each feature that is not free, costs."""
    _check_mapping("costs", costs, "numbers by name")
    known = [*features, *looks]
    for name in costs:
        if name not in known:
            raise ValueError(
                wording.expected_one_of("costs", known, name)
                if known
                else f"costs: expected none without looks and features, received {name!r:.80}"
            )
    return {
        name: checks.number(
            _item("costs", name),
            costs.get(name, 1.0),
            "a finite number >= 0, in passes of the classifier",
            lambda value: 0 <= value < math.inf,
        )
        for name in known
        if name in looks or name in costs
    }


def _chosen(argument: str, named: Any, name: str) -> Any:
    """A chosen look or feature; ValueError, which names it, if it is missing."""
    _check_mapping(argument, named, "arrays by name")
    if name not in named:
        raise ValueError(
            f"{argument}: expected {name!r}, which the estimator uses, received "
            f"{', '.join(map(wording.quoted, named)) or 'none'}"
        )
    return named[name]


def _numbers(name: str, values: Any, fits: Any, shape: str) -> np.ndarray:
    """An argument as an array of numbers of a shape."""
    array = checks.array(name, values)
    if array.dtype.kind not in "biuf" or not fits(array.shape):
        raise ValueError(
            f"{name}: expected numbers {shape}, received {array.dtype} {list(array.shape)}"
            + ("; convert them to float32" if array.dtype.kind in "OV" else "")
        )
    return array


def _finite(name: str, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`[n, e]` with 0 in the rows that are not read; RowError if another is not finite."""
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(array) <= _LARGEST) & rows[:, None]
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        raise checks.RowError(f"{name}: expected finite numbers", array[row][bad[row]][0], row)
    return np.where(rows[:, None], array, array.dtype.type(0))


def _answers(
    name: str,
    values: Any,
    are_probs: bool,
    classes: int | None = None,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Answers, checked, as logits or log-probabilities: float32 `[n, k]`.

    Args:
      name: Name of the argument.
      values: `[n, k]`.
      are_probs: Whether they are probabilities.
      classes: k; None: any number from 2 on.
      rows: Which of n are read, bool `[n]`; None: all of any number.
    """
    n = None if rows is None else len(rows)

    def fits(shape: tuple[int, ...]) -> bool:
        k = shape[1] if len(shape) == 2 else 0
        return k >= 2 and n in (None, shape[0]) and classes in (None, k)

    wanted = f"[{'n' if n is None else n}, {'k], k >= 2' if classes is None else f'{classes}]'}"
    array = _numbers(name, values, fits, wanted)
    rows = np.ones(len(array), bool) if rows is None else rows
    with np.errstate(over="ignore"):
        array = _finite(name, np.ascontiguousarray(array, np.float32), rows)
    if not are_probs:
        return array
    expected = f"{name}: expected probabilities"
    least, total = array.min(axis=1), array @ np.ones(array.shape[1])
    checks.check_rows(least >= 0, least, f"{expected} from 0 to 1")
    good = (np.abs(total - 1) <= _PROB_ROUNDING) | ~rows
    checks.check_rows(good, total, f"{expected} that sum to 1")
    return np.log(np.maximum(array, np.float32(_LEAST_PROB)))


def _refuse_probs(name: str, answers: np.ndarray, are_probs: bool) -> None:
    """ValueError if all that is said to be logits looks like probabilities."""
    if are_probs or answers.min() < 0 or not np.allclose(answers.sum(axis=1), 1, atol=1e-3):
        return
    raise ValueError(
        f"{name}: expected logits or log-probabilities, received numbers from 0 to 1 that sum to 1 "
        "in each row; give are_probs=True where all are probabilities, else the logarithms "
        f"np.log(np.maximum(probs, {_LEAST_PROB}))"
    )


def _feature(name: str, values: Any, rows: np.ndarray, width: int | None = None) -> np.ndarray:
    """A feature, checked: float64 `[n, e]`, 0 in the rows that are not read."""
    n = len(rows)

    def fits(shape: tuple[int, ...]) -> bool:
        e = shape[1] if len(shape) == 2 else 1
        return len(shape) in (1, 2) and shape[0] == n and e >= 1 and width in (None, e)

    wanted = {None: f"[{n}] or [{n}, e]", 1: f"[{n}] or [{n}, 1]"}.get(width, f"[{n}, {width}]")
    array = _numbers(name, values, fits, wanted).astype(np.float64)
    return _finite(name, array.reshape(n, -1) if n else array.reshape(0, width or 1), rows)


def _warn_of_absent(labels: np.ndarray, classes: int) -> None:
    absent = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(absent):
        warn(
            f"labels: expected samples of all {classes} classes, received none of "
            f"{folders.some([str(number) for number in absent])}: what is learned may not hold for "
            "them"
        )
