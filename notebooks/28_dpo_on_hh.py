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
# # DPO on preference pairs
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** read Anthropic's HH data, say which rows can be used and why the others
# can't, audit what people's preferences reward besides quality, and train a policy on pairs.
#
# **You need** {doc}`25_dpo` for the loss and {doc}`26_sft` for instruction data.
# **Reading** takes 25 minutes, **running** half a minute, on a **CPU**. (The cells for Llama 3.1 8B
# need a GPU and are not executed here.)
# ```
#
# Instruction data says what a good answer is. Preference data says less: of these two, this one.
# That is easier to give, since to compare is less work than to write, and it has no absolute scale.
# The data set that the supplement of CS336's assignment 5 trains on is Anthropic's HH, some 160,000
# comparisons of two answers of a language model, made by crowd workers under two instructions, to
# prefer what is *helpful* or what is *harmless* {cite}`bai2022hh`.
#
# The real files are not in this repository: the harmless part contains what its name says it
# is against. A hand-made sample of forty rows on everyday topics stands in for them
# (`data/hh_sample`), in the same format and with the faults that files of this kind have.

# %%
import gzip
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML

from gsmrl_helpers import (
    experiment_config,
    load_policy,
    load_problems,
    small_batch,
)
from gsmrl_helpers.dpo import batches_of_pairs, dpo_step
from gsmrl_helpers.intervals import Z
from gsmrl_helpers.jsonl_files import shown, text_field
from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.sft_runs import write_examples
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.tokenization import encode

# %% [markdown]
# ## The format
#
# A row holds two dialogues. Each starts with two line breaks and `Human:`, and the two are equal up
# to one answer of the assistant.

# %%
SAMPLE = DATA_DIR / "hh_sample"
files = sorted(SAMPLE.glob("*.jsonl.gz"))
with gzip.open(files[1], "rt") as lines:
    first = json.loads(next(lines))
for name, dialogue in first.items():
    print(f"--- {name}{dialogue}")

# %% [markdown]
# `parse_dialogue` takes a dialogue apart. A turn starts after an empty line, so that "Human:"
# within a line starts none. An answer that itself holds an empty line and `Human:` is read as two
# turns, and nobody can tell.

# %% tags=["definition"]
from gsmrl_helpers.hh import TURN_START


class Turn(NamedTuple):
    """Who speaks, and what is said, stripped."""

    speaker: str
    text: str


def parse_dialogue(text: str) -> list[Turn]:
    r"""The turns of a dialogue; each starts at `\n\nHuman:` or `\n\nAssistant:`."""
    before, *parts = TURN_START.split(text)
    if before.strip() or not parts:
        raise ValueError(
            f"a dialogue must start with '\\n\\n{HUMAN}:', got {shown(text)}"
        )
    return [
        Turn(*turn)
        for turn in zip(parts[::2], map(str.strip, parts[1::2]), strict=True)
    ]


# %% tags=["check"]
from gsmrl_helpers.hh import ASSISTANT, HUMAN

turns = parse_dialogue(
    "\n\nHuman: Who is Human: ?\n\nAssistant: A name.\n\nFor you."
)
assert turns == [
    Turn(HUMAN, "Who is Human: ?"),
    Turn(ASSISTANT, "A name.\n\nFor you."),
]

# %% [markdown]
# ## Where two dialogues part
#
# The prompt is what the two have in common, and the answers are the rest. "In common" is a
# question of turns. Compared by characters, two answers that begin alike lose their beginning to
# the prompt, and the policy would be trained on ends of sentences.


# %%
def common_characters(a: str, b: str) -> str:
    """The longest common beginning of two texts."""
    length = next(
        (
            i
            for i, pair in enumerate(zip(a, b, strict=False))
            if len(set(pair)) == 2
        ),
        min(len(a), len(b)),
    )
    return a[:length]


with gzip.open(files[0], "rt") as lines:
    alike = json.loads(list(lines)[4])
by_characters = common_characters(alike["chosen"], alike["rejected"])
print("prompt:", repr(by_characters))
print("chosen:", repr(alike["chosen"][len(by_characters) :][:40]))


# %% tags=["definition"]
def common_turns(chosen: Sequence[Turn], rejected: Sequence[Turn]) -> int:
    """How many turns two dialogues share, from the first."""
    pairs = zip(chosen, rejected, strict=False)
    return next(
        (at for at, (a, b) in enumerate(pairs) if a != b),
        min(len(chosen), len(rejected)),
    )


# %% tags=["check"]
turns = [parse_dialogue(alike[name]) for name in ("chosen", "rejected")]
assert common_turns(*turns) == 1 and by_characters.endswith(" I'd rather not")
assert common_turns(turns[0], turns[0]) == 2

# %% [markdown]
# ## What is kept
#
# The supplement keeps dialogues with one human turn. In longer ones the answers depend on what the
# assistant itself said before, which is another model's talk. They are left out and counted, as
# they are not faulty. What is faulty is reported by line: rows that can't be read, questions that
# differ, an empty answer, and two equal answers, of which nothing was preferred. Each pair
# remembers its source, because *helpful* and *harmless* were judged by different instructions.

# %% tags=["definition"]
from gsmrl_helpers.hh import PreferencePair, n_human_turns


def pair_from_row(row: Any, source: str) -> PreferencePair | None:
    """The pair of one row, or None where a human speaks more than once."""
    chosen, rejected = (
        parse_dialogue(text_field(row, name))
        for name in ("chosen", "rejected")
    )
    if max(n_human_turns(chosen), n_human_turns(rejected)) > 1:
        return None
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        speakers = [turn.speaker for turn in turns]
        if speakers != [HUMAN, ASSISTANT]:
            raise ValueError(
                f"{name} must be one {HUMAN} and one {ASSISTANT} turn, got {', '.join(speakers)}"
            )
        if empty := [turn.speaker for turn in turns if not turn.text]:
            raise ValueError(f"the {empty[0]} turn of {name} is empty")
    n_common = common_turns(chosen, rejected)
    if n_common == 0:
        raise ValueError(
            f"the prompts differ: {shown(chosen[0].text)}, {shown(rejected[0].text)}"
        )
    if n_common == 2:
        raise ValueError(
            f"chosen and rejected are the same: {shown(chosen[1].text)}"
        )
    return PreferencePair(
        chosen[0].text, chosen[1].text, rejected[1].text, source
    )


# %% tags=["check"]
pair = pair_from_row(alike, "harmless")
assert pair.chosen.startswith("I'd rather not joke")
assert pair.rejected.startswith("I'd rather not, but")
longer = {name: alike[name] + "\n\nHuman: Why?" for name in alike}
assert pair_from_row(longer, "harmless") is None

# %% tags=["definition"]
from gsmrl_helpers.hh import HHData
from gsmrl_helpers.jsonl_files import read_jsonl


def load_hh(path: str | Path, source: str | None = None) -> HHData:
    """The single-turn pairs of an HH file, plain or gzipped."""
    source = Path(path).name if source is None else source
    rows, broken = read_jsonl(path, lambda row: pair_from_row(row, source))
    pairs = [pair for pair in rows if pair is not None]
    return HHData(pairs, len(rows) - len(pairs), broken)


# %% tags=["check"]
loaded = {file.name.split("-")[0]: load_hh(file) for file in files}
for name, file in zip(loaded, files, strict=True):
    with gzip.open(file) as lines:
        n_lines = sum(1 for _ in lines)
    data = loaded[name]
    assert n_lines == len(data.pairs) + data.n_multi_turn + len(data.broken)
    assert {pair.source for pair in data.pairs} == {file.name}

# %%
overview = pd.DataFrame(
    {
        name: (len(data.pairs), data.n_multi_turn, len(data.broken))
        for name, data in loaded.items()
    },
    index=["pairs kept", "several human turns", "broken"],
)
overview

# %% tags=["check"]
assert overview["harmless"].tolist() == [13, 2, 4]
assert overview["helpful"].tolist() == [15, 2, 4]

# %%
reports = [
    (name, line, problem)
    for name, data in loaded.items()
    for line, problem in data.broken
]
HTML(as_html(pd.DataFrame(reports, columns=["file", "line", "problem"])))

# %% [markdown]
# ## An audit before training
#
# A preference is one bit, and a model that learns from it does not know what the bit was for. What
# goes along with being chosen is learned with it. The first suspect is length. The longer answer
# was chosen in what share of the pairs?

# %%
pairs = [pair for data in loaded.values() for pair in data.pairs]
audit = pd.DataFrame(
    {
        "source": [pair.source.split("-")[0] for pair in pairs],
        "chosen": [len(pair.chosen.split()) for pair in pairs],
        "rejected": [len(pair.rejected.split()) for pair in pairs],
    }
)
audit["longer chosen"] = (audit["chosen"] > audit["rejected"]).astype(float)
by_source = audit.groupby("source").mean()
by_source["n"] = audit.groupby("source").size()
by_source.round(2)

# %%
share, n = audit["longer chosen"].mean(), len(audit)
margin = Z * (share * (1 - share) / n) ** 0.5
print(
    f"the longer answer was chosen in {share:.0%} ± {margin:.0%} of {n} pairs"
)
words = audit[["chosen", "rejected"]].mean()
print(
    f"words: {words['chosen']:.1f} in chosen, {words['rejected']:.1f} in others"
)

# %% tags=["check"]
assert n == 28 and 0.6 < share < 0.9
assert share - margin > 0.5

# %% [markdown]
# So a reward model that counts words, and knows nothing else, agrees with most of these pairs.
# Twenty-eight hand-made pairs prove nothing about HH; the same two cells run on its files. A bias
# of this kind does not have to be an error of the people who compare, as longer answers often do
# say more. But a policy that is trained on it is paid for words. {doc}`23_reward_models` looks for
# such a bias in a reward model, by changing one property of answers at a time.
#
# The second part of the audit can't be computed: reading. Would you have chosen the same?

# %%
rng = np.random.default_rng(0)
shown_pairs = [pairs[i] for i in rng.choice(len(pairs), 4, replace=False)]
columns = ["prompt", "chosen", "rejected"]
table = [[getattr(pair, name) for name in columns] for pair in shown_pairs]
HTML(as_html(pd.DataFrame(table, columns=columns)))

# %% [markdown]
# ## From a pair to four numbers
#
# The loss takes the log-probabilities of both answers, under the policy and under the reference
# ({doc}`25_dpo`). The template and the ids are those of {doc}`26_sft`: if the policy was fine-tuned
# in a template, pairs are put into the same. The end token belongs to the answer. Without it, an
# answer would not be preferred for ending where it does.
#
# The supplement asks for the loss of one pair, from its texts. Both documents start with the same
# tokens, the prompt at least. These have the same probability in both, so that they drop out of the
# difference and need not be summed.

# %% tags=["definition", "solution"]
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.dpo import dpo_loss, log_prob_after
from gsmrl_helpers.sft_data import ALPACA_TEMPLATE, encode_text, fill_template


def compute_per_instance_dpo_loss(
    lm: nn.Module,
    lm_ref: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """The DPO loss of one pair, in Alpaca's template, end tokens included."""
    documents = [
        encode_text(
            tokenizer, fill_template(ALPACA_TEMPLATE, prompt) + response
        )
        for response in (response_chosen, response_rejected)
    ]
    tokens = enumerate(zip(*documents, strict=False))
    n_common = next(
        (at for at, (a, b) in tokens if a != b), min(map(len, documents))
    )
    policy = [log_prob_after(lm, ids, n_common) for ids in documents]
    with torch.no_grad():
        reference = [
            log_prob_after(lm_ref, ids, n_common) for ids in documents
        ]
    log_probs = [
        log_prob.to(policy[0].device)[None]
        for log_prob in (*policy, *reference)
    ]
    return dpo_loss(*log_probs, beta)[0]


# %% [markdown]
# A pair that can be done by hand. The policy of {doc}`08_tokenization_and_masks` looks at one token
# only. It gives `so` after the template 1/10, then `4` 1/2, then the end 1/5, so that "so 4" has
# 1/100; and "5 ." has 1/10 · 4/5 · 1/2 = 4/100. A reference to which all ten tokens are alike has
# 1/1000 for both. The ratio of the two ratios is 1/4. With $\beta = 1/2$ its root counts, 1/2, and
# the loss is $-\log\frac{1/2}{1/2 + 1} = \log 3$.

# %% tags=["check"]
by_hand, word_tokenizer = (
    small_batch.make_policy(),
    small_batch.make_tokenizer(),
)
uniform = small_batch.TablePolicy(torch.zeros(10, 10, dtype=torch.float64))
texts = ("1 +", "so 4", "5 .")
loss = compute_per_instance_dpo_loss(
    by_hand, uniform, word_tokenizer, 0.5, *texts
)
assert abs(loss.item() - np.log(3)) < 1e-9
same = compute_per_instance_dpo_loss(
    by_hand, by_hand, word_tokenizer, 0.5, *texts
)
assert abs(same.item() - np.log(2)) < 1e-9
loss.backward()
assert by_hand.table.grad.any() and uniform.table.grad is None

# %% [markdown]
# ## A file of pairs for the pocket policy
#
# The pocket policy has never read anything but its own small world, so the hand-made sample is of
# no use to it. Its pairs are worked solutions, once right and once with a slip that made the answer
# wrong. They are written as a file of HH and read back by `load_hh`, like any other.

# %%
config = experiment_config("on-policy")
prompt = config.prompt_object()
problems = load_problems(config, "train")[:128]
right = write_examples(problems, seed=0)
wrong = write_examples(problems, seed=1, slip_share=1.0)

# %%
HH_ROW = "\n\nHuman: {}\n\nAssistant:{}"
rows = [
    {
        "chosen": HH_ROW.format(*example),
        "rejected": HH_ROW.format(*slipped),
    }
    for problem, example, slipped in zip(problems, right, wrong, strict=True)
    if not prompt.reward_fn(slipped.response, problem.gold)["answer_reward"]
]

# %%
path = Path(tempfile.mkdtemp()) / "pocket.jsonl.gz"
path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
pocket = load_hh(path)
print(len(pocket.pairs), "pairs, for example")
first = pocket.pairs[0]
for text in (first.prompt, first.chosen, first.rejected):
    print(text)

# %% tags=["check"]
assert len(pocket.pairs) == len(rows) > 90
assert not pocket.broken and not pocket.n_multi_turn
assert pocket.pairs[0].prompt == right[0].prompt

# %% [markdown]
# `load_hh` strips answers, and those of the pocket policy start with a space, which belongs to
# their first token. It is put back; the question goes into the template that the policy knows,
# `r1_zero`, and the end token after the answer.


# %%
def in_template(pair: PreferencePair) -> PreferencePair:
    """The pair as the pocket policy would meet it."""
    end = tokenizer.eos_token
    return replace(
        pair,
        prompt=prompt.format(pair.prompt),
        chosen=f" {pair.chosen}{end}",
        rejected=f" {pair.rejected}{end}",
    )


# %%
policy, tokenizer = load_policy(config)
policy.eval()
train, held_out = (
    [in_template(pair) for pair in pocket.pairs[start:end]]
    for start, end in ((0, 64), (64, 96))
)

# %% [markdown]
# A training step takes many pairs at once. `pair_log_probs` sums over the tokens of the answers, as
# {doc}`08_tokenization_and_masks` encoded them, prompt and answer apart.

# %% tags=["definition"]
from gsmrl_helpers.response_scoring import score_responses
from gsmrl_helpers.tokenization import tokenize_prompt_and_output


def pair_log_probs(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[PreferencePair],
) -> tuple[Tensor, Tensor]:
    """log π of the chosen and of the rejected answers: (B,) each, nats."""
    answers = [pair.chosen for pair in pairs] + [
        pair.rejected for pair in pairs
    ]
    batch = tokenize_prompt_and_output(
        [pair.prompt for pair in pairs] * 2, answers, tokenizer
    )
    batch = {
        name: tensor.to(next(model.parameters()).device)
        for name, tensor in batch.items()
    }
    log_probs = score_responses(model, **batch)["log_probs"]
    sums = log_probs.masked_fill(~batch["response_mask"], 0.0).sum(dim=1)
    chosen, rejected = sums.chunk(2)
    return chosen, rejected


# %% tags=["check"]
with torch.no_grad():
    sums = pair_log_probs(policy, tokenizer, train[:4])
    texts = [train[0].prompt, train[0].chosen]
    prompt_ids, answer_ids = (encode(tokenizer, text) for text in texts)
    ids = torch.tensor([prompt_ids + answer_ids])
    log_probs = policy(ids).logits[0, :-1].log_softmax(-1)
taken = log_probs.gather(-1, ids[0, 1:, None])[len(prompt_ids) - 1 :]
assert answer_ids[-1] == tokenizer.eos_token_id
assert abs(sums[0][0].item() - taken.sum().item()) < 1e-2

# %% [markdown]
# ## Training
#
# The reference is the policy before the first step. Its numbers are computed once, and no second
# model is kept. Two passes over 64 pairs, 16 a step:

# %%
with torch.no_grad():
    reference = pair_log_probs(policy, tokenizer, train)
    held_out_reference = pair_log_probs(policy, tokenizer, held_out)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=0.0)

# %% tags=["nbval-ignore-output"]
journal = []
for epoch in (1, 2):
    for batch in batches_of_pairs(len(train), 16, seed=0, epoch=epoch):
        of_batch = tuple(values[batch] for values in reference)
        pairs_of_batch = [train[i] for i in batch]
        row = dpo_step(
            *(policy, tokenizer, optimizer, pairs_of_batch, of_batch),
            beta=0.1,
            max_grad_norm=1.0,
        )
        journal.append(row)
pd.DataFrame(journal).round(3)

# %% tags=["check"]
assert abs(journal[0]["loss"] - np.log(2)) < 1e-3
assert np.mean([row["loss"] for row in journal[-4:]]) < np.log(2) - 0.01

# %% [markdown]
# After a few steps hardly a pair of a batch is on the wrong side. What of it holds for pairs that
# were not trained on?

# %% tags=["nbval-ignore-output"]
with torch.no_grad():
    after = pair_log_probs(policy, tokenizer, held_out)
ratios = [
    new - old for new, old in zip(after, held_out_reference, strict=True)
]
margins = ratios[0] - ratios[1]
print(
    f"log-ratios: chosen {ratios[0].mean():+.2f}, rejected {ratios[1].mean():+.2f}"
)
print(f"margin above 0 in {(margins > 0).sum()} of {len(held_out)} pairs")
print(f"chosen answer less likely in {(ratios[0] < 0).sum()}")

# %% tags=["check"]
last_pass = [row["pair_accuracy"] for row in journal[-4:]]
assert min(last_pass) > 0.8 and (margins > 0).float().mean() > 0.6
assert ratios[0].mean() > 0 > ratios[1].mean()

# %% [markdown]
# Most of them follow: what was learned is about slips, and not about these 64 problems alone. Two
# things are not said by that. A margin compares two given texts, and both can be less likely than
# what the policy writes now; whether it solves more problems is found out by asking it
# ({doc}`25_dpo`). And a pair's margin says nothing of why. Here two answers can differ in their
# wording as well as in the slip, in HH in length, tone and content at once.

# %% [markdown]
# ## Llama 3.1 8B on HH
#
# With a GPU the same functions train the supplement's model: one pass with $\beta = 0.1$, 64 pairs
# a step, a learning rate of 1e-6, and RMSprop, which keeps one moment and not two. The policy
# starts from the fine-tuned model of {doc}`26_sft`, and so does the reference, which stays on a
# second GPU. Gradients add up over the pairs of a step, one at a time. Then the four benchmarks of
# {doc}`27_benchmarks` are asked again, above all those on instructions and safety. We have not run
# it. The weights are in bfloat16, as the supplement's are, and at 1e-6 most of them do not move
# ({doc}`29_hardware`); look at the share that did, and where there is memory for it keep copies in
# float32.

# %% tags=["gpu", "nbval-skip"]
from transformers import AutoModelForCausalLM, AutoTokenizer

sources = (
    "harmless-base",
    "helpful-base",
    "helpful-online",
    "helpful-rejection-sampled",
)
hh = {
    name: load_hh(DATA_DIR / "hh" / name / "train.jsonl.gz", name)
    for name in sources
}
for name, data in hh.items():
    print(name, len(data.pairs), data.n_multi_turn, len(data.broken))

# %% tags=["gpu", "nbval-skip"]
sft_model = "runs/llama-3.1-8b-sft"
tokenizer = AutoTokenizer.from_pretrained(sft_model)
policy, reference = (
    AutoModelForCausalLM.from_pretrained(sft_model, dtype=torch.bfloat16).to(
        device
    )
    for device in ("cuda:0", "cuda:1")
)
policy.gradient_checkpointing_enable()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-6)
all_pairs = [pair for data in hh.values() for pair in data.pairs]
for batch in batches_of_pairs(len(all_pairs), 64, seed=0, epoch=1):
    losses = []
    for pair in (all_pairs[i] for i in batch):
        texts = (pair.prompt, pair.chosen, pair.rejected)
        loss = compute_per_instance_dpo_loss(
            policy, reference, tokenizer, 0.1, *texts
        )
        (loss / len(batch)).backward()
        losses.append(loss.item())
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {np.mean(losses):.3f}")
policy.save_pretrained("runs/llama-3.1-8b-dpo")

# %% [markdown]
# ## Take away
#
# - A preference pair is a prompt and two answers. The prompt is what the two dialogues have in
#   common, in whole turns.
# - Count what is left out on purpose, report by line what is broken, keep the source.
# - Look at what goes along with being chosen, length first, before a model is paid for it.
#
# ## Exercises

# %% [markdown]
# ```{exercise} The reward model that counts words
# :label: ex-28-words
#
# *Easy, 5 minutes.* Write `agreement(score, pairs)`: the share of pairs in which `score(chosen)` is
# above `score(rejected)`, where a tie counts half. Then compare the number of words with the number
# of commas.
#
# :::{dropdown} Hint
# The sign of a difference, `np.sign(a - b)`, is 1, 0 or −1; (1 + sign) / 2 is what a pair counts.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def agreement(score, pairs) -> float:
    signs = [np.sign(score(p.chosen) - score(p.rejected)) for p in pairs]
    return float(np.mean([(1 + sign) / 2 for sign in signs]))


# %% tags=["check"]
n_words = agreement(lambda text: len(text.split()), pairs)
assert (
    abs(n_words - audit["longer chosen"].mean())
    <= 0.5 * (audit["chosen"] == audit["rejected"]).mean() + 1e-9
)
assert agreement(lambda text: 0, pairs) == 0.5
assert agreement(lambda text: text.count(","), pairs) > 0.5

# %% [markdown]
# ```{exercise} Where longer dialogues part
# :label: ex-28-multi
#
# *Medium, 10 minutes.* Write `last_answers(row)` for dialogues of any length: the common turns as
# one list, and the two assistant turns after them; None where the two don't part at a last turn of
# the assistant.
#
# :::{dropdown} Hint
# After the common turns exactly one turn must be left in both dialogues, and it is the assistant's.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def last_answers(row: dict[str, str]) -> tuple[list[Turn], str, str] | None:
    chosen, rejected = (
        parse_dialogue(row[name]) for name in ("chosen", "rejected")
    )
    at = common_turns(chosen, rejected)
    rest = [*chosen[at:], *rejected[at:]]
    if len(chosen) != at + 1 or len(rejected) != at + 1:
        return None
    if {turn.speaker for turn in rest} != {ASSISTANT}:
        return None
    return chosen[:at], chosen[at].text, rejected[at].text


# %% tags=["check"]
with gzip.open(files[1], "rt") as lines:
    helpful = list(lines)
running, game = (json.loads(helpful[at]) for at in (4, 14))
common, better, worse = last_answers(running)
assert len(common) == 3 and worse == "Ten miles a day."
assert last_answers(game)[1].startswith("Then try Lost Cities")
assert (
    last_answers({"chosen": running["chosen"], "rejected": game["chosen"]})
    is None
)
assert (
    last_answers({"chosen": running["chosen"], "rejected": running["chosen"]})
    is None
)
asked, other = (
    f"\n\nHuman: Hi.\n\nAssistant: Hi.\n\nHuman: {q}?" for q in "AB"
)
assert last_answers({"chosen": asked, "rejected": other}) is None

# %% [markdown]
# ```{exercise} How many pairs does a bias take?
# :label: ex-28-pairs
#
# *Medium, 10 minutes.* Write `pairs_needed(share)`: the smallest number of pairs at which a true
# share of longer answers, such as .55, has an interval of ± 1.96 standard errors that leaves
# out .5.
#
# :::{dropdown} Hint
# Solve $1.96 \sqrt{s (1 - s) / n} < |s - 0.5|$ for $n$ and round up.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def pairs_needed(share: float) -> int:
    return int(np.floor(Z**2 * share * (1 - share) / (share - 0.5) ** 2)) + 1


# %% tags=["check"]
for share in (0.51, 0.55, 0.75):
    n = pairs_needed(share)
    widths = [Z * (share * (1 - share) / m) ** 0.5 for m in (n - 1, n)]
    assert widths[1] < abs(share - 0.5) <= widths[0]
assert pairs_needed(0.55) == 381

# %% [markdown]
# ## Next
#
# {doc}`27_benchmarks` measures what training on pairs has done to a model. {doc}`24_rlhf_and_kl`
# takes the long way from pairs to a policy: a reward model, and a policy that it pays.
