"""The syllabus: which chapters a week has, how long they take, what they are worth."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gsmrl_helpers.assignment import MAP, AssignmentProblem, read_map
from gsmrl_helpers.chapter_map import read_times
from gsmrl_helpers.status_page import markdown_table
from gsmrl_helpers.toc import chapters

SYLLABUS = Path("book") / "syllabus.yml"
EXERCISE = re.compile(r"\*(?:Easy|Medium|Hard), (\d+) minutes\.\*")


class SyllabusError(ValueError):
    """The syllabus is not what it should be."""


class Week(BaseModel):
    """One week: chapters by the two digits of their names, and what is handed in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[str, Field(min_length=5)]
    chapters: Annotated[list[Annotated[str, Field(pattern=r"^\d\d$")]], Field(min_length=1)]
    hand_in: Annotated[str, Field(min_length=5)]


def read_weeks(source: Path) -> list[Week]:
    """The weeks, which have every chapter of the book once, in the book's order.

    Raises:
        SyllabusError: a row is not as `Week` says, or a chapter is missing, named twice or unknown.
    """
    try:
        weeks = TypeAdapter(list[Week]).validate_python(
            yaml.safe_load((source / SYLLABUS).read_text(encoding="utf-8"))
        )
    except ValidationError as error:
        raise SyllabusError(f"{SYLLABUS.name}: {error}") from error
    named = [number for week in weeks for number in week.chapters]
    if named != (there := [name[:2] for name in chapters(source)]):
        raise SyllabusError(
            f"{SYLLABUS.name} has the chapters {', '.join(named)}; the book has, in this order, "
            f"{', '.join(there)}"
        )
    return weeks


def points_of(numbers: list[str], problems: list[AssignmentProblem]) -> float:
    """The assignment's points in these chapters."""
    return sum(row.points for row in problems if row.notebook[:2] in numbers)


def exercise_minutes(path: Path) -> int:
    """What a chapter's exercises say that they take, summed."""
    found = EXERCISE.findall(path.read_text(encoding="utf-8"))
    return sum(map(int, found))


def in_hours(minutes: int) -> str:
    """`1 h 05`."""
    return f"{minutes // 60} h {minutes % 60:02d}"


def syllabus_markdown(copy: Path) -> str:
    """One row a week.

    Raises:
        SyllabusError: see `read_weeks`.
    """
    paths = {name[:2]: (name, path) for name, path in chapters(copy).items()}
    problems = read_map(copy / "book" / MAP.name)
    rows = []
    for number, week in enumerate(read_weeks(copy), start=1):
        links = [f"{{doc}}`{n} </notebooks/{paths[n][0]}>`" for n in week.chapters]
        reading = in_hours(sum(read_times(*paths[n]).reading for n in week.chapters))
        exercises = in_hours(sum(exercise_minutes(paths[n][1]) for n in week.chapters))
        worth = f"{points_of(week.chapters, problems):g}"
        subject = f"{week.title} ({', '.join(links)})"
        rows.append([str(number), subject, reading, exercises, worth, week.hand_in])
    heads = ["week", "subject and chapters", "reading", "exercises", "points", "to hand in"]
    return markdown_table(heads, rows)
