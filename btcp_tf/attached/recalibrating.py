"""A judge whose u is fitted to new labels, by `methods.recalibration`."""

import json
from typing import Any

import keras
import numpy as np

from btcp_tf.attached.scoring import Scored
from btcp_tf.data.known import Part
from btcp_tf.methods import recalibration
from btcp_tf.methods.recalibration import Map, Recalibration


def learn(scored: Scored, rows: np.ndarray, groups: np.ndarray | None, seed: int) -> Recalibration:
    """What some of the answers say of u; see `recalibration.recalibrate`.

    Args:
      scored: Labeled answers.
      rows: Rows of those that are used.
      groups: Numbers of the groups of all answers; None: they are independent.
      seed: Seed of the folds.
    """
    is_error = scored.predicted[rows] != scored.true_classes()[rows]
    logit, z = (recalibration.logit_of(u[rows]) for u in (scored.uncertainty, scored.mcp))
    together = None if groups is None else groups[rows]
    return recalibration.recalibrate(is_error, logit, z, groups=together, seed=seed)


def apply(model: keras.Model, learned: Recalibration, hashes: np.ndarray) -> None:
    """Changes the weights behind u, and what the card says; there is no threshold then.

    Args:
      model: From `model.join`, with the residual estimator.
      learned: From `learn`.
      hashes: Of the samples that it was learned from.
    """
    about, layer = model.get_layer("card").about, model.get_layer("residual")
    a, b, *h = layer.get_weights()
    alpha, beta, gamma = learned.map
    layer.set_weights([alpha * a + gamma, alpha * b + beta, *(alpha * part for part in h)])
    changed = json.loads(json.dumps(learned.entry))
    fit = about["fit"]
    fit |= {
        "recalibrations": [*fit.get("recalibrations", ()), changed],
        "baseline": _baseline(fit.get("baseline", {}), learned.map, float(a)),
    }
    seen = dict(about.get("seen") or {})
    if "recalibrate" in seen:
        hashes = np.concatenate([Part.from_json(seen["recalibrate"]).hashes, hashes])
    seen["recalibrate"] = Part.of(hashes).to_json()
    about |= {"threshold": None, "calibration": None, "seen": seen}


def _baseline(before: dict[str, float], change: Map, a: float) -> dict[str, float]:
    """`Fit.baseline` with the new weights."""
    of_mcp = change.alpha + change.gamma / a if a else change.alpha
    return {
        name: value * (of_mcp if name == "mcp" else change.alpha) for name, value in before.items()
    }


def check(about: dict[str, Any]) -> None:
    """ValueError unless u is that of `Judge.fit`."""
    if about["fit"] is None:
        raise ValueError(
            "recalibrate: expected a judge that is fitted, received one that is not; call fit(x, y)"
        )
    if about["method"] != "residual":
        raise ValueError(
            f"recalibrate: expected a judge of fit, received one of fit_{about['method']}; its u "
            "is learned as it is: choose another threshold with select_threshold"
        )
