"""Which engine a run samples with, and how far its probabilities are from the trainer's."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import Completion, LocalEngine, RolloutEngine
from gsmrl_helpers.vllm_server import VLLMServer
from gsmrl_helpers.world import policy_location

ENGINE_METRICS = {
    "engine_log_prob_difference_mean": "mean |log π_engine − log π_trainer| over tokens, in nats",
    "engine_log_prob_difference_max": "the largest of them",
    "identical_group_share": "share of groups whose answers are all the same",
}


def make_engine(
    config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> RolloutEngine:
    """The engine that the settings name, ready to sample; end it with its `close`."""
    if config.engine == "local":
        return LocalEngine(model, tokenizer)
    server = VLLMServer(policy_location(config), config.vllm, config.dtype)
    server.start()
    server.init_weight_sync(config.device)
    return server


def engine_metrics(
    completions: list[Completion], group_size: int, log_probs: Tensor, mask: Tensor
) -> dict[str, float]:
    """Compare an engine's log-probabilities of what it sampled with the trainer's.

    A gap means that the rollouts come from another policy than the one that is trained: by other
    kernels (about .01 nats in bfloat16, 1e-6 in float32), or by weights that did not arrive.

    Args:
        completions: B completions that have `log_probs`, groups side by side.
        group_size: G.
        log_probs: (B, T) the trainer's, of the batch's labels.
        mask: (B, T) bool, which labels are response tokens.

    Returns:
        The metrics of `ENGINE_METRICS`.
    """
    trainer = log_probs[mask].double().cpu()
    engine = torch.tensor([p for c in completions for p in c.log_probs], dtype=torch.float64)
    gap = (engine - trainer).abs()
    answers = [tuple(completion.token_ids) for completion in completions]
    groups = [answers[i : i + group_size] for i in range(0, len(answers), group_size)]
    identical = [len(set(group)) == 1 < len(group) for group in groups]
    return {
        "engine_log_prob_difference_mean": gap.mean().item(),
        "engine_log_prob_difference_max": gap.max().item(),
        "identical_group_share": sum(identical) / len(groups),
    }
