"""The page of all claims, and the mark beside each cell that asserts one: in the build copy only.

Links go both ways: from a claim's row to the target before its cell, and from the mark to the row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from itertools import groupby
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from gsmrl_helpers.claims import Claim, claim_cell, load_claims
from gsmrl_helpers.notebooks import read_notebook, write_notebook
from gsmrl_helpers.plain_markdown import notebook_title
from gsmrl_helpers.toc import chapters, toc_files

MARK = """{targets}
:::{{div}} claim-mark
{links}
:::"""
NUMBER = """:::{{grid-item-card}} {count}
:text-align: center
{what}
:::"""
CLAIMS_PAGE = Path("book") / "claims.md"
HEAD = "| Claim | What is asserted | Source | Where |\n|---|---|---|---|"
WHERE = {"executed": "its cell", "prose": "its sentence"}


def find_claims(copy: Path) -> dict[str, int]:
    """Return, for each claim that a chapter of the book asserts, the index of its cell."""
    notebooks = {stem: read_notebook(path) for stem, path in chapters(copy).items()}
    found = {}
    for claim in load_claims(copy / "book" / "claims.yml").values():
        notebook = notebooks.get(claim.notebook)
        index = None if notebook is None else claim_cell(claim, notebook)
        if is_shown(notebook, index):
            found[claim.id] = index
    return found


def is_shown(notebook: NotebookNode | None, index: int | None) -> bool:
    """Say whether a claim has a cell, and this was executed if it is code."""
    if index is None:
        return False
    cell = notebook.cells[index]
    return cell.cell_type == "markdown" or cell.execution_count is not None


def mark_claims(copy: Path) -> None:
    """Put a target, and a mark that links to the claims' rows, before each cell that asserts some.

    A book without the page of claims gets no marks: they would lead nowhere.
    """
    if CLAIMS_PAGE not in toc_files(copy):
        return
    claims, found = load_claims(copy / "book" / "claims.yml"), find_claims(copy)
    for stem, path in chapters(copy).items():
        cells = defaultdict(list)
        for claim in claims.values():
            if claim.notebook == stem and claim.kind == "executed" and claim.id in found:
                cells[found[claim.id]].append(claim)
        notebook = read_notebook(path)
        for index in sorted(cells, reverse=True):  # from the last: the others keep their places
            mark = nbformat.v4.new_markdown_cell(claim_mark(cells[index]))
            notebook.cells.insert(index, mark)
        write_notebook(notebook, path)


def claim_mark(claims: list[Claim]) -> str:
    """Return the Markdown of the mark beside a cell: its claims' ids, each with a target."""
    targets = "\n".join(f"({claim.label})=" for claim in claims)
    return MARK.format(targets=targets, links=" ".join(f"[{c.id}](#about-{c.id})" for c in claims))


def claims_markdown(copy: Path) -> str:
    """Return the page's generated part: how many claims are where, and a table for each chapter."""
    claims, found = load_claims(copy / "book" / "claims.yml"), find_claims(copy)
    counts = Counter(c.kind if c.id in found else "pending" for c in claims.values())
    numbers = {
        "asserted by an executed cell": counts["executed"],
        "stated in prose": counts["prose"],
        "pending: the chapter is not written": counts["pending"],
    }
    cards = [NUMBER.format(count=count, what=what) for what, count in numbers.items()]
    parts = ["::::{grid} 3", ":class-container: claim-counts", "", *cards, "::::"]
    for part, of_part in groupby(claims.values(), key=lambda claim: claim.part):
        parts.append(f"\n## {part}")
        for stem, of_chapter in groupby(of_part, key=lambda claim: claim.notebook):
            parts.append(chapter_markdown(copy, stem, list(of_chapter), found))
    return "\n".join(parts)


def chapter_markdown(copy: Path, stem: str, claims: list[Claim], found: Collection[str]) -> str:
    """Return a chapter's claims as a table, folded while none of them is asserted."""
    number, name = stem.split("_", 1)
    rows = "\n".join([HEAD, *(row(claim, claim.id in found) for claim in claims)])
    if any(claim.id in found for claim in claims):
        # the list of contents beside a page shows a link's title only where it is written out
        title = notebook_title(read_notebook(chapters(copy)[stem]))
        heading = f"{number} {{doc}}`{title} </notebooks/{stem}>`"
        return f"\n### {heading}\n\n:::{{div}} claims\n{rows}\n:::"
    title = f"{number} {name.replace('_', ' ').capitalize()}: {len(claims)} pending"
    return f"\n:::{{dropdown}} {title}\n:class-container: claims\n{rows}\n:::"


def row(claim: Claim, is_found: bool) -> str:
    """Return a claim's row, with a target of its own and a link to its cell if there is one."""
    where = f"[{WHERE[claim.kind]}](#{claim.label})" if is_found else "pending"
    fact = claim.fact.replace("|", "\\|")
    return f"| [{claim.id}]{{#about-{claim.id}}} | {fact} | {claim.source} | {where} |"
