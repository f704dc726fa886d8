"""What float32 costs a gradient: the plain one's and ours, beside the exact one."""

from __future__ import annotations

from benchmarks.gradients import plain_gradient
from benchmarks.precision import in_float64
from benchmarks.step import our_gradient
from benchmarks.timing import Report, Scale, Value, relative_difference
from benchmarks.worlds import World, pocket_world, random_world


def rounding(world: World) -> list[dict[str, Value]]:
    """How far gradients of the same rollouts are from the plain one in float64, by norm."""
    rollouts = world.sample()
    plain, ours = plain_gradient(world, rollouts), our_gradient(world, rollouts)
    with in_float64(world.trainer.model):
        exact, ours_in_float64 = plain_gradient(world, rollouts), our_gradient(world, rollouts)
    found = {
        "plain, float32": relative_difference(plain, exact),
        "ours, float32": relative_difference(ours, exact),
        "ours, float64": relative_difference(ours_in_float64, exact),
    }
    return [
        {"setting": world.name, "gradient": name, "from the exact one": difference}
        for name, difference in found.items()
    ]


def measure(scale: Scale) -> Report:
    """Both worlds, with the loss of the pocket profile."""
    worlds = (random_world(scale, stops=False), pocket_world(scale))
    return Report("Rounding", {"gradients": [row for w in worlds for row in rounding(w)]})
