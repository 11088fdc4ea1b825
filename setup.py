"""Builds and installs btcp_tf: version, packages, dependencies and commands.

Name, description, license and classifiers stand in pyproject.toml. The flag files travel inside the
package.
"""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def _version() -> str:
    """The package's version, read as text: importing it needs what is not installed yet."""
    text = (ROOT / "btcp_tf" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if match is None:
        raise ValueError('btcp_tf/__init__.py: expected a line __version__ = "..."')
    return match[1]


class BuildWithFlags(build_py):
    """Puts the flag files into the built package, as `btcp_tf/flags`.

    A package of their own, from another folder, would do so, too. But then an editable install
    would not be a plain path, and a folder that is called as the checkout usually is, `btcp_tf`,
    beside somebody's script would hide the package from it.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "btcp_tf" / "flags"
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted((ROOT / "flags").glob("*.cfg")):
                shutil.copyfile(path, target / path.name)


# Minor versions of TensorFlow, Keras and TensorBoard change behavior that training and export
# rely on, and go together: a new one is a change of this file, made after the tests passed.
TENSORFLOW = ">=2.21,<2.22"

# Of studies on several machines, and of batch scoring and the server in examples/; their tests have
# the marker `servers`.
RAY = "ray[data,serve]>=2.60,<3"

setup(
    version=_version(),
    packages=find_packages(include=["btcp_tf", "btcp_tf.*"]),
    package_dir={"": "."},
    package_data={"btcp_tf": ["py.typed"], "btcp_tf.reporting": ["templates/*"]},
    cmdclass={"build_py": BuildWithFlags},
    install_requires=[
        f"tensorflow{TENSORFLOW}",
        "keras>=3.15,<3.16",
        f"tensorflow-serving-api{TENSORFLOW}",
        "tensorflow-datasets>=4.9.10,<5",
        "importlib_resources>=6",  # imported by tensorflow-datasets, which does not declare it
        "tensorboard>=2.21,<2.22",  # needed by tf.summary, no longer brought by tensorflow
        "numpy>=2.0,<3",
        "h5py>=3.11,<4",  # looks into .h5 files before Keras, which brings it, reads them
        "scikit-learn>=1.6,<2",
        "scipy>=1.14,<2",
        "threadpoolctl>=3.1,<4",  # scikit-learn brings it
        "matplotlib>=3.10,<4",
        "pillow>=11,<14",
        "pyarrow>=20,<27",
        "absl-py>=2.1,<3",
        "jinja2>=3.1,<4",
        "markupsafe>=2.1,<4",
        "requests>=2.32,<3",
        "urllib3>=2.2,<3",
        "tenacity>=9,<10",
        "grpcio>=1.70,<2",
        "protobuf>=6.31.1,<8",
    ],
    extras_require={
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "parquet": [],  # of version 0.1.0: pyarrow comes with all installations now
        # Looks at reports in a browser; Chromium itself is the system's.
        "browser": ["playwright>=1.50,<2", "axe-playwright-python>=0.1.4,<0.2"],
        "ray": [RAY],
        # Classifiers of KerasHub, which the tests skip without it.
        "hub": ["keras-hub>=0.32,<0.33"],
        "test": [
            "pytest>=9,<10",
            "pytest-timeout>=2.4,<3",
            "pytest-xdist[psutil]>=3.8,<4",
            "hypothesis>=6.130,<7",
            "pandas>=2.2,<4",  # tables as people have them
            "ruff>=0.17,<0.18",
            "mypy>=2.4,<3",
            "nox>=2025.2",
            # Run the notebook of examples/.
            "nbclient>=0.10,<0.12",
            "ipykernel>=6.29,<8",
        ],
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.6,<10",
            "mkdocs-gen-files>=0.5,<0.7",
            "mkdocstrings[python]>=0.29,<2",
        ],
        # Neighbors of large references, in `fit`.
        "faiss": ["faiss-cpu>=1.11,<2"],
        "package": ["build>=1.2,<2", "twine>=6,<8"],
    },
    entry_points={"console_scripts": ["btcp_tf = btcp_tf.main:main"]},
)
