"""One GRPO step, sampling included, and the update alone on the same rollouts: ours and TRL's."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.gradients import plain_gradient
from benchmarks.precision import in_float64
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
from benchmarks.worlds import World, pocket_world, random_world, recorded_gradient
from gsmrl_helpers.loop import update_policy
from gsmrl_helpers.rollouts import Rollouts

NO_TRL = "TRL is not installed here: make bench makes an environment that has it"


def settings_of(loss: str, scale: Scale) -> dict[str, Any]:
    """The settings of our run that make TRL's loss of that name."""
    if loss == "grpo":
        return {}
    n_tokens = scale.n_prompts * scale.group_size * scale.max_tokens
    return {
        "advantage_normalizer": "none",
        "loss_normalization": "constant",
        "normalization_constant": float(n_tokens),
    }


def our_step(world: World, rollouts: Rollouts | None = None) -> Contender:
    """Our step from the world's own weights, on its own samples or on the given rollouts."""

    def run() -> Run:
        with world.unchanged():
            started = time.perf_counter()
            update_policy(world.trainer, rollouts or world.sample())
            return Run(time.perf_counter() - started)

    return run


def update_live_bytes(world: World, rollouts: Rollouts) -> int:
    """The most bytes that an update of ours holds, beside weights and AdamW's moments.

    With one thread, as only the tensors of this one are counted: on two cores two of its halves
    are held at once.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with world.unchanged():
            return peak_live_bytes(lambda: update_policy(world.trainer, rollouts))
    finally:
        torch.set_num_threads(threads)


def our_gradient(world: World, rollouts: Rollouts) -> list[Tensor]:
    """What our optimizer gets of one step, by parameter."""
    trainer = world.trainer
    with world.unchanged(), recorded_gradient(trainer.optimizer, trainer.model) as gradient:
        update_policy(trainer, rollouts)
    return gradient


def measure(scale: Scale) -> Report:
    """Both trainers in both worlds, with both losses; the gradients of one step compared."""
    report = Report("One GRPO step")
    has_trl = find_spec("trl") is not None
    if not has_trl:
        report.left_out.append(NO_TRL)
    steps, gradients = [], []
    for world in (random_world(scale, stops=False), pocket_world(scale)):
        rollouts = world.sample()
        for loss in ("dr_grpo", "grpo"):
            ours = world.with_settings(**settings_of(loss, scale))
            steps += compare(ours, loss, rollouts, has_trl, scale)
            if has_trl:
                gradients.append(compare_gradients(ours, loss, rollouts))
    report.tables = {"steps": steps, "gradients": gradients}
    return report


def compare(
    world: World, loss: str, rollouts: Rollouts, has_trl: bool, scale: Scale
) -> list[dict[str, Value]]:
    """One row for the whole step, one for the update of the given rollouts."""
    contenders: dict[str, Contender] = {
        "whole step, ours": our_step(world),
        "update alone, ours": our_step(world, rollouts),
    }
    if has_trl:
        from benchmarks.trl_step import TRLStep

        contenders["whole step, TRL"] = TRLStep(world, loss)
        contenders["update alone, TRL"] = TRLStep(world, loss, rollouts)
    seconds = {
        name: seconds_of(runs) for name, runs in interleave(contenders, scale.repeats).items()
    }
    return [
        {
            "setting": world.name,
            "loss": loss,
            "part": part,
            "ours, s": (ours := seconds[f"{part}, ours"]),
            "TRL, s": (theirs := seconds.get(f"{part}, TRL")),
            "TRL / ours": theirs and theirs["median"] / ours["median"],
        }
        for part in ("whole step", "update alone")
    ]


def compare_gradients(world: World, loss: str, rollouts: Rollouts) -> dict[str, Value]:
    """Relative differences: of TRL's gradient from ours, and of both from the plain one.

    The latter in float64, where TRL still has float32: its head computes in that.
    """
    from benchmarks.trl_step import TRLStep

    def gradients() -> tuple[list[Tensor], list[Tensor]]:
        return our_gradient(world, rollouts), TRLStep(world, loss, rollouts).gradient()

    ours, theirs = gradients()
    row: dict[str, Value] = {"setting": world.name, "loss": loss}
    row["TRL from ours, float32"] = relative_difference(theirs, ours)
    with in_float64(world.trainer.model):
        plain = plain_gradient(world, rollouts)
        ours, theirs = gradients()
    row["ours from plain, float64"] = relative_difference(ours, plain)
    row["TRL from plain, float64"] = relative_difference(theirs, plain)
    return row
