"""Claims: the list itself, the tags that may name them, and the links between page and cells."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from gsmrl_helpers import book
from gsmrl_helpers.claims import (
    ClaimsError,
    claim_problems,
    iter_claim_problems,
    load_claims,
)
from gsmrl_helpers.claims_page import claims_markdown, find_claims, mark_claims
from gsmrl_helpers.notebooks import execute, read_notebook, write_notebook
from tests.test_book import small_book

ROW = {"id": "W8a", "source": "W One GRPO step", "fact": "The product of $p_t$ is 0.1."}
CHAPTER = "09_small"
LISTED = [
    {
        "part": "Piece by piece",
        "notebook": CHAPTER,
        "claims": [
            ROW,
            {**ROW, "id": "W8b", "fact": "Its size |log p| is 2.30."},
            {**ROW, "id": "W9"},
            {**ROW, "id": "L13", "source": "L Summary", "kind": "prose"},
        ],
    },
    {
        "part": "Later",
        "notebook": "23_later",
        "claims": [{**ROW, "id": "A1", "source": "A 4.1"}],
    },
]
CELLS = [
    ("p = .5 * .25 * .8", []),
    ("expected = .1\nassert abs(p - expected) < 1e-9", ["check", "claim:W8a", "claim:W8b"]),
    ("expected = 3\nassert 1 + 2 == expected", ["claim:W9"]),
]


@pytest.fixture
def listed(tmp_path) -> Path:
    path = tmp_path / "claims.yml"
    path.write_text(yaml.safe_dump(LISTED))
    return path


def with_rows(path: Path, *rows: dict) -> Path:
    """Write a list of claims of one chapter."""
    path.write_text(yaml.safe_dump([{**LISTED[0], "claims": rows}]))
    return path


# --- the list -------------------------------------------------------------------------------------


def test_the_book_claims_everything_that_the_course_map_lists():
    claims = load_claims()
    numbers = {
        letter: sorted({int(re.sub(r"\D", "", name)) for name in claims if name[0] == letter})
        for letter in "ALW"
    }
    assert numbers["A"] == list(range(1, 36))
    assert numbers["L"] == list(range(1, 15))
    assert numbers["W"] == [number for number in range(1, 37) if number != 31]
    assert len(claims) == 174
    assert [name for name, claim in claims.items() if claim.kind == "prose"] == ["W29c", "L13"]
    assert claims["W36d"].notebook == "24_rlhf_and_kl" and claims["W36d"].part == "Preferences"


def test_letters_that_follow_a_number_start_at_a_and_leave_none_out():
    letters: dict[str, str] = {}
    for name in load_claims():
        number, letter = re.fullmatch(r"([ALW]\d+)([a-z]?)", name).groups()
        letters[number] = letters.get(number, "") + letter
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert all(alphabet.startswith(found) and len(found) != 1 for found in letters.values())
    assert letters["W29"] == "abcdefghijklmn"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "X3"}, r"X3: id: .*: the source's letter and a number, as in A7"),
        ({"source": "lecture"}, r"W8a: source: .*: A, L or W and where in it"),
        ({"source": "A 4.1"}, r"W8a has the source 'A 4\.1': its letter must be the id's"),
        ({"kind": "proze"}, r"W8a: kind: Input should be 'executed' or 'prose'"),
        ({"fact": ""}, r"W8a: fact: String should have at least 10 characters"),
        ({"facts": "two"}, r"W8a: facts: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_row_says_what_to_mend(tmp_path, change, message):
    path = with_rows(tmp_path / "claims.yml", {**ROW, **change})
    with pytest.raises(ClaimsError, match=r"claims\.yml: " + message):
        load_claims(path)


def test_an_id_that_stands_there_twice_is_refused(tmp_path):
    with pytest.raises(ClaimsError, match="W8a stands there twice"):
        load_claims(with_rows(tmp_path / "claims.yml", ROW, ROW))


# --- tags -----------------------------------------------------------------------------------------


@pytest.fixture
def chapter(make_notebook) -> nbformat.NotebookNode:
    notebook = read_notebook(make_notebook(CELLS))
    sentence = nbformat.v4.new_markdown_cell("# Small\n\n(claim-L13)=\nRewards can be hacked.")
    notebook.cells.insert(0, sentence)
    return notebook


def problems(notebook, listed, written=True) -> list[str]:
    return list(claim_problems(notebook, CHAPTER, load_claims(listed), written))


def test_a_chapter_with_all_its_claims_has_no_problems(chapter, listed):
    assert problems(chapter, listed) == []


def test_tags_that_name_no_claim_or_another_chapter_s_or_prose_are_refused(chapter, listed):
    chapter.cells[1].metadata.tags = ["claim:W80", "claim:A1", "claim:L13"]
    assert problems(chapter, listed, written=False) == [
        "09_small: cell 1: claim:W80 names no claim of book/claims.yml",
        "09_small: cell 1: A1 is a claim of 23_later",
        "09_small: cell 1: L13 is prose: label its sentence (claim-L13)=",
    ]


def test_a_claim_needs_an_assert_in_a_cell_that_runs(chapter, listed):
    chapter.cells[2].source = "# assert abs(p - .1) < 1e-9\nprint('assert', p)"
    chapter.cells[3].metadata.tags += ["nbval-skip"]
    needs = "needs an assert in a code cell that runs"
    assert problems(chapter, listed, written=False) == [
        f"09_small: cell 2: W8a {needs}",
        f"09_small: cell 2: W8b {needs}",
        f"09_small: cell 3: W9 {needs}",
    ]


def test_only_a_finished_chapter_must_have_all_its_claims(chapter, listed):
    del chapter.cells[3]
    del chapter.cells[0]
    assert problems(chapter, listed, written=False) == []
    assert problems(chapter, listed) == [
        f"09_small: nothing has the tag claim:W9: {ROW['fact']}",
        f"09_small: nothing has the label claim-L13: {ROW['fact']}",
    ]


def test_a_chapter_is_finished_when_it_has_code_and_a_line_in_the_toc(tmp_path, make_notebook):
    for folder in ("book", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "book" / "claims.yml").write_text(yaml.safe_dump(LISTED))
    (tmp_path / "book" / "welcome.md").write_text("# Welcome\n")
    toc = tmp_path / "_toc.yml"
    toc.write_text("format: jb-book\nroot: book/welcome\n")
    make_notebook([], f"notebooks/{CHAPTER}.ipynb")
    make_notebook(CELLS[:1], "notebooks/23_renamed.ipynb")
    renamed = ["claims.yml: no notebook is called 23_later; 23_renamed has its number"]
    assert list(iter_claim_problems(tmp_path)) == renamed
    toc.write_text(toc.read_text() + f"chapters: [file: notebooks/{CHAPTER}]\n")
    assert list(iter_claim_problems(tmp_path)) == renamed  # nothing is written in it yet
    make_notebook(CELLS[:1], f"notebooks/{CHAPTER}.ipynb")
    assert [problem.split(": ")[1] for problem in iter_claim_problems(tmp_path)][:4] == [
        "nothing has the tag claim:W8a",
        "nothing has the tag claim:W8b",
        "nothing has the tag claim:W9",
        "nothing has the label claim-L13",
    ]


# --- the page -------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path, make_notebook, chapter) -> Path:
    """A book of a welcome page, an executed chapter and the page of claims."""
    folder = tmp_path / "source"
    folder.mkdir()
    small_book(folder, make_notebook)
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: book/welcome\n"
        f"chapters: [file: notebooks/{CHAPTER}, file: book/claims]\n"
    )
    (folder / "book" / "claims.yml").write_text(yaml.safe_dump(LISTED))
    write_notebook(chapter, folder / "notebooks" / f"{CHAPTER}.ipynb")
    return folder


def test_claims_that_were_not_executed_are_pending(source):
    assert set(find_claims(source)) == {"L13"}  # a sentence needs no execution
    page = claims_markdown(source)
    assert page.count("| pending |") == 4 and "[its sentence](#claim-L13)" in page
    assert "{dropdown} 23 Later: 1 pending" in page


def test_a_book_without_the_page_gets_no_marks(source):
    execute(source / "notebooks" / f"{CHAPTER}.ipynb")
    toc = source / "_toc.yml"
    with_page = toc.read_text()
    toc.write_text(with_page.replace(", file: book/claims", ""))
    before = read_notebook(source / "notebooks" / f"{CHAPTER}.ipynb")
    mark_claims(source)
    assert read_notebook(source / "notebooks" / f"{CHAPTER}.ipynb") == before
    toc.write_text(with_page)
    mark_claims(source)
    marked = read_notebook(source / "notebooks" / f"{CHAPTER}.ipynb")
    assert len(marked.cells) == len(before.cells) + 2


@pytest.mark.slow
def test_links_lead_from_each_row_to_its_cell_and_back(source, tmp_path):
    execute(source / "notebooks" / f"{CHAPTER}.ipynb")
    html = book.build_book(tmp_path / "out", source=source)
    assert book.site_problems(source, html) == []
    pages = {
        name: BeautifulSoup((html / name).read_text(encoding="utf-8"), "html.parser")
        for name in ("book/claims.html", f"notebooks/{CHAPTER}.html")
    }
    claims_page = pages["book/claims.html"]
    rows = {cell.get_text(): cell.parent for cell in claims_page.select("td:first-child")}

    def follow(link) -> object:
        """Return what a link leads to; both pages lie in folders beside each other."""
        page, _, target = link["href"].removeprefix("../").partition("#")
        return pages[page].find(id=target)

    where = {name: row.find_all("td")[-1].get_text() for name, row in rows.items()}
    cell, sentence = "its cell", "its sentence"
    assert where == {"W8a": cell, "W8b": cell, "W9": cell, "L13": sentence, "A1": "pending"}
    for name, code in (("W8a", "p-expected"), ("W8b", "p-expected"), ("W9", "1+2")):
        target = follow(
            rows[name].a
        )  # of two targets before a cell one is the mark, one lies in it
        mark = target.find_parent("div", class_="claim-mark") or target
        assert code in "".join(mark.find_next_sibling("div").get_text().split())
        assert follow(mark.find("a", string=name)).find_parent("tr") == rows[name]
    assert follow(rows["L13"].a).get_text() == "Rewards can be hacked."
    assert "|log p|" in rows["W8b"].get_text()
    counts = [card.get_text(strip=True) for card in claims_page.select(".sd-card-title")]
    assert counts == ["3", "1", "1"]
