import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from btcp_tf import study, thresholds
from btcp_tf.data import datasets
from btcp_tf.evaluation import predictions
from btcp_tf.evaluation.results import load_rows, save_rows
from btcp_tf.experiment import cells, run, studies
from btcp_tf.experiment.studies import PAIRS
from btcp_tf.methods.registry import METHODS
from btcp_tf.reporting import drawing

pytestmark = pytest.mark.usefixtures("quick_heads")

WORDS = [
    "--dataset=digits",
    "--max_train_images=400",
    "--classifier_epochs=3",
    "--estimator_epochs=2",
    "--finetune_epochs=1",
    "--bootstrap_draws=20",
    "--mc_passes=3",
    "--seeds=2",
    "--verbose=0",
]


@pytest.fixture(autouse=True, scope="module")
def short():
    """Two ablations, each a whole run; as many test images as are scored at once; of the figures,
    which take half of the time, no pixels."""
    load = datasets.load

    def load_few(*arguments, **settings):
        found = load(*arguments, **settings)
        return dataclasses.replace(found, test=found.test.take(np.arange(200)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", load_few)
        patch.setattr(studies, "ABLATION", (("gamma", "auto"), ("epsilon", 0.2)))
        patch.setattr(drawing, "_render", lambda figure, ending: b"")
        yield


RIVALS = {name for name, method in METHODS.items() if method.rival_of}


def plan(*words):
    return studies.plan(words, study.define_flags())


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A file of images that are no digits, of another size and in color."""
    path = tmp_path_factory.mktemp("images") / "noise.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), np.uint8)
    np.savez(path, x_test=images)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, images):
    folder = tmp_path_factory.mktemp("study")
    words = [*WORDS, f"--ood={images}", "--ensemble_members=2", f"--output_dir={folder}"]
    words.append("--residual_looks=mirror")
    assert study.main(words) == 0
    return folder, words


def test_ones_own_data_names_the_folders():
    found = plan("--dataset=folder", "--data_dir=data/xrays", "--seeds=1")
    assert str(found.folder) == "runs/study-xrays"
    assert [cell.name for cell in found.cells] == [
        "xrays-seed0",
        "ablation/xrays-gamma=auto",
        "ablation/xrays-epsilon=0.2",
    ]
    assert {(cell.config.dataset, cell.config.ood) for cell in found.cells} == {("folder", ())}


def test_plans_a_run_for_each_data_set_and_seed():
    found = plan("--dataset=mnist,fashion_mnist", "--preset=fast", "--seeds=3", "--seed=4")
    assert str(found.folder) == "runs/study-mnist-fashion_mnist-fast"
    names = [cell.name for cell in found.cells if not cell.ablation]
    assert names == [f"{d}-seed{s}" for d in ("mnist", "fashion_mnist") for s in (4, 5, 6)]
    for cell in found.cells:
        assert cell.config.output_dir == str(found.folder / cell.name)
        assert cell.config.batch_size == 128
        if not cell.ablation:
            assert cell.config.shift
            assert cell.config.ood == (PAIRS[cell.config.dataset],)
            assert set(cell.config.method) == set(METHODS) - {"ensemble", *RIVALS, "residual_looks"}
    assert found.arguments == (
        "--dataset=mnist,fashion_mnist",
        "--seed=4",
        "--preset=fast",
        "--seeds=3",
    )


def test_plans_ablations_of_the_first_seed_that_change_one_setting():
    found = plan("--dataset=mnist", "--seeds=2", "--seed=7")
    base = found.cells[0].config
    ablations = [cell for cell in found.cells if cell.ablation]
    assert len(ablations) == len(studies.ABLATION)
    for cell in ablations:
        name, _, value = cell.ablation.partition("=")
        assert cell.of == "mnist-seed7"
        assert (
            float(getattr(cell.config, name)) == float(value)
            if value[0].isdigit()
            else (getattr(cell.config, name) == value)
        )
        for other in ("gamma", "epsilon", "scope", "density"):
            if other != name:
                assert getattr(cell.config, other) == getattr(base, other)
    assert not [cell for cell in plan("--dataset=mnist", "--noablation").cells if cell.ablation]


def test_plan_takes_words_over_its_own_wishes():
    found = plan(
        "--dataset=digits,mnist", "--method=mcp,btcp", "--noshift", "--ood=pair,digits,/x/no.npz"
    )
    by_data = {cell.config.dataset: cell.config for cell in found.cells if not cell.ablation}
    assert "--ood=pair,digits,/x/no.npz" in found.arguments
    assert by_data["digits"].ood == ("/x/no.npz",)
    assert by_data["mnist"].ood == ("fashion_mnist", "digits", "/x/no.npz")
    assert by_data["mnist"].method == ("mcp", "btcp") and not by_data["mnist"].shift
    assert "ensemble" in plan("--dataset=mnist", "--ensemble_members=4").cells[0].config.method
    with_looks = plan("--dataset=mnist", "--residual_cost=2").cells
    methods = set(with_looks[0].config.method)
    assert methods == set(METHODS) - {"ensemble", "ensemble_few"}
    both = plan("--dataset=mnist", "--residual_cost=2", "--ensemble_members=4").cells[0]
    assert both.config.method == tuple(METHODS)
    assert with_looks[-1].ablation and with_looks[-1].config.method == ("mcp", "btcp")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset="], "dataset: expected names of data sets, each once, received ''"),
        (["--dataset=mnist,mnist"], "each once, received 'mnist,mnist'"),
        (["--dataset=mnist,svnh"], "expected one of mnist, .* received 'svnh'"),
        (["--dataset=mnist", "--seeds=0"], "seeds"),
        (["--dataset=mnist", "--method=mcp,thresholding"], "expected tcp beside thresholding"),
        (
            ["--dataset=mnist", "--method=mcp,looks_mean"],
            "expected residual_looks beside looks_mean",
        ),
        (["--dataset=mnist", "--method=mcp,mcq"], "received 'mcq'"),
    ],
)
def test_refuses_at_once(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        study.main(words)
    assert end.value.code == 2
    import re

    assert re.search(message, capsys.readouterr().err)


def test_every_method_has_rows_of_every_task(finished):
    folder, _ = finished
    rows, extra = load_rows(folder / "results.json")
    assert extra["failed"] == {}
    # So few errors choose no look, and a note says what that means for its rivals.
    idle = {note.split(": ")[0] for note in extra["notes"] if "no rows, as residual_looks" in note}
    assert idle == RIVALS
    ran = set(METHODS) - RIVALS
    plain = [row for row in rows if not row["ablation"]]
    for seed in (0, 1):
        of_seed = [row for row in plain if row["seed"] == seed]
        frozen = {
            row["method"]
            for row in of_seed
            if (row["task"], row["stage"], row["split"]) == ("failure", "frozen", "test")
        }
        assert frozen == ran
        for task in ("ood", "joint"):
            found = {row["method"] for row in of_seed if row["task"] == task}
            assert found == ran - {"tcp_oracle"}
            assert {row["ood"] for row in of_seed if row["task"] == task} == {"noise"}
        shifted = {row["split"] for row in of_seed if row["split"] != "test"}
        assert len(shifted) == 9 and all(name.startswith("test:") for name in shifted)
    assert {row["ablation"] for row in rows} - {""} == {
        f"{name}={value}" for name, value in studies.ABLATION
    }


def test_methods_share_one_classifier_a_seed(finished):
    rows, _ = load_rows(finished[0] / "results.json")
    for seed in (0, 1):
        ids = {
            row["method"]: row["classifier_id"]
            for row in rows
            if row["seed"] == seed
            and row["stage"] == "frozen"
            and row["split"] == "test"
            and row["task"] == "failure"
            and "-" not in row["classifier_id"]
        }
        assert set(ids) == set(METHODS) - RIVALS and len(set(ids.values())) == 1
    # The ablations take the classifier of the first seed.
    first = {row["classifier_id"] for row in rows if row["ablation"]}
    assert first == {
        row["classifier_id"]
        for row in rows
        if row["seed"] == 0 and row["method"] == "tcp" and row["stage"] == "frozen"
    }


def test_ablation_with_the_runs_own_settings_is_the_runs_btcp(finished):
    rows, _ = load_rows(finished[0] / "results.json")
    base, again = (
        next(
            row
            for row in rows
            if row["method"] == "btcp"
            and row["seed"] == 0
            and row["stage"] == "frozen"
            and row["split"] == "test"
            and row["task"] == "failure"
            and row["ablation"] == ablation
        )
        for ablation in ("", "gamma=auto")
    )
    assert base["auroc"] == again["auroc"] and base["aurc"] == again["aurc"]


def test_ablations_of_a_given_classifier_need_no_checkpoint_of_it(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(run, "run", lambda config, **more: ran.append(config.classifier))
    given = tmp_path / "given.keras"
    given.touch()
    words = ["--dataset=digits", "--seeds=1", f"--output_dir={tmp_path / 'study'}"]
    words += ["--method=mcp,btcp", f"--classifier={given}", "--finetune_epochs=0"]
    planned = plan(*words).cells
    for cell in planned:
        cells.carry_out(tmp_path / "study", cell)
    assert ran == [str(given)] * len(planned) and len(planned) == 1 + len(studies.ABLATION)


def test_what_looks_cost_is_gathered_and_kept(tmp_path):
    about = {"settings": {}, "data": {}, "environment": {}, "notes": []}
    costs = {"residual_looks": 1.3}
    planned = plan(
        "--dataset=digits", "--seeds=2", f"--output_dir={tmp_path}", "--noablation"
    ).cells
    for cell, more in zip(planned, ({"costs": costs}, {}), strict=True):
        (tmp_path / cell.name).mkdir()
        rows = [{"method": "mcp", "seed": cell.config.seed}]
        save_rows(tmp_path / cell.name / "results.json", rows, about | more)
    rows, extra, _ = studies.gather(tmp_path, planned[:1])
    assert extra["costs"] == {"digits-seed0": costs}
    save_rows(tmp_path / "results.json", rows, extra)
    _, extra, _ = studies.gather(tmp_path, planned[1:])
    assert extra["costs"] == {"digits-seed0": costs}
    (tmp_path / "results.json").unlink()
    assert "costs" not in studies.gather(tmp_path, planned[1:])[1]


def test_thresholding_is_tcp_with_the_threshold_of_validation_data(finished):
    cell = finished[0] / "digits-seed0"
    rows, extra = load_rows(cell / "results.json")
    found = {
        row["method"]: row
        for row in rows
        if row["task"] == "failure" and row["split"] == "test" and row["stage"] == "frozen"
    }
    validation = predictions.load_predictions(cell / "predictions_validation.npz")
    tau = thresholds.best_bacc(validation.is_error, validation.uncertainty["tcp"]).tau
    assert found["thresholding"]["tau"] == extra["taus"]["thresholding"] == tau
    assert found["thresholding"]["auroc"] == found["tcp"]["auroc"]
    assert found["tcp"]["tau"] == 0.5


def test_means_of_many_passes_predict_for_themselves(finished):
    cell = finished[0] / "digits-seed0"
    for name in ("mc_dropout", "ensemble"):
        own = predictions.load_predictions(cell / f"predictions_{name}.npz")
        shared = predictions.load_predictions(cell / "predictions.npz")
        np.testing.assert_array_equal(own.uncertainty[name], shared.uncertainty[name])
        assert (own.probs != shared.probs).any()
        rows, _ = load_rows(cell / "results.json")
        ids = {row["classifier_id"] for row in rows if row["method"] == name}
        assert len(ids) == 2 and any(found.endswith(name) for found in ids)


def test_a_finished_study_computes_nothing_again(finished, monkeypatch):
    folder, words = finished
    results = (folder / "results.json").read_bytes()
    monkeypatch.setattr(datasets, "load", None)  # Any cell that trained or scored would need it.
    assert study.main(words) == 0
    assert (folder / "results.json").read_bytes() == results


def test_a_failed_cell_is_reported_and_stops_no_other(finished, tmp_path, capsys):
    folder, words = finished
    shutil.copytree(folder / "digits-seed1", tmp_path / "digits-seed1")
    # Seed 0 holds a damaged checkpoint.
    checkpoint = tmp_path / "digits-seed0" / "checkpoints" / "classifier.npz"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"PK")
    shutil.copy(folder / "digits-seed0" / "flags.cfg", tmp_path / "digits-seed0")
    assert study.main([*words, f"--output_dir={tmp_path}", "--noablation"]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "digits-seed0: expected a checkpoint" in last
    rows, extra = load_rows(tmp_path / "results.json")
    assert {row["seed"] for row in rows} == {1}
    assert list(extra["failed"]) == ["digits-seed0"]
    assert checkpoint.read_bytes() == b"PK"


def test_a_collapsed_cell_has_its_rows_and_is_told_by_the_status(finished, tmp_path, capsys):
    folder, words = finished
    for name in ("digits-seed0", "digits-seed1"):
        shutil.copytree(folder / name, tmp_path / name)
    path = tmp_path / "digits-seed0" / "finished.json"
    end = json.loads(path.read_text())
    assert end["collapse"] == ""
    path.write_text(json.dumps(end | {"collapse": "the classifier answers class 3"}))
    short = [*words, f"--output_dir={tmp_path}", "--noablation"]
    assert study.main(short) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "digits-seed0: the classifier answers class 3" in last and "--export_collapsed" in last
    rows, extra = load_rows(tmp_path / "results.json")
    assert {row["seed"] for row in rows} == {0, 1} and not extra["failed"]
    assert study.main([*short, "--export_collapsed"]) == 0


def test_a_smaller_plan_keeps_what_is_there(finished, tmp_path):
    folder, words = finished
    shutil.copytree(folder, tmp_path / "study")
    before, _ = load_rows(folder / "results.json")
    smaller = [*words, f"--output_dir={tmp_path}/study", "--seeds=1", "--noablation"]
    assert study.main(smaller) == 0
    after, extra = load_rows(tmp_path / "study" / "results.json")
    assert sorted(row["cell"] for row in after) == sorted(row["cell"] for row in before)
    assert {"digits-seed1", "ablation/digits-epsilon=0.2"} <= set(extra["cells"])


@pytest.mark.parametrize("content", ["{", '{"rows": [], "extra": {}}', None])
def test_damaged_results_of_a_cell_stop_no_other(finished, tmp_path, capsys, content):
    folder, words = finished
    for name in ("digits-seed0", "digits-seed1"):
        shutil.copytree(folder / name, tmp_path / name)
    path = tmp_path / "digits-seed0" / "results.json"
    path.unlink() if content is None else path.write_text(content)
    assert study.main([*words, f"--output_dir={tmp_path}", "--noablation"]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "digits-seed0: expected " in last and "results.json" in last
    assert f"delete {path.with_name('finished.json')}, and the same command makes them" in last
    rows, extra = load_rows(tmp_path / "results.json")
    assert {row["seed"] for row in rows} == {1} and list(extra["failed"]) == ["digits-seed0"]


def test_leaves_a_report(finished):
    folder, _ = finished
    assert {"report.html", "report.md", "tables", "figures"} <= {p.name for p in folder.iterdir()}
    assert json.loads((folder / "results.json").read_text())["extra"]["command"][0].endswith(
        "study"
    )


def test_a_given_classifier_is_checked_in_every_run(tmp_path, capsys):
    digits = datasets.load("digits")
    flat = digits.train.images.reshape(len(digits.train), -1) / 255
    regression = LogisticRegression(max_iter=200).fit(flat, digits.train.labels)
    last = keras.layers.Dense(10)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), last])
    last.set_weights([regression.coef_.T, regression.intercept_])
    model.save(tmp_path / "right.keras")
    last.set_weights([np.roll(regression.coef_.T, 1, axis=1), np.roll(regression.intercept_, 1)])
    model.save(tmp_path / "shifted.keras")
    short = ["--dataset=digits", "--seeds=1", "--method=mcp,btcp", "--finetune_epochs=0"]
    short += ["--estimator_epochs=1", "--bootstrap_draws=5", "--noshift", "--verbose=0"]
    wrong = [*short, f"--classifier={tmp_path}/shifted.keras", f"--output_dir={tmp_path}/wrong"]
    assert study.main(wrong) == 1
    assert "digits-seed0: classifier: expected one that can be right" in capsys.readouterr().err
    # Of the ablations, too, there is nothing to copy: the file is theirs.
    right = [*short, f"--classifier={tmp_path}/right.keras", f"--output_dir={tmp_path}/right"]
    assert study.main(right) == 0
    rows, extra = load_rows(tmp_path / "right" / "results.json")
    assert extra["failed"] == {}
    assert {row["ablation"] for row in rows} == {"", "gamma=auto", "epsilon=0.2"}
