"""The command `gsmrl grade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def grade_command(
    path: Annotated[Path, typer.Argument(help='A row a line: {"response": ..., "gold": ...}')],
    reward: Annotated[str, typer.Option(help="As in a run, such as question_only.")] = "r1_zero",
    out: Annotated[Path | None, typer.Option(help="A new file for rows and rewards.")] = None,
) -> None:
    """Grade a file of responses: counts of the three categories; exit 1 if a line is bad."""
    from gsmrl_helpers.grade_file import MAX_BAD_LINES_SHOWN, grade_file
    from gsmrl_helpers.reward_shaping import REWARD_FNS

    if reward not in REWARD_FNS:
        raise ValueError(f"unknown reward {reward!r}; choose one of {', '.join(REWARD_FNS)}")
    summary = grade_file(path, REWARD_FNS[reward], out, show_progress=True)
    typer.echo(summary)
    for number, problem in summary.bad_lines[:MAX_BAD_LINES_SHOWN]:
        typer.echo(f"line {number}: {problem}", err=True)
    if len(summary.bad_lines) > MAX_BAD_LINES_SHOWN:
        numbers = ", ".join(str(number) for number, _ in summary.bad_lines[MAX_BAD_LINES_SHOWN:])
        typer.echo(f"bad, too: lines {numbers}", err=True)
    if summary.bad_lines:
        raise typer.Exit(1)
