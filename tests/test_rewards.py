"""Rewards of a batch, and pass@k."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gsmrl_helpers.rewards import compute_rollout_rewards, pass_at_k


def exact_match(response: str, ground_truth: str) -> dict[str, float]:
    right = float(response.strip("<>") == ground_truth)
    return {"reward": 2 * right, "format_reward": float("<" in response), "answer_reward": right}


def test_each_response_meets_its_own_ground_truth() -> None:
    rewards, metadata = compute_rollout_rewards(
        exact_match, ["<1>", "2", "<2>", "<3>"], ["1", "1", "2", "2"]
    )
    assert rewards.dtype == torch.float32
    assert rewards.tolist() == [2.0, 0.0, 2.0, 0.0]
    assert metadata["format_rewards"].tolist() == [1.0, 0.0, 1.0, 1.0]
    assert metadata["answer_rewards"].tolist() == [1.0, 0.0, 1.0, 0.0]
    means = [metadata[f"mean_{part}"] for part in ("reward", "format_reward", "answer_reward")]
    assert means == [1.0, 0.75, 0.5]
    assert all(isinstance(mean, float) for mean in means)


def test_integer_and_bool_rewards_are_cast() -> None:
    def grade(response: str, ground_truth: str) -> dict[str, float]:
        return {"reward": 1, "format_reward": True, "answer_reward": response == ground_truth}

    rewards, metadata = compute_rollout_rewards(grade, ["1", "2"], ["1", "1"])
    assert rewards.dtype == torch.float32 and rewards.tolist() == [1.0, 1.0]
    assert metadata["mean_answer_reward"] == 0.5


@pytest.mark.parametrize("responses, truths", [([], []), (["1"], ["1", "2"])])
def test_unequal_or_no_responses_are_refused(responses: list[str], truths: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{len(responses)} responses and {len(truths)} ground"):
        compute_rollout_rewards(exact_match, responses, truths)


def test_a_missing_reward_is_named() -> None:
    with pytest.raises(ValueError, match="without format_reward, answer_reward"):
        compute_rollout_rewards(lambda response, truth: {"reward": 1.0}, ["1"], ["1"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(value: float) -> None:
    scores = {"reward": value, "format_reward": 0.0, "answer_reward": 0.0}
    with pytest.raises(ValueError, match="must be finite"):
        compute_rollout_rewards(lambda response, truth: scores, ["1"], ["1"])


def test_pass_at_k_of_the_lecture() -> None:
    assert pass_at_k(num_samples=8, num_correct=2, k=4) == pytest.approx(0.785714, abs=1e-6)


@pytest.mark.parametrize("num_correct, k", [*itertools.product(range(6), range(1, 6))])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(num_correct: int, k: int) -> None:
    samples = [index < num_correct for index in range(5)]
    subsets = list(itertools.combinations(samples, k))
    share = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k(5, num_correct, k) == pytest.approx(share)


@pytest.mark.parametrize(
    "num_samples, num_correct, k", [(4, 0, 0), (4, 0, 5), (4, 5, 1), (4, -1, 1)]
)
def test_counts_out_of_range_are_refused(num_samples: int, num_correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        pass_at_k(num_samples, num_correct, k)
