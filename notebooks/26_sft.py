# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Supervised fine-tuning
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what supervised fine-tuning is in terms of the policy gradient, read
# instruction data, pack it into batches in two ways and say what each does at the borders of
# documents, choose which tokens count, and fine-tune without a ready-made trainer.
#
# **You need** {doc}`01_language_model_as_policy` and {doc}`08_tokenization_and_masks`.
# **Reading** takes 30 minutes, **running** half a minute, on a **CPU**. (One cell is for a GPU and
# is not executed here; twelve short runs were recorded.)
# ```
#
# Before reinforcement learning a model is mostly shown how it is done: questions, each with an
# answer that somebody wrote. *Supervised fine-tuning* (SFT) makes these answers more likely. The
# loss is one line. What goes wrong goes wrong before it, where texts become batches: rows that
# can't be read, answers cut off from their questions, labels that nobody wanted to be learned.
#
# Names in this chapter are those of the supplement to CS336's assignment 5, which fine-tunes
# Llama 3.1 8B. Here the pocket policy stands in for it.

# %%
import gzip
import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import DataCollatorWithFlattening

from gsmrl_helpers import (
    compute_policy_gradient_loss,
    experiment_config,
    load_policy,
    load_problems,
)
from gsmrl_helpers.jsonl_files import BrokenRow
from gsmrl_helpers.losses import aggregate_loss_across_microbatch
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_plots import plot_curves
from gsmrl_helpers.results import curves, final_values
from gsmrl_helpers.sampling import derive_seed
from gsmrl_helpers.sft_runs import LEARNING_RATE, N_EXAMPLES, write_examples
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.tokenization import encode
from gsmrl_helpers.verdicts import compare

use_style()

# %% [markdown]
# ## Weight 1, on someone else's samples
#
# A policy gradient takes answers that the policy drew, and makes each more or less likely by its
# weight, the advantage: the loss is $-A \log \pi_\theta(y \mid x)$. SFT takes answers from a data
# set and has the loss $-\log \pi_\theta(y \mid x)$. That is the same expression with two changes:
# the weight is 1, always, and the answers come from another distribution, $q$.

# %%
log_probs = torch.tensor([[-0.7, -0.2, -1.6], [-0.1, -0.4, 0.0]])
mask = torch.tensor([[True, True, True], [True, True, False]])
per_token, _ = compute_policy_gradient_loss(torch.ones(2), log_probs)
loss = aggregate_loss_across_microbatch(per_token, mask, "token", 5)
print(f"policy gradient with A = 1: {loss:.2f}")
print(f"mean of -log π over 5 tokens: {-log_probs[mask].mean():.2f}")

# %% tags=["check"]
assert torch.allclose(loss, -log_probs[mask].mean())
assert abs(loss.item() - 0.6) < 1e-6

# %% [markdown]
# The second change matters more. Take a policy with three answers of probability $\pi = (0.7, 0.2,
# 0.1)$ and a teacher who gives the second one four times out of five, $q = (0.2, 0.8, 0)$. The
# expected SFT gradient is $\sum_y q(y) \nabla \log \pi(y)$. Written as an expectation over the
# policy's *own* answers it is $\sum_y \pi(y)\, \frac{q(y)}{\pi(y)}\, \nabla \log \pi(y)$: a policy
# gradient with the reward $r(y) = q(y) / \pi(y)$.

# %%
policy, teacher = (
    torch.tensor(p, dtype=torch.float64)
    for p in ([0.7, 0.2, 0.1], [0.2, 0.8, 0.0])
)
scores = (
    torch.eye(3, dtype=torch.float64) - policy
)  # ∇ log π(y) of the logits, row y

# %%
sft_gradient = teacher @ scores
reward = teacher / policy
print("reward of each answer:", reward.round(decimals=2).tolist())
print("gradient:", sft_gradient.round(decimals=2).tolist())

# %% tags=["check"]
assert torch.allclose((policy * reward) @ scores, sft_gradient)
assert torch.allclose(sft_gradient, teacher - policy)
assert torch.allclose(reward[:2], torch.tensor([2 / 7, 4]).double())

# %% [markdown]
# Three things can be read off it.
#
# - An answer that the policy would hardly ever give has a huge reward: SFT can teach what the
#   policy would not find. Reinforcement learning only weighs what the policy already samples.
# - The reward falls to 1 where policy and teacher agree. In logits the gradient is $q - \pi$, which
#   is zero there: the end of SFT is the teacher, with the teacher's mistakes and no better.
# - There is no negative weight. The third answer becomes rarer only because the others grow.
#
# RFT, fine-tuning on one's own right answers, stands between the two: the weight is 1 or 0, and the
# answers are the policy's own ({doc}`10_advantages`).
#
# ## Rows of a file
#
# Instruction data comes as JSON lines, one object with `prompt` and `response` a line, often
# gzipped. Files of a few hundred thousand rows contain some that can't be used. If the first of
# them stops the program, nobody trains; if they are skipped silently, nobody knows how many there
# were. So a reader returns both: what it could read, and what it could not, by line.

# %% tags=["definition"]
from gsmrl_helpers.jsonl_files import read_jsonl, text_field


class Example(NamedTuple):
    """One row of instruction data: what is asked, and the answer to be imitated."""

    prompt: str
    response: str


def parse_example(row: Any) -> Example:
    """The example of a row `{"prompt": …, "response": …}`."""
    return Example(text_field(row, "prompt"), text_field(row, "response"))


def load_examples(
    path: str | Path,
) -> tuple[list[Example], list[BrokenRow]]:
    """The examples of a JSON-lines file, gzipped or not, and its broken rows."""
    return read_jsonl(path, parse_example)


# %% tags=["check"]
folder = Path(tempfile.mkdtemp())
lines = [
    '{"prompt": "What is 3*4?", "response": "12"}',
    '{"prompt": "What is 12-2?", "response": "10"',
    '{"prompt": "What is 5+5?"}',
    "",
    '{"prompt": "Name a color.", "response": "Blue."}',
    '{"prompt": "Name a shape.", "response": null}',
]
path = folder / "sft.jsonl.gz"
path.write_bytes(gzip.compress("\n".join(lines).encode()))
examples, broken = load_examples(path)
assert examples == [
    Example("What is 3*4?", "12"),
    Example("Name a color.", "Blue."),
]
assert [row.line for row in broken] == [2, 3, 4, 6]

# %%
for line, problem in broken:
    print(f"line {line}: {problem}")

# %% [markdown]
# ## A template
#
# A base model continues documents. That a question is to be answered has to be said around it, and
# in the same words when the model is trained and when it is asked. The supplement takes the words
# of Alpaca {cite}`taori2023alpaca`. What stands after the last line is the response.

# %% tags=["definition"]
from gsmrl_helpers.sft_data import ALPACA_TEMPLATE, PROMPT_FIELD


def fill_template(template: str, prompt: str) -> str:
    """The text before the response. Not `str.format`: braces in a prompt stay."""
    if (n_fields := template.count(PROMPT_FIELD)) != 1:
        raise ValueError(
            f"a template must hold {PROMPT_FIELD} exactly once, found {n_fields}"
        )
    return template.replace(PROMPT_FIELD, prompt)


# %% tags=["check"]
assert fill_template("Q: {prompt}\nA:", "f{x} = ?") == "Q: f{x} = ?\nA:"

# %%
print(
    fill_template(ALPACA_TEMPLATE, examples[0].prompt) + examples[0].response
)

# %% [markdown]
# ## One stream, cut into chunks
#
# Texts have different lengths and a GPU wants rectangles. The supplement's way is the one of
# pretraining. Each document ends with the end token, all documents are joined into one stream, and
# the stream is cut into chunks of $L$ tokens. Nothing is padded; only the rest at the end is
# dropped. The labels are the same stream, one token on:
#
# $$
# \underbrace{0\ 1\ 2\ 3}_{\text{inputs}}\, 4 \quad\to\quad \underbrace{1\ 2\ 3\ 4}_{\text{labels}},
# \qquad \underbrace{4\ 5\ 6\ 7}_{\text{inputs}}\, 8 \quad\to\quad \underbrace{5\ 6\ 7\
# 8}_{\text{labels}} .
# $$
#
# The last label of a chunk is the first input of the next, so that no token of the stream but the
# first goes unpredicted. A chunk needs $L + 1$ tokens of the stream: of ten tokens two chunks of
# four can be cut, of eight only one.

# %% tags=["definition"]
from collections.abc import Iterable
from itertools import chain


class PackedDataset(Dataset):
    """Documents joined into one stream and cut into chunks of L tokens."""

    def __init__(
        self,
        documents: Iterable[Sequence[int]],
        seq_length: int,
        broken: Sequence[BrokenRow] = (),
    ) -> None:
        if seq_length < 1:
            raise ValueError(
                f"seq_length={seq_length}: a chunk needs at least 1 token"
            )
        self.stream = torch.tensor(
            [*chain.from_iterable(documents)], dtype=torch.int64
        )
        self.seq_length = seq_length
        self.broken = list(broken)

    def __len__(self) -> int:
        # every chunk needs one token more, the label of its last position
        return max(0, len(self.stream) - 1) // self.seq_length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"chunk {index} of {len(self)}")
        start = index * self.seq_length
        chunk = self.stream[start : start + self.seq_length + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[1:]}


# %% tags=["check"]
dataset = PackedDataset([[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]], seq_length=4)
found = [(c["input_ids"].tolist(), c["labels"].tolist()) for c in dataset]
assert found == [
    ([0, 1, 2, 3], [1, 2, 3, 4]),
    ([4, 5, 6, 7], [5, 6, 7, 8]),
]
assert [len(PackedDataset([range(n)], 4)) for n in (4, 5, 8, 9)] == [
    0,
    1,
    1,
    2,
]

# %% [markdown]
# Before that, texts become ids. Prompt and response are one text here, with the special token in
# front that some tokenizers add, such as Llama's `<|begin_of_text|>`, and with the end token. The
# end token must be learned: a model that has never seen it after an answer does not stop.

# %% tags=["definition"]
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.sft_data import end_token_id


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """A document's ids, ended by the end token, which stands there once."""
    end, ids = end_token_id(tokenizer), tokenizer.encode(text)
    return ids if ids and ids[-1] == end else [*ids, end]


# %% tags=["check"]
config = experiment_config("on-policy")
model, tokenizer = load_policy(config)
model.eval()
ids = encode_text(tokenizer, "First 3*4=12.")
assert tokenizer.decode(ids) == "First 3*4=12.<|endoftext|>"
assert encode_text(tokenizer, "First 3*4=12.<|endoftext|>") == ids

# %% [markdown]
# `get_packed_sft_dataset` puts it together. Documents are shuffled before they are joined, with a
# seed; broken rows are left out with a warning and stand in the data set's `broken`.

# %% tags=["definition", "solution"]
from gsmrl_helpers.sft_data import report_broken


def get_packed_sft_dataset(
    tokenizer: PreTrainedTokenizerBase,
    dataset_path: str | Path,
    seq_length: int,
    shuffle: bool,
    *,
    seed: int = 0,
    template: str = ALPACA_TEMPLATE,
) -> PackedDataset:
    """Instruction data as chunks of `seq_length` tokens, prompts and responses alike."""
    examples, broken = load_examples(dataset_path)
    report_broken(dataset_path, broken)
    if not examples:
        raise ValueError(
            f"{dataset_path} has no usable row, and {len(broken)} broken ones"
        )
    if shuffle:
        random.Random(seed).shuffle(examples)
    texts = [
        fill_template(template, prompt) + response
        for prompt, response in examples
    ]
    return PackedDataset(
        [encode_text(tokenizer, text) for text in texts], seq_length, broken
    )


# %% tags=["check"]
rows = [{"prompt": f"{i}+{i}?", "response": f"{2 * i}"} for i in range(30)]
clean = folder / "clean.jsonl"
clean.write_text("".join(json.dumps(row) + "\n" for row in rows))
packed, again, shuffled = (
    get_packed_sft_dataset(tokenizer, clean, 64, shuffle)
    for shuffle in (False, True, True)
)
assert tokenizer.decode(packed.stream).endswith("58<|endoftext|>")
assert torch.equal(again.stream, shuffled.stream)
assert not torch.equal(packed.stream, shuffled.stream)
assert len(packed.stream) == len(shuffled.stream)
assert (packed.stream == tokenizer.eos_token_id).sum() == len(rows)

# %% [markdown]
# `iterate_batches` makes one pass over the chunks. The order has a generator of its own: whatever
# else draws random numbers in the program, the same seed gives the same batches.


# %% tags=["definition", "solution"]
def iterate_batches(
    dataset: Dataset, batch_size: int, shuffle: bool, *, seed: int = 0
) -> DataLoader:
    """One pass over the chunks in batches; the last may be smaller."""
    if batch_size < 1:
        raise ValueError(
            f"batch_size={batch_size}: a batch needs at least 1 chunk"
        )
    order = torch.Generator().manual_seed(seed)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=shuffle, generator=order
    )


# %% tags=["check"]
passes = []
for noise in (1, 2):
    torch.manual_seed(noise)
    batches = list(iterate_batches(packed, batch_size=8, shuffle=True))
    assert len(batches) == -(-len(packed) // 8)
    passes.append(torch.cat([batch["input_ids"] for batch in batches]))
assert torch.equal(*passes)
in_order = torch.stack([chunk["input_ids"] for chunk in packed])
assert sorted(passes[0].tolist()) == sorted(in_order.tolist())
assert not torch.equal(passes[0], in_order)

# %% [markdown]
# ## What the cuts do
#
# How much is lost at the borders? The documents below are pocket problems with worked solutions, in
# the prompt `r1_zero` and with the answers in its tags, as `write_examples` makes them from a seed.

# %%
prompt = config.prompt_object()
examples = write_examples(load_problems(config, "train")[:N_EXAMPLES], seed=0)
print(examples[2].prompt)
print(examples[2].response)

# %% [markdown]
# `encode_example` makes ids of one of them, and says which are the response's. Prompt and response
# are encoded apart, as they are when an answer is sampled ({doc}`08_tokenization_and_masks`).


# %% tags=["definition"]
class Encoded(NamedTuple):
    """A document's token ids, and which are the response's (its end token included)."""

    ids: list[int]
    is_response: list[bool]


def encode_example(
    tokenizer: PreTrainedTokenizerBase, prompt: str, response: str
) -> Encoded:
    """Prompt and response, encoded apart as in sampling, then the end token."""
    prompt_ids = encode(tokenizer, prompt)
    response_ids = [*encode(tokenizer, response), end_token_id(tokenizer)]
    is_response = [False] * len(prompt_ids) + [True] * len(response_ids)
    return Encoded(prompt_ids + response_ids, is_response)


# %% tags=["check"]
one = encode_example(tokenizer, "What is 3*4?", " 12")
assert tokenizer.decode(one.ids) == "What is 3*4? 12<|endoftext|>"
assert one.is_response.index(True) == len(encode(tokenizer, "What is 3*4?"))

# %%
documents = [
    encode_example(tokenizer, prompt.format(question), response)
    for question, response in examples
]

# %%
some = documents[:48]
lengths = [len(document.ids) for document in some]
n_responses = sum(sum(document.is_response) for document in some)
print(f"{sum(lengths)} tokens, {min(lengths)} to {max(lengths)} a document")
print(f"{n_responses / sum(lengths):.0%} of them are responses")

# %% [markdown]
# Cut into chunks of 256 tokens, a chunk holds at most one whole document, and parts of others.
# The untrained policy says what that does to a label: how surprised is it, in nats, with and
# without the beginning of the document in view?

# %%
L = 256
chunked = PackedDataset([document.ids for document in some], L)
inputs, labels = (
    torch.stack([chunk[name] for chunk in chunked])
    for name in ("input_ids", "labels")
)

# %%
with torch.no_grad():
    log_probs = model(inputs, use_cache=False).logits.log_softmax(-1)
nats = -log_probs.gather(-1, labels[..., None])[..., 0]
nats.shape

# %%
n_labels = labels.numel()
place = torch.arange(1, n_labels + 1).view_as(
    labels
)  # of a label, in the stream
borders = torch.tensor([0, *itertools.accumulate(lengths)])
document_of = torch.searchsorted(borders, place, right=True) - 1
flags = [flag for document in some for flag in document.is_response]
in_response = torch.tensor(flags)[place]
starts_here = borders[document_of] >= (place - 1) // L * L

# %%
kinds = {
    "response, its document begins in the chunk": in_response & starts_here,
    "response, its document was cut": in_response & ~starts_here,
    "first token of the next document": place == borders[document_of],
}
cuts = pd.DataFrame(
    [
        (kind, int(m.sum()), nats[m].mean().item())
        for kind, m in kinds.items()
    ],
    columns=["label", "how many", "nats"],
)
HTML(as_html(cuts.round(2).astype(str)))

# %% tags=["check"]
whole, cut, across = cuts["nats"]
assert cut > 4 * whole and across > 100 * whole
n_whole, n_cut, _ = cuts["how many"]
assert 0.45 < n_cut / (n_whole + n_cut) < 0.55
assert cuts["how many"][2] == len(set(document_of.flatten().tolist())) - 1

# %% [markdown]
# Half of the response tokens stand in a chunk in which their question does not. What is learned
# from them is to answer unseen questions: to guess. And each end token gets the beginning of an
# unrelated document as its label, the most surprising one of all for this policy, whose pretraining
# never asked for it.
#
# That a whole document also *sees* the one before it costs little in comparison, as the exercise
# {ref}`ex-26-neighbours` measures. For documents that are much longer than $L$, as in pretraining,
# the borders hardly count. For instructions of a hundred tokens they do.
#
# ## Whole documents, side by side
#
# The better way, packing without contamination {cite}`krell2021packing`, keeps the row without
# padding and gives up the equal lengths. A row takes the next document as long as it fits.


# %% tags=["definition"]
def fill_rows(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of the documents of each row: the next document, as long as it fits."""
    if max_tokens < 1:
        raise ValueError(
            f"max_tokens={max_tokens}: a row needs at least 1 token"
        )
    row: list[int] = []
    used = 0
    for index, length in enumerate(lengths):
        if row and used + length > max_tokens:
            yield row
            row, used = [], 0
        row.append(index)
        used += length
    if row:
        yield row


# %% tags=["check"]
assert list(fill_rows([3, 4, 3, 9, 1, 1], 8)) == [[0, 1], [2], [3], [4, 5]]

# %% [markdown]
# `flatten` lays the documents of a row side by side. The *position ids* restart at each, so that a
# token knows its place in its document and not in the row. The last token of a document has no
# label: −100 is torch's sign for a position that does not count. Unless prompts are to be
# learned, too, so have all labels in prompts.

# %% tags=["definition"]
from gsmrl_helpers.packing import IGNORED


def flatten(
    documents: Sequence[Encoded], train_on_prompt: bool = False
) -> dict[str, Tensor]:
    """Documents as one row of T tokens, whose positions restart at each."""
    ids, labels, positions = [], [], []
    for document in documents:
        counts = [
            train_on_prompt or response for response in document.is_response
        ]
        targets = [
            i if c else IGNORED
            for i, c in zip(document.ids, counts, strict=True)
        ]
        ids += document.ids
        labels += [*targets[1:], IGNORED]
        positions += range(len(document.ids))
    row = {"input_ids": ids, "labels": labels, "position_ids": positions}
    return {name: torch.tensor([values]) for name, values in row.items()}


# %% tags=["check"]
two = [
    Encoded([5, 6, 7, 1], [False, False, True, True]),
    Encoded([8, 9], [False, True]),
]
row = flatten(two)
assert row["labels"].tolist() == [[-100, 7, 1, -100, 9, -100]]
assert row["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1]]
everything = flatten(two, train_on_prompt=True)
assert everything["labels"].tolist() == [[6, 7, 1, -100, 9, -100]]

# %% [markdown]
# transformers has the same thing as `DataCollatorWithFlattening`, with one difference: its labels
# are not shifted, the model does it. Shifted by one they are ours.

# %% tags=["check"]
features = [{"input_ids": document.ids} for document in some[:5]]
theirs = DataCollatorWithFlattening()(features, return_tensors="pt")
ours = flatten(some[:5], train_on_prompt=True)
assert torch.equal(ours["input_ids"], theirs["input_ids"])
assert torch.equal(ours["position_ids"], theirs["position_ids"])
assert torch.equal(ours["labels"][:, :-1], theirs["labels"][:, 1:])

# %% [markdown]
# Positions alone do not keep documents apart. A token must not look at an earlier document: the
# causal mask becomes one triangle a document.


# %% tags=["definition"]
def block_causal_mask(position_ids: Tensor) -> Tensor:
    """Who may look at whom: (B, T) positions to (B, 1, T, T) bool."""
    document = (position_ids == 0).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril()[:, None]


# %% tags=["check"]
mask = block_causal_mask(torch.tensor([[0, 1, 0, 1, 2]]))
assert mask[0, 0].int().tolist() == [
    [1, 0, 0, 0, 0],
    [1, 1, 0, 0, 0],
    [0, 0, 1, 0, 0],
    [0, 0, 1, 1, 0],
    [0, 0, 1, 1, 1],
]

# %% tags=["hide-input"]
row = flatten(some[:3])
may_look = block_causal_mask(row["position_ids"])[0, 0]
n_tokens = len(may_look)
causal = torch.ones(n_tokens, n_tokens).tril()
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
for ax, allowed, title in zip(
    axes, (causal, may_look), ("One stream", "Whole documents"), strict=True
):
    ax.imshow(
        allowed, cmap="Greys", vmin=0, vmax=1.6, interpolation="nearest"
    )
    counted = (row["labels"][0] != IGNORED).nonzero().flatten()
    ax.plot(
        np.full(len(counted), n_tokens + 6), counted, "s", ms=2, clip_on=False
    )
    ax.set(
        title=title,
        xlabel="token that is looked at",
        ylabel="token that looks",
    )
    ax.grid(False)
plt.show()

# %% [markdown]
# *Three documents in a row of some 450 tokens. Grey: may be looked at. Left, what a causal model
# does with one stream; right, the mask of whole documents. The marks at the right edge are the
# positions whose labels count, the responses.*
#
# The check of all this is simple: in the row each document must have the logits that it has alone.
# There is a trap on the way. transformers derives the block mask from restarting positions by
# itself, but only when it keeps no cache of keys and values, and keeping one is the default. With
# it the positions restart, every document sees all before it, and nothing is said.

# %%
inputs = {name: row[name] for name in ("input_ids", "position_ids")}
with torch.no_grad():
    alone = torch.cat(
        [model(torch.tensor([d.ids])).logits for d in some[:3]], dim=1
    )
    ways = {
        "use_cache=False": model(**inputs, use_cache=False).logits,
        "use_cache=True, the default": model(**inputs).logits,
    }
for name, logits in ways.items():
    error = (logits - alone).abs().max().item()
    print(f"{name}: logits are off by up to {error:.1f}")

# %% [markdown]
# So `packed_logits` hands the mask over. (FlashAttention takes none and always goes by the
# positions.) It is given as numbers that are added to the attention scores, 0 or as good as
# $-\infty$.

# %% tags=["definition"]
from transformers import PreTrainedModel


def packed_logits(model: PreTrainedModel, row: dict[str, Tensor]) -> Tensor:
    """(1, T, V) logits of a row, each document's as if it were alone."""
    mask = None
    if model.config._attn_implementation != "flash_attention_2":
        may_look = block_causal_mask(row["position_ids"])
        # added to the scores: eager attention would add a bool mask's 0 and 1
        mask = (
            may_look.logical_not().to(model.dtype)
            * torch.finfo(model.dtype).min
        )
    return model(
        input_ids=row["input_ids"],
        position_ids=row["position_ids"],
        attention_mask=mask,
        use_cache=False,
    ).logits


# %% tags=["check"]
with torch.no_grad():
    assert (packed_logits(model, row) - alone).abs().max() < 1e-3
    assert (ways["use_cache=False"] - alone).abs().max() < 1e-3
    assert (ways["use_cache=True, the default"] - alone).abs().max() > 10

# %% [markdown]
# ## The loss, and what it is divided by
#
# The loss is the mean of $-\log \pi$ over the labels that count. Memory often holds only a part of
# a batch, a *microbatch*, and gradients of several are added up. Then the divisor must be the
# number of labels in the whole batch. Dividing each part by its own number gives the mean of means,
# in which a token of a short answer weighs more than one of a long answer, by how the parts
# happened to be cut. ({doc}`12_grpo_train_step` has the same trap for GRPO.)


# %% tags=["definition"]
def sft_loss(logits: Tensor, labels: Tensor, n_labels: int) -> Tensor:
    """-log π of the labels that count, summed and divided by `n_labels`."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
    return total / n_labels


# %% tags=["check"]
logits = torch.zeros(1, 4, 8)  # 8 tokens, all equally likely: ln 8 = 2.079
logits[0, 0, 3] = 50  # and one that is certain
labels = torch.tensor([[3, 5, 1, IGNORED]])
assert abs(sft_loss(logits, labels, 3).item() - 2 / 3 * 2.079) < 1e-3
parts = [
    sft_loss(logits[:, i : i + 2], labels[:, i : i + 2], 3) for i in (0, 2)
]
assert abs(sum(parts).item() - 2 / 3 * 2.079) < 1e-3

# %%
by_parts = [(labels[:, i : i + 2] != IGNORED).sum().item() for i in (0, 2)]

# %%
own = [
    sft_loss(logits[:, i : i + 2], labels[:, i : i + 2], n).item()
    for i, n in zip((0, 2), by_parts, strict=True)
]
print(f"labels in the parts: {by_parts}")
print(
    f"mean over all labels: {sum(parts):.3f}, mean of means: {sum(own) / 2:.3f}"
)

# %% [markdown]
# `sft_step` is a step of the optimizer without any trainer: rows in, one row's gradient at a time,
# the norm bounded, and a gradient that is not finite refused before it reaches the weights.

# %% tags=["definition"]
import math

from torch import nn


def sft_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[dict[str, Tensor]],
    max_grad_norm: float,
) -> dict[str, float]:
    """One step of the optimizer on the rows of a batch, one row at a time."""
    n_labels = sum(int((row["labels"] != IGNORED).sum()) for row in rows)
    if not n_labels:
        raise ValueError(
            "no label of this batch counts: are all of its responses empty?"
        )
    total = 0.0
    for row in rows:
        row = {name: values.to(model.device) for name, values in row.items()}
        loss = sft_loss(packed_logits(model, row), row["labels"], n_labels)
        loss.backward()
        total += loss.item()
    grad_norm = nn.utils.clip_grad_norm_(
        model.parameters(), max_grad_norm
    ).item()
    if math.isfinite(grad_norm):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if not math.isfinite(grad_norm):
        raise FloatingPointError(
            f"the gradient's norm is {grad_norm}; lower the learning rate"
        )
    return {"loss": total, "grad_norm": grad_norm, "n_labels": n_labels}


# %% [markdown]
# The check takes a step of length 0 twice, with four documents in one row and in four.

# %% tags=["check"]
still = torch.optim.SGD(model.parameters(), lr=0.0)
together, apart = (
    sft_step(model, still, rows, max_grad_norm=1.0)
    for rows in ([flatten(some[:4])], [flatten([d]) for d in some[:4]])
)
assert together["n_labels"] == apart["n_labels"]
assert abs(together["loss"] - apart["loss"]) < 1e-4
assert abs(together["grad_norm"] / apart["grad_norm"] - 1) < 1e-3

# %% [markdown]
# What is left is a schedule and the order of the documents. The learning rate rises over the first
# steps, 3 % of the run in the supplement, and then falls along a cosine.


# %% tags=["definition"]
def learning_rate_factor(
    step: int, n_steps: int, warmup_share: float
) -> float:
    """Linear warm-up over a share of the steps, then a cosine that ends at 0."""
    n_warmup = math.ceil(warmup_share * n_steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = (step - n_warmup) / (n_steps - n_warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


# %% tags=["check"]
factors = [learning_rate_factor(step, 100, 0.03) for step in range(100)]
assert np.allclose(factors[:4], [1 / 3, 2 / 3, 1, 1])
assert np.allclose(factors[3 + 48], 0.508, atol=1e-3) and factors[-1] < 1e-3

# %% [markdown]
# Every epoch has each document once, in an order that seed and epoch decide. How many tokens a row
# may have is a matter of memory and changes no batch.

# %% tags=["definition"]
from gsmrl_helpers.sft import SFTConfig


def sft_batches(
    documents: Sequence[Encoded], config: SFTConfig
) -> Iterator[list[dict[str, Tensor]]]:
    """The rows of each step: in every epoch all documents once."""
    for epoch in range(config.n_epochs):
        order = list(range(len(documents)))
        random.Random(derive_seed(config.seed, "sft", epoch)).shuffle(order)
        for start in range(0, len(order), config.batch_size):
            batch = [
                documents[index]
                for index in order[start : start + config.batch_size]
            ]
            lengths = [len(document.ids) for document in batch]
            yield [
                flatten(
                    [batch[index] for index in row], config.train_on_prompt
                )
                for row in fill_rows(lengths, config.max_tokens)
            ]


# %% tags=["check"]
settings = SFTConfig(batch_size=64, n_epochs=2, max_tokens=512)
steps = list(sft_batches(documents, settings))
n_documents = [
    sum(int((row["position_ids"] == 0).sum()) for row in rows)
    for rows in steps
]
assert n_documents == [64] * 6
longest = max(row["labels"].numel() for rows in steps for row in rows)
assert longest <= 512 and len(steps[0]) > 10
other_rows = list(
    sft_batches(documents, settings.model_copy(update={"max_tokens": 4096}))
)
first, second = (
    torch.cat([row["input_ids"] for row in rows[0]], dim=1)
    for rows in (steps, other_rows)
)
assert torch.equal(first, second)

# %% [markdown]
# The run is a loop over these batches. It is a generator: between two steps the caller may look at
# the policy.


# %% tags=["definition"]
def train_sft(
    model: PreTrainedModel, documents: Sequence[Encoded], config: SFTConfig
) -> Iterator[dict[str, float]]:
    """Fine-tune the model in place; what `sft_step` says of each step."""
    if not documents:
        raise ValueError("no documents to train on")
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=config.weight_decay,
    )
    n_steps = config.n_epochs * math.ceil(len(documents) / config.batch_size)
    for step, rows in enumerate(sft_batches(documents, config)):
        rate = config.learning_rate * learning_rate_factor(
            step, n_steps, config.warmup_share
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        made = sft_step(model, optimizer, rows, config.max_grad_norm)
        yield {"step": step + 1, "learning_rate": rate, **made}


# %% [markdown]
# ## A short run
#
# Twelve runs of it are on record (`gsmrl record sft`), four seeds each of three kinds:
#
# - `response only`: 192 worked solutions, right ones, seen once, 16 a step. So there are 12 steps.
# - `prompt too`: the same, with the tokens of prompts counted as well.
# - `with slips`: responses only, and each solution has a slip in it with probability .4, mostly
#   one that makes the answer wrong.
#
# The first three steps of one of the runs, taken here, come out as recorded.

# %% tags=["check"]
settings = SFTConfig(learning_rate=LEARNING_RATE, max_tokens=512)
made = list(itertools.islice(train_sft(model, documents, settings), 3))
results = read_recording("sft")
of_run = results.query("variant == 'response only' and seed == 0")
losses = of_run[of_run["metric"] == "loss"].set_index("step")["value"]
for step in made:
    assert abs(step["loss"] - losses[step["step"]]) < 1e-3

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.3), layout="constrained")
panels = {
    "Responses, held out": ("response_loss", "nats a token"),
    "Right": ("curve_mean_answer_reward", "share"),
    "In format": ("curve_mean_format_reward", "share"),
}
for ax, (title, (metric, unit)) in zip(axes, panels.items(), strict=True):
    plot_curves(ax, results, metric)
    ax.set(title=title, ylabel=unit)
    if unit == "share":
        ax.set_ylim(-0.03, 1.03)
axes[0].legend(loc="upper right", fontsize=8)
plt.show()

# %% [markdown]
# *Left: the loss of response tokens of 48 right solutions that no run saw. Middle and right: one
# answer at temperature 1 to each of 128 validation problems. Every seed is drawn faintly, the mean
# with ± 1.96 σ/√n. All three learn the format. The loss and the share of right answers are better
# where the imitated solutions are right.*

# %%
METRICS = {
    "response_loss": "loss of responses",
    "prompt_loss": "loss of prompts",
    "curve_mean_answer_reward": "right",
    "curve_mean_format_reward": "in format",
}

# %%
ends = pd.concat(
    curves(results, metric).assign(metric=name)
    for metric, name in METRICS.items()
)
ends = ends[ends["step"].isin([0, 12])]
ends = ends.pivot(index=["variant", "step"], columns="metric", values="mean")
ends[list(METRICS.values())].round(3)

# %% tags=["check"]
start, end = (ends.loc[("response only", step)] for step in (0, 12))
assert (
    abs(start["right"] - 0.078) < 0.0005
    and abs(end["right"] - 0.451) < 0.0005
)
assert abs(start["loss of responses"] - 0.141) < 0.0005
assert abs(end["loss of responses"] - 0.065) < 0.0005
assert ends.xs(12, level="step")["in format"].min() > 0.9

# %% [markdown]
# In twelve steps the share of right answers goes from .08 to .45. GRPO starts at the same place,
# .09 on twice as many problems, and passes .45 between its steps 20 and 30.


# %%
grpo = curves(read_recording("on-policy"), "curve_mean_answer_reward")
grpo = grpo.set_index("step")["mean"]
per_step = config.rollout_batch_size
for step in (0, 20, 30, 100):
    print(
        f"GRPO, step {step}: {step * per_step} answers, {grpo[step]:.2f} right"
    )

# %% tags=["check"]
assert abs(grpo[0] - 0.09) < 0.005 and abs(grpo[100] - 0.61) < 0.005
assert grpo[20] < end["right"] < grpo[30]

# %% [markdown]
# The two are not paid alike. SFT was given 192 worked solutions, and GRPO sampled five to eight
# thousand answers and was told nothing but whether they were right. Where good solutions can be
# had, imitation is the cheap start, and the usual one. GRPO goes on to .61, by what the policy does
# right itself. This is no fair race: no setting was chosen for it, and at pocket scale both mostly
# bring out what the policy can do already ({doc}`00_pocket_world`).
#
# What did the choice of tokens matter? The verdicts of {doc}`14_on_policy_results`, by seeds:


# %%
def verdict(metric: str, variant: str, higher_is_better: bool = True):
    finals = final_values(results, metric)
    return compare(
        finals, variant, "response only", higher_is_better=higher_is_better
    )


print(verdict("response_loss", "prompt too", higher_is_better=False))
print(verdict("curve_mean_answer_reward", "prompt too"))

# %% [markdown]
# Counting the prompts means that four of five labels are not what the policy is to learn. Prompts
# of this kind hold nothing for it: their words are known, their numbers are drawn by chance, and
# their loss stays where it was. What that costs the responses is little, and the share of right
# answers does not show it. With prompts that say something, or few examples, it can be otherwise;
# which is why the choice belongs into an experiment's description.

# %% tags=["check"]
less = verdict("response_loss", "prompt too", higher_is_better=False)
assert less.word == "worse" and 0 < less.difference < 0.003
assert verdict("curve_mean_answer_reward", "prompt too").word == "can't tell"
moved = ends["loss of prompts"].max() - ends["loss of prompts"].min()
assert moved < 0.001

# %% tags=["check"]
counted = (
    results[results["metric"] == "n_labels"].groupby("variant")["value"].sum()
)
assert 0.17 < counted["response only"] / counted["prompt too"] < 0.19

# %% [markdown]
# The slips matter more. SFT has the weight 1 for a wrong solution as for a right one, and what it
# learns is the teacher, mistakes included.

# %%
print(verdict("curve_mean_answer_reward", "with slips"))

# %%
slipped = write_examples(
    load_problems(config, "train")[:N_EXAMPLES], seed=0, slip_share=0.4
)
right = np.mean(
    [
        prompt.reward_fn(example.response, problem.gold)["answer_reward"]
        for example, problem in zip(
            slipped, load_problems(config, "train"), strict=False
        )
    ]
)
print(f"right among the imitated solutions: {right:.0%}")

# %% tags=["check"]
slips = verdict("curve_mean_answer_reward", "with slips")
assert slips.word == "worse" and -0.2 < slips.difference < -0.05
assert 0.55 < right < 0.70

# %% [markdown]
# With a checker the remedy is at hand: imitate only what it accepts. Applied to the policy's own
# answers that is RFT, one of the variants of {doc}`18_difficulty_reweighting`.
#
# ## Llama 3.1 8B
#
# The supplement fine-tunes Llama 3.1 8B on single-turn conversations: sequences of 512 tokens, 32 a
# step, one epoch, a learning rate of 2e-5. The same functions do it, with whole documents in the
# place of its chunks. We have not run this cell. Weights, gradients and both moments of AdamW in
# float32 take 16 bytes a parameter, 128 GB; `autocast` computes in bf16. On smaller cards the
# adapters of {doc}`29_hardware` are the way.

# %% tags=["gpu", "nbval-skip"]
from transformers import AutoModelForCausalLM, AutoTokenizer

name, data = "meta-llama/Llama-3.1-8B", Path("data/sft/train.jsonl.gz")
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).cuda()
model.gradient_checkpointing_enable()
examples, broken = load_examples(data)
print(len(examples), "examples,", len(broken), "broken rows")
documents = [
    encode_example(
        tokenizer,
        tokenizer.bos_token + fill_template(ALPACA_TEMPLATE, question),
        response,
    )
    for question, response in examples
]
settings = SFTConfig(batch_size=32, max_tokens=4096, learning_rate=2e-5)
with torch.autocast("cuda", dtype=torch.bfloat16):
    for made in train_sft(model.train(), documents, settings):
        print(made)
model.save_pretrained("runs/llama-3.1-8b-sft")
tokenizer.save_pretrained("runs/llama-3.1-8b-sft")

# %% [markdown]
# ## Take away
#
# - SFT is the policy gradient with weight 1 on someone else's samples. As a reward on one's own
#   samples it is $q/\pi$: it can teach what the policy would never sample, and it ends at the
#   teacher, mistakes included.
# - A reader of other people's files returns what it read and what it could not read, by line.
# - Chunks of one stream cut questions from their answers and make the next document's beginning a
#   label. Whole documents side by side need restarting positions, a block mask, and no label at
#   their ends. That the mask is there is checked: logits in the row equal logits alone.
# - The loss is divided by the labels of the whole batch. Say whether prompts count.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Which documents are cut
# :label: ex-26-cut
#
# *Easy, 10 minutes.* Documents of given lengths are joined, and the stream is cut every `L` tokens.
# Write `n_cut(lengths, L)`: how many documents have tokens on both sides of a cut. The check puts
# it beside the chance $(n - 1)/L$ with which a cut meets a document of $n \le L$ tokens.
#
# :::{dropdown} Hint
# A document from `start` to `end` (not included) is whole if its first and last token are in one
# chunk: `start // L == (end - 1) // L`.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def n_cut(lengths: Sequence[int], L: int) -> int:
    ends = list(itertools.accumulate(lengths))
    starts = [0, *ends[:-1]]
    pairs = zip(starts, ends, strict=True)
    return sum(start // L != (end - 1) // L for start, end in pairs)


# %% tags=["check"]
assert n_cut([4, 4, 4], 4) == 0 and n_cut([3, 4, 4], 4) == 2
assert n_cut([1] * 50, 7) == 0 and n_cut([10], 4) == 1
rng = np.random.default_rng(0)
drawn = rng.integers(20, 200, 20_000)
chance = np.mean((drawn - 1) / 256)
assert abs(n_cut(drawn.tolist(), 256) / len(drawn) - chance) < 0.01

# %% [markdown]
# ```{exercise} A neighbour in view
# :label: ex-26-neighbours
#
# *Medium, 15 minutes.* How much does it cost that a whole document sees the one before it? Write
# `seen_and_alone(model, first, second)`: the mean loss of the second document's response tokens,
# once in one stream behind the first (one causal mask, positions running on) and once alone.
#
# :::{dropdown} Hint
# `sft_loss(logits, labels, n)` with the labels of `flatten([second])`. In the stream take the last
# `len(second.ids)` positions of `model(ids, use_cache=False).logits`.
# :::
# ```


# %% tags=["solution", "hide-cell"]
@torch.no_grad()
def seen_and_alone(
    model, first: Encoded, second: Encoded
) -> tuple[float, float]:
    labels = flatten([second])["labels"]
    n_labels = int((labels != IGNORED).sum())
    n = len(second.ids)
    losses = [
        sft_loss(
            model(torch.tensor([ids]), use_cache=False).logits[:, -n:],
            labels,
            n_labels,
        ).item()
        for ids in (first.ids + second.ids, second.ids)
    ]
    return losses[0], losses[1]


# %% tags=["check"]
untrained, _ = load_policy(config)
untrained.eval()
measured = [
    seen_and_alone(untrained, *some[at : at + 2]) for at in range(0, 16, 2)
]
assert all(abs(a - b) > 1e-6 for a, b in measured)
seen, by_itself = np.mean(measured, axis=0)
assert (
    abs(by_itself - 0.14) < 0.02 and abs(seen - by_itself) < 0.1 < cut - whole
)

# %% [markdown]
# ```{exercise} The weight of a token
# :label: ex-26-weights
#
# *Easy, 5 minutes.* A batch is cut into microbatches with `counts` labels each, and the loss is the
# mean of their means. Write `token_weights(counts)`: what a token of each microbatch weighs, as a
# multiple of what it weighs in the mean over all labels.
#
# :::{dropdown} Hint
# In the mean of means a token of a part with $n_k$ of $N$ labels weighs $1/(K n_k)$, $K$ being the
# number of parts; in the mean over all labels $1/N$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def token_weights(counts: Sequence[int]) -> list[float]:
    return [sum(counts) / (len(counts) * count) for count in counts]


# %% tags=["check"]
assert token_weights([5, 5, 5]) == [1.0, 1.0, 1.0]
assert np.allclose(token_weights([2, 1]), [0.75, 1.5])
for counts in ([3, 9], [1, 10, 100], [7]):
    weights = token_weights(counts)
    assert abs(np.dot(weights, counts) - sum(counts)) < 1e-9
    assert np.allclose(np.array(weights) * counts, weights[0] * counts[0])

# %% [markdown]
# ## Next
#
# The other two parts of the supplement measure the fine-tuned model on benchmarks,
# {doc}`27_benchmarks`, and train it on pairs of answers, of which one was preferred,
# {doc}`28_dpo_on_hh`. {doc}`06_reward_functions` says when a run of reinforcement learning should
# start with some SFT.
