"""The share of the inputs that a model with looks looks at again, and what answers cost with it."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from btcp_tf.decisions import drift
from btcp_tf.decisions.drift import Rates


@dataclasses.dataclass(frozen=True)
class Gate:
    """Which inputs are looked at again, and what was planned."""

    logit: float
    """Those whose MCP logit is above this."""
    share: float
    """Of the inputs that the estimator was fitted on, in (0, 1]."""
    cost: float
    """Mean cost of one of these, in passes of the classifier."""

    @classmethod
    def of(cls, fit: Any) -> "Gate | None":
        """The gate of a fit, as `btcp_tf.json` and `decision.json` have it.

        None: there are no looks, or at all inputs, or an earlier version wrote the file.

        >>> Gate.of({"looks": ["mirror"], "gate": -2.5, "share": 0.3, "cost": 1.3})
        Gate(logit=-2.5, share=0.3, cost=1.3)
        """
        if not isinstance(fit, dict) or not fit.get("looks"):
            return None
        values: list[Any] = [fit.get(name) for name in ("gate", "share", "cost")]
        known = all(type(value) in (int, float) for value in values) and values[1] > 0
        return cls(*values) if known else None

    def cost_of(self, share: float) -> float:
        """Mean cost of an input where this share is looked at again.

        >>> round(Gate(-2.5, 0.3, 1.3).cost_of(0.45), 2)
        1.45
        """
        return 1.0 + share * (self.cost - 1.0) / self.share


class LookedAt(NamedTuple):
    """How many inputs are looked at again, then and now, and what an input costs with that."""

    rates: Rates
    """Of the calibration set and of the scores."""
    planned_cost: float
    """Mean cost of an input when the estimator was fitted, in passes of the classifier."""
    baseline_cost: float
    """On the calibration set."""
    production_cost: float
    """On the scores."""


def compare(
    gate: Gate | None, baseline: np.ndarray | None, production: np.ndarray | None
) -> LookedAt | None:
    """Compares the shares that are looked at again; None where one of them is not known.

    Args:
      gate: Of the model.
      baseline: MCP's logit of the calibration set, `[n]`, n > 0.
      production: The same of what came later, `[m]`, m > 0.

    >>> before, now = np.array([-3.0, -3.0, -3.0, -1.0]), np.array([-3.0, -1.0])
    >>> compare(Gate(-2.5, 0.25, 1.25), before, now).production_cost
    1.5
    """
    if gate is None or baseline is None or production is None:
        return None
    rates = drift.rates(*((int(np.sum(z > gate.logit)), len(z)) for z in (baseline, production)))
    costs = (gate.cost_of(share) for share in (rates.baseline, rates.production))
    return LookedAt(rates, gate.cost, *costs)
