"""The claims of the book: what they say, and where a notebook asserts them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import yaml
from nbformat import NotebookNode
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gsmrl_helpers.chapters import has_assert
from gsmrl_helpers.notebooks import CLAIM_TAG, cell_tags, code_cells, read_notebook
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.toc import chapters

CLAIMS_FILE = ROOT / "book" / "claims.yml"
PATTERNS = {
    "id": (r"^[ALW]\d+[a-z]?$", "the source's letter and a number, as in A7 or W3b"),
    "source": (r"^[ALW] \S.*$", "A, L or W and where in it, as in `A 4.1, baseline_calcs (c)`"),
    "notebook": (r"^\d\d_[a-z0-9_]+$", "a notebook's name, as in 10_advantages"),
}
SHAPES = {name: Field(pattern=pattern) for name, (pattern, _) in PATTERNS.items()}


class ClaimsError(ValueError):
    """The list of claims is not what it should be."""


class Claim(BaseModel):
    """One fact that the book asserts.

    Attributes:
        id: the source's letter, a number, and a letter where the source says several things.
        source: A, L or W, and where in it.
        fact: one sentence, in Markdown, with its numbers.
        kind: `executed` by a cell tagged `claim:ID`, or `prose`, a sentence with that label.
        notebook: the chapter that asserts it.
        part: the part of the book that this chapter belongs to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = SHAPES["id"]
    source: str = SHAPES["source"]
    fact: str = Field(min_length=10)
    kind: Literal["executed", "prose"] = "executed"
    notebook: str = SHAPES["notebook"]
    part: str = Field(min_length=1)

    @property
    def label(self) -> str:
        """The target of links to the cell, or to the sentence."""
        return f"claim-{self.id}"


def load_claims(path: Path = CLAIMS_FILE) -> dict[str, Claim]:
    """Return the claims by id, in the file's order.

    Raises:
        ClaimsError: a field is missing, unknown or of a wrong form, or an id stands there twice.
    """
    claims: dict[str, Claim] = {}
    for chapter in yaml.safe_load(path.read_text(encoding="utf-8")):
        shared = {name: chapter.get(name) for name in ("part", "notebook")}
        for row in chapter.get("claims") or []:
            claim = read_claim({**row, **shared}, path.name)
            if claim.id in claims:
                raise ClaimsError(
                    f"{path.name}: {claim.id} stands there twice; give one another id"
                )
            claims[claim.id] = claim
    return claims


def read_claim(row: dict, file_name: str) -> Claim:
    """Return one row as a claim, or say which field to mend, and how."""
    try:
        claim = Claim(**row)
    except ValidationError as error:
        faults = [
            f"{field}: {fault['msg']}" + (f": {PATTERNS[field][1]}" if field in PATTERNS else "")
            for fault in error.errors()
            for field in [str(fault["loc"][0])]
        ]
        raise ClaimsError(f"{file_name}: {row.get('id')}: " + "; ".join(faults)) from error
    if claim.id[0] != claim.source[0]:
        raise ClaimsError(
            f"{file_name}: {claim.id} has the source {claim.source!r}: its letter must be the id's"
        )
    return claim


# --- where a notebook asserts them --------------------------------------------------------------


def tagged_claims(cell: NotebookNode) -> list[str]:
    """Return the ids of the claims that a cell's tags name."""
    return [tag.removeprefix("claim:") for tag in cell_tags(cell) if CLAIM_TAG.fullmatch(tag)]


def claim_cell(claim: Claim, notebook: NotebookNode) -> int | None:
    """Return the index of the first cell that asserts a claim, or states it in prose."""
    sentence = re.compile(rf"^\({re.escape(claim.label)}\)=$", re.MULTILINE)
    for index, cell in enumerate(notebook.cells):
        if claim.kind == "executed" and claim.id in tagged_claims(cell) and is_asserted(cell):
            return index
        if claim.kind == "prose" and cell.cell_type == "markdown" and sentence.search(cell.source):
            return index
    return None


def is_asserted(cell: NotebookNode) -> bool:
    """Say whether a cell is code with an `assert` that every run executes."""
    return cell.cell_type == "code" and "nbval-skip" not in cell_tags(cell) and has_assert(cell)


def claim_problems(
    notebook: NotebookNode, stem: str, claims: dict[str, Claim], written: bool
) -> Iterator[str]:
    """Yield the tags of a notebook that name no claim of its own, and the claims it lacks.

    Args:
        notebook: the notebook.
        stem: its name without suffix, as claims.yml has it.
        claims: the claims by id.
        written: whether the chapter is finished, so that no claim may be missing.
    """
    for index, cell in enumerate(notebook.cells):
        for name in tagged_claims(cell):
            if name not in claims:
                yield f"{stem}: cell {index}: claim:{name} names no claim of book/claims.yml"
            elif claims[name].notebook != stem:
                yield f"{stem}: cell {index}: {name} is a claim of {claims[name].notebook}"
            elif claims[name].kind == "prose":
                yield f"{stem}: cell {index}: {name} is prose: label its sentence (claim-{name})="
            elif not is_asserted(cell):
                yield f"{stem}: cell {index}: {name} needs an assert in a code cell that runs"
    tagged = {name for cell in notebook.cells for name in tagged_claims(cell)}
    for claim in claims.values():
        if not written or claim.notebook != stem or claim.id in tagged:
            continue
        if claim_cell(claim, notebook) is None:
            mark = f"tag claim:{claim.id}" if claim.kind == "executed" else f"label {claim.label}"
            yield f"{stem}: nothing has the {mark}: {claim.fact}"


def iter_claim_problems(source: Path = ROOT) -> Iterator[str]:
    """Yield what is wrong with the claims of all notebooks: those that are tagged, or are missing.

    A chapter may lack none of its claims once it is in the table of contents and has code.
    """
    claims, in_book = load_claims(source / "book" / "claims.yml"), chapters(source)
    paths = sorted((source / "notebooks").glob("*.ipynb"))
    for path in paths:
        notebook = read_notebook(path)
        written = path.stem in in_book and bool(code_cells(notebook))
        yield from claim_problems(notebook, path.stem, claims, written)
    stems = {path.stem[:2]: path.stem for path in paths}
    for stem in dict.fromkeys(claim.notebook for claim in claims.values()):
        if stems.get(stem[:2], stem) != stem:
            yield f"claims.yml: no notebook is called {stem}; {stems[stem[:2]]} has its number"
