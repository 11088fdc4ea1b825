"""Tests of thresholds by group in a SavedModel: its further input, and who gives it."""

import dataclasses
import json
import re
import shutil

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from keras import layers

import btcp_tf
from btcp_tf import monitor, predict, report, review, set_threshold, thresholds
from btcp_tf.decisions import exported
from btcp_tf.decisions.exported import COLUMN
from btcp_tf.evaluation.predictions import Predictions
from btcp_tf.serving import publishing, saved_model, transport
from btcp_tf.serving.client import Client
from btcp_tf.serving.scorer import Scorer
from btcp_tf.thresholds import GROUP, GroupThreshold, Threshold

pytestmark = [
    pytest.mark.usefixtures("quick_checks"),
    # Judges here are not fitted, and accept nothing of one site.
    pytest.mark.filterwarnings("ignore:Before fit|before fit|nothing will be|by. nothing"),
]

SITES = ("north", "süd", "3")
PROMISE = dict(rule="target_risk", risk=0.1, delta=0.1)


def samples(n, seed):
    """Points around three centers, and their sites; in the second, labels are often wrong."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    site = random.integers(0, 3, n)
    x = (
        np.array([[0, 2.5], [2.5, -1.5], [-2.5, -1.5]])[y]
        + random.normal(size=(n, 2)) * 1.2 * np.array([1.6, 1.2, 1.3])[site][:, None]
    )
    y = np.where((site == 1) & (random.random(n) < 0.4), (y + 1) % 3, y)
    return x.astype(np.float32), y, np.array(SITES)[site]


def two_layers(inputs, last):
    return last(layers.Dense(2, kernel_initializer="identity")(inputs))


def classifier(several=False):
    """Of two numbers, as one input or as two."""
    last = layers.Dense(3, activation="softmax")
    if several:
        inputs = {name: keras.Input((1,), name=name) for name in ("left", "right")}
        model = keras.Model(inputs, two_layers(layers.Concatenate()([*inputs.values()]), last))
    else:
        inputs = keras.Input((2,))
        model = keras.Model(inputs, two_layers(inputs, last))
    last.set_weights([np.array([[0.0, 1.2, -1.2], [1.5, -0.8, -0.8]]), np.zeros(3)])
    return model


@pytest.fixture(scope="module")
def judge():
    """Its u is MCP's, and so made of a logit."""
    made = btcp_tf.attach(classifier(), class_names=("cat", "dog", "owl"))
    x, y, site = samples(3000, 2)
    with pytest.warns(UserWarning):  # It is not fitted; nothing is accepted of a site.
        made.select_threshold(x, y, by=site, **PROMISE)
    return made


@pytest.fixture(scope="module")
def path(judge, tmp_path_factory, request):
    request.getfixturevalue("quick_checks")
    root = tmp_path_factory.mktemp("models")
    return judge.export(root, "points", samples(5, 3)[0], group_input="site", verbose=0)


def served(path, signature="serving_default", **inputs):
    answer = tf.saved_model.load(str(path)).signatures[signature]
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    return {name: value.numpy() for name, value in answer(**inputs).items()}


def by_hand(threshold, u, groups):
    """Slowly: u < the tau of the group, nothing where there is none."""
    taus = {name: part.tau for name, part in threshold.parts.items()}
    return np.array([
        taus.get(str(group)) is not None and one < taus[str(group)]
        for one, group in zip(u.astype(np.float64), groups, strict=True)
    ], bool)  # fmt: skip


def test_a_saved_model_accepts_by_the_tau_of_the_group(judge, path):
    x, _, site = samples(500, 4)
    assert len({part.tau for part in judge.threshold.parts.values()}) == 3
    assert judge.threshold.parts["süd"].tau is None
    for rows in (slice(None), slice(1), slice(0)):
        found = served(path, images=x[rows], site=site[rows].astype(object))
        wanted = by_hand(judge.threshold, found["uncertainty"], site[rows])
        np.testing.assert_array_equal(found["accept"], wanted)
        if len(x[rows]):
            kept = judge.predict(x[rows], by=site[rows])
            np.testing.assert_array_equal(found["accept"], kept["accept"])
        assert 100 < found["accept"].sum() or len(x[rows]) < 2
    unknown = served(path, images=x, site=np.full(500, "west", object))
    assert not unknown["accept"].any()
    np.testing.assert_array_equal(
        unknown["uncertainty"].round(4), served(path, images=x, site=site)["uncertainty"].round(4)
    )


def test_what_the_threshold_was_chosen_on_is_decided_in_all_digits(judge, path):
    x, _, site = samples(3000, 2)
    rows = exported.read_held_out(path)["calibration"]
    np.testing.assert_array_equal(rows.by, site)
    wanted = by_hand(judge.threshold, rows.uncertainty[COLUMN], site)
    found = served(path, images=x, site=site)["accept"]
    np.testing.assert_array_equal(found, wanted)
    assert found.sum() == judge.threshold.accepted
    about = exported.read_about(path)
    assert about["group_input"] == "site"
    assert about["calibration"]["fp_share"] == pytest.approx(
        judge.threshold.errors / judge.threshold.n
    )


def test_a_request_without_groups_or_with_too_few_fails(path):
    x, _, site = samples(7, 4)
    with pytest.raises(Exception, match="site"):
        served(path, images=x)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="as many rows of each of images, site"
    ):
        served(path, images=x, site=site[:1])


def test_all_signatures_take_the_groups(tmp_path):
    """Of a model of uint8 images, whose u is no logit."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 1), dtype="uint8")
    flat = layers.Flatten()(layers.Rescaling(1 / 255)(images))
    u = layers.Dense(1, activation="hard_sigmoid")(flat)
    model = keras.Model(images, {"probs": layers.Dense(3, "softmax")(flat), "uncertainty": u})
    x = np.random.default_rng(0).integers(0, 256, (90, 8, 8, 1), np.uint8)
    own = model.predict(x, verbose=0)["uncertainty"][:, 0].astype(np.float64)
    part = Threshold(float(np.median(own)) + 1e-9, 0.5, "", 90, 45, delta=0.1, target=0.1)
    chosen = GroupThreshold(
        None, 0.5, "", 90, 45, delta=0.1, target=0.1,
        by=GROUP, parts={"a": part, "b": dataclasses.replace(part, tau=None)},
    )  # fmt: skip
    groups = np.array(["a", "b", "c"] * 30)
    rows = Predictions(
        np.zeros(90, int), None, model.predict(x, verbose=0)["probs"].argmax(axis=1),
        {COLUMN: own}, by=groups,
    )  # fmt: skip
    path = saved_model.export(
        model, tmp_path, "m", ("x", "y", "z"), x[:5],
        threshold=chosen, held_out={"calibration": rows}, calibration_inputs=x,
    )  # fmt: skip
    files = [tf.io.encode_png(image).numpy() for image in x]
    client = Client("127.0.0.1:1", "m", batch_size=40)
    client._transport = Server(path)
    found = client.predict_bytes({"image_bytes": files, "group": groups.tolist()})
    np.testing.assert_array_equal(found["accept"], by_hand(chosen, own, groups))
    with pytest.raises(ValueError, match="files: expected a list of bytes, received str in place"):
        client.predict_bytes({"image_bytes": ["a"], "group": ["a"]})
    with pytest.raises(ValueError, match="give a dictionary of .*group"):
        client.predict_bytes(files)
    wanted = by_hand(chosen, own, groups)
    assert 10 < wanted.sum() < 30
    for signature, inputs in (
        ("serving_default", {"images": x}),
        ("serving_float", {"images": x.astype(np.float32)}),
        ("serving_bytes", {"image_bytes": files}),
    ):
        found = served(path, signature, **inputs, group=groups)
        np.testing.assert_array_equal(found["accept"], wanted)
    assert exported.read_about(path)["group_input"] == "group"


def test_a_model_of_several_inputs_takes_the_groups_beside_them(tmp_path):
    judge = btcp_tf.attach(classifier(several=True))
    x, y, site = samples(3000, 2)
    inputs = {"left": x[:, :1], "right": x[:, 1:]}
    chosen = judge.select_threshold(inputs, y, by=site, **PROMISE)
    path = judge.export(tmp_path, "m", {name: one[:4] for name, one in inputs.items()}, verbose=0)
    found = served(path, **inputs, group=site)
    np.testing.assert_array_equal(found["accept"], by_hand(chosen, found["uncertainty"], site))
    assert found["accept"].any()


@pytest.mark.parametrize("name", ["images", "accept", "a b", "class", "_site", 3])
def test_the_input_has_a_name_of_its_own(judge, tmp_path, name):
    with (
        pytest.raises(ValueError, match="group_input: expected a name of ASCII"),
    ):
        judge.export(tmp_path, "m", samples(3, 3)[0], group_input=name, verbose=0)
    assert not list(tmp_path.glob("m/*"))


def test_a_judge_whose_file_does_not_keep_the_groups_says_so(judge, tmp_path):
    """As those of earlier versions."""
    judge.save(tmp_path / "judge.keras")
    old = btcp_tf.load(tmp_path / "judge.keras")
    del old._about["calibration"]["by"]
    with (
        pytest.raises(ValueError, match="expected the group of each calibration row.*choose it ag"),
    ):
        old.export(tmp_path, "m", samples(3, 3)[0], verbose=0)


def test_a_name_for_groups_is_refused_where_there_are_none(tmp_path):
    one = btcp_tf.attach(classifier())
    x, y, _ = samples(600, 2)
    for by in (None, "predicted"):
        one.select_threshold(x, y, by=by, **{**PROMISE, "risk": 0.3})
        with pytest.raises(ValueError, match="group_input: expected only with a threshold by grou"):
            one.export(tmp_path, "m", x[:3], group_input="site", verbose=0)
    assert not list(tmp_path.glob("m/*"))


# Batches, and the command predict.


def test_a_scorer_takes_text_and_whole_numbers(judge, path):
    x, _, site = samples(60, 5)
    scorer = Scorer(path)
    given = np.array([3 if one == "3" else one for one in site], object)
    given[:2] = None, 1.5
    found = scorer({"images": x, "site": given, "id": np.arange(60)})
    wanted = by_hand(judge.threshold, found["uncertainty"], site)
    np.testing.assert_array_equal(found["accept"][2:], wanted[2:])
    assert found["accept"][2:].any() and not found["accept"][:2].any()
    assert found["problem"][0] == "site: expected text or a whole number, received None"
    assert found["problem"][1] == "site: expected text or a whole number, received 1.5"
    assert (found["problem"][2:] == "").all() and found["group"][2:].tolist() == [*site[2:]]
    with pytest.raises(ValueError, match="batch: expected site, the group of each row, as"):
        scorer({"images": x})
    with pytest.raises(ValueError, match=r"site: expected one group for each of 60 rows"):
        scorer({"images": x, "site": site[:5]})


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_the_command_predict_reads_the_groups(judge, path, tmp_path, capsys, kind):
    x, y, site = samples(200, 6)
    if kind == "npz":
        np.savez(tmp_path / "x.npz", images=x, labels=y, site=site)
        model, decide = path, judge
    else:
        decide = btcp_tf.attach(classifier(several=True))
        many, labels, sites = samples(3000, 2)
        inputs = {"left": many[:, :1], "right": many[:, 1:]}
        decide.select_threshold(inputs, labels, by=sites, **PROMISE)
        model = decide.export(
            tmp_path, "m", {name: one[:4] for name, one in inputs.items()},
            group_input="site", verbose=0,
        )  # fmt: skip
        table = {"left": x[:, 0], "right": x[:, 1], "site": site, "labels": y}
        pandas.DataFrame(table).to_csv(tmp_path / "x.csv", index=False)
    if kind == "csv":
        # One site that nobody has seen, and one row without any.
        table["site"] = site = np.array(["oslo", "", *site[2:]], object)
        pandas.DataFrame(table).to_csv(tmp_path / "x.csv", index=False)
        odd = [f"--model={model}", f"--input={tmp_path}/x.csv", f"--output={tmp_path}/odd.csv"]
        assert predict.main(odd) == 3
        told = capsys.readouterr()
        assert "site: expected a group, received none" in told.err
        assert "nothing is accepted of groups without a threshold: oslo (1)" in told.out
        table["site"] = site = np.array(["oslo", "oslo", *site[2:]], object)
        pandas.DataFrame(table).to_csv(tmp_path / "x.csv", index=False)
    command = [f"--model={model}", f"--input={tmp_path}/x.{kind}", "--labels"]
    assert predict.main([*command, f"--output={tmp_path}/scores.csv"]) == 0
    assert "u < the tau of its group" in capsys.readouterr().out
    scores = pandas.read_csv(tmp_path / "scores.csv", dtype={"group": str})
    assert scores["group"].tolist() == site.tolist()
    wanted = by_hand(decide.threshold, scores["uncertainty"].to_numpy(), site)
    np.testing.assert_array_equal(scores["accept"].astype(str).str.lower() == "true", wanted)
    assert wanted.any()
    # As a report sees it, which does not know the model.
    assert report.main([f"{tmp_path}/scores.csv", "--by=group"]) == 0
    page = " ".join((tmp_path / "scores.csv-report" / "report.md").read_text().split())
    assert "follows a threshold of its own for each group" in page
    assert "follows no threshold" not in page
    scores["accept"] = ~scores["accept"]
    scores.to_csv(tmp_path / "odd.csv", index=False)
    assert report.main([f"{tmp_path}/odd.csv", "--by=group"]) == 0
    assert "follows no threshold" in (tmp_path / "odd.csv-report" / "report.md").read_text()


def test_the_command_predict_says_where_groups_belong(path, tmp_path, capsys):
    x, _, site = samples(5, 6)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", images=x)
    for name, message in (
        ("x.npy", "expected an npz or a CSV file, in which site says the group of each input"),
        ("x.npz", "expected the arrays site, received images, without site"),
    ):
        output = tmp_path / "scores.csv"
        words = [f"--model={path}", f"--input={tmp_path}/{name}", f"--output={output}"]
        assert predict.main(words) == 1
        assert message in capsys.readouterr().err and not output.exists()


# Another threshold for the same model.


def test_other_groups_and_one_tau_for_all_go_into_the_same_model(judge, path):
    x, _, site = samples(400, 7)
    u = served(path, images=x, site=site)["uncertainty"]
    part = dataclasses.replace(judge.threshold.parts["north"], tau=0.25)
    parts = {name: dataclasses.replace(part, tau=tau) for name, tau in (("süd", 0.1), ("new", 0.3))}
    rows = exported.read_held_out(path)["calibration"]
    changed = saved_model.with_threshold(
        path, dataclasses.replace(judge.threshold, parts=parts), {"calibration": rows}
    )
    sites = np.array(["süd", "new", "north", "3"])[np.arange(400) % 4]
    found = served(changed, images=x, site=sites)
    wanted = (u < 0.1) & (sites == "süd") | (u < 0.3) & (sites == "new")
    np.testing.assert_array_equal(found["accept"], wanted)
    assert (wanted & (sites == "new")).any() and (wanted & (sites == "süd")).any()
    one = thresholds.given(rows.is_error, rows.uncertainty[COLUMN], tau=0.2)
    with pytest.warns(UserWarning, match="promises error rate <= 0.1 in each group with prob"):
        again = saved_model.with_threshold(changed, one)
    np.testing.assert_array_equal(served(again, images=x, site=sites)["accept"], u < 0.2)


def test_a_promise_in_each_group_is_lost_to_one_in_each_class(judge, path, tmp_path):
    shutil.copytree(path, tmp_path / "1")
    parts = {number: judge.threshold.parts["north"] for number in "012"}
    by_class = dataclasses.replace(judge.threshold, by=thresholds.PREDICTED, parts=parts)
    lost = publishing.lost_promise(tmp_path, by_class)
    assert "promises error rate <= 0.1 in each group with" in lost
    assert lost.endswith("this one promises error rate <= 0.1 in each predicted class with "
                         "probability 0.9")  # fmt: skip
    assert publishing.lost_promise(tmp_path, judge.threshold) == ""


def test_the_command_refuses_classes_for_a_model_by_group_at_once(path, capsys, monkeypatch):
    monkeypatch.setattr(thresholds, "from_word", None)  # Nothing is chosen.
    words = ["--threshold=target_risk", "--by=predicted", "--risk=0.3"]
    assert set_threshold.main([str(path), *words]) == 1
    assert "received one whose thresholds are by group" in capsys.readouterr().err


@pytest.fixture
def scores(path, tmp_path):
    """Labeled scores as the command predict writes them."""
    x, y, site = samples(2500, 8)
    np.savez(tmp_path / "x.npz", images=x, labels=y, site=site)
    output = tmp_path / "scores.csv"
    words = [f"--model={path}", f"--input={tmp_path}/x.npz", "--labels", f"--output={output}"]
    assert predict.main(words) == 0
    return output


def test_the_command_set_threshold_chooses_by_group(path, scores, tmp_path):
    table = pandas.read_csv(scores, dtype={"group": str})
    for words, rows in (
        ([f"--scores={scores}"], table),
        ([], exported.read_held_out(path)["calibration"]),
    ):
        root = tmp_path / f"models{len(words)}"
        more = ["--threshold=target_risk", "--by=group", "--risk=0.12", "--delta=0.1"]
        assert set_threshold.main([str(path), *more, *words, f"--export_dir={root}"]) == 0
        version = root / "points" / "1"
        chosen = thresholds.from_json(exported.read_about(version)["threshold"])
        own = rows is table
        wrong = table["predicted"] != table["labels"] if own else rows.is_error
        u = table["uncertainty"].to_numpy(np.float32) if own else rows.uncertainty[COLUMN]
        by = table["group"].to_numpy() if own else rows.by
        oracle = thresholds.target_risk_by_group(wrong, u, by, risk=0.12, delta=0.1)
        assert chosen.by == GROUP and chosen.parts.keys() == oracle.keys() == {*SITES}
        for name, part in oracle.items():
            assert (chosen.parts[name].n, chosen.parts[name].accepted) == (part.n, part.accepted)
        x, _, site = samples(300, 9)
        found = served(version, images=x, site=site)
        np.testing.assert_array_equal(found["accept"], by_hand(chosen, found["uncertainty"], site))


def test_the_command_says_that_groups_lose_their_own_thresholds(path, tmp_path, capsys):
    command = [str(path), f"--export_dir={tmp_path}"]
    assert set_threshold.main([*command, "--threshold=0.2"]) == 0
    told = capsys.readouterr().out
    assert "has a threshold for each group, and the new version one for all answers" in told
    assert "--threshold=target_risk --by=group" in told
    version = exported.newest(tmp_path / "points")
    x, _, site = samples(50, 9)
    found = served(version, images=x, site=site)
    np.testing.assert_array_equal(found["accept"], found["uncertainty"] < 0.2)
    with pytest.raises(SystemExit):
        set_threshold.main([*command, "--threshold=target_risk", "--by=site"])
    assert "--by=group takes the groups of the column group, in which" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        set_threshold.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "their column is called group, as btcp_tf.predict writes it" in told


def test_the_command_set_threshold_by_group_needs_groups(judge, tmp_path, scores, capsys):
    one = btcp_tf.attach(classifier())
    x, y, _ = samples(600, 2)
    one.select_threshold(x, y, rule="target_coverage", coverage=0.5)
    version = one.export(tmp_path, "m", x[:3], verbose=0)
    words = ["--threshold=target_risk", "--by=group", f"--scores={scores}"]
    assert set_threshold.main([str(version), *words]) == 1
    assert "expected a model whose inputs tell the group" in capsys.readouterr().err


def test_the_command_monitor_tests_the_promise_in_each_group(judge, path, scores, tmp_path, capsys):
    words = [f"--baseline={path}", f"--output_dir={tmp_path}/out"]
    assert monitor.main([*words, f"--scores={scores}"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "a tau for each group" in told and "in each of 3 groups by itself is refuted" in told
    assert "promises nothing about a group" not in told and "differs from the base" not in told
    table = pandas.read_csv(scores, dtype={"group": str})
    accept = by_hand(judge.threshold, table["uncertainty"].to_numpy(), table["group"])
    found = json.loads((tmp_path / "out" / "monitor.json").read_text())
    assert found["figures"]["accepted"]["count"] == accept.sum()
    # Of the first site alone labels are wrong now.
    wrong = accept & (table["group"] == "north")
    table.loc[wrong, "labels"] = (table.loc[wrong, "predicted"] + 1) % 3
    table.to_csv(tmp_path / "worse.csv", index=False)
    words = [f"--baseline={path}", f"--output_dir={tmp_path}/worse"]
    assert monitor.main([*words, f"--scores={tmp_path}/worse.csv"]) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert f"refuted in north ({wrong.sum():,} of {wrong.sum():,}" in told
    table.drop(columns="group").to_csv(tmp_path / "none.csv", index=False)
    words = [f"--baseline={path}", f"--output_dir={tmp_path}/none"]
    assert monitor.main([*words, f"--scores={tmp_path}/none.csv"]) == 1
    assert "group" in capsys.readouterr().err


def test_a_row_without_a_group_is_taken_and_told(judge, path, scores, tmp_path, capsys):
    table = pandas.read_csv(scores, dtype={"group": str})
    accept = by_hand(judge.threshold, table["uncertainty"].to_numpy(), table["group"])
    gone = np.flatnonzero(accept)[:3]
    table.loc[gone, "group"] = None
    table.to_csv(tmp_path / "s.csv", index=False)
    words = [f"--baseline={path}", f"--scores={tmp_path}/s.csv"]
    assert monitor.main([*words, f"--output_dir={tmp_path}/out"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "3 rows have no group, counted as the group (no group)" in told
    found = json.loads((tmp_path / "out" / "monitor.json").read_text())
    assert found["figures"]["accepted"]["count"] == accept.sum() - 3
    assert review.main([*words, f"--output_dir={tmp_path}/review", "--budget=5", "--audit=5"]) == 0
    assert "3 rows have no group" in capsys.readouterr().out
    assert report.main([f"{tmp_path}/s.csv", "--by=group"]) == 0
    page = (tmp_path / "s.csv-report" / "report.md").read_text()
    assert "3 rows without a group, shown as (no group)" in page
    # No threshold is chosen of them.
    command = [str(path), "--by=group", "--threshold=target_risk", "--risk=0.1", "--delta=0.1"]
    command += [f"--scores={tmp_path}/s.csv", f"--export_dir={tmp_path}/models"]
    with pytest.warns(UserWarning, match="3 rows have no group.*left out here"):
        assert set_threshold.main(command) == 0
    chosen = exported.read_about(exported.newest(tmp_path / "models" / "points"))["threshold"]
    assert {*chosen["parts"]} <= {*SITES} and chosen["n"] == len(table) - 3
    table["group"] = None
    table.to_csv(tmp_path / "s.csv", index=False)
    assert monitor.main([*words, f"--output_dir={tmp_path}/none"]) == 1
    assert "expected the group of each row, received none in any" in capsys.readouterr().err


def test_a_review_knows_what_is_accepted_of_each_group(judge, path, scores, tmp_path):
    words = [f"--scores={scores}", f"--baseline={path}", f"--output_dir={tmp_path}/review"]
    assert review.main([*words, "--budget=20", "--audit=40"]) == 0
    table = pandas.read_csv(scores, dtype={"group": str})
    accept = by_hand(judge.threshold, table["uncertainty"].to_numpy(), table["group"])
    page = (tmp_path / "review" / "review.html").read_text()
    items = re.findall(r'data-row="(\d+)".*?· (accepted|handed over)', page, re.DOTALL)
    assert len(items) > 40
    assert all((word == "accepted") == accept[int(row)] for row, word in items)
    assert len({word for _, word in items}) == 2
    # And back: labels of the sample are tested against the promise in each group.
    decisions = pandas.DataFrame(
        {"row": [int(row) for row, _ in items], "decision": "right", "label": ""}
    )
    decisions.to_csv(tmp_path / "decisions.csv", index=False)
    assert review.main([*words, f"--labels={tmp_path}/decisions.csv"]) == 0
    sample = pandas.read_csv(tmp_path / "review" / "checked_sample.csv", dtype={"group": str})
    rows = [int(re.search(r"\d+", name)[0]) for name in sample["input"].str.split("[").str[-1]]
    assert sample["group"].tolist() == table["group"][rows].tolist()


class Server:
    """Answers requests with a SavedModel, as a transport of the client."""

    where = "the server"

    def __init__(self, path):
        self.loaded = tf.saved_model.load(str(path))
        self.asked = []

    def signatures(self, deadline):
        def spec(one):
            return transport.Spec(one.dtype.name, tuple(one.shape))

        return {
            name: transport.Signature(
                {key: spec(one) for key, one in own.structured_input_signature[1].items()},
                {key: spec(one) for key, one in own.structured_outputs.items()},
            )
            for name, own in self.loaded.signatures.items()
        }

    def call(self, name, inputs, deadline):
        self.asked.append({key: len(value) for key, value in inputs.items()})
        answer = self.loaded.signatures[name]
        found = answer(**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in found.items()}


def test_the_client_sends_groups(judge, path):
    client = Client("127.0.0.1:1", "points", batch_size=16)
    client._transport = server = Server(path)
    x, _, site = samples(40, 9)
    found = client.predict({"images": x, "site": site.tolist()})
    assert server.asked == [{"images": n, "site": n} for n in (16, 16, 8)]
    np.testing.assert_array_equal(
        found["accept"], by_hand(judge.threshold, found["uncertainty"], site)
    )
    with pytest.raises(
        ValueError, match="one with one input, .* with 2; give a dictionary of .*si"
    ):
        client.predict(x)
    with pytest.raises(ValueError, match="as many rows of each input, received 40 of images, 3 of"):
        client.predict({"images": x, "site": site[:3].tolist()})


def test_a_model_that_knows_no_groups_refuses_them(judge, tmp_path):
    one = btcp_tf.attach(classifier())
    x, y, _ = samples(600, 2)
    one.select_threshold(x, y, rule="target_coverage", coverage=0.5)
    path = one.export(tmp_path, "m", x[:3], verbose=0)
    with pytest.raises(ValueError, match="expected a model whose inputs tell the group"):
        saved_model.with_threshold(path, judge.threshold)
    assert json.loads((path / exported.ABOUT_FILE).read_text()).get("group_input") is None
