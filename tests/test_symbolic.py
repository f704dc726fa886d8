"""A symbolic step becomes one equation."""

import sympy as sp

from gsmrl_helpers.symbolic import show


def test_the_equation_names_both_sides():
    p = sp.symbols("p")
    assert show(r"\operatorname{Var}", p * (1 - p)).data == (
        r"\operatorname{Var} = p \left(1 - p\right)"
    )
