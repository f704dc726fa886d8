"""One answer to each problem under several prompts, on record: the texts, to be read and graded.

A recording is a parquet file with one row a rollout and a manifest beside it. Of a problem it holds
the index and the gold; the questions are in the data sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.chunked_answers import answer_in_chunks, chunks_folder, write_answers
from gsmrl_helpers.engine import LocalEngine, RolloutEngine
from gsmrl_helpers.engines import make_engine
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.gguf_policy import SMOLLM2_FILE, SMOLLM2_SHA256, find_smollm2, load_gguf_policy
from gsmrl_helpers.gsm8k import load_gsm8k
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import PROMPTS, Prompt
from gsmrl_helpers.records import policy_sha256
from gsmrl_helpers.rollouts import Rollouts, sample_rollouts
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.tokenization import as_user_turn
from gsmrl_helpers.world import load_policy, load_problems, policy_location

CHUNK_SIZE = 100  # problems answered at a time: what a GPU or a laptop has memory for


class PromptSettings(BaseModel):
    """Everything that decides the rollouts of a recording."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    dtype: str
    problems: str
    n_problems: int
    prompts: tuple[str, ...]
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int


def in_chat_template(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """The prompt as the user's turn of the conversation format that a chat model was trained on."""
    template = as_user_turn(prompt.template, tokenizer)
    stops = (prompt.stop, prompt.include_stop_str_in_output)
    return Prompt(f"{prompt.name}_chat", template, prompt.reward_name, *stops)


def sample_in_chunks(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    problems: Sequence[Problem],
    settings: PromptSettings,
    folder: Path,
) -> pd.DataFrame:
    """Answer every problem once under every prompt; each finished chunk is kept in `folder`.

    Broken off and started again it goes on: a rollout depends on seed and prompt, not on its chunk.

    Raises:
        ValueError: The folder holds rollouts of other settings.
    """

    def make(prompt: Prompt, start: int) -> list[dict[str, Any]]:
        rollouts = sample_with(engine, prompt, problems[start : start + CHUNK_SIZE], settings)
        return rollout_rows(rollouts, prompt.name, start)

    chunks = {
        f"{prompt.name}-{start:04d}": partial(make, prompt, start)
        for prompt, start in product(prompts, range(0, len(problems), CHUNK_SIZE))
    }
    return answer_in_chunks(chunks, settings, folder)


def sample_with(
    engine: RolloutEngine, prompt: Prompt, problems: Sequence[Problem], settings: PromptSettings
) -> Rollouts:
    """One graded answer to each problem, sampled as the settings say."""
    return sample_rollouts(
        engine,
        prompt,
        problems,
        group_size=1,
        seed=settings.seed,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
    )


def rollout_rows(rollouts: Rollouts, prompt_name: str, start: int) -> list[dict[str, Any]]:
    """One row a rollout, in the columns of the recording; problems are counted from `start`."""
    return [
        {
            "prompt": prompt_name,
            "problem": start + index,
            "gold": row["gold"],
            "response": row["response"],
            "n_tokens": len(row["token_ids"]),
            "finish_reason": row["finish_reason"],
            "format_reward": row["format_reward"],
            "answer_reward": row["answer_reward"],
        }
        for index, row in enumerate(rollouts.rows())
    ]


def record_rollouts(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    problems: Sequence[Problem],
    settings: PromptSettings,
    policy_sha: str,
    path: Path,
    fresh: bool,
) -> None:
    """Sample, and write the rollouts and the manifest of what made them."""
    folder = chunks_folder(path, fresh)
    table = sample_in_chunks(engine, prompts, problems, settings, folder)
    table.insert(1, "grader", table["prompt"].map({p.name: p.reward_name for p in prompts}))
    write_answers(table, settings, policy_sha, folder, path)


def record_prompt_rollouts(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """A profile's untrained policy on its test problems; the draws are those of `prompts`."""
    config = experiment_config("on-policy", profile)
    torch.set_num_threads(choose_threads(config.threads))
    problems = load_problems(config, "test")
    settings = PromptSettings(
        policy=config.policy,
        dtype=config.dtype,
        problems=f"{config.problems} test",
        n_problems=len(problems),
        prompts=tuple(PROMPTS),
        seed=derive_seed(config.seed, "test", 0),
        temperature=config.sampling_temperature,
        top_p=config.sampling_top_p,
        max_tokens=config.sampling_max_tokens,
    )
    sha = policy_sha256(policy_location(config))
    with closing(make_engine(config, *load_policy(config))) as engine:
        record_rollouts(engine, list(PROMPTS.values()), problems, settings, sha, path, fresh)


def record_smollm2_rollouts(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """SmolLM2-135M-Instruct on the first 200 test questions of GSM8K, the same at any scale."""
    torch.set_num_threads(choose_threads())
    model, tokenizer = load_gguf_policy(find_smollm2(), torch.bfloat16)
    chat = in_chat_template(PROMPTS["question_only"], tokenizer)
    prompts = {**PROMPTS, chat.name: chat}
    settings = PromptSettings(
        policy=SMOLLM2_FILE,
        dtype="bfloat16",
        problems="gsm8k test",
        n_problems=200,
        prompts=tuple(prompts),
        seed=0,
        max_tokens=512,
    )
    problems = load_gsm8k("test", settings.n_problems)
    engine = LocalEngine(model, tokenizer)
    record_rollouts(engine, list(prompts.values()), problems, settings, SMOLLM2_SHA256, path, fresh)
