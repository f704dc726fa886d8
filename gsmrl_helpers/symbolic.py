"""Symbolic steps, shown as mathematics."""

from __future__ import annotations

import sympy as sp
from IPython.display import Math


def show(name: str, expression: sp.Basic | sp.MatrixBase) -> Math:
    """The equation `name = expression`, typeset in notebooks and in the book.

    Args:
        name: LaTeX of the left-hand side.
        expression: what it equals; of a product, see `without_minus`.
    """
    return Math(f"{name} = {sp.latex(without_minus(expression), order='rev-lex')}")


def without_minus(expression: sp.Basic | sp.MatrixBase) -> sp.Basic | sp.MatrixBase:
    """A product as people write it: p (1 - p) where sympy has -p (p - 1), (1 - p)² for (p - 1)².

    A minus in front turns the first factor around whose constant term is negative; those of
    integers, such as G - 1, stay as they are.
    """
    if not isinstance(expression, sp.Mul):
        return expression
    factors = list(expression.args)
    for index, factor in enumerate(factors):
        base, exponent = factor.as_base_exp()
        starts_negative = isinstance(base, sp.Add) and base.as_coeff_Add()[0].is_negative
        if starts_negative and exponent.is_even:
            factors[index] = sp.Pow(-base, exponent)
        elif starts_negative and exponent.is_odd and -1 in factors and not base.is_integer:
            factors[index] = sp.Pow(-base, exponent)
            factors[factors.index(-1)] = sp.Integer(1)
    return sp.Mul(*(factor for factor in factors if factor != 1), evaluate=False)
