"""Categories of answers, their intervals, and the forgiving reader."""

import pandas as pd
import pytest

from gsmrl_helpers.prompt_audit import (
    category,
    category_table,
    graded_text,
    judge,
    wilson_interval,
    with_category,
    with_verdict,
)

TAGGED = "2+2=4. </think> <answer> 4 </answer>"


def rollouts() -> pd.DataFrame:
    rows = [
        ("tags", "r1_zero", TAGGED, "4", 1.0, 1.0),
        ("tags", "r1_zero", "5. </think> <answer> 5, so 4 </answer>", "4", 1.0, 0.0),
        ("tags", "r1_zero", "It is 4. </think> <answer> five </answer>", "4", 1.0, 0.0),
        ("tags", "r1_zero", "The answer is 4.", "4", 0.0, 0.0),
        ("box", "question_only", "no idea", "4", 0.0, 0.0),
    ]
    columns = ["prompt", "grader", "response", "gold", "format_reward", "answer_reward"]
    return pd.DataFrame(rows, columns=columns)


def test_the_three_categories() -> None:
    assert [category(*pair) for pair in ((1, 1), (1, 0), (0, 0))] == [1, 2, 3]
    assert with_category(rollouts())["category"].tolist() == [1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match=r"answer_reward=1\.0 with format_reward=0\.0"):
        category(0.0, 1.0)


def test_the_table_counts_each_category_of_each_prompt() -> None:
    table = category_table(with_category(rollouts()))
    assert table["prompt"].tolist() == ["tags"] * 3 + ["box"] * 3
    assert table["count"].tolist() == [1, 2, 1, 0, 0, 1]
    assert table["share"].tolist() == [0.25, 0.5, 0.25, 0.0, 0.0, 1.0]
    assert (table["low"] <= table["share"]).all() and (table["share"] <= table["high"]).all()


@pytest.mark.parametrize(("count", "total"), [(0, 200), (7, 200), (200, 200)])
def test_the_interval_is_wilson_s(count: int, total: int) -> None:
    z, share = 1.959963984540054, count / total
    middle = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * (share * (1 - share) / total + (z / (2 * total)) ** 2) ** 0.5
    assert wilson_interval(count, total) == pytest.approx((middle - half, middle + half), abs=1e-12)


def test_what_a_grader_reads() -> None:
    assert graded_text(TAGGED, "r1_zero") == " 4 "
    assert graded_text(TAGGED, "question_only") is None
    assert graded_text(r"so \boxed{4}", "question_only") == "4"
    hedged = r"</think> <answer> 3 or \boxed{4} </answer>"
    assert graded_text(hedged, "r1_zero") == r" 3 or \boxed{4} "


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("The answer is 1,080.", "right"),
        ("1080", "right"),
        ("1080.00 dollars", "right"),
        ("first 1080, then 3", "wrong"),
        ("which is 2160-1080", "right"),
        ("so 1080, I think", "right"),
        ("1080/2", "wrong"),
        ("−1080", "wrong"),
        ("I think the answer is in the question.", "no number"),
        ("", "no number"),
    ],
)
def test_the_forgiving_reader_takes_the_last_number(text: str, verdict: str) -> None:
    assert judge(text, "1080") == verdict


def test_the_verdict_reads_what_was_graded_and_else_everything() -> None:
    verdicts = with_verdict(with_category(rollouts()))["verdict"].tolist()
    assert verdicts == ["right", "right", "no number", "right", "no number"]
