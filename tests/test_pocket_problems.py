"""The generator of pocket problems: format, correctness, disjoint splits, the difficulty dial."""

import re
from itertools import islice

import pytest

from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.pocket_problems import (
    CONTAINERS,
    NAMES,
    POCKET_SPLITS,
    THINGS,
    apply_operator,
    load_pocket_problems,
    recompute_gold,
    stream_pocket_problems,
)
from gsmrl_helpers.problems import Problem


@pytest.mark.parametrize("difficulty", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("split", POCKET_SPLITS)
def test_every_gold_is_recomputed_from_the_text(split: str, difficulty: float) -> None:
    for problem in load_pocket_problems(split, 300, seed=5, difficulty=difficulty):
        assert recompute_gold(problem) == int(problem.gold)
        assert problem.answer.endswith(f"#### {problem.gold}")


def test_splits_share_no_question_at_any_seed_or_difficulty() -> None:
    owner: dict[str, str] = {}
    for split in POCKET_SPLITS:
        for seed, difficulty in ((0, 0.0), (0, 0.4), (7, 0.0), (7, 1.0)):
            for problem in load_pocket_problems(split, 800, seed, difficulty):
                assert owner.setdefault(problem.question, split) == split


def test_same_seed_same_problems_and_a_prefix_is_a_prefix() -> None:
    long = load_pocket_problems("dev", 50, seed=3)
    assert load_pocket_problems("dev", 20, seed=3) == long[:20]
    assert load_pocket_problems("dev", 50, seed=4) != long
    assert load_pocket_problems("dev", 0) == []


def test_the_page_says_how_many_test_questions_have_a_twin_in_train() -> None:
    words = re.compile(rf"\b({'|'.join((*NAMES, *THINGS, *CONTAINERS))})\b")
    told = {words.sub("X", p.question) for p in load_pocket_problems("train", 6400)}
    test = load_pocket_problems("test", 1024)
    by_steps: dict[int, list[bool]] = {1: [], 2: []}
    for problem in test:
        by_steps[problem.answer.count("<<")].append(words.sub("X", problem.question) in told)
    one, two = by_steps[1], by_steps[2]
    page = " ".join((DATA_DIR / "README.md").read_text().split())
    assert f"{sum(one) + sum(two)} of the 1,024 `test` questions have such a twin" in page
    assert f"{sum(one)} of the {len(one)} with one step and {sum(two)} of the {len(two)}" in page


def test_no_question_is_repeated_within_a_split() -> None:
    questions = [p.question for p in islice(stream_pocket_problems("train", 0, 0.0), 3000)]
    assert len(set(questions)) == 3000


def test_difficulty_moves_steps_and_numbers() -> None:
    two_steps, largest = [], []
    for difficulty in (0.0, 0.5, 1.0):
        problems = load_pocket_problems("dev", 500, difficulty=difficulty)
        two_steps.append(sum(p.answer.count("<<") == 2 for p in problems) / 500)
        largest.append(max(int(n) for p in problems for n in re.findall(r"\d+", p.question)))
    assert two_steps[0] == 0 and 0.35 < two_steps[1] < 0.6 and two_steps[2] == 1
    assert largest == [9, 30, 50]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "validation"}, "allowed: pretrain, train, curve, dev, test"),
        ({"split": "dev", "difficulty": 1.5}, "outside"),
    ],
)
def test_wrong_options_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(stream_pocket_problems(**arguments))


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit=-1 is negative"):
        load_pocket_problems("dev", -1)


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        ("2 bags of 3.", "2*3=<<2*3=7>>7\n#### 7", "is 6, not 7"),
        ("2 bags of 3.", "2*4=<<2*4=8>>8\n#### 8", "4 is neither"),
        ("2 bags of 3, and 5 more.", "2*3=<<2*3=6>>6\n#### 6", "unused"),
    ],
)
def test_the_check_of_golds_can_fail(question: str, answer: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recompute_gold(Problem(question, answer, "0"))


def test_a_division_with_a_rest_is_refused() -> None:
    assert apply_operator("/", 12, 4) == 3
    with pytest.raises(ValueError, match="leaves a rest"):
        apply_operator("/", 13, 4)
