"""One word for each check that CI runs: `nox -s lint`, `nox -s tests`, ...; `nox -l` lists them.

Sessions run in the environment that nox is installed in, which holds the extras that they need
(`pip install -e ".[test,docs,package]"`): a copy of TensorFlow for each check would take gigabytes.
"""

import pathlib
import sys
import tempfile
import zipfile

import nox

PYTHON = sys.executable
"""Of the environment that nox is installed in."""

nox.options.default_venv_backend = "none"
nox.options.sessions = ["format", "lint", "types", "docs", "package", "tests"]


@nox.session
def format(session: nox.Session) -> None:
    """The formatting of ruff."""
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")


@nox.session
def lint(session: nox.Session) -> None:
    """The rules of ruff."""
    session.run(PYTHON, "-m", "ruff", "check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy on the package."""
    session.run(PYTHON, "-m", "mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The site, without a dead link; into site/."""
    session.run(
        PYTHON,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        env=dict.fromkeys(("NO_MKDOCS_2_WARNING", "DISABLE_MKDOCS_2_WARNING"), "true"),
    )


@nox.session
def package(session: nox.Session) -> None:
    """Source distribution and wheel, with what they must carry."""
    with tempfile.TemporaryDirectory() as folder:
        session.run(PYTHON, "-m", "build", "--outdir", folder, silent=True)
        files = sorted(map(str, pathlib.Path(folder).iterdir()))
        session.run(PYTHON, "-m", "twine", "check", "--strict", *files)
        with zipfile.ZipFile(next(name for name in files if name.endswith(".whl"))) as wheel:
            names = set(wheel.namelist())
    flags = {f"btcp_tf/flags/{path.name}" for path in pathlib.Path("flags").glob("*.cfg")}
    templates = {str(path) for path in pathlib.Path("btcp_tf/reporting/templates").iterdir()}
    missing = ({"btcp_tf/py.typed"} | flags | templates) - names
    if missing:
        session.error(f"the wheel lacks {', '.join(sorted(missing))}")


@nox.session
def tests(session: nox.Session) -> None:
    """The tests; more words go to pytest, as in `nox -s tests -- -k metrics`."""
    session.run(PYTHON, "-m", "pytest", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Kills, full disks, damaged and hostile files in short; more words go to the script."""
    session.run(PYTHON, "-m", "benchmarks.faults", *(session.posargs or ["--short"]))


@nox.session
def examples(session: nox.Session) -> None:
    """The worked examples, the notebook and the code blocks of the documentation."""
    session.run(PYTHON, "-m", "pytest", "-m", "examples", "--dist=worksteal", *session.posargs)


@nox.session
def servers(session: nox.Session) -> None:
    """What starts servers or Ray (the extra `ray`), one test after the other."""
    session.run(PYTHON, "-m", "pytest", "-m", "servers", "-n0", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Every kind of report in Chromium (the extra `browser`)."""
    session.run(PYTHON, "-m", "pytest", "-m", "browser", "-n0", *session.posargs)
