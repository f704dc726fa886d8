r"""Anthropic's HH pairs: two dialogues that part at one answer, of which people preferred one.

A row of the files (Bai et al., 2022, "Training a Helpful and Harmless Assistant with Reinforcement
Learning from Human Feedback") is ``{"chosen": …, "rejected": …}``, each a whole dialogue
``\n\nHuman: … \n\nAssistant: …``. The supplement of CS336's assignment 5 keeps those with one
question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gsmrl_helpers.jsonl_files import BrokenRow, read_jsonl, shown, text_field
from gsmrl_helpers.preferences import PreferencePair

HUMAN, ASSISTANT = "Human", "Assistant"
TURN_START = re.compile(rf"\n\n({HUMAN}|{ASSISTANT}):")


class Turn(NamedTuple):
    """Who speaks, and what is said, stripped."""

    speaker: str
    text: str


@dataclass(frozen=True)
class HHData:
    """What a file of HH holds.

    Attributes:
        pairs: those with one human turn, in the file's order.
        n_multi_turn: how many rows have more human turns and were left out.
        broken: the rows that can't be used, by line.
    """

    pairs: list[PreferencePair]
    n_multi_turn: int
    broken: list[BrokenRow]


def parse_dialogue(text: str) -> list[Turn]:
    r"""The turns of a dialogue.

    A turn starts at ``\n\nHuman:`` or ``\n\nAssistant:``; these words alone, within a line, start
    none. An answer that contains such a line can't be told from a new turn.

    Raises:
        ValueError: something stands before the first turn, or there is none.
    """
    before, *parts = TURN_START.split(text)
    if before.strip() or not parts:
        raise ValueError(f"a dialogue must start with '\\n\\n{HUMAN}:', got {shown(text)}")
    return [Turn(*turn) for turn in zip(parts[::2], map(str.strip, parts[1::2]), strict=True)]


def common_turns(chosen: Sequence[Turn], rejected: Sequence[Turn]) -> int:
    """How many turns two dialogues share, from the first: they part after these.

    Turns are compared, not characters: answers that begin alike are two answers.
    """
    pairs = zip(chosen, rejected, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))


def n_human_turns(turns: Sequence[Turn]) -> int:
    """How often the human speaks."""
    return sum(turn.speaker == HUMAN for turn in turns)


def pair_from_row(row: Any, source: str) -> PreferencePair | None:
    """The pair of one row, or None where a human speaks more than once.

    Raises:
        ValueError: a field is missing or no text; the dialogue does not consist of one question and
            one answer; the questions differ; the answers don't, so that nothing is preferred; a
            question or an answer is empty.
    """
    chosen, rejected = (parse_dialogue(text_field(row, name)) for name in ("chosen", "rejected"))
    if max(n_human_turns(chosen), n_human_turns(rejected)) > 1:
        return None
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        speakers = [turn.speaker for turn in turns]
        if speakers != [HUMAN, ASSISTANT]:
            raise ValueError(
                f"{name} must be one {HUMAN} and one {ASSISTANT} turn, got {', '.join(speakers)}"
            )
        if empty := [turn.speaker for turn in turns if not turn.text]:
            raise ValueError(f"the {empty[0]} turn of {name} is empty")
    n_common = common_turns(chosen, rejected)
    if n_common == 0:
        raise ValueError(f"the prompts differ: {shown(chosen[0].text)}, {shown(rejected[0].text)}")
    if n_common == 2:
        raise ValueError(f"chosen and rejected are the same: {shown(chosen[1].text)}")
    return PreferencePair(chosen[0].text, chosen[1].text, rejected[1].text, source)


def load_hh(path: str | Path, source: str | None = None) -> HHData:
    """The single-turn pairs of an HH file.

    Args:
        path: JSON lines, gzipped or not.
        source: what the pairs remember as their source; the file's name if None. In Anthropic's own
            folders all files are called `train.jsonl.gz` and the folder has the name.

    Raises:
        FileNotFoundError: there is no such file.
    """
    source = Path(path).name if source is None else source
    rows, broken = read_jsonl(path, lambda row: pair_from_row(row, source))
    pairs = [pair for pair in rows if pair is not None]
    return HHData(pairs, len(rows) - len(pairs), broken)
