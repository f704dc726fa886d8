"""Prompts: the text a policy sees, and that text, reward and stop string stay together."""

from __future__ import annotations

import dataclasses
import operator
import re

import pytest

from gsmrl_helpers.grading import question_only_reward_fn, r1_zero_reward_fn
from gsmrl_helpers.prompting import PROMPTS, Prompt, get_prompt

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def test_the_three_prompts_come_with_their_reward_and_stop_string():
    found = {p.name: (p.reward_fn, p.stop, p.include_stop_str_in_output) for p in PROMPTS.values()}
    assert found == {
        "question_only": (question_only_reward_fn, (), True),
        "r1_zero": (r1_zero_reward_fn, ("</answer>",), True),
        "r1_zero_three_shot": (r1_zero_reward_fn, ("</answer>",), True),
    }


@pytest.mark.parametrize("name", ["r1_zero", "r1_zero_three_shot"])
def test_r1_zero_prompts_end_where_the_policy_starts_to_think(name):
    text = get_prompt(name).format("How many?")
    assert text.startswith("A conversation between User and Assistant. ")
    assert "<think> reasoning process here </think> <answer> answer here </answer>.\nUser: " in text
    assert text.endswith("\nUser: How many?\nAssistant: <think>")


def test_question_only_is_the_question_and_a_request_for_a_box():
    text = get_prompt("question_only").format("How many?")
    assert text == "How many?\nPut the final answer inside \\boxed{}."


def test_the_three_shot_prompt_is_the_zero_shot_one_with_three_examples():
    zero_shot, three_shot = (
        get_prompt("r1_zero").template,
        get_prompt("r1_zero_three_shot").template,
    )
    instruction, question = zero_shot.split("\n", 1)
    assert three_shot.startswith(instruction + "\nUser: ")
    assert three_shot.endswith("</answer>\n" + question)
    assert three_shot.count("\nUser: ") == three_shot.count("\nAssistant: <think>") == 4


def test_the_worked_examples_are_in_format_and_right():
    examples = get_prompt("r1_zero_three_shot").template.split("\nAssistant: <think>")[1:-1]
    for example, gold in zip(examples, ["7", "30", "9"], strict=True):
        response = example.split("\nUser: ")[0]
        assert r1_zero_reward_fn(response, gold)["reward"] == 1.0
        steps = re.findall(r"(\d+) ?([-+*/]) ?(\d+) ?= ?(\d+)", response)
        assert steps
        assert all(OPERATIONS[sign](int(a), int(b)) == int(c) for a, sign, b, c in steps)


@pytest.mark.parametrize("name", sorted(PROMPTS))
@pytest.mark.parametrize("question", ["{x} of {} eggs?", "{question}", "{0!r:>{w}} {{y}}", r"\1 $"])
def test_a_question_goes_in_letter_by_letter(name, question):
    before, after = get_prompt(name).template.split("{question}")
    assert get_prompt(name).format(question) == before + question + after


@pytest.mark.parametrize("template", ["no field", "{question} and {question}", "{ question }", ""])
def test_a_template_needs_the_field_exactly_once(template):
    with pytest.raises(ValueError, match=r"'mine' must hold \{question\} exactly once"):
        Prompt("mine", template, "r1_zero")


def test_an_unknown_prompt_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"'r1zero'.*question_only, r1_zero, r1_zero_three_shot"):
        get_prompt("r1zero")


def test_a_reward_is_replaced_by_name_and_the_rest_stays():
    prompt = get_prompt("r1_zero")
    other = prompt.with_reward("question_only")
    assert other.reward_fn is question_only_reward_fn
    assert other == dataclasses.replace(prompt, reward_name="question_only")
    assert get_prompt("r1_zero").reward_fn is r1_zero_reward_fn


def test_an_unknown_reward_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"'r1'.*question_only, r1_zero"):
        get_prompt("r1_zero").with_reward("r1")
    with pytest.raises(ValueError, match=r"'r1'.*question_only, r1_zero"):
        Prompt("mine", "{question}", "r1")


def test_a_prompt_cannot_be_changed_by_accident():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_prompt("r1_zero").reward_name = "question_only"
