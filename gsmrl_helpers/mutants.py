"""Mutants of a claim cell: its source with one expected value, or one assertion, made wrong.

A claim cell states a value as `expected = 0.1192`. The digits that are written are the claim: the
last one changed by one, up or down, must fail an assertion. An assertion that rests on no expected
value must fail when it is negated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

EXPECTED = "expected"


@dataclass(frozen=True)
class Mutant:
    """A changed cell: its source, the line of the change, and what was changed into what."""

    source: str
    line: int
    change: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield each mutant of a cell's source; IPython's own lines (`%…`) must be left out before."""
    tree = ast.parse(source)
    for literal in expected_literals(tree):
        text = ast.get_source_segment(source, literal)
        for changed in changed_literals(literal, text):
            yield replaced(source, literal, text, changed)
    for assertion in independent_asserts(tree):
        text = ast.get_source_segment(source, assertion.test)
        yield replaced(source, assertion.test, text, f"not ({text})")


def replaced(source: str, node: ast.expr, text: str, changed: str) -> Mutant:
    """Put `changed` in the place of a node; the positions of a syntax tree count bytes."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = source.encode()
    mutated = (whole[:start] + changed.encode() + whole[end:]).decode()
    return Mutant(mutated, node.lineno, f"{' '.join(text.split())} → {' '.join(changed.split())}")


# --- expected values ----------------------------------------------------------------------------


def expected_literals(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the literals in the values of all assignments to names that start with `expected`."""
    for node in ast.walk(tree):
        if is_expectation(node):
            yield from literals(node.value)


def is_expectation(node: ast.AST) -> bool:
    """Say whether a statement gives a value to a name that starts with `expected`."""
    is_assignment = isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    return is_assignment and any(name.startswith(EXPECTED) for name in assigned_names(node))


def literals(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Yield the literals of an expression; an f-string counts as one."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def changed_literals(node: ast.Constant | ast.JoinedStr, text: str) -> list[str]:
    """Return what to put in a literal's place: a number one unit up and one down, as written."""
    value = node.value if isinstance(node, ast.Constant) else ""
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), f"({value - 1})"]
    if isinstance(value, float):
        return [changed_float(text, +1), f"({changed_float(text, -1)})"]
    if isinstance(value, str):
        return [f'({text} + "x")']
    return ["0"] if value is None else [f"({text}, 'x')"]


def changed_float(text: str, by: int) -> str:
    """Change the last written digit by one, so that 2.30 becomes 2.31 and 1e-12 becomes 2e-12."""
    written = Decimal(text.replace("_", ""))
    unit = Decimal((0, (1,), written.as_tuple().exponent))
    changed = str(written + by * unit)
    return changed if "." in changed or "E" in changed else f"{changed}.0"


# --- assertions that rest on no expected value ----------------------------------------------------


def independent_asserts(tree: ast.AST) -> list[ast.Assert]:
    """Return the assertions that no name reaches to which an expected literal was assigned."""
    reached = names_with_expected(tree)
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return [node for node in asserts if not reached & used_names(node.test)]


def names_with_expected(tree: ast.AST) -> set[str]:
    """Return the names of a cell that carry an expected value, directly or through others."""
    reached = {
        name
        for node in ast.walk(tree)
        if is_expectation(node) and next(literals(node.value), None) is not None
        for name in assigned_names(node)
    }
    flows = [(assigned_names(node), used_names(node)) for node in ast.walk(tree)]
    while True:
        more = {name for to, sources in flows if reached & sources for name in to} - reached
        if not more:
            return reached
        reached |= more


def assigned_names(node: ast.AST) -> set[str]:
    """Return the names that a statement, or the `for` of a comprehension, gives a value to."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = [getattr(node, "target", None), getattr(node, "optional_vars", None)]
    targets += node.targets if isinstance(node, ast.Assign) else []
    leaves = [leaf for target in targets if target for leaf in ast.walk(target)]
    return {leaf.id for leaf in leaves if isinstance(leaf, ast.Name)}


def used_names(node: ast.AST) -> set[str]:
    """Return the names whose values a node reads; for a loop, those of what it loops over."""
    if isinstance(node, ast.For | ast.comprehension):
        node = node.iter
    leaves = [leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Name)]
    return {leaf.id for leaf in leaves if isinstance(leaf.ctx, ast.Load)}
