"""DPO runs and recorded studies: the budget, the rows, and what is run again."""

import json
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import dpo_runs
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.dpo_runs import run_dpo, sample_pairs
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.records import LONG_COLUMNS, Row
from gsmrl_helpers.studies import Study, record_studies

SMALL = experiment_config("smoke", overrides={"splits": {"curve": 8, "dev": 8, "test": 8}})


def test_the_budget_is_that_of_grpo_s_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer.from_config(SMALL)
    sampled = []
    sample = trainer.sample
    monkeypatch.setattr(
        trainer, "sample", lambda *a: sampled.append(sample(*a)) or sampled[-1], raising=False
    )
    pairs = sample_pairs(trainer, n_steps=2)
    (rollouts,) = sampled
    assert len(rollouts.completions) == 2 * SMALL.rollout_batch_size
    groups = rollouts.rewards.reshape(-1, SMALL.group_size)
    assert len(pairs) == int((groups.amin(1) < groups.amax(1)).sum())


def test_a_run_validates_after_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpo_runs, "sample_pairs", lambda trainer: sample_pairs(trainer, 2))
    rows = list(run_dpo(SMALL, beta=0.1, epochs=2, batch_size=2))
    steps_per_epoch = rows[0]["pairs"] // 2
    assert [row["step"] for row in rows] == list(range(2 * steps_per_epoch + 1))
    validated = [row["step"] for row in rows if "dev_mean_answer_reward" in row]
    assert validated == [0, steps_per_epoch, 2 * steps_per_epoch]
    assert rows[1]["loss"] == pytest.approx(math.log(2), abs=1e-4)


def test_studies_are_kept_resumed_and_written(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    broken = True

    def run(config: RunConfig) -> Iterator[Row]:
        calls.append((config.variant, config.seed))
        yield {"step": 0, "loss": 1.0}
        if broken and (config.variant, config.seed) == ("other", 1):
            raise RuntimeError("the power went out")
        yield {"step": 1, "loss": 0.5 + config.seed}

    both = {name: Study({"beta": name}, run) for name in ("one", "other")}
    path = tmp_path / "toy.parquet"
    record = partial(record_studies, "toy", both, 2, "pocket", path, runs_dir=tmp_path / "runs")
    with pytest.raises(RuntimeError, match="power"):
        record()
    assert not path.exists()
    broken = False
    record()
    assert calls == [("one", 0), ("one", 1), ("other", 0), ("other", 1), ("other", 1)]
    table = pd.read_parquet(path)
    assert list(table.columns) == LONG_COLUMNS and len(table) == 8
    assert not table.duplicated(["variant", "seed", "step", "metric"]).any()
    manifests = json.loads(path.with_suffix(".manifest.json").read_text())["runs"]
    assert [m["study"]["beta"] for m in manifests] == ["one", "one", "other", "other"]
    assert {m["status"] for m in manifests} == {"finished"}
    record(fresh=True)
    assert len(calls) == 9


def two_rows(config: RunConfig, rate: float) -> Iterator[Row]:
    """A run that other processes can import."""
    yield {"step": 0, "loss": 1.0}
    yield {"step": 1, "loss": rate + config.seed, "process": os.getpid()}


def test_several_jobs_write_what_one_does(tmp_path: Path) -> None:
    two = {name: Study({}, partial(two_rows, rate=rate)) for name, rate in (("a", 0.5), ("b", 2.0))}
    path = tmp_path / "two.parquet"
    record_studies("toy", two, 2, "pocket", path, jobs=2, runs_dir=tmp_path / "runs")
    table = pd.read_parquet(path)
    losses = table.query("metric == 'loss' and step == 1").set_index(["variant", "seed"])["value"]
    assert losses.to_dict() == {("a", 0): 0.5, ("a", 1): 1.5, ("b", 0): 2.0, ("b", 1): 3.0}
    assert os.getpid() not in set(table.query("metric == 'process'")["value"])
