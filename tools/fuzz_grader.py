r"""Fuzz the grader: random inputs, counts of what it said, and how long it took.

    python tools/fuzz_grader.py --total 1000000

Inputs are drawn in shards, each with a seed of its own, and the counts are written after each; a
run that was broken off goes on where it stopped. Three kinds: texts of the pieces that a grader
knows, numbers written right or changed, and pairs of expressions whose verdict is known.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

from gsmrl_helpers import equivalence
from gsmrl_helpers.expression_reader import parse_answer
from gsmrl_helpers.grader_corpora import (
    POISON,
    random_expression_pair,
    random_number_pair,
)
from gsmrl_helpers.grading import GRADERS
from gsmrl_helpers.numerals import parse_number
from gsmrl_helpers.paths import ROOT

SHARD = 10_000
OUT = ROOT / "data" / "results" / "grader-fuzz.json"
WRAP = {
    "r1_zero": "So. </think> <answer> {} </answer>",
    "r1_zero_lenient": "So.</think>\n<answer>{}</answer>",
    "question_only": r"So \boxed{{{}}}.",
}
PIECES = r"""
\boxed{ \frac{ \sqrt{ \text{ \pi \{ \} } { ( ) [ ] </answer> #### $ \$ \ ¤ - − + . , / = : * % ! ^
e x y 18 0 7 999 ² １ √ eggs million cents nan None \cup \infty or
""".split()  # noqa: SIM905
PIECES += ["</think> <answer>", "the answer is ", " ", "\n", "\ud800"]


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.002:
        return rng.choice(POISON)
    if rng.random() < 0.2:
        return "".join(chr(rng.randrange(0x2FFF)) for _ in range(rng.randint(0, 60)))
    return "".join(rng.choices(PIECES, k=rng.randint(0, 24)))


def random_input(rng: random.Random) -> tuple[str, str, bool | None]:
    """(answer, gold, whether it is right); None where nobody knows."""
    kind = rng.random()
    if kind < 0.42:
        gold = random_text(rng) if rng.random() < 0.5 else str(rng.randint(-99, 99))
        return random_text(rng), gold, None
    if kind < 0.80:
        return random_number_pair(rng)
    pair = random_expression_pair(rng)
    # Arithmetic for a number is refused, and a gold beyond the bounds is none: not errors.
    return pair if parse_number(pair.gold) is None else (pair.answer, pair.gold, None)


def is_refused(answer: str, gold: str) -> bool:
    """Whether an expression is beyond what is compared."""
    is_number = parse_number(gold) is not None
    return not is_number and None in (parse_answer(answer), parse_answer(gold))


def fuzz_shard(seed: int) -> dict:
    """Counts and times of one shard."""
    rng, counts = random.Random(seed), Counter()
    slow_ms: list[float] = []
    max_ms = 0.0
    asked = count_calls(equivalence, "is_equivalent"), count_calls(equivalence, "verify")
    for _ in range(SHARD):
        answer, gold, is_right = random_input(rng)
        name = rng.choice(list(GRADERS))
        response = WRAP[name].format(answer) if rng.random() < 0.97 else answer
        before, started = asked[0][0], time.thread_time()
        try:
            rewards = GRADERS[name](response, gold)
        except Exception as error:
            counts[f"raised {type(error).__name__}"] += 1
            continue
        ms = 1000 * (time.thread_time() - started)
        max_ms = max(max_ms, ms)
        if asked[0][0] > before:
            slow_ms.append(round(ms, 3))
        counts["outside [0, 1]"] += not all(0.0 <= r <= 1.0 for r in rewards.values())
        counts["in format"] += rewards["format_reward"] == 1.0
        counts["right"] += rewards["reward"] == 1.0
        if is_right is not None and response != answer:
            counts["known"] += 1
            counts["right of these"] += is_right
            counts["false positives"] += rewards["reward"] > is_right
            is_missed = rewards["reward"] < is_right
            counts["false negatives"] += is_missed
            counts["false negatives, beyond the bounds"] += is_missed and is_refused(answer, gold)
    counts["inputs"], counts["slow path"] = SHARD, len(slow_ms)
    counts["asked of math-verify"] = asked[1][0]
    return {"seed": seed, "counts": counts, "max_ms": max_ms, "slow_ms": sorted(slow_ms)}


def count_calls(module: object, name: str) -> list[int]:
    """Count the calls of a function of a module from now on, in the list's one number."""
    function, calls = getattr(module, name), [0]
    function = getattr(function, "__wrapped__", function)

    def counted(*args):
        calls[0] += 1
        return function(*args)

    counted.__wrapped__ = function
    setattr(module, name, counted)
    return calls


def add_shard(record: dict, shard: dict) -> dict:
    """The record with one more shard. Slow times are kept as a histogram of whole milliseconds."""
    histogram = Counter({int(ms): n for ms, n in record["slow_path_ms"].items()})
    histogram.update(int(ms) for ms in shard["slow_ms"])
    counts = Counter(record["counts"])
    counts.update(shard["counts"])
    return {
        **record,
        "n_shards": record["n_shards"] + 1,
        "counts": dict(counts),
        "max_ms": round(max(record["max_ms"], shard["max_ms"]), 3),
        "slow_path_p99_9_ms": percentile(histogram, 0.999),
        "slow_path_ms": {str(ms): histogram[ms] for ms in sorted(histogram)},
    }


def percentile(histogram: Counter, share: float) -> int | None:
    """The upper end of the millisecond below which that share of the times lies."""
    rest = share * histogram.total()
    for ms in sorted(histogram):
        rest -= histogram[ms]
        if rest <= 0:
            return ms + 1
    return None


def new_record(seed: int) -> dict:
    packages = ("math-verify", "sympy", "mpmath")
    return {
        "command": "python tools/fuzz_grader.py",
        "seed": seed,
        "shard": SHARD,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
        "n_shards": 0,
        "counts": {},
        "max_ms": 0.0,
        "slow_path_ms": {},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total", type=int, default=1_000_000, help="inputs, in whole shards")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    record = new_record(options.seed)
    if options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
        if any(found[key] != record[key] for key in ("seed", "shard", "python", "versions")):
            parser.error(f"{options.out} was made with other versions or another seed: remove it")
        record = found
    options.out.parent.mkdir(parents=True, exist_ok=True)
    while record["counts"].get("inputs", 0) < options.total:
        record = add_shard(record, fuzz_shard(options.seed * 1_000_003 + record["n_shards"]))
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        part.replace(options.out)
        print(f"{record['counts']['inputs']:>9,} inputs", flush=True)
    print(json.dumps({key: record[key] for key in record if key != "slow_path_ms"}, indent=1))


if __name__ == "__main__":
    main()
