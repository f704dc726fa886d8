"""A chapter from the template passes the rules of a chapter before anyone has edited it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gsmrl_helpers import chapter_template
from gsmrl_helpers.assignment import find_cell
from gsmrl_helpers.chapter_template import new_chapter
from gsmrl_helpers.chapters import chapter_problems
from gsmrl_helpers.cli import app, book_app, notebooks_app
from gsmrl_helpers.notebooks import (
    TAGS_OF_NBVAL,
    TAGS_OF_PAPERMILL,
    TAGS_OF_THE_COURSE,
    NotebookError,
    execute,
    notebook_problems,
    read_notebook,
)
from gsmrl_helpers.paths import NOTEBOOKS_DIR, ROOT
from gsmrl_helpers.student import student_edition


def test_a_new_chapter_passes_the_project_s_rules_once_executed(tmp_path):
    path = new_chapter("14_on_policy_results", "On-policy results", tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {f"{path.stem}.py", f"{path.stem}.ipynb"}
    execute(path)
    notebook = read_notebook(path)
    assert notebook_problems(path) == []
    assert chapter_problems(notebook, path.name) == []
    assert notebook.cells[0].source.startswith("# On-policy results\n")
    assert find_cell(notebook, "exercise ex-14-one-answer") is not None
    assert "[0.25, 0.46, 0.64, 0.79, 0.89, 0.96, 1.0, 1.0]" in str(notebook.cells)
    graded = [c for c in student_edition(notebook, {}).cells if c.metadata.nbgrader["grade"]]
    assert [cell.metadata.nbgrader["grade_id"] for cell in graded] == ["ex-14-one-answer-check"]


def test_a_new_chapter_is_formatted_as_the_project_s_notebooks_are(tmp_path):
    script = new_chapter("14_on_policy_results", "On-policy results", tmp_path).with_suffix(".py")
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(NOTEBOOKS_DIR / "ruff.toml")]
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [*ruff, *command, *config, str(script)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("stem", "title", "said"),
    [
        ("on_policy", "Title", "two digits"),
        ("14_On_policy", "Title", "two digits"),
        ("14-on-policy", "Title", "two digits"),
        ("14_a_", "Title", "two digits"),
        ("../14_a", "Title", "two digits"),
        ("14_a", " ", "one line"),
        ("14_a", "One\nTwo", "one line"),
        ("13_other", "Title", r"chapter 13 exists: 13_there\.py"),
        ("13_there", "Title", "chapter 13 exists"),
    ],
)
def test_a_bad_name_or_one_that_is_taken_is_refused(tmp_path, stem, title, said):
    (tmp_path / "13_there.py").write_text("x = 1\n")
    with pytest.raises(NotebookError, match=said):
        new_chapter(stem, title, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["13_there.py"]


def test_the_command_writes_the_pair_and_says_what_comes_next(monkeypatch, tmp_path):
    monkeypatch.setattr(chapter_template.new_chapter, "__defaults__", (tmp_path,))
    result = CliRunner().invoke(app, ["notebooks", "new", "14_results", "Results"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "14_results.py").is_file() and "_toc.yml" in result.output
    again = CliRunner().invoke(app, ["notebooks", "new", "14_results", "Results"])
    assert again.exit_code == 2 and again.stderr.startswith("error: chapter 14 exists")


def test_contributing_names_every_tag_and_only_commands_that_there_are():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tags = TAGS_OF_THE_COURSE | TAGS_OF_NBVAL | TAGS_OF_PAPERMILL
    assert [tag for tag in sorted(tags) if f"`{tag}`" not in text] == []
    for group, commands in (("notebooks", notebooks_app), ("book", book_app)):
        there = {command.name for command in commands.registered_commands}
        assert set(re.findall(rf"`gsmrl {group} (\w+)", text)) <= there
