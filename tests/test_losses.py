import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from btcp_tf import losses


def slow_bin(value, bins):
    """Bin of one number, by Python's own float64 arithmetic."""
    return min(max(int(np.floor(float(np.float32(value)) * bins)), 0), bins - 1)


def slow_density(u, U, epsilon):
    """The O(n^2) definition: share of U in the closed window around each u."""
    u, U = np.float64(np.float32(u)), np.float64(np.float32(U))
    inside = (U[None, :] >= u[:, None] - epsilon) & (U[None, :] <= u[:, None] + epsilon)
    return inside.mean(axis=1)


def edge_share(u, U, epsilon, bins):
    """Share of U in the two fine bins at the ends of each window."""
    members = np.array([slow_bin(value, bins) for value in U])
    shares = []
    for value in np.float64(np.float32(u)):
        ends = {slow_bin(value - epsilon, bins), slow_bin(value + epsilon, bins)}
        shares.append(np.isin(members, list(ends)).mean())
    return np.array(shares)


def targets(n, seed=0):
    """Skewed targets with ties and values on the edges of 10, 100 and 1,000 bins."""
    rng = np.random.default_rng(seed)
    u = rng.beta(0.3, 2.0, n)
    u[: n // 4] = np.round(u[: n // 4], 1)
    u[n // 4 : n // 2] = np.round(u[n // 4 : n // 2], 3)
    u[:2] = 0, 1
    return u.astype(np.float32)


def slow_loss(u_true, u_pred, density, gamma):
    return (1 - density) ** gamma * (np.float64(u_pred) - np.float64(u_true)) ** 2


# True class probability.


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_true_class_probability_takes_the_labeled_column(dtype):
    probs = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    answer = losses.true_class_probability(probs, np.array([1, 2], dtype))
    assert answer.dtype == tf.float32
    np.testing.assert_array_equal(answer, np.float32([0.2, 0.4]))


def test_true_class_probability_gradient_reaches_the_labeled_column_alone():
    probs = tf.Variable([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    with tf.GradientTape() as tape:
        answer = losses.true_class_probability(probs, [1, 2])
    gradient = tf.convert_to_tensor(tape.gradient(answer, probs))
    np.testing.assert_array_equal(gradient, [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("graph", [False, True])
def test_label_out_of_range_raises(label, graph):
    function = losses.true_class_probability
    function = tf.function(function) if graph else function
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected labels in \[0, 3\)"):
        function(tf.fill([2, 3], 1 / 3), tf.constant([0, label]))


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.ones([3]), [0, 0, 0], r"probs: expected shape \[n, k\], received \(3,\)"),
        (np.ones([3, 2]), [[0], [0], [0]], r"labels: expected shape \[n\], received \(3, 1\)"),
        (np.ones([3, 2]), [0.0, 0.0, 0.0], "labels: expected integers, received float32"),
        (np.ones([3, 2]), [0], r"labels: expected one per row of probs \(3, 2\), received \(1,\)"),
    ],
)
def test_true_class_probability_refuses_other_shapes(probs, labels, message):
    with pytest.raises(ValueError, match=message):
        losses.true_class_probability(probs, labels)


# Bins and histogram.


@pytest.mark.parametrize("bins", [1, 3, 10, 1000])
def test_histogram_counts_what_bin_index_says(bins):
    edges = np.arange(bins + 1) / bins
    near = np.concatenate([edges, np.nextafter(edges, -1), np.nextafter(edges, 2)])
    u = np.concatenate([near, near.astype(np.float32), targets(200), [-0.5, 1.5]])
    index = losses.bin_index(u, bins)
    assert index.dtype == tf.int32
    np.testing.assert_array_equal(index, [slow_bin(value, bins) for value in u])
    counts = losses.histogram(u, bins)
    assert counts.dtype == tf.float32
    np.testing.assert_array_equal(counts, np.bincount(index, minlength=bins))


@pytest.mark.parametrize("bins", [10, 1000])
def test_bin_does_not_depend_on_precision(bins):
    u = np.arange(bins + 1) / bins
    np.testing.assert_array_equal(
        losses.bin_index(u, bins), losses.bin_index(u.astype(np.float32), bins)
    )


def test_histogram_takes_integers_and_no_values():
    np.testing.assert_array_equal(losses.histogram(np.array([0, 1, 1]), 4), [1, 0, 0, 2])
    np.testing.assert_array_equal(losses.histogram(tf.zeros([0]), 4), [0, 0, 0, 0])


def test_histograms_of_parts_add_up():
    u = targets(300)
    np.testing.assert_array_equal(
        losses.histogram(u[:100]) + losses.histogram(u[100:]), losses.histogram(u)
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("graph", [False, True])
def test_histogram_refuses_values_that_are_not_finite(bad, graph):
    function = tf.function(losses.histogram) if graph else losses.histogram
    with pytest.raises(tf.errors.InvalidArgumentError, match="u: expected finite values"):
        function(tf.constant([0.5, bad]))


def test_histogram_refuses_columns_and_no_bins():
    with pytest.raises(ValueError, match=r"u: expected shape \[n\], received \(3, 1\)"):
        losses.histogram(tf.zeros([3, 1]))
    with pytest.raises(ValueError, match="bins: expected at least 1, received 0"):
        losses.histogram(tf.zeros([3]), 0)


# Density.


@pytest.mark.parametrize("epsilon", [0.0, 0.001, 0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("bins", [10, 1000])
def test_density_is_within_the_edge_bins_of_the_definition(epsilon, bins):
    U = targets(400)
    answer = losses.density(U, losses.histogram(U, bins), epsilon)
    assert answer.dtype == tf.float32
    excess = np.float64(answer) - slow_density(U, U, epsilon)
    assert np.all(excess >= -1e-6)
    assert np.all(excess <= edge_share(U, U, epsilon, bins) + 1e-6)


unit = st.one_of(
    st.floats(0, 1, width=32),
    st.integers(0, 20).map(lambda i: float(np.float32(i / 20))),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    U=hnp.arrays(np.float32, st.integers(1, 30), elements=unit),
    epsilon=st.one_of(st.floats(0, 1), st.sampled_from([0.05, 0.1, 0.15])),
    bins=st.sampled_from([10, 20, 100]),
)
def test_density_bound_holds_for_any_targets(U, epsilon, bins):
    answer = losses.density(U, losses.histogram(U, bins), epsilon)
    assert np.all(answer > 0) and np.all(answer <= 1)
    excess = np.float64(answer) - slow_density(U, U, epsilon)
    assert np.all(excess >= -1e-6)
    assert np.all(excess <= edge_share(U, U, epsilon, bins) + 1e-6)


def test_density_of_well_separated_targets_is_exact():
    U = np.float32([0.1005, 0.1205, 0.1405, 0.5005, 0.9005])
    np.testing.assert_allclose(
        losses.density(U, losses.histogram(U), 0.03), [0.4, 0.6, 0.4, 0.2, 0.2], rtol=1e-6
    )


def test_density_by_bins_is_the_share_of_the_own_bin():
    # As float32, 0.7 and 0.9 lie just below the edges of bins 7 and 9, 0.3 just above that of 3.
    U = np.float32([0.0, 0.05, 0.7, 0.71, 0.9, 1.0, 0.95, 0.3, 0.89, 0.5])
    answer = losses.density(U, losses.histogram(U, 10), 0.05, form="bins")
    np.testing.assert_allclose(answer, [0.2, 0.2, 0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.2, 0.1])


def test_density_counts_beyond_float32_integers():
    counts = np.zeros(1000)
    counts[:3] = 2**24, 1, 1
    answer = losses.density([0.0025], tf.constant(counts, tf.float64), 0.001)
    np.testing.assert_allclose(answer, [2 / (2**24 + 2)], rtol=1e-6)


def test_density_of_equal_targets_is_one_and_outside_them_zero():
    counts = losses.histogram(np.full(50, 0.25))
    np.testing.assert_array_equal(losses.density([0.25, 0.27, 0.8], counts, 0.05), [1, 1, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_every_number_type_gives_the_same_density(dtype):
    u = np.array([0, 1, 1, 0, 1], dtype)
    answer = losses.density(u, losses.histogram(u), 0.05)
    np.testing.assert_allclose(answer, [0.4, 0.6, 0.6, 0.4, 0.6])
    assert answer.dtype == tf.float32


@pytest.mark.parametrize("graph", [False, True])
def test_density_refuses_empty_counts_and_nan(graph):
    function = tf.function(losses.density) if graph else losses.density
    with pytest.raises(tf.errors.InvalidArgumentError, match="counts: expected a positive"):
        function(tf.constant([0.5]), tf.zeros([10]), 0.05)
    with pytest.raises(tf.errors.InvalidArgumentError, match="u: expected finite values"):
        function(tf.constant([np.nan]), tf.ones([10]), 0.05)


def test_density_refuses_shapes_and_words_it_does_not_know():
    with pytest.raises(ValueError, match=r"u: expected shape \[n\], received \(2, 1\)"):
        losses.density(tf.zeros([2, 1]), tf.ones([10]), 0.05)
    with pytest.raises(ValueError, match=r"counts: expected shape \[n\], received \(1, 10\)"):
        losses.density(tf.zeros([2]), tf.ones([1, 10]), 0.05)
    with pytest.raises(ValueError, match="form: expected one of window, bins, received 'round'"):
        losses.density(tf.zeros([2]), tf.ones([10]), 0.05, form="round")
    with pytest.raises(ValueError, match="epsilon: expected a finite number >= 0, received -1"):
        losses.density(tf.zeros([2]), tf.ones([10]), -1)


# Weight.


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.5, 10.0])
def test_weight_is_the_power(gamma):
    density = np.linspace(0, 0.999, 50)
    answer = losses.focal_weight(density, gamma)
    assert answer.dtype == tf.float32
    expected = (1 - np.float64(np.float32(density))) ** gamma
    np.testing.assert_allclose(answer, expected, rtol=2e-5)


def test_weight_of_gamma_zero_is_exactly_one():
    np.testing.assert_array_equal(losses.focal_weight([0.0, 0.3, 1.0], 0.0), [1, 1, 1])


@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0, 10.0, 1e6])
def test_weight_and_its_gradient_are_finite_at_the_extremes(gamma):
    density = tf.Variable([0.0, 1.0 - 2.0**-24, 1.0])
    with tf.GradientTape() as tape:
        weight = losses.focal_weight(density, gamma)
    assert np.isfinite(weight).all() and np.all(weight >= 0) and np.all(weight <= 1)
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(weight, density))).all()


@pytest.mark.parametrize("gamma", [-0.1, float("nan"), float("inf")])
def test_weight_refuses_gamma(gamma):
    with pytest.raises(ValueError, match="gamma: expected a finite number >= 0"):
        losses.focal_weight([0.5], gamma)


# Loss.


@pytest.mark.parametrize("form", losses.FORMS)
@pytest.mark.parametrize("gamma", [0.5, 1.0, 4.0])
def test_loss_follows_the_formula(form, gamma):
    U, u_pred = targets(200), targets(200, seed=1)[::-1]
    counts = losses.histogram(U, 10 if form == "bins" else 1000)
    density = np.float64(losses.density(U, counts, 0.05, form))
    answer = losses.distributional_focal_loss(U, u_pred, counts, gamma, 0.05, form)
    assert answer.shape == (200,) and answer.dtype == tf.float32
    np.testing.assert_allclose(answer, slow_loss(U, u_pred, density, gamma), rtol=2e-5, atol=1e-9)
    assert len(np.unique(density.round(6))) > 5


def test_loss_of_gamma_zero_is_the_mean_squared_error():
    u_true, u_pred = targets(64)[:, None], targets(64, seed=1)[::-1, None]
    counts = losses.histogram(u_true[:, 0])
    loss = losses.DistributionalFocalLoss(gamma=0, counts=counts.numpy())
    mse = keras.losses.MeanSquaredError()
    np.testing.assert_allclose(loss(u_true, u_pred), mse(u_true, u_pred), rtol=1e-6)
    weights = np.arange(64.0)
    np.testing.assert_allclose(
        loss(u_true, u_pred, sample_weight=weights),
        mse(u_true, u_pred, sample_weight=weights),
        rtol=1e-6,
    )


def test_graph_and_eager_agree():
    U, u_pred = targets(100), targets(100, seed=1)
    arguments = (U, u_pred, losses.histogram(U), 2.0, 0.05)
    once = losses.distributional_focal_loss(*arguments)
    inner = tf.function(losses.distributional_focal_loss)(*arguments)
    tf.config.run_functions_eagerly(True)
    try:
        eager = losses.distributional_focal_loss(*arguments)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(once, inner)
    np.testing.assert_allclose(once, eager, rtol=1e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_gradient_is_analytic_and_none_flows_into_targets_or_counts(graph):
    u_true, u_pred = tf.Variable(targets(50)), tf.Variable(targets(50, seed=1)[::-1])
    gamma = 3.0

    def gradients():
        with tf.GradientTape() as tape:
            counts = losses.histogram(u_true)
            loss = losses.distributional_focal_loss(u_true, u_pred, counts, gamma, 0.05)
        return counts, tape.gradient(
            loss, [u_true, u_pred], unconnected_gradients=tf.UnconnectedGradients.NONE
        )

    counts, (into_true, into_pred) = (tf.function(gradients) if graph else gradients)()
    assert into_true is None or not np.any(into_true)
    weight = losses.focal_weight(losses.density(u_true, counts, 0.05), gamma)
    np.testing.assert_allclose(
        into_pred, 2 * weight.numpy() * (u_pred.numpy() - u_true.numpy()), rtol=1e-5, atol=1e-9
    )
    assert np.any(into_pred)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("equal", [0.0, 0.5, 1.0])
def test_loss_and_gradient_are_finite_for_equal_targets(equal, gamma):
    u_true, u_pred = tf.fill([3], equal), tf.Variable([0.0, 0.5, 1.0])
    counts = losses.histogram(u_true)
    with tf.GradientTape() as tape:
        loss = losses.distributional_focal_loss(u_true, u_pred, counts, gamma, 0.05)
    assert np.isfinite(loss).all()
    assert np.isfinite(tf.convert_to_tensor(tape.gradient(loss, u_pred))).all()


def test_another_gamma_or_epsilon_is_no_new_graph():
    U = targets(40)
    counts = losses.histogram(U)
    function = losses._focal_loss_graph
    losses.distributional_focal_loss(U, U[::-1], counts, 1.0, 0.05)
    before = function.experimental_get_tracing_count()
    answers = [
        losses.distributional_focal_loss(U, U[::-1], counts, gamma, epsilon).numpy().sum()
        for gamma, epsilon in [(2.0, 0.05), (2, 0.1), (tf.constant(3.0), 0.1), (3.5, 0)]
    ]
    assert function.experimental_get_tracing_count() == before
    assert len(set(answers)) == 4


def test_batch_sizes_soon_share_a_graph():
    counts = losses.histogram(targets(40))
    function = losses._focal_loss_graph
    for n in (5, 6):
        losses.distributional_focal_loss(targets(n), targets(n), counts, 1.0, 0.05)
    before = function.experimental_get_tracing_count()
    for n in (7, 8, 9):
        losses.distributional_focal_loss(targets(n), targets(n), counts, 1.0, 0.05)
    assert function.experimental_get_tracing_count() == before


@pytest.mark.parametrize(
    ("true_shape", "pred_shape", "message"),
    [
        ([4], [4, 1], r"u_pred: expected shape \[n\], received \(4, 1\)"),
        ([4, 1], [4], r"u_true: expected shape \[n\], received \(4, 1\)"),
        ([4, 1], [4, 1], r"u_true: expected shape \[n\], received \(4, 1\)"),
        ([4], [1], r"u_pred: expected the shape of u_true \(4,\), received \(1,\)"),
        ([4], [], r"u_pred: expected shape \[n\], received \(\)"),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_loss_refuses_shapes_that_would_broadcast(true_shape, pred_shape, message, graph):
    function = losses.distributional_focal_loss
    function = tf.function(function) if graph else function
    with pytest.raises(ValueError, match=message):
        function(tf.zeros(true_shape), tf.zeros(pred_shape), tf.ones([10]), 1.0, 0.05)


@pytest.mark.parametrize("known", [[None], None])
def test_lengths_known_only_at_run_time_do_not_broadcast(known):
    @tf.function(input_signature=[tf.TensorSpec([4]), tf.TensorSpec(known)])
    def loss(u_true, u_pred):
        return losses.distributional_focal_loss(u_true, u_pred, tf.ones([10]), 0.0, 0.05)

    np.testing.assert_allclose(loss(tf.zeros([4]), tf.fill([4], 0.5)), [0.25] * 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected as many values as u_true"):
        loss(tf.zeros([4]), tf.fill([1], 0.5))


def test_rank_known_only_at_run_time_is_checked():
    @tf.function(input_signature=[tf.TensorSpec([4]), tf.TensorSpec(None)])
    def loss(u_true, u_pred):
        return losses.distributional_focal_loss(u_true, u_pred, tf.ones([10]), 0.0, 0.05)

    with pytest.raises(tf.errors.InvalidArgumentError):
        loss(tf.zeros([4]), tf.fill([4, 1], 0.5))


# Gamma and effective sample size.


def test_auto_gamma_of_a_uniform_spread_is_one():
    u = (np.arange(100_000) + 0.5) / 100_000
    gamma, uncapped = losses.auto_gamma(u, 10.0)
    assert gamma == uncapped == pytest.approx(1.0, rel=1e-6)


def test_auto_gamma_is_capped():
    u = np.array([0.0, 0.0, 0.1, 0.1])
    assert losses.auto_gamma(u, 10.0) == (10.0, pytest.approx(1 / (12 * 0.0025)))
    assert losses.auto_gamma(u, 50.0)[0] == pytest.approx(1 / (12 * 0.0025))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_auto_gamma_of_equal_targets_is_the_cap(dtype):
    assert losses.auto_gamma(np.full(1000, 0.1, dtype), 10.0) == (10.0, np.inf)


@pytest.mark.parametrize(
    ("u", "message"),
    [
        (np.zeros([3, 1]), r"u: expected shape \[n\] with n > 0, received \[3, 1\]"),
        (np.zeros([0]), r"u: expected shape \[n\] with n > 0, received \[0\]"),
        (np.array([0.1, np.nan]), "u: expected finite values, received nan in row 1"),
    ],
)
def test_auto_gamma_refuses(u, message):
    with pytest.raises(ValueError, match=message):
        losses.auto_gamma(u, 10.0)


def test_effective_sample_size():
    assert losses.effective_sample_size(np.full(7, 0.2)) == pytest.approx(7)
    assert losses.effective_sample_size(np.array([1.0, 0.0, 0.0])) == 1
    assert losses.effective_sample_size(np.array([3.0, 1.0])) == pytest.approx(16 / 10)
    assert losses.effective_sample_size(np.full(5, 1e-200)) == pytest.approx(5)
    assert losses.effective_sample_size(np.zeros(4)) == 0
    assert losses.effective_sample_size(np.zeros(0)) == 0


# The Keras loss.


@pytest.mark.parametrize("form", losses.FORMS)
def test_batch_scope_is_the_dataset_scope_of_the_batch(form):
    u_true, u_pred = targets(32), targets(32, seed=1)[::-1]
    counts = losses.histogram(u_true, 10 if form == "bins" else 50).numpy()
    batch = losses.DistributionalFocalLoss(2.0, 0.1, scope="batch", form=form, fine_bins=50)
    whole = losses.DistributionalFocalLoss(2.0, 0.1, counts=counts, form=form)
    np.testing.assert_array_equal(batch.call(u_true, u_pred), whole.call(u_true, u_pred))
    assert batch.call(u_true, u_pred).shape == (32,)


def test_keras_loss_is_one_value_per_example_and_their_mean():
    u_true, u_pred = targets(32), targets(32, seed=1)[::-1]
    counts = losses.histogram(u_true).numpy()
    each = losses.distributional_focal_loss(u_true, u_pred, counts, 2.0, 0.05).numpy()
    loss = losses.DistributionalFocalLoss(2.0, counts=counts)
    column = loss.call(tf.constant(u_true[:, None]), tf.constant(u_pred[:, None]))
    np.testing.assert_array_equal(column, each)
    np.testing.assert_allclose(loss(u_true, u_pred), each.mean(), rtol=1e-6)
    none = losses.DistributionalFocalLoss(2.0, counts=counts, reduction="none")
    np.testing.assert_array_equal(none(u_true, u_pred), each)


@pytest.mark.parametrize(
    ("true_shape", "pred_shape"), [([4], [4, 1]), ([4, 1], [4]), ([4, 2], [4, 2]), ([], [])]
)
@pytest.mark.parametrize("graph", [False, True])
def test_keras_loss_refuses_mixed_ranks(true_shape, pred_shape, graph):
    loss = losses.DistributionalFocalLoss(1.0, scope="batch")
    function = tf.function(lambda y_true, y_pred: loss(y_true, y_pred)) if graph else loss
    with pytest.raises(ValueError, match=r"expected both \[n\] or both \[n, 1\], received"):
        function(tf.zeros(true_shape), tf.zeros(pred_shape))


def test_keras_loss_refuses_lengths_that_would_broadcast():
    loss = losses.DistributionalFocalLoss(1.0, scope="batch")
    with pytest.raises(ValueError, match=r"expected the shape of u_true \(4,\), received \(1,\)"):
        loss(tf.zeros([4, 1]), tf.zeros([1, 1]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(gamma=1.0), "counts: expected a histogram with scope=dataset, received none"),
        (
            dict(gamma=1.0, scope="batch", counts=[1.0]),
            "counts: expected none with scope=batch, received a histogram",
        ),
        (dict(gamma=-1.0, counts=[1.0]), "gamma: expected a finite number >= 0, received -1"),
        (dict(gamma=1.0, epsilon=-0.1, counts=[1.0]), "epsilon: expected a finite number >= 0"),
        (dict(gamma=1.0, scope="epoch"), "scope: expected one of dataset, batch"),
        (dict(gamma=1.0, counts=[1.0], form="x"), "form: expected one of window, bins"),
    ],
)
def test_keras_loss_refuses_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        losses.DistributionalFocalLoss(**arguments)


@pytest.mark.parametrize("scope", losses.SCOPES)
def test_model_with_this_loss_is_saved_and_goes_on_identically(tmp_path, scope):
    keras.utils.set_random_seed(0)
    u = targets(64)
    x, y = np.stack([u, u**2], axis=1), u[:, None]
    counts = losses.histogram(u, 100).numpy() if scope == "dataset" else None
    loss = losses.DistributionalFocalLoss(np.float32(1.5), 0.1, scope, counts, fine_bins=100)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=False)

    def losses_of(model):
        return model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0).history["loss"]

    losses_of(model)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    assert isinstance(loaded.loss, losses.DistributionalFocalLoss)
    assert loaded.loss.get_config() == loss.get_config()
    assert losses_of(loaded) == losses_of(model)


def test_config_names_every_argument():
    arguments = dict(
        gamma=2.0,
        epsilon=0.2,
        scope="dataset",
        counts=[1.0, 2.0],
        form="bins",
        fine_bins=7,
        name="dfl",
        reduction="sum",
    )
    config = losses.DistributionalFocalLoss(**arguments).get_config()
    assert config == arguments
