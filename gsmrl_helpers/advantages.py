"""From raw rewards to advantages: a baseline and a normalizer within each group."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from gsmrl_helpers.options import (
    AdvantageNormalizer,
    Baseline,
    require_choice,
    require_number,
    require_positive_integer,
)


def compute_group_normalized_rewards(
    raw_rewards: Tensor,
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: AdvantageNormalizer = "std",
) -> tuple[Tensor, dict[str, float | None]]:
    """Advantages (reward - baseline) / (normalizer + eps), both taken from the response's group.

    GRPO is mean/std (Shao et al., 2024, DeepSeekMath), Dr. GRPO mean/none (Liu et al., 2025),
    RFT none/none, MaxRL mean/mean (Tajwar et al., 2026). none/mean is allowed too: with rewards
    of 0 and 1 it averages the gradients of each group's right responses.

    Args:
        raw_rewards: (B,) rewards of any dtype, the group_size responses to one prompt adjacent.
        group_size: G responses to each prompt.
        baseline: "mean" subtracts the group's mean reward, "none" nothing.
        advantage_eps: added to the divisor.
        advantage_normalizer: "std" divides by the group's `torch.std` (with G - 1), "mean" by
            its mean reward, "none" by nothing.

    Returns:
        advantages: (B,) without gradient; float64 from float64 rewards, else float32. With a mean
            baseline a group of equal rewards gets exactly 0.
        metadata: `no_signal_group_share`, the share of groups whose advantages are all 0 (None
            if B is not a multiple of G, which only none/none accepts).

    Raises:
        ValueError: an unknown option; baseline "none" with normalizer "std"; rewards that are not
            (B,) and finite, or negative with normalizer "mean"; and where a group statistic is
            used, G = 1 or a B that is not a multiple of G.
    """
    rewards = checked_rewards(raw_rewards)
    check_advantage_options(rewards, group_size, baseline, advantage_eps, advantage_normalizer)
    if rewards.numel() % group_size:  # allowed for none/none only, which compares nothing
        return rewards, {"no_signal_group_share": None}

    groups = rearrange(rewards, "(group response) -> group response", response=group_size)
    advantages = groups
    if baseline == "mean":
        advantages = advantages - groups.mean(dim=1, keepdim=True)
    if advantage_normalizer == "std":
        advantages = advantages / (groups.std(dim=1, keepdim=True) + advantage_eps)
    elif advantage_normalizer == "mean":
        advantages = advantages / (groups.mean(dim=1, keepdim=True) + advantage_eps)

    no_signal = groups_without_signal(groups, baseline)
    advantages = advantages.masked_fill(no_signal, 0.0)
    advantages = rearrange(advantages, "group response -> (group response)")
    return advantages, {"no_signal_group_share": no_signal.float().mean().item()}


def groups_without_signal(groups: Tensor, baseline: Baseline) -> Tensor:
    """Which groups get advantages of 0: equal rewards or, without a baseline, none but 0.

    Rewards are compared, not advantages: three rewards of 0.1 have a float64 mean a little off
    0.1, and such dust is not 0.

    Args:
        groups: (N, G) rewards, one group a row.
        baseline: "mean" or "none".

    Returns:
        (N, 1) bool.
    """
    level = groups[:, :1] if baseline == "mean" else 0.0
    return (groups == level).all(dim=1, keepdim=True)


def checked_rewards(raw_rewards: Tensor) -> Tensor:
    """Rewards as (B,) floats of at least float32, detached: no gradient flows through a reward.

    Raises:
        ValueError: rewards that are not (B,) with B ≥ 1, or not finite.
    """
    rewards = torch.as_tensor(raw_rewards).detach()
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    if rewards.dim() != 1 or rewards.numel() == 0:
        raise ValueError(f"raw_rewards must have shape (B,), B ≥ 1: got {tuple(rewards.shape)}")
    if not rewards.isfinite().all():
        raise ValueError(f"raw_rewards must be finite: got {rewards.tolist()}")
    return rewards


def check_advantage_options(
    rewards: Tensor,
    group_size: int,
    baseline: str,
    advantage_eps: float,
    advantage_normalizer: str,
) -> None:
    """Refuse options of `compute_group_normalized_rewards` that do not go together.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    require_choice("baseline", baseline, Baseline)
    require_choice("advantage_normalizer", advantage_normalizer, AdvantageNormalizer)
    require_positive_integer("group_size", group_size)
    require_number("advantage_eps", advantage_eps, 0)
    if baseline == "none" and advantage_normalizer == "std":
        raise ValueError(
            "advantage_normalizer='std' needs baseline='mean': without a baseline, a group whose "
            "rewards are all equal has std 0 and its rewards would be divided by advantage_eps "
            "alone; use advantage_normalizer='none' or 'mean' with baseline='none'"
        )
    if advantage_normalizer == "mean" and (rewards < 0).any():
        raise ValueError(
            "advantage_normalizer='mean' needs rewards of at least 0, a negative mean would turn "
            f"the advantages around: the smallest reward is {rewards.min().item()}"
        )
    uses_group_statistic = baseline != "none" or advantage_normalizer != "none"
    if uses_group_statistic and (group_size == 1 or rewards.numel() % group_size):
        raise ValueError(
            f"baseline={baseline!r} with advantage_normalizer={advantage_normalizer!r} compares "
            "the responses of a group: group_size must be at least 2 and divide the number of "
            f"rewards, got group_size={group_size} and {rewards.numel()} rewards"
        )
