"""Notebook pairs: `.py` (py:percent) and `.ipynb` say the same, and outputs belong to the code.

The pair is compared as text, never by file times: git sets these in any order. Outputs are tied
to the code that made them by a digest of the code cells, which `execute` and `run_notebook` store.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from gsmrl_helpers.paths import NOTEBOOKS_DIR, relative_to_root
from gsmrl_helpers.scrub import litter_problems, scrub

PAIR_FORMAT = "py:percent"
INJECTED = "injected-parameters"
TAGS_OF_THE_COURSE = {"definition", "check", "exercise", "solution", "gpu"}
TAGS_OF_NBVAL = {"nbval-skip", "nbval-ignore-output", "raises-exception"}
TAGS_OF_PAPERMILL = {"parameters", INJECTED}
TAGS_OF_THE_BOOK = {
    f"{verb}-{part}" for verb in ("hide", "remove") for part in ("input", "output", "cell")
}
ALLOWED_TAGS = TAGS_OF_THE_COURSE | TAGS_OF_NBVAL | TAGS_OF_PAPERMILL | TAGS_OF_THE_BOOK
CLAIM_TAG = re.compile(r"claim:[A-Z]\d+[a-z]?")

# a kernel on this machine's own ports warns, once each, that they are not encrypted
QUIET_KERNEL = ["--IPKernelApp.log_level=ERROR"]


class NotebookError(ValueError):
    """A notebook that breaks the course's rules, or failed while it was executed."""


def read_notebook(path: Path) -> NotebookNode:
    """Read an `.ipynb` file in notebook format 4."""
    return nbformat.read(path, as_version=4)


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write an `.ipynb` file, making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def cell_tags(cell: NotebookNode) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the code cells that the author wrote: what papermill injected is no source."""
    return [c for c in notebook.cells if c.cell_type == "code" and INJECTED not in cell_tags(c)]


def code_digest(notebook: NotebookNode) -> str:
    """Return the sha256 of the sources of the code cells, injected parameters left out."""
    sources = [cell.source.strip() for cell in code_cells(notebook)]
    return hashlib.sha256("\x00".join(sources).encode()).hexdigest()


def stamp_executed(notebook: NotebookNode) -> None:
    """Record in the notebook which code its outputs come from."""
    notebook.metadata.setdefault("gsmrl", {})["executed_sha256"] = code_digest(notebook)


# --- checks: each returns what is wrong, in words -------------------------------------------


def pair_problems(ipynb: Path) -> list[str]:
    """Compare an `.ipynb` with its `.py` as text, cell by cell, tags included."""
    script = ipynb.with_suffix(".py")
    if not script.exists():
        return [f"{ipynb.name}: its pair {script.name} is missing"]
    from_script = jupytext.read(script)
    wanted, found = (_percent_lines(nb) for nb in (from_script, read_notebook(ipynb)))
    diff = difflib.unified_diff(wanted, found, script.name, ipynb.name, lineterm="", n=1)
    lines = list(diff)[:12]
    if not lines:
        return []
    advice = f"`gsmrl notebooks sync {ipynb.stem}` writes the .ipynb from the .py"
    return ["\n".join([f"{ipynb.name} and {script.name} differ; {advice}", *lines])]


def _percent_lines(notebook: NotebookNode) -> list[str]:
    """Return the cells as py:percent text, without the header, ids and unshared metadata."""
    plain = nbformat.v4.new_notebook(metadata={"kernelspec": _kernelspec()})
    for cell in notebook.cells:
        copy = nbformat.from_dict({**cell, "metadata": {"tags": cell_tags(cell)}})
        if not copy.metadata.tags:
            del copy.metadata["tags"]
        plain.cells.append(copy)
    text = jupytext.writes(plain, fmt=PAIR_FORMAT)
    return text.split("# ---", 2)[-1].strip().splitlines()


def _kernelspec() -> dict[str, str]:
    return {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def tag_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Refuse tags that nothing in the course gives a meaning to."""
    return [
        f"{name}: cell {index} has the unknown tag {tag!r}; allowed: claim:ID, "
        + ", ".join(sorted(ALLOWED_TAGS))
        for index, cell in enumerate(notebook.cells)
        for tag in cell_tags(cell)
        if tag not in ALLOWED_TAGS and not CLAIM_TAG.fullmatch(tag)
    ]


def staleness_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Refuse outputs that were made by other code than what the notebook now says."""
    executed = notebook.metadata.get("gsmrl", {}).get("executed_sha256")
    if executed == code_digest(notebook):
        return []
    state = "was never executed by this tool" if executed is None else "has changed since it ran"
    return [f"{name} {state}: run `gsmrl notebooks execute {Path(name).stem}`"]


def output_problems(notebook: NotebookNode, name: str) -> list[str]:
    """Refuse cells without a result: not executed, or ended by an error that none announced."""
    problems = []
    for index, cell in enumerate(notebook.cells):
        tags = cell_tags(cell)
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if cell.execution_count is None and "nbval-skip" not in tags:
            problems.append(f"{name}: cell {index} was not executed")
        failed = any(output.output_type == "error" for output in cell.outputs)
        if failed and "raises-exception" not in tags:
            problems.append(f"{name}: cell {index} ended with an error")
    return problems


def notebook_problems(ipynb: Path) -> list[str]:
    """Return everything that is wrong with one notebook of the course and its pair."""
    notebook, name = read_notebook(ipynb), relative_to_root(ipynb)
    problems = pair_problems(ipynb) + tag_problems(notebook, name)
    problems += staleness_problems(notebook, name) + output_problems(notebook, name)
    return problems + litter_problems(notebook, name)


# --- doing ------------------------------------------------------------------------------------


def find_notebooks(names: Iterable[str] = (), folder: Path = NOTEBOOKS_DIR) -> list[Path]:
    """Return the notebooks with these names (`13`, `13_run_grpo`, `13_run_grpo.ipynb`), or all.

    Raises:
        NotebookError: a name that fits no notebook, or more than one.
    """
    stems = {p.stem for p in folder.glob("*.ipynb")} | {p.stem for p in folder.glob("*.py")}
    if not names:
        return [folder / f"{stem}.ipynb" for stem in sorted(stems)]
    return [folder / f"{_only_match(name, stems)}.ipynb" for name in names]


def _only_match(name: str, stems: set[str]) -> str:
    wanted = Path(name).name.removesuffix(".ipynb").removesuffix(".py")
    matches = [stem for stem in stems if wanted in (stem, stem.split("_")[0])]
    if len(matches) != 1:
        raise NotebookError(f"{name!r} names {len(matches)} notebooks; there are {sorted(stems)}")
    return matches[0]


def sync(ipynb: Path) -> None:
    """Write the `.ipynb` from its `.py`, keeping the outputs of cells that did not change.

    The digest of what was executed is kept as it was, so that a changed cell shows as stale.
    """
    script = jupytext.read(ipynb.with_suffix(".py"))
    script.metadata.pop("jupytext", None)
    script.metadata["kernelspec"] = _kernelspec()
    if ipynb.exists():
        old = read_notebook(ipynb)
        script = jupytext.combine.combine_inputs_with_outputs(script, old)
        unchanged = {cell.source for cell in old.cells}
        for cell in script.cells:  # jupytext keeps outputs by position, too
            if cell.cell_type == "code" and cell.source not in unchanged:
                cell.outputs, cell.execution_count = [], None
        script.metadata.update({k: old.metadata[k] for k in ("gsmrl",) if k in old.metadata})
    write_notebook(script, ipynb)


def execute(ipynb: Path, cell_timeout_s: int = 600) -> NotebookNode:
    """Execute a notebook in its own folder, from cleared outputs, and store the outputs in it.

    Raises:
        NotebookError: a cell failed. The file then stays as it was.
    """
    notebook = read_notebook(ipynb)
    for cell in (c for c in notebook.cells if c.cell_type == "code"):
        cell.outputs, cell.execution_count = [], None
    run_kernel(notebook, cwd=ipynb.parent, cell_timeout_s=cell_timeout_s, name=ipynb.name)
    stamp_executed(notebook)
    write_notebook(scrub(notebook), ipynb)
    return notebook


def run_kernel(notebook: NotebookNode, cwd: Path, cell_timeout_s: int, name: str) -> None:
    """Execute all cells but those tagged `nbval-skip` in this interpreter's environment."""
    client = NotebookClient(
        notebook,
        timeout=cell_timeout_s,
        kernel_name="python3",
        skip_cells_with_tag="nbval-skip",
        record_timing=False,
        extra_arguments=QUIET_KERNEL,
        resources={"metadata": {"path": str(cwd)}},
    )
    try:
        client.execute(env={**os.environ, "PYTHONHASHSEED": "0", "TQDM_DISABLE": "1"})
    except Exception as error:  # nbclient's own errors, and those of a kernel that died
        raise NotebookError(f"{name} failed: {error}") from error


def iter_problems(notebooks: Iterable[Path]) -> Iterator[str]:
    """Yield what is wrong with these notebooks, one problem at a time."""
    for ipynb in notebooks:
        if ipynb.exists():
            yield from notebook_problems(ipynb)
        else:
            yield f"{ipynb.name} is missing: `gsmrl notebooks sync {ipynb.stem}` makes it"
