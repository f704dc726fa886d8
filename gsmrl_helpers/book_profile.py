"""The results chapters, shown with a reader's own runs: `make book PROFILE=two_gpu`.

Each of these chapters is a notebook with one parameter, `profile`. Where the results it reads are
on record for the profile, the build's copy of it is executed with them.
"""

from __future__ import annotations

import re
from pathlib import Path

from gsmrl_helpers.notebooks import cell_tags, read_notebook, write_notebook
from gsmrl_helpers.options import profile_names
from gsmrl_helpers.recordings import NotRecordedError
from gsmrl_helpers.runs import RunFailedError, declared_parameters, launch_notebook
from gsmrl_helpers.toc import toc_files

PARAMETERS = {"profile"}
NOTE = """

```{{note}}
This page was executed with the runs of the profile {profile} that are on record in this clone.
```
"""


def results_chapters(source: Path) -> list[Path]:
    """The notebooks of the book whose one parameter is the profile, relative to `source`."""
    notebooks = [page for page in toc_files(source) if page.suffix == ".ipynb"]
    return [page for page in notebooks if _parameters(source / page) == PARAMETERS]


def _parameters(path: Path) -> set[str]:
    notebook = read_notebook(path)
    tagged = any("parameters" in cell_tags(cell) for cell in notebook.cells)
    return declared_parameters(notebook) if tagged else set()


def show_profile(source: Path, profile: str) -> list[str]:
    """Execute the results chapters in `source`, a copy of the book, with another profile.

    Returns:
        why chapters stayed as they are: one line for each whose results are not on record.

    Raises:
        ValueError: an unknown profile.
        RunFailedError: a chapter failed for another reason.
    """
    if profile not in profile_names():
        raise ValueError(f"profile={profile!r} is unknown; allowed: {', '.join(profile_names())}")
    left = []
    for page in results_chapters(source):
        executed = (source / page).with_suffix(".executed.ipynb")
        try:
            notebook = launch_notebook(source / page, executed, {"profile": profile})
        except RunFailedError as error:
            if getattr(error.__cause__, "ename", None) != NotRecordedError.__name__:
                raise
            left.append(f"{page.stem} shows the book's own runs: {error.__cause__.evalue}")
            continue
        finally:
            executed.unlink(missing_ok=True)
        title = notebook.cells[0]
        title.source = re.sub(
            r"\A# [^\n]*", lambda line: line[0] + NOTE.format(profile=profile), title.source
        )
        write_notebook(notebook, source / page)
    return left
