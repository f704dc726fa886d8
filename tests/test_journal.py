"""Journals as tables, and what sets two runs apart: nothing that is unknown is made up."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import recordings
from gsmrl_helpers.journal import (
    NOT_RECORDED,
    QUESTIONS,
    changed_settings,
    journal_of,
    journal_table,
    recorded,
    recorded_settings,
)
from gsmrl_helpers.recordings import read_recording, recording_path
from gsmrl_helpers.records import LONG_COLUMNS, write_results

ROWS = [
    ("a", 0, 0, "curve_mean_answer_reward", 0.0),
    ("a", 0, 1, "train_mean_answer_reward", 0.25),
    ("a", 0, 1, "kl_to_old", math.nan),
    ("a", 0, 1, "train_response_length_right", math.nan),
    ("a", 1, 1, "train_mean_answer_reward", 0.5),
    ("b", 0, 1, "train_mean_answer_reward", 0.75),
]
TABLE = pd.DataFrame(ROWS, columns=LONG_COLUMNS)


def test_a_journal_is_one_run() -> None:
    found = journal_of(TABLE, "a", 0)
    assert list(found.index) == [0, 1]
    assert found["train_mean_answer_reward"].dropna().to_dict() == {1: 0.25}
    assert journal_of(TABLE, "b", 0)["train_mean_answer_reward"].to_dict() == {1: 0.75}
    with pytest.raises(ValueError, match=r"'b', seed=1 is not .* allowed .*: a 0, a 1, b 0"):
        journal_of(TABLE, "b", 1)


def test_what_is_not_recorded_is_said_to_be_so_and_a_zero_is_a_zero() -> None:
    table = journal_table(journal_of(TABLE, "a", 0), [0, 1]).set_index("")
    assert list(table.columns) == ["step 0", "step 1"] and list(table.index) == list(QUESTIONS)
    assert table.loc["right, validation"].tolist() == ["0.0%", NOT_RECORDED]
    assert table.loc["right, training"].tolist() == [NOT_RECORDED, "25.0%"]
    others = table.drop(["right, validation", "right, training"])
    assert (others == NOT_RECORDED).all(axis=None)


def test_a_null_and_an_absent_metric_are_both_unknown() -> None:
    run = journal_of(TABLE, "a", 0)
    for metric in ("kl_to_old", "train_response_length_right", "never_heard_of"):
        assert recorded(run, metric).empty
    assert recorded(run, "curve_mean_answer_reward").to_dict() == {0: 0.0}


def test_the_table_asks_for_metrics_that_runs_record() -> None:
    known = set(read_recording("on-policy")["metric"])
    assert {metric for metric, _ in QUESTIONS.values()} <= known


def test_the_settings_that_differ() -> None:
    one = {"variant": "x1", "learning_rate": 1.0, "seed": 0, "prompt": "r1_zero"}
    other = {"variant": "x20", "learning_rate": 20.0, "seed": 0, "prompt": "r1_zero"}
    assert changed_settings(one, other) == {"learning_rate": (1.0, 20.0)}
    assert changed_settings(one, {**one, "reward": "new"}) == {"reward": (None, "new")}
    assert changed_settings(one, {**one, "variant": "standard"}) == {}


@pytest.mark.parametrize("name", ["on-policy", "format-only"])
def test_recorded_settings_are_those_of_the_runs(name: str) -> None:
    settings = recorded_settings(name)
    assert [seed for _, seed in settings] == [0, 1, 2, 3]
    assert all(run["seed"] == seed for (_, seed), run in settings.items())
    assert len({run["policy_sha256"] for run in settings.values()}) == 1


def test_the_recorded_hack_differs_from_the_healthy_run_in_its_reward() -> None:
    healthy = recorded_settings("on-policy")["standard", 2]
    hacked = recorded_settings("format-only")["format_only", 2]
    assert changed_settings(healthy, hacked) == {"reward": (None, "r1_zero+format_only")}


def test_a_manifest_of_other_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "RESULTS_DIR", tmp_path)
    with pytest.raises(ValueError, match="gsmrl record on-policy"):
        recorded_settings("on-policy")
    write_results(TABLE, recording_path("on-policy", "pocket"), {"runs": []})
    with pytest.raises(ValueError, match=r"0 runs and its table 3.*gsmrl record on-policy"):
        recorded_settings("on-policy")
