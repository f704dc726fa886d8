"""Which engine the settings name, and what is said of an engine that is not the trainer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gsmrl_helpers import load_problems, make_config, train
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import Completion, LocalEngine
from gsmrl_helpers.engines import ENGINE_METRICS, engine_metrics, make_engine
from gsmrl_helpers.loop import Trainer, batches_of, score, update_policy
from gsmrl_helpers.preflight import preflight
from gsmrl_helpers.records import stored_config
from gsmrl_helpers.server_process import ServerStartError
from tests.tiny_trainer import make_trainer, tiny_config


def completions_of(*answers: list[int], log_probs: list[float]) -> list[Completion]:
    rest = iter(log_probs)
    return [
        Completion("", ids, "stop", 0, i, [next(rest) for _ in ids])
        for i, ids in enumerate(answers)
    ]


def test_differences_and_identical_groups() -> None:
    # two groups of two answers; the second one's answers are the same
    completions = completions_of(
        [5, 6], [7], [8, 9], [8, 9], log_probs=[-1.0, -2.0, -0.5, -1.0, -1.0, -1.0, -1.0]
    )
    log_probs = torch.full((4, 3), 99.0)
    mask = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 1]], dtype=torch.bool)
    log_probs[mask] = torch.tensor([-1.0, -2.3, -0.5, -1.1, -1.0, -1.0, -1.0])
    assert engine_metrics(completions, 2, log_probs, mask) == {
        "engine_log_prob_difference_mean": pytest.approx(0.4 / 7, abs=1e-6),
        "engine_log_prob_difference_max": pytest.approx(0.3, abs=1e-6),
        "identical_group_share": 0.5,
    }


@pytest.mark.parametrize("method", ["none", "grpo"])
def test_an_update_tells_how_far_the_engine_was_from_the_trainer(method: str) -> None:
    config = tiny_config(
        importance_reweighting_method=method, cliprange=0.2 if method == "grpo" else None
    )
    trainer = make_trainer(config)
    rollouts = trainer.sample(load_problems(config, "train")[:4], 4, "train", 1)
    rollouts = replace(rollouts, rewards=torch.tensor([1.0, 0.0] * 8))
    log_probs = score(trainer, trainer.model, rollouts)
    masks = torch.cat([batch["response_mask"] for batch in batches_of(trainer, rollouts)])
    rows = zip(rollouts.completions, log_probs, masks, strict=True)
    # an engine whose log-probabilities are off by an eighth
    said = [replace(c, log_probs=(row[mask] + 0.125).tolist()) for c, row, mask in rows]
    metrics = update_policy(trainer, replace(rollouts, completions=said))
    assert metrics["engine_log_prob_difference_mean"] == pytest.approx(0.125, abs=1e-5)
    assert metrics["engine_log_prob_difference_max"] == pytest.approx(0.125, abs=1e-5)
    if method == "grpo":  # the old log-probs are the trainer's, or the ratio would be e^-.125
        assert metrics["mean_ratio"] == pytest.approx(1, abs=1e-5)
    assert not ENGINE_METRICS.keys() & update_policy(trainer, rollouts).keys()


def test_the_settings_choose_the_engine() -> None:
    trainer = make_trainer(tiny_config())
    assert isinstance(make_engine(trainer.config, trainer.model, trainer.tokenizer), LocalEngine)
    config = make_config("pocket_vllm", overrides={"vllm": {"python": "no/such/python"}})
    with pytest.raises(ServerStartError, match="no/such/python"):
        make_engine(config, trainer.model, trainer.tokenizer)


@pytest.mark.parametrize("ends_in_an_error", [False, True])
def test_who_starts_an_engine_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends_in_an_error: bool
) -> None:
    closed: list[str] = []

    def from_config(config: RunConfig) -> Trainer:
        trainer = make_trainer(config)
        monkeypatch.setattr(trainer.engine, "close", lambda: closed.append("engine"))
        if ends_in_an_error:
            monkeypatch.setattr(trainer.engine, "generate_completions", lambda *_: 1 / 0)
        return trainer

    monkeypatch.setattr(Trainer, "from_config", from_config)
    outcome = pytest.raises(ZeroDivisionError) if ends_in_an_error else nullcontext()
    config = tiny_config(n_grpo_steps=1)
    with outcome:
        train(config, tmp_path / "run")
    assert closed == ["engine"]
    with outcome:
        preflight(config, n_problems=4)
    assert closed == ["engine"] * 2
    if not ends_in_an_error:
        preflight(config, n_problems=4, trainer=from_config(config))  # who gave it ends it
        assert closed == ["engine"] * 2


def test_a_server_needs_its_settings() -> None:
    with pytest.raises(ValueError, match="engine=vllm needs the server's settings"):
        make_config("pocket", overrides={"engine": "vllm"})
    with pytest.raises(ValueError, match=r"vllm\.device.*tpu"):
        make_config("pocket_vllm", overrides={"vllm": {"python": "python", "device": "tpu"}})


def test_settings_that_came_later_have_their_defaults_in_older_manifests() -> None:
    there = make_config("pocket").model_dump(mode="json")
    older = {name: value for name, value in there.items() if name not in ("engine", "vllm")}
    assert stored_config({"config": older}) == there
