"""Arrow by enumeration: the counts, against a plain enumeration, and rules that meet conditions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from gsmrl_helpers.social_choice import (
    all_orders,
    all_profiles,
    arrow_conditions,
    borda,
    dictators,
    is_transitive,
    majority,
    pair_tables,
    prefers,
    relation_of,
    transitive_rules,
    votes_on_pairs,
)

ORDERS = all_orders()
CONDORCET = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
SINGLE_PEAKED = [order for order in ORDERS if order[-1] != 1]  # option 1 is between the others


def test_an_order_and_its_relation() -> None:
    above = relation_of((2, 0, 1))
    assert above.tolist() == [[False, True, False], [False] * 3, [True, True, False]]
    assert prefers((2, 0, 1), 0, 1) and not prefers((2, 0, 1), 0, 2)
    assert len(ORDERS) == 6 and len(all_profiles(2, ORDERS)) == 36


@pytest.mark.parametrize("order", all_orders(4))
def test_every_order_is_transitive(order: tuple[int, ...]) -> None:
    assert is_transitive(relation_of(order))


def test_condorcets_voters_make_a_cycle() -> None:
    above = majority(CONDORCET)
    assert above[0, 1] and above[1, 2] and above[2, 0] and not is_transitive(above)
    cycles = [p for p in all_profiles(3, ORDERS) if not is_transitive(majority(p))]
    assert len(cycles) == 12  # 3! ways to hand each of the two cycles' orders to the voters


@pytest.mark.parametrize(("n_voters", "count", "kings"), [(2, 64, {0, 1}), (3, 262_144, {0, 1, 2})])
def test_arrow(n_voters: int, count: int, kings: set[int]) -> None:
    n_rules, found = transitive_rules(n_voters)
    assert n_rules == count and found.shape == (len(kings), 3, 2**n_voters)
    assert set(dictators(found)) == kings


def plain_count(orders: list[tuple[int, ...]], tables: np.ndarray) -> int:
    """How many rules for two voters are transitive, one rule and one profile at a time."""
    pairs = ((0, 1), (1, 2), (2, 0))
    count = 0
    for rule in product(tables, repeat=3):
        verdicts = [
            [
                table[prefers(first, a, b) + 2 * prefers(second, a, b)]
                for table, (a, b) in zip(rule, pairs, strict=True)
            ]
            for first in orders
            for second in orders
        ]
        count += all(0 < sum(verdict) < 3 for verdict in verdicts)
    return count


@pytest.mark.parametrize("orders", [ORDERS, SINGLE_PEAKED])
def test_the_count_is_that_of_a_plain_enumeration(orders: list[tuple[int, ...]]) -> None:
    assert len(transitive_rules(2, orders)[1]) == plain_count(orders, pair_tables(2))


def test_without_unanimity_or_on_a_smaller_domain_there_are_more() -> None:
    n_rules, found = transitive_rules(2, unanimous=False)
    assert (n_rules, len(found), dictators(found).count(None)) == (4096, 94, 92)
    n_rules, found = transitive_rules(3, SINGLE_PEAKED)
    of_majority = np.array([bin(votes).count("1") > 1 for votes in range(8)])
    assert n_rules == 262_144 and any((rule == of_majority).all() for rule in found)


@pytest.mark.parametrize(
    ("rule", "orders", "broken"),
    [
        (majority, ORDERS, "transitive"),
        (borda, ORDERS, "independent"),
        (lambda profile: relation_of((0, 1, 2)), ORDERS, "unanimous"),
        (lambda profile: relation_of(profile[2]), ORDERS, "no dictator"),
        (majority, SINGLE_PEAKED, None),
    ],
)
def test_each_condition_alone_can_be_given_up(
    rule: Callable, orders: list[tuple[int, ...]], broken: str | None
) -> None:
    holds = arrow_conditions(rule, all_profiles(3, orders))
    assert [name for name, held in holds.items() if not held] == [broken] * (broken is not None)


def test_votes_are_numbered_by_voters() -> None:
    votes = votes_on_pairs([((0, 1, 2), (1, 2, 0)), ((0, 1, 2), (0, 1, 2))])
    assert votes.T.tolist() == [[1, 3, 2], [3, 3, 0]]


def test_what_cannot_be_enumerated_is_refused() -> None:
    with pytest.raises(ValueError, match="n_voters=4"):
        transitive_rules(4)
    with pytest.raises(ValueError, match="profiles is empty"):
        arrow_conditions(majority, [])
