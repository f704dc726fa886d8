"""A real but tiny language model and its tokenizer, for tests of the training components."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, processors
from torch import Tensor
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

LETTERS = "abcdefghij0123456789 =+"
MERGED = "ab"  # the one merge: "a" + "b" in one text are one token


def make_tokenizer(**special_tokens: str) -> PreTrainedTokenizerFast:
    """One token a character, "ab" merged, and a <bos> that it likes to put in front."""
    names = ["<bos>", "<eos>", "<pad>", *LETTERS, MERGED]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    special_tokens = special_tokens or {"eos_token": "<eos>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)


def make_policy(
    seed: int = 0, dtype: torch.dtype = torch.float32, attention_dropout: float = 0.0
) -> Olmo2ForCausalLM:
    """Two layers of 16, random weights large enough for the distributions not to be uniform."""
    torch.manual_seed(seed)
    config = Olmo2Config(
        vocab_size=len(LETTERS) + 4,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        attention_dropout=attention_dropout,
        # the eager softmax is float32 whatever the model is
        attn_implementation="sdpa" if dtype is torch.float64 else "eager",
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = Olmo2ForCausalLM(config).to(dtype).eval()
    return exact(model) if dtype is torch.float64 else model


class Float64RMSNorm(Olmo2RMSNorm):
    """The module's own passes through float32, which leaves 7 digits of a float64 model."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


def exact(model: Olmo2ForCausalLM) -> Olmo2ForCausalLM:
    """The float64 model with norms in float64, so that equality can be asked to its last digits."""
    for module in model.modules():
        if type(module) is Olmo2RMSNorm:
            module.__class__ = Float64RMSNorm
    return model
