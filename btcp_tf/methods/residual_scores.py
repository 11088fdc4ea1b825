"""The residual estimator as methods of a run."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from btcp_tf.methods.outputs import Outputs, Reference, Score
from btcp_tf.methods.residual_choice import EVIDENCE, NO_INDEX

if TYPE_CHECKING:
    from btcp_tf.methods.looks import Layers, Offer
    from btcp_tf.methods.residual_choice import Fit, Weights


def residual(reference: Reference) -> Score:
    """MCP, corrected by the whole answer, by second heads on the features and on the image itself,
    and by the training samples that are nearest in either: logit(u) = a · logit(1 − largest
    probability) + b + h · evidence; see `residual_fit.fit_residual`.

    Fitted by cross-validated logistic regression to the errors of the validation samples, and to
    those of further classifiers in `folds`, and of `copies` of both. Where it does not beat MCP on
    the samples themselves, it is MCP, calibrated. Range [0, 1].
    """
    return _residual("residual", reference, EVIDENCE)


def residual_no_index(reference: Reference) -> Score:
    """`residual` without the nearest training samples: nothing of them goes into the model.

    Range [0, 1].
    """
    return _residual("residual_no_index", reference, NO_INDEX)


def residual_looks(reference: Reference) -> Score:
    """`residual` with looks: it also reads what the classifier answers to the changed image or with
    dropout, and what other classifiers answer. They, the second heads and the neighbors are
    computed only for the images that MCP is unsure of.

    Which of them, and for how many images, is chosen by nested cross-validation under a limit of
    the cost, see `look_choice.fit`; what is on offer is `Reference.offer`. Range [0, 1].
    """
    offer = reference.offer
    score = _residual("residual_looks", reference, EVIDENCE, offer)
    if offer is not None:
        looks = enumerate(offer.looks.items())
        reference.chosen.update(
            {place: look.cost for place, (name, look) in looks if name in score.fit.looks}
        )
    return score


@dataclasses.dataclass(frozen=True)
class ResidualScore:
    """A fitted residual estimator: u of outputs, and the parts that a model is made of."""

    layers: "Layers"
    weights: "Weights"
    fit: "Fit"
    held_out_u: np.ndarray
    """u `[n]` of the validation samples, each by a fit that has not seen it."""

    def __call__(self, outputs: Outputs) -> np.ndarray:
        # TensorFlow, which the rest of this module does without.
        from btcp_tf.methods import residual_fit

        return residual_fit.score_residual(self.layers, self.weights, outputs)

    def contributions(self, outputs: Outputs) -> tuple[tuple[str, ...], np.ndarray]:
        """What moved logit(u) of each answer, and by how much: see `residual_fit.contributions`."""
        # TensorFlow, which the rest of this module does without.
        from btcp_tf.methods import residual_fit

        return residual_fit.contributions(self.layers, self.weights, outputs, self.fit.baseline)


def _residual(
    name: str, reference: Reference, allowed: tuple[str, ...], offer: "Offer | None" = None
) -> ResidualScore:
    # TensorFlow, which the rest of this module does without.
    from btcp_tf.methods import residual_fit

    if reference.verbose:
        print(f"{name}: learning from held-out samples which answers are wrong", flush=True)
    own, *folds = reference.held_out
    fit, layers, weights, held_out_u = residual_fit.fit_residual(
        own, folds, allowed=allowed, offer=offer, seed=reference.seed, verbose=reference.verbose
    )
    reference.facts[name] = fit.summary
    return ResidualScore(layers, weights, fit, held_out_u)
