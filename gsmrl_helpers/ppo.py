"""PPO for answers: a learned value at every token, advantages from it, and KL as a token reward.

Schulman et al., 2017, "Proximal Policy Optimization Algorithms"; Schulman et al., 2016, for the
advantages; Ziegler et al., 2019, and Ouyang et al., 2022, for the KL penalty in the reward. The
clipped objective is `losses.clipped_loss`, GRPO's: what differs is where the advantage comes from.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gsmrl_helpers.losses import bounded_exp, check_shapes, clipped_loss
from gsmrl_helpers.options import require_number
from gsmrl_helpers.response_scoring import response_hidden_states, score_responses


class ValueModel(nn.Module):
    """A policy's body and a head that predicts, before each response token, the reward to come.

    The body is a copy. The head starts at 0, so that an untrained value model predicts 0.

    Args:
        policy: the model that the body is taken from, its head left out.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy).eval()
        self.body.lm_head = nn.Identity()
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, response_mask: Tensor) -> Tensor:
        """(B, T) values of the states in which the tokens under the mask are chosen, else 0.

        Args:
            input_ids: (B, T) int64, as `tokenize_prompt_and_output` returns them.
            response_mask: (B, T) bool.
        """
        hidden = response_hidden_states(self.body, input_ids, response_mask)  # (M, D)
        values = self.head(hidden.float()).squeeze(-1)
        return values.new_zeros(input_ids.shape).masked_scatter(response_mask, values)


def token_rewards(
    final_rewards: Tensor, log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor, kl_coef: float
) -> Tensor:
    """What each token of a response earns: minus β log(π/π_ref), and at the last the reward.

    Summed over a response it is r − β log(π(y)/π_ref(y)), whose mean over the policy's own answers
    is the objective of RLHF (Ouyang et al., 2022, equation 2, without its pretraining term).

    Args:
        final_rewards: (B,), one for each response.
        log_probs: (B, T) under the policy that sampled, constants.
        ref_log_probs: (B, T) under the reference.
        mask: (B, T) bool, response tokens, one stretch a row; a row without any earns nothing.
        kl_coef: β, at least 0.

    Returns:
        (B, T), 0 at masked positions, without gradient.

    Raises:
        ValueError: unequal shapes, or a negative kl_coef.
    """
    require_number("kl_coef", kl_coef, 0)
    check_shapes(log_probs, ref_log_probs=ref_log_probs, mask=mask)
    if final_rewards.shape != log_probs.shape[:1]:
        raise ValueError(
            f"final_rewards {tuple(final_rewards.shape)} must be one for each of the "
            f"{len(log_probs)} rows"
        )
    penalties = (-kl_coef * (log_probs - ref_log_probs)).masked_fill(~mask, 0.0)
    is_last = mask & (mask.flip(1).cumsum(dim=1).flip(1) == 1)
    return (penalties + is_last * final_rewards[:, None]).detach()


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimates of each token, and the returns that its value should be.

    A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V_{t+1} − V_t, V = 0 after the last token (Schulman
    et al., 2016, equation 16). λ = 1 compares what came out with the prediction; λ = 0 compares the
    prediction with the next one. γ = 1 here: an answer's reward is worth the same, long or short.

    Args:
        rewards: (B, T), of `token_rewards`.
        values: (B, T), of `ValueModel`; a constant.
        mask: (B, T) bool, response tokens, one stretch a row.
        gamma: discount of a later reward, 0 to 1.
        lam: λ, 0 to 1.

    Returns:
        advantages and returns, which are advantages + values: (B, T) each, 0 at masked positions,
        without gradient.

    Raises:
        ValueError: unequal shapes, or a number outside [0, 1].
    """
    check_shapes(rewards, values=values, mask=mask)
    for name, number in (("gamma", gamma), ("lam", lam)):
        require_number(name, number, 0)
        if number > 1:
            raise ValueError(f"{name}={number!r} must be a number from 0 to 1")
    rewards, values = (x.detach().masked_fill(~mask, 0.0) for x in (rewards, values))
    later, next_value = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards[:, 0])
    advantages = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + gamma * next_value - values[:, t]
        later = torch.where(mask[:, t], surprise + gamma * lam * later, 0.0)
        advantages[:, t], next_value = later, values[:, t]
    return advantages, advantages + values


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages with the mean 0 and the standard deviation 1 over all tokens under the mask.

    (B, T) -> (B, T), 0 elsewhere. It is done to the whole batch, where GRPO does it to a group.

    Raises:
        ValueError: no token under the mask.
    """
    if not mask.any():
        raise ValueError("the mask has no token: every response of this batch is empty")
    known = advantages[mask]
    scaled = (advantages - known.mean()) / (known.std(correction=0) + 1e-8)
    return scaled.masked_fill(~mask, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, cliprange: float
) -> Tensor:
    """Mean over tokens of half the squared error of the values, those of large steps clipped.

    max[(V − R)², (clip(V, V_old ± ε) − R)²] / 2, as in the code of Schulman et al., 2017: a value
    that has moved by more than ε since the answers were sampled gets no gradient that takes it
    farther.

    Args:
        values: (B, T) with gradient.
        old_values, returns: (B, T) constants.
        mask: (B, T) bool, at least one True.
        cliprange: ε, at least 0.

    Returns:
        A scalar with gradient.
    """
    require_number("cliprange", cliprange, 0)
    check_shapes(values, old_values=old_values, returns=returns, mask=mask)
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    errors = torch.maximum((values - returns).square(), (clipped - returns).square())
    return errors[mask].mean() / 2


class PPOBatch(NamedTuple):
    """What PPO knows of B answers before it learns from them: constants, (B, T) each."""

    input_ids: Tensor
    labels: Tensor
    response_mask: Tensor
    log_probs: Tensor  # of the policy that sampled
    values: Tensor  # of the value model at that time
    advantages: Tensor
    returns: Tensor

    def rows(self, start: int, stop: int) -> PPOBatch:
        """Some of the rows."""
        return PPOBatch(*(tensor[start:stop] for tensor in self))


def ppo_step(
    policy: nn.Module,
    value_model: ValueModel,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    batch: PPOBatch,
    cliprange: float,
    max_grad_norm: float,
) -> dict[str, float]:
    """One step of the policy on the clipped objective, and one of the value model on its error.

    Args:
        policy: a causal language model, in the mode it is to train in.
        value_model: predicts the reward to come.
        optimizers: of the policy, and of the value model.
        batch: the answers, at least one of them with a token.
        cliprange: ε of ratios and of values.
        max_grad_norm: each gradient's 2-norm is clipped to it.

    Returns:
        Before the step: `loss` (the mean over tokens, as in Ouyang et al., 2022), `value_loss`,
        `grad_norm` and `value_grad_norm` before clipping, and `clip_fraction` of tokens.
    """
    mask = batch.response_mask
    scored = score_responses(policy, batch.input_ids, batch.labels, mask)
    log_ratio = (scored["log_probs"] - batch.log_probs).masked_fill(~mask, 0.0)
    losses, is_clipped = clipped_loss(batch.advantages, bounded_exp(log_ratio), cliprange)
    loss = losses[mask].mean()
    values = value_model(batch.input_ids, mask)
    error = value_loss(values, batch.values, batch.returns, mask, cliprange)
    norms = []
    for model, objective, optimizer in zip(
        (policy, value_model), (loss, error), optimizers, strict=True
    ):
        optimizer.zero_grad()
        objective.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item())
        optimizer.step()
    return {
        "loss": loss.item(),
        "value_loss": error.item(),
        "grad_norm": norms[0],
        "value_grad_norm": norms[1],
        "clip_fraction": is_clipped[mask].float().mean().item(),
    }
