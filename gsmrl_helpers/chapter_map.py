"""The map of chapters: part, minutes and hardware of each, as the box at its top says them."""

from __future__ import annotations

import re
from pathlib import Path

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


def chapters_markdown(copy: Path) -> str:
    """One row a chapter, and how long reading all of them takes.

    Raises:
        ChapterMapError: a chapter's box does not say its times in the usual words.
    """
    rows, total = [], 0
    for name, path in chapters(copy).items():
        notebook = read_notebook(path)
        times = TIMES.search(notebook.cells[0].source)
        if times is None:
            raise ChapterMapError(
                f"{name}: the box at its top must say **Reading** takes N minutes, **running** "
                "TIME, on a **CPU**"
            )
        total += int(times["reading"])
        for_gpu = sum("gpu" in cell.metadata.get("tags", []) for cell in notebook.cells)
        device = times["device"] + (f", {for_gpu} cells for a GPU" if for_gpu > 1 else "")
        device += ", one cell for a GPU" if for_gpu == 1 else ""
        running = " ".join(times["running"].split())
        title = f"{{doc}}`{name[:2]} {notebook_title(notebook)} </notebooks/{name}>`"
        rows.append([title, f"{times['reading']} min", running, device])
    table = markdown_table(["chapter", "reading", "running", "on"], rows)
    return (
        f"{table}\n\nReading all of it takes about {total / 60:.0f} hours, exercises not counted."
    )
