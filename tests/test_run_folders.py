"""A run's folder: what it keeps, who may write into it, and how a run goes on there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gsmrl_helpers import run_many
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.notebooks import read_notebook, write_notebook
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.progress import validation_accuracies
from gsmrl_helpers.records import MANIFEST, lock_run
from gsmrl_helpers.run_many import run_experiments
from gsmrl_helpers.run_outputs import is_finished
from gsmrl_helpers.runs import RunFailedError, run_folder, run_one


class SameProcess:
    """In place of a process of its own, which takes seconds to start, this one."""

    def __init__(self, job: str, _env: object) -> None:
        run = json.loads(job)
        folder, notebook = ROOT / run["folder"], ROOT / run["notebook"]
        self._failure = run_one(folder, run["parameters"], notebook)

    def running(self) -> bool:
        return False

    def outcome(self) -> str | None:
        return self._failure


@pytest.fixture
def same_process(monkeypatch):
    monkeypatch.setattr(run_many, "RunProcess", SameProcess)


@pytest.mark.usefixtures("same_process")
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


@pytest.mark.usefixtures("same_process")
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


@pytest.mark.usefixtures("same_process")
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


@pytest.mark.usefixtures("same_process")
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


def test_what_fails_after_the_last_step_goes_on_without_training_again(run_notebook, tmp_path):
    folder = run_folder("smoke", "pocket", "standard", 0, tmp_path)
    parameters = {"output_dir": str(folder)}
    assert run_one(folder, parameters, run_notebook) is None and is_finished(folder)
    executed = read_notebook(folder / "run.ipynb")
    assert executed.metadata.gsmrl.pop("executed_sha256")
    write_notebook(executed, folder / "run.ipynb")  # as of a run whose last cells have failed
    assert not is_finished(folder)

    statuses = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "gsmrl_helpers.runs.launch_notebook",
            lambda *_: statuses.append(json.loads((folder / MANIFEST).read_text())["status"]),
        )
        assert run_one(folder, parameters, run_notebook) is None
    assert statuses == ["running"]  # so that `train` goes on from its last checkpoint


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
