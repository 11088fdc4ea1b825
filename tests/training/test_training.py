import dataclasses
import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from terminal import Terminal

from btcp_tf import losses
from btcp_tf.core.config import PHASES, Config
from btcp_tf.data.splits import Dataset, Split
from btcp_tf.networks import encoders, models
from btcp_tf.networks.encoders import ENCODERS
from btcp_tf.training import checkpoints, diagnosis, distribution, inference, one_phase, phases
from btcp_tf.training.inference import Inference
from btcp_tf.training.phase_model import LossSettings, PhaseModel, Recipe
from btcp_tf.training.settings import TrainingSettings

# Before TensorFlow starts: the tests of the mirrored strategy need up to four devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
tf.config.list_logical_devices()

CLASSES = 3


def tiny(pixels, feature_dim, synchronized):
    """One block of the svhn encoder: everything that a phase must treat right, quick to trace."""
    x = encoders._conv_bn_relu(pixels, 4, "conv", synchronized)
    x = encoders._pool(x, "pool")
    return encoders._features(x, feature_dim, 0.3)


@pytest.fixture(autouse=True, scope="module")
def tiny_encoder():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODERS, "svhn", tiny)
        yield


SETTINGS = dict(
    dataset="digits",
    encoder="svhn",
    feature_dim=8,
    batch_size=16,
    classifier_epochs=3,
    estimator_epochs=3,
    finetune_epochs=3,
    learning_rate=0.01,
    estimator_learning_rate=0.01,
    finetune_learning_rate=0.001,
    weight_decay=1e-3,
    steps_per_execution=2,
    verbose=0,
)
ESTIMATORS = {"tcp": Recipe(0.0), "btcp": Recipe()}


def make_dataset(n=45, seed=0):
    """Noisy images whose brightness tells the class: easy, with some errors."""
    rng = np.random.default_rng(seed)

    def split(size):
        labels = rng.integers(0, CLASSES, size)
        images = rng.normal(60 + 60 * labels, 40, (8, 8, 1, size)).clip(0, 255)
        return Split(np.moveaxis(images, -1, 0).astype(np.uint8), labels)

    parts = {"train": n, "validation": 20, "calibration": 20, "test": 20}
    parts = {name: split(size) for name, size in parts.items()}
    return Dataset("toy", ("a", "b", "c"), **parts, note="", fingerprint="")


def make_network(config, strategy=None):
    keras.utils.set_random_seed(config.seed)
    with (strategy or tf.distribute.get_strategy()).scope():
        return models.build_model(
            config.encoder,
            (8, 8, 1),
            CLASSES,
            feature_dim=config.feature_dim,
            synchronized=strategy is not None,
        )


def run(
    folder,
    config,
    *,
    strategy=None,
    dropout=True,
    describe=None,
    dataset=None,
    estimators=ESTIMATORS,
):
    network = make_network(config, strategy)
    if not dropout:
        for layer in network._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
    initial = checkpoints.snapshot(network)
    stages = phases.fit(
        network,
        dataset or make_dataset(),
        TrainingSettings.of(config),
        estimators,
        folder=folder,
        strategy=strategy or tf.distribute.get_strategy(),
        describe=describe,
    )
    return network, initial, stages


def keep_at(moments, folder, kept):
    """A `describe` that copies the folder to `kept / stage` as a kill then would leave it."""

    def describe(stage, row, answers):
        if (stage, row["epoch"]) in moments:
            shutil.copytree(folder, kept / stage)
        return row

    return describe


KILLED = [("classifier", 2), ("btcp", 1), ("btcp_finetuned", 2)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_encoder):
    """A whole training with dropout, and its folder; beside it in `killed` what kills left."""
    folder = tmp_path_factory.mktemp("trained") / "whole"
    folder.mkdir()
    config = Config(**SETTINGS)
    describe = keep_at(KILLED, folder, folder.parent / "killed")
    return (folder, config, *run(folder, config, describe=describe))


def variables_of(network, values, *parts):
    """The snapshot's values of some sub-models, dropout states included."""
    wanted = [id(v) for part in parts for v in network.get_layer(part).variables]
    assert wanted
    pairs = zip(network.variables, values, strict=True)
    return [value for variable, value in pairs if id(variable) in wanted]


def same(first, second):
    return [bool((a == b).all()) for a, b in zip(first, second, strict=True)]


EPOCH_LINES = ["Epoch 1/1", "Epoch 1/1", "Epoch 1/2", "Epoch 2/2"]


def run_and_show(folder, verbose):
    epochs = dict(classifier_epochs=1, estimator_epochs=1, finetune_epochs=2)
    config = Config(**SETTINGS | epochs | {"verbose": verbose})
    run(folder, config, estimators={"btcp": Recipe()})


@pytest.mark.parametrize("verbose", [1, 2])
def test_without_a_terminal_each_epoch_is_one_line(tmp_path, capsys, verbose):
    run_and_show(tmp_path, verbose)
    printed = capsys.readouterr().out
    assert not set("\b\r\x1b") & set(printed)
    lines = [line for line in printed.split("\n") if line.startswith("Epoch")]
    assert [line.split("  ")[0] for line in lines] == EPOCH_LINES
    assert all(name in lines[-1] for name in ("cross_entropy ", "dfl ", "accuracy "))
    assert max(map(len, lines)) < 80


def test_on_a_terminal_each_epoch_stays_within_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    run_and_show(tmp_path, 1)
    rows = [row for row in terminal.rows if row.startswith("Epoch")]
    assert [row.split(" ━")[0] for row in rows] == EPOCH_LINES
    assert all(" 100% " in row and "0." in row for row in rows)
    drawn = terminal.getvalue().replace("\n", "\r").split("\r")
    assert max(map(len, drawn)) < 80 and len(drawn) > len(rows)


def test_each_phase_trains_its_parts_and_nothing_else(trained):
    _, _, network, initial, stages = trained
    assert list(stages) == ["classifier", "tcp", "btcp", "btcp_finetuned"]
    values = {name: stage.values for name, stage in stages.items()}

    def part(values, *names):
        return variables_of(network, values, *names)

    # Phase 1 leaves the estimator as it was made; every weight before it moves.
    assert all(same(part(initial, "estimator"), part(values["classifier"], "estimator")))
    weights = [id(w) for name in ("encoder", "classifier") for w in network.get_layer(name).weights]
    for variable, before, after in zip(
        network.variables, initial, values["classifier"], strict=True
    ):
        if id(variable) in weights:
            assert (before != after).any(), variable.path

    # Phase 2: encoder, classifier, BatchNorm statistics and dropout states bit for bit.
    for method in ("tcp", "btcp"):
        frozen = part(values["classifier"], "encoder", "classifier")
        assert all(same(frozen, part(values[method], "encoder", "classifier")))
        assert not any(same(part(initial, "estimator"), part(values[method], "estimator")))
    assert not any(same(part(values["tcp"], "estimator"), part(values["btcp"], "estimator")))

    # Phase 3 moves everything, BatchNorm statistics too.
    moved = same(values["btcp"], values["btcp_finetuned"])
    assert not any(moved), [
        v.path for v, still in zip(network.variables, moved, strict=True) if still
    ]


def test_frozen_stages_have_one_classifier_id(trained):
    _, _, network, _, stages = trained
    ids = {}
    for name, stage in stages.items():
        checkpoints.restore(network, stage.values)
        ids[name] = checkpoints.weights_id(network, ("encoder", "classifier"))
    assert ids["classifier"] == ids["tcp"] == ids["btcp"] != ids["btcp_finetuned"]


def test_estimator_learns_from_the_encoder_in_inference_mode(trained, monkeypatch):
    _, config, network, _, stages = trained
    seen = {}
    original = one_phase.fit_phase

    def spy(model, x, y, **arguments):
        seen.setdefault(model.phase.name, (x, y))
        return original(model, x, y, **arguments)

    monkeypatch.setattr(one_phase, "fit_phase", spy)
    folder = trained[0]
    run(folder, config)  # Finished already: only computes what it would train on.
    features, u_true = seen["estimator"]
    checkpoints.restore(network, stages["classifier"].values)
    dataset = make_dataset()
    expected = network.get_layer("encoder")(dataset.train.images, training=False)
    np.testing.assert_allclose(features, expected, atol=1e-5)
    probs = np.asarray(network.get_layer("classifier")(features))
    np.testing.assert_allclose(
        u_true, 1 - probs[np.arange(len(probs)), dataset.train.labels], atol=1e-5
    )


def test_rows_hold_losses_rates_and_effective_sample_size(trained):
    _, config, _, _, stages = trained
    n = len(make_dataset().train)
    for name, stage in stages.items():
        assert [row["epoch"] for row in stage.rows] == [1, 2, 3]
        for row in stage.rows:
            assert row["seconds"] > 0
            terms = [row[term] for term in ("cross_entropy", "dfl") if term in row]
            assert row["loss"] == pytest.approx(sum(terms), rel=1e-5)
        rate = {"classifier": 0.01, "btcp_finetuned": 0.001}.get(name, 0.01)
        assert stage.rows[-1]["learning_rate"] == pytest.approx(rate)
    # gamma = 0: every weight is 1.
    assert stages["tcp"].rows[0]["effective_sample_size"] == pytest.approx(n, rel=1e-5)
    assert 1 <= stages["btcp"].rows[0]["effective_sample_size"] < n


def test_gamma_is_measured_on_the_training_targets(trained):
    _, _, _, _, stages = trained
    facts = stages["btcp"].facts
    assert facts["gamma_uncapped"] == pytest.approx(1 / (12 * facts["u_true_variance"]), rel=1e-5)
    assert facts["gamma"] == min(facts["gamma_uncapped"], 10.0)
    assert stages["tcp"].facts["gamma"] == 0.0
    assert stages["btcp_finetuned"].facts["gamma"] == facts["gamma"]


def test_loss_settings():
    u = np.full(10, 0.5)
    training = TrainingSettings.from_defaults(gamma_max=7.0)
    assert phases.loss_settings(training, Recipe(), u)[0].gamma == 7.0
    assert phases.loss_settings(training, Recipe(), u)[1] == np.inf
    assert phases.loss_settings(training, Recipe(0.0), u)[0].gamma == 0.0
    training = TrainingSettings.from_defaults(gamma="12.5", density="bins", fine_bins=500)
    loss, uncapped = phases.loss_settings(training, Recipe(), u)
    assert (loss.gamma, uncapped, loss.bins) == (12.5, 12.5, 10)


def test_training_settings_are_those_of_a_run():
    config = Config(**SETTINGS | dict(gamma=2, finetune_method=()))
    found = dataclasses.asdict(TrainingSettings.of(config))
    assert found.pop("finetuned") == () and found["gamma"] == "2.0"
    assert found == {name: getattr(config, name) for name in found}
    changed = {name: value for name, value in SETTINGS.items() if name in found} | {"gamma": 2}
    assert TrainingSettings.from_defaults(**changed) == TrainingSettings.of(config)


def test_first_step_is_sgd_with_pytorchs_weight_decay(tmp_path):
    config = Config(**SETTINGS | dict(encoder="small", batch_size=64))
    network = make_network(config)
    dataset = make_dataset()
    encoder, classifier = network.get_layer("encoder"), network.get_layer("classifier")
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    weights = encoder.trainable_weights + classifier.trainable_weights
    before = [w.numpy() for w in weights]
    with tf.GradientTape() as tape:
        probs = classifier(encoder(dataset.train.images, training=True))
        loss = tf.reduce_mean(-tf.math.log(tf.gather(probs, dataset.train.labels, batch_dims=1)))
    gradients = [g.numpy() for g in tape.gradient(loss, weights)]
    model = PhaseModel(PHASES[0], network)
    rows = one_phase.fit_phase(
        model,
        dataset.train.images,
        dataset.train.labels,
        settings=TrainingSettings.of(config),
        epochs=1,
        learning_rate=0.5,
        checkpoint=tmp_path / "one.npz",
        basis="",
    )
    assert rows[0]["loss"] == pytest.approx(float(loss), rel=1e-5)
    for weight, old, gradient in zip(weights, before, gradients, strict=True):
        expected = old - 0.5 * (gradient + config.weight_decay * old)
        np.testing.assert_allclose(weight.numpy(), expected, atol=2e-6, err_msg=weight.path)


def test_no_gradient_of_the_dfl_flows_through_the_target():
    config = Config(**SETTINGS | dict(weight_decay=0.0))
    network = make_network(config)
    dataset = make_dataset()
    density = LossSettings(1.0, 0.05, "window", "batch", 1000)
    model = PhaseModel(PHASES[2], network, density)
    with tf.GradientTape() as tape:
        outputs = model(tf.constant(dataset.train.images), training=True)
        dfl = tf.reduce_sum(model.terms(tf.constant(dataset.train.labels), outputs)["dfl"])
    parts = [network.get_layer(name) for name in ("classifier", "estimator", "encoder")]
    to_classifier, to_estimator, to_encoder = tape.gradient(
        dfl, [part.trainable_weights for part in parts]
    )
    assert to_classifier == [None, None]
    assert all(gradient is not None for gradient in to_estimator + to_encoder)


@pytest.mark.parametrize("form", ["window", "bins"])
def test_batch_scope_takes_u_from_the_batch(form):
    network = make_network(Config(**SETTINGS))
    bins = 1000 if form == "window" else 10
    density = LossSettings(2.0, 0.05, form, "batch", bins)
    model = PhaseModel(PHASES[1], network, density)
    u_true = np.float32([0.02, 0.03, 0.04, 0.91])
    u_pred = tf.constant([0.5, 0.5, 0.5, 0.5])
    found = model.terms(tf.constant(u_true), {"uncertainty": u_pred})["dfl"]
    share = np.array([0.75, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(found, (1 - share) ** 2 * (0.5 - u_true) ** 2, rtol=1e-5)


def test_ohem_trains_on_the_hardest_of_the_batch(tmp_path):
    """One batch of 10, a share of 0.25: the three largest losses, as if there were no others."""
    rng = np.random.default_rng(1)
    features, u_true = rng.normal(size=(10, 8)).astype(np.float32), rng.random(10, np.float32)
    network = make_network(Config(**SETTINGS))
    estimator = network.get_layer("estimator")
    losses_before = (estimator(features)[:, 0] - u_true).numpy() ** 2
    hardest = np.argsort(losses_before)[-3:]
    start = [w.numpy() for w in estimator.trainable_weights]

    def train(rows, share):
        checkpoints.restore(estimator, start)
        settings = LossSettings(0.0, 0.05, "window", "dataset", 1000, share)
        model = PhaseModel(PHASES[1], network, settings)
        model.set_targets(u_true)
        (row,) = one_phase.fit_phase(
            model,
            features[rows],
            u_true[rows],
            settings=TrainingSettings.of(Config(**SETTINGS)),
            epochs=1,
            learning_rate=0.1,
            checkpoint=tmp_path / f"{share}.npz",
            basis="",
        )
        return row, [w.numpy() for w in estimator.trainable_weights]

    row, weights = train(slice(None), 0.25)
    expected_row, expected = train(hardest, 1.0)
    assert row["loss"] == pytest.approx(losses_before[hardest].mean(), rel=1e-5)
    assert row["loss"] == pytest.approx(expected_row["loss"], rel=1e-5)
    assert row["effective_sample_size"] == pytest.approx(3, rel=1e-5)
    for found, wanted, before in zip(weights, expected, start, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert (found != before).any()


def classifier_phase(**arguments):
    """The model of phase 1 without dropout, and a batch for it."""
    network = make_network(Config(**SETTINGS))
    for layer in network._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    model = PhaseModel(PHASES[0], network, averaging="averaging_rate" in arguments)
    model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=False, **arguments)
    train = make_dataset().train
    return model, (train.images, train.labels)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages_are_those_of_the_weights_after_each_step(kind):
    config = Config(**SETTINGS | dict(weight_averaging=kind, ema_momentum=0.3))
    model, batch = classifier_phase(
        averaging_rate=one_phase._averaging_rate(TrainingSettings.of(config), 8)
    )
    weights = []
    for _ in range(8):
        model.train_on_batch(*batch)
        weights.append([w.numpy() for w in model.averaged])
    if kind == "swa":
        expected = [np.mean(last, axis=0) for last in zip(*weights[-2:], strict=True)]
    else:
        expected = [np.zeros_like(w) for w in weights[0]]
        for step, new in enumerate(weights, 1):
            keep = min(0.3, step / (10 + step))
            expected = [keep * old + (1 - keep) * w for old, w in zip(expected, new, strict=True)]
    for found, wanted in zip(model.averages, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    with model.with_averages():
        for found, wanted in zip(model.averaged, expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    assert all(same([w.numpy() for w in model.averaged], weights[-1]))


def test_sam_goes_down_the_gradient_of_a_worse_place():
    model, (x, y) = classifier_phase(sam_rho=0.5)

    def gradient():
        with tf.GradientTape() as tape:
            terms = model.terms(tf.constant(y), model(x, training=True))
            loss = tf.reduce_mean(terms["cross_entropy"])
        return loss, [g.numpy() for g in tape.gradient(loss, model.trainable_weights)]

    start = [w.numpy() for w in model.trainable_weights]
    low, uphill = gradient()
    length = np.sqrt(sum(np.sum(g**2) for g in uphill))
    for w, value, g in zip(model.trainable_weights, start, uphill, strict=True):
        w.assign(value + 0.5 * g / length)
    high, there = gradient()
    for w, value in zip(model.trainable_weights, start, strict=True):
        w.assign(value)
    logs = model.train_on_batch(x, y, return_dict=True)
    assert high > low and logs["loss"] == pytest.approx(float(low), rel=1e-5)
    for w, value, g in zip(model.trainable_weights, start, there, strict=True):
        np.testing.assert_allclose(w.numpy(), value - 0.1 * g, atol=1e-6)


def test_averages_are_what_a_phase_leaves_and_is_measured_by(tmp_path):
    settings = dict(weight_averaging="swa", sam_rho=0.05, estimator_epochs=1, finetune_epochs=2)
    config = Config(**SETTINGS | settings)
    measured = {}

    def describe(stage, row, answers):
        measured[stage, row["epoch"]] = answers.probs
        return row

    kept = keep_at([("btcp_finetuned", 2)], tmp_path / "whole", tmp_path / "killed")
    only = dict(estimators={"btcp": Recipe()})
    (tmp_path / "whole").mkdir()
    network, _, stages = run(
        tmp_path / "whole", config, describe=lambda *a: kept(*a) and describe(*a), **only
    )
    validation = make_dataset().validation.images
    for stage, epoch in (("classifier", 3), ("btcp_finetuned", 2)):
        checkpoints.restore(network, stages[stage].values)
        np.testing.assert_allclose(network(validation)["probs"], measured[stage, epoch], atol=1e-6)
    _, _, again = run(tmp_path / "killed" / "btcp_finetuned", config, **only)
    assert all(same(stages["btcp_finetuned"].values, again["btcp_finetuned"].values))


def test_sampling_dropout_leaves_the_network_as_it_is(trained):
    _, _, network, _, _ = trained
    images = make_dataset().test.images
    before = checkpoints.snapshot(network)

    def sample(passes=3, seed=5, batch_size=64):
        return inference.sample_dropout(
            network, images, passes=passes, seed=seed, batch_size=batch_size
        )

    first = sample()
    assert all(same(before, checkpoints.snapshot(network)))
    np.testing.assert_array_equal(sample(), first)
    assert (sample(seed=6) != first).any()
    np.testing.assert_allclose(first.sum(axis=1), 1, atol=1e-5)
    # The mean of many passes is near the answer without dropout, which halves what varies.
    fixed = network(images)["probs"].numpy()
    assert np.abs(sample(passes=400) - fixed).mean() < np.abs(sample(passes=1) - fixed).mean()


@pytest.mark.parametrize(("stage", "epoch"), KILLED)
def test_resumes_bit_for_bit(trained, stage, epoch):
    whole, config, _, _, expected = trained
    killed = whole.parent / "killed" / stage
    if epoch > 1:
        with np.load(killed / f"{stage}.npz") as left:
            assert len(json.loads(str(left["about"]))["rows"]) == epoch - 1
    else:
        assert not (killed / f"{stage}.npz").exists()
    _, _, stages = run(killed, config)
    for name, whole in expected.items():
        assert all(same(whole.values, stages[name].values)), name
        for row, again in zip(whole.rows, stages[name].rows, strict=True):
            assert row | {"seconds": 0} == again | {"seconds": 0}
        assert whole.facts == stages[name].facts


def test_refuses_a_damaged_checkpoint_and_leaves_it(trained, tmp_path):
    _, config, *_ = trained
    checkpoint = tmp_path / "classifier.npz"
    checkpoint.write_bytes((trained[0] / "classifier.npz").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"classifier\.npz, which cannot be used"):
        run(tmp_path, config)
    assert checkpoint.stat().st_size == 1000


def test_refuses_the_checkpoint_of_another_network(trained, tmp_path):
    _, config, *_ = trained
    (tmp_path / "classifier.npz").write_bytes((trained[0] / "classifier.npz").read_bytes())
    with pytest.raises(ValueError, match="belongs to another network"):
        run(tmp_path, Config(**SETTINGS | dict(feature_dim=9)))


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY"])
def test_refuses_whatever_is_no_checkpoint(trained, tmp_path, content):
    (tmp_path / "classifier.npz").write_bytes(content)
    with pytest.raises(ValueError, match="expected a checkpoint of the phase classifier"):
        run(tmp_path, trained[1])


def test_refuses_weights_that_are_not_finite(trained, tmp_path):
    folder, config, *_ = trained
    with np.load(folder / "classifier.npz") as saved:
        arrays = dict(saved)
    arrays["variable0"][:] = np.nan
    np.savez(tmp_path / "classifier.npz", **arrays)
    with pytest.raises(ValueError, match="weights that are not finite"):
        run(tmp_path, config)


def test_refuses_an_estimator_of_another_classifier(trained, tmp_path):
    folder, config, *_ = trained
    (tmp_path / "tcp.npz").write_bytes((folder / "tcp.npz").read_bytes())
    with pytest.raises(ValueError, match=r"tcp\.npz: expected a checkpoint that started from"):
        run(tmp_path, Config(**SETTINGS | dict(classifier_epochs=1)))


def test_stops_at_a_loss_that_is_not_finite(tmp_path):
    config = Config(**SETTINGS | dict(encoder="small", learning_rate=1e30))
    with pytest.raises(FloatingPointError, match="expected a finite loss, received nan in epoch 1"):
        run(tmp_path, config)
    assert not (tmp_path / "classifier.npz").exists()


def mirrored(devices):
    return distribution.make_strategy("mirrored", devices)


@pytest.mark.parametrize(("devices", "scope"), [(2, "batch"), (4, "dataset")])
def test_mirrored_equals_one_device(tmp_path, devices, scope):
    """All phases, BatchNorm included; 45 images leave a last batch of 1 for all replicas."""
    settings = SETTINGS | dict(batch_size=4, scope=scope, learning_rate=1e-3)
    settings |= dict(classifier_epochs=1, estimator_epochs=1, finetune_epochs=1)
    if devices == 2:
        settings |= dict(sam_rho=0.05, weight_averaging="ema")
    config = Config(**settings)
    estimators = {"btcp": Recipe()}
    if devices == 2:
        # With OHEM, whose choice of examples is the whole batch's.
        estimators["tcp"] = Recipe(0.0, 0.3)
    same = dict(dropout=False, estimators=estimators)
    _, _, one = run(tmp_path / "one", config, **same)
    _, _, many = run(tmp_path / "many", config, strategy=mirrored(devices), **same)
    for name, stage in one.items():
        for first, second in zip(stage.values, many[name].values, strict=True):
            np.testing.assert_allclose(second, first, atol=1e-5, err_msg=name)
        for term, value in stage.rows[0].items():
            if term not in ("phase", "seconds"):
                assert many[name].rows[0][term] == pytest.approx(value, rel=1e-4), (name, term)


def test_mirrored_resumes(tmp_path):
    config = Config(**SETTINGS | dict(finetune_epochs=2))
    same_run = dict(strategy=mirrored(2), estimators={"btcp": Recipe()})
    (tmp_path / "whole").mkdir()
    describe = keep_at([("btcp_finetuned", 2)], tmp_path / "whole", tmp_path / "killed")
    _, _, whole = run(tmp_path / "whole", config, describe=describe, **same_run)
    _, _, stages = run(tmp_path / "killed" / "btcp_finetuned", config, **same_run)
    assert all(same(whole["btcp_finetuned"].values, stages["btcp_finetuned"].values))


def test_mirrored_refuses_a_batch_that_it_cannot_split(tmp_path):
    config = Config(**SETTINGS | dict(batch_size=15))
    with pytest.raises(ValueError, match="expected a multiple of the 2 replicas, received 15"):
        run(tmp_path, config, strategy=mirrored(2))


def test_strategy_needs_its_devices_from_the_start():
    with pytest.raises(RuntimeError, match="expected 5 logical CPU devices, .* already with 4"):
        distribution.make_strategy("mirrored", 5)


def test_inference_answers_for_every_row():
    network = make_network(Config(**SETTINGS))
    images = make_dataset().train.images
    whole = Inference(network, 64)(images)
    parts = Inference(network, 7)(images)
    assert whole["probs"].shape == (45, CLASSES)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], atol=1e-6)


def test_schedule_rises_and_falls_to_zero():
    config = Config(**SETTINGS | dict(schedule="one_cycle"))
    rate = one_phase._optimizer(TrainingSettings.of(config), 0.5, 100)._learning_rate
    rates = [float(rate(step)) for step in range(101)]
    assert rates[0] == pytest.approx(0.5 / 25)
    assert np.argmax(rates) == 20 and max(rates) == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0, abs=1e-7)


def test_checkpoint_holds_the_rows_as_json(trained):
    folder, *_, stages = trained
    with np.load(folder / "btcp.npz") as saved:
        assert json.loads(str(saved["about"]))["rows"] == stages["btcp"].rows


@pytest.mark.parametrize(
    ("u", "words"),
    [
        (np.full(200, 0.3) + np.linspace(0, 5e-4, 200), "collapsed to a constant"),
        (np.repeat([0.0, 1.0], 100), "saturated: 100.0%"),
        (np.r_[np.zeros(199), 0.5], "saturated: 99.5%"),
        (np.linspace(0, 1, 200), ""),
        (np.r_[np.full(195, 1e-5), np.linspace(0.1, 0.9, 5)], ""),
    ],
)
def test_collapse_is_said_in_words(u, words):
    found = diagnosis.collapse(u.astype(np.float32), 10.0)
    assert (words in found) if words else found == ""


def test_a_classifier_that_learned_nothing_is_said_in_words():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 150)
    noise = special.softmax(rng.normal(size=(150, 3)), axis=1).astype(np.float32)
    assert "did not learn: right on" in diagnosis.unlearned(noise, labels)
    one = np.tile(np.float32([0.5, 0.3, 0.2]), (150, 1))
    assert "answers class 0 to all 150" in diagnosis.unlearned(one, labels)
    # It has learned, saturated as it is, and is wrong on every fifth.
    sure = np.eye(3, dtype=np.float32)[np.where(np.arange(150) % 5, labels, (labels + 1) % 3)]
    assert diagnosis.unlearned(sure, labels) == ""
    # Too few to tell.
    assert diagnosis.unlearned(noise[:4], labels[:4]) == ""


def test_an_estimator_without_weights_is_said_in_words():
    """All targets in one window: density 1, and weights that underflow to 0."""
    network = make_network(Config(**SETTINGS))
    density = LossSettings(10.0, 0.05, "window", "dataset", 1000)
    model = PhaseModel(PHASES[1], network, density)
    u_true = np.full(8, 0.9, np.float32)
    model.set_targets(u_true)
    outputs = {"uncertainty": tf.constant(np.linspace(0, 1, 8, dtype=np.float32))}
    weights = model.terms(tf.constant(u_true), outputs)["weight"].numpy()
    size = losses.effective_sample_size(weights)
    assert "every weight of the DFL is 0" in diagnosis.collapse(np.linspace(0, 1, 8), size)


def test_targets_are_counted_over_the_whole_training_set():
    network = make_network(Config(**SETTINGS))
    density = LossSettings(1.0, 0.05, "window", "dataset", 1000)
    model = PhaseModel(PHASES[1], network, density)
    u = np.random.default_rng(0).random(500).astype(np.float32)
    model.set_targets(u)
    np.testing.assert_array_equal(model.counts.numpy(), losses.histogram(u, 1000))
    assert model.counts.numpy().sum() == 500


def test_progress_bar_ends_at_the_last_step(capfd, tmp_path):
    # 3 steps in calls of 2: the last call has only one step left to run.
    run(tmp_path, Config(**SETTINGS | dict(verbose=1, steps_per_execution=2)))
    counts = re.findall(r"(\d+)/(\d+)", capfd.readouterr().out)
    assert counts and all(int(done) <= int(total) for done, total in counts)


EPOCH_AT_ONCE = {
    "sgd": (dict(), Recipe()),
    "the hardest": (dict(), Recipe(0.0, hardest=0.3)),
    "adam, one cycle": (dict(optimizer="adam", schedule="one_cycle"), Recipe()),
    "density of the batch": (dict(scope="batch"), Recipe(1.0)),
}


@pytest.mark.parametrize("kind", EPOCH_AT_ONCE)
def test_an_estimator_epoch_in_one_loop_is_that_of_its_steps(kind, tmp_path, monkeypatch):
    changes, recipe = EPOCH_AT_ONCE[kind]
    # 45 rows in batches of 16: the last step has 13.
    config = Config(**SETTINGS | changes | dict(classifier_epochs=1, finetune_epochs=0))

    def trained_in(folder, *, fused):
        monkeypatch.setattr(one_phase, "_WORTH_COMPILING", 0 if fused else 10**9)
        return run(tmp_path / folder, config, estimators={"btcp": recipe})[2]["btcp"]

    with monkeypatch.context() as patch:
        # Rows in files are handed over batch by batch.
        patch.setattr(one_phase.batching, "in_memory", lambda array: False)
        steps = trained_in("steps", fused=False)
    loops = {fused: trained_in(f"loop {fused}", fused=fused) for fused in (False, True)}
    for fused, loop in loops.items():
        for value, wanted in zip(loop.values, steps.values, strict=True):
            np.testing.assert_allclose(value, wanted, atol=1e-5, err_msg=f"fused {fused}")
        for row, wanted in zip(loop.rows, steps.rows, strict=True):
            for name in ("loss", "dfl", "effective_sample_size", "learning_rate"):
                assert row[name] == pytest.approx(wanted[name], rel=1e-4), (fused, name)


def test_a_loop_that_xla_compiled_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(one_phase, "_WORTH_COMPILING", 0)
    config = Config(**SETTINGS | dict(classifier_epochs=1, finetune_epochs=0))
    alone = dict(estimators={"btcp": Recipe()})
    whole, again = (run(tmp_path / name, config, **alone)[2]["btcp"] for name in ("a", "b"))
    killed = tmp_path / "killed"
    run(killed, dataclasses.replace(config, estimator_epochs=2), **alone)
    resumed = run(killed, config, **alone)[2]["btcp"]
    assert len(resumed.rows) == 3
    for other in (again, resumed):
        assert all(same(whole.values, other.values))
        assert [row["loss"] for row in whole.rows] == [row["loss"] for row in other.rows]


def test_xla_takes_part_where_it_can_and_is_worth_its_time(tmp_path, monkeypatch):
    compiled = []
    compile_ = PhaseModel.compile
    monkeypatch.setattr(
        PhaseModel,
        "compile",
        lambda self, **arguments: (
            compiled.append((self.name, arguments["loop"])),
            compile_(self, **arguments),
        ),
    )
    config = Config(**SETTINGS | dict(classifier_epochs=1, estimator_epochs=2, finetune_epochs=0))
    # Two epochs of three steps.
    for least, scope, wanted in ((6, "dataset", True), (7, "dataset", False), (6, "batch", False)):
        monkeypatch.setattr(one_phase, "_WORTH_COMPILING", least)
        compiled.clear()
        changed = dataclasses.replace(config, scope=scope, gamma="1.0")
        run(tmp_path / f"{least} {scope}", changed, estimators={"btcp": Recipe()})
        loops = dict(compiled)
        assert loops["classifier"] is None and loops["estimator"].fused is wanted
