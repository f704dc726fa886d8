r"""Graders: does a response give the gold answer, and is it in format?

Both reward functions find the answer in a response and ask :func:`is_equal` whether it is the
gold. Their names and results are those of the assignment; the reward is the answer's alone,
format is only logged. Where the answer stands:

=============  ==================================================  ===============================
rule           in format                                           not in format
=============  ==================================================  ===============================
tags, literal  ``</think> <answer> 18 </answer>``                  ``</think><answer>18</answer>``
tags, lenient  ``</THINK>\n<Answer>18</answer>`` as well           ``<answer> 18 </answer>``
the cut        first ``<answer>`` to the next ``</answer>``        ``</think> <answer> 18``
a box          the last one closed, ``\boxed {\text{18 eggs}}``    ``\boxed{18``, ``\boxed 18``
=============  ==================================================  ===============================

What a policy writes is untrusted. It is matched by regular expressions and read by a parser of
ours, never evaluated; no text, however long or deep, makes a grader raise or wait. How answers are
compared is in :mod:`gsmrl_helpers.numerals` and :mod:`gsmrl_helpers.expression_reader`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial

from gsmrl_helpers.expression_reader import parse_answer
from gsmrl_helpers.expressions import Answer
from gsmrl_helpers.numerals import MAX_ANSWER_CHARS, MAX_RESPONSE_CHARS, Numeral, parse_numeral

RewardFn = Callable[[str, str], dict[str, float]]


def r1_zero_reward_fn(
    response: str, ground_truth: str | None, strict: bool = True
) -> dict[str, float]:
    r"""Grade a response that ends its reasoning with ``</think> <answer> … </answer>``.

    The answer opens at the first ``</think> <answer>`` and is cut at the first ``</answer>`` after
    it; nothing outside scores. All of it is read: a ``\boxed{…}`` in it counts as its content, so
    ``\boxed{18} eggs`` is an answer and ``17 or \boxed{18}`` is none.

    Args:
        response: What the policy wrote after the prompt.
        ground_truth: The gold answer. None, NaN, or what can't be read never scores.
        strict: Take the tags literally, one space between them. If False, any white space or
            none may stand between them, and capitals don't matter.

    Returns:
        ``reward`` and ``answer_reward`` (1.0 if the answer is the gold, else 0.0), and
        ``format_reward`` (1.0 if the tags are there, else 0.0).

    Raises:
        TypeError: The response or the gold is not text: an error of the program, not of the policy.
    """
    _require_text(response)
    return _grade(find_tagged(response, strict), ground_truth)


def question_only_reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
    r"""Grade a response by its last complete ``\boxed{…}``, nested braces included.

    Arguments, result and errors are those of :func:`r1_zero_reward_fn`; ``format_reward`` is 1.0
    if there is a complete box.
    """
    _require_text(response)
    return _grade(find_boxed(response), ground_truth)


GRADERS: dict[str, RewardFn] = {
    "question_only": question_only_reward_fn,
    "r1_zero": r1_zero_reward_fn,
    "r1_zero_lenient": partial(r1_zero_reward_fn, strict=False),
}


def _grade(answer: str | None, ground_truth: str | None) -> dict[str, float]:
    """The three rewards; ``answer`` is None where the format is broken."""
    correct = is_equal(unbox(answer), ground_truth) if answer is not None else False
    return {
        "reward": float(correct),
        "format_reward": float(answer is not None),
        "answer_reward": float(correct),
    }


def _require_text(response: object) -> None:
    if not isinstance(response, str):
        raise TypeError(f"a response must be a string, got {type(response).__name__}")


# --- whether the answer is the gold ------------------------------------------------------------


def is_equal(answer: str, ground_truth: str | None) -> bool:
    """Whether the whole of ``answer`` is the gold answer.

    A gold that is a number is compared exactly, with a number alone: an answer that leaves
    arithmetic to the grader (``9+9`` for 18) is not one. Any other gold is an expression, an
    interval or a set, and is compared by math-verify, within bounds; what exceeds them, and what
    can't be read, is not equal.

    The first gold that is an expression loads sympy and math-verify, about half a second.
    """
    gold = _parse_gold(ground_truth)
    if gold is None:
        return False
    if isinstance(gold, Numeral):
        return parse_numeral(answer) == gold
    parsed = parse_answer(answer)
    if parsed is None:
        return False
    from gsmrl_helpers.equivalence import is_equivalent

    return is_equivalent(gold, parsed)


@lru_cache(maxsize=4096)
def _parse_gold_text(text: str) -> Numeral | Answer | None:
    return parse_numeral(text) or parse_answer(text)


def _parse_gold(ground_truth: object) -> Numeral | Answer | None:
    # A missing value of a table arrives as None or as the float NaN, the one that is not itself.
    if ground_truth is None or ground_truth != ground_truth:
        return None
    if not isinstance(ground_truth, str):
        raise TypeError(f"a gold must be a string, got {type(ground_truth).__name__}")
    return _parse_gold_text(ground_truth) if len(ground_truth) <= MAX_ANSWER_CHARS else None


# --- where the answer stands -------------------------------------------------------------------

_LENIENT_OPENING = re.compile(r"</think>\s*<answer>", re.IGNORECASE)
_LENIENT_CLOSING = re.compile(r"</answer>", re.IGNORECASE)


def find_tagged(response: str, strict: bool = True) -> str | None:
    """The text from the first ``</think> <answer>`` to the next ``</answer>``, or None."""
    if strict:
        _, opened, rest = response.partition("</think> <answer>")
        answer, closed, _ = rest.partition("</answer>")
        return answer if opened and closed else None
    opening = _LENIENT_OPENING.search(response)
    if opening is None:
        return None
    closing = _LENIENT_CLOSING.search(response, opening.end())
    return response[opening.end() : closing.start()] if closing else None


_FLAT_BOX = re.compile(r"\\boxed\s*\{((?:[^{}\\]|\\[^{}])*)\}")
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def find_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` that is closed, None if there is none.

    Of nested boxes it is the outer one's, and the inner ones are part of it. Only the last
    ``MAX_RESPONSE_CHARS`` are searched, in one pass.
    """
    text = text[-MAX_RESPONSE_CHARS:]
    last_start = text.rfind("\\boxed")
    if last_start < 0:
        return None
    flat = _FLAT_BOX.match(text, last_start)
    if flat and text.find("\\boxed") == last_start:  # the usual case, without the scan
        return flat[1]
    # Of each open brace: where its content starts, and whether it is a box's.
    open_braces: list[tuple[int, bool]] = []
    last_box: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        token = brace[0]
        if token == "{" or token.startswith("\\boxed"):
            open_braces.append((brace.end(), token != "{"))
        elif token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box:
                last_box = (start, brace.start())
    return None if last_box is None else text[slice(*last_box)]


_BOX_COMMAND = re.compile(r"\\boxed\s*(?=\{)")


def unbox(answer: str) -> str:
    r"""The answer with ``\boxed`` taken off: a box around all of it, or the command alone.

    What stands beside a box is still there to be read. The braces that remain keep two numbers
    apart: ``1\boxed{8}`` is not 18.
    """
    answer = answer.strip()
    if len(answer) > MAX_ANSWER_CHARS or (inside := find_boxed(answer)) is None:
        return answer
    whole = answer.removeprefix("\\boxed").lstrip()
    return _BOX_COMMAND.sub("", inside if whole == f"{{{inside}}}" else answer)
