"""Per-token policy-gradient losses, their aggregation, and estimates of a KL divergence.

None of these losses need fall during training: each is only an expression whose gradient is minus
the policy-gradient estimate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gsmrl_helpers.options import (
    ImportanceReweighting,
    KLEstimator,
    LossNormalization,
    require_choice,
    require_number,
)

# exp is continued by its tangent beyond this log-ratio: a ratio of e^20 = 5e8 says only "far off",
# while e^89 is inf in float32, and inf · 0 would turn the gradient of a masked token NaN.
MAX_LOG_RATIO = 20.0


def compute_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor,
    policy_log_probs: Tensor,
    importance_reweighting_method: ImportanceReweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    response_mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Minus the policy-gradient objective at every token; `reweighted_loss` has the methods.

    Args:
        raw_rewards_or_advantages: A, of shape (B,) or (B, 1). A constant, like `old_log_probs`.
        policy_log_probs: (B, T), with gradient.
        importance_reweighting_method: "none", "noclip", "grpo", "gspo" or "cispo".
        old_log_probs: (B, T) under the policy that sampled; needed by all but "none".
        cliprange: ε ≥ 0; needed by "grpo", "gspo" and "cispo".
        response_mask: (B, T), nonzero at response tokens; needed by "gspo". Elsewhere, without
            it, every token counts whose log-probabilities are above -inf.

    Returns:
        per_token_loss: (B, T); what stands at masked positions is to be dropped, as
            `aggregate_loss_across_microbatch` does, and then has no gradient either.
        metadata: empty without `old_log_probs`, else, detached and of shape (B, T), `ratio`
            (π_θ/π_old of the token, 1 where masked) and `is_clipped` (bool: the clip took the
            gradient of this token away, or in "cispo" capped its weight; all False for methods
            that do not clip).

    Raises:
        ValueError: an unknown method, a missing or negative argument, or a shape that does not
            fit.
    """
    method = importance_reweighting_method
    check_importance_options(method, old_log_probs, cliprange)
    advantages = as_column(raw_rewards_or_advantages, policy_log_probs)
    check_shapes(policy_log_probs, old_log_probs=old_log_probs, response_mask=response_mask)
    if old_log_probs is None:
        return -advantages * policy_log_probs, {}

    if response_mask is None:
        if method == "gspo":
            raise ValueError("importance_reweighting_method='gspo' needs response_mask, got None")
        response_mask = ~(policy_log_probs.isneginf() | old_log_probs.isneginf())
    mask = response_mask.bool()
    log_probs = policy_log_probs.masked_fill(~mask, 0.0)
    old_log_probs = old_log_probs.detach().masked_fill(~mask, 0.0)
    return reweighted_loss(method, advantages, log_probs, old_log_probs, mask, cliprange)


def reweighted_loss(
    method: ImportanceReweighting,
    advantages: Tensor,
    log_probs: Tensor,
    old_log_probs: Tensor,
    mask: Tensor,
    cliprange: float | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The five losses, with r = π_θ(y_t) / π_old(y_t), continued by its tangent beyond e^20.

    - "none": -A log π_θ(y_t), REINFORCE (Williams, 1992), exact on-policy.
    - "noclip": -A r.
    - "grpo": -min(A r, A clip(r, 1-ε, 1+ε)) (Schulman et al., 2017, PPO; GRPO).
    - "gspo": the same with the response's geometric mean of r (Zheng et al., 2025).
    - "cispo": -A sg(min(r, 1+ε)) log π_θ(y_t), sg = stop gradient (MiniMax-M1, 2025).

    Args:
        method: one of the five.
        advantages: (B, 1).
        log_probs: (B, T), 0 at masked positions, as `old_log_probs` is; so r is 1 there.
        old_log_probs: (B, T), constants.
        mask: (B, T) bool.
        cliprange: ε.

    Returns:
        As `compute_policy_gradient_loss`.
    """
    ratio = bounded_exp(log_probs - old_log_probs)
    is_clipped = torch.zeros_like(mask)
    match method:
        case "none":
            loss = -advantages * log_probs
        case "noclip":
            loss = -advantages * ratio
        case "grpo":
            loss, is_clipped = clipped_loss(advantages, ratio, cliprange)
        case "gspo":
            ratios = sequence_ratio(log_probs, old_log_probs, mask)
            loss, is_clipped = clipped_loss(advantages, ratios, cliprange)
        case "cispo":
            loss, is_clipped = cispo_loss(advantages, log_probs, ratio, cliprange)
    return loss, {"ratio": ratio.detach(), "is_clipped": is_clipped & mask}


def clipped_loss(advantages: Tensor, ratio: Tensor, cliprange: float) -> tuple[Tensor, Tensor]:
    """-min(A r, A clip(r, 1-ε, 1+ε)) (Schulman et al., 2017, equation 7), and where it clips.

    Clipped is where the constant branch is the smaller: the gradient is 0 there.
    """
    objective = advantages * ratio
    clipped = advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    return -torch.minimum(objective, clipped), clipped < objective


def sequence_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """s = (Π r_t)^(1/L) of each response, (B, T), with the gradient s ∇log π_θ(y_t) at token t.

    That is GSPO's token form (Zheng et al., 2025): each token has its own copy of s, in which
    the stop gradient spares the other tokens. Log-probabilities are 0 at masked positions.
    """
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratio = (log_probs - old_log_probs).sum(dim=1, keepdim=True)
    own_gradient = (log_probs - log_probs.detach()).exp()  # value 1, gradient ∇log π
    return bounded_exp(log_ratio / lengths).detach() * own_gradient


def cispo_loss(
    advantages: Tensor, log_probs: Tensor, ratio: Tensor, cliprange: float
) -> tuple[Tensor, Tensor]:
    """-A sg(min(r, 1+ε)) log π_θ (MiniMax-M1, 2025), and where the weight is capped.

    Only the weight is clipped, and only from above: no token loses its gradient.
    """
    weight = ratio.detach().clamp(max=1 + cliprange)
    return -advantages * weight * log_probs, ratio > 1 + cliprange


def aggregate_loss_across_microbatch(
    per_token_policy_gradient_loss: Tensor,
    mask: Tensor,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
) -> Tensor:
    """One loss from the (B, T) losses of the response tokens.

    - "sequence": mean over each response's tokens, then over the B responses (GRPO). A response
      without tokens adds 0 and still counts in B.
    - "constant": sum over all tokens / `normalization_constant`, such as B·G·L_max (Dr. GRPO,
      Liu et al., 2025).
    - "token": sum over all tokens / the number of response tokens of the *whole* batch (DAPO,
      Yu et al., 2025). A microbatch can't know that number: it is the `normalization_constant`.

    So the microbatches' losses add up to the batch's for "constant" and "token"; for "sequence"
    each is first weighted by its share of the batch's responses.

    Args:
        per_token_policy_gradient_loss: (B, T); what stands at masked positions, NaN included,
            has no effect on value or gradient.
        mask: (B, T), nonzero at response tokens.
        loss_normalization: one of the three above.
        normalization_constant: positive; needed by "constant" and "token", unused by "sequence".

    Returns:
        A scalar that carries the gradient.

    Raises:
        ValueError: an unknown normalization, a missing or non-positive constant, unequal shapes.
    """
    check_normalization_options(loss_normalization, normalization_constant)
    check_shapes(per_token_policy_gradient_loss, mask=mask)
    mask = mask.bool()
    # Not a product with the mask: inf · 0 is NaN.
    losses = per_token_policy_gradient_loss.masked_fill(~mask, 0.0)
    if loss_normalization == "sequence":
        lengths = mask.sum(dim=1).clamp(min=1)
        return (losses.sum(dim=1) / lengths).mean()
    return losses.sum() / normalization_constant


def kl_estimate(log_probs: Tensor, ref_log_probs: Tensor, kind: KLEstimator = "k3") -> Tensor:
    """Estimate of KL(π || π_ref) from each token, sampled from π (Schulman, 2020).

    With x = log π_ref - log π: k1 = -x (unbiased), k2 = x²/2 (less variance, biased),
    k3 = e^x - 1 - x (unbiased, never negative; GRPO's penalty, DeepSeekMath, equation 4).
    "Unbiased" is said of the value; as a loss, each has another gradient. Where x > 20, e^x is
    continued by its tangent, which keeps value and gradient finite.

    Args:
        log_probs: log π of the sampled tokens, any shape, with gradient.
        ref_log_probs: log π_ref of the same tokens, same shape; a constant.
        kind: "k1", "k2" or "k3".

    Returns:
        The estimates, same shape, in float32 at least; exactly 0 where both inputs are equal.

    Raises:
        ValueError: an unknown kind, unequal shapes.
    """
    require_choice("kind", kind, KLEstimator)
    check_shapes(log_probs, ref_log_probs=ref_log_probs)
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    impossible = log_probs.isneginf() & ref_log_probs.isneginf()  # both -inf: equal, yet inf - inf
    log_probs = log_probs.to(dtype).masked_fill(impossible, 0.0)
    x = ref_log_probs.detach().to(dtype).masked_fill(impossible, 0.0) - log_probs
    if kind == "k1":
        return -x
    if kind == "k2":
        return x.square() / 2
    # Near 0 the terms of e^x - 1 - x cancel and would leave noise of either sign.
    small = x.clamp(-0.01, 0.01)
    series = small.square() / 2 * (1 + small / 3 * (1 + small / 4 * (1 + small / 5)))
    return torch.where(x == small, series, bounded_exp(x, minus_one=True) - x)


def bounded_exp(x: Tensor, minus_one: bool = False) -> Tensor:
    """exp(x), or exp(x) - 1, continued beyond x = 20 by its tangent: rising, finite, smooth."""
    head = torch.where(x > MAX_LOG_RATIO, MAX_LOG_RATIO, x)  # clamp would drop a NaN's gradient
    tangent = math.exp(MAX_LOG_RATIO) * (x - MAX_LOG_RATIO).clamp(min=0.0)
    return (head.expm1() if minus_one else head.exp()) + tangent


def check_importance_options(
    importance_reweighting_method: str, old_log_probs: Tensor | None, cliprange: float | None
) -> None:
    """Refuse an unknown method and a missing or negative argument of it.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    method = importance_reweighting_method
    require_choice("importance_reweighting_method", method, ImportanceReweighting)
    if method != "none" and old_log_probs is None:
        raise ValueError(f"importance_reweighting_method={method!r} needs old_log_probs, got None")
    if method in ("grpo", "gspo", "cispo") and cliprange is None:
        raise ValueError(
            f"importance_reweighting_method={method!r} needs a cliprange of at least 0, got None"
        )
    if cliprange is not None:
        require_number("cliprange", cliprange, 0)


def check_normalization_options(
    loss_normalization: str, normalization_constant: float | None
) -> None:
    """Refuse an unknown normalization and a missing or non-positive constant of it.

    Raises:
        ValueError: naming the option, what was given and what is allowed.
    """
    require_choice("loss_normalization", loss_normalization, LossNormalization)
    if loss_normalization == "sequence":
        return
    if normalization_constant is None:
        raise ValueError(
            f"loss_normalization={loss_normalization!r} needs normalization_constant, got None: "
            "a positive number, for 'token' the response tokens of the whole batch"
        )
    require_number("normalization_constant", normalization_constant, 0, above=True)


def as_column(advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """Advantages of shape (B,) or (B, 1) as a constant (B, 1); (1, B) would run along tokens."""
    if policy_log_probs.dim() != 2:
        raise ValueError(
            f"policy_log_probs must have shape (B, T): got {tuple(policy_log_probs.shape)}"
        )
    batch_size = policy_log_probs.shape[0]
    if tuple(advantages.shape) not in {(batch_size,), (batch_size, 1)}:
        raise ValueError(
            f"raw_rewards_or_advantages must have shape ({batch_size},) or ({batch_size}, 1), one "
            f"for each row of policy_log_probs: got {tuple(advantages.shape)}"
        )
    return advantages.detach().reshape(batch_size, 1).to(policy_log_probs)


def check_shapes(values: Tensor, /, **others: Tensor | None) -> None:
    """Refuse tensors, given by name, of another shape than `values`; None is no tensor."""
    for name, other in others.items():
        if other is not None and other.shape != values.shape:
            raise ValueError(
                f"{name} must have the shape of the log-probabilities or losses it goes with, "
                f"{tuple(values.shape)}: got {tuple(other.shape)}"
            )
