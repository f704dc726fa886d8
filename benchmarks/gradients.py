"""The gradient of a loss on given rollouts, written out plainly: what others must equal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.worlds import ROWS_AT_ONCE, World
from gsmrl_helpers import olmo2_block, olmo2_tree
from gsmrl_helpers.accumulation import Batch, dropout_off, take_rows
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.log_probs import get_response_log_probs, label_log_probs
from gsmrl_helpers.response_scoring import score_responses
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.tokenization import tokenize_prompt_and_output

Scorer = Callable[[PreTrainedModel, Batch], Tensor]  # (b, T) log-probabilities


def batch_of(world: World, rollouts: Rollouts) -> Batch:
    """The rollouts' tokens, and `weights` (B,): minus the gradient by any log-probability of a row.

    The loss is that of the world's settings: a mean over responses, or a sum over a constant.
    """
    config = world.trainer.config
    advantages, _ = compute_group_normalized_rewards(
        rollouts.rewards.double(),
        rollouts.group_size,
        config.baseline,
        config.advantage_eps,
        config.advantage_normalizer,
    )
    batch = tokenize_prompt_and_output(
        rollouts.prompts,
        [completion.text for completion in rollouts.completions],
        world.trainer.tokenizer,
        output_token_ids=[completion.token_ids for completion in rollouts.completions],
    )
    per_response = batch["response_mask"].sum(dim=1) * len(advantages)
    divisors = config.normalization_constant or per_response
    return {**batch, "weights": (advantages / divisors).to(world.trainer.model.dtype)}


def rows_with_signal(batch: Batch) -> Tensor:
    """(K,) indices of the rows that move the policy."""
    return batch["weights"].nonzero().flatten()


def all_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """As the chapter has it first."""
    ids, labels = batch["input_ids"], batch["labels"]
    return get_response_log_probs(model, ids, labels, return_token_entropy=True)["log_probs"]


def response_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The head at the positions of the responses only."""
    mask = batch["response_mask"]
    hidden = model.model(batch["input_ids"]).last_hidden_state[mask]
    scored = label_log_probs(model.lm_head(hidden), batch["labels"][mask], True)["log_probs"]
    return scored.new_zeros(mask.shape).masked_scatter(mask, scored)


def shared_prompts(model: PreTrainedModel, batch: Batch) -> Tensor:
    """As a step of ours does it."""
    ids, labels, mask = batch["input_ids"], batch["labels"], batch["response_mask"]
    return score_responses(model, ids, labels, mask)["log_probs"]


def shared_prompts_plain_norms(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The same with Hugging Face's norms."""
    with ExitStack() as stack:
        for module in (olmo2_block, olmo2_tree):
            stack.enter_context(patch.object(module, "rms_norm", lambda norm, x: norm(x)))
        return shared_prompts(model, batch)


def accumulate(
    model: PreTrainedModel, batch: Batch, rows: Tensor, score: Scorer, rows_at_once: int
) -> None:
    """Leave the gradient of the loss in `.grad`, of which only `rows` have one."""
    model.zero_grad()
    device = next(model.parameters()).device
    with dropout_off(model):
        for chosen in rows.split(rows_at_once):
            part = take_rows(batch, chosen, device)
            log_probs = score(model, part).masked_fill(~part["response_mask"], 0.0)
            (-(part["weights"] * log_probs.sum(dim=1)).sum()).backward()


def plain_gradient(world: World, rollouts: Rollouts) -> list[Tensor]:
    """By parameter, clipped to the norm that the world's settings allow."""
    model, batch = world.trainer.model, batch_of(world, rollouts)
    accumulate(model, batch, torch.arange(len(batch["labels"])), all_logits, ROWS_AT_ONCE)
    torch.nn.utils.clip_grad_norm_(model.parameters(), world.trainer.config.max_grad_norm)
    gradient = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return gradient
