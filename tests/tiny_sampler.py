"""Tiny random models and a byte-level BPE tokenizer, for tests of sampling."""

from __future__ import annotations

import functools

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

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


@functools.cache
def make_tokenizer(pad_token: str = EOS) -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [*PROMPTS, "<think> 3 + 4 = 7 </think> <answer> 7 </answer>"] * 3,
        vocab_size=330,
        show_progress=False,
        special_tokens=[EOS],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token=EOS, pad_token=pad_token
    )


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
