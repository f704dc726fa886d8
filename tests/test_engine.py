"""The local engine: the same tokens whatever the batching, and a model left as it was found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import (
    Olmo2ForCausalLM,
    PreTrainedTokenizerFast,
)

from gsmrl_helpers.decoding import HuggingFaceDecoder, common_prefix_length
from gsmrl_helpers.engine import LocalEngine, SamplingParams
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.olmo2_decoding import Olmo2Decoder
from tests.tiny_sampler import PROMPTS, make_olmo2, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer) -> Olmo2ForCausalLM:
    return make_olmo2(len(tokenizer))


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


# ---------------------------------------------------------------- how much work


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


def test_tokens_through_the_model_and_bytes_alive_are_what_the_rows_need(tokenizer):
    model = make_olmo2(len(tokenizer))
    tokens = []
    model.model.layers[0].mlp.register_forward_hook(
        lambda module, args, output: tokens.append(output.numel() // output.shape[-1])
    )
    engine = LocalEngine(model, tokenizer)
    params = SamplingParams(seed=5, n=64, max_tokens=40)
    rows = 64 * len(PROMPTS)
    with LiveBytes() as memory:
        completions = engine.generate_completions(PROMPTS, params)

    ids = tokenizer(PROMPTS).input_ids
    template = common_prefix_length(ids)
    suffixes = len(ids) * (max(map(len, ids)) - template)
    sampled = sum(len(completion.token_ids) - 1 for completion in completions)  # not the last one
    assert sum(tokens) == template + suffixes + sampled
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # 2 layers, keys and values, 2 heads of 8 floats
    needed = (template + suffixes + rows * params.max_tokens) * bytes_per_token
    a_prompt_for_each_row = sum(len(row) + params.max_tokens for row in ids) * 64 * bytes_per_token
    assert needed < memory.peak < 0.9 * a_prompt_for_each_row


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
