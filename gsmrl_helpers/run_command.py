"""The command `gsmrl run`. Apart from `run_many`, so that `gsmrl --help` needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gsmrl_helpers.command_reports import PROFILE_HELP
from gsmrl_helpers.paths import RUNS_DIR


def run_command(
    experiments: Annotated[
        list[str], typer.Argument(metavar="EXPERIMENT", help="Names such as on-policy, or all.")
    ],
    profile: Annotated[str, typer.Option(help=PROFILE_HELP)] = "pocket",
    seeds: Annotated[
        str | None, typer.Option(help="0, or 0,1,5, or 0-3; without it, the catalogue's.")
    ] = None,
    variants: Annotated[str | None, typer.Option(help="Some of them, as in GRPO,RFT.")] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where runs are kept.")] = RUNS_DIR,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs at a time: they share the cores, and have GPUs of their own."
        ),
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run finished ones again.")] = False,
    ray: Annotated[str | None, typer.Option(help="A Ray cluster's address: run there.")] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of each run on a Ray cluster, one if not said.")
    ] = None,
) -> None:
    """Run the variants of experiments, once a seed: finished runs are kept, stopped ones go on."""
    from gsmrl_helpers import run_many
    from gsmrl_helpers.cli import parse_names, parse_overrides, parse_seeds

    try:
        failures = run_many.run_experiments(
            experiments,
            profile,
            None if seeds is None else parse_seeds(seeds),
            runs_dir,
            jobs=jobs,
            overrides=parse_overrides(settings or []),
            fresh=fresh,
            variants=None if variants is None else parse_names(variants),
            ray=ray,
            cpus=cpus,
        )
    except KeyboardInterrupt as interrupt:
        typer.echo("interrupted: the same command goes on from the last checkpoint", err=True)
        raise typer.Exit(130) from interrupt
    for failure in failures:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)
