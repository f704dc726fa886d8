"""The assignment map: the 28 problems of CS336 assignment 5, and the cell where each is solved."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import nbformat
import yaml
from nbformat import NotebookNode
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gsmrl_helpers.chapters import PLAIN, definitions, python_source
from gsmrl_helpers.notebooks import cell_tags, code_cells, read_notebook, write_notebook
from gsmrl_helpers.paths import BOOK_DIR, ROOT
from gsmrl_helpers.toc import chapters, toc_files

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


MAP_PAGE = Path("book") / "assignment_map.md"
HEAD = "| Problem | Points | B200 hours | Where |\n|---|--:|--:|---|"
TOTALS_HEAD = "| Section | Points | B200 hours | In the book | Pending |\n|---|--:|--:|--:|--:|"


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

    @property
    def label(self) -> str:
        """The target of links to the cell."""
        return "assignment-" + re.sub("[^a-z0-9]+", "-", self.problem).strip("-")


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


def written_notebooks(source: Path = ROOT) -> dict[str, NotebookNode]:
    """The chapters of the book's table of contents that have code in them, by name."""
    notebooks = {stem: read_notebook(path) for stem, path in chapters(source).items()}
    return {stem: notebook for stem, notebook in notebooks.items() if code_cells(notebook)}


def find_cell(notebook: NotebookNode, place: str) -> int | None:
    """Return the index of the cell that a map's `cell` names, or None if there is none."""
    kind, name = place.split(" ", 1)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            if place_in_text(cell.source, place) is not None:
                return index
        elif cell.cell_type == "code":
            if kind == "claim" and f"claim:{name}" in cell_tags(cell):
                return index
            if kind == "function" and name in shown_definitions(cell):
                return index
    return None


def place_in_text(text: str, place: str) -> int | None:
    """Return where in a Markdown cell the exercise or heading starts that a map's `cell` names."""
    kind, name = place.split(" ", 1)
    starts = {
        "exercise": rf"^(`{{3,}}|:{{3,}})\{{exercise\}}[^\n]*\n:label: {re.escape(name)}$",
        "heading": rf"^#+ +{re.escape(name)}\s*$",
    }
    match = re.search(starts[kind], text, re.MULTILINE) if kind in starts else None
    return match.start() if match else None


def shown_definitions(cell: NotebookNode) -> list[str]:
    """Return what a definition cell shows, under the package's names, in order."""
    if "definition" not in cell_tags(cell):
        return []
    found = definitions(ast.parse(python_source(cell)))
    return [definition.name.removeprefix(PLAIN) for definition in found]


def map_problems(
    rows: Iterable[AssignmentProblem], notebooks: Mapping[str, NotebookNode]
) -> Iterator[str]:
    """Yield the rows that lead to no cell although their notebook is written."""
    for row in rows:
        if row.notebook not in notebooks:
            continue
        if row.cell is None:
            yield f"{row.problem}: {row.notebook} is written, so the map must name its cell"
        elif find_cell(notebooks[row.notebook], row.cell) is None:
            yield f"{row.problem}: {row.notebook} has no cell `{row.cell}`"


def points_by_name(notebook_stem: str, rows: Iterable[AssignmentProblem]) -> dict[str, float]:
    """Return the points of what a reader writes in a notebook, by function or exercise label.

    Several problems may ask for parts of one function: its check then carries their sum.
    """
    worth: dict[str, float] = defaultdict(float)
    for row in rows:
        kind, _, name = (row.cell or "").partition(" ")
        if row.notebook == notebook_stem and kind in ("function", "exercise"):
            worth[name] += row.points
    return dict(worth)


# --- the page, in the build copy only -----------------------------------------------------------


def found_cells(copy: Path) -> dict[AssignmentProblem, int]:
    """Return the rows whose cell is there, with its index, in the map's order."""
    notebooks, found = written_notebooks(copy), {}
    for row in read_map(copy / "book" / MAP.name):
        if row.notebook in notebooks and row.cell is not None:
            index = find_cell(notebooks[row.notebook], row.cell)
            if index is not None:
                found[row] = index
    return found


def mark_assignment(copy: Path) -> None:
    """Put a target, and a mark that links to the map, before each cell that the map names.

    A book without the page of the map gets no marks: they would lead nowhere.
    """
    if MAP_PAGE not in toc_files(copy):
        return
    found, files = found_cells(copy), chapters(copy)
    for stem in {row.notebook for row in found}:
        cells = defaultdict(list)
        for row, index in found.items():
            if row.notebook == stem:
                cells[index].append(row)
        notebook = read_notebook(files[stem])
        for index in sorted(cells, reverse=True):  # from the last: the others keep their places
            if notebook.cells[index].cell_type == "markdown":
                mark_in_text(notebook.cells[index], cells[index])
            else:
                mark = nbformat.v4.new_markdown_cell(assignment_mark(cells[index]))
                notebook.cells.insert(index, mark)
        write_notebook(notebook, files[stem])


def mark_in_text(cell: NotebookNode, rows: list[AssignmentProblem]) -> None:
    """Put marks into a Markdown cell, each right before the exercise or heading it is about."""
    by_place = defaultdict(list)
    for row in rows:
        by_place[row.cell].append(row)
    for place, same in by_place.items():
        start = place_in_text(cell.source, place)
        cell.source = f"{cell.source[:start]}{assignment_mark(same)}\n\n{cell.source[start:]}"


def assignment_mark(rows: list[AssignmentProblem]) -> str:
    """Return the Markdown of the mark before a cell: a target and a link for each problem."""
    targets = "\n".join(f"({row.label})=" for row in rows)
    links = " ".join(f"[{row.problem}, {points(row.points)}](#about-{row.label})" for row in rows)
    return f"{targets}\n:::{{div}} claim-mark\n{links}\n:::"


def assignment_markdown(copy: Path) -> str:
    """Return the page's generated part: totals, and a table for each section."""
    rows, found = read_map(copy / "book" / MAP.name), found_cells(copy)
    sections = {
        f"{number} {title}": [row for row in rows if row.section == number]
        for number, title in SECTIONS.items()
    }
    parts = [
        f"{len(found)} of the {len(rows)} problems are in the book; {len(rows) - len(found)} are "
        f"pending: their chapter is not written.\n\n{TOTALS_HEAD}"
    ]
    parts += [totals_row(title, here, found) for title, here in sections.items()]
    parts.append(totals_row("**All**", rows, found))
    for title, here in sections.items():
        parts.append(f"\n## {title}: {points(sum(row.points for row in here))}\n\n{HEAD}")
        parts += [table_row(row, row in found) for row in here]
    return "\n".join(parts)


def totals_row(
    title: str, rows: list[AssignmentProblem], found: Collection[AssignmentProblem]
) -> str:
    """Return a row of sums: points, hours, problems in the book, problems pending."""
    worth, hours = (sum(getattr(r, name) or 0 for r in rows) for name in ("points", "b200_hours"))
    written = sum(row in found for row in rows)
    counts = f"{written} | {len(rows) - written}"
    return f"| {title} | {worth:g} | {blank_or(hours)} | {counts} |"


def table_row(row: AssignmentProblem, is_found: bool) -> str:
    """Return a problem's row, with a target of its own and a link to its cell if there is one."""
    name = f"[`{row.problem}`]{{#about-{row.label}}}"
    chapter = f"chapter\N{NO-BREAK SPACE}{row.notebook[:2]}"
    where = f"[{chapter}](#{row.label})" if is_found else f"{chapter}, pending"
    return f"| {row.title} <br> {name} | {row.points:g} | {blank_or(row.b200_hours)} | {where} |"


def points(number: float) -> str:
    """Return `1 point` or `2.5 points`."""
    return f"{number:g} point" + ("" if number == 1 else "s")


def blank_or(number: float | None) -> str:
    """Return a number as text, nothing for none or 0."""
    return f"{number:g}" if number else ""
