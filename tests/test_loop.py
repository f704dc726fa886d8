"""The training loop on the pocket policy: what it writes, what it repeats, how it goes on."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gsmrl_helpers import experiment_config, get_response_log_probs, load_problems, train
from gsmrl_helpers.checkpoints import load_checkpoint
from gsmrl_helpers.loop import Trainer, batches_of, mean_of_known, score, update_policy
from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.records import METRICS, RunFolderError, read_manifest, read_rollouts, read_rows
from gsmrl_helpers.world import epoch_order, problems_of_step

TINY = {
    "n_grpo_steps": 3,
    "rollout_batch_size": 32,
    "train_batch_size": 32,
    "splits": {"train": 64, "curve": 8, "dev": 8, "test": 8},
    "validate_every": 2,
    "save_rollouts_every": 2,
    "threads": 1,  # another number of threads rounds differently
}


def tiny_config(**overrides: object):
    return experiment_config("smoke", overrides={**TINY, **overrides})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config(), tmp_path_factory.mktemp("runs") / "undisturbed")


def test_each_step_has_one_row_and_validation_where_due(finished: Path) -> None:
    rows = read_rows(finished / METRICS)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert [("curve_mean_reward" in row) for row in rows] == [True, False, True, True]
    for split in ("dev", "test"):
        assert [f"{split}_mean_reward" in row for row in rows] == [False, False, False, True]
    assert [("train_mean_reward" in row) for row in rows] == [False, True, True, True]
    assert read_manifest(finished)["status"] == "finished"


def test_on_fresh_rollouts_there_is_no_old_policy(finished: Path) -> None:
    for row in read_rows(finished / METRICS)[1:]:
        assert row["mean_ratio"] is None and row["clip_fraction"] is None
        assert row["kl_to_ref"] is None and row["grad_norm"] > 0
        assert 0.9 < row["changed_parameter_share"] <= 1


def test_rollouts_are_saved_where_due_and_agree_with_the_metrics(finished: Path) -> None:
    names = sorted(path.stem for path in (finished / "rollouts").iterdir())
    assert names == [
        *("curve-000000", "curve-000002", "curve-000003", "dev-000003"),
        *("test-000003", "train-000002", "train-000003"),
    ]
    rollouts, row = read_rollouts(finished, "train", 2), read_rows(finished / METRICS)[2]
    assert rollouts["reward"].mean() == row["train_mean_reward"]
    assert rollouts["token_ids"].map(len).mean() == row["train_response_length"]
    assert (rollouts["reward"] == rollouts["answer_reward"]).all()


def test_the_same_seed_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    again = train(tiny_config(), tmp_path / "again")
    assert (again / METRICS).read_bytes() == (finished / METRICS).read_bytes()
    other = train(experiment_config("smoke", seed=1, overrides=TINY), tmp_path / "other")
    assert (other / METRICS).read_bytes() != (finished / METRICS).read_bytes()


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_stopped_run_goes_on_to_the_same_end(
    finished: Path, tmp_path: Path, stopped_at: int
) -> None:
    class Stopped(Exception):
        pass

    def stop(row: dict) -> None:
        if row["step"] == stopped_at:
            raise Stopped

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(tiny_config(), run, stop)
    with (run / METRICS).open("a") as lines:
        lines.write('{"step": 9, "half a li')
    train(tiny_config(), run)
    assert (run / METRICS).read_bytes() == (finished / METRICS).read_bytes()
    ours, theirs = load_checkpoint(run), load_checkpoint(finished)
    assert all(torch.equal(ours["model"][name], theirs["model"][name]) for name in theirs["model"])


def test_a_finished_run_is_refused_and_stays_as_it_is(finished: Path) -> None:
    before = (finished / METRICS).read_bytes()
    with pytest.raises(RunFolderError, match="finished"):
        train(tiny_config(), finished)
    assert (finished / METRICS).read_bytes() == before


def test_the_first_reuse_of_rollouts_has_ratio_one_and_later_ones_move(tmp_path: Path) -> None:
    off_policy = tiny_config(
        n_grpo_steps=1,
        train_batch_size=8,
        gradient_accumulation_steps=1,
        importance_reweighting_method="grpo",
        cliprange=0.2,
    )
    row = read_rows(train(off_policy, tmp_path / "off") / METRICS)[1]
    assert row["mean_ratio"] == pytest.approx(1, abs=0.2) and row["mean_ratio"] != 1
    assert row["kl_to_old"] > 0 and row["clip_fraction"] is not None

    one_update = tiny_config(n_grpo_steps=1, importance_reweighting_method="grpo", cliprange=0.2)
    row = read_rows(train(one_update, tmp_path / "on") / METRICS)[1]
    assert row["mean_ratio"] == pytest.approx(1, abs=1e-5) and row["clip_fraction"] == 0


def test_a_kl_penalty_brings_a_reference_and_its_divergence(tmp_path: Path) -> None:
    row = read_rows(train(tiny_config(kl_coef=0.1), tmp_path / "kl") / METRICS)
    assert row[1]["kl_to_ref"] == pytest.approx(0, abs=1e-6) and row[3]["kl_to_ref"] > 0


def test_scores_are_the_policy_s_own_log_probs() -> None:
    trainer = Trainer.from_config(tiny_config())
    rollouts = trainer.sample(load_problems(trainer.config, "curve"), 2, "train", 1)
    scores = score(trainer, trainer.model, rollouts)
    prompt = trainer.tokenizer.encode(rollouts.prompts[3], add_special_tokens=False)
    ids = torch.tensor([[*prompt, *rollouts.completions[3].token_ids]])
    with torch.no_grad():
        alone = get_response_log_probs(trainer.model.eval(), ids[:, :-1], ids[:, 1:])["log_probs"]
    response = slice(len(prompt) - 1, ids.shape[1] - 1)
    torch.testing.assert_close(scores[3, response], alone[0, response], atol=1e-5, rtol=0)


def test_an_update_makes_rewarded_answers_more_likely() -> None:
    # a step small enough for its first order to decide
    trainer = Trainer.from_config(tiny_config(learning_rate=3e-5))
    rollouts = trainer.sample(load_problems(trainer.config, "train")[:16], 8, "train", 1)
    mask = torch.cat([batch["response_mask"] for batch in batches_of(trainer, rollouts)])
    before = score(trainer, trainer.model, rollouts)
    update_policy(trainer, rollouts)
    gain = ((score(trainer, trainer.model, rollouts) - before) * mask).sum(1) / mask.sum(1)
    assert gain[rollouts.rewards == 1].mean() > gain[rollouts.rewards == 0].mean()


def test_every_pass_over_the_training_split_takes_each_problem_once() -> None:
    config = tiny_config()
    train_split = load_problems(config, "train")
    steps_per_pass = len(train_split) // config.prompts_per_step
    first, second = (
        [p for s in range(steps_per_pass) for p in problems_of_step(config, train_split, start + s)]
        for start in (1, 1 + steps_per_pass)
    )
    assert sorted(p.question for p in first) == sorted(p.question for p in train_split)
    assert sorted(p.question for p in second) == sorted(p.question for p in train_split)
    assert first != second and epoch_order(0, 0, 64) == epoch_order(0, 0, 64)


def test_means_skip_what_is_unknown() -> None:
    assert mean_of_known([1.0, None, 3.0]) == 2.0 and mean_of_known([None]) is None


@pytest.mark.skipif(
    not os.environ.get("GSMRL_DATA") and not (DATA_DIR / "gsm8k" / "train.jsonl").is_file(),
    reason="GSM8K is neither where GSMRL_DATA says nor in data/gsm8k",
)
def test_gsm8k_splits_do_not_overlap() -> None:
    config = experiment_config("on-policy", "two_gpu")
    splits = {name: load_problems(config, name) for name in ("train", "curve", "dev", "test")}
    questions = {name: {p.question for p in problems} for name, problems in splits.items()}
    assert [len(questions[name]) for name in splits] == [6400, 1024, 1073, 1319]
    assert not questions["train"] & questions["dev"]
    assert questions["curve"] < questions["test"]
    assert not (questions["train"] | questions["dev"]) & questions["test"]
    with pytest.raises(ValueError, match="need 7474 problems, and gsm8k has 7473"):
        load_problems(
            experiment_config("on-policy", "two_gpu", overrides={"splits": {"train": 6401}}),
            "train",
        )


@pytest.fixture
def own_problems(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run on problems of one's own, 12 to train with and 6 to test on."""
    folder = tmp_path / "my_problems"
    folder.mkdir()
    for file, size in (("train", 12), ("test", 6)):
        rows = [
            {"question": f"{file} {i}: 1 + {i}?", "answer": f"It is {1 + i}.\n#### {1 + i}"}
            for i in range(size)
        ]
        (folder / f"{file}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    splits = {"train": 8, "curve": 2, "dev": 4, "test": 6}
    return {"problems": str(folder), "difficulty": None, "splits": splits}


def test_problems_of_one_s_own_are_two_files_in_a_folder(own_problems: dict[str, Any]) -> None:
    config = tiny_config(**own_problems)
    splits = {name: load_problems(config, name) for name in ("train", "curve", "dev", "test")}
    assert {name: len(problems) for name, problems in splits.items()} == own_problems["splits"]
    assert splits["train"][7].gold == "8" and splits["dev"][0].question.startswith("train 8:")
    assert splits["test"][:2] == splits["curve"]
    larger = tiny_config(**own_problems | {"splits": {"train": 9, "dev": 4}})
    with pytest.raises(ValueError, match=r"need 13 problems.*has 12 in its train file.*--set"):
        load_problems(larger, "train")
    with pytest.raises(FileNotFoundError, match=r"nowhere/train\.jsonl"):
        load_problems(tiny_config(**own_problems | {"problems": "data/nowhere"}), "train")


def test_a_word_that_names_no_problems_is_refused() -> None:
    with pytest.raises(ValueError, match=r"allowed: pocket, gsm8k, or the path of a folder"):
        tiny_config(problems="aime")


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(ValueError, match=r"data/no_policy.*no such folder"):
        train(tiny_config(policy="data/no_policy"), tmp_path)
