"""The paper's loss: true class probability, density of the targets, distributional focal loss.

Source: Li, Zheng and Zhang, "Identifying Incorrect Classifications with Balanced Uncertainty"
(AISTATS 2022). `DistributionalFocalLoss` is the Keras loss; the functions are what it is made of.

Notation: `u_true = 1 - true_class_probability(probs, labels)` is what the estimator
learns, `u_pred` its answer, `U` the set of targets whose spread decides the weights.
With `density(u)` the share of `U` near `u`,

    DFL(u_pred, u_true) = (1 - density(u_true))**gamma * (u_pred - u_true)**2

which gives rare targets more weight; `gamma = 0` is the squared error (TCP).

`U` enters only through the counts of a histogram over [0, 1]. Counts of disjoint
parts of the data add up, so a caller under a distribution strategy sums `histogram`
over its replicas and passes the sum; nothing here communicates.

Tensor arguments may be anything `tf.convert_to_tensor` takes. They are read as
float32, the precision of a network's answers, and every result is float32.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.core import wording

FINE_BINS = 1000
"""Bins of the histogram behind `form="window"`."""
FIXED_BINS = 10
"""Bins of the authors' prototype, `form="bins"`."""
FORMS = ("window", "bins")
SCOPES = ("dataset", "batch")


def true_class_probability(probs: Any, labels: Any) -> tf.Tensor:
    """Probability that a classifier gives to the labeled class.

    Args:
      probs: `[n, k]` class probabilities.
      labels: `[n]` integers in [0, k).

    Returns:
      `[n]` float32 in [0, 1]. The gradient flows into `probs`.

    Raises:
      ValueError: If a shape does not fit or `labels` are not integers. Labels that
        went through Keras arrive as float32 `[n, 1]`: cast and reshape them first.
      tf.errors.InvalidArgumentError: If a label is outside [0, k) or the probability
        of a labeled class is not finite.

    >>> true_class_probability([[0.75, 0.25], [0.5, 0.5]], [1, 0]).numpy().tolist()
    [0.25, 0.5]
    """
    probs = tf.cast(tf.convert_to_tensor(probs), tf.float32)
    if not probs.shape.is_compatible_with([None, None]):
        raise ValueError(f"probs: expected shape [n, k], received {probs.shape}")
    labels = _vector("labels", labels)
    if not labels.dtype.is_integer:
        raise ValueError(f"labels: expected integers, received {labels.dtype.name}")
    if not labels.shape.is_compatible_with(probs.shape[:1]):
        raise ValueError(
            f"labels: expected one per row of probs {probs.shape}, received {labels.shape}"
        )
    # Gathering outside [0, k) raises on a CPU but answers 0 on a GPU, which would pass
    # as a perfectly wrong prediction. NaN in its place is caught on both.
    labels = tf.cast(labels, tf.int64)
    valid = (labels >= 0) & (labels < tf.shape(probs, tf.int64)[1])
    of_label = tf.gather(probs, tf.where(valid, labels, 0), batch_dims=1)
    return tf.debugging.check_numerics(
        tf.where(valid, of_label, np.nan),
        f"true_class_probability: expected labels in [0, {probs.shape[1]}) and finite probs",
    )


def bin_index(u: Any, bins: Any) -> tf.Tensor:
    """Bin of each value among equal bins over [0, 1]: the one rule for all of them.

    TensorFlow's `histogram_fixed_width` and `histogram_fixed_width_bins` put some
    values on a bin's edge (0.7 and 0.9 of 10 bins) into different bins, which gives a
    density of 0 to a sample that is there. Here counts and look-ups both go through
    this function, and its order is that of the values: `a <= b` never has a
    larger index than `b`.

    Args:
      u: Values of any shape. A bin is closed below; values outside [0, 1] fall into
        the end bins, and so does 1.
      bins: Number of bins, an integer or a scalar tensor.

    Returns:
      int32 in [0, bins), of the shape of `u`.

    Raises:
      tf.errors.InvalidArgumentError: If a value is NaN or infinite.

    >>> bin_index([0.0, 0.49, 0.5, 1.0], 4).numpy().tolist()
    [0, 1, 2, 3]
    """
    # Rounded to float32 first, so that a value has one bin whichever precision it comes
    # in; scaled in float64, where the product cannot be rounded up across an edge.
    u = tf.debugging.check_numerics(
        tf.cast(tf.convert_to_tensor(u), tf.float32), "u: expected finite values"
    )
    bins = tf.cast(bins, tf.float64)
    scaled = tf.floor(tf.cast(u, tf.float64) * bins)
    return tf.cast(tf.clip_by_value(scaled, 0.0, bins - 1.0), tf.int32)


def histogram(u: Any, bins: int = FINE_BINS) -> tf.Tensor:
    """Counts of values in equal bins over [0, 1], by the rule of `bin_index`.

    Args:
      u: `[n]` values; outside [0, 1] they count in the end bins.
      bins: Number of bins, at least 1.

    Returns:
      `[bins]` float32 counts with sum n; no gradient flows through them.

    Raises:
      ValueError: If `u` is not `[n]` or there is no bin.
      tf.errors.InvalidArgumentError: If a value is NaN or infinite.

    >>> histogram([0.1, 0.2, 0.9], bins=4).numpy().tolist()
    [2.0, 0.0, 0.0, 1.0]
    """
    if bins < 1:
        raise ValueError(f"bins: expected at least 1, received {bins}")
    # The index in the middle of a unit-wide bin is far from every edge, so that the
    # kernel's own rounding cannot move it.
    middle = tf.cast(bin_index(_vector("u", u), bins), tf.float32) + 0.5
    return tf.cast(tf.histogram_fixed_width(middle, [0.0, float(bins)], nbins=bins), tf.float32)


def density(u: Any, counts: Any, epsilon: Any, form: str = "window") -> tf.Tensor:
    """Share of `U` that is near each value: `|N(u)| / |U|`.

    `form="window"` counts the closed window [u - epsilon, u + epsilon] through the
    cumulative sum of the histogram. Whole bins are counted, so the answer exceeds the
    definition by at most the share of `U` in the two bins at the window's ends.
    `form="bins"` is the authors' prototype: the share in the value's own bin.

    Args:
      u: `[n]` values in [0, 1].
      counts: `[bins]` histogram of `U` over [0, 1].
      epsilon: Half width of the window, >= 0; not used by `form="bins"`.
      form: "window" or "bins".

    Returns:
      `[n]` float32 in [0, 1]; above 0 for every member of `U`. No gradient.

    Raises:
      ValueError: If a shape, `epsilon` or `form` is not as expected.
      tf.errors.InvalidArgumentError: If the counts are all 0 or a value is not finite.

    >>> targets = [0.1, 0.12, 0.14, 0.9]
    >>> density(targets, histogram(targets), epsilon=0.05).numpy().tolist()
    [0.75, 0.75, 0.75, 0.25]
    """
    _check_choice("form", form, FORMS)
    u = tf.cast(_vector("u", u), tf.float32)
    # float64: a float32 sum stops counting at 2**24 samples.
    counts = tf.cast(_vector("counts", counts), tf.float64)
    bins = tf.size(counts)
    if form == "bins":
        near = tf.gather(counts, bin_index(u, bins))
    else:
        middle = tf.cast(u, tf.float64)
        epsilon = _scalar("epsilon", epsilon, tf.float64)
        up_to = tf.cumsum(counts)
        upper = tf.gather(up_to, bin_index(middle + epsilon, bins))
        lower = tf.gather(up_to - counts, bin_index(middle - epsilon, bins))
        near = upper - lower
    share = tf.cast(near / tf.reduce_sum(counts), tf.float32)
    return tf.debugging.check_numerics(share, "counts: expected a positive, finite total")


def focal_weight(density: Any, gamma: Any) -> tf.Tensor:
    """The focal factor `(1 - density)**gamma`.

    Args:
      density: `[n]` in [0, 1].
      gamma: Exponent, >= 0. With 0 every weight is exactly 1, at density 1 too.

    Returns:
      `[n]` float32 in [0, 1]. Weights and their gradients are finite everywhere; a large
      gamma drives weights to exactly 0 (see `effective_sample_size`).

    Raises:
      ValueError: If `density` is not `[n]`, or `gamma` negative or not finite.

    >>> focal_weight([0.75, 0.25], gamma=1.0).numpy().tolist()
    [0.25, 0.75]
    """
    density = tf.cast(_vector("density", density), tf.float32)
    gamma = _scalar("gamma", gamma, tf.float32)
    # Largest float32 below 1: a power of 0 has infinite slope for gamma < 1.
    return tf.exp(gamma * tf.math.log1p(-tf.minimum(density, 1.0 - 2.0**-24)))


def distributional_focal_loss(
    u_true: Any,
    u_pred: Any,
    counts: Any,
    gamma: Any,
    epsilon: Any,
    form: str = "window",
) -> tf.Tensor:
    """Distributional focal loss of each example.

    Runs as one graph, also when it is called eagerly; another `gamma` or `epsilon` needs
    no new graph.

    Args:
      u_true: `[n]` targets, `1 - true_class_probability`. No gradient flows into them.
      u_pred: `[n]` estimates.
      counts: `[bins]` histogram of `U` over [0, 1].
      gamma: Exponent of the focal factor, >= 0; a number or a scalar tensor.
      epsilon: Half width of the density window, >= 0; a number or a scalar tensor.
      form: "window" or "bins", see `density`.

    Returns:
      `[n]` float32. Its gradient in `u_pred` is `2 * weight * (u_pred - u_true)`.

    Raises:
      ValueError: If the shapes are not `[n]` and `[n]`, or as in `density` and
        `focal_weight`.
      tf.errors.InvalidArgumentError: If a target is not finite or the counts are all 0.

    The rare target weighs more:

    >>> u_true, u_pred = [0.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]
    >>> counts = histogram(u_true)
    >>> distributional_focal_loss(u_true, u_pred, counts, gamma=1.0, epsilon=0.05).numpy().tolist()
    [0.0625, 0.0625, 0.0625, 0.1875]
    """
    u_true = tf.cast(_vector("u_true", u_true), tf.float32)
    u_pred = tf.cast(_vector("u_pred", u_pred), tf.float32)
    if not u_pred.shape.is_compatible_with(u_true.shape):
        raise ValueError(
            f"u_pred: expected the shape of u_true {u_true.shape}, received {u_pred.shape}"
        )
    # Within a graph no other one: it would not know the lengths that its caller knows.
    loss = _focal_loss if tf.inside_function() else _focal_loss_graph
    return loss(
        u_true,
        u_pred,
        tf.cast(_vector("counts", counts), tf.float32),
        _scalar("gamma", gamma, tf.float32),
        _scalar("epsilon", epsilon, tf.float64),
        form,
    )


def _focal_loss(u_true, u_pred, counts, gamma, epsilon, form):
    u_true = tf.stop_gradient(u_true)
    weight = tf.stop_gradient(focal_weight(density(u_true, counts, epsilon, form), gamma))
    if not (u_true.shape.is_fully_defined() and u_pred.shape.is_fully_defined()):
        # Where lengths are known only at run time, [n] and [1] would broadcast. (A reshape
        # would not stop it: the graph optimizer removes it.)
        tf.debugging.assert_equal(
            tf.size(u_pred), tf.size(u_true), "u_pred: expected as many values as u_true"
        )
    return weight * tf.square(u_pred - u_true)


# jit_compile=False: the caller's histogram has no XLA kernel, and XLA is slower here on CPUs.
_focal_loss_graph = tf.function(_focal_loss, jit_compile=False, reduce_retracing=True)


def auto_gamma(u: Any, gamma_max: float) -> tuple[float, float]:
    """Exponent for the spread of the targets: `1 / (12 var(U))`, capped.

    A uniform `u` has variance 1/12 and gets gamma 1 (the paper's supplement); the
    narrower the distribution, the larger gamma.

    Args:
      u: `[n]` NumPy array of targets.
      gamma_max: Largest gamma, > 0.

    Returns:
      `(gamma, uncapped)`; `uncapped` is infinite where all targets are equal.

    Raises:
      ValueError: If `u` is not `[n]` with n > 0, or not finite.

    >>> gamma, uncapped = auto_gamma([0.0, 0.5, 0.0, 0.5], gamma_max=10.0)
    >>> round(gamma, 4), auto_gamma([0.3, 0.3], gamma_max=10.0)
    (1.3333, (10.0, inf))
    """
    u = np.asarray(u, np.float64)
    if u.ndim != 1 or not u.size:
        raise ValueError(f"u: expected shape [n] with n > 0, received {list(u.shape)}")
    if not 0 < gamma_max < np.inf:
        raise ValueError(f"gamma_max: expected a finite number > 0, received {gamma_max!r}")
    if not np.isfinite(u).all():
        bad = np.flatnonzero(~np.isfinite(u))[0]
        raise ValueError(f"u: expected finite values, received {u[bad]} in row {bad}")
    # By range: the rounding of the mean leaves a variance of about 1e-33 to equal values.
    variance = float(np.var(u)) if np.ptp(u) else 0.0
    uncapped = 1.0 / (12.0 * variance) if variance else np.inf
    return min(uncapped, float(gamma_max)), uncapped


def effective_sample_size(weights: Any) -> float:
    """Kish's effective sample size `(sum w)**2 / sum w**2`.

    Args:
      weights: `[n]` NumPy array, >= 0.

    Returns:
      In [1, n]; n for equal weights, 0 where every weight is 0.

    >>> effective_sample_size([1.0, 1.0, 0.0, 0.0])
    2.0
    """
    weights = np.asarray(weights, np.float64)
    largest = weights.max(initial=0.0)
    if not largest:
        return 0.0
    weights = weights / largest  # Squares of tiny weights would be 0.
    return float(np.sum(weights) ** 2 / np.sum(weights**2))


@keras.saving.register_keras_serializable(package="btcp_tf")
class DistributionalFocalLoss(keras.losses.Loss):
    """Distributional focal loss as a Keras loss.

    Args:
      gamma: Exponent of the focal factor, >= 0.
      epsilon: Half width of the density window, >= 0.
      scope: "dataset": `counts` is the histogram of `U`; "batch": `U` is each batch's targets.
      counts: Histogram of `U` over [0, 1]; expected by scope "dataset" alone.
      form: "window" or "bins", see `density`.
      fine_bins: Bins of each batch's histogram with form "window"; "bins" has 10.
      name: Name of the loss.
      reduction: As in `keras.losses.Loss`.

    `y_true` and `y_pred` are of one shape, `[n]` or `[n, 1]`; anything else raises
    ValueError instead of broadcasting.

    >>> loss = DistributionalFocalLoss(gamma=1.0, scope="batch")
    >>> loss(np.array([0.0, 0.0, 0.0, 1.0]), np.array([0.5, 0.5, 0.5, 0.5])).numpy().item()
    0.09375
    """

    def __init__(
        self,
        gamma: float,
        epsilon: float = 0.05,
        scope: str = "dataset",
        counts: Sequence[float] | None = None,
        form: str = "window",
        fine_bins: int = FINE_BINS,
        name: str = "distributional_focal_loss",
        reduction: str = "sum_over_batch_size",
    ):
        super().__init__(name=name, reduction=reduction)
        _check_choice("scope", scope, SCOPES)
        _check_choice("form", form, FORMS)
        if (counts is not None) != (scope == "dataset"):
            wanted = "a histogram" if scope == "dataset" else "none"
            received = "none" if counts is None else "a histogram"
            raise ValueError(f"counts: expected {wanted} with scope={scope}, received {received}")
        _scalar("gamma", gamma, tf.float32)
        _scalar("epsilon", epsilon, tf.float64)
        self.gamma = float(gamma)
        self.epsilon = float(epsilon)
        self.scope = scope
        self.counts = None if counts is None else np.asarray(counts, np.float64).tolist()
        self.form = form
        self.fine_bins = int(fine_bins)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns `[n]` losses."""
        y_true, y_pred = tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred)
        ranks = y_true.shape.rank, y_pred.shape.rank
        column = ranks == (2, 2) and y_true.shape[1] == y_pred.shape[1] == 1
        if ranks != (1, 1) and not column:
            raise ValueError(
                f"y_true, y_pred: expected both [n] or both [n, 1], "
                f"received {y_true.shape} and {y_pred.shape}"
            )
        if column:
            y_true, y_pred = y_true[:, 0], y_pred[:, 0]
        counts = self.counts
        if counts is None:
            counts = histogram(y_true, FIXED_BINS if self.form == "bins" else self.fine_bins)
        return distributional_focal_loss(
            y_true, y_pred, counts, self.gamma, self.epsilon, self.form
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments that make this loss again."""
        names = ("gamma", "epsilon", "scope", "counts", "form", "fine_bins")
        return super().get_config() | {name: getattr(self, name) for name in names}


def _vector(name: str, values: Any) -> tf.Tensor:
    """`values` as a tensor that has one axis, if not by its static shape then at run time."""
    values = tf.convert_to_tensor(values)
    if not values.shape.is_compatible_with([None]):
        raise ValueError(f"{name}: expected shape [n], received {values.shape}")
    return tf.ensure_shape(values, [None])


def _scalar(name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    """`value` as a tensor, so that its graph serves every value."""
    if not tf.is_tensor(value) and not 0 <= value < np.inf:
        raise ValueError(f"{name}: expected a finite number >= 0, received {value!r}")
    if tf.is_tensor(value):
        return tf.cast(value, dtype)
    return tf.constant(value, dtype)  # tf.cast would go through float32.


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(wording.expected_one_of(name, choices, value))
