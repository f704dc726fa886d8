"""The syllabus: every chapter once and in order, points and minutes from where they stand."""

import shutil
from pathlib import Path

import pytest

from gsmrl_helpers.assignment import read_map
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.syllabus import (
    EXERCISE,
    SYLLABUS,
    SyllabusError,
    exercise_minutes,
    points_of,
    read_weeks,
    syllabus_markdown,
)
from gsmrl_helpers.toc import chapters


def test_the_weeks_have_every_chapter_and_all_points_but_those_to_come() -> None:
    weeks, problems = read_weeks(ROOT), read_map()
    named = [number for week in weeks for number in week.chapters]
    assert named == [name[:2] for name in chapters(ROOT)]
    to_come = sum(row.points for row in problems if row.notebook[:2] not in named)
    assert sum(points_of(week.chapters, problems) for week in weeks) == 90 - to_come


def test_a_week_s_row_has_links_minutes_and_points() -> None:
    first = syllabus_markdown(ROOT).splitlines()[2]
    assert first.startswith("| 1 | A policy, and its gradient (")
    assert "{doc}`02 </notebooks/02_baselines_and_variance>`" in first
    assert "| 5 | The exercises of 01 and 02" in first  # baseline_calcs has 5 points


def test_every_exercise_says_its_minutes() -> None:
    for name, path in chapters(ROOT).items():
        text = path.read_text(encoding="utf-8")
        assert len(EXERCISE.findall(text)) == text.count("```{exercise}"), name
    assert exercise_minutes(chapters(ROOT)["13_run_grpo"]) > 0


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("_toc.yml", "book", "notebooks", "data", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "book").unlink()
    shutil.copytree(ROOT / "book", tmp_path / "book")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new"), [('"02"]', '"03"]'), ('"00", ', ""), ('"00", "01"', '"01", "00"')]
)
def test_a_chapter_missing_twice_or_out_of_order_is_refused(copy: Path, old: str, new: str) -> None:
    text = (copy / SYLLABUS).read_text()
    (copy / SYLLABUS).write_text(text.replace(old, new, 1))
    with pytest.raises(SyllabusError, match="the book has, in this order, 00, 01"):
        read_weeks(copy)


def test_a_row_without_its_parts_is_refused(copy: Path) -> None:
    (copy / SYLLABUS).write_text("- title: A week\n  chapters: []\n")
    with pytest.raises(SyllabusError, match="hand_in"):
        read_weeks(copy)
