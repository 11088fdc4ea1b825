"""Which residual estimator is used, or MCP in its place: a search, a verdict, a sentence."""

import dataclasses
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from btcp_tf import metrics
from btcp_tf.core.groups import mean_error
from btcp_tf.core.warning import warn
from btcp_tf.methods import corrections, nesting, stacking
from btcp_tf.methods.corrections import Correction
from btcp_tf.methods.nesting import Nested
from btcp_tf.methods.stacking import FOLDS, Columns, Samples

_STRENGTHS = (0.01, 0.1, 1.0, 10.0)

_UNPENALIZED = 1e6
"""Strength for the calibration of MCP."""

_DRAWS = 1000

_KEPT = 0.75
"""Share of the gain in AURC that must be left where u is corrected for inputs like the copies."""


EVIDENCE = ("answer", "head", "neighbors", "image_head", "image_neighbors")
"""Evidence that the residual estimator may use: the whole answer; a second head on the features,
and the nearest of the classifier's training samples by their features; the same two by the `View`
of the images. All but the first need the training samples."""

NO_INDEX = ("answer", "head", "image_head")
"""The evidence that takes no training sample into the model."""

ENOUGH_ERRORS = 100
"""Wrong answers from which on an estimator has enough to learn from: with fewer there is a warning,
and the evidence does not tell classes apart."""

FEW_ERRORS = ENOUGH_ERRORS
"""The name of `ENOUGH_ERRORS` in version 0.1.0."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """What one source of evidence adds to MCP by itself, on held-out samples, cross-validated."""

    name: str
    """Of a kind of evidence, or of a look."""
    cost: float | None
    """In passes of the classifier; None: it is not counted."""
    aurc: float
    """Difference in AURC to MCP; below 0 is better."""
    log_likelihood: tuple[float, float, float]
    """Mean difference in the log-likelihood of right or wrong to MCP, calibrated: (value, low,
    high), 95 %; above 0 is better."""
    used: bool
    """Whether the estimator uses it."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """How an estimator came about."""

    samples: int
    """Held-out samples that it learned from."""
    errors: int
    """Wrong answers among them."""
    evidence: tuple[str, ...]
    """The evidence that it uses beside MCP, of `EVIDENCE`; empty: it is MCP, calibrated."""
    strength: float
    """Inverse of the L2 penalty."""
    difference: dict[str, tuple[float, float, float]]
    """By nested cross-validation on the same samples, minus MCP: metric → (value, low, high),
    95 %."""
    words: str
    """The same in a sentence."""
    summary: str
    """What it learned from and whether it is used, without figures of the difference."""
    baseline: dict[str, float] = dataclasses.field(default_factory=dict)
    """Mean share in logit(u), over the classifier's own held-out samples, of MCP ("mcp") and of
    each kind of evidence: what `contributions` are compared with."""
    looks: tuple[str, ...] = ()
    """The looks that it uses, of those that were offered."""
    share: float = 0.0
    """Of the inputs for which these, and evidence that is not free, are computed."""
    gate: float | None = None
    """Those whose MCP logit is above this; None: all of them, or none."""
    cost: float | None = None
    """Mean cost of an input with them, in passes of the classifier; None: it was not limited."""
    corrected: bool = False
    """Whether u is corrected for inputs that look like the copies."""
    on_copies: dict[str, float] = dataclasses.field(default_factory=dict)
    """Where it is, AURC on copies of held-out samples, by cross-validation: of MCP ("mcp"), and of
    u "without" and "with" the correction."""
    tried: tuple[Tried, ...] = ()
    """Everything that was on offer. Of sources that know the same only one may be used."""


class Weights(NamedTuple):
    """logit(u) = a · z + b + h · evidence, with z = MCP's logit."""

    a: float
    b: float
    h: np.ndarray
    """`[e]`, for the columns of all evidence together."""


MCP = Weights(1.0, 0.0, np.zeros(0))
"""Weights of MCP itself."""


def table_of(tried: Sequence[Tried]) -> str:
    """A table of what was tried, for people; "": nothing was.

    >>> print(table_of([Tried("mirror", 1.0, -0.0021, (0.012, 0.008, 0.016), True)]))
    by itself, beside MCP   cost  AURC x 1000  log-likelihood x 1000  used
    mirror                  1.00        -2.10  +12.0 [+8.0, +16.0]    yes
    used: what adds most to the rest that is used, by cross-validated AURC (beside looks also
    log-likelihood), and only if all of it together is better than MCP
    """
    if not tried:
        return ""
    rows = [("by itself, beside MCP", *TRIED_COLUMNS[1:]), *map(tried_cells, tried)]
    width = max(len(row[0]) for row in rows)
    lines = (f"{a:<{width}}  {b:>5}  {c:>11}  {d:<21}  {e}" for a, b, c, d, e in rows)
    return "\n".join([*lines, *textwrap.wrap(f"used: {USED}", 90)])


USED = (
    "what adds most to the rest that is used, by cross-validated AURC (beside looks also "
    "log-likelihood), and only if all of it together is better than MCP"
)
"""Which test decides what is used: not that of each by itself."""

TRIED_COLUMNS = ("evidence", "cost", "AURC x 1000", "log-likelihood x 1000", "used")
"""What `tried_cells` are."""


def tried_cells(one: Tried) -> tuple[str, ...]:
    """A line of a table of what was tried; the cost is in passes of the classifier."""
    cost = "" if one.cost is None else f"{one.cost:.2f}"
    gain = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(1000 * x for x in one.log_likelihood))
    return (one.name, cost, f"{1000 * one.aurc:+.2f}", gain, "yes" if one.used else "no")


def tried_alone(
    samples: Samples,
    columns: Mapping[str, Columns],
    costs: Mapping[str, float],
    used: Collection[str],
    strength: float,
    seed: int,
) -> tuple[Tried, ...]:
    """What each source of evidence adds to MCP by itself.

    Args:
      samples: All held-out answers.
      columns: By name of the source what the regression reads of it, after MCP's logit.
      costs: By name, in passes of the classifier; those of others are not counted.
      used: Names of what the estimator uses.
      strength: Inverse of the L2 penalty.
      seed: Seed of the folds.
    """
    folds = stacking.splits(samples, seed)
    mcp = stacking.cross_validated(samples, samples.columns(()), strength, folds)
    every = []
    for name, own in columns.items():
        one = stacking.cross_validated(samples, own, strength, folds)
        gain = one.log_likelihood - mcp.log_likelihood
        value, error = float(gain.mean()), mean_error(gain, samples.groups)
        interval = (value, value - 1.96 * error, value + 1.96 * error)
        every.append(Tried(name, costs.get(name), one.aurc - mcp.aurc, interval, name in used))
    return tuple(every)


def parts_of(
    z: np.ndarray, evidence: Mapping[str, np.ndarray], weights: Weights
) -> dict[str, np.ndarray]:
    """What MCP's logit and each kind of evidence add to logit(u) − b: `[n]` by name.

    >>> z, evidence = np.array([[1.0], [2.0]]), {"answer": np.array([[1.0, 0.0], [0.0, 1.0]])}
    >>> parts = parts_of(z, evidence, Weights(2.0, 0.5, np.array([3.0, 4.0])))
    >>> {name: part.tolist() for name, part in parts.items()}
    {'mcp': [2.0, 4.0], 'answer': [3.0, 4.0]}
    """
    ends = np.cumsum([columns.shape[1] for columns in evidence.values()])[:-1]
    slopes = np.split(weights.h, ends) if evidence else []
    return {"mcp": weights.a * z[:, 0].astype(np.float64)} | {
        name: columns @ part for (name, columns), part in zip(evidence.items(), slopes, strict=True)
    }


class Concluded(NamedTuple):
    """A residual estimator, or MCP in its place."""

    fit: Fit
    """How it came about."""
    weights: Weights
    """Those of the classes follow the others of "answer"."""
    correction: Correction | None
    """What is added to logit(u) where an input looks like a copy; None: nothing."""
    u: np.ndarray
    """`[n]`, each by a choice and weights that have not seen the sample; where it is MCP, MCP's."""


def choose(samples: Samples, seed: int, verbose: int = 0) -> Concluded:
    """Fits the residual estimator by logistic regression, or falls back on MCP.

    The L2 penalty is that of the smallest cross-validated AURC with all evidence. The evidence that
    is used (the answer with all, none or one of the others) is then that of the smallest AURC with
    this penalty. All samples weigh the same: a focal factor, the density of the residuals or the
    rarity of errors as weights ranked held-out samples worse.
    The result counts as better than MCP if the paired 95 % bootstrap intervals of its
    differences in AUPR-error and in AURC both exclude zero on the better side. One of them was not
    enough: on few held-out samples the winner of so many trials then lost on others. The
    differences are those of nested cross-validation, see `nesting.nested`.

    Args:
      samples: Held-out answers. If several classifiers gave them, each is a fold of the
        cross-validation where it can be: what is learned from others is tried on it.
      seed: Seed of folds and bootstrap.
      verbose: 1 shows how many of the trials are done.
    """
    if (few := too_few(samples)) is not None:
        return Concluded(few, MCP, None, samples.mcp)

    def search(part: Samples) -> _Trial:
        # What is used is chosen as it is learned.
        is_whole = part.n == samples.n
        return _search(part, seed, stacking.regression if is_whole else stacking.quick_regression)

    trial, nested = nesting.nested(
        samples,
        search,
        lambda part, trial: part.columns(trial.names),
        seed,
        "trying combinations of this evidence by nested cross-validation",
        verbose,
    )
    chosen = {name: samples.evidence[name] for name in trial.names}
    found = conclude(samples, nested, chosen, trial.strength, seed)
    originals = samples.originals()
    alone = {name: originals.columns((name,)) for name in samples.evidence}
    tried = tried_alone(originals, alone, {}, found.fit.evidence, trial.strength, seed)
    return found._replace(fit=dataclasses.replace(found.fit, tried=tried))


def conclude(
    samples: Samples,
    nested: Nested,
    evidence: Mapping[str, np.ndarray],
    strength: float,
    seed: int,
    used: str = "the estimator is used",
    each_is_tested: bool = False,
) -> Concluded:
    """Learns the weights of what was chosen; or, where it is not better than MCP, those of MCP.

    Args:
      samples: All held-out answers.
      nested: How the choice does.
      evidence: The chosen columns, `[v · n, e]` by name; {}: none, so that it is MCP.
      strength: Inverse of the L2 penalty.
      seed: Seed of the bootstrap.
      used: What the sentence says where it is better.
      each_is_tested: Whether each of its sources was shown to say something. Then it is enough that
        one of the two intervals excludes zero, if the other measure is not worse.
    """
    originals, u = samples.originals(), nested.u
    is_corrected = _keeps_the_gain(originals, nested)
    if is_corrected and nested.corrected is not None:
        u = nested.corrected
    difference = _difference(originals, u, seed)
    is_better = bool(evidence) and _is_better(difference, each_is_tested)
    is_corrected &= is_better
    evidence = evidence if is_better else {}
    x, correction = samples.read(evidence), None
    if is_better:
        rows = np.arange(samples.n)
        model = stacking.fitted(x.rows(rows), originals.learned, strength, stacking.regression)
        weights = _weights_of(model, evidence)
        if is_corrected:
            before = model.of(x)
            correction = corrections.learn(samples, x.x, before, seed)
            added = correction.of(x.x[: samples.n], originals)
            weights = weights._replace(b=weights.b + _centered(originals, before[rows] + added))
    else:
        weights = _calibrated(originals)
    baseline = _baseline(samples, weights, evidence)
    if correction is not None:
        baseline["copies"] = float(added[samples.classifier == 0].mean())
    verdict = used if is_better else "not better: u is MCP, calibrated"
    if is_corrected:
        verdict += ", and u is corrected where an input looks like one of the copies"
    elif is_better and samples.copies:
        verdict += f"; the copies are not: with them less than {_KEPT:.0%} of the gain was left"
    on_copies, words = {}, _sentence(samples, difference, verdict)
    if is_corrected and nested.on_copies is not None:
        on_copies = dict(zip(("mcp", "without", "with"), nested.on_copies.tolist(), strict=True))
        words += copies_sentence(on_copies)
    fit = Fit(
        samples=samples.n,
        errors=samples.errors,
        evidence=tuple(evidence),
        strength=strength,
        difference=difference,
        words=words,
        summary=_summary(samples, verdict),
        baseline=baseline,
        corrected=is_corrected,
        on_copies=on_copies,
    )
    return Concluded(fit, weights, correction, u if is_better else samples.mcp)


def copies_sentence(on_copies: Mapping[str, float]) -> str:
    """What a correction brings, behind another sentence.

    >>> copies_sentence({"mcp": 0.05, "without": 0.048, "with": 0.0405})
    '; on copies AURC x 1000 is 40.5 with the correction, 48.0 without, 50.0 of MCP'
    """
    with_it, without, mcp = (1000 * on_copies[name] for name in ("with", "without", "mcp"))
    return (
        f"; on copies AURC x 1000 is {with_it:.1f} with the correction, {without:.1f} without, "
        f"{mcp:.1f} of MCP"
    )


def _keeps_the_gain(samples: Samples, nested: Nested) -> bool:
    """Whether with what copies teach most of the gain over MCP is left for the samples themselves.

    A little of it is given for inputs that are not like them.
    """
    if nested.corrected is None:
        return False
    mcp, plain, corrected = (
        metrics.aurc(samples.is_error, u) for u in (samples.mcp, nested.u, nested.corrected)
    )
    return mcp - corrected >= _KEPT * (mcp - plain)


def _centered(samples: Samples, logits: np.ndarray) -> float:
    """What is to be added to logit(u) of the samples, `[n]`, so that the mean u is their target's,
    as it is without a correction."""
    wanted = samples.learned.mean()

    def excess(shift: float) -> float:
        return float(special.expit(logits + shift).mean() - wanted)

    return float(optimize.brentq(excess, -30.0, 30.0))


class _Trial(NamedTuple):
    aurc: float
    """Cross-validated."""
    names: tuple[str, ...]
    """The evidence."""
    strength: float


def _search(samples: Samples, seed: int, regression: Callable[..., stacking.Logistic]) -> _Trial:
    """The trial of the smallest cross-validated AURC: first of the penalty, then of the
    evidence."""
    splits = stacking.splits(samples, seed)

    def trial(names: tuple[str, ...], strength: float) -> _Trial:
        x, u = samples.columns(names), np.empty(samples.n)
        for train, test in splits:
            model = stacking.fitted(x.rows(train), samples.learned[train], strength, regression)
            u[test] = special.expit(model.of(x.rows(test)))
        return _Trial(metrics.aurc(samples.is_error, u), names, strength)

    others = [name for name in samples.evidence if name != "answer"]
    parts = [(), *((name,) for name in others)] if len(others) > 1 else [()] * len(others)
    # All of it needs the penalty most; the parts are tried with what suits it.
    trials = [trial(tuple(samples.evidence), strength) for strength in _STRENGTHS]
    strength = min(trials, key=lambda trial: trial.aurc).strength
    trials += [trial(("answer", *part), strength) for part in parts]
    return min(trials, key=lambda trial: trial.aurc)


def _calibrated(samples: Samples) -> Weights:
    """Weights of MCP, calibrated."""
    slopes, b, _ = stacking.regression(samples.z, samples.is_error, _UNPENALIZED)
    # MCP whose u rises where its own answer is more certain would be MCP no more.
    return Weights(float(slopes[0]), b, slopes[1:]) if slopes[0] > 0 else MCP


def _weights_of(model: stacking.Logistic, evidence: Mapping[str, np.ndarray]) -> Weights:
    """Weights of MCP's logit and the evidence, in order."""
    (a, *h), b, offsets = model
    if offsets is not None:
        place = list(evidence).index("answer") + 1
        before = sum(column.shape[1] for column in list(evidence.values())[:place])
        h[before:before] = offsets
    return Weights(float(a), b, np.array(h))


def _baseline(
    samples: Samples, weights: Weights, evidence: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """See `Fit.baseline`."""
    own = np.flatnonzero(samples.classifier == 0)
    means = {name: column[own].mean(axis=0, dtype=np.float64) for name, column in evidence.items()}
    if samples.predicted is not None and "answer" in evidence:
        shares = np.bincount(samples.predicted[own], minlength=samples.classes) / len(own)
        means["answer"] = np.append(means["answer"], shares)
    means = {name: mean[None] for name, mean in means.items()}
    z = samples.z[own].mean(axis=0, keepdims=True, dtype=np.float64)
    return {name: float(part[0]) for name, part in parts_of(z, means, weights).items()}


def _difference(
    samples: Samples, u: np.ndarray, seed: int
) -> dict[str, tuple[float, float, float]]:
    """See `Fit.difference`."""
    is_error, mcp = samples.is_error, samples.z[: samples.n, 0]
    table = {name: metrics.METRICS[name] for name in ("aupr_error", "aurc")}
    draws = metrics.bootstrap(
        is_error,
        {"mcp": mcp, "u": u},
        tau=0.5,
        draws=_DRAWS,
        seed=seed,
        table=table,
        groups=samples.groups,
    )
    difference = {}
    for name in table:
        function = getattr(metrics, name)
        low, high = metrics.interval(draws["u"][name] - draws["mcp"][name])
        value = function(is_error, u) - function(is_error, mcp)
        difference[name] = (float(value), float(low), float(high))
    return difference


def _is_better(difference: Mapping[str, tuple[float, float, float]], one_is_enough: bool) -> bool:
    """Whether both intervals exclude zero on the better side; or one, and the other value is not
    worse."""
    aupr_error, low, _ = difference["aupr_error"]
    aurc, _, high = difference["aurc"]
    if one_is_enough:
        return (low > 0 >= aurc) or (high < 0 <= aupr_error)
    return low > 0 > high


def warn_of_few_errors(errors: int, samples: int, kind: str, remedy: str) -> None:
    """Warns where an estimator has less than enough to learn from.

    Args:
      errors: Wrong answers.
      samples: All answers.
      kind: Whose they are: "held-out", say.
      remedy: What to do.
    """
    if errors < ENOUGH_ERRORS:
        warn(
            f"the classifier is wrong on {errors} of {samples} {kind} samples, and an estimator "
            f"learns little from so few errors: {remedy}; about {ENOUGH_ERRORS} errors are enough"
        )


def too_few(samples: Samples, least: int = FOLDS) -> Fit | None:
    """The fit where there are hardly any wrong, or hardly any right answers: MCP. Else None.

    Args:
      samples: All held-out answers.
      least: Wrong, and right, answers that are needed.
    """
    wrong, right = samples.independent()
    if min(wrong, right) >= least:
        return None
    count, kind = min((wrong, "wrong"), (right, "right"))
    if samples.groups is None:
        rare = f"{count} {kind} answers among {samples.n}"
    else:
        rare = f"{count} groups with {kind} answers"
    sentence = f"{rare} are too few to learn from: u is MCP"
    baseline = _baseline(samples, MCP, {})
    return Fit(
        samples.n, samples.errors, (), 0.0, {}, words=sentence, summary=sentence, baseline=baseline
    )


def _sentence(
    samples: Samples, difference: Mapping[str, tuple[float, float, float]], verdict: str
) -> str:
    figures = "AUPR-error {:+.2f} [{:+.2f}, {:+.2f}] points".format(
        *(100 * value for value in difference["aupr_error"])
    ) + ", AURC x 1000 {:+.2f} [{:+.2f}, {:+.2f}]".format(
        *(1000 * value for value in difference["aurc"])
    )
    return f"{_source(samples)}, minus MCP: {figures}; {verdict}"


def _summary(samples: Samples, verdict: str) -> str:
    few = ", which are few to learn from" if samples.errors < ENOUGH_ERRORS else ""
    return f"learned from {_source(samples)}{few}; {verdict}"


def _source(samples: Samples) -> str:
    count = int(samples.classifier.max()) + 1
    who = f" of {count} classifiers" if count > 1 else ""
    if copies := samples.copies:
        who += f", and {copies} cop{'y' if copies == 1 else 'ies'} of each"
    if samples.target is not None:
        who += ", an ensemble's true class probabilities as targets"
    return f"{samples.n} held-out samples{who}, {samples.errors} errors"
