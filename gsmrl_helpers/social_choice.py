"""Rules that make one order of many voters' orders, enumerated: Condorcet and Arrow, by counting.

Options are numbered from 0. An order is a tuple of options, the best first; a profile has one order
a voter. A group's relation is a bool matrix, `above[a, b]`: the group puts a above b. It need not
be an order. There are no ties, neither of voters nor of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations, product

import numpy as np

Order = tuple[int, ...]
Profile = tuple[Order, ...]
Rule = Callable[[Profile], np.ndarray]

PAIRS = ((0, 1), (1, 2), (2, 0))  # round the circle: a cycle is "yes" to all of them, or to none
CONDITIONS = ("transitive", "unanimous", "independent", "no dictator")
MOST_VOTERS = 3  # with four there are 2^42 rules


def all_orders(n_options: int = 3) -> list[Order]:
    """Every order of the options, n_options! of them."""
    return list(permutations(range(n_options)))


def all_profiles(n_voters: int, orders: Sequence[Order]) -> list[Profile]:
    """Every way in which each voter can have one of the orders, len(orders)^n_voters of them."""
    return list(product(orders, repeat=n_voters))


def prefers(order: Order, a: int, b: int) -> bool:
    """Whether a stands before b."""
    return order.index(a) < order.index(b)


def relation_of(order: Order) -> np.ndarray:
    """(n, n) bool, the relation of one order."""
    place = np.argsort(order)
    return place[:, None] < place[None, :]


def is_transitive(above: np.ndarray) -> bool:
    """Whether a relation without ties is an order: its options win 0, 1, … n - 1 comparisons."""
    return sorted(above.sum(axis=1)) == list(range(len(above)))


def majority(profile: Profile) -> np.ndarray:
    """(n, n) bool: a above b where more than half of the voters say so."""
    votes = sum(relation_of(order).astype(int) for order in profile)
    return votes > len(profile) / 2


def borda(profile: Profile) -> np.ndarray:
    """(n, n) bool: by points, n - 1 for each first place down to 0 for a last; ties by number."""
    points = sum(relation_of(order).sum(axis=1) for order in profile)
    return relation_of(tuple(np.argsort(-points, kind="stable")))


def arrow_conditions(rule: Rule, profiles: Sequence[Profile]) -> dict[str, bool]:
    """Which of Arrow's conditions a rule meets on these profiles (Arrow, 1951).

    - transitive: the group's relation is an order in every profile.
    - unanimous: where all voters put a above b, so does the group.
    - independent: the group's verdict on a and b follows from the voters' verdicts on a and b.
    - no dictator: no voter whose order is the group's in every profile.

    The fourth of Arrow's conditions, that all profiles are allowed, is the caller's choice of
    `profiles`.

    Returns:
        The names in `CONDITIONS`, each with whether it holds.

    Raises:
        ValueError: no profiles.
    """
    if not profiles:
        raise ValueError("profiles is empty: a rule is judged by what it does on profiles")
    groups = [rule(profile) for profile in profiles]
    verdicts = verdicts_by_votes(groups, profiles)
    return {
        "transitive": all(map(is_transitive, groups)),
        "unanimous": all(
            found == set(votes) for (_, votes), found in verdicts.items() if len(set(votes)) == 1
        ),
        "independent": all(len(found) == 1 for found in verdicts.values()),
        "no dictator": not any(
            all(
                np.array_equal(group, relation_of(profile[voter]))
                for group, profile in zip(groups, profiles, strict=True)
            )
            for voter in range(len(profiles[0]))
        ),
    }


def verdicts_by_votes(
    groups: Sequence[np.ndarray], profiles: Sequence[Profile]
) -> dict[tuple, set[bool]]:
    """Which verdicts the group gave on a pair of options, for each way of voting on that pair.

    Returns:
        ((a, b), the voters' verdicts) to the set of the group's; one element where these votes
        decide.
    """
    verdicts: dict[tuple, set[bool]] = {}
    for group, profile in zip(groups, profiles, strict=True):
        for a, b in combinations(range(len(group)), 2):
            votes = tuple(prefers(order, a, b) for order in profile)
            verdicts.setdefault(((a, b), votes), set()).add(bool(group[a, b]))
    return verdicts


def pair_tables(n_voters: int, unanimous: bool = True) -> np.ndarray:
    """Every way to decide between two options by the votes on them alone.

    Args:
        n_voters: n; at most `MOST_VOTERS`.
        unanimous: leave only those in which a unanimous vote decides.

    Returns:
        (R, 2^n) bool, row: a way; column v: its verdict if voter i says the i-th bit of v. With
        unanimous votes fixed, R = 2^(2^n - 2), else 2^(2^n).

    Raises:
        ValueError: too many voters to be enumerated.
    """
    if not 1 <= n_voters <= MOST_VOTERS:
        raise ValueError(f"n_voters={n_voters} must lie between 1 and {MOST_VOTERS}")
    n_votes = 2**n_voters
    tables = np.array(list(product((False, True), repeat=n_votes)))
    return tables[~tables[:, 0] & tables[:, -1]] if unanimous else tables


def votes_on_pairs(profiles: Sequence[Profile]) -> np.ndarray:
    """(3, P) which of the 2^n votes on each of the three pairs a profile is, P without repeats."""
    votes = {
        tuple(
            sum(prefers(order, a, b) << voter for voter, order in enumerate(profile))
            for a, b in PAIRS
        )
        for profile in profiles
    }
    return np.array(sorted(votes)).T


def transitive_rules(
    n_voters: int, orders: Sequence[Order] | None = None, unanimous: bool = True
) -> tuple[int, np.ndarray]:
    """All independent rules for three options, and those of them that never make a cycle.

    An independent rule is three tables, one a pair. With three pairs round the circle, a relation
    is an order unless all three verdicts are alike.

    Args:
        n_voters: n.
        orders: the orders that voters may have; all six if None.
        unanimous: only the rules in which a unanimous vote decides.

    Returns:
        How many rules there are, and the transitive ones, (K, 3, 2^n) bool: the tables of the pairs
        0-1, 1-2, 2-0.
    """
    tables = pair_tables(n_voters, unanimous)
    votes = votes_on_pairs(all_profiles(n_voters, orders or all_orders()))
    survives = np.ones((len(tables),) * 3, dtype=bool)
    for first, second, third in votes.T:
        a, b, c = tables[:, first], tables[:, second], tables[:, third]
        first_alike = a[:, None] == b[None, :]
        survives &= ~(first_alike[:, :, None] & (b[:, None] == c[None, :])[None])
    found = np.argwhere(survives)
    return len(tables) ** 3, tables[found]


def dictators(rules: np.ndarray) -> list[int | None]:
    """Whose verdicts each rule repeats on every pair, or None where there is no such voter.

    Args:
        rules: (K, 3, 2^n) bool, as `transitive_rules` returns them.
    """
    votes = np.arange(rules.shape[-1])
    own = [(votes >> voter & 1).astype(bool) for voter in range(int(votes[-1]).bit_length())]
    return [next((v for v, row in enumerate(own) if (rule == row).all()), None) for rule in rules]
