"""The stages of RLHF, PPO's update beside GRPO's, and what a recorded run writes."""

import math
from functools import partial

import pytest
import torch

from gsmrl_helpers import rlhf, rlhf_runs
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer, score
from gsmrl_helpers.preferences import PreferencePair
from gsmrl_helpers.reward_model import RewardModel
from gsmrl_helpers.rlhf import PPO, imitate, nats_from_reference, paid_by, rate_answers
from gsmrl_helpers.rlhf_runs import overrides, run_rlhf
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.studies import ANSWERS
from gsmrl_helpers.world import load_problems

SMALL = experiment_config(
    "smoke",
    overrides={
        "splits": {"curve": 8, "dev": 8, "test": 8},
        **overrides("GRPO, KL", "pocket"),
        "train_batch_size": 8,
        "n_grpo_steps": 2,
    },
)


@pytest.fixture
def trainer() -> Trainer:
    trainer = Trainer.from_config(SMALL)
    trainer.model.eval()
    return trainer


@pytest.fixture
def rollouts(trainer: Trainer) -> Rollouts:
    return trainer.sample(load_problems(SMALL, "train")[:4], SMALL.group_size, "train", 1)


def with_head(trainer: Trainer) -> RewardModel:
    model = RewardModel(trainer.model, trainer.tokenizer)
    torch.nn.init.normal_(model.head.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return model.eval()


def test_imitation_changes_the_policy_and_keeps_it_as_the_reference(
    trainer: Trainer, rollouts: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlhf, "N_EXAMPLES", 16)
    before = score(trainer, trainer.model, rollouts)
    imitate(trainer)
    after = score(trainer, trainer.model, rollouts)
    assert not torch.allclose(before, after, atol=1e-3)
    assert torch.equal(score(trainer, trainer.reference, rollouts), after)
    assert nats_from_reference(trainer, rollouts).tolist() == [0.0] * len(rollouts.completions)


def test_rated_problems_are_not_those_that_were_imitated(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlhf, "N_EXAMPLES", 5)
    sample, asked = trainer.sample, []
    monkeypatch.setattr(trainer, "sample", lambda *a: asked.extend(a[0]) or sample(*a))
    pairs = rate_answers(trainer, n_problems=3)
    assert asked == load_problems(SMALL, "train")[5:8]
    assert all(isinstance(pair, PreferencePair) for pair in pairs)


def test_the_reward_model_pays_and_the_verifier_s_grades_stay(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    model = with_head(trainer)
    paid = paid_by(model, rollouts)
    texts = [completion.text for completion in rollouts.completions]
    assert torch.equal(paid.rewards, model.score(rollouts.prompts, texts))
    assert torch.equal(paid.answer_rewards, rollouts.answer_rewards)
    assert paid.metrics()["mean_reward"] == pytest.approx(paid.rewards.double().mean().item())


def test_nats_from_the_reference_are_whole_answers(trainer: Trainer, rollouts: Rollouts) -> None:
    with torch.no_grad():
        trainer.model.lm_head.weight.mul_(1.1)
    expected = []
    for prompt, completion in zip(rollouts.prompts, rollouts.completions, strict=True):
        start = trainer.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([[*start, *completion.token_ids]])
        picked = []
        for model in (trainer.model, trainer.reference):
            with torch.no_grad():
                logits = model(ids).logits[0, len(start) - 1 : -1]
            rows = torch.arange(len(completion.token_ids))
            picked.append(logits.log_softmax(-1)[rows, ids[0, len(start) :]].sum().item())
        expected.append(picked[0] - picked[1])
    assert nats_from_reference(trainer, rollouts).tolist() == pytest.approx(expected, abs=1e-3)
    assert max(map(abs, expected)) > 0.01


def test_before_its_first_step_ppo_pays_what_came_out(trainer: Trainer, rollouts: Rollouts) -> None:
    paid = paid_by(with_head(trainer), rollouts)
    ppo = PPO(trainer, lam=1.0)
    batch = ppo.batch(paid)
    mask = batch.response_mask
    assert (batch.values == 0).all()  # the value head starts at 0, and the policy is the reference
    lengths = mask.sum(dim=1)
    assert torch.allclose(
        batch.returns[mask], paid.rewards.repeat_interleave(lengths).to(batch.returns), atol=1e-6
    )
    assert batch.advantages[mask].mean().abs() < 1e-6
    assert batch.advantages[mask].std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_a_ppo_update_raises_the_paid_answers_and_fits_the_values(
    trainer: Trainer, rollouts: Rollouts
) -> None:
    paid = paid_by(with_head(trainer), rollouts)
    ppo = PPO(trainer)
    before = ppo.batch(paid)
    frozen = score(trainer, trainer.reference, paid)
    row = ppo.update(paid)
    after = ppo.batch(paid)
    mask = before.response_mask

    def gain(batch: object) -> float:
        return (before.advantages * (batch.log_probs - before.log_probs))[mask].sum().item()

    def error(values: torch.Tensor) -> float:
        return (values - before.returns)[mask].square().mean().item()

    assert gain(after) > 0
    assert error(after.values) < error(before.values)
    assert torch.equal(score(trainer, trainer.reference, paid), frozen)
    assert row["value_loss"] > 0 and 0 <= row["clip_fraction"] <= 1
    assert row["explained_variance"] == pytest.approx(0, abs=1e-6)
    assert all(math.isfinite(value) for value in row.values())


@pytest.mark.parametrize("method", ["GRPO", "PPO"])
def test_a_run_says_what_both_graders_say(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlhf, "N_EXAMPLES", 16)
    monkeypatch.setattr(rlhf, "N_RATED", 8)
    quick = partial(rlhf_runs.train_reward_model, n_epochs=1)
    monkeypatch.setattr(rlhf_runs, "train_reward_model", quick)
    monkeypatch.setattr(rlhf_runs, "rate_answers", lambda trainer, split="train": PAIRS)
    rows = list(run_rlhf(SMALL, method))
    assert [row["step"] for row in rows] == [0, 1, 2]
    first, _, last = rows
    assert first["pairs"] == len(PAIRS) and 0 <= first["pairs_ranked_right"] <= 1
    assert len(first[ANSWERS]) == len(last[ANSWERS]) == 8
    assert first["curve_kl"] == 0.0 and rows[1]["kl"] == 0.0 and last["kl"] != 0.0
    of_rows = sum(row["reward"] for row in last[ANSWERS]) / 8
    assert last["curve_mean_reward"] == pytest.approx(of_rows, abs=1e-6)
    assert last["curve_mean_reward"] != last["curve_mean_answer_reward"]
    assert "loss" in last


PAIRS = [
    PreferencePair(f"Question {n}. ", f"<think> {n} + 1 </think>", f"no {n}") for n in range(6)
]


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'TRPO' is unknown; allowed: GRPO, no KL, GRPO, KL"):
        rlhf_runs.rlhf_config("TRPO")
    config = rlhf_runs.rlhf_config("PPO, KL", seed=3)
    assert (config.variant, config.seed) == ("PPO, KL", 3)
