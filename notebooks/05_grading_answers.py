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
# # Grading answers
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what the grader of this book takes for a right answer and what it
# refuses, what each of its rules costs, and how to look for holes in a grader of your own.
#
# **You need** to know what a reward is ({doc}`10_advantages` has the small example).
# **Reading** takes 25 minutes, **running** half a minute, on a **CPU**.
# ```
#
# In this book a reward is paid for a right answer, and a program decides what is right. Such a
# program is called a *verifier*, or *grader*. It reads text that a policy wrote, finds the answer
# in it, and compares that with the right one, the *gold* answer.
#
# Like any test it errs in two ways. A *false positive* is a wrong answer that it pays. A *false
# negative* is a right answer that it does not pay. This chapter looks at both, rule by rule. All
# verdicts in its tables are computed when the chapter runs.

# %%
import asyncio
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import math_verify
import matplotlib.pyplot as plt
import pandas as pd
import sympy
from IPython.display import HTML

from gsmrl_helpers import load_pocket_problems
from gsmrl_helpers.equivalence import evaluate
from gsmrl_helpers.expression_reader import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_PARTS,
    parse_answer,
)
from gsmrl_helpers.expressions import Answer, Expression
from gsmrl_helpers.grader_corpora import (
    EXPRESSIONS,
    FORMS,
    POISON,
    TRAPS,
    Pair,
    math_verify_alone,
    near_misses,
    ways_to_write,
)
from gsmrl_helpers.grading import (
    question_only_reward_fn,
    r1_zero_reward_fn,
    unbox,
)
from gsmrl_helpers.numerals import Numeral, parse_number, parse_numeral
from gsmrl_helpers.paths import RESULTS_DIR
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.tables import as_html

use_style()


def show(table: pd.DataFrame) -> HTML:
    """A table of texts, in which `$18$` stays what it is."""
    return HTML(f'<div class="mathjax_ignore">{as_html(table)}</div>')


# %% [markdown]
# ## What an error costs
#
# Take eight responses to one question, four right and four wrong. The reward is 1 or 0, and each
# response is weighted by its reward minus the mean of the group. The *pull* is the mean weight of
# right answers minus that of wrong ones: how strongly the update prefers being right.


# %%
def pull(right: list[int], wrong: list[int]) -> Fraction:
    """Mean weight of right responses minus that of wrong ones."""
    mean = Fraction(sum(right + wrong), len(right + wrong))
    weights = [
        Fraction(sum(rewards), len(rewards)) - mean
        for rewards in (right, wrong)
    ]
    return weights[0] - weights[1]


# %% tags=["check"]
assert pull([1, 1, 1, 1], [0, 0, 0, 0]) == 1
assert pull([1, 1, 1, 0], [0, 0, 0, 0]) == Fraction(3, 4)
assert pull([1, 1, 1, 1], [1, 0, 0, 0]) == Fraction(3, 4)

# %% [markdown]
# One false negative and one false positive cost the same here: a quarter of the pull. In general,
# if a share $\beta$ of right answers is not paid and a share $\alpha$ of wrong ones is, the pull is
# $1 - \alpha - \beta$ on average. With more training, though, the two differ. A false negative
# that hits at random is noise: the policy learns the same, later. A false positive is a second
# way to be paid, and the policy may well find it easier than the first.
#
# Suppose a policy can do two things. It can *work*, and is right half of the time. Or it can play
# a *trick*, which is never right. At first it plays the trick one time in ten. Here $p$ is
# the probability of working, $p = \sigma(\theta)$ with one parameter $\theta$, and the exact
# gradient of the expected reward is $p(1-p)(r_\text{work} - r_\text{trick})$, where
# $r_\text{work}$ and $r_\text{trick}$ are the mean rewards that the grader pays for each.


# %%
def share_of_work(
    pay_work: float, pay_trick: float, start: float = 0.9
) -> list[float]:
    """Gradient ascent on the expected reward, 400 steps of size 1."""
    theta, shares = math.log(start / (1 - start)), []
    for _ in range(401):
        p = 1 / (1 + math.exp(-theta))
        shares.append(p)
        theta += p * (1 - p) * (pay_work - pay_trick)
    return shares


graders = {
    "exact": (share_of_work(0.5, 0.0), "right"),
    "20 % of right answers missed": (share_of_work(0.4, 0.0), "curve"),
    "the trick is always paid": (share_of_work(0.5, 1.0), "train"),
}

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.2), layout="constrained"
)
for name, (shares, style) in graders.items():
    left.plot([p / 2 for p in shares], label=name, **line(style))
    pay = [p / 2 + (1 - p) * ("trick" in name) for p in shares]
    if "missed" in name:
        pay = [0.8 * reward for reward in pay]
    right.plot(pay, label=name, **line(style))
for ax, title, unit in (
    (left, "Right answers", "share"),
    (right, "Reward", "mean"),
):
    ax.set(title=title, xlabel="step", ylabel=unit, ylim=(-0.03, 1.03))
left.legend(loc="upper left")
plt.show()

# %% [markdown]
# *Exact gradient ascent, nothing is sampled. Left: how often the policy is right. Right: what the
# grader pays it. With the hole the reward rises to 1 while right answers vanish; the curve of
# rewards alone looks like success. The false negatives only lower the pay.*

# %% tags=["check"]
final = {name: shares[-1] for name, (shares, _) in graders.items()}
assert final["exact"] > 0.99
assert final["20 % of right answers missed"] > 0.99
assert final["the trick is always paid"] < 0.01

# %% [markdown]
# So the aim is lopsided: no false positives at all, and few false negatives. A false negative that
# is *not* random matters as well. If all answers with a euro sign are missed, the policy learns not
# to write euro signs. That is harmless, but the share of right answers that is reported is too low
# until it has learned it.
#
# ## Four short graders
#
# Each of these is a few lines long, and each has been used.


# %%
def contains(answer: str, gold: str) -> bool:
    return gold in answer


def last_number(answer: str, gold: str) -> bool:
    return re.findall(r"-?\d+\.?\d*", answer)[-1:] == [gold]


def as_floats(answer: str, gold: str) -> bool:
    try:
        return not abs(float(answer) - float(gold)) > 1e-6
    except ValueError:
        return False


# %% [markdown]
# The fourth evaluates the answer as Python. **Never do that.** Whoever wrote the answer then runs
# programs on your machine. Even where nothing can be harmed, an answer need not be a number.


# %%
def evaluated(answer: str, gold: str) -> bool:
    """Never do that."""
    try:
        return eval(answer) == eval(gold)
    except Exception:
        return False


# %% tags=["check"]
assert evaluated("9*2", "18") and evaluated("18.0", "18")
assert as_floats("18.0", "18") and not as_floats("17", "18")
assert contains("17 or 18", "18") and last_number("17 = 18", "18")

# %% [markdown]
# Each of the four takes some answer for right that is not. Three of them can be fooled without
# any knowledge of the gold; that is the first exercise of this chapter.
#
# Two lists put graders to the test. `FORMS` has ways to write a right answer, `TRAPS` has wrong
# answers and answers that do not commit to one number. Beside the four, `math-verify`
# (Kydlíček, 2025) is a library made for this purpose. The last is the grader of this book; its
# function `is_equal(answer, gold)` is shown below.

# %%
from gsmrl_helpers.grading import is_equal

judges = {
    "contains": contains,
    "last number": last_number,
    "floats": as_floats,
    "eval": evaluated,
    "math-verify": math_verify_alone,
    "this book": is_equal,
}
cases = [
    *TRAPS,
    *FORMS,
]
verdicts = pd.DataFrame(
    {
        name: [judge(pair.answer, pair.gold) for pair in cases]
        for name, judge in judges.items()
    }
)

# %% tags=["hide-input"]
truth = [[pair.is_right] * len(judges) for pair in cases]
errors = [
    [int(said) - int(right) for said, right in zip(row, known, strict=True)]
    for row, known in zip(verdicts.to_numpy(), truth, strict=True)
]
figure, ax = plt.subplots(figsize=(6.6, 8.6), layout="constrained")
for y, row in enumerate(errors):
    for x, error in enumerate(row):
        fill = {1: "#D55E00", -1: "#56B4E9", 0: "white"}[error]
        ax.add_patch(
            plt.Rectangle((x, y), 1, 1, facecolor=fill, edgecolor="#cccccc")
        )
        mark = {1: "+", -1: "−", 0: ""}[error]
        ax.text(x + 0.5, y + 0.5, mark, ha="center", va="center")


def shorten(text: str, length: int = 26) -> str:
    shown = repr(text)[1:-1].replace("\\\\", "\\") or "(empty)"
    return shown if len(shown) <= length else shown[: length - 1] + "…"


ax.set(xlim=(0, len(judges)), ylim=(len(cases), 0))
labels = [name.replace(" ", "\n").replace("h-", "h-\n") for name in judges]
ax.set_xticks([x + 0.5 for x in range(len(judges))], labels)
ax.set_yticks(
    [y + 0.5 for y in range(len(cases))],
    [f"{shorten(p.answer)}  ?  {shorten(p.gold, 14)}" for p in cases],
    parse_math=False,
)
ax.xaxis.tick_top()
ax.grid(False)
plt.show()

# %% [markdown]
# *Answer ? gold, and where a grader errs: + is a false positive, − a false negative. Traps are
# above, forms below. `math-verify` believes that 18 stands on the right side of `17=18`, and that
# arithmetic is an answer; its own table comes later.*

# %% tags=["check"]
is_right = pd.Series([pair.is_right for pair in cases])
false_positives = verdicts[~is_right].sum()
false_negatives = (~verdicts[is_right]).sum()
assert false_positives["this book"] == false_negatives["this book"] == 0
assert (false_positives.drop("this book") > 0).all()
assert (false_negatives.drop("this book") > 0).all()

# %%
pd.DataFrame(
    {"false positives": false_positives, "false negatives": false_negatives}
)

# %% [markdown]
# ## Where the answer stands
#
# The rules of this book's grader, in the order in which they are applied. First it has to find the
# answer. The `r1_zero` prompt asks for `<think> … </think> <answer> … </answer>` and ends with the
# opening `<think>`, so a response in format closes that, then opens and closes `<answer>`.

# %% tags=["definition"]
_LENIENT_OPENING = re.compile(r"</think>\s*<answer>", re.IGNORECASE)
_LENIENT_CLOSING = re.compile(r"</answer>", re.IGNORECASE)


def find_tagged(response: str, strict: bool = True) -> str | None:
    """The text from the first `</think> <answer>` to the next `</answer>`.

    The literal tags are the assignment's; that the first counts is ours.
    """
    if strict:
        _, opened, rest = response.partition("</think> <answer>")
        answer, closed, _ = rest.partition("</answer>")
        return answer if opened and closed else None
    opening = _LENIENT_OPENING.search(response)
    if opening is None:
        return None
    closing = _LENIENT_CLOSING.search(response, opening.end())
    return response[opening.end() : closing.start()] if closing else None


# %% tags=["check"]
assert find_tagged("So. </think> <answer> 18 </answer> Or 17.") == " 18 "
assert find_tagged("So. </think> <answer> 18") is None
assert find_tagged("So. </think>\n<answer> 18 </answer>") is None
assert find_tagged("So. </think>\n<answer> 18 </answer>", False) == " 18 "


# %% [markdown]
# By default the tags are literal, with one space between them. That is how the published figures
# for this prompt were counted, and this format test is the only part of the rule that is the
# assignment's. Its own grader is described publicly as splitting at the *last* `<answer>`; that
# the *first* answer counts is a rule of this book. With `strict=False` white space and capitals do
# not matter. The table has the reward and whether the response is in format; the gold is 18.


# %%
def graded(responses: list[str], reward_fns: dict) -> pd.DataFrame:
    """A row a response: reward and format under each reward function."""
    rows = []
    for response in responses:
        row = {"response": response}
        for name, reward_fn in reward_fns.items():
            rewards = reward_fn(response, "18")
            in_format = "in format" if rewards["format_reward"] else "–"
            row[name] = f"{rewards['reward']:.0f}, {in_format}"
        rows.append(row)
    return pd.DataFrame(rows)


# %%
def lenient(response: str, gold: str) -> dict[str, float]:
    return r1_zero_reward_fn(response, gold, strict=False)


# %%
tag_functions = {"literal": r1_zero_reward_fn, "lenient": lenient}
joined = graded(
    [
        "9+9=18. </think> <answer> 18 </answer>",
        "9+9=18. </think>\n<answer> 18 </answer>",
        "9+9=18. </think><answer>18</answer>",
        "9+9=18. </THINK> <Answer> 18 </Answer>",
        "9+9=18. </think> So <answer> 18 </answer>",
        "9+9=18. <answer> 18 </answer>",
    ],
    tag_functions,
)

# %%
show(joined)

# %% tags=["check"]
assert joined["literal"].tolist() == ["1, in format"] + 5 * ["0, –"]
assert joined["lenient"].tolist() == 4 * ["1, in format"] + 2 * ["0, –"]

# %% [markdown]
# How much does it matter? On record are the answers of the untrained pocket policy to 1,024
# questions under this prompt, and those of a real model, SmolLM2 with 135 million parameters, to
# 200 questions of GSM8K, without examples and with three ({doc}`04_prompting_baselines` reads
# both).

# %%
recordings = {
    "pocket": "pocket/prompt-rollouts.parquet",
    "SmolLM2": "smollm2/smollm2-rollouts.parquet",
}
rollouts = pd.concat(
    pd.read_parquet(RESULTS_DIR / path).assign(policy=policy)
    for policy, path in recordings.items()
)
rollouts = rollouts[rollouts["prompt"].str.startswith("r1_zero")]


def parts(reward_fn: Callable) -> pd.DataFrame:
    graded = map(reward_fn, rollouts["response"], rollouts["gold"])
    return pd.DataFrame(list(graded), index=rollouts.index)


# %%
literal, lenient_parts = parts(r1_zero_reward_fn), parts(lenient)
counted = rollouts[["policy", "prompt"]].assign(
    responses=1,
    literal=literal["format_reward"].astype(int),
    lenient=lenient_parts["format_reward"].astype(int),
    changed=(literal != lenient_parts).any(axis=1).astype(int),
)
table = counted.groupby(["policy", "prompt"], sort=False).sum()
table

# %% tags=["check"]
assert table["responses"].tolist() == [1_024, 1_024, 200, 200]
assert table["changed"].sum() == 0 < table["literal"].sum()
spoiled = rollouts["response"].str.replace("</think> <", "</think>\n<")
assert [find_tagged(text) for text in spoiled] == [None] * len(spoiled)
found_again = [find_tagged(text, strict=False) for text in spoiled]
assert (
    sum(answer is not None for answer in found_again)
    == literal["format_reward"].sum()
)

# %% [markdown]
# Not one verdict changes. What these policies get wrong is another thing: a missing tag. The pocket
# policy was pretrained on this very prompt, and SmolLM2 copies the tags from examples or writes
# none. One character decides, though. With a line break put between the tags of these responses,
# the literal form finds none of the answers and the lenient form finds all of them. A policy that
# is trained with either form learns that form; what is reported before training depends on it, so
# it has to be stated.
#
# ## Where the answer ends
#
# The answer ends at the first `</answer>` after it opened. What comes later never counts, and
# neither does anything before. If it did, a policy could answer twice.

# %%
cut = graded(
    [
        "</think> <answer> 18 </answer> No, 17.",
        "</think> <answer> 17 </answer> No, <answer> 18 </answer>",
        "It is 18. </think> <answer> 17 </answer>",
        "</answer> </think> <answer> 18 </answer>",
        "</think> <answer> 18",
        "</think> <answer> </answer>",
        "</think> <answer> 17 </think> <answer> 18 </answer>",
    ],
    {"reward": r1_zero_reward_fn},
)

# %%
show(cut)

# %% tags=["check"]
right, wrong, unformatted = "1, in format", "0, in format", "0, –"
assert cut["reward"].tolist() == [
    *(right, wrong, wrong, right),
    *(unformatted, wrong, wrong),
]

# %% [markdown]
# The `question_only` prompt asks for a box, `\boxed{18}`. Boxes nest and hold braces of their own,
# so a regular expression that stops at the first `}` cuts `\boxed{\frac{1}{2}}` to pieces. The
# grader matches braces in one pass and takes the last box that is closed. A stack of thousands
# of open braces costs as much as any text of that length.

# %% tags=["definition"]
MAX_RESPONSE_CHARS = 50_000
_FLAT_BOX = re.compile(r"\\boxed\s*\{((?:[^{}\\]|\\[^{}])*)\}")
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def find_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` that is closed."""
    text = text[-MAX_RESPONSE_CHARS:]
    last_start = text.rfind("\\boxed")
    if last_start < 0:
        return None
    flat = _FLAT_BOX.match(text, last_start)
    if flat and text.find("\\boxed") == last_start:  # the usual case
        return flat[1]
    # Of each open brace: where its content starts, and whether it is a box's.
    open_braces: list[tuple[int, bool]] = []
    last_box: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        token = brace[0]
        if token == "{" or token.startswith("\\boxed"):
            open_braces.append((brace.end(), token != "{"))
        elif token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box:
                last_box = (start, brace.start())
    return None if last_box is None else text[slice(*last_box)]


# %% tags=["check"]
assert find_boxed(r"\boxed{17} or \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
assert find_boxed(r"\boxed{18} and then \boxed{") == "18"
assert find_boxed(r"\boxed{17\boxed{18}}") == r"17\boxed{18}"
assert find_boxed(r"\boxed{18") is None
assert find_boxed(r"\boxed{" * 20_000) is None

# %%
boxes = graded(
    [
        r"\boxed{18}",
        r"\boxed {\text{18 eggs}}",
        r"\boxed{17}, no: \boxed{18}",
        r"\boxed{18} \boxed{17}",
        r"\boxed{17\boxed{18}}",
        r"18 \boxed{}",
        r"\boxed{18",
        r"\boxed 18",
    ],
    {"reward": question_only_reward_fn},
)

# %%
show(boxes)

# %% tags=["check"]
assert boxes["reward"].tolist() == [
    *3 * [right],
    *3 * [wrong],
    *2 * [unformatted],
]

# %% [markdown]
# Two boxes are not two chances: the policy has to know which number comes last. Of nested boxes
# the outer one is read, with all that is in it.
#
# Where `<answer>` holds a box, the box is not cut out. The command `\boxed` is taken off, and the
# whole answer is read as any other.

# %%
boxes_in_tags = graded(
    [
        rf"</think> <answer> {answer} </answer>"
        for answer in (
            r"\boxed{18}",
            r"The answer is \boxed{18}.",
            r"\boxed{18} eggs",
            r"17 or \boxed{18}",
            r"not \boxed{18}",
            r"1\boxed{8}",
            r"I get \boxed{18}",
        )
    ],
    {"reward": r1_zero_reward_fn},
)

# %%
show(boxes_in_tags)

# %% tags=["check"]
assert boxes_in_tags["reward"].tolist() == [*3 * [right], *4 * [wrong]]

# %% [markdown]
# The last row is the price: words that the grader does not know around a box, and no reward.
#
# ## Numbers
#
# A gold that is a number is compared with a number. The whole answer must be one: what is left
# over makes it no number at all. Numbers are exact fractions, so nothing is rounded. The core is
# small.

# %% tags=["definition"]
_CORE = re.compile(
    r"([+-]?)(?:([0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.([0-9]+))?"
    r"|([0-9]+)/([0-9]+))"
)


def plain_parse_number(text: str) -> Fraction | None:
    """Integers, decimals, groups of three digits, fractions."""
    match = _CORE.fullmatch(text)
    if match is None:
        return None
    sign, integer, decimals, numerator, denominator = match.groups()
    if numerator:
        if int(denominator) == 0:
            return None
        value = Fraction(int(numerator), int(denominator))
    else:
        digits = integer.replace(",", "") + (decimals or "")
        value = Fraction(int(digits), 10 ** len(decimals or ""))
    return -value if sign == "-" else value


# %% tags=["check"]
rng = random.Random(0)
texts = ["".join(rng.choices("0123456789,./-", k=5)) for _ in range(20_000)]
texts += [f"{rng.randint(-(10**9), 10**9):,}" for _ in range(1_000)]
plain = [plain_parse_number(text) for text in texts]
read = [value is not None for value in plain]
assert 1_500 < sum(read) < 8_000
agree = [
    value == parse_number(text)
    for value, text in zip(plain, texts, strict=True)
    if value is not None
]
assert all(agree)
assert plain_parse_number("-1,080.50") == parse_number("-1080.5") == -1080.5

# %% [markdown]
# The package's `parse_number` reads more. Its rules are best seen at work. In each table below the
# grader has sorted the answers by its verdict.


# %%
def sort_by_verdict(rows: dict[str, tuple[str, list[str]]]) -> pd.DataFrame:
    """A row a rule: its gold, the answers that score 1 and those that don't."""
    table = []
    for rule, (gold, answers) in rows.items():
        scored = {True: [], False: []}
        for answer in answers:
            shown = answer.replace("\n", "⏎")
            scored[is_equal(answer, gold)].append(shown)
        columns = ["\n".join(scored[verdict]) for verdict in (True, False)]
        table.append((rule, gold, *columns))
    return pd.DataFrame(
        table, columns=["rule", "gold", "scores 1", "scores 0"]
    )


# %%
def n_scored(table: pd.DataFrame) -> list[tuple[int, int]]:
    """How many answers of each row score 1, and how many 0."""
    return [
        (len(row["scores 1"].splitlines()), len(row["scores 0"].splitlines()))
        for _, row in table.iterrows()
    ]


exact = sort_by_verdict(
    {
        "exact": ("18", ["18.00", "+18", "018", "18.0000000000000001"]),
        "large": (
            "9007199254740993",
            ["9,007,199,254,740,993", "9007199254740992"],
        ),
        "no floats": ("0.1", [".1", "1/10", "0.1000000000000000055"]),
        "groups of three": ("1080", ["1,080", "1{,}080", r"1\,080", "1,08"]),
        "decimal point": ("1080.5", ["1,080.5", "1.080,5"]),
        "fractions": ("0.5", ["1/2", r"\frac12", "½", "2/4", "1/2/1"]),
        "mixed numbers": ("-7.75", ["-7 3/4", r"-7\frac{3}{4}", "-6 7/4"]),
    }
)

# %%
show(exact)

# %% tags=["check"]
assert n_scored(exact) == [
    *((3, 1), (1, 1), (2, 1), (3, 1), (1, 1), (4, 1), (2, 1)),
]
assert float("0.1000000000000000055") == float("0.1")
assert float(9007199254740993) == float(9007199254740992)
assert not is_equal("-7 3/4", "-6.25")

# %% [markdown]
# As floats the two numbers of the second row are the same, and so are those of the third. In the
# last row the sign belongs to the whole number: −7 3/4 is −7.75. Someone who adds ¾ to −7 gets
# −6.25.
#
# A number usually comes with something around it: marks of LaTeX and Markdown, a currency, a unit,
# a name.

# %%
around = sort_by_verdict(
    {
        "marks": ("18", ["**18**", "$18$", r"\(18\)", r"\text{18}", "1**8"]),
        "money": ("18", ["$18", r"\$18", "$18.00", "18€", "18 dollars"]),
        "a unit": ("18", ["18 eggs", "18 square feet", "18 km/h", "18 xy"]),
        "percent": ("18", ["18%", r"18\%", "18 percent", "18% off"]),
        "percent, too": ("0.18", ["0.18", "18%"]),
        "cents": ("18 cents", ["18 cents", "18¢", "18", "$0.18"]),
        "not cents": ("18", ["$18", "18 cents", "18¢"]),
        "a name": ("18", ["x = 18", "Answer: 18", "The answer is 18."]),
    }
)

# %%
show(around)

# %% tags=["check"]
assert n_scored(around) == [
    *((4, 1), (5, 0), (3, 1), (3, 1), (1, 1), (2, 2), (1, 2), (3, 0)),
]

# %% [markdown]
# A unit is not compared, for a gold of GSM8K has none: the question says in what to count. That is
# also why `18%` is equal to 18, and not to .18. Where GSM8K asks for a percentage the gold is
# written without the sign, so `18` is the gold that `18%` has to meet. Cents are different: they
# stand beside dollars in the same problem, so `18 cents` and `$18` are two numbers. A gold of 18
# cents takes cents only.
#
# What makes another number of it, or leaves a choice, ends the reading. For words this takes a
# list, and patterns for families of words: `18 dozen`, `18 elevenths`, `18 sextillion`, `18
# possibly`. No such list is complete, and **a word that is not on it is taken for a unit**.
#
# Arithmetic is not an answer, with one exception: a fraction is a numeral, not a calculation, and
# it need not be reduced. So `36/2` and `\frac{36}{2}` *are* accepted for 18. A policy can leave one
# division to the grader, and nothing else.

# %%
hedged = sort_by_verdict(
    {
        "two numbers": (
            "18",
            ["17 or 18", "17, 18", "1 8", "17\n18", "18:1"],
        ),
        "an equation": ("18", ["17 = 18", "x = y = 18", "18 = 18"]),
        "arithmetic": ("18", ["9+9", "2*9", "72/2/2", "18 squared"]),
        "a scale": ("18", ["18 million", "18k", "18 dozen", "18 tenths"]),
        "a claim of it": ("18", ["not 18", "18 or so", "18 possibly"]),
        "no number": ("18", ["eighteen", "nan", "inf", "1.8e1", "0x12", ""]),
        "no gold": ("nan", ["nan", "0", "18"]),
    }
)

# %%
show(hedged)

# %% tags=["check"]
assert all(accepted == 0 for accepted, _ in n_scored(hedged))
assert not any(is_equal(answer, None) for answer in ("", "None", "nan"))
assert not is_equal(" ".join(map(str, range(100))), "18")
assert is_equal("36/2", "18") and is_equal(r"\frac{36}{2}", "18")

# %% [markdown]
# A gold that is missing, empty or `nan` never scores. One that still holds `####` was read
# wrongly, and is an error where problems are loaded: graded silently, it would only make the
# data set look hard.
#
# ## Expressions
#
# A gold such as $2\sqrt{3}$ can be written as $\sqrt{12}$ or $6/\sqrt{3}$. To see that these are
# equal takes algebra, and this is the work of `math-verify` and of sympy beneath it. A system of
# computer algebra has no bound of its own. Asked for $2^{2^{2^{99}}}$, it may begin to build it.
# `math-verify` stops after five seconds, by a means that cannot be had everywhere; we come to it.
#
# So an answer passes a gate first. A small parser reads a grammar of numbers, letters, π, roots,
# powers and fractions, at most 120 characters, six levels deep, with 32 parts. It
# builds a tree, and the tree keeps an account of how large its value can become: the *bits* of
# numerator and denominator, at most 128, and the *degree* of the polynomials above and below
# the bar, at most 6. An operation that would exceed the account is refused before anything is
# computed.

# %% tags=["definition"]
from gsmrl_helpers.expressions import (
    MAX_BITS,
    MAX_DEGREE,
    OPERATIONS,
    NotReadableError,
    _checked_exponent,
    _degree_of_power,
    make_leaf,
    number_of,
)


def combine(
    operation: str, left: Expression, right: Expression
) -> Expression:
    """`left operation right`; of two numbers, the number it makes."""
    (a, b), (c, d) = left.degree, right.degree
    x, y = number_of(left), number_of(right)
    bits = left.bits + right.bits + 1
    if operation == "^":
        n = _checked_exponent(left, y)
        bits = left.bits * max(abs(n), 1)
        degree = _degree_of_power(left.degree, n)
    elif operation == "+":
        degree = (max(a + d, c + b), b + d)
    else:
        degree = (a + c, b + d) if operation == "*" else (a + d, b + c)
    is_too_large = bits > MAX_BITS or sum(degree) > MAX_DEGREE
    if is_too_large or (operation == "/" and y == 0):
        raise NotReadableError
    is_root = operation == "^" and n.denominator > 1
    if x is None or y is None or is_root:
        return Expression(operation, (left, right), bits, degree)
    try:
        return make_leaf(OPERATIONS[operation](x, y))
    except ZeroDivisionError:
        raise NotReadableError from None


# %% tags=["check"]
def is_refused(operation: str, left: Expression, right: Expression) -> bool:
    try:
        combine(operation, left, right)
    except NotReadableError:
        return True
    return False


nine, x = make_leaf(Fraction(9)), make_leaf("x")
three, seven, zero = (make_leaf(Fraction(n)) for n in (3, 7, 0))
assert (MAX_CHARS, MAX_DEPTH, MAX_PARTS) == (120, 6, 32)
assert (MAX_BITS, MAX_DEGREE) == (128, 6)
assert number_of(combine("^", nine, nine)) == 9**9
assert is_refused("^", combine("^", nine, nine), nine)
assert is_refused("^", nine, combine("^", nine, nine))
assert combine("^", combine("+", x, nine), three).degree == (3, 0)
assert is_refused("^", x, seven) and is_refused("/", x, zero)

# %% [markdown]
# What the gate lets through is compared twice. First both sides are evaluated to a hundred digits,
# with fixed numbers in place of the letters. If they differ there, they are not equal, and that is
# the end. This step matters for speed: sympy thinks longest about expressions that are *not*
# equal. Only if they agree is `math-verify` asked, and it has the last word.

# %% tags=["definition"]
from gsmrl_helpers.equivalence import _sympy_leaf


def verify(gold: Expression, answer: Expression) -> bool:
    """What math-verify says of a/b = c/d, put as the expanded a·d = c·b."""
    sides = (evaluate(gold, _sympy_leaf), evaluate(answer, _sympy_leaf))
    (a, b), (c, d) = (sympy.fraction(sympy.together(side)) for side in sides)
    return math_verify.grader.verify(
        sympy.expand(a * d), sympy.expand(c * b), timeout_seconds=None
    )


# %% tags=["check"]
def tree(text: str) -> Expression:
    (item,) = parse_answer(text).items
    return item


assert verify(tree(r"2\sqrt{3}"), tree(r"\frac{6}{\sqrt{3}}"))
assert verify(tree("x^2+2x+1"), tree("(x+1)^2"))
assert not verify(tree("x^2+2x"), tree("(x+1)^2"))

# %%
symbolic = sort_by_verdict(
    {
        "roots and π": (
            r"2\sqrt{3}",
            [
                *(r"\sqrt{12}", "2√3", "12^{1/2}", r"2\sqrt{3}\text{ cm}"),
                *(r"3\sqrt{2}", "3.4641016151377544", r"2\sqrt{3} or 1"),
            ],
        ),
        "letters": (
            "x^2+2x+1",
            ["(x+1)^2", "y = (x+1)(x+1)", "(y+1)^2", "x^2+2x"],
        ),
        "intervals": ("[0,1)", ["[0, 2/2)", "[0,1]", "(0,1)", "0 < x < 1"]),
        "points": ("(1,2)", [r"(\frac{2}{2}, 2)", "(2,1)", "{1,2}"]),
        "sets": (r"\{1,2\}", ["2, 1", "{1, 4/2}", "1, 2, 3", "1 or 2"]),
        "beyond the gate": (
            "2^{1/8}",
            ["2^{1/8}", r"\sqrt{\sqrt{\sqrt{2}}}"],
        ),
    }
)

# %%
show(symbolic)

# %% tags=["check"]
assert n_scored(symbolic) == [
    *((4, 3), (2, 2), (1, 3), (1, 2), (2, 2), (0, 2)),
]
assert all(is_equal(p.answer, p.gold) == p.is_right for p in EXPRESSIONS)

# %% [markdown]
# A decimal is not equal to a root, however many digits it has: `math-verify` alone would round. The
# order counts in points and not in sets. The last row is the price of the gate. An eighth root is
# beyond it, so such a gold is never met, not even by itself. What cannot be bounded is "not equal".
#
# The whole comparison, put together:

# %% tags=["definition"]
from gsmrl_helpers.grading import _parse_gold


def is_equal(answer: str, ground_truth: str | None) -> bool:
    """Whether the whole of `answer` is the gold answer."""
    gold = _parse_gold(ground_truth)
    if gold is None:
        return False
    if isinstance(gold, Numeral):
        return parse_numeral(answer) == gold
    parsed = parse_answer(answer)
    if parsed is None:
        return False
    from gsmrl_helpers.equivalence import is_equivalent

    return is_equivalent(gold, parsed)


# %% tags=["check"]
assert isinstance(_parse_gold("18"), Numeral) and is_equal("18 eggs", "18")
assert isinstance(_parse_gold(r"2\pi"), Answer)
assert is_equal(r"\pi + \pi", r"2\pi") and not is_equal("6.283185", r"2\pi")
assert all(is_equal(p.answer, p.gold) == p.is_right for p in TRAPS + FORMS)

# %% [markdown]
# ## What may never happen
#
# The text of a response is the output of a random process that is paid for surprises. Whatever it
# holds, a grader may not evaluate it, raise, hang, or keep the rest of the batch from being
# graded.
#
# Libraries often bound their time by a signal: the operating system is asked for an *alarm*, which
# interrupts the program. A process has one alarm, and only its main thread can set it. So
# `math-verify` with its time limit on refuses to work in a worker thread, and in the main thread
# it takes an alarm that the caller had set.

# %% tags=["check"]
with ThreadPoolExecutor(1) as pool:
    error = pool.submit(math_verify.parse, r"\boxed{18}").exception()
assert isinstance(error, ValueError)
assert "doesn't support threaded environment" in str(error)

signal.alarm(60)
math_verify.parse(r"\boxed{18}")
seconds_left = signal.alarm(0)
assert seconds_left == 0  # ours would have rung in 60 seconds

# %% [markdown]
# Here its limits are off, and the gate takes their place. The grader works in threads, in the
# threads of an asyncio loop, and beside an alarm.


# %% tags=["check"]
def grade_one(answer: str) -> bool:
    return is_equal(answer, r"2\sqrt{3}")


async def grade_all(answers: list[str]) -> list[bool]:
    jobs = (asyncio.to_thread(grade_one, answer) for answer in answers)
    return await asyncio.gather(*jobs)


batch = [r"\sqrt{12}", *POISON, "2√3"]
signal.alarm(60)
with ThreadPoolExecutor(4) as pool:
    in_threads = list(pool.map(grade_one, batch))
    in_a_loop = pool.submit(asyncio.run, grade_all(batch)).result()
assert in_threads == in_a_loop == [True, *[False] * len(POISON), True]
assert signal.alarm(0) > 30

# %% [markdown]
# `POISON` in that batch is a list of texts meant to hurt: towers of powers, factorials, a hundred
# thousand brackets, patterns that make regular expressions slow, a call of the operating system.
# All stand between two good answers, and both still scored. Here each is graded alone; the bound is
# a quarter of a second of CPU time.


# %%
def is_bounded(answer: str) -> bool:
    """Two golds, each kind of comparison: refused, and in time?"""
    started = time.thread_time()
    verdicts = [is_equal(answer, gold) for gold in ("18", r"2\sqrt{3}")]
    return not any(verdicts) and time.thread_time() - started < 0.25


# %% tags=["check"]
assert len(POISON) == 45
assert all(is_bounded(poison) for poison in POISON)

# %% [markdown]
# On record is what `math-verify` makes of them with gold 18, each in a process of its own, which
# was killed after 10 seconds of CPU time. It was asked with its alarm and without it, as a worker
# thread would have to. The table has the CPU time of those for which one of the two took more than
# a second. Whoever ended said "not equal".

# %%
record = json.loads((RESULTS_DIR / "grader.json").read_text())


def cpu_time(outcome: dict) -> str:
    seconds = outcome["seconds"]
    return "killed" if seconds is None else f"{seconds:.1f} s"


def is_slow(outcome: dict) -> bool:
    return outcome["seconds"] is None or outcome["seconds"] > 1


# %%
columns = {
    "gsmrl": "this book",
    "math-verify": "math-verify",
    "math-verify, no limit": "without its alarm",
}
slow = [
    {
        "begins": row["begins"].replace("\\\\", "\\"),
        "characters": f"{row['characters']:,}",
        **{name: cpu_time(row[key]) for key, name in columns.items()},
    }
    for row in record["poison"]
    if any(is_slow(row[key]) for key in columns)
]

# %%
show(pd.DataFrame(slow))

# %% tags=["check"]
ended = {row[key]["said"] for row in record["poison"] for key in columns}
assert ended == {"not equal", "killed after 10 s"}
assert max(row["gsmrl"]["seconds"] for row in record["poison"]) < 0.25
killed = [row for row in slow if row["without its alarm"] == "killed"]
assert len(killed) == 9 and len(slow) == 14
alarms = [row["math-verify"]["seconds"] > 4.8 for row in record["poison"]]
assert sum(alarms) == 10

# %% [markdown]
# With its alarm `math-verify` survives all of them, though ten keep it busy for the full five
# seconds. Without it, 9 of the 45 had to be killed. An alarm cannot be had in a worker thread, so
# this is the choice there: a gate, or a process that can be killed.

# %% [markdown]
# ## What each rule costs
#
# Every rule moves the border between the two errors. For each, the table has an answer that the
# rule decides well, and one that it decides badly, or that can be disputed.

# %%
costs = [
    ("a unit is not compared", ("18 eggs", "18"), ("18 goats", "18")),
    ("nor is the percent sign", ("18%", "18"), ("0.18", "18")),
    ("cents equal only cents", ("18 cents", "18"), ("$0.18", "18 cents")),
    ("one number, nothing else", ("17 or 18", "18"), ("I have 18", "18")),
    ("commas at thousands only", ("1,8", "18"), ("1 080", "1080")),
    ("no words that scale", ("18 million", "18"), ("2 million", "2000000")),
    ("a list of words", ("18 dozen", "18"), ("18 Dutzend", "18")),
    ("and of forms", ("18 doubles", "18"), ("18 times", "18")),
    (
        "all around a box",
        (r"17 or \boxed{18}", "18"),
        (r"so \boxed{18}", "18"),
    ),
    ("no arithmetic", ("9+9", "18"), (r"6\cdot\frac{1}{2}", "3")),
    ("but a division", ("18/1", "18"), ("36/2", "18")),
    ("no rounding", ("0.33", "1/3"), ("3.46", r"2\sqrt{3}")),
    ("the gate", ("9^{9^9}", r"2\pi"), ("2^{1/8}", "2^{1/8}")),
]

# %%
price = []
for rule, good, bad in costs:
    scores, pays = (is_equal(unbox(a), gold) for a, gold in (good, bad))
    price.append(
        {
            "rule": rule,
            "answer ? gold": " ? ".join(good),
            "verdict": int(scores),
            "its price": " ? ".join(bad),
            "its verdict": int(pays),
            "which is a": f"false {'positive' if pays else 'negative'}",
        }
    )

# %%
show(pd.DataFrame(price))

# %% tags=["check"]
positives = {row["rule"] for row in price if row["its verdict"]}
assert positives == {
    "a unit is not compared",
    "a list of words",
    "but a division",
}
scoring = {row["rule"] for row in price if row["verdict"]}
assert scoring == {
    *("a unit is not compared", "nor is the percent sign", "but a division"),
}

# %% [markdown]
# Most prices are false negatives. Three answers are paid that can be called wrong. *Goats* for
# eggs: the answer still has to be 18, so there is nothing in it for a policy that does not know
# the number. *Dutzend* is German for dozen, so the text says 216; it is not on the list, and is
# taken for a unit. Again the 18 must be known, and whoever knows it has no reason to add the word,
# but the answer is wrong. And with *36/2* the last step is left to the grader. This is a good test
# for a rule. Ask not whether a wrong answer can pass, but whether one can pass that was written
# without solving the problem.
#
# The rules that find the answer have prices, too. A response that corrects itself after
# `</answer>` stays wrong, and the literal format loses what the lenient one would find.
#
# ## Beside math-verify alone
#
# One recorded run (`tools/measure_grader.py`) gave the same pairs to this grader and to
# `math-verify` as its documentation shows it. Times are of the CPU, for one pair. The drawn
# expressions are random ones that pass the gate, rewritten so that they are still equal, or
# changed. The last corpus has right answers that this grader refuses knowingly.

# %%
names = {"gsmrl": "ours", "math-verify": "theirs"}
compared = []
for row in record["comparison"]:
    for key, name in names.items():
        found = row[key]
        compared.append(
            {
                "pairs": f"{row['corpus']} ({row['pairs']:,})",
                "grader": name,
                "false +": found["false positives"],
                "false −": found["false negatives"],
                "median ms": f"{found['median ms']:.3f}",
                "longest ms": f"{found['max ms']:.1f}",
            }
        )

# %%
show(pd.DataFrame(compared))

# %% tags=["check"]
by_corpus = {row["corpus"]: row for row in record["comparison"]}
for row in record["comparison"]:
    assert row["gsmrl"]["false positives"] == 0
    knowingly = row["corpus"] == "refused knowingly"
    assert row["gsmrl"]["false negatives"] == knowingly * row["pairs"]
    assert row["gsmrl"]["max ms"] < 250
numbers = by_corpus["numbers"]
speed_up = numbers["math-verify"]["total s"] / numbers["gsmrl"]["total s"]
drawn = by_corpus["drawn expressions"]["math-verify"]
assert drawn["false positives"] + drawn["false negatives"] == 1
assert speed_up > 50
assert record["plain answers a second"] > 100_000

# %% [markdown]
# Where the two disagree on the lists, and who is right:

# %%
listed = pd.DataFrame(record["differing"])
listed = listed[~listed["corpus"].isin(["numbers", "drawn expressions"])]
listed = listed.drop_duplicates(["answer", "gold"])
shown = pd.DataFrame(
    {
        "answer": listed["answer"].map(lambda text: shorten(text, 34)),
        "gold": listed["gold"].map(lambda text: shorten(text, 18)),
        "ours": listed["gsmrl"].map(int),
        "theirs": listed["math-verify"].map(int),
        "right is": [
            "ours" if row.gsmrl == row.is_right else "theirs"
            for row in listed.itertuples()
        ],
    }
)

# %%
show(shown)

# %% tags=["check"]
who = shown["right is"].value_counts()
assert who["ours"] > who["theirs"] > 0

# %% [markdown]
# On expressions that pass the gate the two agree but for one, which is no surprise: the last word
# is the library's. On the lists this is no contest, for they were made for this grader.
# `math-verify` is made to find mathematics in free text, and reads inequalities, matrices and
# functions that the gate turns away. That `18%` is not .18 and that `nan` is no gold are
# conventions of ours.
#
# ## A million inputs
#
# `tools/fuzz_grader.py` draws texts from the pieces that a grader knows, numbers written in
# accepted ways or changed by one digit, and pairs of expressions. What is not drawn is not tested:
# the words are a handful (`eggs`, `million`, `cents`, `or`), not those of a dictionary, and the
# contents of `\text{…}` come from the same few pieces. So a zero in the table says nothing of a
# word like *Dutzend*. Verdicts are known for the numbers and expressions only; of the other texts
# it is counted whether they raise or leave the range of rewards. Its record:

# %%
fuzz = json.loads((RESULTS_DIR / "grader-fuzz.json").read_text())
counts = fuzz["counts"]
raised = sum(n for name, n in counts.items() if name.startswith("raised"))
figures = {
    "inputs": counts["inputs"],
    "compared as expressions, through the gate": counts["slow path"],
    "of these asked of math-verify": counts["asked of math-verify"],
    "exceptions": raised,
    "rewards outside [0, 1]": counts["outside [0, 1]"],
    "verdict known": counts["known"],
    "false positives": counts["false positives"],
    "false negatives": counts["false negatives"],
    "false negatives, not refused by the gate": counts["false negatives"]
    - counts["false negatives, beyond the bounds"],
}

# %%
table = pd.Series(figures, name="count").map("{:,}".format)
table.to_frame()

# %% tags=["check"]
assert figures["inputs"] == 1_000_000
assert min(counts["slow path"], counts["asked of math-verify"]) >= 50_000
assert raised == figures["rewards outside [0, 1]"] == 0
assert figures["false positives"] == 0
assert figures["false negatives, not refused by the gate"] == 0
share_missed = counts["false negatives"] / counts["right of these"]
assert 0.1 < share_missed < 0.2
assert round(fuzz["max_ms"]) == 119 and fuzz["slow_path_p99_9_ms"] <= 50

# %% [markdown]
# All false negatives are expressions beyond the gate. They are many because the generator draws
# expressions of up to four levels on purpose to hit its bounds.

# %% tags=["hide-input"]
histogram = {int(ms): n for ms, n in fuzz["slow_path_ms"].items()}
figure, ax = plt.subplots(figsize=(7.2, 3), layout="constrained")
ax.bar(
    [ms + 0.5 for ms in histogram],
    list(histogram.values()),
    width=1.0,
    color=line("GRPO")["color"],
)
ax.axvline(
    fuzz["slow_path_p99_9_ms"], color="black", linestyle=":", linewidth=1
)
ax.text(fuzz["slow_path_p99_9_ms"] + 0.6, 9_000, "99.9 % are below")
ax.set(
    yscale="log",
    xlabel="CPU time, ms",
    ylabel="comparisons of expressions",
)
plt.show()

# %% [markdown]
# *Times of all comparisons of expressions in the fuzz run, in bins of one millisecond; note the
# logarithmic axis. The longest of all took 119 ms; the bound is 250.*
#
# ## All golds of a data set
#
# The surest test is the data itself. Each gold is written in 33 ways, and each must score. One
# more, one less, and two neighbouring digits swapped must not. Here with golds of the pocket
# problems:

# %%
golds = [
    problem.gold
    for difficulty in (0.0, 0.5, 1.0)
    for problem in load_pocket_problems("dev", 100, difficulty=difficulty)
]
ways = [(w, gold) for gold in golds for w in ways_to_write(int(gold))]
misses = [(str(m), gold) for gold in golds for m in near_misses(int(gold))]
print(f"{len(golds)} golds, {len(ways):,} ways, {len(misses)} near misses")

# %% tags=["check"]
assert len(ways) == 33 * len(golds)
assert all(is_equal(way, gold) for way, gold in ways)
assert not any(is_equal(miss, gold) for miss, gold in misses)

# %% [markdown]
# And on record, the same with all golds of GSM8K {cite}`cobbe2021gsm8k`:

# %%
pd.Series(record["gsm8k"], name="count").map("{:,}".format).to_frame()

# %% tags=["check"]
gsm8k = record["gsm8k"]
assert gsm8k["golds"] == 8_792
assert gsm8k["ways right"] == gsm8k["ways"] == 33 * 8_792
assert gsm8k["one off"] == 2 * 8_792 and gsm8k["digits swapped"] > 5_000
assert gsm8k["one off, right"] == gsm8k["digits swapped, right"] == 0

# %% [markdown]
# ## A file of responses
#
# `gsmrl grade` grades responses that are already there, one JSON object a line. A bad line is
# reported by its number, and the rest is graded. `--reward question_only` takes the other grader,
# and `--out` writes the rows with their rewards.

# %%
lines = [
    {"response": "9+9=18. </think> <answer> 18 </answer>", "gold": "18"},
    {"response": "9+9=17. </think> <answer> 17 </answer>", "gold": "18"},
    {"response": "I think it is 18.", "gold": "18"},
    {"response": "</think> <answer> 18 </answer>", "gold": "#### 18"},
]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "responses.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnot JSON\n")
    finished = subprocess.run(
        [sys.executable, "-m", "gsmrl_helpers.cli", "grade", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "FORCE_COLOR": "", "NO_COLOR": "1"},
    )
print(finished.stdout + finished.stderr)

# %% tags=["check"]
assert finished.returncode == 1
assert re.search(r"graded +3 ", finished.stdout)
assert "line 4: the gold is what follows '####'" in finished.stderr
assert "line 5: not JSON" in finished.stderr

# %% [markdown]
# ## Take away
#
# - A false positive changes what the policy learns, a false negative how fast. The first must not
#   exist; the second may, if it is known.
# - The answer has one place, the whole of it is one number or one expression, and numbers are
#   exact.
# - Model text is matched and parsed, never evaluated. What cannot be bounded is not equal.
# - A grader is tested like any program: lists of forms and traps, every gold of the data set,
#   random inputs by the million, and someone who tries to fool it.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Attack the grader
# :label: ex-05-attack
#
# *Medium, 15 minutes.* Write `fool(name)`. It returns one answer, made **without knowing the
# gold**, that the grader `name` takes for right whatever integer gold from 0 to 999 it has. `name`
# is `"contains"`, `"floats"` or `"eval"`, the short graders from the beginning. Read their code:
# nothing else is needed. Then try your strings on the real one.
#
# :::{dropdown} Hint
# One of them does not mind long answers, one has a comparison that fails, and one lets you define
# what equal means.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def fool(name: str) -> str:
    if name == "contains":
        return " ".join(str(number) for number in range(1_000))
    if name == "floats":
        return "nan"
    return "type('Any', (), {'__eq__': lambda *_: True})()"


# %% tags=["check"]
short_graders = {"contains": contains, "floats": as_floats, "eval": evaluated}
below_1000 = [str(number) for number in range(1_000)]
for name, grader in short_graders.items():
    assert all(grader(fool(name), gold) for gold in below_1000), name
    assert not any(is_equal(fool(name), gold) for gold in below_1000), name
    for gold in below_1000[::37]:
        tagged = f"</think> <answer> {fool(name)} </answer>"
        assert r1_zero_reward_fn(tagged, gold)["reward"] == 0
        boxed = rf"\boxed{{{fool(name)}}}"
        assert question_only_reward_fn(boxed, gold)["reward"] == 0

# %% [markdown]
# ```{exercise} Millions
# :label: ex-05-millions
#
# *Medium, 15 minutes.* The grader refuses `2 million`. Write the rule that is missing,
# `parse_scaled(text)`: the number that a text of one number and the word thousand, million or
# billion writes, as an exact `Fraction`, and None for any other text. Let `parse_number` read the
# number before the word. What does your rule do with `$2 million`, `1/2 million` and `2 million
# eggs`?
#
# :::{dropdown} Hint
# `text.rpartition(" ")` splits off the last word. `parse_number` returns None for what it
# does not read.
# :::
#
# :::{dropdown} Worked answer
# `$2 million` and `1/2 million` are read, since `parse_number` reads `$2` and `1/2`.
# `2 million eggs` is None: a new false negative beside the one that the rule closes. `2 dozen
# million` stays None, because `2 dozen` is. A rule that calls another inherits its caution.
# :::
# ```


# %% tags=["solution", "hide-cell"]
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}


def parse_scaled(text: str) -> Fraction | None:
    number, _, word = text.strip().lower().rpartition(" ")
    value = parse_number(number)
    if value is None or word not in SCALES:
        return None
    return value * SCALES[word]


# %% tags=["check"]
assert parse_scaled("2 million") == parse_scaled("$2 Million") == 2 * 10**6
assert parse_scaled("109.2 million") == 109_200_000
assert parse_scaled("1.5 billion") == 3 * parse_scaled("$0.5 billion")
assert parse_scaled("7 billion") == 7 * 10**9
assert parse_scaled("-1/3 thousand") == Fraction(-1000, 3)
refused = ["2", "million", "2 or 3 million", "2 million eggs", "2 million 1"]
refused += ["2 dozen million", "two million", "nan million", "", "2 zillion"]
assert not [text for text in refused if parse_scaled(text) is not None]

# %% [markdown]
# ```{exercise} How wrong is a grader?
# :label: ex-05-error-rates
#
# *Easy, 10 minutes.* Write `error_rates(judge, pairs)`: the share of wrong answers that
# `judge(answer, gold)` takes for right, $\alpha$, and the share of right answers that it does not,
# $\beta$. A pair has `answer`, `gold` and `is_right`. By the formula at the beginning, what is
# left of the pull under `last_number`?
#
# :::{dropdown} Hint
# Divide by the number of wrong pairs in the first case and of right ones in the second.
# :::
#
# :::{dropdown} Worked answer
# $1 - \alpha - \beta$ is left. On `TRAPS + FORMS` the grader `last_number` takes 11 of 23 wrong
# answers for right and misses 10 of 17 right ones: $1 - .48 - .59 = -.07$. Nothing is left; the
# update would prefer wrong answers a little. The lists are made to be hard. On the answers of a
# policy both shares are others, and so is the pull.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def error_rates(
    judge: Callable[[str, str], bool], pairs: list[Pair]
) -> tuple[float, float]:
    said = {True: [], False: []}
    for pair in pairs:
        said[pair.is_right].append(judge(pair.answer, pair.gold))
    missed = [not verdict for verdict in said[True]]
    return sum(said[False]) / len(said[False]), sum(missed) / len(missed)


# %% tags=["check"]
two_of_each = [
    *(Pair("18", "18", True), Pair("18 eggs", "18", True)),
    *(Pair("17 = 18", "18", False), Pair("17", "18", False)),
]
assert error_rates(contains, two_of_each) == (0.5, 0.0)
assert error_rates(as_floats, two_of_each) == (0.0, 0.5)
assert error_rates(is_equal, TRAPS + FORMS) == (0.0, 0.0)
alpha, beta = error_rates(last_number, TRAPS + FORMS)
assert (round(alpha * 23), round(beta * 17)) == (11, 10)
assert -0.07 < 1 - alpha - beta < -0.06

# %% [markdown]
# ## Next
#
# The grader says what is right. What is *paid* need not be the same: {doc}`06_reward_functions`
# pays for other things, too, and shows what becomes of it. What three prompts make of one policy
# is in {doc}`04_prompting_baselines`.
