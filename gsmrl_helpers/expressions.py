"""Expressions of a bounded size: trees that keep account of how large their value can be.

Comparing expressions takes a computer algebra system, and nothing bounds what one will build of
``9^{9^{9^9}}``. So a tree of ours is built first, and refuses to grow beyond what is compared in
milliseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

MAX_DEGREE = 6  # in letters, π and roots, of numerator and denominator together
MAX_BITS = 128  # of numerator and denominator together, of any value on the way
MAX_EXPONENT = 64
MAX_ROOT = 4


class NotReadableError(ValueError):
    """A text outside the grammar or beyond its bounds."""


@dataclass(frozen=True)
class Expression:
    """A tree of a bounded size.

    Attributes:
        operation: ``+``, ``*``, ``/``, ``^``, or ``leaf``.
        operands: Two expressions; of a leaf, one number, letter, or ``"pi"``.
        bits: Upper bound for the bits of numerator and denominator together.
        degree: Degrees of numerator and denominator in letters, π and roots.
    """

    operation: str
    operands: tuple[Expression, Expression] | tuple[Fraction | str]
    bits: float = field(compare=False)
    degree: tuple[int, int] = field(compare=False)


class Answer(NamedTuple):
    """What a text writes.

    Attributes:
        kind: Empty for one expression; the two brackets of an interval or a point; ``{}`` for a
            set and ``∪`` for a union of intervals, whose order doesn't count.
        items: Expressions, ``"-inf"`` and ``"inf"``; of a union, answers.
    """

    kind: str
    items: tuple[Expression | str | Answer, ...]


OPERATIONS = {"+": operator.add, "*": operator.mul, "/": operator.truediv, "^": operator.pow}


def make_leaf(value: Fraction | str) -> Expression:
    """A number, a letter, or ``"pi"``.

    Raises:
        NotReadableError: a number of more than `MAX_BITS`.
    """
    if isinstance(value, str):
        return Expression("leaf", (value,), 4, (1, 0))
    bits = value.numerator.bit_length() + value.denominator.bit_length()
    if bits > MAX_BITS:
        raise NotReadableError
    return Expression("leaf", (value,), bits, (0, 0))


def combine(operation: str, left: Expression, right: Expression) -> Expression:
    """`left operation right`; of two numbers, the number it makes.

    Raises:
        NotReadableError: the value could be large, or has no meaning.
    """
    (a, b), (c, d) = left.degree, right.degree
    x, y = number_of(left), number_of(right)
    bits = left.bits + right.bits + 1
    if operation == "^":
        n = _checked_exponent(left, y)
        bits = left.bits * max(abs(n), 1)
        degree = _degree_of_power(left.degree, n)
    elif operation == "+":
        degree = (max(a + d, c + b), b + d)
    else:
        degree = (a + c, b + d) if operation == "*" else (a + d, b + c)
    is_too_large = bits > MAX_BITS or sum(degree) > MAX_DEGREE
    if is_too_large or (operation == "/" and y == 0):
        raise NotReadableError
    is_root = operation == "^" and n.denominator > 1
    if x is None or y is None or is_root:
        return Expression(operation, (left, right), bits, degree)
    try:
        return make_leaf(OPERATIONS[operation](x, y))
    except ZeroDivisionError:
        raise NotReadableError from None


def number_of(expression: Expression) -> Fraction | None:
    """The number that a leaf is; None for any other expression."""
    value = expression.operands[0]
    return value if isinstance(value, Fraction) else None


def _checked_exponent(base: Expression, exponent: Fraction | None) -> Fraction:
    """A number, small, and an integer where letters are raised to it."""
    if exponent is None or abs(exponent) > MAX_EXPONENT or exponent.denominator > MAX_ROOT:
        raise NotReadableError
    if exponent.denominator > 1 and _has_letter(base):
        raise NotReadableError
    return exponent


def _degree_of_power(degree: tuple[int, int], exponent: Fraction) -> tuple[int, int]:
    if exponent.denominator > 1:
        return ceil(abs(exponent)), 0
    above, below = degree if exponent > 0 else degree[::-1]
    return above * abs(int(exponent)), below * abs(int(exponent))


def _has_letter(expression: Expression) -> bool:
    if expression.operation == "leaf":
        return expression.operands[0] != "pi" and number_of(expression) is None
    return any(map(_has_letter, expression.operands))


def evaluate(expression: Expression, leaf: Callable[[Fraction | str], Any]) -> Any:
    """The expression over the numbers, or symbols, that `leaf` makes of its leaves."""
    if expression.operation == "leaf":
        return leaf(expression.operands[0])
    left, right = (evaluate(operand, leaf) for operand in expression.operands)
    return OPERATIONS[expression.operation](left, right)
