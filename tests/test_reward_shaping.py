"""The week's rewards: what each pays, and what can be had without an answer."""

from __future__ import annotations

import pytest
import torch

from gsmrl_helpers.grading import r1_zero_reward_fn
from gsmrl_helpers.reward_shaping import (
    FORMULAS,
    REWARD_FNS,
    Parts,
    conditional,
    conditional_reward,
    format_only,
    format_reward,
    marker_reward_fn,
    partial_reward,
    rlvr_reward,
    shape_reward,
    well_formed_reward_fn,
)
from gsmrl_helpers.rewards import compute_rollout_rewards
from gsmrl_helpers.rl import group_advantages

RIGHT = "3·4 = 12, 12 − 2 = 10. #### 10"  # W1a
WRONG = "3·4 = 12, 12 + 2 = 14. #### 14"  # W1b
NO_MARKER = "10.00"  # W1c
BARE = "#### 7"  # W1d
TWICE = "#### 10 #### 10"  # W1e
ALL_NUMBERS = " ".join(map(str, range(1, 101)))  # W2


@pytest.mark.parametrize(
    ("reward", "paid"),
    [
        (rlvr_reward, (1.1, 0.1, 0.0, 0.1, 0.0, 0.0)),
        (partial_reward, (1.1, 0.1, 0.5, 0.1, 0.5, 0.5)),
        (format_reward, (0.1, 0.1, 0.0, 0.1, 0.0, 0.0)),
        (conditional_reward, (1.1, 0.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_what_each_reward_pays(reward, paid):
    responses = (RIGHT, WRONG, NO_MARKER, BARE, TWICE, ALL_NUMBERS)
    assert tuple(reward(response, "10") for response in responses) == paid


def test_partial_credit_pays_a_list_of_all_numbers_on_every_task():
    assert {partial_reward(ALL_NUMBERS, str(gold)) for gold in range(1, 101)} == {0.5}
    assert partial_reward("12 − 2 = 10. #### 14", "10") == 0.6
    assert partial_reward(ALL_NUMBERS, "101") == 0.0


@pytest.mark.parametrize(
    ("response", "in_format", "correct"),
    [
        ("#### 10", 1, 1),
        ("####10.0 \nand 11", 1, 1),
        ("#### $10", 1, 1),
        ("#### 10 eggs", 1, 1),
        ("#### 1,0", 0, 0),
        ("#### 10 or 11", 0, 0),
        ("####\n10", 0, 0),
        ("#### ten", 0, 0),
        ("### 10", 0, 0),
        ("######## 10", 0, 0),
        ("#### 9\n#### 10", 0, 0),
        ("####", 0, 0),
        ("", 0, 0),
    ],
)
def test_the_marker_stands_once_and_a_number_follows(response, in_format, correct):
    graded = marker_reward_fn(response, "10")
    assert (graded["format_reward"], graded["answer_reward"]) == (in_format, correct)
    assert graded["reward"] == correct


@pytest.mark.parametrize("gold", ["", "nan", None, "#### 10", float("nan")])
def test_a_gold_that_is_no_number_earns_the_format_alone(gold):
    assert rlvr_reward("nan #### 10", gold) == 0.1
    assert partial_reward("nan, 10", gold) == 0.0


def test_the_conditional_bonus_leaves_an_all_wrong_group_without_a_gradient():
    """W5: (0, .1, 0, 0) teaches the format alone; R = C + .1·C·F is four zeros."""
    group = ["10", WRONG, "so 14", "#### x"]
    plain = torch.tensor([[rlvr_reward(response, "10") for response in group]])
    strict = torch.tensor([[conditional_reward(response, "10") for response in group]])
    assert torch.equal(plain, torch.tensor([[0.0, 0.1, 0.0, 0.0]]))
    assert torch.equal(strict, torch.zeros(1, 4))
    assert torch.allclose(group_advantages(plain), torch.tensor([[-0.5, 1.5, -0.5, -0.5]]), 1e-4)
    assert torch.equal(group_advantages(strict), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("name", "rewards"),  # of C, F, A = 111, 110, 011, 010, 001, 000
    [
        ("answer_only", (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)),
        ("format_bonus", (1.1, 1.0, 0.1, 0.1, 0.0, 0.0)),
        ("partial_credit", (1.1, 1.0, 0.6, 0.1, 0.5, 0.0)),
        ("format_only", (0.1, 0.0, 0.1, 0.1, 0.0, 0.0)),
        ("conditional", (1.1, 1.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_a_formula_is_its_own_arithmetic(name, rewards):
    parts = [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    assert tuple(FORMULAS[name](Parts(*map(float, part))) for part in parts) == rewards


def test_a_formula_shapes_any_grader_and_leaves_its_parts():
    tagged, wrong = " </think> <answer> 18 </answer>", " </think> <answer> 17 </answer>"
    shaped = shape_reward(r1_zero_reward_fn, format_only)
    assert shaped(tagged, "18") == {"reward": 0.1, "format_reward": 1.0, "answer_reward": 1.0}
    assert shape_reward(r1_zero_reward_fn, conditional)(wrong, "18")["reward"] == 0.0
    rewards, metadata = compute_rollout_rewards(
        REWARD_FNS["r1_zero+format_bonus"], [tagged, wrong, "18"], ["18"] * 3
    )
    assert rewards.tolist() == pytest.approx([1.1, 0.1, 0.0])
    assert metadata["mean_answer_reward"] == pytest.approx(1 / 3)


def test_rewards_have_a_name_for_runs():
    assert {"question_only", "r1_zero", "r1_zero_lenient", "marker"} < REWARD_FNS.keys()
    assert "r1_zero_well_formed+format_only" in REWARD_FNS
    assert len(REWARD_FNS) == 5 * len(FORMULAS)
    assert REWARD_FNS["marker+format_bonus"](RIGHT, "10")["reward"] == rlvr_reward(RIGHT, "10")


@pytest.mark.parametrize(
    ("response", "literal", "well_formed"),  # the format's, by either check
    [
        (" 9+9=18. </think> <answer> 18 </answer>", 1, 1),
        (" </think> <answer> 18 </answer>", 1, 1),  # no thought at all is no fault of the tags
        (" <answer> 18 </answer> </think>", 0, 0),  # W7a
        (" </think> <answer> 18 </answer> <answer> 17 </answer>", 1, 0),  # W7b
        (" a </think> b </think> <answer> 18 </answer>", 1, 0),
        (" <think> a </think> <answer> 18 </answer>", 1, 0),
        (" 9+9=18. </think> <answer>  </answer>", 1, 0),  # W7c
        (" 9+9=18. </think> <answer>", 0, 0),
        (" 9+9=18.", 0, 0),  # W7d: the tags stood in the prompt alone
    ],
)
def test_tags_that_are_there_and_tags_that_stand_well(response, literal, well_formed):
    assert r1_zero_reward_fn(response, "18")["format_reward"] == literal
    graded = well_formed_reward_fn(response, "18")
    assert graded["format_reward"] == well_formed
    right = r1_zero_reward_fn(response, "18")["reward"] * well_formed
    assert graded["reward"] == graded["answer_reward"] == right
