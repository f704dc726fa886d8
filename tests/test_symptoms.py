"""Each symptom is seen when it is there, not before, and never made of what is not recorded."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from gsmrl_helpers.journal import journal_of
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.symptoms import (
    EARLY,
    SYMPTOMS,
    JournalRule,
    answer_entropy,
    check_journal,
    check_symptom,
    first_alarm,
    recent,
    untrained,
)

BY_NAME = {symptom.name: symptom for symptom in SYMPTOMS}
N = 20


def journal(**columns: Sequence[float]) -> pd.DataFrame:
    """A journal of N steps, from step 1, in which nothing is wrong but what is given."""
    sound = {
        "train_mean_answer_reward": np.linspace(0.1, 0.6, N),
        "train_mean_format_reward": np.linspace(0.5, 1.0, N),
        "no_signal_group_share": np.full(N, 0.2),
        "curve_token_entropy": np.full(N, 0.1),
        "curve_response_length": np.full(N, 25.0),
        "train_response_length": np.full(N, 25.0),
        "train_truncated_share": np.zeros(N),
    }
    return pd.DataFrame({**sound, **columns}, index=pd.RangeIndex(1, N + 1, name="step"))


def test_a_sound_journal_has_no_symptom() -> None:
    findings = check_journal(journal())
    assert findings.ok and len(findings.findings) == len(SYMPTOMS)
    assert first_alarm(journal(), SYMPTOMS) is None
    assert all("nearest to it, step" in finding.measured for finding in findings)


def test_recent_is_a_mean_of_known_steps() -> None:
    values = [1.0, 2.0, math.nan, 3.0, 4.0, 5.0, *[5.0] * (N - 6)]
    found = recent(journal(grad_norm=values), "grad_norm")
    assert found.index[0] == 6 and found[6] == pytest.approx(3.0)
    assert recent(journal(), "kl_to_old").empty


def test_a_format_that_rises_alone() -> None:
    run = journal(train_mean_answer_reward=np.full(N, 0.1))
    finding = check_symptom(run, BY_NAME["answers rise with the format"])
    # it starts at .5 and rises by .0263 a step: .7 is reached by the mean of steps 7 to 11, .7105
    assert not finding.ok
    assert finding.measured == "step 11: in format 50% → 71%, of these right 20% → 14%"
    assert first_alarm(run) == 11


def test_answers_in_step_with_the_format_are_no_progress_either() -> None:
    run = journal(train_mean_answer_reward=np.linspace(0.25, 0.5, N))
    assert first_alarm(run) == 11


def test_a_policy_that_knew_nothing_of_the_format() -> None:
    run = journal(
        train_mean_format_reward=np.linspace(0, 1, N), train_mean_answer_reward=np.zeros(N)
    )
    finding = check_symptom(run, BY_NAME["answers rise with the format"])
    assert finding.measured.endswith("in format 0% → 21%, of these right 0% → 0%")
    assert check_symptom(run, BY_NAME["right answers are kept"]).ok


def test_the_untrained_policy_is_measured_before_the_first_step_and_in_it() -> None:
    run = journal()
    assert untrained(run, "format") == 0.5
    before = pd.DataFrame({"curve_mean_format_reward": [0.7]}, index=[0])
    assert untrained(pd.concat([before, run]), "format") == pytest.approx(0.6)
    later = run.assign(curve_mean_format_reward=0.9)
    assert untrained(later, "format") == 0.5


def test_a_format_that_does_not_rise_is_no_occasion() -> None:
    run = journal(
        train_mean_format_reward=np.full(N, 0.9), train_mean_answer_reward=np.full(N, 0.1)
    )
    finding = check_symptom(run, BY_NAME["answers rise with the format"])
    assert finding.ok and finding.measured == "there was no occasion for it"


def test_right_answers_that_are_lost() -> None:
    right = np.r_[np.full(10, 0.4), np.full(10, 0.1)]
    run = journal(train_mean_answer_reward=right)
    # means of five: .4, then .34, .28, .22, .16: below half of .4 with four low steps of five
    finding = check_symptom(run, BY_NAME["right answers are kept"])
    assert finding.measured == "step 14: 16.0% right, the best so far was 40.0%"
    for rule in (JournalRule(kept_share=0.2), JournalRule(worth_keeping=0.5)):
        assert check_symptom(run, BY_NAME["right answers are kept"], rule).ok


@pytest.mark.parametrize(
    ("name", "metric", "before", "after", "step"),
    [
        ("groups have a signal", "no_signal_group_share", 0.0, 0.9, 15),
        ("answers keep their length", "train_response_length", 20.0, 10.0, 13),
        ("answers end by themselves", "train_truncated_share", 0.0, 0.9, 11),
        ("answers to one problem differ", "curve_token_entropy", 0.1, 0.02, 11),
    ],
)
def test_each_other_symptom_is_seen_from_its_step_on(
    name: str, metric: str, before: float, after: float, step: int
) -> None:
    run = journal(**{metric: [before] * 10 + [after] * 10})
    findings = {finding.name: finding for finding in check_journal(run)}
    assert findings[name].measured.startswith(f"step {step}: ") and findings[name].to_do
    assert [finding.name for finding in findings.values() if not finding.ok] == [name]
    assert first_alarm(run.loc[: step - 1], SYMPTOMS) is None


def test_the_entropy_of_an_answer_is_that_of_its_tokens_summed() -> None:
    run = journal(curve_token_entropy=[math.nan] * (N - 1) + [0.02])
    assert answer_entropy(run).to_dict() == {N: pytest.approx(0.5)}


def test_a_check_never_looks_ahead() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        run = journal(
            train_mean_answer_reward=generator.uniform(0, 0.5, N),
            train_mean_format_reward=generator.uniform(0.5, 1, N),
            train_response_length=generator.uniform(10, 30, N),
        )
        alarm = first_alarm(run, SYMPTOMS)
        if alarm is not None:
            assert first_alarm(run.loc[:alarm], SYMPTOMS) == alarm
            assert first_alarm(run.loc[: alarm - 1], SYMPTOMS) is None


def test_what_is_not_recorded_passes_no_check() -> None:
    run = journal().drop(columns="train_mean_format_reward")
    finding = check_symptom(run, BY_NAME["answers rise with the format"])
    assert not finding.ok and finding.measured == "not recorded: train_mean_format_reward"
    assert not check_journal(run).ok
    with pytest.raises(ValueError, match="train_mean_format_reward not recorded"):
        first_alarm(run)
    assert first_alarm(run, [BY_NAME["right answers are kept"]]) is None


# --- on record ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_healthy_run_gives_no_alarm(seed: int) -> None:
    run = journal_of(read_recording("on-policy"), "standard", seed)
    assert check_journal(run).ok and first_alarm(run, SYMPTOMS) is None


def test_the_collapse_is_seen_early() -> None:
    table = read_recording("learning-rate").query("variant == 'x20'")
    alarms = {seed: first_alarm(journal_of(table, "x20", seed)) for seed in set(table["seed"])}
    assert all(alarm is not None and alarm < 50 for alarm in alarms.values()), alarms
    assert alarms[0] <= 20


@pytest.mark.parametrize("seed", range(4))
def test_the_hack_is_seen(seed: int) -> None:
    run = journal_of(read_recording("format-only"), "format_only", seed)
    assert first_alarm(run, EARLY) < 50
    findings = {finding.name: finding.ok for finding in check_journal(run)}
    assert not findings["answers rise with the format"] and not findings["groups have a signal"]


def test_the_findings_of_a_journal_have_their_own_title() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(check_journal(journal()))
    assert "The journal" in console.file.getvalue()
