"""Log-probabilities over a large vocabulary, without ever holding the logits of all positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gsmrl_helpers.log_probs import label_log_probs
from gsmrl_helpers.options import require_positive_integer


def chunked_label_log_probs(
    hidden_states: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    labels: Tensor,
    chunk_size: int,
    return_token_entropy: bool = False,
) -> dict[str, Tensor]:
    """`label_log_probs` of the logits lm_head(hidden_states), `chunk_size` positions at a time.

    Values and gradients are those of the plain function. Logits live for one chunk only, in the
    forward pass and again in the backward pass, which recomputes them (Chen et al., 2016,
    "Training deep nets with sublinear memory cost"): one more product with the head buys a
    memory that grows with chunk_size · V and no longer with the number of positions times V.

    Args:
        hidden_states: (..., D), what the model hands to its head.
        lm_head: from (N, D) to logits (N, V), everything that the model does to them included;
            it must not draw random numbers.
        labels: (...) int64, in [0, V).
        chunk_size: positions per chunk; the last chunk may be smaller.
        return_token_entropy: also return the entropy of each distribution.

    Returns:
        What `label_log_probs` returns: tensors of the shape of `labels`.

    Raises:
        ValueError: `chunk_size` is not a positive integer, or the shapes do not fit.
    """
    require_positive_integer("chunk_size", chunk_size)
    shape = tuple(hidden_states.shape)
    if shape[:-1] != labels.shape:
        raise ValueError(f"{shape=} of hidden_states must be {tuple(labels.shape)} and D")

    def score(hidden_chunk: Tensor, label_chunk: Tensor) -> dict[str, Tensor]:
        return label_log_probs(lm_head(hidden_chunk), label_chunk, return_token_entropy)

    hidden_chunks = hidden_states.flatten(end_dim=-2).split(chunk_size)
    label_chunks = labels.flatten().split(chunk_size)
    scored = [
        checkpoint(score, *chunk, use_reentrant=False, preserve_rng_state=False)
        for chunk in zip(hidden_chunks, label_chunks, strict=True)
    ]
    return {name: torch.cat([s[name] for s in scored]).view_as(labels) for name in scored[0]}
