"""Pairs, outputs and litter: each rule goes red when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from gsmrl_helpers.notebooks import (
    NotebookError,
    execute,
    find_notebooks,
    notebook_problems,
    output_problems,
    pair_problems,
    read_notebook,
    staleness_problems,
    sync,
    tag_problems,
    write_notebook,
)
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.scrub import litter_problems, scrub

CELLS = [("x = 20", []), ("print(x + 1)", ["claim:W3b"]), ("x * 2", ["check"])]


@pytest.fixture
def pair(make_notebook) -> Path:
    return make_notebook(CELLS, pair=True)


def edit_cell(path: Path, index: int, source: str) -> None:
    notebook = read_notebook(path)
    notebook.cells[index].source = source
    write_notebook(notebook, path)


# --- pairs ------------------------------------------------------------------------------------


def test_a_pair_says_the_same_whatever_the_times_and_outputs(pair):
    execute(pair)
    for times in ((1, 2), (2, 1)):
        os.utime(pair, (times[0], times[0]))
        os.utime(pair.with_suffix(".py"), (times[1], times[1]))
        assert pair_problems(pair) == []


@pytest.mark.parametrize("newer", [".py", ".ipynb"])
def test_a_changed_source_breaks_the_pair_whichever_file_is_newer(pair, newer):
    edit_cell(pair, 0, "x = 21")
    os.utime(pair.with_suffix(newer), (4e9, 4e9))
    (problem,) = pair_problems(pair)
    assert "-x = 20" in problem and "+x = 21" in problem and "gsmrl notebooks sync" in problem


def test_a_changed_tag_or_a_missing_file_breaks_the_pair(pair):
    notebook = read_notebook(pair)
    notebook.cells[2].metadata.tags = ["exercise"]
    write_notebook(notebook, pair)
    assert '+# %% tags=["exercise"]' in pair_problems(pair)[0]
    pair.with_suffix(".py").unlink()
    assert pair_problems(pair) == [f"{pair.name}: its pair {pair.stem}.py is missing"]


def test_sync_keeps_outputs_of_unchanged_cells_and_the_change_shows_as_stale(pair):
    execute(pair)
    script = pair.with_suffix(".py")
    script.write_text(script.read_text().replace("x * 2", "x * 3"))
    sync(pair)
    assert pair_problems(pair) == []
    notebook = read_notebook(pair)
    assert [bool(cell.outputs) for cell in notebook.cells] == [False, True, False]
    assert "has changed since it ran" in staleness_problems(notebook, "10")[0]


# --- outputs ----------------------------------------------------------------------------------


def test_an_executed_pair_has_no_problems(pair):
    execute(pair)
    assert notebook_problems(pair) == []


def test_outputs_do_not_survive_a_change_of_the_code_that_made_them(pair):
    assert "was never executed" in staleness_problems(read_notebook(pair), "10")[0]
    execute(pair)
    edit_cell(pair, 0, "x = 30")  # the later cells' outputs now belong to other code
    assert "has changed since it ran" in staleness_problems(read_notebook(pair), "10")[0]
    execute(pair)
    assert staleness_problems(read_notebook(pair), "10") == []
    assert read_notebook(pair).cells[1].outputs[0].text == "31\n"


def test_execution_starts_from_nothing_in_the_notebooks_folder(make_notebook):
    path = make_notebook([("import os\nprint(os.path.basename(os.getcwd()))", [])], "sub/a.ipynb")
    notebook = read_notebook(path)
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="old\n")]
    write_notebook(notebook, path)
    execute(path)
    assert [out.text for out in read_notebook(path).cells[0].outputs] == ["sub\n"]


def test_a_failing_cell_raises_and_leaves_the_file_alone(make_notebook):
    path = make_notebook([("assert 1 == 2, 'no'", [])])
    before = path.read_text()
    with pytest.raises(NotebookError, match=r"10_small.ipynb failed: .*(?s:.*)AssertionError"):
        execute(path)
    assert path.read_text() == before


def test_gpu_cells_are_not_executed_and_may_be_empty_of_output(make_notebook):
    path = make_notebook([("1 / 0", ["gpu", "nbval-skip"]), ("2", [])], pair=True)
    execute(path)
    assert output_problems(read_notebook(path), "10") == []
    edit_cell(path, 1, "3")
    notebook = read_notebook(path)
    notebook.cells[1].execution_count = None
    assert output_problems(notebook, "10") == ["10: cell 1 was not executed"]


def test_a_stored_error_is_a_problem_unless_announced(make_notebook):
    notebook = read_notebook(make_notebook([("1 / 0", [])]))
    cell = notebook.cells[0]
    cell.execution_count = 1
    cell.outputs = [nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="")]
    assert output_problems(notebook, "10") == ["10: cell 0 ended with an error"]
    cell.metadata.tags = ["raises-exception"]
    assert output_problems(notebook, "10") == []


def test_unknown_tags_are_refused(make_notebook):
    tags = ["definition", "claim:A6b", "nbval-skip", "injected-parameters", "hide-cell"]
    notebook = read_notebook(make_notebook([("1", tags), ("2", ["chek"]), ("3", ["claim:x"])]))
    assert [problem.split(";")[0] for problem in tag_problems(notebook, "10")] == [
        "10: cell 1 has the unknown tag 'chek'",
        "10: cell 2 has the unknown tag 'claim:x'",
    ]


def test_notebooks_are_found_by_number_or_name(make_notebook):
    folder = make_notebook([("1", [])], "13_run_grpo.ipynb").parent
    make_notebook([("1", [])], "14_results.ipynb")
    for name in ("13", "13_run_grpo", "13_run_grpo.ipynb", "notebooks/13_run_grpo.py"):
        assert find_notebooks([name], folder) == [folder / "13_run_grpo.ipynb"]
    assert [path.stem for path in find_notebooks([], folder)] == ["13_run_grpo", "14_results"]
    with pytest.raises(NotebookError, match="'15' names 0 notebooks"):
        find_notebooks(["15"], folder)


# --- litter -----------------------------------------------------------------------------------


def test_scrubbing_leaves_results_and_nothing_of_the_run(make_notebook):
    notebook = read_notebook(make_notebook([("1", ["check"]), ("2", [])]))
    bar = "\rsteps:  10%|#   | 1/10 [00:01<00:09]\rsteps: 100%|####| 10/10 [00:10<00:00]\n"
    first, second = notebook.cells
    first.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text=bar),
        nbformat.v4.new_output("stream", text=f"wait\rdone\nsaved {ROOT}/runs/pocket\n"),
    ]
    second.outputs = [nbformat.v4.new_output("display_data", {"text/plain": "'/home/ada/runs'"})]
    first.metadata.papermill = {"duration": 1.5}
    first.metadata.execution = {"iopub.status.busy": "2026-01-01"}
    notebook.metadata.papermill = {"output_path": "/home/ada/runs/run.ipynb"}
    notebook.metadata.language_info = {"name": "python", "version": "3.11.7"}
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {}}
    found = " ".join(litter_problems(notebook, "10"))
    for litter in ("progress bar: '10%|#", "/home/ada/runs", "run times", "papermill's metadata"):
        assert litter in found

    clean = scrub(notebook)
    assert [out.text for out in clean.cells[0].outputs] == ["done\nsaved runs/pocket\n"]
    assert clean.cells[0].metadata == {"tags": ["check"]}
    assert set(clean.metadata) == {"kernelspec", "language_info"}
    assert clean.metadata.language_info == {"name": "python"}
    # a path of another machine is no business of scrubbing: it is reported
    assert litter_problems(clean, "10") == ['10: cell 1 holds a machine path: "/home/ada/runs\'"']
    assert first.metadata.papermill == {"duration": 1.5}  # the original is left alone


def test_what_a_stream_wrote_in_pieces_is_stored_in_one(make_notebook):
    notebook = read_notebook(make_notebook([("1", [])]))
    pieces = [("stdout", "a"), ("stdout", "b\n"), ("stderr", "c\n"), ("stdout", "d\n")]
    notebook.cells[0].outputs = [
        nbformat.v4.new_output("stream", name=name, text=text) for name, text in pieces
    ]
    stored = [(out.name, out.text) for out in scrub(notebook).cells[0].outputs]
    assert stored == [("stdout", "ab\n"), ("stderr", "c\n"), ("stdout", "d\n")]


@pytest.mark.parametrize(
    "text", ["<matplotlib.legend.Legend at 0x7fb8995e1110>", "[Text(0.0, 1.0, 'Change')]"]
)
def test_an_object_shown_by_accident_is_litter(make_notebook, text):
    notebook = read_notebook(make_notebook([("1", [])]))
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", {"text/plain": text})]
    (problem,) = litter_problems(notebook, "10")
    assert "cell 0 holds a returned object" in problem


def test_text_that_only_looks_like_litter_is_kept(make_notebook):
    notebook = read_notebook(make_notebook([("1", [])]))
    text = "┏━━━━━━━┳━━━━━━━┓\n12% | of the groups | empty\n3/work = 2, and/or 1/home\n"
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text=text)]
    assert litter_problems(notebook, "10") == []
    assert scrub(notebook).cells[0].outputs[0].text == text


# --- the gate that executes ---------------------------------------------------------------------


def red_notebooks(folder: Path, mode: str) -> set[str]:
    """Execute a folder's notebooks as `make test` does and return the names of the red ones."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", mode, "--nbval-current-env", "-q", "--timeout=100"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", str(folder)]
    subprocess.run(command, cwd=folder, capture_output=True)
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("classname", "") for case in cases if case.find("failure") is not None}


def test_strict_nbval_sees_a_changed_number_and_lax_does_not(make_notebook):
    numbers = [("x = 20", []), ("print(x + 1)", [])]
    timed = ("import time\nprint(time.perf_counter())", ["nbval-ignore-output"])
    asserted = [("a = 1", []), ("assert a == 1", ["check"])]
    cells = {"right": numbers, "changed": numbers, "tagged": [timed], "asserted": asserted}
    paths = {name: make_notebook(cells[name], f"{name}.ipynb") for name in cells}
    for path in paths.values():
        execute(path)
    changed = paths["changed"].read_text().replace('"21\\n"', '"22\\n"')
    assert changed != paths["changed"].read_text()
    paths["changed"].write_text(changed)
    edit_cell(paths["asserted"], 0, "a = 2")

    folder = paths["right"].parent
    assert red_notebooks(folder, "--nbval") == {"changed.ipynb", "asserted.ipynb"}
    assert red_notebooks(folder, "--nbval-lax") == {"asserted.ipynb"}  # so no stage uses it
    assert "nbval-lax" not in (ROOT / "tools" / "tasks.py").read_text()
