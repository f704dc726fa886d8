"""The assignment map: the 28 problems of CS336 assignment 5, and the cell where each is solved."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import yaml
from nbformat import NotebookNode
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gsmrl_helpers.chapters import PLAIN, definitions, python_source
from gsmrl_helpers.notebooks import cell_tags, code_cells, read_notebook
from gsmrl_helpers.paths import BOOK_DIR, ROOT

MAP = BOOK_DIR / "assignment.yml"
SECTIONS = {
    "3": "Prompting",
    "4.1": "Deriving GRPO",
    "4.2": "The components of GRPO",
    "4.3": "Experiments with GRPO",
    "5": "Variants",
    "6": "Off-policy",
    "7": "An estimator of your own",
}


class AssignmentError(ValueError):
    """The assignment map is not what it should be."""


class AssignmentProblem(BaseModel):
    """One problem of the assignment and its place in the book."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*( \([a-z, ]+\))?$")]
    title: Annotated[str, Field(min_length=5)]
    section: Annotated[str, Field(pattern="^(" + "|".join(map(re.escape, SECTIONS)) + ")$")]
    points: Annotated[float, Field(gt=0)]
    b200_hours: Annotated[float, Field(gt=0)] | None = None
    notebook: Annotated[str, Field(pattern=r"^\d\d_[a-z0-9_]+$")]
    # a definition that is shown, a claim's id, an exercise's label, or a heading's text
    cell: Annotated[str, Field(pattern="^(function|claim|exercise|heading) .+$")] | None = None


def read_map(path: Path = MAP) -> list[AssignmentProblem]:
    """Read the assignment map.

    Raises:
        AssignmentError: a row that is not as `AssignmentProblem` says, or a problem named twice.
    """
    try:
        rows = TypeAdapter(list[AssignmentProblem]).validate_python(
            yaml.safe_load(path.read_text(encoding="utf-8"))
        )
    except ValidationError as error:
        raise AssignmentError(f"{path.name}: {error}") from error
    names = [row.problem for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise AssignmentError(f"{path.name} has these problems twice: {', '.join(twice)}")
    return rows


def written_notebook(row: AssignmentProblem, root: Path = ROOT) -> NotebookNode | None:
    """Return the row's notebook, or None while it is not written (it has no code cell yet)."""
    path = root / "notebooks" / f"{row.notebook}.ipynb"
    notebook = read_notebook(path) if path.is_file() else None
    return notebook if notebook is not None and code_cells(notebook) else None


def find_cell(notebook: NotebookNode, place: str) -> int | None:
    """Return the index of the cell that a map's `cell` names, or None if there is none."""
    kind, name = place.split(" ", 1)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            wanted = {"exercise": f"^:label: {re.escape(name)}$"}
            wanted["heading"] = rf"^#+ +{re.escape(name)}\s*$"
            if kind in wanted and re.search(wanted[kind], cell.source, re.MULTILINE):
                return index
        elif cell.cell_type == "code":
            if kind == "claim" and f"claim:{name}" in cell_tags(cell):
                return index
            if kind == "function" and name in shown_definitions(cell):
                return index
    return None


def shown_definitions(cell: NotebookNode) -> list[str]:
    """Return what a definition cell shows, under the package's names, in order."""
    if "definition" not in cell_tags(cell):
        return []
    found = definitions(ast.parse(python_source(cell)))
    return [definition.name.removeprefix(PLAIN) for definition in found]


def map_problems(rows: Iterable[AssignmentProblem], root: Path = ROOT) -> Iterator[str]:
    """Yield the rows of written notebooks that lead to no cell."""
    for row in rows:
        notebook = written_notebook(row, root)
        if notebook is not None and row.cell is None:
            yield f"{row.problem}: {row.notebook} is written, so the map must name its cell"
        elif notebook is not None and find_cell(notebook, row.cell) is None:
            yield f"{row.problem}: {row.notebook} has no cell `{row.cell}`"


def points_by_name(notebook_stem: str, rows: Iterable[AssignmentProblem]) -> dict[str, float]:
    """Return the points of what a reader writes in a notebook, by function or exercise label.

    Several problems may ask for parts of one function: its check then carries their sum.
    """
    points: dict[str, float] = defaultdict(float)
    for row in rows:
        kind, _, name = (row.cell or "").partition(" ")
        if row.notebook == notebook_stem and kind in ("function", "exercise"):
            points[name] += row.points
    return dict(points)
