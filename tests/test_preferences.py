"""The models of choice: known values, extreme margins, simulations, and pairs from rollouts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gsmrl_helpers.engine import Completion
from gsmrl_helpers.preferences import (
    PreferencePair,
    bradley_terry_loss,
    thurstone_preference,
    verifier_pairs,
)
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.rollouts import Rollouts


def test_scores_of_two_and_one() -> None:
    loss = bradley_terry_loss(torch.tensor([2.0]), torch.tensor([1.0]))
    assert loss.item() == pytest.approx(-math.log(1 / (1 + math.exp(-1))))
    assert loss.item() == pytest.approx(0.3133, abs=5e-5)


def test_it_is_cross_entropy_with_the_label_one_and_a_mean() -> None:
    chosen, rejected = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    margin = chosen - rejected
    expected = F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))
    assert torch.allclose(bradley_terry_loss(chosen, rejected), expected)


@pytest.mark.parametrize(("margin", "loss", "slope"), [(1000.0, 0.0, 0.0), (-1000.0, 1000.0, -1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_margins_of_a_thousand_are_finite(
    margin: float, loss: float, slope: float, dtype: torch.dtype
) -> None:
    chosen = torch.tensor([margin], dtype=dtype, requires_grad=True)
    found = bradley_terry_loss(chosen, torch.zeros(1, dtype=dtype))
    found.backward()
    assert found.item() == loss and chosen.grad.item() == slope


def test_a_shift_of_all_scores_changes_nothing() -> None:
    chosen, rejected = torch.randn(2, 9, dtype=torch.float64)
    shifted = bradley_terry_loss(chosen + 5, rejected + 5)
    assert torch.allclose(shifted, bradley_terry_loss(chosen, rejected), atol=1e-12)


def test_shapes_that_would_broadcast_and_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chosen \(3,\) and rejected \(3, 1\)"):
        bradley_terry_loss(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="at least one pair"):
        bradley_terry_loss(torch.zeros(0), torch.zeros(0))


@pytest.mark.parametrize(("margin", "sigma"), [(0.0, 1.0), (1.0, 1.0), (-0.7, 0.5), (2.0, 3.0)])
def test_thurstone_is_what_noisy_scores_choose(margin: float, sigma: float) -> None:
    noise = sigma * torch.randn(2, 200_000, generator=torch.Generator().manual_seed(0))
    share = (margin + noise[0] > noise[1]).double().mean().item()
    found = thurstone_preference(torch.tensor(margin, dtype=torch.float64), sigma).item()
    assert abs(share - found) < 4 * math.sqrt(0.25 / 200_000)


def test_thurstone_refuses_a_sigma_of_zero() -> None:
    with pytest.raises(ValueError, match="sigma=0"):
        thurstone_preference(torch.zeros(1), 0)


# --- pairs ------------------------------------------------------------------------------------


def rollouts(*groups: list[tuple[str, int]]) -> Rollouts:
    """Groups of (text, 1 if right) to the prompts p0, p1, …"""
    rows = [(g, *row) for g, group in enumerate(groups) for row in group]
    rewards: Tensor = torch.tensor([float(right) for *_, right in rows])
    return Rollouts(
        problems=[Problem(f"q{g}", "#### 1", "1") for g, *_ in rows],
        prompts=[f"p{g}" for g, *_ in rows],
        completions=[Completion(text, [0], "stop", g, 0) for g, text, _ in rows],
        rewards=rewards,
        format_rewards=rewards,
        answer_rewards=rewards,
        group_size=len(groups[0]),
    )


MIXED = [("yes", 1), ("yes", 1), ("aye", 1), ("no", 0), ("nay", 0), ("", 0)]


def test_right_answers_are_chosen_over_wrong_ones_to_the_same_prompt() -> None:
    found = verifier_pairs(rollouts(MIXED, [("yes", 1)] * 6, [("no", 0)] * 6), per_prompt=9, seed=0)
    pairs = {(pair.chosen, pair.rejected) for pair in found}
    assert pairs == {("yes", "no"), ("yes", "nay"), ("aye", "no"), ("aye", "nay")}
    assert len(found) == 4 and {pair.prompt for pair in found} == {"p0"}


def test_pairs_are_drawn_with_the_seed_and_filtered() -> None:
    many = rollouts(MIXED, MIXED[::-1])
    drawn = [verifier_pairs(many, per_prompt=2, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [pair.prompt for pair in drawn[0]] == ["p0", "p0", "p1", "p1"]
    only_nay = verifier_pairs(many, per_prompt=9, seed=0, may_be_rejected=lambda t: "y" in t)
    assert {pair.rejected for pair in only_nay} == {"nay"} and len(only_nay) == 4
    assert isinstance(only_nay[0], PreferencePair)


def test_no_pairs_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="per_prompt=0"):
        verifier_pairs(rollouts(MIXED), per_prompt=0, seed=0)
