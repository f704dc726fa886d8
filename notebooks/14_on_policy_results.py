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
# # On-policy results
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** read everything that four runs of GRPO leave behind, draw their spread and
# say what the drawn band covers, estimate pass@k without bias, and answer the assignment's
# questions from recorded results by a rule whose bars were set before the runs.
#
# **You need** the training step of {doc}`12_grpo_train_step` and a recorded run, such as
# {doc}`/book/runs/on_policy_pocket`. **Reading** takes 30 minutes, **running** half a minute, on a
# **CPU**.
# ```
#
# Standard GRPO takes one optimizer step on each batch of rollouts, so every answer that it learns
# from was sampled by the policy that learns. That is what *on-policy* means here. Four runs of it
# are on record, equal in all but the seed. This chapter looks at all of their metrics, at their
# answers, and asks what four seeds can tell.
#
# The results are a table in the long form: one row for each variant, seed, step and metric. With
# another `profile` the same cells show runs of another scale. What is said of *pocket scale* holds
# for the tiny policy on generated problems and is checked for it alone.

# %% tags=["parameters"]
profile = "pocket"

# %%
import math
import re
from collections.abc import Sequence
from itertools import combinations, product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML
from scipy.stats import binomtest, t

from gsmrl_helpers import (
    LocalEngine,
    experiment_config,
    load_policy,
    load_problems,
)
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.intervals import t_half_width
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.pocket_problems import apply_operator
from gsmrl_helpers.published import THRESHOLD, read_published
from gsmrl_helpers.recorded_rollouts import best_paid, read_answers
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_panels import is_recorded, plot_panels
from gsmrl_helpers.result_plots import plot_curves
from gsmrl_helpers.results import curves, final_values, rows_of, summarize
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.rules import passes
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.verdicts import compare, compare_all, stability

use_style()
results = read_recording("on-policy", profile)
answers = read_answers("on-policy", profile)
config = experiment_config("on-policy", profile)
last = results["step"].max()

# %% [markdown]
# ## The rule, before the results
#
# A rule that is chosen after the results will fit them. So the catalogue of experiments holds a
# question and a rule for each. The bars of this one, the threshold and "half of the best", were set
# before its runs; its wording is younger than they are.

# %%
experiment = EXPERIMENTS["on-policy"]
print(experiment.question)
print(experiment.rule)
threshold = 0.55 if profile == "pocket" else THRESHOLD

# %% tags=["check"]
assert ".55 at pocket scale" in experiment.rule
assert "a quarter at full scale" in experiment.rule and THRESHOLD == 0.25
assert "half of the best" in experiment.rule

# %% [markdown]
# The quarter is the assignment's threshold for OLMo-2 on GSM8K. The pocket problems are easier for
# their policy, so the bar there is higher; it is ours.
#
# ## One seed, four seeds
#
# Reinforcement learning feeds on its own samples. A lucky answer is made more likely, is sampled
# more often, and is rewarded again, so runs that differ in nothing but their random numbers drift
# apart. Here is what each run ends with: the share of right answers to the test problems, which no
# run has trained on and nothing was chosen by.

# %%
finals = final_values(results, "test_mean_answer_reward")
by_seed = finals.set_index("seed")["value"]
by_seed.round(3).to_frame("right on test, at the end").T

# %% tags=["check"]
assert finals["variant"].unique().tolist() == ["standard"]
assert (finals["step"] == last).all() and by_seed.between(0, 1).all()
if profile == "pocket":
    assert by_seed.index.tolist() == [0, 1, 2, 3]

# %% [markdown]
# Whoever runs one seed reports one of these numbers and can't know which. They differ for two
# reasons. The trained policies differ; and each is measured by one sampled answer to each test
# problem. Measuring alone gives a share $p$ of $N$ answers the standard error $\sqrt{p(1-p)/N}$.

# %%
mean = by_seed.mean()
measuring = math.sqrt(mean * (1 - mean) / config.splits.test)
print(
    f"σ over seeds {by_seed.std():.3f}, from measuring alone {measuring:.3f}"
)

# %% tags=["check"]
if profile == "pocket":
    assert by_seed.std() < 1.5 * measuring
    assert by_seed.max() - by_seed.min() < 0.06

# %% [markdown]
# At pocket scale the four seeds lie within a few points, no farther apart than repeated
# measurements of one policy would be. So these runs hardly differ in what they have learned. That
# is not the rule: at full scale, as the published figures below show, single seeds fail
# altogether. In either case a mean over seeds is better than one of them, and it has an error of
# its own.
#
# ## The interval of a mean
#
# If $\sigma$ is the standard deviation of the seeds' results, the mean of $n$ of them has the
# standard error $\sigma / \sqrt n$. Figures in papers often show $\mu \pm 1.96\, \sigma / \sqrt n$,
# and so do those of this book. With $\sigma$ from $n - 1$ degrees of freedom:

# %% tags=["definition"]
from gsmrl_helpers.intervals import FEWEST, Z


def standard_error(values: Sequence[float]) -> float:
    """σ/√n, σ with n − 1; of one value NaN."""
    values = np.asarray(values, dtype=float)
    if not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"values={values.tolist()}: a mean needs values, all of them finite"
        )
    if values.size < FEWEST:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(values.size))


def half_width(values: Sequence[float]) -> float:
    """1.96 σ/√n, half of the interval that the figures show."""
    return Z * standard_error(values)


# %% [markdown]
# By hand: four seeds end at .20, .25, .30 and .29. Their mean is .26. The squared deviations sum
# to .0062, so $\sigma = \sqrt{.0062 / 3} = .0455$, half of it is the standard error, and 1.96
# times that is the half-width.

# %% tags=["check", "claim:A22a"]
four = [0.20, 0.25, 0.30, 0.29]
expected_mean, expected_half_width = 0.26, 0.0446
assert abs(np.mean(four) - expected_mean) < 0.0005
assert abs(half_width(four) - expected_half_width) < 0.00005
assert math.isnan(standard_error([0.26]))

# %% [markdown]
# ## What the interval covers
#
# The number 1.96 is that of a normal distribution whose $\sigma$ is known. Four seeds only give
# an estimate of $\sigma$, and now and then a far too small one: four results that happen to lie
# together look precise. Student's distribution with $n - 1$ degrees of freedom accounts for it.
# With it, the chance that mean ± factor · $\sigma/\sqrt n$ contains the true mean is known
# exactly, if the results are normal.


# %% tags=["definition"]
def coverage(n: int, factor: float = Z) -> float:
    """How often mean ± factor · σ/√n over n normal values is right."""
    if n < FEWEST:
        raise ValueError(f"n={n}: an interval needs at least {FEWEST} values")
    return float(2 * t.cdf(factor, n - 1) - 1)


# %% tags=["check", "claim:A22b"]
expected_covered = {"1.96": 0.855, "t": 0.950}
factors = {"1.96": 1.96, "t": t.ppf(0.975, 4 - 1)}
draws = np.random.default_rng(0).normal(0.3, 0.05, size=(40_000, 4))
means = draws.mean(axis=1)
errors = draws.std(axis=1, ddof=1) / math.sqrt(4)
for name, share in expected_covered.items():
    assert abs(coverage(4, factors[name]) - share) < 0.0005
    simulated = (np.abs(means - 0.3) < factors[name] * errors).mean()
    assert abs(simulated - coverage(4, factors[name])) < 0.007

# %% [markdown]
# So the band that is drawn as "95 %" holds in 85 % of cases at $n = 4$: it misses about one time in
# seven and not one in twenty. The $t$ interval is wider by the factor in the last column, and does
# hold in 95 %. In this book figures show the usual band and *verdicts* rest on the $t$ interval.

# %%
sizes = [2, 3, 4, 8, 16, 64]
pd.DataFrame(
    {
        "1.96 covers": [f"{coverage(n):.1%}" for n in sizes],
        "t factor": [f"{t.ppf(0.975, n - 1):.2f}" for n in sizes],
        "t is wider by": [f"× {t.ppf(0.975, n - 1) / Z:.2f}" for n in sizes],
    },
    index=pd.Index(sizes, name="n"),
)

# %% tags=["check"]
assert 1 / 8 < 1 - coverage(4) < 1 / 6
assert coverage(2) < 0.71 and coverage(64) > 0.945

# %% [markdown]
# The other band that the assignment allows is the range from the lowest to the highest seed. It
# assumes nothing and shows an outlier for what it is. It says something else: not where the mean
# is, but where the runs were; and it only grows with more seeds, while the interval shrinks
# ({ref}`ex-14-range` asks what it covers). With four seeds the two happen to look alike: of four
# normal results the range is on average 1.14 times as wide. The figures below have both, side by
# side.

# %% tags=["check"]
widths = 2 * Z * errors
ranges = draws.max(axis=1) - draws.min(axis=1)
assert abs(ranges.mean() / widths.mean() - 1.14) < 0.01

# %% [markdown]
# ## What was learned
#
# The reward pays for the right answer alone. Format is graded and logged, because either can rise
# without the other. *Training* values are those of each batch before its update, *validation*
# values those of fixed problems that are never trained on.

# %% tags=["hide-input"]
figure = plot_panels(
    results,
    "standard",
    [
        (
            "Training batch",
            "share",
            {
                "right": "train_mean_answer_reward",
                "in format": "train_mean_format_reward",
            },
        ),
        (
            "Validation",
            "share",
            {
                "right": "curve_mean_answer_reward",
                "in format": "curve_mean_format_reward",
            },
        ),
    ],
)
plt.show()

# %% [markdown]
# *Thin lines are seeds, thick lines their mean. At pocket scale format and right answers rise
# together. Format is nearly complete after thirty steps; right answers level off after about sixty,
# where four in ten are still missing. The training curve jumps about more, since each step meets
# other problems, and lies on the level of the validation curve, since no problem comes twice.*

# %%
table = pd.DataFrame(
    {
        (part, split): curves(
            results, f"{split}_mean_{part}_reward"
        ).set_index("step")["mean"]
        for part in ("answer", "format")
        for split in ("train", "curve")
    }
)
validated = rows_of(results, "curve_mean_reward")["step"].unique()
table.loc[validated[::2]].round(3)

# %% tags=["check"]
paid = rows_of(results, "train_mean_reward")["value"].to_numpy()
answered = rows_of(results, "train_mean_answer_reward")["value"].to_numpy()
assert np.array_equal(paid, answered)  # the answer is all that is paid
if profile == "pocket":
    right = table["answer", "curve"].dropna()
    form = table["format", "curve"].dropna()
    assert 0.07 < right[0] < 0.11 and 0.58 < right[100] < 0.64
    assert form[30] > 0.9 > form[20] and right[30] < 0.9 * right[60]
    assert abs(right[100] - right[60]) < 0.03
    train = table["answer", "train"].loc[51:100].mean()
    assert abs(train - right.loc[60:].mean()) < 0.04
    n_problems = config.prompts_per_step * config.n_grpo_steps
    assert n_problems <= config.splits.train  # none comes twice

# %% [markdown]
# The assignment asks for a pilot first: about 50 steps, to see that validation reward rises at all.
# Each seed is compared with its own beginning, and the verdict rests on the $t$ interval of these
# differences.

# %%
pilot = max(step for step in validated if step <= 50)
at_steps = pd.concat(
    rows_of(results, "curve_mean_answer_reward")
    .query("step == @step")
    .assign(variant=f"step {step}")
    for step in (0, pilot, last)
)
for verdict in compare_all(at_steps, "step 0"):
    print(verdict)
print(compare(at_steps, f"step {last}", f"step {pilot}"))

# %% tags=["check"]
after_pilot, after_all = compare_all(at_steps, "step 0")
second_half = compare(at_steps, f"step {last}", f"step {pilot}")
if profile == "pocket":
    assert after_pilot.word == after_all.word == "better"
    assert after_pilot.low > 0.2
    assert second_half.difference < after_pilot.difference

# %% [markdown]
# ## Learned, or brought out?
#
# From 9 % to above 60 % in a hundred steps of 256 answers each looks like a great deal of
# learning. At pocket scale most of it is not new knowledge. The untrained policy is bad at
# *sampling* right answers, not at preferring them. The same weights, asked the same validation
# problems, eight answers each at a temperature, or one greedily:

# %% tags=["nbval-ignore-output"]
if profile == "pocket":
    model, tokenizer = load_policy(config)
    engine = LocalEngine(model.eval(), tokenizer)
    untrained = {}
    for temperature, group_size in ((1.0, 8), (0.5, 8), (0.0, 1)):
        rollouts = sample_rollouts(
            engine,
            config.prompt_object(),
            load_problems(config, "curve")[:128],
            group_size=group_size,
            seed=0,
            temperature=temperature,
            top_p=1.0,
            max_tokens=config.sampling_max_tokens,
        )
        untrained[temperature] = rollouts.metrics()
        share = untrained[temperature]["mean_answer_reward"]
        print(f"untrained, temperature {temperature}: {share:.0%} right")

# %% tags=["check"]
if profile == "pocket":
    right = {T: row["mean_answer_reward"] for T, row in untrained.items()}
    assert 0.06 < right[1.0] < 0.12 and 0.32 < right[0.5] < 0.46
    assert right[0.0] > 0.8 > by_seed.max()

# %% [markdown]
# Its most likely answer is right far more often than the trained policy's samples are. Half the
# temperature, a change of one number, brings a good part of what the training brought. So on-policy
# GRPO at pocket scale mostly *sharpens*: it moves probability to answers that the policy preferred
# already, and lets the others go. This is no objection to the algorithm. It is what a policy
# gradient on one's own samples can do: what is never sampled is never rewarded. But a
# comparison of a trained policy at temperature 1 with the untrained one at temperature 1 measures
# sharpening and new skill together. How far the same is true of OLMo-2 on GSM8K the published
# reports don't say; sample the base model greedily before you claim otherwise.
#
# ## How the optimizer fared

# %% tags=["hide-input"]
figure = plot_panels(
    results,
    "standard",
    [
        ("Loss", "", {"train": "loss"}),
        ("Gradient norm, before clipping", "2-norm", {"train": "grad_norm"}),
        (
            "Token entropy",
            "nats",
            {"train": "token_entropy", "curve": "curve_token_entropy"},
        ),
        ("KL to the old policy", "nats", {"train": "kl_to_old"}),
    ],
)
plt.show()

# %% [markdown]
# *Loss, gradient norm, entropy and, where there is an old policy, the KL to it. "train" entropy is
# over the tokens of groups with a signal only, the ones that go through the model; "curve" is over
# all tokens of validation answers. On-policy there is no old policy: one update for each batch.*
#
# **Loss.** The name is inherited. It is minus the objective whose gradient is the estimate, its
# value depends on the batch's own advantages, and it need not fall
# ({doc}`11_policy_gradient_loss`). At pocket scale it falls for twenty steps and then *rises* for
# eighty, while the policy gets better in both. Don't choose a checkpoint by it.
#
# **Gradient norm.** It doubles as entropy falls, and stays far below the bound from which it
# would be clipped, `max_grad_norm`: at pocket scale clipping never acted.
#
# **Entropy.** It falls to less than a third, most of it in the first thirty steps. That is the
# sharpening, seen from inside. At 0 nothing would be left to explore.
#
# **KL to the old policy, ratio, clip fraction.** Not recorded. With fresh rollouts and one update
# the old policy is the policy, its ratio is 1 by construction, and the loop does not spend a
# forward pass on computing it. What was not computed is null, never 0.


# %%
def level(metric: str) -> pd.Series:
    """Mean over seeds and over the first, middle and last ten steps."""
    along = curves(results, metric).set_index("step")["mean"].sort_index()
    starts = {"first": 1, "middle": last // 2 - 4, "last": last - 9}
    return pd.Series(
        {f"{k} ten": along.loc[a : a + 9].mean() for k, a in starts.items()}
    )


logged = [
    *("loss", "grad_norm", "token_entropy", "no_signal_group_share"),
    *("train_response_length", "train_truncated_share"),
]
levels = pd.DataFrame({metric: level(metric) for metric in logged}).T
levels.round(3)

# %% tags=["check"]
for metric in ("kl_to_old", "mean_ratio", "clip_fraction"):
    assert not is_recorded(results, metric)
norms = rows_of(results, "grad_norm")["value"].dropna()
if profile == "pocket":
    assert norms.max() < config.max_grad_norm
    assert levels.loc["grad_norm", "last ten"] > (
        1.4 * levels.loc["grad_norm", "first ten"]
    )
    losses = curves(results, "loss").set_index("step")["mean"]
    rolling = losses.rolling(10).mean()
    assert rolling.loc[100] > rolling.loc[25] + 0.02  # it rises again
    entropies = curves(results, "curve_token_entropy")
    entropies = entropies.set_index("step")["mean"]
    assert entropies[100] < entropies[0] / 3
    assert entropies[0] - entropies[30] > 2 * (entropies[30] - entropies[100])

# %% [markdown]
# ## Length, and groups without a signal
#
# Length has to be looked at apart for right and for wrong answers. A mean over both moves when
# their shares move, though neither kind has changed. And dividing each answer's loss by its own
# length makes long wrong answers cheap ({doc}`11_policy_gradient_loss`), which shows in the wrong
# ones alone.

# %% tags=["hide-input"]
figure = plot_panels(
    results,
    "standard",
    [
        (
            "Response length, training",
            "tokens",
            {
                "right": "train_response_length_right",
                "wrong": "train_response_length_wrong",
            },
        ),
        (
            "Response length, validation",
            "tokens",
            {
                "right": "curve_response_length_right",
                "wrong": "curve_response_length_wrong",
            },
        ),
        (
            "Groups without signal",
            "share",
            {"train": "no_signal_group_share"},
        ),
    ],
)
plt.show()

# %% [markdown]
# *Mean length of right and of wrong answers, and the share of training groups whose answers all
# earn the same. At pocket scale right answers keep their length and wrong ones grow by a quarter.
# Groups without a signal are most at the beginning, when whole groups are wrong, fewest at step
# 20, and become more again as groups are solved.*
#
# The curve does not say why wrong answers grow. The division by length may be a reason. Another one
# is seen in the answers that are on record: at the beginning nearly half of the wrong ones hold no
# calculation at all; at the end they calculate, and miscalculate. What changed is which answers are
# wrong, and no single answer has to have become longer. Nearly none is cut off at the limit, so
# nothing runs away. The number of calculations in a wrong answer, before and after:

# %%
wrong = answers[answers["answer_reward"] < 1]
calculations = wrong["response"].str.count(r"\d=\d")
calculations.groupby(wrong["step"]).agg(
    answers="size", mean="mean", none=lambda n: (n == 0).mean()
).round(2)

# %% tags=["check"]
if profile == "pocket":
    lengths = {
        kind: level(f"train_response_length_{kind}")
        for kind in ("right", "wrong")
    }
    growth = {k: v["last ten"] / v["first ten"] for k, v in lengths.items()}
    assert abs(growth["right"] - 1) < 0.05 and 1.15 < growth["wrong"] < 1.35
    lost = curves(results, "no_signal_group_share").set_index("step")["mean"]
    assert lost[1] > 0.4 > lost.loc[15:25].mean() and lost.idxmin() < 40
    assert lost.loc[91:].mean() > lost.loc[15:25].mean()
    without = (calculations == 0).groupby(wrong["step"]).mean()
    assert without[0] > 0.35 and without[100] < 0.05
    cut_off = rows_of(results, "train_truncated_share")["value"]
    assert cut_off.mean() < 0.01

# %% [markdown]
# ## pass@k
#
# The mean reward of a group is one summary of it. Another is whether *any* of $k$ answers is right,
# pass@k: what the policy can do if it is allowed $k$ tries. The obvious estimate looks at the
# first $k$ answers of each group. It throws the others away, and depends on an order that means
# nothing. {cite:t}`chen2021codex` count instead: of all ways to choose $k$ from $n$ answers, $c$ of
# them right, the share with at least one right among them.


# %% tags=["definition"]
def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), the unbiased estimate of pass@k."""
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k={k} must lie between 1 and num_samples={num_samples}"
        )
    if not 0 <= num_correct <= num_samples:
        raise ValueError(
            f"num_correct={num_correct} must lie between 0 and {num_samples}"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(
        num_samples, k
    )


# %% [markdown]
# Eight answers, two of them right, four tries: $\binom{6}{4} = 15$ of the $\binom{8}{4} = 70$
# choices hold no right one.

# %% tags=["check", "claim:A21a"]
expected = 0.785714
assert abs(pass_at_k(8, 2, k=4) - expected) < 5e-7
choices = list(combinations([1, 1, 0, 0, 0, 0, 0, 0], 4))
assert abs(np.mean([any(choice) for choice in choices]) - expected) < 5e-7

# %% [markdown]
# Both estimates have the same expectation. Given the count $c$, every order of the answers is
# equally likely, and the mean of "first $k$" over all orders is the counted share: the second
# estimate is the first, averaged. An average over what carries no information can only lower the
# variance (the theorem of Rao and Blackwell). Here all $2^8$ outcomes of eight answers are
# enumerated, each right with probability $p$: both estimates have the mean $1 - (1-p)^k$, and the
# counted one varies less.

# %% tags=["check", "claim:A21b"]
expected = 0.0  # by how much the two expectations differ
for p, k in product((0.1, 0.5, 0.9), range(1, 9)):
    outcomes = list(product((0, 1), repeat=8))
    chances = [p ** sum(o) * (1 - p) ** (8 - sum(o)) for o in outcomes]
    first = np.array([any(o[:k]) for o in outcomes], dtype=float)
    counted = np.array([pass_at_k(8, sum(o), k) for o in outcomes])
    mean_first, mean_counted = chances @ first, chances @ counted
    assert abs(mean_first - mean_counted - expected) < 1e-9
    assert abs(mean_counted - (1 - (1 - p) ** k)) < 1e-9
    assert chances @ counted**2 <= chances @ first**2 + 1e-12

# %% [markdown]
# The runs log pass@k of every training batch: it has groups of $G$ answers, so that $k$ goes from 1
# to $G$. Each value is the mean over the batch's groups, of problems that the policy meets for the
# first time. Validation asks once for each problem and gives pass@1 only.

# %% tags=["hide-input"]
ks = range(1, config.group_size + 1)
tens = {"first steps": range(1, 11), "last steps": range(last - 9, last + 1)}
passing = pd.concat(
    rows_of(results, f"train_pass_at_{k}")
    .query("step in @steps")
    .groupby("seed", as_index=False)["value"]
    .mean()
    .assign(variant=name, step=k, metric="pass_at_k")
    for name, steps in tens.items()
    for k in ks
)
figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.1), layout="constrained")
plot_curves(axes[0], passing, "pass_at_k")
axes[0].set(title="By the number of tries", xlabel="k", ylabel="pass@k")
for k in (1, 2, 4, 8):
    if k <= config.group_size:
        names = {"standard": f"pass@{k}"}
        plot_curves(axes[1], results, f"train_pass_at_{k}", names)
axes[1].set(title="By the step")
for ax in axes:
    ax.set_ylim(-0.03, 1.03)
    ax.legend(loc="best", fontsize=7.5)
plt.show()

# %% [markdown]
# *Left: pass@k over k, means over ten steps, at the beginning and at the end of the runs; the
# band is ± 1.96 σ/√n over seeds. Right: the same over the steps.*

# %%
pass_means = passing.groupby(["variant", "step"])["value"].mean().unstack(0)
independent = 1 - (1 - pass_means.loc[1]) ** config.group_size
shown = pass_means.T[[1, config.group_size]].set_axis(
    ["pass@1", f"pass@{config.group_size}"], axis=1
)
shown.assign(**{"if all problems were alike": independent}).round(3)

# %% tags=["check"]
assert (pass_means.diff().dropna() >= 0).all(axis=None)
assert (pass_means.loc[config.group_size] <= independent).all()
if profile == "pocket":
    at_start = [
        curves(results, f"train_pass_at_{k}").set_index("step")["mean"][1]
        for k in (1, 8)
    ]
    assert 0.06 < at_start[0] < 0.11 and 0.38 < at_start[1] < 0.54
    gain = pass_means["last steps"] - pass_means["first steps"]
    assert gain.min() > 0

# %% [markdown]
# At pocket scale a policy that got 8 % of its single answers right got nearly half of the
# problems right in eight tries, at the very start: much of what training brings was within reach
# of a few more samples. The last column is what as many independent tries would give if every
# problem had the same chance. The measured pass@8 is lower, because problems differ: some are
# solved nearly always and some nearly never, and tries at the latter are lost.
#
# ## Before and after
#
# Numbers say that something has changed. Answers say what. The same validation problems before the
# first and after the last step, seed 0:

# %%
keys = ["variant", "seed", "question", "gold"]
before, after = (
    answers[answers["step"] == step].reset_index(drop=True)
    for step in (0, answers["step"].max())
)
pairs = before[keys].assign(
    before=before["response"],
    after=after["response"],
    right_before=before["answer_reward"] == 1,
    right_after=after["answer_reward"] == 1,
)
of_seed_0 = pairs[pairs["seed"] == 0]
HTML(as_html(of_seed_0[["question", "gold", "before", "after"]].head(8)))

# %% tags=["check"]
assert before[keys].equals(after[keys])
assert answers["step"].max() == last

# %% [markdown]
# Before, many answers never arrive: they go on about the question, or state a number without the
# tags. After, almost all have the same shape, a calculation or two and the number between the tags.
# What is still wrong is arithmetic, or a step too few. Counted over all seeds:

# %%
changed = pd.crosstab(pairs["right_before"], pairs["right_after"])
changed

# %% tags=["check"]
assert changed.to_numpy().sum() == len(pairs)
lost = pairs["right_before"] & ~pairs["right_after"]
won = ~pairs["right_before"] & pairs["right_after"]
if profile == "pocket":
    tagged = after["response"].str.contains("</think> <answer>", regex=False)
    assert tagged.mean() > 0.95
    assert won.sum() > 10 * lost.sum() > 0

# %% [markdown]
# A few problems are answered rightly before and wrongly after. That is no proof that something was
# unlearned: each is one answer, sampled at temperature 1, and a second draw may differ.
#
# ## The 20 best-paid answers
#
# A mean reward can rise for a reason that nobody wanted ({doc}`06_reward_functions`). The cheapest
# way to find out is to read what was paid best, the shortest first: what earns it all with little?

# %%
best = best_paid(after, 20)
HTML(as_html(best[["seed", "question", "gold", "response"]].astype(str)))

# %% [markdown]
# At pocket scale these are short because their problems are: one calculation, and it comes out. No
# number without any working, no two answers in one, no text that fits every question. Twenty can
# be read; the same question can be put to all paid answers by a program. Each is sorted by its
# calculations:

# %%
CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


def comes_out(a: str, operator: str, b: str, result: str) -> bool:
    """Say whether a calculation is right, such as 12/4=3."""
    if operator == "/":
        return int(result) * int(b) == int(a)
    return apply_operator(operator, int(a), int(b)) == int(result)


def working(response: str) -> str:
    """What kind of working stands before the answer."""
    found = CALCULATION.findall(response)
    if not found:
        return "no calculation"
    right = all(comes_out(*calculation) for calculation in found)
    return "all come out" if right else "one does not come out"


if profile == "pocket":
    kinds = pd.concat(
        rows.assign(when=when, working=rows["response"].map(working))
        for when, rows in {"before": before, "after": after}.items()
    ).query("answer_reward == 1")
    print(pd.crosstab(kinds["when"], kinds["working"]).to_string())

# %% tags=["check"]
assert len(best) == 20 and (best["reward"] == best["reward"].max()).all()
if profile == "pocket":
    paid_after = kinds[kinds["when"] == "after"]["working"].value_counts()
    assert best["response"].map(working).eq("all come out").all()
    assert paid_after["all come out"] > 0.9 * paid_after.sum()

# %% [markdown]
# The reward looks at the last number only, so an answer whose working is wrong and whose number is
# right is paid in full. The second column counts them. They are rare here, and they are what a
# checker of final answers can't see.
#
# ## The assignment's questions
#
# *Does it learn?* By the rule above: the mean of the final test accuracies, beside the threshold.

# %%
(learned,) = passes(finals, threshold)
print(learned)

# %% tags=["check"]
assert learned.passed == (by_seed.mean() >= threshold)
if profile == "pocket":
    assert learned.passed and learned.mean < 0.7

# %% [markdown]
# *How far do seeds differ?* *How many have collapsed?* Also by the rule: a seed has collapsed that
# ends below half of the best.

# %%
summary = summarize(finals).loc["standard"]
print(
    f"{summary['n']:.0f} seeds: mean {summary['mean']:.3f}, "
    f"lowest {summary['min']:.3f}, highest {summary['max']:.3f}, "
    f"σ {summary['std']:.3f}; "
    f"± {summary['half_width']:.3f} as drawn, "
    f"± {summary['t_half_width']:.3f} by t"
)
stable = stability(finals)
stable.round(2)

# %% tags=["check"]
row = stable.loc["standard"]
assert row["n_collapsed"] == (by_seed < 0.5 * by_seed.max()).sum()
assert row["low"] <= row["share"] <= row["high"]
if profile == "pocket":
    assert row["n_collapsed"] == 0 and abs(row["high"] - 0.60) < 0.005

# %% [markdown]
# None of four has collapsed at pocket scale, and the exact interval of the share says how little
# that is: up to 60 %. Four seeds can show that a method is unstable. They can't show that it is
# stable.
#
# *What do the curves say together?* One line for each seed, taken from the end of its run. A
# collapse would show here as an accuracy far below the others with the format still near 1, and
# answers that have become short.

# %%
ends = {
    "right": "curve_mean_answer_reward",
    "in format": "curve_mean_format_reward",
    "tokens": "curve_response_length",
    "entropy": "curve_token_entropy",
    "cut off": "curve_truncated_share",
}
pd.DataFrame(
    {
        name: final_values(results, metric).set_index("seed")["value"]
        for name, metric in ends.items()
    }
).round(3)

# %% [markdown]
# That is a look backwards. To notice a collapse while the run goes on,
# {doc}`17_diagnostics` reads the journal of each step.
#
# ## The published figures
#
# Students of the course have reported runs at full scale: OLMo-2-0425-1B on GSM8K, 200 steps, the
# share of right validation answers. The figures are theirs, self-reported, and were not run here.

# %%
published = read_published("on-policy")
columns = ["seeds", "accuracy", "note"]
HTML(as_html(published[columns].astype(str)))

# %% tags=["check"]
assert published["seeds"].sum() == 12
assert "2 collapsed" in published["note"].iloc[0]
assert published["accuracy"].tolist() == [0.46, 0.36, 0.36]
assert (published["accuracy"] > THRESHOLD).all()

# %% [markdown]
# What carries over, and what does not?
#
# - **It passes the threshold** in all three reports, each with four seeds, as it does here. The
#   levels themselves can't be compared: another model, other problems, another starting point.
# - **Seeds and reports differ.** Three times the same method and nominally the same settings give
#   means that are ten points apart. A difference of ten points between two *methods*, each from
#   one report, would carry as little.
# - **Collapse.** Two of their twelve seeds ended near 10 %, with format near 1 and answers of 13 to
#   28 tokens. At pocket scale none of four did. These do not contradict each other: if one seed in
#   six collapses, four seeds show none of it about every second time.
# - **The form of the collapse** is known here: format near 1, short answers, few of them right.
#   The policy of {doc}`06_reward_functions` came to it when it was paid for the format alone, and
#   one of {doc}`00_pocket_world` by steps that were too large. How the two seeds got there the
#   reports don't say.

# %%
none_of_four = (1 - 2 / 12) ** 4
theirs = binomtest(2, 12).proportion_ci(0.95, method="exact")
print(f"no collapse in four seeds, if 2 in 12 collapse: {none_of_four:.0%}")
print(f"theirs: 2 of 12, 95 % from {theirs.low:.0%} to {theirs.high:.0%}")

# %% tags=["check"]
assert 0.45 < none_of_four < 0.5
if profile == "pocket":
    assert row["low"] <= 2 / 12 <= row["high"]
    assert theirs.low < row["high"]

# %% [markdown]
# ## Take away
#
# - One seed is an anecdote. Show every seed, the mean, a band, and say which band and how many.
# - $\mu \pm 1.96\,\sigma/\sqrt n$ covers 85 % at $n = 4$. Verdicts rest on the $t$ interval.
# - Format and answers, training and validation, right and wrong answers' lengths: apart. What was
#   not computed is "not recorded".
# - At pocket scale GRPO passes its bar and mostly sharpens: greedily, the untrained policy was
#   better than the trained one's samples.
# - No collapse in four seeds allows for a collapse in every second one.
# - Count all choices of $k$ answers for pass@k. Read the best-paid answers.
#
# ## Exercises

# %% [markdown]
# ```{exercise} What the range covers
# :label: ex-14-range
#
# *Medium, 10 minutes.* Write `range_coverage(n)`: the chance that the range from the lowest to the
# highest of $n$ independent results contains the median of the distribution that they come from.
# Nothing else is known of that distribution, but that it is continuous.
#
# :::{dropdown} Hint
# The range misses the median if all $n$ lie above it, or all below.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def range_coverage(n: int) -> float:
    return 1 - 2 * 0.5**n


# %% tags=["check"]
generator = np.random.default_rng(1)
for n in (2, 4, 8):
    skewed = generator.exponential(size=(40_000, n))
    median = math.log(2)
    inside = (skewed.min(axis=1) < median) & (median < skewed.max(axis=1))
    assert abs(inside.mean() - range_coverage(n)) < 0.01
assert range_coverage(4) == 0.875

# %% [markdown]
# ```{exercise} Steps to a bar
# :label: ex-14-steps
#
# *Easy, 10 minutes.* Write `steps_to(table, metric, bar)`: a dict from each seed to the first step
# at which the metric is at least `bar`, or None where it never is.
#
# :::{dropdown} Hint
# `rows_of(table, metric)` gives the rows; go through them by seed, and take the smallest step of
# those with `value >= bar`.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def steps_to(
    table: pd.DataFrame, metric: str, bar: float
) -> dict[int, int | None]:
    rows = rows_of(table, metric)
    reached = rows[rows["value"] >= bar].groupby("seed")["step"].min()
    return {
        int(seed): int(reached[seed]) if seed in reached else None
        for seed in rows["seed"].unique()
    }


# %% tags=["check"]
toy = pd.DataFrame(
    [
        ("a", seed, step, "m", value)
        for seed, values in enumerate([(0.1, 0.6, 0.4, 0.7), (0.1,) * 4])
        for step, value in enumerate(values)
    ],
    columns=["variant", "seed", "step", "metric", "value"],
)
assert steps_to(toy, "m", 0.5) == {0: 1, 1: None}
assert steps_to(toy, "m", 0.7) == {0: 3, 1: None}
if profile == "pocket":
    form = steps_to(results, "curve_mean_format_reward", 0.9)
    right = steps_to(results, "curve_mean_answer_reward", 0.55)
    assert all(form[seed] <= right[seed] for seed in range(4))

# %% [markdown]
# ```{exercise} How many seeds?
# :label: ex-14-seeds
#
# *Medium, 15 minutes.* Seeds scatter with the standard deviation `std`. Write
# `seeds_needed(std, half)`: the fewest seeds for which the 95 % $t$ interval of their mean is
# expected to be no wider than ± `half`, taking `std` for what the seeds will show.
#
# :::{dropdown} Hint
# `t.ppf(0.975, n - 1) * std / n**0.5` for $n = 2, 3, \dots$ until it is small enough.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def seeds_needed(std: float, half: float) -> int:
    n = 2
    while t.ppf(0.975, n - 1) * std / math.sqrt(n) > half:
        n += 1
    return n


# %% tags=["check"]
assert seeds_needed(0.03, 0.05) == 4
assert seeds_needed(0.03, 0.01) == 38
for std, half in ((0.02, 0.02), (0.05, 0.03), (0.1, 0.5)):
    n = seeds_needed(std, half)
    even = np.tile([-1.0, 1.0], n)[:n]
    scaled = std * even / even.std(ddof=1)
    assert t_half_width(scaled) <= half + 1e-12

# %% [markdown]
# ## Next
#
# {doc}`15_learning_rate` runs the same with four other learning rates. These runs were healthy:
# {doc}`17_diagnostics` puts a collapsed one and a hacked one beside them, and asks of each which
# numbers would have said so, and when.
