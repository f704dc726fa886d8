"""The student edition: it fails at its first open check and passes with the solutions put back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.nbgraderformat import MetadataValidator
from traitlets.config import PyFileConfigLoader

from gsmrl_helpers.assignment import points_by_name, read_map
from gsmrl_helpers.notebooks import (
    QUIET_KERNEL,
    cell_tags,
    code_cells,
    find_notebooks,
    read_notebook,
    write_notebook,
)
from gsmrl_helpers.student import (
    NBGRADER_CONFIG,
    StudentEditionError,
    has_solution,
    put_back,
    student_edition,
    take_out_bodies,
    total_points,
    write_student_edition,
)

WITH_SOLUTION = [path for path in find_notebooks() if has_solution(read_notebook(path))]
POINTS = {"double": 2.5, "ex-10-four": 1.5}

DOUBLE = (
    'import math\n\nTWO = 2\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n    return TWO * x'
)
EXERCISE = """## Exercises

```{exercise} One more
:label: ex-10-one-more

*Easy, 1 minutes.* See {doc}`13_run_grpo`.
```"""


FOUR = "class Four:\n    number = 4\n\n    def get(self):\n        return self.number"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}

CELLS = [  # a component, an exercise of the book's own, one that has points
    ("# Small", None),
    ("start = 20", ["parameters"]),
    (DOUBLE, ["definition", "solution"]),
    ("assert double(start) == 40", ["check", "claim:A7"]),
    ("print(double(3))", []),
    ("assert double(0) == 0", ["check"]),
    (EXERCISE, None),
    ("def one_more(x):\n    # of course\n    return x + 1", ["solution", "hide-cell"]),
    ("assert one_more(1) == 2", ["check"]),
    (EXERCISE.replace("one-more", "four"), None),
    (FOUR, ["solution"]),
    ("assert Four().get() == 4", ["check"]),
]


def run(notebook: NotebookNode, **options: Any) -> None:
    """Execute a notebook; an error in a cell is raised, unless allowed."""
    client = NotebookClient(
        notebook, kernel_name="python3", extra_arguments=QUIET_KERNEL, **options
    )
    client.execute()


@pytest.fixture(scope="module")
def executed_chapter() -> NotebookNode:
    """A small chapter as the book has it."""
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, "gsmrl": {"x": "y"}})
    for source, tags in CELLS:
        if tags is None:
            notebook.cells.append(nbformat.v4.new_markdown_cell(source))
        else:
            notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    run(notebook)
    return notebook


@pytest.fixture
def chapter(executed_chapter) -> NotebookNode:
    return nbformat.from_dict(executed_chapter)


@pytest.fixture
def nbgrader_s_path(monkeypatch) -> None:
    """nbgrader starts `alembic` by name: the PATH must be that of an activated environment."""
    scripts = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")


def graded_cells(edition: NotebookNode) -> dict[str, float]:
    marks = [cell.metadata.nbgrader for cell in edition.cells]
    return {mark["grade_id"]: mark["points"] for mark in marks if mark["grade"]}


# --- stubs ------------------------------------------------------------------------------------


def test_a_stub_keeps_imports_constants_signature_and_docstring():
    source = (
        "import math\n\nTWO = 2\n\n\n@cache\ndef f(\n    x: float,\n    *,\n    y: int = TWO,\n"
        ') -> float:\n    """Twice.\n\n    Much.\n    """\n\n    # secret\n    z = math.pi\n'
        "    def inner():\n        return 1\n    return x * y\n\n\nTHREE = 3  # after"
    )
    assert take_out_bodies(source, "ex-1") == (
        "import math\n\nTWO = 2\n\n\n@cache\ndef f(\n    x: float,\n    *,\n    y: int = TWO,\n"
        ') -> float:\n    """Twice.\n\n    Much.\n    """\n'
        '    raise NotImplementedError("exercise ex-1: not written yet")\n\n\nTHREE = 3  # after'
    )


def test_a_class_keeps_its_attributes_and_loses_every_method_s_body():
    source = (
        "@dataclass\nclass A(Base):\n    'What.'\n\n    x: int = 3\n\n    def f(self):\n"
        "        # secret\n        return 1\n\n    def g(self): # said\n        'Doc.'"
    )
    stub = '        raise NotImplementedError("exercise e: not written yet")'
    assert take_out_bodies(source, "e") == (
        "@dataclass\nclass A(Base):\n    'What.'\n\n    x: int = 3\n\n    def f(self):\n"
        f"{stub}\n\n    def g(self): # said\n        'Doc.'\n{stub}"
    )


def test_a_body_on_the_line_of_its_signature_is_refused():
    with pytest.raises(StudentEditionError, match="f: its body must start on a line of its own"):
        take_out_bodies("def f(x): return x", "e")


# --- the edition of a small chapter -------------------------------------------------------------


def test_an_edition_has_stubs_checks_and_no_outputs(chapter):
    edition = student_edition(chapter, POINTS)
    assert "Student edition" in edition.cells[0].source
    assert all(cell.outputs == [] and not cell.execution_count for cell in code_cells(edition))
    stubs = [cell for cell in edition.cells if "NotImplementedError" in cell.source][1:]
    names = ["double", "ex-10-one-more", "ex-10-four"]
    for cell, name in zip(stubs, names, strict=True):
        assert f'NotImplementedError("exercise {name}: ' in cell.source
        assert "return" not in cell.source and "hide-cell" not in cell_tags(cell)
    originals = [cell.source for cell in code_cells(chapter) if "solution" not in cell_tags(cell)]
    kept = [cell.source for cell in code_cells(edition) if "solution" not in cell_tags(cell)]
    assert kept == originals
    assert "gsmrl" not in edition.metadata and "hide-cell" in cell_tags(chapter.cells[7])


def test_points_are_the_assignment_s_else_one_and_none_for_a_part_of_a_component(chapter):
    edition = student_edition(chapter, POINTS)
    wanted = {"double-check": 2.5, "ex-10-one-more-check": 1.0, "ex-10-four-check": 1.5}
    assert graded_cells(edition) == wanted and total_points(edition) == 5.0
    assert graded_cells(student_edition(chapter, {}))["double-check"] == 0


def test_nbgrader_reads_the_metadata_and_only_solutions_and_parameters_are_open(chapter):
    edition = student_edition(chapter, POINTS)
    MetadataValidator().validate_nb(edition)
    marks = [cell.metadata.nbgrader for cell in edition.cells]
    solutions = [index for index, mark in enumerate(marks) if mark["solution"]]
    assert solutions == [2, 7, 10]
    assert [i for i, mark in enumerate(marks) if not mark["locked"]] == [1, 2, 7, 10]
    assert not any(mark["solution"] and mark["grade"] for mark in marks)


def test_solutions_put_back_are_the_original(chapter):
    solved = put_back(student_edition(chapter, POINTS), chapter)
    assert [c.source for c in code_cells(solved)] == [c.source for c in code_cells(chapter)]
    run(solved)
    with pytest.raises(StudentEditionError, match="make it anew"):
        put_back(nbformat.v4.new_notebook(), chapter)


def test_a_solution_without_an_exercise_is_refused(chapter):
    chapter.cells[6].source = "## Exercises"
    with pytest.raises(StudentEditionError, match=r"no exercise stands before .*one_more"):
        student_edition(chapter, POINTS)


@pytest.mark.parametrize("source", ["double(2)", "import sys\nprint('oh', file=sys.stderr)"])
def test_a_check_that_nbgrader_would_misread_is_refused(chapter, source):
    chapter.cells[3].source += f"\n{source}"
    run(chapter)
    with pytest.raises(StudentEditionError, match="nbgrader takes for a grade"):
        student_edition(chapter, POINTS)


@pytest.mark.filterwarnings("ignore:Object of type:sqlalchemy.exc.SAWarning")
@pytest.mark.usefixtures("nbgrader_s_path")
def test_nbgrader_gives_all_points_to_the_solved_notebook_and_none_to_the_stubs(chapter, tmp_path):
    assert nbgrader_scores({"small": chapter}, {"small": POINTS}, tmp_path) == {
        "solved": (5.0, 5.0),
        "untouched": (0.0, 5.0),
    }


def nbgrader_scores(
    chapters: dict[str, NotebookNode], points: dict[str, dict[str, float]], course: Path
) -> dict[str, tuple[float, float]]:
    """Score and maximum of a student who wrote the solutions and one who wrote nothing."""
    (course / "nbgrader_config.py").write_text(NBGRADER_CONFIG)
    for name, original in chapters.items():
        edition = student_edition(original, points[name])
        write_notebook(edition, course / "source" / "book" / f"{name}.ipynb")
    config = PyFileConfigLoader("nbgrader_config.py", str(course)).load_config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.db_url = f"sqlite:///{course}/gradebook.db"
    api = NbGraderAPI(config=config, log_level="ERROR")
    made = api.generate_assignment("book")
    assert made["success"], made["log"]
    for student in ("solved", "untouched"):
        for name, original in chapters.items():
            released = read_notebook(course / "release" / "book" / f"{name}.ipynb")
            handed_in = put_back(released, original) if student == "solved" else released
            write_notebook(handed_in, course / "submitted" / student / "book" / f"{name}.ipynb")
        graded = api.autograde("book", student)
        assert graded["success"], graded["log"]
    with Gradebook(config.CourseDirectory.db_url) as gradebook:
        found = {s: gradebook.find_submission("book", s) for s in ("solved", "untouched")}
        return {student: (sub.score, sub.max_score) for student, sub in found.items()}


# --- the book's own notebooks -------------------------------------------------------------------


def edition_of(path: Path) -> NotebookNode:
    return student_edition(read_notebook(path), points_by_name(path.stem, read_map()))


def errors_of(edition: NotebookNode, cwd: Path) -> dict[int, str]:
    """Execute an edition whatever fails, and return what its cells raised, by index."""
    resources = {"metadata": {"path": str(cwd)}}
    run(edition, allow_errors=True, resources=resources, skip_cells_with_tag="nbval-skip")
    return {
        index: f"{output.ename}: {output.evalue}"
        for index, cell in enumerate(edition.cells)
        for output in cell.get("outputs", [])
        if output.output_type == "error" and "raises-exception" not in cell_tags(cell)
    }


def open_checks(edition: NotebookNode) -> list[int]:
    return [i for i, cell in enumerate(edition.cells) if cell.metadata.nbgrader["grade"]]


@pytest.mark.parametrize("path", WITH_SOLUTION, ids=lambda path: path.stem)
def test_every_edition_is_valid_and_its_solutions_can_be_put_back(path):
    original, edition = read_notebook(path), edition_of(path)
    MetadataValidator().validate_nb(edition)
    solutions = [cell for cell in edition.cells if cell.metadata.nbgrader["solution"]]
    assert len(graded_cells(edition)) == len(solutions) > 0
    assert all("raise NotImplementedError(" in cell.source for cell in solutions)
    solved = put_back(edition, original)
    assert [c.source for c in code_cells(solved)] == [c.source for c in code_cells(original)]
    prose = "\n".join(cell.source for cell in edition.cells if cell.cell_type == "markdown")
    assert "{doc}" not in prose and "```{" not in prose and ":::" not in prose


def test_an_edition_runs_from_any_folder_and_fails_at_its_first_open_check(tmp_path):
    edition = edition_of(find_notebooks(["08"])[0])
    first = open_checks(edition)[0]
    edition.cells = edition.cells[: first + 1]
    said = "NotImplementedError: exercise tokenize_prompt_and_output: not written yet"
    assert errors_of(edition, tmp_path) == {first: said}


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", WITH_SOLUTION, ids=lambda path: path.stem)
def test_every_edition_fails_at_its_first_open_check_and_passes_none(path, tmp_path):
    edition = edition_of(path)
    checks, errors = open_checks(edition), errors_of(edition, tmp_path)
    exercise = edition.cells[checks[0]].metadata.nbgrader["grade_id"].removesuffix("-check")
    assert min(errors) == checks[0]
    assert errors[checks[0]] == f"NotImplementedError: exercise {exercise}: not written yet"
    assert set(checks) <= errors.keys()  # nothing is green before something is written


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Object of type:sqlalchemy.exc.SAWarning")
@pytest.mark.usefixtures("nbgrader_s_path")
def test_nbgrader_grades_a_chapter_of_the_book(tmp_path):
    (path,) = find_notebooks(["08"])
    points = points_by_name(path.stem, read_map())
    worth = total_points(edition_of(path))
    scores = nbgrader_scores({path.stem: read_notebook(path)}, {path.stem: points}, tmp_path)
    assert scores == {"solved": (worth, worth), "untouched": (0.0, worth)}


def test_the_command_writes_every_edition_and_nbgrader_s_settings(tmp_path):
    written = write_student_edition(tmp_path)
    assert [path.name for path, _ in written] == [path.name for path in WITH_SOLUTION]
    names = {path.name for path in WITH_SOLUTION} | {"nbgrader_config.py"}
    assert {path.name for path in tmp_path.iterdir()} == names

    (path, edition), *_ = written
    edition.cells[1].outputs = []  # run, not changed
    write_notebook(edition, path)
    write_student_edition(tmp_path)
    edition.cells[-1].source += "\nwork"
    write_notebook(edition, path)
    before = path.read_bytes()
    with pytest.raises(StudentEditionError, match=rf"{path.name}\. Move them"):
        write_student_edition(tmp_path)
    assert path.read_bytes() == before
