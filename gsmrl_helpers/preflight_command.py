"""The command `gsmrl preflight`. Apart from `preflight`, so that `gsmrl --help` needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from gsmrl_helpers.command_reports import PROFILE_HELP


def preflight_command(
    experiment: Annotated[str, typer.Option(help="The experiment's name.")] = "on-policy",
    profile: Annotated[str, typer.Option(help=PROFILE_HELP)] = "pocket",
    variant: Annotated[str, typer.Option(help="One of the experiment's.")] = "standard",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    problems: Annotated[int, typer.Option(min=1, help="Training problems to ask.")] = 64,
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value")] = None,
) -> None:
    """Measure policy, problems, checker and speed before a run: exit 0 is go, 1 is not yet."""
    from rich.console import Console

    from gsmrl_helpers.cli import parse_overrides
    from gsmrl_helpers.experiments import experiment_config
    from gsmrl_helpers.preflight import preflight

    overrides = parse_overrides(settings or [])
    config = experiment_config(experiment, profile, variant, seed, overrides)
    try:
        result = preflight(config, problems)
    except FloatingPointError as error:
        raise ValueError(f"the policy {config.policy!r} does not work: {error}") from error
    Console().print(result)
    raise typer.Exit(0 if result.verdict == "go" else 1)
