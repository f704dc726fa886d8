"""A symbolic step becomes one equation, with the signs that people write."""

import pytest
import sympy as sp

from gsmrl_helpers.symbolic import show, without_minus

b, n, p = sp.symbols("b n p", positive=True)
G = sp.symbols("G", positive=True, integer=True)


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        (-p * (p - 1) * (b + p - 1) ** 2, r"p \left(1 - p\right) \left(1 - p - b\right)^{2}"),
        (-n * p / (p - 1), r"\frac{n p}{1 - p}"),
        (p * (p - 1), r"p \left(-1 + p\right)"),
        (p**2, "p^{2}"),
        (p - 1, "-1 + p"),
        (-p * (G - 1) * (p - 1), r"p \left(1 - p\right) \left(-1 + G\right)"),
        (-2 * p * (p - 1), None),
        (-(p**2) * (p - 1) * (3 * p - 2), r"p^{2} \left(1 - p\right) \left(-2 + 3 p\right)"),
    ],
)
def test_a_product_keeps_its_value_and_loses_its_minus(expression, shown):
    nicer = without_minus(expression)
    assert sp.simplify(nicer - expression) == 0
    if shown is not None:
        assert show("V", expression).data == f"V = {shown}"
