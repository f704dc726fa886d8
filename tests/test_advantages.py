"""Advantages within groups: baselines, normalizers, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from gsmrl_helpers.advantages import compute_group_normalized_rewards


def advantages_of(rewards: list[float], group_size: int, **options: object) -> torch.Tensor:
    return compute_group_normalized_rewards(torch.tensor(rewards), group_size, **options)[0]


@pytest.mark.parametrize(
    "baseline, normalizer, expected",
    [
        ("mean", "std", [1.5, -0.5, -0.5, -0.5]),
        ("mean", "mean", [3.0, -1.0, -1.0, -1.0]),
        ("mean", "none", [0.75, -0.25, -0.25, -0.25]),
        ("none", "mean", [4.0, 0.0, 0.0, 0.0]),
        ("none", "none", [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_one_right_of_four(baseline: str, normalizer: str, expected: list[float]) -> None:
    advantages = advantages_of(
        [1.0, 0.0, 0.0, 0.0], 4, baseline=baseline, advantage_normalizer=normalizer
    )
    torch.testing.assert_close(advantages, torch.tensor(expected), atol=2e-5, rtol=0)


def test_std_is_that_of_torch() -> None:
    expected = torch.tensor([0.866, -0.866, -0.866, 0.866])
    torch.testing.assert_close(advantages_of([1.0, 0, 0, 1], 4), expected, atol=1e-3, rtol=0)
    expected = torch.tensor([0.5, 0.5, 0.5, -1.5])
    torch.testing.assert_close(advantages_of([1.0, 1, 1, 0], 4), expected, atol=1e-3, rtol=0)


def test_groups_are_adjacent_and_independent() -> None:
    advantages = advantages_of([1.0, 0.0, 10.0, 30.0], 2, advantage_normalizer="none")
    assert advantages.tolist() == [0.5, -0.5, -10.0, 10.0]


def test_eps_is_added_to_the_divisor() -> None:
    advantages = advantages_of([3.0, 1.0], 2, advantage_normalizer="mean", advantage_eps=2.0)
    assert advantages.tolist() == [0.25, -0.25]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("normalizer", ["std", "mean", "none"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("group_size, reward", [(8, 0.1), (7, 0.1), (6, 1.1), (8, 0.0), (3, 1e8)])
def test_equal_rewards_give_exactly_zero(
    dtype: torch.dtype, normalizer: str, eps: float, group_size: int, reward: float
) -> None:
    rewards = torch.full((2 * group_size,), min(reward, torch.finfo(dtype).max), dtype=dtype)
    rewards[group_size] = 0.5  # the second group has a signal
    advantages, metadata = compute_group_normalized_rewards(
        rewards, group_size, "mean", eps, normalizer
    )
    assert (advantages[:group_size] == 0).all()
    assert advantages[group_size:].isfinite().all() and (advantages[group_size:] != 0).any()
    assert metadata["no_signal_group_share"] == 0.5


def test_without_a_baseline_only_groups_without_reward_have_no_signal() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
    for normalizer, eps in (("none", 1e-6), ("mean", 0.0)):
        advantages, metadata = compute_group_normalized_rewards(rewards, 2, "none", eps, normalizer)
        assert advantages.tolist() == [1.0, 1.0, 0.0, 0.0]
        assert metadata["no_signal_group_share"] == 0.5


@pytest.mark.parametrize("group_size", [1, 3])
def test_none_none_passes_rewards_through(group_size: int) -> None:
    rewards = torch.tensor([0.3, -2.0, 0.0])
    advantages, metadata = compute_group_normalized_rewards(
        rewards, group_size, baseline="none", advantage_normalizer="none"
    )
    assert torch.equal(advantages, rewards)
    assert metadata["no_signal_group_share"] == pytest.approx(1 / 3 if group_size == 1 else 0.0)


def test_none_none_needs_no_whole_groups() -> None:
    rewards = torch.tensor([0.3, -2.0, 0.0])
    advantages, metadata = compute_group_normalized_rewards(rewards, 2, "none", 1e-6, "none")
    assert torch.equal(advantages, rewards)
    assert metadata == {"no_signal_group_share": None}


@pytest.mark.parametrize("rewards", [[1, 0, 0, 0], [True, False, False, False]])
def test_integer_and_bool_rewards_are_cast(rewards: list[int]) -> None:
    advantages, _ = compute_group_normalized_rewards(torch.tensor(rewards), 4)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_float64_stays_and_no_gradient_flows_through_a_reward() -> None:
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    advantages, _ = compute_group_normalized_rewards(rewards, 2)
    assert advantages.dtype == torch.float64
    assert not advantages.requires_grad


@pytest.mark.parametrize("group_size, count", [(1, 4), (3, 4), (5, 4)])
@pytest.mark.parametrize(
    "baseline, normalizer",
    [("mean", "std"), ("mean", "none"), ("mean", "mean"), ("none", "mean")],
)
def test_a_group_statistic_needs_whole_groups_of_two_or_more(
    group_size: int, count: int, baseline: str, normalizer: str
) -> None:
    with pytest.raises(ValueError, match=f"group_size={group_size} and {count} rewards"):
        advantages_of([1.0] * count, group_size, baseline=baseline, advantage_normalizer=normalizer)


def test_std_without_a_baseline_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="std 0"):
        advantages_of([1.0, 0.0], 2, baseline="none", advantage_normalizer="std")


def test_negative_rewards_are_refused_where_the_mean_divides() -> None:
    with pytest.raises(ValueError, match=r"smallest reward is -0\.5"):
        advantages_of([1.0, -0.5], 2, advantage_normalizer="mean")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"baseline": "median"}, r"baseline='median' is unknown: allowed are 'mean', 'none'"),
        (
            {"advantage_normalizer": "var"},
            r"advantage_normalizer='var' is unknown: allowed are 'std', 'none', 'mean'",
        ),
        ({"advantage_eps": -1e-6}, r"advantage_eps=-1e-06 must be a number at least 0"),
        ({"group_size": 0}, r"group_size=0 must be an integer of at least 1"),
        ({"group_size": 2.0}, r"group_size=2.0 must be an integer of at least 1"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_group_normalized_rewards(torch.tensor([1.0, 0.0]), **{"group_size": 2, **options})


@pytest.mark.parametrize("rewards", [[[1.0, 0.0]], [], 1.0])
def test_rewards_that_are_not_a_vector_are_refused(rewards: list) -> None:
    with pytest.raises(ValueError, match=r"must have shape \(B,\)"):
        compute_group_normalized_rewards(torch.tensor(rewards), 2)


def test_rewards_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages_of([1.0, math.nan], 2)
