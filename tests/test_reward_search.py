"""The search finds what a reward pays for without a solution."""

import pytest

from gsmrl_helpers.reward_search import best_fixed_response
from gsmrl_helpers.reward_shaping import conditional_reward, format_reward, partial_reward

NUMBERS = " ".join(map(str, range(1, 101)))
PIECES = (NUMBERS, "#### ", "7", "10")


def test_it_finds_the_list_of_all_numbers_and_the_marker() -> None:
    text, paid = best_fixed_response(partial_reward, ["3", "50", "99"], PIECES, 3)
    assert text.startswith(NUMBERS) and text.count("#### ") == 1 and paid == pytest.approx(0.6)


def test_the_fewest_pieces_of_equally_paid_ones() -> None:
    assert best_fixed_response(format_reward, ["3"], PIECES, 3) == ("#### 7", 0.1)


def test_a_conditional_bonus_pays_a_guess_as_often_as_it_is_right() -> None:
    text, paid = best_fixed_response(conditional_reward, ["10", "7", "10", "3"], PIECES)
    assert text == "#### 10" and paid == pytest.approx(0.55)
