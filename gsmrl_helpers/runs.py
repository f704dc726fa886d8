"""Runs: a parameterised notebook, executed by papermill, whose folder keeps what it made.

Papermill injects a cell after the one tagged `parameters`. It accepts names that no cell declares
(they change nothing) and turns values it does not know (numpy scalars, tuples, paths) into
strings; both are refused here, before anything runs.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

from gsmrl_helpers.notebooks import (
    QUIET_KERNEL,
    NotebookError,
    cell_tags,
    read_notebook,
    stamp_executed,
    write_notebook,
)
from gsmrl_helpers.paths import NOTEBOOKS_DIR, ROOT, RUNS_DIR, relative_to_root
from gsmrl_helpers.records import MANIFEST, RunFolderError, lock_run
from gsmrl_helpers.run_outputs import EXECUTED_NAME, STAMP, is_finished, reopen

RUN_NOTEBOOK = NOTEBOOKS_DIR / "13_run_grpo.ipynb"
SHOWN_LINES = 20  # of a failed cell's message: a server that does not start ends it with its log
# said to the kernel as it starts; as an expression, it leaves no name in the notebook
END_WITH_PARENT = (
    "--IPKernelApp.exec_lines=__import__('gsmrl_helpers.orphans').orphans.end_with_parent({parent})"
)
SCALARS = (bool, int, float, str, type(None))


class ParameterError(ValueError):
    """A parameter that the notebook does not declare, or that papermill cannot carry."""


class RunFailedError(NotebookError):
    """A cell of the launched notebook failed; the executed notebook was kept."""


def declared_parameters(notebook: NotebookNode) -> set[str]:
    """Return the names that the cell tagged `parameters` assigns.

    Raises:
        ParameterError: there is not exactly one such cell.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell_tags(cell)]
    if len(cells) != 1:
        raise ParameterError(
            f"a launched notebook has one cell tagged parameters, not {len(cells)}"
        )
    names: set[str] = set()
    for statement in ast.parse(cells[0].source).body:
        if isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return names


def check_parameters(parameters: Mapping[str, Any], declared: set[str]) -> None:
    """Refuse what papermill would ignore or turn into a string.

    Raises:
        ParameterError: naming the parameter, what was given and what is allowed.
    """
    if unknown := sorted(set(parameters) - declared):
        raise ParameterError(
            f"no cell declares {', '.join(unknown)}; the notebook's parameters are "
            + ", ".join(sorted(declared))
        )
    for name, value in parameters.items():
        _check_value(name, value)


def _check_value(name: str, value: Any) -> None:
    # exact types: numpy.float64 is a float, and an IntEnum an int, yet neither is written as one
    if type(value) in SCALARS:
        return
    if type(value) is list:
        for index, item in enumerate(value):
            _check_value(f"{name}[{index}]", item)
    elif type(value) is dict and all(type(key) is str for key in value):
        for key, item in value.items():
            _check_value(f"{name}[{key!r}]", item)
    else:
        raise ParameterError(
            f"{name} = {value!r} ({type(value).__name__}) cannot be handed to a notebook; allowed: "
            "bool, int, float, str, None, and lists and dicts (with string keys) of these"
        )


def launch_notebook(
    notebook: Path, output_path: Path, parameters: Mapping[str, Any]
) -> NotebookNode:
    """Execute a parameterised notebook with the clone as working directory.

    The executed notebook is written to `output_path` cell by cell, also when a cell fails.

    Raises:
        ParameterError: see `check_parameters`; nothing has run then.
        RunFailedError: a cell failed, or the kernel died.
    """
    check_parameters(parameters, declared_parameters(read_notebook(notebook)))
    output_path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _environment(PYTHONHASHSEED="0"):
            executed = papermill.execute_notebook(
                str(notebook).replace("{", "{{").replace("}", "}}"),  # papermill formats its paths
                str(output_path).replace("{", "{{").replace("}", "}}"),
                dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=[*QUIET_KERNEL, END_WITH_PARENT.format(parent=os.getpid())],
                cwd=str(ROOT),
            )
    except Exception as error:  # a failed cell, a dead kernel, a time-out: all end the run
        _remove_stamp(output_path)
        raise RunFailedError(f"{notebook.name} failed: {_reason(error)}") from error
    stamp_executed(executed)
    write_notebook(executed, output_path)
    return executed


def _remove_stamp(executed: Path) -> None:
    """Remove the stamp that papermill has copied from the notebook: not all cells have run."""
    if executed.is_file():
        notebook = read_notebook(executed)
        notebook.metadata.get("gsmrl", {}).pop(STAMP, None)
        write_notebook(notebook, executed)


def _reason(error: Exception) -> str:
    """Say why a notebook failed: the message whole, or its first line and its last ones."""
    if isinstance(error, PapermillExecutionError):  # as text it would be the whole traceback
        message = f"{error.ename}: {error.evalue}" if error.evalue.strip() else error.ename
    elif isinstance(error, DeadKernelError):
        message = f"{error}: its process was killed, perhaps for want of memory"
    else:
        message = str(error).strip() or repr(error)
    lines = message.strip().splitlines()
    if (left_out := len(lines) - 1 - SHOWN_LINES) > 0:
        lines[1:-SHOWN_LINES] = [f"[{left_out} lines left out]"]
    return "\n".join(lines)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables, which kernels inherit, and put the old ones back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- one run of an experiment -------------------------------------------------------------------


def run_folder(
    experiment: str, profile: str, variant: str, seed: int, runs_dir: Path = RUNS_DIR
) -> Path:
    """Return the folder of one run: `runs/<profile>/<experiment>/<variant>/seed-<k>`.

    A run that two experiments share has the folder of the first one.
    """
    from gsmrl_helpers.experiments import shared_run  # brings torch, which a run's process need not

    experiment, variant = shared_run(experiment, variant)
    return runs_dir / profile / experiment / variant / f"seed-{seed}"


def running_notebook(folder: Path) -> Path:
    """Where the notebook of a run lies while it runs.

    The loop refuses a folder with files of no run, so the notebook moves in when it has ended.
    """
    return folder.with_name(f"{folder.name}.running.ipynb")


def set_aside(folder: Path) -> Path:
    """Rename a run's folder out of the way, so that nothing is overwritten; return its new name."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.aside-{number}")).exists():
        number += 1
    return folder.rename(aside)


def clear(folder: Path, fresh: bool) -> str | None:
    """Set aside what may not stay in the folder of a run that starts or goes on; say what was.

    Raises:
        RunFolderError: another process is running into it.
    """
    with lock_run(folder, "launch.lock"), lock_run(folder):
        goes_on = (folder / MANIFEST).is_file() and not fresh
        if goes_on or not folder.exists() or not any(folder.iterdir()):
            return None
        return f"{relative_to_root(folder)}: what was there is now {set_aside(folder).name}"


def run_seed(folder: Path, parameters: Mapping[str, Any], notebook: Path = RUN_NOTEBOOK) -> Path:
    """Launch one run into its folder and return the executed notebook, kept beside the metrics.

    Raises:
        RunFailedError: a cell failed; the executed notebook is kept all the same.
    """
    running = running_notebook(folder)
    try:
        launch_notebook(notebook, running, {**parameters, "output_dir": relative_to_root(folder)})
    finally:
        # where `train` was called by hand meanwhile, the folder is no longer this run's
        with suppress(RunFolderError), lock_run(folder):
            if running.exists():
                folder.mkdir(parents=True, exist_ok=True)
                running.replace(folder / EXECUTED_NAME)
    return folder / EXECUTED_NAME


def run_one(
    folder: Path, parameters: Mapping[str, Any], notebook: Path = RUN_NOTEBOOK
) -> str | None:
    """Run into a folder that nobody else is at, or go on there; return what failed."""
    try:
        # Held until the notebook has moved in. The notebook takes the run's own lock itself.
        with lock_run(folder, "launch.lock"):
            with lock_run(folder):
                reopen(folder)
            if not is_finished(folder):  # else it was finished elsewhere while this one waited
                run_seed(folder, parameters, notebook)
    except RunFolderError as error:
        return str(error)
    except NotebookError as error:
        return f"{error}\nsee {relative_to_root(folder / EXECUTED_NAME)}"
    return None
