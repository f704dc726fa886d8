r"""Graders: what scores, what must not, and that nothing a policy writes can hurt."""

from __future__ import annotations

import math
import string
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gsmrl_helpers.grading import (
    MAX_RESPONSE_CHARS,
    REWARD_FNS,
    find_boxed,
    find_tagged,
    parse_number,
    question_only_reward_fn,
    r1_zero_reward_fn,
)

WRAP = {"r1_zero": " 9+9=18. </think> <answer> {} </answer>", "question_only": r"So \boxed{{{}}}."}
RIGHT = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
WRONG = {"reward": 0.0, "format_reward": 1.0, "answer_reward": 0.0}
NO_FORMAT = {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}


def grade(name: str, answer: str, gold: str) -> dict[str, float]:
    return REWARD_FNS[name](WRAP[name].format(answer), gold)


# --- numbers -----------------------------------------------------------------------------------

# One row a rule: the gold, and ways to write it.
READ = [
    ("18", r"18|+18|18.|18.0|18.00|018|36/2|\frac{36}{2}|\dfrac{54}{3} eggs"),
    ("18", r"18%|18 %|18\%|18 percent|18¢|$18|$ 18|\$18|$+18|$18.00|18$|18€|€18|18 €|£18"),
    ("18", r"$18$|$\$18$|$$18$$|\(18\)|\[ 18 \]|{18}|\mathbf{18}|\textbf{18}|\mathrm{18}"),
    ("18", r"18 eggs|18 eggs.|18eggs|\text{18 eggs}|18\text{ eggs}|18\,\text{eggs}|$18$ eggs"),
    ("18", r"18kg|18 miles per hour|18 miles/hour|$18/day|$18 / day|18 more eggs|18 square feet"),
    ("18", r"**18**|*18*|`18`|**18.**|**18**.|**18** eggs|result: **18**"),
    ("18", r"x = 18|x=18|$x = 18$|N: 18|x is 18|Answer: 18|ANSWER=18|Total = $18"),
    ("18", r"The answer is 18.|The answer is: $18|the final answer is 18 dollars"),
    ("1080", r"1,080|1{,}080|1\,080|1,\!080|$1,080.00|1,080 eggs|\$1,080"),
    ("109,200,000", r"109200000|109{,}200{,}000|109\,200\,000|$109,200,000."),
    ("-5", r"-5|−5|–5|-$5|$-5|\$-5|-5.0|-5 degrees|-10/2|\frac{-10}{2}|-\frac{10}{2}|x = -5"),
    ("5", r"5€|5 €|€5|+5|5 euros"),
    ("0.5", r".5|+.5|0.50|1/2|1 / 2|\frac{1}{2}|\tfrac{1}{2}|\frac{ 1 }{ 2 } cup|1/2 of the cake"),
    ("-7.75", r"-7 3/4|-7.75|−7 3/4|-7\frac{3}{4}|$-7 3/4$|-31/4"),
    ("0", r"0|-0|0.0|0/7|$0"),
]


@pytest.mark.parametrize("name", sorted(REWARD_FNS))
@pytest.mark.parametrize(
    ("gold", "answer"), [(gold, answer) for gold, row in READ for answer in row.split("|")]
)
def test_a_right_answer_scores_in_every_accepted_form(name, gold, answer):
    assert grade(name, answer, gold) == RIGHT
    assert grade(name, answer, str(parse_number(gold) + 1)) == WRONG


NEVER_18 = [
    "17=18|17 = 18|18=18|18 = x|x = y = 18|9+9|18+0|18-0|18*1|18 - 1|2*9|2**3|18!|18^1|18²",
    "1 8|1,8|18,|17 or 18|18 or 18|17, 18|18, 17|18;18|$18 or $18|18 18|18:1|18/1/1",
    "17\n18|18\n17|18\n18|18\neggs|17\u202818|18 or nineteen|18 and a half",
    "- 18|--18|+-18|-18|−18|18-|(18)|~18|≈18|<18|not 18|18..|1 80/10|17 1/1",
    "18 dozen|18 million|18million|18 Hundred|18k|18 m|18th|18 squared|18 times two",
    "18 divided by two|18 minus one|18 less than x|18 is wrong|no answer is 18",
    "18e0|1.8e1|0x12|0b10010|１８|१८|٣|eighteen|XVIII|nan|inf|None|$|-| ||the answer is",
    r"\frac{18}{0}|\frac{18}{1}8|\frac{1}{1}8|1\text8|1**8**|36*/2|1$8|1{8}|18_{10}",
    " ".join(map(str, range(1, 101))),
    ",".join(map(str, range(1, 101))),
]


@pytest.mark.parametrize("name", sorted(REWARD_FNS))
@pytest.mark.parametrize("answer", [answer for row in NEVER_18 for answer in row.split("|")])
def test_what_is_not_the_one_number_18_never_scores(name, answer):
    assert grade(name, answer, "18")["reward"] == 0.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("-7 3/4", "-6.25"),  # the sign is the whole number's, not the integer part's
        ("2*3/4", "2.75"),
        ("2**3/4", "2.75"),
        ("2{3/4}", "2.75"),
        ("7 5/4", "8.25"),
        ("1 0/1", "1 0"),
        ("0,018", "18"),
        ("0,018", "0.018"),
        ("1.080", "1080"),
        ("1,08", "108"),
        ("1,0800", "10800"),
        ("18%", "0.18"),
        ("0.1", "0.1000000000000000055511151231257827"),  # equal as floats
        ("12345678901234567890", "12345678901234567891"),
        ("9007199254740993", "9007199254740992"),
    ],
)
def test_another_number_never_scores(answer, gold):
    assert [grade(name, answer, gold)["reward"] for name in REWARD_FNS] == [0.0, 0.0]


@pytest.mark.parametrize("gold", ["", " ", "nan", "NaN", "inf", "None", "eighteen", None, math.nan])
def test_a_gold_that_is_no_number_never_scores(gold):
    for answer in ["18", "nan", "inf", "None", "", "eighteen", "0"]:
        assert [grade(name, answer, gold) for name in REWARD_FNS] == [WRONG, WRONG]


@pytest.mark.parametrize("name", sorted(REWARD_FNS))
def test_a_programming_error_is_not_a_wrong_answer(name):
    with pytest.raises(ValueError, match=r"follows '####', got 'So 18\.\\n#### 18'"):
        REWARD_FNS[name]("no format", "So 18.\n#### 18")
    with pytest.raises(TypeError, match="gold must be a string, got int"):
        grade(name, "18", 18)
    with pytest.raises(TypeError, match="response must be a string, got list"):
        REWARD_FNS[name](["18"], "18")


# --- where the answer stands -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("so 18 </think> <answer> 18 </answer>", RIGHT),
        ("so 18 </think> <answer>18</answer> and 17", RIGHT),
        ("so </think> <answer>\n18\n</answer></answer>", RIGHT),
        (r"so </think> <answer> it is \boxed{18} </answer>", RIGHT),
        (r"so </think> <answer> 17, no, \boxed{17} \boxed{18} </answer>", RIGHT),
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
        (r"\boxed{18}", RIGHT),
        (r"\boxed {18}", RIGHT),
        (r"\\boxed{18}", RIGHT),
        (r"$\boxed{18}$ and then \boxed{", RIGHT),
        (r"\boxed{17} or \boxed{18}", RIGHT),
        (r"\boxed{\text{18 eggs}}", RIGHT),
        (r"\boxed{17 \boxed{18}}", RIGHT),
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


# --- untrusted text ----------------------------------------------------------------------------

POISON = [
    "9" * 200_000,
    "1e999999999",
    "9" * 5_000 + "/" + "9" * 5_000,
    "9**9**9**9",
    "2^{2^{2^{2^{2^{99}}}}}",
    "9" * 50 + "!" * 50,
    "(" * 200_000,
    "a" * 100_000,
    "{" * 200_000,
    "{}" * 100_000,
    "1," * 100_000,
    "1 " * 99,
    "\t" * 199 + "x",
    "18" + "\t" * 190 + "!",
    "18 " + "ab " * 60,
    "18" + " /" * 90,
    "x" + " " * 190 + "=",
    "the " * 49,
    "$" * 199,
    "\\text" * 39,
    r"\frac{" * 33,
    r"\boxed{" * 30_000,
    r"\boxed{" * 30_000 + "}" * 30_000,
    r"\boxed{18}" * 20_000 + r"\boxed{",
    r"\boxed" + " " * 200_000,
    "</think> <answer>" * 20_000,
    "__import__('os').system('exit 1')",
    "\x00\ud800\u202e",
]


@pytest.mark.parametrize("poison", POISON, ids=lambda poison: f"{poison[:12]!r}x{len(poison)}")
def test_poison_is_a_wrong_answer_in_bounded_time(poison):
    start = time.process_time()
    for name, reward_fn in REWARD_FNS.items():
        assert grade(name, poison, "17")["reward"] == 0.0
        assert reward_fn(poison, "17")["reward"] == 0.0
        assert reward_fn("", poison)["reward"] == 0.0
    assert time.process_time() - start < 0.25


def test_a_batch_with_poison_still_grades_the_others_in_any_thread():
    batch = ["18", *POISON, "17", "$18.00"]
    with ThreadPoolExecutor(max_workers=2) as pool:
        rewards = list(pool.map(lambda answer: grade("r1_zero", answer, "18")["reward"], batch))
    assert (rewards[0], rewards[-2], rewards[-1]) == (1.0, 0.0, 1.0)


def test_a_rollout_batch_is_graded_in_milliseconds():
    text = " Some thinking about it." * 40
    batch = [text + WRAP["r1_zero"].format(a) for a in ["18", "$18", "1,080", "18 eggs"] * 64]
    start = time.process_time()
    rewards = [r1_zero_reward_fn(response, "18")["reward"] for response in batch]
    assert time.process_time() - start < 0.1  # 3 ms on an idle core
    assert sum(rewards) == 192


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
]
texts = st.text(max_size=300) | st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(response=texts, gold=texts.filter(lambda text: "####" not in text))
@example(response="\ud800", gold="\ud800")
@settings(max_examples=400, deadline=None)
def test_any_text_and_any_gold_give_the_same_three_numbers_twice(response, gold):
    for name, reward_fn in REWARD_FNS.items():
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


@given(st.integers(-(10**60), 10**60))
def test_every_way_of_writing_an_integer_is_that_integer(number):
    grouped = f"{number:,}"
    written = [str(number), f"{number}.000", f"{number}.", grouped, grouped.replace(",", "{,}")]
    written += [grouped.replace(",", r"\,"), str(number).replace("-", "−"), f"${number}$"]
    written += [f"**{number}**", f"x = {number}", f"{grouped} eggs", f"{number}/1", f"\\${grouped}"]
    written += [
        rf"\frac{{{3 * number}}}{{3}}",
        rf"\text{{{number} eggs}}",
        f"{number}%",
        f" {number}\n",
    ]
    assert {parse_number(text) for text in written} == {Fraction(number)}


@given(st.decimals(-(10**12), 10**12, places=6))
def test_a_decimal_is_read_exactly(number):
    assert parse_number(f"{number:f}") == Fraction(number)
    assert parse_number(f"{number:,f}") == Fraction(number)


@given(st.integers(0, 999), st.integers(1, 999), st.integers(1, 999), st.booleans())
def test_a_fraction_and_a_mixed_number_are_read_exactly(whole, num, den, negative):
    sign = -1 if negative else 1
    minus = "-" * negative
    assert parse_number(f"{minus}{num}/{den}") == sign * Fraction(num, den)
    mixed = parse_number(f"{minus}{whole} {num}/{den}")
    assert mixed == (sign * (whole + Fraction(num, den)) if num < den else None)


@given(
    st.integers(0, 10**9),
    st.text(string.digits + "+-*/=^!,;:|&<>~ ", min_size=1, max_size=6),
    st.integers(0, 10**9),
)
def test_of_two_numbers_neither_is_read_alone(a, middle, b):
    value = parse_number(f"{a}{middle}{b}")
    joined = f"{a}{middle}{b}".replace(",", "")
    if value is not None and not any(mark in middle for mark in "/ "):
        assert joined.isdecimal() and value == int(joined)
