"""Rewards of a batch of rollouts, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gsmrl_helpers.grading import RewardFn

REWARD_KEYS = ("reward", "format_reward", "answer_reward")


def compute_rollout_rewards(
    reward_fn: RewardFn,
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
) -> tuple[Tensor, dict[str, float | Tensor]]:
    """Grade every response against the ground truth of its problem.

    Args:
        reward_fn: `reward_fn(response, ground_truth)` returns a dict with the finite numbers
            `reward`, `format_reward` and `answer_reward`.
        rollout_responses: B responses.
        repeated_ground_truths: B ground truths, each repeated once for every response to it.

    Returns:
        raw_rewards: (B,) float32, the `reward` of each response.
        metadata: floats `mean_reward`, `mean_format_reward`, `mean_answer_reward`, and the parts
            by response, `format_rewards` and `answer_rewards`, both (B,) float32.

    Raises:
        ValueError: no responses; unequal lengths; a reward that is missing or not finite.
    """
    num_responses, num_truths = len(rollout_responses), len(repeated_ground_truths)
    if num_responses != num_truths or num_responses == 0:
        raise ValueError(
            "responses and ground truths must be equally many, and at least one: "
            f"got {num_responses} responses and {num_truths} ground truths"
        )
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    scores = [checked_scores(reward_fn(response, truth)) for response, truth in pairs]
    rewards, format_rewards, answer_rewards = torch.tensor(scores, dtype=torch.float32).unbind(1)
    return rewards, {
        "mean_reward": rewards.mean().item(),
        "mean_format_reward": format_rewards.mean().item(),
        "mean_answer_reward": answer_rewards.mean().item(),
        "format_rewards": format_rewards,
        "answer_rewards": answer_rewards,
    }


def checked_scores(scores: Mapping[str, float]) -> list[float]:
    """The three numbers of one graded response, in the order of `REWARD_KEYS`.

    Raises:
        ValueError: a number that is missing or not finite.
    """
    missing = [key for key in REWARD_KEYS if key not in scores]
    if missing:
        raise ValueError(f"reward_fn returned {scores!r}, without {', '.join(missing)}")
    values = [float(scores[key]) for key in REWARD_KEYS]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"reward_fn returned {scores!r}: every reward must be finite")
    return values


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k samples of a problem is right.

    1 - C(n - c, k) / C(n, k): the share of all k-subsets of the n samples with a right one among
    them (Chen et al., 2021, "Evaluating Large Language Models Trained on Code", equation 1).

    Args:
        num_samples: n samples drawn of the problem.
        num_correct: c of them right, 0 ≤ c ≤ n.
        k: size of the subset, 1 ≤ k ≤ n.

    Raises:
        ValueError: k or `num_correct` out of its range.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"k={k} must lie between 1 and num_samples={num_samples}")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct={num_correct} must lie between 0 and {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)
