"""The sorting toy of CS336's lecture 17: rewards, a policy, deltas, losses, and the loop.

Tensors carry a `run` axis in front, one policy for each seed, and the runs share nothing. A run
draws the lecture's random numbers in the lecture's order, but computes in float64, where rounding
decides no draw.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from einops import einsum, rearrange, reduce, repeat
from torch import Generator, Tensor, nn

from gsmrl_helpers.log_probs import entropy
from gsmrl_helpers.options import require_choice, require_number, require_positive_integer

PROMPTS = torch.tensor([[1, 0, 2], [3, 2, 4], [1, 2, 3]])

SortReward = Callable[[Sequence[int], Sequence[int]], float]
DeltasMode = Literal["rewards", "centered_rewards", "normalized_rewards", "max_rewards"]
SortLossMode = Literal["naive", "unclipped", "clipped"]


def sort_distance_reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """One point for each position that holds what the sorted prompt has there."""
    return float(sum(x == y for x, y in zip(sorted(prompt), response, strict=True)))


def sort_inclusion_ordering_reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """A point for each number of the prompt that occurs, and for each neighbours in order."""
    inclusion = sum(x in response for x in prompt)
    ordering = sum(x <= y for x, y in pairwise(response))
    return float(inclusion + ordering)


class SortingPolicy(nn.Module):
    """A policy for each run: prompts in, for every position of the response logits of its own.

    Positions share a vector of the whole prompt and are decoded apart from one another: given the
    prompt, what stands in one says nothing of the next.

    Args:
        generators: one for each run; the weights are the first that it draws.
        vocab_size: tokens.
        embedding_dim: width of every vector.
        length: of a prompt, and of a response.
    """

    def __init__(
        self,
        generators: Sequence[Generator],
        vocab_size: int = 5,
        embedding_dim: int = 10,
        length: int = 3,
    ) -> None:
        super().__init__()

        def randn(*shape: int) -> Tensor:
            return torch.stack([torch.randn(shape, generator=g) for g in generators]).double()

        matrices = (length, embedding_dim, embedding_dim)
        scale = math.sqrt(embedding_dim)
        self.embedding = nn.Parameter(randn(vocab_size, embedding_dim))
        self.encode_weights = nn.Parameter(randn(*matrices) / scale)
        self.decode_weights = nn.Parameter(randn(*matrices) / scale)

    def forward(self, prompts: Tensor) -> Tensor:
        """Logits (run, batch, pos, vocab) for prompts (batch, pos), int64."""
        embedded = self.embedding[:, prompts]
        encode = "run batch pos dim1, run pos dim1 dim2 -> run batch dim2"
        encoded = einsum(embedded, self.encode_weights, encode)
        decode = "run batch dim2, run pos dim2 dim1 -> run batch pos dim1"
        decoded = einsum(encoded, self.decode_weights, decode)
        score = "run batch pos dim1, run vocab dim1 -> run batch pos vocab"
        return einsum(decoded, self.embedding, score)


def generate_responses(
    logits: Tensor, num_responses: int, generators: Sequence[Generator]
) -> Tensor:
    """Draw responses (run, batch, trial, pos), int64, from logits (run, batch, pos, vocab)."""
    probs = rearrange(logits.softmax(dim=-1), "run batch pos vocab -> run (batch pos) vocab")
    draws = [
        torch.multinomial(run_probs, num_responses, replacement=True, generator=generator)
        for run_probs, generator in zip(probs, generators, strict=True)
    ]
    return rearrange(draws, "run (batch pos) trial -> run batch trial pos", pos=logits.shape[2])


def compute_reward(prompts: Tensor, responses: Tensor, reward_fn: SortReward) -> Tensor:
    """Rewards (run, batch, trial), float64, of responses (run, batch, trial, pos)."""
    num_runs, _, num_trials, _ = responses.shape
    sizes = {"run": num_runs, "trial": num_trials}
    asked = repeat(prompts, "batch pos -> (run batch trial) pos", **sizes)
    answered = rearrange(responses, "run batch trial pos -> (run batch trial) pos")
    pairs = zip(asked.tolist(), answered.tolist(), strict=True)
    rewards = torch.tensor([reward_fn(*pair) for pair in pairs], dtype=torch.float64)
    return rearrange(rewards, "(run batch trial) -> run batch trial", **sizes)


def compute_deltas(rewards: Tensor, mode: DeltasMode) -> Tensor:
    """The weight of each response, (..., trial), from the rewards of its group, (..., trial).

    - "rewards": the reward itself.
    - "centered_rewards": minus the group's mean.
    - "normalized_rewards": then over its `torch.std` + 1e-5.
    - "max_rewards": the reward where it is the group's largest, else 0.

    Raises:
        ValueError: an unknown mode.
    """
    require_choice("mode", mode, DeltasMode)
    if mode == "rewards":
        return rewards
    if mode == "max_rewards":
        return rewards * (rewards == rewards.amax(dim=-1, keepdim=True))
    centered = rewards - rewards.mean(dim=-1, keepdim=True)
    if mode == "centered_rewards":
        return centered
    return centered / (rewards.std(dim=-1, keepdim=True) + 1e-5)


def compute_log_probs(logits: Tensor, responses: Tensor) -> Tensor:
    """Log-probabilities (run, batch, trial, pos) of the tokens of responses of that shape.

    Args:
        logits: (run, batch, pos, vocab).
        responses: (run, batch, trial, pos), int64.
    """
    tokens = rearrange(responses, "run batch trial pos -> run batch pos trial")
    log_probs = logits.log_softmax(dim=-1).gather(-1, tokens)
    return rearrange(log_probs, "run batch pos trial -> run batch trial pos")


def compute_loss(
    log_probs: Tensor,
    deltas: Tensor,
    mode: SortLossMode,
    old_log_probs: Tensor | None = None,
    epsilon: float = 0.01,
) -> Tensor:
    """Minus the mean over prompts, responses and positions of what is to grow; one loss a run.

    - "naive": δ log π.
    - "unclipped": δ r, with the ratio r = π / π_old.
    - "clipped": min(δ r, δ clip(r, 1 - ε, 1 + ε)).

    Args:
        log_probs: (..., batch, trial, pos), with gradient.
        deltas: δ, (..., batch, trial).
        mode: one of the three above.
        old_log_probs: of the shape of log_probs, a constant; needed by all but "naive".
        epsilon: ε ≥ 0.

    Returns:
        (...), with gradient.

    Raises:
        ValueError: an unknown mode, a negative ε, or old log-probabilities missing.
    """
    require_choice("mode", mode, SortLossMode)
    require_number("epsilon", epsilon, 0)
    deltas = rearrange(deltas, "... trial -> ... trial 1")
    if mode == "naive":
        objective = deltas * log_probs
    elif old_log_probs is None:
        raise ValueError(f"mode={mode!r} needs old_log_probs, got None")
    else:
        ratio = (log_probs - old_log_probs).exp()
        objective = deltas * ratio
        if mode == "clipped":
            clipped = deltas * ratio.clamp(1 - epsilon, 1 + epsilon)
            objective = torch.minimum(objective, clipped)
    return -reduce(objective, "... batch trial pos -> ...", "mean")


def compute_kl_penalty(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The k3 estimate of KL(π || π_ref) (Schulman, 2020), summed over a response's positions.

    Args:
        log_probs: (..., batch, trial, pos) of tokens sampled from π, with gradient.
        ref_log_probs: the same tokens under π_ref, a constant.

    Returns:
        (...), the mean over prompts and responses: an estimate for whole responses, not for tokens.
    """
    x = ref_log_probs - log_probs
    k3 = x.exp() - x - 1
    return reduce(k3.sum(dim=-1), "... batch trial -> ...", "mean")


def expected_reward(prompts: Tensor, probs: Tensor, reward_fn: SortReward) -> Tensor:
    """The exact E[R] of each prompt, (..., batch), by enumerating all vocab^pos responses.

    Args:
        prompts: (batch, pos), int64.
        probs: (..., batch, pos, vocab), the probability of each token at each position.
        reward_fn: the reward of a prompt and a response.
    """
    length, vocab_size = probs.shape[-2:]
    responses = torch.cartesian_prod(*[torch.arange(vocab_size)] * length)
    asked = repeat(responses, "trial pos -> 1 batch trial pos", batch=len(prompts))
    rewards = compute_reward(prompts, asked, reward_fn)[0]
    response_probs = probs[..., torch.arange(length), responses].prod(dim=-1)
    return (response_probs * rewards).sum(dim=-1)


@dataclass(frozen=True)
class SortingHistory:
    """What happened in each run, epoch by epoch.

    Attributes:
        probs: (epoch + 1, run, batch, pos, vocab), before each epoch and after the last.
        responses: (epoch, run, batch, trial, pos), as sampled.
        rewards: (epoch, run, batch, trial), of these.
    """

    probs: Tensor
    responses: Tensor
    rewards: Tensor


def run_policy_gradient(
    seeds: Sequence[int],
    *,
    num_epochs: int = 100,
    num_steps_per_epoch: int = 10,
    num_responses: int = 10,
    deltas_mode: DeltasMode = "rewards",
    loss_mode: SortLossMode = "naive",
    reward_fn: SortReward = sort_inclusion_ordering_reward,
    temperature: float = 1.0,
    entropy_bonus: float = 0.0,
    kl_penalty: float = 0.0,
    compute_ref_model_period: int = 10,
) -> SortingHistory:
    """Train a policy for each seed on `PROMPTS`, all at once: the lecture's loop and settings.

    Args:
        seeds: one for each run.
        num_epochs: batches of responses.
        num_steps_per_epoch: optimizer steps on each batch.
        num_responses: to each prompt.
        deltas_mode: see `compute_deltas`.
        loss_mode: see `compute_loss`.
        reward_fn: what is paid.
        temperature: of sampling alone; log-probabilities are those of the policy itself.
        entropy_bonus: what the mean entropy of a position, in nats, is worth.
        kl_penalty: what `compute_kl_penalty` costs.
        compute_ref_model_period: epochs after which the policy itself becomes the reference.

    Raises:
        ValueError: an unknown mode, a temperature that is not positive, a count below 1.
    """
    require_number("temperature", temperature, 0, above=True)
    require_positive_integer("num_epochs", num_epochs)
    generators = [Generator().manual_seed(seed) for seed in seeds]
    model = SortingPolicy(generators)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = []
    for epoch in range(num_epochs):
        if epoch % compute_ref_model_period == 0:
            ref_model = copy.deepcopy(model)
        with torch.no_grad():  # constants while the policy moves
            logits = model(PROMPTS)
            responses = generate_responses(logits / temperature, num_responses, generators)
            old_log_probs = compute_log_probs(logits, responses)
            ref_log_probs = compute_log_probs(ref_model(PROMPTS), responses)
        rewards = compute_reward(PROMPTS, responses, reward_fn)
        deltas = compute_deltas(rewards, deltas_mode)
        history.append((logits.softmax(dim=-1), responses, rewards))
        for _ in range(num_steps_per_epoch):
            logits = model(PROMPTS)
            log_probs = compute_log_probs(logits, responses)
            loss = compute_loss(log_probs, deltas, loss_mode, old_log_probs)
            if kl_penalty:
                loss = loss + kl_penalty * compute_kl_penalty(log_probs, ref_log_probs)
            if entropy_bonus:
                loss = loss - entropy_bonus * entropy(logits).mean(dim=(1, 2))
            optimizer.zero_grad()
            loss.sum().backward()  # runs share no weight, so their gradients don't mix
            optimizer.step()
    probs, all_responses, all_rewards = zip(*history, strict=True)
    last_probs = model(PROMPTS).detach().softmax(dim=-1)
    return SortingHistory(
        torch.stack([*probs, last_probs]), torch.stack(all_responses), torch.stack(all_rewards)
    )
