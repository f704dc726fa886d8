"""Log-probabilities of a batch, and of one response by a plain loop; and how far two may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gsmrl_helpers.accumulation import Batch
from gsmrl_helpers.config import SCORED_AT_ONCE
from gsmrl_helpers.log_probs import get_response_log_probs, log_softmax


def batch_log_probs(model: nn.Module, batch: Batch, rows_at_once: int = SCORED_AT_ONCE) -> Tensor:
    """(B, T) log-probabilities of a batch's labels, a few rows at a time, in the model's mode."""
    device = next(model.parameters()).device
    chunks = zip(
        *(batch[name].to(device).split(rows_at_once) for name in ("input_ids", "labels")),
        strict=True,
    )
    return torch.cat([get_response_log_probs(model, *chunk)["log_probs"] for chunk in chunks])


def response_log_prob(
    model: nn.Module, prompt_ids: Sequence[int], response_ids: Sequence[int]
) -> float:
    """log π(response | prompt), token by token: the chain rule and nothing else."""
    ids = torch.tensor([[*prompt_ids, *response_ids]], device=next(model.parameters()).device)
    log_probs = log_softmax(model(ids).logits[0])
    return sum(
        log_probs[len(prompt_ids) + t - 1, token].item() for t, token in enumerate(response_ids)
    )


def rounding(model: nn.Module) -> float:
    """√ε of the model's dtype: what two correct passes stay below, and no fault does."""
    return math.sqrt(torch.finfo(next(model.parameters()).dtype).eps)
