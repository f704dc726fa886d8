"""Parts of pages that are generated when the book is built, in the build copy only.

A committed page holds a line `% generated: NAME`, which Markdown shows nothing of. In the copy that
a build works on, the Markdown that the function of that name returns takes the line's place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

# name of the part -> module:function. The function gets the build copy's folder, in which
# notebooks/ and book/ lie as in the repository, and returns Markdown.
GENERATORS: dict[str, str] = {
    "api": "gsmrl_helpers.api_page:api_markdown",
    "assignment": "gsmrl_helpers.assignment:assignment_markdown",
    "chapters": "gsmrl_helpers.chapter_map:chapters_markdown",
    "claims": "gsmrl_helpers.claims_page:claims_markdown",
    "executed": "gsmrl_helpers.status_page:executed_markdown",
    "recorded": "gsmrl_helpers.status_page:recorded_markdown",
    "landing": "gsmrl_helpers.landing:landing_markdown",
    "syllabus": "gsmrl_helpers.syllabus:syllabus_markdown",
    "bench-bars": "gsmrl_helpers.how_fast:bars_markdown",
    "bench-growth": "gsmrl_helpers.how_fast:growth_markdown",
    "bench-growth-lines": "gsmrl_helpers.how_fast:growth_lines_markdown",
    "bench-course": "gsmrl_helpers.how_fast:course_markdown",
    "bench-grading": "gsmrl_helpers.how_fast:grading_markdown",
    "bench-gradients": "gsmrl_helpers.how_fast:gradients_markdown",
    "bench-log-probs": "gsmrl_helpers.how_fast:log_probs_markdown",
    "bench-older-processor": "gsmrl_helpers.how_fast:older_processor_markdown",
    "bench-padding": "gsmrl_helpers.how_fast:padding_markdown",
    "bench-profile": "gsmrl_helpers.how_fast:profile_markdown",
    "bench-rounding": "gsmrl_helpers.how_fast:rounding_markdown",
    "bench-sampler-parts": "gsmrl_helpers.how_fast:sampler_parts_markdown",
    "bench-sampling": "gsmrl_helpers.how_fast:sampling_markdown",
    "bench-signal-share": "gsmrl_helpers.how_fast:signal_share_markdown",
    "bench-step": "gsmrl_helpers.how_fast:step_markdown",
    "bench-uniform": "gsmrl_helpers.how_fast:uniform_markdown",
    "bench-update-parts": "gsmrl_helpers.how_fast:update_parts_markdown",
}
MARKER = re.compile(r"^% generated: *(\S+) *$", re.MULTILINE)


class GeneratedError(ValueError):
    """A page asks for a part that nothing generates."""


def fill_generated(page: Path, copy: Path, generators: Mapping[str, str] = GENERATORS) -> bool:
    """Replace each marker line of this page of the build copy; say whether there was one.

    Raises:
        GeneratedError: a marker names no generator.
    """

    def part(marker: re.Match[str]) -> str:
        if marker[1] not in generators:
            raise GeneratedError(
                f"{page.relative_to(copy).as_posix()}: no generator is called {marker[1]!r}; "
                f"there are: {', '.join(sorted(generators))} (gsmrl_helpers/generated.py)"
            )
        module, function = generators[marker[1]].split(":")
        return getattr(import_module(module), function)(copy).strip("\n")

    text = page.read_text(encoding="utf-8")
    filled, count = MARKER.subn(part, text)
    if count:
        page.write_text(filled, encoding="utf-8")
    return count > 0
