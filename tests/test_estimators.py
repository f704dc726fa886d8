"""Estimators of one's own: what they promise, how a run takes them, what is refused."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

from gsmrl_helpers import estimators
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.config import make_config
from gsmrl_helpers.estimators import (
    ESTIMATORS,
    advantage_options,
    estimate_advantages,
    estimator,
)
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import train
from gsmrl_helpers.records import METRICS, read_rows

MIXED = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0])


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict]:
    known = dict(ESTIMATORS)
    monkeypatch.setattr(estimators, "ESTIMATORS", known)
    yield known


def test_log_odds_by_hand() -> None:
    # μ = 1/4 and σ² = 3/16, then μ = 3/4: the signs turn around
    right, wrong = 0.75 / (3 / 16), -0.25 / (3 / 16)
    expected = torch.tensor([right, wrong, wrong, wrong, -wrong, -wrong, -right, -wrong])
    assert torch.allclose(estimate_advantages("log_odds", MIXED, 4), expected, rtol=1e-4)


@pytest.mark.parametrize("group_size", [2, 3, 4, 8])
@pytest.mark.parametrize("eta", [0.05, 0.3, 0.5, 0.9])
def test_log_odds_expects_the_gradient_of_the_log_odds(group_size: int, eta: float) -> None:
    """Over every group of G answers, each right with chance η = σ(θ): d log-odds / dθ = 1."""
    expected = 0.0
    for rewards in product((0.0, 1.0), repeat=group_size):
        group = torch.tensor(rewards, dtype=torch.float64)
        chance = torch.where(group == 1, eta, 1 - eta).prod()
        score = group - eta  # d log π / dθ of a right answer, 1 − η, and of a wrong one, −η
        expected += chance * (estimate_advantages("log_odds", group, group_size) * score).mean()
    mixed = 1 - eta**group_size - (1 - eta) ** group_size
    assert expected.item() == pytest.approx(mixed, rel=2e-4)  # eps is in the divisor


def test_groups_of_equal_rewards_teach_nothing() -> None:
    rewards = torch.tensor([1.0] * 4 + [0.0] * 4 + [0.1] * 3 + [0.1])
    assert not estimate_advantages("log_odds", rewards, 4).any()


def test_a_run_trains_on_the_estimator_s_advantages(tmp_path: Path) -> None:
    config = experiment_config("own-estimator", variant="log_odds", overrides={"group_size": 4})
    raw, baseline, normalizer = advantage_options(config, MIXED)
    advantages, _ = compute_group_normalized_rewards(raw, 4, baseline, 0.0, normalizer)
    assert torch.equal(advantages, estimate_advantages("log_odds", MIXED, 4))
    finals = []
    for name in (None, "log_odds"):
        config = experiment_config("smoke", overrides={"advantage_estimator": name})
        row = read_rows(train(config, tmp_path / str(name)) / METRICS)[1]
        finals.append((row["loss"], row["train_mean_reward"], row["no_signal_group_share"]))
    # the same rollouts, with the same groups without a signal; another loss
    assert finals[0][1:] == finals[1][1:] and finals[0][0] != finals[1][0]


def test_ten_lines_are_an_estimator_and_a_variant(registry: dict) -> None:
    @estimator
    def against_the_best(rewards: torch.Tensor) -> torch.Tensor:
        return rewards - rewards.max(dim=1, keepdim=True).values

    assert make_config("pocket", settings={"advantage_estimator": "against_the_best"})
    assert estimate_advantages("against_the_best", MIXED, 4).tolist()[:4] == [0, -1, -1, -1]
    with pytest.raises(ValueError, match="'against_the_best' is there already"):
        estimator(against_the_best)
    assert set(EXPERIMENTS["own-estimator"].variants) == {"standard", *ESTIMATORS}


def test_what_is_no_estimator_is_refused_with_the_reason(registry: dict) -> None:
    with pytest.raises(ValueError, match=r"advantage_estimator='logodds'.*allowed: log_odds"):
        make_config("pocket", overrides={"advantage_estimator": "logodds"})
    with pytest.raises(ValueError, match="takes the place of baseline='none'"):
        settings = {"advantage_estimator": "log_odds", "baseline": "none"}
        make_config("pocket", overrides={**settings, "advantage_normalizer": "none"})
    with pytest.raises(ValueError, match="dynamic_sampling_rounds=4 asks which groups"):
        settings = {"advantage_estimator": "log_odds", "dynamic_sampling_rounds": 4}
        make_config("pocket", overrides=settings)
    with pytest.raises(ValueError, match="8 rewards are no groups of group_size=3"):
        estimate_advantages("log_odds", MIXED, 3)
    registry["mean"] = lambda rewards: rewards.mean(dim=1)
    with pytest.raises(ValueError, match=r"made \(2,\) advantages of \(2, 4\) rewards"):
        estimate_advantages("mean", MIXED, 4)
    registry["zero"] = lambda rewards: (rewards - 1) / 0
    with pytest.raises(ValueError, match="8 of them not finite"):
        estimate_advantages("zero", MIXED, 4)
