"""What keeps the signal alive: which groups are kept, what is asked, where the dial goes."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from gsmrl_helpers import experiment_config, train
from gsmrl_helpers.checkpoints import load_checkpoint
from gsmrl_helpers.engine import Completion
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.pocket_problems import load_pocket_problems, split_of
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.records import METRICS, read_rows
from gsmrl_helpers.rollouts import Rollouts, join_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.signal import (
    empty_groups,
    move_dial,
    problems_of_round,
    sample_with_signal,
    signal_metrics,
)
from gsmrl_helpers.world import load_problems, problems_of_step

TINY = {
    "n_grpo_steps": 3,
    "rollout_batch_size": 32,
    "train_batch_size": 32,
    "splits": {"train": 64, "curve": 8, "dev": 8, "test": 8},
    "threads": 1,
    "difficulty": 0.0,
}
KEEPS_SIGNAL = {"dynamic_sampling_rounds": 2, "difficulty_rate": 0.5, "target_right_share": 0.4}


def make_rollouts(groups: Sequence[Sequence[float]], first: int = 0) -> Rollouts:
    """Rollouts with these rewards; the question says which group it is."""
    size = len(groups[0])
    numbers = [first + group for group in range(len(groups)) for _ in range(size)]
    rewards = torch.tensor(groups, dtype=torch.float32).flatten()
    return Rollouts(
        problems=[Problem(f"question {number}", "#### 1", "1") for number in numbers],
        prompts=[f"prompt {number}" for number in numbers],
        completions=[Completion(f"answer {n}", [n, 1], "stop", n, 0) for n in numbers],
        rewards=rewards,
        format_rewards=torch.ones_like(rewards),
        answer_rewards=rewards,
        group_size=size,
    )


def test_groups_are_selected_with_all_that_belongs_to_them() -> None:
    rollouts = make_rollouts([(0, 0), (0, 1), (1, 0)])
    some = rollouts.select_groups([2, 0])
    assert [p.question[-1] for p in some.problems] == ["2", "2", "0", "0"]
    assert [c.text[-1] for c in some.completions] == ["2", "2", "0", "0"]
    assert [prompt[-1] for prompt in some.prompts] == ["2", "2", "0", "0"]
    assert some.rewards.tolist() == some.answer_rewards.tolist() == [1, 0, 0, 0]
    again = join_rollouts([rollouts.select_groups([g]) for g in range(3)])
    assert again.problems == rollouts.problems and torch.equal(again.rewards, rollouts.rewards)


def test_a_group_is_empty_where_all_earn_the_same() -> None:
    rollouts = make_rollouts([(0, 0), (0, 1), (1, 1), (0.1, 0.1)])
    assert empty_groups(rollouts).tolist() == [True, False, True, True]
    assert empty_groups(rollouts, "none").tolist() == [True, False, False, False]
    assert signal_metrics(rollouts, "mean") == {
        "sampled_responses": 8.0,
        "sampled_signal_share": 0.25,
    }


class Source:
    """Answers `ask` from a list of groups, and remembers what was asked."""

    def __init__(self, groups: Sequence[Sequence[float]]) -> None:
        self.groups, self.asked = list(groups), []

    def __call__(self, number: int, n: int) -> Rollouts:
        first = sum(n for _, n in self.asked)
        self.asked.append((number, n))
        return make_rollouts(self.groups[first : first + n], first)


EMPTY, MIXED = (0.0, 0.0), (0.0, 1.0)


def numbers_of(rollouts: Rollouts) -> list[int]:
    return [int(problem.question.split()[1]) for problem in rollouts.problems[::2]]


def test_each_round_asks_as_many_as_are_missing() -> None:
    source = Source([MIXED, EMPTY, EMPTY, MIXED, EMPTY, MIXED, MIXED, EMPTY])
    kept, sampled = sample_with_signal(source, 4, 9, "mean")
    assert source.asked == [(0, 4), (1, 2), (2, 1)]
    assert numbers_of(kept) == [0, 3, 5, 6] and numbers_of(sampled) == list(range(7))


def test_without_extra_rounds_the_batch_is_what_was_sampled() -> None:
    source = Source([EMPTY, MIXED, EMPTY, MIXED])
    kept, sampled = sample_with_signal(source, 4, 0, "mean")
    assert source.asked == [(0, 4)]
    assert numbers_of(kept) == numbers_of(sampled) == [0, 1, 2, 3]
    assert torch.equal(kept.rewards, sampled.rewards)


def test_rounds_are_bounded_and_empty_groups_fill_the_batch() -> None:
    source = Source([EMPTY, MIXED, EMPTY, EMPTY, MIXED, EMPTY, EMPTY, EMPTY])
    kept, sampled = sample_with_signal(source, 3, 2, "mean")
    assert source.asked == [(0, 3), (1, 2), (2, 1)]
    assert numbers_of(kept) == [0, 1, 4] and len(sampled.completions) == 12


def test_the_dial_goes_up_on_success_down_on_failure_and_stops_at_its_ends() -> None:
    assert move_dial(0.3, 0.75, 0.2) == pytest.approx(0.35)
    assert move_dial(0.3, 0.25, 0.2) == pytest.approx(0.25)
    assert move_dial(0.3, 0.5, 0.2) == 0.3 and move_dial(0.3, 0.8, 0.2, target=0.8) == 0.3
    assert move_dial(0.95, 1.0, 0.2) == 1.0 and move_dial(0.05, 0.0, 0.2) == 0.0


def test_what_a_round_asks() -> None:
    trainer = Trainer.from_config(experiment_config("smoke", overrides=TINY))
    split = load_problems(trainer.config, "train")
    assert problems_of_round(trainer, split, 2, 0, 4) == problems_of_step(trainer.config, split, 2)
    extra = problems_of_round(trainer, split, 2, 1, 4)
    assert len({p.question for p in extra}) == 4 and set(extra) <= set(split)
    assert extra != problems_of_round(trainer, split, 2, 2, 4)
    assert extra == problems_of_round(trainer, split, 2, 1, 4)

    trainer.config = experiment_config("smoke", overrides={**TINY, **KEEPS_SIGNAL})
    trainer.difficulty = 1.0
    hard = problems_of_round(trainer, split, 2, 0, 4)
    assert not set(hard) & set(split) and {split_of(p.question) for p in hard} == {"train"}
    seed = derive_seed(0, "problems of a round", 2, 0)
    assert hard == load_pocket_problems("train", 4, seed, 1.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = experiment_config("smoke", overrides={**TINY, **KEEPS_SIGNAL})
    return train(config, tmp_path_factory.mktemp("runs") / "undisturbed")


def test_a_run_keeps_its_signal_counts_its_cost_and_moves_its_dial(finished: Path) -> None:
    rows = read_rows(finished / METRICS)[1:]
    assert rows[0]["difficulty"] == 0.0
    for row, after in itertools.pairwise(rows):
        expected = move_dial(row["difficulty"], row["train_mean_answer_reward"], 0.5, 0.4)
        assert after["difficulty"] == expected
    for row in rows:
        assert 32 <= row["sampled_responses"] <= 96
        n_groups = row["sampled_responses"] / 8
        with_signal = min(n_groups * row["sampled_signal_share"], 4)
        assert 1 - row["no_signal_group_share"] == pytest.approx(with_signal / 4)
    assert max(row["sampled_responses"] for row in rows) > 32


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_a_stopped_run_goes_on_to_the_same_end(
    finished: Path, tmp_path: Path, stopped_at: int
) -> None:
    class Stopped(Exception):
        pass

    def stop(row: dict) -> None:
        if row["step"] == stopped_at:
            raise Stopped

    config = experiment_config("smoke", overrides={**TINY, **KEEPS_SIGNAL})
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", stop)
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / METRICS).read_bytes() == (finished / METRICS).read_bytes()
    ours, theirs = load_checkpoint(tmp_path / "run"), load_checkpoint(finished)
    assert ours["difficulty"] == theirs["difficulty"]
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"dynamic_sampling_rounds": -1}, "dynamic_sampling_rounds"),
        ({"difficulty_rate": -0.1}, "difficulty_rate"),
        ({"target_right_share": 1.0}, "target_right_share"),
    ],
)
def test_settings_that_do_not_fit_are_refused(overrides: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment_config("smoke", overrides=overrides)


def test_problems_without_a_dial_cannot_follow() -> None:
    with pytest.raises(ValueError, match=r"difficulty_rate=0\.1 moves the dial of pocket problems"):
        experiment_config("smoke", "two_gpu", overrides={"difficulty_rate": 0.1})
