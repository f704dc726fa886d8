"""What the policy thinks of each token: its log-probability, and the entropy at its position."""

from __future__ import annotations

import torch
from torch import Tensor


def get_response_log_probs(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
) -> dict[str, Tensor]:
    """Log-probability of every label given the tokens before it, log π(labels[t] | input_ids[≤ t]).

    The model's mode and gradient tracking are the caller's: `model.eval()` switches dropout off,
    `torch.no_grad()` builds no graph, and old log-probabilities need both.

    Args:
        model: a causal language model, called as `model(input_ids).logits`.
        input_ids: (B, T) int64, right-padded, as `tokenize_prompt_and_output` returns them.
        labels: (B, T) int64, the next token of each position.
        return_token_entropy: also return the entropy of each next-token distribution.

    Returns:
        `log_probs` (B, T), and if asked for `token_entropy` (B, T) in nats, both of the model's
        own distribution (temperature 1). float32 from float16, bfloat16 and float32 logits,
        float64 from float64. Prompt and padding positions are filled too: mask them.
    """
    # No attention mask: the rows are padded on the right and attention is causal, so padding
    # comes after every position that counts, and none of those can see it.
    return label_log_probs(model(input_ids).logits, labels, return_token_entropy)


def label_log_probs(
    logits: Tensor, labels: Tensor, return_token_entropy: bool = False
) -> dict[str, Tensor]:
    """Log-probability of one label in each of the distributions softmax(logits).

    Args:
        logits: (..., V).
        labels: (...) int64, in [0, V).
        return_token_entropy: also return the entropy of each distribution.

    Returns:
        `log_probs` (...), and if asked for `token_entropy` (...), in the dtype of `log_softmax`.
    """
    vocabulary_log_probs = log_softmax(logits)
    result = {"log_probs": vocabulary_log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)}
    if return_token_entropy:
        result["token_entropy"] = entropy_from_log_probs(vocabulary_log_probs)
    return result


def entropy(logits: Tensor) -> Tensor:
    """Entropy H = -Σ_v p_v ln p_v of softmax(logits), in nats, between 0 and ln V.

    Args:
        logits: (..., V); -inf forbids a token, which then adds nothing.

    Returns:
        (...), float32 or, from float64 logits, float64.
    """
    return entropy_from_log_probs(log_softmax(logits))


def entropy_from_log_probs(vocabulary_log_probs: Tensor) -> Tensor:
    """Entropy in nats of distributions given by their logarithms: (..., V) to (...)."""
    # 0 · ln 0 counts as 0; as floats it is 0 · (-inf) = NaN, in the value and in the gradient.
    finite_log_probs = vocabulary_log_probs.masked_fill(vocabulary_log_probs.isneginf(), 0.0)
    return -(vocabulary_log_probs.exp() * finite_log_probs).sum(dim=-1)


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last dimension, in float32 at least: (..., V) to (..., V)."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
