"""Log-probabilities and entropies straight from hidden states, where the head is one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from gsmrl_helpers.options import require_positive_integer


def linear_head_log_probs(
    hidden_states: Tensor, weight: Tensor, labels: Tensor, chunk_size: int
) -> dict[str, Tensor]:
    """`label_log_probs` of the logits hidden_states · weightᵀ, entropy included, in less of all.

    Values and gradients are those of the plain function. Logits are held for `chunk_size` positions
    at a time, and made anew in the backward pass, as in `chunked_label_log_probs`; but here the
    gradient is written out, so that each pass turns the chunk of logits into what it needs in
    place. With p = softmax(z) and H its entropy,

        ∂ log p_y/∂z_v = [v = y] − p_v   and   ∂H/∂z_v = −p_v (log p_v + H).

    Args:
        hidden_states: (N, D).
        weight: (V, D), of the head.
        labels: (N,) int64, in [0, V).
        chunk_size: positions per chunk.

    Returns:
        `log_probs` and `token_entropy` (nats), (N,), in float32 at least.

    Raises:
        ValueError: `chunk_size` is not a positive integer, or shapes or dtypes do not fit.
    """
    require_positive_integer("chunk_size", chunk_size)
    n, width = hidden_states.shape if hidden_states.dim() == 2 else (-1, -1)
    fits = weight.dim() == 2 and weight.shape[1] == width and labels.shape == (n,)
    if not fits or hidden_states.dtype != weight.dtype:
        raise ValueError(
            f"hidden_states {tuple(hidden_states.shape)} {hidden_states.dtype}, weight "
            f"{tuple(weight.shape)} {weight.dtype} and labels {tuple(labels.shape)} must be "
            "(N, D), (V, D) of the same dtype, and (N,)"
        )
    log_probs, token_entropy = LinearHeadFunction.apply(hidden_states, weight, labels, chunk_size)
    return {"log_probs": log_probs, "token_entropy": token_entropy}


class LinearHeadFunction(torch.autograd.Function):
    """The node of the graph behind `linear_head_log_probs`, with its arguments."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, hidden_states: Tensor, weight: Tensor, labels: Tensor, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        scored = [
            score_chunk(hidden @ weight.T, label)
            for hidden, label in zip(
                hidden_states.split(chunk_size), labels.split(chunk_size), strict=True
            )
        ]
        log_probs, token_entropy, log_normalizer = map(torch.cat, zip(*scored, strict=True))
        ctx.save_for_backward(hidden_states, weight, labels, token_entropy, log_normalizer)
        ctx.chunk_size = chunk_size
        ctx.set_materialize_grads(False)  # None says that nobody differentiates the entropy
        return log_probs, token_entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_states, weight, labels, token_entropy, log_normalizer = ctx.saved_tensors
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(log_normalizer)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden_states) if wants_hidden else None
        # Sums over chunks keep float32's digits where the weights have fewer.
        grad_weight = torch.zeros_like(weight, dtype=log_normalizer.dtype) if wants_weight else None
        for start in range(0, len(labels), ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            hidden = hidden_states[chunk]
            grad_logits = chunk_gradient(
                hidden @ weight.T,
                labels[chunk],
                token_entropy[chunk],
                log_normalizer[chunk],
                grad_log_probs[chunk],
                None if grad_entropy is None else grad_entropy[chunk],
            ).to(hidden.dtype)
            if wants_hidden:
                torch.mm(grad_logits, weight, out=grad_hidden[chunk])
            if wants_weight:
                grad_weight += grad_logits.T @ hidden
        return grad_hidden, grad_weight.to(weight.dtype) if wants_weight else None, None, None


def score_chunk(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the labels, entropies, and logarithms of softmax's denominators.

    Args:
        logits: (n, V), overwritten.
        labels: (n,) int64.

    Returns:
        Three tensors (n,), in float32 at least.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.amax(dim=-1, keepdim=True)
    chosen = logits.gather(-1, labels[:, None]) - largest
    shifted = logits.sub_(largest)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    mean_logit = weights.mul_(shifted).sum(dim=-1) / total  # H = ln Σ e^z − Σ p z
    log_total = total.log()
    return chosen[:, 0] - log_total, log_total - mean_logit, largest[:, 0] + log_total


def chunk_gradient(
    logits: Tensor,
    labels: Tensor,
    token_entropy: Tensor,
    log_normalizer: Tensor,
    grad_log_probs: Tensor,
    grad_entropy: Tensor | None,
) -> Tensor:
    """(n, V) gradient of the loss with respect to logits (n, V), which are overwritten.

    Args:
        logits, labels: as `score_chunk` had them.
        token_entropy, log_normalizer: (n,), what it returned.
        grad_log_probs, grad_entropy: (n,) gradients with respect to its first two results, the
            second None where nobody wants it.
    """
    log_probs = logits.to(log_normalizer.dtype).sub_(log_normalizer[:, None])
    if grad_entropy is None:
        gradient = log_probs.exp_().mul_(-grad_log_probs[:, None])
    else:
        factor = (log_probs + token_entropy[:, None]).mul_(grad_entropy[:, None])
        gradient = log_probs.exp_().mul_(factor.add_(grad_log_probs[:, None])).neg_()
    return gradient.scatter_add_(-1, labels[:, None], grad_log_probs[:, None])
