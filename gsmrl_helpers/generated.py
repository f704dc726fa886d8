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
    "assignment": "gsmrl_helpers.assignment:assignment_markdown",
    "claims": "gsmrl_helpers.claims_page:claims_markdown",
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
