"""Sampling: our engine, Hugging Face `generate`, vLLM on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StoppingCriteriaList

from benchmarks.timing import (
    Contender,
    Report,
    Run,
    Scale,
    Value,
    interleave,
    peak_live_bytes,
    spread,
)
from benchmarks.vllm_worker import vllm_sampler
from benchmarks.worlds import World, pocket_world, random_world
from gsmrl_helpers.engine import LocalEngine, evaluation_mode
from gsmrl_helpers.sampling import SamplingParams

OURS = "ours"
CACHES = {"generate, dynamic cache": None, "generate, static cache": "static"}
ABLATION = {
    "as it is": {},
    "finished rows stay": {"compaction": False},
    "no shared prefix": {"prefix_sharing": False},
    "neither": {"compaction": False, "prefix_sharing": False},
}


class EndsWithAnswer(StoppingCriteria):
    """A row is done with the tokens of `</answer>`: a comparison of ids, cheaper than of text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        (*_, answer, bracket) = tokenizer("</answer>", add_special_tokens=False)["input_ids"]
        self.last_two = torch.tensor([answer, bracket])
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.before = torch.tensor([i for i, t in enumerate(tokens) if t.endswith("/")])

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        last = (input_ids[:, -2:] == self.last_two).all(dim=1)
        return last & torch.isin(input_ids[:, -3], self.before)


def stopping_criteria(world: World) -> StoppingCriteriaList:
    """What ends a row in `generate`, beside the end-of-sequence ids."""
    stop = world.trainer.prompt.stop
    return StoppingCriteriaList([EndsWithAnswer(world.trainer.tokenizer)] if stop else [])


def our_sampler(world: World, **options: bool) -> Contender:
    """Our engine; a call has its own seed, so every run draws other tokens."""
    trainer, seeds, prompts = world.trainer, count(), world.prompts
    engine = LocalEngine(trainer.model, trainer.tokenizer, **options)

    def run() -> Run:
        params = SamplingParams(
            n=trainer.config.group_size,
            max_tokens=trainer.config.sampling_max_tokens,
            stop=trainer.prompt.stop,
            seed=next(seeds),
        )
        started = time.perf_counter()
        completions = engine.generate_completions(prompts, params)
        return Run(time.perf_counter() - started, sum(len(c.token_ids) for c in completions))

    return run


def generate_sampler(world: World, cache: str | None) -> Contender:
    """Hugging Face `generate`, texts in and texts out as in our engine."""
    trainer, seeds, prompts = world.trainer, count(), world.prompts
    model, tokenizer, config = trainer.model, trainer.tokenizer, trainer.config
    tokenizer.padding_side = "left"
    settings: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    settings |= {"cache_implementation": cache} if cache else {}
    criteria = stopping_criteria(world)

    def run() -> Run:
        torch.manual_seed(next(seeds))
        started = time.perf_counter()
        batch = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
        with evaluation_mode(model), torch.inference_mode():
            ids = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                num_return_sequences=config.group_size,
                max_new_tokens=config.sampling_max_tokens,
                stopping_criteria=criteria,
                disable_compile=True,
                **settings,
            )
        new_ids = ids[:, batch["input_ids"].shape[1] :]
        tokenizer.batch_decode(new_ids, skip_special_tokens=True)
        seconds = time.perf_counter() - started
        return Run(seconds, count_tokens(new_ids, tokenizer.pad_token_id))

    return run


def count_tokens(new_ids: Tensor, pad_token_id: int) -> int:
    """Tokens up to each row's end: what follows it is padding."""
    padding = new_ids == pad_token_id
    trailing = padding.flip(1).cumprod(dim=1).sum(dim=1)  # padding after the last real token
    return int((new_ids.shape[1] - trailing).sum())


@contextmanager
def samplers(world: World, report: Report, quick: bool) -> Iterator[dict[str, Contender]]:
    """All samplers that there are here; what is missing is said in the report."""
    contenders = {OURS: our_sampler(world)}
    contenders |= {name: generate_sampler(world, cache) for name, cache in CACHES.items()}
    with vllm_sampler(world, report, quick) as vllm:
        yield contenders | vllm


def measure(scale: Scale) -> Report:
    """Tokens a second and live bytes of every sampler in every setting; what ours is made of."""
    report = Report("Sampling")
    worlds: list[Callable[[], World]] = [
        lambda: random_world(scale, stops=True),
        lambda: random_world(scale, stops=False),
        lambda: pocket_world(scale),
    ]
    samplers_rows, ablation_rows = [], []
    for make_world in worlds:
        world = make_world()
        with samplers(world, report, scale.quick) as contenders:
            samplers_rows += rows(world, contenders, "sampler", scale)
        variants = {name: our_sampler(world, **options) for name, options in ABLATION.items()}
        ablation_rows += rows(world, variants, "our engine", scale)
    report.tables = {"samplers": samplers_rows, "ablation": ablation_rows}
    return report


def rows(
    world: World, contenders: dict[str, Contender], column: str, scale: Scale
) -> list[dict[str, Value]]:
    """One row a contender: speed, how often the first one's time it takes, length, live bytes."""
    found = interleave(contenders, scale.repeats)
    n_rows = len(world.problems) * world.trainer.config.group_size
    speeds = {n: spread([r.tokens / r.seconds for r in runs]) for n, runs in found.items()}
    first = next(iter(speeds))
    return [
        {
            "setting": world.name,
            column: name,
            "tokens/s": speeds[name],
            f"{first}, times this": speeds[first]["median"] / speeds[name]["median"],
            "mean tokens": sum(run.tokens for run in runs) / len(runs) / n_rows,
            "peak live MB": live_megabytes(contenders[name]),
        }
        for name, runs in found.items()
    ]


def live_megabytes(contender: Contender) -> float | None:
    """Of a contender in this process; of another process nothing is seen."""
    return peak_live_bytes(contender) / 1e6 or None
