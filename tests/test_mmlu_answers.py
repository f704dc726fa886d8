"""SmolLM2's answers to MMLU: how it is asked, what is kept, and what stands on record."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from gsmrl_helpers.benchmark_files import SAMPLES_DIR, load_mmlu
from gsmrl_helpers.engine import Completion
from gsmrl_helpers.mmlu_answers import (
    FORMS,
    SUBJECTS,
    MmluNotFoundError,
    MmluSettings,
    answer_rows,
    mmlu_folder,
    read_letters,
    read_questions,
)
from gsmrl_helpers.recordings import read_recording, recording_path
from tests.tiny_policy import make_tokenizer

EXAMPLES = load_mmlu(SAMPLES_DIR / "mmlu" / "test" / "everyday_arithmetic_test.csv")[0]


class SaysC:
    def __init__(self) -> None:
        self.tokenizer = make_tokenizer()
        self.tokenizer.chat_template = "<user>{{ messages[0]['content'] }}<assistant>"
        self.calls: list[SimpleNamespace] = []

    def generate_completions(self, prompts, sampling_params, batch_size=None):
        self.calls.append(SimpleNamespace(prompts=prompts, params=sampling_params))
        return [Completion("C", [5], "stop", i, 0) for i in range(len(prompts))]


@pytest.mark.parametrize("form", FORMS)
def test_a_question_is_asked_greedily_in_its_form(form: str) -> None:
    engine = SaysC()
    rows = answer_rows(engine, form, EXAMPLES[3:5], 3, MmluSettings())
    (call,) = engine.calls
    assert call.params.temperature == 0 and call.params.max_tokens == 32
    assert all(("<user>" in prompt) == (form == "chat template") for prompt in call.prompts)
    assert [row["question"] for row in rows] == [3, 4]
    assert [row["gold"] for row in rows] == [e["answer"] for e in EXAMPLES[3:5]]
    assert rows[0]["response"] == "C" and rows[0]["form"] == form


def test_without_the_files_the_error_says_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSMRL_DATA", str(tmp_path))
    with pytest.raises(MmluNotFoundError, match="SUBJECT_test"):
        mmlu_folder()


def test_the_record_has_every_question_once_in_each_form() -> None:
    table = read_recording("smollm2-mmlu")
    assert not table.duplicated(["form", "subject", "question"]).any()
    assert set(table["form"]) == set(FORMS) and set(table["subject"]) == set(SUBJECTS)
    assert (table.groupby(["form", "subject"]).size() == 100).all()
    manifest = json.loads(
        recording_path("smollm2-mmlu", "pocket").with_suffix(".manifest.json").read_text()
    )
    assert MmluSettings(**manifest["runs"][0]["config"]) == MmluSettings()


def test_its_questions_are_those_of_the_files() -> None:
    try:
        mmlu_folder()
    except MmluNotFoundError as error:
        pytest.skip(str(error))
    table = read_recording("smollm2-mmlu")
    questions = {subject: read_questions(subject) for subject in SUBJECTS}
    golds = [questions[row.subject][row.question]["answer"] for row in table.itertuples()]
    assert table["gold"].tolist() == golds
    known = table["letter"].astype(object).where(table["letter"].notna(), None)
    assert known.tolist() == read_letters(table, questions)


def test_a_letter_is_read_with_the_options_of_its_question() -> None:
    rows = [("everyday_arithmetic", 6, "One"), ("everyday_arithmetic", 5, "One")]
    table = pd.DataFrame(rows, columns=["subject", "question", "response"])
    assert read_letters(table, {"everyday_arithmetic": EXAMPLES}) == ["B", None]
