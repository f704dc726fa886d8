"""Direct preference optimization: its loss, and a step of it on pairs of answers.

Rafailov et al., 2023, "Direct Preference Optimization: Your Language Model is Secretly a Reward
Model". The best policy of the KL-regularized objective E[r] − β KL(π || π_ref) is π_ref exp(r/β)/Z,
so that a policy stands for the reward β log(π/π_ref), up to a number per prompt. DPO fits that
reward to pairs by Bradley and Terry's model: no reward model, no sampling while it trains.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.options import require_number
from gsmrl_helpers.preferences import PreferencePair
from gsmrl_helpers.response_scoring import score_responses
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.sft_data import ALPACA_TEMPLATE, encode_text, fill_template
from gsmrl_helpers.tokenization import tokenize_prompt_and_output


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
) -> Tensor:
    """−log σ(β [log π/π_ref (chosen) − log π/π_ref (rejected)]) of each pair (equation 7).

    Finite, with a finite gradient, at margins of any size: no exponential overflows.

    Args:
        policy_chosen, policy_rejected: (B,) log-probabilities of whole responses, in nats, summed
            over their tokens, with gradient.
        ref_chosen, ref_rejected: (B,), the same under the frozen reference.
        beta: above 0; how much a log-ratio counts.

    Returns:
        (B,) losses in nats; log 2 where the policy is the reference.

    Raises:
        ValueError: shapes that differ, or a beta that is not above 0.
    """
    require_number("beta", beta, 0, above=True)
    given = (policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    if len({tuple(log_probs.shape) for log_probs in given}) > 1 or policy_chosen.dim() != 1:
        raise ValueError(
            f"log-probabilities of shapes {[tuple(log_probs.shape) for log_probs in given]}: give "
            "four of (B,), one sum for each response"
        )
    margin = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return -logsigmoid(beta * margin)


def pair_log_probs(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[PreferencePair]
) -> tuple[Tensor, Tensor]:
    """log π of the chosen and of the rejected answers: (B,) each, nats, summed over their tokens.

    Prompt and answer are encoded apart and joined, and no end-of-sequence token is added: give it
    in the answer's text where the policy should learn to stop there.
    """
    answers = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    batch = tokenize_prompt_and_output([pair.prompt for pair in pairs] * 2, answers, tokenizer)
    batch = {name: tensor.to(next(model.parameters()).device) for name, tensor in batch.items()}
    log_probs = score_responses(model, **batch)["log_probs"]
    sums = log_probs.masked_fill(~batch["response_mask"], 0.0).sum(dim=1)
    chosen, rejected = sums.chunk(2)
    return chosen, rejected


def log_prob_after(model: nn.Module, ids: Sequence[int], start: int) -> Tensor:
    """log π of the tokens from `start` on, given all before them: a scalar in nats.

    Args:
        model: a causal language model.
        ids: a document's tokens.
        start: at least 1, since nothing predicts the first token.
    """
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    log_probs = get_response_log_probs(model, tokens[:, :-1], tokens[:, 1:])["log_probs"]
    return log_probs[0, start - 1 :].sum()


def compute_per_instance_dpo_loss(
    lm: nn.Module,
    lm_ref: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """The DPO loss of one pair, in the form of the supplement of CS336's assignment 5.

    Prompt and answer stand in Alpaca's template, and each document is encoded as for SFT, with the
    end token. What the two documents have in common, the prompt before all, adds the same to both
    log-probabilities and drops out of the margin: it is not summed.

    Args:
        lm: the policy, with gradient.
        lm_ref: the frozen reference; it may be on another device and gets no gradient.
        tokenizer: of both, with an end-of-sequence token.
        beta: above 0.
        prompt, response_chosen, response_rejected: texts without template and end token.

    Returns:
        A scalar in nats, on the policy's device.

    Raises:
        ValueError: a beta that is not above 0, or a tokenizer without an end token.
    """
    documents = [
        encode_text(tokenizer, fill_template(ALPACA_TEMPLATE, prompt) + response)
        for response in (response_chosen, response_rejected)
    ]
    tokens = enumerate(zip(*documents, strict=False))
    n_common = next((at for at, (a, b) in tokens if a != b), min(map(len, documents)))
    policy = [log_prob_after(lm, ids, n_common) for ids in documents]
    with torch.no_grad():
        reference = [log_prob_after(lm_ref, ids, n_common) for ids in documents]
    log_probs = [log_prob.to(policy[0].device)[None] for log_prob in (*policy, *reference)]
    return dpo_loss(*log_probs, beta)[0]


def batches_of_pairs(n_pairs: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """The pairs of each batch of an epoch, shuffled by seed and epoch; what is left over at its
    end waits for the next shuffle.

    Raises:
        ValueError: fewer pairs than a batch has.
    """
    if not 1 <= batch_size <= n_pairs:
        raise ValueError(f"batch_size={batch_size} with {n_pairs} pairs: give 1 to {n_pairs}")
    order = list(range(n_pairs))
    random.Random(derive_seed(seed, "pairs", epoch)).shuffle(order)
    for start in range(0, n_pairs - batch_size + 1, batch_size):
        yield order[start : start + batch_size]


def dpo_step(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    pairs: Sequence[PreferencePair],
    ref_log_probs: tuple[Tensor, Tensor],
    beta: float,
    max_grad_norm: float,
) -> dict[str, float]:
    """One optimizer step on a batch of pairs.

    Args:
        model: the policy, trained in the mode it is in.
        ref_log_probs: of `pair_log_probs` with the frozen reference, for these pairs.
        max_grad_norm: the gradient's 2-norm is clipped to it.

    Returns:
        Means over the batch, before the step: `loss` in nats, `chosen_log_ratio` and
        `rejected_log_ratio` (log π/π_ref of whole responses), `pair_accuracy` (share of pairs with
        a margin above 0); and `grad_norm` before clipping.
    """
    chosen, rejected = pair_log_probs(model, tokenizer, pairs)
    ratios = chosen - ref_log_probs[0], rejected - ref_log_probs[1]
    loss = dpo_loss(chosen, rejected, *ref_log_probs, beta).mean()
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return {
        "loss": loss.item(),
        "chosen_log_ratio": ratios[0].mean().item(),
        "rejected_log_ratio": ratios[1].mean().item(),
        "pair_accuracy": (ratios[0] > ratios[1]).float().mean().item(),
        "grad_norm": grad_norm.item(),
    }
