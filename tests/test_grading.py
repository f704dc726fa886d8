r"""Graders: where an answer stands, and that nothing a policy writes can hurt."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gsmrl_helpers.equivalence  # noqa: F401  loads sympy before a test is timed
from gsmrl_helpers.grader_corpora import FORMS, POISON, TRAPS
from gsmrl_helpers.grading import (
    GRADERS,
    find_boxed,
    find_tagged,
    question_only_reward_fn,
    r1_zero_reward_fn,
    unbox,
)
from gsmrl_helpers.numerals import MAX_RESPONSE_CHARS
from tests.graded import NO_FORMAT, RIGHT, WRAP, WRONG, grade

# --- where the answer stands -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("so 18 </think> <answer> 18 </answer>", RIGHT),
        ("so 18 </think> <answer>18</answer> and 17", RIGHT),
        ("so </think> <answer>\n18\n</answer></answer>", RIGHT),
        (r"so </think> <answer> \boxed{18} </answer>", RIGHT),
        (r"so </think> <answer> The answer is $\boxed{18}$. </answer>", RIGHT),
        (r"so </think> <answer> \boxed{18} eggs </answer>", RIGHT),
        (r"so </think> <answer> \boxed{\boxed{\text{18 eggs}}} </answer>", RIGHT),
        (r"so </think> <answer> it is \boxed{18} </answer>", WRONG),
        (r"so </think> <answer> 17 or \boxed{18} </answer>", WRONG),
        (r"so </think> <answer> not \boxed{18} </answer>", WRONG),
        ("so </think> <answer> 1\n\\boxed{18} 2 </answer>", WRONG),
        (r"so </think> <answer> 1\boxed{8} </answer>", WRONG),
        (r"so </think> <answer> \boxed{1}\boxed{8} </answer>", WRONG),
        (r"so </think> <answer> \boxed{17\boxed{18}} </answer>", WRONG),
        (r"so </think> <answer> 17, no, \boxed{17} \boxed{18} </answer>", WRONG),
        ("</answer> so </think> <answer> 18 </answer>", RIGHT),
        (r"so \boxed{18} </think> <answer> 17 </answer>", WRONG),
        ("so </think> <answer> 17 </answer> <answer> 18 </answer>", WRONG),
        ("so </think> <answer> 17 </answer> </think> <answer> 18 </answer>", WRONG),
        ("so </think> <answer> 17 </think> <answer> 18 </answer>", WRONG),
        (r"so </think> <answer> 17 </answer> \boxed{18}", WRONG),
        (r"so </think> <answer> \boxed{17} 18 </answer>", WRONG),
        (r"so </think> <answer> 18 \boxed{ </answer> }", WRONG),
        (r"so </think> <answer> \boxed{18 </answer> }", WRONG),
        ("so </think> <answer> </answer>", WRONG),
        ("so </think> <answer> 18", NO_FORMAT),
        ("so <answer> 18 </answer>", NO_FORMAT),
        ("so </think><answer> 18 </answer>", NO_FORMAT),
        ("so </think>  <answer> 18 </answer>", NO_FORMAT),
        ("so </think>\n<answer> 18 </answer>", NO_FORMAT),
        ("so </THINK> <ANSWER> 18 </ANSWER>", NO_FORMAT),
        ("</answer> </think> <answer> 18", NO_FORMAT),
        (r"\boxed{18}", NO_FORMAT),
        ("18", NO_FORMAT),
        ("", NO_FORMAT),
    ],
)
def test_r1_zero_reads_the_first_answer_and_nothing_else(response, expected):
    assert r1_zero_reward_fn(response, "18") == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("so </think> <answer> 18 </answer>", RIGHT),
        ("so </think><answer>18</answer>", RIGHT),
        ("so </think>\n\n<answer>18</answer>", RIGHT),
        ("so </THINK> <Answer> 18 </ANSWER> 17", RIGHT),
        ("so </think><answer> 17 </answer> </think> <answer> 18 </answer>", WRONG),
        ("so </think><answer> 17 </ANSWER> 18 </answer>", WRONG),
        ("so </think> and <answer> 18 </answer>", NO_FORMAT),
        ("so <answer> 18 </answer>", NO_FORMAT),
        ("so </think><answer> 18", NO_FORMAT),
        ("</answer></think><answer> 18", NO_FORMAT),
        ("", NO_FORMAT),
    ],
)
def test_the_lenient_form_forgives_space_and_capitals_and_nothing_else(response, expected):
    assert r1_zero_reward_fn(response, "18", strict=False) == expected
    assert GRADERS["r1_zero_lenient"](response, "18") == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{18}", RIGHT),
        (r"\boxed {18}", RIGHT),
        (r"\\boxed{18}", RIGHT),
        (r"$\boxed{18}$ and then \boxed{", RIGHT),
        (r"\boxed{17} or \boxed{18}", RIGHT),
        (r"\boxed{\text{18 eggs}}", RIGHT),
        (r"\boxed{17 \boxed{18}}", WRONG),
        (r"\boxed{17\boxed{18}}", WRONG),
        (r"\boxed{1\boxed{8}}", WRONG),
        (r"\boxed{\boxed{18}\boxed{17}}", WRONG),
        (r"\boxed{\boxed{18}} } }", RIGHT),
        (r"{ \boxed{18}", RIGHT),
        (r"\boxed{18}" + " tail" * 1000, RIGHT),
        (r"\boxed{18} or \boxed{17}", WRONG),
        (r"18 \boxed{}", WRONG),
        (r"\boxed{1\}8}", WRONG),
        (r"\boxed{{18} \boxed{17} }", WRONG),
        (r"\boxed{18", NO_FORMAT),
        (r"\boxed{18\}", NO_FORMAT),
        (r"\boxed{\text{18 eggs}", NO_FORMAT),
        (r"\boxed 18", NO_FORMAT),
        (r"boxed{18}", NO_FORMAT),
        ("</think> <answer> 18 </answer>", NO_FORMAT),
        (r"\boxed{18}" + " " * MAX_RESPONSE_CHARS, NO_FORMAT),
        ("", NO_FORMAT),
    ],
)
def test_question_only_reads_the_last_complete_box(response, expected):
    assert question_only_reward_fn(response, "18") == expected


def test_what_the_finders_return():
    assert find_tagged("a </think> <answer> b </answer> c </answer>") == " b "
    assert find_tagged("a </think> <answer> b") is None
    assert find_boxed(r"\boxed{a} \boxed{\frac{1}{2}} \boxed{c") == r"\frac{1}{2}"
    assert find_boxed("none") is None
    assert find_boxed(r"\boxed{a \boxed{b}} c") == r"a \boxed{b}"
    assert unbox(r" \boxed {[0,1)} ") == "[0,1)" and unbox(r"a \boxed{b}") == "a {b}"


@pytest.mark.parametrize("gold", [r"2\sqrt{3}", "[0,1)", r"\{1,2\}", "18"])
def test_a_box_around_the_whole_answer_is_taken_off(gold):
    for name in GRADERS:
        assert grade(name, rf"\boxed{{{gold}}}", gold) == RIGHT
        assert grade(name, rf"5 or \boxed{{{gold}}}", gold) == WRONG


@pytest.mark.parametrize("name", sorted(GRADERS))
def test_a_programming_error_is_not_a_wrong_answer(name):
    with pytest.raises(TypeError, match="gold must be a string, got int"):
        grade(name, "18", 18)
    with pytest.raises(TypeError, match="response must be a string, got list"):
        GRADERS[name](["18"], "18")


@pytest.mark.parametrize(
    "pair", [*FORMS, *TRAPS], ids=lambda pair: f"{pair.answer[:20]} ? {pair.gold}"
)
@pytest.mark.parametrize("name", sorted(GRADERS))
def test_the_forms_and_the_traps_of_the_book(name, pair):
    assert grade(name, pair.answer, pair.gold)["reward"] == float(pair.is_right)


# --- untrusted text ----------------------------------------------------------------------------


@pytest.mark.parametrize("poison", POISON, ids=lambda poison: f"{poison[:12]!r}x{len(poison)}")
def test_poison_is_a_wrong_answer_in_bounded_time(poison):
    start = time.process_time()
    for name, reward_fn in GRADERS.items():
        for gold in ("17", r"\sqrt{12}", poison):
            assert grade(name, poison, gold)["reward"] == 0.0
            assert reward_fn(poison, gold)["reward"] == 0.0
        assert reward_fn("", poison)["reward"] == 0.0
    assert time.process_time() - start < 0.25


BATCH = ["17", *POISON, "18", "$17.00", r"2\sqrt{3}"]


def batch_rewards(gold: str) -> list[float]:
    return [grade("r1_zero", answer, gold)["reward"] for answer in BATCH]


@pytest.mark.parametrize(("gold", "right"), [("17", {0, -2}), (r"\sqrt{12}", {-1})])
def test_a_batch_with_poison_still_grades_the_others_in_any_thread_or_process(gold, right):
    expected = [0.0] * len(BATCH)
    for index in right:
        expected[index] = 1.0
    assert batch_rewards(gold) == expected
    with ThreadPoolExecutor(max_workers=4) as pool:
        assert list(pool.map(batch_rewards, [gold] * 4)) == [expected] * 4
    with multiprocessing.get_context("fork").Pool(1) as processes:
        assert processes.apply_async(batch_rewards, (gold,)).get(timeout=30) == expected


def test_graders_work_in_an_event_loop_and_in_its_threads():
    async def graded() -> list[list[float]]:
        here = batch_rewards(r"\sqrt{12}")
        return [here, await asyncio.to_thread(batch_rewards, r"\sqrt{12}")]

    here, there = asyncio.run(graded())
    assert here == there and here[-1] == 1.0 and sum(here) == 1.0


def test_the_callers_alarm_and_its_handler_are_left_alone():
    def handler(signum: int, frame: object) -> None:
        raise AssertionError("the alarm is a minute away")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        assert batch_rewards(r"\sqrt{12}")[-1] == 1.0
        assert signal.getsignal(signal.SIGALRM) is handler
        assert 30 < signal.getitimer(signal.ITIMER_REAL)[0] < 60
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Text made of the pieces that the grader knows reaches further into it than random text.
PIECES = [r"\boxed{", r"\frac{", r"\text{", "}", "{", "</think> <answer>", "</answer>", "$", r"\$"]
PIECES += ["\\", "¤", "-", "−", "+", ".", ",", "/", "=", ":", " ", "\n", "*", "%", "!", "^", "e"]
PIECES += [
    "18",
    "0",
    "7",
    "999",
    "x",
    "eggs",
    "million",
    "the answer is ",
    "####",
    "nan",
    "²",
    "１",
    *(r"\sqrt{", r"\pi", "(", ")", "[", "{", r"\cup", "y", "2", "|", "3"),
]
texts = st.text(max_size=300) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(response=texts, gold=texts)
@example(response="\ud800", gold="\ud800")
@example(response="18", gold="So 18.\n#### 18")
@settings(max_examples=400, deadline=None)
def test_any_text_and_any_gold_give_the_same_three_numbers_twice(response, gold):
    for name, reward_fn in GRADERS.items():
        for text in (response, WRAP[name].format(response)):
            start = time.process_time()
            rewards = reward_fn(text, gold)
            assert time.process_time() - start < 0.25
            assert rewards == reward_fn(text, gold)
            assert list(rewards) == ["reward", "format_reward", "answer_reward"]
            assert all(
                type(reward) is float and reward in (0.0, 1.0) for reward in rewards.values()
            )
            assert rewards["reward"] == rewards["answer_reward"] <= rewards["format_reward"]
