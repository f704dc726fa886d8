"""The tables of the execution status come from reports and manifests, and say what is missing."""

from __future__ import annotations

import json

import pytest

from gsmrl_helpers import status_page
from gsmrl_helpers.notebooks import execute, read_notebook

REPORT = """<testsuites><testsuite>
<testcase classname="notebooks.10_small.ipynb" name="Cell 0" time="1.25"/>
<testcase classname="notebooks.10_small.ipynb" name="Cell 1" time="2.5"/>
<testcase classname="tests.test_x" name="test_y" time="9"/>
</testsuite></testsuites>"""


def test_seconds_are_summed_over_a_notebook_s_cells(tmp_path):
    report = tmp_path / "nbval.xml"
    assert status_page.cell_seconds(report) == {}
    report.write_text(REPORT)
    assert status_page.cell_seconds(report) == {"10_small": 3.75}


@pytest.mark.slow
def test_cells_are_counted_and_old_outputs_are_told(make_notebook):
    path = make_notebook([("1 + 1", []), ("2", ["gpu", "nbval-skip"])], "10_small.ipynb")
    execute(path)
    notebook = read_notebook(path)
    assert status_page.executed_cells(notebook) == ["1", "1", "of this code"]
    notebook.cells[0].source = "1 + 2"
    assert status_page.executed_cells(notebook) == ["1", "1", "of older code"]


def test_a_folder_without_history_has_no_dates(tmp_path):
    assert status_page.commit_dates(tmp_path) == {}


def test_recordings_show_what_their_manifests_hold(tmp_path):
    folder = tmp_path / "data" / "results" / "pocket"
    folder.mkdir(parents=True)
    run = {
        "wall_seconds": 90.0,
        "started": "2026-01-02T10:00:00+00:00",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "machine": {"cpu_capability": "AVX2", "gpu": None},
    }
    other = {**run, "wall_seconds": 180.0, "started": "2026-01-03T10:00:00+00:00"}
    (folder / "a.manifest.json").write_text(json.dumps({"runs": [run, other]}))
    (folder / "a.rollouts.manifest.json").write_text(json.dumps({"runs": [run, other]}))
    (folder / "b.manifest.json").write_text(json.dumps({"runs": [{"wall_seconds": None}]}))
    rows = status_page.recorded_markdown(tmp_path).splitlines()[2:]
    day = "2026\N{NON-BREAKING HYPHEN}01\N{NON-BREAKING HYPHEN}0"
    assert rows == [
        f"| `pocket/a` | 2 | 1.5 to 3.0 | {day}2 to {day}3 | python 3.11.7, torch 2.13.0, "
        "transformers not recorded | AVX2 |",
        "| `pocket/b` | 1 | not recorded | not recorded | python not recorded, torch not recorded, "
        "transformers not recorded | not recorded |",
    ]
