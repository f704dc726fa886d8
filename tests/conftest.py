"""Fixtures of several test files: notebooks small enough to execute in a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
import pytest

Cells = list[tuple[str, list[str]]]


@pytest.fixture
def make_notebook(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an .ipynb of code cells, given as (source, tags)."""

    def make(cells: Cells, name: str = "10_small.ipynb", pair: bool = False) -> Path:
        notebook = nbformat.v4.new_notebook(
            metadata={
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
            }
        )
        for source, tags in cells:
            metadata = {"tags": tags} if tags else {}
            notebook.cells.append(nbformat.v4.new_code_cell(source, metadata=metadata))
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        if pair:
            jupytext.write(notebook, path.with_suffix(".py"), fmt="py:percent")
        return path

    return make
