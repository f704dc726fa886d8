"""`gsmrl grade`: the good lines are graded, the bad ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gsmrl_helpers.cli import app
from gsmrl_helpers.grade_file import grade_file, read_line
from gsmrl_helpers.reward_shaping import REWARD_FNS

ROWS = [
    {"response": "so </think> <answer> 18 </answer>", "gold": "18", "step": 3},
    {"response": "so </think> <answer> 17 </answer>", "gold": "18"},
    {"response": "18 \ud800", "gold": "18"},
    {"response": r"so </think> <answer> \sqrt{12} </answer>", "gold": r"2\sqrt{3}"},
]
BAD = [
    (b"not json", "not JSON"),
    (b"", "not JSON"),
    (b"[1]", "expected an object with response and gold, got a list"),
    (b'{"response": "18"}', "no gold"),
    (b"{}", "no gold and no response"),
    (b'{"response": 18, "gold": "18"}', "response must be text, got int"),
    (b'{"response": "18", "gold": null}', "gold must be a non-empty string, got None"),
    (b'{"response": "18", "gold": NaN}', "gold must be a non-empty string, got nan"),
    (b'{"response": "18", "gold": " "}', "gold must be a non-empty string"),
    (b'{"response": "18", "gold": "#### 18"}', "gold is what follows '####', got '#### 18'"),
    (b"\xff", "not JSON in UTF-8"),
    (b"[" * 100_000, "nested too deeply"),
    (b"9" * 10_000, "not JSON"),
]
runner = CliRunner()


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    good = [json.dumps(row).encode() for row in ROWS]
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"\n".join([good[0], BAD[0][0], *good[1:], BAD[9][0]]) + b"\n")
    return path


@pytest.mark.parametrize(("line", "problem"), BAD, ids=[repr(line[:30]) for line, _ in BAD])
def test_a_bad_line_says_what_is_wrong(line, problem):
    with pytest.raises(ValueError, match=problem):
        read_line(line)


def test_a_file_is_graded_around_its_bad_lines(rollouts, tmp_path):
    out = tmp_path / "graded.jsonl"
    summary = grade_file(rollouts, REWARD_FNS["r1_zero"], out)
    assert (summary.n_right, summary.n_wrong, summary.n_unformatted) == (2, 1, 1)
    assert summary.total_reward == 2.0
    assert [number for number, _ in summary.bad_lines] == [2, 6]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0, 0.0, 0.0, 1.0]
    assert rows[0] == {**ROWS[0], "reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
    with pytest.raises(FileExistsError):
        grade_file(rollouts, REWARD_FNS["r1_zero"], out)
    assert len(out.read_text().splitlines()) == 4


def test_the_command_counts_names_bad_lines_and_exits_with_1(rollouts):
    result = runner.invoke(app, ["grade", str(rollouts)])
    assert result.exit_code == 1
    assert "graded                     4  100.00%" in result.stdout
    assert "in format, right           2   50.00%" in result.stdout
    assert "mean reward           0.5000" in result.stdout
    assert "line 2: not JSON" in result.stderr and "line 6: the gold is what" in result.stderr


def test_the_command_takes_any_named_reward(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps({"response": "#### 18", "gold": "17"}) + "\n")
    result = runner.invoke(app, ["grade", str(path), "--reward", "marker+format_bonus"])
    assert result.exit_code == 0 and "mean reward           0.1000" in result.stdout


def test_an_empty_file_has_no_mean(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    result = runner.invoke(app, ["grade", str(path)])
    assert result.exit_code == 0 and "none graded" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["nowhere.jsonl", "--reward", "r2"], "unknown reward 'r2'; choose one of question_only"),
    ],
)
def test_a_mistake_is_one_clean_line(arguments, said):
    result = runner.invoke(app, ["grade", *arguments])
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.output
