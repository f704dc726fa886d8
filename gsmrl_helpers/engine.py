"""Rollout engines: prompts in, completions out.

The training loop knows only the protocol `RolloutEngine`. `LocalEngine` samples from the trainer's
own module, in the same process; a vLLM server on a second GPU offers the same methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.decoding import Decoder, common_prefix_length
from gsmrl_helpers.olmo2_decoding import decoder_for
from gsmrl_helpers.sampling import SamplingParams, row_uniforms, sample_next_token
from gsmrl_helpers.stopping import StopStrings, decode_text

__all__ = ["Completion", "LocalEngine", "RolloutEngine", "SamplingParams"]


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    Attributes:
        text: Decoded ids, cut after the stop string (or before it), without end-of-sequence.
        token_ids: The ids exactly as sampled: an end-of-sequence token stays, and so does a token
            that straddles the cut. These are the actions that a policy gradient trains.
        finish_reason: "stop" for end-of-sequence or a stop string, "length" for a truncated one.
        prompt_index: Which of the call's prompts it answers.
        sample_index: Which of that prompt's n completions it is.
        log_probs: The engine's own log-probabilities of the ids at temperature 1, where it is not
            the trainer's model that samples; None where it is.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    prompt_index: int
    sample_index: int
    log_probs: list[float] | None = None


class RolloutEngine(Protocol):
    """What the training loop asks of a sampler."""

    def generate_completions(
        self,
        prompts: Sequence[str],
        sampling_params: SamplingParams,
        batch_size: int | None = None,
    ) -> list[Completion]:
        """Sample n completions per prompt.

        Args:
            prompts: P prompts.
            sampling_params: How to sample.
            batch_size: Most completions decoded at a time; None leaves it to the engine. It never
                changes a token.

        Returns:
            P·n completions, prompt-major: those of prompt i at i·n … i·n + n − 1.
        """

    def sync_policy_weights(self, policy: nn.Module) -> None:
        """Make the engine sample from the policy's present weights."""

    def close(self) -> None:
        """End what the engine has started."""


def check_request(prompts: Sequence[str], batch_size: int | None) -> None:
    """Refuse one string in place of a list, and a batch size below 1, as every engine does.

    Raises:
        ValueError: what was given, and what is allowed.
    """
    if isinstance(prompts, str):
        raise ValueError("prompts is one string; give a list of strings")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1, or None")


@dataclass(frozen=True)
class _Row:
    """One completion to be sampled; `draw_index` numbers the draws of equal prompts in a call."""

    prompt_index: int
    sample_index: int
    draw_index: int
    prompt_ids: tuple[int, ...]


class LocalEngine:
    """Samples from a Hugging Face causal language model in this process.

    A completion's tokens depend on the model, its prompt, the sampling parameters (seed included)
    and its sample index, on nothing else: batch size, order of the prompts, `compaction` and
    `prefix_sharing` change how fast they come. A prompt that occurs k times in a call gets k·n
    independent draws.

    One reservation: batches of different shape sum floats in different order, so a draw within
    rounding of the border between two tokens may fall to either side. In float32 that was none of
    23,000 tokens of the pocket policy, about one in 50,000 of nearly uniform random weights. In
    bfloat16, which rounds to three digits, it is one answer in ten or so.

    Args:
        model: The policy; the engine reads its weights where they are and copies nothing.
        tokenizer: Its tokenizer. Prompts are encoded without special tokens, as in
            `tokenize_prompt_and_output`.
        compaction: Finished rows leave the batch.
        prefix_sharing: What prompts have in common, and a prompt that several rows continue, is
            processed once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        compaction: bool = True,
        prefix_sharing: bool = True,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.compaction = compaction
        self.prefix_sharing = prefix_sharing
        config = model.config.get_text_config()
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.eos_token_ids = _eos_token_ids(model, tokenizer)
        self._is_eos = np.isin(np.arange(self.vocab_size), list(self.eos_token_ids))
        self.decoder: Decoder = decoder_for(model)
        self._stop_strings: dict[tuple[tuple[str, ...], bool], StopStrings] = {}

    def sync_policy_weights(self, policy: nn.Module) -> None:
        """Check that the policy is the module this engine samples from; there is nothing to copy.

        Raises:
            ValueError: Another module, whose updates this engine would never see.
        """
        if policy is not self.model:
            raise ValueError(
                "LocalEngine samples from the module it was built with and shares its weights; it "
                "was given another one. Build a LocalEngine from the policy that is trained."
            )

    def close(self) -> None:
        """Nothing to end: the engine lives in this process."""

    def generate_completions(
        self,
        prompts: Sequence[str],
        sampling_params: SamplingParams,
        batch_size: int | None = None,
    ) -> list[Completion]:
        """Sample n completions per prompt; see `RolloutEngine.generate_completions`.

        Raises:
            ValueError: An empty prompt, one that leaves no room for max_tokens in the model's
                context, a single string in place of a list, or a batch size below 1.
        """
        check_request(prompts, batch_size)
        rows = self._rows(prompts, sampling_params)
        size = batch_size or max(1, len(rows))
        completions: list[Completion] = []
        with torch.no_grad(), evaluation_mode(self.model):
            for start in range(0, len(rows), size):
                completions += self._generate_batch(rows[start : start + size], sampling_params)
        return completions

    def _rows(self, prompts: Sequence[str], params: SamplingParams) -> list[_Row]:
        rows = []
        seen: Counter[tuple[int, ...]] = Counter()
        for prompt_index, prompt in enumerate(prompts):
            prompt_ids = tuple(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])
            self._check_length(prompt_index, len(prompt_ids), params.max_tokens)
            first_draw = params.n * seen[prompt_ids]
            seen[prompt_ids] += 1
            rows += [_Row(prompt_index, i, first_draw + i, prompt_ids) for i in range(params.n)]
        return rows

    def _check_length(self, prompt_index: int, prompt_length: int, max_tokens: int) -> None:
        if prompt_length == 0:
            raise ValueError(f"prompt {prompt_index} is empty: there is nothing to continue")
        if self.context_length is not None and prompt_length + max_tokens > self.context_length:
            raise ValueError(
                f"prompt {prompt_index} has {prompt_length} tokens and max_tokens is {max_tokens}: "
                f"together more than the model's context of {self.context_length}. Shorten the "
                "prompt or lower max_tokens."
            )

    def _generate_batch(self, rows: list[_Row], params: SamplingParams) -> list[Completion]:
        num_tokens = params.max_tokens
        uniforms = np.stack(
            [row_uniforms(params.seed, r.prompt_ids, r.draw_index, num_tokens) for r in rows]
        )  # (R, T)
        stop_strings = self._stop_strings_for(params)
        sampled = np.zeros((len(rows), num_tokens), dtype=np.int64)  # (R, T)
        completions: list[Completion | None] = [None] * len(rows)
        finished = np.zeros(len(rows), dtype=bool)
        in_batch = np.arange(len(rows))  # the rows that the decoder still carries
        logits = self._prefill(rows, num_tokens)
        for t in range(num_tokens):
            uniform = torch.from_numpy(uniforms[in_batch, t]).to(logits.device)
            next_ids = sample_next_token(logits, uniform, params)
            sampled[in_batch, t] = new_ids = next_ids.cpu().numpy()
            may_end = self._is_eos[new_ids] | stop_strings.may_complete[new_ids]
            for row in in_batch[may_end & ~finished[in_batch]]:
                text = self._text_if_ended(sampled[row, : t + 1].tolist(), stop_strings)
                if text is not None:
                    completions[row] = _completion(rows[row], text, sampled[row, : t + 1], "stop")
                    finished[row] = True
            if finished.all() or t + 1 == num_tokens:
                break
            if self.compaction and finished[in_batch].any():
                stay = fill_gaps(finished[in_batch])
                rows_kept = torch.from_numpy(stay).to(logits.device)
                self.decoder.keep(rows_kept)
                in_batch, next_ids = in_batch[stay], next_ids[rows_kept]
            logits = self.decoder.step(next_ids)
        for row in np.flatnonzero(~finished):
            text = decode_text(self.tokenizer, sampled[row])
            completions[row] = _completion(rows[row], text, sampled[row], "length")
        return completions

    def _prefill(self, rows: list[_Row], max_new_tokens: int) -> torch.Tensor:
        """Open the decoder's rows; (R, vocab) logits of their first tokens."""
        if self.prefix_sharing:
            prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
            index = {prompt: i for i, prompt in enumerate(prompts)}
            prompt_of_row = [index[row.prompt_ids] for row in rows]
            # At least one token of each prompt is left, for its last token's logits.
            template_length = min(common_prefix_length(prompts), min(map(len, prompts)) - 1)
        else:
            prompts = [row.prompt_ids for row in rows]
            prompt_of_row = list(range(len(rows)))
            template_length = 0
        prompt_of_row = torch.tensor(prompt_of_row, device=self.model.device)
        return self.decoder.prefill(prompts, template_length, prompt_of_row, max_new_tokens)

    def _text_if_ended(self, token_ids: list[int], stop_strings: StopStrings) -> str | None:
        if self._is_eos[token_ids[-1]]:
            return decode_text(self.tokenizer, token_ids[:-1])
        return stop_strings.find(token_ids)

    def _stop_strings_for(self, params: SamplingParams) -> StopStrings:
        key = (params.stop, params.include_stop_str_in_output)
        if key not in self._stop_strings:
            self._stop_strings[key] = StopStrings(self.tokenizer, self.vocab_size, *key)
        return self._stop_strings[key]


def fill_gaps(finished: np.ndarray) -> np.ndarray:
    """Which rows go on, the last ones in the places that finished ones leave: fewest copies.

    Args:
        finished: (rows,) bool.

    Returns:
        (unfinished,) int64 index, row i's successor in place i: `[0, 1, 0, 0]` gives `[0, 3, 2]`.
    """
    open_rows = np.flatnonzero(~finished)
    order = np.arange(len(open_rows))
    order[finished[: len(order)]] = open_rows[open_rows >= len(order)]
    return order


def _completion(row: _Row, text: str, token_ids: np.ndarray, finish_reason: str) -> Completion:
    return Completion(text, token_ids.tolist(), finish_reason, row.prompt_index, row.sample_index)


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """All ids that end a completion: the tokenizer's and the generation config's, as in vLLM."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    return (ids | {tokenizer.eos_token_id}) - {None}


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """`model.eval()` for a while; every submodule gets back the mode it was found in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
