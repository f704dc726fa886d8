"""A "Stuck?" box in each exercise, put together from its solution and its check.

The hint of an exercise is its author's. What helps next is known from the code: how long the worked
solution is, which functions of the chapter it uses and where these stand, and the smallest case
that the check asks for. The notebooks hold none of it; the book's build copy and the student
edition do.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import NamedTuple

from nbformat import NotebookNode

from gsmrl_helpers.chapters import EXERCISE, Definition, definitions, names, python_source
from gsmrl_helpers.notebooks import cell_tags

TITLE = "Stuck?"
MAX_ASSERT_LINES = 5
HEADING = re.compile(r"^##+ +(.+)$", re.MULTILINE)
NAME = re.compile(r"(?:(?:torch|np|pd|math|sp|F|random|itertools)\.)*[A-Za-z_]\w*")
FROM_TOP = (
    "If a name is not defined, or the check sees an older version of your function, restart the "
    "kernel and run all cells above."
)


class Place(NamedTuple):
    """Where a function of the chapter is defined: the heading above its cell."""

    name: str
    heading: str


def add_stuck_boxes(notebook: NotebookNode) -> None:
    """Put a box into each exercise of this notebook, in place."""
    heading, places = "", []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            if found := HEADING.findall(cell.source):
                heading = found[-1]
            if match := EXERCISE.search(cell.source):
                box = stuck_box(notebook.cells[index + 1 :], places)
                cell.source = with_box(cell.source, match, box)
        elif cell.cell_type == "code" and "hide-cell" not in cell_tags(cell):
            tree = ast.parse(python_source(cell))
            places += [Place(found.name, heading) for found in definitions(tree)]


def with_box(source: str, match: re.Match[str], box: str) -> str:
    """The cell's Markdown with a box at the end of its exercise."""
    at = source.rindex(match[1], 0, match.end())
    return f"{source[:at]}\n:::{{dropdown}} {TITLE}\n{box}\n:::\n{source[at:]}"


def stuck_box(after: list[NotebookNode], places: list[Place]) -> str:
    """What the box says, from the first solution and the first check after the exercise.

    Where there is none, which `chapters.exercise_problems` reports, it says the less.
    """
    code = [cell for cell in after if cell.cell_type == "code"]
    parts: list[str] = []
    solution = next((cell for cell in code if "solution" in cell_tags(cell)), None)
    if solution is not None:
        parts += about_solution(solution, places)
        check = next((c for c in code[code.index(solution) :] if "check" in cell_tags(c)), None)
        parts += about_check(check, solution) if check is not None else []
    return "\n\n".join([*parts, FROM_TOP])


def about_solution(solution: NotebookNode, places: list[Place]) -> Iterator[str]:
    """How long it is, and what of the chapter it uses."""
    tree = ast.parse(python_source(solution))
    n_lines = sum(body_lines(definition) for definition in definitions(tree))
    lines = "one line" if n_lines == 1 else f"{n_lines} lines"
    sentence = f"The worked solution has {lines} in its body"
    called = calls(tree)
    known = {place.name: place.heading for place in places if place.name in called}
    others = [f"`{name}`" for name in called if name not in known]
    yield sentence + (f", with {', '.join(others)}." if others else ".")
    if known:
        listed = ", ".join(f"`{name}` (*{heading}*)" for name, heading in known.items())
        yield f"Of this chapter it uses {listed}."


def calls(tree: ast.Module) -> list[str]:
    """The functions that a solution calls, each once: not its own, its arguments' and methods, and
    of Python's those that are types or count what is there."""
    own = {definition.name for definition in definitions(tree)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return list(
        dict.fromkeys(
            name
            for name in called
            if NAME.fullmatch(name) and name not in own and not is_plain_python(name)
        )
    )


def is_plain_python(name: str) -> bool:
    """Whether a name is one of Python's types, exceptions among them, or its `len` or `range`."""
    return name == "len" or isinstance(getattr(builtins, name, None), type)


def body_lines(definition: Definition) -> int:
    """Lines of a function's body without its docstring; of a class, of its methods."""
    body = definition.body[1:] if ast.get_docstring(definition) else definition.body
    return sum(
        body_lines(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        else node.end_lineno - node.lineno + 1
        for node in body
    )


def about_check(check: NotebookNode, solution: NotebookNode) -> Iterator[str]:
    """The first short statement that asserts something of what is to be written."""
    asked = {definition.name for definition in definitions(ast.parse(python_source(solution)))}
    source = python_source(check)
    for node in ast.parse(source).body:
        short = node.end_lineno - node.lineno < MAX_ASSERT_LINES
        asserts = any(isinstance(part, ast.Assert) for part in ast.walk(node))
        if asserts and short and asked & names(node):
            quoted = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            yield "Begin with the first thing that the check asks for, and compute it by hand:"
            yield f"~~~python\n{quoted}\n~~~"
            return
