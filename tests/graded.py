"""Responses of both formats, and the three results there are."""

from __future__ import annotations

from gsmrl_helpers.grading import GRADERS

WRAP = {
    "r1_zero": " 9+9=18. </think> <answer> {} </answer>",
    "r1_zero_lenient": " 9+9=18. </THINK>\n<Answer>{}</answer>",
    "question_only": r"So \boxed{{{}}}.",
}
RIGHT = {"reward": 1.0, "format_reward": 1.0, "answer_reward": 1.0}
WRONG = {"reward": 0.0, "format_reward": 1.0, "answer_reward": 0.0}
NO_FORMAT = {"reward": 0.0, "format_reward": 0.0, "answer_reward": 0.0}


def grade(name: str, answer: str, gold: str) -> dict[str, float]:
    """The rewards of a response with this answer."""
    return GRADERS[name](WRAP[name].format(answer), gold)
