"""The adapters have the names, arguments and defaults that the assignment's own tests rely on."""

from __future__ import annotations

import inspect

import pytest

from tests import adapters

ADVANTAGE = {"baseline": "mean", "advantage_eps": 1e-6, "advantage_normalizer": "std"}
IMPORTANCE = {
    "importance_reweighting_method": "none",
    "old_log_probs": None,
    "cliprange": None,
}
NORMALIZATION = {"loss_normalization": "sequence", "normalization_constant": None}

SIGNATURES = {
    "tokenize_prompt_and_output": ("prompt_strs output_strs tokenizer", {}),
    "get_response_log_probs": ("model input_ids labels", {"return_token_entropy": False}),
    "compute_rollout_rewards": ("reward_fn rollout_responses repeated_ground_truths", {}),
    "compute_group_normalized_rewards": ("raw_rewards group_size", ADVANTAGE),
    "compute_policy_gradient_loss": (
        "raw_rewards_or_advantages policy_log_probs",
        {**IMPORTANCE, "response_mask": None},
    ),
    "aggregate_loss_across_microbatch": ("per_token_policy_gradient_loss mask", NORMALIZATION),
    "grpo_train_step": (
        "model tokenizer optimizer gradient_accumulation_steps max_grad_norm reward_fn "
        "repeated_prompts rollout_responses repeated_ground_truths group_size",
        {**ADVANTAGE, **IMPORTANCE, **NORMALIZATION},
    ),
    # of the supplement
    "get_packed_sft_dataset": ("tokenizer dataset_path seq_length shuffle", {}),
    "iterate_batches": ("dataset batch_size shuffle", {}),
    "parse_mmlu_response": ("mmlu_example model_output", {}),
    "parse_gsm8k_response": ("model_output", {}),
    "compute_per_instance_dpo_loss": (
        "lm lm_ref tokenizer beta prompt response_chosen response_rejected",
        {},
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_that_of_the_assignment(name: str) -> None:
    required, defaults = SIGNATURES[name]
    parameters = inspect.signature(getattr(adapters, f"run_{name}")).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD}
    assert list(positional) == [*required.split(), *defaults]
    assert {name: positional[name] for name in defaults} == defaults
    # What we add can only be given by name, and can be left out.
    added = [p for p in parameters if p.kind != p.POSITIONAL_OR_KEYWORD]
    assert all(p.kind == p.KEYWORD_ONLY and p.default is not p.empty for p in added)


def test_the_adapters_are_these() -> None:
    assert set(adapters.__all__) == {f"run_{name}" for name in SIGNATURES}
