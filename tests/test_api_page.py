"""The API reference: docstrings as Markdown, and links to the cells that derive a function."""

from __future__ import annotations

import ast
import shutil

import nbformat
import pytest

from gsmrl_helpers import api_page
from gsmrl_helpers.chapter_map import ChapterMapError, chapters_markdown
from gsmrl_helpers.docstrings import as_markdown, definition_markdown, docstring_markdown
from gsmrl_helpers.notebooks import read_notebook, write_notebook
from gsmrl_helpers.paths import ROOT

SOURCE = '''
def reward(answer: str, gold: float = 1.0, *, strict: bool = True) -> float:
    """Grade an answer: 0 < r ≤ 1, `|r − 1|` is the loss.

    Costs $5 * 2.

    Args:
        answer: what the policy wrote,
            on several lines.
        gold, strict: the rest.

    Returns:
        the reward, a number
        between 0 and 1.

    Raises:
        ValueError: no answer.
    """
'''
BOX = "# Small\n\n**Reading** takes 8 minutes, **running** less than\na minute, on a **CPU**.\n"


def test_a_docstring_becomes_markdown_that_shows_it_as_it_is():
    (definition,) = ast.parse(SOURCE).body
    text = definition_markdown(definition, "gsmrl_helpers.x", "Derived elsewhere.")
    lines = text.splitlines()
    signature = "gsmrl_helpers.x.reward(answer: str, gold: float=1.0, *, strict: bool=True)"
    assert lines[0] == f"`````{{py:function}} {signature} -> float"
    assert "Derived elsewhere." in lines
    assert r"Grade an answer: 0 \< r ≤ 1, `` |r − 1| `` is the loss." in lines
    assert r"Costs \$5 \* 2." in lines
    assert "- `answer`: what the policy wrote, on several lines." in lines
    assert "- `gold`, `strict`: the rest." in lines
    assert "- the reward, a number between 0 and 1." in lines
    assert "- `ValueError`: no answer." in lines


def test_text_after_a_section_is_not_part_of_it():
    parts = docstring_markdown("One.\n\nArgs:\n    a: A.\n\nTwo.")
    assert parts == ["One.", "**Arguments**", "- `a`: A.", "Two."]
    assert as_markdown("a_b and `c_d`") == "a_b and `` c_d ``"


@pytest.fixture
def small(tmp_path):
    """A book with one chapter that derives `pass_at_k`, and a page for the reference."""
    path = ROOT / "gsmrl_helpers" / "rewards.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (definition,) = [n for n in tree.body if getattr(n, "name", "") == "pass_at_k"]
    cells = [
        nbformat.v4.new_markdown_cell(BOX),
        nbformat.v4.new_code_cell(ast.unparse(definition), metadata={"tags": ["definition"]}),
        nbformat.v4.new_code_cell("def pass_at_k(): ...", metadata={"tags": ["definition"]}),
    ]
    write_notebook(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / "14_x.ipynb")
    (tmp_path / "book").mkdir()
    shutil.copy2(ROOT / "book" / "api.md", tmp_path / "book")
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/api\nchapters: [file: notebooks/14_x]\n"
    )
    return tmp_path


def test_links_go_from_the_reference_to_the_cell_that_derives_it_and_back(small):
    places = api_page.find_places(small, api_page.package_modules())
    assert places == {("rewards", "pass_at_k"): api_page.Place("14_x", 1)}
    text = api_page.api_markdown(small)
    assert "Derived in [chapter 14 Small](#def-rewards-pass-at-k)." in text
    assert "(about-def-rewards-pass-at-k)=" in text
    assert f"## {api_page.EXPORTED}" in text and "| `rewards` |" in text
    api_page.mark_definitions(small)
    cells = read_notebook(small / "notebooks" / "14_x.ipynb").cells
    assert cells[1].source.startswith("(def-rewards-pass-at-k)=\n")
    assert "(#about-def-rewards-pass-at-k)" in cells[1].source
    assert "definition" in cells[2].metadata.tags and len(cells) == 4


def test_the_map_of_chapters_has_the_minutes_of_the_box(small):
    text = chapters_markdown(small)
    assert "{doc}`14 Small </notebooks/14_x>` | 8 min | less than a minute | CPU |" in text
    path = small / "notebooks" / "14_x.ipynb"
    notebook = read_notebook(path)
    notebook.cells[0].source = "# Small"
    write_notebook(notebook, path)
    with pytest.raises(ChapterMapError, match="14_x: the box"):
        chapters_markdown(small)


def test_a_default_that_is_an_f_string_is_left_open():
    (definition,) = ast.parse("def rise(metric: str = f'train_{NAME}', n: int = 2): ...").body
    text = definition_markdown(definition, "gsmrl_helpers.x", "")
    assert text.splitlines()[0].endswith("gsmrl_helpers.x.rise(metric: str=..., n: int=2)")
