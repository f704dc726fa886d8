"""Make the pocket policy: a BPE tokenizer, a tiny OLMo-2, and its pretraining on two CPU cores.

`gsmrl pocket pretrain` runs this. The work is resumable: step `s` reads the documents of seed
`(seed, s)`, and a checkpoint holds parameters, optimizer and step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

from gsmrl_helpers.checkpoints import load_checkpoint, save_checkpoint
from gsmrl_helpers.pocket_corpus import Document, stream_documents
from gsmrl_helpers.prompting import PROMPTS
from gsmrl_helpers.records import append_row

EOS, PAD = "<|endoftext|>", "<|pad|>"


class PretrainConfig(BaseModel):
    """Everything that decides the pocket policy; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    vocab_size: int = 704
    tokenizer_documents: int = 20_000
    hidden_size: int = 128
    intermediate_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    context_length: int = 1024
    n_steps: int = 1_200
    documents_per_step: int = 64
    learning_rate: float = 4e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    max_grad_norm: float = 1.0
    difficulty: float = 0.5


def train_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose digits stand alone, trained on the corpus and the prompts."""
    tokenizer = Tokenizer(models.BPE())
    digits_alone = pre_tokenizers.Split(Regex(r"\d"), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits_alone, bytes_of_words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    documents = islice(
        stream_documents(f"{config.seed}, tokenizer", config.difficulty), config.tokenizer_documents
    )
    texts = [part for document in documents for part in (document.prompt, document.response)]
    tokenizer.train_from_iterator([*texts, *(p.template for p in PROMPTS.values())], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=config.context_length,
    )


def new_policy(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> Olmo2ForCausalLM:
    """A freshly initialised `Olmo2ForCausalLM` of the configured size."""
    torch.manual_seed(config.seed)
    return Olmo2ForCausalLM(
        Olmo2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            max_position_embeddings=config.context_length,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def encode_document(tokenizer: PreTrainedTokenizerFast, document: Document) -> list[int]:
    """The document's ids: prompt and response apart, as in training, then the end-of-text token."""
    parts = [document.prompt, document.response]
    encoded = tokenizer(parts, add_special_tokens=False)["input_ids"]
    return [*encoded[0], *encoded[1], tokenizer.eos_token_id]


def microbatches_of_step(
    config: PretrainConfig, tokenizer: PreTrainedTokenizerFast, step: int
) -> Iterator[torch.Tensor]:
    """The step's documents as `(rows, length)` tensors of similar lengths, padded with -100."""
    stream = stream_documents(f"{config.seed}, step {step}", config.difficulty)
    documents = [encode_document(tokenizer, d) for d in islice(stream, config.documents_per_step)]
    rows: list[torch.Tensor] = []
    for ids in sorted(documents, key=len):
        if rows and len(ids) > 1.3 * len(rows[0]) + 8:  # a longer one would pad all of them
            yield pad_sequence(rows, batch_first=True, padding_value=-100)
            rows = []
        rows.append(torch.tensor(ids))
    yield pad_sequence(rows, batch_first=True, padding_value=-100)


def learning_rate_factor(config: PretrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.n_steps - config.warmup_steps)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


def pretrain_step(
    model: Olmo2ForCausalLM,
    optimizer: torch.optim.Optimizer,
    batches: list[torch.Tensor],
    max_grad_norm: float,
) -> float:
    """One optimizer step of next-token prediction; the mean loss per token, in nats."""
    n_tokens = sum(int((ids[:, 1:] >= 0).sum()) for ids in batches)
    total = 0.0
    for ids in batches:
        logits = model(ids[:, :-1].clamp(min=0)).logits
        loss = (
            F.cross_entropy(
                logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-100, reduction="sum"
            )
            / n_tokens
        )
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def pretrain(
    config: PretrainConfig, work_dir: Path, save_every: int = 200, last_step: int | None = None
) -> Path:
    """Train the pocket policy in `work_dir`, going on from its checkpoint, and save it there.

    Args:
        config: what decides the policy.
        work_dir: keeps checkpoints, `loss.jsonl` and the policy.
        save_every: steps from one checkpoint to the next.
        last_step: end this session early; the next one goes on.

    Returns:
        The folder `work_dir/policy` with model, tokenizer, and the configuration that made it.

    Raises:
        ValueError: the folder's checkpoint belongs to another configuration.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(config)
    model = new_policy(config, tokenizer).train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )
    steps_done = resume(config, work_dir, model, optimizer)
    for step in range(steps_done, last_step or config.n_steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * learning_rate_factor(config, step)
        batches = list(microbatches_of_step(config, tokenizer, step))
        loss = pretrain_step(model, optimizer, batches, config.max_grad_norm)
        append_row(work_dir / "loss.jsonl", {"step": step + 1, "loss": loss})
        if (step + 1) % save_every == 0 or step + 1 == config.n_steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(work_dir, step + 1, {**state, "config": config.model_dump()})
    return save_policy(model, tokenizer, config, work_dir / "policy")


def resume(
    config: PretrainConfig,
    work_dir: Path,
    model: Olmo2ForCausalLM,
    optimizer: torch.optim.Optimizer,
) -> int:
    """Load the folder's checkpoint, if there is one; the number of steps it had done."""
    state = load_checkpoint(work_dir)
    if state is None:
        return 0
    if state["config"] != config.model_dump():
        raise ValueError(
            f"{work_dir} belongs to another configuration, {state['config']}; choose another folder"
        )
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save_policy(
    model: Olmo2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: PretrainConfig,
    folder: Path,
) -> Path:
    """Save model (safetensors), tokenizer, and the pretraining configuration in one folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "pretraining.json").write_text(config.model_dump_json(indent=2) + "\n")
    return folder
