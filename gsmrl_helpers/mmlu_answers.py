"""What SmolLM2-135M-Instruct answers to questions of MMLU, on record: the texts, to be graded.

The questions themselves are not kept: a row has the subject, the question's number in its file, and
the letter that the parser reads in the answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel, ConfigDict
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.benchmark_answers import parse_mmlu_response
from gsmrl_helpers.benchmark_files import MmluExample, load_mmlu, mmlu_prompt
from gsmrl_helpers.chunked_answers import answer_in_chunks, chunks_folder, write_answers
from gsmrl_helpers.engine import LocalEngine, RolloutEngine
from gsmrl_helpers.gguf_policy import SMOLLM2_FILE, SMOLLM2_SHA256, find_smollm2, load_gguf_policy
from gsmrl_helpers.gsm8k import DATA_VARIABLE
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.threads import choose_threads
from gsmrl_helpers.tokenization import as_user_turn

SUBJECTS = (
    "abstract_algebra",
    "elementary_mathematics",
    "high_school_psychology",
    "world_religions",
)
FORMS = ("plain text", "chat template")
CHUNK_SIZE = 25  # questions answered at a time


class MmluNotFoundError(FileNotFoundError):
    """MMLU's files are not where the environment variable says."""


class MmluSettings(BaseModel):
    """Everything that decides the answers: greedy ones, so that there is no seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = SMOLLM2_FILE
    dtype: str = "float32"
    subjects: tuple[str, ...] = SUBJECTS
    n_per_subject: int = 100
    forms: tuple[str, ...] = FORMS
    max_tokens: int = 32
    stop: tuple[str, ...] = ("\nQuestion:",)


def mmlu_folder() -> Path:
    """The folder with `SUBJECT_test.csv`: supplement/mmlu/test below the one GSMRL_DATA names.

    Raises:
        MmluNotFoundError: the message says how to get the files.
    """
    folder = ROOT / os.environ.get(DATA_VARIABLE, "data") / "supplement" / "mmlu" / "test"
    if not folder.is_dir():
        raise MmluNotFoundError(
            f"{folder} is not there. Unpack the archive of MMLU (github.com/hendrycks/test) so "
            f"that {DATA_VARIABLE}/supplement/mmlu/test holds SUBJECT_test.csv"
        )
    return folder


def in_form(form: str, example: MmluExample, tokenizer: PreTrainedTokenizerBase) -> str:
    """The question as text to go on with, or as a user's turn of the chat template."""
    text = mmlu_prompt(example)
    return text if form == "plain text" else as_user_turn(text, tokenizer)


def answer_rows(
    engine: RolloutEngine,
    form: str,
    examples: Sequence[MmluExample],
    first: int,
    settings: MmluSettings,
) -> list[dict[str, Any]]:
    """One greedy answer to each question; these are numbered from `first` in their subject."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        include_stop_str_in_output=False,
        seed=0,  # greedy answers draw nothing
    )
    prompts = [in_form(form, example, engine.tokenizer) for example in examples]
    answers = engine.generate_completions(prompts, params)
    return [
        {
            "form": form,
            "subject": example["subject"],
            "question": first + offset,
            "gold": example["answer"],
            "response": answer.text,
            "n_tokens": len(answer.token_ids),
            "finish_reason": answer.finish_reason,
        }
        for offset, (example, answer) in enumerate(zip(examples, answers, strict=True))
    ]


def read_questions(subject: str) -> list[MmluExample]:
    """A subject's test questions, all of them or none.

    Raises:
        MmluNotFoundError: the file is not there.
        ValueError: it has broken rows.
    """
    examples, broken = load_mmlu(mmlu_folder() / f"{subject}_test.csv")
    if broken:
        raise ValueError(f"{subject}: {len(broken)} broken rows, the first {broken[0]}")
    return examples


def read_letters(
    table: pd.DataFrame, questions: Mapping[str, Sequence[MmluExample]]
) -> list[str | None]:
    """The letter that each recorded response gives; the parser needs the question's options."""
    return [
        parse_mmlu_response(questions[row.subject][row.question], row.response)
        for row in table.itertuples()
    ]


def record_smollm2_mmlu(profile: str, path: Path, jobs: int, fresh: bool) -> None:
    """SmolLM2-135M-Instruct on the first 100 questions of four subjects, in two forms.

    Raises:
        MmluNotFoundError: the questions are not there.
        ValueError: a file of them has broken rows.
    """
    torch.set_num_threads(choose_threads())
    settings, folder = MmluSettings(), chunks_folder(path, fresh)
    questions = {subject: read_questions(subject) for subject in settings.subjects}
    engine = LocalEngine(*load_gguf_policy(find_smollm2(), torch.float32))
    chunks = {}
    for form, subject in product(settings.forms, settings.subjects):
        asked = questions[subject][: settings.n_per_subject]
        for first in range(0, len(asked), CHUNK_SIZE):
            part = asked[first : first + CHUNK_SIZE]
            chunks[f"{form}-{subject}-{first:04d}"] = partial(
                answer_rows, engine, form, part, first, settings
            )
    table = answer_in_chunks(chunks, settings, folder)
    table["letter"] = read_letters(table, questions)
    write_answers(table, settings, SMOLLM2_SHA256, folder, path)
