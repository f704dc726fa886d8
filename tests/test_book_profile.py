"""Results chapters shown with another profile's results."""

from pathlib import Path

import nbformat
import pytest

from gsmrl_helpers.book_profile import results_chapters, show_profile
from gsmrl_helpers.notebooks import read_notebook
from gsmrl_helpers.runs import RunFailedError

TITLE = "# Results\n\nOf runs."
PARAMETER = ('profile = "pocket"', ["parameters"])
READ = "from gsmrl_helpers.recordings import read_recording\nread_recording('on-policy', profile)"


@pytest.fixture
def source(tmp_path: Path, make_notebook):
    """A book of one page without parameters and one results chapter with the cells given."""

    def make(*cells: tuple[str, list[str]]) -> Path:
        (tmp_path / "_toc.yml").write_text(
            "format: jb-book\nroot: 10_plain\nchapters:\n- file: 14_results\n"
        )
        make_notebook([("1", [])], "10_plain.ipynb")
        path = make_notebook([PARAMETER, *cells], "14_results.ipynb")
        notebook = read_notebook(path)
        notebook.cells.insert(0, nbformat.v4.new_markdown_cell(TITLE))
        path.write_text(nbformat.writes(notebook))
        return tmp_path

    return make


def test_a_results_chapter_is_executed_with_the_profile(source) -> None:
    folder = source(("print('runs of', profile)", []))
    assert results_chapters(folder) == [Path("14_results.ipynb")]
    assert show_profile(folder, "two_gpu") == []
    notebook = read_notebook(folder / "14_results.ipynb")
    assert notebook.cells[0].source.startswith("# Results\n\n```{note}")
    assert "the profile two_gpu" in notebook.cells[0].source
    assert notebook.cells[-1].outputs[0].text == "runs of two_gpu\n"
    assert not list(folder.glob("*.executed.ipynb"))


def test_a_chapter_without_results_stays_and_that_is_said(source) -> None:
    folder = source((READ, []))
    before = (folder / "14_results.ipynb").read_bytes()
    (line,) = show_profile(folder, "two_gpu")
    assert "14_results shows the book's own runs: on-policy is not on record for two_gpu" in line
    assert "gsmrl record on-policy --profile two_gpu" in line
    assert (folder / "14_results.ipynb").read_bytes() == before


def test_any_other_failure_is_one(source) -> None:
    folder = source(("1 / 0", []))
    with pytest.raises(RunFailedError, match="ZeroDivisionError"):
        show_profile(folder, "two_gpu")
    with pytest.raises(ValueError, match=r"profile='two_gpus' is unknown; allowed: .*two_gpu"):
        show_profile(folder, "two_gpus")
