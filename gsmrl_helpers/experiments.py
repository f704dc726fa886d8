"""From the catalogue to the settings of a run, its seeds and its command."""

from __future__ import annotations

import json
import shlex

from gsmrl_helpers.catalogue import EXPERIMENTS, Experiment, Settings
from gsmrl_helpers.config import RunConfig, make_config, read_profile


def experiment_named(name: str) -> Experiment:
    """An experiment of the catalogue; an unknown name is a ValueError that lists the known ones."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment={name!r} is unknown; allowed: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def variants_of(experiment: str) -> tuple[str, ...]:
    """The names of an experiment's variants."""
    return tuple(experiment_named(experiment).variants)


def default_seeds(experiment: str, profile: str) -> tuple[int, ...]:
    """The seeds that the catalogue asks for at a profile's scale."""
    at_pocket, at_full = experiment_named(experiment).seeds
    return tuple(range(at_pocket if is_pocket(profile) else at_full))


def real_experiments(profile: str) -> list[str]:
    """What `gsmrl run all` runs: no smoke test, and nothing that needs another scale's problems."""
    return [
        name
        for name, experiment in EXPERIMENTS.items()
        if name != "smoke" and (is_pocket(profile) or not experiment.pocket_only)
    ]


def is_pocket(profile: str) -> bool:
    """Whether a profile's problems are the generated ones."""
    return read_profile(profile)["problems"] == "pocket"


def _shared_runs() -> dict[tuple[str, str], tuple[str, str]]:
    """Every variant of the catalogue -> the first that is the same run of the pocket profile."""
    pocket, first, shared = read_profile("pocket"), {}, {}
    for name, experiment in EXPERIMENTS.items():
        for variant, change in experiment.variants.items():
            settings = json.dumps({**pocket, **change(pocket)}, sort_keys=True)
            shared[name, variant] = first.setdefault(settings, (name, variant))
    return shared


SHARED_RUNS = _shared_runs()


def shared_run(experiment: str, variant: str) -> tuple[str, str]:
    """The experiment and variant as which a run is run, once for all that show it."""
    return SHARED_RUNS.get((experiment, variant), (experiment, variant))


def run_command(
    experiment: str, profile: str, variant: str, seed: int, overrides: Settings | None = None
) -> str:
    """The command line that makes a run again."""
    words = ["gsmrl", "run", experiment, "--profile", profile, "--variants", variant]
    words += ["--seeds", str(seed)]
    for name, value in (overrides or {}).items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def experiment_config(
    experiment: str,
    profile: str = "pocket",
    variant: str = "standard",
    seed: int = 0,
    overrides: Settings | None = None,
) -> RunConfig:
    """The settings of one run of an experiment; unknown names are a ValueError that lists those
    that are known."""
    variants = experiment_named(experiment).variants
    if experiment_named(experiment).pocket_only and not is_pocket(profile):
        raise ValueError(
            f"experiment={experiment!r} needs the generated problems, which profile {profile!r} "
            f"does not have; it has: {', '.join(real_experiments(profile))}"
        )
    if variant not in variants:
        raise ValueError(
            f"variant={variant!r} is not in experiment {experiment!r}; allowed: "
            f"{', '.join(variants)}"
        )
    settings = variants[variant](read_profile(profile))
    return make_config(profile, variant, seed, settings, overrides)
