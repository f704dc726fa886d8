"""Log-probabilities with entropy over a large vocabulary, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from transformers import Olmo2ForCausalLM

from benchmarks.step import NO_TRL
from benchmarks.timing import (
    Report,
    Scale,
    Value,
    interleave,
    peak_live_bytes,
    relative_difference,
    seconds_of,
    timed,
)
from benchmarks.worlds import random_policy
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.response_scoring import score_responses

VOCAB_SIZE, N_ROWS, N_TOKENS = 100_352, 16, 104  # OLMo-2's vocabulary


@dataclass(frozen=True)
class Batch:
    """(B, T) each, the second half of every row a response."""

    input_ids: Tensor
    labels: Tensor
    mask: Tensor

    @property
    def response_length(self) -> int:
        return int(self.mask[0].sum())


Scorer = Callable[[Olmo2ForCausalLM, Batch], tuple[Tensor, Tensor]]  # (B, t) each: t or all T


def random_batch(vocab_size: int, n_rows: int, n_tokens: int) -> Batch:
    """Rows of random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocab_size, (n_rows, n_tokens + 1), generator=generator)
    mask = torch.zeros(n_rows, n_tokens, dtype=torch.bool)
    mask[:, n_tokens // 2 :] = True
    return Batch(ids[:, :-1], ids[:, 1:], mask)


def naive(model: Olmo2ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """All logits of all positions, as the chapter has it first."""
    scored = get_response_log_probs(model, batch.input_ids, batch.labels, return_token_entropy=True)
    return scored["log_probs"], scored["token_entropy"]


def ours(model: Olmo2ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """What a step of ours does."""
    scored = score_responses(model, batch.input_ids, batch.labels, batch.mask)
    return scored["log_probs"], scored["token_entropy"]


def trl_functions(model: Olmo2ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits of the responses, and TRL's two functions of them."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    kept = batch.response_length
    logits = model(batch.input_ids, logits_to_keep=kept).logits
    log_probs = selective_log_softmax(logits, batch.labels[:, -kept:])
    with torch.no_grad():
        return log_probs, entropy_from_logits(logits)


def trl_fused_head(model: Olmo2ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """What TRL's trainer has used since 1.16: the head in chunks, gradient by hand."""
    labels = batch.labels.masked_fill(~batch.mask, -100)
    scored = model(batch.input_ids, shift_labels=labels, fused_lm_head=True)
    return scored.log_probs, scored.entropy


def contenders(model: Olmo2ForCausalLM) -> dict[str, tuple[Scorer, Olmo2ForCausalLM]]:
    """Each scorer with the model that it takes."""
    found: dict[str, tuple[Scorer, Olmo2ForCausalLM]] = {
        "ours": (ours, model),
        "naive, all positions": (naive, model),
    }
    if find_spec("trl"):
        from trl.trainer.utils import add_fused_lm_head

        fused = deepcopy(model)
        add_fused_lm_head(fused, outputs=("log_probs", "entropy"))
        found["TRL, two functions"] = (trl_functions, model)
        found["TRL 1.16, fused head"] = (trl_fused_head, fused)
    return found


def forward_backward(score: Scorer, model: Olmo2ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Leave in `.grad` the gradient of the responses' mean log-probability.

    Returns:
        The responses' log-probabilities and entropies, (B · response length,) each.
    """
    for parameter in model.parameters():
        parameter.grad.zero_()
    log_probs, entropies = (
        values[:, -batch.response_length :].flatten() for values in score(model, batch)
    )
    log_probs.mean().backward()
    return log_probs.detach(), entropies.detach()


def measure(scale: Scale) -> Report:
    """Seconds, live bytes, and how far each is from the naive way."""
    vocab_size, n_rows = (1000, 2) if scale.quick else (VOCAB_SIZE, N_ROWS)
    model = random_policy(vocab_size, N_TOKENS).eval()
    batch = random_batch(vocab_size, n_rows, N_TOKENS)
    report = Report(f"Log-probabilities and entropy, vocabulary {vocab_size:,}")
    scorers = contenders(model)
    for _, its_model in scorers.values():
        for parameter in its_model.parameters():  # as in a step: not counted among its own bytes
            parameter.grad = torch.zeros_like(parameter)
    if len(scorers) == 2:
        report.left_out.append(NO_TRL)
    works = {name: work(*scorer, batch) for name, scorer in scorers.items()}
    runs = interleave({name: timed(work) for name, work in works.items()}, scale.repeats)
    values, gradient = result(*scorers["naive, all positions"], batch)
    rows: list[dict[str, Value]] = []
    for name, (score, its_model) in scorers.items():
        found_values, found_gradient = result(score, its_model, batch)
        rows.append(
            {
                "way": name,
                "seconds": seconds_of(runs[name]),
                "peak live MB": peak_live_bytes(works[name]) / 1e6,
                "difference of values": relative_difference(found_values, values),
                "difference of gradient": relative_difference(found_gradient, gradient),
            }
        )
    plain = next(row for row in rows if row["way"] == "naive, all positions")
    for row in rows:
        row["time of naive's"] = row["seconds"]["median"] / plain["seconds"]["median"]
        row["memory of naive's"] = row["peak live MB"] / plain["peak live MB"]
    report.tables = {"ways": rows}
    return report


def work(score: Scorer, model: Olmo2ForCausalLM, batch: Batch) -> Callable[[], object]:
    return lambda: forward_backward(score, model, batch)


def result(
    score: Scorer, model: Olmo2ForCausalLM, batch: Batch
) -> tuple[list[Tensor], list[Tensor]]:
    """The values of a scorer, and its gradient."""
    values = forward_backward(score, model, batch)
    return list(values), [parameter.grad.clone() for parameter in model.parameters()]
