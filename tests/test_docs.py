"""The documentation: its code blocks run, its commands have the flags that they name, the files
that it names are there.

A ```sh or ```python block of the README, the tutorial or a how-to guide is run, unless the line
before it is `<!-- not run: REASON -->`. The pages of the tutorial share a folder, in the order of
the site; every other page has a folder of its own. The Python blocks of a page share their names.
"""

import contextlib
import importlib
import io
import os
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any, NamedTuple

import keras
import nbclient
import nbformat
import pytest

from btcp_tf.evaluation import predictions

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
DOCS = CHECKOUT / "docs"
README = CHECKOUT / "README.md"
TUTORIAL = [
    DOCS / "tutorial" / f"{name}.md"
    for name in ("index", "first-run", "attach", "decision", "production")
]
GUIDES = sorted((DOCS / "how-to").glob("*.md"))
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```(sh|python)\n(.*?)^```", re.M | re.S)


class Block(NamedTuple):
    """One code block of a page."""

    reason: str
    """Why it is not run; "" if it is."""
    language: str
    code: str


def blocks(page: pathlib.Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(page: pathlib.Path, folder: pathlib.Path) -> tuple[dict[str, Any], str]:
    """Runs the blocks of a page in a folder; returns the names of its Python blocks and what the
    commands print."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT)}
    names: dict[str, Any] = {}
    printed = ""
    keras.utils.set_random_seed(0)
    for block in blocks(page):
        if block.reason:
            continue
        if block.language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # So few errors teach little.
                exec(compile(block.code, page.name, "exec"), names)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{page.name}: {block.code}\n{done.stderr}"
        printed += done.stdout
    return names, printed


@pytest.mark.examples
def test_the_tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {page.stem: run(page, tmp_path) for page in TUTORIAL}

    names, _ = found["first-run"]
    assert names["answers"]["uncertainty"].shape == (1797,)

    names, _ = found["attach"]
    assert names["residual"]["verdict"] == "better"
    parts = {"predicted", "class_name", "probs", "uncertainty", "accept"}
    # And what looks say, if the estimator uses some.
    assert set(names["answers"]) - {"second_opinion", "second_probability"} == parts
    assert names["wrong"][names["accept"]].mean() < names["wrong"].mean()
    assert (tmp_path / "saved_models" / "judge" / "1" / "saved_model.pb").exists()

    names, _ = found["decision"]
    assert names["judge"].threshold.risk_bound <= 0.05

    _, printed = found["production"]
    scores = predictions.load_answers(tmp_path / "scores.csv")
    accepted = scores.accept
    assert 0.3 < accepted.mean() < 1
    rates = [scores.predictions.is_error[rows].mean() for rows in (accepted, ~accepted)]
    assert rates[0] <= 0.05 < rates[1]
    assert f"accepts {accepted.sum():,} of 1,797 answers" in " ".join(printed.split())
    # Both baselines were compared; the first version's threshold made no promise.
    assert printed.count("No change was found") == 2
    assert printed.count("The promise is kept.") == 1


@pytest.mark.examples
@pytest.mark.parametrize("page", [README, *GUIDES], ids=lambda page: page.stem)
def test_a_guide(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, _ = run(page, tmp_path)
    if page.stem == "more-errors":
        assert names["judge"].fitted["samples"] == 600
    if page.stem == "threshold":
        assert names["chosen"].risk_bound <= 0.1
        parts = names["by_hospital"].parts
        assert set(parts) == {"north", "south"}
        assert all(part.risk_bound <= 0.2 for part in parts.values())
    if page.stem == "batch-scoring":
        assert len(predictions.load_answers(tmp_path / "scores.csv").accept) == 100


def test_the_plan_of_a_large_batch_is_what_its_code_says():
    page = DOCS / "how-to" / "batch-scoring.md"
    (code,) = (block.code for block in blocks(page) if "price_of_core_hour" in block.code)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    seconds = names["images"] / names["images_a_second"]
    pixels = names["images"] * 28 * 28
    table = page.read_text(encoding="utf-8").split(code)[1]
    assert f"| {seconds / 3600:.0f} core hours, {seconds / 3600 / 100:.1f} hours on 100" in table
    assert f"| {pixels / 1e12:.2f} TB |" in table
    assert f"| {pixels / (seconds / 100) / 1e6:.0f} MB a second |" in table
    assert f"| {seconds / 3600 * 0.04:.2f} at 0.04" in table
    assert f"| {pixels / 1e12 * seconds / 3600 / 100 * 0.03:.2f} at 0.03" in table


@pytest.mark.examples
def test_the_notebook(tmp_path):
    (path,) = (CHECKOUT / "examples").glob("*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    # The kernel is this Python, and the package is that of the checkout.
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2


def test_every_page_of_tutorial_and_guides_is_run():
    assert set(TUTORIAL) == set((DOCS / "tutorial").glob("*.md"))
    for page in (*TUTORIAL, *GUIDES):
        assert blocks(page) or page.stem == "index", page.name
        fences = re.findall(r"^```(\w+)", page.read_text(encoding="utf-8"), re.M)
        assert len(blocks(page)) == len([word for word in fences if word != "text"]), page.name


def shown_help(command: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        importlib.import_module(f"btcp_tf.{command}").main(["--help"])
    return shown.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_flags_in_commands_exist(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for command, words in re.findall(r"python -m btcp_tf\.(\w+)([^\n`]*)", text):
        known = shown_help(command)
        for flag in re.findall(r"(?<= --)\w+", words.split("#")[0]):
            # absl's --noNAME for --NAME.
            names = {flag, flag.removeprefix("no")}
            assert any(re.search(rf"^  --{name}\b", known, re.M) for name in names), flag


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_source_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:btcp_tf|tests|examples|benchmarks|docs|flags)/[\w./-]+)`", text):
        assert "NAME" in name or (CHECKOUT / name).exists(), name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site(name):
    """`mkdocs build --strict` looks at the others."""
    for target in re.findall(r"\]\(([^)\s#]+)", (CHECKOUT / name).read_text(encoding="utf-8")):
        assert "://" in target or (CHECKOUT / target).exists(), target


def test_links_between_pages_lead_somewhere_in_a_clone():
    """But those of the page that says which are made when the site is built."""
    made = {"commands.md", "settings.md", "catalogs.md"}
    for page in sorted((CHECKOUT / "docs").rglob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s#]+)", text):
            is_made = page.parent.name == "reference" and page.name == "index.md" and target in made
            there = (page.parent / target).exists()
            assert re.match("[a-z]+:", target) or there or is_made, (page, target)
    index = (CHECKOUT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert "mkdocs serve" in index and all(f"({name})" in index for name in made)


@pytest.mark.parametrize(
    "page", [README, *TUTORIAL, *GUIDES], ids=lambda page: str(page.relative_to(CHECKOUT))
)
def test_users_install_the_package_and_not_its_tests(page):
    for command in re.findall(r"pip install [^\n`]*", page.read_text(encoding="utf-8")):
        tests_follow = "-m pytest" in command
        assert ("[test" in command) is tests_follow, command
        assert "-e " not in command or tests_follow or "mkdocs" in command, command


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
