"""Rows of JSON-lines files, plain or gzipped: broken ones are reported by line, the rest is kept.

For data that others made. A file of the course's own, in which a broken row is an error, is read by
`problems.read_problems_jsonl` or `records.read_rows`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

Row = TypeVar("Row")

GZIP_MAGIC = b"\x1f\x8b"
SHOWN_CHARS = 60


class BrokenRow(NamedTuple):
    """A line that could not be used.

    Attributes:
        line: its number, counted from 1.
        problem: what is wrong with it, in words.
    """

    line: int
    problem: str


def read_jsonl(path: str | Path, parse: Callable[[Any], Row]) -> tuple[list[Row], list[BrokenRow]]:
    """Parse every line of a file; what can't be parsed is reported and left out.

    Args:
        path: UTF-8 text with one JSON value a line; a gzipped file is known by its first bytes.
        parse: from the JSON value to a row; a ValueError says what is wrong with it.

    Returns:
        The rows in the file's order, and the broken lines: no UTF-8, no JSON, refused by `parse`,
        blank. Where a gzipped file is damaged it ends, and that is reported as well.

    Raises:
        FileNotFoundError: there is no such file, or it is a folder.
    """
    rows, broken = [], []
    for number, line in enumerate(iter_lines(Path(path)), start=1):
        try:
            rows.append(parse(decode_line(line)))
        except ValueError as error:
            broken.append(BrokenRow(number, str(error)))
    return rows, broken or report_empty(rows)


def iter_lines(path: Path) -> Iterator[bytes | ValueError]:
    """The lines of a file, plain or gzipped, and a ValueError as the last where gzip is damaged."""
    with open_binary(path) as lines:
        try:
            yield from lines
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            yield ValueError(f"the gzipped file is damaged here, and what follows is lost: {error}")


def report_empty(rows: Sequence[Any]) -> list[BrokenRow]:
    """What is wrong with a file of which nothing was read and nothing refused."""
    return [] if rows else [BrokenRow(1, "the file is empty")]


def require_file(path: Path) -> None:
    """Refuse what can't be read as a file.

    Raises:
        FileNotFoundError: there is none, or it is a folder.
    """
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder: give one of the files in it")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file. Samples lie in data/; where the whole data sets come "
            "from, their chapters say"
        )


def open_binary(path: Path) -> BinaryIO:
    """The file, unpacked if it starts as gzip does, whatever its name."""
    require_file(path)
    with path.open("rb") as file:
        gzipped = file.read(2) == GZIP_MAGIC
    return gzip.open(path, "rb") if gzipped else path.open("rb")


def decode_line(line: bytes | ValueError) -> Any:
    """The JSON value of a line.

    Raises:
        ValueError: the line is one already, is blank, is no UTF-8 or no JSON, or is nested so
            deeply that Python gives up.
    """
    if isinstance(line, ValueError):
        raise line
    if not line.strip():
        raise ValueError("blank line, expected a JSON object")
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}, character {error.pos}") from error
    except ValueError as error:  # a number of thousands of digits
        raise ValueError("not usable: it holds a number with too many digits") from error
    except RecursionError as error:
        raise ValueError("not usable: its JSON is nested too deeply") from error


def text_field(row: Any, field: str) -> str:
    """A field of a JSON object that must be a text.

    Raises:
        ValueError: no object, no such field, no string, an empty or blank one, or one that holds
            half of a surrogate pair, which no tokenizer can encode.
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a JSON object, got {shown(row)}")
    if field not in row:
        raise ValueError(f"field {field!r} is missing; there are {shown(sorted(row))}")
    value = row[field]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field {field!r} must be a non-empty string, got {shown(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"field {field!r} holds half of a surrogate pair: {shown(value)}")
    return value


def shown(value: object) -> str:
    """A value's text, cut so that a report stays readable."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"
