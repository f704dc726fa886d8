"""Launching notebooks: what papermill would get wrong is refused, what fails is kept."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.notebooks import code_digest, read_notebook
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.progress import validation_accuracies
from gsmrl_helpers.records import MANIFEST, lock_run
from gsmrl_helpers.run_many import run_experiments
from gsmrl_helpers.run_outputs import is_finished
from gsmrl_helpers.runs import (
    ParameterError,
    RunFailedError,
    check_parameters,
    declared_parameters,
    launch_notebook,
    run_folder,
    run_one,
)

PARAMETERS = (
    'profile = "pocket"\nexperiment = "smoke"\nvariant = "standard"\nseed = 0\n'
    'output_dir = ""\noverrides: dict = {}'
)
# what the run notebook leaves: metrics, a checkpoint, a manifest that says how it ended
SMALL_RUN = """
import json, pathlib
folder = pathlib.Path(output_dir)
folder.mkdir(parents=True, exist_ok=True)
config = {**CONFIG, "seed": seed, **overrides}
manifest = {"status": "running", "config": config, "files": len(list(folder.iterdir()))}
(folder / "manifest.json").write_text(json.dumps(manifest))
rows = [{"step": step, "train_mean_reward": REWARD} for step in range(config["n_grpo_steps"] + 1)]
rows[0]["curve_mean_answer_reward"] = 0.25
(folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
(folder / "checkpoints").mkdir(exist_ok=True)
(folder / "checkpoints" / f"step-{config['n_grpo_steps']:06d}-{'0' * 16}.pt").touch()
assert not pathlib.Path(FAILS).exists(), "made to fail"
(folder / "manifest.json").write_text(json.dumps({**manifest, "status": "finished"}))
"""


class Level(enum.IntEnum):
    LOW = 1


@pytest.fixture
def run_notebook(make_notebook, tmp_path):
    """A notebook that leaves what the run notebook leaves, and fails where `fails` exists."""
    config = experiment_config("smoke").model_dump(mode="json")
    constants = f"CONFIG = {config!r}\nFAILS = {str(tmp_path / 'fails')!r}\nREWARD = 0.5\n"
    return make_notebook([(PARAMETERS, ["parameters"]), (constants + SMALL_RUN, [])])


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


def test_an_experiment_has_a_folder_a_seed_and_keeps_what_is_finished(
    run_notebook, tmp_path, capsys
):
    folder = tmp_path / "pocket" / "smoke" / "standard" / "seed-4"
    assert run_experiments(["smoke"], "pocket", [4], tmp_path, notebook=run_notebook) == []
    assert {path.name for path in folder.iterdir()} == {
        "checkpoints",
        "manifest.json",
        "metrics.jsonl",
        "run.ipynb",
    }
    assert is_finished(folder)
    assert "step 0: validation accuracy 0.250" in capsys.readouterr().out

    before = (folder / "run.ipynb").stat().st_mtime_ns
    assert run_experiments(["smoke"], "pocket", [4], tmp_path, notebook=run_notebook) == []
    assert (folder / "run.ipynb").stat().st_mtime_ns == before
    assert "is finished: kept" in capsys.readouterr().out

    assert (
        run_experiments(["smoke"], "pocket", [4], tmp_path, fresh=True, notebook=run_notebook) == []
    )
    assert is_finished(folder) and is_finished(folder.with_name("seed-4.aside-1"))


def test_a_failed_run_is_reported_kept_and_can_go_on(run_notebook, tmp_path):
    folder = run_folder("smoke", "pocket", "standard", 0, tmp_path)
    (tmp_path / "fails").touch()
    (failure,) = run_experiments(["smoke"], "pocket", [0], tmp_path, notebook=run_notebook)
    assert "made to fail" in failure and "run.ipynb" in failure
    assert (folder / "run.ipynb").is_file() and not is_finished(folder)

    (tmp_path / "fails").unlink()
    assert run_experiments(["smoke"], "pocket", [0], tmp_path, notebook=run_notebook) == []
    # it went on in the same folder, with what the first try had left in it
    assert json.loads((folder / MANIFEST).read_text())["files"] == 4
    assert is_finished(folder)


def test_other_settings_are_refused_in_the_folder_of_a_run(run_notebook, tmp_path):
    other = {"learning_rate": 0.5}
    assert run_experiments(["smoke"], "pocket", [0], tmp_path, notebook=run_notebook) == []
    with pytest.raises(ValueError, match=r"other settings \(learning_rate\): --fresh"):
        run_experiments(["smoke"], "pocket", [0], tmp_path, overrides=other, notebook=run_notebook)
    # a mistake in any of the runs is said before the first one starts
    with pytest.raises(ValueError, match="learning_rat"):
        run_experiments(["smoke"], "pocket", [1], tmp_path, overrides={"learning_rat": 1})
    assert not run_folder("smoke", "pocket", "standard", 1, tmp_path).exists()


def test_a_variant_or_seed_named_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="named twice"):
        run_experiments(["smoke"], "pocket", [0], tmp_path, variants=["standard", "standard"])
    with pytest.raises(ValueError, match="named twice"):
        run_experiments(["smoke"], "pocket", [1, 1], tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_folder_without_a_manifest_is_set_aside(run_notebook, tmp_path):
    folder = tmp_path / "pocket" / "smoke" / "standard" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert run_experiments(["smoke"], "pocket", [0], tmp_path, notebook=run_notebook) == []
    assert (folder.with_name("seed-0.aside-1") / "notes.txt").read_text() == "mine"
    assert not (folder / "notes.txt").exists()


@contextmanager
def locked_elsewhere(lock: Path) -> Iterator[None]:
    """Another process that holds this lock."""
    code = (
        "import sys\nfrom filelock import FileLock\n"
        "lock = FileLock(sys.argv[1])\nlock.acquire(blocking=False)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    command, pipe = [sys.executable, "-c", code, str(lock)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()


def contents(folder: Path) -> dict[str, str]:
    """The files under a folder and what is in them, locks left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("name", ["lock", "launch.lock"])
def test_a_run_that_is_going_on_is_refused_and_nothing_of_it_is_touched(
    run_notebook, tmp_path, capsys, name, fresh
):
    folder = run_folder("smoke", "pocket", "standard", 0, tmp_path)
    folder.mkdir(parents=True)
    config = experiment_config("smoke").model_dump(mode="json")
    (folder / MANIFEST).write_text(json.dumps({"status": "running", "config": config}))
    (folder / "run.ipynb").write_text("of the first try")
    folder.with_name("seed-0.running.ipynb").write_text("of the live run")
    before = contents(tmp_path)
    with locked_elsewhere(folder.with_name(f"seed-0.{name}")):
        (failure,) = run_experiments(
            ["smoke"], "pocket", [0], tmp_path, fresh=fresh, notebook=run_notebook
        )
    assert failure == f"another process is running into {folder}; wait for it"
    assert contents(tmp_path) == before and capsys.readouterr().out == ""


def test_a_launch_keeps_others_out_but_not_its_own_notebook(run_notebook, tmp_path, monkeypatch):
    folder = run_folder("smoke", "pocket", "standard", 0, tmp_path)
    launched = []

    def launch(*_: object) -> None:
        with lock_run(folder):  # as the notebook does
            (other,) = run_experiments(["smoke"], "pocket", [0], tmp_path, fresh=True)
            launched.append(other)

    monkeypatch.setattr("gsmrl_helpers.runs.launch_notebook", launch)
    run_one(folder, {}, run_notebook)
    assert launched == [f"another process is running into {folder}; wait for it"]


def test_the_notebook_of_a_run_that_lost_its_folder_stays_outside(
    run_notebook, tmp_path, monkeypatch
):
    folder = run_folder("smoke", "pocket", "standard", 0, tmp_path)

    def launch(_notebook: Path, output: Path, _parameters: object) -> None:
        output.write_text("refused")
        held = lock_run(folder)  # `train`, called by hand in between
        held.__enter__()
        locks.append(held)
        raise RunFailedError("refused")

    locks: list = []
    monkeypatch.setattr("gsmrl_helpers.runs.launch_notebook", launch)
    failure = run_one(folder, {}, run_notebook)
    locks.pop().__exit__(None, None, None)
    assert failure.startswith("refused")
    assert not folder.exists() and folder.with_name("seed-0.running.ipynb").is_file()


@pytest.mark.slow
def test_seeds_run_side_by_side(run_notebook, tmp_path):
    assert (
        run_experiments(["smoke"], "pocket", [0, 1], tmp_path, jobs=2, notebook=run_notebook) == []
    )
    manifests = [
        json.loads(
            (run_folder("smoke", "pocket", "standard", seed, tmp_path) / MANIFEST).read_text()
        )
        for seed in (0, 1)
    ]
    assert [(m["config"]["seed"], m["status"]) for m in manifests] == [
        (0, "finished"),
        (1, "finished"),
    ]


def test_a_half_written_row_and_a_missing_value_are_no_accuracy(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 0, "curve_mean_answer_reward": 0.1}\n'
        '{"step": 1, "loss": 0.5}\n'
        '{"step": 2, "curve_mean_answer_reward": null}\n'
        '{"step": 10, "curve_mean_answer_reward": 0.3}\n'
        '{"step": 20, "curve_mean_ans'
    )
    assert validation_accuracies(tmp_path) == {0: 0.1, 10: 0.3}
    assert validation_accuracies(tmp_path / "none") == {}
