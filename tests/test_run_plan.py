"""Plans of runs: what fits where, how long a step takes, and the command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gsmrl_helpers.cli import app
from gsmrl_helpers.config import make_config
from gsmrl_helpers.model_shape import KNOWN_SHAPES
from gsmrl_helpers.run_plan import GB, RunPlan, plan_run
from gsmrl_helpers.step_time import Throughput, measure_throughput, step_time, training_flops
from tests.tiny_trainer import tiny_config

OLMO = KNOWN_SHAPES["allenai/OLMo-2-0425-1B"]


def plan_of(profile: str, **overrides: object) -> RunPlan:
    return plan_run(make_config(profile, overrides=overrides))


@pytest.mark.parametrize("profile", ["two_gpu", "rtx4080", "qwen_half_b", "one_gpu"])
def test_the_profiles_fit_their_gpus(profile: str) -> None:
    plan = plan_of(profile)
    assert plan.fits and all(device.fits for device in plan.devices)


def test_what_a_16_gb_card_cannot_hold() -> None:
    assert not plan_of("rtx4080", master_weights=True).fits
    assert plan_of("rtx4080", gradient_accumulation_steps=8).fits
    assert not plan_of("rtx4080", gradient_accumulation_steps=4).fits
    assert plan_of("rtx4080", scored_at_once=128).fits  # all rows: no logits beside them
    assert not plan_of("one_gpu", lora=None, dtype="bfloat16", master_weights=True).fits
    assert plan_of("rtx4080", lora={"rank": 16, "alpha": 32}, optimizer="adamw").fits


def test_a_server_s_share_of_its_gpu() -> None:
    trainer, server = plan_of("rtx4080").devices
    (parts,) = server.phases.values()
    weights = 2 * OLMO.n_parameters
    assert parts["KV cache"] == pytest.approx(0.85 * 16 * GB - weights - 1 * GB)
    n_rows = parts["KV cache"] / (131_072 * (384 + 512))
    assert f"of {n_rows:.0f} rows of 896 tokens" in server.note
    assert (trainer.device, server.device) == ("cuda:0", "cuda:1")


def test_a_server_s_verdict_names_its_share() -> None:
    server = plan_of("two_gpu").devices[1]
    assert server.verdict().startswith("cuda:1 samples: takes its share, 0.85 of 80 GB; keys and")
    too_small = plan_run(make_config("rtx4080"), gpu_memory=4 * GB).devices[1]
    assert not too_small.fits
    assert "of 3.4 GB: DOES NOT FIT" in too_small.verdict()
    # The parts add up to the share; a rounded sum does not make it too small.
    for percent in range(30, 96):
        vllm = make_config("two_gpu").vllm.model_copy(
            update={"gpu_memory_utilization": percent / 100}
        )
        config = make_config("two_gpu").model_copy(update={"vllm": vllm})
        assert plan_run(config, gpu_memory=141 * GB).devices[1].fits


def test_a_gpu_for_two_holds_them_in_turn() -> None:
    (device,) = plan_of("one_gpu").devices
    assert device.peak[0] == "sampling"
    assert device.phases["sampling"]["server"] == pytest.approx(8 * GB)
    assert device.phases["forward"]["server asleep"] == 1 * GB


def test_a_server_s_dtype_decides_its_weights_and_its_cache() -> None:
    in_float32 = plan_of("one_gpu")
    vllm = in_float32.config.vllm.model_copy(update={"dtype": "float16"})
    in_float16 = plan_run(in_float32.config.model_copy(update={"vllm": vllm}))
    room = 0.5 * 16 * GB - 1 * GB  # the server's share without its reserve
    for plan, e in ((in_float32, 4), (in_float16, 2)):
        n_rows = (room - e * OLMO.n_parameters) / (e * 65_536 * (384 + 512))
        assert f"keys and values of {n_rows:.0f} rows" in plan.devices[0].note
        assert plan.devices[0].phases["sampling"]["weights"] == pytest.approx(
            4 * (OLMO.n_parameters + OLMO.n_lora_parameters(16))  # the trainer's stay what they are
        )


def test_what_passes_through_the_host_s_memory() -> None:
    (line,) = [line for line in plan_of("one_gpu").lines() if line.startswith("host memory")]
    gb = 4 * OLMO.n_parameters / GB
    assert f"{gb:.3g} GB while a sync" in line and f"{2 * gb:.3g} GB in the temporary" in line
    assert line.endswith(f"; {gb:.3g} GB while the server sleeps")
    vllm = {"python": "python", "device": "cuda:1", "weight_sync": "reload"}
    (line,) = [s for s in plan_of("qwen_half_b", vllm=vllm).lines() if s.startswith("host")]
    # Tied: 494 million parameters, of which the file has the embedding's 136 million twice.
    assert f"{2 * (494_032_768 + 151_936 * 896) / GB:.3g} GB while a sync" in line
    assert "sleeps" not in line
    assert not any("host" in line for line in plan_of("two_gpu").lines())


def test_a_local_engine_s_cache_is_in_the_plan() -> None:
    plan = plan_of("pocket")
    (device,) = plan.devices
    rows = 256 * (plan.prompt_tokens + 48)
    assert device.phases["sampling"]["KV cache"] == rows * 2 * 4 * 128 * 4
    assert device.capacity is None and device.fits is None and plan.fits


def test_unknown_gpus_are_refused() -> None:
    config = make_config("pocket", overrides={"device": "cuda:0"})
    with pytest.raises(ValueError, match="profile='pocket' is for no GPU that is known"):
        plan_run(config)
    assert plan_run(config, gpu_memory=GB * 16).fits


def test_seconds_of_a_step_by_hand() -> None:
    config = make_config("rtx4080")
    speed = Throughput(sampling_tokens_per_second=1000, training_tokens_per_second=5000)
    time = step_time(config, speed, prompt_tokens=150, response_tokens=250)
    assert time.sampling == 128 * 250 / 1000
    assert time.training == 128 * 400 / 5000
    assert time.scoring == pytest.approx(time.training / 3)  # to compare the server's with
    one = 250 / 1000 + 400 / 5000 / 3
    assert time.validation == pytest.approx(512 * one)
    # Steps 0, 10, …, 100, and dev and test at the end.
    assert time.run == pytest.approx(100 * time.step + (11 * 512 + 1073 + 1319) * one)
    local = make_config("pocket")
    assert step_time(local, speed, 100, 30).scoring == 0


def test_flops_of_a_billion_parameters() -> None:
    flops = training_flops(OLMO, 1000, 1000)
    assert flops == 1000 * (6 * OLMO.n_matrix_parameters + 12 * 16 * 2048 * 500)


def test_a_short_measurement() -> None:
    config = tiny_config(rollout_batch_size=8, train_batch_size=8)
    speed, prompt_tokens, response_tokens = measure_throughput(config, 2)
    assert speed.sampling_tokens_per_second > 0 and speed.training_tokens_per_second > 0
    assert prompt_tokens > 10 and 1 <= response_tokens <= 12
    with pytest.raises(ValueError, match="n_problems=0"):
        measure_throughput(tiny_config(), 0)


def test_the_command() -> None:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["plan", *words])
        return result.exit_code, result.output

    speeds = ("--sampling-speed", "1000", "--training-speed", "5000")
    code, output = run("--profile", "rtx4080", *speeds)
    assert code == 0 and "fits" in output and "the whole run" in output
    code, output = run("--profile", "rtx4080", "--set", "master_weights=true")
    assert code == 1 and "DOES NOT FIT" in output
    code, output = run("--profile", "two_gpu", "--gpu", "B200")
    assert code == 0 and "of 180 GB" in output
    code, output = run("--profile", "rtx4080", "--gpu", "RTX 5090")
    assert code == 2 and "RTX 4080" in output
    code, output = run("--sampling-speed", "1000")
    assert code == 2 and "give both" in output


def test_a_trainer_on_the_cpu_beside_a_server_on_a_gpu() -> None:
    plan = plan_of("two_gpu", device="cpu")
    assert [device.device for device in plan.devices] == ["cpu", "cuda:1"]
    assert any("On a CPU, OLMo-2 takes less" in line for line in plan.lines())


def test_advice_names_only_what_is_not_done_yet() -> None:
    (advice,) = (
        line for line in plan_of("rtx4080", master_weights=True).lines() if "To need less" in line
    )
    assert "master_weights=false" in advice and "lora" in advice
    assert "checkpointing" not in advice and "adamw_8bit" not in advice
