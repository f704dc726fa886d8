"""Supervised fine-tuning (SFT), step by step: the loss, the learning rate, the passes over data.

SFT is a policy gradient with the weight 1 on samples that someone else drew.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from gsmrl_helpers.packing import IGNORED, Encoded, fill_rows, flatten, packed_logits
from gsmrl_helpers.sampling import derive_seed


class SFTConfig(BaseModel):
    """Everything that decides an SFT run but the policy and the data; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=0)
    n_epochs: int = Field(default=1, ge=1)
    batch_size: int = Field(default=16, ge=1)  # documents of one optimizer step
    max_tokens: int = Field(default=1024, ge=1)  # of one row: what memory has room for
    learning_rate: float = Field(default=5e-4, gt=0)
    warmup_share: float = Field(default=0.03, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    train_on_prompt: bool = False


def sft_loss(logits: Tensor, labels: Tensor, n_labels: int) -> Tensor:
    """Minus the log-probability of the labels that count, summed and divided by their number.

    Args:
        logits: (B, T, V).
        labels: (B, T) int64, `IGNORED` where nothing is to be learned.
        n_labels: how many labels count in the *whole* batch, of which this may be a part.

    Returns:
        A scalar in nats a label, in float32 at least; the parts' losses add up to the batch's.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / n_labels


def sft_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[dict[str, Tensor]],
    max_grad_norm: float,
) -> dict[str, float]:
    """One step of the optimizer on the rows of a batch, one row at a time.

    Args:
        model: a causal language model, in the mode it is to train in.
        optimizer: over the model's parameters; its gradients are None afterwards.
        rows: as `flatten` makes them; how documents are spread over them changes no gradient.
        max_grad_norm: the gradient's norm is clipped to it.

    Returns:
        `loss` in nats a label, `grad_norm` before clipping, `n_labels`.

    Raises:
        ValueError: no label counts.
        FloatingPointError: the gradient is not finite; the parameters are as they were.
    """
    n_labels = sum(int((row["labels"] != IGNORED).sum()) for row in rows)
    if not n_labels:
        raise ValueError("no label of this batch counts: are all of its responses empty?")
    total = 0.0
    for row in rows:
        row = {name: values.to(model.device) for name, values in row.items()}
        loss = sft_loss(packed_logits(model, row), row["labels"], n_labels)
        loss.backward()
        total += loss.item()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
    if math.isfinite(grad_norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if not math.isfinite(grad_norm):
        raise FloatingPointError(f"the gradient's norm is {grad_norm}; lower the learning rate")
    return {"loss": total, "grad_norm": grad_norm, "n_labels": n_labels}


def learning_rate_factor(step: int, n_steps: int, warmup_share: float) -> float:
    """Linear warm-up over a share of the steps, then a cosine that ends at 0.

    Args:
        step: counted from 0.
        n_steps: of the whole run.
        warmup_share: of the steps, in [0, 1).

    Returns:
        The factor of the learning rate, in (0, 1].
    """
    n_warmup = math.ceil(warmup_share * n_steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = (step - n_warmup) / (n_steps - n_warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def sft_batches(
    documents: Sequence[Encoded], config: SFTConfig
) -> Iterator[list[dict[str, Tensor]]]:
    """The rows of each step: in every epoch all documents once, in an order of its own.

    Seed, documents and batch size decide the batches; `max_tokens` only decides the rows.
    """
    for epoch in range(config.n_epochs):
        order = list(range(len(documents)))
        random.Random(derive_seed(config.seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), config.batch_size):
            batch = [documents[index] for index in order[start : start + config.batch_size]]
            lengths = [len(document.ids) for document in batch]
            yield [
                flatten([batch[index] for index in row], config.train_on_prompt)
                for row in fill_rows(lengths, config.max_tokens)
            ]


def train_sft(
    model: PreTrainedModel, documents: Sequence[Encoded], config: SFTConfig
) -> Iterator[dict[str, float]]:
    """Fine-tune the model in place; what `sft_step` says of each step, as it is made.

    A generator: nothing is trained until it is asked for steps, and between two of them the caller
    can evaluate the policy.

    Args:
        model: the policy.
        documents: encoded instruction data.
        config: the run's settings.

    Yields:
        `step` (from 1), `learning_rate`, and the step's `loss`, `grad_norm` and `n_labels`.

    Raises:
        ValueError: no documents.
    """
    if not documents:
        raise ValueError("no documents to train on")
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )
    n_steps = config.n_epochs * math.ceil(len(documents) / config.batch_size)
    for step, rows in enumerate(sft_batches(documents, config)):
        rate = config.learning_rate * learning_rate_factor(step, n_steps, config.warmup_share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        made = sft_step(model, optimizer, rows, config.max_grad_norm)
        yield {"step": step + 1, "learning_rate": rate, **made}


@torch.no_grad()
def mean_label_loss(
    model: PreTrainedModel, documents: Sequence[Encoded], max_tokens: int = 4096
) -> dict[str, float]:
    """Mean loss in nats a token, of `prompt` tokens and of `response` tokens apart.

    Each document is taken alone; the first token of a document is predicted by nothing and does
    not count. A part without tokens has the mean NaN.
    """
    sums, counts = {"prompt": 0.0, "response": 0.0}, {"prompt": 0, "response": 0}
    for indices in fill_rows([len(document.ids) for document in documents], max_tokens):
        chosen = [documents[index] for index in indices]
        row = {name: values.to(model.device) for name, values in flatten(chosen, True).items()}
        labels = row["labels"]
        responses = flatten(chosen)["labels"].to(model.device) != IGNORED
        prompts = (labels != IGNORED) & ~responses
        logits = packed_logits(model, row)
        for part, mask in (("prompt", prompts), ("response", responses)):
            sums[part] += sft_loss(logits, labels.masked_fill(~mask, IGNORED), 1).item()
            counts[part] += int(mask.sum())
    return {part: sums[part] / counts[part] if counts[part] else math.nan for part in sums}
