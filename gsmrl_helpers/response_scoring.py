"""Log-probabilities and entropies of response tokens, by the cheapest way that a model allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Olmo2ForCausalLM, PreTrainedModel, Qwen2ForCausalLM

from gsmrl_helpers.chunked_log_probs import chunked_label_log_probs
from gsmrl_helpers.linear_head import linear_head_log_probs
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.olmo2_decoding import positions_are_absolute
from gsmrl_helpers.olmo2_tree import tree_hidden_states
from gsmrl_helpers.prompt_tree import are_one_stretch, build_prompt_tree

# Their logits are the head's, of the body's last hidden states, and nothing is done to them.
LINEAR_HEADS = (LlamaForCausalLM, Olmo2ForCausalLM, Qwen2ForCausalLM)
# Logits held at a time. A CPU's caches like them few; a GPU wants few launches of large kernels.
LOGITS_AT_ONCE = {"cpu": 2**23, "cuda": 2**27}


def score_responses(
    model: nn.Module, input_ids: Tensor, labels: Tensor, response_mask: Tensor
) -> dict[str, Tensor]:
    """What `get_response_log_probs` says of the response tokens, for less work.

    Logits are computed for response tokens only, a chunk at a time, and never all held. On a CPU,
    OLMo-2 processes what rows have in common once (`prompt_tree`). Models with another kind of head
    are asked for all their logits.

    Args:
        model, input_ids, labels: see `get_response_log_probs`.
        response_mask: (B, T) bool, the response tokens of each row. Prompts are shared only where
            these are one stretch in every row.

    Returns:
        `log_probs` and `token_entropy` (nats), (B, T). What stands at masked positions has no
        meaning, and may have no gradient.

    Raises:
        ValueError: a mask that is not bool, or shapes that differ.
    """
    check_batch(input_ids, labels, response_mask)
    if type(model) not in LINEAR_HEADS or not response_mask.any():
        return get_response_log_probs(model, input_ids, labels, return_token_entropy=True)
    hidden_states = response_hidden_states(model, input_ids, response_mask)
    scored = score_with_head(model.lm_head, hidden_states, labels[response_mask])
    return {
        name: values.new_zeros(labels.shape).masked_scatter(response_mask, values)
        for name, values in scored.items()
    }


def check_batch(input_ids: Tensor, labels: Tensor, response_mask: Tensor) -> None:
    """Refuse a mask of another kind, and ids, labels and mask of different shapes."""
    if response_mask.dtype != torch.bool:
        raise ValueError(f"response_mask must be bool: got {response_mask.dtype}; use mask.bool()")
    shapes = {tuple(tensor.shape) for tensor in (input_ids, labels, response_mask)}
    if len(shapes) > 1 or input_ids.dim() != 2:
        raise ValueError(
            f"input_ids {tuple(input_ids.shape)}, labels {tuple(labels.shape)} and response_mask "
            f"{tuple(response_mask.shape)} must all be (B, T), as tokenize_prompt_and_output "
            "returns them"
        )


def response_hidden_states(model: PreTrainedModel, input_ids: Tensor, mask: Tensor) -> Tensor:
    """(M, D) hidden states from which the M tokens under the mask are predicted, row by row."""
    # A module in training mode may drop out or checkpoint its activations; the tree does neither.
    in_training = any(module.training for module in model.modules())
    if can_share_prompts(model) and not in_training and are_one_stretch(mask).all():
        tree = build_prompt_tree(input_ids, mask)
        return tree_hidden_states(model, tree)[tree.predictors]
    return model.model(input_ids, use_cache=False).last_hidden_state[mask]


def can_share_prompts(model: nn.Module) -> bool:
    """Whether rows with one prompt can go through the model together, as a tree.

    On a GPU, rows are processed whole: small products cost it a launch each, and a fused kernel for
    attention knows no tree.
    """
    return (
        type(model) is Olmo2ForCausalLM
        and positions_are_absolute(model)
        and model.device.type == "cpu"
    )


def score_with_head(head: nn.Module, hidden_states: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """`log_probs` and `token_entropy`, (M,), of labels (M,) after hidden states (M, D)."""
    vocabulary = head.out_features
    # other accelerators are taken for CUDA's like
    at_once = LOGITS_AT_ONCE.get(hidden_states.device.type) or LOGITS_AT_ONCE["cuda"]
    chunk_size = max(1, at_once // vocabulary)
    if type(head) is nn.Linear and head.bias is None:
        return linear_head_log_probs(hidden_states, head.weight, labels, chunk_size)
    # A head with an adapter, say: automatic differentiation knows its parts.
    return chunked_label_log_probs(hidden_states, head, labels, chunk_size, True)
