"""Answers under several prompts: sampled in chunks, kept, graded again as they are on record."""

import json
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import chunked_answers, prompt_rollouts
from gsmrl_helpers.engine import Completion
from gsmrl_helpers.pocket_problems import load_pocket_problems
from gsmrl_helpers.prompt_audit import category_table, with_category
from gsmrl_helpers.prompt_rollouts import (
    PromptSettings,
    in_chat_template,
    record_rollouts,
    sample_in_chunks,
)
from gsmrl_helpers.prompting import PROMPTS
from gsmrl_helpers.recordings import RECORDINGS, read_recording, recording_path
from gsmrl_helpers.reward_shaping import REWARD_FNS
from tests.tiny_sampler import make_tokenizer

ON_RECORD = [
    name
    for name, recording in RECORDINGS.items()
    if name.endswith("-rollouts") and recording_path(name, "pocket").is_file()
]
PROBLEMS = load_pocket_problems("test", 5)
TWO = [PROMPTS["question_only"], PROMPTS["r1_zero"]]
SETTINGS = PromptSettings(
    policy="none",
    dtype="float32",
    problems="pocket test",
    n_problems=5,
    prompts=("question_only", "r1_zero"),
    seed=0,
    max_tokens=8,
)


class SameAnswer:
    """Answers every prompt alike, and breaks down after a number of calls."""

    def __init__(self, text: str, calls: int = 100) -> None:
        self.text, self.calls_left, self.asked = text, calls, []

    def generate_completions(self, prompts, sampling_params, batch_size=None):
        if self.calls_left == 0:
            raise KeyboardInterrupt
        self.calls_left -= 1
        self.asked += prompts
        return [Completion(self.text, [1, 2, 3], "stop", i, 0) for i in range(len(prompts))]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prompt_rollouts, "CHUNK_SIZE", 2)
    monkeypatch.setattr(chunked_answers, "RUNS_DIR", tmp_path / "runs")


def test_broken_off_it_goes_on_where_it_was(tmp_path: Path) -> None:
    answer = f"</think> <answer> {PROBLEMS[1].gold} </answer>"
    with pytest.raises(KeyboardInterrupt):
        sample_in_chunks(SameAnswer(answer, calls=2), TWO, PROBLEMS, SETTINGS, tmp_path)
    engine = SameAnswer(answer)
    table = sample_in_chunks(engine, TWO, PROBLEMS, SETTINGS, tmp_path)
    assert engine.asked[0] == TWO[0].format(PROBLEMS[4].question) and len(engine.asked) == 6
    assert table["problem"].tolist() == [*range(5)] * 2
    assert table["prompt"].tolist() == ["question_only"] * 5 + ["r1_zero"] * 5
    assert table["gold"].tolist() == [problem.gold for problem in PROBLEMS] * 2
    assert table["format_reward"].tolist() == [0.0] * 5 + [1.0] * 5
    assert table["answer_reward"][6] == 1.0 and table["n_tokens"].eq(3).all()
    idle = SameAnswer(answer, calls=0)
    assert sample_in_chunks(idle, TWO, PROBLEMS, SETTINGS, tmp_path).equals(table)


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    sample_in_chunks(SameAnswer("?"), TWO, PROBLEMS, SETTINGS, tmp_path)
    other = SETTINGS.model_copy(update={"seed": 1})
    with pytest.raises(ValueError, match="--fresh"):
        sample_in_chunks(SameAnswer("?"), TWO, PROBLEMS, other, tmp_path)


def test_a_recording_names_the_grader_and_what_made_it(tmp_path: Path) -> None:
    path = tmp_path / "results" / "some-rollouts.parquet"
    record_rollouts(SameAnswer("old"), TWO, PROBLEMS, SETTINGS, "sum", path, fresh=False)
    record_rollouts(SameAnswer("new"), TWO, PROBLEMS, SETTINGS, "sum", path, fresh=False)
    assert set(pd.read_parquet(path)["response"]) == {"old"}
    record_rollouts(SameAnswer("new"), TWO, PROBLEMS, SETTINGS, "sum", path, fresh=True)
    table = pd.read_parquet(path)
    assert set(table["response"]) == {"new"}
    assert table["grader"].tolist() == ["question_only"] * 5 + ["r1_zero"] * 5
    run = json.loads(path.with_suffix(".manifest.json").read_text())["runs"][0]
    assert run["command"] == "gsmrl record some-rollouts" and run["policy_sha256"] == "sum"
    assert PromptSettings(**run["config"]) == SETTINGS and run["cpu_seconds"] >= 0


def test_a_chat_template_puts_the_prompt_into_the_user_s_turn() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    chat = in_chat_template(PROMPTS["question_only"], tokenizer)
    asked = chat.format("Half of {18}?")
    assert asked == (
        "<user>Half of {18}?\nPut the final answer inside \\boxed{}.</user><assistant>"
    )
    assert (chat.name, chat.reward_name) == ("question_only_chat", "question_only")


@pytest.mark.parametrize("name", ON_RECORD)
def test_what_is_on_record_is_graded_as_recorded(name: str) -> None:
    table = read_recording(name)
    graded = pd.DataFrame(
        REWARD_FNS[row.grader](row.response, row.gold) for row in table.itertuples()
    )
    for part in ("format_reward", "answer_reward"):
        assert graded[part].tolist() == table[part].tolist()
    counts = category_table(with_category(table)).groupby("prompt")["count"].sum()
    run = json.loads(recording_path(name, "pocket").with_suffix(".manifest.json").read_text())
    settings = PromptSettings(**run["runs"][0]["config"])
    assert counts.eq(settings.n_problems).all() and set(counts.index) == set(settings.prompts)
    assert not table.duplicated(["prompt", "problem"]).any()
    assert table["n_tokens"].max() <= settings.max_tokens
    assert not any(part in json.dumps(run) for part in ("/home", "/root", "/tmp", "/work"))


def test_the_pocket_answers_are_those_of_the_recorded_metrics() -> None:
    shares = read_recording("prompt-rollouts").groupby("prompt")["answer_reward"].mean()
    metrics = read_recording("prompts").query("metric == 'test_mean_answer_reward'")
    assert metrics.set_index("variant")["value"].to_dict() == shares.to_dict()
