"""Where things lie: every path of the course hangs on the folder of the clone."""

from __future__ import annotations

import os
from pathlib import Path


class NotACloneError(ValueError):
    """The package was installed without the notebooks, the book and the data beside it."""


def find_root() -> Path:
    """Return the folder of the clone: `GSMRL_ROOT` if set, else the package's parent folder.

    Notebooks run in different working directories (papermill in its caller's, nbconvert in the
    notebook's), so that a path relative to the working directory is never right in both.

    Raises:
        NotACloneError: that folder holds no `notebooks/` and `pyproject.toml`.
    """
    named = os.environ.get("GSMRL_ROOT")
    root = Path(named).expanduser().resolve() if named else Path(__file__).resolve().parents[1]
    if not (root / "notebooks").is_dir() or not (root / "pyproject.toml").is_file():
        raise NotACloneError(
            f"{root} is no clone of the course (no notebooks/ and pyproject.toml in it). Clone the "
            'repository and install from there with `pip install -e ".[dev]" -c constraints.txt`, '
            "or set GSMRL_ROOT to the clone's folder."
        )
    return root


ROOT = find_root()
NOTEBOOKS_DIR = ROOT / "notebooks"
BOOK_DIR = ROOT / "book"
BUILD_DIR = ROOT / "_build"
DATA_DIR = ROOT / "data"
RUNS_DIR = ROOT / "runs"
RESULTS_DIR = DATA_DIR / "results"


def relative_to_root(path: Path | str) -> str:
    """Return `path` relative to the clone with forward slashes, or absolute when outside it."""
    absolute = Path(path).resolve()
    return absolute.relative_to(ROOT).as_posix() if absolute.is_relative_to(ROOT) else str(absolute)
