"""Links to elsewhere: one line an address, broken ones first, and no network is no verdict."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gsmrl_helpers import book_links
from gsmrl_helpers.book import BookError
from gsmrl_helpers.book_links import Link, ask_links, sort_answers

NO_NETWORK = "HTTPSConnectionPool(host='a.org'): Max retries exceeded (NameResolutionError)"


def row(uri: str, status: str, info: str = "", page: str = "book/a.md") -> dict:
    return {"filename": page, "lineno": 1, "status": status, "code": 0, "uri": uri, "info": info}


ROWS = [
    row("https://a.org/works", "working"),
    row("#about-a1", "unchecked"),
    row("https://a.org/moved", "redirected", "https://a.org/works"),
    row("https://a.org/far", "broken", NO_NETWORK),
    row("https://a.org/gone", "broken", "404 Client Error: Not Found for url"),
    row(
        "https://a.org/gone", "broken", "404 Client Error: Not Found for url", "notebooks/01.ipynb"
    ),
]


def test_answers_are_sorted_and_pages_are_joined() -> None:
    gone, far, *works = sort_answers(ROWS)
    pages = ("book/a.md", "notebooks/01.ipynb")
    assert gone == Link(gone.address, pages, "broken", "404 Client Error: Not Found for url")
    assert far.verdict == "not reached" and len(works) == 2
    assert {link.verdict for link in works} == {"works"}


def test_the_checker_s_answers_are_read_from_where_it_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BookError, match="gsmrl book build"):
        ask_links(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "_config.yml").touch()
    written: list[dict] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        folder = Path(command[command.index("--path-output") + 1]) / "_build" / "html"
        if written:
            folder.mkdir(parents=True)
            (folder / "output.json").write_text("\n".join(map(json.dumps, written)))
        return SimpleNamespace(stdout="", stderr="no such builder")

    monkeypatch.setattr(book_links.subprocess, "run", run)
    with pytest.raises(BookError, match="no such builder"):
        ask_links(tmp_path)
    written += ROWS
    assert [link.verdict for link in ask_links(tmp_path)].count("broken") == 1
