"""Drawing the next token: parameters, seeds, probabilities, one random number per token."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor


class SamplingParams(BaseModel):
    """How completions are drawn; the names are vLLM's, and every value is explicit.

    Attributes:
        n: Completions per prompt (the group size G).
        temperature: Logits are divided by it; 0 is greedy decoding.
        top_p: Draw from the smallest set of tokens with at least this probability; 1 is off.
        top_k: Draw from the k most probable tokens; 0 (or vLLM's -1) is off.
        max_tokens: Most tokens a completion may have, a sampled end-of-sequence token included.
        stop: A completion ends where its text first contains one of these strings.
        include_stop_str_in_output: Keep the stop string in the text. True, unlike vLLM's own
            default, because the r1_zero grader reads the closing ``</answer>``.
        seed: Seed of this call. It has no default: a training loop that forgot it would meet the
            same random numbers at every step. See `derive_seed`.

    Raises:
        ValueError: Naming the field, the value given, and what is allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1)
    max_tokens: int = Field(default=512, ge=1)
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = True
    seed: int = Field(ge=0, lt=2**63)

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_is_a_collection_of_strings(cls, stop: object) -> object:
        # tuple("</answer>") would be nine stop strings of one character each.
        if isinstance(stop, str) or stop is None or "" in stop:
            raise ValueError(
                "stop takes a tuple of non-empty strings, such as ('</answer>',) or ()"
            )
        return stop


def derive_seed(run_seed: int, *names: int | str) -> int:
    """A seed of its own for each purpose of a run, such as ``derive_seed(0, "rollout", step)``.

    Args:
        run_seed: The seed of the run.
        *names: What the seed is for; any number of strings and integers.

    Returns:
        An integer in [0, 2**63), the same on every machine and Python version.
    """
    wrong = [part for part in (run_seed, *names) if type(part) not in (int, str)]
    if wrong:
        raise ValueError(f"derive_seed takes ints and strings; got {wrong[0]!r}")
    digest = hashlib.blake2b(json.dumps([run_seed, *names]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def row_uniforms(
    seed: int, prompt_token_ids: Sequence[int], sample_index: int, num_tokens: int
) -> np.ndarray:
    """The random numbers of one completion, one per token position.

    Philox is a counter-based generator (Salmon et al., 2011, "Parallel random numbers: as easy as
    1, 2, 3"): number t is a function of key and t alone. The key is made of seed, prompt and sample
    index, so neither the batch a row is decoded in nor its place there can change a token.

    Args:
        seed: `SamplingParams.seed`.
        prompt_token_ids: The prompt, P token ids.
        sample_index: Which of the prompt's completions this is.
        num_tokens: How many numbers are wanted, T.

    Returns:
        (T,) float64 in [0, 1), multiples of 2**-52.
    """
    name = json.dumps([seed, sample_index, list(prompt_token_ids)]).encode()
    key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
    # 52 bits: u * total < total holds in float64 for every total, see `sample_next_token`.
    return (np.random.Philox(key=key).random_raw(num_tokens) >> 12) * 2.0**-52


def next_token_probs(logits: Tensor, params: SamplingParams) -> Tensor:
    """Next-token probabilities after temperature, top-k and top-p, in this order (as in vLLM).

    Args:
        logits: (rows, vocab) floats.
        params: Sampling parameters with a temperature above 0.

    Returns:
        (rows, vocab) float32, or float64 if the logits are; rows sum to 1 within rounding, and
        excluded tokens have exactly 0. Tokens that tie with the k-th most probable one are all
        kept.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / params.temperature
    if 0 < params.top_k < logits.shape[-1]:
        kth_largest = logits.topk(params.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth_largest, -math.inf)
    probs = logits.softmax(dim=-1)
    if params.top_p < 1.0:
        sorted_probs, order = probs.sort(dim=-1, descending=True, stable=True)
        # A token stays while those before it have not yet reached top_p; the first always stays.
        mass_before = sorted_probs.cumsum(dim=-1) - sorted_probs
        excluded = torch.empty_like(mass_before, dtype=torch.bool)
        excluded.scatter_(-1, order, mass_before >= params.top_p)
        probs = probs.masked_fill(excluded, 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs


def sample_next_token(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: (rows, vocab) floats.
        uniforms: (rows,) float64 in [0, 1), multiples of 2**-52; not used when greedy.
        params: Sampling parameters.

    Returns:
        (rows,) int64 token ids; a token of probability 0 is never drawn.

    Raises:
        FloatingPointError: The logits contain NaN or +inf, or a whole row of -inf.
    """
    greedy = params.temperature == 0
    if not greedy:
        # A sum in float64 of probabilities in float32: a softmax in float64 takes three times as
        # long, and its digits are not the model's.
        cdf = next_token_probs(logits, params).cumsum(dim=-1, dtype=torch.float64)
    # A row's NaN or infinity is in its largest logit, and in the sum of its probabilities.
    largest_or_sum = logits.amax(dim=-1) if greedy else cdf[:, -1]
    if not largest_or_sum.isfinite().all():
        raise FloatingPointError(
            "the model's logits contain NaN or infinity: its weights have probably diverged"
        )
    if greedy:
        return logits.argmax(dim=-1)
    # Scaled by the last entry, which rounding leaves a little off 1, the target stays below it, and
    # the first entry above the target always belongs to a token that raised the sum.
    target = uniforms[:, None] * cdf[:, -1:]
    return torch.searchsorted(cdf, target, right=True).squeeze(-1)
