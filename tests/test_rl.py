"""The functions of the course page, on the small batch: two prompts, four responses each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gsmrl_helpers import small_batch
from gsmrl_helpers.rl import (
    dr_grpo_loss,
    group_advantages,
    grpo_loss,
    kl_penalty_k3,
    sequence_logprob,
    sequence_logprobs,
)
from gsmrl_helpers.tokenization import tokenize_prompt_and_output

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
LENGTHS = [4, 3, 2, 2, 2, 1, 4, 2]


@pytest.fixture
def batch() -> dict[str, Tensor]:
    return tokenize_prompt_and_output(
        small_batch.repeated_prompts, small_batch.rollout_responses, small_batch.make_tokenizer()
    )


@pytest.fixture
def logprobs(batch: dict[str, Tensor]) -> Tensor:
    policy = small_batch.make_policy()
    return sequence_logprobs(policy, batch["input_ids"], batch["labels"])


def test_group_advantages() -> None:
    advantages = group_advantages(REWARDS)
    half = math.sqrt(3) / 2
    expected = torch.tensor([[half, -half, -half, half], [1.5, -0.5, -0.5, -0.5]])
    torch.testing.assert_close(advantages, expected.double(), atol=1e-5, rtol=0)


def test_an_empty_group_has_no_advantage() -> None:
    assert group_advantages(torch.full((1, 8), 0.1)).tolist() == [[0.0] * 8]


def test_rewards_must_be_in_groups() -> None:
    with pytest.raises(ValueError, match=r"rewards must have shape \(B, G\): got \(8,\)"):
        group_advantages(torch.ones(8))


def test_log_probs_of_tokens_and_of_responses(batch: dict[str, Tensor]) -> None:
    policy, mask = small_batch.make_policy(), batch["response_mask"]
    by_token = sequence_logprobs(policy, batch["input_ids"], batch["labels"])
    torch.testing.assert_close(by_token[1][mask[1]].exp(), torch.tensor([0.5, 0.25, 0.8]).double())
    by_response = sequence_logprob(policy, batch["input_ids"], batch["labels"], mask)
    assert by_response.shape == (8,)
    assert by_response[:2].exp().tolist() == pytest.approx([0.1, 0.1])


def test_grpo_on_fresh_rollouts_is_minus_the_mean_advantage(
    batch: dict[str, Tensor], logprobs: Tensor
) -> None:
    advantages = group_advantages(REWARDS)
    loss = grpo_loss(logprobs, logprobs.detach(), advantages + 1, batch["response_mask"])
    assert loss.item() == pytest.approx(-1.0, abs=1e-6)  # every ratio is 1


def test_dr_grpo_divides_by_the_limit(batch: dict[str, Tensor], logprobs: Tensor) -> None:
    advantages, mask = REWARDS - REWARDS.mean(dim=1, keepdim=True), batch["response_mask"]
    sums = sum(a * n for a, n in zip(advantages.flatten().tolist(), LENGTHS, strict=True))
    loss = dr_grpo_loss(logprobs, logprobs.detach(), advantages, mask, 16)
    assert loss.item() == pytest.approx(-sums / (8 * 16))
    wider = [torch.nn.functional.pad(values, (0, 5)) for values in (logprobs, logprobs, mask)]
    assert dr_grpo_loss(*wider[:2], advantages, wider[2], 16).item() == pytest.approx(loss.item())


@pytest.mark.parametrize("limit", [0, 3.5, 3])
def test_a_limit_that_cannot_be_is_refused(
    batch: dict[str, Tensor], logprobs: Tensor, limit: object
) -> None:
    with pytest.raises(ValueError, match=f"max_completion_length={limit} "):
        dr_grpo_loss(logprobs, logprobs, REWARDS, batch["response_mask"], limit)


@pytest.mark.parametrize("loss_fn", [grpo_loss, dr_grpo_loss])
def test_the_clip_width_counts(loss_fn: object) -> None:
    old, mask = torch.zeros(1, 1), torch.ones(1, 1)
    new = torch.tensor([[2.0]]).log()
    limit = {"max_completion_length": 1} if loss_fn is dr_grpo_loss else {}
    losses = [
        loss_fn(new, old, torch.ones(1), mask, **limit, **clip).item()
        for clip in ({}, {"clip_eps": 0.5}, {"clip_eps": 10})
    ]
    assert losses == pytest.approx([-1.2, -1.5, -2.0])


def test_kl_penalty_averages_each_response_first() -> None:
    new = torch.tensor([[0.5, 0.5], [0.5, 0.0]]).log().requires_grad_()  # -inf at the padding
    reference = torch.tensor([[0.25, 0.5], [0.25, 0.5]]).log()
    penalty = kl_penalty_k3(new, reference, torch.tensor([[1, 1], [1, 0]]))
    k3 = math.log(2) - 0.5  # e^x - 1 - x at x = -ln 2
    assert penalty.item() == pytest.approx((k3 / 2 + k3) / 2)
    penalty.backward()
    torch.testing.assert_close(new.grad, torch.tensor([[0.125, 0.0], [0.25, 0.0]]))
