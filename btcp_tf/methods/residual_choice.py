"""How the residual estimator is fitted, and whether it is used or MCP in its place."""

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from btcp_tf import metrics
from btcp_tf.core.progress import Bar

_FOLDS = 5

_STRENGTHS = (0.01, 0.1, 1.0, 10.0)

_DRAWS = 1000

FEW_ERRORS = 100
"""Fewer teach an estimator little."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """How an estimator came about."""

    samples: int
    """Held-out samples that it learned from."""
    errors: int
    """Wrong answers among them."""
    evidence: tuple[str, ...]
    """What it reads beside MCP, of `EVIDENCE`; empty: it is MCP, calibrated."""
    strength: float
    """Inverse of the L2 penalty."""
    difference: dict[str, tuple[float, float, float]]
    """Cross-validated on the same samples, minus MCP: metric → (value, low, high), 95 %."""
    words: str
    """The same in a sentence."""
    summary: str
    """What it learned from and whether it is used, without figures of the difference."""
    baseline: dict[str, float] = dataclasses.field(default_factory=dict)
    """Mean share in logit(u), over the classifier's own held-out samples, of MCP ("mcp") and of
    each kind of evidence: what `contributions` are compared with."""


Weights = tuple[float, float, np.ndarray]
"""a, b and h of `Residual`."""

MCP: Weights = (1.0, 0.0, np.zeros(0))
"""Of MCP itself."""


def parts_of(
    z: np.ndarray, evidence: dict[str, np.ndarray], weights: Weights
) -> dict[str, np.ndarray]:
    """What MCP's logit and each kind of evidence add to logit(u) − b: `[n]` by name."""
    a, _, h = weights
    ends = np.cumsum([columns.shape[1] for columns in evidence.values()])[:-1]
    slopes = np.split(h, ends) if evidence else []
    return {"mcp": a * z[:, 0].astype(np.float64)} | {
        name: columns @ part for (name, columns), part in zip(evidence.items(), slopes, strict=True)
    }


def choose(
    is_error: np.ndarray,
    z: np.ndarray,
    evidence: dict[str, np.ndarray],
    seed: int,
    classifier: np.ndarray,
    target: np.ndarray | None = None,
    verbose: int = 0,
) -> tuple[Fit, Weights, np.ndarray]:
    """Fits the residual estimator by logistic regression, or falls back on MCP.

    The L2 penalty is that of the smallest cross-validated AURC with all evidence. What is read, the
    answer with all, none or one of the others, is then that of the smallest AURC with this penalty.
    All samples weigh the same: a focal factor, the density of the residuals or the rarity of errors
    as weights ranked held-out samples worse.
    The result counts as better than MCP if the paired 95 % bootstrap intervals of its
    cross-validated differences in AUPR-error and in AURC both exclude zero on the better side. One
    of them was not enough: on few held-out samples the winner of so many trials then lost on
    others.

    Args:
      is_error: `[v · n]` bool, whether each held-out answer is wrong: to the n samples, then to
        each of v - 1 copies of all of them, in the same order. Copies are learned from alone.
      z: `[v · n, 1]`, from `McpLogit`.
      evidence: By name, `[v · n, e]`.
      seed: Of folds and bootstrap.
      classifier: `[n]`, whose answers they are, as numbers from 0. If there are several, each is a
        fold of the cross-validation where it can be: what is learned from others is tried on it.
      target: `[v · n]` in [0, 1], what u is to be; None: `is_error`, by which it is judged anyhow.
      verbose: 1 shows how many of the trials are done.

    Returns:
      How it went; the weights; and u `[n]`, each by a fit that has not seen the sample. Where the
      result is not better than MCP, all are MCP's.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def baseline(weights: Weights, names: tuple[str, ...]) -> dict[str, float]:
        own = np.flatnonzero(classifier == 0)
        parts = parts_of(z[own], {name: evidence[name][own] for name in names}, weights)
        return {name: float(part.mean()) for name, part in parts.items()}

    n = len(classifier)
    every, is_error = is_error if target is None else target, is_error[:n]
    errors = int(is_error.sum())
    same = dict(samples=n, errors=errors)
    if min(errors, n - errors) < _FOLDS:
        rare = f"{errors} wrong" if errors <= n - errors else f"{n - errors} right"
        told = f"{rare} answers among {n} are too few to learn from: u is MCP"
        none = Fit(
            **same,
            evidence=(),
            strength=0.0,
            difference={},
            words=told,
            summary=told,
            baseline=baseline(MCP, ()),
        )
        return none, MCP, special.expit(z[:n, 0])

    def fitted(x: np.ndarray, wanted: np.ndarray, strength: float) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        if wanted.dtype == bool:
            return model.fit(x, wanted)
        # A probability is so much of a wrong answer and the rest of a right one.
        wrong = np.repeat([True, False], len(x))
        weight = np.concatenate([wanted, 1.0 - wanted])
        return model.fit(np.tile(x, (2, 1)), wrong, logisticregression__sample_weight=weight)

    folds: Any = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    several = [is_error[classifier != number] for number in np.unique(classifier)]
    # Unless all errors, or all other answers, are one classifier's.
    if classifier.any() and all(0 < others.sum() < len(others) for others in several):
        folds = PredefinedSplit(classifier)
    # Of a sample that is held out, the copies are, too.
    splits = [
        (np.concatenate([train + start for start in range(0, len(every), n)]), test)
        for train, test in folds.split(is_error, is_error)
    ]

    def held_out(x: np.ndarray, strength: float) -> np.ndarray:
        u = np.empty(n)
        for train, test in splits:
            u[test] = fitted(x[train], every[train], strength).predict_proba(x[test])[:, 1]
        return u

    def trial(names: tuple[str, ...], strength: float) -> tuple[float, tuple[str, ...], float, Any]:
        u = held_out(np.hstack([z, *(evidence[name] for name in names)]), strength)
        bar.add(1)
        return metrics.aurc(is_error, u), names, strength, u

    others = [name for name in evidence if name != "answer"]
    parts = [(), *((name,) for name in others)] if len(others) > 1 else [()] * len(others)
    bar = Bar("trials on held-out samples", len(_STRENGTHS) + len(parts), shown=bool(verbose))
    # All of it needs the penalty most; the parts are tried with what suits it.
    trials = [trial(tuple(evidence), strength) for strength in _STRENGTHS]
    _, _, strength, _ = min(trials, key=lambda found: found[0])
    trials += [trial(("answer", *part), strength) for part in parts]
    _, names, strength, u = min(trials, key=lambda found: found[0])
    difference = _difference(is_error, z[:n, 0], u, seed)
    gain = {"aupr_error": 1.0, "aurc": -1.0}
    sides = [np.sort([gain[name] * end for end in difference[name][1:]]) for name in gain]
    better = all(low > 0 for low, _ in sides)
    names = names if better else ()
    x = np.hstack([z, *(evidence[name] for name in names)])
    # MCP is calibrated for samples as they are.
    rows, wanted = (slice(None), every) if better else (slice(n), is_error)
    scaler, regression = fitted(x[rows], wanted, strength if better else 1e6)
    slopes = regression.coef_[0] / scaler.scale_
    a, b = float(slopes[0]), float(regression.intercept_[0] - slopes @ scaler.mean_)
    figures = "AUPR-error {:+.2f} [{:+.2f}, {:+.2f}] points".format(
        *(100 * value for value in difference["aupr_error"])
    ) + ", AURC x 1000 {:+.2f} [{:+.2f}, {:+.2f}]".format(
        *(1000 * value for value in difference["aurc"])
    )
    count = int(classifier.max()) + 1
    who = f" of {count} classifiers" if count > 1 else ""
    if copies := len(every) // n - 1:
        who += f", and {copies} cop{'y' if copies == 1 else 'ies'} of each"
    if target is not None:
        who += ", an ensemble's true class probabilities as targets"
    source = f"{n} held-out samples{who}, {errors} errors"
    end = "the estimator is used" if better else "not better: u is MCP, calibrated"
    few = ", which are few to learn from" if errors < FEW_ERRORS else ""
    # MCP whose u rises where its own answer is more certain would be MCP no more.
    weights = (a, b, slopes[1:]) if better or a > 0 else MCP
    fit = Fit(
        **same,
        evidence=names,
        strength=strength,
        difference=difference,
        words=f"{source}, minus MCP: {figures}; {end}",
        summary=f"learned from {source}{few}; {end}",
        baseline=baseline(weights, names),
    )
    return fit, weights, u if better else special.expit(z[:n, 0])


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
