"""One GRPO step: from a batch of graded rollouts to one step of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.accumulation import (
    Batch,
    Objective,
    accumulate_gradients,
    check_objective,
    order_rows,
    rows_with_gradient,
)
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.options import (
    AdvantageNormalizer,
    Baseline,
    ImportanceReweighting,
    KLEstimator,
    LossNormalization,
    require_number,
    require_positive_integer,
)
from gsmrl_helpers.rewards import RewardFn, compute_rollout_rewards
from gsmrl_helpers.step_metrics import (
    TokenMeans,
    changed_share,
    rollout_metrics,
    sample_parameters,
)
from gsmrl_helpers.tokenization import tokenize_prompt_and_output

AccumulateFn = Callable[[torch.nn.Module, Batch, Tensor, Objective, int], tuple[Tensor, TokenMeans]]


def grpo_train_step(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    gradient_accumulation_steps: int,
    max_grad_norm: float | None,
    reward_fn: RewardFn | None,
    repeated_prompts: Sequence[str],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: AdvantageNormalizer = "std",
    importance_reweighting_method: ImportanceReweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
    *,
    rollout_token_ids: Sequence[Sequence[int]] | None = None,
    raw_rewards: Tensor | Sequence[float] | None = None,
    kl_coef: float = 0.0,
    ref_log_probs: Tensor | None = None,
    kl_estimator: KLEstimator = "k3",
    entropy_coef: float = 0.0,
    accumulate: AccumulateFn = accumulate_gradients,
) -> tuple[Tensor, dict[str, float | None]]:
    """Take one optimizer step on B = prompts · G rollouts, the G responses to a prompt adjacent.

    The loss at each response token is the policy-gradient loss, plus kl_coef · KL(π_θ || π_ref),
    minus entropy_coef · entropy; `aggregate_loss_across_microbatch` says how tokens are averaged.
    Neither the number of microbatches nor the pruning of responses changes the gradient. The
    model runs without dropout, so that on fresh rollouts π_θ/π_old is 1; its mode is restored.
    Every trainable parameter gets a gradient, 0 where nothing flowed, so that a step without any
    signal moves momentum as it would have done unpruned.

    Args:
        model: a causal language model, `model(input_ids).logits`.
        tokenizer: encodes prompts and responses, apart.
        optimizer: over the model's parameters; its gradients are None afterwards.
        gradient_accumulation_steps: microbatches hold ceil(B / this) responses, so that there are
            at most so many, and fewer where responses are pruned.
        max_grad_norm: the gradient's norm is clipped to it; None only measures.
        reward_fn: see `compute_rollout_rewards`; not called where `raw_rewards` is given.
        repeated_prompts: B prompts, each repeated G times.
        rollout_responses: B responses.
        repeated_ground_truths: B ground truths, each repeated G times.
        group_size: G.
        baseline, advantage_eps, advantage_normalizer: see `compute_group_normalized_rewards`.
        importance_reweighting_method, cliprange: see `compute_policy_gradient_loss`.
        old_log_probs: (B, ≥ T), aligned with the labels that `tokenize_prompt_and_output` gives
            for these rollouts, (B, T). Columns beyond T hold no response token and are dropped.
        loss_normalization: see `aggregate_loss_across_microbatch`.
        normalization_constant: needed by "constant" alone: for "token" the step counts the
            response tokens of all B rows, pruned ones included.
        rollout_token_ids: B lists of ids, trained on as they were sampled; the strings are then
            only graded.
        raw_rewards: (B,) rewards that were computed elsewhere.
        kl_coef: weight of the KL penalty, at least 0; needs `ref_log_probs`.
        ref_log_probs: (B, ≥ T) under the reference model, like `old_log_probs`.
        kl_estimator: see `kl_estimate`.
        entropy_coef: weight of the entropy bonus.
        accumulate: what leaves the gradient in `.grad`; `accumulate_on_cores` does it on two.

    Returns:
        loss: scalar, detached: minus the objective over the whole batch.
        metadata: the floats (or None) that `step_metrics.STEP_METRICS` defines. Truncation is not
            among them: only the sampler knows why a response ended.

    Raises:
        ValueError: an unknown option, a missing argument, lengths or shapes that do not fit.
        FloatingPointError: the gradient is not finite; the parameters are as they were.
    """
    objective = Objective(
        importance_reweighting_method,
        cliprange,
        loss_normalization,
        normalization_constant,
        kl_coef,
        kl_estimator,
        entropy_coef,
    )
    check_step_options(gradient_accumulation_steps, max_grad_norm)
    check_objective(objective, old_log_probs, ref_log_probs)
    check_groups(repeated_prompts, repeated_ground_truths, group_size)

    # Rewards, and advantages within each group.
    rewards, format_rewards, answer_rewards = score_rollouts(
        reward_fn, rollout_responses, repeated_ground_truths, raw_rewards
    )
    advantages, group_metadata = compute_group_normalized_rewards(
        rewards, group_size, baseline, advantage_eps, advantage_normalizer
    )

    # Tokens, and what of the loss does not depend on the policy.
    batch = tokenize_prompt_and_output(
        repeated_prompts, rollout_responses, tokenizer, output_token_ids=rollout_token_ids
    )
    batch |= constants_of_loss(batch["response_mask"], advantages, old_log_probs, ref_log_probs)

    # New log-probabilities, loss and gradient, microbatch by microbatch; then clip and step.
    rows = order_rows(model, batch, rows_with_gradient(batch, objective))
    microbatch_size = math.ceil(len(advantages) / gradient_accumulation_steps)
    parameters_before = sample_parameters(model)
    try:
        loss, token_means = accumulate(model, batch, rows, objective, microbatch_size)
        grad_norm = clip_gradients(model, max_grad_norm)
        optimizer.step()
    finally:
        model.zero_grad(set_to_none=True)

    lengths = batch["response_mask"].sum(dim=1)
    return loss, {
        "loss": loss.item(),
        "grad_norm": grad_norm,
        **group_metadata,
        **training_metrics(batch, rows, token_means),
        **rollout_metrics(rewards, format_rewards, answer_rewards, lengths, group_size),
        "changed_parameter_share": changed_share(parameters_before, sample_parameters(model)),
    }


def check_step_options(gradient_accumulation_steps: int, max_grad_norm: float | None) -> None:
    """Refuse a number of microbatches or a gradient norm that is not positive."""
    require_positive_integer("gradient_accumulation_steps", gradient_accumulation_steps)
    if max_grad_norm is not None:
        require_number("max_grad_norm", max_grad_norm, 0, above=True)


def check_groups(
    repeated_prompts: Sequence[str], repeated_ground_truths: Sequence[str], group_size: int
) -> None:
    """Refuse rows in another order: advantages would compare answers to different questions."""
    for name, rows in (
        ("repeated_prompts", repeated_prompts),
        ("repeated_ground_truths", repeated_ground_truths),
    ):
        if isinstance(rows, str):
            raise ValueError(f"{name} is one string, {rows[:40]!r}: give a list of strings")
        if len(rows) % group_size:
            continue  # only allowed where no group statistic is used
        for row, text in enumerate(rows):
            if text != rows[row - row % group_size]:
                raise ValueError(
                    f"{name}[{row}]={text[:40]!r} differs from the first of its group: the "
                    f"group_size={group_size} rows of a prompt must stand side by side"
                )


def score_rollouts(
    reward_fn: RewardFn | None,
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    raw_rewards: Tensor | Sequence[float] | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Total, format and answer rewards, (B,) each; of `raw_rewards` only the total is known."""
    if raw_rewards is not None:
        return torch.as_tensor(raw_rewards).detach().cpu(), None, None
    if reward_fn is None:
        raise ValueError("reward_fn=None needs raw_rewards, got None: give one of the two")
    rewards, metadata = compute_rollout_rewards(
        reward_fn, rollout_responses, repeated_ground_truths
    )
    return rewards, metadata["format_rewards"], metadata["answer_rewards"]


def constants_of_loss(
    response_mask: Tensor,
    advantages: Tensor,
    old_log_probs: Tensor | None,
    ref_log_probs: Tensor | None,
) -> Batch:
    """What the loss needs beside the tokens: (B,) advantages and (B, T) given log-probabilities.

    Raises:
        ValueError: not one advantage per row, or log-probabilities that do not cover the labels.
    """
    batch_size, width = response_mask.shape
    if len(advantages) != batch_size:
        raise ValueError(f"got {len(advantages)} rewards for {batch_size} prompts and responses")
    constants = {"advantages": advantages}
    for name, given in (("old_log_probs", old_log_probs), ("ref_log_probs", ref_log_probs)):
        if given is None:
            continue
        if given.dim() != 2 or given.shape[0] != batch_size or given.shape[1] < width:
            raise ValueError(
                f"{name} must have shape ({batch_size}, T), T ≥ {width}, aligned with the labels "
                f"of these rollouts: got {tuple(given.shape)}"
            )
        # Rows are right-padded, so what a wider batch has beyond this one's width is padding.
        constants[name] = given.detach()[:, :width]
    return constants


def training_metrics(
    batch: Batch, rows: Tensor, token_means: TokenMeans
) -> dict[str, float | None]:
    """What went through the model, and the means over its tokens; keys as in `STEP_METRICS`."""
    mask = batch["response_mask"]
    has_signal = mask.any(dim=1) & (batch["advantages"] != 0)
    num_tokens = int(mask.sum())
    return {
        "no_signal": float(not has_signal.any()),
        "trained_row_share": len(rows) / len(mask),
        "token_entropy": token_means["token_entropy"],
        "token_entropy_token_share": token_means.num_tokens / num_tokens if num_tokens else None,
        "mean_ratio": token_means["ratio"],
        "kl_to_old": token_means["kl_to_old"],
        "clip_fraction": token_means["is_clipped"],
        "kl_to_ref": token_means["kl_to_ref"],
    }


def clip_gradients(model: torch.nn.Module, max_grad_norm: float | None) -> float:
    """Clip the gradient's norm to `max_grad_norm`, and return what it was before.

    Raises:
        FloatingPointError: the norm is not finite.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    grad_norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    if not grad_norm.isfinite():
        raise FloatingPointError(
            f"the gradient norm is {grad_norm.item()}, so no step was taken: look for non-finite "
            "log-probabilities at response tokens, or lower the learning rate"
        )
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, grad_norm)
    return grad_norm.item()
