"""The command `gsmrl doctor`. Apart from `doctor`, so that `gsmrl --help` stays quick."""

from __future__ import annotations

import typer


def doctor_command() -> None:
    """Say what this machine has, which profiles can run here and how long a run took elsewhere.

    Exits with 1 only where the pocket scale can't run.
    """
    from rich.console import Console

    from gsmrl_helpers.doctor import diagnose

    diagnosis = diagnose()
    Console().print(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)
