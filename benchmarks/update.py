"""What each technique buys in the update: the same gradient of real pocket rollouts, way by way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gradients import (
    Scorer,
    accumulate,
    all_logits,
    batch_of,
    response_logits,
    rows_with_signal,
    shared_prompts,
    shared_prompts_plain_norms,
)
from benchmarks.step import our_step, update_live_bytes
from benchmarks.timing import (
    Contender,
    Report,
    Run,
    Scale,
    Value,
    interleave,
    peak_live_bytes,
    relative_difference,
    seconds_of,
)
from benchmarks.worlds import ROWS_AT_ONCE, World, pocket_world, random_world
from gsmrl_helpers.accumulation import Batch, num_columns
from gsmrl_helpers.prompt_tree import build_prompt_tree

WHOLE = "the whole update, AdamW included"
FLOOR = "matrix products alone"


def ways(batch: Batch) -> dict[str, tuple[Tensor, Scorer, int]]:
    """Each way's rows in order, its scorer, and how many rows go through the model at once."""
    every_row = torch.arange(len(batch["labels"]))
    with_signal = rows_with_signal(batch)
    widths = num_columns(batch["response_mask"])
    by_length = with_signal[widths[with_signal].argsort(descending=True)]
    at_once = ROWS_AT_ONCE
    return {
        "every row, padded": (every_row, all_logits, at_once),
        "rows with a signal": (with_signal, all_logits, at_once),
        "sorted by length": (by_length, all_logits, at_once // 4),
        "logits of responses only": (by_length, response_logits, at_once // 4),
        "prompts shared": (with_signal, shared_prompts_plain_norms, len(every_row)),
        "norms as one node": (with_signal, shared_prompts, len(every_row)),
    }


@contextmanager
def counted_tokens(model: PreTrainedModel) -> Iterator[list[int]]:
    """A list with the number of tokens of each call of the first layer."""
    counts: list[int] = []
    mlp = model.model.layers[0].mlp
    hook = mlp.register_forward_pre_hook(
        lambda module, args: counts.append(args[0].shape[:-1].numel())
    )
    try:
        yield counts
    finally:
        hook.remove()


def contender(world: World, batch: Batch, way: tuple[Tensor, Scorer, int]) -> Contender:
    """A way's forward and backward pass."""

    def run() -> Run:
        started = time.perf_counter()
        accumulate(world.trainer.model, batch, *way)
        return Run(time.perf_counter() - started)

    return run


def products_alone(model: PreTrainedModel, num_tokens: int, num_responses: int) -> Contender:
    """The matrix products with the weights, of a forward and a backward pass, and nothing else.

    An update of so many tokens, and a head that reads so many of them, takes at least so long here.
    """
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]

    def run() -> Run:
        started = time.perf_counter()
        for linear in linears:
            n_rows = num_responses if linear is model.lm_head else num_tokens
            inputs, weight = inputs_of[n_rows, linear.in_features], linear.weight.detach()
            outputs = inputs @ weight.T
            _ = outputs @ weight, outputs.T @ inputs
        return Run(time.perf_counter() - started)

    inputs_of = {
        (n_rows, linear.in_features): torch.randn(n_rows, linear.in_features)
        for linear in linears
        for n_rows in (num_tokens, num_responses)
    }
    return run


def padding(batch: Batch) -> dict[str, Value]:
    """What of the tokens that go through the model, in the last way, are padding."""
    rows = rows_with_signal(batch)
    tree = build_prompt_tree(batch["input_ids"][rows], batch["response_mask"][rows])
    in_blocks = [block.is_token for block in (tree.suffixes, *tree.responses)]
    num_tokens = tree.template_length + sum(int(is_token.sum()) for is_token in in_blocks)
    num_processed = len(tree.token_ids)
    num_attended = tree.template_length + sum(is_token.numel() for is_token in in_blocks)
    return {
        "rows with a signal": len(rows),
        "tokens through the model": num_processed,
        "padding, share": 1 - num_tokens / num_processed,
        "padding in attention, share": 1 - num_tokens / num_attended,
    }


def uniform(scale: Scale) -> list[dict[str, Value]]:
    """An update of answers that all have the full length, and the matrix products in it."""
    world = random_world(scale, stops=False)
    model, rollouts = world.trainer.model, world.sample()
    with counted_tokens(model) as counts:
        our_step(world, rollouts)()
    num_responses = int(batch_of(world, rollouts)["response_mask"].sum())
    contenders = {
        WHOLE: our_step(world, rollouts),
        FLOOR: products_alone(model, sum(counts), num_responses),
    }
    runs = interleave(contenders, scale.repeats)
    whole = seconds_of(runs[WHOLE])["median"]
    return [
        {
            "way": name,
            "seconds": seconds_of(runs[name]),
            "share of the update": seconds_of(runs[name])["median"] / whole,
            "tokens through the model": sum(counts),
        }
        for name in contenders
    ]


def measure(scale: Scale) -> Report:
    """One row a way, each adding its technique to those before it; a whole update; a floor."""
    report = Report("What each technique buys in the update")
    world = pocket_world(scale)
    model, rollouts = world.trainer.model, world.sample()
    batch = batch_of(world, rollouts)
    contenders = {name: contender(world, batch, way) for name, way in ways(batch).items()}
    contenders[WHOLE] = our_step(world, rollouts)
    size = padding(batch)
    num_responses = int(batch["response_mask"][rows_with_signal(batch)].sum())
    contenders[FLOOR] = products_alone(model, size["tokens through the model"], num_responses)
    runs = interleave(contenders, scale.repeats)
    plain = seconds_of(runs["every row, padded"])["median"]
    rows: list[dict[str, Value]] = []
    expected: list[Tensor] | None = None
    for name, run in contenders.items():
        with counted_tokens(model) as counts:
            run()
        gradient = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        expected = expected or gradient
        is_way = name not in (WHOLE, FLOOR)  # these two leave no gradient behind
        live = update_live_bytes(world, rollouts) if name == WHOLE else peak_live_bytes(run)
        seconds = seconds_of(runs[name])
        rows.append(
            {
                "way": name,
                "seconds": seconds,
                "plain / this": plain / seconds["median"],
                "tokens through the model": sum(counts) or None,
                "peak live MB": live / 1e6,
                "difference of gradient": relative_difference(gradient, expected)
                if is_way
                else None,
            }
        )
    report.tables = {"ways": rows, "padding": [size], "uniform": uniform(scale)}
    return report
