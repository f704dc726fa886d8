"""Whether two bounded expressions, intervals or sets are equal, asked of math-verify.

math-verify (Kydlíček, 2025) compares by sympy, whose `simplify` may think long about expressions
that are *not* equal; its own time limit is a signal, which works in the main thread alone and
takes the caller's alarm. So it is never asked without need: both are evaluated first, at three
fixed points and to a hundred digits, and what differs there is not equal. What agrees is small by
`expressions`, and math-verify, its time limit off, has the last word.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from threading import RLock
from typing import Any

import math_verify.grader
import mpmath
import sympy

from gsmrl_helpers.expressions import Answer, Expression, evaluate

# math-verify warns, once, that nothing limits its time; the bounds of `expressions` do.
math_verify.grader.TIMEOUT_WARNING_SHOWN = True

_DIGITS = 100
_TOLERANCE = mpmath.mpf(10) ** -50  # values have at most 39 digits before the point, or after
_N_POINTS = 3

_numbers = mpmath.MPContext()  # our own, since the precision of `mpmath.mp` is everybody's
_numbers.dps = _DIGITS

# sympy makes no promise to threads. A forked child has none of its parent's threads to wait for.
_lock = RLock()


def _renew_lock() -> None:
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_renew_lock)


def is_equivalent(gold: Answer, answer: Answer) -> bool:
    """Whether the answer is of the gold's kind, and every item of it equal to one of the gold's.

    Items are compared in their order, except those of a set and of a union.
    """
    if gold.kind != answer.kind or len(gold.items) != len(answer.items):
        return False
    if gold.kind not in ("{}", "∪"):
        return all(map(_is_equal_item, gold.items, answer.items))
    unused = list(answer.items)
    for item in gold.items:
        equal = next((other for other in unused if _is_equal_item(item, other)), None)
        if equal is None:
            return False
        unused.remove(equal)
    return True


def _is_equal_item(gold: Expression | str | Answer, answer: Expression | str | Answer) -> bool:
    if isinstance(gold, Answer) and isinstance(answer, Answer):
        return is_equivalent(gold, answer)
    if isinstance(gold, Expression) and isinstance(answer, Expression):
        with _lock:
            return _agrees_numerically(gold, answer) and verify(gold, answer)
    return gold == answer


def verify(gold: Expression, answer: Expression) -> bool:
    """What math-verify says of a/b = c/d, put as the expanded a·d = c·b.

    So put, equal ones are mostly the same already. The time limit is off: it would set the
    caller's alarm.
    """
    sides = (evaluate(gold, _sympy_leaf), evaluate(answer, _sympy_leaf))
    (a, b), (c, d) = (sympy.fraction(sympy.together(side)) for side in sides)
    return math_verify.grader.verify(sympy.expand(a * d), sympy.expand(c * b), timeout_seconds=None)


def _agrees_numerically(gold: Expression, answer: Expression) -> bool:
    try:
        return all(
            abs(evaluate(gold, leaf) - evaluate(answer, leaf)) <= _TOLERANCE for leaf in _POINTS
        )
    except ZeroDivisionError:
        return False


# --- leaves -----------------------------------------------------------------------------------


def _sympy_leaf(value: Fraction | str) -> sympy.Expr:
    if isinstance(value, Fraction):
        return sympy.Rational(value.numerator, value.denominator)
    return sympy.pi if value == "pi" else sympy.Symbol(value)


def _point(index: int) -> Callable[[Fraction | str], Any]:
    """Leaves at a point at which each letter has a complex value of its own, of modulus 1."""

    def leaf(value: Fraction | str) -> Any:
        if isinstance(value, Fraction):
            return _numbers.mpf(value.numerator) / value.denominator
        return +_numbers.pi if value == "pi" else _numbers.expj(index * ord(value))

    return leaf


_POINTS = [_point(index) for index in range(1, _N_POINTS + 1)]


# The first `simplify` of a process fills tables for a quarter of a second: now, not in a batch.
math_verify.grader.verify(
    sympy.sympify("x**2 - 1"), sympy.sympify("(x - 1)*(x + 1)"), timeout_seconds=None
)
