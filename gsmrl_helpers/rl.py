"""The functions of the course page on RLHF, GRPO and DPO, each a line or two on the components.

That page holds rewards as (B, G), B prompts with G responses each, and log-probabilities as
(B·G, T). Advantages may come in either shape: they are flattened, the responses to one prompt
adjacent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.losses import (
    aggregate_loss_across_microbatch,
    compute_policy_gradient_loss,
    kl_estimate,
)
from gsmrl_helpers.options import require_positive_integer


def group_advantages(rewards: Tensor, eps: float = 1e-6) -> Tensor:
    """(B, G) rewards to (B, G) advantages: each minus its row's mean, over its row's std + eps.

    The std is `torch.std`, which divides by G - 1. With the population's, which divides by G, all
    advantages are sqrt(G / (G - 1)) times as large.

    Raises:
        ValueError: rewards that are not (B, G) with G ≥ 2, or not finite.
    """
    if rewards.dim() != 2:
        raise ValueError(f"rewards must have shape (B, G): got {tuple(rewards.shape)}")
    advantages, _ = compute_group_normalized_rewards(
        rewards.flatten(), group_size=rewards.shape[1], advantage_eps=eps
    )
    return advantages.reshape(rewards.shape)


def sequence_logprobs(model: torch.nn.Module, input_ids: Tensor, labels: Tensor) -> Tensor:
    """(B·G, T): the log-probability of each label given the tokens before it."""
    return get_response_log_probs(model, input_ids, labels)["log_probs"]


def sequence_logprob(
    model: torch.nn.Module, input_ids: Tensor, labels: Tensor, mask: Tensor
) -> Tensor:
    """(B·G,): the log-probability of each whole response, the sum over its tokens."""
    logprobs = sequence_logprobs(model, input_ids, labels)
    return logprobs.masked_fill(~mask.bool(), 0.0).sum(dim=1)


def grpo_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip_eps: float = 0.2
) -> Tensor:
    """Clipped token terms, averaged over each response, then over responses (Shao et al., 2024)."""
    loss, _ = compute_policy_gradient_loss(
        advantages.flatten(), logprobs, "grpo", old_logprobs, clip_eps, mask
    )
    return aggregate_loss_across_microbatch(loss, mask, "sequence")


def dr_grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    max_completion_length: int,
    clip_eps: float = 0.2,
) -> Tensor:
    """The same terms, summed and divided by B·G·max_completion_length (Liu et al., 2025).

    `max_completion_length` is the sampler's limit, the same at every step; the width T of a
    tensor is not, as it follows the longest response. Dr. GRPO also leaves the std out of the
    advantages, which are an argument here: give rewards minus their group's mean.

    Raises:
        ValueError: a `max_completion_length` that is no positive integer, or that a response
            exceeds.
    """
    require_positive_integer("max_completion_length", max_completion_length)
    if (longest := int(mask.bool().sum(dim=1).max())) > max_completion_length:
        raise ValueError(
            f"max_completion_length={max_completion_length} is less than the {longest} tokens of "
            "the longest response: give the limit that the sampler had"
        )
    loss, _ = compute_policy_gradient_loss(
        advantages.flatten(), logprobs, "grpo", old_logprobs, clip_eps, mask
    )
    constant = len(logprobs) * max_completion_length
    return aggregate_loss_across_microbatch(loss, mask, "constant", constant)


def kl_penalty_k3(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """The k3 estimate of KL(π || π_ref) (Schulman, 2020), averaged as in `grpo_loss`."""
    padding = ~mask.bool()  # whose log-probabilities may be -inf, and inf · 0 is NaN in a gradient
    estimate = kl_estimate(logprobs.masked_fill(padding, 0.0), ref_logprobs.masked_fill(padding, 0))
    return aggregate_loss_across_microbatch(estimate, mask, "sequence")
