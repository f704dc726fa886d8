"""Grade a file of responses, one JSON row a line: `{"response": ..., "gold": ...}`.

These are the names that a run's saved rollouts have, so those files can be graded again, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gsmrl_helpers.grading import RewardFn
from gsmrl_helpers.problems import require_gold

MAX_BAD_LINES_SHOWN = 20


@dataclass
class GradeSummary:
    """What a file of responses came to.

    Attributes:
        n_right: in format, the answer right.
        n_wrong: in format, the answer not right.
        n_unformatted: not in format.
        total_reward: the sum of the rewards.
        bad_lines: line number, from 1, and what is wrong with it.
    """

    n_right: int = 0
    n_wrong: int = 0
    n_unformatted: int = 0
    total_reward: float = 0.0
    bad_lines: list[tuple[int, str]] = field(default_factory=list)

    @property
    def n_graded(self) -> int:
        return self.n_right + self.n_wrong + self.n_unformatted

    def add(self, rewards: dict[str, float]) -> None:
        self.total_reward += rewards["reward"]
        if rewards["answer_reward"]:
            self.n_right += 1
        elif rewards["format_reward"]:
            self.n_wrong += 1
        else:
            self.n_unformatted += 1

    def __str__(self) -> str:
        def share(n: int) -> str:
            return f"{n:>9,}  {n / max(self.n_graded, 1):7.2%}"

        mean = f"{self.total_reward / self.n_graded:.4f}" if self.n_graded else "none graded"
        return "\n".join(
            [
                f"graded             {share(self.n_graded)}",
                f"in format, right   {share(self.n_right)}",
                f"in format, wrong   {share(self.n_wrong)}",
                f"not in format      {share(self.n_unformatted)}",
                f"mean reward        {mean:>9}",
                f"bad lines          {len(self.bad_lines):>9,}",
            ]
        )


def read_line(line: bytes) -> dict[str, Any]:
    """The row of one line.

    Raises:
        ValueError: not a JSON object in UTF-8; `response` is not text; `gold` is not text, is
            blank, or holds `####`.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:  # of UTF-8, of JSON, or of a number with thousands of digits
        raise ValueError(f"not JSON in UTF-8: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object with response and gold, got a {type(row).__name__}")
    if missing := {"response", "gold"} - row.keys():
        raise ValueError(f"no {' and no '.join(sorted(missing))}")
    if not isinstance(row["response"], str):
        raise ValueError(f"the response must be text, got {type(row['response']).__name__}")
    require_gold(row["gold"])
    return row


def grade_lines(
    lines: Iterable[bytes], reward_fn: RewardFn, summary: GradeSummary
) -> Iterator[dict[str, Any]]:
    """Grade line by line into the summary; yield the rows of the good ones with their rewards."""
    for number, line in enumerate(lines, start=1):
        try:
            row = read_line(line)
        except ValueError as error:
            summary.bad_lines.append((number, str(error)))
            continue
        rewards = reward_fn(row["response"], row["gold"])
        summary.add(rewards)
        yield {**row, **rewards}


def grade_file(
    path: Path, reward_fn: RewardFn, out: Path | None = None, show_progress: bool = False
) -> GradeSummary:
    """Grade a file, and write its rows with their rewards to `out`.

    Raises:
        FileExistsError: `out` is there already; nothing is overwritten.
        OSError: the file can't be read.
    """
    from rich.console import Console
    from rich.progress import open as open_with_bar

    summary = GradeSummary()
    bar = {"console": Console(stderr=True), "disable": not show_progress}
    with open_with_bar(path, "rb", description="grading", transient=True, **bar) as lines:
        if out is None:
            for _ in grade_lines(lines, reward_fn, summary):
                pass
        else:
            _write_rows(lines, reward_fn, summary, out)
    return summary


def _write_rows(lines: BinaryIO, reward_fn: RewardFn, summary: GradeSummary, out: Path) -> None:
    with out.open("x", encoding="utf-8") as graded:
        for row in grade_lines(lines, reward_fn, summary):
            graded.write(json.dumps(row) + "\n")
