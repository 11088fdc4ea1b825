"""Pages and a picture that come from the code itself; mkdocs-gen-files runs this at every build.

Settings from `Config`, the commands' `--help`, the catalogs of methods, data sets and metrics, the
order of the packages from the test that asserts it, and the changelog.
"""

import ast
import contextlib
import dataclasses
import html
import importlib
import io
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import mkdocs_gen_files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from btcp_tf.core import config  # noqa: E402
from btcp_tf.core.config import Config  # noqa: E402
from btcp_tf.data.catalog import DATASETS  # noqa: E402
from btcp_tf.methods.registry import METHODS  # noqa: E402
from btcp_tf.metrics import METRICS  # noqa: E402

COMMANDS = {
    "main": "One run: train, compare, report and export",
    "study": "Many runs: methods, seeds and data sets",
    "report": "Tables and figures of a run, a study or anyone's scores",
    "predict": "Score many inputs with an exported model",
    "set_threshold": "The same model with another threshold",
    "monitor": "Does the threshold still hold?",
    "review": "What a person should check, and what their decisions show",
}
GROUPS = {"paper": "compared in the paper", "later": "later, post hoc", "control": "control"}


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def text(value: str) -> str:
    """Plain text as Markdown inside a table."""
    return html.escape(value, quote=False).replace("|", "\\|").replace("_", "\\_")


def help_of(command: str) -> str:
    """What `python -m btcp_tf.<command> --help` prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        importlib.import_module(f"btcp_tf.{command}").main(["--help"])
    return shown.getvalue().strip()


def flag_files() -> str:
    """The flag files as tables: setting by setting, file by file."""
    files = {}
    for path in sorted((ROOT / "flags").glob("*.cfg")):
        lines = path.read_text(encoding="utf-8").splitlines()
        files[path.stem] = dict(
            line.removeprefix("--").split("=", 1) for line in lines if line.startswith("--")
        )
    presets = [name for name in files if "dataset" not in files[name]]
    parts = []
    for title, names in (
        ("Data sets", [name for name in files if name not in presets]),
        ("Presets", presets),
    ):
        used = [
            field.name
            for field in dataclasses.fields(Config)
            if field.name != "dataset" and any(field.name in files[name] for name in names)
        ]
        rows = [
            [f"`{setting}`", *(files[name].get(setting, "") for name in names)] for setting in used
        ]
        parts.append(
            f"### {title}\n\n" + table(["setting", *(f"`{name}`" for name in names)], rows)
        )
    return "\n".join(parts)


def settings_page() -> str:
    rows = []
    for field in dataclasses.fields(Config):
        default, accepts = config.to_text(field.default), text(config.accepted(field))
        what = text(field.metadata["help"]) + (f" *[{accepts}]*" if accepts else "")
        rows.append([f"`{field.name}`", what, f"`{default}`" * bool(default)])
    return f"""# Settings

Every setting of a run is a flag of `python -m btcp_tf.main` and `btcp_tf.study`, a line of a flag
file, and a field of `btcp_tf.Config`. Settings are taken in this order; the last one counts:

1. the defaults below,
2. `flags/<dataset>.cfg` for a data set that has such a file,
3. `flags/<preset>.cfg` with `--preset=<preset>`,
4. the flags of the command line, in order; a `--flagfile=PATH` counts where it stands.

A value out of range, an unknown flag or settings that contradict each other end the command with
one line and [status 2](exit-statuses.md), before any work.

## All settings

{table(["setting", "what it does, and *what it accepts*", "default"], rows)}
## Flag files

{flag_files()}"""


def commands_page() -> str:
    parts = [
        "# Commands\n\nEach is started with `python -m btcp_tf.<command>`; `btcp_tf` alone is the "
        "same as `python -m btcp_tf.main`. An error is one line on stderr with an "
        "[exit status](exit-statuses.md). `python -m btcp_tf.export` is the former name of "
        "`btcp_tf.set_threshold` and still works.\n"
    ]
    for command, title in COMMANDS.items():
        parts.append(f"## {command}\n\n{title}.\n\n```text\n{help_of(command)}\n```\n")
    return "\n".join(parts)


def catalogs_page() -> str:
    def scale(method) -> str:
        return "[0, 1]" if method.bounded else "raw"

    methods = [
        [f"`{name}`", method.title, GROUPS[method.group], scale(method), "yes" * method.exported]
        for name, method in METHODS.items()
    ]
    sets = [
        [
            f"`{name}`",
            f"{spec.expected_train:,}",
            f"{spec.expected_test:,}",
            " × ".join(map(str, spec.image_shape)),
            spec.num_classes,
        ]
        for name, spec in DATASETS.items()
    ]
    metrics = [
        [
            f"`{name}`",
            metric.title,
            metric.kind,
            "higher" if metric.higher_is_better else "lower",
            "yes" * metric.in_paper,
        ]
        for name, metric in METRICS.items()
    ]
    return f"""# Methods, data sets, metrics

Three dictionaries by name; [Add a method](../contributing/add-a-method.md), [a data
set](../contributing/add-a-data-set.md) or [a metric](../contributing/add-a-metric.md) say how an
entry is added.

## Methods

`btcp_tf.methods.METHODS`, the names that `--method` takes. Formula and source of each stand in its
docstring ([API](api/methods.md)). A raw score has no scale on which a threshold of 0.5 would mean
something; its threshold metrics stay empty. Only the methods marked *exported* can be computed
inside a SavedModel.

{table(["name", "title", "group", "scale", "exported"], methods)}
The controls say what a metric is worth: `constant` and `random` know nothing, `mcp_cubed` ranks
exactly as MCP with other values of u, and `tcp_oracle` looks at the labels, which no method may.

## Data sets

`btcp_tf.data.DATASETS`, the names that `--dataset` takes, with the numbers of images as published.
Every other image classification set of tensorflow-datasets that is prepared in `--data_dir` works,
too, and so do [your own images](../how-to/own-images.md).

{table(["name", "training images", "test images", "image", "classes"], sets)}
## Metrics

`btcp_tf.metrics.METRICS`, the columns of a result row. [What the metrics
mean](../explanation/metrics.md) explains them; the [API](../reference/api/metrics.md) has the
formulas.

{table(["name", "title", "kind", "better", "in the paper"], metrics)}"""


def package_order() -> list[str]:
    """`ORDER` of tests/test_package.py, lowest first: the picture is that of the assertion."""
    tree = ast.parse((ROOT / "tests" / "test_package.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ORDER":
            return list(ast.literal_eval(node.value))
    raise ValueError("tests/test_package.py: expected a list ORDER, received none")


def question(package: str) -> str:
    """First line of a package's docstring."""
    source = (ROOT / "btcp_tf" / package / "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]


def packages_svg() -> str:
    """The packages as a stack; each imports only what stands below it."""
    fixed = {
        "commands": (
            "main, study, report, predict, set_threshold, monitor, review; judge",
            "What did the user ask for?",
        ),
        "formulas": ("losses, metrics, thresholds", "The formulas, as pure functions."),
    }
    width, gap = 480, 12
    order = package_order()[::-1]
    boxes, y = [], 5
    for package in order:
        title, words = fixed.get(package) or (f"{package}/", question(package))
        lines = textwrap.wrap(words, 66)
        height = 30 + 16 * len(lines)
        boxes.append(
            f'<rect x="5" y="{y}" width="{width - 10}" height="{height}" rx="6" '
            'fill="#e8eaf6" stroke="#3f51b5"/>'
            f'<text x="18" y="{y + 18}" font-weight="bold">{html.escape(title)}</text>'
        )
        for number, line in enumerate(lines):
            boxes.append(
                f'<text x="18" y="{y + 36 + 16 * number}" fill="#444">{html.escape(line)}</text>'
            )
        y += height
        if package != order[-1]:
            boxes.append(
                f'<path d="M{width // 2} {y} v{gap - 1} m-4 -5 l4 5 l4 -5" fill="none" '
                'stroke="#3f51b5"/>'
            )
        y += gap
    height = y
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" '
        f'aria-label="Packages from top to bottom: {", ".join(order)}">'
        + "".join(boxes)
        + "</svg>\n"
    )


for path, content in {
    "reference/settings.md": settings_page(),
    "reference/commands.md": commands_page(),
    "reference/catalogs.md": catalogs_page(),
    "contributing/packages.svg": packages_svg(),
    "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
}.items():
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(content)
