"""Generated grade-school word problems in GSM8K's own row format.

A problem is a short story: an opening (a count, or groups of equal size) and one or two steps that
change the count. The wording, the names, the things and the numbers are drawn with a seed.

Left out on purpose: fractions, percentages, units, distractors, and stories of more than two steps.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gsmrl_helpers.problems import Problem, problem_from_row

NAMES = (
    *(
        "Anna",
        "Ben",
        "Clara",
        "David",
        "Emma",
        "Felix",
        "Grace",
        "Henry",
        "Ivy",
        "Jack",
        "Kate",
        "Leo",
    ),
    *("Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor"),
)
THINGS = (
    *("apples", "books", "cards", "coins", "cookies", "eggs", "flowers", "marbles", "pencils"),
    *("shells", "stamps", "stickers", "stones", "toys"),
)
CONTAINERS = ("bags", "boxes", "baskets", "jars", "trays")

# One share of the stories per split, by the hash of the question: no story can stand in two splits.
SPLIT_OF_BUCKET = ("pretrain",) * 6 + ("train",) * 4 + ("curve",) * 2 + ("dev",) * 2 + ("test",) * 2
POCKET_SPLITS = ("pretrain", "train", "curve", "dev", "test")

OPEN_COUNT = (
    "{name} has {a} {things}.",
    "{name} starts with {a} {things}.",
    "There are {a} {things} on the table.",
)
OPEN_GROUPS = (
    "{name} has {a} {boxes} with {b} {things} in each.",
    "There are {a} {boxes}. Each one holds {b} {things}.",
    "{name} fills {a} {boxes} and puts {b} {things} in each.",
)
ASK_TOTAL = ("How many {things} are there in all?", "How many {things} is that in total?")
ASK_NOW = ("How many {things} are there now?", "How many {things} does that make?")
ASK_LEFT = ("How many {things} are left?", "How many {things} are there now?")


@dataclass(frozen=True)
class Step:
    """One change of the count: its operator, its wordings, and the question that fits after it.

    `last` steps end a story, because what they count is no longer the pile the story began with.
    """

    operator: str
    wordings: tuple[str, ...]
    asks: tuple[str, ...] = ASK_NOW
    last: bool = False


STEPS = (
    Step("+", ("{other} brings {k} more.", "Then {name} finds {k} more.", "{k} more are added.")),
    Step(
        "-",
        (
            "{name} gives {k} of them to {other}.",
            "Then {k} of them are lost.",
            "{other} takes {k} away.",
        ),
        ASK_LEFT,
    ),
    Step(
        "+",
        ("{other} has {k} more than that.",),
        ("How many {things} does {other} have?",),
        last=True,
    ),
    Step(
        "-",
        ("{other} has {k} fewer than that.",),
        ("How many {things} does {other} have?",),
        last=True,
    ),
    Step(
        "*",
        ("{other} has {k} times as many.",),
        ("How many {things} does {other} have?",),
        last=True,
    ),
    Step(
        "*",
        ("Each of the {things} is sold for {k} dollars.",),
        ("How many dollars is that?",),
        last=True,
    ),
    Step(
        "/",
        (
            "They are shared equally among {k} friends.",
            "{name} puts the same number on each of {k} plates.",
        ),
        ("How many {things} are in each share?",),
        last=True,
    ),
)


def largest_addend(difficulty: float) -> int:
    """The largest number that is added or taken away: 9 at difficulty 0, 50 at difficulty 1."""
    return round(9 + 41 * difficulty)


def largest_factor(difficulty: float) -> int:
    """The largest factor or divisor: 4 at difficulty 0, 12 at difficulty 1."""
    return round(4 + 8 * difficulty)


def apply_operator(operator: str, a: int, k: int) -> int:
    """The integer result of `a operator k`; a division that leaves a rest is a ValueError."""
    if operator == "/" and (k == 0 or a % k):
        raise ValueError(
            f"{a}/{k} leaves a rest; the stories only share what can be shared equally"
        )
    return {"+": a + k, "-": a - k, "*": a * k, "/": a // k if k else 0}[operator]


def draw_operand(rng: random.Random, operator: str, count: int, difficulty: float) -> int | None:
    """A number that makes a sensible story after `count` things, or None where there is none."""
    addend, factor = largest_addend(difficulty), largest_factor(difficulty)
    choices = {
        "+": range(2, addend + 1),
        "-": range(2, min(addend, count - 1) + 1),
        "*": range(2, factor + 1) if count <= 2 * factor else (),
        "/": [k for k in range(2, factor + 1) if count % k == 0 and count > k],
    }[operator]
    return rng.choice(choices) if choices else None


def draw_story(
    rng: random.Random, difficulty: float
) -> tuple[str, list[tuple[int, str, int, int]]] | None:
    """One story and its calculations `(left, operator, right, result)`, or None for a dead end."""
    name, other = rng.sample(NAMES, 2)
    words = {
        "name": name,
        "other": other,
        "things": rng.choice(THINGS),
        "boxes": rng.choice(CONTAINERS),
    }
    n_steps = 2 if rng.random() < difficulty else 1
    sentences, calculations, asks = [], [], ASK_TOTAL

    def say(wordings: tuple[str, ...], **numbers: int) -> None:
        sentences.append(rng.choice(wordings).format(**words, **numbers))

    if rng.random() < 0.35:
        a, b = (rng.randint(2, largest_factor(difficulty)) for _ in range(2))
        say(OPEN_GROUPS, a=a, b=b)
        calculations.append((a, "*", b, count := a * b))
    else:
        count = rng.randint(3, largest_addend(difficulty))
        say(OPEN_COUNT, a=count)
    while len(calculations) < n_steps:
        step = rng.choice([s for s in STEPS if len(calculations) == n_steps - 1 or not s.last])
        k = draw_operand(rng, step.operator, count, difficulty)
        if k is None:
            return None
        say(step.wordings, k=k)
        calculations.append((count, step.operator, k, apply_operator(step.operator, count, k)))
        count, asks = calculations[-1][-1], step.asks
    say(asks)
    return " ".join(sentences), calculations


def row_from_story(question: str, calculations: list[tuple[int, str, int, int]]) -> dict[str, str]:
    """GSM8K's row: the worked answer with `<<3*4=12>>` annotations, then `#### gold`."""
    lines = [f"{a}{op}{b}=<<{a}{op}{b}={result}>>{result}" for a, op, b, result in calculations]
    return {"question": question, "answer": "\n".join([*lines, f"#### {calculations[-1][-1]}"])}


def split_of(question: str) -> str:
    """The one split a question belongs to, decided by its sha256."""
    return SPLIT_OF_BUCKET[hashlib.sha256(question.encode()).digest()[0] % len(SPLIT_OF_BUCKET)]


def stream_pocket_problems(
    split: str, seed: int | str = 0, difficulty: float = 0.5
) -> Iterator[Problem]:
    """Problems of one split, one after another, without end and without a repeated question.

    Args:
        split: one of `POCKET_SPLITS`.
        seed: the stream's seed; the same seed gives the same problems.
        difficulty: from 0 (one step, small numbers) to 1 (two steps, numbers up to 50).

    Raises:
        ValueError: an unknown split, or a difficulty outside [0, 1].
    """
    if split not in POCKET_SPLITS:
        raise ValueError(f"split={split!r} is unknown; allowed: {', '.join(POCKET_SPLITS)}")
    if not 0 <= difficulty <= 1:
        raise ValueError(f"difficulty={difficulty!r} is outside [0, 1]")
    rng = random.Random(f"pocket problems, {split}, seed {seed}, difficulty {difficulty}")
    seen: set[str] = set()
    while True:
        story = draw_story(rng, difficulty)
        if story is not None and story[0] not in seen and split_of(story[0]) == split:
            seen.add(story[0])
            yield problem_from_row(row_from_story(*story))


def load_pocket_problems(
    split: str, limit: int, seed: int | str = 0, difficulty: float = 0.5
) -> list[Problem]:
    """The first `limit` problems of `stream_pocket_problems`; a negative limit is a ValueError."""
    if limit < 0:
        raise ValueError(f"limit={limit} is negative; give 0 or more")
    stream = stream_pocket_problems(split, seed, difficulty)
    return [next(stream) for _ in range(limit)]


def recompute_gold(problem: Problem) -> int:
    """The answer, recomputed from the text alone, without the generator.

    Every `<<a op b=c>>` is calculated again; its operands must be numbers of the question or
    earlier results, and every number of the question must be used exactly once.

    Raises:
        ValueError: a calculation is wrong, or uses a number from nowhere, or leaves one unused.
    """
    available = [int(number) for number in re.findall(r"\d+", problem.question)]
    for a, operator, b, claimed in re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>", problem.answer):
        for operand in (int(a), int(b)):
            if operand not in available:
                raise ValueError(
                    f"{operand} is neither in the question nor a result: {problem.answer!r}"
                )
            available.remove(operand)
        if (result := apply_operator(operator, int(a), int(b))) != int(claimed):
            raise ValueError(f"{a}{operator}{b} is {result}, not {claimed}: {problem.answer!r}")
        available.append(result)
    if len(available) != 1:
        raise ValueError(
            f"numbers left unused or no calculation: {available} in {problem.question!r}"
        )
    return available[0]
