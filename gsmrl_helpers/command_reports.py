"""What the commands of `gsmrl` share: how --profile is explained, and how a command ends, with an
error that can be mended or a list of problems."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from gsmrl_helpers.options import profile_names

PROFILE_HELP = f"The scale: {', '.join(profile_names())}."


def say_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show an error that a user can mend as one clean message and exit with 2."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error

    return wrapped


def report(problems: list[str], what: str) -> None:
    """Print the problems and exit with 1, or say that there are none."""
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        typer.echo(f"{what}: {len(problems)} problems", err=True)
        raise typer.Exit(1)
    typer.echo(f"{what}: no problems")
