"""Answers of recorded runs: what is kept, and which are read first."""

from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import experiment_config, recorded_rollouts
from gsmrl_helpers.recorded_rollouts import best_paid, first_answers, read_answers
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
    kept = first_answers(make_run(tmp_path / "seed-1", 1), n=2)
    assert kept["response"].tolist() == ["step 0, 0", "step 0, 1", "step 2, 0", "step 2, 1"]
    assert kept["step"].tolist() == [0, 0, 2, 2]
    assert set(kept["seed"]) == {1} and set(kept["variant"]) == {"standard"}


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
