"""Files that others made: every broken line is reported, and all the others are read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gsmrl_helpers.jsonl_files import SHOWN_CHARS, BrokenRow, read_jsonl, text_field

GOOD = [{"a": "one"}, {"a": "zwei, drei"}, {"a": "четыре"}]


def parse(row: object) -> str:
    return text_field(row, "a")


def write(path: Path, lines: list[bytes], gzipped: bool = False) -> Path:
    content = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(content) if gzipped else content)
    return path


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_plain_and_gzipped_files_are_known_by_their_content(tmp_path, gzipped, name) -> None:
    lines = [json.dumps(row).encode() for row in GOOD]
    path = write(tmp_path / name, lines, gzipped)
    assert read_jsonl(path, parse) == ([row["a"] for row in GOOD], [])


BROKEN = {
    b'{"a": "x"': "not JSON",
    b"": "blank line",
    b"   ": "blank line",
    b'{"a": "\xff"}': "not UTF-8",
    b'["a"]': "expected a JSON object",
    b"null": "expected a JSON object",
    b'{"b": "x"}': "'a' is missing; there are ['b']",
    b'{"a": 3}': "must be a non-empty string, got 3",
    b'{"a": " \\n"}': "must be a non-empty string",
    b'{"a": "\\ud83d"}': "surrogate",
    b"[" * 100_000: "nested too deeply",
    b'{"a": "x"} trailing': "not JSON",
}


def test_each_broken_line_is_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    lines: list[bytes] = []
    for bad in BROKEN:
        lines += [bad, b'{"a": "kept"}']
    rows, broken = read_jsonl(write(tmp_path / "rows.jsonl", lines), parse)
    assert rows == ["kept"] * len(BROKEN)
    assert [row.line for row in broken] == [2 * i + 1 for i in range(len(BROKEN))]
    for row, problem in zip(broken, BROKEN.values(), strict=True):
        assert problem in row.problem


def test_an_empty_file_a_folder_and_none_are_said(tmp_path: Path) -> None:
    empty = tmp_path / "rows.jsonl"
    empty.touch()
    assert read_jsonl(empty, dict) == ([], [BrokenRow(1, "the file is empty")])
    for wrong, said in ((tmp_path, "is a folder: give one of"), (tmp_path / "no", "no such file")):
        with pytest.raises(FileNotFoundError, match=said):
            read_jsonl(wrong, dict)


def test_a_number_too_long_for_python_is_a_broken_row(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [b"9" * 5000, b'{"a": "kept"}'])
    rows, broken = read_jsonl(path, parse)
    assert rows == ["kept"]
    assert broken == [BrokenRow(1, "not usable: it holds a number with too many digits")]


@pytest.mark.parametrize("cut", [10, 400])
def test_a_gzipped_file_that_was_cut_keeps_what_can_be_read(tmp_path: Path, cut: int) -> None:
    # lines that do not compress, so that half of the file is half of the lines
    lines = [json.dumps({"a": f"{hash((i, i)) % 10**18:018d}"}).encode() for i in range(2000)]
    whole = gzip.compress(b"\n".join(lines) + b"\n")
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(whole[:-cut])
    rows, broken = read_jsonl(path, parse)
    assert len(broken) == 1 and "damaged" in broken[0].problem
    assert broken[0].line == len(rows) + 1
    assert rows == [parse(json.loads(line)) for line in lines[: len(rows)]]
    if cut == 400:
        assert 1000 < len(rows) < 2000


def test_what_is_reported_stays_readable() -> None:
    with pytest.raises(ValueError) as refused:
        text_field({"a": ["x" * 1000]}, "a")
    assert len(str(refused.value)) < SHOWN_CHARS + 60 and str(refused.value).endswith("…")


def test_a_report_is_a_line_and_a_problem() -> None:
    assert BrokenRow(3, "blank") == (3, "blank")
