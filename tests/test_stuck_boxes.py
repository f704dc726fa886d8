"""Boxes for who is stuck: made from the solution and its check, and never the solution itself."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from gsmrl_helpers.notebooks import cell_tags, find_notebooks, read_notebook
from gsmrl_helpers.stuck_boxes import add_stuck_boxes

EXERCISE = """Words before.

```{exercise} Twice
:label: ex-99-twice

*Easy, 5 minutes.* Write `twice(x)`.

:::{dropdown} Hint
Add.
:::
```

Words after."""


def cell(source: str, *tags: str):
    return new_code_cell(source, metadata={"tags": list(tags)})


def chapter(solution: str, check: str):
    return new_notebook(
        cells=[
            new_markdown_cell("# A chapter\n\n## Adding things"),
            cell("def plus(a, b):\n    return a + b", "definition"),
            cell("assert plus(1, 1) == 2", "check"),
            new_markdown_cell(EXERCISE),
            cell(solution, "solution", "hide-cell"),
            cell(check, "check"),
        ]
    )


SOLUTION = '''import math
from torch import Tensor


def twice(x: Tensor) -> Tensor:
    """Two times x."""
    if math.isnan(x):
        raise ValueError(str(x))
    return plus(x, x)'''
CHECK = "three = 3\nassert three\nassert twice(three) == 6\nassert twice(0) == 0"


def test_a_box_says_how_long_with_what_and_where_to_begin() -> None:
    notebook = chapter(SOLUTION, CHECK)
    add_stuck_boxes(notebook)
    text = notebook.cells[3].source
    assert text.startswith("Words before.") and text.endswith("```\n\nWords after.")
    box = text.split("{dropdown} Stuck?\n")[1].split("\n:::\n```")[0]
    assert "3 lines in its body, with `math.isnan`." in box
    assert "uses `plus` (*Adding things*)" in box
    assert "~~~python\nassert twice(three) == 6\n~~~" in box
    assert "return plus" not in box


def test_a_loop_of_assertions_is_shown_and_a_long_one_is_not() -> None:
    short = "for x in (1, 2):\n    assert twice(x) == 2 * x"
    for check, shown in ((short, True), (short + "\n" * 9 + "    x", False)):
        notebook = chapter(SOLUTION, check)
        add_stuck_boxes(notebook)
        assert ("~~~python" in notebook.cells[3].source) == shown


def test_without_a_solution_or_a_check_a_box_says_the_less() -> None:
    notebook = chapter(SOLUTION, CHECK)
    notebook.cells.pop()
    add_stuck_boxes(notebook)
    assert "3 lines in its body" in notebook.cells[3].source
    assert "~~~python" not in notebook.cells[3].source
    notebook = chapter(SOLUTION, CHECK)
    del notebook.cells[4:]
    add_stuck_boxes(notebook)
    assert "worked solution" not in notebook.cells[3].source
    assert "restart the kernel" in " ".join(notebook.cells[3].source.split())


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_every_exercise_of_the_book_gets_one_that_holds_no_line_of_a_solution(path) -> None:
    notebook = read_notebook(path)
    n_exercises = sum(c.source.count("{exercise}") for c in notebook.cells)
    add_stuck_boxes(notebook)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert prose.count("{dropdown} Stuck?") == n_exercises
    boxes = "\n".join(part.split("\n:::")[0] for part in prose.split("{dropdown} Stuck?")[1:])
    for solution in (c for c in notebook.cells if {"solution", "hide-cell"} <= set(cell_tags(c))):
        for line in solution.source.splitlines():
            if line.startswith("    return ") and len(line) > 30:
                assert line.strip() not in boxes
