"""Checks of the training loop before its first step. Each catches one fault that raises no error.

On the first step the policy that is trained is the policy that sampled, so what has to hold is
known exactly: the answers to a problem are independent draws, every ratio π_θ/π_old is 1, and a
plain loop over one response gives the same log-probability as the padded, masked batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gsmrl_helpers.accumulation import Batch, Objective, accumulate_gradients, dropout_off
from gsmrl_helpers.config import SCORED_AT_ONCE
from gsmrl_helpers.findings import Finding, Findings
from gsmrl_helpers.loop import Trainer, score
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.scoring import batch_log_probs, response_log_prob, rounding
from gsmrl_helpers.tokenization import encode, tokenize_prompt_and_output

# A dial. Eight draws of a policy that can learn anything by sampling nearly all differ; answers of
# two or three tokens coincide now and then. One seed for every request gives 0, two seeds .14.
MIN_DISTINCT_SHARE = 0.5

ROWS_SCORED_ALONE = 4  # for these a plain loop recomputes what the batch computes


# --- the checks --------------------------------------------------------------------------------


def check_distinct_samples(rollouts: Rollouts) -> Finding:
    """The answers of a group are independent draws, not one draw repeated.

    Measured is, over all groups, the share of answers after a group's first that repeat none
    before them: 1 if all differ, 0 if every group is one answer G times. That is what becomes of G
    requests that share one seed, and of greedy sampling: every group is without signal.

    Raises:
        ValueError: groups of one answer, which cannot repeat each other.
    """
    size = rollouts.group_size
    if size < 2:
        raise ValueError(f"group_size={size}: only answers of one group can be compared, give ≥ 2")
    answers = [tuple(completion.token_ids) for completion in rollouts.completions]
    groups = [answers[start : start + size] for start in range(0, len(answers), size)]
    share = sum(len(set(group)) - 1 for group in groups) / ((size - 1) * len(groups))
    return Finding(
        "answers of a group are distinct draws",
        share >= MIN_DISTINCT_SHARE,
        f"{share:.0%} of the answers after a group's first are new ({len(groups)} groups)",
        ""
        if share >= MIN_DISTINCT_SHARE
        else "give each sample its own random numbers (one request with n = G, not G requests "
        "with one seed), and sample at temperature 1; if both hold, the policy has no "
        "entropy left to explore with",
    )


def check_no_dropout(model: nn.Module) -> Finding:
    """No module of the model, in the mode it is in, would drop activations at random.

    Dropout is a module of its own (`nn.Dropout`, its `p`) or an attribute of the module that
    applies it, such as `attention_dropout`; either acts only in training mode.
    """
    active = [
        f"{name or 'model'}.{attribute} = {value}"
        for name, module in model.named_modules()
        if module.training
        for attribute, value in dropout_rates(module).items()
        if value > 0
    ]
    return Finding(
        "dropout is off",
        not active,
        f"{len(active)} modules drop activations, the first: {active[0]}"
        if active
        else "no module drops activations",
        "score in model.eval(); torch.no_grad() is another switch and leaves dropout on"
        if active
        else "",
    )


def dropout_rates(module: nn.Module) -> dict[str, float]:
    """The module's own dropout probabilities, by attribute."""
    is_dropout = "Dropout" in type(module).__name__
    return {
        name: value
        for name, value in vars(module).items()
        if ("drop" in name or (name == "p" and is_dropout)) and isinstance(value, float)
    }


@torch.no_grad()
def check_first_ratio(
    model: nn.Module,
    batch: Batch,
    old_log_probs: Tensor | None = None,
    rows_at_once: int = SCORED_AT_ONCE,
) -> Finding:
    """π_θ/π_old is 1 at every response token while the policy has not moved.

    The model is scored in the mode it is in. "1" means up to √ε of its dtype (.0003 in float32, .09
    in bfloat16): batches of another shape round differently by less, dropout moves single tokens
    by a tenth and more.

    Args:
        model: the policy.
        batch: `input_ids`, `labels` and `response_mask`, (B, T) each, with the labels of
            `tokenize_prompt_and_output`.
        old_log_probs: (B, ≥ T) of the same tokens under the same weights, such as an inference
            engine's; None scores the model a second time.
        rows_at_once: rows whose logits are in memory together.
    """
    new = batch_log_probs(model, batch, rows_at_once)
    old = old_log_probs
    old = batch_log_probs(model, batch, rows_at_once) if old is None else old.to(new)
    ratio = (new - old[:, : new.shape[1]])[batch["response_mask"].to(new.device)].exp()
    deviation = (ratio - 1).abs().max().item() if ratio.numel() else 0.0
    ok = deviation <= rounding(model)  # NaN is not
    return Finding(
        "the ratio π_θ/π_old is 1",
        ok,
        f"max |ratio − 1| = {deviation:.1e} over {ratio.numel()} tokens "
        f"(rounding: {rounding(model):.0e})",
        ""
        if ok
        else "switch dropout off in both passes (model.eval()), and take old log-probs from the "
        "model that is trained, not from an engine of another precision",
    )


@torch.no_grad()
def check_mask_alignment(
    model: nn.Module,
    batch: Batch,
    prompt_ids: Sequence[Sequence[int]],
    response_ids: Sequence[Sequence[int]],
) -> Finding:
    """The masked batch gives each response the log-probability that a plain loop gives it.

    The loop takes one response at a time, without padding, mask or shifted labels: its first token
    is predicted at the last position of the prompt.

    Args:
        model: the policy; it should be in eval mode.
        batch: as in `check_first_ratio`, of the B rows prompt + response.
        prompt_ids: B lists of token ids.
        response_ids: B lists of token ids.
    """
    mask = batch["response_mask"].to(next(model.parameters()).device)
    by_mask = batch_log_probs(model, batch).masked_fill(~mask, 0.0).sum(dim=1).tolist()
    by_loop = [
        response_log_prob(model, prompt, response)
        for prompt, response in zip(prompt_ids, response_ids, strict=True)
    ]
    error = max(abs(ours - plain) for ours, plain in zip(by_mask, by_loop, strict=True))
    # Roundings of single tokens are independent, their sum grows with the root of the length.
    tolerance = rounding(model) * math.sqrt(max(map(len, response_ids)))
    ok = error <= tolerance
    return Finding(
        "masked sums equal a plain loop",
        ok,
        f"largest difference of a response's log-probability: {error:.1e} nats over "
        f"{len(by_loop)} responses (rounding: {tolerance:.0e})",
        ""
        if ok
        else "shift the mask together with the labels: the first response token is predicted at "
        "the last prompt token, and neither prompt nor padding counts",
    )


def check_finite_gradients(model: nn.Module) -> Finding:
    """After a backward pass, every gradient is finite, and not all of them are 0.

    Exactly 0 everywhere is a fault too: old log-probs that carry a gradient cancel that of the new
    ones, and a batch without a group that has a signal teaches nothing.
    """
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    broken = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    flows = any(gradient.any() for gradient in gradients.values())
    if not gradients:
        measured, to_do = "no parameter has a gradient", "call loss.backward() first"
    elif broken:
        measured = f"{len(broken)} of {len(gradients)} are not finite, the first: {broken[0]}"
        to_do = "look for infinite or NaN log-probabilities, and for log or division at 0"
    elif not flows:
        measured = f"all {len(gradients)} gradients are exactly 0"
        to_do = "compute old log-probs under torch.no_grad(), and see that some group has a signal"
    else:
        norm = nn.utils.get_total_norm(gradients.values()).item()
        measured, to_do = f"norm {norm:.3g} over {len(gradients)} tensors", ""
    return Finding("gradients are finite and flow", not to_do, measured, to_do)


def check_accumulation(
    model: nn.Module,
    batch: Batch,
    objective: Objective,
    accumulate: Callable[..., Any] = accumulate_gradients,
) -> Finding:
    """The gradient is the same one row at a time, and with all rows but the last together.

    The two microbatches of the second way hold unequal numbers of rows and of tokens, so that a
    mean that each microbatch takes over its own is another one.

    Args:
        model: the policy; its gradients are None afterwards.
        batch: at least three rows as `accumulate_gradients` takes them.
        objective: the loss.
        accumulate: what is checked, called as `accumulate_gradients` is.

    Raises:
        ValueError: fewer than three rows with tokens, of which both ways make the same.
    """
    rows = batch["response_mask"].any(dim=1).nonzero().flatten()
    if len(rows) < 3:
        raise ValueError(f"{len(rows)} rows with tokens can't be split unequally: give at least 3")
    try:
        alone, together = (
            gradient_after(accumulate, model, batch, rows, objective, microbatch_size)
            for microbatch_size in (1, len(rows) - 1)
        )
    finally:
        model.zero_grad(set_to_none=True)
    size = together.norm().item()
    difference = (alone - together).norm().item() / size if size else alone.norm().item()
    ok = difference <= rounding(model)  # NaN is not
    return Finding(
        "microbatches add up",
        ok,
        f"gradients of two splits differ by {difference:.1e} of their norm "
        f"(rounding: {rounding(model):.0e})",
        ""
        if ok
        else "divide by the rows or tokens of the whole batch, not by those of a microbatch: for "
        '"sequence" weigh each microbatch by its share of the rows',
    )


def gradient_after(accumulate: Callable[..., Any], model: nn.Module, *arguments: Any) -> Tensor:
    """The whole gradient that `accumulate` leaves, as one vector."""
    accumulate(model, *arguments)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# --- all of them -------------------------------------------------------------------------------


def check_first_step(trainer: Trainer, rollouts: Rollouts) -> Findings:
    """All checks, on a trainer that has not taken its first step, and rollouts of its policy.

    The model is checked as a train step runs it. The gradient is that of the log-probability of
    all responses, so that it does not depend on the rewards. Nothing of the trainer is changed.
    """
    batch = tokenize_prompt_and_output(
        rollouts.prompts,
        [completion.text for completion in rollouts.completions],
        trainer.tokenizer,
        output_token_ids=[completion.token_ids for completion in rollouts.completions],
    )
    few = slice(ROWS_SCORED_ALONE)
    prompt_ids = [encode(trainer.tokenizer, prompt) for prompt in rollouts.prompts[few]]
    response_ids = [completion.token_ids for completion in rollouts.completions[few]]
    with dropout_off(trainer.model):
        findings = [
            *([check_distinct_samples(rollouts)] if rollouts.group_size > 1 else []),
            check_no_dropout(trainer.model),
            check_first_ratio(
                trainer.model,
                batch,
                score(trainer, trainer.model, rollouts),
                trainer.config.scored_at_once,
            ),
            check_mask_alignment(
                trainer.model, {k: v[few] for k, v in batch.items()}, prompt_ids, response_ids
            ),
        ]
    batch["advantages"] = torch.ones(len(batch["response_mask"]))
    rows = batch["response_mask"].any(dim=1).nonzero().flatten()
    config = trainer.config
    microbatch_size = math.ceil(config.train_batch_size / config.gradient_accumulation_steps)
    objective = Objective(
        loss_normalization=config.loss_normalization,
        normalization_constant=config.normalization_constant,
    )
    try:
        accumulate_gradients(trainer.model, batch, rows, objective, microbatch_size)
        findings.append(check_finite_gradients(trainer.model))
    finally:
        trainer.model.zero_grad(set_to_none=True)
    # No more rows at once than a step takes.
    split = rows[: microbatch_size + 1]
    if len(split) > 2:
        batch = {name: values[split] for name, values in batch.items()}
        findings.append(check_accumulation(trainer.model, batch, objective))
    return Findings(tuple(findings))
