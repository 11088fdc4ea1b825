"""Which looks and other evidence the residual estimator uses, for a cost that is limited.

A look is a further answer to the same input. It and the rest of the evidence are worth most where
MCP is unsure, and are computed only there: for a share of the inputs, those with the largest MCP.
They enter with a weight that is 0 at this gate and grows from there, so that u stays continuous.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from btcp_tf.core.groups import mean_error
from btcp_tf.methods import nesting, residual_choice, stacking
from btcp_tf.methods.nesting import Nested
from btcp_tf.methods.residual_choice import MCP, Concluded
from btcp_tf.methods.stacking import FOLDS, Columns, Samples
from btcp_tf.networks.evidence_arrays import CLIPPED, look_extremes

_SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)

_STRENGTHS = (0.1, 1.0, 10.0)

_STRENGTH = 1.0
"""While sources are chosen."""

_TRIED = 4
"""Sources that are tried by cross-validation at each step, of those that promise most."""

_ROUNDING = 1e-9
"""By so much a cost may be above what it may be."""

_LEAST_COST = 0.01
"""A source that costs less than this counts as this: nothing is worth infinitely much."""

_LEVEL, _FIRST_LEVEL = 0.05, 0.2
"""Probability that a source which says nothing is added to others, over all that are tried; and
that one is taken as the first, which the verdict on all of them then judges once more."""


class Design(NamedTuple):
    """What logit(u) is computed from, beside MCP's logit."""

    free: tuple[str, ...] = ()
    """Evidence that is computed for every input."""
    paid: tuple[str, ...] = ()
    """Evidence and looks that are computed where MCP's logit is above the gate."""
    gate: float | None = None
    """None: they are computed for every input."""
    share: float = 1.0
    """Of the inputs that it was chosen on, those above the gate."""
    strength: float = _STRENGTH
    """Inverse of the L2 penalty."""

    def cost(self, costs: Mapping[str, float]) -> float:
        """Mean cost of an input, in passes of the classifier, its own pass included."""
        return 1.0 + self.share * sum(costs[name] for name in self.paid)


class _Trial(NamedTuple):
    design: Design
    loss: float
    """Sum of the cross-validated AURC and log-likelihood, each divided by MCP's: the AURC alone
    hangs on the few errors among the surest answers."""
    log_likelihood: np.ndarray
    """Cross-validated, `[n]`."""


def look_columns(z: np.ndarray, odds: np.ndarray) -> np.ndarray:
    """The evidence in looks: `[n, 2 m + 1]`.

    Of each look the log odds against the predicted class, and its probability of any other class
    (a disagreement that has no jumps). Of the mean of the classifier's and all looks' answers the
    log odds against the predicted class.

    Args:
      z: MCP's logit, `[n, 1]`.
      odds: Log odds against the predicted class, `[n, m]`, clipped.

    >>> look_columns(np.array([[0.0]]), np.array([[0.0]])).tolist()
    [[0.0, 0.5, 0.0]]
    """
    every = np.clip(np.hstack([z, odds]), -CLIPPED, CLIPPED).astype(np.float64)
    against, for_it = special.expit(every).mean(axis=1), special.expit(-every).mean(axis=1)
    mean = np.log(against) - np.log(for_it)
    return np.hstack([every[:, 1:], special.expit(every[:, 1:]), mean[:, None]])


def ramp(z: np.ndarray, gate: float | None) -> np.ndarray:
    """Weight in [0, 1] with which what stands behind the gate enters: 0 at the gate, 1 from one
    logit above it on."""
    return np.ones_like(z) if gate is None else np.clip(z - gate, 0.0, 1.0)


def blocks(samples: Samples, design: Design) -> dict[str, np.ndarray]:
    """What the regression reads beside MCP's logit: `[v · n, e]` by name.

    Free evidence, and under "looks" the ramp and everything that stands behind the gate times the
    ramp.
    """
    read = {name: samples.evidence[name] for name in design.free}
    if design.paid:
        evidence = {
            name: samples.evidence[name] for name in design.paid if name in samples.evidence
        }
        looks = {name: samples.looks[name] for name in design.paid if name in samples.looks}
        read["looks"] = weighted(samples.z, evidence, looks, design)
    return read


def weighted(
    z: np.ndarray,
    evidence: Mapping[str, np.ndarray],
    looks: Mapping[str, np.ndarray],
    design: Design,
) -> np.ndarray:
    """What stands behind the gate, times its weight: `[n, 1 + e]`.

    Args:
      z: MCP's logit, `[n, 1]`.
      evidence: By name `[n, e]`, in the order of the design.
      looks: By name the log odds against the predicted class, `[n]`, in the order of the design.
      design: Says where the gate is.
    """
    weight = ramp(z, design.gate)
    parts = [*evidence.values()]
    if looks:
        parts.append(look_columns(z, np.stack(list(looks.values()), axis=1)))
    return np.hstack([weight, *(weight * part for part in parts)])


def look_bounds(z: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of `look_columns(z, odds) @ slopes`, whatever the looks answer: `[n, 1]` each.

    They are reached where the odds and the mean pull the same way, as with slopes of one sign.

    Args:
      z: MCP's logit, `[n, 1]`.
      slopes: Weights of the columns of m looks, `[2 m + 1]`.

    >>> low, high = look_bounds(np.array([[15.0]]), np.array([1.0, 0.0, 1.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([[-15.0]], [[30.0]])
    """
    low, high = look_extremes(slopes[:-1])
    one = np.full((len(z), len(slopes) // 2), CLIPPED)
    # The mean rises with all odds.
    first, second = (slopes[-1] * look_columns(z, odds)[:, -1:] for odds in (-one, one))
    return low + np.minimum(first, second), high + np.maximum(first, second)


def _columns(samples: Samples, design: Design) -> Columns:
    return samples.read(blocks(samples, design))


def fit(
    samples: Samples, costs: Mapping[str, float], budget: float, seed: int, verbose: int = 0
) -> tuple[Concluded, Design]:
    """Fits the residual estimator with evidence and looks of its choice, or falls back on MCP.

    Arguments are those of `choose`. The result counts as better than MCP if on samples that had no
    part in any choice one of the paired 95 % bootstrap intervals of the differences in AUPR-error
    and in AURC excludes zero on the better side, and the other difference is not worse. Where most
    inputs are not looked at again, the errors among them, which no look can move, blur the AURC.

    Returns:
      The estimator, with the weights of the columns of `blocks`; and the design.
    """
    # Each fold of the inner cross-validation needs one, too.
    if (few := residual_choice.too_few(samples, 2 * FOLDS)) is not None:
        return Concluded(few, MCP, None, samples.mcp), Design()
    design, nested = choose(samples, costs, budget, seed, verbose)
    originals = samples.originals()
    apart = {
        name: _columns(originals, _alone(originals, design, name, costs, budget))
        for name in (*samples.evidence, *samples.looks)
    }
    read, used = blocks(samples, design), _sentence(design, costs)
    found = residual_choice.conclude(
        samples, nested, read, design.strength, seed, used, each_is_tested=True
    )
    if not found.fit.evidence:
        design = Design()
    names = design.free + design.paid
    how = dataclasses.replace(
        found.fit,
        evidence=tuple(name for name in names if name in samples.evidence),
        looks=tuple(name for name in names if name in samples.looks),
        share=design.share if design.paid else 0.0,
        gate=design.gate if design.paid else None,
        cost=design.cost(costs),
        tried=residual_choice.tried_alone(originals, apart, costs, names, _STRENGTH, seed),
    )
    return found._replace(fit=how), design


def _alone(
    samples: Samples, design: Design, name: str, costs: Mapping[str, float], budget: float
) -> Design:
    """A source by itself; a paid one behind the same gate, or for as many inputs as can be paid
    for where these are fewer."""
    if name not in costs:
        return Design(free=(name,))
    share = widest_share(costs[name], budget) or _SHARES[-1]
    if design.paid and design.share <= share:
        return Design(paid=(name,), gate=design.gate, share=design.share)
    return Design(paid=(name,), gate=_gate(samples, share), share=share)


def widest_share(cost: float, budget: float) -> float:
    """The largest share of the inputs for which sources can be paid for.

    Args:
      cost: What the sources cost together, in passes of the classifier.
      budget: See `choose`.

    Returns:
      0: they cannot be paid for at the smallest share that is tried.

    >>> widest_share(0.1, 1.3), widest_share(1.0, 1.3), widest_share(4.0, 1.3), widest_share(7, 1.3)
    (1.0, 0.3, 0.075, 0.0)
    """
    if 1.0 + _SHARES[-1] * cost > budget + _ROUNDING:
        return 0.0
    return min(1.0, round((budget - 1.0) / cost, 9)) if cost else 1.0


def _gate(samples: Samples, share: float) -> float | None:
    """MCP's logit that a share of the samples is above; None: all are."""
    return None if share == 1.0 else float(np.quantile(samples.z[: samples.n, 0], 1.0 - share))


def lowest_gates(
    samples: Samples, costs: Mapping[str, float], budget: float, seed: int
) -> dict[str, float]:
    """Above which MCP logit `fit` reads a source, whatever it chooses; below it counts for nothing.

    Arguments are those of `choose`; of the samples only classes of answers and MCP's logits count.

    Returns:
      By name. −inf: all samples are read; inf: none is, as there are too few errors, or the source
      cannot be paid for.
    """
    if residual_choice.too_few(samples, 2 * FOLDS) is not None:
        return dict.fromkeys(costs, np.inf)
    folds = stacking.splits(samples, seed, FOLDS)
    parts = [samples, *(samples.take(train[train < samples.n]) for train, _ in folds)]

    def lowest(share: float) -> float:
        gates = [_gate(part, share) for part in parts]
        return min(-np.inf if gate is None else gate for gate in gates)

    shares = {name: widest_share(cost, budget) for name, cost in costs.items()}
    return {name: lowest(share) if share else np.inf for name, share in shares.items()}


def _sentence(design: Design, costs: Mapping[str, float]) -> str:
    if not design.paid:
        return "the estimator is used, without looks"
    whom = "all inputs" if design.gate is None else f"the {design.share:.0%} with the largest MCP"
    return (
        f"the estimator is used, with {', '.join(design.paid)} for {whom} "
        f"({design.cost(costs):.2f} passes of the classifier per input)"
    )


def choose(
    samples: Samples, costs: Mapping[str, float], budget: float, seed: int, verbose: int = 0
) -> tuple[Design, Nested]:
    """Chooses evidence and looks, and says how the choice does on samples that it has not seen.

    Forward selection: at each step the source with the largest gain for its cost, among those of
    which a paired interval, corrected for the number of sources, excludes that they say nothing.
    The gain is that of the cross-validated AURC and log-likelihood together.
    This for several shares of inputs, and once more by the gain alone, as a cheap source can leave
    too little for a better one. What is chosen is also tried for as many inputs as the budget
    allows; the best design is taken.

    Args:
      samples: With evidence and looks.
      costs: By name of the source, in passes of the classifier; evidence that is missing here is
        free and computed for every input.
      budget: The largest mean cost of an input in passes of the classifier, its own included.
      seed: Seed of the folds.
      verbose: 1 shows how far it is.

    Returns:
      The design that all samples choose; and how such a choice does by nested cross-validation.
    """
    return nesting.nested(
        samples,
        lambda part: _search(part, costs, budget, seed),
        _columns,
        seed,
        "choosing looks by nested cross-validation",
        verbose,
    )


def _search(samples: Samples, costs: Mapping[str, float], budget: float, seed: int) -> Design:
    folds = stacking.splits(samples, seed)

    mcp = stacking.cross_validated(samples, samples.columns(()), _STRENGTH, folds)

    @functools.cache
    def tried(design: Design) -> _Trial:
        x = _columns(samples, design)
        own = stacking.cross_validated(samples, x, design.strength, folds)
        loss = own.aurc / mcp.aurc + own.log_likelihood.mean() / mcp.log_likelihood.mean()
        return _Trial(design, float(loss), own.log_likelihood)

    free = tuple(name for name in samples.evidence if name not in costs)
    base = tried(Design())
    if free and _improves(with_free := tried(Design(free)), base, samples.groups, 1):
        base = with_free
    best = base
    for start in _starts(samples, base, costs, budget):
        # By its worth alone, too: a cheap source can leave too little for a better one.
        for worth in (_gain_for_cost, _gain):
            trial = _forward(samples, start, costs, budget, tried, worth)
            wider = tried(_widened(samples, trial.design, costs, budget))
            best = min(best, trial, wider, key=lambda one: one.loss)
    others = [
        tried(best.design._replace(strength=strength))
        for strength in _STRENGTHS
        if strength != best.design.strength
    ]
    return min(best, *others, key=lambda one: one.loss).design


def _starts(
    samples: Samples, base: _Trial, costs: Mapping[str, float], budget: float
) -> Iterator[_Trial]:
    """The base with each gate that leaves something to be paid for."""
    for share in _SHARES:
        if costs and 1.0 + share * min(costs.values()) <= budget + _ROUNDING:
            yield base._replace(design=_for_share(samples, base.design, share))


def _for_share(samples: Samples, design: Design, share: float) -> Design:
    """The design for those of the inputs that MCP is least sure of."""
    return design._replace(gate=_gate(samples, share), share=share)


def _widened(samples: Samples, design: Design, costs: Mapping[str, float], budget: float) -> Design:
    """The design for as many inputs as can be paid for."""
    share = widest_share(sum(costs[name] for name in design.paid), budget) if design.paid else 0
    return _for_share(samples, design, share) if share > design.share else design


def _forward(
    samples: Samples,
    trial: _Trial,
    costs: Mapping[str, float],
    budget: float,
    tried: Callable[[Design], _Trial],
    worth: Callable[[_Trial, _Trial, float], float],
) -> _Trial:
    """Adds sources to a trial as long as one of them helps and can be paid for; or all evidence but
    looks at once, whose kinds may help together though none of them is shown to help alone.

    Args:
      samples: All held-out answers.
      trial: Where to start.
      costs: As in `choose`.
      budget: As in `choose`.
      tried: Design → its trial.
      worth: (trial before, trial with more, what that costs) → what the largest is added of.
    """
    while True:
        design = trial.design
        left = [name for name in costs if name not in design.paid]
        evidence = [name for name in left if name in samples.evidence]
        more: list[tuple[str, ...]] = [(name,) for name in left]
        if len(evidence) > 1:
            more.append(tuple(evidence))
        added = [design._replace(paid=design.paid + names) for names in more]
        added = [one for one in added if one.cost(costs) <= budget + _ROUNDING]
        better = [
            one
            for one in map(tried, _promising(samples, design, added))
            if _improves(
                one, trial, samples.groups, len(more), _LEVEL if design.paid else _FIRST_LEVEL
            )
        ]
        if not better:
            return trial

        def worth_of(one: _Trial, before: _Trial = trial) -> float:
            new = one.design.paid[len(before.design.paid) :]
            return worth(before, one, sum(costs[name] for name in new))

        trial = max(better, key=worth_of)


def _gain(before: _Trial, after: _Trial, cost: float) -> float:
    """How much smaller the loss is."""
    return before.loss - after.loss


def _gain_for_cost(before: _Trial, after: _Trial, cost: float) -> float:
    """Gain of a source by what it costs."""
    return _gain(before, after, cost) / max(cost, _LEAST_COST)


def _promising(samples: Samples, design: Design, added: list[Design]) -> list[Design]:
    """The designs whose columns explain most of what the present one leaves unexplained."""
    if len(added) <= _TRIED:
        return added
    x = _columns(samples, design)
    model = stacking.fitted(x, samples.learned, design.strength)
    rest = samples.learned - special.expit(model.of(x))

    def unexplained(one: Design) -> float:
        new = _columns(samples, one).x
        new = (new - new.mean(axis=0)) / np.maximum(new.std(axis=0), 1e-9)
        slopes, *_ = np.linalg.lstsq(new, rest, rcond=None)
        return float(np.square(rest - new @ slopes).sum())

    return sorted(added, key=unexplained)[:_TRIED]


def _improves(
    new: _Trial, old: _Trial, of: np.ndarray | None, trials: int, level: float = _LEVEL
) -> bool:
    """Whether the loss is smaller, and a paired interval says that this is no chance.

    The interval is that of the cross-validated log-likelihood: it sees with far fewer errors than
    the AURC, which hangs on the few errors among the surest answers, whether a source says
    something. One that says nothing makes it worse on the average, as its weights fit chance.
    """
    if new.loss >= old.loss:
        return False
    gain = new.log_likelihood - old.log_likelihood
    return gain.mean() > stats.norm.isf(level / trials) * mean_error(gain, of)
