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
        "btcp_tf.config, btcp_tf.files, btcp_tf.metrics, btcp_tf.evaluation, btcp_tf.report, "
        "btcp_tf.methods, btcp_tf.data, btcp_tf.command, btcp_tf.main, btcp_tf.runs, "
        "btcp_tf.study, btcp_tf.thresholds, btcp_tf.client, btcp_tf.predict, btcp_tf.export, "
        "btcp_tf.drift, btcp_tf.exported, btcp_tf.scores, btcp_tf.monitor, btcp_tf.inputs, "
        "btcp_tf.tabular, btcp_tf.pages, btcp_tf.glance, btcp_tf.gallery, btcp_tf.svg",
    ],
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
        "grpc": "grpcio",
        "google": "protobuf",
        "tensorflow_serving": "tensorflow-serving-api",
    }
    setup = (CHECKOUT / "setup.py").read_text(encoding="utf-8")
    imported = set()
    for path in (CHECKOUT / "btcp_tf").glob("*.py"):
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
        "import sys; from setuptools._distutils.core import run_setup;"
        "dist = run_setup('setup.py', stop_after='init');"
        "print(dist.package_dir, dist.packages);"
        "command = dist.get_command_obj('build_py'); command.build_lib = sys.argv[1];"
        "command.ensure_finalized(); command.run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "{'': '.'} ['btcp_tf']"
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
