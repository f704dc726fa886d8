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
# # Your own estimator
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** change one thing about GRPO, derive what it then climbs, check that
# without training, turn it into a run with ten lines, and say after several seeds whether it is
# better, worse, or whether that can't be told.
#
# **You need** {doc}`10_advantages` and {doc}`18_difficulty_reweighting`. **Reading** takes 25
# minutes, **running** half a minute, on a **CPU**. (The eight pairs of runs were recorded.)
# ```
#
# New methods are announced with a curve that ends higher than GRPO's. Often several things were
# changed at once, the new one was tuned and the old one was not, and there was one seed. The
# assignment's last problem asks for the opposite: *one* change to a known method, a reason for it
# that can be derived, the same settings, several seeds, and a verdict that may well be "can't
# tell". This chapter does it once, from the idea to the verdict, and the way is made so that yours
# takes the same steps.

# %% tags=["parameters"]
profile = "pocket"

# %%
import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
from torch import Tensor

from gsmrl_helpers import compute_group_normalized_rewards, train
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.intervals import t_half_width
from gsmrl_helpers.live import live
from gsmrl_helpers.plots import LINES, line, use_style
from gsmrl_helpers.recordings import processors, read_recording
from gsmrl_helpers.records import METRICS, read_rows
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import binned, final_values, summarize
from gsmrl_helpers.symbolic import show
from gsmrl_helpers.verdicts import compare, compare_all, paired_differences

use_style()

# %% [markdown]
# ## One change
#
# The advantage of GRPO is the reward minus the group's mean, divided by the group's standard
# deviation. {doc}`18_difficulty_reweighting` found what the divisor does. Let $\eta$ be the
# probability that the policy answers a prompt rightly. In very large groups a divisor $m(\eta)$
# makes the estimate climb $\nabla\eta / m(\eta)$, which is the gradient of some function
# $f(\eta)$ with $f' = 1/m$. Read backwards, this is a recipe: say which $f$ is to be climbed, and
# divide by $1/f'$.
#
# Which $f$? Dr. GRPO has $\eta$ itself. There, going from 1 % to 2 % is worth as little as going
# from 50 % to 51 %, though the first halves the tries until a right answer. MaxRL has $\log\eta$,
# which counts doublings of $\eta$ but sees nearly nothing of the other end, where an error rate
# goes from 2 % to 1 %. What treats both ends alike is the *log-odds*
#
# $$ f(\eta) = \log \frac{\eta}{1 - \eta}, \qquad f'(\eta) = \frac{1}{\eta (1 - \eta)} . $$
#
# It is also the scale on which a softmax over right and wrong has its parameters. Its $1/f'$ is
# $\eta(1-\eta)$, the variance of a reward. So the change is one word: divide by the *variance* and
# not by the standard deviation.
#
# All else stays as in standard GRPO, the division by each answer's length included; two changes
# could not be told apart. The derivation below leaves the length out, as that of
# {doc}`18_difficulty_reweighting` does: it is about scores of whole answers, so it is exact where
# the loss is divided by a constant or all answers are equally long.


# %% tags=["definition"]
def plain_log_odds(rewards: Tensor) -> Tensor:
    """(N, G) rewards of 0 and 1, a group in each row, to advantages."""
    mean = rewards.mean(dim=1, keepdim=True)
    variance = mean * (1 - mean)
    return ((rewards - mean) / variance).nan_to_num(0.0)  # equal rewards: 0/0


# %% [markdown]
# The package's `log_odds` is the same for rewards that are any numbers, and adds $10^{-6}$ to the
# divisor as `advantage_eps` does.

# %% tags=["check"]
from gsmrl_helpers.estimators import log_odds

group = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]).double()
found = plain_log_odds(group)
assert torch.allclose(
    found[0], torch.tensor([4, -4 / 3, -4 / 3, -4 / 3]).double()
)
assert torch.allclose(found[1], -found[0].flip(0))
assert torch.allclose(found, log_odds(group), rtol=1e-5)
assert (log_odds(group)[2] == 0).all()

# %% [markdown]
# In a group of four with one right answer, the right one weighs 4 and each wrong one $-4/3$; with
# three right ones it is the other way round.
#
# ## What it climbs
#
# The recipe holds for very large groups. For the groups that one can afford, GRPO and MaxRL keep
# their promise only in part: MaxRL's weight is cut off at $G - 1$, GRPO's at $(G-1)/\sqrt G$. What
# of the variance? Take a group of $G$ answers with $k$ right ones, neither none nor all.

# %%
eta, G, k = sp.symbols("eta G k", positive=True)
mean = k / G
variance = mean * (1 - mean)
right = sp.simplify((1 - mean) / variance)
wrong = sp.simplify((0 - mean) / variance)
show("A^+_k", right)

# %%
show("A^-_k", wrong)

# %% tags=["check"]
assert sp.simplify(right - G / k) == 0
assert sp.simplify(wrong + G / (G - k)) == 0

# %% [markdown]
# The $k$ right answers share a weight of $G$ among them, the $G-k$ wrong ones a weight of $-G$. So
# the estimate is
#
# $$ \frac1G \sum_j A_j \nabla\log\pi(y_j) \;=\; \text{mean score of the right answers} \;-\;
# \text{mean score of the wrong ones} . $$
#
# Whatever $k$ is, the right answers of a group are independent draws from the policy's right
# answers, whose mean score is $\nabla\eta/\eta$, and the wrong ones have $-\nabla\eta/(1-\eta)$
# ({doc}`18_difficulty_reweighting` derives both). The expectation, given $k$:

# %%
given_k = sp.simplify((k * right / eta - (G - k) * wrong / (1 - eta)) / G)
show(r"w \text{ given } k", sp.factor(given_k))

# %% tags=["check"]
slope = sp.diff(sp.log(eta / (1 - eta)), eta)
assert given_k.free_symbols == {eta}
assert sp.simplify(given_k - slope) == 0

# %% [markdown]
# Neither $k$ nor $G$ is left. *Given that the group is mixed, the expectation is exactly*
# $\nabla \log\frac{\eta}{1-\eta}$, for pairs as for groups of a thousand. A group of equal rewards
# gives 0. So over all groups
#
# $$ \mathbb{E}\,\hat g = \big(1 - \eta^G - (1-\eta)^G\big)\; \nabla \log\frac{\eta}{1-\eta} , $$
#
# and the bracket is the chance that a group is mixed. That is where the finite group takes its
# price: not from what a mixed group says, but from how seldom there is one.
#
# Raising what is right and lowering what is wrong, each as a mean of its own, is not a new thought.
# DisCO {cite}`li2025disco` trains on such a difference of scores, to be rid of GRPO's weighting by
# difficulty. It changes the scores, the clipping and the KL term besides; here one divisor changes.
#
# ## The same by enumeration
#
# Derivations have errors, and so have implementations. Both are compared here, without a model and
# without luck: a policy that is a softmax over a few answers can draw only finitely many groups,
# and the estimate of each can be computed.

# %% tags=["definition"]
from gsmrl_helpers.enumeration import MAX_GROUPS, TOLERANCE
from gsmrl_helpers.estimators import Estimator


def group_estimates(
    estimator: Estimator, probs: Tensor, rewards: Tensor, group_size: int
) -> tuple[Tensor, Tensor]:
    """How likely each group is, and (1/G) Σ_j A_j ∇ log π(y_j) of it."""
    if probs.dim() != 1 or probs.shape != rewards.shape:
        raise ValueError(
            f"probs {tuple(probs.shape)} and rewards {tuple(rewards.shape)} must be (V,), one "
            "number for each answer"
        )
    if (probs < 0).any() or abs(probs.sum() - 1) > TOLERANCE:
        raise ValueError(
            f"probs={probs.tolist()} must be at least 0 and sum to 1"
        )
    if group_size < 1 or len(probs) ** group_size > MAX_GROUPS:
        raise ValueError(
            f"group_size={group_size} with {len(probs)} answers makes "
            f"{len(probs)}^{group_size} groups: give at least 1, and at most {MAX_GROUPS} groups"
        )
    draws = torch.cartesian_prod(*[torch.arange(len(probs))] * group_size)
    draws = draws.reshape(-1, group_size)  # of single draws it makes a vector
    scores = torch.eye(len(probs), dtype=probs.dtype)[draws] - probs
    advantages = estimator(rewards[draws])
    return (
        probs[draws].prod(dim=1),
        (advantages[..., None] * scores).mean(dim=1),
    )


def moments(chances: Tensor, estimates: Tensor) -> tuple[Tensor, float]:
    """The mean of the estimates, and their summed variance."""
    mean = chances @ estimates
    return mean, (chances @ (estimates - mean).square().sum(dim=1)).item()


# %% tags=["check"]
coin, pays = torch.tensor([[0.3, 0.7], [1, 0]], dtype=torch.float64)
chances, estimates = group_estimates(lambda rewards: rewards, coin, pays, 2)
assert np.allclose(chances, [0.09, 0.21, 0.21, 0.49])
average, variance_of_coin = moments(chances, estimates)
assert torch.allclose(average, coin * (pays - 0.3))  # ∇η, without bias
per_parameter = 0.3 * 0.7**3 / 2  # p(1 − p)³/n, chapter 02
assert math.isclose(variance_of_coin, 2 * per_parameter)

# %% [markdown]
# Three answers, two of them right and one twice as likely as the other. The gradient of $\eta$
# with respect to the three logits is $\pi(y)\,(r(y) - \eta)$.

# %%
REWARDS = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)


def three_answers(eta: float) -> tuple[Tensor, Tensor]:
    """Probabilities of the answers, and ∇η; (3,) each."""
    probs = torch.tensor([eta * 2 / 3, eta / 3, 1 - eta], dtype=torch.float64)
    return probs, probs * (REWARDS - eta)


# %% tags=["check"]
for size in (2, 3, 4, 8):
    draws = torch.cartesian_prod(*[torch.arange(3)] * size)
    n_right = REWARDS[draws].sum(dim=1)
    for share in (0.02, 0.3, 0.5, 0.9):
        probs, gradient = three_answers(share)
        target = gradient / (share * (1 - share))
        groups = group_estimates(plain_log_odds, probs, REWARDS, size)
        mixed = 1 - share**size - (1 - share) ** size
        assert (moments(*groups)[0] - mixed * target).abs().max() < 1e-12
        for number in range(1, size):
            chances, estimates = (part[n_right == number] for part in groups)
            given = chances @ estimates / chances.sum()
            assert (given - target).abs().max() < 1e-12

# %% [markdown]
# For groups of 2, 3, 4 and 8, hard and easy prompts, and each number of right answers by itself,
# the expectation is $\nabla\log\frac{\eta}{1-\eta}$ to twelve digits.
#
# ## Beside the others
#
# Each known method is a function from a group's rewards to its advantages as well, and so goes
# through the same enumeration. (RFT has no weight of its own: its $w$ is that of Dr. GRPO.)


# %%
def known(normalizer: str) -> Estimator:
    """Mean baseline and a normalizer of the assignment, as an estimator."""

    def advantages(rewards: Tensor) -> Tensor:
        flat, _ = compute_group_normalized_rewards(
            rewards.flatten(),
            rewards.shape[1],
            advantage_normalizer=normalizer,
        )
        return flat.reshape(rewards.shape)

    return advantages


METHODS: dict[str, Estimator] = {
    "Dr_GRPO": known("none"),
    "GRPO": known("std"),
    "MaxRL": known("mean"),
    "log_odds": log_odds,
}
OBJECTIVES = {
    "Dr_GRPO": eta,
    "GRPO": 2 * sp.asin(sp.sqrt(eta)),
    "MaxRL": sp.log(eta),
    "log_odds": sp.log(eta / (1 - eta)),
}

# %% [markdown]
# | method | divisor | climbs, for $G \to \infty$ | weight $w = f'$ |
# |---|---|---|---|
# | Dr. GRPO | 1 | $\eta$ | $1$ |
# | GRPO | $\sqrt{\eta(1-\eta)}$ | $2 \arcsin\sqrt\eta$ | $1/\sqrt{\eta(1-\eta)}$ |
# | MaxRL | $\eta$ | $\log \eta$ | $1/\eta$ |
# | log-odds | $\eta(1-\eta)$ | $\log\frac{\eta}{1-\eta}$ | $1/(\eta(1-\eta))$ |

# %% tags=["check"]
divisors = (1, sp.sqrt(eta * (1 - eta)), eta, eta * (1 - eta))
for objective, divisor in zip(OBJECTIVES.values(), divisors, strict=True):
    for share in (0.1, 0.5, 0.8):
        slope = sp.diff(objective, eta) * divisor
        assert abs(slope.subs(eta, share) - 1) < 1e-12


# %%
def weight(estimator: Estimator, share: float, size: int) -> float:
    """w(η): how many times ∇η the expected estimate is."""
    probs, gradient = three_answers(share)
    expected, _ = moments(*group_estimates(estimator, probs, REWARDS, size))
    return (expected @ gradient / (gradient @ gradient)).item()


shares = np.linspace(0.01, 0.99, 50)
WEIGHTS = pd.DataFrame(
    {
        name: [weight(estimator, share, 8) for share in shares]
        for name, estimator in METHODS.items()
    },
    index=shares,
)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.4), layout="constrained")
for name, objective in OBJECTIVES.items():
    limit = sp.lambdify(eta, sp.diff(objective, eta), "numpy")(shares)
    axes[0].plot(
        shares, limit * np.ones_like(shares), label=name, **line(name)
    )
    axes[1].plot(shares, WEIGHTS[name], label=name, **line(name))
axes[0].set(title="Very large groups", ylim=(0, 12), ylabel="weight w(η)")
axes[1].set(title="Groups of eight", ylim=(0, 9))
axes[0].legend(loc="upper center")
for ax in axes:
    ax.set(xlabel="η, probability of being right")
plt.show()

# %% [markdown]
# *How strongly a prompt pulls, by how hard it is. Left the limits: the log-odds lift both ends, as
# GRPO does, and more. Right what groups of eight make of it: at most 8, reached at both ends, and
# 4 in the middle. MaxRL comes to 7 at the hard end only, GRPO stays between 1.7 and 2.5.*

# %% tags=["check"]
mixed = 1 - shares**8 - (1 - shares) ** 8
assert np.allclose(
    WEIGHTS["log_odds"], mixed / (shares * (1 - shares)), rtol=1e-4
)
assert abs(weight(log_odds, 1e-4, 8) - 8) < 0.01
assert abs(weight(log_odds, 0.5, 8) - 3.97) < 0.005
assert abs(weight(METHODS["MaxRL"], 1e-4, 8) - 7) < 0.01
assert WEIGHTS["GRPO"].min() > 1.7 and WEIGHTS["GRPO"].max() < 2.5

# %% [markdown]
# The whole curve of the log-odds lies above GRPO's, at two to three times its height. Adam hardly
# sees a common factor ({doc}`10_advantages`), so that is no advantage. What remains is the shape:
# beside a prompt with $\eta = .5$, one with $\eta = .02$ pulls 1.9 times as hard; under GRPO, 1.4
# times.

# %% tags=["check"]
hard_to_even = {
    name: weight(METHODS[name], 0.02, 8) / weight(METHODS[name], 0.5, 8)
    for name in METHODS
}
assert abs(hard_to_even["log_odds"] - 1.9) < 0.05
assert abs(hard_to_even["GRPO"] - 1.4) < 0.05
assert hard_to_even["MaxRL"] > 3
assert (WEIGHTS["log_odds"] / WEIGHTS["GRPO"]).between(2, 3.5).all()

# %% [markdown]
# ## What it costs
#
# A louder voice for hard prompts is a louder voice for what is known least. The enumeration has
# the variance of one group's estimate, too. Two measures of it: the *relative* noise of a prompt,
# its variance over the squared length of its expected gradient, which no constant changes; and how
# the noise of a whole batch is shared among prompts from hard to easy.


# %%
def noise(estimator: Estimator, share: float) -> tuple[float, float]:
    """Variance of a group of eight, and the squared expectation."""
    probs, _ = three_answers(share)
    mean, variance = moments(*group_estimates(estimator, probs, REWARDS, 8))
    return variance, (mean @ mean).item()


some = (0.02, 0.1, 0.3, 0.5, 0.9, 0.98)
relative = pd.DataFrame(
    {
        name: [np.divide(*noise(estimator, share)) for share in some]
        for name, estimator in METHODS.items()
    },
    index=pd.Index(some, name="η"),
)
relative.round(2)

# %% tags=["check"]
assert np.ptp(relative.loc[0.02]) < 0.1 * relative.loc[0.02].min()
assert (relative.loc[0.02] > 4 * relative.loc[0.3]).all()

# %% [markdown]
# Relative noise of one group. Read along the first row: at $\eta = .02$ all methods are equally
# unsure. With eight tries, 15 % of the groups have anything to say, nearly always by a single
# right answer, and then every normaliser multiplies the same difference. No divisor can learn more
# from a hard prompt. It can only turn it up or down against the others, noise and all.

# %% tags=["check"]
chance_mixed = 1 - 0.02**8 - 0.98**8
chance_of_one = 8 * 0.02 * 0.98**7
assert abs(chance_mixed - 0.15) < 0.005
assert chance_of_one / chance_mixed > 0.9

# %%
even_batch = np.linspace(0.02, 0.98, 25)
variances = pd.DataFrame(
    {
        name: [noise(estimator, share)[0] for share in even_batch]
        for name, estimator in METHODS.items()
    },
    index=even_batch,
)
in_parts = pd.cut(
    even_batch, [0, 0.11, 0.89, 1], labels=["η ≤ .1", "between", "η ≥ .9"]
)
by_part = variances.groupby(in_parts, observed=True).sum() / variances.sum()
by_part.T.round(2)

# %% [markdown]
# Prompts spread evenly from 2 % to 98 %, one group each: which share of the batch's variance comes
# from the hard, the medium and the easy ones. The hard and the easy ones here are 24 % of the
# prompts. Under Dr. GRPO they cause 17 % of the variance, under GRPO 25 %, with the log-odds 33 %.
# MaxRL has 28 % at the hard end alone.

# %% tags=["check"]
ends = by_part.loc[["η ≤ .1", "η ≥ .9"]].sum()
assert (in_parts != "between").mean() == 0.24
for name, part in (("Dr_GRPO", 0.17), ("GRPO", 0.25), ("log_odds", 0.33)):
    assert abs(ends[name] - part) < 0.006
assert abs(by_part.loc["η ≤ .1", "MaxRL"] - 0.28) < 0.006

# %% [markdown]
# At both ends there is a second price. A lone wrong answer among eight gets $-8$, a lone right one
# $+8$: four times what an answer gets in a group that is half right. GRPO gives $\pm 2.47$, 2.6
# times as much. If the lone wrong answer was right and the checker missed it, or the lone right
# one was luck, that error is what the update follows.

# %% tags=["check"]
lone = torch.tensor([[1.0] + [0.0] * 7, [1.0] * 7 + [0.0]]).double()
half = torch.tensor([[1.0] * 4 + [0.0] * 4]).double()
for name, largest, times in (("log_odds", 8.0, 4.0), ("GRPO", 2.47, 2.6)):
    found = METHODS[name](lone).abs().amax(dim=1)
    assert (found - largest).abs().max() < 0.005
    assert (found / METHODS[name](half).max() - times).abs().max() < 0.05

# %% [markdown]
# So the prediction is no clear one. The estimator climbs a well-defined objective exactly, up to
# the empty groups; it does so with more of its noise in the ends of the scale; and in groups of
# eight its weights differ from GRPO's by less than the limits make one think. A small difference
# in either direction would not surprise.
#
# ## From ten lines to a run
#
# An estimator is a function from (N, G) rewards to (N, G) advantages. `@estimator` makes it known
# under its name. As an example another recipe: between Dr. GRPO's divisor 1 and MaxRL's $\mu$ lies
# $\sqrt\mu$, with the objective $2\sqrt\eta$.

# %%
from gsmrl_helpers.estimators import estimator


@estimator
def root_of_mean(rewards: Tensor) -> Tensor:
    """The mean as baseline, divided by the mean's root."""
    mean = rewards.mean(dim=1, keepdim=True)
    return (rewards - mean) / (mean.sqrt() + 1e-6)


# %% [markdown]
# (A name can be taken only once: after a change, restart the kernel or choose another name.)
#
# Before any run: does it climb what you think? Its expectation must be a multiple of $\nabla\eta$,
# and its weights should lie between those of its neighbours.

# %% tags=["check"]
slopes = []
for name in ("Dr_GRPO", "root_of_mean", "MaxRL"):
    function = METHODS.get(name, root_of_mean)
    slopes.append(weight(function, 0.1, 8) / weight(function, 0.5, 8))
    probs, gradient = three_answers(0.1)
    mean, _ = moments(*group_estimates(function, probs, REWARDS, 8))
    assert (mean - weight(function, 0.1, 8) * gradient).abs().max() < 1e-12
assert slopes == sorted(slopes) and slopes[0] < slopes[1] < slopes[2]
assert sp.diff(2 * sp.sqrt(eta), eta) == 1 / sp.sqrt(eta)

# %% [markdown]
# The name is now a value of the setting `advantage_estimator`, in every experiment and at every
# scale. Two small steps with it, and one with standard GRPO from the same seed:


# %% tags=["nbval-ignore-output"]
def smoke_run(**overrides) -> list[dict]:
    """A few small steps on the pocket policy; the rows of metrics."""
    config = experiment_config("smoke", overrides=overrides)
    with tempfile.TemporaryDirectory() as folder:
        return read_rows(train(config, Path(folder) / "run") / METRICS)


overrides = {
    "standard": {"n_grpo_steps": 1},
    "root_of_mean": {"advantage_estimator": "root_of_mean"},
}
rows = {
    name: smoke_run(**changed)
    for name, changed in live(overrides.items(), "run")
}
shown = ["train_mean_reward", "no_signal_group_share", "loss", "grad_norm"]
pd.DataFrame({name: pd.Series(r[1])[shown] for name, r in rows.items()}).T

# %% tags=["check"]
first = {name: run[1] for name, run in rows.items()}
for metric in ("train_mean_reward", "no_signal_group_share"):
    assert first["standard"][metric] == first["root_of_mean"][metric]
assert first["standard"]["loss"] != first["root_of_mean"]["loss"]
assert all(row["grad_norm"] > 0 for row in rows["root_of_mean"][1:])

# %% [markdown]
# The first step of each sampled the same answers to the same problems: a seed decides them, not
# the estimator. That is why runs of one seed can be compared as a pair. The losses differ, and
# from then on the policies.
#
# For whole runs the function has to stand where every process finds it. Put it into
# `gsmrl_helpers/estimators.py`, below `log_odds`, with its `@estimator`. The experiment
# `own-estimator` of the catalogue then has a variant of that name, beside `standard`:
#
# ```bash
# gsmrl run own-estimator --variants standard,root_of_mean --seeds 0-7
# gsmrl record own-estimator
# ```
#
# The first makes what is missing of the sixteen runs and can be broken off and given again. The
# second collects all variants in `data/results/pocket/own-estimator.parquet`, where the cells
# below find yours as well. (`git checkout` of that file brings the book's back.) On GPUs, add
# `--profile two_gpu` to both.
#
# ## Eight seeds, and the verdict
#
# The rule was written before the runs, and stands in the catalogue:

# %%
experiment = EXPERIMENTS["own-estimator"]
print(experiment.question)
print(experiment.rule)

# %%
results = read_recording("own-estimator", profile)
names = {
    variant: variant if variant in LINES else "your own"
    for variant in dict.fromkeys(results["variant"])
}
finals = final_values(results, "test_mean_answer_reward")
columns = ["n", "mean", "std", "t_half_width", "min", "max"]
summarize(finals)[columns].round(3)

# %% tags=["check"]
seeds = results.groupby("variant")["seed"].agg(set)
assert seeds["log_odds"] == seeds["standard"]
if profile == "pocket":
    assert seeds["standard"] == set(range(8))

# %% tags=["hide-input"]
panels = {
    "Right answers, validation": ("curve_mean_answer_reward", "share"),
    "Groups without signal": ("no_signal_group_share", "share"),
    "Gradient norm": ("grad_norm", "2-norm"),
}
in_tens = binned(results, 10)
figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.0), layout="constrained")
axes = axes.flat
for ax, (title, (metric, unit)) in zip(axes, panels.items(), strict=False):
    table = results if metric.startswith("curve") else in_tens
    plot_curves(ax, table, metric, names)
    ax.set(title=title, ylabel=unit)
axes[0].legend(loc="lower right", fontsize=7)
plot_finals(axes[3], finals, names)
axes[3].set(title="Right answers, test", ylabel="share")
plt.show()

# %% [markdown]
# *Every seed is drawn faintly, the mean with μ ± 1.96 σ/√n; the groups and the norm are means over
# ten steps. Lower right: what each run ends with on the test problems, and the mean of each
# variant. What to look at first is whether the faint lines of the two colours mix. The norm is
# that before clipping, on the scale of each estimator; it says nothing about which is better.*

# %%
for verdict in compare_all(finals, "standard"):
    print(verdict)

# %% tags=["check"]
verdict = compare(finals, "log_odds", "standard")
assert (verdict.word == "can't tell") == (verdict.low <= 0 <= verdict.high)
assert verdict.variant in str(verdict)

# %% [markdown]
# How fine a difference could these seeds have shown at all? The half width of the paired interval
# says it: a smaller mean difference than that can't be told from none. Pairing helps as far as
# runs of one seed go up and down together; the unpaired half width is what one would have without
# it.

# %%
gaps = paired_differences(finals, "log_odds", "standard")
unpaired = math.hypot(
    *summarize(finals).loc[["log_odds", "standard"], "t_half_width"]
)
print(f"differences by seed: {', '.join(f'{gap:+.3f}' for gap in gaps)}")
print(
    f"half width, paired: {t_half_width(gaps):.3f}, unpaired: {unpaired:.3f}"
)

# %% tags=["check"]
middle = (verdict.low + verdict.high) / 2
assert math.isclose(middle, gaps.mean(), abs_tol=1e-9)
assert math.isclose(verdict.high - middle, t_half_width(gaps), rel_tol=1e-9)

# %% [markdown]
# At pocket scale the two can't be told apart, and that says more than it seems to. The interval
# lies within one point on either side of 0, so whatever the divisor does to the ends of the scale,
# it neither gains nor costs as much as that. The half width without pairs would be three times as
# large: runs of one seed end alike. (Of seeds 0 to 3 the standard run was made on another
# processor, which rounds differently; after some steps such a run is a different one, though its
# problems and its first answers are the same. Over these pairs the difference is −.0037 on average,
# over those that were made on one kind of processor −.0005: no sign that the processor matters.)

# %% tags=["check"]
if profile == "pocket":
    assert verdict.word == "can't tell"
    assert -0.01 < verdict.low < verdict.high < 0.01
    assert 2.5 < unpaired / t_half_width(gaps) < 3.5
    made_on = processors("own-estimator", profile)
    assert made_on["log_odds"].to_dict() == {"AVX2": 8}
    assert made_on["standard"].to_dict() == {"AVX512": 4, "AVX2": 4}
    assert abs(gaps[:4].mean() + 0.0037) < 5e-5
    assert abs(gaps[4:].mean() + 0.0005) < 5e-5

# %% [markdown]
# Three things limit what the verdict says, whatever it is.
#
# - *Tuning.* The learning rate suits standard GRPO ({doc}`15_learning_rate`). If the new estimator
#   is better at it, that is a finding. If it is worse, it may only be untuned.
# - *Scale.* The pocket policy can already solve most of its problems, though it seldom does at
#   temperature 1 ({doc}`19_variants_results` counts both), and training here mostly sharpens what
#   is there. An objective that helps with problems which are hardly ever solved has little to work
#   on.
# - *One look.* The rule is about final test accuracy. Whoever tries ten estimators and reports the
#   best has made ten comparisons, and `compare_all(…, jointly=True)` widens the intervals for it.
#
# ## Take away
#
# - Start from an objective $f(\eta)$; the divisor is $1/f'$. The variance climbs the log-odds, and
#   given a mixed group exactly so, for every $G$.
# - Enumerate before you train. Expectation, weights and variance of any estimator cost a second.
# - A divisor makes no group more informative. It shares out the batch's signal, and its noise.
# - Ten lines under `@estimator` are a setting, a variant and a comparison. The verdict comes from
#   the rule that was written before, from paired seeds, and may be "can't tell".
#
# ## Exercises
#
# ```{exercise} The median as baseline
# :label: ex-22-median
#
# *Medium, 15 minutes.* Write `median_baseline(rewards)`, an estimator: each reward minus the
# median of its group, (N, G) to (N, G), divided by nothing. With rewards of 0 and 1 and an even
# $G$, take the lower median, as `torch.median` does. Does it climb the mean reward? The check
# compares its weight with $1 - \binom{G-1}{G/2}\, \eta^{G/2} (1-\eta)^{G/2-1}$; where does it come
# from?
#
# :::{dropdown} Hint
# `rewards.median(dim=1, keepdim=True).values`. With $k \le G/2$ right answers the median is 0 and
# each right answer weighs 1; else it is 1 and each wrong one weighs $-1$.
# :::
#
# :::{dropdown} Worked answer
# With $k \le G/2$ the group contributes $\frac{k}{G\eta}$, else $\frac{G-k}{G(1-\eta)}$. Since
# $\frac{k}{G\eta} \binom{G}{k} \eta^k (1-\eta)^{G-k}$ is the chance of $k - 1$ successes in $G -
# 1$ tries, and the other term the chance of $k$, the sum over $k$ has every number of successes
# from 0 to $G - 1$ but one: $G/2$ is missing, and $w = 1 - P(G/2)$. So it nearly climbs the mean
# reward, a little less for prompts of medium difficulty, and it does so for any policy.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def median_baseline(rewards: Tensor) -> Tensor:
    return rewards - rewards.median(dim=1, keepdim=True).values


# %% tags=["check"]
for size in (2, 4, 8):
    for share in (0.05, 0.5, 0.8):
        half = size // 2
        missing = math.comb(size - 1, half) * share**half
        missing *= (1 - share) ** (half - 1)
        assert math.isclose(weight(median_baseline, share, size), 1 - missing)
assert (median_baseline(torch.ones(1, 4)) == 0).all()

# %% [markdown]
# ```{exercise} Log-probability, exactly
# :label: ex-22-log-eta
#
# *Medium, 15 minutes.* MaxRL climbs $\log\eta$ only in the limit; in groups of $G$ its expectation
# is $1 - (1-\eta)^{G-1}$ of $\nabla\log\eta$. Write `mean_of_right(rewards)`, an estimator for
# rewards of 0 and 1 whose expectation, given that any answer is right, is exactly
# $\nabla\log\eta$. Then look at its noise at $\eta = .98$, beside MaxRL's. Which would you train
# with?
#
# :::{dropdown} Hint
# The estimate of `log_odds` is a difference of two means of scores. Keep one of them.
# :::
#
# :::{dropdown} Worked answer
# A right answer gets $G/k$, a wrong one 0; this is the pair none/mean of {doc}`10_advantages`. The
# chance of any right answer is $1 - (1-\eta)^G$, so it even loses less to empty groups than MaxRL.
# But it has no baseline: a group of eight right answers, in which there is nothing to compare,
# moves the policy towards those that happened to be drawn. On nearly solved prompts that is noise
# without signal, several times MaxRL's.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def mean_of_right(rewards: Tensor) -> Tensor:
    n_right = rewards.sum(dim=1, keepdim=True)
    return rewards * rewards.shape[1] / n_right.clamp(min=1)


# %% tags=["check"]
for size in (2, 4, 8):
    for share in (0.05, 0.5, 0.9):
        any_right = 1 - (1 - share) ** size
        found = weight(mean_of_right, share, size)
        assert math.isclose(found, any_right / share)
for share, louder in ((0.98, True), (0.05, False)):
    relative_noise = [
        np.divide(*noise(function, share))
        for function in (mean_of_right, METHODS["MaxRL"])
    ]
    assert (relative_noise[0] > 2 * relative_noise[1]) == louder

# %% [markdown]
# ```{exercise} How many seeds?
# :label: ex-22-seeds
#
# *Easy, 10 minutes.* Write `seeds_needed(std, difference)`: the smallest number of seeds at which
# the half width of the 95 % t interval, for paired differences with that standard deviation, is
# below `difference`. How many would a difference of one point need, if pairs differ with a
# standard deviation of three?
#
# :::{dropdown} Hint
# `scipy.stats.t.ppf(0.975, n - 1) * std / n**0.5`, from n = 2 on.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def seeds_needed(std: float, difference: float) -> int:
    from scipy.stats import t

    n = 2
    while t.ppf(0.975, n - 1) * std / n**0.5 >= difference:
        n += 1
    return n


# %% tags=["check"]
from scipy.stats import t

assert seeds_needed(0.03, 0.01) == 38
for std, difference in ((0.001, 0.02), (0.02, 0.02), (0.05, 0.02)):
    n = seeds_needed(std, difference)
    half_widths = [
        t.ppf(0.975, m - 1) * std / m**0.5 for m in range(2, n + 1)
    ]
    assert half_widths[-1] < difference
    assert all(half_width >= difference for half_width in half_widths[:-1])

# %% [markdown]
# ## Next
#
# {doc}`19_variants_results` compares the estimators of the literature in the same way. To go on
# with your own, change one thing of it.
