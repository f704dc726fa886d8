"""The pre-flight check before any run: is there something to learn, by whom, and what does it cost?

Policy gradients reinforce what the policy already does now and then. No size of model promises
that it does; so the share of right answers, the groups without signal and the checker are measured
on the problems of the run, before the run, and the rule for stopping is written down first.
"""

from __future__ import annotations

import html
import math
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd
import torch
from rich.console import Group
from rich.text import Text

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.diagnostics import Findings, check_first_step
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.preflight_measures import (
    Shares,
    Speed,
    measure_shares,
    measure_speed,
    n_validations,
    predict_run_seconds,
    sample_checker,
    sample_steps,
    timed,
)
from gsmrl_helpers.rollouts import join_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.tables import as_html, as_rich
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.world import epoch_order, load_problems

Verdict = Literal[
    "go", "easier problems", "harder problems", "SFT warm-up first", "repair the loop first"
]


@dataclass(frozen=True)
class StopRule:
    """When not to start, and when to stop. Every number is a dial; none is a law.

    Attributes:
        min_format_share: the checker reads an answer only in its format. At .05 a third of the
            groups of 8 hold one that it can read, at .01 one in 13. What is missing below is a
            manner, and some demonstrations teach it sooner than chance does: SFT warm-up.
        min_right_share: at .01 one group of 8 in 13 holds a right answer, two or three in a step
            of 32 groups. Below, almost all rewards are zero. Near zero is normal at a start.
        max_right_share: at .9, even if all problems were alike, 43 % of the groups of 8 would have
            no signal, and at most a tenth is left to gain.
        max_no_signal_share: problems that are always or never solved leave nothing to compare
            even where half of all answers are right.
        pilot_steps: what a first run may cost before it must have shown something.
    """

    min_format_share: float = 0.05
    min_right_share: float = 0.01
    max_right_share: float = 0.9
    max_no_signal_share: float = 0.9
    pilot_steps: int = 50


STOP_RULE = StopRule()


@dataclass(frozen=True)
class Preflight:
    """The whole check; in a notebook and in a terminal it shows itself.

    Attributes:
        config: the settings of the run.
        n_problems: training problems that were asked, `config.group_size` times each.
        shares, speed: what was measured.
        run_seconds: the predicted time of the run.
        findings: the checks of `diagnostics.check_first_step`.
        checker_sample: answers for a person to read: kind, n_of_kind, question, gold, response.
        verdict: "go", or what to do first.
        reasons: of the verdict, in words.
        pilot: the budget of the pilot and its stop rule, in words.
    """

    config: RunConfig
    n_problems: int
    shares: Shares
    speed: Speed
    run_seconds: float
    findings: Findings
    checker_sample: pd.DataFrame = field(repr=False)
    verdict: Verdict
    reasons: tuple[str, ...]
    pilot: str

    def table(self) -> pd.DataFrame:
        """What was measured, in words."""
        config, shares, speed = self.config, self.shares, self.speed
        n_answers = self.n_problems * config.group_size
        rows = [
            (
                "right",
                f"{shares.right:.1%}",
                f"of {n_answers} answers to {self.n_problems} problems",
            ),
            ("in format", f"{shares.in_format:.1%}", "the checker reads no other"),
            ("cut off", f"{shares.truncated:.1%}", f"at {config.sampling_max_tokens} tokens"),
            (
                "groups without signal",
                f"{shares.no_signal:.1%}",
                f"predicted from each problem's share of right answers, "
                f"{shares.no_signal_predicted:.1%} (an upper guess); if all problems were alike, "
                f"{shares.no_signal_if_alike:.1%} (a lower one)",
            ),
            ("sampling", f"{speed.tokens_per_second:,.0f} tokens/s", "groups of a step together"),
            ("one train step", in_words(speed.train_step_seconds), "every response trained on"),
            (
                "the whole run",
                in_words(self.run_seconds),
                f"{config.n_grpo_steps} steps, {n_validations(config)} validations on "
                f"{config.splits.curve} problems, a test on {config.splits.test}; answers as long "
                "as now",
            ),
        ]
        return pd.DataFrame(rows, columns=["measure", "value", "note"])

    def sample_table(self, max_chars: int = 400) -> pd.DataFrame:
        """The checker sample as texts, long ones cut in the middle: answers end in their number."""
        sample = self.checker_sample
        kinds = [f"{kind} ({n})" for kind, n in zip(sample.kind, sample.n_of_kind, strict=True)]
        texts = sample[["question", "gold", "response"]].map(lambda t: cut_middle(t, max_chars))
        return texts.assign(kind=kinds)[["kind", "question", "gold", "response"]]

    def __rich__(self) -> Group:
        style = "bold green" if self.verdict == "go" else "bold red"
        return Group(
            as_rich(self.table(), "Pre-flight"),
            self.findings,
            as_rich(self.sample_table(), "For a person to read: does the checker judge as you do?"),
            Text(f"Verdict: {self.verdict}", style=style),
            *(Text(reason) for reason in self.reasons),
            Text(self.pilot),
        )

    def _repr_html_(self) -> str:
        said = "<br>".join(html.escape(text) for text in (*self.reasons, self.pilot))
        tables = (self.table(), self.findings.table(), self.sample_table())
        return f"<p><b>Verdict: {self.verdict}</b><br>{said}</p>" + "".join(map(as_html, tables))


def preflight(
    config: RunConfig,
    n_problems: int = 64,
    *,
    rule: StopRule = STOP_RULE,
    n_examples: int = 3,
    trainer: Trainer | None = None,
) -> Preflight:
    """Measure a run's policy, problems, checker and speed before the run, and say whether to go.

    Args:
        config: the run's settings.
        n_problems: how many training problems to ask, the first that the run would take.
        rule: the dials of the verdict.
        n_examples: answers of each kind to read.
        trainer: of these settings; None loads the policy. Its parameters and optimizer stay as
            they are.

    Raises:
        ValueError: more problems than the training split has, or a trainer of other settings.
        FloatingPointError: the policy's logits or gradients are not finite.
    """
    if not 1 <= n_problems <= config.splits.train:
        raise ValueError(f"n_problems={n_problems}: give 1 to splits.train={config.splits.train}")
    if trainer is not None and trainer.config != config:
        raise ValueError("the trainer has other settings than config: make it from this config")
    torch.set_num_threads(choose_threads(config.threads))  # as the run itself will
    if trainer is None:
        trainer = Trainer.from_config(config)
        with closing(trainer.engine):
            return preflight(config, n_problems, rule=rule, n_examples=n_examples, trainer=trainer)
    train = load_problems(config, "train")
    problems = [train[at] for at in epoch_order(config.seed, 0, len(train))[:n_problems]]
    trainer.sample(problems[:1], 1, "preflight warm-up", 0)  # the first call is slower than others

    batches, seconds = timed(lambda: sample_steps(trainer, problems))
    rollouts = join_rollouts(batches)
    shares = measure_shares(config, rollouts)
    findings = check_first_step(trainer, batches[0])
    speed = measure_speed(trainer, problems, batches, seconds)
    run_seconds = predict_run_seconds(config, speed)
    verdict, reasons = judge(shares, findings, rule)
    return Preflight(
        config=config,
        n_problems=n_problems,
        shares=shares,
        speed=speed,
        run_seconds=run_seconds,
        findings=findings,
        checker_sample=sample_checker(rollouts, n_examples, derive_seed(config.seed, "checker")),
        verdict=verdict,
        reasons=reasons,
        pilot=pilot_in_words(config, shares, run_seconds, rule),
    )


def judge(
    shares: Shares, findings: Findings, rule: StopRule = STOP_RULE
) -> tuple[Verdict, tuple[str, ...]]:
    """The stop rule: the verdict and its reasons. What stands first outweighs what follows."""
    if not findings.ok:
        broken = (finding for finding in findings if not finding.ok)
        return "repair the loop first", tuple(f"Failed: {f.name} ({f.measured})." for f in broken)
    if shares.in_format < rule.min_format_share:
        return "SFT warm-up first", (
            f"{shares.in_format:.1%} of the answers are in the format that the checker reads, less "
            f"than {rule.min_format_share:.0%}: sampling alone hardly finds anything to reward.",
        )
    if shares.right > rule.max_right_share:
        return "harder problems", (
            f"{shares.right:.1%} of the answers are right, more than {rule.max_right_share:.0%}: "
            "most groups have nothing to compare, and little is left to gain.",
        )
    if shares.right < rule.min_right_share:
        return "easier problems", (
            f"{shares.right:.1%} of the answers are right, less than {rule.min_right_share:.0%}: "
            "almost all rewards are zero. If there are no easier problems: an SFT warm-up.",
        )
    if shares.no_signal > rule.max_no_signal_share:
        return ("easier problems" if shares.right < 0.5 else "harder problems"), (
            f"{shares.no_signal:.1%} of the groups have no signal, more than "
            f"{rule.max_no_signal_share:.0%}: look for problems that are solved now and then.",
        )
    return "go", (
        f"{shares.right:.1%} right, {shares.in_format:.1%} in format, and "
        f"{1 - shares.no_signal:.1%} of the groups have a signal.",
    )


def pilot_in_words(
    config: RunConfig, shares: Shares, run_seconds: float, rule: StopRule = STOP_RULE
) -> str:
    """The pilot's budget, and how much must have happened by its end for the run to go on."""
    n_steps, n_problems = min(rule.pilot_steps, config.n_grpo_steps), config.splits.curve
    p = min(max(shares.right, 1 / n_problems), 1 - 1 / n_problems)  # 0 of n is no certainty
    margin = 2 * math.sqrt(2 * p * (1 - p) / n_problems)
    seconds = run_seconds * n_steps / max(config.n_grpo_steps, 1)
    return (
        f"Pilot: the first {n_steps} of {config.n_grpo_steps} steps, about {in_words(seconds)}. "
        f"Stop there unless validation accuracy has risen by more than {100 * margin:.1f} points, "
        f"two standard errors of a difference on {n_problems} problems: a flat curve by itself "
        "promises no later rise."
    )


def in_words(seconds: float) -> str:
    """A duration with two units at most, such as 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def cut_middle(text: str, max_chars: int) -> str:
    """The text, or its first and last parts around "…" where it is longer than `max_chars`."""
    half = max_chars // 2
    return text if len(text) <= max_chars else f"{text[:half]} … {text[-half:]}"
