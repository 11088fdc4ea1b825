import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import btcp_tf

CHECKOUT = Path(__file__).resolve().parents[1]


def in_a_fresh_process(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "btcp_tf",
        "btcp_tf.main, btcp_tf.study, btcp_tf.report, btcp_tf.predict, btcp_tf.monitor, "
        "btcp_tf.review, "
        "btcp_tf.set_threshold, btcp_tf.export, btcp_tf.metrics, btcp_tf.thresholds",
        ", ".join(
            ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
            for room in ("core", "data", "evaluation", "decisions", "reporting")
            for path in sorted((CHECKOUT / "btcp_tf" / room).glob("*.py"))
        ),
        "btcp_tf.methods.registry, btcp_tf.serving.client, btcp_tf.serving.batch_scoring, "
        "btcp_tf.experiment.run, btcp_tf.experiment.studies, btcp_tf.experiment.settings, "
        "btcp_tf.scores_fit",
    ],
    ids=["package", "commands", "rooms", "others"],
)
def test_what_needs_no_tensorflow_does_not_import_it(imports):
    heavy = "{'tensorflow', 'keras', 'tensorflow_datasets', 'jinja2'}"
    assert (
        in_a_fresh_process(f"import sys, {imports}; print({heavy} & set(sys.modules))") == "set()"
    )


def test_importing_the_package_imports_none_of_its_modules():
    code = (
        "import sys, btcp_tf; print([name for name in sys.modules if name.startswith('btcp_tf.')])"
    )
    assert in_a_fresh_process(code) == "[]"


def test_public_names_are_found_when_used():
    code = "import btcp_tf; print(btcp_tf.Config('mnist').dataset, btcp_tf.metrics.__name__)"
    assert in_a_fresh_process(code) == "mnist btcp_tf.metrics"
    assert set(btcp_tf.__all__) <= set(dir(btcp_tf))
    for module in btcp_tf._PUBLIC.values():
        assert importlib.util.find_spec(f"btcp_tf.{module}") is not None


@pytest.mark.parametrize("package", ["data", "evaluation", "methods", "networks", "training"])
def test_a_package_offers_the_names_of_its_modules(package):
    module = importlib.import_module(f"btcp_tf.{package}")
    names = dir(module)
    assert len(names) > 10
    for name in names:
        assert getattr(module, name) is not None, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


OLD_NAMES = {
    "classifiers": "load take_apart",
    "client": "Client",
    "command": "parse reading UsageError",
    "config": "Config",
    "data": "DATASETS Dataset Split load load_images read_image batches CORRUPTIONS",
    "drift": "psi ks rate_test evidence clopper_pearson",
    "estimators": "EVIDENCE Fit View fit_residual Residual FEW_ERRORS",
    "evaluation": "Predictions rows ood_rows across_seeds load_predictions save_predictions",
    "export": "main",
    "exported": "read_about newest",
    "files": "atomic_path folder_lock",
    "inputs": "open_inputs",
    "judge": "attach load Judge",
    "losses": "DistributionalFocalLoss distributional_focal_loss",
    "methods": "METHODS Method Outputs Reference mcp trust_score",
    "metrics": "METRICS auroc aurc",
    "networks": "ENCODERS build_model",
    "pages": "Report to_html",
    "plots": "plot_roc draw_run save_figures",
    "predict": "main",
    "runs": "run End Decision",
    "saved_model": "export with_threshold",
    "scores": "load_scores load_baseline",
    "tables": "headline_tables Cell PAPER terminal_table FEW_ERRORS",
    "tabular": "read Columns",
    "thresholds": "target_risk",
    "training": "fit fit_phase make_strategy LossSettings",
}


@pytest.mark.parametrize("module", OLD_NAMES)
def test_names_of_version_0_1_0_are_found_where_they_were(module):
    found = importlib.import_module(f"btcp_tf.{module}")
    for name in OLD_NAMES[module].split():
        space = {}
        exec(f"from btcp_tf.{module} import {name}", space)
        assert space[name] is getattr(found, name)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from btcp_tf.{module} import nothing", {})


ORDER = (
    "core",
    "formulas",
    "data",
    "networks",
    "training",
    "methods",
    "evaluation",
    "decisions",
    "reporting",
    "serving",
    "attached",
    "experiment",
    "commands",
)
FORMULAS = ("losses", "metrics", "thresholds")


def _modules():
    root = CHECKOUT / "btcp_tf"
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts != ("__init__",):
            yield ".".join(part for part in parts if part != "__init__"), path


def _room(module):
    package, _, rest = module.partition(".")
    if package in ORDER:
        return package
    return "formulas" if package in FORMULAS else "commands"


def test_packages_import_only_what_is_below_them():
    modules = dict(_modules())
    known = set(modules)
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "btcp_tf":
                base = node.module.removeprefix("btcp_tf").removeprefix(".")
                full = [f"{base}.{name.name}".removeprefix(".") for name in node.names]
                targets = [name if name in known else base for name in full]
            elif isinstance(node, ast.Import):
                targets = [
                    name.name.removeprefix("btcp_tf.")
                    for name in node.names
                    if name.name.startswith("btcp_tf.")
                ]
            for target in filter(None, targets):
                assert ORDER.index(_room(target)) <= ORDER.index(_room(module)), (module, target)


def test_each_package_says_which_question_it_answers():
    for room in set(ORDER) - {"formulas", "commands"}:
        text = (CHECKOUT / "btcp_tf" / room / "__init__.py").read_text(encoding="utf-8")
        assert len(ast.get_docstring(ast.parse(text))) > 20


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'btcp_tf' has no attribute 'metric'"):
        _ = btcp_tf.metric


def test_the_version_is_the_same_everywhere():
    citation = (CHECKOUT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {btcp_tf.__version__}\n" in citation
    assert re.search(r"^## (\S+)", changelog, re.MULTILINE)[1] == btcp_tf.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", btcp_tf.__version__)


def test_setup_declares_what_is_imported():
    installed_as = {
        "sklearn": "scikit-learn",
        "absl": "absl-py",
        "PIL": "pillow",
        "faiss": "faiss-cpu",
        "grpc": "grpcio",
        "google": "protobuf",
        "tensorflow_serving": "tensorflow-serving-api",
    }
    setup = (CHECKOUT / "setup.py").read_text(encoding="utf-8")
    imported = set()
    for _, path in _modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    foreign = imported - sys.stdlib_module_names - {"btcp_tf"}
    assert {"numpy", "keras", "tensorflow", "absl"} <= foreign
    for module in foreign:
        name = installed_as.get(module, module).replace("_", "[-_]")
        assert re.search(rf'"{name}[>=<{{]', setup), module


def test_an_editable_install_is_a_plain_path_and_a_built_one_brings_the_flag_files(tmp_path):
    # Otherwise a folder called btcp_tf beside a script hides an editable install from it.
    code = (
        "import sys, setuptools; from distutils.core import run_setup;"
        "dist = run_setup('setup.py', stop_after='init');"
        "print(dist.package_dir, dist.packages);"
        "command = dist.get_command_obj('build_py'); command.build_lib = sys.argv[1];"
        "command.ensure_finalized(); command.run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    package_dir, _, packages = done.stdout.splitlines()[0].partition(" [")
    assert package_dir == "{'': '.'}"
    rooms = {"btcp_tf", *(f"btcp_tf.{room}" for room in ORDER)}
    rooms -= {"btcp_tf.formulas", "btcp_tf.commands"}
    assert set(packages.rstrip("]").replace("'", "").split(", ")) == rooms
    assert (tmp_path / "btcp_tf" / "reporting" / "templates" / "page.html").exists()
    built = {path.name for path in (tmp_path / "btcp_tf" / "flags").iterdir()}
    assert built == {path.name for path in (CHECKOUT / "flags").glob("*.cfg")}
    assert not (CHECKOUT / "btcp_tf" / "flags").exists()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("TF_USE_LEGACY_KERAS", "1", "TF_USE_LEGACY_KERAS: expected the environment without it"),
        ("KERAS_BACKEND", "jax", "expected backend tensorflow, received 'jax' in the environment"),
        ("KERAS_MAX_EPOCHS", "1", "KERAS_MAX_EPOCHS: expected the environment without it"),
        ("image_data_format", "channels_first", "expected image_data_format channels_last"),
        ("floatx", "float16", "expected floatx float32"),
        ("backend", "torch", "expected backend tensorflow, received 'torch' in "),
    ],
)
def test_keras_that_is_set_up_otherwise_is_one_line_before_any_work(
    tmp_path, variable, value, told
):
    environment = {**os.environ, "KERAS_HOME": str(tmp_path)}
    environment.pop("KERAS_BACKEND", None)
    (tmp_path / "keras.json").write_text(json.dumps({variable: value}))
    if variable.isupper():
        environment[variable] = value
    code = (
        "import contextlib, io, sys, btcp_tf\n"
        "from btcp_tf import main, predict, export, study\n"
        "words = ['--dataset=digits', '--output_dir=run']\n"
        "for command in (main, predict, export, study):\n"
        "    shown = io.StringIO()\n"
        "    with contextlib.redirect_stderr(shown), contextlib.suppress(SystemExit):\n"
        "        command.main(words if command in (main, study) else [])\n"
        "    print(repr(shown.getvalue()))\n"
        "try:\n"
        "    btcp_tf.attach\n"
        "except ValueError as error:\n"
        "    print(repr(f'error: {error}\\n'))\n"
        "print({'tensorflow', 'keras'} & set(sys.modules))\n"
        "import btcp_tf.metrics\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *messages, loaded = done.stdout.splitlines()
    assert loaded == "set()" and len(messages) == 5
    for message in messages:
        assert told in message and message.count("\\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["keras.json"]
