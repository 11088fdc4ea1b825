"""Rows that belong together: in splits, folds, intervals, promises, files and the judge."""

import dataclasses
import json

import fresh
import keras
import numpy as np
import pandas
import pytest
import short_run
from PIL import Image

import btcp_tf
from btcp_tf import main, metrics, monitor, report, set_threshold, thresholds
from btcp_tf.core import checks, groups
from btcp_tf.data import datasets
from btcp_tf.data.splits import Split, draw_test, split_train
from btcp_tf.decisions import exported, scores
from btcp_tf.evaluation import keys, predictions, results
from btcp_tf.experiment import settings
from btcp_tf.methods import residual_choice, stacking
from btcp_tf.methods.stacking import Samples
from btcp_tf.serving import scorer

REPEATS = 5
"""Rows of a group, all alike."""


def clustered(n, seed):
    """Whether answers are wrong and their u, `[n · REPEATS]`, and the groups, in random order."""
    random = np.random.default_rng(seed)
    u = random.random(n)
    wrong = random.random(n) < u**2
    order = random.permutation(n * REPEATS)
    return tuple(np.repeat(column, REPEATS)[order] for column in (wrong, u, np.arange(n)))


# --- the functions ---


@pytest.mark.parametrize(
    "names, told",
    [
        ([0.5, 1.5], "expected whole numbers or strings, one a row, received float64"),
        (["a", "b", "c"], r"expected shape \[2\], received \[3\]"),
        (["a", "a"], "expected at least 2 groups, received one of all 2 rows"),
        ([None, "a"], "expected whole numbers or strings"),
    ],
)
def test_groups_are_checked(names, told):
    with pytest.raises(ValueError, match=f"groups: {told}"):
        groups.numbers(names, 2)


def test_one_row_of_each_group_is_drawn_any_of_them():
    together = np.array([2, 0, 0, 1, 2, 0])
    drawn = [groups.one_of_each(together, seed) for seed in range(200)]
    assert all(sorted(together[rows]) == [0, 1, 2] for rows in drawn)
    assert {int(row) for rows in drawn for row in rows} == set(range(6))


def test_the_standard_error_is_that_of_the_groups():
    """Rows that are copies of each other say no more than one of them."""
    wrong, _, together = clustered(400, 0)
    _, first = np.unique(together, return_index=True)
    alone = groups.mean_error(wrong[first].astype(float), None)
    assert groups.mean_error(wrong.astype(float), together) == pytest.approx(alone)
    assert groups.mean_error(wrong.astype(float), None) == pytest.approx(alone / REPEATS**0.5)


def test_a_draw_of_the_bootstrap_consists_of_whole_groups():
    wrong, u, together = clustered(40, 1)
    names = np.array([f"patient {number}" for number in together])
    drawn = metrics.bootstrap(wrong, {"u": u}, tau=0.5, draws=20, seed=3, groups=names)
    random = np.random.default_rng(3)
    members = [np.flatnonzero(names == name) for name in np.unique(names)]
    for draw in range(20):
        rows = np.concatenate([members[one] for one in random.integers(0, 40, 40)])
        expected = metrics.evaluate_all(wrong[rows], u[rows], tau=0.5)
        for name, value in expected.items():
            np.testing.assert_allclose(drawn["u"][name][draw], value, err_msg=name)


def test_parts_and_groups_of_the_bootstrap():
    """Each part has its own groups."""
    target = np.repeat([0, 1], [6, 4])
    together = np.array([0, 0, 0, 1, 1, 1, 2, 3, 4, 5])
    u = np.where(target, 0.9, np.arange(10) / 20)
    drawn = metrics.bootstrap(
        target, {"u": u}, tau=0.5, draws=50, seed=0, parts=[6, 4], groups=together
    )
    table = drawn["u"]
    # All rows of the second part are rejected, and there are some in each draw.
    assert (table["auroc"] == 1.0).all()


def test_intervals_of_copies_are_those_of_one_of_each():
    wrong, u, together = clustered(300, 2)
    _, first = np.unique(together, return_index=True)

    def width(rows, names):
        drawn = metrics.bootstrap(wrong[rows], {"u": u[rows]}, tau=0.5, draws=300, seed=0, **names)
        low, high = metrics.interval(drawn["u"]["auroc"])
        return high - low

    every = np.arange(len(u))
    alone = width(first, {})
    assert width(every, {"groups": together}) == pytest.approx(alone, rel=0.2)
    assert width(every, {}) < 0.6 * alone


def test_a_promise_counts_each_group_once():
    """Copies that count as rows of their own break the promise far more often than delta."""
    broken = {"rows": 0, "groups": 0}
    trials, risk, delta = 300, 0.1, 0.1
    grid = np.linspace(0.01, 1.0, 100)
    for seed in range(trials):
        wrong, u, together = clustered(120, seed)
        for name, more in (("rows", {}), ("groups", {"groups": together})):
            chosen = thresholds.target_risk(
                wrong, u, risk=risk, delta=delta, grid=grid, min_coverage=0, **more
            )
            # The error rate of accepted answers, where an answer of u is wrong with u².
            if chosen.tau is not None and chosen.tau**2 / 3 > risk:
                broken[name] += 1
    assert broken["groups"] <= trials * delta + 3 * (trials * delta * (1 - delta)) ** 0.5
    assert broken["rows"] > 2 * trials * delta


def test_the_threshold_says_how_many_groups_it_was_chosen_on():
    wrong, u, together = clustered(200, 5)
    chosen = thresholds.choose("target_risk", wrong, u, risk=0.2, delta=0.1, groups=together)
    assert chosen.n == 200 and ", of a row of each of 200 groups" in chosen.rule
    with pytest.raises(ValueError, match="best_bacc: expected the settings none, received groups"):
        thresholds.choose("best_bacc", wrong, u, groups=together)


def samples_of(n, seed, together=True):
    wrong, u, names = clustered(n, seed)
    z = np.log(u / (1 - u))[:, None]
    random = np.random.default_rng(seed)
    # The group's number, scrambled: by it rows of a known group are known.
    code = random.normal(size=(n, 6))[names]
    return Samples(
        wrong, z, {"answer": code}, np.zeros(len(u), int), None, groups=names if together else None
    )


def test_no_fold_parts_a_group():
    samples = samples_of(60, 0)
    for train, test in stacking.splits(samples, 0):
        assert not set(samples.groups[train]) & set(samples.groups[test])
        assert samples.is_error[train].any() and samples.is_error[test].any()


def test_evidence_that_knows_the_group_alone_is_not_used():
    """It tells wrong answers only where other rows of the group were learned from."""
    how = {}
    for together in (True, False):
        evidence = {"answer": np.eye(60)[samples_of(60, 1).groups]}
        one = dataclasses.replace(samples_of(60, 1, together), evidence=evidence)
        how[together] = residual_choice.choose(one, 0).fit.evidence
    assert how == {True: (), False: ("answer",)}


def test_few_groups_with_errors_are_too_few():
    wrong = np.repeat([True, False], [30, 60])
    together = np.repeat(np.arange(12), [10, 10, 10, 10, 10, 10, 5, 5, 5, 5, 5, 5])
    samples = Samples(wrong, np.zeros((90, 1)), {}, np.zeros(90, int), None, groups=together)
    few = residual_choice.too_few(samples)
    assert few.words == "3 groups with wrong answers are too few to learn from: u is MCP"
    assert residual_choice.too_few(dataclasses.replace(samples, groups=None)) is None


def test_fit_scores_takes_groups():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 300)
    logits = 2.0 * np.eye(2)[labels] + random.normal(size=(300, 2)) * 1.5
    rows = np.repeat(np.arange(300), REPEATS)
    with_groups, without = (
        btcp_tf.fit_scores(logits[rows], labels[rows], verbose=0, **settings)
        for settings in ({"groups": rows}, {})
    )

    def width(scores):
        _, low, high = scores.fit.difference["aurc"]
        return high - low

    assert width(with_groups) > 1.3 * width(without)
    with pytest.raises(ValueError, match=r"groups: expected shape \[1500\], received \[3\]"):
        btcp_tf.fit_scores(logits[rows], labels[rows], groups=[1, 2, 3], verbose=0)


# --- files ---


def answers(n=80, seed=0):
    wrong, u, names = clustered(n, seed)
    labels = np.zeros(len(u), np.int64)
    together = np.array([f"p{number}" for number in names])
    return predictions.Predictions(labels, None, wrong.astype(np.int64), {"u": u}, together)


def row_of(given):
    [row] = results.rows(
        given,
        dataset="",
        seed=0,
        stage="",
        classifier_id="",
        split="",
        tau=0.5,
        bootstrap_draws=200,
        bootstrap_seed=0,
    )
    return row


def test_predictions_keep_their_groups(tmp_path):
    given = answers()
    predictions.save_predictions(tmp_path / "p.npz", given)
    table = tmp_path / "p.csv"
    lines = zip(given.labels, given.predicted, given.uncertainty["u"], given.groups, strict=True)
    table.write_text(
        "labels,predicted,u,groups\n" + "".join(",".join(map(str, line)) + "\n" for line in lines)
    )
    for path in (tmp_path / "p.npz", table):
        found = predictions.load_predictions(path)
        assert list(found.uncertainty) == ["u"]
        assert found.groups.tolist() == given.groups.tolist()
        assert row_of(found)["auroc_low"] == pytest.approx(row_of(given)["auroc_low"])


def test_rows_of_results_draw_whole_groups():
    given = answers(200)
    alone = dataclasses.replace(given, groups=None)

    def width(one):
        return row_of(one)["auroc_high"] - row_of(one)["auroc_low"]

    assert width(given) > 1.5 * width(alone)


def test_monitor_tests_one_row_of_each_group(tmp_path):
    """Ten copies of one wrong patient do not break a promise; the drift of u is tested likewise."""
    random = np.random.default_rng(4)
    baseline = random.random(400)
    wrong = random.random(400) < baseline**2
    labels = np.zeros(400, np.int64)
    given = predictions.Predictions(labels, None, wrong.astype(np.int64), {"uncertainty": baseline})
    predictions.save_predictions(tmp_path / "baseline.npz", given)
    u = np.repeat(random.random(60), 10)
    u[:300] *= 0.3  # Thirty patients are surer than the others.
    lines = ["input,labels,predicted,uncertainty,groups"]
    lines += [f"i{i},{int(i < 60)},0,{value:.6f},p{i // 10}" for i, value in enumerate(u)]
    (tmp_path / "grouped.csv").write_text("\n".join(lines) + "\n")
    alone = [line.rpartition(",")[0] for line in lines]
    (tmp_path / "alone.csv").write_text("\n".join(alone) + "\n")
    found = {}
    for name in ("grouped", "alone"):
        words = [f"--baseline={tmp_path}/baseline.npz", f"--scores={tmp_path}/{name}.csv"]
        monitor.main([*words, "--tau=0.5", "--risk=0.05"])
        found[name] = json.loads((tmp_path / f"{name}.csv-monitor" / "monitor.json").read_text())
    assert found["alone"]["promise"]["verdict"] == "broken"
    assert found["grouped"]["promise"]["labeled"] == 60
    assert any("one of each is tested" in note for note in found["grouped"]["notes"])


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "npz"])
def test_a_row_without_a_group_is_an_error(tmp_path, ending):
    """All of them as one group would count far too little, as none of them far too much."""
    path = tmp_path / f"s.{ending}"
    rows = [
        {"labels": i % 2, "predicted": 0, "uncertainty": 0.1 * i, "groups": name}
        for i, name in enumerate(["a", "", "b", "", "c"])
    ]
    if ending == "csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    elif ending == "jsonl":
        path.write_text(
            "".join(json.dumps(row | {"groups": row["groups"] or None}) + "\n" for row in rows)
        )
    elif ending == "parquet":
        pandas.DataFrame([row | {"groups": row["groups"] or None} for row in rows]).to_parquet(path)
    else:
        np.savez(path, **{name: np.array([row[name] for row in rows]) for name in rows[0]})
    for read in (predictions.load_predictions, scores.load_scores):
        with pytest.raises(
            ValueError, match="groups: expected a (group|name in every row), received none"
        ):
            read(path)


def test_groups_of_a_type_that_is_none_are_an_error(tmp_path):
    table = pandas.DataFrame({"labels": [0, 1], "predicted": [0, 1], "uncertainty": [0.1, 0.2]})
    for name, told in (("groups", "groups"), ("site", "site"), ("other", None)):
        path = tmp_path / f"{name}.parquet"
        table.assign(**{name: [b"a", b"b"]}).to_parquet(path)
        by = "site" if name == "site" else ""
        for read in (predictions.load_answers, scores.load_scores):
            if told is None:
                read(path)
                continue
            with pytest.raises(ValueError, match=f"{told}: expected|column {told}, received"):
                read(path, by=by)


def grouped_file(tmp_path):
    """Two sites of 40 patients with 10 equal answers each."""
    wrong, u, patient = clustered(80, 3)
    given = {"labels": np.zeros(len(u), int), "predicted": wrong.astype(int), "uncertainty": u}
    path = tmp_path / "s.csv"
    pandas.DataFrame(given | {"groups": patient, "site": patient % 2}).to_csv(path, index=False)
    return path


def test_a_report_by_site_counts_each_patient_once(tmp_path, capsys):
    path = grouped_file(tmp_path)
    assert report.main([str(path), "--by=site", "--risk=0.4", "--delta=0.2"]) == 0
    found = json.loads((tmp_path / "s.csv-report" / "results.json").read_text())["extra"]["groups"]
    assert [one["n"] for one in found["outcomes"].values()] == [40, 40]
    assert [one["n"] for one in found["thresholds"].values()] == [40, 40]
    assert report.main([str(path), "--by=groups"]) == 1
    assert "by: expected another column than groups" in capsys.readouterr().err


def test_the_interval_of_a_threshold_is_that_of_one_row_of_each_group():
    wrong, u, names = clustered(100, 4)
    threshold = thresholds.given(wrong, u, tau=0.6)
    rows = groups.one_of_each(groups.numbers(names, len(u)))
    alone = thresholds.outcome(threshold, wrong[rows], u[rows])
    found = thresholds.outcome(threshold, wrong, u, groups=names)
    assert (found.low, found.high) == (alone.low, alone.high)
    assert found.n == len(u) and found.errors == thresholds.outcome(threshold, wrong, u).errors


def test_monitor_takes_the_first_labels_of_one_group(tmp_path):
    """The first patient of a day is no error."""
    baseline = predictions.Predictions(
        np.zeros(50, int), None, np.arange(50) % 5 // 4, {"uncertainty": np.arange(50) / 50}
    )
    predictions.save_predictions(tmp_path / "b.npz", baseline)
    lines = ["input,labels,predicted,uncertainty,groups", "a,0,0,0.1,p1", "b,,0,0.2,p2"]
    for number, more in enumerate((lines, lines[:2])):
        path = tmp_path / f"s{number}.csv"
        path.write_text("\n".join(more) + "\n")
        words = [f"--baseline={tmp_path}/b.npz", f"--scores={path}", "--tau=0.5", "--risk=0.3"]
        assert monitor.main(words) == 0


# --- data sets ---


def grouped(n, of):
    images = np.arange(n, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 1), np.uint8)
    return Split(images, np.arange(n) % 2, groups=np.arange(n) // of)


@pytest.mark.parametrize("of", [1, 3, 7])
def test_groups_stay_in_one_part(of):
    train, test = draw_test(grouped(210, of), seed=0)
    parts = {**split_train(train, 0, 0), "test": test}
    seen = [set(part.groups) for part in parts.values()]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 210 // of
    assert sum(len(part) for part in parts.values()) == 210
    assert abs(len(test) - 42) < of and abs(len(parts["validation"]) - 16) <= of + 1


def test_an_npz_file_says_which_images_belong_together(tmp_path):
    random = np.random.default_rng(0)
    arrays = {}
    for part, n, first in (("train", 200, 0), ("test", 40, 100)):
        arrays[f"x_{part}"] = random.integers(0, 256, (n, 6, 6), np.uint8)
        arrays[f"y_{part}"] = np.arange(n) % 2
        arrays[f"groups_{part}"] = np.array([f"p{first + i // 4}" for i in range(n)])
    path = tmp_path / "d.npz"
    np.savez(path, **arrays)
    dataset = datasets.load("npz", str(path))
    parts = (dataset.train, dataset.validation, dataset.calibration, dataset.test)
    seen = [set(part.groups) for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 60

    np.savez(path, **{**arrays, "groups_test": arrays["groups_train"][:40]})
    with pytest.raises(ValueError, match=r"received 10 in several, such as 'p0' in train and test"):
        datasets.load("npz", str(path))
    np.savez(path, **{name: array for name, array in arrays.items() if name != "groups_test"})
    with pytest.raises(ValueError, match="groups: expected those of all parts, received none of"):
        datasets.load("npz", str(path))
    np.savez(path, **{**arrays, "groups_test": np.arange(3)})
    with pytest.raises(ValueError, match=r"groups_test: expected shape \[40\], received \[3\]"):
        datasets.load("npz", str(path))


def test_names_of_files_say_which_images_belong_together(tmp_path):
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for person in range(20):
            for view in range(3):
                pixels = random.integers(0, 256, (6, 6), np.uint8)
                file = tmp_path / name / f"person{name}{person}_{view}.png"
                Image.fromarray(pixels).save(file)
    dataset = datasets.load("folder", str(tmp_path), groups=r"person([a-z0-9]+)_")
    parts = (dataset.train, dataset.validation, dataset.calibration, dataset.test)
    seen = [set(part.groups) for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 40
    assert "cat3" in set().union(*seen)
    with pytest.raises(ValueError, match="groups: expected 'nobody' to find something in the name"):
        datasets.load("folder", str(tmp_path), groups="nobody")


def test_a_run_of_a_folder_takes_groups_whatever_its_threshold(tmp_path):
    """And files that are no images need none where they are skipped."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "readme.txt").write_text("x")
        for number in range(30):
            pixels = random.integers(0, 256, (6, 6), np.uint8)
            Image.fromarray(pixels).save(
                tmp_path / name / f"person{name}{number // 3}_{number}.png"
            )
    words = ["--dataset=folder", f"--data_dir={tmp_path}", r"--groups=person([a-z0-9]+)_"]
    config = settings.parse([*words, "--threshold=best_bacc"])
    assert config.groups == "person([a-z0-9]+)_"
    dataset = datasets.load("folder", str(tmp_path), groups=config.groups, bad_files="skip")
    assert "whole groups drawn by seed" in dataset.note
    with pytest.raises(ValueError, match="nothing in readme.txt"):
        datasets.load("folder", str(tmp_path), groups=config.groups)


@pytest.mark.parametrize(
    "words, told",
    [
        (["--groups=("], "groups: expected a regular expression, received '('"),
        (["--dataset=digits", "--groups=a"], "groups: expected none but with --dataset=folder"),
    ],
)
def test_the_setting_is_checked(tmp_path, words, told, capsys):
    words = ["--dataset=folder", f"--data_dir={tmp_path}", *words]
    with pytest.raises(SystemExit):
        main.main([*words, f"--output_dir={tmp_path}/run"])
    assert told in capsys.readouterr().err


# --- a judge ---


@pytest.fixture(scope="module")
def classifier():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    model.layers[-1].set_weights([np.eye(2, dtype=np.float32), np.zeros(2, np.float32)])
    return model


def people(n, seed):
    random = np.random.default_rng(seed)
    y = np.repeat(random.integers(0, 2, n), REPEATS)
    x = 2.0 * np.eye(2)[y] + np.repeat(random.normal(size=(n, 2)) * 1.5, REPEATS, axis=0)
    x += random.normal(size=x.shape) * 0.01
    return x.astype(np.float32), y, np.array([f"p{seed}-{i}" for i in range(n)]).repeat(REPEATS)


def test_a_judge_takes_groups_from_fit_to_the_saved_model(classifier, tmp_path, quick_checks):
    judge = btcp_tf.attach(classifier)
    x, y, names = people(300, 0)
    judge.fit(x, y, groups=names, looks=["jitter"], cost=2.0, verbose=0)
    narrow = btcp_tf.attach(classifier).fit(x, y, looks=["jitter"], cost=2.0, verbose=0)

    def width(one):
        _, low, high = one.fitted["difference"]["aurc"]
        return high - low

    assert width(judge) > 1.3 * width(narrow)
    x, y, names = people(250, 1)
    chosen = judge.select_threshold(x, y, rule="target_risk", risk=0.3, delta=0.1, groups=names)
    assert chosen.n == 250
    version = judge.export(tmp_path / "models", "m", x[:4])
    kept = exported.read_held_out(version)["calibration"]
    assert len(set(kept.groups)) == 250
    words = [str(version), "--threshold=target_risk", "--risk=0.35", "--delta=0.1"]
    assert set_threshold.main(words) == 0
    about = json.loads((version.parent / "2" / exported.ABOUT_FILE).read_text())
    assert about["threshold"]["n"] == 250

    wide, alone = (judge.evaluate(x, y, draws=200, **more)[1] for more in ({"groups": names}, {}))
    assert wide["auroc_high"] - wide["auroc_low"] > 1.5 * (alone["auroc_high"] - alone["auroc_low"])
    text = pandas.Series(names, dtype="string")
    kept = judge.predictions(x, y, groups=text)
    assert kept.groups.tolist() == names.tolist()
    predictions.save_predictions(tmp_path / "p.npz", kept)


def test_a_judge_refuses_groups_that_do_not_fit(classifier):
    judge = btcp_tf.attach(classifier)
    x, y, names = people(20, 0)
    calls = {
        "fit": lambda **more: judge.fit(x, y, verbose=0, **more),
        "evaluate": lambda **more: judge.evaluate(x, y, **more),
        "predictions": lambda **more: judge.predictions(x, y, **more),
        "select_threshold": lambda **more: judge.select_threshold(
            x, y, rule="target_risk", risk=0.1, delta=0.1, **more
        ),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=r"groups: expected shape \[100\], received \[3\]"):
            call(groups=names[:3])
    fold = (classifier, (x, y), None)
    with pytest.raises(ValueError, match="groups: expected none beside folds, received some"):
        judge.fit(x, y, groups=names, folds=[fold], verbose=0)


# --- a run ---


def test_a_run_keeps_groups_together(tmp_path):
    digits = datasets.load("digits")
    arrays = {}
    for part, split in (("train", digits.train), ("test", digits.test)):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = split.images, split.labels
        arrays[f"groups_{part}"] = np.array([f"{part}{i // 3}" for i in range(len(split))])
    path = tmp_path / "d.npz"
    np.savez(path, **arrays)
    words = short_run.words(
        tmp_path,
        "--dataset=npz",
        f"--data_dir={path}",
        "--method=mcp,residual",
        "--classifier_epochs=2",
        "--residual_folds=2",
        "--ood=",
        "--threshold=target_risk",
        "--risk=0.3",
        "--delta=0.2",
        "--min_coverage=0",
    )
    done = fresh.run("-m", "btcp_tf.main", *words)
    assert done.returncode == 0, done.stderr
    for part in ("validation", "calibration", "test"):
        file = keys.predictions_file(keys.ImageSet(part), keys.CLASSIFIER)
        assert predictions.load_predictions(tmp_path / "run" / file).groups is not None
    decision = json.loads((tmp_path / "run" / "decision.json").read_text())
    assert " groups" in decision["threshold"]["rule"]


# Long names.


def test_names_of_groups_are_at_most_1000_characters(tmp_path):
    """Each entry of an array of text takes the room of the longest one: 20,000 rows would take
    8 GB here."""
    long, told = (
        100_000 * "a",
        "row 1: expected a name of at most 1,000 characters, received one of",
    )
    names = ["b", long, *20_000 * ["c"]]
    for given in (names, np.array(names, object), np.array(names[:4])):
        for check in (
            lambda given=given: groups.numbers(given, len(given)),
            lambda given=given: checks.group_names("by", given, len(given)),
        ):
            with pytest.raises(ValueError, match=told):
                check()
    # An array that only could hold longer ones.
    wide = np.array(["b", 1000 * "a"], "U5000")
    assert groups.numbers(wide, 2).tolist() == [1, 0]
    assert checks.group_names("by", wide, 2).tolist() == ["b", 1000 * "a"]
    lines = [
        "predicted,uncertainty,labels,site,groups",
        *(f"0,0.{n}1,0,{n % 2},{n}" for n in range(9)),
    ]
    for column in ("site", "groups"):
        row = {"site": "0", "groups": "0", column: long}
        lines[3] = f"0,0.5,0,{row['site']},{row['groups']}"
        (tmp_path / "s.csv").write_text("\n".join(lines))
        with pytest.raises(ValueError, match=f"{column}: expected a name of at most 1,000 char"):
            predictions.load_answers(tmp_path / "s.csv", by="site")


def test_a_model_does_not_answer_a_row_of_a_group_with_a_long_name():
    names, problem = scorer._group_names(np.array(["a", 1001 * "b", 1000 * "c"], object))
    assert problem[1].startswith(
        "expected a name of at most 1,000 characters, received one of 1,001"
    )
    assert names.tolist() == ["a", "", 1000 * "c"] and problem[0] == problem[2] == ""
