"""Grading: our grader beside math-verify, on the corpora of `tools/measure_grader.py`."""

from __future__ import annotations

from statistics import median

from benchmarks.timing import Contender, Report, Run, Scale, Value, interleave, spread
from gsmrl_helpers.grader_corpora import Pair, timed_verdicts
from tools.measure_grader import JUDGES, corpora

CORPORA = ("numbers", "forms", "expressions", "drawn expressions")
N_PAIRS = 200  # of each at most


def judge_contender(judge: str, pairs: list[Pair]) -> Contender:
    """A judge on a corpus, in seconds of the CPU; its tokens are the answers."""

    def run() -> Run:
        verdicts = timed_verdicts(JUDGES[judge], pairs)
        return Run(sum(verdict.seconds for verdict in verdicts), len(pairs))

    return run


def wrong(judge: str, pairs: list[Pair]) -> int:
    """How many answers a judge gets wrong."""
    verdicts = timed_verdicts(JUDGES[judge], pairs)
    return sum(v.is_right != p.is_right for v, p in zip(verdicts, pairs, strict=True))


def measure(scale: Scale) -> Report:
    """Microseconds an answer, and the answers judged wrongly, by corpus."""
    report = Report("Grading")
    rows: list[dict[str, Value]] = []
    found = corpora()
    for corpus in CORPORA:
        pairs = found[corpus][: 3 if scale.quick else N_PAIRS]
        runs = interleave({j: judge_contender(j, pairs) for j in JUDGES}, scale.repeats)
        times = {j: [1e6 * run.seconds / run.tokens for run in runs[j]] for j in JUDGES}
        rows.append(
            {
                "corpus": corpus,
                "answers": len(pairs),
                "ours, µs an answer": spread(times["gsmrl"]),
                "math-verify, µs an answer": spread(times["math-verify"]),
                "math-verify / ours": median(times["math-verify"]) / median(times["gsmrl"]),
                "ours, wrong": wrong("gsmrl", pairs),
                "math-verify, wrong": wrong("math-verify", pairs),
            }
        )
    report.tables = {"corpora": rows}
    return report
