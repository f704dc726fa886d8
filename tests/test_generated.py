"""Generated parts of pages: the marker line becomes what the function of that name returns."""

from __future__ import annotations

from importlib import import_module

import pytest

from gsmrl_helpers.generated import GENERATORS, GeneratedError, fill_generated
from gsmrl_helpers.paths import ROOT

PAGE = "# Notebooks\n\nThere are:\n\n% generated: notebooks\n\nNo more.\n"
HERE = {"notebooks": "tests.test_generated:notebook_list"}


def notebook_list(copy) -> str:
    """Return what a generator returns: Markdown, from what lies in the copy."""
    return "\n" + "".join(f"- {path.name}\n" for path in (copy / "notebooks").glob("*.ipynb"))


def test_a_marker_line_is_replaced_by_what_its_function_finds_in_the_copy(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "08_x.ipynb").touch()
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert fill_generated(page, tmp_path, HERE)
    assert page.read_text() == "# Notebooks\n\nThere are:\n\n- 08_x.ipynb\n\nNo more.\n"
    assert not fill_generated(page, tmp_path, HERE)  # a page without a marker stays as it is


def test_a_marker_that_names_no_generator_is_an_error(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("notebooks\n", "notebook\n"))
    with pytest.raises(GeneratedError, match=r"page\.md: no generator .*'notebook'; .*: notebooks"):
        fill_generated(page, tmp_path, HERE)


def test_every_generator_exists_and_a_page_asks_for_it():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md"))
    for name, target in GENERATORS.items():
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function))
        assert f"% generated: {name}\n" in pages
