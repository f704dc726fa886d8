"""What is on record: complete, with manifests, and quoted rightly by the pages."""

import itertools
import json
from pathlib import Path

import pandas as pd
import pytest

from gsmrl_helpers import recordings
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.experiments import experiment_config, real_experiments
from gsmrl_helpers.paths import DATA_DIR, ROOT
from gsmrl_helpers.recordings import (
    RECORDINGS,
    markdown_table,
    names_to_record,
    processors,
    read_recording,
    record,
    record_evaluations,
    recording_path,
    runs_of,
)
from gsmrl_helpers.records import LONG_COLUMNS, policy_sha256
from gsmrl_helpers.run_jobs import plan_runs

RIGHT, IN_FORMAT = "mean_answer_reward", "mean_format_reward"
PROMPT_COLUMNS = {"right": f"dev_{RIGHT}", "in format": f"dev_{IN_FORMAT}"}
ON_RECORD = [
    name
    for name, recording in RECORDINGS.items()
    if recording.row == "metric" and recording_path(name, "pocket").is_file()
]


@pytest.mark.parametrize("name", ON_RECORD)
def test_a_recording_has_the_one_format_and_the_present_policy(name: str) -> None:
    table = read_recording(name)
    assert list(table.columns) == LONG_COLUMNS
    assert not table.duplicated(["variant", "seed", "step", "metric"]).any()
    path = recording_path(name, "pocket").with_suffix(".manifest.json")
    runs = json.loads(path.read_text())["runs"]
    assert runs and {run["status"] for run in runs} == {"finished"}
    assert {run["policy_sha256"] for run in runs} == {policy_sha256(DATA_DIR / "pocket_policy")}
    text = path.read_text()
    assert not any(part in text for part in ("/home", "/root", "/tmp", "/work"))


def test_how_to_run_says_how_many_runs_all_is_and_how_long_they_took(tmp_path: Path) -> None:
    seconds = {}
    for name in real_experiments("pocket"):
        path = recording_path(name, "pocket").with_suffix(".manifest.json")
        for run in json.loads(path.read_text())["runs"]:  # one that two experiments share, once
            seconds[json.dumps(run["config"]), run["started"]] = run["wall_seconds"]
    assert len(seconds) == len(plan_runs(["all"], "pocket", runs_dir=tmp_path))
    page = " ".join((ROOT / "book" / "how_to_run.md").read_text().split())
    hours = round(sum(seconds.values()) / 3600)
    assert f"`all` is {len(seconds)} runs. Those on record add up to {hours} hours" in page


@pytest.mark.parametrize("name", sorted(set(ON_RECORD) & set(EXPERIMENTS)))
def test_each_run_s_processor_is_told_under_the_name_that_the_recording_gives_it(name: str) -> None:
    rows = read_recording(name)[["variant", "seed"]].drop_duplicates()
    path = recording_path(name, "pocket").with_suffix(".manifest.json")
    runs = json.loads(path.read_text())["runs"]
    assert rows["seed"].tolist() == [run["config"]["seed"] for run in runs]
    told = processors(name)
    assert told.groupby("variant").sum().to_dict() == rows["variant"].value_counts().to_dict()
    of_kind = {run["machine"]["cpu_capability"] for run in runs}
    assert set(told.index.get_level_values("processor")) == of_kind


@pytest.mark.parametrize("name", sorted(set(ON_RECORD) & set(EXPERIMENTS)))
def test_the_recorded_settings_are_the_catalogue_s(name: str) -> None:
    path = recording_path(name, "pocket").with_suffix(".manifest.json")
    recorded = {
        settings(RunConfig(**run["config"])) for run in json.loads(path.read_text())["runs"]
    }
    wanted = {
        settings(experiment_config(name, variant=variant, seed=seed))
        for variant, seed in runs_of(name, "pocket")
    }
    assert recorded <= wanted
    if name == "learning-rate" and recorded < wanted:
        pytest.skip(f"of {len(wanted)} runs of {name}, {len(recorded)} are on record so far")
    assert recorded == wanted


def settings(config: RunConfig) -> str:
    """What a run does; shared by two experiments, it has two names."""
    return config.model_dump_json(exclude={"variant"})


def test_the_page_of_the_pocket_world_quotes_the_recordings() -> None:
    page = (DATA_DIR / "README.md").read_text()
    assert markdown_table(read_recording("prompts"), "prompt", PROMPT_COLUMNS) in page
    assert markdown_table(read_recording("difficulty"), "difficulty", PROMPT_COLUMNS) in page


def test_the_untrained_policy_is_as_good_as_the_book_needs() -> None:
    wide = read_recording("prompts").pivot(index="variant", columns="metric", values="value")
    right, in_format = wide[f"dev_{RIGHT}"], wide[f"dev_{IN_FORMAT}"]
    assert 0.03 <= right["r1_zero"] <= 0.15 and 0.30 <= in_format["r1_zero"] <= 0.80
    assert in_format["r1_zero_three_shot"] >= 0.85
    assert right["r1_zero_three_shot"] >= right["r1_zero"]
    assert in_format["question_only"] <= 0.30


def test_the_dial_moves_the_untrained_policy_smoothly() -> None:
    table = read_recording("difficulty")
    right = table[table["metric"] == f"dev_{RIGHT}"]["value"].tolist()
    standard_error = (0.15 * 0.85 / 1024) ** 0.5
    steps = [later - earlier for earlier, later in itertools.pairwise(right)]
    assert right[0] > right[-1]
    assert all(-0.1 < step < 2 * 2**0.5 * standard_error for step in steps)


def test_standard_grpo_lifts_the_policy_as_promised() -> None:
    table = read_recording("on-policy")
    final = table[(table["metric"] == f"test_{RIGHT}")].set_index("seed")["value"]
    start = (
        read_recording("prompts")
        .query(f"variant == 'r1_zero' and metric == 'test_{RIGHT}'")["value"]
        .item()
    )
    assert len(final) == 4 and final.min() >= 0.45 and final.mean() >= 0.55
    assert final.mean() >= 3 * start
    curve = table[table["metric"] == f"curve_{RIGHT}"]
    for _, seed in curve.groupby("seed"):
        by_step = seed.set_index("step")["value"]
        assert by_step[by_step.index.max()] >= 2 * by_step[0]


def test_one_learning_rate_is_too_low_one_works_one_collapses() -> None:
    table = read_recording("learning-rate")
    last = table[table["step"] > 90].groupby(["metric", "variant"])["value"].mean()
    right, in_format = last[f"train_{RIGHT}"], last[f"train_{IN_FORMAT}"]
    assert right["x0.05"] < 0.3 < 0.5 < right["x1"]
    assert right["x20"] < 0.1 and in_format["x20"] > 0.9
    assert last["train_response_length"]["x20"] < last["train_response_length"]["x1"]


def test_unknown_and_missing_recordings_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="allowed: prompts, difficulty, on-policy"):
        record("prompt")
    monkeypatch.setattr(recordings, "RESULTS_DIR", tmp_path)
    with pytest.raises(ValueError, match="gsmrl record prompts"):
        read_recording("prompts")


def test_an_evaluation_is_recorded_with_its_manifest(tmp_path: Path) -> None:
    config = experiment_config("smoke", overrides={"splits": {"dev": 8}})
    record_evaluations({"r1_zero": config}, ("dev",), "prompts", tmp_path / "prompts.parquet")
    table = pd.read_parquet(tmp_path / "prompts.parquet")
    assert set(table["variant"]) == {"r1_zero"} and set(table["step"]) == {0}
    manifest = json.loads((tmp_path / "prompts.manifest.json").read_text())
    assert manifest["runs"][0]["command"] == "gsmrl record prompts"
    assert manifest["wall_seconds"] > 0


def test_a_table_in_markdown() -> None:
    rows = [("a", 0, 0, "m", 0.5), ("b", 0, 0, "m", 0.25)]
    text = markdown_table(pd.DataFrame(rows, columns=LONG_COLUMNS), "prompt", {"right": "m"})
    assert text == "| prompt | right |\n| --- | --- |\n| a | 50.0 % |\n| b | 25.0 % |"


def test_all_is_every_recording_that_needs_nothing_more() -> None:
    every = names_to_record("all")
    assert set(RECORDINGS) - set(every) == {"smollm2-rollouts", "smollm2-mmlu"}
    assert every[:3] == ["prompts", "difficulty", "on-policy"]
    assert names_to_record("smollm2-rollouts") == ["smollm2-rollouts"]
