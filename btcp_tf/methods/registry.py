"""Every way to get the uncertainty u of a prediction, by name.

A method is either a function `name(reference) -> Score`, which fits what it needs on training and
validation data and returns what scores any other samples, or it trains the estimator (`tcp`,
`ohem`, `btcp`). Every score is higher = less to be trusted. Most lie in [0, 1]; the raw ones, which
have no scale of their own, are marked `bounded=False` and can be mapped by `squash`.

NumPy and SciPy alone until `residual` is fitted: a command line can be checked against `METHODS`
without waiting for TensorFlow.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from btcp_tf.methods import answers, controls, features, residual_scores, rivals, sampled
from btcp_tf.methods.outputs import Reference, Score


@dataclasses.dataclass(frozen=True)
class Method:
    """One entry of the comparison."""

    title: str
    """How tables and figures call it."""
    group: str
    """"paper": compared in the BTCP paper; "later": not; "control": says what a metric is worth."""
    prepare: Callable[[Reference], Score] | None = None
    """Fits the method; None where the estimator is trained, here or under `column_of`."""
    bounded: bool = True
    """Whether the score is a u in [0, 1]; otherwise it has no scale on which a tau would mean
    something."""
    gamma: float | None = None
    """For trained methods, the exponent of the focal factor; None takes the run's `gamma`."""
    hard_examples: bool = False
    """Whether the estimator learns from the hardest share of each batch alone (`ohem_fraction`)."""
    uses_labels: bool = False
    """Whether the score needs the labels of what it scores: no method, but a bound for methods."""
    column_of: str = ""
    """Another method whose u this one has; its decision threshold is its own."""
    rival_of: str = ""
    """Another method, whose looks decide what this one reads and costs; it has no row where that
    one chose none."""
    samples: str = ""
    """What it needs of `Outputs.sampled`."""
    passes: str = ""
    """Setting that says how many passes of a classifier an answer takes; "": one."""
    fits_graph: bool = False
    """Whether a SavedModel can compute the u that `prepare` fits."""

    @property
    def trained(self) -> bool:
        """Whether the method trains the estimator."""
        return self.prepare is None and not self.column_of

    @property
    def exported(self) -> bool:
        """Whether a SavedModel can answer its u."""
        return self.trained or self.fits_graph


METHODS: dict[str, Method] = {
    "mcp": Method("MCP", "paper", answers.mcp, fits_graph=True),
    "mc_dropout": Method(
        "MC dropout", "paper", sampled.mc_dropout, samples="dropout", passes="mc_passes"
    ),
    "trust_score": Method("TrustScore", "paper", features.trust_score),
    # gamma = 0 leaves the plain squared error of the true class probability: ConfidNet's loss
    # (Corbière et al., 2019).
    "tcp": Method("TCP", "paper", gamma=0.0),
    # The same loss on the examples of each batch with the largest loss (Shrivastava et al., 2016).
    "ohem": Method("OHEM", "paper", gamma=0.0, hard_examples=True),
    "thresholding": Method("Thresholding", "paper", column_of="tcp"),
    "btcp": Method("BTCP", "paper"),
    "entropy": Method("Entropy", "later", answers.entropy),
    "margin": Method("Margin", "later", answers.margin),
    "max_logit": Method("Max logit", "later", answers.max_logit, bounded=False),
    "energy": Method("Energy", "later", answers.energy, bounded=False),
    "temperature": Method("Temperature", "later", answers.temperature),
    "doctor": Method("Doctor", "later", answers.doctor),
    "relu": Method("RelU", "later", answers.relu, bounded=False),
    "knn": Method("kNN", "later", features.knn, bounded=False),
    "mahalanobis": Method("Mahalanobis", "later", features.mahalanobis, bounded=False),
    "relative_mahalanobis": Method(
        "Relative Mahalanobis", "later", features.relative_mahalanobis, bounded=False
    ),
    "vim": Method("ViM", "later", features.vim, bounded=False),
    "ensemble": Method(
        "Ensemble", "later", sampled.ensemble, samples="ensemble", passes="ensemble_members"
    ),
    "residual": Method("Residual", "later", residual_scores.residual, fits_graph=True),
    "residual_no_index": Method(
        "Residual, no index", "later", residual_scores.residual_no_index, fits_graph=True
    ),
    "residual_looks": Method(
        "Residual, looks", "later", residual_scores.residual_looks, fits_graph=True
    ),
    "looks_mean": Method("Looks, mean", "later", rivals.looks_mean, rival_of="residual_looks"),
    "looks_move": Method("Looks, movement", "later", rivals.looks_move, rival_of="residual_looks"),
    "mc_dropout_few": Method(
        "MC dropout, few passes",
        "later",
        sampled.mc_dropout_few,
        rival_of="residual_looks",
        samples="few_passes",
    ),
    "ensemble_few": Method(
        "Ensemble, few members",
        "later",
        sampled.ensemble_few,
        rival_of="residual_looks",
        samples="few_members",
    ),
    "constant": Method("Constant", "control", controls.constant),
    "random": Method("Random", "control", controls.random),
    "mcp_cubed": Method("MCP cubed", "control", controls.mcp_cubed),
    "tcp_oracle": Method("TCP oracle", "control", controls.tcp_oracle, uses_labels=True),
}
"""By name, in the order of tables."""


def answer_costs(settings: Mapping[str, Any], fitted: Mapping[str, float]) -> dict[str, float]:
    """Passes of the classifier that an answer takes on the average, by method, of those that looks
    are compared with; {}: there are no looks.

    Args:
      settings: Of a run, by name.
      fitted: By method what a fit says, see `residual_choice.Fit.cost`, and what its rivals take,
        see `rivals.cost_of`.

    >>> answer_costs({"mc_passes": "50"}, {"residual_looks": 1.3, "looks_mean": 2.0})
    {'mcp': 1.0, 'residual': 1.0, 'mc_dropout': 50.0, 'residual_looks': 1.3, 'looks_mean': 2.0}
    """
    if not fitted:
        return {}
    several = {
        name: float(settings[method.passes])
        for name, method in METHODS.items()
        if method.passes in settings
    }
    return {"mcp": 1.0, "residual": 1.0, **several, **fitted}
