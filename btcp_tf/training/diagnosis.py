"""Signs that training failed: a collapsed estimator, a classifier that learned nothing."""

import numpy as np

from btcp_tf.networks import plausibility


def collapse(u: np.ndarray, effective_sample_size: float) -> str:
    """Why an estimator does not tell examples apart; "" if it does.

    Args:
      u: Estimates `[n]` on held-out data.
      effective_sample_size: `losses.effective_sample_size` of its training weights; below 1 only
        where they are all 0.

    >>> collapse(np.array([0.1, 0.7]), effective_sample_size=20.0)
    ''
    >>> collapse(np.array([0.5, 0.5]), effective_sample_size=20.0)[:39]
    'the estimator collapsed to a constant: '
    """
    if effective_sample_size < 0.5:
        return (
            "the estimator learned nothing: every weight of the DFL is 0, as all targets lie in "
            "one window; a smaller gamma or a longer classifier phase usually helps"
        )
    dead = float(np.mean(u * (1.0 - u) < 1e-7))
    if dead >= 0.99:
        return (
            f"the estimator is saturated: {dead:.1%} of its outputs are 0 or 1 to within 1e-7, "
            "where the sigmoid no longer learns; a smaller learning rate or gamma usually helps"
        )
    spread = float(u.max() - u.min())
    if spread < 1e-3:
        return (
            f"the estimator collapsed to a constant: all outputs lie within {spread:.1e} of "
            f"{float(np.median(u)):.4f}; more epochs or another learning rate or gamma "
            "usually helps"
        )
    return ""


def constant_class(probs: np.ndarray) -> str:
    """Whether a classifier predicts one class for everything, as a sentence; "" if it does not.

    Args:
      probs: `[n, k]` on held-out data.
    """
    predicted = np.unique(probs.argmax(axis=1))
    if len(predicted) > 1 or len(probs) == 1:
        return ""
    return (
        f"the classifier answers class {predicted[0]} to all {len(probs)} validation images: it "
        "did not learn, or diverged; more epochs or another learning rate usually helps"
    )


def unlearned(probs: np.ndarray, labels: np.ndarray) -> str:
    """Whether a classifier that was trained here learned nothing, as a sentence; "" if it did.

    Args:
      probs: `[n, k]` on held-out data.
      labels: `[n]`.
    """
    if constant := constant_class(probs):
        return constant
    # As float32 has them, p = 0 for all that is improbable.
    logits = np.log(np.maximum(probs, np.finfo(np.float32).tiny))
    verdict = plausibility.examine(logits, labels)
    if not verdict.low <= 0:
        return ""
    return (
        f"the classifier did not learn: right on {verdict.accuracy:.1%} of {verdict.n} validation "
        "images, its cross-entropy is not clearly lower than that of the class frequencies (by "
        f"{verdict.gain:.3g}, interval [{verdict.low:.3g}, {verdict.high:.3g}]); more epochs or "
        "another learning rate usually helps"
    )
