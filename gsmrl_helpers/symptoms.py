"""Symptoms in a run's journal: what has to hold while a run learns, and the first step without it.

Each check looks at one step and those before it, never ahead, so that it can watch a run that is
under way. It needs a few metrics of the journal; where one is not recorded it says so and passes
nothing. A symptom is no diagnosis: it says where to look, and `to_do` says what to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from gsmrl_helpers.findings import Finding, Findings
from gsmrl_helpers.journal import NOT_RECORDED, recorded

RIGHT, IN_FORMAT = "train_mean_answer_reward", "train_mean_format_reward"
EMPTY, CUT_OFF, LENGTH = "no_signal_group_share", "train_truncated_share", "train_response_length"
ENTROPY, ENTROPY_LENGTH = "curve_token_entropy", "curve_response_length"


@dataclass(frozen=True)
class JournalRule:
    """The dials of the checks. None of them is a law.

    Attributes:
        window: steps whose mean is looked at. Five steps of 256 answers are 1280: a share near .2
            is then known to about .011, or twice that where the answers of a group are alike.
        format_rise: of the share in format, so that it calls for a rise of the right answers. It
            is sixteen standard errors of such a mean, so no accident.
        kept_share: of the best mean so far that the right answers must keep. It is the rule of
            stability, `verdicts.COLLAPSE_FRACTION`, asked at every step and not at the end alone.
        worth_keeping: a best mean below this is too small for a fall to be told from chance.
        max_empty: at .8 five answers are sampled for one that is trained on.
        min_answers: of a policy to one problem, e^(entropy of an answer). At 4 half of a group of
            eight says what another one has said.
        kept_length: of the mean length at the start.
        max_cut_off: answers that reach the limit are graded as wrong, whatever they began.
    """

    window: int = 5
    format_rise: float = 0.2
    kept_share: float = 0.5
    worth_keeping: float = 0.05
    max_empty: float = 0.8
    min_answers: float = 4.0
    kept_length: float = 0.75
    max_cut_off: float = 0.1


JOURNAL_RULE = JournalRule()


@dataclass(frozen=True)
class Symptom:
    """A check of a journal.

    Attributes:
        name: what has to hold.
        needs: the metrics that it reads.
        margin: by step, how far the journal is from the symptom: at 0 and below it is there.
        says: what was measured at a step, in words.
        to_do: what to look at.
    """

    name: str
    needs: tuple[str, ...]
    margin: Callable[[pd.DataFrame, JournalRule], pd.Series]
    says: Callable[[pd.DataFrame, JournalRule, int], str]
    to_do: str


def recent(journal: pd.DataFrame, metric: str, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """A metric's mean over the last `rule.window` steps at which it is known; empty where it is not
    known at so many."""
    return recorded(journal, metric).rolling(rule.window).mean().dropna()


# --- how far a journal is from each symptom -------------------------------------------------------


def untrained(journal: pd.DataFrame, part: str) -> float:
    """The share of the untrained policy's answers that are in "format", or right ("answer").

    Validation before the first step and the answers of the first step are both of that policy; the
    mean of what is recorded of the two.
    """
    before = recorded(journal, f"curve_mean_{part}_reward").loc[:0]
    first = recorded(journal, f"train_mean_{part}_reward").head(1)
    return float(pd.concat([before, first]).mean())


def answers_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """The share right among the answers in format, less the untrained policy's; from where the
    format has risen by `rule.format_rise`."""
    in_format = recent(journal, IN_FORMAT, rule)
    gain = recent(journal, RIGHT, rule) / in_format - right_in_format(journal)
    return gain[in_format >= untrained(journal, "format") + rule.format_rise]


def right_in_format(journal: pd.DataFrame) -> float:
    """The untrained policy's share right among its answers in format; 0 if none is in format."""
    in_format = untrained(journal, "format")
    return untrained(journal, "answer") / in_format if in_format else 0.0


def accuracy_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """The share of right answers as a part of the best so far, less what must be kept of it."""
    right = recent(journal, RIGHT, rule)
    best = right.cummax()
    return (right / best - rule.kept_share)[best >= rule.worth_keeping]


def empty_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """How many more groups may be empty."""
    return rule.max_empty - recent(journal, EMPTY, rule)


def entropy_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """The entropy of an answer in nats, less log `rule.min_answers`; at validations."""
    return answer_entropy(journal) - math.log(rule.min_answers)


def length_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """The mean length as a part of the first, less what must be kept of it."""
    length = recent(journal, LENGTH, rule)
    return length / length.iloc[0] - rule.kept_length


def cut_off_margin(journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE) -> pd.Series:
    """How many more answers may reach the limit."""
    return rule.max_cut_off - recent(journal, CUT_OFF, rule)


def answer_entropy(journal: pd.DataFrame) -> pd.Series:
    """Mean entropy of an answer in nats, at validations: by the chain rule that of its tokens,
    summed. The mean over tokens times the mean length is that sum's mean over answers."""
    return (recorded(journal, ENTROPY) * recorded(journal, ENTROPY_LENGTH)).dropna()


# --- in words ------------------------------------------------------------------------------------


def say_answers(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    in_format = recent(journal, IN_FORMAT, rule)[step]
    now = recent(journal, RIGHT, rule)[step] / in_format
    return (
        f"in format {untrained(journal, 'format'):.0%} → {in_format:.0%}, of these right "
        f"{right_in_format(journal):.0%} → {now:.0%}"
    )


def say_accuracy(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    right = recent(journal, RIGHT, rule)
    return f"{right[step]:.1%} right, the best so far was {right[:step].max():.1%}"


def say_empty(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    return f"{recent(journal, EMPTY, rule)[step]:.0%} of the groups teach nothing"


def say_entropy(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    nats = answer_entropy(journal)[step]
    return f"{nats:.2f} nats an answer, as many as {math.exp(nats):.2g} equally likely ones"


def say_length(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    length = recent(journal, LENGTH, rule)
    return f"{length.iloc[0]:.1f} → {length[step]:.1f} tokens"


def say_cut_off(journal: pd.DataFrame, rule: JournalRule, step: int) -> str:
    return f"{recent(journal, CUT_OFF, rule)[step]:.0%} reach the limit"


SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "answers rise with the format",
        (RIGHT, IN_FORMAT),
        answers_margin,
        say_answers,
        "read the 20 best-paid answers, and see what is paid: is it the answer?",
    ),
    Symptom(
        "right answers are kept",
        (RIGHT,),
        accuracy_margin,
        say_accuracy,
        "stop, and go back to the best checkpoint on dev; a smaller learning rate",
    ),
    Symptom(
        "groups have a signal",
        (EMPTY,),
        empty_margin,
        say_empty,
        "look at the mean reward: all earn the most (harder problems), nothing (easier ones), or "
        "the same small bonus (another reward)",
    ),
    Symptom(
        "answers to one problem differ",
        (ENTROPY, ENTROPY_LENGTH),
        entropy_margin,
        say_entropy,
        "compare with the right answers: a policy that has learned may be sure, one that has not "
        "has stopped looking",
    ),
    Symptom(
        "answers keep their length",
        (LENGTH,),
        length_margin,
        say_length,
        "read answers: is the working gone? Right and wrong ones apart",
    ),
    Symptom(
        "answers end by themselves",
        (CUT_OFF,),
        cut_off_margin,
        say_cut_off,
        "raise sampling_max_tokens, or see whether wrong answers grow longer than right ones",
    ),
)

# Two that need no validation and no judgement of what is long: the early detector of a collapse.
EARLY = SYMPTOMS[:2]


# --- checks --------------------------------------------------------------------------------------


def first_alarm(
    journal: pd.DataFrame,
    symptoms: Sequence[Symptom] = EARLY,
    rule: JournalRule = JOURNAL_RULE,
) -> int | None:
    """The first step at which one of the symptoms is there, or None.

    Raises:
        ValueError: the journal lacks a metric, so that silence would mean nothing.
    """
    for symptom in symptoms:
        if absent := missing(journal, symptom):
            raise ValueError(
                f"{symptom.name}: {', '.join(absent)} {NOT_RECORDED}; record it, or leave this "
                "symptom out"
            )
    steps = [step for symptom in symptoms for step in _steps_with(journal, symptom, rule)[:1]]
    return min(steps, default=None)


def check_symptom(
    journal: pd.DataFrame, symptom: Symptom, rule: JournalRule = JOURNAL_RULE
) -> Finding:
    """Whether a symptom ever was there, since which step, and what was measured then.

    A metric that is not recorded is a finding too, and not a good one.
    """
    if absent := missing(journal, symptom):
        return Finding(symptom.name, False, f"{NOT_RECORDED}: {', '.join(absent)}", "record it")
    steps = _steps_with(journal, symptom, rule)
    if steps:
        measured = f"step {steps[0]}: {symptom.says(journal, rule, steps[0])}"
        return Finding(symptom.name, False, measured, symptom.to_do)
    margin = symptom.margin(journal, rule)
    if margin.empty:
        return Finding(symptom.name, True, "there was no occasion for it")
    nearest = int(margin.idxmin())
    measured = f"nearest to it, step {nearest}: {symptom.says(journal, rule, nearest)}"
    return Finding(symptom.name, True, measured)


def check_journal(
    journal: pd.DataFrame,
    symptoms: Sequence[Symptom] = SYMPTOMS,
    rule: JournalRule = JOURNAL_RULE,
) -> Findings:
    """All symptoms in a journal."""
    found = tuple(check_symptom(journal, symptom, rule) for symptom in symptoms)
    return Findings(found, title="The journal")


def missing(journal: pd.DataFrame, symptom: Symptom) -> list[str]:
    """The metrics that a symptom needs and the journal does not have."""
    return [metric for metric in symptom.needs if recorded(journal, metric).empty]


def _steps_with(journal: pd.DataFrame, symptom: Symptom, rule: JournalRule) -> list[int]:
    margin = symptom.margin(journal, rule)
    return [int(step) for step in margin.index[margin <= 0]]
