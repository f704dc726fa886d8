"""The student edition: notebooks whose solutions are taken out and whose checks stay.

A cell tagged `solution` keeps its imports, constants, signatures and docstrings; each body becomes
a stub that raises NotImplementedError and names the exercise. The check after it turns green when
the body is right again. nbgrader's cell metadata (schema 3) say what may be edited and what counts.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from gsmrl_helpers.assignment import points_by_name, read_map, shown_definitions
from gsmrl_helpers.chapters import EXERCISE, EXERCISE_PARTS
from gsmrl_helpers.notebooks import cell_tags, find_notebooks, read_notebook, write_notebook
from gsmrl_helpers.plain_markdown import plain_markdown
from gsmrl_helpers.stuck_boxes import add_stuck_boxes

STUB = 'raise NotImplementedError("exercise {exercise}: not written yet")'
EXERCISE_POINTS = 1.0  # an exercise of the book's own; the assignment's have the assignment's
AS_WRITTEN = "gsmrl_sources"  # in a notebook's metadata
LABEL = EXERCISE_PARTS["a label `ex-NN-name`"]

WELCOME = """

> **Student edition.** Where a cell raises `NotImplementedError`, its body is yours to write. The
> check below it says whether it is right, and what follows then runs on your own code."""

NBGRADER_CONFIG = """\
# Lay this file into the folder of an nbgrader course. The notebooks beside it hold no solutions,
# so nbgrader has none to clear: it would replace whole cells, signatures and docstrings included.
c = get_config()
c.ClearSolutions.enabled = False
c.Execute.timeout = 300  # seconds a cell
"""


class StudentEditionError(ValueError):
    """A notebook that has no student edition as it is."""


# --- stubs ------------------------------------------------------------------------------------


def take_out_bodies(source: str, exercise: str) -> str:
    """Replace the body of every function and method by a stub that names the exercise.

    Imports, constants, signatures, docstrings and class attributes stay.

    Raises:
        StudentEditionError: a body that starts on the line of its signature.
    """
    lines = source.splitlines()
    for function in reversed(functions_of(ast.parse(source).body)):
        first, indent = first_body_line(function, lines), function.body[0].col_offset
        if lines[function.body[0].lineno - 1][:indent].strip():
            raise StudentEditionError(f"{function.name}: its body must start on a line of its own")
        lines[first - 1 : function.end_lineno] = [" " * indent + STUB.format(exercise=exercise)]
    return "\n".join(lines)


def functions_of(body: Iterable[ast.stmt]) -> list[ast.FunctionDef]:
    """The functions, and the methods of classes, in the order of the source."""
    found: list[ast.FunctionDef] = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            found += functions_of(node.body)
        elif isinstance(node, ast.FunctionDef):
            found.append(node)
    return found


def first_body_line(function: ast.FunctionDef, lines: list[str]) -> int:
    """The first line of a body, counted from 1: behind the docstring, with leading comments."""
    if ast.get_docstring(function) is not None:
        return function.body[0].end_lineno + 1
    first = function.body[0].lineno
    while lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


# --- the edition --------------------------------------------------------------------------------


def has_solution(notebook: NotebookNode) -> bool:
    """Say whether there is anything to take out of a notebook."""
    return any("solution" in cell_tags(cell) for cell in notebook.cells)


def student_edition(notebook: NotebookNode, points: Mapping[str, float]) -> NotebookNode:
    """Return the student edition of a notebook of the book.

    Args:
        notebook: as the book has it, executed.
        points: of the assignment's functions and exercises (`points_by_name`). A definition that
            is none of them is part of one and counts 0, an exercise of the book's own counts 1.

    Raises:
        StudentEditionError: a solution without a name, or a check that nbgrader can't grade.
    """
    edition = nbformat.from_dict(notebook)
    add_stuck_boxes(edition)
    edition.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "jupytext": {"formats": "ipynb"},
    }
    label, open_exercise, used = "", None, set()
    for index, cell in enumerate(edition.cells):
        tags, kind, worth, name = cell_tags(cell), "locked", None, f"cell-{index:03}"
        if cell.cell_type == "markdown":
            label = last_label(cell.source) or label
            cell.source = plain_markdown(cell.source) + (WELCOME if index == 0 else "")
        elif "solution" in tags:
            kind, name = "solution", exercise_name(cell, label, points)
            cell.source = take_out_bodies(cell.source, name)
            own = 0.0 if "definition" in tags else EXERCISE_POINTS
            open_exercise = (name, points.get(name, own))
        elif "check" in tags and open_exercise:
            refuse_ungradable(cell)
            (name, worth), kind, open_exercise = open_exercise, "grade", None
            name = f"{name}-check"
        elif "parameters" in tags:
            kind = "free"
        tidy(cell, tags)
        name = unused(name, used)
        cell.metadata["nbgrader"] = nbgrader_metadata(kind, name, worth)
    return edition


def last_label(markdown: str) -> str | None:
    """The label of the last exercise that a Markdown cell poses."""
    labels = [LABEL.search(match["body"]) for match in EXERCISE.finditer(markdown)]
    return labels[-1][1] if labels and labels[-1] else None


def exercise_name(cell: NotebookNode, label: str, points: Mapping[str, float]) -> str:
    """The name that a stub raises: a component's own, or the label of the exercise before it.

    Raises:
        StudentEditionError: a solution that no exercise stands before.
    """
    shown = shown_definitions(cell)
    if shown:
        return next((name for name in shown if name in points), shown[-1])
    if not label:
        raise StudentEditionError(f"no exercise stands before the solution {cell.source[:40]!r}")
    return label


def refuse_ungradable(check: NotebookNode) -> None:
    """Refuse a check that prints a result or to stderr: nbgrader would read these as a grade.

    Raises:
        StudentEditionError: naming the check.
    """
    for output in check.outputs:
        if output.output_type == "execute_result" or output.get("name") == "stderr":
            raise StudentEditionError(
                f"the check {check.source[:40]!r} shows a value or writes to stderr, which "
                "nbgrader takes for a grade: a check after a solution only asserts, or prints"
            )


def tidy(cell: NotebookNode, tags: list[str]) -> None:
    """Clear outputs, and let a student see what is to be written."""
    if cell.cell_type != "code":
        return
    cell.outputs, cell.execution_count = [], None
    if "solution" in tags:
        cell.metadata["tags"] = [tag for tag in tags if tag != "hide-cell"]


def unused(name: str, used: set[str]) -> str:
    """Return the name, or with a number if it is taken, and take it."""
    number, free = 1, name
    while free in used:
        number, free = number + 1, f"{name}-{number + 1}"
    used.add(free)
    return free


def nbgrader_metadata(kind: str, grade_id: str, points: float | None) -> dict[str, Any]:
    """nbgrader's metadata, schema version 3, of a `solution`, `grade`, `locked` or `free` cell."""
    metadata = {"schema_version": 3, "task": False, "grade_id": grade_id}
    metadata |= {"solution": kind == "solution", "grade": kind == "grade"}
    metadata["locked"] = kind in ("grade", "locked")
    return metadata if points is None else {**metadata, "points": points}


def put_back(student: NotebookNode, original: NotebookNode) -> NotebookNode:
    """Return a student notebook with the solutions of the original in it, matched by cell id.

    Raises:
        StudentEditionError: the two do not have the same cells.
    """
    if [cell.id for cell in student.cells] != [cell.id for cell in original.cells]:
        raise StudentEditionError("the student edition was made from another version: make it anew")
    solved = nbformat.from_dict(student)
    for cell, source in zip(solved.cells, original.cells, strict=True):
        if "solution" in cell_tags(cell):
            cell.source = source.source
    return solved


def write_student_edition(folder: Path) -> list[tuple[Path, NotebookNode]]:
    """Write the student edition of every notebook that has a solution, and nbgrader's settings.

    Raises:
        StudentEditionError: naming the notebook that has none, or those in the folder in which
            somebody has worked; nothing is written then.
    """
    rows, editions = read_map(), []
    for path in find_notebooks():
        notebook = read_notebook(path)
        if has_solution(notebook):
            try:
                edition = student_edition(notebook, points_by_name(path.stem, rows))
            except ValueError as error:
                raise StudentEditionError(f"{path.name}: {error}") from error
            edition.metadata[AS_WRITTEN] = sources_digest(edition)
            editions.append((folder / path.name, edition))
    if edited := [path.name for path, _ in editions if path.exists() and is_edited(path)]:
        raise StudentEditionError(
            f"{folder.name} holds notebooks that were changed since they were written: "
            f"{', '.join(edited)}. Move them, or write to another folder with --out"
        )
    for path, edition in editions:
        write_notebook(edition, path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nbgrader_config.py").write_text(NBGRADER_CONFIG, encoding="utf-8")
    return editions


def sources_digest(notebook: NotebookNode) -> str:
    """A sum over what the cells say; to run them does not change it."""
    sources = [(cell.cell_type, cell.source) for cell in notebook.cells]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]


def is_edited(path: Path) -> bool:
    """Say whether a notebook says anything else than when it was written."""
    notebook = read_notebook(path)
    return notebook.metadata.get(AS_WRITTEN) != sources_digest(notebook)


def total_points(edition: NotebookNode) -> float:
    """The points that the checks of a student notebook carry."""
    return sum(cell.metadata.nbgrader.get("points", 0) for cell in edition.cells)
