"""Controls: what a useless or an all-knowing uncertainty would get."""

import zlib

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from btcp_tf import metrics
from btcp_tf.methods import answers
from btcp_tf.methods.outputs import Outputs, Reference, Score, labels_of


def constant(reference: Reference) -> Score:
    """0.5 for every sample: knows nothing.

    >>> constant(None)(Outputs.from_probs([[0.9, 0.1], [0.6, 0.4]])).tolist()
    [0.5, 0.5]
    """
    return lambda outputs: np.full(len(outputs.probs), 0.5)


def random(reference: Reference) -> Score:
    """Uniform random numbers: knows nothing, without ties.

    They depend on the seed and on the samples together: the same set gets the same numbers, and two
    sets of one size, which OOD detection tells apart, do not get equal ones. Range [0, 1).

    >>> outputs = Outputs.from_probs([[0.9, 0.1], [0.6, 0.4]], labels=[0, 0])
    >>> reference = Reference(outputs, outputs, np.eye(2), np.zeros(2), seed=1)
    >>> bool((random(reference)(outputs) == random(reference)(outputs)).all())
    True
    """

    def score(outputs: Outputs) -> np.ndarray:
        of_set = zlib.crc32(np.ascontiguousarray(outputs.logits).tobytes())
        return np.random.default_rng([reference.seed, of_set]).random(len(outputs.probs))

    return score


def mcp_cubed(reference: Reference) -> Score:
    """1 − largest probability³: MCP's ranking, moved towards 1.

    What changes against `mcp` was not learned. Range [0, 1 − 1/k³].

    >>> mcp_cubed(None)(Outputs.from_probs([[0.5, 0.5]])).round(4).tolist()
    [0.875]
    """
    of_mcp = answers.mcp(reference)

    # From MCP's own u, in float64: equal stays equal and different stays different.
    def score(outputs: Outputs) -> np.ndarray:
        u = of_mcp(outputs).astype(np.float64)
        return u * (3.0 - 3.0 * u + u**2)  # 1 − (1 − u)³, exact near 0.

    return score


def tcp_oracle(reference: Reference) -> Score:
    """1 − probability of the true class, by the labels: what `tcp` and `btcp` estimate.

    Range [0, 1]. Raises ValueError for outputs without labels.

    >>> outputs = Outputs.from_probs([[0.75, 0.25], [0.75, 0.25]], labels=[0, 1])
    >>> tcp_oracle(None)(outputs).tolist()
    [0.25, 0.75]
    """

    def score(outputs: Outputs) -> np.ndarray:
        labels = labels_of("tcp_oracle", outputs)
        return np.clip(1.0 - outputs.probs[np.arange(len(labels)), labels], 0.0, 1.0)

    return score


def squash(score: ArrayLike, validation_score: ArrayLike) -> np.ndarray:
    """A raw score as u: 1 / (1 + exp(−(s − median) / IQR)), median and IQR of validation data.

    Where the IQR is 0 the standard deviation takes its place, and 1 where that is 0 too.

    Args:
      score: [n], finite, higher = less to be trusted.
      validation_score: [m], the same method's on validation data, finite.

    Returns:
      u [n] in [0, 1], float64, rising with the score; a score very far out gives exactly 0 or 1.

    >>> squash([1.0, 2.0, 3.0], validation_score=[0.0, 1.0, 2.0, 3.0, 4.0]).round(4).tolist()
    [0.3775, 0.5, 0.6225]
    """
    s, known = (np.asarray(x, np.float64) for x in (score, validation_score))
    for name, column in (("score", s), ("validation_score", known)):
        if column.ndim != 1 or not column.size:
            raise ValueError(f"{name}: expected shape [n], n > 0, received {list(column.shape)}")
        metrics.check_rows(np.isfinite(column), column, f"{name}: expected finite numbers")
    low, median, high = np.quantile(known, (0.25, 0.5, 0.75))
    scale = high - low or known.std() or 1.0
    with np.errstate(over="ignore"):
        return special.expit((s - median) / scale)
