"""`fit_scores`: what it learns is what a `Judge` learns, and it takes what anyone's arrays hold."""

import dataclasses
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from scipy import special

import btcp_tf
from btcp_tf import evaluation, metrics, report
from btcp_tf.methods import look_choice
from btcp_tf.networks import cost
from btcp_tf.scores_fit import ScoresFit

CLASSES = 3


def answers(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, a classifier's logits, and those of another one that errs on its own."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, n)
    first, second = (
        3.0 * np.eye(CLASSES)[labels] + 1.8 * random.normal(size=(n, CLASSES)) for _ in range(2)
    )
    return labels, first, second


@pytest.fixture(scope="module")
def gated() -> ScoresFit:
    labels, first, second = answers(900, 0)
    scores = btcp_tf.fit_scores(first, labels, looks={"second": second}, verbose=0)
    assert scores.fit.looks == ("second",) and scores.design.gate is not None
    return scores


def logit_of_u(scores: ScoresFit, *arrays) -> np.ndarray:
    return special.logit(scores.predict(*arrays)["uncertainty"])


def dense(weights: np.ndarray, bias: float, name: str) -> keras.Model:
    """inputs → logits; the bias is that of the first class."""
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(CLASSES)], name=name)
    model.set_weights([weights, bias * np.eye(CLASSES)[0]])
    return model


@pytest.mark.parametrize(
    "n, share, bias", [(1500, 1.0, 6.0), (1500, 0.3, 6.0), (250, 1.0, 4.0), (1500, 0.0, 6.0)]
)
@pytest.mark.filterwarnings("ignore:the classifier is wrong on")
def test_u_is_that_of_a_judge_of_the_same_answers(n, share, bias):
    """With the look for all inputs, for some, with errors too few to tell classes, without it.

    The classifier is too fond of one class, so that the answer itself is evidence.
    """
    random = np.random.default_rng(0)
    true = random.normal(size=(6, CLASSES))
    x = random.normal(size=(n + 300, 6)).astype(np.float32)
    y = (4.0 * x @ true + 2.5 * random.gumbel(size=(len(x), CLASSES))).argmax(axis=1)
    first, second = (
        dense(4 * true + 2 * random.normal(size=true.shape), fond, name)
        for fond, name in ((bias, "one"), (0.0, "two"))
    )
    own, other = first(x).numpy(), second(x).numpy()
    passes = cost.multiply_adds(second, (6,), "float32") / 1e6
    judge = btcp_tf.attach(first, from_logits=True)
    budget = 1.0 + 1.01 * share * passes
    judge.fit(x[:n], y[:n], looks=[second] if share else (), cost=budget, verbose=0)
    scores = btcp_tf.fit_scores(
        own[:n],
        y[:n],
        looks={"two": other[:n]} if share else {},
        costs={"two": passes} if share else {},
        cost=budget,
        verbose=0,
    )
    assert list(scores.fit.looks) == judge.fitted["looks"] == (["two"] if share else [])
    assert scores.fit.share == judge.fitted["share"] <= 1.01 * share + 1e-9
    assert scores.fit.evidence == tuple(judge.fitted["evidence"])
    assert scores.class_columns == (n == 1500)
    assert n < 1500 or "answer" in scores.fit.evidence
    u = special.logit(judge.predict(x[n:])["uncertainty"])
    assert logit_of_u(scores, own[n:], {"two": other[n:]}) == pytest.approx(u, abs=1e-5)


def test_a_look_that_knows_something_finds_errors_that_mcp_does_not(gated):
    labels, first, second = answers(3000, 1)
    found = gated.predict(first, {"second": second})
    assert found["predicted"].tolist() == first.argmax(axis=1).tolist()
    assert found["uncertainty"].min() >= 0 and found["uncertainty"].max() <= 1
    is_error = found["predicted"] != labels
    mcp = 1 - special.softmax(first, axis=1).max(axis=1)
    assert metrics.aurc(is_error, found["uncertainty"]) < 0.9 * metrics.aurc(is_error, mcp)
    assert gated.fit.cost <= 1.3 + 1e-9


def test_looks_are_read_only_where_they_are_needed(gated):
    _, first, second = answers(500, 2)
    needed = gated.needs_looks(first)
    assert 0 < needed.sum() < len(needed)
    assert needed.mean() == pytest.approx(gated.fit.share, abs=0.1)
    u = logit_of_u(gated, first, {"second": second})
    unknown = np.where(needed[:, None], second, np.nan)
    assert logit_of_u(gated, first, {"second": unknown}).tolist() == u.tolist()
    row = int(np.flatnonzero(needed)[3])
    unknown[row, 1] = np.nan
    with pytest.raises(ValueError, match=rf"looks\['second'\]: .*finite.*nan in row {row}"):
        gated.predict(first, {"second": unknown})
    # Alone, in a batch of none, and beside looks that were not chosen.
    alone = logit_of_u(gated, first[:1], {"second": second[:1], "x": "?"})
    assert alone == pytest.approx(u[:1], rel=1e-12)
    assert gated.predict(first[:0], {"second": second[:0]})["uncertainty"].shape == (0,)


def test_a_chosen_look_or_feature_that_is_missing_is_named(gated):
    _, first, second = answers(20, 3)
    with pytest.raises(ValueError, match=r"looks: expected 'second'.*received none"):
        gated.predict(first)
    with pytest.raises(ValueError, match=r"looks: expected 'second'.*received 'secnd'"):
        gated.predict(first, {"secnd": second})
    labels, first, _ = answers(900, 4)
    hint = (first.argmax(axis=1) != labels) + 0.5 * np.random.default_rng(0).normal(size=900)
    scores = btcp_tf.fit_scores(first, labels, features={"hint": hint}, verbose=0)
    assert scores.fit.evidence == ("answer", "hint") and scores.fit.cost is None
    assert not scores.needs_looks(first).any()
    with pytest.raises(ValueError, match=r"features: expected 'hint'.*received none"):
        scores.predict(first)


def test_features_of_several_columns_and_those_that_cost_something(tmp_path):
    labels, first, second = answers(1500, 5)
    random = np.random.default_rng(0)
    is_error = first.argmax(axis=1) != labels
    hint = is_error[:, None] + random.normal(size=(1500, 2))
    scores = btcp_tf.fit_scores(
        first,
        labels,
        looks={"noise": random.normal(size=first.shape)},
        features={"hint": hint, "free": random.normal(size=1500)},
        costs={"hint": 0.5, "noise": 0.1},
        cost=1.2,
        verbose=0,
    )
    assert scores.design.paid == ("hint",) and scores.features["hint"] == 2
    needed = scores.needs_looks(first)
    rest = {name: np.zeros(1500) for name in scores.features if name == "free"}
    u = scores.predict(first, features={"hint": hint, **rest})["uncertainty"]
    mcp = 1 - special.softmax(first, axis=1).max(axis=1)
    assert metrics.aurc(is_error, u) < 0.9 * metrics.aurc(is_error, mcp)
    hint[~needed] = np.nan
    scores.save(tmp_path / "scores.json")
    again = btcp_tf.load_scores(tmp_path / "scores.json")
    for one in (scores, again):
        answer = one.predict(first, features={"hint": hint, **rest})
        assert answer["uncertainty"].tolist() == u.tolist()
    with pytest.raises(ValueError, match=r"features\['hint'\]: .*\[1500, 2\], received .*\[1500\]"):
        scores.predict(first, features={"hint": hint[:, 0], **rest})


def test_probabilities_are_taken_when_that_is_said(gated):
    labels, first, second = answers(900, 0)
    own, other = special.softmax(first, axis=1), special.softmax(second, axis=1)
    with pytest.raises(ValueError, match=r"logits: .*sum to 1.*are_probs=True"):
        btcp_tf.fit_scores(own, labels, verbose=0)
    with pytest.raises(ValueError, match=r"looks\['second'\]: .*sum to 1.*are_probs=True"):
        btcp_tf.fit_scores(first, labels, looks={"second": other}, verbose=0)
    scores = btcp_tf.fit_scores(own, labels, looks={"second": other}, are_probs=True, verbose=0)
    u = logit_of_u(gated, first, {"second": second})
    assert logit_of_u(scores, own, {"second": other}) == pytest.approx(u, abs=1e-3)
    sure = np.array([[1.0, 0.0, 0.0]])
    assert scores.predict(sure, {"second": sure})["uncertainty"][0] < 0.01
    with pytest.raises(ValueError, match=r"logits: expected probabilities that sum to 1.*row 0"):
        scores.predict(first[:1] * 0 + 1.0, {"second": sure})
    with pytest.raises(ValueError, match=r"probabilities from 0 to 1, received -1.0 in row 0"):
        scores.predict([[-1.0, 1.0, 1.0]], {"second": sure})


def test_probabilities_in_the_place_of_logits_are_noticed_in_predict_too(gated):
    _, first, second = answers(50, 9)
    probs = special.softmax(first, axis=1)
    with pytest.raises(ValueError, match=r"logits: expected logits .*sum to 1.*are_probs=True"):
        gated.predict(probs, looks={"second": second})
    # One row may sum to 1 by chance.
    gated.predict(probs[:1], looks={"second": second[:1]})


def test_masked_arrays_are_refused():
    labels, first, _ = answers(100, 10)
    masked = np.ma.masked_where(first > 3, first)
    with pytest.raises(ValueError, match="logits: expected numbers, received a masked array"):
        btcp_tf.fit_scores(masked, labels)


def test_a_saved_estimator_is_the_same(gated, tmp_path):
    path = tmp_path / "scores.json"
    gated.save(path)
    loaded = btcp_tf.load_scores(path)
    for name in ("fit", "classes", "are_probs", "class_columns", "features", "design"):
        assert getattr(loaded, name) == getattr(gated, name), name
    _, first, second = answers(300, 6)
    u = gated.predict(first, {"second": second})["uncertainty"]
    assert loaded.predict(first, {"second": second})["uncertainty"].tolist() == u.tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["scores.json"]
    for wrong in (tmp_path, tmp_path / "scores.pkl"):
        with pytest.raises(ValueError, match="path: expected a name that ends with .json"):
            gated.save(wrong)
    with pytest.raises(ValueError, match="path: expected a path on this machine"):
        gated.save("gs://bucket/scores.json")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": "other"}, "its format is not btcp_tf.ScoresFit"),
        ({"version": 2}, "version 2 of the format, where this btcp_tf reads 1"),
        ({"design": None}, "NoneType"),
        ({"classes": 1}, "classes: expected a whole number >= 2"),
        ({"features": {"hint": 1}}, "name different evidence"),
        ({"weights": {"a": 1.0, "b": 0.0}}, "no 'h'"),
        ({"weights": {"a": 1.0, "b": None, "h": []}}, "b: expected a finite number"),
        ({"weights": {"a": 1.0, "b": 0.0, "h": [1.0]}}, "h: expected a number for each"),
        ({"are_probs": 1}, "are_probs: expected true or false, received 1"),
        ({"fit": {"words": ""}}, "no 'evidence'"),
    ],
)
def test_files_of_another_kind_are_refused(gated, tmp_path, change, message):
    path = tmp_path / "scores.json"
    gated.save(path)
    content = json.loads(path.read_text(encoding="utf-8")) | change
    path.write_text(json.dumps(content), encoding="utf-8")
    expected = rf"path: expected a file that ScoresFit.save wrote, received .*{message}.*fit and"
    with pytest.raises(ValueError, match=expected):
        btcp_tf.load_scores(path)


def test_what_is_no_file_of_json_is_refused(tmp_path):
    for content in (b"\xff\xfe", b"{", b"[" * 100_000, b"[]"):
        (tmp_path / "scores.json").write_bytes(content)
        with pytest.raises(ValueError, match="expected a file that ScoresFit.save wrote"):
            btcp_tf.load_scores(tmp_path / "scores.json")
    for name, state in (("none.json", "not there"), (".", "no file")):
        with pytest.raises(FileNotFoundError, match=state):
            btcp_tf.load_scores(tmp_path / name)


LABELS, FIRST, SECOND = answers(60, 7)


def spoiled(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[7, 1] = array[9, 0] = value
    return array


@pytest.mark.parametrize(
    "change, message",
    [
        ({"logits": FIRST[0]}, r"logits: expected numbers \[n, k\], k >= 2, received .*\[3\]"),
        ({"logits": FIRST[:, :1]}, r"logits: expected numbers \[n, k\], k >= 2.*\[60, 1\]"),
        ({"logits": FIRST.astype(str)}, "logits: expected numbers"),
        ({"logits": [[1.0, 2.0], [3.0]]}, "logits: .*rows of different lengths"),
        ({"logits": spoiled(FIRST, np.nan)}, "logits: expected finite numbers, .*nan in row 7"),
        ({"logits": spoiled(FIRST, np.inf)}, "logits: expected finite numbers, .*inf in row 7"),
        ({"logits": spoiled(FIRST, 1e300)}, "logits: expected finite numbers, .*inf in row 7"),
        ({"labels": LABELS[:-1]}, r"labels: expected 60 labels, whole numbers, received .*\[59\]"),
        ({"labels": LABELS + 1}, "labels: expected labels from 0 to 2, received 1 to 3; subtract"),
        ({"logits": FIRST[:0], "labels": LABELS[:0]}, "labels: .*received none"),
        ({"labels": LABELS / 2}, "labels: .*classes, not quantities"),
        ({"labels": LABELS.astype(str)}, "labels: .*give their numbers, in the order of the col"),
        ({"labels": np.full((60, 3), 0.2)}, "labels: .*shares of classes in row 0"),
        ({"looks": [SECOND]}, "looks: expected a mapping, arrays by name, received list"),
        ({"looks": {"a": SECOND[:, :2]}}, r"looks\['a'\]: expected numbers \[60, 3\]"),
        ({"looks": {"a": SECOND[:-1]}}, r"looks\['a'\]: expected numbers \[60, 3\].*\[59, 3\]"),
        ({"looks": {"a": spoiled(SECOND, np.nan)}}, r"looks\['a'\]: .*nan in row 7"),
        ({"looks": {"\ud800": SECOND}}, "looks: expected names other than"),
        ({"looks": {"mcp": SECOND}}, "looks: expected names other than answer, mcp, looks"),
        ({"features": {3: LABELS}}, "features: expected names .*received 3"),
        (
            {"features": {"f": LABELS[:-1]}},
            r"features\['f'\]: expected numbers \[60\] or \[60, e\]",
        ),
        ({"features": {"f": FIRST[:, :0]}}, r"features\['f'\]: .*\[60, 0\]"),
        ({"features": {"f": spoiled(FIRST, -np.inf)}}, r"features\['f'\]: .*-inf in row 7"),
        (
            {"features": {"a": LABELS}, "looks": {"a": SECOND}},
            "features: expected names that no look has, received 'a'",
        ),
        ({"costs": {"a": 1.0}}, "costs: expected none without looks and features, received 'a'"),
        (
            {"looks": {"mirror": SECOND}, "costs": {"miror": 1.0}},
            "costs: expected one of mirror, received 'miror'; did you mean mirror",
        ),
        (
            {"looks": {"a": SECOND}, "costs": {"a": -1}},
            r"costs\['a'\]: expected a finite number >= 0",
        ),
        ({"costs": 2.0}, "costs: expected a mapping, numbers by name, received float"),
        ({"cost": 0.9}, "cost: expected a number >= 1, .*received 0.9"),
        ({"cost": float("nan")}, "cost: expected a number >= 1"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(change, message):
    arguments = {"logits": FIRST, "labels": LABELS, "verbose": 0} | change
    with pytest.raises(ValueError, match=message):
        btcp_tf.fit_scores(**arguments)


def test_labels_may_be_one_hot_and_answers_of_any_float():
    labels, first, _ = answers(300, 8)
    with pytest.warns(UserWarning, match="little from so few errors"):
        scores = btcp_tf.fit_scores(first, labels, verbose=0)
    with pytest.warns(UserWarning, match="little from so few errors"):
        again = btcp_tf.fit_scores(
            np.asfortranarray(first.astype(np.float32)), np.eye(CLASSES)[labels], verbose=0
        )
    assert logit_of_u(again, first).tolist() == logit_of_u(scores, first).tolist()
    # Log-probabilities are logits, too.
    log_probs = special.log_softmax(first, axis=1)
    assert logit_of_u(scores, log_probs) == pytest.approx(logit_of_u(scores, first), abs=1e-4)


def test_classes_without_samples_are_warned_of_and_no_errors_give_mcp(capsys):
    labels = np.zeros(50, int)
    with (
        pytest.warns(UserWarning, match=r"labels: .*all 3 classes, received none of 1, 2"),
        pytest.warns(UserWarning, match="wrong on 0 of 50 held-out samples"),
    ):
        scores = btcp_tf.fit_scores(3 * np.eye(3)[labels], labels, looks={"a": np.ones((50, 3))})
    assert "too few to learn from: u is MCP" in capsys.readouterr().out
    assert scores.fit.looks == () and not scores.needs_looks(np.ones((2, 3))).any()
    mcp = 1 - special.softmax([3.0, 0.0, 0.0]).max()
    assert scores.predict([[3.0, 0.0, 0.0]])["uncertainty"] == pytest.approx([mcp])


def test_samples_in_the_choice_are_those_of_the_arrays(monkeypatch):
    """What costs something is offered with its cost, features before looks; the rest is free."""
    offered = {}

    def spy(samples, costs, budget, seed, verbose):
        offered.update(costs=list(costs.items()), free=list(samples.evidence), budget=budget)
        raise InterruptedError

    monkeypatch.setattr(look_choice, "fit", spy)
    with pytest.raises(InterruptedError):
        btcp_tf.fit_scores(
            FIRST,
            LABELS,
            looks={"a": SECOND, "b": SECOND},
            features={"f": LABELS, "g": FIRST},
            costs={"b": 0.5, "g": 0},
            cost=2,
        )
    assert offered == {
        "costs": [("g", 0.0), ("a", 1.0), ("b", 0.5)],
        "free": ["answer", "f", "g"],
        "budget": 2.0,
    }


def test_no_tensorflow_is_imported(tmp_path):
    code = (
        "import sys, numpy as np, btcp_tf\n"
        "random = np.random.default_rng(0)\n"
        "y = random.integers(0, 2, 400)\n"
        "a, b = (np.eye(2)[y] + random.normal(size=(400, 2)) for _ in range(2))\n"
        "scores = btcp_tf.fit_scores(a, y, looks={'b': b}, cost=2, verbose=0)\n"
        f"scores.save({str(tmp_path / 'scores.json')!r})\n"
        f"btcp_tf.load_scores({str(tmp_path / 'scores.json')!r}).predict(a, {{'b': b}})\n"
        "print({'tensorflow', 'keras', 'torch'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


def test_a_report_shows_the_estimator_beside_mcp_and_how_it_was_fitted(
    gated, undrawn, tmp_path, capsys
):
    labels, first, second = answers(400, 20)
    found = gated.predictions(first, labels, {"second": second})
    u = gated.predict(first, {"second": second})
    assert found.labels.tolist() == labels.tolist()
    assert found.predicted.tolist() == u["predicted"].tolist()
    assert found.uncertainty["residual"].tolist() == u["uncertainty"].tolist()
    probs = special.softmax(first, axis=1)
    assert found.probs == pytest.approx(probs, abs=1e-6)
    assert found.uncertainty["mcp"] == pytest.approx(1 - probs.max(axis=1), abs=1e-6)
    evaluation.save_predictions(tmp_path / "new.npz", found)
    gated.save(tmp_path / "scores.json")
    words = [str(tmp_path / "new.npz"), "--bootstrap_draws=20"]
    assert report.main([*words, f"--fit={tmp_path / 'scores.json'}"]) == 0
    printed = "".join(capsys.readouterr().out.split())
    assert "mcp" in printed and "".join(f"residual: {gated.fit.words}".split()) in printed
    folder = tmp_path / "new.npz-report"
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "How u was fitted" in page and html.escape(gated.fit.words) in page
    assert "What each adds to MCP by itself" in page
    rows, extra = evaluation.load_rows(folder / "results.json")
    assert [row["method"] for row in rows] == ["mcp", "residual"]
    assert extra["fit"]["looks"] == ["second"] and extra["fit"]["cost"] == gated.fit.cost
    table = (folder / "report.md").read_text(encoding="utf-8")
    for value in ("second", f"{gated.fit.share:.0%}", f"{gated.fit.cost:.2f}"):
        assert value in table
    # Without the file it is a report as of any other scores.
    assert report.main(words) == 0
    assert "How u was fitted" not in (folder / "report.html").read_text(encoding="utf-8")


def test_a_fit_in_a_report_is_that_of_its_column(gated, tmp_path, capsys):
    labels, first, second = answers(60, 21)
    found = gated.predictions(first, labels, {"second": second})
    other = {"mine": found.uncertainty["residual"]}
    evaluation.save_predictions(
        tmp_path / "mine.npz", dataclasses.replace(found, uncertainty=other)
    )
    gated.save(tmp_path / "scores.json")
    (tmp_path / "other.json").write_text("{}")
    for fit, status, told in (
        ("scores.json", 1, "fit: expected scores with the column residual.*with mine"),
        ("other.json", 2, "fit: expected a file that ScoresFit.save wrote.*other.json"),
        ("none.json", 2, "fit: expected a file that ScoresFit.save wrote.*not there"),
    ):
        try:
            got = report.main([str(tmp_path / "mine.npz"), f"--fit={tmp_path / fit}"])
        except SystemExit as error:
            got = error.code
        error = capsys.readouterr().err
        assert got == status and re.search(told, error) and error.count("\n") == 1
    assert not (tmp_path / "mine.npz-report").exists()


def test_labels_of_predictions_are_checked(gated):
    labels, first, second = answers(60, 22)
    for wrong in (labels + 1, labels[:-1], labels - 0.5):
        with pytest.raises(ValueError, match="labels: expected"):
            gated.predictions(first, wrong, {"second": second})


def test_what_was_on_offer_is_printed(capsys):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 300)
    logits = np.eye(2)[labels] + random.normal(size=(300, 2))
    scores = btcp_tf.fit_scores(
        logits, labels, features={"length": random.normal(size=300)}, verbose=1
    )
    printed = capsys.readouterr().out
    assert [one.name for one in scores.fit.tried] == ["answer", "length"]
    assert "by itself, beside MCP" in printed and "length" in printed
