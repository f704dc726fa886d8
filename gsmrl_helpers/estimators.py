"""Estimators of one's own: functions from a group's rewards to its advantages.

Each takes some ten lines, and `@estimator` makes it known to every run: as the setting
`advantage_estimator`, and as a variant of the experiment own-estimator. Chapter 22 is its guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor

from gsmrl_helpers.advantages import checked_rewards
from gsmrl_helpers.options import AdvantageNormalizer, Baseline

if TYPE_CHECKING:
    from gsmrl_helpers.config import RunConfig

Estimator = Callable[[Tensor], Tensor]

ESTIMATORS: dict[str, Estimator] = {}
EPS = 1e-6  # as `advantage_eps`: what keeps a group of equal rewards from 0/0


def estimator(function: Estimator) -> Estimator:
    """Make an estimator known under its own name.

    Raises:
        ValueError: another one has that name.
    """
    name = function.__name__
    if name in ESTIMATORS:
        raise ValueError(f"the estimator {name!r} is there already: give yours another name")
    ESTIMATORS[name] = function
    return function


@estimator
def log_odds(rewards: Tensor) -> Tensor:
    """GRPO divided by the group's variance, not by its standard deviation.

    With rewards of 0 and 1 the variance is μ (1 − μ), and the expectation over groups is the
    gradient of log(η / (1 − η)), the log-odds that a response is right, times the chance that a
    group is mixed. `groups` (N, G) -> (N, G).
    """
    mean = rewards.mean(dim=1, keepdim=True)
    variance = rewards.var(dim=1, keepdim=True, correction=0)
    return (rewards - mean) / (variance + EPS)


def check_estimator(name: str) -> None:
    """Refuse a name that no estimator has, with a list of those that do."""
    if name not in ESTIMATORS:
        raise ValueError(
            f"advantage_estimator={name!r} is unknown; allowed: {', '.join(ESTIMATORS)}. One of "
            "your own belongs in gsmrl_helpers/estimators.py, under @estimator"
        )


def estimate_advantages(name: str, raw_rewards: Tensor, group_size: int) -> Tensor:
    """The advantages that an estimator gives to each group of rewards.

    Args:
        name: of an estimator.
        raw_rewards: (B,), the group_size responses to one prompt adjacent.
        group_size: G.

    Returns:
        (B,) without gradient, in the dtype that `compute_group_normalized_rewards` would have.

    Raises:
        ValueError: an unknown name, a B that is not a multiple of G, or an estimator that returns
            another shape or what is not finite.
    """
    check_estimator(name)
    rewards = checked_rewards(raw_rewards)
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards are no groups of group_size={group_size}")
    groups = rearrange(rewards, "(n g) -> n g", g=group_size)
    advantages = torch.as_tensor(ESTIMATORS[name](groups.clone())).detach()
    if advantages.shape != groups.shape or not advantages.isfinite().all():
        raise ValueError(
            f"the estimator {name!r} made {tuple(advantages.shape)} advantages of "
            f"{tuple(groups.shape)} rewards, {int((~advantages.isfinite()).sum())} of them not "
            "finite: it must give each reward of a group a finite advantage"
        )
    return rearrange(advantages.to(rewards.dtype), "n g -> (n g)")


def advantage_options(
    config: RunConfig, raw_rewards: Tensor
) -> tuple[Tensor, Baseline, AdvantageNormalizer]:
    """(B,) rewards, a baseline and a normalizer that make a run's advantages of its raw rewards.

    The advantages of an estimator are such rewards with neither of the two.
    """
    if config.advantage_estimator is None:
        return raw_rewards, config.baseline, config.advantage_normalizer
    advantages = estimate_advantages(config.advantage_estimator, raw_rewards, config.group_size)
    return advantages, "none", "none"
