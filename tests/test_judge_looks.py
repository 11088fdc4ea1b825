"""`Judge.fit` with looks: what they gain, and that every way to compute u gives the same."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import btcp_tf
from btcp_tf import set_threshold
from btcp_tf.attached import held_out, look_again, offer
from btcp_tf.attached import model as judge_model
from btcp_tf.attached.classifier import AttachedClassifier
from btcp_tf.decisions.monitoring import monitor
from btcp_tf.decisions.scores import load_baseline, load_scores
from btcp_tf.judge import Judge
from btcp_tf.methods import LOOKS, other_eyes, residual_fit
from btcp_tf.methods.look_choice import Design
from btcp_tf.methods.looks import look_odds
from btcp_tf.methods.residual_choice import Weights
from btcp_tf.networks import GROUPS, fixed_dropout
from btcp_tf.networks.looks import AUTO
from btcp_tf.predict import score

pytestmark = pytest.mark.usefixtures("quick_checks")

SIDE, CLASSES = 10, 3


def images(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of classes that look the same in a mirror, and labels."""
    prototypes = np.random.default_rng(0).normal(size=(CLASSES, SIDE, SIDE))
    prototypes += prototypes[:, :, ::-1]
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    x = prototypes[y] + 4.0 * random.normal(size=(n, SIDE, SIDE))
    return x[..., None].astype(np.float32), y


@pytest.fixture(scope="module")
def classifier() -> keras.Model:
    """One whose weights are not the same in a mirror: its answer to the mirrored image is a second
    opinion."""
    random = np.random.default_rng(1)
    inputs = keras.Input((SIDE, SIDE, 1))
    x = keras.layers.Flatten()(inputs)
    x = keras.layers.Dropout(0.2)(x)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(x), name="net")
    prototypes = np.random.default_rng(0).normal(size=(CLASSES, SIDE, SIDE))
    prototypes = (prototypes + prototypes[:, :, ::-1]).reshape(CLASSES, -1).T
    model.set_weights(
        [0.05 * (prototypes + 1.5 * random.normal(size=prototypes.shape)), np.zeros(3)]
    )
    return model


@pytest.fixture(scope="module")
def gated(classifier) -> Judge:
    # A pass counts as a ten-thousandth of a million multiply-adds or so: this is a third of one.
    judge = btcp_tf.attach(classifier)
    judge.fit(*images(900, 2), looks=["mirror", "shift_up"], cost=1.00011, verbose=0)
    assert judge.fitted["looks"] == ["mirror"] and judge.fitted["share"] == pytest.approx(
        0.11 / 0.3, abs=1e-3
    )
    return judge


def logit_of_u(judge: Judge, x: np.ndarray) -> np.ndarray:
    return special.logit(judge.predict(x)["uncertainty"])


def test_looks_find_errors_that_mcp_does_not(gated):
    mcp, residual = gated.evaluate(*images(1500, 3), draws=10)
    assert residual["aurc"] < 0.9 * mcp["aurc"]
    assert residual["aupr_error"] > mcp["aupr_error"] + 0.05


def test_the_second_opinion_is_the_mean_over_the_classifier_and_its_looks(gated, classifier):
    x, y = images(1500, 14)
    answers = gated.predict(x)
    gate = gated.model.get_layer("ramp").gate
    own, mirrored = (np.asarray(classifier(batch)) for batch in (x, x[:, :, ::-1]))
    z = np.log(np.maximum(1 / own.max(axis=1) - 1, 1e-9))
    weight = [min(max(one - gate, 0.0), 1.0) for one in z]
    mean = np.empty_like(own)
    for row, share in enumerate(weight):
        mean[row] = (own[row] + share * mirrored[row]) / (1 + share)
    assert answers["second_probability"] == pytest.approx(mean.max(axis=1), abs=1e-4)
    assert (answers["second_opinion"] == mean.argmax(axis=1)).mean() > 0.998
    looked_at = np.array(weight) > 0
    assert (answers["second_opinion"] == answers["predicted"])[~looked_at].all()
    right = (answers[name][looked_at] == y[looked_at] for name in ("second_opinion", "predicted"))
    second, first = (part.mean() for part in right)
    assert second > first


def test_an_evaluation_says_how_often_the_second_opinion_is_right_where_it_was_asked(
    gated, classifier
):
    x, y = images(600, 14)
    answers = gated.predict(x)
    own = np.asarray(classifier(x)).max(axis=1)
    z = np.log(np.maximum(1 / own - 1, 1e-9))
    looked_at = z > gated.model.get_layer("ramp").gate
    mcp, residual = gated.evaluate(x, y, draws=10)
    assert residual["looked_at"] == looked_at.sum() > 100
    for key, name in (
        ("looked_at_accuracy", "predicted"),
        ("looked_at_second_accuracy", "second_opinion"),
    ):
        assert residual[key] == pytest.approx((answers[name] == y)[looked_at].mean())
    assert not {"looked_at", "looked_at_accuracy"} & mcp.keys()
    # Rows that nobody looked at again.
    sure = np.flatnonzero(~looked_at)[:50]
    _, residual = gated.evaluate(x[sure], y[sure], draws=10)
    assert residual["looked_at"] == 0 and np.isnan(residual["looked_at_second_accuracy"])
    plain = btcp_tf.attach(classifier).fit(*images(200, 17), looks=(), verbose=0)
    assert "looked_at" not in plain.evaluate(x, y, draws=10)[1]


def test_the_answer_to_a_row_does_not_depend_on_its_batch(gated):
    x, _ = images(40, 4)
    together = logit_of_u(gated, x)
    alone = np.concatenate([logit_of_u(gated, x[row : row + 1]) for row in range(len(x))])
    assert alone == pytest.approx(together, abs=1e-3)
    z = gated.model.get_layer("mcp_logit")
    gate = gated.model.get_layer("ramp").gate
    logits = keras.Model(gated.model.input, z.output)(x).numpy()[:, 0]
    # Both a batch of which no row is looked at again, and one of which all are.
    for rows in (logits <= gate, logits > gate):
        assert rows.any()
        assert logit_of_u(gated, x[rows]) == pytest.approx(together[rows], abs=1e-3)


def test_a_batch_in_which_no_row_is_looked_at_again_needs_no_second_pass(tmp_path):
    """With convolutions, which TensorFlow cannot run on no rows, and all evidence of images."""
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    net.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    net.fit(*images(600, 12), epochs=6, verbose=0)
    judge = btcp_tf.attach(net)
    x, y = images(300, 13)
    classifier = AttachedClassifier.of(judge.model)
    wanted = ["mirror", "dropout", net]
    offered = offer.make(classifier, wanted, 2.0, (x, y), None, seed=0)
    own = held_out.collect(
        classifier, (x, y), (x[:90] + 1, y[:90]), (), looks=[*offered.looks.values()]
    )
    design = Design(("answer",), ("image_head", "image_neighbors", *offered.looks), -1.0, 0.5)
    seen = own.held_out.seen
    layers = residual_fit._evidence_layers(own.held_out, residual_fit.EVIDENCE, None, 8, 0)
    used = {"answer": layers["answer"], "looks": offered.behind(design, layers)}
    z, evidence = residual_fit._compute(used, seen, 100)
    size = sum(columns.shape[1] for columns in evidence.values())
    weights = Weights(1.0, 0.0, np.linspace(-0.1, 0.1, size))
    judge.model = judge_model.join(
        classifier.encoder,
        classifier.ends,
        judge_model.residual_formula(used, weights),
        judge_model.about(judge.model),
    )
    judge = Judge(judge.model)
    assert (z > -1.0).any() and (z < -1.0).any()
    # What was fitted on, what the model computes, and what a file of it computes.
    u = residual_fit.score_residual(used, weights, seen)
    assert judge.predict(x)["uncertainty"] == pytest.approx(u, abs=1e-5)
    judge.save(tmp_path / "judge.keras")
    for one in (judge, btcp_tf.load(tmp_path / "judge.keras")):
        for rows in (z[:, 0] < -1.0, z[:, 0] > -1.0):
            assert one.predict(x[rows])["uncertainty"] == pytest.approx(u[rows], abs=1e-5)


def test_u_has_no_jump_at_the_gate(gated):
    gate = gated.model.get_layer("ramp").gate
    model = keras.Model(
        gated.model.input,
        [gated.model.get_layer("mcp_logit").output, gated.model.output["uncertainty"]],
    )
    x, _ = images(300, 5)
    z = model(x)[0].numpy()[:, 0]
    start, end = x[z < gate][:20], x[z > gate][:20]
    for _ in range(40):
        middle = (start + end) / 2
        below = (model(middle)[0].numpy()[:, 0] < gate)[:, None, None, None]
        start, end = np.where(below, middle, start), np.where(below, end, middle)
    jump = special.logit(model(start)[1].numpy()) - special.logit(model(end)[1].numpy())
    assert np.abs(jump).max() < 1e-3


def test_files_and_saved_models_answer_as_the_judge(gated, tmp_path):
    x, y = images(400, 6)
    u = logit_of_u(gated, x)
    gated.save(tmp_path / "judge.keras")
    loaded = btcp_tf.load(tmp_path / "judge.keras")
    assert logit_of_u(loaded, x) == pytest.approx(u, abs=1e-5)
    assert loaded.fitted["looks"] == ["mirror"]
    loaded.select_threshold(x, y, rule="target_coverage", coverage=0.6)
    path = loaded.export(tmp_path, "net", x[:8], verbose=0)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    for rows in (slice(None), [int(u.argmin())]):
        answers = serve(images=tf.constant(x[rows]))
        assert special.logit(answers["uncertainty"].numpy()) == pytest.approx(u[rows], abs=1e-3)
        wanted = loaded.predict(x[rows])
        for name in ("accept", "second_opinion"):
            assert answers[name].numpy().tolist() == wanted[name].tolist()
        second = answers["second_probability"].numpy()
        assert second == pytest.approx(wanted["second_probability"], abs=1e-5)


def test_monitoring_knows_how_many_inputs_an_exported_model_looks_at_again(gated, tmp_path):
    x, y = images(400, 6)
    gated.save(tmp_path / "judge.keras")
    judge = btcp_tf.load(tmp_path / "judge.keras")
    judge.select_threshold(x, y, rule="target_coverage", coverage=0.6)
    path = judge.export(tmp_path, "net", x[:8], verbose=0)
    now, labels = images(500, 7)
    np.savez(tmp_path / "x.npz", x_test=now / 2, y_test=labels)  # Less of the class to be seen.
    file = tmp_path / "scores.csv"
    score(path, tmp_path / "x.npz", file, labels=True, batch_size=100, verbose=0)
    scores = load_scores(file, with_mcp=True)
    looked_at = monitor(load_baseline(path), scores).looked_at
    for rates, inputs in ((looked_at.rates.baseline, x), (looked_at.rates.production, now / 2)):
        answers = judge.evaluate(inputs, y if inputs is x else labels, draws=10)[1]
        assert rates == answers["looked_at"] / len(inputs)
    assert looked_at.rates.production > looked_at.rates.baseline
    assert looked_at.planned_cost == judge.fitted["cost"] < looked_at.production_cost
    mcp = judge.predictions(now / 2, labels).uncertainty["mcp"]
    assert special.expit(scores.mcp_logit) == pytest.approx(mcp, rel=1e-4)
    # A threshold that was chosen on other scores is watched beside these.
    words = [str(path), "--threshold=0.3", f"--scores={file}", "--verbose=0"]
    assert set_threshold.main(words) == 0
    again = monitor(load_baseline(path.parent), scores).looked_at
    assert again.rates.baseline == again.rates.production == looked_at.rates.production


def test_without_looks_nothing_is_counted(classifier):
    x, y = images(400, 7)
    one = btcp_tf.attach(classifier).fit(x, y, looks=(), verbose=0)
    other = btcp_tf.attach(classifier).fit(x, y, looks=[], cost=5.0, verbose=0)
    assert logit_of_u(one, x).tolist() == logit_of_u(other, x).tolist()
    assert one.fitted["looks"] == [] and one.fitted["cost"] is None


def test_looks_are_tried_by_default(classifier):
    x, y = images(900, 2)
    judge = btcp_tf.attach(classifier).fit(x, y, verbose=0)
    named = btcp_tf.attach(classifier).fit(x, y, looks="auto", cost=1.3, verbose=0)
    assert judge.fitted == named.fitted and judge.fitted["looks"]
    assert {one["name"] for one in judge.fitted["tried"]} >= {"mirror", *GROUPS, "dropouts"}
    mcp, residual = judge.evaluate(*images(1500, 3), draws=10)
    assert residual["aurc"] < 0.9 * mcp["aurc"]


@pytest.mark.parametrize("budget", [1.00011, 1.3])
def test_looks_are_computed_only_where_they_may_be_read(classifier, budget):
    """What is fitted is what odds at all inputs would give."""
    parts, (x, y), seed = AttachedClassifier.take_apart(classifier), images(700, 2), 0
    offered = offer.make(parts, ["mirror", "shifts"], budget, (x, y), None, seed)
    plain = held_out.collect(parts, (x, y), None, ())
    full = held_out.collect(parts, (x, y), None, (), looks=[*offered.looks.values()])
    same, (some,) = look_again.at_held_out([plain], [plain.held_out], offered, seed)
    every = full.held_out.seen.odds
    computed = some.seen.odds != 0
    assert some.seen.odds[computed] == pytest.approx(every[computed], abs=1e-4)
    assert computed.mean() == (1.0 if budget == 1.3 else pytest.approx(0.2, abs=0.05))
    fits = [
        residual_fit.fit_residual(one, offer=same, seed=seed).fit for one in (some, full.held_out)
    ]
    for field in ("looks", "share", "gate", "cost"):
        assert getattr(fits[0], field) == getattr(fits[1], field)
    assert fits[0].difference["aurc"] == pytest.approx(fits[1].difference["aurc"], abs=1e-6)


def test_a_dataset_is_looked_at_as_an_array_in_whatever_order_it_comes(classifier):
    x, y = images(300, 2)
    x[7], y[7] = x[3], y[3]
    parts = AttachedClassifier.take_apart(classifier)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(300).batch(64)
    offered = offer.make(parts, "auto", 1.3, (x, y), None, 0)
    learned = held_out.collect(parts, (batches, None), None, ())
    _, (answers,) = look_again.at_held_out([learned], [learned.held_out], offered, 0)
    # By the sum of its features, which only the two that are one share.
    rows = np.argsort(answers.seen.features.sum(axis=1), kind="stable")
    array = held_out.collect(parts, (x, y), None, (), looks=[*offered.looks.values()]).held_out
    wanted = array.seen.odds[np.argsort(array.seen.features.sum(axis=1), kind="stable")]
    assert answers.seen.odds[rows] == pytest.approx(wanted, abs=1e-4)


@keras.saving.register_keras_serializable("test_judge_looks")
class Upside(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.flip(inputs, axis=1)


class Crop(keras.layers.Layer):
    def call(self, inputs):
        return inputs[:, 1:]


class Blind(keras.layers.Layer):
    def call(self, inputs):
        return inputs / 0.0


class Wavering(keras.layers.Layer):
    def call(self, inputs):
        return inputs + keras.random.normal(keras.ops.shape(inputs))


def test_where_the_estimator_is_mcp_looks_are_named_as_a_way_on(classifier, capsys):
    x, y = images(300, 19)
    judge = btcp_tf.attach(classifier).fit(x, y, evidence=["answer"], looks=())
    assert not judge.fitted["evidence"]
    printed = capsys.readouterr().out
    assert 'fit(..., looks="auto")' in printed and "training" not in printed
    assert "reference=" not in printed  # It was told to use the answer alone.
    btcp_tf.attach(classifier).fit(x, y, looks=())
    assert "fit(..., reference=(x_train, y_train))" in capsys.readouterr().out
    btcp_tf.attach(classifier).fit(x, y, looks=(), reference=images(100, 3))
    assert "reference=(x_train" not in capsys.readouterr().out
    # None can be paid for, which is said.
    btcp_tf.attach(classifier).fit(x, y, looks=["blur"], cost=1.0)
    printed = capsys.readouterr().out
    assert "may say more" not in printed and "cost=1 is too little for them: blur" in printed
    judge = btcp_tf.attach(classifier).fit(x, y, cost=1.0)
    printed = capsys.readouterr().out
    assert "may say more" not in printed and "too little for them: mirror" in printed
    assert [one["name"] for one in judge.fitted["tried"]] == ["answer"]


class Stuck(keras.layers.Layer):
    def call(self, inputs):
        raise RuntimeError("a wheel came off")


class OutsideOfGraphs(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.convert_to_tensor(np.asarray(inputs)[:, ::-1].copy())


def upside(x):
    return x[:, ::-1]


def in_place(x):
    x[:, 0] = 0
    return x


def crop(x):
    return x[:, 1:]


def double(x):
    return x.astype("float64")


def wavering(x):
    return x + np.random.default_rng().normal(size=x.shape).astype(x.dtype)


def by_its_batch(x):
    return x - x.mean(axis=0)


def stuck(x):
    raise RuntimeError("a wheel came off")


def blind(x):
    return x * np.float32("inf")


def offered(classifier, wanted, **settings):
    parts = AttachedClassifier.take_apart(classifier)
    settings = {"reference": None, "seed": 0, **settings}
    return offer.make(parts, wanted, 5.0, images(60, 15), **settings)


def test_names_of_looks_and_layers_do_not_meet(classifier):
    answer, again, mirror, named = (
        Upside(name="answer"),
        Upside(name="f"),
        Upside(name="mirror"),
        Upside(name="f"),
    )
    looks = offered(
        classifier, ["mirror", mirror, again, named, answer, classifier, "dropout"]
    ).looks
    assert [*looks] == ["mirror", "mirror_2", "f", "f_2", "answer_2", "net", "dropout"]
    parts = AttachedClassifier.take_apart(classifier)
    samples = parts.samples(*images(20, 16), "", None, [*looks.values()])
    assert samples.seen.odds.shape == (20, 7) and np.isfinite(samples.seen.odds).all()


def test_the_file_of_another_classifier_may_have_any_name(classifier, tmp_path):
    path = tmp_path / "a second (one).keras"
    classifier.save(path)
    assert [*offered(classifier, [path]).looks] == ["a_second_one_"]


def test_a_pipeline_of_layers_is_a_change_and_not_a_classifier(classifier):
    pipeline = keras.Sequential([keras.Input((SIDE, SIDE, 1)), Upside()], name="pipeline")
    look = offered(classifier, [pipeline]).looks["pipeline"]
    assert look.change is not None and look.answer is None


@pytest.mark.parametrize("name", ["shifts", "dropouts"])
def test_a_group_of_looks_is_one_look_that_answers_their_mean(classifier, name):
    parts = GROUPS.get(name, ())
    offer = offered(classifier, [*parts, name])
    look = offer.looks[name]
    assert len(look.parts) == 4 and look.cost == sum(part.cost for part in look.parts)
    x, _ = images(40, 18)
    own = classifier(x).numpy()
    samples = AttachedClassifier.take_apart(classifier).samples(
        x, own.argmax(axis=1), "", None, [*offer.looks.values()]
    )
    if parts:
        answers = [classifier(LOOKS[part].make((SIDE, SIDE, 1), "float32", 0)(x)) for part in parts]
    else:
        draws = [fixed_dropout(classifier, 1000 * number) for number in range(4)]
        answers = [draw(x) for draw in draws]
        assert np.ptp([answer.numpy() for answer in answers], axis=0).max() > 0.05
    mean = np.mean(np.array(answers, np.float64), axis=0)[np.arange(40), own.argmax(axis=1)]
    assert special.expit(samples.seen.odds[:, -1]) == pytest.approx(1 - mean, abs=1e-5)


def test_what_a_group_has_in_common_with_another_look_is_computed_once(classifier):
    offer = offered(classifier, ["shifts", "shift_up"])
    assert offer.looks["shifts"].parts[0].change is offer.looks["shift_up"].change
    inputs = keras.Input((SIDE, SIDE, 1))
    logits = offer.ends(offer.encoder(inputs))[0]
    odds = look_odds([*offer.looks.values()], inputs, logits, offer.encoder, offer.ends)
    names = [layer.name for layer in keras.Model(inputs, odds).layers]
    assert len([name for name in names if name.startswith("unless_empty")]) == 4


def test_a_function_on_arrays_looks_as_a_layer_does(classifier):
    x, y = images(60, 15)
    wanted = [Upside(name="layer"), upside, lambda x: x[:, ::-1], lambda x: x + 1, in_place, upside]
    made = offered(classifier, wanted).looks
    assert [*made] == ["layer", "upside", "lambda", "lambda_2", "in_place", "upside_2"]
    assert made["upside"].cost == made["layer"].cost
    parts = AttachedClassifier.take_apart(classifier)
    before = x.copy()
    odds = parts.samples(x, y, "", None, [*made.values()]).seen.odds
    np.testing.assert_array_equal(x, before)
    for same in (1, 2, 5):
        np.testing.assert_array_equal(odds[:, same], odds[:, 0])
    assert len(np.unique(odds[:, :5], axis=1).T) == 3


def test_a_function_looks_in_memory_alone(classifier, tmp_path):
    def flipped(x):
        return np.stack([row[:, ::-1] for row in x])  # Not of no rows.

    judge = btcp_tf.attach(classifier)
    judge.fit(*images(900, 2), looks=[flipped], cost=1.00011, verbose=0)
    mirrored = btcp_tf.attach(classifier)
    mirrored.fit(*images(900, 2), looks=["mirror"], cost=1.00011, verbose=0)
    assert judge.fitted["looks"] == ["flipped"] and judge.fitted["share"] == pytest.approx(
        0.11 / 0.3, abs=1e-3
    )
    x, y = images(300, 3)
    assert logit_of_u(judge, x) == pytest.approx(logit_of_u(mirrored, x), abs=1e-4)
    assert np.isfinite(judge.predict(x[:1])["uncertainty"]).all()
    judge.select_threshold(x, y, rule="target_coverage", coverage=0.5)
    expected = "looks: expected registered Keras layers or models.* received 'flipped', a function"
    for write in (
        lambda: judge.save(tmp_path / "judge.keras"),
        lambda: judge.save(tmp_path / "nowhere" / "judge"),
        lambda: judge.export(tmp_path, "net", x[:8], verbose=0),
    ):
        with pytest.raises(ValueError, match=expected):
            write()
    assert not any(tmp_path.iterdir())
    # Without it there is nothing to refuse.
    judge.fit(*images(300, 2), looks=(), verbose=0).save(tmp_path / "judge.keras")


def test_of_further_classifiers_each_drops_in_its_own_network(classifier):
    other = keras.models.clone_model(classifier)
    other.set_weights([-kernel for kernel in classifier.get_weights()])
    x, y = images(200, 17)
    parts = AttachedClassifier.take_apart(classifier)
    looks = [*offered(classifier, ["dropout"]).looks.values()]
    fold = parts.take_alike_apart(other, x)
    odds = fold.samples(x, y, "", None, looks).seen.odds
    assert (odds < 0).mean() > 0.7  # Mostly the fold's own answer.


def test_beside_folds_no_other_model_looks(classifier):
    assert not any(
        look.answer for look in offered(classifier, "auto", with_folds=True).looks.values()
    )
    with pytest.raises(ValueError, match="beside folds, received 'net'"):
        offered(classifier, [classifier], with_folds=True)


def test_where_no_look_suits_the_budget_still_counts():
    sequences = np.random.default_rng(0).normal(size=(300, 6, 3)).astype(np.float32)
    net = keras.Sequential(
        [keras.Input((6, 3)), keras.layers.LSTM(4), keras.layers.Dense(2, "softmax")]
    )
    labels = np.random.default_rng(1).integers(0, 2, 300)
    judge = btcp_tf.attach(net).fit(sequences, labels, looks="auto", verbose=0)
    assert judge.fitted["looks"] == [] and judge.fitted["cost"] == 1.0


def test_models_that_use_every_kind_of_look_are_exported(classifier, tmp_path):
    wanted = ["dropout", Upside(name="card"), classifier, "shift_up", "shifts", "dropouts"]
    looks = offered(classifier, wanted)
    used = {"looks": looks.behind(Design((), tuple(looks.looks), -1.0, 0.5), {})}
    weights = Weights(1.0, 0.0, np.linspace(-0.2, 0.2, 1 + 2 * 6 + 1))
    about = judge_model.about(btcp_tf.attach(classifier).model)
    formula = judge_model.residual_formula(used, weights)
    judge = Judge(judge_model.join(looks.encoder, looks.ends, formula, about))
    x, y = images(200, 18)
    judge.select_threshold(x, y, rule="target_coverage", coverage=0.5)
    path = judge.export(tmp_path, "net", x[:8], verbose=0)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    u = special.logit(serve(images=tf.constant(x))["uncertainty"].numpy())
    assert u == pytest.approx(logit_of_u(judge, x), abs=1e-3)
    judge.save(tmp_path / "judge.keras")
    loaded = btcp_tf.load(tmp_path / "judge.keras")
    assert logit_of_u(loaded, x) == pytest.approx(logit_of_u(judge, x), abs=1e-5)


def test_every_kind_of_look_can_be_offered_and_datasets_too(classifier, tmp_path):
    classifier.save(tmp_path / "second.keras")
    x, y = images(400, 8)
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(100)
    wanted = ["dropout", Upside(name="upside"), classifier, tmp_path / "second.keras"]
    judge = btcp_tf.attach(classifier).fit(rows, looks=wanted, cost=9.0, verbose=0)
    assert set(judge.fitted["looks"]) <= {"dropout", "upside", "net", "second"}
    assert np.isfinite(judge.predict(x)["uncertainty"]).all()


def test_auto_offers_what_helps_most_often(classifier, monkeypatch):
    offered = []
    fit = residual_fit.fit_residual

    def spy(*arguments, offer, **settings):
        offered.extend(offer.looks)
        return fit(*arguments, offer=None, **settings)

    monkeypatch.setattr(residual_fit, "fit_residual", spy)
    btcp_tf.attach(classifier).fit(*images(60, 9), looks="auto", verbose=0)
    assert offered == ["mirror", "zoom_in", *GROUPS, "dropouts"]


@pytest.mark.parametrize(
    "looks, cost, message",
    [
        (["miror"], 1.3, r"looks: expected .*mirror.*received 'miror'"),
        (["jitter"], 1.3, r"suit inputs of float32 \[10, 10, 1\].*mirror.*received 'jitter'"),
        (["trees"], 1.3, r"suit inputs|reference"),
        (
            ["small_nets"],
            1.3,
            r"looks: expected one of .*small_net, student.* received 'small_nets'",
        ),
        ("mirror", 1.3, r'looks: expected "auto" or a list .*received \'mirror\''),
        ([3], 1.3, r"looks: expected names, Keras layers, functions.*received int"),
        ([crop], 1.3, r"from 'crop', as its input, received float32 \[16, 9, 10, 1\]"),
        ([double], 1.3, r"from 'double', as its input, received float64 \[16, 10, 10, 1\]"),
        ([blind], 1.3, r"received 'blind'.*makes NaN or infinity"),
        ([wavering], 1.3, r"received 'wavering'.*in several ways"),
        ([by_its_batch], 1.3, r"received 'by_its_batch'.*by its batch"),
        ([stuck], 1.3, r"received 'stuck'.*a wheel came off"),
        ([np.array], 1.3, r"received 'array'.*leaves inputs as they are"),
        ([Crop], 1.3, r"keeps shape and type.*received .*\[16, 9, 10, 1\]"),
        ([Blind], 1.3, r"received 'blind.*makes NaN or infinity"),
        ([Wavering], 1.3, r"received 'wavering.*in several ways"),
        ([Stuck], 1.3, r"received 'stuck.*a wheel came off"),
        ([OutsideOfGraphs], 1.3, r"in a graph, received 'outside"),
        ([keras.layers.RandomFlip], 1.3, r"received 'random_flip.*leaves inputs as they are"),
        (["mirror"], 0.9, r"cost: expected a number >= 1.*received 0.9"),
        (["mirror"], float("nan"), r"cost: expected a number >= 1"),
        (["missing.keras"], 1.3, r"looks: .*missing.keras"),
    ],
)
def test_looks_that_cannot_be_used_are_refused(classifier, looks, cost, message):
    # Made here: some layers start TensorFlow, which test_training sets up first.
    if isinstance(looks, list):
        looks = [one() if isinstance(one, type) else one for one in looks]
    judge = btcp_tf.attach(classifier)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        judge.fit(*images(60, 10), looks=looks, cost=cost, verbose=0)
    assert judge.fitted is None


def test_a_class_in_the_place_of_a_layer_is_no_function(classifier):
    with pytest.raises(ValueError, match="looks: expected names, Keras layers.*received type"):
        offered(classifier, [Upside])


def test_another_classifier_has_to_be_one_of_the_same_classes(classifier):
    other = keras.Sequential(
        [keras.Input((SIDE, SIDE, 1)), keras.layers.Flatten(), keras.layers.Dense(5, "softmax")]
    )
    with pytest.raises(ValueError, match=r"looks: .*3 classes, received one of 5"):
        btcp_tf.attach(classifier).fit(*images(60, 11), looks=[other], verbose=0)


def test_another_classifier_has_to_take_the_same_numbers(classifier):
    pixels = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    with pytest.raises(ValueError, match="looks: expected a classifier of float32 .* of uint8"):
        offered(classifier, [pixels])


def test_trees_are_another_pair_of_eyes_for_rows_of_numbers():
    """Right and wrong hang on a corner of the table that a linear classifier cannot see."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 3)).astype(np.float32)
    y = ((x[:, 0] > 0) ^ ((x[:, 1] > 0.5) & (x[:, 2] > 0.5))).astype(int)
    linear = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softmax")])
    linear.set_weights([np.array([[-2.0, 2.0], [0.0, 0.0], [0.0, 0.0]]), np.zeros(2)])
    judge = btcp_tf.attach(linear)
    judge.fit(x[:800], y[:800], reference=(x[800:1800], y[800:1800]), looks=["trees"], verbose=0)
    assert judge.fitted["looks"] == ["trees"]
    mcp, residual = judge.evaluate(x[1800:], y[1800:], draws=10)
    assert residual["aurc"] < 0.5 * mcp["aurc"]


def half_seen(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose right half shows the class; the left one shows another in a fifth of them."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    shown = np.where(random.random(n) < 0.7, y, random.integers(0, CLASSES, n))
    x = 0.3 * random.normal(size=(n, SIDE, SIDE, 1))
    x[np.arange(n), 1 + 3 * shown, :5] += 1
    x[np.arange(n), 1 + 3 * y, 5:] += 1
    return x.astype(np.float32), y


@pytest.fixture
def left_eyed(monkeypatch) -> keras.Model:
    """A classifier that sees the left half of an image alone."""
    monkeypatch.setattr(other_eyes, "_EPOCHS", (12, 12))
    kernel = np.zeros((SIDE, SIDE, CLASSES))
    for label in range(CLASSES):
        kernel[1 + 3 * label, :5, label] = 1.0
    net = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES, "softmax"),
        ]
    )
    net.set_weights([kernel.reshape(-1, CLASSES), np.zeros(CLASSES)])
    return net


@pytest.mark.parametrize("name", ["small_net", "student"])
def test_a_small_network_sees_what_the_classifier_does_not(left_eyed, name, tmp_path, capsys):
    judge = btcp_tf.attach(left_eyed)
    judge.fit(
        *half_seen(600, 2),
        reference=half_seen(600, 1),
        looks=[name],
        cost=2.0,
        evidence=["answer"],
    )
    assert f"training other eyes on 600 reference samples: {name}\n" in capsys.readouterr().out
    assert judge.fitted["looks"] == [name] and 1 < judge.fitted["cost"] <= 2
    mcp, residual = judge.evaluate(*half_seen(600, 3), draws=10)
    assert residual["aurc"] < 0.5 * mcp["aurc"]
    x, y = half_seen(400, 4)
    u = logit_of_u(judge, x)
    judge.save(tmp_path / "judge.keras")
    judge = btcp_tf.load(tmp_path / "judge.keras")
    assert logit_of_u(judge, x) == pytest.approx(u, abs=1e-4)
    if name == "student":
        return
    judge.select_threshold(x, y, rule="target_coverage", coverage=0.6)
    path = judge.export(tmp_path, "net", x[:8], verbose=0)
    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    for rows in (slice(None), [int(u.argmin())]):
        answers = serve(images=tf.constant(x[rows]))
        assert special.logit(answers["uncertainty"].numpy()) == pytest.approx(u[rows], abs=1e-3)
        assert answers["accept"].numpy().tolist() == judge.predict(x[rows])["accept"].tolist()


def test_a_small_network_that_learned_from_shuffled_labels_is_left_out(left_eyed):
    x, y = half_seen(600, 1)
    y = np.random.default_rng(0).permutation(y)
    judge = btcp_tf.attach(left_eyed)
    fit = dict(reference=(x, y), looks=["small_net"], cost=2.0, evidence=["answer"])
    judge.fit(*half_seen(600, 2), **fit, verbose=0)
    assert judge.fitted["looks"] == [] and judge.fitted["tried"]


def test_large_images_are_offered_a_small_network_and_students_are_asked_for(monkeypatch):
    trained = []

    def spy(x, y, classes, seed, title, probs=None):
        trained.append((classes, title, probs if probs is None else probs.sum(axis=1).round(3)))
        return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(classes)])

    for name in ("small_net", "student"):
        monkeypatch.setitem(other_eyes.EYES, name, spy)
    for side, wanted, names in (
        (28, "auto", []),
        (29, "auto", ["small_net"]),
        (28, ["student", "small_net", "student"], ["student", "small_net", "student_2"]),
    ):
        net = keras.Sequential(
            [keras.Input((side, side, 1)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")]
        )
        x, y = np.random.default_rng(0).normal(size=(20, side, side, 1)), np.arange(20) % 3
        parts = AttachedClassifier.take_apart(net)
        made = offer.make(parts, wanted, 5.0, (x, y), (x, y), seed=0).looks
        assert [name for name in made if name not in AUTO] == names
    assert [(classes, title) for classes, title, _ in trained] == [(3, "")] * 4
    small, student, second, again = (probs for *_, probs in trained)
    assert small is None and second is None
    assert student.tolist() == again.tolist() == [1.0] * 20
    with pytest.raises(ValueError, match="beside folds, received 'student'"):
        offer.make(parts, ["student"], 5.0, (x, y), (x, y), seed=0, with_folds=True)
    with pytest.raises(ValueError, match="expected a reference, from which 'small_net' learns"):
        offer.make(parts, ["small_net"], 5.0, (x, y), None, seed=0)
    x[3] = np.nan
    with pytest.raises(ValueError, match="reference: .*finite"):
        offer.make(parts, ["student"], 5.0, (x, y), (x, y), seed=0)
    assert len(trained) == 4
