"""The gradient of a batch's loss, summed microbatch by microbatch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gsmrl_helpers.losses import (
    aggregate_loss_across_microbatch,
    check_importance_options,
    check_normalization_options,
    compute_policy_gradient_loss,
    kl_estimate,
)
from gsmrl_helpers.options import (
    ImportanceReweighting,
    KLEstimator,
    LossNormalization,
    require_choice,
    require_finite,
    require_number,
)
from gsmrl_helpers.response_scoring import can_share_prompts, score_responses
from gsmrl_helpers.step_metrics import TokenMeans

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Objective:
    """How log-probabilities and advantages make a loss: the options of `grpo_train_step`."""

    importance_reweighting_method: ImportanceReweighting = "none"
    cliprange: float | None = None
    loss_normalization: LossNormalization = "sequence"
    normalization_constant: float | None = None
    kl_coef: float = 0.0
    kl_estimator: KLEstimator = "k3"
    entropy_coef: float = 0.0


def check_objective(
    objective: Objective, old_log_probs: Tensor | None, ref_log_probs: Tensor | None
) -> None:
    """Refuse bad options before any model runs, so that a batch without signal does too.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    check_importance_options(
        objective.importance_reweighting_method, old_log_probs, objective.cliprange
    )
    if objective.loss_normalization != "token":  # whose constant is counted later
        check_normalization_options(objective.loss_normalization, objective.normalization_constant)
    require_choice("kl_estimator", objective.kl_estimator, KLEstimator)
    require_finite("entropy_coef", objective.entropy_coef)
    require_finite("kl_coef", objective.kl_coef)
    require_number("kl_coef", objective.kl_coef, 0)
    if objective.kl_coef and ref_log_probs is None:
        raise ValueError(f"kl_coef={objective.kl_coef!r} needs ref_log_probs, got None")


def microbatch_loss(
    model: torch.nn.Module, microbatch: Batch, objective: Objective
) -> tuple[Tensor, Batch]:
    """Aggregated loss of one microbatch, and the (b, T) token values worth averaging.

    Args:
        model: a causal language model, `model(input_ids).logits`.
        microbatch: `input_ids`, `labels`, `response_mask`, (b, T) each, and `advantages` (b,);
            `old_log_probs` and `ref_log_probs`, (b, T), where the objective uses them.
        objective: the loss.
    """
    mask = microbatch["response_mask"]
    old, ref = microbatch.get("old_log_probs"), microbatch.get("ref_log_probs")
    scored = score_responses(model, microbatch["input_ids"], microbatch["labels"], mask)
    # No gradient comes back through a masked position, whatever old or ref hold there.
    log_probs = scored["log_probs"].masked_fill(~mask, 0.0)
    token_loss, importance = compute_policy_gradient_loss(
        microbatch["advantages"],
        log_probs,
        objective.importance_reweighting_method,
        old,
        objective.cliprange,
        mask,
    )
    token_entropy = scored["token_entropy"]
    # Only logged, it would keep a second graph over the whole vocabulary alive.
    token_entropy = token_entropy if objective.entropy_coef else token_entropy.detach()
    token_values = {"token_entropy": token_entropy, **importance}
    if old is not None:
        token_values["kl_to_old"] = kl_estimate(old, log_probs, "k3")
    if ref is not None:
        token_values["kl_to_ref"] = kl_estimate(log_probs, ref, objective.kl_estimator)
        token_loss = token_loss + objective.kl_coef * token_values["kl_to_ref"]
    if objective.entropy_coef:
        token_loss = token_loss - objective.entropy_coef * token_entropy
    loss = aggregate_loss_across_microbatch(
        token_loss, mask, objective.loss_normalization, objective.normalization_constant
    )
    return loss, token_values


def accumulate_gradients(
    model: torch.nn.Module, batch: Batch, rows: Tensor, objective: Objective, microbatch_size: int
) -> tuple[Tensor, TokenMeans]:
    """Leave in `.grad` the gradient of the whole batch's loss, of which only `rows` have one.

    Every trainable parameter gets a gradient, 0 where none flowed: an optimizer skips a parameter
    without one, and momentum would then depend on what was left out.

    Args:
        model: its gradients are replaced; its mode is restored.
        batch: B rows of what `microbatch_loss` reads.
        rows: (K,) indices of the rows to put through the model, each with a response token; the
            others add 0 to the loss.
        objective: the loss; for "token" the batch's response tokens are counted here.
        microbatch_size: rows that share one graph; it is freed before the next is built.

    Returns:
        The batch's loss, a detached scalar, and the means over the response tokens of `rows`.
    """
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    if objective.loss_normalization == "token":
        num_tokens = int(batch["response_mask"].sum())
        objective = replace(objective, normalization_constant=num_tokens)
    device = next(model.parameters()).device
    total_loss, token_means = torch.zeros((), device=device), TokenMeans()
    with dropout_off(model):
        for start in range(0, len(rows), microbatch_size):
            chosen = rows[start : start + microbatch_size]
            microbatch = take_rows(batch, chosen, device)
            loss, token_values = microbatch_loss(model, microbatch, objective)
            if objective.loss_normalization == "sequence":
                # A mean over few responses, weighted by their share of all B.
                loss = loss * (len(chosen) / len(batch["labels"]))
            loss.backward()
            total_loss = total_loss + loss.detach()
            token_means.add(token_values, microbatch["response_mask"])
    return total_loss, token_means


def rows_with_gradient(batch: Batch, objective: Objective) -> Tensor:
    """(K,) indices of the rows that can move the policy; all others add exactly 0.

    A KL or entropy term has a gradient without any advantage, on every response with tokens.
    """
    moves = batch["response_mask"].any(dim=1)
    if objective.kl_coef == objective.entropy_coef == 0:
        moves = moves & (batch["advantages"] != 0)
    return moves.nonzero().flatten()


def order_rows(model: torch.nn.Module, batch: Batch, rows: Tensor) -> Tensor:
    """The same rows in the order in which microbatches leave the model least to do."""
    if can_share_prompts(model) or len(rows) == 0:
        return rows  # a prompt's rows stay together
    widths = num_columns(batch["response_mask"][rows])
    return rows[widths.argsort(descending=True, stable=True)]  # like widths: little padding


def num_columns(response_mask: Tensor) -> Tensor:
    """(b,) columns that each row of a (b, T) mask needs: up to its last response token."""
    return (response_mask * torch.arange(1, response_mask.shape[1] + 1)).amax(dim=1)


def take_rows(batch: Batch, rows: Tensor, device: torch.device) -> Batch:
    """The given rows, without the columns behind the last response token of the longest one."""
    width = int(num_columns(batch["response_mask"][rows]).max())
    return {
        name: (values[rows, :width] if values.dim() == 2 else values[rows]).to(device)
        for name, values in batch.items()
    }


@contextmanager
def dropout_off(model: torch.nn.Module) -> Iterator[None]:
    """Every module in eval mode, each back in its own mode afterwards.

    With dropout on, two passes of the same weights differ, and π_θ/π_old is not 1 before the
    first update.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            # A transformers layer checkpoints its activations only if it is itself in training
            # mode; the modules inside it, where the dropout is, need not be.
            module.training = getattr(module, "gradient_checkpointing", False)
        yield
    finally:
        for module, training in modes:
            module.training = training
