"""Symbolic steps, shown as mathematics."""

from __future__ import annotations

import sympy as sp
from IPython.display import Math


def show(name: str, expression: sp.Basic | sp.MatrixBase, order: str | None = None) -> Math:
    """The equation `name = expression`, typeset in notebooks and in the book.

    Args:
        name: LaTeX of the left-hand side.
        expression: what it equals.
        order: order of an expression's terms, as sympy's `latex` takes it.
    """
    return Math(f"{name} = {sp.latex(expression, order=order)}")
