"""Answers of recorded runs: what is kept, and which are read first."""

import json
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import experiment_config, recorded_rollouts
from gsmrl_helpers.recorded_rollouts import best_paid, read_answers, rollouts_path, save_answers
from gsmrl_helpers.records import make_manifest, write_json, write_rollouts


def make_run(folder: Path, seed: int) -> Path:
    config = experiment_config("smoke", seed=seed)
    folder.mkdir()
    write_json(folder / "manifest.json", make_manifest(config, "0", "gsmrl run smoke"))
    for step in (0, 1, 2):
        rows = [
            {"question": f"q{at}", "gold": "1", "response": f"step {step}, {at}", "token_ids": [1]}
            | {"finish_reason": "stop", "reward": 1.0, "format_reward": 1.0, "answer_reward": 0.0}
            for at in range(3)
        ]
        write_rollouts(folder, f"curve-{step:06d}", rows)
    return folder


def test_the_first_answers_of_the_first_and_the_last_step_are_kept(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"seed-{seed}", seed) for seed in (0, 1)]
    path = rollouts_path(tmp_path / "smoke.parquet")
    saved = save_answers(iter(runs), path, n=2)
    pd.testing.assert_frame_equal(pd.read_parquet(path), saved)
    assert saved["response"].tolist() == ["step 0, 0", "step 0, 1", "step 2, 0", "step 2, 1"] * 2
    assert saved["seed"].tolist() == [0] * 4 + [1] * 4 and set(saved["variant"]) == {"standard"}
    manifest = json.loads((tmp_path / "smoke.rollouts.manifest.json").read_text())
    assert manifest["answers"] == 2 and len(manifest["runs"]) == 2


def test_answers_that_were_not_kept_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_rollouts, "RESULTS_DIR", tmp_path)
    with pytest.raises(ValueError, match="gsmrl record on-policy"):
        read_answers("on-policy")


def test_the_best_paid_come_first_and_the_shortest_of_them() -> None:
    table = pd.DataFrame({"response": ["long", "a", "no", "yes"], "reward": [1.0, 0.0, 1.0, 1.0]})
    assert best_paid(table, 3)["response"].tolist() == ["no", "yes", "long"]
    assert list(best_paid(table).columns) == ["response", "reward"]
