import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st

import btcp_tf
from btcp_tf.core import command
from btcp_tf.core.command import _HEADINGS, UsageError
from btcp_tf.core.config import Config, setting
from btcp_tf.data.catalog import DATASETS
from btcp_tf.experiment.settings import (
    define_flags,
    differences,
    flags_dir,
    load_flagfile,
    parse,
    save_flagfile,
)

FIELDS = dataclasses.fields(Config)
CHECKOUT = Path(__file__).resolve().parents[2]

# The supplement's table: batch, epochs of the three phases, feature dimension, encoder.
SUPPLEMENT = {
    "cifar10": (64, 15, 150, 15, 256, "vgg16"),
    "cifar100": (128, 170, 170, 17, 512, "vgg16"),
    "svhn_cropped": (64, 100, 100, 10, 256, "svhn"),
    "mnist": (32, 50, 50, 5, 128, "small"),
    "fashion_mnist": (32, 20, 100, 20, 128, "small"),
}


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"--flagfile={path}"


def refused(capsys, *words):
    """The one line on stderr with which a command line is refused."""
    with pytest.raises(SystemExit) as ended:
        parse(list(words))
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize("dataset", SUPPLEMENT)
def test_a_data_sets_file_holds_the_supplements_table(dataset):
    config = parse([f"--dataset={dataset}"])
    assert (
        config.batch_size,
        config.classifier_epochs,
        config.estimator_epochs,
        config.finetune_epochs,
        config.feature_dim,
        config.encoder,
    ) == SUPPLEMENT[dataset]
    rates = config.learning_rate, config.estimator_learning_rate, config.finetune_learning_rate
    assert rates == (1e-3, 1e-3, 1e-4)
    assert (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (config.schedule, config.gamma, config.test_batch_size) == ("constant", "auto", 1024)


def test_every_data_set_has_a_file_that_names_it():
    for dataset in DATASETS:
        assert load_flagfile(flags_dir() / f"{dataset}.cfg")["dataset"] == dataset


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("preset", ["smoke", "quick", "fast"])
def test_every_preset_fits_every_data_set(dataset, preset):
    config = parse([f"--dataset={dataset}", f"--preset={preset}"])
    assert config.output_dir == f"runs/{dataset}-{preset}-seed0"
    saved = load_flagfile(flags_dir() / f"{preset}.cfg")
    assert saved and saved.items() <= config.settings().items()


def test_later_words_win_over_preset_over_data_set_over_defaults(tmp_path):
    table = parse(["--dataset=cifar10"])
    assert table.encoder == "vgg16"
    smoke = parse(["--dataset=cifar10", "--preset=smoke"])
    assert (smoke.max_train_images, smoke.encoder) == (600, "vgg16")

    file = write(tmp_path / "mine.cfg", "--classifier_epochs=7", "--estimator_epochs=8")
    config = parse(
        ["--estimator_epochs=3", file, "--classifier_epochs=4", "--preset=smoke", "--dataset=mnist"]
    )
    # The file stands after one word and before the other.
    assert (config.estimator_epochs, config.classifier_epochs) == (8, 4)
    assert (config.finetune_epochs, config.max_train_images) == (1, 600)


def test_a_setting_of_another_way_to_a_threshold_is_refused(tmp_path, capsys):
    words = ["--dataset=digits", "--threshold=target_coverage"]
    message = refused(capsys, *words, "--risk=0.05")
    assert "risk: expected only with --threshold=target_risk, received it with" in message
    assert "error_cost: expected only with" in refused(
        capsys, "--dataset=digits", "--threshold=0.3", "--error_cost", "2"
    )
    # By default it is best_bacc.
    assert "--threshold=best_bacc" in refused(capsys, "--dataset=digits", "--coverage=0.9")
    assert parse([*words, "--coverage=0.8"]).coverage == 0.8
    # The promises in a run's report have these two.
    assert parse([*words, "--delta=0.1", "--min_coverage=0.5"]).delta == 0.1
    # The file of a run holds all settings, those of other ways among them.
    save_flagfile(
        parse(["--dataset=digits", "--threshold=target_risk", "--risk=0.02"]),
        tmp_path / "flags.cfg",
    )
    config = parse([f"--flagfile={tmp_path}/flags.cfg", "--threshold=best_bacc"])
    assert (config.threshold, config.risk) == ("best_bacc", 0.02)
    file = write(tmp_path / "mine.cfg", "--threshold=target_risk")
    assert parse(["--dataset=digits", "--risk=0.02", file]).risk == 0.02


def test_a_flag_file_may_name_the_data_set_and_the_preset(tmp_path):
    inner = write(tmp_path / "inner.cfg", "--preset=smoke", "--seed=3")
    outer = write(
        tmp_path / "outer.cfg", "# A note.", "", "// Another.", "--dataset=cifar10", inner
    )
    config = parse([outer, "--seed", "4"])
    assert (config.dataset, config.encoder, config.max_train_images) == ("cifar10", "vgg16", 600)
    assert (config.seed, config.output_dir) == (4, "runs/cifar10-smoke-seed4")


def test_the_default_finetune_method_follows_method(capsys):
    assert parse(["--dataset=digits", "--method=mcp,tcp"]).finetune_method == ()
    assert parse(["--dataset=digits"]).finetune_method == ("btcp",)
    message = refused(capsys, "--dataset=digits", "--method=mcp,tcp", "--finetune_method=btcp")
    assert "finetune_method: expected names among method=mcp,tcp, received btcp" in message


def test_forms_of_words():
    config = parse(
        ["--dataset", "digits", "-seed=2", "--method= mcp , btcp", "--export_collapsed", "--tau=1"]
    )
    assert (config.seed, config.method, config.tau) == (2, ("mcp", "btcp"), 1.0)
    assert config.export_collapsed is True
    assert parse(["--dataset=digits", "--noexport_collapsed"]).export_collapsed is False


@pytest.mark.parametrize("word, size", [("", None), ("64", (64, 64)), ("48x64", (48, 64))])
def test_image_size_is_a_side_or_height_and_width(word, size):
    assert parse(["--dataset=digits", f"--image_size={word}"]).size == size


def test_ones_own_data_needs_no_flag_file_and_names_the_run():
    config = parse(["--dataset=folder", "--data_dir=~/data/xrays/"])
    assert config.data_dir == os.path.expanduser("~/data/xrays")
    assert config.output_dir == "runs/xrays-seed0"
    assert config == Config("folder", data_dir=config.data_dir, output_dir=config.output_dir)
    config = parse(["--dataset=npz", "--data_dir=letters.npz", "--preset=smoke"])
    assert (config.output_dir, config.max_train_images) == ("runs/letters-smoke-seed0", 600)


def test_a_prepared_data_set_needs_no_flag_file(tmp_path, capsys):
    words = ["--dataset=fast", f"--data_dir={tmp_path}"]
    told = refused(capsys, *words)
    assert (
        f"or a name with <name>/<version>/dataset_info.json in {tmp_path}, received 'fast'" in told
    )
    (tmp_path / "fast" / "1.0.0").mkdir(parents=True)
    (tmp_path / "fast" / "1.0.0" / "dataset_info.json").touch()
    # Not with the settings of the preset that is called so.
    assert parse(words) == Config("fast", data_dir=str(tmp_path), output_dir="runs/fast-seed0")


def test_runs_on_other_data_of_ones_own_differ(tmp_path):
    path = tmp_path / "flags.cfg"
    for dataset, different in (("npz", ["data_dir"]), ("digits", [])):
        save_flagfile(Config(dataset, data_dir="a/x.npz"), path)
        other = Config(dataset, data_dir="b/x.npz")
        assert differences(other, load_flagfile(path)) == different


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--dataset=minst"],
            "dataset: expected one of .*mnist.*, received 'minst'; did you mean mnist\\?",
        ),
        ([], "dataset: expected one of .*digits.*, received none"),
        (["--dataset=digits", "--preset=smoky"], "preset: expected one of fast, quick, smoke, .*"),
        (["--dataset=digits", "--preset=mnist"], "preset: expected one of fast, quick, smoke, .*"),
        (["--dataset=digits", "--bacht_size=1"], ".* --bacht_size; did you mean batch_size\\?"),
        (
            ["--dataset=digits", "--epochs=3"],
            ".* --epochs; did you mean classifier_epochs or estimator_epochs or finetune_epochs\\?",
        ),
        (["--dataset=digits", "--lr=0.1"], ".* --lr; did you mean learning_rate\\?"),
        (["--dataset=digits", "--model=my.keras"], ".* --model; did you mean classifier\\?"),
        # absl looks for a similar name by a recursion for each letter.
        (
            [f"--{'e' * 1500}=1"],
            r"expected a flag of this command .* --'e+…e+' \(1,500 characters\)",
        ),
        (["--dataset=digits", "--colour=red"], "expected a flag of this command .* --colour"),
        (["--dataset=svhn"], "dataset: .*, received 'svhn'; did you mean svhn_cropped\\?"),
        (["--dataset=digits", "--tau=0.1_5"], "tau: expected a finite number .*, received '0.1_5'"),
        (["--dataset=digits", "--tau=٠.٥"], "tau: expected a finite number .*, received '٠.٥'"),
        (["--dataset=digits", "--seed=1_0"], "seed: expected a whole number .*, received '1_0'"),
        (["--dataset=digits", "--seed=one"], "seed: expected a whole number .*, received 'one'"),
        (["--dataset=digits", "--epsilon=2"], "epsilon: expected .* <= 1, received '2'"),
        (["--dataset=digits", "--density=fine"], "density: expected one of window, bins, .*"),
        (
            ["--dataset=digits", "--export_collapsed=often"],
            "export_collapsed: expected true or false, received 'often'",
        ),
        (
            ["--dataset=digits", "--method=entropy,knn"],
            "method: expected among them one that a SavedModel can answer, .*mcp.*, received "
            "entropy,knn",
        ),
        (
            ["--dataset=digits", "--method=mcp,knn,residual", "--export_method=knn"],
            "export_method: expected auto, or one of .*, mcp, residual, received knn",
        ),
        (
            ["--dataset=digits", "--method=mcp,btcp", "--export_method=residual"],
            "export_method: expected auto, or one of .*, mcp, btcp, received residual",
        ),
        (["--dataset=digits", "--tau"], ".*--tau"),
        (["--dataset=digits", "--method=mcp,best"], "method: expected one of mcp.*'best'"),
        (["--dataset=digits", "--finetune_method=mcp"], "finetune_method: expected one of .*'mcp'"),
        (["--dataset=digits", "--logical_devices=2"], "logical_devices: expected 0 .* received 2"),
        (["--dataset=digits", "mnist"], ".*'mnist'"),
        (["--dataset=digits", "--", "--seed=1"], ".*'--seed=1'"),
        (["--dataset=digits", "--flagfile"], "flagfile: expected a readable file, .*"),
        (["--dataset=digits", "--output_dir=a\nb"], "output_dir: expected text without control .*"),
        (["--dataset=digits", "--ood=a\x1cb"], "ood: expected text without control .*U\\+001C.*"),
        (["--dataset=digits", "--export_dir=gs://b/x"], "export_dir: expected a path on this .*"),
        (["--dataset=digits", "--output_dir=s3://b/x"], "output_dir: expected a path on this .*"),
        (["--dataset=npz", "--data_dir=hdfs://b/x"], "data_dir: expected a path on this .*"),
        (["--dataset=digits", f"--output_dir={'x' * 300}"], "output_dir: expected at most 255 .*"),
        (["--dataset=digits", "--output_dir=\ud800"], "output_dir: expected .* UTF-8 .*"),
        (["--dataset=" + 8000 * "x"], "dataset: expected at most 255 .{,200}"),
        (["--dataset=digits", "--preset=quik"], "preset: .*; did you mean quick\\?"),
        (["--dataset=digits", "--method=mcp,btpc"], "method: .*; did you mean btcp\\?"),
        (["--dataset=digits", "--encoder=smal"], "encoder: .*; did you mean small\\?"),
        (["--dataset=digits", "--threshold=target-risk"], "threshold: .* mean target_risk\\?"),
        (["--dataset=folder"], "data_dir: expected a path with dataset=folder, received none"),
        (["--dataset=digits", "--bad_files=drop"], "bad_files: expected one of fail, skip, .*"),
        *(
            (
                ["--dataset=digits", f"--image_size={size}"],
                f"image_size: expected a side .*'{re.escape(size)}'",
            )
            for size in ("0", "-8", "28x", "28x0", "28*28", "8x8x3", "large")
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(capsys, words, message):
    assert re.fullmatch(f"error: {message}\n", refused(capsys, *words))


def test_data_of_ones_own_in_the_place_of_a_name_is_told_apart(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos/cat", "photos/dog", "tfds/own/1.0.0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tfds" / "own" / "1.0.0" / "dataset_info.json").touch()
    (tmp_path / "xrays.npz").touch()
    for words in (["--dataset=photos"], ["--data_dir=photos"]):
        message = refused(capsys, *words)
        assert "; --dataset=folder --data_dir=photos reads the images in there" in message
    assert "; --dataset=npz --data_dir=xrays.npz reads" in refused(capsys, "--dataset=xrays.npz")
    assert "reads the images" not in refused(capsys, "--data_dir=tfds")
    assert "did you mean mnist?" in refused(capsys, "--dataset=mnits", "--data_dir=tfds")


def test_a_missing_flag_file_is_named(capsys, tmp_path):
    path = str(tmp_path / "none.cfg")
    message = refused(capsys, "--dataset=digits", f"--flagfile={path}")
    assert path in message and "No such file" in message


@pytest.mark.parametrize(
    "line, message",
    [
        ("--seed=1 # a note", "expected a note on a line of its own, .*'--seed=1 # a note'"),
        ("--output_dir=runs/a\t# a note", "expected a note on a line of its own, .*"),
        ("seed=1", "expected --SETTING=VALUE, received 'seed=1'"),
        ("--seed=-1", "seed: expected a whole number .*, received '-1'"),
        ("--seed", "Missing value for flag --seed"),
        ("--sede=1", ".* --sede; did you mean seed\\?"),
    ],
)
def test_a_wrong_line_of_a_flag_file_is_named(capsys, tmp_path, line, message):
    path = tmp_path / "mine.cfg"
    file = write(path, "# A note may start a line.", "--dataset=digits", line, "--tau=0.5")
    told = refused(capsys, file)
    assert re.fullmatch(f"error: {re.escape(str(path))} line 3: {message}\n", told)


def test_flag_files_that_name_each_other_are_refused(capsys, tmp_path):
    write(tmp_path / "a.cfg", f"--flagfile={tmp_path}/b.cfg")
    file = write(tmp_path / "b.cfg", f"--flagfile={tmp_path}/a.cfg")
    assert "flagfile: expected files that do not name each other" in refused(capsys, file)


@pytest.mark.parametrize("word", ["--help", "-h", "--helpfull", "--helpshort"])
def test_help_shows_every_setting_with_its_default(capsys, word):
    with pytest.raises(SystemExit) as ended:
        parse(["--dataset=nonsense", word])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for name, value in Config("x").settings().items():
        default = "" if name == "dataset" else value
        assert re.search(rf"^  --{name}={re.escape(default)}(\s|$)", text, re.MULTILINE)
    assert text.index("Networks:") < text.index("--encoder=") < text.index("Loss:")
    assert max(map(len, text.splitlines())) <= 100
    for name in [*DATASETS, "smoke", "--preset=", "--flagfile="]:
        assert name in text


def test_help_may_be_cut_short_by_its_reader():
    code = "from btcp_tf import command; command.parse(['--help'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_headings_start_at_settings_that_exist():
    assert set(_HEADINGS) <= {field.name for field in FIELDS}
    assert next(iter(_HEADINGS)) == FIELDS[0].name


def test_help_and_errors_do_not_import_tensorflow():
    code = (
        "import sys\n"
        "from btcp_tf import command\n"
        "try:\n"
        "    command.parse()\n"
        "except SystemExit as ended:\n"
        "    print({'tensorflow', 'keras'} & set(sys.modules), ended.code)\n"
    )
    for word, status in [("--help", 0), ("--dataset=none", 2)]:
        done = subprocess.run(
            [sys.executable, "-c", code, word], cwd=CHECKOUT, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == f"set() {status}", done.stderr


VALUES = {
    "gamma": st.just("auto") | st.floats(0, 1e9),
    "seed": st.integers(0, 2**31 - 1),
    "epsilon": st.floats(0, 1, exclude_min=True),
    "weight_decay": st.floats(0, 1e300),
    "method": st.permutations(["mcp", "tcp", "btcp"]),
    "export_collapsed": st.booleans(),
    "data_dir": st.lists(st.text("ab#=,-'\" äß/", min_size=1)).map(
        lambda parts: re.sub(r"\s+#", "#", "".join(parts).strip())
    ),
}


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries({}, optional=VALUES))
def test_a_saved_flag_file_repeats_the_run(values):
    config = Config(dataset="fashion_mnist", output_dir="runs/a b", **values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flags.cfg"
        save_flagfile(config, path)
        assert parse([f"--flagfile={path}"]) == config
        assert load_flagfile(path) == config.settings()
        assert differences(config, load_flagfile(path)) == []


def test_a_saved_flag_file_holds_every_setting_in_order(tmp_path):
    save_flagfile(Config(dataset="digits"), tmp_path / "flags.cfg")
    lines = (tmp_path / "flags.cfg").read_text(encoding="utf-8").splitlines()
    names = [line[2:].split("=")[0] for line in lines if not line.startswith("#")]
    assert names == [field.name for field in FIELDS]
    # Plain absl reads it too.
    plain = define_flags()
    plain(["program", f"--flagfile={tmp_path / 'flags.cfg'}"])
    assert (plain.dataset, plain.method) == ("digits", ["mcp", "tcp", "btcp", "residual"])


def test_differences_are_those_that_change_results(tmp_path):
    path = tmp_path / "flags.cfg"
    config = Config(dataset="digits", gamma="2.0", output_dir="a")
    save_flagfile(config, path)
    saved = load_flagfile(path)
    same = dataclasses.replace(config, output_dir="b", verbose=0, export_dir="c", gamma="2")
    assert differences(same, saved) == []
    other = dataclasses.replace(config, tau=0.4, seed=1, verbose=0)
    assert differences(other, saved) == ["seed", "tau"]


def test_a_setting_that_a_saved_run_does_not_know_counts_as_what_that_run_did(monkeypatch):
    config = Config(dataset="digits")
    saved = config.settings()
    del saved["epsilon"]
    assert differences(config, saved) == []
    assert differences(dataclasses.replace(config, epsilon=0.1), saved) == ["epsilon"]
    # A new setting whose default is not what earlier versions did says what they did.
    declared = setting(0.05, "Half width.", above=0, high=1, before=0.1)
    field = command.FIELDS["epsilon"]
    monkeypatch.setattr(field, "metadata", declared.metadata)
    assert differences(config, saved) == ["epsilon"]
    assert differences(dataclasses.replace(config, epsilon=0.1), saved) == []


def test_a_hand_edited_flag_file_is_read_in_the_same_words(tmp_path):
    write(tmp_path / "a.cfg", "--tau=0.50", "--export_collapsed", "--method= mcp,btcp", "--gamma=2")
    assert load_flagfile(tmp_path / "a.cfg") == {
        "tau": "0.5",
        "export_collapsed": "true",
        "method": "mcp,btcp",
        "gamma": "2.0",
    }
    with pytest.raises(UsageError, match="No such file"):
        load_flagfile(tmp_path / "none.cfg")


def test_reading_forgets_what_was_read_before():
    flag_values = define_flags()
    assert parse(["--dataset=digits", "--seed=3"], flag_values).seed == 3
    assert parse(["--dataset=digits"], flag_values).seed == 0


def test_a_command_adds_flags_of_its_own(capsys):
    flag_values = define_flags()
    flags.DEFINE_integer("seeds", 5, "Number of seeds.", flag_values=flag_values)
    assert parse(["--dataset=digits", "--seeds=2"], flag_values).dataset == "digits"
    assert flag_values.seeds == 2
    help_text = command.help_text(flag_values, "python -m btcp_tf.other")
    assert help_text.startswith("usage: python -m btcp_tf.other\n")
    assert help_text.index("--seeds=5") < help_text.index("--dataset=")
    assert "seeds" not in flags.FLAGS and "dataset" not in flags.FLAGS


def test_a_command_without_a_config_reads_words_and_leftovers(tmp_path):
    flag_values = flags.FlagValues()
    flags.DEFINE_integer("bins", 15, "Number of bins.", flag_values=flag_values)
    file = write(tmp_path / "a.cfg", "--bins=20")
    assert command.read(flag_values, ["one", file, "two", "--", "--bins=3"]) == [
        "one",
        "two",
        "--bins=3",
    ]
    assert flag_values.bins == 20
    assert "Presets" not in command.help_text(flag_values, "x")


def test_every_command_tells_its_version(capsys):
    from btcp_tf import main, set_threshold
    from btcp_tf import monitor as monitor_
    from btcp_tf import predict as predict_
    from btcp_tf import report as report_
    from btcp_tf import study as study_

    for module in (main, study_, predict_, report_, monitor_, set_threshold):
        with pytest.raises(SystemExit) as ended:
            module.main(["--version", "--nonsense"])
        assert not ended.value.code
        assert capsys.readouterr().out == f"btcp_tf {btcp_tf.__version__}\n"


def test_addresses_are_refused_by_every_command_before_any_work(capsys, tmp_path, monkeypatch):
    from btcp_tf import monitor as monitor_
    from btcp_tf import predict as predict_
    from btcp_tf import report as report_
    from btcp_tf import set_threshold
    from btcp_tf import study as study_

    monkeypatch.chdir(tmp_path)
    for module, *words in (
        (study_, "--dataset=digits", "--output_dir=gs://b/x"),
        (predict_, "--model=m", "--input=i", "--output=s3://b/x.csv"),
        (report_, "scores.csv", "--output_dir=gs://b/x"),
        (report_, "gs://b/scores.csv"),
        (monitor_, "--baseline=b", "--scores=s.csv", "--output_dir=file:///b/x"),
        (set_threshold, "saved_models/digits", "--threshold=0.5", "--export_dir=hdfs://b/x"),
    ):
        with pytest.raises(SystemExit) as ended:
            module.main(words)
        message = capsys.readouterr().err
        assert ended.value.code == 2
        assert "expected a path on this machine" in message and message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_home_folder_a_tilde_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert "no such home folder" in refused(capsys, "--dataset=digits", "--output_dir=~/x")
    message = refused(capsys, "--dataset=weeds")
    assert "TFDS_DATA_DIR" in message and "no home folder" in message


def test_warnings_of_a_command_are_one_plain_line(capsys):
    def action():
        warnings.warn("two images\n are  bad", stacklevel=1)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = usual_showwarning
        command.carry_out(action, verbose=1)
        assert capsys.readouterr().err == "warning: two images are bad\n"
        command.carry_out(action, verbose=0)
        assert capsys.readouterr().err == ""
        # In Python they stay what they are.
        action()
        assert "test_command.py" in capsys.readouterr().err


def usual_showwarning(message, category, filename, lineno, file=None, line=None):
    """What pytest keeps back otherwise."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def test_errors_end_the_process_with_one_line():
    told = io.StringIO()
    with contextlib.redirect_stderr(told), pytest.raises(SystemExit) as ended:
        with command.exit_on_error():
            raise ValueError("expected one line,\n  received two")
    assert ended.value.code == 2
    assert told.getvalue() == "error: expected one line, received two\n"


@pytest.mark.parametrize(("answer", "status"), [(None, 0), (0, 0), (3, 3), (True, 1), (False, 0)])
def test_what_an_action_returns_is_the_exit_status(answer, status):
    assert command.carry_out(lambda: answer, verbose=1) == status
