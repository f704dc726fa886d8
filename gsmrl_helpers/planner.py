"""How much memory a run needs, computed before it runs: what stays, and what each phase adds.

A trainer keeps weights, gradients and the optimizer's state. A pass through the model adds the
activations that its backward pass reads again, and the logits of a chunk of response tokens. The
formulas count
what the layers of transformers 5 and the functions of `train_step` really keep, term by term; the
idea is that of Korthikanti et al. (2022, "Reducing activation recomputation in large transformer
models", section 4), who count another layer. Numbers of bytes; 1 GB is 1e9 bytes.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.model_shape import ModelShape
from gsmrl_helpers.response_scoring import LOGITS_AT_ONCE
from gsmrl_helpers.step_metrics import MAX_COMPARED_PARAMETERS

Dtype = Literal["float32", "bfloat16", "8bit"]
# 8-bit moments have a float32 scale for every block of 256 (Dettmers et al., 2022).
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "8bit": 1 + 4 / 256}

Parts = dict[str, float]


class Workload(BaseModel):
    """What decides a trainer's memory.

    Attributes:
        shape: the policy's.
        dtype: of weights, gradients and activations.
        optimizer, master_weights, gradient_checkpointing, lora_rank: as in `RunConfig`; rank 0 is
            no LoRA.
        batch_rows: B, responses of one update.
        microbatch_rows: b, responses that share one graph.
        row_tokens: T, prompt and response together, of the longest row.
        response_tokens: those of its response, to which logits are computed.
        logits_at_once: numbers in one chunk of logits.
        scored_at_once: rows in the model where no gradient is needed.
        entropy_bonus: the loss holds an entropy, so that its graph over the vocabulary stays.
        has_reference: a second, frozen policy for a KL penalty.
        fused: the optimizer makes no copies while it steps, as on a GPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: ModelShape
    dtype: Literal["float32", "bfloat16"]
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    master_weights: bool = False
    gradient_checkpointing: bool = False
    lora_rank: int = Field(default=0, ge=0)
    batch_rows: int = Field(gt=0)
    microbatch_rows: int = Field(gt=0)
    row_tokens: int = Field(gt=0)
    response_tokens: int = Field(gt=0)
    logits_at_once: int = Field(default=LOGITS_AT_ONCE["cuda"], gt=0)
    scored_at_once: int = Field(default=64, gt=0)
    entropy_bonus: bool = False
    has_reference: bool = False
    fused: bool = True

    @classmethod
    def from_config(cls, config: RunConfig, shape: ModelShape, prompt_tokens: int) -> Workload:
        """The trainer of a run whose longest prompt has `prompt_tokens` tokens, and whose longest
        response takes all that it may."""
        return cls(
            shape=shape,
            dtype=config.dtype,
            optimizer=config.optimizer,
            master_weights=config.master_weights,
            gradient_checkpointing=config.gradient_checkpointing,
            lora_rank=config.lora.rank if config.lora else 0,
            batch_rows=config.train_batch_size,
            microbatch_rows=math.ceil(config.train_batch_size / config.gradient_accumulation_steps),
            row_tokens=prompt_tokens + config.sampling_max_tokens,
            response_tokens=config.sampling_max_tokens,
            logits_at_once=LOGITS_AT_ONCE[config.device.partition(":")[0]],
            scored_at_once=config.scored_at_once,
            entropy_bonus=bool(config.entropy_coef),
            has_reference=bool(config.kl_coef),
            fused=config.device.startswith("cuda"),
        )

    @property
    def n_trainable(self) -> int:
        """Parameters that have a gradient."""
        rank, shape = self.lora_rank, self.shape
        return shape.n_lora_parameters(rank) if rank else shape.n_parameters

    @property
    def microbatch_tokens(self) -> int:
        """Positions of one microbatch, padding included."""
        return self.microbatch_rows * self.row_tokens


# --- what stays from step to step ----------------------------------------------------------------


def training_state(
    n_parameters: int,
    weights: Dtype = "bfloat16",
    moments: Dtype = "float32",
    master_weights: bool = False,
) -> Parts:
    """Bytes of weights, gradients of the same type, Adam's two moments, and float32 masters.

    torch's AdamW makes moments in the dtype of what it steps on: bfloat16 from bf16 weights,
    float32 from masters.
    """
    return {
        "weights": n_parameters * BYTES[weights],
        "gradients": n_parameters * BYTES[weights],
        "moments": 2 * n_parameters * BYTES[moments],
        "masters": n_parameters * BYTES["float32"] if master_weights else 0.0,
    }


def resident(work: Workload) -> Parts:
    """`training_state` of a workload, gradients apart, and the sample of weights that a step
    compares with itself."""
    stepped_on: Dtype = "float32" if work.master_weights or work.lora_rank else work.dtype
    moments: Dtype = "8bit" if work.optimizer == "adamw_8bit" else stepped_on
    trained: Dtype = "float32" if work.lora_rank else work.dtype
    state = training_state(work.n_trainable, trained, moments, work.master_weights)
    frozen = work.shape.n_parameters * BYTES[work.dtype]
    copies = work.has_reference + bool(work.lora_rank)
    return {
        "weights": state["weights"] + copies * frozen,
        "gradients": state["gradients"],
        "optimizer": state["moments"] + state["masters"],
    }


def compared_sample(work: Workload) -> float:
    """Bytes of the weights that `sample_parameters` copies before a step."""
    stride = (1 + work.n_trainable // MAX_COMPARED_PARAMETERS) | 1
    return work.n_trainable / stride * BYTES["float32" if work.lora_rank else work.dtype]


# --- what a pass through the model adds ----------------------------------------------------------


def layer_activations(work: Workload) -> float:
    """Bytes per token that one layer keeps for its backward pass (SDPA or FlashAttention).

    With e bytes a number: four tensors inside the MLP; queries, keys, values and what attention
    returns; the two inputs of the linear layers; for each norm its input in float32 and, where its
    own weight is trained, the normalised input. LoRA in 16 bit converts the input of each matrix
    to float32, so that these copies are kept in place of what they copy.
    """
    shape, e = work.shape, BYTES[work.dtype]
    d, f, q, kv = shape.hidden_size, shape.intermediate_size, shape.query_width, shape.kv_width
    converts = bool(work.lora_rank) and work.dtype != "float32"
    mlp = (3 * e + 4) * f if converts else 4 * e * f
    attention = e * (2 * q + 2 * kv) + 4 * shape.n_heads
    inputs = 4 * (5 * d + q) if converts else 2 * e * d
    normalised = 0 if work.lora_rank else (4 if shape.architecture == "olmo2" else e)
    widths = q + kv + 2 * d if shape.architecture == "olmo2" else 2 * d
    return mlp + attention + inputs + (4 + normalised) * widths + 7 * 4 * work.lora_rank


def activations(work: Workload) -> float:
    """Bytes that the layers of one microbatch keep until their backward pass.

    With checkpointing (Chen et al., 2016) only each layer's input is kept, and one layer at a time
    is computed again; see `recomputed_layer`.
    """
    shape, e = work.shape, BYTES[work.dtype]
    per_layer = e * shape.hidden_size if work.gradient_checkpointing else layer_activations(work)
    normalised = 0 if work.lora_rank else (4 if shape.architecture == "olmo2" else e)
    last_norm = (4 + normalised) * shape.hidden_size
    head_inputs = work.microbatch_rows * work.response_tokens * e * shape.hidden_size
    return work.microbatch_tokens * (shape.n_layers * per_layer + last_norm) + head_inputs


def chunk_of_logits(work: Workload, rows: int) -> int:
    """How many logits of `rows` rows exist at a time."""
    vocabulary = work.shape.vocab_size
    return min(rows * work.response_tokens, max(1, work.logits_at_once // vocabulary)) * vocabulary


def logits(work: Workload) -> Parts:
    """Bytes over the vocabulary at the two moments when they are most.

    Forward: a chunk of logits and its exponentials in float32. Backward: the chunk as its gradient,
    in float32 and in the model's dtype, with an entropy bonus one more; the head's gradient summed
    in float32, and one chunk's share of it or, at the end, its value in the model's dtype.
    """
    e = BYTES[work.dtype]
    entries = chunk_of_logits(work, work.microbatch_rows)
    head = work.shape.vocab_size * work.shape.hidden_size * (not work.lora_rank)
    chunk = entries * (4 + e * (e < 4) + 4 * work.entropy_bonus)
    backward = max(chunk + 4 * head, e * entries + (4 + e) * head)
    hidden_gradient = work.microbatch_rows * work.response_tokens * e * work.shape.hidden_size
    return {"forward": 8 * entries, "backward": backward + hidden_gradient}


def recomputed_layer(work: Workload) -> float:
    """Bytes while one layer goes backward: with checkpointing its activations, made again, and in
    any case gradients of a few of them and of one matrix."""
    shape, e = work.shape, BYTES[work.dtype]
    again = layer_activations(work) if work.gradient_checkpointing else 0
    passing = e * (4 * shape.hidden_size + shape.intermediate_size)
    matrix = e * shape.hidden_size * shape.intermediate_size * (not work.lora_rank)
    return work.microbatch_tokens * (again + passing) + matrix


def update_copies(work: Workload) -> float:
    """Bytes that the optimizer adds while it steps: one gradient in float32 beside its master, and
    where it is not fused two results of a parameter's size."""
    largest = 4 * work.shape.largest_parameter if not work.lora_rank else 0
    if work.master_weights:
        return largest * (1 if work.fused else 3)
    return 0.0 if work.fused else 2 * largest * BYTES[work.dtype] / 4


def scoring(work: Workload) -> Parts:
    """Bytes of a pass without gradients over `scored_at_once` rows, entropy included.

    The widest point of a layer, or the last hidden states and a chunk of logits, whichever is more.
    """
    shape, e = work.shape, BYTES[work.dtype]
    rows = min(work.scored_at_once, work.batch_rows)
    beside_mlp = (3 if shape.architecture == "olmo2" else 4) * shape.hidden_size
    in_layer = rows * work.row_tokens * e * (3 * shape.intermediate_size + beside_mlp)
    hidden = rows * (work.row_tokens + work.response_tokens) * e * shape.hidden_size
    over_vocabulary = 8 * chunk_of_logits(work, rows)
    if hidden + over_vocabulary < in_layer:
        return {"activations": in_layer}
    return {"activations": hidden, "logits": over_vocabulary}


def kv_bytes_per_token(shape: ModelShape, bytes_per_number: float) -> float:
    """Bytes of one token's keys and values in all layers."""
    return 2 * shape.n_layers * shape.kv_width * bytes_per_number


# --- the phases of a step ------------------------------------------------------------------------


def trainer_phases(work: Workload) -> dict[str, Parts]:
    """The parts of a trainer's memory in each phase of a step; its peak is the largest sum.

    Gradients exist from the first microbatch until the optimizer has stepped.
    """
    state = resident(work)
    without_gradients = {**state, "gradients": 0.0}
    kept, over_vocabulary = activations(work), logits(work)
    batch = work.batch_rows * work.row_tokens * (8 + 8 + 1)  # ids, labels, mask
    stepping = {**state, "batch and sample": batch + compared_sample(work)}
    return {
        "scoring": {**without_gradients, "batch and sample": batch, **scoring(work)},
        "forward": {**stepping, "activations": kept, "logits": over_vocabulary["forward"]},
        "backward, head": {**stepping, "activations": kept, "logits": over_vocabulary["backward"]},
        "backward, layers": {**stepping, "activations": kept + recomputed_layer(work)},
        "update": {**stepping, "update": update_copies(work)},
    }


def peak(phases: dict[str, Parts]) -> tuple[str, float]:
    """The phase that needs most, and its bytes."""
    name = max(phases, key=lambda phase: sum(phases[phase].values()))
    return name, sum(phases[name].values())


def step_peak(work: Workload) -> tuple[str, float]:
    """The peak of `grpo_train_step` alone: scoring without gradients is the loop's."""
    phases = trainer_phases(work)
    return peak({name: parts for name, parts in phases.items() if name != "scoring"})
