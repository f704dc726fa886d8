"""Mutants of claim cells: what is changed, and that nothing wrong stays green unseen."""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbformat
import pytest

from gsmrl_helpers.mutants import mutants
from gsmrl_helpers.mutation import MutationReport, mutate_notebooks

# --- the changes ----------------------------------------------------------------------------------


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("literal", "changed"),
    [
        ("0.1192", ["0.1193", "(0.1191)"]),
        ("2.30", ["2.31", "(2.29)"]),  # as it is written, not 2.3
        ("1e-12", ["2E-12", "(0E-12)"]),
        ("131_072", ["131073", "(131071)"]),
        ("0", ["1", "(-1)"]),
        ("5.", ["6.0", "(4.0)"]),
        ("True", ["False"]),
        ("None", ["0"]),
        ("'no'", ["('no' + \"x\")"]),
        ("f'{n:.2f}'", ["(f'{n:.2f}' + \"x\")"]),
        ("b'no'", ["(b'no', 'x')"]),
    ],
)
def test_a_literal_is_changed_by_one_unit_in_its_last_written_place(literal, changed):
    assert changes(f"expected = {literal}") == [f"{literal} → {other}" for other in changed]


def test_every_literal_of_an_expected_value_is_changed_where_it_stands():
    source = (
        'é = "é"; expected_ü: dict = {"é": [-1.5, x], **rest}\nother = 3\nassert y == expected_ü'
    )
    found = list(mutants(source))
    assert [mutant.source.splitlines()[0].split("= ", 2)[2] for mutant in found] == [
        '{("é" + "x"): [-1.5, x], **rest}',
        '{"é": [-1.6, x], **rest}',
        '{"é": [-(1.4), x], **rest}',
    ]
    assert {mutant.source.split("\n", 1)[1] for mutant in found} == {source.split("\n", 1)[1]}
    assert {mutant.line for mutant in found} == {1}


def test_a_text_over_two_lines_is_one_literal():
    (mutant,) = mutants('x = 1\nexpected = (\n    "one "\n    "two"\n)\nassert f(x) == expected')
    assert mutant.line == 3 and mutant.change == '"one " "two" → ("one " "two" + "x")'
    assert mutant.source.startswith('x = 1\nexpected = (\n    ("one "\n    "two" + "x")\n)')


def test_only_assertions_that_rest_on_no_expected_value_are_negated():
    source = """
expected, expected_size = [1], len(x)
wanted = expected[0] * signs
for row, value in zip(rows, expected):
    assert row == value
assert y == wanted and all(a == b for a, b in zip(y, expected))
assert len(y) == expected_size
assert (
    z > 0
), "why"
assert w in other_expected
"""
    assert changes(source) == [
        "1 → 2",
        "1 → (0)",
        "z > 0 → not (z > 0)",
        "w in other_expected → not (w in other_expected)",
    ]
    (negated,) = list(mutants(source))[2:3]
    assert "assert (\n    not (z > 0)\n)" in negated.source and negated.line == 9


def test_a_name_that_holds_no_literal_in_this_cell_shields_no_assertion():
    assert changes("assert x == expected") == ["x == expected → not (x == expected)"]
    source = "expected_ratio = compute()\nassert x == expected_ratio"
    assert changes(source) == ["x == expected_ratio → not (x == expected_ratio)"]


# --- notebooks ------------------------------------------------------------------------------------

GOOD = [
    ("from dataclasses import dataclass\nimport torch\ncalls = []", []),
    (
        "@dataclass\nclass Pair:\n    a: int\n\nw = torch.tensor(2.0, requires_grad=True)\n"
        "torch.sigmoid(w).log().backward()",
        ["check"],
    ),
    (
        "expected = 0.1192\ncalls.append(1)\nassert abs(w.grad.item() - expected) < 5e-5\n"
        "assert Pair(1) == Pair(1)",
        ["claim:L8b"],
    ),
    ("assert calls == [1]  # no mutant reached this process", ["claim:L8a"]),
    ("1 / 0", ["gpu", "nbval-skip"]),
    ("int('x')", ["raises-exception"]),
    (
        "import os\nexpected = 'notebooks'\nassert os.path.basename(os.getcwd()) == expected",
        ["claim:A1"],
    ),
    ("1 / 0  # no claim comes after this", []),
]
NOTHING = "print('nothing asserted')"
WEAK = [
    ("expected = 0.1192\nassert abs(0.11921 - expected) < 1e-3", ["claim:L8b"]),
    ("xs = []\n\nfor x in xs:\n    assert x > 0", ["claim:A1"]),
    (NOTHING, ["claim:A2"]),
    ("expected = 2.5\nassert 2.45 <= expected", ["claim:A3"]),
    ("expected = 3  # hangs\nwhile expected != 3:\n    pass\nassert expected == 3", ["claim:A4"]),
    (
        "import os\nexpected = 3  # dies\nif expected != 3:\n    os.abort()\nassert expected == 3",
        ["claim:A5"],
    ),
    ("%precision 3\nassert True", ["claim:A6"]),
    ("expected = 3  # wrong\nassert 4 == expected", ["claim:A7"]),
    ("assert [] == [1]", ["claim:A8"]),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, MutationReport | Path]:
    """Put two small notebooks to the test, and one that claims nothing."""
    folder = tmp_path_factory.mktemp("course") / "notebooks"
    folder.mkdir()
    notebooks = {"01_good": GOOD, "02_weak": WEAK, "03_none": [("1", [])]}
    for name, cells in notebooks.items():
        notebook = nbformat.v4.new_notebook()
        for source, tags in cells:
            notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
        nbformat.write(notebook, folder / f"{name}.ipynb")
        jupytext.write(notebook, folder / f"{name}.py", fmt="py:percent")
    paths = sorted(folder.glob("*.ipynb"))
    reports = {report.notebook: report for report in mutate_notebooks(paths, timeout_s=2)}
    return {**reports, "folder": folder}


@pytest.mark.slow
def test_a_sound_notebook_has_only_mutants_that_turn_red(reports):
    report = reports["01_good"]
    assert report.problems == [] and report.claims == 3
    assert report.changes == 5  # 0.1192 up and down, Pair and calls negated, 'notebooks'
    assert str(report).startswith("01_good: 3 claims, 5 changes: all red (")
    assert "03_none" not in reports


@pytest.mark.slow
def test_what_does_not_turn_red_is_reported_with_its_line_in_the_script(reports):
    report, lines = reports["02_weak"], (reports["folder"] / "02_weak.py").read_text().splitlines()
    at = {line: f"02_weak.py:{number}" for number, line in enumerate(lines, 1)}
    assert [problem.rsplit("/", 1)[1] for problem in report.problems] == [
        f"{at['expected = 0.1192']}: L8b stays green: 0.1192 → 0.1193",
        f"{at['expected = 0.1192']}: L8b stays green: 0.1192 → (0.1191)",
        f"{at['    assert x > 0']}: A1 stays green: x > 0 → not (x > 0)",
        f"{at[NOTHING]}: A2: nothing to change: write the value as `expected = …`",
        f"{at['expected = 2.5']}: A3 stays green: 2.5 → 2.6",
        f"{at['expected = 3  # hangs']}: A4 does not end within 2 s: 3 → 4",
        f"{at['expected = 3  # hangs']}: A4 does not end within 2 s: 3 → (2)",
        f"{at['expected = 3  # dies']}: A5 dies by SIGABRT: 3 → 4",
        f"{at['expected = 3  # dies']}: A5 dies by SIGABRT: 3 → (2)",
        f"{at['# %precision 3']}: A6: a claim cell must be plain Python: invalid syntax",
        f"{at['expected = 3  # wrong']}: the unchanged cell fails: AssertionError",
    ]  # and what comes after that did not run
    assert str(report).startswith("02_weak: 9 claims, 9 changes: 11 PROBLEMS (")
