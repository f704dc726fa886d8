"""The page "How fast, and why": its tables come from what `make bench` has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

BENCH_FOLDER = Path("data") / "results" / "bench"

Rows = Sequence[Mapping[str, Any]]


class BenchMissingError(ValueError):
    """A bench that the page shows is not on record."""


def read_bench(copy: Path, name: str) -> dict[str, Any]:
    """What a bench has written, from the clone or a copy of it.

    Raises:
        BenchMissingError: it was never run.
    """
    path = copy / BENCH_FOLDER / f"{name}.json"
    if not path.is_file():
        raise BenchMissingError(f"{BENCH_FOLDER.as_posix()}/{name}.json is missing: run make bench")
    return json.loads(path.read_text(encoding="utf-8"))


def display(value: Any) -> str:
    """A table's value as text: three digits, a spread as median (smallest–largest)."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        median, low, high = (display(value[key]) for key in ("median", "min", "max"))
        return f"{median} ({low}–{high})"
    if isinstance(value, float):
        return three_digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def three_digits(value: float) -> str:
    """Three significant digits, without an exponent where that reads well."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        digits = f"{float(f'{value:.3g}'):,.10f}".rstrip("0").rstrip(".")
        return digits
    return f"{value:.1e}"


def markdown_rows(rows: Rows) -> str:
    """Rows as a Markdown table; numbers stand on the right."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numeric = {c for c in columns if not any(isinstance(row.get(c), str) for row in rows)}
    lines = [columns, ["---:" if column in numeric else "---" for column in columns]]
    lines += [[display(row.get(column)) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bench_markdown(name: str, table: str, copy: Path) -> str:
    """One table of a bench, how to make it again, and what was left out.

    Raises:
        BenchMissingError: the bench was never run, or was before it had this table.
    """
    found = read_bench(copy, name)
    if table not in found["tables"]:
        raise BenchMissingError(f"{name}.json has no table {table!r}: run make bench again")
    machine = found["machine"]
    versions = machine["versions"]
    lines = [
        markdown_rows(found["tables"][table]),
        "",
        f"`{found['command']}`, {machine['date']}, torch {versions['torch']}, "
        f"threads: {machine['threads']}, cores: {machine['cores']} "
        f"({machine['processor']}, {machine['cpu_capability']}), commit "
        f"{(machine['commit'] or 'unknown')[:7]}.",
    ]
    if "--quick" in found["command"]:
        lines += [
            "",
            "**Of one tiny turn, which shows that the bench works and measures nothing.**",
        ]
    if found["left_out"]:
        lines += ["", "Left out: " + "; ".join(found["left_out"]) + "."]
    return "\n".join(lines)


sampling_markdown = partial(bench_markdown, "sampling", "samplers")
sampler_parts_markdown = partial(bench_markdown, "sampling", "ablation")
rounding_markdown = partial(bench_markdown, "rounding", "gradients")
profile_markdown = partial(bench_markdown, "profile", "kinds")
older_processor_markdown = partial(bench_markdown, "sampling_older_processor", "samplers")
step_markdown = partial(bench_markdown, "step", "steps")
gradients_markdown = partial(bench_markdown, "step", "gradients")
update_parts_markdown = partial(bench_markdown, "update", "ways")
uniform_markdown = partial(bench_markdown, "update", "uniform")
padding_markdown = partial(bench_markdown, "update", "padding")
log_probs_markdown = partial(bench_markdown, "log_probs", "ways")
grading_markdown = partial(bench_markdown, "grading", "corpora")
growth_markdown = partial(bench_markdown, "growth", "sizes")
growth_lines_markdown = partial(bench_markdown, "growth", "lines")
course_markdown = partial(bench_markdown, "course", "parts")


def signal_share_markdown(copy: Path) -> str:
    """What share of the rows a step of the recorded run trains on: at first, and along the run."""
    table = pd.read_parquet(copy / "data" / "results" / "pocket" / "on-policy.parquet")
    rows = table[table["metric"] == "trained_row_share"].dropna(subset="value")
    by_step = rows.groupby("step")["value"].mean()
    steps = [1, 10, 20, 50, int(by_step.index.max())]
    shown: list[dict[str, Any]] = [
        {"step": str(s), "rows with a signal": by_step[s]} for s in steps
    ]
    return markdown_rows([*shown, {"step": "all, mean", "rows with a signal": by_step.mean()}])


# --- what was asked for -----------------------------------------------------------------------


def bars_markdown(copy: Path) -> str:
    """Each thing that was asked of the code before it was written, and what was measured."""
    tables = {name: measured_tables(read_bench(copy, name)) for name in BENCHES}
    return markdown_rows([bar.row(bar.measure(tables)) for bar in BARS])


def measured_tables(bench: Mapping[str, Any]) -> dict[str, Rows]:
    """A bench's tables, without rows where they are those of one tiny turn."""
    is_quick = "--quick" in bench["command"]
    return {name: [] if is_quick else rows for name, rows in bench["tables"].items()}


@dataclass(frozen=True)
class Bar:
    """What a figure must reach: at least `limit`, or at most where `at_most`."""

    what: str
    limit: float
    measure: Callable[[Mapping[str, Any]], float | None]
    at_most: bool = False

    def row(self, measured: float | None) -> dict[str, Any]:
        """The bar's row in the table."""
        reached = measured is not None and (
            measured <= self.limit if self.at_most else measured >= self.limit
        )
        return {
            "what": self.what,
            "asked": f"{'≤' if self.at_most else '≥'} {display(self.limit)}",
            "measured": display(measured),
            "reached": "yes" if reached else "not measured" if measured is None else "no",
        }


BENCHES = ("sampling", "step", "update", "log_probs", "growth", "course")


def speed_up(setting: str, sampler: str) -> Callable[[Mapping[str, Any]], float | None]:
    """How many times the sampler's tokens a second ours makes; of several, the fastest counts."""

    def measure(benches: Mapping[str, Any]) -> float | None:
        rows = [row for row in benches["sampling"]["samplers"] if row["setting"] == setting]
        return smallest(r["ours, times this"] for r in rows if r["sampler"].startswith(sampler))

    return measure


def step_ratio(setting: str) -> Callable[[Mapping[str, Any]], float | None]:
    """TRL's seconds for a whole step over ours, the smaller of the two losses'."""

    def measure(benches: Mapping[str, Any]) -> float | None:
        rows = [row for row in benches["step"]["steps"] if row["setting"] == setting]
        return smallest(row["TRL / ours"] for row in rows if row["part"] == "whole step")

    return measure


def largest_gradient_difference(benches: Mapping[str, Any]) -> float | None:
    """Of ours from the plain one, over worlds and losses, in float64."""
    differences = [row["ours from plain, float64"] for row in benches["step"]["gradients"]]
    return max(differences, default=None)


def of_naive(column: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Our time or memory as a share of the naive way's."""

    def measure(benches: Mapping[str, Any]) -> float | None:
        rows = benches["log_probs"]["ways"]
        return next((row[column] for row in rows if row["way"] == "ours"), None)

    return measure


def smallest_r2(benches: Mapping[str, Any]) -> float | None:
    """The worst line of time in tokens, group size aside, which hardly changes their number."""
    rows = [row for row in benches["growth"]["lines"] if row["line in"] == "tokens"]
    return smallest(row["R² of time"] for row in rows if row["size"] != "group size")


def padding_share(benches: Mapping[str, Any]) -> float | None:
    """Of the tokens that an update of pocket rollouts processes."""
    return next((row["padding, share"] for row in benches["update"]["padding"]), None)


def course_seconds(what: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Seconds of a part of the course, by how its row begins."""

    def measure(benches: Mapping[str, Any]) -> float | None:
        rows = benches["course"]["parts"]
        return next((row["seconds"] for row in rows if row["what"].startswith(what)), None)

    return measure


def smallest(values: Iterable[float | None]) -> float | None:
    """The smallest of those that were measured, None where none was."""
    return min((value for value in values if value is not None), default=None)


STOPS, NONE_STOPS = "random, stops", "random, none stops"
BARS = (
    Bar("sampling, answers stop at a third: times `generate`", 2.7, speed_up(STOPS, "generate")),
    Bar("sampling, none stops: times `generate`", 1.7, speed_up(NONE_STOPS, "generate")),
    Bar("sampling, answers stop at a third: times vLLM", 1.0, speed_up(STOPS, "vLLM")),
    Bar("sampling, none stops: times vLLM", 1.0, speed_up(NONE_STOPS, "vLLM")),
    Bar("a step on pocket rollouts: TRL's time over ours", 3.5, step_ratio("pocket")),
    Bar("a step at uniform length: TRL's time over ours", 1.7, step_ratio(NONE_STOPS)),
    Bar(
        "gradient: relative difference from the plain one", 1e-6, largest_gradient_difference, True
    ),
    Bar("log-probabilities: live bytes over naive's", 0.2, of_naive("memory of naive's"), True),
    Bar("log-probabilities: time over naive's", 0.7, of_naive("time of naive's"), True),
    Bar("growth in rows, length, signal: smallest R² of the update's time", 0.98, smallest_r2),
    Bar("padding, share of the tokens of pocket rollouts", 0.05, padding_share, True),
    Bar("one run of the pocket profile, seconds", 90, course_seconds("one run"), True),
    Bar("`make book`, a run included, seconds", 300, course_seconds("make book"), True),
    Bar("all CPU notebooks, seconds", 480, course_seconds("all CPU"), True),
)
