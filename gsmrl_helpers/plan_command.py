"""The command `gsmrl plan`. Apart from `run_plan`, so that `gsmrl --help` needs no torch."""

from __future__ import annotations

from typing import Annotated

import typer

from gsmrl_helpers.command_reports import PROFILE_HELP


def plan_command(
    profile: Annotated[str, typer.Option(help=PROFILE_HELP)] = "pocket",
    experiment: Annotated[str, typer.Option(help="The experiment's name.")] = "on-policy",
    variant: Annotated[str, typer.Option(help="One of the experiment's.")] = "standard",
    settings: Annotated[list[str] | None, typer.Option("--set", help="name=value")] = None,
    gpu: Annotated[str | None, typer.Option(help="H100, RTX 4080, …: its memory.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of the longest; without it, counted or assumed.")
    ] = None,
    response_tokens: Annotated[float | None, typer.Option(min=1, help="On average.")] = None,
    sampling_speed: Annotated[float | None, typer.Option(help="Tokens per second.")] = None,
    training_speed: Annotated[float | None, typer.Option(help="Tokens per second.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Both speeds, here.")] = False,
) -> None:
    """Memory of each device and time of a run, before it runs: exit 1 if it does not fit."""
    from rich.console import Console

    from gsmrl_helpers.cli import parse_overrides
    from gsmrl_helpers.experiments import experiment_config
    from gsmrl_helpers.run_plan import GPU_MEMORY, longest_prompt, plan_run
    from gsmrl_helpers.step_time import Throughput, measure_throughput, step_time

    config = experiment_config(experiment, profile, variant, 0, parse_overrides(settings or []))
    if gpu is not None and gpu not in GPU_MEMORY:
        raise ValueError(f"--gpu {gpu!r} is unknown; allowed: {', '.join(GPU_MEMORY)}")
    if (sampling_speed is None) != (training_speed is None) or (measure and sampling_speed):
        raise ValueError("give both --sampling-speed and --training-speed, or --measure alone")
    time = None
    if measure:
        speed, mean_prompt, mean_response = measure_throughput(config)
        time = step_time(config, speed, mean_prompt, response_tokens or mean_response)
    elif sampling_speed is not None:
        speed = Throughput(
            sampling_tokens_per_second=sampling_speed, training_tokens_per_second=training_speed
        )
        prompt, response = prompt_tokens or longest_prompt(config), config.sampling_max_tokens
        time = step_time(config, speed, prompt, response_tokens or response)
    memory = GPU_MEMORY[gpu] if gpu else None
    plan = plan_run(config, prompt_tokens=prompt_tokens, gpu_memory=memory, time=time)
    Console().print(plan)
    raise typer.Exit(0 if plan.fits else 1)
