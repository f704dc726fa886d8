"""SFT of the pocket policy on worked solutions, recorded: which tokens count, what is imitated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.packing import Encoded, encode_example
from gsmrl_helpers.pocket_corpus import slip, worked
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.records import LONG_COLUMNS, make_manifest, policy_sha256, write_results
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.sft import SFTConfig, mean_label_loss, train_sft
from gsmrl_helpers.sft_data import Example
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.world import load_policy, load_problems, policy_location

N_EXAMPLES, N_HELD_OUT, N_ASKED = 192, 48, 128  # to learn from, to measure loss on, to answer
LEARNING_RATE, MAX_TOKENS = 3e-4, 512
EVALUATE_EVERY, N_SEEDS = 4, 4


class Study(NamedTuple):
    """One way to fine-tune: the share of examples with a mistake, and whether prompts count."""

    slip_share: float = 0.0
    train_on_prompt: bool = False


STUDIES = {
    "response only": Study(),
    "prompt too": Study(train_on_prompt=True),
    "with slips": Study(slip_share=0.4),
}


def write_examples(
    problems: Sequence[Problem], seed: int, slip_share: float = 0.0
) -> list[Example]:
    """A worked solution of each problem in the form of r1_zero's answers.

    Args:
        problems: pocket problems.
        seed: of the wordings and the slips.
        slip_share: chance of a solution with one mistake in it, which mostly ends in a wrong
            answer, in place of a right one.

    Raises:
        ValueError: a share outside [0, 1].
    """
    if not 0 <= slip_share <= 1:
        raise ValueError(f"slip_share={slip_share} is outside [0, 1]")
    rng = random.Random(derive_seed(seed, "worked solutions"))
    turns: list[Callable[[random.Random, Problem], str]] = rng.choices(
        [worked, slip], [1 - slip_share, slip_share], k=len(problems)
    )
    return [
        Example(problem.question, turn(rng, problem))
        for problem, turn in zip(problems, turns, strict=True)
    ]


def sft_config(study: Study, seed: int) -> SFTConfig:
    """The settings of a recorded run: one pass over 192 examples in 12 steps."""
    return SFTConfig(
        seed=seed,
        max_tokens=MAX_TOKENS,
        learning_rate=LEARNING_RATE,
        train_on_prompt=study.train_on_prompt,
    )


class Bench:
    """What the runs of one seed share: data, held-out data, problems to answer, the template."""

    def __init__(self, config: RunConfig, seed: int) -> None:
        self.config, self.seed, self.prompt = config, seed, config.prompt_object()
        self.asked = load_problems(config, "curve")[:N_ASKED]
        self.train = load_problems(config, "train")[:N_EXAMPLES]
        self.held_out = write_examples(load_problems(config, "dev")[:N_HELD_OUT], seed)

    def encode(self, tokenizer: object, examples: Sequence[Example]) -> list[Encoded]:
        """The examples in the prompt's template."""
        return [
            encode_example(tokenizer, self.prompt.format(question), response)
            for question, response in examples
        ]

    def evaluate(self, model: torch.nn.Module, tokenizer: object) -> dict[str, float]:
        """Held-out loss of both parts, and the share of right answers at temperature 1."""
        rollouts = sample_rollouts(
            LocalEngine(model, tokenizer),
            self.prompt,
            self.asked,
            group_size=1,
            seed=derive_seed(self.seed, "sft curve"),
            temperature=self.config.sampling_temperature,
            top_p=self.config.sampling_top_p,
            max_tokens=self.config.sampling_max_tokens,
        )
        losses = mean_label_loss(model, self.encode(tokenizer, self.held_out), MAX_TOKENS)
        return {
            "curve_mean_answer_reward": rollouts.answer_rewards.mean().item(),
            "curve_mean_format_reward": rollouts.format_rewards.mean().item(),
            **{f"{part}_loss": loss for part, loss in losses.items()},
        }


def run_study(study: Study, bench: Bench) -> Iterator[tuple[int, dict[str, float]]]:
    """Fine-tune the untrained policy; metrics of every step, with evaluations every few steps."""
    model, tokenizer = load_policy(bench.config)
    model.eval()
    examples = write_examples(bench.train, bench.seed, study.slip_share)
    yield 0, bench.evaluate(model, tokenizer)
    settings = sft_config(study, bench.seed)
    for made in train_sft(model, bench.encode(tokenizer, examples), settings):
        step = int(made.pop("step"))
        due = step % EVALUATE_EVERY == 0
        yield step, {**made, **(bench.evaluate(model, tokenizer) if due else {})}


def record_sft(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """All studies with four seeds each, one after another; about five minutes on one core.

    Raises:
        ValueError: another profile than pocket, whose data is not generated.
    """
    if profile != "pocket":
        raise ValueError(f"profile={profile!r}: the worked solutions are those of pocket problems")
    rows, manifests = [], []
    for seed in range(N_SEEDS):
        config = experiment_config("on-policy", profile, seed=seed)
        torch.set_num_threads(choose_threads(config.threads))
        bench = Bench(config, seed)
        for name, study in STUDIES.items():
            started = time.monotonic()
            for step, metrics in run_study(study, bench):
                rows += [(name, seed, step, *item) for item in metrics.items()]
            manifest = make_manifest(
                config, policy_sha256(policy_location(config)), "gsmrl record sft"
            )
            settings = {"variant": name, **study._asdict(), **sft_config(study, seed).model_dump()}
            seconds = round(time.monotonic() - started, 1)
            manifests.append(
                {**manifest, "config": settings, "status": "finished", "wall_seconds": seconds}
            )
    table = pd.DataFrame(rows, columns=LONG_COLUMNS).astype({"value": "float64"})
    write_results(table, path, {"runs": manifests})
