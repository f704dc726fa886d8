"""Profiles, variants, overrides: what a run is, and what is refused."""

import shlex

import pytest

from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.config import make_config, profile_names, read_profile
from gsmrl_helpers.experiments import experiment_config, run_command
from gsmrl_helpers.vllm_config import VLLMConfig


def test_the_assignment_s_settings() -> None:
    config = experiment_config("on-policy", "two_gpu")
    assert config.n_grpo_steps == 200 and config.learning_rate == 1e-5
    assert (config.rollout_batch_size, config.group_size) == (256, 8)
    assert config.train_batch_size == 256 and config.gradient_accumulation_steps == 32
    assert config.sampling_temperature == 1.0 and config.sampling_max_tokens == 512
    assert config.max_grad_norm == 1.0 and config.adam_betas == (0.9, 0.95)
    assert config.weight_decay == 0 and config.validate_every == 10
    assert config.save_rollouts_every == 40
    assert config.splits.model_dump() == {"train": 6400, "curve": 1024, "dev": 1073, "test": 1319}
    assert (config.baseline, config.advantage_normalizer) == ("mean", "std")
    assert (config.loss_normalization, config.importance_reweighting_method) == ("sequence", "none")


def test_the_pocket_profile() -> None:
    config = make_config("pocket", seed=3)
    assert (config.n_grpo_steps, config.rollout_batch_size, config.group_size) == (100, 256, 8)
    assert config.sampling_max_tokens == 48 and config.prompts_per_step == 32
    assert config.splits.curve == 256 and config.splits.test == 1024 and config.validate_every == 10
    assert config.seed == 3 and config.prompt == "r1_zero"


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_variant_is_a_run_at_every_scale_that_has_its_problems(
    profile: str, experiment: str
) -> None:
    of_gsm8k = read_profile(profile)["problems"] == "gsm8k"
    for variant in EXPERIMENTS[experiment].variants:
        if of_gsm8k and EXPERIMENTS[experiment].pocket_only:  # GSM8K has no dial
            with pytest.raises(ValueError, match="needs the generated problems"):
                experiment_config(experiment, profile, variant)
        else:
            assert experiment_config(experiment, profile, variant).variant == variant


def test_overrides_win_and_splits_merge_size_by_size() -> None:
    config = experiment_config("smoke", overrides={"splits": {"test": 8}, "n_grpo_steps": 1})
    assert config.n_grpo_steps == 1
    assert config.splits.model_dump() == {"train": 6400, "curve": 32, "dev": 32, "test": 8}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"learning_rte": 1.0}, "learning_rte"),
        ({"splits": {"validation": 3}}, "splits.validation"),
        ({"baseline": "median"}, "baseline.*'mean' or 'none'.*median"),
        ({"rollout_batch_size": 250}, "rollout_batch_size=250 is not a multiple of"),
        ({"train_batch_size": 12}, "train_batch_size=12"),
        ({"splits": {"train": 10}}, "needs 32 problems"),
        ({"prompt": "r2"}, "r1_zero"),
        ({"reward": "by_vibes"}, "by_vibes"),
        ({"difficulty": None}, "difficulty"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"adam_betas": [0.9, 2.0]}, "adam_betas"),
        ({"seed": 3}, "seed cannot be overridden"),
        ({"splits": 5}, "splits=5 must name its parts"),
        ({"vllm": "python"}, "vllm='python' must name its parts"),
        ({"device": "mps"}, "device"),
        ({"baseline": "none"}, "advantage_normalizer='std' needs baseline='mean'"),
        ({"group_size": 1}, "group_size"),
        ({"importance_reweighting_method": "grpo"}, "needs a cliprange"),
        ({"loss_normalization": "constant"}, "needs normalization_constant"),
    ],
)
def test_what_is_no_run_is_refused_with_the_reason(overrides: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config("pocket", overrides=overrides)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"allowed: .*pocket, .*two_gpu"):
        make_config("laptop")
    with pytest.raises(ValueError, match="allowed: smoke, on-policy, learning-rate"):
        experiment_config("off_policy")
    with pytest.raises(ValueError, match="variant='fast'"):
        experiment_config("smoke", variant="fast")


def test_learning_rates_are_multiples_of_the_profile_s() -> None:
    for profile in profile_names():
        base = make_config(profile).learning_rate
        rates = [
            experiment_config("learning-rate", profile, variant).learning_rate / base
            for variant in EXPERIMENTS["learning-rate"].variants
        ]
        assert rates == pytest.approx([0.05, 0.3, 1, 3, 20])


def test_the_command_of_a_run_can_be_typed_again() -> None:
    command = run_command("smoke", "pocket", "standard", 3, {"prompt": "r1_zero", "x": [1, None]})
    assert shlex.split(command) == [
        *("gsmrl", "run", "smoke", "--profile", "pocket", "--variants", "standard"),
        *("--seeds", "3", "--set", 'prompt="r1_zero"', "--set", "x=[1, null]"),
    ]


def test_a_reward_is_replaced_by_name() -> None:
    config = make_config("pocket", overrides={"reward": "question_only"})
    assert config.prompt_object().name == "r1_zero"
    assert config.prompt_object().reward_fn("\\boxed{3}", "3")["reward"] == 1.0


@pytest.mark.parametrize(
    "words",
    [
        *[("--host", "0.0.0.0"), ("--host=0.0.0.0",), ("--ho=0.0.0.0",), ("--port", "80")],
        *[("--served_model_name=x",), ("--generation-config", "auto"), ("--seed=1",)],
        *[("--block-size", "32", "--model", "x"), ("--dtype=float16",), ("--host 0.0.0.0",)],
    ],
)
def test_extra_arguments_that_would_undo_the_server_s_own_are_refused(words):
    with pytest.raises(ValueError, match=r"extra_args may not have '--.*is set by.*is allowed but"):
        VLLMConfig(python="python", extra_args=words)


def test_other_extra_arguments_are_handed_on():
    words = ("--block-size", "32", "--model-impl=auto", "-tp", "2")
    assert VLLMConfig(python="python", extra_args=words).extra_args == words


def test_a_part_of_a_section_leaves_its_other_parts() -> None:
    whole = make_config("two_gpu").vllm
    changed = make_config("two_gpu", overrides={"vllm": {"port": 8000}}).vllm
    assert changed == whole.model_copy(update={"port": 8000})
    assert whole.device == "cuda:1" and whole.weight_sync == "nccl"


@pytest.mark.parametrize(
    "vllm", [{"sleep": False}, {"sleep": True, "weight_sync": "nccl"}, {"weight_sync": "nccl"}]
)
def test_trainer_and_server_share_a_gpu_only_in_turn(vllm: dict) -> None:
    assert make_config("one_gpu").vllm.sleep
    with pytest.raises(ValueError, match=r"share cuda:0.*vllm\.sleep=true"):
        make_config("one_gpu", overrides={"vllm": vllm})
    with pytest.raises(ValueError, match="share cuda:0"):
        make_config("two_gpu", overrides={"vllm": {"device": "cuda:0"}})
