"""The gradient of a batch on several cores: each computes it for a share of the rows."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from gsmrl_helpers.accumulation import Batch, Objective, accumulate_gradients
from gsmrl_helpers.step_metrics import TokenMeans
from gsmrl_helpers.threads import SHARES, map_on_cores
from gsmrl_helpers.train_step import AccumulateFn

# Fewer rows are done sooner on one core than two replicas of the model are made.
FEWEST_SHARED_ROWS = 32


def accumulation(device: str, n_rows: int) -> AccumulateFn:
    """What computes the gradient of a train batch of n rows soonest, on a "cpu" or a GPU."""
    shared = device == "cpu" and n_rows >= FEWEST_SHARED_ROWS
    return accumulate_on_cores if shared else accumulate_gradients


def accumulate_on_cores(
    model: nn.Module, batch: Batch, rows: Tensor, objective: Objective, microbatch_size: int
) -> tuple[Tensor, TokenMeans]:
    """`accumulate_gradients` of each half of the rows, with a replica of the model; then the sum.

    This is data parallelism as between GPUs, but the replicas read the same weights, and have only
    gradients of their own. The halves are summed in their order, so that the sum is the same on
    one core and on two.
    """
    shares = rows.tensor_split(SHARES) if len(rows) >= SHARES else (rows,)
    replicas = [replica(model) for _ in shares]

    def accumulate(index: int) -> tuple[Tensor, TokenMeans]:
        return accumulate_gradients(
            replicas[index], batch, shares[index], objective, microbatch_size
        )

    losses, token_means = zip(*map_on_cores(accumulate, range(len(shares))), strict=True)
    copies = zip(*(r.parameters() for r in replicas), strict=True)
    for parameter, of_replicas in zip(model.parameters(), copies, strict=True):
        gradients = [p.grad for p in of_replicas]
        parameter.grad = sum(gradients[1:], gradients[0]) if parameter.requires_grad else None
    return sum(losses[1:], losses[0]), sum(token_means[1:], token_means[0])


def replica(model: nn.Module) -> nn.Module:
    """The model again, with the very same weights and buffers, and gradients of its own."""
    shared = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    return copy.deepcopy(model, shared)
