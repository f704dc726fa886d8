"""What is on record of the grader: complete, and as good as the book says."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from gsmrl_helpers.grader_corpora import POISON, REFUSED
from gsmrl_helpers.paths import RESULTS_DIR

RECORDS = ("grader-fuzz.json", "grader.json")


def read(name: str) -> dict:
    return json.loads((RESULTS_DIR / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_says_what_made_it_and_names_no_machine(name):
    record, text = read(name), (RESULTS_DIR / name).read_text(encoding="utf-8")
    assert record["command"].startswith("python tools/") and record["python"]
    assert record["versions"]["math-verify"] == metadata.version("math-verify")
    assert not any(part in text for part in ("/home", "/root", "/tmp", "/work"))


def test_a_million_random_inputs_found_no_false_positive_and_nothing_that_hangs():
    record = read("grader-fuzz.json")
    counts = record["counts"]
    assert counts["inputs"] == record["n_shards"] * record["shard"] == 1_000_000
    assert counts["slow path"] == sum(record["slow_path_ms"].values()) >= 50_000
    assert counts["asked of math-verify"] >= 50_000
    assert counts["known"] > counts["right of these"] > 100_000
    assert counts["false positives"] == counts["outside [0, 1]"] == 0
    assert counts["false negatives"] == counts["false negatives, beyond the bounds"] > 0
    assert not any(name.startswith("raised") for name in counts)
    assert record["max_ms"] <= 250 and record["slow_path_p99_9_ms"] <= 50


def test_all_golds_of_gsm8k_score_in_every_form_and_no_near_miss_does():
    counts = read("grader.json")["gsm8k"]
    assert counts["golds"] == 8_792
    assert counts["ways right"] == counts["ways"] == 33 * 8_792
    assert counts["one off"] == 2 * 8_792 and counts["digits swapped"] > 5_000
    assert counts["one off, right"] == counts["digits swapped, right"] == 0


def test_the_grader_errs_where_it_is_known_to_and_nowhere_else():
    record = read("grader.json")
    for row in record["comparison"]:
        missed = len(REFUSED) if row["corpus"] == "refused knowingly" else 0
        assert row["gsmrl"]["false positives"] == 0
        assert row["gsmrl"]["false negatives"] == missed
        assert row["gsmrl"]["max ms"] <= 250
    assert {row["gsmrl"]["said"] for row in record["poison"]} == {"not equal"}
    assert len(record["poison"]) == len(POISON)
    assert record["plain answers a second"] > 100_000
