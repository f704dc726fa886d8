"""What one training step logs. A value that was not computed is None, never 0."""

from __future__ import annotations

from collections import Counter

import torch
from einops import rearrange
from torch import Tensor

from gsmrl_helpers.rewards import pass_at_k

# A larger model is compared at a fixed, evenly spaced sample of about this many parameters.
MAX_COMPARED_PARAMETERS = 2**24

STEP_METRICS = {
    "loss": "minus the objective over the whole batch",
    "grad_norm": "2-norm of the whole gradient, before clipping",
    "no_signal": "1 if no response had both a token and a nonzero advantage, else 0",
    "no_signal_group_share": "share of groups whose advantages are all 0",
    "trained_row_share": "share of responses that went through the model",
    "token_entropy": "mean entropy in nats over the response tokens that went through the model",
    "token_entropy_token_share": "these tokens' share of all response tokens",
    "mean_ratio": "mean of π_θ/π_old over the same tokens; None without old log-probs",
    "kl_to_old": "mean k3 estimate of KL(π_old || π_θ) over the same tokens, which π_old sampled",
    "clip_fraction": "share of the same tokens whose gradient was clipped (cispo: weight capped)",
    "kl_to_ref": "mean estimate of KL(π_θ || π_ref), by kl_estimator, over the same tokens",
    "mean_reward": "mean raw reward of the batch",
    "mean_format_reward": "mean format reward; None where raw_rewards were given",
    "mean_answer_reward": "mean answer reward; None where raw_rewards were given",
    "reward_std": "torch.std of the raw rewards over the batch",
    "format_reward_std": "torch.std of the format rewards over the batch",
    "answer_reward_std": "torch.std of the answer rewards over the batch",
    "response_length": "mean tokens per response, a sampled end-of-sequence token included",
    "response_length_right": "the same over right responses, those with an answer reward of 1",
    "response_length_wrong": "the same over all other responses",
    "pass_at_k": "for k = 1 … G, as pass_at_1 …: unbiased pass@k, averaged over groups",
    "changed_parameter_share": "share of trainable parameters whose bits the step changed",
}


class TokenMeans:
    """Means over response tokens, gathered microbatch by microbatch: each token weighs the same."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.sums: Counter[str] = Counter()

    def add(self, token_values: dict[str, Tensor], mask: Tensor) -> None:
        """Add one microbatch of named (b, T) values at the True positions of the (b, T) mask."""
        self.num_tokens += int(mask.sum())
        for name, values in token_values.items():
            self.sums[name] += values.detach()[mask].double().sum().item()

    def __add__(self, other: TokenMeans) -> TokenMeans:
        """The means over the tokens of both."""
        total = TokenMeans()
        total.num_tokens = self.num_tokens + other.num_tokens
        for sums in (self.sums, other.sums):
            total.sums.update(sums)  # `Counter`'s own + would drop what is negative
        return total

    def __getitem__(self, name: str) -> float | None:
        return self.sums[name] / self.num_tokens if name in self.sums else None


def rollout_metrics(
    rewards: Tensor,
    format_rewards: Tensor | None,
    answer_rewards: Tensor | None,
    response_lengths: Tensor,
    group_size: int,
) -> dict[str, float | None]:
    """Rewards, lengths and pass@k of all B responses, those that were pruned included.

    Args:
        rewards: (B,) raw rewards.
        format_rewards: (B,), or None where nothing graded the format.
        answer_rewards: (B,), or None where nothing graded the answer.
        response_lengths: (B,) tokens of each response.
        group_size: G adjacent responses to each prompt.
    """
    right = None if answer_rewards is None else answer_rewards >= 1
    wrong = None if right is None else ~right
    every = torch.ones_like(response_lengths, dtype=torch.bool)
    return {
        "mean_reward": _mean(rewards),
        "mean_format_reward": _mean(format_rewards),
        "mean_answer_reward": _mean(answer_rewards),
        "reward_std": _std(rewards),
        "format_reward_std": _std(format_rewards),
        "answer_reward_std": _std(answer_rewards),
        "response_length": _mean(response_lengths, every),
        "response_length_right": _mean(response_lengths, right),
        "response_length_wrong": _mean(response_lengths, wrong),
        **_pass_at_every_k(right, group_size),
    }


def _mean(values: Tensor | None, where: Tensor | bool | None = True) -> float | None:
    if values is None or where is None:
        return None
    chosen = values if where is True else values[where]
    return chosen.double().mean().item() if chosen.numel() else None


def _std(values: Tensor | None) -> float | None:
    return values.double().std().item() if values is not None and values.numel() > 1 else None


def _pass_at_every_k(right: Tensor | None, group_size: int) -> dict[str, float | None]:
    ks = range(1, group_size + 1)
    if right is None or right.numel() % group_size:
        return {f"pass_at_{k}": None for k in ks}
    num_correct = rearrange(right, "(group response) -> group response", response=group_size).sum(1)
    counts = num_correct.tolist()
    return {
        f"pass_at_{k}": sum(pass_at_k(group_size, c, k) for c in counts) / len(counts) for k in ks
    }


def sample_parameters(model: torch.nn.Module) -> list[Tensor]:
    """A copy of the trainable parameters, thinned out evenly above MAX_COMPARED_PARAMETERS."""
    parameters = [p.detach() for p in model.parameters() if p.requires_grad]
    stride = 1 + sum(p.numel() for p in parameters) // MAX_COMPARED_PARAMETERS
    # An odd stride does not fall into step with the even widths of matrices.
    return [p.flatten()[:: stride | 1].clone() for p in parameters]


def changed_share(before: list[Tensor], after: list[Tensor]) -> float | None:
    """Share of elements whose bits differ; bits, since an update below bf16's spacing is lost."""
    same_size_integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    changed = total = 0
    for old, new in zip(before, after, strict=True):
        integer = same_size_integer[old.element_size()]
        changed += int((old.view(integer) != new.view(integer)).sum())
        total += old.numel()
    return changed / total if total else None
