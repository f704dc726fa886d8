"""Metrics, manifests, run folders, the long table, checkpoints."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gsmrl_helpers.checkpoints import (
    DamagedCheckpointWarning,
    NoUsableCheckpointError,
    checkpoint_paths,
    load_checkpoint,
    save_checkpoint,
)
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.records import (
    LONG_COLUMNS,
    METRICS,
    RunFolderError,
    append_row,
    cut_metrics,
    finish_run,
    lock_run,
    long_table,
    open_run,
    policy_sha256,
    read_manifest,
    read_rollouts,
    read_rows,
    write_rollouts,
)

CONFIG = experiment_config("smoke", seed=2)


def new_run(folder: Path, seed: int = 2) -> Path:
    config = experiment_config("smoke", seed=seed)
    open_run(folder, config, "sha", "gsmrl run smoke")
    append_row(folder / METRICS, {"step": 0, "curve_mean_reward": 0.25, "mean_ratio": None})
    append_row(folder / METRICS, {"step": 1, "curve_mean_reward": 0.5, "mean_ratio": 1.0})
    return folder


def test_what_was_not_computed_is_null_and_never_zero(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    append_row(path, {"step": 0, "a": None, "b": math.nan, "c": math.inf, "d": 0.0})
    assert path.read_text() == '{"step": 0, "a": null, "b": null, "c": null, "d": 0.0}\n'


def test_the_long_table(tmp_path: Path) -> None:
    table = long_table(new_run(tmp_path / "run"))
    assert list(table.columns) == LONG_COLUMNS
    assert len(table) == 4 and set(table["variant"]) == {"standard"} and set(table["seed"]) == {2}
    ratio = table[table["metric"] == "mean_ratio"].set_index("step")["value"]
    assert math.isnan(ratio[0]) and ratio[1] == 1.0


def test_the_manifest_says_what_ran_where(tmp_path: Path) -> None:
    manifest = read_manifest(new_run(tmp_path / "run"))
    assert manifest["status"] == "running" and manifest["wall_seconds"] is None
    assert manifest["config"]["seed"] == 2 and manifest["policy_sha256"] == "sha"
    assert manifest["command"] == "gsmrl run smoke"
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["machine"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert manifest["machine"]["threads"] == torch.get_num_threads()
    finish_run(tmp_path / "run", 12.34)
    finished = read_manifest(tmp_path / "run")
    assert finished["status"] == "finished" and finished["wall_seconds"] == 12.3


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    other = experiment_config("smoke", seed=3, overrides={"learning_rate": 1.0})
    with pytest.raises(RunFolderError, match="differs in learning_rate, seed"):
        open_run(run, other, "sha", "x")
    with pytest.raises(RunFolderError, match="policy_sha256"):
        open_run(run, CONFIG, "another policy", "x")
    assert open_run(run, CONFIG, "sha", "x")["status"] == "running"  # the same one goes on
    finish_run(run, 1.0)
    with pytest.raises(RunFolderError, match="finished"):
        open_run(run, CONFIG, "sha", "x")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(RunFolderError, match=r"no manifest\.json"):
        open_run(tmp_path / "notes", CONFIG, "sha", "x")
    assert (tmp_path / "notes" / "diary.txt").read_text() == "dear diary"


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with lock_run(tmp_path / "run"):
        holder = (
            "import sys; from pathlib import Path; from gsmrl_helpers.records import lock_run\n"
            "with lock_run(Path(sys.argv[1])): pass"
        )
        command = [sys.executable, "-c", holder, str(tmp_path / "run")]
        refused = subprocess.run(command, capture_output=True, text=True)
        assert "RunFolderError: another process is running into" in refused.stderr
    assert subprocess.run(command).returncode == 0


def test_metrics_are_cut_back_to_a_checkpoint_and_never_padded(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    size = (run / METRICS).stat().st_size
    with (run / METRICS).open("a") as lines:
        lines.write('{"step": 2, "curve_me')
    with pytest.raises(ValueError, match="line 3 is not JSON"):
        read_rows(run / METRICS)
    cut_metrics(run, size)
    assert [row["step"] for row in read_rows(run / METRICS)] == [0, 1]
    with pytest.raises(RunFolderError, match="rows were lost"):
        cut_metrics(run, size + 1)


def test_rollouts_are_read_back_and_a_missing_step_lists_the_others(tmp_path: Path) -> None:
    write_rollouts(tmp_path, "curve-000010", [{"response": "é {x} </answer>", "reward": 1.0}])
    assert read_rollouts(tmp_path, "curve", 10)["response"].tolist() == ["é {x} </answer>"]
    with pytest.raises(ValueError, match="there are: curve-000010"):
        read_rollouts(tmp_path, "curve", 20)


def test_the_sum_of_a_policy_is_of_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    before = policy_sha256(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert policy_sha256(tmp_path) == before and len(before) == 64
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    assert policy_sha256(tmp_path) != before
    assert policy_sha256("allenai/OLMo-2-0425-1B") == "allenai/OLMo-2-0425-1B"


def test_the_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, step, {"model": {"w": torch.full((3,), float(step))}})
    assert len(checkpoint_paths(tmp_path)) == 2
    state = load_checkpoint(tmp_path)
    assert state["step"] == 15 and state["model"]["w"].tolist() == [15.0] * 3


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {"x": torch.zeros(1)})
    newest = save_checkpoint(tmp_path, 10, {"x": torch.ones(1)})
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(DamagedCheckpointWarning, match="step-000010.*is damaged"):
        assert load_checkpoint(tmp_path)["step"] == 5
    assert not newest.exists()
    checkpoint_paths(tmp_path)[0].write_bytes(b"")
    with (
        pytest.warns(DamagedCheckpointWarning),
        pytest.raises(NoUsableCheckpointError, match="all checkpoints"),
    ):
        load_checkpoint(tmp_path)
