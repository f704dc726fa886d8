"""Does every claim cell turn red when its claim is made wrong? Notebooks run with mutants of cells.

A notebook's cells run in order in one process. Before a claim cell runs, the process forks once for
each mutant of it (see mutants.py), and the child says by its exit status whether the mutant failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nbformat import NotebookNode

from gsmrl_helpers.claims import tagged_claims
from gsmrl_helpers.mutants import Mutant, mutants
from gsmrl_helpers.notebooks import cell_tags, code_cells, read_notebook
from gsmrl_helpers.paths import relative_to_root

TIMEOUT_S = 60
WORKER = [sys.executable, "-c", "from gsmrl_helpers.mutation import worker; worker()"]
# a process with threads must not fork, and one with a GPU can't use it after a fork
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "agg",
    "PYTHONHASHSEED": "0",
}
RED, GREEN = 1, 0


@dataclass(frozen=True)
class MutationReport:
    """What became of a notebook's mutants.

    Attributes:
        notebook: its name, without suffix.
        claims: how many claims its cells assert.
        changes: how many mutants ran.
        problems: the mutants that did not turn red, and cells that were not put to the test.
        seconds: how long it took.
    """

    notebook: str
    claims: int
    changes: int
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        verdict = f"{len(self.problems)} PROBLEMS" if self.problems else "all red"
        counts = f"{self.claims} claims, {self.changes} changes: {verdict}"
        return f"{self.notebook}: {counts} ({self.seconds:.0f} s)"


def mutate_notebooks(paths: Iterable[Path], timeout_s: int = TIMEOUT_S) -> Iterator[MutationReport]:
    """Yield a report for each of these notebooks that has a claim, in a process of its own.

    Args:
        paths: the `.ipynb` files.
        timeout_s: how many seconds a mutant may run.
    """
    for path in paths:
        if path.exists() and any(map(tagged_claims, code_cells(read_notebook(path)))):
            command = [*WORKER, str(path.resolve()), str(timeout_s)]
            done = subprocess.run(
                command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True
            )
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                problem = f"{path.name}: its process ended with {done.returncode}: {last}"
                yield MutationReport(path.stem, 0, 0, [problem], 0.0)
            else:
                yield MutationReport(**json.loads(done.stdout))


# --- in the notebook's own process ----------------------------------------------------------------


def worker() -> None:
    """Put one notebook to the test and print the report as JSON; the notebook itself is silent."""
    path, timeout_s = Path(sys.argv[1]), int(sys.argv[2])
    stdout, silence = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    report = mutate_notebook(path, timeout_s)
    os.write(stdout, json.dumps(asdict(report)).encode())


def mutate_notebook(path: Path, timeout_s: int) -> MutationReport:
    """Run a notebook up to its last claim cell, and the mutants of each claim cell beside it."""
    start = time.monotonic()
    cells = [c for c in code_cells(read_notebook(path)) if "nbval-skip" not in cell_tags(c)]
    with_claims = [index for index, cell in enumerate(cells) if tagged_claims(cell)]
    os.chdir(path.parent)
    shell, problems, changes = new_shell(), [], 0
    for cell in cells[: max(with_claims, default=-1) + 1]:
        count, faults = outcomes(shell, cell, timeout_s) if tagged_claims(cell) else (0, [])
        error = run(shell, cell.source)
        if error is not None and "raises-exception" not in cell_tags(cell):
            problems.append(f"{place(path, cell, 1)}: the unchanged cell fails: {error}")
            break
        changes += count
        problems += [f"{place(path, cell, line)}: {fault}" for line, fault in faults]
    claims = {name for index in with_claims for name in tagged_claims(cells[index])}
    return MutationReport(path.stem, len(claims), changes, problems, time.monotonic() - start)


def new_shell():
    """Return IPython as a kernel has it, with the notebook's names in a `__main__` of their own."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    sys.path.insert(0, "")
    return InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


def run(shell, source: str) -> str | None:
    """Run a cell; return its error in words, or None."""
    result = shell.run_cell(source)
    error = result.error_before_exec or result.error_in_exec
    return None if error is None else f"{type(error).__name__} {error}".strip()


def outcomes(shell, cell: NotebookNode, timeout_s: int) -> tuple[int, list[tuple[int, str]]]:
    """Run all mutants of a cell; return how many, and those that did not turn red, by line."""
    claims = ", ".join(tagged_claims(cell))
    try:
        found = list(mutants(cell.source))
    except SyntaxError as error:
        return 0, [(1, f"{claims}: a claim cell must be plain Python: {error.msg}")]
    if not found:
        return 0, [(1, f"{claims}: nothing to change: write the value as `expected = …`")]
    faults = []
    for mutant in found:
        if outcome := run_mutant(shell, mutant, timeout_s):
            faults.append((mutant.line, f"{claims} {outcome}: {mutant.change}"))
    return len(found), faults


def run_mutant(shell, mutant: Mutant, timeout_s: int) -> str:
    """Run a mutant in a forked child; return how it ended, or "" when it failed as it should."""
    child = os.fork()
    if child == 0:
        code = RED
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(timeout_s)
            code = RED if run(shell, mutant.source) else GREEN
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        return f"does not end within {timeout_s} s"
    if status < 0:
        return f"dies by {signal.Signals(-status).name}"
    return "stays green" if status == GREEN else ""


def place(path: Path, cell: NotebookNode, line: int) -> str:
    """Say where a line of a cell stands: in the notebook's `.py`, where it is edited."""
    script = path.with_suffix(".py")
    text = script.read_text(encoding="utf-8") if script.exists() else ""
    before, found, _ = text.partition(cell.source)
    if not found:
        return f"{relative_to_root(path)} (cell {cell.source[:30]!r}), line {line}"
    return f"{relative_to_root(script)}:{before.count(chr(10)) + line}"
