"""An optimiser against a reward: what fixed text is paid most, whatever the question?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean


def best_fixed_response(
    reward: Callable[[str, str], float],
    golds: Sequence[str],
    pieces: Sequence[str],
    max_pieces: int = 2,
) -> tuple[str, float]:
    """The concatenation of at most `max_pieces` pieces with the highest mean reward.

    It never sees a question, so all that it earns is earned without solving one.

    Args:
        reward: `reward(response, gold)`.
        golds: the gold answers of some problems.
        pieces: texts to put together, each as often as wanted.
        max_pieces: how many, at most.

    Returns:
        The text, the one with the fewest pieces of equally paid ones, and its mean reward.
    """
    texts = [
        "".join(chosen)
        for n_pieces in range(1, max_pieces + 1)
        for chosen in product(pieces, repeat=n_pieces)
    ]
    paid = {text: fmean(reward(text, gold) for gold in golds) for text in texts}
    best = max(paid, key=paid.get)
    return best, paid[best]
