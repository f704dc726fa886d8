"""How runs get on: a live table on a terminal, elsewhere a line for each thing that happens."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gsmrl_helpers.progress import validation_accuracies
from gsmrl_helpers.run_jobs import Run
from gsmrl_helpers.run_outputs import steps_taken

EVERY_S = 1.0  # the files of running runs are read
FRAME = 6  # lines of the table that are no rows
STYLES = {"running": "bold", "failed": "bold red", "waiting": "dim"}


def _any_runs(runs: Iterable[Run]) -> bool:
    return any(run.state == "running" for run in runs)


class Watcher(Protocol):
    """Who is told how the runs get on."""

    def say(self, text: str) -> None:
        """Something that no run's state tells."""

    def update(self) -> None:
        """Called often: look how far the runs are."""

    def close(self) -> None:
        """Called at the end."""


def watch(runs: Sequence[Run]) -> Watcher:
    """A table where the output is a terminal, lines where it is none."""
    console = Console(highlight=False)
    return LiveTable(runs, console) if console.is_terminal else Lines(runs)


class Pace:
    """How far the runs are, and from how fast that went, the time left for all of them."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._at_first = {run: steps_taken(run.folder) for run in runs}
        self._started: float | None = None
        self.steps = dict(self._at_first)

    def look(self) -> None:
        """Read how far those runs are that are running, or were until now."""
        for run in self._runs:
            if run.state == "running":
                self._started = self._started or time.monotonic()
            if run.state in ("running", "finished"):
                self.steps[run] = steps_taken(run.folder)

    def seconds_left(self) -> float | None:
        """Seconds, if all steps take as long as those until now; None before there are any."""
        still = [run for run in self._runs if run.state in ("waiting", "running")]
        left = sum(run.config.n_grpo_steps - self.steps[run] for run in still)
        taken = sum(self.steps[run] - self._at_first[run] for run in self._runs)
        if self._started is None or taken < 1:
            return None
        return left * (time.monotonic() - self._started) / taken

    def in_words(self) -> str:
        """The time left, to the minute."""
        seconds = self.seconds_left()
        if seconds is None:
            return "time left not known yet"
        if seconds == 0:
            return "nothing left"
        minutes = max(1, round(seconds / 60))
        hours = f"{minutes // 60} h " if minutes >= 60 else ""
        return f"about {hours}{minutes % 60} min left"


class Lines:
    """A line for each run that starts, validates or ends; what fails goes to standard error."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._pace = Pace(runs)
        self._told = {run: run.state for run in runs}
        self._seen = {run: set(validation_accuracies(run.folder)) for run in runs}
        self._next = 0.0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def update(self) -> None:
        changed = [run for run in self._runs if run.state != self._told[run]]
        if not changed and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        self._pace.look()
        for run in self._runs:
            if run.state == "running" or (run in changed and run.state != "kept"):
                self._tell_accuracies(run)
            if run in changed:
                self._tell_state(run)

    def _tell_accuracies(self, run: Run) -> None:
        for step, accuracy in validation_accuracies(run.folder).items():
            if step not in self._seen[run]:
                self._seen[run].add(step)
                self.say(f"{run.name}, step {step}: validation accuracy {accuracy:.3f}")

    def _tell_state(self, run: Run) -> None:
        self._told[run] = run.state
        if run.state == "failed":
            print(f"{run.name}: failed", file=sys.stderr, flush=True)
        elif run.state == "kept":
            self.say(f"{run.name} is finished: kept (--fresh runs it again)")
        elif run.state == "finished":
            self.say(f"{run.name}: finished; {self._pace.in_words()}")
        else:
            self.say(f"{run.name}: {run.state}")

    def close(self) -> None:
        self._next = 0.0
        self.update()


class LiveTable:
    """A row a variant, a column a seed, in each cell how that run stands."""

    def __init__(self, runs: Sequence[Run], console: Console) -> None:
        self._runs = runs
        self._pace = Pace(runs)
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        self._next = 0.0

    def say(self, text: str) -> None:
        self._live.console.print(Text(text))

    def update(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            self._pace.look()
            self._live.update(self.table(self._live.console.height), refresh=True)

    def close(self) -> None:
        self._pace.look()
        self._live.update(self.table(), refresh=True)
        self._live.stop()

    def table(self, height: int | None = None) -> Group:
        """How all runs stand; on a terminal of too few lines, those of the variants that run."""
        rows: dict[tuple[str, str], dict[int, Run]] = {}
        for run in self._runs:
            rows.setdefault((run.experiment, run.variant), {})[run.seed] = run
        if height is not None and len(rows) > height - FRAME:
            rows = {name: row for name, row in rows.items() if _any_runs(row.values())}
        seeds = sorted({run.seed for run in self._runs})
        table = Table(box=SIMPLE)
        for heading in ["experiment", "variant", *(f"seed {seed}" for seed in seeds)]:
            table.add_column(heading, no_wrap=True)
        for name, row in rows.items():
            table.add_row(*name, *(self._cell(row[seed]) if seed in row else "" for seed in seeds))
        return Group(self._summary(), table)

    def _summary(self) -> str:
        counts = Counter(run.state for run in self._runs)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"{len(self._runs)} runs: {told}; {self._pace.in_words()}"

    def _cell(self, run: Run) -> Text:
        text = run.state
        if text == "running":
            text = f"{self._pace.steps[run]}/{run.config.n_grpo_steps}"
        return Text(text, style=STYLES.get(run.state, ""))
