"""The book: built from a copy, with warnings as errors, and checked page by page.

A build never reads or writes the folder of an earlier one: Jupyter Book 1 exits 0 on its second
run even with `-W`, because unchanged pages warn no more. It works on a copy of the sources, in
which a reader's fresh run may take the place of the recorded page.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from nbformat import NotebookNode

from gsmrl_helpers.api_page import mark_definitions
from gsmrl_helpers.assignment import mark_assignment
from gsmrl_helpers.claims_page import mark_claims
from gsmrl_helpers.generated import fill_generated
from gsmrl_helpers.notebooks import (
    cell_tags,
    code_digest,
    output_problems,
    read_notebook,
    staleness_problems,
    tag_problems,
    write_notebook,
)
from gsmrl_helpers.paths import BOOK_DIR, BUILD_DIR, ROOT, relative_to_root
from gsmrl_helpers.runs import EXECUTED_NAME, RUN_NOTEBOOK
from gsmrl_helpers.scrub import litter_problems, scrub
from gsmrl_helpers.site_files import read_downloads, show_buttons, write_downloads, write_previews
from gsmrl_helpers.site_styles import join_styles
from gsmrl_helpers.site_weight import lighten_site
from gsmrl_helpers.stuck_boxes import add_stuck_boxes
from gsmrl_helpers.toc import chapters, toc_files

RECORDED_DIR = BOOK_DIR / "runs"
# this interpreter's own, whatever program of that name the PATH holds
JUPYTER_BOOK = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
WARNING_LINE = re.compile(r"\bWARNING\b|\bERROR\b|Validation errors in config")
NOT_COPIED = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__", "*.safetensors", "*.jsonl")
RUN_TITLE = """# A run: {run}

```{{note}}
This page is a run as it was left: notebook {{doc}}`/notebooks/13_run_grpo`, executed with the
parameters of the second code cell.
```"""
EXERCISE_HEAD = re.compile(r"\{exercise\} (.*)\n:label: .*")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class BookError(ValueError):
    """The book did not build, or a page of it does not show what it should."""


def check_builder() -> None:
    """Refuse Jupyter Book 2, another program, which builds nothing of this book and exits 0.

    Raises:
        BookError: another major version is installed.
    """
    version = importlib.metadata.version("jupyter-book")
    if not version.startswith("1."):
        raise BookError(
            f"jupyter-book {version} is installed, and only 1.x builds this book: "
            'pip install -e ".[dev]" -c constraints.txt'
        )


def copy_sources(source: Path, copy: Path) -> None:
    """Copy what the book is built from: configuration, pages, and the folders these lie in."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    pages = toc_files(source)
    for name in ("_config.yml", "_toc.yml", *(str(p) for p in pages if len(p.parts) == 1)):
        shutil.copy2(source / name, copy / name)
    for folder in sorted({page.parts[0] for page in pages if len(page.parts) > 1}):
        shutil.copytree(source / folder, copy / folder, ignore=NOT_COPIED)


def recorded_page(run: Path) -> Path:
    """Return the page, relative to the book, that records the experiment of this run's folder."""
    profile, experiment, variant = run.resolve().parts[-4:-1]
    parts = [experiment, profile] if variant == "standard" else [experiment, variant, profile]
    name = "_".join(parts).replace("-", "_") + ".ipynb"
    return RECORDED_DIR.relative_to(ROOT) / name


def overlay_run(run: Path, copy: Path) -> Path:
    """Lay a reader's run over its recorded page, in the build copy only; return that page.

    Raises:
        BookError: the run has no executed notebook, or the book no page for its experiment.
    """
    executed, page = run / EXECUTED_NAME, recorded_page(run)
    if not executed.is_file():
        raise BookError(f"{relative_to_root(run)} holds no {EXECUTED_NAME}: run it first")
    if not (copy / page).is_file():
        raise BookError(f"the book has no page {page.as_posix()} for {relative_to_root(run)}")
    write_notebook(page_of_run(run), copy / page)
    return page


def page_of_run(run: Path) -> NotebookNode:
    """Return a run's executed notebook, scrubbed, under a title that says which run it is."""
    notebook = scrub(read_notebook(run / EXECUTED_NAME))
    profile, experiment, variant, seed = run.resolve().parts[-4:]
    name = experiment if variant == "standard" else f"{experiment}, {variant}"
    title = RUN_TITLE.format(run=f"{name}, {profile}, {seed.replace('-', ' ')}")
    first = notebook.cells[0]
    if first.cell_type == "markdown":
        first.source = re.sub(r"\A# [^\n]*", lambda _: title, first.source)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # an exercise has its number and label in the chapter
            cell.source = EXERCISE_HEAD.sub(r"{admonition} \1", cell.source)
    return notebook


def build_book(
    out: Path = BUILD_DIR,
    run: Path | None = None,
    source: Path = ROOT,
    profile: str = "pocket",
    say: Callable[[str], None] = print,
) -> Path:
    """Build the HTML into `out/html` from a fresh copy in `out/source`; return `out/html`.

    The site of an earlier build is replaced only when this one has no error and no warning. With a
    profile other than the book's own, the results chapters are executed with its results; `say` is
    told which of them have none.

    Raises:
        BookError: with the builder's own words.
    """
    check_builder()
    copy, work, html = out / "source", out / "work", out / "html"
    shutil.rmtree(work, ignore_errors=True)
    copy_sources(source, copy)
    if run is not None:
        overlay_run(run, copy)
    if profile != "pocket":
        from gsmrl_helpers.book_profile import show_profile  # brings torch, which a build need not

        for line in show_profile(copy, profile):
            say(line)
    show_buttons(copy)
    downloads = read_downloads(copy)
    for path in chapters(copy).values():
        notebook = read_notebook(path)
        add_stuck_boxes(notebook)
        write_notebook(notebook, path)
    mark_definitions(copy)
    mark_claims(copy)
    mark_assignment(copy)
    for page in toc_files(copy):
        if page.suffix == ".md":
            fill_generated(copy / page, copy)
    arguments = ["build", str(copy), "--path-output", str(work)]
    arguments += ["-W", "-n", "--keep-going", "--all", "-q"]
    done = subprocess.run([*JUPYTER_BOOK, *arguments], capture_output=True, text=True)
    lines = ANSI.sub("", done.stdout + done.stderr).splitlines()
    warnings = [line for line in lines if WARNING_LINE.search(line)]
    built = work / "_build" / "html"
    if done.returncode or warnings or not (built / "index.html").is_file():
        reason = "\n".join(warnings or lines[-25:] or ["it built no index.html"])
        raise BookError(f"jupyter-book exited with {done.returncode}:\n{reason}")
    write_downloads(built, downloads)
    write_previews(built)
    lighten_site(built)
    join_styles(built)
    shutil.rmtree(html, ignore_errors=True)
    built.replace(html)
    shutil.rmtree(work)
    return html


# --- checks -----------------------------------------------------------------------------------


def site_problems(source: Path, html: Path) -> list[str]:
    """Return pages of the toc that the site lacks, outputs that a page hides, and broken links."""
    problems, pages = [], []
    for file in toc_files(source):
        page = html / file.with_suffix(".html")
        if not page.is_file():
            problems.append(f"{file.as_posix()} has no page in the site")
            continue
        pages.append(page)
        if file.suffix == ".ipynb":
            problems += shown_problems(read_notebook(source / file), page)
    return problems + link_problems(pages)


def link_problems(pages: list[Path]) -> list[str]:
    """Return the links from these pages to a place that another of them, or the same, lacks."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    return [
        f"{page.name}: the link to {href}#{place} leads nowhere"
        for page, text in texts.items()
        for href, place in re.findall(
            r'<a class="reference internal" href="([^"#]*)#([^"]+)"', text
        )
        if place not in places.get((page.parent / href).resolve() if href else page, {place})
    ]


def shown_problems(notebook: NotebookNode, page: Path) -> list[str]:
    """Compare a notebook's stored outputs with what its page shows, in order."""
    wanted = [cell for cell in notebook.cells if _visible_outputs(cell)]
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    shown = soup.select("div.cell_output")
    if len(shown) != len(wanted):
        return [f"{page.name} shows {len(shown)} outputs of cells; the notebook has {len(wanted)}"]
    return [
        f"{page.name}: the output of the cell that starts {cell.source[:40]!r} is not shown"
        for cell, part in zip(wanted, shown, strict=True)
        if not all(_is_shown(output, part) for output in _visible_outputs(cell))
    ]


def _visible_outputs(cell: NotebookNode) -> list[NotebookNode]:
    if cell.cell_type != "code" or {"remove-output", "remove-cell"} & set(cell_tags(cell)):
        return []
    return list(cell.outputs)


def _is_shown(output: NotebookNode, part: Tag) -> bool:
    """Say whether this part of the page holds the output: its picture, table or first line."""
    data = output.get("data", {})
    if any(kind.startswith("image/") for kind in data):
        return part.find(["img", "svg"]) is not None
    if "text/html" in data:
        return part.select_one(".text_html") is not None
    if "text/latex" in data:
        return part.select_one(".math") is not None
    if output.output_type == "error":
        return output.ename in part.get_text()
    lines = ANSI.sub("", output.get("text", data.get("text/plain", ""))).strip().splitlines()
    return not lines or lines[0].strip() in part.get_text()


def recorded_problems(page: Path, source: Path = RUN_NOTEBOOK) -> list[str]:
    """Return what is wrong with a recorded run, such as code that is no longer the notebook's."""
    notebook, name = read_notebook(page), relative_to_root(page)
    problems = tag_problems(notebook, name) + litter_problems(notebook, name)
    problems += staleness_problems(notebook, name) + output_problems(notebook, name)
    if code_digest(notebook) != code_digest(read_notebook(source)):
        problems.append(
            f"{name} was recorded before {source.name} changed: run the experiment again, then "
            "`gsmrl book record RUN_FOLDER`"
        )
    return problems


def record_run(run: Path) -> Path:
    """Store a run, scrubbed, as the page of the book that records its experiment.

    Raises:
        BookError: the executed notebook is not fit to be a page; the old page then stays.
    """
    executed, page = run / EXECUTED_NAME, ROOT / recorded_page(run)
    if not executed.is_file():
        raise BookError(f"{relative_to_root(run)} holds no {EXECUTED_NAME}: run it first")
    notebook, name = page_of_run(run), relative_to_root(executed)
    problems = litter_problems(notebook, name) + output_problems(notebook, name)
    if problems := problems + staleness_problems(notebook, name):
        raise BookError("\n".join(problems))
    write_notebook(notebook, page)
    return page
