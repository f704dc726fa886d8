"""The pre-flight check: what it measures, its stop rule, and that it leaves the policy alone."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from gsmrl_helpers import load_problems, preflight_measures
from gsmrl_helpers.cli import say_errors
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.diagnostics import Finding, Findings
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.preflight import Preflight, StopRule, cut_middle, in_words, judge, preflight
from gsmrl_helpers.preflight_command import preflight_command
from gsmrl_helpers.preflight_measures import (
    Shares,
    Speed,
    measure_shares,
    n_validations,
    names_number,
    predict_run_seconds,
    sample_checker,
    sample_steps,
    time_train_step,
)
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.rollouts import Rollouts, join_rollouts
from gsmrl_helpers.signal import no_signal_probability
from gsmrl_helpers.world import epoch_order, problems_of_step
from tests.tiny_trainer import SayingEngine, make_trainer, tiny_config

Say = Callable[[Problem, int], str]


def tagged(answer: str, index: int) -> str:
    return f" {'abcd'[index % 4]} </think> <answer> {answer} </answer>"


def right(problem: Problem, index: int) -> str:
    return tagged(problem.gold, index)


def wrong(problem: Problem, index: int) -> str:
    return tagged("-1000003", index)


def untagged(problem: Problem, index: int) -> str:
    return f" {'abcd'[index % 4]}, so it is {problem.gold}."


def sometimes_right(problem: Problem, index: int) -> str:
    """One right answer of four, one wrong one, and two that the checker does not read."""
    return (right, wrong, untagged, untagged)[index % 4](problem, index)


def saying(say: Say, config: RunConfig | None = None) -> Trainer:
    trainer = make_trainer(config or tiny_config())
    return replace(trainer, engine=SayingEngine(trainer, say))


def said(say: Say, config: RunConfig | None = None) -> Rollouts:
    trainer = saying(say, config)
    return trainer.sample(load_problems(trainer.config, "train")[:4], 4, "train", 1)


@pytest.fixture(scope="module")
def flown() -> Preflight:
    trainer = saying(sometimes_right)
    return preflight(trainer.config, 10, trainer=trainer)


# --- shares ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "group_size", "share"),
    [(0.5, 4, 0.125), (0.9, 4, 0.6562), (0.97, 4, 0.8853), (0.9, 16, 0.1853), (0.9, 8, 0.4305)],
)
def test_groups_without_signal_as_in_the_course(p, group_size, share) -> None:
    got = no_signal_probability(torch.tensor(p, dtype=torch.float64), group_size, "mean")
    assert got.item() == pytest.approx(share, abs=5e-5)


def test_without_a_baseline_right_answers_alone_are_a_signal() -> None:
    p = torch.tensor([0.0, 0.5, 1.0])
    assert no_signal_probability(p, 2, "none").tolist() == [1.0, 0.25, 0.0]


def test_shares_are_those_of_the_rollouts() -> None:
    def by_problem(problem: Problem, index: int) -> str:
        if problem == problems[0]:
            return right(problem, index)
        return sometimes_right(problem, index) if problem == problems[1] else wrong(problem, index)

    problems = load_problems(tiny_config(), "train")[:4]
    shares = measure_shares(tiny_config(), said(by_problem))
    assert shares.right == 5 / 16 and shares.in_format == 14 / 16 and shares.truncated == 0
    assert shares.no_signal == 3 / 4
    own = [1, 0.25**4 + 0.75**4, 1, 1]
    assert shares.no_signal_predicted == pytest.approx(sum(own) / 4)
    alike = (5 / 16) ** 4 + (11 / 16) ** 4
    assert shares.no_signal_if_alike == pytest.approx(alike)

    no_baseline = tiny_config(baseline="none", advantage_normalizer="none")
    assert measure_shares(no_baseline, said(by_problem)).no_signal == 2 / 4


def test_batches_of_a_step_are_joined_in_order() -> None:
    trainer = saying(sometimes_right)
    problems = load_problems(trainer.config, "train")[:6]
    batches = sample_steps(trainer, problems)
    assert [len(batch.completions) for batch in batches] == [16, 8]
    joined = join_rollouts(batches)
    assert joined.problems[::4] == problems and joined.group_size == 4
    assert joined.rewards.tolist() == [1.0, 0.0, 0.0, 0.0] * 6


# --- the stop rule -----------------------------------------------------------------------------

SOUND = Findings((Finding("sound", True, ""),))


@pytest.mark.parametrize(
    ("share_right", "in_format", "no_signal", "verdict"),
    [
        (0.06, 0.45, 0.6, "go"),
        (0.02, 0.9, 0.85, "go"),  # near zero is normal at a start
        (0.0, 0.0, 1.0, "SFT warm-up first"),
        (0.01, 0.02, 0.95, "SFT warm-up first"),
        (0.002, 0.9, 0.98, "easier problems"),
        (0.95, 1.0, 0.7, "harder problems"),
        (0.2, 0.9, 0.95, "easier problems"),
        (0.8, 0.9, 0.95, "harder problems"),
    ],
)
def test_the_stop_rule(share_right, in_format, no_signal, verdict) -> None:
    shares = Shares(share_right, in_format, 0.0, no_signal, no_signal, no_signal)
    got, reasons = judge(shares, SOUND)
    assert got == verdict and len(reasons) == 1 and "%" in reasons[0]


def test_the_dials_of_the_rule_move_the_verdict() -> None:
    shares = Shares(0.06, 0.45, 0.0, 0.6, 0.6, 0.6)
    assert judge(shares, SOUND, StopRule(min_format_share=0.5))[0] == "SFT warm-up first"
    assert judge(shares, SOUND, StopRule(min_right_share=0.1))[0] == "easier problems"
    assert judge(shares, SOUND, StopRule(max_right_share=0.05))[0] == "harder problems"
    assert judge(shares, SOUND, StopRule(max_no_signal_share=0.5))[0] == "easier problems"


def test_a_loop_that_fails_its_checks_comes_first() -> None:
    broken = Findings((*SOUND, Finding("the ratio is 1", False, "it is 1.2", "repair")))
    verdict, reasons = judge(Shares(0.0, 0.0, 0.0, 1.0, 1.0, 1.0), broken)
    assert verdict == "repair the loop first"
    assert reasons == ("Failed: the ratio is 1 (it is 1.2).",)


# --- the checker -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number", "named"),
    [
        ("it is 12.", "12", True),
        ("12.0 eggs, or 3", "12", True),
        ("1,080 in all", "1080", True),
        ("20-12", "12", True),
        ("minus 12", "-12", True),
        ("112 or 1.2 or 1 2", "12", False),
        ("", "12", False),
        ("9" * 5_000, "12", False),
        ("no number to look for: 3", "three", False),
    ],
)
def test_whether_a_text_names_a_number(text, number, named) -> None:
    assert names_number(text, number) is named


def test_the_checker_sample_has_every_kind_with_its_count() -> None:
    sample = sample_checker(said(sometimes_right), 3, seed=0)
    assert dict(zip(sample.kind, sample.n_of_kind, strict=True)) == {
        "right": 4,
        "in format, wrong": 4,
        "not in format": 8,
        "not right, names the gold number": 8,
    }
    assert sample.groupby("kind").size().eq(3).all()
    for row in sample[sample.kind == "right"].itertuples():
        assert f"<answer> {row.gold} </answer>" in row.response
    unpaid = sample[sample.kind == "not right, names the gold number"]
    assert all(row.gold in row.response for row in unpaid.itertuples())
    assert sample.equals(sample_checker(said(sometimes_right), 3, seed=0))
    assert not sample.equals(sample_checker(said(sometimes_right), 3, seed=1))


def test_a_kind_without_answers_is_left_out() -> None:
    sample = sample_checker(said(right), 2, seed=0)
    assert sample.kind.tolist() == ["right", "right"]


# --- the machine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_steps", "every", "count"), [(100, 10, 11), (25, 10, 4), (2, 1, 3), (3, 7, 2), (0, 5, 1)]
)
def test_the_run_s_validations_are_counted(n_steps, every, count) -> None:
    assert n_validations(tiny_config(n_grpo_steps=n_steps, validate_every=every)) == count


def test_the_predicted_time_adds_steps_validations_and_test() -> None:
    config = tiny_config(n_grpo_steps=10, validate_every=5)
    speed = Speed(1.0, sampling_seconds=2.0, train_step_seconds=3.0, validation_seconds=0.5)
    assert predict_run_seconds(config, speed) == 10 * (2 + 3) + (3 * 8 + 32 + 8) * 0.5


def test_a_train_step_is_timed_on_a_copy_with_every_response(monkeypatch) -> None:
    trainer, seen = saying(sometimes_right), {}

    def update_policy(rehearsal: Trainer, rollouts: Rollouts) -> dict:
        seen.update(rehearsal=rehearsal, row=real(rehearsal, rollouts))
        return seen["row"]

    real = preflight_measures.update_policy
    monkeypatch.setattr(preflight_measures, "update_policy", update_policy)
    before = copy.deepcopy(trainer.model.state_dict())
    problems = load_problems(trainer.config, "train")[:4]
    assert time_train_step(trainer, trainer.sample(problems, 4, "train", 1)) > 0
    assert seen["row"]["trained_row_share"] == 1 and seen["row"]["changed_parameter_share"] > 0.9
    changed = seen["rehearsal"].model.state_dict()
    assert any(not torch.equal(changed[name], before[name]) for name in before)
    assert all(torch.equal(trainer.model.state_dict()[name], before[name]) for name in before)
    assert not trainer.optimizer.state and seen["rehearsal"].optimizer.state


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.01234, "0.0123 s"), (59, "59 s"), (83.4, "1 min 23 s"), (7_500, "2 h 5 min")],
)
def test_durations_in_words(seconds, words) -> None:
    assert in_words(seconds) == words


# --- the whole check ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "verdict"),
    [
        (sometimes_right, "go"),
        (untagged, "SFT warm-up first"),
        (wrong, "easier problems"),
        (right, "harder problems"),
        (lambda problem, index: sometimes_right(problem, 0), "repair the loop first"),
    ],
)
def test_a_policy_gets_the_verdict_it_deserves(say: Say, verdict: str) -> None:
    trainer = saying(say)
    before = copy.deepcopy(trainer.model.state_dict())
    result = preflight(trainer.config, 4, trainer=trainer)
    assert result.verdict == verdict
    assert all(torch.equal(before[k], v) for k, v in trainer.model.state_dict().items())
    assert all(p.grad is None for p in trainer.model.parameters())
    assert not trainer.optimizer.state and trainer.model.training


def test_it_asks_the_problems_that_the_run_begins_with(flown: Preflight) -> None:
    config = flown.config
    train = load_problems(config, "train")
    first = problems_of_step(config, train, 1)
    assert [train[at] for at in epoch_order(config.seed, 0, len(train))[:4]] == first
    asked = [*first, *problems_of_step(config, train, 2), *problems_of_step(config, train, 3)]
    assert set(flown.checker_sample.question) <= {p.question for p in asked[:10]}


def test_what_it_measures_is_positive_and_adds_up(flown: Preflight) -> None:
    assert flown.shares.right == 0.25 and flown.shares.in_format == 0.5
    assert flown.shares.no_signal == 0 and flown.findings.ok
    assert min(vars(flown.speed).values()) > 0
    assert flown.run_seconds == predict_run_seconds(flown.config, flown.speed)
    assert "the first 4 of 4 steps" in flown.pilot and "8 problems" in flown.pilot


def test_it_shows_itself_and_nothing_that_a_model_wrote_acts(flown: Preflight) -> None:
    sample = flown.checker_sample.assign(response="[/red] <script>x</script> \x1b[31m" + "." * 999)
    shown = replace(flown, checker_sample=sample)
    html = shown._repr_html_()
    assert "Verdict: go" in html and "25.0%" in html and "<script>" not in html
    terminal = io.StringIO()
    Console(file=terminal, width=200).print(shown)
    text = terminal.getvalue()
    assert "Verdict: go" in text and "[/red] <script>" in text and "\x1b" not in text
    assert "right (10)" in text and text.count("Pilot: ") == 1
    assert "checker_sample" not in repr(shown)


def test_long_texts_keep_both_ends() -> None:
    assert cut_middle("abcdef", 6) == "abcdef" and cut_middle("abcdefg", 4) == "ab … fg"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_problems=33.*splits.train=32"):
        preflight(tiny_config(), 33)
    with pytest.raises(ValueError, match="other settings"):
        preflight(tiny_config(learning_rate=1.0), 4, trainer=saying(right))


# --- the command -------------------------------------------------------------------------------


def run_command(*arguments: str):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("preflight")(say_errors(preflight_command))
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(("verdict", "code"), [("go", 0), ("easier problems", 1)])
def test_the_command_prints_the_check_and_exits_by_its_verdict(
    monkeypatch, flown: Preflight, verdict, code
) -> None:
    seen = {}

    def fly(config: RunConfig, n_problems: int) -> Preflight:
        seen.update(config=config, n_problems=n_problems)
        return replace(flown, verdict=verdict)

    monkeypatch.setattr("gsmrl_helpers.preflight.preflight", fly)
    result = run_command("--problems", "7", "--seed", "3", "--set", "difficulty=0.25")
    assert result.exit_code == code and f"Verdict: {verdict}" in result.output
    assert seen["n_problems"] == 7 and seen["config"].seed == 3
    assert seen["config"].difficulty == 0.25 and seen["config"].profile == "pocket"


def test_the_command_says_a_user_s_mistake_in_one_line(monkeypatch) -> None:
    for arguments, name in (
        (("--profile", "pockt"), "pockt"),
        (("--experiment", "on-polcy"), "on-polcy"),
        (("--set", "policy=data/none"), "data/none"),
        (("--problems", "99999"), "n_problems=99999"),
    ):
        result = run_command(*arguments)
        assert result.exit_code == 2 and result.stderr.startswith("error: ")
        assert name in result.stderr and "Traceback" not in result.output

    def diverged(config: RunConfig, n_problems: int) -> Preflight:
        raise FloatingPointError("NaN logits")

    monkeypatch.setattr("gsmrl_helpers.preflight.preflight", diverged)
    result = run_command()
    assert result.exit_code == 2 and "NaN logits" in result.stderr
