"""Helpers of the course "GSM8K RL: a course you can execute".

The public names below are imported from their modules when they are first used, so that
`gsmrl --help` need not wait for torch.
"""

from importlib import import_module

_PUBLIC = {
    "advantages": ["compute_group_normalized_rewards"],
    "config": ["RunConfig", "make_config"],
    "engine": ["Completion", "LocalEngine", "RolloutEngine"],
    "experiments": ["experiment_config"],
    "grading": ["question_only_reward_fn", "r1_zero_reward_fn"],
    "gsm8k": ["import_gsm8k", "load_gsm8k"],
    "log_probs": ["get_response_log_probs"],
    "loop": ["train"],
    "losses": [
        "aggregate_loss_across_microbatch",
        "compute_policy_gradient_loss",
        "kl_estimate",
    ],
    "pocket_problems": ["load_pocket_problems"],
    "problems": ["Problem"],
    "prompting": ["Prompt", "get_prompt"],
    "reward_shaping": ["rlvr_reward", "shape_reward"],
    "rewards": ["compute_rollout_rewards", "pass_at_k"],
    "rl": [
        "dr_grpo_loss",
        "group_advantages",
        "grpo_loss",
        "kl_penalty_k3",
        "sequence_logprob",
        "sequence_logprobs",
    ],
    "sampling": ["SamplingParams", "derive_seed"],
    "tokenization": ["tokenize_prompt_and_output"],
    "train_step": ["grpo_train_step"],
    "vllm_config": ["VLLMConfig"],
    "vllm_server": ["VLLMServer"],
    "world": ["load_policy", "load_problems"],
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
