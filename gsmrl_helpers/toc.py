"""The pages of the book, in order, as `_toc.yml` has them."""

from __future__ import annotations

from pathlib import Path

from sphinx_external_toc.parsing import parse_toc_yaml

SUFFIXES = (".md", ".ipynb", ".rst")


class TocError(ValueError):
    """The table of contents names a page that is not there."""


def toc_files(source: Path) -> list[Path]:
    """Return the source file of every page of `_toc.yml`, relative to `source`.

    Raises:
        TocError: a page of the table of contents has no file.
    """
    files = []
    for name in parse_toc_yaml(source / "_toc.yml"):
        candidates = [name] if name.endswith(SUFFIXES) else [name + suffix for suffix in SUFFIXES]
        found = [Path(candidate) for candidate in candidates if (source / candidate).is_file()]
        if len(found) != 1:
            raise TocError(f"_toc.yml: the page {name} has {len(found)} files, not one")
        files.append(found[0])
    return files


def chapters(source: Path) -> dict[str, Path]:
    """Return the notebooks among the book's pages: name without suffix -> file."""
    files = [file for file in toc_files(source) if file.parts[0] == "notebooks"]
    return {file.stem: source / file for file in files}
