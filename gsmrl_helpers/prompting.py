r"""Prompts: a text, the reward function that can read its answers, and the stop strings, as one.

The three belong together: a policy told to write ``<answer>`` tags earns nothing from a grader
that looks for ``\boxed{}``, and a stop string the prompt never mentions cuts nothing. So a run
names a prompt and gets all three; to pair it with another reward it has to say so, with
:meth:`Prompt.with_reward`.

The ``r1_zero`` text has the form of the template of DeepSeek-R1 (2025, table 1), the worked
examples of ``r1_zero_three_shot`` are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources

from gsmrl_helpers.grading import RewardFn
from gsmrl_helpers.reward_shaping import REWARD_FNS

QUESTION_FIELD = "{question}"


@dataclass(frozen=True)
class Prompt:
    """A prompt with the reward function and the stop strings that go with it.

    Attributes:
        name: What a run calls it.
        template: Its text, with the field ``{question}`` exactly once.
        reward_name: A key of :data:`gsmrl_helpers.reward_shaping.REWARD_FNS`.
        stop: Strings at which generation ends.
        include_stop_str_in_output: Whether the stop string stays in the response. It has to for
            the r1_zero prompts: their grader wants to see ``</answer>``.
    """

    name: str
    template: str
    reward_name: str
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = True

    def __post_init__(self) -> None:
        n_fields = self.template.count(QUESTION_FIELD)
        if n_fields != 1:
            raise ValueError(
                f"prompt {self.name!r} must hold {QUESTION_FIELD} exactly once, found {n_fields}"
            )
        if self.reward_name not in REWARD_FNS:
            raise ValueError(
                f"unknown reward function {self.reward_name!r} for prompt {self.name!r}; "
                f"choose one of {', '.join(REWARD_FNS)}"
            )

    @property
    def reward_fn(self) -> RewardFn:
        """The function that grades a response to this prompt."""
        return REWARD_FNS[self.reward_name]

    def format(self, question: str) -> str:
        """The text the policy sees. Not ``str.format``: braces in a question stay as they are."""
        return self.template.replace(QUESTION_FIELD, question)

    def with_reward(self, reward_name: str) -> Prompt:
        """The same prompt graded by another reward function, chosen by name on purpose.

        Raises:
            ValueError: ``reward_name`` is not in ``REWARD_FNS``.
        """
        return replace(self, reward_name=reward_name)


def read_template(name: str) -> str:
    """The text of ``prompts/<name>.txt`` without the newline that ends the file.

    A prompt that ended in a newline would ask the policy to start its reasoning on a new line.
    """
    file = resources.files("gsmrl_helpers") / "prompts" / f"{name}.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


ANSWER_STOP = ("</answer>",)

PROMPTS: dict[str, Prompt] = {
    prompt.name: prompt
    for prompt in (
        Prompt("question_only", read_template("question_only"), "question_only"),
        Prompt("r1_zero", read_template("r1_zero"), "r1_zero", ANSWER_STOP),
        Prompt("r1_zero_three_shot", read_template("r1_zero_three_shot"), "r1_zero", ANSWER_STOP),
    )
}


def get_prompt(name: str) -> Prompt:
    """The prompt of that name.

    Raises:
        ValueError: There is none; the message lists the names there are.
    """
    try:
        return PROMPTS[name]
    except KeyError:
        allowed = ", ".join(sorted(PROMPTS))
        raise ValueError(f"unknown prompt {name!r}; choose one of {allowed}") from None
