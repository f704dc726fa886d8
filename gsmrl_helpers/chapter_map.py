"""The map of chapters: part, minutes and hardware of each, as the box at its top says them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from gsmrl_helpers.notebooks import read_notebook
from gsmrl_helpers.plain_markdown import notebook_title
from gsmrl_helpers.status_page import markdown_table
from gsmrl_helpers.toc import chapters

TIMES = re.compile(
    r"\*\*Reading\*\*\s+takes\s+(?P<reading>\d+)\s+minutes?,\s+\*\*running\*\*\s+"
    r"(?P<running>[^,]+),\s+on\s+a\s+\*\*(?P<device>CPU|GPU)\*\*"
)


class ChapterMapError(ValueError):
    """The box at the top of a chapter does not say how long it takes and on what."""


class Times(NamedTuple):
    """What a chapter's box says: minutes to read it, how long it runs, on what."""

    reading: int
    running: str
    device: str


def read_times(name: str, path: Path) -> Times:
    """The times in the box at the top of a chapter.

    Raises:
        ChapterMapError: the box does not say them in the usual words.
    """
    times = TIMES.search(read_notebook(path).cells[0].source)
    if times is None:
        raise ChapterMapError(
            f"{name}: the box at its top must say **Reading** takes N minutes, **running** "
            "TIME, on a **CPU**"
        )
    return Times(int(times["reading"]), " ".join(times["running"].split()), times["device"])


def chapters_markdown(copy: Path) -> str:
    """One row a chapter, and how long reading all of them takes.

    Raises:
        ChapterMapError: a chapter's box does not say its times in the usual words.
    """
    rows, total = [], 0
    for name, path in chapters(copy).items():
        notebook = read_notebook(path)
        times = read_times(name, path)
        total += times.reading
        for_gpu = sum("gpu" in cell.metadata.get("tags", []) for cell in notebook.cells)
        device = times.device + (f", {for_gpu} cells for a GPU" if for_gpu > 1 else "")
        device += ", one cell for a GPU" if for_gpu == 1 else ""
        title = f"{{doc}}`{name[:2]} {notebook_title(notebook)} </notebooks/{name}>`"
        rows.append([title, f"{times.reading} min", times.running, device])
    table = markdown_table(["chapter", "reading", "running", "on"], rows)
    return (
        f"{table}\n\nReading all of it takes about {total / 60:.0f} hours, exercises not counted."
    )
