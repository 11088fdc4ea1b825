"""Methods that need several answers for each sample: MC dropout and ensembles."""

from btcp_tf.methods import answers
from btcp_tf.methods.outputs import Reference, Score, samples_of


def mc_dropout(reference: Reference) -> Score:
    """Entropy of the mean probabilities of many passes with dropout on, divided by log k (Gal and
    Ghahramani, 2016; u as in the ConfidNet protocol).

    Range [0, 1]. Needs `sampled["dropout"]`.

    >>> from btcp_tf.methods.outputs import Outputs
    >>> mc_dropout(None)(Outputs.from_probs([[0.9, 0.1]], dropout=[[0.5, 0.5]])).tolist()
    [1.0]
    """
    return lambda outputs: answers.entropy_of(samples_of("mc_dropout", outputs, "dropout"))


def ensemble(reference: Reference) -> Score:
    """Entropy of the mean probabilities of classifiers trained apart, divided by log k
    (Lakshminarayanan, Pritzel and Blundell, 2017).

    Range [0, 1]. Needs `sampled["ensemble"]`.

    >>> from btcp_tf.methods.outputs import Outputs
    >>> ensemble(None)(Outputs.from_probs([[0.9, 0.1]], ensemble=[[1.0, 0.0]])).tolist()
    [0.0]
    """
    return lambda outputs: answers.entropy_of(samples_of("ensemble", outputs, "ensemble"))


def mc_dropout_few(reference: Reference) -> Score:
    """mc_dropout with as many passes as looking at every image costs with the looks that
    residual_looks chose: their passes and one, rounded up, at least 2.

    Range [0, 1]. Needs `sampled["few_passes"]`.

    >>> from btcp_tf.methods.outputs import Outputs
    >>> mc_dropout_few(None)(Outputs.from_probs([[0.9, 0.1]], few_passes=[[0.5, 0.5]])).tolist()
    [1.0]
    """
    return lambda outputs: answers.entropy_of(samples_of("mc_dropout_few", outputs, "few_passes"))


def ensemble_few(reference: Reference) -> Score:
    """ensemble with as many members as mc_dropout_few has passes, the run's own classifier first.

    Range [0, 1]. Needs `sampled["few_members"]`.

    >>> from btcp_tf.methods.outputs import Outputs
    >>> ensemble_few(None)(Outputs.from_probs([[0.9, 0.1]], few_members=[[1.0, 0.0]])).tolist()
    [0.0]
    """
    return lambda outputs: answers.entropy_of(samples_of("ensemble_few", outputs, "few_members"))
