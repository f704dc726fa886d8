"""The book's links to elsewhere, asked by Sphinx's linkcheck: `gsmrl book links`.

Links within the book are the business of `gsmrl book check`, which needs no network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gsmrl_helpers.book import JUPYTER_BOOK, BookError

Verdict = Literal["works", "broken", "not reached"]
EXTERNAL = re.compile(r"https?://")
# what is said where no server has answered
NO_ANSWER = re.compile(r"Max retries|timed out|ConnectionError|NameResolution|Connection aborted")


class Link(NamedTuple):
    """An address, the pages that name it, and what came of asking it."""

    address: str
    pages: tuple[str, ...]
    verdict: Verdict
    info: str


def ask_links(out: Path) -> list[Link]:
    """Ask every external link of the book that was last built into `out`.

    Raises:
        BookError: nothing was built there, or Sphinx has written no answers.
    """
    copy, work = out / "source", out / "links"
    if not (copy / "_config.yml").is_file():
        raise BookError(f"{copy} has no sources of a book: run `gsmrl book build` first")
    shutil.rmtree(work, ignore_errors=True)
    command = [*JUPYTER_BOOK, "build", str(copy), "--path-output", str(work)]
    done = subprocess.run(
        [*command, "--builder", "linkcheck", "-q"], capture_output=True, text=True
    )
    answers = next(work.rglob("output.json"), None)
    if answers is None:
        raise BookError(f"linkcheck wrote no answers:\n{(done.stdout + done.stderr)[-1000:]}")
    return sort_answers(map(json.loads, answers.read_text(encoding="utf-8").splitlines()))


def sort_answers(rows: Iterable[Mapping[str, Any]]) -> list[Link]:
    """Linkcheck's rows, one a place of a link, as one an address, broken ones first."""
    by_address: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if EXTERNAL.match(row["uri"]):
            by_address[row["uri"]].append(row)
    links = [
        Link(address, tuple(sorted({r["filename"] for r in found})), *verdict(found[0]))
        for address, found in by_address.items()
    ]
    order = ("broken", "not reached", "works")
    return sorted(links, key=lambda link: (order.index(link.verdict), link.address))


def verdict(row: Mapping[str, Any]) -> tuple[Verdict, str]:
    """What came of asking, and the checker's own words where it did not work."""
    if row["status"] in ("working", "redirected"):
        return "works", row["info"]
    info = str(row["info"])
    return ("not reached" if NO_ANSWER.search(info) else "broken"), info.splitlines()[0][:120]
