import ast
import importlib.util
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
