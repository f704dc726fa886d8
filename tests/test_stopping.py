"""Where completions end: stop strings, end of sequence, the limit; and the text they leave."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    Olmo2ForCausalLM,
    PreTrainedTokenizerFast,
)

from gsmrl_helpers.engine import LocalEngine, SamplingParams
from gsmrl_helpers.stopping import StopStrings
from tests.tiny_sampler import make_olmo2, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer) -> Olmo2ForCausalLM:
    return make_olmo2(len(tokenizer))


class ScriptedModel(torch.nn.Module):
    """A decoder that "writes" given token ids, one list per prompt, then end-of-sequence."""

    def __init__(self, answers: list[list[int]], vocab_size: int, eos: int) -> None:
        super().__init__()
        self.answers, self.vocab_size, self.eos = answers, vocab_size, eos

    def prefill(self, prompts, template_length, prompt_of_row, max_new_tokens):
        self.rows, self.position = prompt_of_row, 0
        return self._logits()

    def step(self, token_ids):
        self.position += 1
        return self._logits()

    def keep(self, rows):
        self.rows = self.rows[rows]

    def _logits(self):
        logits = torch.full((len(self.rows), self.vocab_size), -torch.inf)
        for i, prompt in enumerate(self.rows.tolist()):
            rest = self.answers[prompt][self.position :]
            logits[i, rest[0] if rest else self.eos] = 0.0
        return logits


def write(model, tokenizer, token_ids, *, max_tokens=64, **kwargs):
    """The completion of a model that answers with exactly these ids."""
    engine = LocalEngine(model, tokenizer)
    engine.decoder = ScriptedModel([token_ids], len(tokenizer), tokenizer.eos_token_id)
    params = SamplingParams(seed=0, max_tokens=max_tokens, **kwargs)
    return engine.generate_completions(["x"], params)[0]


def test_stop_string_that_spans_tokens_is_kept_or_dropped(model, tokenizer):
    ids = tokenizer("7 </answer> and more").input_ids
    characters = [token for c in "</answer" for token in tokenizer(c).input_ids]
    assert len(characters) == 8
    spelled = [*tokenizer("7 ").input_ids, *characters, *tokenizer("> and more").input_ids]
    for written in (ids, spelled):
        kept = write(model, tokenizer, written, stop=("</answer>",))
        assert kept.text == "7 </answer>" and kept.finish_reason == "stop"
        assert tokenizer.decode(kept.token_ids) == "7 </answer>"
        assert kept.token_ids == written[: len(kept.token_ids)]
        dropped = write(
            model, tokenizer, written, stop=("</answer>",), include_stop_str_in_output=False
        )
        assert dropped.text == "7 " and dropped.token_ids == kept.token_ids


def test_token_that_straddles_the_cut_stays_in_the_ids(model, tokenizer):
    # a stop string that ends inside a token: "<an" of "<answer", say
    straddling = next(i for i in range(256, len(tokenizer)) if "nsw" in tokenizer.decode([i]))
    text = tokenizer.decode([straddling])
    before, stop = text.split("nsw")[0], "nsw"
    completion = write(model, tokenizer, [straddling, straddling], stop=(stop,))
    assert completion.text == before + stop and len(completion.text) < len(text)
    assert completion.token_ids == [straddling] and completion.finish_reason == "stop"


def test_first_of_several_stop_strings_wins(model, tokenizer):
    ids = tokenizer("one two three").input_ids
    assert write(model, tokenizer, ids, stop=("three", "two")).text == "one two"
    assert write(model, tokenizer, ids, stop=("two three", "two")).text == "one two"


def test_stop_string_of_multibyte_characters_in_single_bytes(model, tokenizer):
    ids = tokenizer("7 ✓ and é").input_ids  # the vocabulary has no such characters, only bytes
    assert len(tokenizer("✓").input_ids) == 3
    completion = write(model, tokenizer, ids, stop=("✓",))
    assert completion.text == "7 ✓" and completion.token_ids == ids[: len(completion.token_ids)]
    assert write(model, tokenizer, ids, stop=("é",)).text == "7 ✓ and é"


def test_bytes_that_are_no_character_end_no_completion(model, tokenizer):
    broken = tokenizer("✓").input_ids[:2]
    ids = [*broken, *tokenizer("a").input_ids, *broken, *tokenizer("</answer>").input_ids]
    completion = write(model, tokenizer, ids, stop=("</answer>", "é"))
    assert completion.token_ids == ids and completion.text.endswith("</answer>")


def test_end_of_sequence_stays_in_the_ids_and_not_in_the_text(model, tokenizer):
    ids = tokenizer("7 pens").input_ids
    completion = write(model, tokenizer, ids, stop=("</answer>",))
    assert completion.text == "7 pens" and completion.finish_reason == "stop"
    assert completion.token_ids == [*ids, tokenizer.eos_token_id]
    empty = write(model, tokenizer, [])
    assert empty.text == "" and empty.token_ids == [tokenizer.eos_token_id]


def test_length_and_stop_are_told_apart_at_the_last_token(model, tokenizer):
    ids = tokenizer("7 </answer>").input_ids
    cut = write(model, tokenizer, ids, max_tokens=len(ids) - 1, stop=("</answer>",))
    assert cut.finish_reason == "length" and cut.token_ids == ids[:-1]
    whole = write(model, tokenizer, ids, max_tokens=len(ids), stop=("</answer>",))
    assert whole.finish_reason == "stop" and whole.text == "7 </answer>"
    eos = write(model, tokenizer, ids, max_tokens=len(ids) + 1)
    assert eos.finish_reason == "stop" and eos.token_ids[-1] == tokenizer.eos_token_id


def test_stop_string_is_found_across_a_special_token(model, tokenizer):
    special = make_tokenizer(pad_token="<pad>")
    model = make_olmo2(len(special))
    ids = [*special("</ans").input_ids, *[special.pad_token_id] * 30, *special("wer>").input_ids]
    completion = write(model, special, ids, stop=("</answer>",))
    assert completion.text == "</answer>" and completion.token_ids == ids


def test_stop_string_with_a_leading_space_in_a_sentencepiece_tokenizer():
    # As in GGUF-loaded Llama models: "▁end" decodes to "end" alone and to " end" inside a text.
    pieces = ["<unk>", "</s>", "<0xC3>", "<0xA9>", "▁the", "▁end", "a", "▁"]
    bpe = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    bpe.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    llama = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", unk_token="<unk>")
    stops = StopStrings(llama, len(pieces), (" end", "é"), include_in_output=True)
    assert stops.may_complete[[2, 3, 4, 5, 6, 7]].tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert stops.find([4, 5, 6]) == "the end"
    assert stops.find([5, 4, 6]) is None, "at the beginning of a text the space is not there"
    assert stops.find([4, 2]) is None
    assert stops.find([4, 2, 3]) == "theé"
    assert StopStrings(llama, len(pieces), (" end",), False).find([4, 5]) == "the"


def test_window_finds_what_the_whole_text_holds_and_nothing_else(tokenizer):
    stops = StopStrings(tokenizer, len(tokenizer), ("</answer>", "\n\n"), include_in_output=False)
    generator = np.random.default_rng(0)
    fragments = ["</answer", ">", "</", "answer>", "\n", " 7", "<answer>", "✓", "ans", "wer"]
    found = 0
    for _ in range(200):
        text = "".join(generator.choice(fragments, size=12))
        ids = tokenizer(text).input_ids
        ends = [text.index(stop) + len(stop) for stop in stops.stop if stop in text]
        results = [stops.find(ids[:t]) for t in range(1, len(ids) + 1)]
        first = next((result for result in results if result is not None), None)
        if not ends:
            assert first is None
            continue
        found += 1
        stop = next(s for s in stops.stop if text[: min(ends)].endswith(s))
        assert first == text[: min(ends) - len(stop)]
        length = results.index(first) + 1
        assert stops.may_complete[ids[length - 1]]
    assert 50 < found < 200
