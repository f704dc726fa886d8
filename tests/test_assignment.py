"""The assignment map: it sums to 90, and every link of a written row leads to its cell."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup

from gsmrl_helpers import book
from gsmrl_helpers.assignment import (
    MAP,
    SECTIONS,
    AssignmentError,
    assignment_markdown,
    find_cell,
    map_problems,
    mark_assignment,
    points_by_name,
    read_map,
    written_notebooks,
)
from gsmrl_helpers.notebooks import code_cells, read_notebook, write_notebook
from gsmrl_helpers.paths import ROOT

ROWS = read_map()


# --- what the assignment says -------------------------------------------------------------------


def test_there_are_28_problems_that_sum_to_90_points_and_26_hours():
    assert len(ROWS) == 28
    assert sum(row.points for row in ROWS) == 90
    assert [row.b200_hours for row in ROWS if row.b200_hours] == [2, 4, 4, 8, 8]


def test_each_section_sums_to_its_points():
    sums = {name: sum(row.points for row in ROWS if row.section == name) for name in SECTIONS}
    assert list(sums.values()) == [5, 5, 10.5, 16, 25, 18.5, 10]


def test_what_a_reader_writes_carries_the_points_of_all_problems_that_ask_for_it():
    assert points_by_name("08_tokenization_and_masks", ROWS) == {"tokenize_prompt_and_output": 1}
    assert points_by_name("10_advantages", ROWS) == {
        "compute_rollout_rewards": 1,
        "compute_group_normalized_rewards": 1 + 0.5 + 0.5,
    }
    assert points_by_name("12_grpo_train_step", ROWS) == {"grpo_train_step": 5 + 2.5 + 2.5}
    assert points_by_name("20_importance_weighting", ROWS) == {
        "ex-20-surrogate": 2,
        "ex-20-bias-variance": 2,
    }
    assert points_by_name("13_run_grpo", ROWS) == {}  # a run: nothing to write


# --- links --------------------------------------------------------------------------------------


def test_every_row_of_a_written_notebook_leads_to_a_cell():
    assert list(map_problems(ROWS, written_notebooks())) == []


# --- a small book -------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of a book with one chapter, an empty one, and a map of three rows."""
    rows = [
        {"problem": "f", "notebook": "10_small", "cell": "function f"},
        {"problem": "f (none)", "notebook": "10_small", "cell": "function f", "b200_hours": 8},
        {"problem": "h", "notebook": "11_empty", "cell": "heading Later"},
    ]
    for number, row in enumerate(rows):
        row |= {"title": f"Problem number {number}", "section": "5", "points": 1.5}
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / MAP.name).write_text(yaml.safe_dump(rows))
    (tmp_path / "book" / "assignment_map.md").write_text("# Map\n")
    cells = [
        nbformat.v4.new_markdown_cell("# Small\n\n## The sum"),
        nbformat.v4.new_code_cell("def plain_f(): ...", metadata={"tags": ["definition"]}),
        nbformat.v4.new_code_cell("assert 1", metadata={"tags": ["check", "claim:A7"]}),
        nbformat.v4.new_markdown_cell("```{exercise} One\n:label: ex-10-one\n```"),
    ]
    for name, content in (("10_small", cells), ("11_empty", cells[:1])):
        notebook = nbformat.v4.new_notebook(cells=content)
        notebook.metadata = {
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        }
        write_notebook(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
    pages = ["book/assignment_map", "notebooks/10_small", "notebooks/11_empty"]
    toc = {"format": "jb-book", "root": pages[0], "chapters": [{"file": p} for p in pages[1:]]}
    (tmp_path / "_toc.yml").write_text(yaml.safe_dump(toc))
    return tmp_path


@pytest.mark.parametrize(
    ("place", "index"),
    [
        ("heading The sum", 0),
        ("function f", 1),
        ("claim A7", 2),
        ("exercise ex-10-one", 3),
        ("heading The", None),
        ("function plain_f", None),
        ("claim A", None),
        ("exercise ex-10", None),
    ],
)
def test_a_cell_is_found_by_heading_definition_claim_or_label(copy, place, index):
    assert find_cell(written_notebooks(copy)["10_small"], place) == index


def test_a_chapter_without_code_is_not_written_and_its_rows_are_pending(copy):
    assert list(written_notebooks(copy)) == ["10_small"]
    text = assignment_markdown(copy)
    assert text.startswith("2 of the 3 problems are in the book; 1 are pending")
    assert "| **All** | 4.5 | 8 | 2 | 1 |" in text and "## 5 Variants: 4.5 points" in text
    assert (
        "| Problem number 1 <br> [`f (none)`]{#about-assignment-f-none} | 1.5 | 8 "
        "| [chapter\N{NO-BREAK SPACE}10](#assignment-f-none) |" in text
    )
    assert "[`h`]{#about-assignment-h} | 1.5 |  | chapter\N{NO-BREAK SPACE}11, pending |" in text


def test_a_cell_that_several_problems_name_gets_one_mark_with_all_targets(copy):
    mark_assignment(copy)
    notebook = read_notebook(copy / "notebooks" / "10_small.ipynb")
    assert notebook.cells[1].source == (
        "(assignment-f)=\n(assignment-f-none)=\n:::{div} claim-mark\n"
        "[f, 1.5 points](#about-assignment-f) [f (none), 1.5 points](#about-assignment-f-none)\n:::"
    )
    assert len(notebook.cells) == 5 and len(code_cells(notebook)) == 2
    (copy / "book" / "other.md").write_text("# Other\n")
    toc = (copy / "_toc.yml").read_text().replace("book/assignment_map", "book/other")
    (copy / "_toc.yml").write_text(toc)  # a book without the map
    mark_assignment(copy)
    assert len(read_notebook(copy / "notebooks" / "10_small.ipynb").cells) == 5


def test_an_exercise_has_its_mark_right_above_it_whatever_its_cell_begins_with(copy):
    rows = yaml.safe_load((copy / "book" / MAP.name).read_text())
    rows[0]["cell"] = "exercise ex-10-one"
    (copy / "book" / MAP.name).write_text(yaml.safe_dump(rows))
    path = copy / "notebooks" / "10_small.ipynb"
    notebook = read_notebook(path)
    notebook.cells[3].source = "## Exercises\n\n" + notebook.cells[3].source
    write_notebook(notebook, path)
    mark_assignment(copy)
    above, mark = read_notebook(path).cells[-1].source.split("(assignment-f)=")
    assert above == "## Exercises\n\n"
    assert mark.split(":::")[-1].startswith("\n\n```{exercise} One\n:label: ex-10-one")


@pytest.mark.slow
def test_in_the_site_each_row_leads_to_the_mark_at_its_cell_and_the_mark_back(copy, tmp_path):
    (copy / "book" / "assignment_map.md").write_text("# Map\n\n% generated: assignment\n")
    shutil.copy2(ROOT / "_config.yml", copy)
    for name in ("_static", "references.bib"):
        (copy / "book" / name).symlink_to(ROOT / "book" / name)
    html = book.build_book(tmp_path / "out", source=copy)
    pages = {
        name: BeautifulSoup((html / name).read_text(encoding="utf-8"), "html.parser")
        for name in ("book/assignment_map.html", "notebooks/10_small.html")
    }
    links = pages["book/assignment_map.html"].select("td a.reference.internal")
    assert [link["href"] for link in links] == [
        "../notebooks/10_small.html#assignment-f",
        "../notebooks/10_small.html#assignment-f-none",
    ]
    for link in links:
        place = link["href"].split("#")[1]
        target = pages["notebooks/10_small.html"].find(id=place)
        mark = target.find_parent("div", class_="claim-mark") or target
        assert "def plain_f" in "".join(mark.find_next_sibling("div").strings)
        back = mark.find("a", href=f"../book/assignment_map.html#about-{place}")
        assert back.get_text().endswith("1.5 points")
        assert pages["book/assignment_map.html"].find(id=f"about-{place}").find_parent("tr")


def test_rows_of_a_written_notebook_must_name_a_cell_that_is_there(copy):
    rows = read_map(copy / "book" / MAP.name)
    notebooks = written_notebooks(copy)
    assert list(map_problems(rows, notebooks)) == []
    open_row = rows[0].model_copy(update={"cell": None})
    lost = rows[1].model_copy(update={"cell": "claim Z9"})
    assert list(map_problems([open_row, lost], notebooks)) == [
        "f: 10_small is written, so the map must name its cell",
        "f (none): 10_small has no cell `claim Z9`",
    ]
    assert list(map_problems([open_row, lost], {})) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": 0}, "points"),
        ({"points": "many"}, "points"),
        ({"section": "8"}, "section"),
        ({"notebook": "advantages"}, "notebook"),
        ({"cell": "line 3"}, "cell"),
        ({"point": 1}, "point"),
        ({"problem": "f (none)"}, "twice: f"),
    ],
)
def test_a_row_that_is_not_as_it_should_be_is_refused(copy, change, said):
    path = copy / "book" / MAP.name
    rows = yaml.safe_load(path.read_text())
    rows[0] |= change
    path.write_text(yaml.safe_dump(rows))
    with pytest.raises(AssignmentError, match=said):
        read_map(path)
