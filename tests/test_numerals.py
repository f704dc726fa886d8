r"""Numerals: every way to write a number, and what must not be read as one."""

from __future__ import annotations

import math
import re
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsmrl_helpers import expression_reader, numerals
from gsmrl_helpers.grading import GRADERS, is_equal
from gsmrl_helpers.numerals import names_number, parse_number
from tests.graded import RIGHT, WRONG, grade

# --- numbers -----------------------------------------------------------------------------------

# One row a rule: the gold, and ways to write it.
READ = [
    ("18", r"18|+18|18.|18.0|18.00|018|36/2|\frac{36}{2}|\dfrac{54}{3} eggs"),
    ("18", r"18%|18 %|18\%|18 percent|18 per cent|$18|$ 18|\$18|$+18|$18.00|18$|18€|€18|18 €|£18"),
    ("18", r"$18$|$\$18$|$$18$$|\(18\)|\[ 18 \]|{18}|\mathbf{18}|\textbf{18}|\mathrm{18}"),
    ("18", r"18 eggs|18 eggs.|18eggs|\text{18 eggs}|18\text{ eggs}|18\,\text{eggs}|$18$ eggs"),
    ("18", r"18kg|18 miles per hour|18 miles/hour|$18/day|$18 / day|18 more eggs|18 square feet"),
    ("18", r"18 km/h|18 eggs left|18 in total|18 years old|18 dollars each|18 cups of tea"),
    ("18", r"18°|18^\circ|18^{\circ}|18°C|18 cm²|18 cm^2|18\text{ cm}^{2}|18 dollars a week"),
    ("18", r"18 left over|18 sit-ups|18 dollars in change|18 push-ups per day"),
    ("18", r"**18**|*18*|`18`|**18.**|**18**.|**18** eggs|result: **18**"),
    ("18", r"x = 18|x=18|$x = 18$|N: 18|x is 18|Answer: 18|ANSWER=18|Total = $18"),
    ("18", r"The answer is 18.|The answer is: $18|the final answer is 18 dollars"),
    ("1080", r"1,080|1{,}080|1\,080|1,\!080|$1,080.00|1,080 eggs|\$1,080"),
    ("109,200,000", r"109200000|109{,}200{,}000|109\,200\,000|$109,200,000."),
    ("-5", r"-5|−5|–5|-$5|$-5|\$-5|-5.0|-5 degrees|-10/2|\frac{-10}{2}|-\frac{10}{2}|x = -5"),
    ("5", r"5€|5 €|€5|+5|5 euros"),
    ("0.5", r".5|+.5|0.50|1/2|1 / 2|\frac{1}{2}|\tfrac{1}{2}|\frac{ 1 }{ 2 } cup"),
    ("0.5", r"½|½ cup|$½$|\frac{1}2|\frac1{2}|\displaystyle \frac12"),
    ("-7.75", r"-7 3/4|-7.75|−7 3/4|-7\frac{3}{4}|$-7 3/4$|-31/4|-7¾"),
    ("0", r"0|-0|0.0|0/7|$0"),
]


@pytest.mark.parametrize("name", sorted(GRADERS))
@pytest.mark.parametrize(
    ("gold", "answer"), [(gold, answer) for gold, row in READ for answer in row.split("|")]
)
def test_a_right_answer_scores_in_every_accepted_form(name, gold, answer):
    assert grade(name, answer, gold) == RIGHT
    assert grade(name, answer, str(parse_number(gold) + 1)) == WRONG


# Units that look like words for numbers.
UNITS = """months paths baths cloths births mouths teeth depths lengths widths moths deaths fish
ties tents tenants stands bones squares cubes couples triplets pavilions medallions logs kilograms
kilometers megabytes sandwiches pounds meters points onions twins bundles temples apples sixpacks
boxes bills nickels dimes weeks rounds islands hands lions blindfolds""".split()  # noqa: SIM905


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_that_resembles_a_number_word_is_a_unit(unit):
    assert is_equal(f"18 {unit}", "18") and is_equal(f"18 more {unit}", "18")


NEVER_18 = [
    "17=18|17 = 18|18=18|18 = x|x = y = 18|9+9|18+0|18-0|18*1|18 - 1|2*9|2**3|18!|18^1|18²",
    "1 8|1,8|18,|17 or 18|18 or 18|17, 18|18, 17|18;18|$18 or $18|18 18|18:1|18/1/1",
    "17\n18|18\n17|18\n18|18\neggs|17\u202818|18 or nineteen|18 and a half",
    "- 18|--18|+-18|-18|−18|18-|(18)|~18|≈18|<18|not 18|18..|1 80/10|17 1/1",
    "18 dozen|18 million|18million|18 Hundred|18k|18 m|18th|18 squared|18 times two",
    "18 of them too many|18 too many|18% off|18% of 50|18 percent of it|18 off|18 of 20|about 18",
    "18 years ago|18 short|18 pi|18 xy|18/x|18 over two|18 in binary|18 gross|18 base nine",
    "18 cents|18¢|18 cents per egg|18 eggs and two|18 eggs too many|18 eggs of them|18 to 20",
    "18 times itself|18 times forty-two|18 eggs over|18 below zero|18 or so|18 under",
    "18 eggs of that|18/two|18 each of two|18 eggs-two",
    "18 divided by two|18 minus one|18 less than x|18 is wrong|no answer is 18",
    "18 tens|18 scores|18 ones|18 fives|18 fold|18 grand|18 millionths|18 quadrillion|18 halved",
    "18 doubled|18 negated|18 reversed|18 untrue|18 any number|18½|9½9|18/½|½18|½½",
    "18 elevenths|18 sixteenths|18 trillionths|18 halfs|18 twentieths|18 hundredth|18 nths",
    "18 sextillion|18 gazillions|18 octodecillion|18 billiards|18 thou|18 mill|18 bil|18 mio",
    "18 mrd|18 mille|18 per mille|18 kilo|18 kilos|18 doz|18 pennies",
    "18 pence|18 milli|18 micro",
    "18 nano|18 tera|18 basis points|18 permille|18 thrice|18 triples",
    "18 doubles|18 roots|18 square root",
    "18 squareroot|18 square|18 cube|18 logarithm|18 factorials|18 exponent|18 times|18 decuple",
    "18 twentyone|18 onehundred|18 fourty|18 sixtyfour|18 twenty-one|18 ninefold|18 quintupled",
    "18 possibly|18 probably|18 perhaps|18 maybe|18 guess|18 nope|18 rejected|18 refuted",
    "18 invalid|18 bogus|18 mistaken|18 hardly|18 fewer|18 lower|18 smaller|18 rounded|18 ish",
    "18 eggs rejected",
    "18e0|1.8e1|0x12|0b10010|１８|१८|٣|eighteen|XVIII|nan|inf|None|$|-| ||the answer is",
    r"\frac{18}{0}|\frac{18}{1}8|\frac{1}{1}8|1\text8|1**8**|36*/2|1$8|1{8}|18_{10}",
    " ".join(map(str, range(1, 101))),
    ",".join(map(str, range(1, 101))),
]


@pytest.mark.parametrize("name", sorted(GRADERS))
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
        ("½0", "1/20"),
        ("½½", "1/4"),
        ("1½", "11/2"),
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
    assert [grade(name, answer, gold)["reward"] for name in GRADERS] == [0.0] * len(GRADERS)


@pytest.mark.parametrize("gold", ["", " ", "nan", "NaN", "inf", "None", "eighteen", None, math.nan])
def test_a_gold_that_is_no_number_never_scores(gold):
    for answer in ["18", "nan", "inf", "None", "", "eighteen", "0"]:
        assert [grade(name, answer, gold) for name in GRADERS] == [WRONG] * len(GRADERS)


# --- what the docstrings say -------------------------------------------------------------------


def documented(module) -> list[tuple[str, str, bool]]:
    """(rule, example, whether it is read) of the table in a module's docstring."""
    table = re.findall(r"^=+  =+  =+$", module.__doc__, re.M)
    widths = [len(bar) for bar in table[0].split("  ")]
    first, second = widths[0] + 2, widths[0] + widths[1] + 4
    lines = module.__doc__.split(table[0])[2].strip().splitlines()
    return [
        (line[:first].strip(), example, is_read)
        for line in lines
        for is_read, column in ((True, line[first:second]), (False, line[second:]))
        for example in re.findall("``(.+?)``", column)
    ]


@pytest.mark.parametrize(("rule", "example", "is_read"), documented(numerals))
def test_every_documented_numeral_is_read_or_not(rule, example, is_read):
    assert (parse_number(example) is not None) is is_read


@pytest.mark.parametrize(("rule", "example", "is_read"), documented(expression_reader))
def test_every_documented_expression_is_read_or_not(rule, example, is_read):
    assert is_equal(example, example) is is_read


def test_the_docstrings_document_something():
    assert len(documented(numerals)) > 55 and len(documented(expression_reader)) > 20


def test_cents_are_equal_to_cents_alone():
    assert is_equal("18 cents", "18¢") and is_equal("18¢", "18 cents")
    assert not is_equal("18", "18 cents") and not is_equal("18 cents", "18")
    assert not is_equal("18 cents", "0.18") and not is_equal("$0.18", "18 cents")


@pytest.mark.parametrize(
    ("text", "number", "named"),
    [
        ("1 2 3 … 17, 18, 19", "18", True),
        ("It is -18.", "18", True),
        ("18.00 or 1,080", "1080", True),
        ("180 and 118 and 1.8", "18", False),
        ("eighteen", "18", False),
        ("18", "nan", False),
    ],
)
def test_a_number_is_named_anywhere_in_a_text(text, number, named):
    assert names_number(text, number) is named


# --- properties --------------------------------------------------------------------------------


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
