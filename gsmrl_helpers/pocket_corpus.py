"""What the pocket policy reads before reinforcement learning: documents like a base model's.

Arithmetic drills, worked textbook problems, and conversations in the forms of the three prompts.
Most conversations go wrong in some ordinary way: a slip, a guess, chatter, tags left out. The
shares below decide how often each happens, so they decide how good the untrained policy is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gsmrl_helpers.pocket_problems import (
    NAMES,
    apply_operator,
    draw_operand,
    stream_pocket_problems,
)
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import get_prompt

Calculation = tuple[int, str, int, int]

# What is read, in shares of documents.
DOCUMENT_SHARES = {
    "drill": 0.10,
    "textbook": 0.40,
    "r1_zero": 0.34,
    "few_shot": 0.02,
    "boxed": 0.14,
}
# How an assistant's turn goes, in shares of the turns of that form.
TURN_SHARES = {
    "r1_zero": {
        **{"slip": 0.22, "guess": 0.28},
        **{"untagged": 0.17, "chatter": 0.18, "broken_tags": 0.15},
    },
    "few_shot": {"worked": 0.20, "slip": 0.40, "guess": 0.35, "untagged": 0.05},
    "boxed": {"boxed": 0.05, "boxed_slip": 0.10, "untagged": 0.45, "chatter": 0.40},
}


@dataclass(frozen=True)
class Document:
    """A text in two parts, tokenised apart like a prompt and its response."""

    prompt: str
    response: str


def calculations_of(problem: Problem) -> list[Calculation]:
    """The `(left, operator, right, result)` steps of a worked answer."""
    steps = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>", problem.answer)
    return [(int(a), operator, int(b), int(result)) for a, operator, b, result in steps]


def say_calculations(rng: random.Random, calculations: list[Calculation]) -> str:
    """A chain of thought in one of three wordings, such as ` First 3*4=12. Then 12-2=10.`"""
    equations = [f"{a}{operator}{b}={result}." for a, operator, b, result in calculations]
    starts = {
        "bare": ["", ""],
        "spoken": ["That is ", "Then "],
        "ordered": ["First ", "Then "] if len(equations) > 1 else ["That is "],
    }[rng.choice(("bare", "spoken", "ordered"))]
    return "".join(
        f" {start}{equation}" for start, equation in zip(starts, equations, strict=False)
    )


def slipped(rng: random.Random, calculations: list[Calculation]) -> list[Calculation]:
    """The same chain with one mistake: a step forgotten, a wrong operator, or a miscalculation."""
    slip = rng.choice(("forgotten", "operator", "operator", "miscalculated"))
    if slip == "forgotten" and len(calculations) > 1:
        return calculations[:-1]
    at = rng.randrange(len(calculations))
    chain, (a, operator, b, result) = calculations[:at], calculations[at]
    if slip == "miscalculated":
        chain.append((a, operator, b, max(0, result + rng.choice((-10, -2, -1, 1, 2, 10)))))
    else:
        others = [o for o in "+-*" if o != operator and not (o == "-" and b >= a)]
        chain.append((a, wrong := rng.choice(others), b, apply_operator(wrong, a, b)))
    for _, operator, b, _ in calculations[at + 1 :]:  # the rest follows honestly from the mistake
        a = chain[-1][-1]
        possible = operator if operator in "+*" or (b and a % b == 0 and operator == "/") else "+"
        chain.append((a, possible, b, apply_operator(possible, a, b)))
    return chain


def guess(rng: random.Random, problem: Problem) -> int:
    """An answer without work: a number of the question or any number up to 40."""
    numbers = [int(number) for number in re.findall(r"\d+", problem.question)]
    return rng.choice(numbers) if rng.random() < 0.4 else rng.randint(1, 40)


def worked(rng: random.Random, problem: Problem) -> str:
    return tagged(rng, calculations_of(problem))


def slip(rng: random.Random, problem: Problem) -> str:
    return tagged(rng, slipped(rng, calculations_of(problem)))


def tagged(rng: random.Random, calculations: list[Calculation]) -> str:
    thought = say_calculations(rng, calculations)
    return f"{thought} </think> <answer> {calculations[-1][-1]} </answer>"


def guessed(rng: random.Random, problem: Problem) -> str:
    number = guess(rng, problem)
    thought = rng.choice(("", " I think it is {}.", " Maybe {}.")).format(number)
    return f"{thought} </think> <answer> {number} </answer>"


def maybe_slipped(rng: random.Random, problem: Problem) -> list[Calculation]:
    calculations = calculations_of(problem)
    return calculations if rng.random() < 0.6 else slipped(rng, calculations)


def untagged(rng: random.Random, problem: Problem) -> str:
    calculations = maybe_slipped(rng, problem)
    return f"{say_calculations(rng, calculations)} The answer is {calculations[-1][-1]}."


def broken_tags(rng: random.Random, problem: Problem) -> str:
    calculations = maybe_slipped(rng, problem)
    end = rng.choice(
        (
            "</think> The answer is {}.",
            "</think> {}.",
            "<answer> {} </answer>",
            "</think> <answer> {}.",
        )
    )
    return f"{say_calculations(rng, calculations)} {end.format(calculations[-1][-1])}"


def boxed(rng: random.Random, problem: Problem) -> str:
    return in_a_box(rng, calculations_of(problem))


def boxed_slip(rng: random.Random, problem: Problem) -> str:
    return in_a_box(rng, slipped(rng, calculations_of(problem)))


def in_a_box(rng: random.Random, calculations: list[Calculation]) -> str:
    return f"{say_calculations(rng, calculations)} \\boxed{{{calculations[-1][-1]}}}"


CHATTER = (
    " The question is about numbers. The User asks a question.",
    " The User asks how many there are.",
    " I think the answer is in the question.",
    " How many are there? I think there are more than that.",
    " The Assistant thinks about the question first.",
    " {name} has more of them, I think.",
    " Then {name} asks how many there are now.",
    " Maybe there are {n} of them, maybe {m}.",
)


def chatter(rng: random.Random, problem: Problem) -> str:
    """Talk that never comes to an answer."""
    words = {"name": rng.choice(NAMES), "n": rng.randint(2, 40), "m": rng.randint(2, 40)}
    return "".join(rng.choice(CHATTER).format(**words) for _ in range(rng.randint(1, 4)))


TURNS: dict[str, Callable[[random.Random, Problem], str]] = {
    **{"worked": worked, "slip": slip, "guess": guessed, "untagged": untagged},
    **{"chatter": chatter, "broken_tags": broken_tags, "boxed": boxed, "boxed_slip": boxed_slip},
}


def draw_turn(rng: random.Random, form: str, problem: Problem) -> str:
    """One assistant's turn, drawn with the shares of `TURN_SHARES[form]`."""
    shares = TURN_SHARES[form]
    return TURNS[rng.choices(list(shares), list(shares.values()))[0]](rng, problem)


def drill(rng: random.Random, difficulty: float) -> str:
    """A line of correct equations over the numbers that the stories use."""
    equations = []
    while len(equations) < 12:
        operator, a = rng.choice("++--*/"), rng.randint(2, 60)
        b = draw_operand(rng, operator, a, difficulty)
        if b is not None:
            equations.append(f" {a}{operator}{b}={apply_operator(operator, a, b)}.")
    return "".join(equations)


def draw_document(rng: random.Random, problems: Iterator[Problem], difficulty: float) -> Document:
    """One document, its form drawn with `DOCUMENT_SHARES`."""
    form = rng.choices(list(DOCUMENT_SHARES), list(DOCUMENT_SHARES.values()))[0]
    if form == "drill":
        return Document("", drill(rng, difficulty))
    problem = next(problems)
    if form == "textbook":
        calculations = calculations_of(problem)
        answer = f"{say_calculations(rng, calculations)} #### {calculations[-1][-1]}"
        return Document("", f"Question: {problem.question}\nAnswer:{answer}")
    if form == "boxed":
        return Document(
            get_prompt("question_only").format(problem.question), draw_turn(rng, form, problem)
        )
    prompt = get_prompt("r1_zero").format(problem.question)
    if form == "few_shot":
        prompt = add_examples(rng, prompt, [next(problems) for _ in range(rng.randint(1, 3))])
    return Document(prompt, draw_turn(rng, form, problem))


def add_examples(rng: random.Random, prompt: str, examples: list[Problem]) -> str:
    """An r1_zero prompt with worked examples before its question, as in a few-shot prompt."""
    instruction, user, question = prompt.partition("User: ")
    shots = "".join(f"User: {p.question}\nAssistant: <think>{worked(rng, p)}\n" for p in examples)
    return f"{instruction}{shots}{user}{question}"


def stream_documents(
    seed: int | str, difficulty: float = 0.5, spread: float = 0.4
) -> Iterator[Document]:
    """Documents without end, over the questions of the `pretrain` split.

    Args:
        seed: the stream's seed.
        difficulty: the middle of the difficulties that are read.
        spread: the problems' difficulty is drawn from `difficulty ± spread`, cut to [0, 1].
    """
    rng = random.Random(f"pocket corpus, seed {seed}")
    levels = [min(1.0, max(0.0, difficulty + spread * (i / 3 - 1))) for i in range(7)]
    streams = [stream_pocket_problems("pretrain", seed, level) for level in levels]
    while True:
        level = rng.randrange(len(levels))
        yield draw_document(rng, streams[level], levels[level])
