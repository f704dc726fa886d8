"""Growth: time and memory of a step against its sizes, one at a time, and the line through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.step import our_step, update_live_bytes
from benchmarks.timing import Report, Scale, Value, interleave, seconds_of, timed
from benchmarks.worlds import World, random_world
from gsmrl_helpers.rollouts import Rollouts

SHARES = (0.0, 0.25, 0.5, 0.75)
VOCABULARIES = (300, 3_000, 10_000, 30_000)
FACTORS = (0.25, 0.5, 1, 2)


def scaled(scale: Scale, size: str, factor: float) -> Scale:
    """The scale with one of its sizes multiplied."""
    return replace(scale, **{size: max(2, round(factor * getattr(scale, size)))})


def regrouped(scale: Scale, factor: float) -> Scale:
    """As many rows in groups of another size."""
    group_size = max(2, round(factor * scale.group_size))
    n_prompts = scale.n_prompts * scale.group_size // group_size
    return replace(scale, group_size=group_size, n_prompts=n_prompts)


def axes(scale: Scale) -> dict[str, dict[float, Callable[[], tuple[World, float]]]]:
    """For each size its values, each with the world to measure and its share without a signal."""

    def world_at(
        at: Scale, share: float = 0.0, **options: int
    ) -> Callable[[], tuple[World, float]]:
        return lambda: (random_world(at, stops=False, **options), share)

    batch = [scaled(scale, "n_prompts", factor) for factor in FACTORS]
    length = [scaled(scale, "max_tokens", factor) for factor in FACTORS]
    groups = [regrouped(scale, factor) for factor in FACTORS]
    return {
        "rows": {at.n_prompts * at.group_size: world_at(at) for at in batch},
        "response tokens": {at.max_tokens: world_at(at) for at in length},
        "group size": {at.group_size: world_at(at) for at in groups},
        "share without signal": {share: world_at(scale, share) for share in SHARES},
        "vocabulary": {size: world_at(scale, vocab_size=size) for size in VOCABULARIES},
    }


def without_signal(rollouts: Rollouts, share: float) -> Rollouts:
    """The rollouts with equal rewards in a share of the groups, the first ones."""
    rewards = rollouts.rewards.clone()
    rewards[: round(share * len(rewards) / rollouts.group_size) * rollouts.group_size] = 0.0
    return replace(rollouts, rewards=rewards)


def different_tokens(world: World, rollouts: Rollouts) -> int:
    """Tokens of the groups with a signal, prompts once a group: what an update has to read."""
    size = rollouts.group_size
    groups = rollouts.rewards.view(-1, size)
    rows = (groups != groups[:, :1]).any(dim=1).repeat_interleave(size).tolist()
    texts = {p for p, has_signal in zip(rollouts.prompts, rows, strict=True) if has_signal}
    prompts = (
        world.trainer.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
    )
    answers = zip(rollouts.completions, rows, strict=True)
    return sum(map(len, prompts)) + sum(len(c.token_ids) for c, has_signal in answers if has_signal)


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line, and R²."""
    slope, intercept = np.polyfit(x, y, 1)
    residual = np.asarray(y) - (slope * np.asarray(x) + intercept)
    return float(slope), float(1 - residual.var() / np.var(y))


def measure_axis(
    axis: str, points: dict[float, Callable[[], tuple[World, float]]], scale: Scale
) -> list[dict[str, Value]]:
    """One row a value: what an update reads, its time and memory, and the time of sampling."""
    updates, samplings, tokens, memory = {}, {}, {}, {}
    for value, make_world in points.items():
        world, share = make_world()
        rollouts = without_signal(world.sample(), share)
        tokens[value] = different_tokens(world, rollouts)
        updates[value] = our_step(world, rollouts)
        samplings[value] = timed(world.sample)
        memory[value] = update_live_bytes(world, rollouts) / 1e6
    sampled = interleave(samplings, scale.repeats)
    updated = interleave(updates, scale.repeats)
    return [
        {
            "size": axis,
            "value": value,
            "tokens": tokens[value],
            "sampling, s": seconds_of(sampled[value]),
            "update, s": seconds_of(updated[value]),
            "update, peak live MB": memory[value],
        }
        for value in points
    ]


def fit(axis: str, rows: list[dict[str, Value]]) -> dict[str, Value]:
    """The line of an axis: in the vocabulary's size there, elsewhere in tokens."""
    x_name = "value" if axis == "vocabulary" else "tokens"
    x = [row[x_name] for row in rows]
    seconds_slope, seconds_r2 = line(x, [row["update, s"]["median"] for row in rows])
    memory_slope, memory_r2 = line(x, [row["update, peak live MB"] for row in rows])
    return {
        "size": axis,
        "line in": "vocabulary" if axis == "vocabulary" else "tokens",
        "update, ms for each 1,000": 1e6 * seconds_slope,
        "R² of time": seconds_r2,
        "MB for each 1,000": 1e3 * memory_slope,
        "R² of memory": memory_r2,
    }


def measure(scale: Scale) -> Report:
    """Every size, and the lines."""
    report = Report("Growth")
    points = axes(scale)
    if scale.quick:  # a size that needs no larger world
        points = {"share without signal": points["share without signal"]}
    tables = {axis: measure_axis(axis, values, scale) for axis, values in points.items()}
    report.tables = {
        "sizes": [row for rows in tables.values() for row in rows],
        "lines": [fit(axis, rows) for axis, rows in tables.items()],
    }
    return report
