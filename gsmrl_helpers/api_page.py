"""The API reference: what the chapters derive and what the package exports, with links both ways.

Which chapter derives a function is read from the notebooks' `definition` cells.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

import gsmrl_helpers
from gsmrl_helpers.chapters import PACKAGE, dump, python_source
from gsmrl_helpers.docstrings import (
    Definition,
    definition_markdown,
    first_sentence,
    public_definitions,
)
from gsmrl_helpers.notebooks import cell_tags, read_notebook, write_notebook
from gsmrl_helpers.plain_markdown import notebook_title
from gsmrl_helpers.toc import chapters, toc_files

API_PAGE = Path("book") / "api.md"
EXPORTED = "Exported, and shown in no chapter"


@dataclass(frozen=True)
class Place:
    """Where a chapter derives a function or class: the chapter's name, the index of the cell."""

    chapter: str
    cell: int


def package_modules() -> dict[str, ast.Module]:
    """The package's modules by name, as syntax trees."""
    files = sorted(PACKAGE.glob("*.py"))
    return {
        file.stem: ast.parse(file.read_text(encoding="utf-8"))
        for file in files
        if file.stem != "__init__"
    }


def find_places(copy: Path, modules: dict[str, ast.Module]) -> dict[tuple[str, str], Place]:
    """(module, name) -> the first definition cell of the book that holds the package's code."""
    by_name = defaultdict(list)
    for module, tree in modules.items():
        for definition in public_definitions(tree):
            by_name[definition.name].append((module, definition))
    places: dict[tuple[str, str], Place] = {}
    for chapter, index, shown in shown_definitions(copy):
        for module, definition in by_name.get(shown.name, []):
            if dump(shown) == dump(definition):
                places.setdefault((module, shown.name), Place(chapter, index))
    return places


def shown_definitions(copy: Path) -> Iterator[tuple[str, int, Definition]]:
    """Yield chapter, index of the cell and definition for each that a definition cell holds."""
    for chapter, path in chapters(copy).items():
        for index, cell in enumerate(read_notebook(path).cells):
            if cell.cell_type == "code" and "definition" in cell_tags(cell):
                for definition in public_definitions(ast.parse(python_source(cell))):
                    yield chapter, index, definition


def label(module: str, name: str) -> str:
    """The target before the cell that derives a function or class."""
    return f"def-{module}-{name}".replace("_", "-").lower()


def mark_definitions(copy: Path) -> None:
    """Put a target, and a mark that links to the reference, before each deriving cell.

    A book without the reference gets no marks: they would lead nowhere.
    """
    if API_PAGE not in toc_files(copy):
        return
    by_cell: dict[Place, list[tuple[str, str]]] = defaultdict(list)
    for key, place in find_places(copy, package_modules()).items():
        by_cell[place].append(key)
    for chapter, path in chapters(copy).items():
        notebook = read_notebook(path)
        here = {place.cell: keys for place, keys in by_cell.items() if place.chapter == chapter}
        for index in sorted(here, reverse=True):  # from the last: the others keep their places
            targets = "\n".join(f"({label(*key)})=" for key in here[index])
            first = label(*here[index][0])
            mark = f"{targets}\n:::{{div}} claim-mark\n[reference](#about-{first})\n:::"
            notebook.cells.insert(index, nbformat.v4.new_markdown_cell(mark))
        write_notebook(notebook, path)


def api_markdown(copy: Path) -> str:
    """Return the page's generated part: a section for each chapter, then the other modules."""
    modules = package_modules()
    places = find_places(copy, modules)
    titles = {
        chapter: f"{chapter[:2]} {notebook_title(read_notebook(path))}"
        for chapter, path in chapters(copy).items()
    }
    exported = {(gsmrl_helpers._MODULE_OF[name], name) for name in gsmrl_helpers.__all__}
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for module, tree in modules.items():
        for definition in public_definitions(tree):
            key = (module, definition.name)
            if key in places:
                chapter = titles[places[key].chapter]
                where = f"(about-{label(*key)})=\nDerived in [chapter {chapter}](#{label(*key)})."
            elif key in exported:
                chapter, where = EXPORTED, ""
            else:
                continue
            shown = definition_markdown(definition, f"gsmrl_helpers.{module}", where)
            sections[chapter][module].append(shown)
    parts = []
    for chapter in [*titles.values(), EXPORTED]:
        if chapter in sections:
            parts.append(f"## {chapter}")
            for module, shown in sections[chapter].items():
                parts += [f"Module `gsmrl_helpers.{module}`:", *shown]
    return "\n\n".join([*parts, *modules_table(modules)])


def modules_table(modules: dict[str, ast.Module]) -> list[str]:
    """All modules with their first sentence."""
    rows = [
        f"| `{module}` | {first_sentence(ast.get_docstring(tree))} |"
        for module, tree in modules.items()
    ]
    return ["## All modules", "\n".join(["| module | what it is |", "|---|---|", *rows])]
