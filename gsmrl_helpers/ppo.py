"""PPO for answers: a learned value at every token, advantages from it, and KL as a token reward.

Schulman et al., 2017, "Proximal Policy Optimization Algorithms"; Schulman et al., 2016, for the
advantages; Ziegler et al., 2019, and Ouyang et al., 2022, for the KL penalty in the reward. The
clipped objective is `losses.clipped_loss`, GRPO's: what differs is where the advantage comes from.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gsmrl_helpers.losses import check_shapes
from gsmrl_helpers.options import require_number
from gsmrl_helpers.response_scoring import response_hidden_states


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
    """
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
