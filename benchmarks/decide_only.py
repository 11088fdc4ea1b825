"""How many looks are left out where only decisions count: `Judge.export(decide_only=True)`.

    python -m benchmarks.decide_only CLASSIFIER.keras --dataset=cifar10 --data_dir=DIR --skip=2000

The images that the classifier has not seen are split several times, at random, as in `looks_test`:
some to fit the estimator at each cost, some to choose a threshold for each promised error rate. Of
the rest it is counted for how many a look is computed: those above the gate; and those of them for
which it could still change the decision.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from benchmarks import common, looks_test
from benchmarks.given_classifier import RISKS
from btcp_tf import thresholds

if TYPE_CHECKING:
    from btcp_tf.methods.looks import Offer
    from btcp_tf.methods.residual_fit import HeldOut


class Counted(NamedTuple):
    """One split at one cost and one promise."""

    cost: float
    looks: str
    """Which are used, and for which share of the images they were chosen."""
    risk: float
    accepted: float
    """Share of the test images, as the two below."""
    above: float
    """Above the gate."""
    open: float
    """Those of them that looks can still decide about."""
    passes: float
    """Of all looks at one image."""


def main() -> None:
    parser = common.parser("decide_only", __doc__)
    looks_test.add_flags(parser)
    arguments = parser.parse_args()
    common.start_tensorflow(arguments.threads)
    common.print_environment("tensorflow", "keras", "scikit-learn")
    try:
        offered, held = looks_test.answers(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    costs = [float(cost) for cost in arguments.costs.split(",")]
    parts = np.cumsum([arguments.fit, arguments.calibrate, arguments.test])
    counted: list[Counted] = []
    for seed in range(arguments.splits):
        order = np.random.default_rng(seed).permutation(len(held.labels))
        for cost in costs:
            within = dataclasses.replace(offered, budget=cost)
            counted += _count(within, held, np.split(order, parts)[:3], seed)
    print("\nMeans over the splits in which the looks were chosen and the promise can be made")
    header = ("cost", "looks", "risk", "splits", "accepted", "looked at", "then", "passes", "then")
    common.print_table(header, list(_rows(counted)))


def _rows(counted: Sequence[Counted]) -> Iterator[tuple[str, ...]]:
    for key in sorted({one[:3] for one in counted}):
        some = [one for one in counted if one[:3] == key]
        cost, looks, risk = key
        accepted, above, still, passes = np.mean([one[3:] for one in some], axis=0)
        shares = (f"{share:.1%}" for share in (accepted, above, still))
        means = (f"{1 + share * passes:.2f}" for share in (above, still))
        yield f"{cost:g}", looks, f"{risk:.0%}", str(len(some)), *shares, *means


def _count(
    offered: "Offer", held: "HeldOut", rows: Sequence[np.ndarray], seed: int
) -> Iterator[Counted]:
    """For each promise, of one split: (to fit, to calibrate, to test) of the rows."""
    from btcp_tf.methods import look_choice, residual_fit
    from btcp_tf.networks import deciding

    fit, calibrate, test = rows
    seen, labels = held.seen._replace(view=None), held.labels
    own = looks_test.part(held, fit, range(len(offered.looks)))
    how, layers, weights, _ = residual_fit.fit_residual(own, offer=offered, seed=seed)
    print(f"split {seed}, cost {offered.budget:g}: {how.words}", flush=True)
    if not how.looks:
        return
    width = 2 * len(how.looks) + 1
    slopes, added, offsets = deciding.forms(*weights, layers.get("copies"))
    z, evidence = residual_fit._compute(layers, seen, 256)
    logit = np.hstack([weights.a * z + weights.b, *evidence.values()]) @ [1.0, *weights.h]
    known = np.hstack([z, *(part for name, part in evidence.items() if name != "copies")])
    without = known[:, :-width] @ slopes[:-width] + added
    if len(offsets):
        without += offsets[seen.logits.argmax(axis=1)]
    weight = look_choice.ramp(z, layers["looks"].design.gate)
    ends = [look_choice.look_bounds(z, own[-width:]) for own in slopes.T]
    low = np.min(without + weight * np.hstack([low for low, _ in ends]), axis=1)
    high = np.max(without + weight * np.hstack([high for _, high in ends]), axis=1)
    weight = weight[:, 0]
    u, is_error = special.expit(logit), seen.logits.argmax(axis=1) != labels
    for risk in RISKS:
        chosen = thresholds.target_risk(
            is_error[calibrate], u[calibrate], risk=risk, delta=0.05, min_coverage=0.3
        )
        if chosen.tau is None:
            continue
        limit = thresholds.logit_limit(chosen.tau)
        still = (weight > 0) & (low < limit) & (limit <= high)
        if ((high < limit) != (logit < limit))[~still].any():
            sys.exit("error: expected the same decisions without these looks, received others")
        shares = (float(mask[test].mean()) for mask in (logit < limit, weight > 0, still))
        passes = sum(offered.looks[name].cost for name in how.looks)
        used = f"{', '.join(how.looks)} for {how.share:.0%}"
        yield Counted(offered.budget, used, risk, *shares, passes)


if __name__ == "__main__":
    main()
