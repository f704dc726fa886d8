"""What a built site gets beside its pages: notebooks to download, previews of glossary terms."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from bs4 import BeautifulSoup

from gsmrl_helpers.toc import toc_files

GLOSSARY_PAGE = Path("book") / "glossary.html"
PREVIEWS = Path("_static") / "glossary.js"
# words of the glossary that prose also uses in their everyday sense: these get no preview
EVERYDAY = {
    *("state", "action", "reward", "transition", "group", "score", "clipping", "seed", "proxy"),
    *("gold", "prompt", "response", "token", "checkpoint", "preference", "checker", "grader"),
    *("verifier", "annotator"),
}

BUTTONS = ("use_repository_button", "use_edit_page_button", "use_issues_button")
BINDER = "https://mybinder.org"  # which installs what .binder/ says


def show_buttons(copy: Path) -> bool:
    """Turn on the buttons to the repository, and to a machine that runs it, in a build copy whose
    `_config.yml` names one; say whether.

    Args:
        copy: the build copy's folder.
    """
    path = copy / "_config.yml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not config.get("repository", {}).get("url"):
        return False
    config.setdefault("html", {}).update(dict.fromkeys(BUTTONS, True))
    config.setdefault("launch_buttons", {})["binderhub_url"] = BINDER
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return True


def read_downloads(source: Path) -> dict[Path, bytes]:
    """Return what the download buttons offer: each notebook of the toc, and its script.

    Read before the build adds marks to the notebooks, which nobody wants in a file to execute.

    Args:
        source: the folder that the book is built from.

    Raises:
        TocError: a page of the table of contents has no file.
    """
    notebooks = [file for file in toc_files(source) if file.suffix == ".ipynb"]
    files = [*notebooks, *(notebook.with_suffix(".py") for notebook in notebooks)]
    return {file: (source / file).read_bytes() for file in files if (source / file).is_file()}


def write_downloads(html: Path, downloads: dict[Path, bytes]) -> None:
    """Put these files where the theme's download buttons look for them."""
    for file, content in downloads.items():
        target = html / "_sources" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def glossary_terms(page: str) -> list[dict[str, str]]:
    """Return the terms of a built glossary that are no everyday words: name, id, definition.

    Args:
        page: the HTML of the page.
    """
    terms = []
    for heading in BeautifulSoup(page, "html.parser").select("dl.glossary dt[id]"):
        name = heading.get_text().split(" (")[0].strip().rstrip("#").strip()
        definition = heading.find_next_sibling("dd").decode_contents().strip()
        terms += [
            {"name": part, "id": heading["id"], "html": definition}
            for part in name.split(", ")
            if part not in EVERYDAY
        ]
    return sorted(terms, key=lambda term: -len(term["name"]))  # "reward model" before "reward"


def write_previews(html: Path) -> None:
    """Write the terms as the script that `book.js` loads; a book without a glossary has none."""
    page = html / GLOSSARY_PAGE
    terms = glossary_terms(page.read_text(encoding="utf-8")) if page.is_file() else []
    script = f"window.glossaryTerms = {json.dumps(terms, ensure_ascii=False)};\n"
    (html / PREVIEWS).write_text(script, encoding="utf-8")
