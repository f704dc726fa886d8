"""Rows of CSV files that others made: broken ones are reported by line, the rest is kept.

A quoted field may hold commas, doubled quotes and line breaks, so that a row can span lines; it is
reported by the line on which it starts. Where a quote is never closed, only that line is lost.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gsmrl_helpers.jsonl_files import BrokenRow, report_empty, require_file, shown

Row = TypeVar("Row")

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_LINES_OF_ROW = 100  # an unclosed quote is not searched for through the whole file


def read_csv(
    path: str | Path, parse: Callable[[list[str]], Row]
) -> tuple[list[Row], list[BrokenRow]]:
    """Parse every row of a file without a header; what can't be parsed is reported and left out.

    Args:
        path: UTF-8 text as RFC 4180 has it: commas, double quotes, `""` for a quote in quotes.
        parse: from the fields to a row; a ValueError says what is wrong with them.

    Returns:
        The rows in the file's order, and the broken ones by the line on which they start: no UTF-8,
        quotes that don't match, refused by `parse`, blank.

    Raises:
        FileNotFoundError: there is no such file, or it is a folder.
    """
    rows, broken = parse_records(iter_records(Path(path)), parse)
    return rows, broken or report_empty(rows)


def read_csv_with_header(
    path: str | Path, columns: Sequence[str], parse: Callable[[dict[str, str]], Row]
) -> tuple[list[Row], list[BrokenRow]]:
    """The same for a file whose first row names its columns, in any order.

    Raises:
        FileNotFoundError: there is no such file, or it is a folder.
        ValueError: the first row does not name all of `columns`, each once: it is another file.
    """
    records = iter_records(Path(path))
    _, header = next(records, (1, []))
    named = [] if isinstance(header, ValueError) else [name.strip() for name in header]
    if not all(named.count(column) == 1 for column in columns):
        got = str(header) if isinstance(header, ValueError) else shown(header) if header else "none"
        raise ValueError(
            f"{path}: the first row must name the columns {', '.join(columns)}, got {got}"
        )

    def parse_named(fields: list[str]) -> Row:
        if len(fields) != len(named):
            raise ValueError(f"expected {len(named)} fields, got {len(fields)}: {shown(fields)}")
        return parse(dict(zip(named, fields, strict=True)))

    return parse_records(records, parse_named)


def parse_records(
    records: Iterator[tuple[int, list[str] | ValueError]], parse: Callable[[list[str]], Row]
) -> tuple[list[Row], list[BrokenRow]]:
    """The rows and the broken rows of what `iter_records` gives."""
    rows, broken = [], []
    for line, fields in records:
        try:
            if isinstance(fields, ValueError):
                raise fields
            if not fields:
                raise ValueError("blank line, expected a row")
            rows.append(parse(fields))
        except ValueError as error:
            broken.append(BrokenRow(line, str(error)))
    return rows, broken


def iter_records(path: Path) -> Iterator[tuple[int, list[str] | ValueError]]:
    """Yield each row's first line, from 1, and its fields or what is wrong with it."""
    require_file(path)
    content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    lines, start = content.splitlines(keepends=True), 0
    while start < len(lines):
        n_lines, fields = read_record(lines[start : start + MAX_LINES_OF_ROW])
        yield start + 1, fields
        start += n_lines


def read_record(lines: Sequence[bytes]) -> tuple[int, list[str] | ValueError]:
    """The first row of these lines, and how many of them it takes; a broken one takes one."""
    try:
        reader = csv.reader((line.decode("utf-8") for line in lines), strict=True)
        fields = next(reader)
    except UnicodeDecodeError as error:
        return 1, ValueError(f"not UTF-8: {error.reason} at byte {error.start}")
    except csv.Error as error:
        return 1, ValueError(f"not CSV: {error}")
    return reader.line_num, fields
