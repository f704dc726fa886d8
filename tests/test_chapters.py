"""The rules of a chapter: each goes red when it is broken; the book's own chapters keep them."""

from __future__ import annotations

import inspect

import nbformat
import pytest

from gsmrl_helpers import log_probs
from gsmrl_helpers.chapters import (
    assertion_problems,
    cell_statistics,
    chapter_problems,
    definition_problems,
    exercise_problems,
    layout_problems,
    length_problems,
)
from gsmrl_helpers.notebooks import find_notebooks, read_notebook
from gsmrl_helpers.paths import relative_to_root

SOURCE = inspect.getsource(log_probs.log_softmax)
TOP = """# Title

```{admonition} In this chapter
:class: tip
**You will be able to** read. **You need** nothing. **Reading** takes 1 minute, **running** none,
on a **CPU**.
```"""
END = "## Take away\n\n## Exercises\n\n## Next"
EXERCISE = """```{exercise} A sum
:label: ex-10-sum

*Easy, 5 minutes.* Write `add`.

:::{dropdown} Hint
Use +.
:::
```"""
SOLUTION = ("def add(a, b):\n    return a + b", ["solution", "hide-cell"])
CHECK = ("assert add(1, 2) == 3", ["check"])


def notebook(*cells: str | tuple[str, list[str]]) -> nbformat.NotebookNode:
    """A notebook of Markdown cells (strings) and code cells (source, tags)."""
    made = nbformat.v4.new_notebook()
    for cell in cells:
        if isinstance(cell, str):
            made.cells.append(nbformat.v4.new_markdown_cell(cell))
        else:
            source, tags = cell
            made.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    return made


@pytest.mark.parametrize("ipynb", find_notebooks(), ids=lambda path: path.stem)
def test_the_books_chapters_keep_the_rules(ipynb):
    assert chapter_problems(read_notebook(ipynb), relative_to_root(ipynb)) == []


# --- definitions ------------------------------------------------------------------------------


def test_a_definition_is_the_packages_but_for_its_docstring():
    check = ("assert log_softmax(x).exp().sum() == 1", ["check"])
    shorter = SOURCE.replace(inspect.getdoc(log_probs.log_softmax), "Short.")
    assert shorter != SOURCE
    for source in (SOURCE, shorter):
        assert list(definition_problems(notebook((source, ["definition"]), check))) == []
    for changed in ("dim=0", "dim=-1, dtype=None"):
        other = SOURCE.replace("dim=-1", changed)
        (problem,) = definition_problems(notebook((other, ["definition"]), check))
        assert problem == "log_softmax differs from the package's definition"


def test_a_definition_is_followed_by_a_check_that_uses_it():
    for after in ([], [("print(1)", [])], [("assert entropy(x) == 1", ["check"])]):
        problems = list(definition_problems(notebook((SOURCE, ["definition"]), *after)))
        assert any("log_softmax: the next code cell must be a check" in p for p in problems)


def test_a_plain_twin_is_compared_with_the_packages_function():
    plain = ("def plain_log_softmax(x):\n    return x - x.logsumexp(-1, True)", ["definition"])
    both = ("assert close(plain_log_softmax(x), log_probs.log_softmax(x))", ["check"])
    assert list(definition_problems(notebook(plain, both))) == []
    (problem,) = definition_problems(notebook(plain, ("assert plain_log_softmax(x)", ["check"])))
    assert problem == "plain_log_softmax: the next code cell must be a check of log_softmax"
    unknown = ("def plain_nothing(x):\n    return x", ["definition"])
    after = ("assert plain_nothing(1) == nothing(1)", ["check"])
    (problem,) = definition_problems(notebook(unknown, after))
    assert problem == "plain_nothing: the package has no function or class nothing"


def test_a_silent_copy_of_the_package_is_refused():
    (problem,) = definition_problems(notebook((SOURCE, [])))
    assert problem == "log_softmax is the package's: tag its cell `definition`"
    public = ("def train(x):\n    return x", [])
    assert len(list(definition_problems(notebook(public)))) == 1
    for other in ("def draw(x):\n    return x", "def log_softmax(x):\n    return 2 * x"):
        assert list(definition_problems(notebook((other, [])))) == []


def test_a_definition_cell_only_defines():
    busy = (SOURCE + "\nprint(log_softmax)", ["definition"])
    check = ("assert log_softmax(x) is not None", ["check"])
    (problem,) = definition_problems(notebook(busy, check))
    assert problem == "the definition cell of log_softmax does more than define"


# --- checks, exercises, layout, lengths ---------------------------------------------------------


def test_a_check_or_claim_without_an_assert_is_refused():
    silent = ("# assert 1 == 1\nprint('assert')", ["claim:W8a"])
    (problem,) = assertion_problems(notebook(silent, CHECK, ("%timeit 1\nassert 1", ["check"])))
    assert problem.endswith("is tagged claim:W8a and asserts nothing")


def test_an_exercise_has_all_its_parts_and_a_solution_with_a_check():
    assert list(exercise_problems(notebook(EXERCISE, SOLUTION, CHECK))) == []
    assert list(exercise_problems(notebook(EXERCISE))) == ["the exercise 'A sum' has no solution"]
    for part, missing in {
        "ex-10-sum": "a label",
        "*Easy, 5 minutes.*": "difficulty",
        "{dropdown} Hint": "a hint",
    }.items():
        (problem,) = exercise_problems(notebook(EXERCISE.replace(part, ""), SOLUTION, CHECK))
        assert f"the exercise 'A sum' lacks {missing}" in problem


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([EXERCISE, SOLUTION], "is not followed by a check"),
        ([EXERCISE, SOLUTION, ("1", []), CHECK], "is not followed by a check"),
        ([EXERCISE, (SOLUTION[0], ["solution"]), CHECK], "is not folded"),
        ([EXERCISE, (SOLUTION[0] + "\nadd(1, 2)", SOLUTION[1]), CHECK], "and nothing else"),
        ([EXERCISE, ("x = 1", SOLUTION[1]), CHECK], "and nothing else"),
        ([SOLUTION, CHECK], "0 exercises stand before one solution"),
        ([EXERCISE, EXERCISE, SOLUTION, CHECK], "2 exercises stand before one solution"),
    ],
)
def test_a_solution_that_the_student_edition_could_not_take_out_is_refused(cells, words):
    (problem,) = exercise_problems(notebook(*cells))
    assert words in problem


def test_the_box_and_the_end_are_complete():
    assert list(layout_problems(notebook(TOP, END))) == []
    (problem,) = layout_problems(notebook(TOP.replace("**You need**", "Needed:"), END))
    assert problem == "the box at the top does not say **You need**"
    merged = TOP.replace(":class: tip\n", ":class: tip ")
    (problem,) = layout_problems(notebook(merged, END))
    assert problem == "the box at the top has no line `:class: tip` of its own"
    (problem,) = layout_problems(notebook(TOP, "## Next\n\n## Exercises\n\n## Take away"))
    assert problem.startswith("it must end with ## Take away, ## Exercises, ## Next")


def test_lengths_are_measured_and_limited(make_notebook):
    short, long = ("x = 1", []), ("\n".join(["x = 1"] * 40), [])
    assert list(length_problems(notebook(*[short] * 19, long))) == []
    (problem,) = length_problems(notebook(*[short] * 3, long, long))
    assert problem == "10 % of the code cells exceed 40 lines (at most 30)"
    assert len(list(length_problems(notebook(long)))) == 2

    table = cell_statistics([make_notebook([short, long, CHECK])])
    assert table.loc["10_small"].to_dict() == {
        "code cells": 3,
        "median lines": 1,
        "p90 lines": pytest.approx(32.2),
        "definitions": 0,
        "checks": 1,
        "claims": 0,
    }


def test_every_rule_is_part_of_the_whole():
    found = chapter_problems(notebook(("assert 1", []), EXERCISE, (SOURCE, [])), "10")
    for words in ("10: the first cell", "it must end with", "tag its cell", "no solution"):
        assert any(words in problem for problem in found)
