"""The tables of the page "Execution status": from notebooks, manifests and the last `make test`."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nbformat import NotebookNode

from gsmrl_helpers.notebooks import cell_tags, code_cells, code_digest, read_notebook
from gsmrl_helpers.paths import BUILD_DIR, ROOT
from gsmrl_helpers.toc import chapters

NBVAL_REPORT = BUILD_DIR / "test" / "nbval.xml"
SHOWN_VERSIONS = ("python", "torch", "transformers")


def executed_markdown(copy: Path) -> str:
    """One row a notebook: cells executed and left to a GPU, outputs, seconds, date."""
    times, dates = cell_seconds(NBVAL_REPORT), commit_dates(ROOT)
    columns = ["notebook", "cells executed", "cells for a GPU, not executed", "stored outputs"]
    columns += ["seconds"] * bool(times) + ["last change"] * bool(dates)
    rows = []
    for name, path in chapters(copy).items():
        notebook = read_notebook(path)
        row = [f"{{doc}}`/notebooks/{name}`", *executed_cells(notebook)]
        row += [f"{times[name]:.0f}" if name in times else "–"] * bool(times)
        row += [unbroken(dates.get(f"notebooks/{name}.ipynb", "–"))] * bool(dates)
        rows.append(row)
    source = (
        "Seconds are those of `make test` in the clone that these pages were built from, several "
        "notebooks at a time, each with one thread."
        if times
        else "There is no report of `make test` in the clone that these pages were built from, so "
        "the table has no seconds."
    )
    return f"{markdown_table(columns, rows)}\n\n{source}"


def executed_cells(notebook: NotebookNode) -> list[str]:
    """Executed code cells, those that are skipped, and whether the outputs are this code's."""
    cells = [cell for cell in code_cells(notebook) if cell.source.strip()]
    skipped = sum("nbval-skip" in cell_tags(cell) for cell in cells)
    executed = sum(cell.execution_count is not None for cell in cells)
    current = notebook.metadata.get("gsmrl", {}).get("executed_sha256") == code_digest(notebook)
    return [str(executed), str(skipped or ""), "of this code" if current else "of older code"]


def cell_seconds(report: Path) -> dict[str, float]:
    """Seconds of each notebook's cells in a JUnit report of nbval; empty without one."""
    seconds: dict[str, float] = defaultdict(float)
    if report.is_file():
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            found = re.search(r"(\d\d_\w+)\.ipynb", f"{case.get('classname')} {case.get('name')}")
            if found:
                seconds[found[1]] += float(case.get("time", 0))
    return dict(seconds)


def commit_dates(root: Path) -> dict[str, str]:
    """Date of the last commit to each notebook; empty where the history is not there."""
    git = ["git", "-C", str(root)]
    log = ["log", "--format=@%cs", "--name-only", "--", "notebooks"]
    try:
        shallow = _words_of([*git, "rev-parse", "--is-shallow-repository"])
        lines = _words_of([*git, *log]) if shallow == ["false"] else []
    except (OSError, subprocess.CalledProcessError):
        return {}
    dates: dict[str, str] = {}
    date = ""
    for line in lines:
        if line.startswith("@"):
            date = line[1:]
        else:
            dates.setdefault(line, date)
    return dates


def _words_of(command: Sequence[str]) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def recorded_markdown(copy: Path) -> str:
    """One row a recording: its runs, their time, when and on what they ran."""
    columns = ["recording", "runs", "minutes a run", "date", "versions", "processor"]
    rows = []
    for path in sorted((copy / "data" / "results").glob("*/*.manifest.json")):
        name = path.name.removesuffix(".manifest.json")
        if name.endswith(".rollouts"):  # answers of the same runs
            continue
        manifest = json.loads(path.read_text(encoding="utf-8"))
        runs = manifest.get("runs", [manifest])
        rows.append([f"`{path.parent.name}/{name}`", str(len(runs)), *what_ran(runs)])
    return markdown_table(columns, rows)


def what_ran(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Minutes, dates, versions and processors of these manifests, each value once."""
    minutes = [run["wall_seconds"] / 60 for run in runs if run.get("wall_seconds")]
    ends = dict.fromkeys(f"{end:.1f}" for end in (min(minutes), max(minutes))) if minutes else []
    dates = sorted(run["started"][:10] for run in runs if run.get("started"))
    versions = {n: distinct(r.get("versions", {}).get(n) for r in runs) for n in SHOWN_VERSIONS}
    machines = (run.get("machine", {}) for run in runs)
    processors = distinct(m.get("gpu") or m.get("cpu_capability") for m in machines)
    return [
        " to ".join(ends) or "not recorded",
        unbroken(" to ".join(dict.fromkeys(dates[:1] + dates[-1:]))) or "not recorded",
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        processors,
    ]


def unbroken(date: str) -> str:
    """A date that no line break divides."""
    return date.replace("-", "\N{NON-BREAKING HYPHEN}")


def distinct(values: Iterable[str | None]) -> str:
    """Each value once, in order of appearance; `not recorded` where there is none."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or "not recorded"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of texts."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
