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
# # Tokens and masks
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** turn prompts and sampled responses into the three tensors that a
# policy gradient is computed from, and to tell a mask that is off by one from a right one.
#
# **You need** Python and an idea of what a language model does; the last sections sample from the
# policy of {doc}`00_pocket_world`. **Reading** takes 20 minutes, **running** about 15 seconds, on a
# **CPU**.
# ```
#
# The policy $\pi_\theta$ is a language model with parameters $\theta$. Given a prompt $x$ it
# samples a response $y$, one token after the other, and a program grades the response. What the
# gradient then needs is $\log \pi_\theta(y_t \mid x, y_{<t})$ for each sampled token $y_t$: the
# log-probability that the policy gives it after the prompt and the earlier tokens $y_{<t}$.
#
# For that, a batch of texts must become tensors. A few lines do it, and it is easy to be off by one
# in them. Nothing complains then: the loss is finite, the gradient flows, and the policy learns
# from tokens that it never chose.

# %%
import random
from collections.abc import Sequence
from functools import partial
from html import escape

import pandas as pd
import torch
from IPython.display import HTML
from tokenizers import Tokenizer, decoders, models, processors
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from gsmrl_helpers import (
    LocalEngine,
    SamplingParams,
    experiment_config,
    get_prompt,
    get_response_log_probs,
    load_policy,
    load_problems,
    small_batch,
)
from gsmrl_helpers.tokenization import check_rows

# %% [markdown]
# ## Two prompts, eight responses
#
# This batch is carried through chapters 08 to 12. Two prompts got four responses each. In these
# chapters $B$ is the number of prompts, $G$ that of responses to each, and $N = B \cdot G$ that of
# rows in a tensor: here 2, 4 and 8. The responses are numbered 1 to 8. A token is a word between
# spaces, and the vocabulary has ten of them.

# %%
tokenizer = small_batch.make_tokenizer()
vocabulary = small_batch.VOCABULARY
prompts = small_batch.repeated_prompts
responses = small_batch.rollout_responses
rollouts = pd.DataFrame(
    {"prompt": prompts, "response": responses}, index=range(1, 9)
)
rollouts.assign(tokens=[len(text.split()) for text in responses])

# %% [markdown]
# `<eos>` is the end-of-sequence token. In response 1 the policy sampled it, which is how a
# model says that it is done. The other responses were stopped from outside, by a stop string or a
# limit on their length.

# %% tags=["check"]
assert len(vocabulary) == 10 and len(responses) == 2 * 4
assert sum(len(text.split()) for text in responses) == 20
assert [text.endswith("<eos>") for text in responses] == [True] + [False] * 7

# %% [markdown]
# ## One row by hand
#
# Take response 1. Its prompt has four tokens and so has the response; joined they are a row of
# eight.

# %%
token_id = {token: index for index, token in enumerate(vocabulary)}
prompt_ids = [token_id[token] for token in ("2", "+", "2", "=")]
response_ids = [token_id[token] for token in ("so", "4", ".", "<eos>")]
row = prompt_ids + response_ids
print(prompt_ids, "+", response_ids)

# %% [markdown]
# A causal language model reads tokens $0 \dots t$, and its output at position $t$ is a
# distribution over token $t + 1$. The token to compare it with, the *label*, is therefore the
# next one. The last token is nobody's input, as nothing follows it; the first is nobody's label.

# %%
inputs, labels = row[:-1], row[1:]
is_response = [False] * len(prompt_ids) + [True] * len(response_ids)
mask = is_response[1:]

# %% [markdown]
# The mask says which labels the policy chose. It speaks of labels, so it is shifted as they are.

# %%
by_hand = {
    "input": [vocabulary[i] for i in inputs],
    "label": [vocabulary[i] for i in labels],
    "mask": [int(m) for m in mask],
}
pd.DataFrame.from_dict(by_hand, orient="index")

# %% [markdown]
# Look at position 3. The input is `=`, the last token of the prompt. The label is `so`, the first
# of the response, and the mask is 1: the first thing the policy decides is decided there.

# %% tags=["check"]
assert vocabulary[inputs[3]] == "=" and vocabulary[labels[3]] == "so"
assert mask == [False, False, False, True, True, True, True]
assert sum(mask) == len(response_ids) == 4

# %% [markdown]
# ## The function
#
# Two small ones first. `encode` turns text into ids and keeps out the special tokens that many
# tokenizers add by themselves. `padding_token_id` finds what to fill the short rows with.


# %% tags=["definition"]
def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The ids of `text` alone, without special tokens."""
    return tokenizer.encode(text, add_special_tokens=False)


def padding_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The padding token's id, else that of the end-of-sequence token."""
    # Which of the two is of no consequence: no position that counts ever
    # attends to padding.
    for token_id in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token_id is not None:
            return token_id
    raise ValueError(
        "the tokenizer has neither pad_token_id nor eos_token_id: set one, "
        "for example tokenizer.pad_token = tokenizer.eos_token"
    )


# %% tags=["check"]
assert encode(tokenizer, "2 + 2 =") == prompt_ids
assert tokenizer.pad_token_id is None
assert padding_token_id(tokenizer) == token_id["<eos>"]

# %% [markdown]
# The batch is the row by hand, eight times, padded on the right to the longest. `check_rows`
# refuses an unequal number of prompts and responses, and a prompt without tokens, from which no
# first token could be predicted. What `output_token_ids` is for comes at the end of the chapter.


# %% tags=["definition", "solution"]
def tokenize_prompt_and_output(
    prompt_strs: Sequence[str],
    output_strs: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    *,
    output_token_ids: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """`input_ids`, `labels`, `response_mask`, (N, T - 1) each.

    Rows are prompt + output, encoded apart and padded on the right to the
    longest, T. The mask is True where the label is a token of the output.
    """
    # A group repeats its prompt.
    prompt_ids = {
        text: encode(tokenizer, text) for text in dict.fromkeys(prompt_strs)
    }
    prompts = [prompt_ids[text] for text in prompt_strs]
    if output_token_ids is None:
        outputs = [encode(tokenizer, text) for text in output_strs]
    else:
        outputs = [[*map(int, ids)] for ids in output_token_ids]
    check_rows(prompts, outputs)

    rows, masks = [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        rows.append(torch.tensor(prompt + output))
        masks.append(
            torch.tensor([False] * len(prompt) + [True] * len(output))
        )
    tokens = pad_sequence(
        rows, batch_first=True, padding_value=padding_token_id(tokenizer)
    )
    mask = pad_sequence(masks, batch_first=True, padding_value=False)
    return {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "response_mask": mask[:, 1:],  # shifted, as the labels are
    }


# %% tags=["check"]
batch = tokenize_prompt_and_output(prompts, responses, tokenizer)
assert {name: tensor.shape for name, tensor in batch.items()} == {
    "input_ids": (8, 9),
    "labels": (8, 9),
    "response_mask": (8, 9),
}
assert batch["input_ids"][0].tolist() == [*row, 0]
assert batch["labels"][0].tolist() == [*labels, 0, 0]
assert batch["response_mask"][0].tolist() == [*mask, False, False]

# ids that are given count, also where the text, without <eos>, says less
given = tokenize_prompt_and_output(
    prompts[:1], ["so 4 ."], tokenizer, output_token_ids=[response_ids]
)
assert given["labels"][0].tolist() == labels
assert given["response_mask"][0].tolist() == mask

# %% [markdown]
# ## The whole batch

# %% tags=["hide-input"]
STYLES = {
    "prompt": "background: #d6e6f5; border: 1px solid #88a",
    "response": "background: #f0b060; border: 1px solid #88a; "
    "border-bottom: 3px solid #000; font-weight: bold",
    "padding": "background: #fff; border: 1px dashed #999; "
    "font-style: italic",
}


def kinds_of_labels(response_mask: Tensor) -> list[str]:
    """What each label of one row is: prompt, then response, then padding."""
    first, last = response_mask.nonzero().flatten()[[0, -1]].tolist()
    n_padding = len(response_mask) - last - 1
    kinds = ["prompt"] * first + ["response"] * (last + 1 - first)
    return kinds + ["padding"] * n_padding


def html_line(title: str, cells: list[str], kinds: list[str]) -> str:
    """One line of an HTML table, each cell in the style of its kind."""
    style = "color: #000; text-align: center; padding: 0 .6em"
    painted = "".join(
        f'<td style="{style}; {STYLES[kind]}">{cell}</td>'
        for cell, kind in zip(cells, kinds, strict=True)
    )
    return f'<tr><th style="white-space: nowrap">{title}</th>{painted}</tr>'


def batch_table(
    batch: dict[str, Tensor], rows: Sequence[int], **masks: Tensor
) -> HTML:
    """Inputs, labels and masks of these rows, numbered from 1."""
    width = batch["labels"].shape[1]
    centred = '<th style="text-align: center">'
    positions = "".join(f"{centred}{t}</th>" for t in range(width))
    lines = [f"<tr><th>position</th>{positions}</tr>"]
    for index in rows:
        kinds = kinds_of_labels(batch["response_mask"][index])
        for name in ("input_ids", "labels"):
            cells = [
                f"{escape(vocabulary[i])}<sub>{i}</sub>"
                for i in batch[name][index].tolist()
            ]
            is_input = name == "input_ids"
            title = f"{index + 1}: input" if is_input else "label"
            shown = ["prompt", *kinds[:-1]] if is_input else kinds
            lines.append(html_line(title, cells, shown))
        for name, mask in masks.items():
            ones = [str(int(m)) for m in mask[index]]
            lines.append(html_line(name.replace("_", " "), ones, kinds))
        lines.append('<tr style="height: .5em"></tr>')
    return HTML(f"<table>{''.join(lines)}</table>")


batch_table(batch, range(8), mask=batch["response_mask"])

# %% [markdown]
# *Responses 1 to 8, each token with its id below it. Blue, thin: prompt. Orange, bold, underlined:
# response. White, dashed, italic: padding. Each label stands one place to the left of the same
# token as an input, and the mask is 1 below the orange labels, nowhere else. In the first the
# sampled `<eos>` is orange; the padding beside it has the same id and is white.*
#
# The mask counts the tokens of each response, and what it lets through are exactly these tokens, in
# this batch and in two hundred random ones.

# %% tags=["check", "claim:A13a"]
expected = [4, 3, 2, 2, 2, 1, 4, 2]
assert batch["response_mask"].sum(dim=1).tolist() == expected

draw = random.Random(0)
for _ in range(200):
    texts = [
        " ".join(draw.choices(vocabulary, k=draw.randint(1, 9)))
        for _ in range(6)
    ]
    some = tokenize_prompt_and_output(texts[:3], texts[3:], tokenizer)
    for index, response in enumerate(texts[3:]):
        chosen = some["labels"][index][some["response_mask"][index]]
        assert chosen.tolist() == encode(tokenizer, response)

# %% [markdown]
# The first of them is predicted at the last token of the prompt: position 3 after the prompt of
# four tokens, position 5 after that of six, and at both stands `=`.

# %% tags=["check", "claim:A13b"]
first = batch["response_mask"].int().argmax(dim=1)
expected = [3, 3, 3, 3, 5, 5, 5, 5]
assert first.tolist() == expected

rows = torch.arange(8)
last_prompt_tokens = [encode(tokenizer, text)[-1] for text in prompts]
first_tokens = [encode(tokenizer, text)[0] for text in responses]
assert batch["input_ids"][rows, first].tolist() == last_prompt_tokens
assert batch["labels"][rows, first].tolist() == first_tokens

# %% [markdown]
# ## What the policy says there
#
# The small batch has a policy too: a table of next-token probabilities that looks at the present
# token only. Its outputs, looked up at the labels, are what all this is for.

# %%
policy = small_batch.make_policy()
probs = policy(batch["input_ids"]).logits.softmax(dim=-1).detach()
label_probs = probs.gather(-1, batch["labels"].unsqueeze(-1)).squeeze(-1)
by_hand["probability"] = label_probs[0, :7].round(decimals=2).tolist()
pd.DataFrame.from_dict(by_hand, orient="index")

# %% [markdown]
# At position 3 the policy gave `so` the probability .5, then `4` .5, the full stop .8 and `<eos>`
# .5. Positions 0 to 2 have a probability as well, that of the prompt's own tokens. The policy did
# not choose these, so the mask leaves them out. Padding has one too: in response 2 the label after
# the full stop is a padding `<eos>`, to which the policy gives .5. Every position has a number; the
# mask says which are meant.

# %% tags=["check"]
right = batch["response_mask"]
from_the_table = torch.tensor([0.5, 0.5, 0.8, 0.5], dtype=torch.float64)
torch.testing.assert_close(label_probs[0][right[0]], from_the_table)
after_the_stop = label_probs[1, 6].item()
assert not right[1, 6] and abs(after_the_stop - 0.5) < 1e-9

# %% [markdown]
# ## A mask that was not shifted
#
# The commonest mistake: labels shifted, mask not. It then says of each *input* whether it is a
# response token. The opposite one is to shift twice, as happens with a library that shifts by
# itself: the models of `transformers` do when they are given `labels`.

# %%
nothing = torch.zeros(8, 1, dtype=torch.bool)
not_shifted = torch.cat([nothing, right[:, :-1]], dim=1)
shifted_twice = torch.cat([right[:, 1:], nothing], dim=1)
batch_table(
    batch,
    [0, 6],
    right=right,
    not_shifted=not_shifted,
    shifted_twice=shifted_twice,
)

# %% [markdown]
# *The longest response to each prompt. Read the masks column by column: the unshifted one misses
# the first orange label and takes in the white one after the last, unless the row ends there. The
# twice shifted one takes in `=` and misses the last.*


# %%
def counts(mask: Tensor) -> dict[str, int]:
    """How many labels a mask counts, misses, and takes in wrongly."""
    return {
        "counted": int(mask.sum()),
        "lost": int((right & ~mask).sum()),
        "gained": int((mask & ~right).sum()),
    }


names = ["right", "not shifted", "shifted twice"]
masks = [right, not_shifted, shifted_twice]
compared = pd.DataFrame([counts(mask) for mask in masks], index=names)
compared

# %% tags=["check"]
assert compared.loc["not shifted"].tolist() == [19, 8, 7]
assert compared.loc["shifted twice"].tolist() == [20, 8, 8]
lost = batch["labels"][right & ~not_shifted].tolist()
gained = batch["labels"][not_shifted & ~right].tolist()
assert {vocabulary[i] for i in lost} == {"so", "4", "5"}
assert {vocabulary[i] for i in gained} == {"<eos>"}

# %% [markdown]
# Counting tokens does not find it: 19 instead of 20, or even 20. What is lost weighs more than
# the count says. The first token is where this policy decides between `so` and answering at once,
# and without it this decision is never trained. What is gained is seven times `<eos>`, which
# nobody sampled: in a well-paid response the policy learns to stop there, in a badly paid one not
# to.
#
# The test that finds both mistakes compares tokens, not counts. It is one of the exercises.
# {doc}`12_grpo_train_step` shows what the mistake does to an update.
#
# ## Encoded apart, without additions
#
# The tokenizer of the small batch is too simple to go wrong. Those of real models merge characters
# into longer tokens, spaces included, and many put a `<bos>`, beginning of sequence, before every
# text. Here is one that does both. Its merges are a space and `4`, and `1` and `2`.

# %%
characters = ["<bos>", "<eos>", *" .=+0123456789", " 4", "12"]
bpe = Tokenizer(
    models.BPE(
        vocab={name: index for index, name in enumerate(characters)},
        merges=[(" ", "4"), ("1", "2")],
    )
)
bpe.decoder = decoders.Fuse()
bpe.post_processor = processors.TemplateProcessing(
    single="<bos> $A", special_tokens=[("<bos>", 0)]
)
merging = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<eos>")
merging.convert_ids_to_tokens(merging.encode("12+2= 4"))

# %% [markdown]
# The prompt shall end in a space, `"2+2= "`, and the policy answers `"4."`.

# %%
prompt, response = "2+2= ", "4."
apart = encode(merging, prompt) + encode(merging, response)
together = encode(merging, prompt + response)
for name, ids in {"apart": apart, "together": together}.items():
    print(f"{name:9}", merging.convert_ids_to_tokens(ids))

# %% [markdown]
# Encoded together, the space and the `4` are one token, and the border between prompt and response
# runs through it. Five tokens of prompt, counted from the left, would leave only the full stop
# for the response, and the answer would never be trained. To count four does not help either: the
# policy did not choose space-and-4 after `=`. It had a space before it and chose `4`. What is
# trained must be what was sampled, so the two are encoded apart.

# %% tags=["check"]
n_prompt = len(encode(merging, prompt))
assert (n_prompt, len(apart), len(together)) == (5, 7, 6)
assert merging.decode(together[n_prompt:]) == "."
assert merging.decode(apart) == merging.decode(together)

# %% [markdown]
# Left to itself, this tokenizer would also put a second `<bos>` between the two.

# %%
by_default = merging.encode(prompt) + merging.encode(response)
print(merging.convert_ids_to_tokens(by_default))

# %% [markdown]
# The policy saw no `<bos>` there when it sampled, and every log-probability after it is that of
# another context. The function adds none, neither in front nor between, and appends no `<eos>` that
# was not sampled. A model that wants a `<bos>` in front gets it in the prompt's text, which sampler
# and trainer both encode.

# %% tags=["check", "claim:A14"]
joined = tokenize_prompt_and_output([prompt], [response], merging)
ids = [*joined["input_ids"][0].tolist(), joined["labels"][0, -1].item()]
expected = ["2", "+", "2", "=", " ", "4", "."]
assert merging.convert_ids_to_tokens(ids) == expected
assert joined["response_mask"].sum() == 2

# %% [markdown]
# ## Padding that looks like a token
#
# Many tokenizers have no padding token, and padding with `<eos>` is the usual way out; the small
# batch does it. That is harmless as long as the mask goes by *position*. A mask that goes by *id*,
# "all labels that aren't padding", throws the sampled `<eos>` away.

# %%
by_id = right & (batch["labels"] != padding_token_id(tokenizer))
print("by position:", right[0].int().tolist())
print("by id:      ", by_id[0].int().tolist())

# %% tags=["check"]
assert (right & ~by_id).sum() == 1
assert batch["labels"][right & ~by_id].tolist() == [token_id["<eos>"]]

# %% [markdown]
# One token of twenty, but the one by which a policy learns when to stop. The collator for language
# modelling of the `transformers` library masks by id. Here it gets the row of response 1; it marks
# labels to be ignored with −100, and the shift comes later, inside the model.

# %%
tokenizer.pad_token = tokenizer.eos_token
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
ignored = collate([{"input_ids": row}])["labels"][0].tolist()
print(ignored)

# %% tags=["check"]
assert row[-1] == token_id["<eos>"] and ignored == [*row[:-1], -100]

# %% [markdown]
# ## Padding on the right, padding on the left
#
# Attention is causal: position $t$ sees positions up to $t$. Padding on the right comes after all
# that counts, so nothing that counts sees it, and training needs no attention mask.
#
# Generation pads on the left. Each step appends a token to every row, and the last tokens of all
# prompts must stand in the last column for that. Now every real token has padding before it, and
# the model must be told not to look.
#
# The table policy of the small batch has no attention, so it can't show this. The *pocket policy*
# of {doc}`00_pocket_world` can: a real OLMo-2 with less than a million parameters, trained on
# generated word problems. A problem is a question and its right answer, `gold`. The template
# `r1_zero` writes the question into a prompt that ends with an open `<think>`. The policy is to
# close it and to give its answer between `<answer>` and `</answer>`, and `template.reward_fn` pays
# 1 if that answer is right and stands in these tags, else 0.

# %%
config = experiment_config("on-policy", "pocket")
model, pocket_tokenizer = load_policy(config)
model = model.double().eval()  # little rounding, no dropout
engine = LocalEngine(model, pocket_tokenizer)
template = get_prompt("r1_zero")
problems = load_problems(config, "train")[:4]
texts = [template.format(problem.question) for problem in problems]
print(*texts[1].splitlines()[-2:], sep="\n")

# %% tags=["check"]
assert texts[1].endswith("Assistant: <think>")
assert template.stop == ("</answer>",)

# %% [markdown]
# These are the last two lines of the second prompt. `LocalEngine` samples eight responses to each
# of four prompts. A response ends with an `<eos>`, with the *stop string* `</answer>`, or after 64
# tokens. The first response to the second prompt:

# %%
settings = SamplingParams(
    n=8,
    temperature=1.0,
    max_tokens=64,
    stop=template.stop,
    include_stop_str_in_output=True,
    seed=0,
)
completions = engine.generate_completions(texts, settings)
print(completions[8].text)

# %% [markdown]
# This response and its prompt are scored alone, and with twelve padding tokens on either side.
# ({doc}`09_log_probs_and_entropy` opens `get_response_log_probs`.)


# %%
def log_probs(ids: list[int], **inputs: Tensor) -> Tensor:
    """Log-probability of each token but the first, (T - 1,)."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        scored = get_response_log_probs(
            partial(model, **inputs), tokens[:, :-1], tokens[:, 1:]
        )
    return scored["log_probs"][0]


prompt_ids = encode(pocket_tokenizer, texts[1])
row = prompt_ids + completions[8].token_ids
padding = [padding_token_id(pocket_tokenizer)] * 12
attention = torch.tensor([[0] * 12 + [1] * (len(row) - 1)])

# %%
n = len(row) - 1
alone = log_probs(row)
padded = {
    "right": log_probs(row + padding)[:n],
    "left": log_probs(padding + row)[-n:],
    "left, attention mask": log_probs(
        padding + row, attention_mask=attention
    )[-n:],
}


def largest_change(scores: Tensor) -> dict[str, float]:
    """Of a prompt and of a response token's log-probability, in nats."""
    change = (scores - alone).abs()
    prompt, response = change.tensor_split([len(prompt_ids) - 1])
    return {"prompt": prompt.max().item(), "response": response.max().item()}


changes = pd.DataFrame(
    {name: largest_change(scores) for name, scores in padded.items()}
).T
changes.round(3)

# %% [markdown]
# *Largest change of a token's log-probability by padding, in nats. "0.000" is rounding, 1e-5 and
# less.*
#
# On the right, nothing changes. On the left, without an attention mask, the log-probabilities are
# those of a text that begins with twelve padding tokens. A ratio of $e^{0.027} = 1.03$ between
# trainer and sampler would look as if the policy had moved. With the mask they are right again.

# %% tags=["check"]
assert changes.loc["right"].max() < 1e-5
assert changes.loc["left, attention mask"].max() < 1e-5
assert changes.loc["left"].round(3).tolist() == [1.947, 0.027]

# %% [markdown]
# The tokens of a row padded on the left also have shifted positions. OLMo-2 has rotary positions,
# of which attention sees differences only, so the shift is harmless. A model with learned absolute
# positions must get `position_ids` that begin at the first real token.
#
# ## The ids that were sampled
#
# An engine hands back a text and the ids it was decoded from. The text is graded. To train on the
# text as well, one would have to encode it again, and then three things can go wrong.
#
# **The sampled `<eos>` is gone.** It does not show in a text.

# %%
reencoded = [encode(pocket_tokenizer, c.text) for c in completions]
sampled = [completion.token_ids for completion in completions]
ended = [ids[-1] == pocket_tokenizer.eos_token_id for ids in sampled]
differ = [
    ours != theirs for ours, theirs in zip(reencoded, sampled, strict=True)
]
print(f"{sum(ended)} of {len(sampled)} end with <eos>, {sum(differ)} differ")

# %% [markdown]
# These twelve ended before `</answer>` was written, so there is no answer to pay for and their
# reward is 0. The action that ended them, `<eos>`, would be the one that is not trained.

# %% tags=["check"]
assert differ == ended and sum(ended) == 12
for completion, again, eos in zip(completions, reencoded, ended, strict=True):
    ids = completion.token_ids
    assert again == (ids[:-1] if eos else ids)
    assert not (eos and "</answer>" in completion.text)
    gold = problems[completion.prompt_index].gold
    graded = template.reward_fn(completion.text, gold)
    assert not (eos and graded["reward"])

# %% [markdown]
# **Some ids are no text.** A token may be part of a character, and decoding then writes "�". At
# temperature 1 it did not happen in these 32 responses. At temperature 2 it does.

# %%
hot = engine.generate_completions(
    texts, settings.model_copy(update={"temperature": 2.0})
)
broken = [completion for completion in hot if "\ufffd" in completion.text]
print(f"{len(broken)} of {len(hot)} hold an id that is no character")

# %% tags=["check"]
assert broken
for completion in broken:
    assert encode(pocket_tokenizer, completion.text) != completion.token_ids

# %% [markdown]
# **Other ids, same text.** A space and `That` are one token, and could as well be sampled as two.
# For the grader that is the same text. For the policy they are different actions; here are their
# log-probabilities ("Ġ" stands for the space).

# %%
one = encode(pocket_tokenizer, " That")
two = encode(pocket_tokenizer, " Th") + encode(pocket_tokenizer, "at")
start = len(prompt_ids) - 1
for ids in (one, two):
    score = log_probs(prompt_ids + ids)[start:].sum().item()
    print(pocket_tokenizer.convert_ids_to_tokens(ids), round(score, 1))

# %% [markdown]
# A policy as sure as this one hardly ever samples the second, and none of the 32 responses holds
# such a split. Where it is sampled and the first is trained on, the gradient is that of something
# that did not happen. `output_token_ids` therefore takes the sampled ids as they are.

# %% tags=["check"]
assert len(one) == 1 and len(two) == 2
assert pocket_tokenizer.decode(one) == pocket_tokenizer.decode(two)
real = tokenize_prompt_and_output(
    [texts[completion.prompt_index] for completion in completions],
    [completion.text for completion in completions],
    pocket_tokenizer,
    output_token_ids=sampled,
)
counted = real["response_mask"].sum(dim=1).tolist()
assert counted == [len(ids) for ids in sampled]

# %% [markdown]
# ## Take away
#
# - Inputs are the row without its last token, labels the row without its first. The mask goes with
#   the labels: the first response token is predicted at the last prompt token.
# - A mask off by one loses first tokens and takes in padding, or loses last tokens and takes in
#   prompt. Counting tokens does not find it, comparing them does.
# - What is trained is what was sampled: prompt and response are encoded apart, nothing is added,
#   and the sampled ids are used as they are.
# - Masks go by position, so padding may be any token. In training it stands on the right, where
#   causal attention does not see it.
#
# ## Exercises
#
# ```{exercise} Back to text
# :label: ex-08-texts
#
# *Easy, 5 minutes.* Write `response_texts(batch, tokenizer)`, which rebuilds the list of response
# strings from `labels` and `response_mask` alone.
#
# :::{dropdown} Hint
# A mask of one row picks that row's labels; `tokenizer.decode` does the rest.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def response_texts(
    batch: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """The text of each row's masked labels."""
    rows = zip(batch["labels"], batch["response_mask"], strict=True)
    return [tokenizer.decode(labels[mask]) for labels, mask in rows]


# %% tags=["check"]
assert response_texts(batch, tokenizer) == responses
assert response_texts(joined, merging) == ["4."]

# %% [markdown]
# ```{exercise} The test that finds it
# :label: ex-08-misaligned
#
# *Medium, 10 minutes.* Write `misaligned_rows(labels, mask, response_ids)`: the indices, from 0, of
# the rows whose masked labels are not exactly the ids of their response. It must find both masks of
# this chapter, also in a row where the count is right.
#
# :::{dropdown} Hint
# Compare lists of ids, not lengths; `response_ids` has one list a row.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def misaligned_rows(
    labels: Tensor, mask: Tensor, response_ids: Sequence[Sequence[int]]
) -> list[int]:
    """Rows where the mask lets through anything but the response."""
    return [
        row
        for row, ids in enumerate(response_ids)
        if labels[row][mask[row]].tolist() != list(ids)
    ]


# %% tags=["check"]
wanted = [encode(tokenizer, text) for text in responses]
assert misaligned_rows(batch["labels"], right, wanted) == []
assert misaligned_rows(batch["labels"], not_shifted, wanted) == [*range(8)]
assert misaligned_rows(batch["labels"], shifted_twice, wanted) == [*range(8)]
one_wrong = torch.cat([right[:3], not_shifted[3:4], right[4:]])
assert misaligned_rows(batch["labels"], one_wrong, wanted) == [3]

# %% [markdown]
# ```{exercise} The count, without tensors
# :label: ex-08-count
#
# *Medium, 10 minutes.* Write `unshifted_count(prompt_lengths, response_lengths)`: how many labels a
# mask that was not shifted counts in all, from the lengths alone. For the small batch it is 19.
#
# :::{dropdown} Hint
# Each row loses its first token. Which rows have a place for one after their last?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def unshifted_count(
    prompt_lengths: Sequence[int], response_lengths: Sequence[int]
) -> int:
    """Labels that an unshifted mask counts, in rows padded to the longest."""
    pairs = list(zip(prompt_lengths, response_lengths, strict=True))
    longest = max(prompt + response for prompt, response in pairs)
    return sum(
        response - (response > 0 and prompt + response == longest)
        for prompt, response in pairs
    )


# %% tags=["check"]
assert unshifted_count([4] * 4 + [6] * 4, [4, 3, 2, 2, 2, 1, 4, 2]) == 19
assert unshifted_count([2, 2, 1], [3, 0, 4]) == 2 + 0 + 3
assert unshifted_count([1, 9], [5, 2]) == 5 + 1

# %% [markdown]
# ```{exercise} Several turns
# :label: ex-08-turns
#
# *Hard, 15 minutes.* A policy that calls a tool writes, reads the tool's answer, and writes on.
# Write `tokenize_turns(turns, tokenizer)` for one such row: `turns` is a list of pairs (text,
# whether the policy wrote it), and the result is what `tokenize_prompt_and_output` returns for one
# row.
#
# :::{dropdown} Hint
# Build ids and mask side by side, turn after turn, and shift once at the end.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def tokenize_turns(
    turns: Sequence[tuple[str, bool]], tokenizer: PreTrainedTokenizerBase
) -> dict[str, Tensor]:
    """Inputs, labels and mask, (1, T - 1); the policy's turns count."""
    ids, mask = [], []
    for text, by_policy in turns:
        turn = encode(tokenizer, text)
        ids += turn
        mask += [by_policy] * len(turn)
    tokens = torch.tensor([ids])
    return {
        "input_ids": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "response_mask": torch.tensor([mask])[:, 1:],
    }


# %% tags=["check"]
single = tokenize_turns([("2 + 2 =", False), ("so 4 .", True)], tokenizer)
same = tokenize_prompt_and_output(["2 + 2 ="], ["so 4 ."], tokenizer)
assert all(single[name].equal(same[name]) for name in same)
turns = [("2 + 2 =", False), ("so", True), ("1 + 3", False), ("4 .", True)]
several = tokenize_turns(turns, tokenizer)
assert response_texts(several, tokenizer) == ["so 4 ."]
assert several["response_mask"][0].tolist() == (
    [False] * 3 + [True] + [False] * 3 + [True] * 2
)

# %% [markdown]
# ## Next
#
# {doc}`09_log_probs_and_entropy` computes the log-probabilities that the labels stand for.
