"""The rules of a chapter: its layout, its definitions and their checks, exercises, cell lengths.

A definition that a reader sees is the one that the package runs: the syntax trees are compared.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from nbformat import NotebookNode

import gsmrl_helpers
from gsmrl_helpers.notebooks import CLAIM_TAG, cell_tags, code_cells, read_notebook
from gsmrl_helpers.paths import relative_to_root

PACKAGE = Path(__file__).parent
PLAIN = "plain_"  # the readable twin of a package function, asserted equal to it
MAX_MEDIAN_LINES, MAX_P90_LINES = 8, 30

BOX = ("You will be able to", "You need", "Reading", "running")
ENDING = ("## Take away", "## Exercises", "## Next")
EXERCISE = re.compile(r"^(`{3,}|:{3,})\{exercise\}(?P<body>.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
EXERCISE_PARTS = {
    "a label `ex-NN-name`": re.compile(r"^:label: (ex-\d\d-[a-z0-9-]+)$", re.MULTILINE),
    "difficulty and minutes, as in *Easy, 5 minutes.*": re.compile(
        r"\*(Easy|Medium|Hard), \d+ minutes\.\*"
    ),
    "a hint, `:::{dropdown} Hint`": re.compile(r"\{dropdown\} Hint"),
}

Definition = ast.FunctionDef | ast.ClassDef


def chapter_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Return where a notebook breaks the rules of a chapter, in words."""
    rules = (
        layout_problems,
        definition_problems,
        assertion_problems,
        exercise_problems,
        length_problems,
    )
    return [f"{name}: {problem}" for rule in rules for problem in rule(notebook)]


# --- layout -----------------------------------------------------------------------------------


def layout_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield what the top box and the end of a chapter lack."""
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    top, lines = prose[0] if prose else "", "\n".join(prose).splitlines()
    if not top.startswith("# "):
        yield "the first cell does not start with a title"
    yield from (f"the box at the top does not say **{part}**" for part in BOX if part not in top)
    if not re.search(r"^:class: tip$", top, re.MULTILINE):
        yield "the box at the top has no line `:class: tip` of its own"
    if not re.search(r"\b(CPU|GPU)\b", top):
        yield "the box at the top says neither CPU nor GPU"
    found = [line for line in lines if line in ENDING]
    if found != list(ENDING):
        yield f"it must end with {', '.join(ENDING)}: found {', '.join(found) or 'none of them'}"


# --- definitions ------------------------------------------------------------------------------


@cache
def package_definitions() -> dict[str, tuple[str, ...]]:
    """The package's functions and classes by name, as dumps of their syntax trees."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.glob("*.py")):
        for definition in definitions(ast.parse(path.read_text(encoding="utf-8"))):
            found[definition.name].append(dump(definition))
    return {name: tuple(dumps) for name, dumps in found.items()}


def definitions(tree: ast.Module) -> list[Definition]:
    """The functions and classes at the top of a syntax tree."""
    return [node for node in tree.body if isinstance(node, Definition)]


def dump(definition: Definition) -> str:
    """A definition's syntax tree as text, without docstrings and positions."""
    bare = ast.parse(ast.unparse(definition))
    for node in ast.walk(bare):
        if isinstance(node, Definition) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(bare)


def definition_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield definitions that differ from the package's, or that no check follows."""
    cells = code_cells(notebook)
    for cell, check in zip(cells, [*cells, None][1:], strict=True):
        found = definitions(ast.parse(python_source(cell)))
        if "definition" in cell_tags(cell):
            yield from different_definitions(cell, found)
            yield from unchecked_definitions(check, found)
        else:
            for definition in found:
                if is_the_packages(definition):
                    yield f"{definition.name} is the package's: tag its cell `definition`"


def is_the_packages(definition: Definition) -> bool:
    """Say whether a function or class has a public name of the package, or is a copy from it."""
    name = definition.name
    return name in gsmrl_helpers.__all__ or dump(definition) in package_definitions().get(name, ())


def different_definitions(cell: NotebookNode, found: list[Definition]) -> Iterator[str]:
    """Yield what a definition cell holds that is not the package's."""
    if not found:
        yield f"the definition cell {cell.source[:40]!r} defines no function or class"
    if not holds_only_definitions(cell):
        yield f"the definition cell of {found[0].name if found else '?'} does more than define"
    for definition in found:
        twin = definition.name.removeprefix(PLAIN)
        if twin not in package_definitions():
            yield f"{definition.name}: the package has no function or class {twin}"
        elif twin == definition.name and dump(definition) not in package_definitions()[twin]:
            yield f"{definition.name} differs from the package's definition"


def unchecked_definitions(check: NotebookNode | None, found: list[Definition]) -> Iterator[str]:
    """Yield the definitions of a cell that the check after it does not use."""
    is_check = check is not None and "check" in cell_tags(check)
    used = names(ast.parse(python_source(check))) if is_check else set()
    for definition in found:
        twin = definition.name.removeprefix(PLAIN)
        missing = {definition.name, twin} - used
        if len(found) > 1 and twin == definition.name:
            continue  # one of several may be a helper of the others
        if missing:
            yield f"{definition.name}: the next code cell must be a check of {', '.join(missing)}"
    if len(found) > 1 and not {definition.name for definition in found} & used:
        yield f"{found[0].name}: the next code cell must be a check that uses it"


def names(tree: ast.AST) -> set[str]:
    """All names and attributes that a syntax tree mentions."""
    mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return mentioned | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def holds_only_definitions(cell: NotebookNode) -> bool:
    """Say whether a cell holds functions, classes, imports and constants, and nothing else."""
    allowed = (*Definition.__args__, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return all(isinstance(node, allowed) for node in ast.parse(python_source(cell)).body)


def python_source(cell: NotebookNode) -> str:
    """A code cell's source without IPython's own lines (`%…`, `!…`)."""
    lines = cell.source.splitlines()
    return "\n".join(line for line in lines if not re.match(r"\s*[%!]", line))


# --- checks, claims, exercises -----------------------------------------------------------------


def assertion_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield check and claim cells that assert nothing."""
    for cell in code_cells(notebook):
        tags = [tag for tag in cell_tags(cell) if tag == "check" or CLAIM_TAG.fullmatch(tag)]
        if tags and not has_assert(cell):
            yield f"the cell {cell.source[:40]!r} is tagged {', '.join(tags)} and asserts nothing"


def has_assert(cell: NotebookNode) -> bool:
    """Say whether an `assert` stands in a cell's syntax tree."""
    return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(python_source(cell))))


def exercise_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield exercises that lack a part, a solution or its check, and solutions that do more."""
    waiting: list[str] = []  # exercises whose solution has not come yet
    code = code_cells(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for match in EXERCISE.finditer(cell.source):
                title = match["body"].splitlines()[0].strip() or "without a title"
                yield from missing_parts(title, match["body"])
                waiting.append(title)
        elif "solution" in cell_tags(cell):
            yield from solution_problems(cell, code)
            if "definition" not in cell_tags(cell):
                if len(waiting) != 1:
                    yield f"{len(waiting)} exercises stand before one solution: {waiting}"
                waiting = []
    yield from (f"the exercise {title!r} has no solution" for title in waiting)


def missing_parts(title: str, body: str) -> Iterator[str]:
    """Yield what an exercise lacks."""
    for part, pattern in EXERCISE_PARTS.items():
        if not pattern.search(body):
            yield f"the exercise {title!r} lacks {part}"


def solution_problems(cell: NotebookNode, code: list[NotebookNode]) -> Iterator[str]:
    """Yield what keeps a solution from being taken out, and put back, by the student edition."""
    if not (holds_only_definitions(cell) and definitions(ast.parse(python_source(cell)))):
        yield f"the solution {cell.source[:40]!r} must hold functions or classes and nothing else"
    after = code[code.index(cell) + 1 :]
    if not after or "check" not in cell_tags(after[0]):
        yield f"the solution {cell.source[:40]!r} is not followed by a check"
    if not {"definition", "hide-cell"} & set(cell_tags(cell)):
        yield f"the solution {cell.source[:40]!r} is not folded: add the tag hide-cell"


# --- lengths ----------------------------------------------------------------------------------


def cell_lengths(notebook: NotebookNode) -> list[int]:
    """The lines of each code cell; 0 for a notebook without code."""
    sources = [cell.source.strip() for cell in code_cells(notebook)]
    return [len(source.splitlines()) for source in sources if source] or [0]


def length_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield what is too long: half of the code cells, or one in ten."""
    lengths = cell_lengths(notebook)
    for limit, percent in ((MAX_MEDIAN_LINES, 50), (MAX_P90_LINES, 90)):
        found = np.percentile(lengths, percent)
        if found > limit:
            yield f"{100 - percent} % of the code cells exceed {found:g} lines (at most {limit})"


def cell_statistics(notebooks: Iterable[Path]) -> pd.DataFrame:
    """One row a notebook: code cells, median and 90th percentile of their lines, and tags."""
    rows = {}
    for path in notebooks:
        notebook = read_notebook(path)
        lengths = cell_lengths(notebook)
        tags = [set(cell_tags(cell)) for cell in code_cells(notebook)]
        count = {tag: sum(tag in found for found in tags) for tag in ("definition", "check")}
        rows[path.stem] = {
            "code cells": len(tags),
            "median lines": np.median(lengths),
            "p90 lines": np.percentile(lengths, 90),
            "definitions": count["definition"],
            "checks": count["check"],
            "claims": sum(tag.startswith("claim:") for found in tags for tag in found),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def iter_chapter_problems(notebooks: Iterable[Path]) -> Iterator[str]:
    """Yield where these notebooks break the rules of a chapter."""
    for path in notebooks:
        if path.exists():
            yield from chapter_problems(read_notebook(path), relative_to_root(path))
