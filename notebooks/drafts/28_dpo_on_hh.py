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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML

from gsmrl_helpers.intervals import Z
from gsmrl_helpers.jsonl_files import shown, text_field
from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.tables import as_html

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
# say more. But a policy that is trained on it is paid for words, and {doc}`23_reward_models` shows
# what it then does.
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
# DPO needs the log-probability of both answers, under the policy and under the reference. The
# template and the ids are those of {doc}`26_sft`: if the policy was fine-tuned in a template, pairs
# are put into the same. The end token belongs to the answer; without it, an answer would not
# be preferred for ending where it does.
#
# For the pocket policy the pairs are worked solutions, once right and once with a slip that made
# the answer wrong, written as a file of HH and read back by `load_hh`.

# %%
from gsmrl_helpers import experiment_config, load_policy, load_problems
from gsmrl_helpers.packing import encode_example
from gsmrl_helpers.sft_runs import write_examples

config = experiment_config("on-policy")
prompt = config.prompt_object()
problems = load_problems(config, "train")[:128]
right = write_examples(problems, seed=0)
wrong = write_examples(problems, seed=1, slip_share=1.0)
HH_ROW = "\n\nHuman: {}\n\nAssistant:{}"
rows = [
    {
        "chosen": HH_ROW.format(*example),
        "rejected": HH_ROW.format(*slipped),
    }
    for problem, example, slipped in zip(problems, right, wrong, strict=True)
    if not prompt.reward_fn(slipped.response, problem.gold)["answer_reward"]
]
path = Path(tempfile.mkdtemp()) / "pocket.jsonl.gz"
path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
pocket = load_hh(path)
print(len(pocket.pairs), "pairs;", pocket.pairs[0])

# %% tags=["check"]
assert len(pocket.pairs) == len(rows) > 90
assert not pocket.broken and not pocket.n_multi_turn
assert pocket.pairs[0].prompt == right[0].prompt

# %% [markdown]
# `load_hh` strips answers, and the answers of the pocket policy start with a space, which belongs
# to their first token. It is put back.

# %%
from gsmrl_helpers.packing import IGNORED, flatten, packed_logits


def answer_log_probs(model, documents) -> torch.Tensor:
    """Σ log π over the answer's tokens of each document, (B,)."""
    row = flatten(documents)
    labels = row["labels"][0]
    log_probs = packed_logits(model, row)[0].log_softmax(-1)
    counted = labels != IGNORED
    taken = log_probs.gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    document = (row["position_ids"][0] == 0).cumsum(0) - 1
    sums = torch.zeros(len(documents), dtype=taken.dtype)
    return sums.index_add(0, document[counted], taken[counted])


def encode_answers(tokenizer, pairs, name: str) -> list:
    return [
        encode_example(
            tokenizer, prompt.format(pair.prompt), " " + getattr(pair, name)
        )
        for pair in pairs
    ]


policy, tokenizer = load_policy(config)
policy.eval()
batch = pocket.pairs[:4]
with torch.no_grad():
    chosen, rejected = (
        answer_log_probs(policy, encode_answers(tokenizer, batch, name))
        for name in ("chosen", "rejected")
    )
pd.DataFrame({"chosen": chosen, "rejected": rejected}).round(1)

# %% tags=["check"]
one = encode_answers(tokenizer, batch[:1], "chosen")[0]
with torch.no_grad():
    logits = policy(torch.tensor([one.ids])).logits[0]
log_probs = logits.log_softmax(-1)
alone = sum(
    log_probs[at - 1, one.ids[at]].item()
    for at in range(len(one.ids))
    if one.is_response[at]
)
assert abs(chosen[0].item() - alone) < 1e-2

# %% [markdown]
# ## Training
#
# %% [markdown]
# **>>> DRAFT: from here to "Llama 3.1 8B on HH" the cells call
# `gsmrl_helpers.preferences.dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected,
# beta)` of chapter 25: (B,) sums of log-probabilities to (B,) losses. None of them has run. When
# that function is there: execute, put figures and checks with numbers in, move this file to
# `notebooks/`, register it in `_toc.yml` under Supplement, and delete this note. <<<**

# %%
from gsmrl_helpers.preferences import dpo_loss

reference, _ = load_policy(config)
reference.eval().requires_grad_(False)


def four_log_probs(pairs) -> list[torch.Tensor]:
    """Σ log π of chosen and rejected answers, policy's and reference's, (B,) each."""
    both = [
        encode_answers(tokenizer, pairs, name)
        for name in ("chosen", "rejected")
    ]
    ours = [answer_log_probs(policy, documents) for documents in both]
    with torch.no_grad():
        theirs = [
            answer_log_probs(reference, documents) for documents in both
        ]
    return [*ours, *theirs]


losses = dpo_loss(*four_log_probs(batch), beta=0.1)

# %% tags=["check"]
assert torch.allclose(losses, torch.full_like(losses, np.log(2)), atol=1e-4)

# %% [markdown]
# Policy and reference are the same at the start, and the loss is log 2 ({doc}`25_dpo`).

# %% tags=["nbval-ignore-output"]
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=0.0)
train, held_out = pocket.pairs[:64], pocket.pairs[64:80]
journal = []
for start in range(0, len(train), 8):
    values = four_log_probs(train[start : start + 8])
    loss = dpo_loss(*values, beta=0.1).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        after = four_log_probs(held_out)
    margin = (after[0] - after[2]) - (after[1] - after[3])
    journal.append(
        {
            "loss": loss.item(),
            "held-out margin": margin.mean().item(),
            "held-out accuracy": (margin > 0).float().mean().item(),
            "log π(chosen)": after[0].mean().item(),
        }
    )
pd.DataFrame(journal).round(2)

# %% tags=["check"]
assert journal[-1]["held-out margin"] > 0
assert journal[-1]["loss"] < np.log(2)

# %% [markdown]
# ## Llama 3.1 8B on HH
#
# With a GPU the same functions train the supplement's model, one pass with $\beta = 0.1$, 64 pairs
# a step, a learning rate of 1e-6 and RMSprop, which keeps one moment and not two. The policy starts
# from the fine-tuned model of {doc}`26_sft`, and so does the reference. We have not run it.

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
sft_model = "runs/llama-3.1-8b-sft"
tokenizer = AutoTokenizer.from_pretrained(sft_model)
policy, reference = (
    AutoModelForCausalLM.from_pretrained(sft_model, dtype=torch.bfloat16).to(
        device
    )
    for device in ("cuda:0", "cuda:1")
)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-6)

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
# takes the long way with the same data, a reward model and a policy that it pays.
