"""Launching notebooks: what papermill would get wrong is refused, what fails is kept."""

from __future__ import annotations

import enum
import json
import signal
import sys
from pathlib import Path

import numpy as np
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from gsmrl_helpers.notebooks import (
    code_digest,
    read_notebook,
    stamp_executed,
    write_notebook,
)
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.runs import (
    ParameterError,
    RunFailedError,
    check_parameters,
    declared_parameters,
    launch_notebook,
)


class Level(enum.IntEnum):
    LOW = 1


def test_declared_parameters_are_the_names_the_tagged_cell_assigns(run_notebook):
    declared = declared_parameters(read_notebook(run_notebook))
    assert declared == {"profile", "experiment", "variant", "seed", "output_dir", "overrides"}


@pytest.mark.parametrize("tags", [[], ["parameters"]])
def test_there_must_be_exactly_one_parameters_cell(make_notebook, tags):
    notebook = make_notebook([("a = 1", tags), ("b = 1", tags)])
    with pytest.raises(ParameterError, match=f"not {2 * len(tags)}"):
        declared_parameters(read_notebook(notebook))


def test_a_parameter_that_no_cell_declares_is_refused_and_nothing_runs(run_notebook, tmp_path):
    output = tmp_path / "out" / "run.ipynb"
    with pytest.raises(ParameterError, match=r"no cell declares learning_rat; .*profile, seed"):
        launch_notebook(run_notebook, output, {"learning_rat": 1e-4})
    assert not output.parent.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.float64(0.5),
        np.int64(3),
        np.bool_(True),
        (1, 2),
        Path("runs"),
        Level.LOW,
        {1: "a"},
        [1, (2,)],
        {"a": {"b": np.float32(1)}},
    ],
    ids=repr,
)
def test_values_that_papermill_would_turn_into_strings_are_refused(value):
    with pytest.raises(ParameterError, match=r"overrides.*cannot be handed to a notebook"):
        check_parameters({"overrides": value}, {"overrides"})


def test_values_arrive_as_they_were_given_in_the_clone_with_a_fixed_hash_seed(
    make_notebook, tmp_path, monkeypatch
):
    values = {
        "b": True,
        "i": -3,
        "f": 1e-6,
        "s": 'a "quoted"\n\\ {brace} é',
        "n": None,
        "l": [1, [2.5, "x"], {}],
        "d": {"k": {"v": [None, False]}},
    }
    declared = "\n".join(f"{name} = 0" for name in values)
    report = (
        "import json, os\n"
        f"print(json.dumps([{', '.join(values)}, os.getcwd(), os.environ['PYTHONHASHSEED']]))"
    )
    notebook = make_notebook([(declared, ["parameters"]), (report, [])], "br{ace}/a.ipynb")
    monkeypatch.chdir(tmp_path)  # papermill would run in its caller's folder
    executed = launch_notebook(notebook, tmp_path / "{out}.ipynb", values)
    assert json.loads(executed.cells[-1].outputs[0].text) == [*values.values(), str(ROOT), "0"]
    assert read_notebook(tmp_path / "{out}.ipynb").metadata.gsmrl.executed_sha256 == code_digest(
        read_notebook(notebook)
    )


def test_a_failing_notebook_is_kept_with_its_error(make_notebook, tmp_path, capfd):
    notebook = make_notebook([("a = 1", ["parameters"]), ("print(a)", []), ("1 / (a - a)", [])])
    output = tmp_path / "run.ipynb"
    with pytest.raises(RunFailedError, match=r"failed: ZeroDivisionError: division by zero$"):
        launch_notebook(notebook, output, {"a": 5})
    outputs = [out for cell in read_notebook(output).cells for out in cell.get("outputs", [])]
    assert [out.get("text") or out.get("ename") for out in outputs] == ["5\n", "ZeroDivisionError"]
    assert "%|" not in capfd.readouterr().err  # no progress bar of papermill's


@pytest.mark.parametrize(("lines", "left_out"), [(18, None), (30, 12)])
def test_the_message_of_what_failed_is_told_whole_or_its_first_and_last_lines(
    run_notebook, tmp_path, monkeypatch, lines, left_out
):
    log = ["error: unrecognized arguments: --nonsense-option", "(ended with exit code 2)"]
    message = "\n".join(["Its last lines:", *map(str, range(lines)), *log])

    def fail(*_: object, **__: object) -> None:
        raise PapermillExecutionError(3, 2, "train()", "ServerStartError", message, ["Traceback"])

    monkeypatch.setattr(papermill, "execute_notebook", fail)
    with pytest.raises(RunFailedError) as failure:
        launch_notebook(run_notebook, tmp_path / "run.ipynb", {})
    assert str(failure.value).splitlines() == [
        "10_small.ipynb failed: ServerStartError: Its last lines:",
        *([f"[{left_out} lines left out]"] if left_out else []),
        *map(str, range(left_out or 0, lines)),
        *log,
    ]


def test_a_killed_kernel_is_told(make_notebook, tmp_path):
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    notebook = make_notebook([("a = 1", ["parameters"]), (kill, [])])
    with pytest.raises(RunFailedError, match=r"10_small.ipynb failed: Kernel died: .* was killed"):
        launch_notebook(notebook, tmp_path / "run.ipynb", {})


def test_a_failed_notebook_has_no_stamp_of_what_has_run(make_notebook, tmp_path):
    notebook = make_notebook([("a = 1", ["parameters"]), ("1 / 0", [])])
    stamped = read_notebook(notebook)
    stamp_executed(stamped)
    write_notebook(stamped, notebook)
    with pytest.raises(RunFailedError):
        launch_notebook(notebook, tmp_path / "run.ipynb", {})
    assert "executed_sha256" not in read_notebook(tmp_path / "run.ipynb").metadata.gsmrl


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel itself looks each second")
def test_a_kernel_is_killed_when_what_launched_it_ends(make_notebook, tmp_path):
    get_signal = (
        "import ctypes\nsignal = ctypes.c_int()\nPR_GET_PDEATHSIG = 2\n"
        "ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(signal))\nsignal.value"
    )
    names = "[name for name in dir() if 'parent' in name]"
    notebook = make_notebook([("a = 1", ["parameters"]), (get_signal, []), (names, [])])
    executed = launch_notebook(notebook, tmp_path / "run.ipynb", {})
    shown = [cell.outputs[0].data["text/plain"] for cell in executed.cells[-2:]]
    assert shown == [str(int(signal.SIGKILL)), "[]"]
