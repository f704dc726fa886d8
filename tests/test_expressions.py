r"""Expressions, intervals and sets: what is equal, what is not, and what is never built."""

from __future__ import annotations

import random

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from gsmrl_helpers import equivalence
from gsmrl_helpers.expression_reader import MAX_CHARS, MAX_PARTS, parse_answer
from gsmrl_helpers.expressions import MAX_BITS, MAX_DEGREE, Expression
from gsmrl_helpers.grader_corpora import (
    EXPRESSIONS,
    REFUSED,
    Pair,
    random_expression_pair,
    rewritten,
)
from gsmrl_helpers.grading import is_equal
from gsmrl_helpers.numerals import parse_number


@pytest.mark.parametrize("pair", EXPRESSIONS, ids=lambda pair: f"{pair.answer} ? {pair.gold}")
def test_an_expression_is_equal_to_the_gold_or_not(pair):
    assert is_equal(pair.answer, pair.gold) is pair.is_right


@pytest.mark.parametrize("pair", REFUSED, ids=lambda pair: f"{pair.answer} ? {pair.gold}")
def test_what_the_rules_refuse_knowingly(pair):
    assert pair.is_right and not is_equal(pair.answer, pair.gold)


def test_a_unit_that_is_another_number_is_not_taken_off():
    assert is_equal(r"\sqrt{12}\text{ cm}", r"2\sqrt{3}")
    assert not any(is_equal(rf"\sqrt{{12}}\text{{ {u}}}", r"2\sqrt{3}") for u in ("cents", "dozen"))


@pytest.mark.parametrize("command", ["text", "mathrm", "mbox"])
@pytest.mark.parametrize(
    "unit",
    [
        "",
        " ",
        "/2",
        "1/2",
        "2",
        r"\frac12",
        "½",
        "¾ cm",
        "½ cups",
        "/9",
        "3 cm",
        "cm 2",
        "%",
        "/two",
    ],
)
def test_what_is_no_unit_is_not_taken_off(command, unit):
    for exponent in ("", "^2", "^{3}"):
        assert not is_equal(rf"2\sqrt{{3}}\{command}{{{unit}}}{exponent}", r"2\sqrt{3}")
        assert is_equal(rf"2\sqrt{{3}}\{command}{{ cm}}{exponent}", r"2\sqrt{3}")
        assert is_equal(rf"2\sqrt{{3}}\{command}{{ km/h}}", r"2\sqrt{3}")
        assert is_equal(rf"2\sqrt{{3}}\{command}{{ cm²}}", r"2\sqrt{3}")


def test_all_real_numbers_are_an_interval():
    assert is_equal(r"(-\infty, +\infty)", "(-∞,∞)")
    assert not is_equal(r"(-\infty, 0)", "(-∞,∞)") and not is_equal("∞", "∞")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *(
            ("1+1", "2"),
            (r"\sqrt{324}", "18"),
            (r"3^2\cdot 2", "18"),
            (r"\frac{36\pi}{2\pi}", "18"),
        ),
        *((r"\{18\}", "18"), ("18, 18", "18"), ("[18, 18]", "18"), (r"\sin(0)+18", "18")),
    ],
)
def test_arithmetic_left_to_the_grader_is_not_a_number(answer, gold):
    assert not is_equal(answer, gold)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "-",
            "x",
            "ab",
            "nan",
            "inf",
            "None",
            "N/A",
            "eggs",
            r"\infty",
            "f(x)+1",
            "x(x+1)",
        ),
        *(
            "2 3",
            r"2\frac{1}{2}\pi",
            "1/2x",
            "x2",
            "2^{3^4}",
            "2^x",
            "x^{1/2}",
            r"\sqrt{x+1}",
            "5!",
        ),
        *("1/0+x", r"\frac{\pi}{2-2}", "0^{-1}x", "(2+x", "2+x)", "2++x", "(1,2)+x", "1.2.3x"),
        *("(1]", "[1]+", "((1,2),3)", "[0,1] or 2", r"[0,1]\cup 2", r"\{\}", "()", "x=y=2z"),
        *("9" * 60 + "x", "x^{65}", "2^{1/5}", "x+y+z+1", "1,2,3,4,5,6,7,8,9", "0<x<1", "1.x"),
        *("\\sqrt[5]{2}", r"\sqrt[2]", "((((((((x+1))))))))", "+".join("x" * 40), "x+" * 60),
    ],
)
def test_what_is_outside_the_grammar_or_its_bounds_is_equal_to_nothing(text):
    assert parse_answer(text) is None
    assert not is_equal(text, text) or parse_number(text) is not None


def test_a_tree_holds_exact_numbers_within_bounds():
    (half,) = parse_answer("2^{-1}+0x").items[:1]
    assert half.operands[0].operands[0] == parse_number("1/2")
    (cubed,) = parse_answer(r"\frac{(x+1)^3}{y}").items
    assert cubed.degree == (3, 1)
    assert parse_answer("3-3+0.25") == parse_answer("1/4")


def trees(expression: Expression) -> list[Expression]:
    if expression.operation == "leaf":
        return [expression]
    return [expression, *(tree for operand in expression.operands for tree in trees(operand))]


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_no_tree_grows_beyond_its_bounds(seed):
    answer = parse_answer(random_expression_pair(random.Random(seed)).answer)
    for item in answer.items if answer else ():
        assert len(trees(item)) <= MAX_PARTS + 1
        assert all(t.bits <= MAX_BITS and sum(t.degree) <= MAX_DEGREE for t in trees(item))


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_a_rewritten_expression_is_equal_and_a_changed_one_is_not(seed):
    rng = random.Random(seed)
    pair = random_expression_pair(rng)
    readable = parse_answer(pair.gold) is not None and parse_answer(pair.answer) is not None
    is_number = parse_number(pair.gold) is not None
    if readable and not is_number:
        assert is_equal(pair.answer, pair.gold) is pair.is_right
    elif not is_number:
        assert not is_equal(pair.answer, pair.gold)


@pytest.mark.parametrize("text", ["x^2+2", r"\frac{\sqrt{3}}{x+2}", r"2\pi-1"])
def test_every_rewriting_of_an_expression_has_its_value(text):
    forms = {rewritten(random.Random(seed), text) for seed in range(60)}
    assert len(forms) > 12
    assert all(is_equal(form, text) for form in forms)


def test_math_verify_is_asked_only_where_the_values_agree(monkeypatch):
    asked = []
    monkeypatch.setattr(equivalence, "verify", lambda gold, answer: asked.append(1) or False)
    assert not is_equal(r"3\sqrt{2}", r"2\sqrt{3}") and asked == []
    assert not is_equal(r"\sqrt{12}", r"2\sqrt{3}") and asked == [1]  # and its no is a no


def test_math_verify_alone_would_take_a_float_for_the_number():
    pair = Pair("3.4641016", r"2\sqrt{3}", False)
    gold, answer = (sympy.sympify(text) for text in ("2*sqrt(3)", "3.4641016"))
    assert equivalence.math_verify.grader.verify(gold, answer, timeout_seconds=None)
    assert not is_equal(pair.answer, pair.gold)


def test_a_text_beyond_the_length_is_not_read():
    text = r"\sqrt{2}" + " " * (MAX_CHARS - 8)
    assert parse_answer(text) is not None and parse_answer(text + " ") is None
