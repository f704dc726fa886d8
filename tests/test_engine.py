"""The local engine: the same tokens whatever the batching, and completions that end rightly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedTokenizerFast,
)

from gsmrl_helpers.decoding import HuggingFaceDecoder, PreallocatedLayer, common_prefix_length
from gsmrl_helpers.engine import LocalEngine, SamplingParams, fill_gaps
from gsmrl_helpers.olmo2_decoding import Olmo2Decoder, decoder_for

TEMPLATE = "Answer the question. Reason inside <think> </think>, then <answer> </answer>.\nUser: "
QUESTIONS = [
    "Tom has 3 apples and buys 4 more. How many apples has he?",
    "A pen costs 2 dollars. What do 7 pens cost?",
    "Ann reads 12 pages a day.",
    "Half of 18?",
    "There are 5 boxes of 6 eggs; 4 eggs break. How many are whole?",
]
PROMPTS = [f"{TEMPLATE}{question} Assistant: <think>" for question in QUESTIONS]
EOS = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [*PROMPTS, "<think> 3 + 4 = 7 </think> <answer> 7 </answer>"] * 3,
        vocab_size=330,
        show_progress=False,
        special_tokens=[EOS],
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=EOS, pad_token=EOS)


def make_olmo2(vocab_size: int, **changes) -> Olmo2ForCausalLM:
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.4,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    return Olmo2ForCausalLM(Olmo2Config(**sizes | changes))


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


def ids_of(completions):
    return [completion.token_ids for completion in completions]


# ---------------------------------------------------------------- same tokens


@pytest.mark.parametrize("decoder", [Olmo2Decoder, HuggingFaceDecoder])
def test_batching_compaction_and_prefix_sharing_change_no_token(tokenizer, decoder):
    # In float64, where two orders of summation differ by 1e-15, the claim holds to the letter.
    model = make_olmo2(len(tokenizer)).double()
    stop = tuple(tokenizer.decode([i]) for i in range(300, 316))  # ends rows at many lengths
    params = SamplingParams(seed=5, n=14, max_tokens=12, stop=stop)

    def generate(batch_size, compaction, sharing):
        engine = LocalEngine(model, tokenizer, compaction=compaction, prefix_sharing=sharing)
        engine.decoder = decoder(model)
        return engine.generate_completions(PROMPTS, params, batch_size)

    reference = generate(None, True, True)
    lengths = {len(completion.token_ids) for completion in reference}
    reasons = {completion.finish_reason for completion in reference}
    assert len(reference) == 70 and len(lengths) > 5 and reasons == {"stop", "length"}
    for compaction, sharing in itertools.product((True, False), repeat=2):
        for batch_size in (7, 64):
            assert generate(batch_size, compaction, sharing) == reference
    assert generate(1, True, True) == reference


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batching_changes_no_token_in_float32(tokenizer, batch_size):
    # A sharp distribution: batches differ by 1e-7 and few borders lie as close to a draw.
    model = make_olmo2(len(tokenizer), initializer_range=1.0)
    params = SamplingParams(seed=5, n=2, max_tokens=12)
    reference = LocalEngine(model, tokenizer).generate_completions(PROMPTS, params)
    bare = LocalEngine(model, tokenizer, compaction=False, prefix_sharing=False)
    assert bare.generate_completions(PROMPTS, params, batch_size) == reference
    assert len({tuple(ids) for ids in ids_of(reference)}) == 10


def test_order_of_prompts_changes_no_token(model, tokenizer):
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=5, n=2, max_tokens=12)
    forward = engine.generate_completions(PROMPTS, params)
    backward = engine.generate_completions(PROMPTS[::-1], params)
    by_prompt = [ids_of(backward[2 * i : 2 * i + 2]) for i in range(5)]
    assert ids_of(forward) == list(itertools.chain(*by_prompt[::-1]))
    assert [(c.prompt_index, c.sample_index) for c in forward] == [
        (i, j) for i in range(5) for j in range(2)
    ]


def test_more_tokens_or_samples_only_add_to_what_was_drawn(model, tokenizer):
    engine = LocalEngine(model, tokenizer)
    short = engine.generate_completions(PROMPTS[:1], SamplingParams(seed=1, n=2, max_tokens=8))
    long = engine.generate_completions(PROMPTS[:1], SamplingParams(seed=1, n=5, max_tokens=16))
    for a, b in zip(short, long[:2], strict=True):
        assert a.token_ids == b.token_ids[: len(a.token_ids)]


def test_repeated_prompts_and_samples_and_seeds_are_independent_draws(model, tokenizer):
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=1, max_tokens=12)
    repeated = ids_of(engine.generate_completions([PROMPTS[0]] * 8, params))
    assert len({tuple(ids) for ids in repeated}) == 8
    group = SamplingParams(seed=1, n=8, max_tokens=12)
    assert ids_of(engine.generate_completions(PROMPTS[:1], group)) == repeated
    other = ids_of(
        engine.generate_completions([PROMPTS[0]] * 8, SamplingParams(seed=2, max_tokens=12))
    )
    assert all(a != b for a, b in zip(repeated, other, strict=True))


def test_samples_of_the_engine_follow_the_models_distribution(model, tokenizer):
    with torch.no_grad():
        input_ids = tokenizer(PROMPTS[0], return_tensors="pt", add_special_tokens=False).input_ids
        logits = model(input_ids=input_ids).logits[0, -1].double()
    params = SamplingParams(seed=3, n=20_000, max_tokens=1, temperature=0.7)
    completions = LocalEngine(model, tokenizer).generate_completions(PROMPTS[:1], params)
    counts = np.bincount([c.token_ids[0] for c in completions], minlength=len(logits))

    def p_value(temperature):
        expected = 20_000 * torch.softmax(logits / temperature, 0).numpy()
        rare = expected < 5  # pooled into one cell, as chi-squared asks for
        observed = np.append(counts[~rare], counts[rare].sum())
        assert len(observed) > 20
        return chisquare(observed, np.append(expected[~rare], expected[rare].sum())).pvalue

    assert p_value(0.7) > 0.001
    assert p_value(1.0) < 1e-6, "the test sees a temperature that was not applied"


# ---------------------------------------------------------------- against Hugging Face


def make_model(family: str, vocab_size: int):
    torch.manual_seed(0)
    common = {"vocab_size": vocab_size, "initializer_range": 0.4, "eos_token_id": 0}
    llama = common | {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    if family == "olmo2":
        return make_olmo2(vocab_size)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**llama))
    if family == "mistral":  # its cache forgets what left the window
        return MistralForCausalLM(MistralConfig(**llama, sliding_window=16))
    if family == "gpt2":
        return GPT2LMHeadModel(GPT2Config(**common, n_embd=32, n_layer=2, n_head=4))
    return BloomForCausalLM(BloomConfig(**common, hidden_size=32, n_layer=2, n_head=4))


@pytest.mark.parametrize("family", ["olmo2", "llama", "mistral", "gpt2", "bloom"])
def test_greedy_equals_hugging_face_generate(tokenizer, family):
    model = make_model(family, len(tokenizer)).eval()
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=0, temperature=0, max_tokens=20)
    for prompt, ours in zip(PROMPTS, engine.generate_completions(PROMPTS, params), strict=True):
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            output = model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                do_sample=False,
                max_new_tokens=20,
                pad_token_id=0,
            )
        assert ours.token_ids == output[0, inputs.input_ids.shape[1] :].tolist()


def test_model_without_key_value_cache_is_refused(tokenizer):
    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1)
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        LocalEngine(MambaForCausalLM(config), tokenizer)


# ---------------------------------------------------------------- where completions end


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
    special = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token=EOS, pad_token="<pad>"
    )
    model = make_olmo2(len(special))
    ids = [*special("</ans").input_ids, *[special.pad_token_id] * 30, *special("wer>").input_ids]
    completion = write(model, special, ids, stop=("</answer>",))
    assert completion.text == "</answer>" and completion.token_ids == ids


# ---------------------------------------------------------------- decoders


@pytest.mark.parametrize(
    ("changes", "template_length"),
    [
        ({}, 3),
        ({}, 0),
        ({"num_key_value_heads": 4}, 3),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}, 3),
        ({"attention_bias": True, "tie_word_embeddings": True}, 1),
    ],
)
def test_olmo2_decoder_equals_hugging_face_forward_to_1e_5(changes, template_length):
    model = make_olmo2(50, initializer_range=0.2, **changes).eval()
    assert isinstance(decoder_for(model), Olmo2Decoder)
    prompts = [[5, 6, 7, 8], [5, 6, 7, 9, 10, 11, 12], [5, 6, 7, 13, 14]]
    histories = [list(prompts[p]) for p in (0, 0, 1, 2, 2)]
    decoder = decoder_for(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        logits = decoder.prefill(prompts, template_length, torch.tensor([0, 0, 1, 2, 2]), 6)
        for step in range(6):
            expected = [model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in histories]
            torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-5)
            if step in (1, 3):  # rows 1 and then 0 leave, the last takes their place
                keep = torch.tensor([[0, 4, 2, 3], [3, 1, 2]][step // 2])
                decoder.keep(keep)
                histories = [histories[row] for row in keep.tolist()]
            token_ids = torch.randint(50, (len(histories),), generator=generator)
            histories = [
                [*ids, new] for ids, new in zip(histories, token_ids.tolist(), strict=True)
            ]
            logits = decoder.step(token_ids) if step < 5 else logits


def test_olmo2_decoder_has_no_weights_of_its_own_and_keeps_the_dtype():
    model = make_olmo2(50).bfloat16().eval()
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    decoder = decoder_for(model)
    with torch.no_grad():
        decoder.prefill([[1, 2, 3]], 2, torch.tensor([0, 0]), 2)
        logits = decoder.step(torch.tensor([4, 5]))
        expected = model(input_ids=torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]])).logits[:, -1]
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits, expected, atol=0.1, rtol=0.05)
    assert {parameter.data_ptr() for parameter in decoder.model.parameters()} == pointers


def test_other_models_and_length_dependent_rotary_embeddings_use_the_hugging_face_forward():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    for model in (make_olmo2(50, rope_parameters=rope), make_model("llama", 50)):
        assert type(decoder_for(model)) is HuggingFaceDecoder


def test_preallocated_layer_grows_without_copying_and_moves_only_what_moves():
    keys = torch.arange(4 * 2 * 3 * 5.0).view(4, 2, 3, 5)
    layer = PreallocatedLayer(keys, -keys, max_new_tokens=2)
    address = layer.keys.data_ptr()
    new = torch.ones(4, 2, 1, 5)
    all_keys, all_values = layer.update(new, 2 * new)
    assert torch.equal(all_keys, torch.cat((keys, new), dim=2))
    assert torch.equal(all_values, torch.cat((-keys, 2 * new), dim=2))
    layer.batch_select_indices(torch.tensor([0, 3]))
    assert torch.equal(layer.keys[:, :, :3], keys[[0, 3]]) and layer.keys.data_ptr() == address
    assert layer.get_seq_length() == 4


def test_fill_gaps_and_common_prefix():
    assert fill_gaps(np.array([False, True, False, False])).tolist() == [0, 3, 2]
    assert fill_gaps(np.array([True, True, False, True, False])).tolist() == [2, 4]
    assert common_prefix_length([(1, 2, 3), (1, 2), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2), (2, 2)]) == 0
    assert common_prefix_length([(7, 8, 9)]) == 3


def test_template_and_prompts_are_processed_once_and_finished_rows_leave(tokenizer):
    model = make_olmo2(len(tokenizer))
    engine = LocalEngine(model, tokenizer)
    calls, steps = [], []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    step = engine.decoder.step
    engine.decoder.step = lambda token_ids: steps.append(len(token_ids)) or step(token_ids)
    params = SamplingParams(seed=5, n=8, max_tokens=16, stop=("e", "a", "o"))
    completions = engine.generate_completions(PROMPTS * 2, params)  # each prompt occurs twice

    ids = tokenizer(PROMPTS).input_ids
    template = common_prefix_length(ids)
    assert template > 20
    assert calls == [(1, template), (5, max(map(len, ids)) - template)]
    lengths = np.array([len(completion.token_ids) for completion in completions])
    assert steps == [int((lengths > t).sum()) for t in range(1, lengths.max())]


# ---------------------------------------------------------------- the model is left as found


def test_modes_gradients_and_weights_are_left_as_found(tokenizer):
    model = make_olmo2(len(tokenizer), attention_dropout=0.5)
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=0, max_tokens=8)
    first = engine.generate_completions(PROMPTS, params)
    assert [module.training for module in model.modules()] == modes
    assert engine.generate_completions(PROMPTS, params) == first, "dropout is off while sampling"
    assert all(torch.equal(w, weights[name]) for name, w in model.state_dict().items())
    input_ids = torch.tensor([first[0].token_ids])
    model(input_ids=input_ids, labels=input_ids).loss.backward()
    assert model.lm_head.weight.grad.abs().sum() > 0

    engine.decoder.step = None  # decoding breaks down: the modes still come back
    with pytest.raises(TypeError):
        engine.generate_completions(PROMPTS, params)
    assert [module.training for module in model.modules()] == modes


def test_sync_takes_the_engines_own_model_and_refuses_another(model, tokenizer):
    engine = LocalEngine(model, tokenizer)
    engine.sync_policy_weights(model)
    with pytest.raises(ValueError, match="another one"):
        engine.sync_policy_weights(make_olmo2(len(tokenizer)))


def test_engine_follows_the_optimizer(tokenizer):
    model = make_olmo2(len(tokenizer))
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=0, temperature=0, max_tokens=8)
    before = engine.generate_completions(PROMPTS, params)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    after = engine.generate_completions(PROMPTS, params)
    assert ids_of(after) != ids_of(before)
    assert after == LocalEngine(model, tokenizer).generate_completions(PROMPTS, params)


# ---------------------------------------------------------------- refused


def test_wrong_calls_are_refused(model, tokenizer):
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=0, max_tokens=8)
    assert engine.generate_completions([], params) == []
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        engine.generate_completions([PROMPTS[0], ""], params)
    with pytest.raises(ValueError, match="list of strings"):
        engine.generate_completions("Half of 18?", params)
    with pytest.raises(ValueError, match="batch_size is 0"):
        engine.generate_completions(PROMPTS, params, batch_size=0)
    length = len(tokenizer(PROMPTS[0]).input_ids)
    with pytest.raises(ValueError, match=f"{length} tokens .* context of 256"):
        engine.generate_completions(PROMPTS, SamplingParams(seed=0, max_tokens=257 - length))
    fits = SamplingParams(seed=0, max_tokens=256 - length)
    assert engine.generate_completions(PROMPTS[:1], fits)


def test_diverged_weights_are_reported(tokenizer):
    model = make_olmo2(len(tokenizer))
    with torch.no_grad():
        model.lm_head.weight[7] = torch.nan
    with pytest.raises(FloatingPointError, match="diverged"):
        LocalEngine(model, tokenizer).generate_completions(
            PROMPTS, SamplingParams(seed=0, max_tokens=8)
        )
