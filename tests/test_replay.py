"""The first steps of three recorded runs come out again as they are on record: two of them in
`make test`, all ten in `make test-full`."""

import pandas as pd
import pytest
import torch

from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.replay import (
    GRADES,
    N_STEPS,
    REPLAYED,
    RUN_KEYS,
    differences,
    read_replay,
    recorded_run,
    replay,
    replay_path,
    replay_rows,
    run_config,
    steps_of,
)

on_record = pytest.mark.skipif(
    not replay_path("pocket").is_file(), reason="no rollouts are on record to be replayed"
)


def test_stored_steps_come_out_as_they_were_and_others_do_not() -> None:
    config = experiment_config("smoke")
    steps = list(replay(config, 2))
    rows = pd.concat([replay_rows(step) for step in steps])
    for first, again in zip(steps, replay(config, 2, rows), strict=True):
        assert again.log_probs == first.log_probs
        assert not differences(again.metrics, first.metrics)
    other = config.model_copy(update={"learning_rate": 2 * config.learning_rate})
    *_, last = replay(other, 2, rows)
    assert differences(last.metrics, steps[1].metrics).keys() >= {"loss", "grad_norm"}
    with pytest.raises(ValueError, match="step 2 has 0 stored rollouts and needs 64"):
        list(replay(config, 2, rows[rows["step"] == 1]))


@pytest.fixture(params=REPLAYED, ids=lambda key: " ".join(map(str, key)))
def key(request: pytest.FixtureRequest) -> tuple[str, str, int]:
    return request.param


@pytest.fixture(params=[2, pytest.param(N_STEPS, marks=pytest.mark.full)])
def n_steps(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest):
    """As many threads as the recorded run had."""
    before = torch.get_num_threads()
    if "key" in request.fixturenames:
        run = recorded_run(request.getfixturevalue("key"), "pocket")
        torch.set_num_threads(run.manifest["machine"]["threads"])
    yield
    torch.set_num_threads(before)


def stored(key: tuple[str, str, int]) -> pd.DataFrame:
    table = read_replay()
    return table[(table[RUN_KEYS] == list(key)).all(axis=1)]


@on_record
def test_from_nothing_every_bit_is_the_same(key, n_steps) -> None:
    run = recorded_run(key, "pocket")
    there, here = run.manifest["machine"], torch.backends.cpu.get_cpu_capability()
    if there["cpu_capability"] != here:
        pytest.skip(f"recorded on {there['cpu_capability']}, this processor has {here}")
    metrics = steps_of(run)
    for step in replay(run_config(key, "pocket"), n_steps):
        assert not differences(step.metrics, metrics.loc[step.step])
        rows = stored(key).query(f"step == {step.step}").reset_index(drop=True)
        again = replay_rows(step)
        assert [list(ids) for ids in rows["token_ids"]] == again["token_ids"].tolist()
        assert (rows[GRADES] == again[GRADES]).all(axis=None)


@on_record
def test_on_the_stored_rollouts_the_numbers_are_the_same(key, n_steps) -> None:
    metrics = steps_of(recorded_run(key, "pocket"))
    rows = stored(key)
    assert set(rows["step"]) == set(range(1, N_STEPS + 1))
    for step in replay(run_config(key, "pocket"), n_steps, rows):
        for name in ("loss", "grad_norm"):
            assert step.metrics[name] == pytest.approx(metrics.loc[step.step, name], abs=1e-3)
        log_probs = rows[rows["step"] == step.step]["log_probs"]
        for again, recorded in zip(step.log_probs, log_probs, strict=True):
            assert again == pytest.approx(list(recorded), abs=1e-4)


@on_record
def test_another_learning_rate_is_another_run(key) -> None:
    """What is checked here can go red: twice the rate is seen within two steps."""
    config = run_config(key, "pocket")
    other = config.model_copy(update={"learning_rate": 2 * config.learning_rate})
    *_, last = replay(other, 2, stored(key))
    recorded = stored(key).query("step == 2")["log_probs"]
    gaps = [
        max(abs(a - b) for a, b in zip(again, there, strict=True))
        for again, there in zip(last.log_probs, recorded, strict=True)
    ]
    assert max(gaps) > 1e-3
