"""The book: no warning passes, not even the second time, and every stored output is shown."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

from gsmrl_helpers import book
from gsmrl_helpers.notebooks import execute, read_notebook, write_notebook
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.toc import TocError

PAGES = ["book/welcome.md", "notebooks/01_small.ipynb"]
CELLS = [
    ("print('twenty', 21)", []),
    ("import pandas as pd\npd.DataFrame({'reward': [0.25]})", []),
    ("3 * 14", ["hide-cell"]),
    ("'never shown'", ["remove-output"]),
    (
        "from IPython.display import Image, display\n"
        "from matplotlib.figure import Figure\n"
        "Figure().savefig('dot.png', dpi=1)\n"
        "display(Image('dot.png'))",
        ["hide-input"],
    ),
    ("from IPython.display import Math\nMath(r'\\nabla \\log \\pi')", []),
]


def small_book(folder: Path, make_notebook, text: str = "# Welcome\n\nSay $x^2$.\n") -> Path:
    """Write a book of two pages with the project's own configuration."""
    shutil.copytree(ROOT / "book", folder / "book")  # the bibliography, and images if any
    (folder / "book" / "welcome.md").write_text(text)
    shutil.copy2(ROOT / "_config.yml", folder)
    root, chapter = PAGES
    (folder / "_toc.yml").write_text(
        f"format: jb-book\nroot: {root}\nchapters: [file: {chapter}]\n"
    )
    made = make_notebook(CELLS, f"{folder.name}/{chapter}")
    notebook = read_notebook(made)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# Small"))
    write_notebook(notebook, made)
    return folder


@pytest.fixture
def source(tmp_path, make_notebook) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return small_book(folder, make_notebook)


@pytest.mark.slow
def test_every_output_is_shown_and_nothing_is_loaded_from_elsewhere(source, tmp_path):
    chapter = source / PAGES[1]
    execute(chapter)
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    html = book.build_book(tmp_path / "out", source=source)
    assert html == tmp_path / "out" / "html"
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    assert book.site_problems(source, html) == []

    page = (html / "notebooks" / "01_small.html").read_text()
    assert "twenty 21" in page
    for name in ("book/welcome.html", "notebooks/01_small.html", "search.html"):
        text = (html / name).read_text()
        assert re.findall(r'<(?:script|img|link)\b[^>]*(?:src|href)="(https?:[^"]+)"', text) == []
    assert "MathJax" not in page and 'class="katex-display"' in page
    assert (html / "_static" / "katex" / "fonts" / "KaTeX_Main-Regular.woff2").is_file()

    # a page that is missing, and one that lost an output or shows another one
    (html / "book" / "welcome.html").unlink()
    chapter_page = html / "notebooks" / "01_small.html"
    chapter_page.write_text(page.replace("twenty 21", "twenty 22"))
    assert book.site_problems(source, html) == [
        "book/welcome.md has no page in the site",
        "01_small.html: the output of the cell that starts \"print('twenty', 21)\" is not shown",
    ]
    notebook = read_notebook(chapter)
    notebook.cells[5].outputs = []  # the picture
    (problem,) = book.shown_problems(notebook, chapter_page)
    assert problem == "01_small.html shows 5 outputs of cells; the notebook has 4"


def test_a_link_to_a_place_that_is_not_there_is_found(tmp_path):
    one, two = tmp_path / "book" / "one.html", tmp_path / "notebooks" / "two.html"
    for page in (one, two):
        page.parent.mkdir()
    link = '<a class="reference internal" href="{}">x</a>'.format
    two.write_text('<div id="here"></div>' + link("#here") + link("#gone") + link("two.html"))
    one.write_text(link("../notebooks/two.html#here") + link("../notebooks/two.html#there"))
    assert book.link_problems([one, two]) == [
        "one.html: the link to ../notebooks/two.html#there leads nowhere",
        "two.html: the link to #gone leads nowhere",
    ]


@pytest.mark.slow
def test_a_warning_is_an_error_also_the_second_time_and_the_old_site_stays(source, tmp_path):
    out = tmp_path / "out"
    (out / "html").mkdir(parents=True)
    (out / "html" / "index.html").write_text("the site of an earlier build")
    (source / "book" / "welcome.md").write_text("# Welcome\n\n[](nowhere.md) {cite}`nobody1900`\n")
    for _ in range(2):  # Jupyter Book itself exits 0 on the second run, even with -W
        with pytest.raises(book.BookError, match=r"(?s)nowhere.*nobody1900|nobody1900.*nowhere"):
            book.build_book(out, source=source)
    assert (out / "html" / "index.html").read_text() == "the site of an earlier build"


def test_a_page_of_the_toc_without_a_file_is_an_error(source, tmp_path):
    (source / PAGES[1]).unlink()
    with pytest.raises(TocError, match=r"01_small.* has 0 files"):
        book.build_book(tmp_path / "out", source=source)


def test_jupyter_book_2_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.1.0")
    with pytest.raises(book.BookError, match=r"jupyter-book 2\.1\.0 is installed"):
        book.build_book(tmp_path / "out", source=source)


def test_a_builder_that_builds_nothing_and_exits_0_is_an_error(source, tmp_path, monkeypatch):
    monkeypatch.setattr(book, "JUPYTER_BOOK", [sys.executable, "-c", "pass"])
    with pytest.raises(book.BookError, match=r"built no index\.html"):
        book.build_book(tmp_path / "out", source=source)


# --- runs as pages --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, make_notebook) -> Path:
    """A finished run's folder whose executed notebook holds what papermill leaves in one."""
    folder = tmp_path / "runs" / "pocket" / "on-policy" / "standard" / "seed-0"
    path = make_notebook([("print('mine')", [])], str(folder.relative_to(tmp_path) / "run.ipynb"))
    notebook = read_notebook(path)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# Run GRPO\n\nAs it is."))
    write_notebook(notebook, path)
    execute(path)
    notebook = read_notebook(path)
    notebook.metadata.papermill = {"output_path": "/home/ada/run.ipynb"}
    notebook.cells[1].metadata.papermill = {"duration": 2.5}
    write_notebook(notebook, path)
    return folder


def test_the_page_of_a_run_is_named_after_its_experiment(run):
    assert book.recorded_page(run).as_posix() == "book/runs/on_policy_pocket.ipynb"
    other = run.parents[1] / "rft" / "seed-2"
    assert book.recorded_page(other).as_posix() == "book/runs/on_policy_rft_pocket.ipynb"


def test_a_reader_s_run_takes_the_place_of_the_recorded_page_in_the_copy_only(run, tmp_path):
    copy = tmp_path / "copy"
    with pytest.raises(book.BookError, match=r"no page book/runs/on_policy_pocket\.ipynb"):
        book.overlay_run(run, copy)
    page = copy / "book" / "runs" / "on_policy_pocket.ipynb"
    page.parent.mkdir(parents=True)
    page.write_text("the recorded run")
    recorded = ROOT / "book" / "runs" / "on_policy_pocket.ipynb"
    before = recorded.read_bytes() if recorded.exists() else None
    book.overlay_run(run, copy)
    laid = read_notebook(page)
    assert laid.cells[0].source.startswith("# A run: on-policy, pocket, seed 0\n\n```{note}\n")
    assert laid.cells[0].source.endswith("```\n\nAs it is.")
    assert laid.cells[1].outputs[0].text == "mine\n"
    assert "papermill" not in laid.metadata and "papermill" not in laid.cells[1].metadata
    assert (recorded.read_bytes() if recorded.exists() else None) == before

    (run / "run.ipynb").unlink()
    with pytest.raises(book.BookError, match=r"holds no run\.ipynb"):
        book.overlay_run(run, copy)


def test_an_exercise_keeps_its_label_for_the_chapter(run):
    notebook = read_notebook(run / "run.ipynb")
    exercise = "```{exercise} Two sums\n:label: ex-13-sums\n\n*Easy, 5 minutes.* Add.\n```"
    notebook.cells.append(nbformat.v4.new_markdown_cell(exercise))
    write_notebook(notebook, run / "run.ipynb")
    shown = book.page_of_run(run).cells[-1].source
    assert shown == "```{admonition} Two sums\n\n*Easy, 5 minutes.* Add.\n```"


def test_recording_scrubs_and_refuses_what_is_no_page(run, tmp_path, monkeypatch):
    monkeypatch.setattr(book, "ROOT", tmp_path)
    monkeypatch.setattr(book, "recorded_page", lambda run: Path("page.ipynb"))
    page = book.record_run(run)
    assert page == tmp_path / "page.ipynb"
    assert "papermill" not in read_notebook(page).metadata

    notebook = read_notebook(run / "run.ipynb")
    notebook.cells[1].outputs[0].text = "saved in /home/ada/runs\n"
    write_notebook(notebook, run / "run.ipynb")
    with pytest.raises(book.BookError, match="machine path"):
        book.record_run(run)
    assert read_notebook(page).cells[1].outputs[0].text == "mine\n"


def test_a_recorded_run_is_stale_when_the_notebook_s_code_has_changed(make_notebook, tmp_path):
    source = make_notebook([("seed = 0", ["parameters"]), ("print(seed)", [])], "13_run.ipynb")
    page = make_notebook(
        [("seed = 0", ["parameters"]), ("seed = 3", ["injected-parameters"]), ("print(seed)", [])],
        "page.ipynb",
    )
    execute(page)
    assert book.recorded_problems(page, source) == []  # injected parameters are no change

    notebook = read_notebook(source)
    notebook.cells[1].source = "print(seed + 1)"
    write_notebook(notebook, source)
    (problem,) = book.recorded_problems(page, source)
    assert "was recorded before 13_run.ipynb changed" in problem

    # nor can the page's code be edited to look like the new notebook's
    edited = read_notebook(page)
    edited.cells[2].source = "print(seed + 1)"
    write_notebook(edited, page)
    (problem,) = book.recorded_problems(page, source)
    assert "has changed since it ran" in problem
