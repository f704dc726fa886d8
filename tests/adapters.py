"""The names that the tests of CS336 assignment 5 call, so that those tests drop in beside this."""

from gsmrl_helpers.advantages import (
    compute_group_normalized_rewards as run_compute_group_normalized_rewards,
)
from gsmrl_helpers.benchmark_answers import parse_gsm8k_response as run_parse_gsm8k_response
from gsmrl_helpers.benchmark_answers import parse_mmlu_response as run_parse_mmlu_response
from gsmrl_helpers.dpo import compute_per_instance_dpo_loss as run_compute_per_instance_dpo_loss
from gsmrl_helpers.log_probs import get_response_log_probs as run_get_response_log_probs
from gsmrl_helpers.losses import (
    aggregate_loss_across_microbatch as run_aggregate_loss_across_microbatch,
)
from gsmrl_helpers.losses import compute_policy_gradient_loss as run_compute_policy_gradient_loss
from gsmrl_helpers.rewards import compute_rollout_rewards as run_compute_rollout_rewards
from gsmrl_helpers.sft_data import get_packed_sft_dataset as run_get_packed_sft_dataset
from gsmrl_helpers.sft_data import iterate_batches as run_iterate_batches
from gsmrl_helpers.tokenization import (
    tokenize_prompt_and_output as run_tokenize_prompt_and_output,
)
from gsmrl_helpers.train_step import grpo_train_step as run_grpo_train_step

__all__ = [
    "run_aggregate_loss_across_microbatch",
    "run_compute_group_normalized_rewards",
    "run_compute_per_instance_dpo_loss",
    "run_compute_policy_gradient_loss",
    "run_compute_rollout_rewards",
    "run_get_packed_sft_dataset",
    "run_get_response_log_probs",
    "run_grpo_train_step",
    "run_iterate_batches",
    "run_parse_gsm8k_response",
    "run_parse_mmlu_response",
    "run_tokenize_prompt_and_output",
]
