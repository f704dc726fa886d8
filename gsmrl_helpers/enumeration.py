"""What an estimator expects, exactly: every group that a policy over a few answers can draw."""

from __future__ import annotations

import torch
from torch import Tensor

from gsmrl_helpers.estimators import Estimator

MAX_GROUPS = 10**6
TOLERANCE = 1e-6


def group_estimates(
    estimator: Estimator, probs: Tensor, rewards: Tensor, group_size: int
) -> tuple[Tensor, Tensor]:
    """The gradient estimate that each possible group gives, and how likely the group is.

    The policy is a softmax over V answers and its parameters are their logits, so that the score
    of answer v, ∇ log π(v), is one-hot(v) − probs.

    Args:
        estimator: (N, G) rewards -> (N, G) advantages.
        probs: (V,), π.
        rewards: (V,), of each answer.
        group_size: G.

    Returns:
        chances: (V^G,), of the groups in the order of their draws.
        estimates: (V^G, V), (1/G) Σ_j A_j ∇ log π(y_j).

    Raises:
        ValueError: probs and rewards that are not (V,) each, probs that do not sum to 1, a
            group_size below 1, or more than a million groups.
    """
    if probs.dim() != 1 or probs.shape != rewards.shape:
        raise ValueError(
            f"probs {tuple(probs.shape)} and rewards {tuple(rewards.shape)} must be (V,), one "
            "number for each answer"
        )
    if (probs < 0).any() or abs(probs.sum() - 1) > TOLERANCE:
        raise ValueError(f"probs={probs.tolist()} must be at least 0 and sum to 1")
    if group_size < 1 or len(probs) ** group_size > MAX_GROUPS:
        raise ValueError(
            f"group_size={group_size} with {len(probs)} answers makes "
            f"{len(probs)}^{group_size} groups: give at least 1, and at most {MAX_GROUPS} groups"
        )
    draws = torch.cartesian_prod(*[torch.arange(len(probs))] * group_size)
    draws = draws.reshape(-1, group_size)  # of single draws it makes a vector
    scores = torch.eye(len(probs), dtype=probs.dtype)[draws] - probs
    advantages = estimator(rewards[draws])
    return probs[draws].prod(dim=1), (advantages[..., None] * scores).mean(dim=1)


def moments(chances: Tensor, estimates: Tensor) -> tuple[Tensor, float]:
    """The mean of the estimates, (V,), and their variance, summed over the V parameters."""
    mean = chances @ estimates
    return mean, (chances @ (estimates - mean).square().sum(dim=1)).item()
