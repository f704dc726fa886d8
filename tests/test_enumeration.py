"""Expectations over all groups: right where the answer is known, and refused where it is none."""

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.enumeration import group_estimates, moments

PROBS = torch.tensor([0.2, 0.1, 0.7], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
GRADIENT = PROBS * (REWARDS - 0.3)  # of the mean reward .3


def raw(rewards: Tensor) -> Tensor:
    return rewards


def centred(rewards: Tensor) -> Tensor:
    return rewards - rewards.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("group_size", [1, 2, 5])
def test_the_known_expectations(group_size: int) -> None:
    chances, estimates = group_estimates(raw, PROBS, REWARDS, group_size)
    assert chances.shape == (3**group_size,) and estimates.shape == (3**group_size, 3)
    assert chances.sum().item() == pytest.approx(1)
    assert torch.allclose(moments(chances, estimates)[0], GRADIENT)
    mean, _ = moments(*group_estimates(centred, PROBS, REWARDS, group_size))
    assert torch.allclose(mean, GRADIENT * (group_size - 1) / group_size, atol=1e-15)


def test_the_variance_is_that_of_independent_draws() -> None:
    _, alone = moments(*group_estimates(raw, PROBS, REWARDS, 1))
    # E|r s|² − |∇η|²: a right answer v has |s|² = 1 − 2 p_v + Σ p²
    square = sum(p * (1 - 2 * p + PROBS.square().sum()) for p in PROBS[:2])
    assert alone == pytest.approx((square - GRADIENT.square().sum()).item())
    _, of_four = moments(*group_estimates(raw, PROBS, REWARDS, 4))
    assert of_four == pytest.approx(alone / 4)


def test_what_is_no_policy_or_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match=r"probs \(3,\) and rewards \(2,\) must be"):
        group_estimates(raw, PROBS, REWARDS[:2], 2)
    with pytest.raises(ValueError, match="sum to 1"):
        group_estimates(raw, 2 * PROBS, REWARDS, 2)
    with pytest.raises(ValueError, match=r"3\^13 groups"):
        group_estimates(raw, PROBS, REWARDS, 13)
    with pytest.raises(ValueError, match="group_size=0"):
        group_estimates(raw, PROBS, REWARDS, 0)
