"""What must not stand in a stored notebook: times, machine paths, progress bars.

`scrub` removes it, `litter_problems` says what is left. A stored notebook then changes only when
its code or its results do.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from gsmrl_helpers.paths import ROOT

KEPT_METADATA = ("kernelspec", "language_info", "gsmrl")
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT_CELL_METADATA = ("tags",)
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:home|root|tmp|work|Users|mnt|opt|var)/\S*|[A-Z]:\\Users"
)
# what matplotlib returns, shown by accident
RETURNED = re.compile(r"<[\w.]+ [^<>]*at 0x[0-9a-f]{6,}>|^\[?Text\(|^\(?array\(\[.*BarContainer")
PROGRESS_BAR = re.compile(r"\d+%\|[^|\n]*\||[━╸╺]{5,}\s+\d+%")  # tqdm's, rich's

LITTER = {"machine path": MACHINE_PATH, "progress bar": PROGRESS_BAR, "returned object": RETURNED}


def scrub(notebook: NotebookNode) -> NotebookNode:
    """Return a copy without run times, papermill's metadata, machine paths, widgets and bars, and
    with what a stream wrote in one piece."""
    clean = copy.deepcopy(notebook)
    clean.metadata = type(clean.metadata)(
        {key: clean.metadata[key] for key in KEPT_METADATA if key in clean.metadata}
    )
    clean.metadata.get("language_info", {}).pop("version", None)
    clean.metadata.get("kernelspec", {}).pop("path", None)
    for cell in clean.cells:
        cell.metadata = type(cell.metadata)(
            {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        )
        cell.source = _without_root(cell.source)
        if cell.cell_type == "code":
            joined = _join_streams(cell.outputs)
            cell.outputs = [out for out in map(_scrub_output, joined) if out is not None]
    return clean


def _join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs, what a stream wrote in pieces in one: where it was cut is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if output.output_type == "stream" and before and before.get("name") == output.name:
            before.text += output.text
        else:
            joined.append(output)
    return joined


def _scrub_output(output: NotebookNode) -> NotebookNode | None:
    """Return one output without bars and paths, or None when nothing of it is left."""
    if output.output_type == "stream":
        output.text = _without_root(_final_text(output.text))
        return output if output.text.strip() else None
    output.get("metadata", {}).pop("papermill", None)
    data = output.get("data", {})
    if WIDGET in data:  # lives in a kernel only; a page would load a manager from elsewhere for it
        return None
    for kind, value in data.items():
        if kind.startswith("text/") and isinstance(value, str):
            data[kind] = _without_root(value)
    return output


def _final_text(text: str) -> str:
    """Return what a terminal would show in the end: after each line's last carriage return."""
    shown = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return "\n".join(line for line in shown if not PROGRESS_BAR.search(line))


def _without_root(text: str) -> str:
    return text.replace(f"{ROOT}/", "").replace(str(ROOT), ".").replace(str(Path.home()), "~")


def litter_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Return what a stored notebook must not hold: paths, bars, addresses, run times."""
    problems = []
    for index, cell in enumerate(notebook.cells):
        for text in _texts(cell):
            for what, pattern in LITTER.items():
                if match := pattern.search(text):
                    problems.append(f"{name}: cell {index} holds a {what}: {match[0][:60]!r}")
        if {"papermill", "execution", "ExecuteTime"} & set(cell.metadata):
            problems.append(f"{name}: cell {index} holds run times in its metadata")
    if "papermill" in notebook.metadata:
        problems.append(f"{name} holds papermill's metadata (paths and times)")
    return problems


def _texts(cell: NotebookNode) -> Iterator[str]:
    """Yield a cell's source and its outputs as text."""
    yield cell.source
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        for kind, value in output.get("data", {}).items():
            if kind.startswith("text/") and isinstance(value, str):
                yield value
