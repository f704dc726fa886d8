"""A run killed at random moments, again and again, ends as the undisturbed one does."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gsmrl_helpers.checkpoints import load_checkpoint
from gsmrl_helpers.records import METRICS, ROLLOUTS, read_manifest

N_KILLS = 10
RUN = """
import sys
from pathlib import Path
from gsmrl_helpers import experiment_config, train

overrides = {
    "n_grpo_steps": 20, "rollout_batch_size": 16, "train_batch_size": 16,
    "splits": {"train": 32, "curve": 8, "dev": 8, "test": 8},
    "validate_every": 5, "save_rollouts_every": 4, "checkpoint_every": 2,
}
train(experiment_config("smoke", overrides=overrides), Path(sys.argv[1]))
"""


def start(run_dir: Path) -> subprocess.Popen:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", RUN, str(run_dir)], env=env)


def steps_written(run_dir: Path) -> int:
    path = run_dir / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.full
@pytest.mark.timeout(600)
def test_ten_kills_change_nothing(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert start(undisturbed).wait() == 0

    rng = random.Random(0)
    for rows in sorted(rng.choices(range(1, 19), k=N_KILLS)):
        process = start(killed)
        while steps_written(killed) < rows:  # a kill while Python still imports would test nothing
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert read_manifest(killed)["status"] == "running"
    assert start(killed).wait() == 0

    assert (killed / METRICS).read_bytes() == (undisturbed / METRICS).read_bytes()
    ours, theirs = load_checkpoint(killed), load_checkpoint(undisturbed)
    for part in ("model", "optimizer"):
        torch.testing.assert_close(ours[part], theirs[part], rtol=0, atol=0)
    for path in sorted((undisturbed / ROLLOUTS).iterdir()):
        assert (killed / ROLLOUTS / path.name).read_bytes() == path.read_bytes()
