"""The landing page: its figure is drawn from the record, its numbers and answers stand there."""

import shutil
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers.landing import FIGURE, RECORDING, landing_markdown, learned, percent
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.recorded_rollouts import rollouts_path


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    (tmp_path / RECORDING).parent.mkdir(parents=True)
    (tmp_path / "book").mkdir()
    for path in (RECORDING, rollouts_path(RECORDING)):
        shutil.copy(ROOT / path, tmp_path / path)
    return tmp_path


def test_figure_and_numbers_come_from_the_record(copy: Path) -> None:
    text = landing_markdown(copy)
    assert (copy / FIGURE).stat().st_size > 10_000
    table = pd.read_parquet(copy / RECORDING)
    rows = table[table["metric"] == "curve_mean_answer_reward"]
    last = rows[rows["step"] == rows["step"].max()]["value"]
    first = rows[rows["step"] == 0]["value"]
    assert f"from {percent(first.mean())} to {percent(last.mean())}" in text
    assert percent(0.613) == "61\N{NO-BREAK SPACE}%" and last.mean() > first.mean()
    assert f"{len(last)} seeds" in text


def test_answers_are_wrong_before_and_right_after_and_no_markup() -> None:
    rows = [
        (0, step, f"q{i}", f"<b>{i}|{step}</b>", reward)
        for step, rewards in ((0, (0, 1, 0)), (9, (1, 1, 0)))
        for i, reward in enumerate(rewards)
    ]
    answers = pd.DataFrame(rows, columns=["seed", "step", "question", "response", "answer_reward"])
    shown = learned(answers)
    assert shown.values.tolist() == [["q0", "<b>0|0</b>", "<b>0|9</b>"]]


def test_what_a_model_wrote_stays_text(copy: Path) -> None:
    path = rollouts_path(copy / RECORDING)
    answers = pd.read_parquet(path)
    answers["response"] = "<script>a|*b*</script>"
    answers.to_parquet(path)
    text = landing_markdown(copy)
    assert "<script>" not in text and "a&#124;&#42;b&#42;" in text
    assert "<script>a|*b*</script>" in unescape(text)
