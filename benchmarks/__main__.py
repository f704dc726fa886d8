"""Run the benches, write what they find, show it as tables: `python -m benchmarks`."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console
from transformers.utils.logging import set_verbosity_error

from benchmarks.timing import QUICK, Report, Scale, machine_facts
from gsmrl_helpers.how_fast import BENCH_FOLDER, display
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.records import write_json
from gsmrl_helpers.tables import as_rich

app = typer.Typer(add_completion=False)


class Bench(StrEnum):
    """The benches, each a module of this folder with a function `measure(scale)`."""

    SAMPLING = "sampling"
    STEP = "step"
    UPDATE = "update"
    LOG_PROBS = "log_probs"
    GRADING = "grading"
    GROWTH = "growth"
    ROUNDING = "rounding"
    PROFILE = "profile"
    COURSE = "course"


def show(report: Report, console: Console) -> None:
    """The report's tables, and what it lacks."""
    for name, rows in report.tables.items():
        table = pd.DataFrame([{c: display(v) for c, v in row.items()} for row in rows])
        console.print(as_rich(table, f"{report.title}: {name}"))
    for reason in report.left_out:
        console.print(f"left out: {reason}", style="yellow", markup=False)


def record(bench: Bench, report: Report, command: str, folder: Path) -> None:
    """Write a bench's findings beside what they depend on."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"title": report.title, "command": command, "machine": machine_facts()}
    found |= {"tables": report.tables, "left_out": report.left_out}
    write_json(folder / f"{bench}.json", found)


@app.command()
def main(
    only: Annotated[list[Bench] | None, typer.Option(help="This bench; repeatable.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every contender.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of every contender.")] = 5,
    quick: Annotated[bool, typer.Option(help="One tiny turn, to see that it works.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the JSON files.")] = ROOT / BENCH_FOLDER,
) -> None:
    """Measure our code beside its peers; medians (smallest–largest), contenders taking turns."""
    if quick and out == ROOT / BENCH_FOLDER:
        raise typer.BadParameter("a quick run measures nothing worth keeping: give --out")
    torch.set_num_threads(threads)
    scale = QUICK if quick else Scale(repeats=repeats)
    options = [f"--threads {threads}", f"--repeats {repeats}"] if not quick else ["--quick"]
    for bench in only or list(Bench):
        report = import_module(f"benchmarks.{bench}").measure(scale)
        command = " ".join(["python -m benchmarks", f"--only {bench}", *options])
        record(bench, report, command, out)
        show(report, Console())


if __name__ == "__main__":
    set_verbosity_error()
    app()
