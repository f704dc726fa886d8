r"""Measure the grader once, beside math-verify alone, and on all golds of GSM8K.

    python tools/measure_grader.py

Needs GSM8K (`gsmrl data gsm8k`, or GSMRL_DATA) and takes a few minutes. Times are of the CPU.
Poison is given to each judge in a process of its own, which is killed when it has had its time.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import random
import resource
import signal
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from multiprocessing.connection import Connection

import gsmrl_helpers.equivalence  # noqa: F401  loads sympy before anything is timed
from gsmrl_helpers.expression_reader import parse_answer
from gsmrl_helpers.grader_corpora import (
    EXPRESSIONS,
    FORMS,
    POISON,
    REFUSED,
    TRAPS,
    Pair,
    Verdict,
    comparable_pairs,
    math_verify_alone,
    math_verify_without_limit,
    near_misses,
    plain_rate,
    random_number_pair,
    timed_verdicts,
    ways_to_write,
)
from gsmrl_helpers.grading import is_equal, r1_zero_reward_fn
from gsmrl_helpers.gsm8k import load_gsm8k
from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.records import git_commit, write_json

OUT = RESULTS_DIR / "grader.json"
JUDGES = {"gsmrl": is_equal, "math-verify": math_verify_alone}
POISON_JUDGES = {**JUDGES, "math-verify, no limit": math_verify_without_limit}
MAX_CPU_SECONDS = 10
MAX_BYTES = 4 * 2**30


# --- GSM8K ------------------------------------------------------------------------------------


def measure_gsm8k() -> dict[str, int]:
    """How many ways to write a gold are right, and how many near misses."""
    golds = [problem.gold for split in ("train", "test") for problem in load_gsm8k(split)]
    numbers = [int(gold.replace(",", "")) for gold in golds]
    misses = [near_misses(number) for number in numbers]
    counts = {"golds": len(golds), "ways": 0, "ways right": 0}
    for gold, number in zip(golds, numbers, strict=True):
        ways = ways_to_write(number)
        counts["ways"] += len(ways)
        counts["ways right"] += sum(is_equal(way, gold) for way in ways)
    for name, chosen in (("one off", slice(2)), ("digits swapped", slice(2, None))):
        pairs = [(str(m), g) for g, found in zip(golds, misses, strict=True) for m in found[chosen]]
        counts[name] = len(pairs)
        counts[f"{name}, right"] = sum(is_equal(answer, gold) for answer, gold in pairs)
    return counts


# --- beside math-verify -----------------------------------------------------------------------


def corpora() -> dict[str, list[Pair]]:
    rng = random.Random(0)
    # In LaTeX an exponent of two signs has braces: math-verify reads no other.
    drawn = [
        Pair(p.answer.replace("^-1", "^{-1}"), p.gold.replace("^-1", "^{-1}"), p.is_right)
        for p in comparable_pairs(1200)
    ]
    readable = [p for p in drawn if parse_answer(p.answer) and parse_answer(p.gold)]
    return {
        "numbers": [random_number_pair(rng) for _ in range(2000)],
        "forms": FORMS,
        "traps": TRAPS,
        "expressions": EXPRESSIONS,
        "drawn expressions": readable[:1000],
        "refused knowingly": REFUSED,
    }


def summarize(pairs: list[Pair], verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Errors of both kinds, and times in milliseconds."""
    verdicts = list(verdicts)
    right = [v.is_right for v in verdicts]
    ms = sorted(1000 * v.seconds for v in verdicts)
    return {
        "false positives": sum(r > p.is_right for r, p in zip(right, pairs, strict=True)),
        "false negatives": sum(r < p.is_right for r, p in zip(right, pairs, strict=True)),
        "median ms": round(ms[len(ms) // 2], 4),
        "max ms": round(ms[-1], 3),
        "total s": round(sum(ms) / 1000, 3),
    }


def compare(name: str, pairs: list[Pair]) -> tuple[dict, list[dict]]:
    """The row of a corpus, and the pairs of which the two judges say different things."""
    found = {}
    for judge, function in JUDGES.items():
        timed_verdicts(function, pairs[:2])  # tables that are filled at the first call
        found[judge] = timed_verdicts(function, pairs)
    differing = [
        {"corpus": name, **pair._asdict(), "gsmrl": ours.is_right, "math-verify": theirs.is_right}
        for pair, ours, theirs in zip(pairs, found["gsmrl"], found["math-verify"], strict=True)
        if ours.is_right != theirs.is_right
    ]
    summaries = {judge: summarize(pairs, verdicts) for judge, verdicts in found.items()}
    return {"corpus": name, "pairs": len(pairs), **summaries}, differing


def limit_cpu_time() -> None:
    """Make alarms, math-verify's own, count CPU seconds: not what else the machine does."""
    signal.SIGALRM = signal.SIGPROF
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)[0]


# --- poison -----------------------------------------------------------------------------------


def outcome(judge: Callable[[str, str], bool], answer: str, gold: str) -> dict:
    """What a judge says in a process of its own, or how that process ended."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=_judge, args=(sender, judge, answer, gold)
    )
    child.start()
    sender.close()
    try:
        said = receiver.recv()
    except EOFError:
        said = {"said": "killed", "seconds": None}
    child.join()
    if said["said"] == "killed":
        used_up = child.exitcode == -signal.SIGXCPU
        said["said"] = f"killed after {MAX_CPU_SECONDS} s" if used_up else "killed"
    return said


def _judge(sender: Connection, judge: Callable[[str, str], bool], answer: str, gold: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    started = time.process_time()
    try:
        said = "equal" if judge(answer, gold) else "not equal"
    except BaseException as error:
        said = f"raised {type(error).__name__}"
    sender.send({"said": said, "seconds": round(time.process_time() - started, 4)})


def measure_poison() -> list[dict]:
    """One row a poison: its first characters, its length, what each judge makes of it."""
    return [
        {
            "begins": poison[:16].encode("unicode_escape").decode(),
            "characters": len(poison),
            **{judge: outcome(function, poison, "18") for judge, function in POISON_JUDGES.items()},
        }
        for poison in POISON
    ]


def main() -> None:
    packages = ("math-verify", "sympy", "mpmath", "latex2sympy2_extended")
    limit_cpu_time()
    gsm8k, rows, differing = measure_gsm8k(), [], []
    for name, pairs in corpora().items():
        row, different = compare(name, pairs)
        rows.append(row)
        differing += different
    record = {
        "command": "python tools/measure_grader.py",
        "commit": git_commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "versions": {name: metadata.version(name) for name in packages},
        "plain answers a second": round(plain_rate(r1_zero_reward_fn)),
        "gsm8k": gsm8k,
        "comparison": rows,
        "differing": differing,
        "poison": measure_poison(),
    }
    write_json(OUT, record)


if __name__ == "__main__":
    main()
