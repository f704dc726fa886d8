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
# # Reward functions
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** write a reward for answers that a program can check, find out what else
# it pays for, say how many groups of a batch can teach anything and keep them many, and decide
# before a run whether it is worth starting.
#
# **You need** a grader, {doc}`05_grading_answers`, and the idea that answers to one problem are
# compared within their group ({doc}`10_advantages` has the details). **Reading** takes 35 minutes,
# **running** half a minute, on a **CPU**.
# ```
#
# In reinforcement learning with verifiable rewards (RLVR) a program compares each answer with the
# gold answer, and what it returns is the reward. No model judges, so a long answer or a confident
# tone earns nothing. But people wrote that program, and training looks for whatever it pays for.
# A reward that can be had without solving the problem will be had that way. This is *reward
# hacking*, and with a checker it happens in the checker's code.
#
# Letters used below: $\pi_\theta$ is the policy, $G$ the number of answers sampled to one problem
# (a *group*), $p$ the share of right answers to a problem. An answer's *advantage*, the weight with
# which it is made more or less likely, is its reward minus the group's mean, here divided by the
# group's standard deviation.

# %%
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import transformers
from einops import rearrange
from IPython.display import HTML
from torch import Tensor

from gsmrl_helpers import (
    experiment_config,
    load_problems,
    plots,
    small_batch,
)
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.plots import plot_metric, use_style
from gsmrl_helpers.pocket_problems import apply_operator
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.recorded_rollouts import read_answers
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.tables import as_html

use_style()

# %% [markdown]
# ## A reward in two parts
#
# *Three boxes hold four apples each. Two apples are eaten. How many are left?* The gold answer is
# 10. The policy is asked to work it out and to write the result after the marker `####`. A
# grader reads that line and returns the parts that a reward can pay for: the answer is right, or
# it stands where it should.

# %% tags=["definition"]
from gsmrl_helpers.grading import is_equal
from gsmrl_helpers.numerals import parse_number
from gsmrl_helpers.problems import GOLD_MARKER


def marker_reward_fn(
    response: str, ground_truth: str | None
) -> dict[str, float]:
    """Grade a response that ends with `#### 18`: one marker, one number."""
    _, marker, after = response.partition(GOLD_MARKER)
    line = after.strip(" \t").partition("\n")[0]
    in_format = (
        bool(marker)
        and GOLD_MARKER not in after
        and parse_number(line) is not None
    )
    correct = in_format and is_equal(line, ground_truth)
    return {
        "reward": float(correct),
        "format_reward": float(in_format),
        "answer_reward": float(correct),
    }


# %% tags=["check"]
assert marker_reward_fn("12-2=10. #### 10", "10")["answer_reward"] == 1
assert marker_reward_fn("12-2=10. #### 10 or 11", "10")["format_reward"] == 0
assert marker_reward_fn("#### 1,080", "1080")["answer_reward"] == 1

# %% [markdown]
# What is paid is a second decision, and it is a formula of three parts, each 0 or 1: $C$, the
# answer is correct; $F$, it is in format; $N$, the gold number stands anywhere in the text. Each
# formula below is one line, and each has a meaning:
#
# - `answer_only`, $C$. Only the answer counts. The assignment's graders are of this kind.
# - `format_bonus`, $C + 0.1 F$. A little for writing the answer so that it can be found.
# - `partial_credit`, $\max(C, 0.5 N) + 0.1 F$. Half for the number anywhere.
# - `format_only`, $0.1 F$. Nothing for the answer.
# - `conditional`, $C + 0.1\, C F$. The bonus for correct answers alone.

# %% tags=["definition"]
from gsmrl_helpers.reward_shaping import FORMAT_BONUS, PARTIAL_CREDIT


class Parts(NamedTuple):
    """What a reward can pay for, each part 1.0 or 0.0."""

    correct: float
    in_format: float
    anywhere: float


def answer_only(parts: Parts) -> float:
    """C."""
    return parts.correct


def format_bonus(parts: Parts) -> float:
    """C + .1·F."""
    return parts.correct + FORMAT_BONUS * parts.in_format


def partial_credit(parts: Parts) -> float:
    """max(C, .5·N) + .1·F."""
    return (
        max(parts.correct, PARTIAL_CREDIT * parts.anywhere)
        + FORMAT_BONUS * parts.in_format
    )


def format_only(parts: Parts) -> float:
    """.1·F."""
    return FORMAT_BONUS * parts.in_format


def conditional(parts: Parts) -> float:
    """C + .1·C·F."""
    return parts.correct + FORMAT_BONUS * parts.correct * parts.in_format


# %% tags=["check"]
formulas = [
    answer_only,
    format_bonus,
    partial_credit,
    format_only,
    conditional,
]
wrong_but_neat, number_by_the_way = Parts(0, 1, 0), Parts(0, 0, 1)
assert [f(wrong_but_neat) for f in formulas] == [0, 0.1, 0.1, 0.1, 0]
assert [f(number_by_the_way) for f in formulas] == [0, 0, 0.5, 0, 0]

# %% [markdown]
# `shape_reward` puts a formula on a grader. The grader's own parts stay in the result, so that
# format and answers can be logged apart whatever is paid.

# %% tags=["definition"]
from gsmrl_helpers.grading import RewardFn
from gsmrl_helpers.numerals import names_number
from gsmrl_helpers.reward_shaping import Formula


def shape_reward(grader: RewardFn, formula: Formula) -> RewardFn:
    """The grader with another reward: its parts, paid for by the formula."""

    def reward_fn(
        response: str, ground_truth: str | None
    ) -> dict[str, float]:
        graded = grader(response, ground_truth)
        anywhere = isinstance(ground_truth, str) and names_number(
            response, ground_truth
        )
        parts = Parts(
            graded["answer_reward"], graded["format_reward"], float(anywhere)
        )
        return {**graded, "reward": formula(parts)}

    return reward_fn


def rlvr_reward(response: str, ground_truth: str) -> float:
    """1 for the right number after ####, and .1 for the format."""
    return shape_reward(marker_reward_fn, format_bonus)(
        response, ground_truth
    )["reward"]


# %% tags=["check"]
partial = shape_reward(marker_reward_fn, partial_credit)
assert partial("It is 10.", "10") == {
    "reward": 0.5,
    "format_reward": 0.0,
    "answer_reward": 0.0,
}
assert rlvr_reward("It is 10.", "10") == 0

# %% [markdown]
# Four answers to the problem of the apples, graded.

# %%
answers = [
    "3*4 = 12, 12 - 2 = 10. #### 10",
    "3*4 = 12, 12 + 2 = 14. #### 14",
    "There are 10.00 left",
    "#### 7",
]
reward_fn = shape_reward(marker_reward_fn, format_bonus)
graded = pd.DataFrame([reward_fn(answer, "10") for answer in answers])
graded = graded[["answer_reward", "format_reward", "reward"]]
graded.columns = ["C", "F", "C + .1·F"]
HTML(as_html(graded.map("{:.1f}".format).assign(answer=answers)))

# %% tags=["check", "claim:W1a", "claim:W1b", "claim:W1c", "claim:W1d"]
expected = [1.1, 0.1, 0.0, 0.1]
paid = [rlvr_reward(answer, "10") for answer in answers]
assert np.allclose(paid, expected, rtol=0, atol=1e-9)

# %% [markdown]
# The third answer is right to any reader, and the grader does not see it: no marker, no answer.
# The last one was written without a thought and earns as much as the second. The format part asks
# for the marker exactly once: with two, a policy could state two answers and be paid for either.

# %% tags=["check", "claim:W1e"]
markers = ["10", "#### 10", "#### 10\n#### 10", "#### 9 #### 10", "####"]
expected = [0.0, 1.0, 0.0, 0.0, 0.0]
formats = [marker_reward_fn(text, "10")["format_reward"] for text in markers]
assert formats == expected
assert rlvr_reward("#### 10\n#### 10", "10") == 0

# %% [markdown]
# ## Partial credit, and what it pays for
#
# At the start of training almost all rewards are 0, and partial credit is tempting: half for a
# response that has the right number somewhere. The third answer above would get .5. So would this
# one, on every problem whose answer is a whole number from 1 to 100.

# %%
all_numbers = " ".join(map(str, range(1, 101)))
print(all_numbers[:21], "…", all_numbers[-11:])
print("gold 10:", partial(all_numbers, "10")["reward"])
print("gold 77:", partial(all_numbers, "77")["reward"])

# %% tags=["check", "claim:W2"]
expected = 0.5
golds = [str(number) for number in range(1, 101)]
paid = {partial(all_numbers, gold)["reward"] for gold in golds}
assert paid == {expected}
assert partial(all_numbers, "101")["reward"] == 0

# %% [markdown]
# Nobody has to think of that trick. An optimiser finds it. The one below is as plain as can be:
# it puts a few pieces of text together in every order, the list, the marker and the three most
# frequent answers, and keeps the text with the highest mean reward over 50 pocket problems. It
# never reads a question, so whatever it earns is earned without solving one.

# %% tags=["definition"]
from collections.abc import Sequence
from itertools import product
from statistics import fmean


def best_fixed_response(
    reward: Callable[[str, str], float],
    golds: Sequence[str],
    pieces: Sequence[str],
    max_pieces: int = 2,
) -> tuple[str, float]:
    """The concatenation of pieces with the highest mean reward."""
    texts = [
        "".join(chosen)
        for n_pieces in range(1, max_pieces + 1)
        for chosen in product(pieces, repeat=n_pieces)
    ]
    paid = {
        text: fmean(reward(text, gold) for gold in golds) for text in texts
    }
    best = max(paid, key=paid.get)
    return best, paid[best]


# %% tags=["check"]
found = best_fixed_response(rlvr_reward, ["8", "8", "3"], ["#### ", "8", "3"])
assert found[0] == "#### 8" and abs(found[1] - (0.1 + 2 / 3)) < 1e-9

# %%
config = experiment_config("on-policy")
golds = [problem.gold for problem in load_problems(config, "curve")[:50]]
frequent = [gold for gold, _ in Counter(golds).most_common(3)]
pieces = [all_numbers, "#### ", *frequent]


def search(reward: Callable[[str, str], float]) -> tuple[str, float]:
    text, paid = best_fixed_response(reward, golds, pieces, 3)
    return text.replace(all_numbers, "1 2 3 … 100 "), paid


def paid_by(formula: Callable[[Parts], float]) -> Callable[[str, str], float]:
    shaped = shape_reward(marker_reward_fn, formula)
    return lambda response, gold: shaped(response, gold)["reward"]


solved = Parts(1, 1, 1)
hacks = pd.DataFrame(
    [
        (formula.__name__, *search(paid_by(formula)), formula(solved))
        for formula in formulas
    ],
    columns=["reward", "best fixed text", "earns", "a solution earns"],
)
HTML(as_html(hacks.round(2).astype(str)))

# %% tags=["check"]
earns = hacks.set_index("reward")["earns"]
share = earns / hacks.set_index("reward")["a solution earns"]
assert share["format_only"] == 1 and 0.45 < share["partial_credit"] < 0.65
assert share[["answer_only", "conditional"]].max() < 0.1
assert hacks["best fixed text"].str.contains("100").tolist() == [
    *(False, False, True, False, False)
]

# %% [markdown]
# Under `format_only` the marker and any number are worth as much as a solution. Under
# `partial_credit` the list of all numbers and the marker are worth more than half of one, and a
# policy that solves fewer problems than that is better paid for listing. The other three leave a
# guess: the most frequent answer of the problems.
#
# Partial credit has its use where the full reward is almost always 0. Then the loophole has to be
# closed, one way is an exercise below, and the best-paid answers have to be read.

# %% [markdown]
# ## Paid for the format alone
#
# Is such a hack found by a language model that samples its answers? The pocket policy was trained
# by GRPO with the reward `format_only`, four seeds, all other settings as in the recorded run with
# the full reward. Its format is the assignment's, `</think> <answer> … </answer>`, and its answers
# were graded, though not paid for. Recording it again: `gsmrl record format-only`.

# %% tags=["hide-input"]
runs = {
    "full reward": read_recording("on-policy"),
    "format only": read_recording("format-only"),
}
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
panels = {
    "In format": ("curve_mean_format_reward", "share"),
    "Right": ("curve_mean_answer_reward", "share"),
    "Groups without signal": ("no_signal_group_share", "share"),
}
for ax, (title, (metric, unit)) in zip(axes, panels.items(), strict=True):
    for name, table in runs.items():
        plot_metric(ax, table, metric, name)
    ax.set(title=title, ylabel=unit, xlabel="step", ylim=(-0.03, 1.03))
    ax.legend(loc="best", fontsize=8)
plt.show()

# %% [markdown]
# *Validation problems, except for the groups, which are those trained on. Every seed is drawn
# faintly, the mean with its 95 % t interval. Both rewards teach the format. Only the full one
# teaches to solve. Without it accuracy rises a little, since more answers can be read, and then
# falls; in the end all answers of almost all groups earn .1.*


# %%
def at_ends(name: str, part: str) -> pd.DataFrame:
    """(seed, step): a part of the validation rewards, first and last step."""
    rows = runs[name][runs[name]["metric"] == f"curve_mean_{part}_reward"]
    ends = rows[rows["step"].isin([0, 100])]
    return ends.pivot(index="seed", columns="step", values="value")


means = pd.DataFrame(
    {
        (name, part): at_ends(name, part).mean()
        for name in runs
        for part in ("format", "answer")
    }
).T
means.round(3)

# %% tags=["check", "claim:W6"]
expected_format = {0: 0.51, 100: 1.00}
expected_right = {0: 0.09, 100: 0.03}
expected_right_full = {0: 0.09, 100: 0.61}
for row, expected in [
    (("format only", "format"), expected_format),
    (("format only", "answer"), expected_right),
    (("full reward", "answer"), expected_right_full),
]:
    for step, share in expected.items():
        assert abs(means.loc[row, step] - share) < 0.005
by_seed = at_ends("format only", "answer")
assert len(by_seed) == 4 and (by_seed[100] < by_seed[0]).all()

# %% [markdown]
# For some thirty steps accuracy rose, from .09 to .13, since more of the answers could be read at
# all. Then it went down, for every seed. The reason can be read in the answers, before and
# after. Working takes tokens, and each of them is a chance to miss the format;
# an answer that skips it is in format more surely.

# %% tags=["check"]
answered = runs["format only"].query("metric == 'curve_mean_answer_reward'")
by_step = answered.groupby("step")["value"].mean()
assert abs(by_step.max() - 0.13) < 0.005 and by_step.idxmax() == 30

# %%
hacked_answers = read_answers("format-only")
first, last = hacked_answers["step"].min(), hacked_answers["step"].max()
columns = ["question", "gold", "response"]
seed_0 = hacked_answers[hacked_answers["seed"] == 0]
before, after = (seed_0[seed_0["step"] == step] for step in (first, last))
side_by_side = before[columns].rename(columns={"response": "before"})
side_by_side["after"] = after["response"].to_numpy()
HTML(as_html(side_by_side.head(6)))

# %% tags=["check"]
assert (before["question"].to_numpy() == after["question"].to_numpy()).all()
skips = hacked_answers["response"].str.startswith(" </think>")
skipped = skips.groupby(hacked_answers["step"]).mean()
assert skipped[first] < 0.1 and skipped[last] > 0.7

# %% [markdown]
# ## The 20 best-paid answers are read
#
# A mean reward that rises looks the same in both runs. What tells them apart is cheap: read the
# answers that were paid best. Of equally paid ones the shortest come first, since they show how
# little is enough.


# %% tags=["definition"]
def best_paid(answers: pd.DataFrame, n: int = 20) -> pd.DataFrame:
    """The n best-paid answers, of equally paid ones the shortest."""
    shortest_first = answers.assign(
        chars=answers["response"].str.len()
    ).sort_values(["reward", "chars"], ascending=[False, True], kind="stable")
    return shortest_first.head(n).drop(columns="chars")


# %% tags=["check"]
toy = pd.DataFrame(
    {"response": ["long", "a", "no", "yes"], "reward": [1.0, 0.0, 1.0, 1.0]}
)
assert best_paid(toy, 3)["response"].tolist() == ["no", "yes", "long"]

# %% [markdown]
# Of each seed's validation answers 64 are on record. The 20 best-paid of them after the last step,
# seed 0: on the left of the run that was paid for the format, on the right of the run with the full
# reward.

# %%
healthy_answers = read_answers("on-policy")
of_end = healthy_answers["step"] == healthy_answers["step"].max()
healthy_after = healthy_answers[of_end & (healthy_answers["seed"] == 0)]
best, best_hacked = best_paid(healthy_after), best_paid(after)
columns = {
    f"{column}, {name}": answers[column].str.strip().to_numpy()
    for name, answers in {
        "format only": best_hacked,
        "full reward": best,
    }.items()
    for column in ("gold", "response")
}
HTML(as_html(pd.DataFrame(columns)))

# %% tags=["check"]
calculation = r"(\d+)([-+*/])(\d+)=(\d+)"
worked = best["response"].str.findall(calculation)
assert (worked.str.len() > 0).all() and (best["answer_reward"] == 1).all()
assert all(
    apply_operator(operator, int(a), int(b)) == int(result)
    for found in worked
    for a, operator, b, result in found
)
assert not best_hacked["response"].str.contains(r"\d=\d").any()
assert best_hacked["answer_reward"].mean() < 0.2
assert len(healthy_after) == len(after) == 64
assert best_hacked["response"].str.contains(r"<answer> \d </answer>").all()

# %% [markdown]
# On the left is the hack, plain to see in a minute: no working, and a digit that has nothing to do
# with the question. On the right each answer has a calculation, and it comes out. This check
# costs nothing, and it belongs into every run, at its start and at its end.

# %% [markdown]
# ## Groups without signal
#
# Near the end of the format-only run nothing was learned any more, because all answers earned the
# same. A group's advantages are its rewards minus their mean, so equal rewards give zeros, be they
# all 0 or all 1.1. Dividing by the standard deviation does not change zeros. Such a group is
# *empty*: it was sampled and graded, and its gradient is exactly 0.
#
# If each answer is right with probability $p$, independently, all $G$ are right with probability
# $p^G$ and all wrong with $(1-p)^G$. The share of groups that are lost is
#
# $$ p^G + (1-p)^G. $$

# %% tags=["definition"]
from gsmrl_helpers.options import Baseline


def no_signal_probability(
    right_share: Tensor, group_size: int, baseline: Baseline
) -> Tensor:
    """Chance that all G answers earn the same, p^G + (1 − p)^G."""
    all_right = right_share**group_size if baseline == "mean" else 0.0
    return all_right + (1 - right_share) ** group_size


# %% tags=["check", "claim:W3a", "claim:W3b", "claim:W3c", "claim:W3d", "claim:W3e"]
cases = [(0.5, 4), (0.9, 4), (0.97, 4), (0.9, 16), (0.9, 8)]
expected = [0.125, 0.6562, 0.8853, 0.1853, 0.4305]
for (p, group_size), value in zip(cases, expected, strict=True):
    share = torch.tensor(p, dtype=torch.float64)
    lost = no_signal_probability(share, group_size, "mean").item()
    assert abs(lost - value) < 0.00005

# %%
shown = pd.DataFrame(cases, columns=["p", "G"])
shown["groups lost"] = [
    f"{p**group_size + (1 - p) ** group_size:.1%}" for p, group_size in cases
]
HTML(as_html(shown.astype(str)))

# %% tags=["hide-input"]
from gsmrl_helpers.signal_explorer import no_signal_explorer, plot_no_signal

figure = plot_no_signal((4, 8, 16))
plt.show()

# %% [markdown]
# *A policy that learns moves to the right along the left curves: problems that were half solved
# become almost solved, and their groups go empty. A larger group goes empty less often; it has to
# be sampled. On the right, the variance $p(1-p)$ of a reward of 0 or 1: what there is to compare
# within a group is most where half of the answers are right.*

# %% tags=["check", "claim:W4"]
p = torch.linspace(0, 1, 1001, dtype=torch.float64)
variance = p * (1 - p)
expected_p, expected_variance = 0.5, 0.25
assert abs(p[variance.argmax()].item() - expected_p) < 0.0005
assert abs(variance.max().item() - expected_variance) < 1e-9
rewards = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
mean = rewards.mean()
assert abs(rewards.var(correction=0) - mean * (1 - mean)) < 1e-12

# %% [markdown]
# With two sliders (in a running notebook):

# %% tags=["nbval-ignore-output"]
no_signal_explorer(p=0.9, group_size=8)

# %% tags=["check"]
assert round(0.9**8 + 0.1**8, 3) == 0.430

# %% [markdown]
# A simulation with the package's own advantages, 20,000 groups for each $p$: the share of groups
# whose advantages are all 0 agrees with the formula within four standard errors.

# %%
rows = []
generator = torch.Generator().manual_seed(0)
for group_size, p in product((4, 8, 16), (0.1, 0.5, 0.9)):
    draws = torch.rand(20_000, group_size, generator=generator)
    rewards = (draws < p).double().flatten()
    _, metadata = compute_group_normalized_rewards(rewards, group_size)
    lost = p**group_size + (1 - p) ** group_size
    rows.append((group_size, p, metadata["no_signal_group_share"], lost))
simulated = pd.DataFrame(rows, columns=["G", "p", "simulated", "formula"])
simulated.round(3)

# %% tags=["check"]
error = (simulated["formula"] * (1 - simulated["formula"]) / 20_000) ** 0.5
difference = (simulated["simulated"] - simulated["formula"]).abs()
assert (difference < 4 * error + 1e-12).all()

# %% [markdown]
# Problems are not all alike, and then the formula with the mean $p$ is too hopeful. Take half of
# the problems at $p = 0.1$ and half at $p = 0.9$: half of all answers are right, and with $G = 8$
# the formula at $p = 0.5$ says that 0.8 % of the groups are lost. In fact it is 43 %. So the share
# of empty groups is measured and logged at every step, not computed from the accuracy.

# %% tags=["check"]
halves = torch.tensor([0.1, 0.9], dtype=torch.float64)
lost = no_signal_probability(halves, 8, "mean").mean().item()
alike = no_signal_probability(halves.mean(), 8, "mean").item()
assert abs(lost - 0.4305) < 0.00005 and abs(alike - 0.0078) < 0.00005

# %% [markdown]
# ## A bonus breaks ties, in which direction?
#
# Four wrong answers, one of them in format: $C + 0.1F$ pays $(0, 0.1, 0, 0)$. The group is not
# empty any more. What does it teach? The small batch of {doc}`08_tokenization_and_masks` has a
# policy that is a table of next-token probabilities, so the whole gradient can be looked at. Its
# grader wants the right number, 4, and a full stop behind it.

# %%
prompt, truth = small_batch.PROMPTS[0], small_batch.GROUND_TRUTHS[0]
group = ["so 5 <eos>", "so 5 .", "so 5 <eos>", "so 5 <eos>"]
grader = small_batch.last_number_reward_fn


def rewards_of(formula: Callable[[Parts], float]) -> Tensor:
    shaped = shape_reward(grader, formula)
    paid = [shaped(response, truth)["reward"] for response in group]
    return torch.tensor(paid, dtype=torch.float64)


print(rewards_of(format_bonus).tolist())


# %%
def gradient_of_group(rewards: Tensor) -> Tensor:
    """(V, V) gradient of Σ advantage · log π by the table's logits."""
    advantages, _ = compute_group_normalized_rewards(
        rewards, len(group), advantage_eps=0.0
    )
    policy, tokenizer = (
        small_batch.make_policy(),
        small_batch.make_tokenizer(),
    )
    n_prompt = len(tokenizer.encode(prompt))
    ids = torch.tensor([tokenizer.encode(f"{prompt} {y}") for y in group])
    log_probs = policy(ids[:, :-1]).logits.log_softmax(-1)
    taken = log_probs.gather(-1, ids[:, 1:, None])[..., 0]
    per_response = taken[:, n_prompt - 1 :].sum(dim=1)
    (advantages * per_response).sum().backward()
    return policy.table.grad


# %%
def tokens_moved(gradient: Tensor) -> dict[tuple[str, str], float]:
    """The entries that are not 0, by (present token, next token)."""
    names = small_batch.VOCABULARY
    rounded = gradient.round(decimals=9).tolist()
    return {
        (names[row], names[column]): value
        for row, values in enumerate(rounded)
        for column, value in enumerate(values)
        if value
    }


plain = gradient_of_group(rewards_of(format_bonus))
moved = tokens_moved(plain)
pd.DataFrame(
    [(*pair, value) for pair, value in moved.items()],
    columns=["after the token", "next token", "gradient of its logit"],
)

# %% [markdown]
# Positive means more likely. After the wrong number the full stop goes up and the end without it
# goes down. Nothing else moves: what comes after `=` and after `so`, where the number is chosen,
# has gradient 0. The group teaches the format and nothing but the format.

# %% tags=["check", "claim:W5a"]
expected_rewards = [0.0, 0.1, 0.0, 0.0]
expected_stop, expected_end = 1.5, -1.5
assert rewards_of(format_bonus).tolist() == expected_rewards
assert set(moved) == {("5", "."), ("5", "<eos>")}
assert abs(moved["5", "."] - expected_stop) < 1e-9
assert abs(moved["5", "<eos>"] - expected_end) < 1e-9

# %% [markdown]
# With `conditional`, $C + 0.1\, C F$, a wrong answer gets no bonus. The same four answers earn four
# zeros, and the group is empty.

# %% tags=["check", "claim:W5b"]
expected = [0.0, 0.0, 0.0, 0.0]
assert rewards_of(conditional).tolist() == expected
assert tokens_moved(gradient_of_group(rewards_of(conditional))) == {}

# %% [markdown]
# Neither is right in general. The plain bonus teaches the format early, when hardly any answer is
# right, and a right answer in no format could not be found anyway. The conditional one never pays
# for form alone; its price is that a policy which solves nothing yet gets no signal at all. The
# two are compared on a dev split, one factor at a time.
#
# The bonus is small beside 1, but that holds only within a group that has both. Normalised by the
# standard deviation, a group that differs in the bonus alone is as loud as one that differs in the
# answer. Without the normaliser, as in Dr. GRPO {cite}`liu2025drgrpo`, it weighs a tenth.

# %%
groups = {
    "format differs": [0.0, 0.1, 0.0, 0.0],
    "answer differs": [0.0, 1.0, 0.0, 0.0],
    "both": [0.0, 0.1, 1.1, 0.1],
}


def advantages_of(group: list[float], normalizer: str) -> list[float]:
    rewards = torch.tensor(group, dtype=torch.float64)
    advantages, _ = compute_group_normalized_rewards(
        rewards, len(group), "mean", 0.0, normalizer
    )
    return [round(value, 3) for value in advantages.tolist()]


loudness = pd.DataFrame(
    [
        (name, *(str(advantages_of(group, n)) for n in ("std", "none")))
        for name, group in groups.items()
    ],
    columns=["group", "std", "none"],
)
HTML(as_html(loudness))

# %% tags=["check"]
std = [advantages_of(group, "std") for group in groups.values()]
assert std[0] == std[1] == [-0.5, 1.5, -0.5, -0.5]
none = [advantages_of(group, "none") for group in groups.values()]
assert np.allclose(10 * np.array(none[0]), none[1], atol=1e-9)

# %% [markdown]
# ## What keeps the signal alive
#
# A fixed set of problems becomes easy as the policy learns, and its groups go empty. Two remedies
# change what is asked.
#
# *Dynamic sampling* {cite}`yu2025dapo` drops empty groups and asks new problems in their place,
# until the batch is full. The problems stay the same; the price is more sampling. Rounds are
# bounded here, since a policy that solves all or nothing would sample for ever.

# %% tags=["definition"]
from gsmrl_helpers.advantages import groups_without_signal
from gsmrl_helpers.rollouts import Rollouts, join_rollouts


def empty_groups(rollouts: Rollouts, baseline: Baseline = "mean") -> Tensor:
    """(P,) bool: which of the rollouts' groups have advantages of 0."""
    groups = rearrange(
        rollouts.rewards, "(p g) -> p g", g=rollouts.group_size
    )
    return rearrange(groups_without_signal(groups, baseline), "p 1 -> p")


def sample_with_signal(
    ask: Callable[[int, int], Rollouts],
    n_groups: int,
    extra_rounds: int,
    baseline: Baseline,
) -> tuple[Rollouts, Rollouts]:
    """Groups for a batch, those with a signal first; and all sampled."""
    rounds, n_missing = [], n_groups
    while n_missing and len(rounds) <= extra_rounds:
        rounds.append(ask(len(rounds), n_missing))
        n_missing -= int((~empty_groups(rounds[-1], baseline)).sum())
    sampled = join_rollouts(rounds)
    signal_first = empty_groups(sampled, baseline).int().argsort(stable=True)
    kept = signal_first[:n_groups].sort().values
    return sampled.select_groups(kept.tolist()), sampled


# %% [markdown]
# The check asks a policy that is a coin, $p = 0.9$ and groups of 8: 43 % of its groups are empty.
# With up to nine more rounds a batch of 64 is full, and has cost about $1 / 0.57$ times as much.

# %% tags=["check"]
from gsmrl_helpers.engine import Completion

coin = torch.Generator().manual_seed(1)
problem = Problem("Heads?", "#### 1", "1")


def ask_coin(number: int, n: int) -> Rollouts:
    rewards = (torch.rand(8 * n, generator=coin) < 0.9).float()
    said = [Completion("", [0], "stop", 0, 0)] * (8 * n)
    lists = ([problem] * (8 * n), [""] * (8 * n), said)
    return Rollouts(*lists, rewards, rewards, rewards, group_size=8)


kept, sampled = sample_with_signal(ask_coin, 64, 9, "mean")
assert len(kept.completions) == 64 * 8 and not empty_groups(kept).any()
assert 1.4 < len(sampled.completions) / len(kept.completions) < 2.1
kept, sampled = sample_with_signal(ask_coin, 64, 0, "mean")
assert 0.2 < empty_groups(kept).double().mean() < 0.65

# %% [markdown]
# *A dial that follows.* Where a program generates the problems, their difficulty can be moved
# instead, so that about half of the answers stay right: harder after a step with more than half,
# easier after one with fewer. No sample is thrown away. What is trained on changes, so accuracy
# has to be measured on problems that stay where they are.


# %% tags=["definition"]
def move_dial(
    difficulty: float, right_share: float, rate: float, target: float = 0.5
) -> float:
    """The dial after a step, between 0 and 1."""
    return min(max(difficulty + rate * (right_share - target), 0.0), 1.0)


# %% [markdown]
# A policy whose share of right answers falls from .9 on the easiest problems to .2 on the hardest
# is asked at ever harder settings, until half of its answers are right.

# %% tags=["check"]
dial = 0.0
for _ in range(100):
    dial = move_dial(dial, right_share=0.9 - 0.7 * dial, rate=0.2)
assert abs((0.9 - 0.7 * dial) - 0.5) < 1e-6
assert move_dial(0.95, 1.0, 0.2) == 1 and move_dial(0.05, 0.0, 0.2) == 0

# %% [markdown]
# In a run these are two settings, `dynamic_sampling_rounds` and `difficulty_rate`; both are off
# by default. The recorded runs train on the easiest pocket problems, difficulty 0, in
# batches of 16 groups of 8: once fixed, once with up to four rounds of new groups, once with a
# dial that starts at 0 and follows. Two seeds each; recording them again: `gsmrl record signal`.

# %% tags=["hide-input"]
signal = read_recording("signal")
signal["variant"] = signal["variant"].str.replace("_", " ")
trained = signal[signal["metric"] == "no_signal_group_share"].assign(
    metric="trained_signal_share", value=lambda rows: 1 - rows["value"]
)
signal = pd.concat([signal, trained], ignore_index=True)


def draw_seeds(ax, metric: str, variant: str) -> None:
    """Means over five steps: each seed faintly, and the mean of the seeds."""
    rows = signal[(signal["metric"] == metric)]
    rows = rows[rows["variant"] == variant]
    seeds = rows.pivot(index="step", columns="seed", values="value")
    smooth = seeds.dropna().rolling(5, min_periods=1).mean()
    style = plots.line(variant)
    ax.plot(smooth, "-", color=style["color"], lw=0.8, alpha=0.35)
    label = f"{variant} (n = {smooth.shape[1]} seeds)"
    ax.plot(smooth.mean(axis=1), label=label, **style)


panels = {
    "Groups trained on that have a signal": ("trained_signal_share", "share"),
    "Right among the sampled": ("train_mean_answer_reward", "share"),
    "The dial": ("difficulty", "difficulty"),
    "Sampled for a step": ("sampled_responses", "answers"),
}
figure, axes = plt.subplots(2, 2, figsize=(8.6, 5.6), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    for variant in ("fixed", "dynamic sampling", "following dial"):
        draw_seeds(ax, metric, variant)
    top = None if unit == "answers" else 1.03
    ax.set(title=title, ylabel=unit, xlabel="step", ylim=(-0.03, top))
    ax.legend(loc="best", fontsize=8)
plt.show()

# %% [markdown]
# *Each point is a mean over five steps; every seed faintly, and their mean. There is no interval:
# two seeds are too few for one. Fixed problems lose their signal while the policy learns. Dynamic
# sampling keeps it and asks for more answers. The dial keeps it by going up, with as many answers
# as before.*

# %%
by_run = signal.pivot_table(
    index=["variant", "seed", "step"], columns="metric", values="value"
).query("step > 0")
runs_of = ["variant", "seed"]
asked = by_run["sampled_responses"]
before = asked.groupby(runs_of).cumsum() - asked
# Of the step that crosses 7,680 answers, what "fixed" samples, a part counts.
part = ((7_680 - before) / asked).clip(0, 1)
useful = 16 * by_run["trained_signal_share"] * part
share = by_run.query("step > 40")["trained_signal_share"]
comparison = pd.DataFrame(
    {
        "with a signal, steps 41-60": share.groupby(runs_of).mean(),
        "answers sampled": asked.groupby(runs_of).sum(),
        "groups with a signal in 7,680 answers": useful.groupby(
            runs_of
        ).sum(),
    }
)
comparison = comparison.groupby("variant").mean()
names = ["fixed", "dynamic sampling", "following dial"]
comparison.loc[names].round(2)

# %% tags=["check", "claim:W32"]
expected_share = {
    "fixed": 0.64,
    "dynamic sampling": 1.00,
    "following dial": 0.84,
}
expected_cost = {
    "fixed": 7680,
    "dynamic sampling": 9780,
    "following dial": 7680,
}
expected_gain = {
    "fixed": 765.0,
    "dynamic sampling": 787.4,
    "following dial": 845.5,
}
for variant in names:
    measured = comparison.loc[variant]
    assert abs(measured.iloc[2] - expected_gain[variant]) < 0.05
    assert abs(measured.iloc[0] - expected_share[variant]) < 0.005
    assert abs(measured.iloc[1] - expected_cost[variant]) < 0.5
kept = share.groupby(runs_of).mean().unstack()
assert (kept.loc["dynamic sampling"] > kept.loc["fixed"]).all()
assert (kept.loc["following dial"] > kept.loc["fixed"]).all()

# %% [markdown]
# At equal steps both keep more groups with a signal. At equal numbers of sampled answers, the last
# column, dynamic sampling has hardly more of them than fixed problems, 787 against 765: it chooses
# among what it samples, and what it drops has been paid for. It fills the batches, at the price of
# fewer steps for the same sampling. The dial has more at both counts.
#
# A signal is not yet a result. The last policies on problems that stayed where they are:

# %%
at_difficulty = {
    "0 (test)": "test_mean_answer_reward",
    "0.5 (dev)": "dev_at_0.5_mean_answer_reward",
    "1 (dev)": "dev_at_1.0_mean_answer_reward",
}
last = signal[signal["metric"].isin(at_difficulty.values())].pivot(
    index=["variant", "seed"], columns="metric", values="value"
)
last = last[list(at_difficulty.values())].set_axis(
    list(at_difficulty), axis=1
)
last.loc[names].round(3)

# %% tags=["check"]
easy, middle, hard = (last[name].unstack() for name in at_difficulty)
assert easy.to_numpy().max() - easy.to_numpy().min() < 0.05
for harder in (middle, hard):
    others = harder.drop("following dial")
    assert harder.loc["following dial"].min() > others.to_numpy().max()

# %% [markdown]
# On the easy problems all three are alike, within a few points. On harder ones the policy whose
# dial moved is better, with both seeds: it has trained on such problems, and the others on the
# easiest alone. Two seeds say that the direction is plausible, not how large the gain is.

# %% [markdown]
# ## Tags prove nothing
#
# The format of the r1_zero prompt is a pair of tags after `</think>`. The literal check of the
# assignment asks that `</think> <answer>` and `</answer>` stand somewhere, and this book's grader
# then takes the first answer. Neither looks at anything else, so much passes that no one would call
# well-formed. A stricter check is a few
# lines: each tag once, in its order, the answer not blank.

# %% tags=["definition"]
from gsmrl_helpers.grading import find_tagged, r1_zero_reward_fn
from gsmrl_helpers.reward_shaping import TAG


def well_formed_reward_fn(
    response: str, ground_truth: str | None
) -> dict[str, float]:
    """`r1_zero_reward_fn`, paid only where its three tags stand well."""
    graded = r1_zero_reward_fn(response, ground_truth)
    in_order = TAG.findall(response) == ["</think>", "<answer>", "</answer>"]
    well_formed = in_order and bool((find_tagged(response) or "").strip())
    return {name: value * well_formed for name, value in graded.items()}


# %% tags=["check"]
worked = " 9*2=18. </think> <answer> 18 </answer>"
assert well_formed_reward_fn(worked, "18")["reward"] == 1
assert well_formed_reward_fn(worked + " 19", "18")["reward"] == 1
assert well_formed_reward_fn(worked + worked, "18")["reward"] == 0

# %%
cases = {
    "as asked": " 9*2=18. </think> <answer> 18 </answer>",
    "wrong order": " <answer> 18 </answer> 9*2=18. </think>",
    "repeated": " </think> <answer> 18 </answer> <answer> 17 </answer>",
    "empty block": " 9*2=18. </think> <answer>  </answer>",
    "only in the prompt": " 9*2=18, so it is 18.",
    "no thought": " </think> <answer> 18 </answer>",
}
checks = pd.DataFrame(
    [
        (
            name,
            text.strip(),
            r1_zero_reward_fn(text, "18")["format_reward"],
            well_formed_reward_fn(text, "18")["format_reward"],
        )
        for name, text in cases.items()
    ],
    columns=["case", "response", "literal", "well-formed"],
)
HTML(as_html(checks.astype(str)))

# %% tags=["check", "claim:W7a", "claim:W7b", "claim:W7c", "claim:W7d"]
formats = checks.set_index("case")["well-formed"]
expected_asked, expected_wrong_order, expected_repeated = 1.0, 0.0, 0.0
expected_empty, expected_only_in_prompt = 0.0, 0.0
assert formats["as asked"] == expected_asked
assert formats["wrong order"] == expected_wrong_order
assert formats["repeated"] == expected_repeated
assert formats["empty block"] == expected_empty
assert formats["only in the prompt"] == expected_only_in_prompt

# %% [markdown]
# The last row is the one to remember. Perfect tags around no thought pass every check of form,
# and no check of form can refuse them: tags say where a text stands, not what it is.
#
# "Only in the prompt" has a trap of its own. The prompt explains the format, and so contains it.
# A program that grades prompt and response together finds every response in format.

# %% tags=["check"]
prompt_text = config.prompt_object().format("What is 9 times 2?")
untagged = cases["only in the prompt"]
together = r1_zero_reward_fn(prompt_text + untagged, "18")
assert together["format_reward"] == 1
assert r1_zero_reward_fn(untagged, "18")["format_reward"] == 0

# %% [markdown]
# ### A special token means nothing yet
#
# It looks tidy to make `</think>` one token: add it to the tokenizer, enlarge the embeddings. The
# tokenizer then knows the string. The model knows nothing: the new rows of its embedding and its
# head are drawn at random, near the mean of the others. The pocket policy, which learned the tag as
# three pieces, shows what that does.

# %% tags=["hide-input"]
from gsmrl_helpers import load_policy
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.sampling import SamplingParams

transformers.logging.set_verbosity_error()  # it describes the initialisation


def with_token(name: str) -> tuple:
    """The pocket policy and its tokenizer with one special token more."""
    model, tokenizer = load_policy(config)
    tokenizer.add_special_tokens({"additional_special_tokens": [name]})
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer))
    return model.eval(), tokenizer


# %%
@torch.no_grad()
def probability(model, tokenizer, before: str, text: str) -> float:
    """Of the text, token by token, after what stands before."""
    start, tokens = (
        tokenizer.encode(part, add_special_tokens=False)
        for part in (before, text)
    )
    ids = torch.tensor([start + tokens])
    log_probs = model(ids).logits[0, :-1].log_softmax(-1)
    taken = log_probs.gather(-1, ids[0, 1:, None])[len(start) - 1 :]
    return taken.sum().exp().item()


old_model, old_tokenizer = load_policy(config)
old_model.eval()
model, tokenizer = with_token("</think>")
question = prompt_text + " 9*2=18."
for name, pair in {
    "three pieces": (old_model, old_tokenizer),
    "one new token": (model, tokenizer),
}.items():
    ids = pair[1].encode(" </think>", add_special_tokens=False)
    tokens = [pair[1].decode([token_id]) for token_id in ids]
    chance = probability(*pair, question, " </think>")
    print(f"{name:>13}: {tokens}, probability {chance:.2f}")

# %% tags=["check"]
assert probability(old_model, old_tokenizer, question, " </think>") > 0.1
assert probability(model, tokenizer, question, " </think>") < 1e-6

# %% [markdown]
# The same text, once likely and once as good as impossible: the model still writes the three
# pieces. In 64 sampled answers the new token does not occur. And its name has no part in it: with
# `<reason>` or `<banana>` the model's outputs are the same, bit by bit. Meaning comes from training
# on texts in which the token stands, such as an SFT warm-up.

# %% tags=["check", "claim:W7e"]
prompt = config.prompt_object()
questions = [problem.question for problem in load_problems(config, "curve")]
params = SamplingParams(
    n=2,
    max_tokens=48,
    stop=prompt.stop,
    include_stop_str_in_output=True,
    seed=0,
)
reason, reason_tokenizer = with_token("<reason>")
completions = LocalEngine(reason, reason_tokenizer).generate_completions(
    [prompt.format(question) for question in questions[:32]], params
)
new_id = reason_tokenizer.convert_tokens_to_ids("<reason>")
expected_new, expected_uses = 672, 0
assert new_id == expected_new
assert sum(new_id in c.token_ids for c in completions) == expected_uses
banana, _ = with_token("<banana>")
ids = torch.tensor([[*reason_tokenizer.encode(question), new_id]])
assert torch.equal(reason(ids).logits, banana(ids).logits)

# %% [markdown]
# ## Goodhart, and the principal and the agent
#
# Charles Goodhart {cite}`goodhart1975` wrote of statistical regularities that collapse once they
# are used to steer. The common wording: when a measure becomes a target, it ceases to be a good
# measure. The recorded runs show it in numbers. While the answer was paid, the format was a good
# measure of progress: at the eleven validations of the run both rose together. As the target it
# still rose, and progress went the other way. The rank correlation of the two curves:

# %%
from scipy.stats import spearmanr


def curve(name: str, part: str) -> pd.Series:
    """A part of the validation rewards at each step, mean over seeds."""
    rows = runs[name][runs[name]["metric"] == f"curve_mean_{part}_reward"]
    return rows.groupby("step")["value"].mean()


agreement = {
    name: spearmanr(curve(name, "format"), curve(name, "answer")).statistic
    for name in runs
}
for name, value in agreement.items():
    print(f"{name}: format and right answers correlate by {value:+.2f}")

# %% tags=["check"]
assert len(curve("full reward", "format")) == 11
assert agreement["full reward"] > 0.8 and agreement["format only"] < -0.7

# %% [markdown]
# Economists tell the same as the story of a *principal* and an *agent* {cite}`holmstrom1979`. The
# principal, who writes the reward, wants solutions and observes a proxy. The agent, the policy, is
# paid by the proxy and does what is paid. Where the two differ the agent does what pays and not
# what was wanted; this is *moral hazard*. It is an analogy, not a theory of how language models
# are trained, but its remedies are recognisable, and each can be tried.
#
# **1. Stay near proven behaviour.** A penalty $\beta\, \mathrm{KL}(\pi_\theta \| \pi_{ref})$ holds
# the policy near a reference. The best policy under reward $r$ and this penalty is known in closed
# form, $\pi \propto \pi_{ref}\, e^{r/\beta}$. Take three kinds of answers with the shares that the
# pocket policy starts with, and pay only for the format:

# %%
right_share, format_share = (
    at_ends("format only", part)[0].mean() for part in ("answer", "format")
)
kinds = ("right, in format", "wrong, in format", "not in format")
reference = torch.tensor(
    [right_share, format_share - right_share, 1 - format_share],
    dtype=torch.float64,
)
pay = torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64)
leash = pd.DataFrame(
    {
        f"β = {beta:g}": (reference.log() + pay / beta).softmax(0).numpy()
        for beta in (10, 0.1, 0.02)
    },
    index=kinds,
)
leash.round(3)

# %% tags=["check"]
ratio = leash.loc["right, in format"] / leash.loc["wrong, in format"]
assert np.allclose(ratio, (reference[0] / reference[1]).item())
assert leash.loc["not in format", "β = 0.02"] < 0.01

# %% [markdown]
# However little the penalty weighs, the ratio of right to wrong among the paid answers stays what
# it was, because the reward does not tell them apart. The run without a penalty had no such bound,
# and lost the right ones. The penalty does not repair the reward; it limits what a bad one can do.
#
# **2. Pay for a result that can be checked.** That is RLVR, and the blue line of the figure above:
# the same policy and the same steps, paid for the answer.
#
# **3. Several independent signals in place of one.** Two checks that look at different things are
# harder to fool at once than either alone. Partial credit looks for the number anywhere. The second
# check looks at the work: the last calculation has to come out and give the gold number. The search
# from above gets a calculation among its pieces, one that comes out, and is paid the smaller of the
# two rewards:


# %%
def last_calculation(response: str, gold: str) -> float:
    """1 if the last `a*b=c` comes out and c is the gold number."""
    found = re.findall(r"(\d+)\*(\d+)=(\d+)", response)
    if not found:
        return 0.0
    a, b, result = found[-1]
    return float(int(a) * int(b) == int(result) and is_equal(result, gold))


def smaller_of_two(response: str, gold: str) -> float:
    partly = paid_by(partial_credit)(response, gold)
    return min(partly, last_calculation(response, gold))


pieces.append(f"1*{frequent[0]}={frequent[0]} ")
for reward in (paid_by(partial_credit), last_calculation, smaller_of_two):
    text, earned = search(reward)
    print(f"{text!r} earns {earned:.2f}")

# %% tags=["check"]
one, other, both = (
    search(reward)[1]
    for reward in (paid_by(partial_credit), last_calculation, smaller_of_two)
)
assert both <= other < 0.1 < 0.5 < one

# %% [markdown]
# The smaller of two rewards is never easier to earn than either. Here the second check stops the
# list, and a guess is left, a calculation made up around the most frequent answer. Two checks with
# the same hole would have stopped nothing.

# %% [markdown]
# **4. A sample is audited by hand.** `best_paid`, above: the hack is visible in any three of its
# rows.
#
# ## Before a run: the pre-flight
#
# No size of model promises that a reward will be found. So before a run four things are measured on
# its own problems, with its own prompt and checker: the share of right answers, the share of
# empty groups, whether the checker judges as a person does, and the time. The rule for stopping is
# written down first. `preflight` does it; here with 8 problems and 8 answers each, so that the
# numbers are rough. A real one takes 64 problems or more.

# %% tags=["nbval-ignore-output"]
from gsmrl_helpers.preflight import STOP_RULE, Shares, judge, preflight

small = {
    "rollout_batch_size": 64,
    "train_batch_size": 64,
    "gradient_accumulation_steps": 1,
}
pilot = experiment_config("on-policy", overrides=small)
flown = preflight(pilot, n_problems=8, n_examples=1)
print("Verdict:", flown.verdict)
measured = flown.table().head(4)
HTML(as_html(measured))

# %% tags=["check"]
assert flown.verdict == "go" and flown.findings.ok
assert 0.01 < flown.shares.right < 0.4 < flown.shares.in_format < 0.8
assert measured["measure"].iloc[-1] == "groups without signal"

# %% [markdown]
# The checker's quality is for a person to judge. A few answers of each kind are shown; of most
# interest is the last kind, answers that name the gold number and were not counted.

# %% tags=["nbval-ignore-output"]
HTML(as_html(flown.sample_table()))

# %% tags=["check"]
kinds_to_read = set(flown.checker_sample["kind"])
assert {"right", "in format, wrong", "not in format"} <= kinds_to_read

# %% [markdown]
# The verdict follows from the shares by a rule with a few dials. If almost all rewards are 0, the
# remedy is easier problems. If the policy does not even write the format, it is a warm-up: some
# supervised fine-tuning (SFT) on answers in the format, before the reinforcement learning. If
# nearly everything is solved: harder problems.

# %%
situations = {
    "the pocket policy": (0.10, 0.55, 0.5),
    "never in format": (0.0, 0.01, 1.0),
    "in format, never right": (0.002, 0.9, 0.97),
    "almost all solved": (0.95, 1.0, 0.8),
}
ok = flown.findings
verdicts = []
for name, (right, in_format, lost) in situations.items():
    shares = Shares(right, in_format, 0.0, lost, lost, lost)
    verdict, reasons = judge(shares, ok)
    verdicts.append((name, right, in_format, lost, verdict))
columns = ["policy", "right", "in format", "groups lost", "verdict"]
HTML(as_html(pd.DataFrame(verdicts, columns=columns).astype(str)))

# %% tags=["check"]
assert [row[-1] for row in verdicts] == [
    *("go", "SFT warm-up first", "easier problems", "harder problems")
]
assert STOP_RULE.pilot_steps == 50 and STOP_RULE.min_right_share == 0.01

# %% [markdown]
# The pilot is the first 50 steps. Its stop rule asks for a rise of validation accuracy by more than
# two standard errors of a difference, $2\sqrt{2p(1-p)/n}$ on $n$ problems: at $p = 0.1$ and
# $n = 256$ that is 5.3 points. A curve that is flat until then promises nothing for later, and the
# budget is better spent on another set of problems or on a warm-up.

# %% tags=["check"]
margin = 2 * (2 * 0.1 * 0.9 / 256) ** 0.5
assert abs(margin - 0.053) < 0.0005

# %% [markdown]
# ## Take away
#
# - A reward is a grader's parts and a formula that pays for them. Look for what else it pays: the
#   number anywhere pays for listing all numbers, the format alone pays for a guess.
# - Paid for the format, the policy learned the format to the last answer and lost the solutions it
#   had. Log format and answers apart, and read the 20 best-paid answers.
# - A group whose answers all earn the same teaches nothing. That happens with chance
#   $p^G + (1-p)^G$ and more often where problems differ. New groups or a dial that follows keep it
#   rare.
# - A bonus for wrong answers teaches the bonus. Tags and special tokens prove no thought.
# - Before a run: share right, empty groups, checker, budget, stop rule.
#
# ## Exercises

# %% [markdown]
# ```{exercise} What dynamic sampling costs
# :label: ex-06-cost
#
# *Easy, 5 minutes.* Write `expected_answers(n_groups, group_size, p)`: how many answers dynamic
# sampling needs on average for a batch of `n_groups` groups with a signal, if each answer is right
# with probability `p` and rounds are not bounded. The check compares with sampling by coins.
#
# :::{dropdown} Hint
# How many tries until the first success, if each succeeds with probability $s$?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def expected_answers(n_groups: int, group_size: int, p: float) -> float:
    with_signal = 1 - p**group_size - (1 - p) ** group_size
    return n_groups * group_size / with_signal


# %% tags=["check"]
costs = []
for _ in range(200):
    _, sampled = sample_with_signal(ask_coin, 16, 99, "mean")
    costs.append(len(sampled.completions))
error = np.std(costs) / len(costs) ** 0.5
assert abs(np.mean(costs) - expected_answers(16, 8, 0.9)) < 4 * error
assert abs(expected_answers(1, 4, 0.5) - 4 / 0.875) < 1e-9

# %% [markdown]
# ```{exercise} Partial credit that does not pay for lists
# :label: ex-06-partial
#
# *Medium, 15 minutes.* Write `last_number_credit(response, gold)`: 1 for the right number after a
# single marker, as `marker_reward_fn` grades it; else .5 if the last number of the response is the
# gold; else 0. Then say what a fixed text can still earn under it.
#
# :::{dropdown} Hint
# `re.findall(r"\d+", response)` gives the numbers in order; `is_equal` compares a text with a gold.
# :::
#
# :::{dropdown} Worked answer
# The list ends in 100 and earns nothing on other problems. What is left is a guess: the most
# frequent answer earns half of what it earns after a marker, so guessing after the marker is still
# the best fixed text, as it is under `answer_only`. Half the credit also still goes to a wrong
# derivation that happens to end in the right number, so best-paid answers are read here, too.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def last_number_credit(response: str, gold: str) -> float:
    if marker_reward_fn(response, gold)["reward"]:
        return 1.0
    numbers = re.findall(r"\d+", response)
    return 0.5 * (bool(numbers) and is_equal(numbers[-1], gold))


# %% tags=["check"]
assert last_number_credit("12-2=10. #### 10", "10") == 1
assert last_number_credit("12-2=10.", "10") == 0.5
assert last_number_credit("#### 9 #### 10", "10") == 0.5
assert last_number_credit(all_numbers, "10") == 0
assert last_number_credit("no idea", "10") == 0
text, earned = search(last_number_credit)
guess = search(paid_by(answer_only))
assert text == guess[0] and earned == guess[1]

# %% [markdown]
# ```{exercise} Where the dial comes to rest
# :label: ex-06-rest
#
# *Medium, 10 minutes.* A policy solves problems of difficulty $d$ with probability
# $\sigma(s - k d)$, where $\sigma(z) = 1/(1 + e^{-z})$ and $s$ grows as it learns. Write
# `resting_difficulty(s, k, target)`: where the dial comes to rest for a given $s$, kept between 0
# and 1.
#
# :::{dropdown} Hint
# The dial rests where the share of right answers is the target. The inverse of $\sigma$ is
# $\log(q / (1 - q))$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def resting_difficulty(s: float, k: float, target: float) -> float:
    wanted = np.log(target / (1 - target))
    return min(max((s - wanted) / k, 0.0), 1.0)


# %% tags=["check"]
assert abs(resting_difficulty(1.0, 2.0, 0.5) - 0.5) < 1e-12
for s, target in [(0.3, 0.5), (1.4, 0.7), (-2.0, 0.5), (9.0, 0.4)]:
    dial = 0.5
    for _ in range(2_000):
        share = 1 / (1 + np.exp(2.0 * dial - s))
        dial = move_dial(dial, share, 0.2, target)
    assert abs(dial - resting_difficulty(s, 2.0, target)) < 1e-6

# %% [markdown]
# ## Next
#
# {doc}`07_rollouts` samples the answers that are paid. {doc}`08_tokenization_and_masks` begins
# with the pieces of GRPO that turn rewards into an update, and {doc}`13_run_grpo` runs it. How
# groups of unequal difficulty are weighed once they do have a signal is the subject of
# {doc}`18_difficulty_reweighting`.
