"""HH pairs: dialogues taken apart, single-turn pairs kept, everything else accounted for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gsmrl_helpers.hh import (
    Turn,
    common_turns,
    load_hh,
    n_human_turns,
    pair_from_row,
    parse_dialogue,
)
from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.preferences import PreferencePair

SAMPLE = DATA_DIR / "hh_sample"
Q = "\n\nHuman: What is 3*4?"


def row(chosen: object, rejected: object) -> dict[str, object]:
    return {"chosen": chosen, "rejected": rejected}


def test_a_dialogue_s_turns() -> None:
    text = "\n\nHuman: One?\n\nAssistant: Two.\n\nThree.\n\nHuman: \n\nAssistant:Four"
    assert parse_dialogue(text) == [
        Turn("Human", "One?"),
        Turn("Assistant", "Two.\n\nThree."),
        Turn("Human", ""),
        Turn("Assistant", "Four"),
    ]
    assert n_human_turns(parse_dialogue(text)) == 2


def test_the_names_within_a_line_start_no_turn() -> None:
    text = "\n\nHuman: Who is Assistant: ?\n\nAssistant: A role.\nHuman: is another. Human: too"
    assert [turn.speaker for turn in parse_dialogue(text)] == ["Human", "Assistant"]


@pytest.mark.parametrize("text", ["", "Hello", "Hi\n\nHuman: x\n\nAssistant: y", "\n\nUser: x"])
def test_a_dialogue_starts_with_a_turn(text: str) -> None:
    with pytest.raises(ValueError, match="must start with"):
        parse_dialogue(text)


def test_dialogues_part_at_a_turn_and_not_within_it() -> None:
    turns = [
        parse_dialogue(f"{Q}\n\nAssistant: It is {answer}") for answer in ("12, I think.", "12.")
    ]
    assert common_turns(*turns) == 1
    assert pair_from_row(
        row(f"{Q}\n\nAssistant: It is 12, I think.", f"{Q}\n\nAssistant: It is 12."), "a"
    ) == PreferencePair("What is 3*4?", "It is 12, I think.", "It is 12.", "a")
    longer = [*turns[0], Turn("Human", "Sure?")]
    assert common_turns(turns[0], longer) == 2 and common_turns([], longer) == 0


def test_more_than_one_human_turn_is_no_pair() -> None:
    long = f"{Q}\n\nAssistant: 12\n\nHuman: Sure?\n\nAssistant: Yes"
    short = f"{Q}\n\nAssistant: 13"
    for chosen, rejected in ((long, long + "!"), (long, short), (short, long)):
        assert pair_from_row(row(chosen, rejected), "a") is None


GOOD = f"{Q}\n\nAssistant: 12"
BROKEN = {
    "'rejected' is missing": {"chosen": GOOD},
    "'chosen' must be a non-empty string, got None": row(None, GOOD),
    "expected a JSON object": [GOOD, GOOD],
    "must start with": row("12", GOOD),
    "chosen and rejected are the same: '12'": row(GOOD, GOOD + " "),
    "rejected must be one Human and one Assistant turn, got Human": row(GOOD, Q),
    "got Assistant": row("\n\nAssistant: 12", GOOD),
    "got Human, Assistant, Assistant": row(f"{GOOD}\n\nAssistant: 13", GOOD),
    "the Assistant turn of rejected is empty": row(GOOD, f"{Q}\n\nAssistant: "),
    "the Human turn of chosen is empty": row("\n\nHuman: \n\nAssistant: 12", GOOD),
    "the prompts differ": row(GOOD, "\n\nHuman: What is 3*5?\n\nAssistant: 12"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_what_is_broken_is_said(problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        pair_from_row(BROKEN[problem], "a")
    assert problem in str(refused.value)


@pytest.mark.parametrize("gzipped", [False, True])
def test_a_file_gives_pairs_a_count_and_broken_lines(tmp_path: Path, gzipped: bool) -> None:
    multi = f"{GOOD}\n\nHuman: Sure?\n\nAssistant: "
    rows = [
        row(GOOD, f"{Q}\n\nAssistant: 13"),
        *BROKEN.values(),
        row(multi + "Yes", multi + "No"),
        row(GOOD, f"{Q}\n\nAssistant: 14"),
    ]
    text = "\n".join(map(json.dumps, rows)).encode()
    path = tmp_path / "pairs.jsonl.gz"
    path.write_bytes(gzip.compress(text) if gzipped else text)
    data = load_hh(path)
    assert [pair.rejected for pair in data.pairs] == ["13", "14"]
    assert {pair.source for pair in data.pairs} == {"pairs.jsonl.gz"}
    assert data.n_multi_turn == 1
    assert [bad.line for bad in data.broken] == list(range(2, 2 + len(BROKEN)))
    assert {pair.source for pair in load_hh(path, "harmless-base").pairs} == {"harmless-base"}


def test_the_committed_sample_accounts_for_every_line() -> None:
    counts = {}
    for path in sorted(SAMPLE.glob("*.jsonl.gz")):
        data = load_hh(path)
        n_lines = len(gzip.decompress(path.read_bytes()).splitlines())
        assert len(data.pairs) + data.n_multi_turn + len(data.broken) == n_lines
        counts[path.name] = (len(data.pairs), data.n_multi_turn, len(data.broken))
        assert {pair.source for pair in data.pairs} == {path.name}
    assert counts == {
        "harmless-sample.jsonl.gz": (13, 2, 4),
        "helpful-sample.jsonl.gz": (15, 2, 4),
    }
