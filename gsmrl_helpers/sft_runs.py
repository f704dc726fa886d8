"""SFT of the pocket policy on worked solutions, recorded: which tokens count, what is imitated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.packing import Encoded, encode_example
from gsmrl_helpers.pocket_corpus import slip, worked
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.records import Row
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.sft import SFTConfig, mean_label_loss, train_sft
from gsmrl_helpers.sft_data import Example
from gsmrl_helpers.studies import ANSWERS, Study, record_studies
from gsmrl_helpers.world import load_policy, load_problems

N_EXAMPLES, N_HELD_OUT, N_ASKED = 192, 48, 128  # to learn from, to measure loss on, to answer
LEARNING_RATE, MAX_TOKENS = 3e-4, 512
EVALUATE_EVERY, N_SEEDS = 4, 4


STUDIES = {  # the share of examples with a mistake in them, and whether prompts count
    "response only": {"slip_share": 0.0, "train_on_prompt": False},
    "prompt too": {"slip_share": 0.0, "train_on_prompt": True},
    "with slips": {"slip_share": 0.4, "train_on_prompt": False},
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


def sft_config(seed: int, train_on_prompt: bool = False) -> SFTConfig:
    """The settings of a recorded run: one pass over 192 examples in 12 steps."""
    return SFTConfig(
        seed=seed,
        max_tokens=MAX_TOKENS,
        learning_rate=LEARNING_RATE,
        train_on_prompt=train_on_prompt,
    )


def run_sft(config: RunConfig, slip_share: float, train_on_prompt: bool) -> Iterator[Row]:
    """Fine-tune the untrained policy; a row a step, with evaluations every few steps.

    Yields:
        `loss`, `grad_norm` and so on; where it is evaluated also `prompt_loss` and `response_loss`
        on held-out solutions, and the share of right answers at temperature 1; at the first and
        the last step also the answers.
    """
    model, tokenizer = load_policy(config)
    model.eval()
    prompt, asked = config.prompt_object(), load_problems(config, "curve")[:N_ASKED]

    def encode(problems: Sequence[Problem], share: float = 0.0) -> list[Encoded]:
        return [
            encode_example(tokenizer, prompt.format(question), response)
            for question, response in write_examples(problems, config.seed, share)
        ]

    held_out = encode(load_problems(config, "dev")[:N_HELD_OUT])

    documents = encode(load_problems(config, "train")[:N_EXAMPLES], slip_share)
    settings = sft_config(config.seed, train_on_prompt)
    n_steps = settings.n_epochs * math.ceil(len(documents) / settings.batch_size)

    def evaluate(step: int) -> Row:
        rollouts = sample_rollouts(
            LocalEngine(model, tokenizer),
            prompt,
            asked,
            group_size=1,
            seed=derive_seed(config.seed, "sft curve"),
            temperature=config.sampling_temperature,
            top_p=config.sampling_top_p,
            max_tokens=config.sampling_max_tokens,
        )
        losses = mean_label_loss(model, held_out, MAX_TOKENS)
        return {
            "curve_mean_answer_reward": rollouts.answer_rewards.mean().item(),
            "curve_mean_format_reward": rollouts.format_rewards.mean().item(),
            **{f"{part}_loss": loss for part, loss in losses.items()},
            **({ANSWERS: rollouts.rows()} if step in (0, n_steps) else {}),
        }

    yield {"step": 0, **evaluate(0)}
    for made in train_sft(model, documents, settings):
        step = made["step"]
        yield {**made, **(evaluate(step) if step % EVALUATE_EVERY == 0 else {})}


def record_sft(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """All studies with four seeds each, less than a minute a run on one core.

    Raises:
        ValueError: another profile than pocket, whose data is not generated.
    """
    if profile != "pocket":
        raise ValueError(f"profile={profile!r}: the worked solutions are those of pocket problems")
    shared = sft_config(0).model_dump(exclude={"seed", "train_on_prompt"})
    studies = {
        name: Study({**settings, **shared}, partial(run_sft, **settings))
        for name, settings in STUDIES.items()
    }
    record_studies("sft", studies, N_SEEDS, profile, path, jobs, fresh)
