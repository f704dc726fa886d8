"""Decoders: the Hugging Face forward pass for every family, and OLMo-2's own step beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
    PreTrainedTokenizerFast,
)

from gsmrl_helpers.decoding import HuggingFaceDecoder, PreallocatedLayer, common_prefix_length
from gsmrl_helpers.engine import LocalEngine, SamplingParams, fill_gaps
from gsmrl_helpers.olmo2_decoding import Olmo2Decoder, decoder_for
from tests.tiny_sampler import PROMPTS, make_olmo2, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


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


def test_gaps_are_filled_from_the_end_and_common_prefix():
    assert fill_gaps(np.array([False, True, False, False])).tolist() == [0, 3, 2]
    assert fill_gaps(np.array([True, True, False, True, False])).tolist() == [2, 4]
    assert common_prefix_length([(1, 2, 3), (1, 2), (1, 2, 4)]) == 2
    assert common_prefix_length([(1, 2), (2, 2)]) == 0
    assert common_prefix_length([(7, 8, 9)]) == 3
