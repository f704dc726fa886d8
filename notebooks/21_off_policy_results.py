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
# # Off-policy results
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what 32 updates on each batch of rollouts buy and what they cost, at
# equal rollouts and at equal time; read a clip fraction and a drift of the ratio for what they
# are; and judge five ways to weigh old answers by a rule that was written before the runs.
#
# **You need** {doc}`20_importance_weighting` for the weights, and {doc}`14_on_policy_results` for
# the intervals. **Reading** takes 30 minutes, **running** half a minute, on a **CPU**. (The forty
# runs were recorded.)
# ```
#
# {doc}`20_importance_weighting` asked which weight estimates the gradient best from old answers,
# and ended with another question: how far does one let the policy go before it samples again? Here
# both are put to runs. Five methods take 32 updates on each batch of rollouts and differ only in
# how an answer is weighed that a slightly older policy wrote.

# %% tags=["parameters"]
profile = "pocket"

# %%
import json
import math
import time
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from scipy.stats import binom, binomtest
from torch import Tensor

from gsmrl_helpers import (
    compute_policy_gradient_loss,
    grpo_train_step,
    load_problems,
)
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.experiments import experiment_config, variants_of
from gsmrl_helpers.intervals import t_interval
from gsmrl_helpers.journal import journal_of
from gsmrl_helpers.loop import Trainer, batches_of, score, update_policy
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.published import read_published
from gsmrl_helpers.recorded_rollouts import read_answers
from gsmrl_helpers.recordings import read_recording, recording_path
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import (
    binned,
    curves,
    final_values,
    rows_of,
    summarize,
)
from gsmrl_helpers.rules import rise_at_end
from gsmrl_helpers.step_time import Throughput, step_time
from gsmrl_helpers.symptoms import check_journal
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.verdicts import (
    COLLAPSE_FRACTION,
    compare_all,
    compare_stability,
    paired_differences,
    stability,
)
from gsmrl_helpers.world import problems_of_step

use_style()
torch.set_num_threads(1)  # for tensors this small, more only get in the way
results = read_recording("off-policy", profile)
answers = read_answers("off-policy", profile)
on_policy = read_recording("on-policy", profile)

# %% [markdown]
# ## What 32 updates per batch buy
#
# Standard GRPO takes one optimizer step on 256 answers and throws them away. Off-policy, the same
# 256 answers are taken eight at a time, one group for each of 32 steps. The runs of this chapter
# sample three tenths of the standard run's batches:

# %%
variants = variants_of("off-policy")
configs = {v: experiment_config("off-policy", profile, v) for v in variants}
standard = experiment_config("on-policy", profile)
rows = {}
for name, config in {"standard": standard, "naive": configs["naive"]}.items():
    updates = config.rollout_batch_size // config.train_batch_size
    rows[name] = {
        "batches of rollouts": config.n_grpo_steps,
        "answers in all": config.n_grpo_steps * config.rollout_batch_size,
        "updates a batch": updates,
        "updates in all": config.n_grpo_steps * updates,
    }
counts = pd.DataFrame(rows)
counts

# %% [markdown]
# At pocket scale: 30 of 100 batches, 7,680 of 25,600 answers, 960 updates in place of 100. So
# there is 30 % of the sampling and 9.6 times the updates. In both cases each answer is learned from
# once, and once only. What is different is *when*: the answers of the last update of a batch were
# written by a policy 31 updates ago, and on average it was 15.5.

# %% tags=["check"]
if profile == "pocket":
    assert counts.loc["batches of rollouts"].tolist() == [100, 30]
    assert counts.loc["answers in all"].tolist() == [25_600, 7_680]
    assert counts.loc["updates in all"].tolist() == [100, 960]
    assert 7_680 / 25_600 == 0.3 and 960 / 100 == 9.6
    assert np.mean(range(counts.loc["updates a batch", "naive"])) == 15.5

# %% [markdown]
# The five differ in two settings. `none` takes old answers for fresh ones, `noclip` weighs each
# token by its ratio $r_t = \pi_\theta / \pi_\text{old}$, `grpo` clips it at $1 \pm .2$
# {cite}`schulman2017ppo`. GSPO {cite}`zheng2025gspo` clips the geometric mean of a response's
# ratios, in a far narrower range; CISPO {cite}`minimax2025m1` caps the weight at 1.2 and leaves
# every token its gradient.

# %%
options = ["importance_reweighting_method", "cliprange"]
pd.DataFrame(
    {v: {o: str(getattr(c, o)) for o in options} for v, c in configs.items()}
).T

# %% tags=["check"]
settings = {v: config.model_dump() for v, config in configs.items()}
for variant in variants:
    differing = {
        name
        for name in settings["naive"]
        if settings[variant][name] != settings["naive"][name]
    }
    assert differing <= {"variant", *options}
assert configs["naive"].learning_rate == standard.learning_rate
assert list(dict.fromkeys(results["variant"])) == list(variants)
assert results["step"].max() == configs["naive"].n_grpo_steps

# %% [markdown]
# ## The rule, before the results

# %%
experiment = EXPERIMENTS["off-policy"]
print(experiment.question)
print(experiment.rule)

# %% tags=["check"]
assert "95 % t interval" in experiment.rule
assert "half of the best run's" in experiment.rule
assert COLLAPSE_FRACTION == 0.5

# %% [markdown]
# So there are two questions, with an answer each. *Speed*: what does a run end with? *Stability*:
# how many of its seeds end with nothing?
#
# ## What the runs end with

# %%
finals = final_values(results, "test_mean_answer_reward")
columns = ["n", "mean", "std", "half_width", "t_half_width", "min", "max"]
summarize(finals)[columns].round(3)

# %% tags=["check"]
seeds = finals.groupby("variant")["seed"].agg(sorted)
assert all(there == seeds["naive"] for there in seeds)
if profile == "pocket":
    assert seeds["naive"] == list(range(8))

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
plot_curves(axes[0], results, "curve_mean_answer_reward")
axes[0].set(title="Right answers, validation", ylabel="share")
axes[0].set_xlabel("batch of rollouts")
axes[0].legend(loc="best", fontsize=7)
plot_finals(axes[1], finals)
axes[1].set(title="Right answers, test, at the end", ylabel="share")
for ax in axes:
    ax.set_ylim(bottom=0)
plt.show()

# %% [markdown]
# *Left: validation over the batches of rollouts, each of them 32 updates; every seed faintly, the
# mean of each method with μ ± 1.96 σ/√n. Right: a dot for each seed, and the mean with the same
# interval. Look for dots that lie apart from the others of their method.*
#
# ## The verdicts
#
# Seeds are paired: runs of one seed meet the same problems in the same order, and their first batch
# of answers is the very same.

# %%
verdicts = compare_all(finals, "naive")
for verdict in verdicts:
    print(verdict)

# %% tags=["check"]
assert [verdict.variant for verdict in verdicts] == list(variants[1:])
for verdict in verdicts:
    gaps = paired_differences(finals, verdict.variant, "naive")
    low, high = t_interval(gaps)
    assert math.isclose(low, verdict.low) and math.isclose(high, verdict.high)
    assert (verdict.word == "can't tell") == (low <= 0 <= high)

# %% [markdown]
# Four intervals each fail one time in twenty. Taken at 98.75 %, all four hold together with 95 %:

# %%
jointly = compare_all(finals, "naive", jointly=True)
pd.DataFrame(
    {
        "by itself": [verdict.word for verdict in verdicts],
        "jointly": [verdict.word for verdict in jointly],
        "difference": [round(verdict.difference, 3) for verdict in verdicts],
    },
    index=[verdict.variant for verdict in verdicts],
)

# %% tags=["check"]
for alone, joint in zip(verdicts, jointly, strict=True):
    assert math.isclose(joint.level, 0.9875)
    assert joint.word in (alone.word, "can't tell")

# %% [markdown]
# At pocket scale each of the four weights ends four to six points above none at all, by the rule
# that was announced. Jointly that is so for the clip and, by a hair, for CISPO, whose widened
# interval begins at +.0003; the other two take 0 in. None of this says which of the four is best:
# they lie within two points.

# %% tags=["check"]
if profile == "pocket":
    gains = {v.variant: v.difference for v in verdicts}
    assert all(v.word == "better" for v in verdicts)
    assert all(0.04 < gain < 0.065 for gain in gains.values())
    told = [v.variant for v in jointly if v.word == "better"]
    assert told == ["clip", "cispo"]
    assert abs({v.variant: v.low for v in jointly}["cispo"] - 0.0003) < 5e-5
    assert np.ptp(list(gains.values())) < 0.02

# %% [markdown]
# ## Stability, and what eight seeds can say
#
# A seed has collapsed if its final test accuracy is below half of the best run's, of whatever
# method. The interval of the share is exact {cite}`clopper1934use`, and it is wide:

# %%
stable = stability(finals)
stable.round(2)

# %% tags=["check"]
bar = COLLAPSE_FRACTION * finals["value"].max()
for variant, group in finals.groupby("variant"):
    assert stable["n_collapsed"][variant] == (group["value"] < bar).sum()
if profile == "pocket":
    none_of_eight = binomtest(0, 8).proportion_ci(0.95, method="exact")
    assert abs(none_of_eight.high - 0.37) < 0.005
    assert abs(0.63**8 - 0.025) < 0.001

# %% [markdown]
# Of a method that collapses in 37 % of its runs, eight seeds show none with a chance of $.63^8 =
# 2.5\,\%$. So "none of eight" excludes no less than that. To compare two methods is harder still.
# A seed on which both collapse, or neither, tells nothing between them; only the others do, and if
# the methods were equally stable each of these would fall to either side like a coin. With five of
# them all on one side $p = 2 \cdot 2^{-5} = .0625$, and with six it is $.031$. So it takes six
# seeds of eight, and no seed the other way, before the rule says that two methods differ. That is
# the exact test of {cite:t}`mcnemar1947`.

# %%
for variant in variants[1:]:
    print(compare_stability(finals, variant, "naive"))

# %% tags=["check"]
assert binomtest(5, 5).pvalue == 2 * 0.5**5 == 0.0625
assert binomtest(6, 6).pvalue == 2 * 0.5**6 < 0.05
assert binomtest(6, 7).pvalue > 0.05  # six to one do not suffice
fallen = finals.assign(value=(finals["value"] < bar).astype(float))
for variant in variants[1:]:
    said = compare_stability(finals, variant, "naive")
    gaps = paired_differences(fallen, variant, "naive")
    assert f"{(gaps > 0).sum()} collapsed only under {variant}" in said
    assert f"{(gaps < 0).sum()} only under naive" in said

# %% [markdown]
# At pocket scale no run of the forty collapsed, so the rule has nothing to choose between. What
# differs is the spread: naive's seeds scatter with a deviation of .05, GSPO's and the clip's with
# .02. Nobody announced to compare that, and eight seeds know a deviation badly.

# %% tags=["check"]
if profile == "pocket":
    assert stable["n_collapsed"].sum() == 0 and stable["n"].sum() == 40
    deviations = summarize(finals)["std"]
    assert abs(deviations["naive"] - 0.05) < 0.005
    assert (deviations[["gspo", "clip"]] < 0.025).all()

# %% [markdown]
# ## The lowest run, read
#
# Whether or not the rule calls it collapsed, the run that ended lowest is the one to look at. What
# it ended with, beside the best:

# %%
ends = {
    "right": "curve_mean_answer_reward",
    "in format": "curve_mean_format_reward",
    "tokens": "curve_response_length",
    "entropy": "curve_token_entropy",
    "cut off": "curve_truncated_share",
}
extremes = finals.loc[[finals["value"].idxmin(), finals["value"].idxmax()]]
lowest, best = extremes[["variant", "seed"]].itertuples(index=False)
at_end = {
    name: final_values(results, metric).set_index(["variant", "seed"])[
        "value"
    ]
    for name, metric in ends.items()
}
pd.DataFrame(at_end).loc[[lowest, best]].round(3)

# %%
check_journal(journal_of(results, *lowest))

# %%
its = answers[
    (answers["variant"] == lowest.variant) & (answers["seed"] == lowest.seed)
]
last = its[its["step"] == its["step"].max()]
HTML(as_html(last[["question", "gold", "response"]].head(6)))

# %% tags=["check"]
assert extremes["value"].iloc[0] == finals["value"].min()
assert len(last) >= 6 and last["step"].iloc[0] == results["step"].max()
if profile == "pocket":
    symptoms = check_journal(journal_of(results, *lowest))
    assert lowest.variant == "naive" and symptoms.ok

# %% [markdown]
# The table in the middle is that of {doc}`17_diagnostics`: six symptoms, each with the step since
# which it was there. The answers are the last ones of the run, to validation problems. At pocket
# scale the lowest run is one of naive's and shows none of the six: in format, of the usual length,
# with groups that differ. It is a run that has learned less, not one that broke.
#
# ## At equal rollouts
#
# Where answers are what costs, methods are to be compared after the same number of answers. That is
# the same number of batches, at every moment of the runs and not at their end alone. The standard
# run is then in the midst of its course, so that validation is what can be compared. Eight seeds
# against four at pocket scale: pairs are the four that both have.

# %%
n_batches = configs["naive"].n_grpo_steps
curve = "curve_mean_answer_reward"
both = pd.concat([results, on_policy], ignore_index=True)
validated = rows_of(both, curve)
steps = [set(rows["step"]) for _, rows in validated.groupby("variant")]
moments = sorted(set.intersection(*steps) - {0})
at_moments = validated[validated["step"].isin(moments)]
means = at_moments.groupby(["variant", "step"], sort=False)["value"].mean()
means.unstack().rename_axis(columns="batches").round(3)

# %%
words = {
    step: {v.variant: v.word for v in compare_all(rows, "standard")}
    for step, rows in at_moments.groupby("step")
}
print("beside the standard run, after as many batches:")
pd.DataFrame(words).rename_axis(columns="batches")

# %% tags=["check"]
assert standard.rollout_batch_size == configs["naive"].rollout_batch_size
assert moments[-1] == n_batches
assert all(list(word) == list(variants) for word in words.values())
if profile == "pocket":
    assert moments == [10, 20, 30]
    paired = compare_all(at_moments.query("step == 30"), "standard")
    assert all(v.seeds == (0, 1, 2, 3) for v in paired)

# %% [markdown]
# At pocket scale all five are ahead after ten batches, by .23 and more: there the standard run has
# taken ten steps. After thirty it has caught up, and no word is left. (The rule announced none of
# these comparisons, and they are fifteen: they describe.)

# %% tags=["check"]
if profile == "pocket":
    at_ten = means.unstack()[10]
    assert (at_ten.drop("standard") - at_ten["standard"] > 0.225).all()
    assert set(words[10].values()) == {"better"}
    assert set(words[30].values()) == {"can't tell"}

# %% [markdown]
# With values of every batch the course is seen more closely. Training rewards are such: they are
# measured on problems that come once only, before the update on them.

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9.8, 3.9), layout="constrained")
names = {v: v for v in variants} | {"standard": "on-policy"}
early = both[both["step"] <= n_batches]
plot_curves(axes[0], early, "train_mean_answer_reward", names)
axes[0].set(title="Training batches", ylabel="share of right answers")
plot_curves(axes[1], both, curve, names)
axes[1].axvline(n_batches, color="0.6", linewidth=0.8)
axes[1].set(title="Validation", ylabel="share of right answers")
for ax in axes:
    ax.set_xlabel(f"batches of {standard.rollout_batch_size} answers")
axes[1].legend(loc="lower right", fontsize=7)
plt.show()

# %% [markdown]
# *The five methods and the standard run over the batches of rollouts: at any place of the axes all
# have sampled the same number of answers. Left: what each batch was rewarded with, up to the end of
# the off-policy runs. Right: validation; the grey line is that end, and the standard run goes on.
# Every seed faintly, means with μ ± 1.96 σ/√n; the legend holds for both.*
#
# Does a run still learn at its end? A straight line through the training rewards of its second half
# says by how much it rises there, with a t interval over the seeds:

# %%
for variant, values in rise_at_end(both).groupby("variant", sort=False):
    low, high = t_interval(values)
    word = "can't tell" if low <= 0 <= high else "it rises"
    word = "it falls" if high < 0 else word
    print(
        f"{variant}: {values.mean():+.3f} ({low:+.3f} to {high:+.3f}), {word}"
    )

# %% tags=["check"]
rises = rise_at_end(both)
assert len(rises) == len(all_runs := both.groupby(["variant", "seed"]))
assert all(run["step"].max() >= n_batches for _, run in all_runs)
if profile == "pocket":
    ends = {v: t_interval(r) for v, r in rises.groupby("variant")}
    rising = [v for v in variants if ends[v][0] > 0]
    assert rising == ["gspo"] and all(ends[v][1] > 0 for v in variants)
    paid = rows_of(results, "train_mean_answer_reward")
    by_batch = paid.pivot_table("value", "step", "variant", "mean")
    fast = by_batch.drop(columns="gspo")
    assert (fast.loc[5] > 0.4).all()
    assert fast.loc[6:].mean().between(0.45, 0.57).all()

# %% [markdown]
# At pocket scale the answer for four of the five is that it can't be told; GSPO, the slowest, still
# rises. The curves say how that came about: naive, noclip, the clip and CISPO pass .4 within four
# batches, and then stay near .5.
#
# The standard runs went on to the end of their own budget, with more than three times the answers.
# On test, at the end of each:

# %%
all_finals = pd.concat(
    [finals, final_values(on_policy, "test_mean_answer_reward")]
)
against = compare_all(all_finals, "standard")
for verdict in against:
    print(verdict)

# %% [markdown]
# With that budget the standard run ends 8 to 15 points above each of them at pocket scale.

# %% tags=["check"]
if profile == "pocket":
    assert all(v.word == "worse" for v in against)
    behind = [-v.difference for v in against]
    assert min(behind) > 0.08 and max(behind) < 0.155
    on_test = summarize(all_finals)["mean"]
    assert abs(on_test["standard"] - 0.65) < 0.005
ratio = standard.n_grpo_steps / n_batches
assert ratio > 3
assert set(all_finals["variant"]) == {"standard", *variants}

# %% [markdown]
# ## At equal time
#
# Nobody waits for answers; one waits for hours. What does a batch cost off-policy? Count passes of
# a token through the model: to sample it is one, to train on it three (forward once, backward about
# twice as much; prompts are left out). The standard run has four. Off-policy each answer is trained
# on once as well; what comes on top is one pass that scores the answers under the policy that wrote
# them, *before* the first update, since later it can't be had any more. That makes five. If
# sampling a token is as slow as $c$ passes, the *overhead* is
#
# $$ h = \frac{c + 1 + 3}{c + 3} , $$
#
# 1.25 if all passes are equally fast, at most 1.33, and close to 1 where sampling is most of the
# time, as it is for large models and long answers, one token after the other.


# %%
def plain_overhead(c: float) -> float:
    """Time of an off-policy batch over that of a standard one."""
    return (c + 1 + 3) / (c + 3)


# %% tags=["check"]
assert plain_overhead(1) == 1.25 and plain_overhead(30) < 1.04
for c in (0.01, 1.0, 4.0, 30.0):
    speed = Throughput(
        sampling_tokens_per_second=3 / c, training_tokens_per_second=1
    )
    off, on = (
        step_time(experiment_config(*run), speed, 0, 20).step
        for run in (
            ("off-policy", "pocket", "naive"),
            ("on-policy", "pocket"),
        )
    )
    assert math.isclose(off / on, plain_overhead(c))
assert 1.33 < plain_overhead(0) < 1.334

# %% [markdown]
# (Where another program samples, such as vLLM, the standard run scores its answers too, to check
# that the two programs agree. Then both have five passes.)
#
# Two things are not in the count: 31 more steps of the optimizer, and 32 small batches in place of
# a large one, which a machine works through less well. They have to be measured. At pocket scale
# the seconds on record can't tell: the standard runs and these were recorded on different
# processors, and what else a machine did at the time is not on record at all. So here is one batch
# of the pocket policy, its first one, in seconds of this process's CPU.

# %% tags=["check"]
if profile == "pocket":
    processors = []
    for name in ("on-policy", "off-policy"):
        path = recording_path(name, profile).with_suffix(".manifest.json")
        runs = json.loads(path.read_text())["runs"]
        processors.append({r["machine"]["cpu_capability"] for r in runs})
    assert processors[0].isdisjoint(processors[1])

# %%
pocket = experiment_config("off-policy", "pocket", "naive")
trainer = Trainer.from_config(pocket)
problems = problems_of_step(pocket, load_problems(pocket, "train"), 1)


def cpu_seconds(work: Callable[[], object]) -> tuple[object, float]:
    """What work returns, and the CPU seconds that it took."""
    started = time.process_time()
    return work(), time.process_time() - started


trainer.sample(problems, pocket.group_size, "warm-up", 0)
rollouts, sampling = cpu_seconds(
    lambda: trainer.sample(problems, pocket.group_size, "train", 1)
)

# %% tags=["nbval-ignore-output"]
update_seconds, updated = {}, {}
for name, variant in (("on-policy", "standard"), ("off-policy", "naive")):
    fresh = Trainer.from_config(experiment_config(name, "pocket", variant))
    _, update_seconds[name] = cpu_seconds(
        lambda fresh=fresh: update_policy(fresh, rollouts)
    )
    updated[name] = fresh
whole, split = update_seconds.values()
h = (sampling + split) / (sampling + whole)
print(f"updates, off-policy: {split / whole:.1f} times those of one step")
print(f"overhead h = {h:.1f}")

# %% tags=["check"]
assert 1.5 < split / whole < 6
assert 1.3 < h < 3

# %% [markdown]
# At pocket scale a batch off-policy takes one and a half times to twice as long. The model is so
# small that sampling is cheap, and that 32 small updates cost more than one large one. In the time
# of $N$ off-policy batches the standard run has had $h N$. How large may $h$ be before a lead is
# gone? If the standard run needs $M$ batches to come to a level, and the method $N$, it is $M/N$,
# the *break-even*.


# %%
def first_reached(curve: pd.DataFrame, value: float) -> float:
    """The step at which a mean curve first reaches a value, or infinity.

    Between two points the curve is a straight line.
    """
    steps, means = curve["step"].to_numpy(), curve["mean"].to_numpy()
    above = np.flatnonzero(means >= value)
    if not len(above):
        return math.inf
    i = above[0]
    if i == 0:
        return float(steps[0])
    share = (value - means[i - 1]) / (means[i] - means[i - 1])
    return float(steps[i - 1] + share * (steps[i] - steps[i - 1]))


# %% tags=["check"]
toy = pd.DataFrame({"step": [0, 10, 20], "mean": [0.1, 0.3, 0.2]})
assert math.isclose(first_reached(toy, 0.2), 5)
assert first_reached(toy, 0.1) == 0 and first_reached(toy, 0.4) == math.inf

# %%
progress = curves(binned(both, 3), "train_mean_answer_reward")
progress["step"] -= 1  # the batches that were learned from before
by_method = dict(list(progress.groupby("variant", sort=False)))
needed = pd.DataFrame(
    {
        f"{level:.0%}": {
            variant: first_reached(along, level)
            for variant, along in by_method.items()
        }
        for level in (0.2, 0.3, 0.4, 0.5, 0.6)
    }
)
needed.round(1)

# %%
break_even = needed.loc["standard"] / needed.drop(index="standard")
break_even.round(1)

# %% tags=["check"]
for variant, along in by_method.items():
    before = along[along["step"] < needed.loc[variant, "40%"]]
    assert (before["mean"] < 0.4).all()
    assert along["step"].min() == 1 and (along["step"].diff()[1:] == 3).all()

# %% [markdown]
# *First: batches that were learned from before training rewards, their mean over three batches and
# all seeds, first reached a level; "inf" where they never did within the runs. Second: the
# break-evens. Where the number is above a machine's $h$, the method comes to that level sooner than
# the standard run, in time; 0 means that it never comes there.* The curves are means with an error
# of their own, and the tables do not carry it on:
# read factors, not decimals. With an overhead of 2 for every method:

# %%
for variant, row in break_even.iterrows():
    sooner = row.index[row > 2]
    print(f"{variant}, h = 2: sooner at {', '.join(sooner) or 'no level'}")

# %% [markdown]
# So at pocket scale, in time as well, 32 updates a batch are a fast way to .4, and for most to .5.
# To .6 they are no way at all, within these budgets.

# %% tags=["check"]
if profile == "pocket":
    assert (break_even["60%"] == 0).all() and (break_even["40%"] > 2).all()
    assert (break_even["40%"].drop("gspo") > 6).all()
    assert (break_even["50%"] > 2).sum() == 3
assert break_even.shape == (len(variants), 5)
assert (needed.T.diff().dropna() >= 0).all(axis=None)  # inf − inf is dropped

# %% [markdown]
# ## The clip fraction
#
# *The share of tokens whose gradient the clip took away.* Both halves of that are easy to get
# wrong. A ratio outside the range is not clipped by itself: the loss takes the smaller of $A r$
# and $A\,\mathrm{clip}(r)$, so the gradient is gone only where the token has moved far *in the
# direction in which its advantage pushes*. And shares are of tokens, not of responses. By hand:
# two responses with the advantages 1 and −1, four tokens and two.

# %%
ratios = torch.tensor([[1.3, 0.7, 1.0, 1.1], [0.7, 1.3, 1.0, 1.0]])
mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
advantages = torch.tensor([1.0, -1.0])


def is_clipped(method: str, cliprange: float) -> Tensor:
    """Where the package's loss clips, (2, 4)."""
    new, old = ratios.log(), torch.zeros_like(ratios)
    loss = compute_policy_gradient_loss(
        advantages, new, method, old, cliprange, mask
    )
    return loss[1]["is_clipped"]


is_clipped("grpo", 0.2).int()

# %% [markdown]
# Four of the six tokens lie outside of $1 \pm .2$, and two are clipped: the 1.3 that is to rise and
# the 0.7 that is to fall. The 0.7 of the first response has moved the wrong way and is pushed back
# with full force. So the fraction is $2/6$. A mean over responses would be $(1/4 + 1/2)/2 = 3/8$:
# it counts a token of a short response for more.


# %%
def clip_fraction(clipped: Tensor, mask: Tensor) -> float:
    """Share of the response tokens that are clipped; (B, T) both."""
    return (clipped & mask).sum().item() / mask.sum().item()


# %% tags=["check"]
clipped = is_clipped("grpo", 0.2)
assert clip_fraction(clipped, mask) == 2 / 6
by_response = clipped.sum(dim=1) / mask.sum(dim=1)
assert by_response.mean().item() == 3 / 8
outside = ((ratios - 1).abs() > 0.2) & mask
assert outside.sum() == 4 and (clipped & outside).sum() == 2

# %% [markdown]
# GSPO clips a response as a whole, with all its tokens. The geometric means here are
# $(1.3 \cdot .7 \cdot 1.1)^{1/4} = 1.00025$, just inside of $1 \pm .0003$, and $(.7 \cdot
# 1.3)^{1/2} = .954$: the second response is silenced, two tokens of six. CISPO clips no gradient;
# what is counted is the weights that were capped, the two 1.3s. So the three methods' fractions
# have one name and three meanings, and are to be compared within a method only.

# %% tags=["check"]
assert math.isclose((1.3 * 0.7 * 1.1) ** 0.25, 1.00025, abs_tol=5e-6)
assert math.isclose((0.7 * 1.3) ** 0.5, 0.954, abs_tol=5e-4)
assert is_clipped("gspo", 3e-4).tolist() == [
    [False] * 4,
    [True, True, False, False],
]
assert is_clipped("cispo", 0.2).nonzero().tolist() == [[0, 0], [1, 1]]

# %% [markdown]
# What the runs log: within each update the share of its tokens, over the tokens that went through
# the model; for a batch of rollouts the mean over those of its 32 updates that had a signal. So an
# update with few tokens counts as much as one with many ({ref}`ex-21-token-weighted`).

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(9.8, 3.2), layout="constrained")
spread = rows_of(results, "kl_to_old")
spread = spread.assign(
    metric="spread", value=(2 * spread["value"].clip(lower=0)) ** 0.5
)
in_fives = binned(pd.concat([results, spread]), 5)
plot_curves(axes[0], in_fives, "clip_fraction")
axes[0].set(title="Clip fraction", ylabel="share of tokens")
plot_curves(axes[1], in_fives, "spread")
axes[1].set(title="Drift, mean over a batch", ylabel="spread of log r")
plot_curves(axes[2], in_fives, "mean_ratio")
axes[2].set(title="Mean ratio", ylabel="mean of r")
for ax in axes:
    ax.set_xlabel("batch of rollouts")
axes[2].legend(loc="best", fontsize=6)
plt.show()

# %% [markdown]
# *Means over the updates of five batches of rollouts, each value taken just before its update;
# every seed faintly, the mean of each method with μ ± 1.96 σ/√n; the legend holds for all three.
# Left: for naive and noclip nothing is clipped. Middle: $\sqrt{2\,\mathrm{KL}}$ from the logged KL
# between the policy that sampled and the present one; for small ratios it is the root mean square
# of $\log r_t$, the distance of {doc}`20_importance_weighting`. Right: the mean of the ratio; note
# the scale.*

# %%
logged = pd.concat([results[results["step"] > 0], spread])
width = n_batches // 3
parts = {
    "first third": (1, width),
    "last third": (n_batches - width + 1, n_batches),
}


def mean_between(metric: str, first: int, last: int) -> pd.Series:
    """Each method's mean of a metric over these batches and all seeds."""
    rows = rows_of(logged, metric)
    rows = rows[rows["step"].between(first, last)]
    return rows.groupby("variant", sort=False)["value"].mean()


table = pd.DataFrame(
    {
        (metric, part): mean_between(metric, *ends)
        for metric in ("clip_fraction", "spread", "mean_ratio")
        for part, ends in parts.items()
    }
)
table.round(3)

# %% tags=["check"]
assert (table["clip_fraction"].loc[["naive", "noclip"]] == 0).all(axis=None)
assert (table["clip_fraction"].drop(["naive", "noclip"]) > 0).all(axis=None)
log_r = torch.tensor([0.1, -0.1])
assert abs(2 * (log_r.exp() - 1 - log_r).mean() - 0.01) < 1e-5

# %% [markdown]
# ## The drift within a batch
#
# The recording has means over a batch. What happens within it? One batch again, the rollouts from
# above, with three of the methods. Each update logs how far the policy has come from the one that
# sampled, measured on its own eight answers just before it learns from them. After the last one
# all 256 answers are scored anew.

# %%
old = score(trainer, trainer.model, rollouts)
response_mask = torch.cat(
    [b["response_mask"] for b in batches_of(trainer, rollouts)]
)
n_tokens = response_mask.sum(dim=1)


# %%
def one_update(trainer: Trainer, rows: slice) -> dict[str, float | None]:
    """An update on these rollouts, as the loop takes it; what it logs."""
    config, completions = trainer.config, rollouts.completions[rows]
    _, logged = grpo_train_step(
        trainer.model,
        trainer.tokenizer,
        trainer.optimizer,
        config.gradient_accumulation_steps,
        config.max_grad_norm,
        None,
        rollouts.prompts[rows],
        [completion.text for completion in completions],
        [problem.gold for problem in rollouts.problems[rows]],
        config.group_size,
        importance_reweighting_method=config.importance_reweighting_method,
        old_log_probs=old[rows],
        cliprange=config.cliprange,
        rollout_token_ids=[c.token_ids for c in completions],
        raw_rewards=rollouts.rewards[rows],
    )
    return logged


# %%
def follow(variant: str) -> tuple[pd.DataFrame, np.ndarray, Trainer]:
    """All updates on the batch: their logs, log r at the end, trainer."""
    config = experiment_config("off-policy", "pocket", variant)
    trainer = Trainer.from_config(config)
    groups = torch.arange(len(old)).split(config.train_batch_size)
    logs = [one_update(trainer, slice(g[0], g[-1] + 1)) for g in groups]
    log_r = score(trainer, trainer.model, rollouts) - old
    return pd.DataFrame(logs), log_r[response_mask].numpy(), trainer


# %%
followed = {variant: follow(variant) for variant in ("naive", "clip", "gspo")}

# %% tags=["nbval-ignore-output"]
drifts = pd.DataFrame(
    {
        variant: (2 * logs["kl_to_old"].dropna()) ** 0.5
        for variant, (logs, _, _) in followed.items()
    }
)
drifts.index += 1  # the update's number
at_end = {
    v: (log_r**2).mean() ** 0.5 for v, (_, log_r, _) in followed.items()
}
pd.DataFrame(
    {
        "first five updates": drifts.head(5).mean(),
        "last five": drifts.tail(5).mean(),
        "all answers, at the end": at_end,
    }
).round(2)

# %% tags=["check"]
assert len(old) == 256 and old.shape == response_mask.shape
assert 12 <= len(drifts) <= 20 and (drifts.iloc[0] < 1e-3).all()
assert (drifts.tail(5).mean() > 3 * drifts.head(5).mean()).all()
assert 0.15 < at_end["naive"] < 0.27
assert 0.12 < at_end["clip"] < 0.9 * at_end["naive"]
assert 0.07 < at_end["gspo"] < 0.85 * at_end["clip"]

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.6, 3.2), layout="constrained"
)
for variant, (logs, _, _) in followed.items():
    style = line(variant) | {"marker": "o", "markersize": 4}
    left.plot(drifts.index, drifts[variant], **style, label=variant)
    if variant != "naive":
        clips = logs["clip_fraction"].dropna()
        right.plot(clips.index + 1, clips, **style, label=variant)
left.set(title="Drift of the ratio", ylabel="spread of log r")
right.set(title="Clip fraction", ylabel="share of the update's tokens")
for ax in (left, right):
    ax.set_xlabel("update of the batch")
    ax.legend(loc="best")
plt.show()

# %% [markdown]
# *One batch of rollouts, 32 updates, one seed; a dot for each update whose group had a signal. The
# others train on nothing. Left: the root mean square of log r, from the logged KL.*
#
# Every method drifts, the more the more updates it has taken. The clip slows it. It can't stop it:
# what is clipped gets no gradient, but other tokens move the same weights, and Adam's momentum
# carries on. GSPO's narrow range slows it more. It silences most responses that have moved at all:


# %%
def fractions(variant: str) -> tuple[np.ndarray, np.ndarray]:
    """Clip fraction and tokens of each update with a signal."""
    known = followed[variant][0]["clip_fraction"].dropna()
    tokens = n_tokens.reshape(-1, 8).sum(dim=1).numpy()
    return known.to_numpy(), tokens[known.index]


# %% tags=["nbval-ignore-output"]
for variant in ("clip", "gspo"):
    shares, tokens = fractions(variant)
    print(
        f"{variant}: {shares @ tokens / tokens.sum():.3f} of the batch's "
        f"tokens clipped, mean of the updates {shares.mean():.3f}"
    )

# %% tags=["check"]
of_clip, of_gspo = fractions("clip")[0], fractions("gspo")[0]
assert of_clip[0] == of_gspo[0] == 0  # the first is on-policy
assert of_clip.max() < 0.15 and of_clip[-5:].mean() > of_clip[:5].mean()
assert of_gspo[1] > 0.5 and of_gspo[1:].mean() > 0.5
assert 12 <= len(of_clip) <= 20

# %% [markdown]
# The first update of both clips nothing, since nothing has moved. GSPO's second clips more than
# half of its tokens already. That is no accident of the range: if ratios scatter independently with
# a spread of $\sigma$ in the log, the geometric mean of $L$ of them has a spread of $\sigma /
# \sqrt L$. With $\sigma = .1$ and the 22 tokens of a typical answer that is $.02$, seventy times
# the range. So GSPO at 3e-4 asks on which side of 1 a response lies, and little else: those that
# have moved the right way are done, those that have moved the wrong way are pushed. For the range
# to do to responses what .2 does to tokens it would have to be about $.2/\sqrt{22} = .043$.

# %% tags=["check"]
length = n_tokens.double().mean().item()
assert abs(length - 22) < 2
assert abs(0.1 / 22**0.5 - 0.0213) < 5e-5 and 70 < 0.0213 / 3e-4 < 72
assert abs(0.2 / 22**0.5 - 0.043) < 5e-4

# %% [markdown]
# The *mean* ratio shows nothing of all this. For an answer that has not been trained on yet, the
# mean of $r$ over the tokens that the old policy may draw is $\sum_v \pi_\text{old}(v)\,
# \pi_\theta(v)/\pi_\text{old}(v) = 1$, whatever $\pi_\theta$ is. The log has groups with a signal
# only, and the batch below has been trained on, but that changes little. A mean ratio of 1.00 is no
# sign of a policy that has stayed near.

# %% tags=["nbval-ignore-output"]
ratio = np.exp(followed["naive"][1])
print(f"mean ratio {ratio.mean():.3f}, largest {ratio.max():.0f}")
print(f"outside of 1 ± 0.2: {(abs(ratio - 1) > 0.2).mean():.0%} of tokens")

# %% tags=["check"]
assert abs(ratio.mean() - 1) < 0.02
assert (followed["naive"][0]["mean_ratio"].dropna() - 1).abs().max() < 0.03
assert ratio.max() > 4 and 0.06 < (abs(ratio - 1) > 0.2).mean() < 0.2

# %% [markdown]
# ## One learning rate for all
#
# All five methods run at the rate that was chosen for one update a batch. Adam's step is about as
# large as the learning rate in each weight, however many answers its gradient was made of. So 32
# updates go further than one. How much further, on the same 256 answers?


# %%
def distance(trainer: Trainer) -> float:
    """Of the parameters from those of the untrained policy, 2-norm."""
    start = Trainer.from_config(pocket).model.parameters()
    moved = zip(trainer.model.parameters(), start, strict=True)
    return sum((a - b).square().sum().item() for a, b in moved) ** 0.5


# %% tags=["nbval-ignore-output"]
one_step = distance(updated["on-policy"])
for variant, (_, _, moved) in followed.items():
    times = distance(moved) / one_step
    print(f"{variant}: {times:.1f} times as far as one update")

# %% tags=["check"]
times = {v: distance(t) / one_step for v, (_, _, t) in followed.items()}
again = distance(updated["off-policy"])  # naive once more, by the loop
assert math.isclose(again, distance(followed["naive"][2]), rel_tol=1e-4)
assert 5 < times["naive"] < 10 and 3.5 < times["gspo"] < times["clip"]
assert times["clip"] < times["naive"]

# %% [markdown]
# Not 32 times, as groups differ in what they ask for and half of them ask for nothing; still, five
# times and more. An off-policy run at the on-policy rate is a run of long strides, and a brake is
# worth most to one that goes too fast. So what these forty runs compare is *methods at the rate of
# the standard run*, and {doc}`19_variants_results` has what follows from that.
#
# Whoever reads from the verdicts above that weights or clips are needed would first have to rule
# out that naive needed a smaller step: tune each method, or lower the rate of all. At which rates
# the five would have done best isn't on record. What is on record is a rival at equal rollouts,
# which takes a longer stride in another way: the standard run at three times its rate
# ({doc}`15_learning_rate`), one update on each batch. Beside it, on validation after as many
# batches:

# %%
tripled = read_recording("learning-rate", profile).query("variant == 'x3'")
after = pd.concat([at_moments, rows_of(tripled, curve)])
after = after[after["step"] == n_batches]
for verdict in compare_all(after, "x3"):
    print(verdict)

# %% [markdown]
# At pocket scale it has the highest mean of the seven, though only GSPO and the standard run can be
# told from it. A larger step on fresh answers takes one as far in thirty batches as 32 steps on old
# ones, without weights, without clips, at four passes in place of five. (In
# {doc}`15_learning_rate` its rate was chosen from five. The off-policy methods had no such choice.)

# %% tags=["check"]
if profile == "pocket":
    assert after.groupby("variant")["value"].mean().idxmax() == "x3"
    told = [
        v.variant for v in compare_all(after, "x3") if v.word != "can't tell"
    ]
    assert told == ["gspo", "standard"]

# %% [markdown]
# At full scale there is one more reason for doubt. GSPO's range of 3e-4 is finer than bf16: from 1
# on, its numbers lie $2^{-7} = .0078$ apart. Log-probabilities and ratios are float32
# ({doc}`09_log_probs_and_entropy`), but they come from logits in bf16, and batches of another shape
# are rounded in another way. The check before the first step ({doc}`07_rollouts`) lets a token's
# log-ratio be off by .09 in bf16. That is the most that it takes for rounding; but a mean over 200
# independent errors of a tenth of it is still .0006, twice the range.

# %% tags=["check"]
from gsmrl_helpers.scoring import rounding

assert torch.finfo(torch.bfloat16).eps == 2**-7
assert torch.tensor(1 + 3e-4, dtype=torch.bfloat16) == 1
in_bf16 = rounding(torch.nn.Linear(1, 1, dtype=torch.bfloat16))
assert abs(in_bf16 - 0.09) < 0.005
assert abs(0.009 / 200**0.5 - 0.0006) < 5e-5 and 0.0006 == 2 * 3e-4

# %% [markdown]
# ## The published figures
#
# What students reported for the full scale: OLMo-2-0425-1B on GSM8K, the share of right validation
# answers. These numbers are theirs, self-reported, one seed each, and were not run here. CISPO was
# not reported. Beside them the three reports of the standard run, four seeds each.

# %%
published = pd.concat(
    [read_published("on-policy"), read_published("off-policy")]
)
theirs = published.groupby("variant", sort=False)
table = pd.DataFrame(
    {
        "published": theirs["accuracy"].agg(
            lambda means: ", ".join(map("{:.2f}".format, means))
        ),
        "seeds, each": theirs["seeds"].first(),
        f"here, {profile}, test": summarize(all_finals)["mean"].round(2),
    }
)
table.reindex(["standard", *variants]).astype(object).fillna("")

# %% tags=["check"]
off = read_published("off-policy").set_index("variant")["accuracy"]
assert (read_published("off-policy")["seeds"] == 1).all()
assert off.to_dict() == {
    **{"naive": 0.47, "noclip": 0.41},
    **{"clip": 0.46, "gspo": 0.52},
}
on = read_published("on-policy")["accuracy"]
assert math.isclose(on.max() - on.min(), 0.10)
assert math.isclose(off.max() - off.min(), 0.11)

# %% [markdown]
# The four lie within eleven points of each other. Three reports of the standard run, each a mean of
# four seeds, lie within ten. So of the published order, GSPO before naive before clip before
# noclip, nothing can be told from luck. What can be put side by side is whether the phenomena are
# the same:

# %%
ours = summarize(finals)["mean"].sort_values(ascending=False)
print(
    f"order of means, published: {' > '.join(off.sort_values()[::-1].index)}"
)
print(f"order of means, here: {' > '.join(ours.index)}")
n_collapsed, n_runs = stable["n_collapsed"].sum(), stable["n"].sum()
print(f"collapsed: published 0 of {len(off)}, here {n_collapsed} of {n_runs}")
print(f"range of means: published {np.ptp(off):.2f}, here {np.ptp(ours):.2f}")

# %% tags=["check"]
order = off.sort_values(ascending=False).index.tolist()
assert order == ["gspo", "naive", "clip", "noclip"]
assert (off > 0.5 * off.max()).all()

# %% [markdown]
# And the scales ask different things. The pocket policy knows more than it shows
# ({doc}`14_on_policy_results`), so that much of what is learned here is to sharpen, where OLMo-2-1B
# has to find the format and better solutions. A larger model's answers are long and slow to sample,
# which is why off-policy methods were made: its $h$ is near 1, the pocket policy's about 2. `gsmrl
# record off-policy --profile two_gpu` makes the runs that would tell.
#
# ## Take away
#
# - Off-policy, answers are not used more often but later: 32 updates a batch are 32 times as many
#   steps of the optimizer on the same answers, at nearly the same cost in passes.
# - Say which budget is equal. At equal rollouts the question is how much a batch of answers
#   teaches, at equal time also what its updates cost; the overhead $h$ is near 1 where sampling is
#   slow.
# - Eight seeds without a collapse allow for 37 %. Six of eight must fall to one side before two
#   methods differ in stability.
# - At pocket scale 32 updates a batch come to .4 with a sixth of the rollouts (GSPO: two fifths),
#   then level off near .5; the standard run goes on to .65 on test. Weights are worth four to
#   six points over none. No run collapsed, and three times the rate does on-policy what the 32
#   updates do.
# - A clip fraction counts tokens that have moved *with* their advantage. It means three things in
#   GRPO, GSPO and CISPO. The mean ratio stays near 1 however far the policy has gone.
# - The five methods were compared at one rate, that of another method.
#
# ## Exercises
#
# ```{exercise} A batch's clip fraction
# :label: ex-21-token-weighted
#
# *Easy, 10 minutes.* Write `batch_clip_fraction(fractions, tokens)`: the share of the clipped among
# all trained tokens of a batch, from the clip fraction of each update and its number of trained
# tokens. An update without a signal has trained no token, and its fraction is None. If no update
# had a signal, return None. When does the result equal the mean of the fractions?
#
# :::{dropdown} Hint
# Clipped tokens are fraction times tokens. Add them, then divide.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def batch_clip_fraction(
    fractions: Sequence[float | None], tokens: Sequence[int]
) -> float | None:
    known = [
        (fraction, n)
        for fraction, n in zip(fractions, tokens, strict=True)
        if fraction is not None
    ]
    total = sum(n for _, n in known)
    return sum(share * n for share, n in known) / total if known else None


# %% tags=["check"]
assert batch_clip_fraction([None, None], [0, 0]) is None
assert batch_clip_fraction([0.5, None, 0.0], [100, 0, 300]) == 0.125
assert math.isclose(batch_clip_fraction([0.1, 0.3], [50, 50]), 0.2)
generator = np.random.default_rng(0)
for _ in range(20):
    marks = [generator.random(n) < 0.3 for n in (5, 40, 120)]
    found = batch_clip_fraction(
        [m.mean() for m in marks], [len(m) for m in marks]
    )
    assert math.isclose(found, np.concatenate(marks).mean())

# %% [markdown]
# ```{exercise} How many seeds without a collapse?
# :label: ex-21-seeds
#
# *Easy, 10 minutes.* Write `seeds_without_collapse(share, level)`: how many seeds have to end well,
# all of them, before the exact interval of the share of collapses stays below `share`? How many for
# 10 % at a level of 95 %?
#
# :::{dropdown} Hint
# The upper end for 0 of $n$ is the share $x$ with $(1 - x)^n = (1 - \text{level})/2$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def seeds_without_collapse(share: float, level: float = 0.95) -> int:
    n = 1
    while (1 - share) ** n >= (1 - level) / 2:
        n += 1
    return n


# %% tags=["check"]
assert seeds_without_collapse(0.1) == 36
for share, level in ((0.37, 0.95), (0.05, 0.95), (0.2, 0.9)):
    n = seeds_without_collapse(share, level)
    ends = [
        binomtest(0, seeds).proportion_ci(level, method="exact").high
        for seeds in (n - 1, n)
    ]
    assert ends[1] < share <= ends[0]

# %% [markdown]
# ```{exercise} The power of eight seeds
# :label: ex-21-power
#
# *Medium, 20 minutes.* A method collapses in a share `p` of its runs, another in a share `q`, and
# what one does on a seed says nothing of the other. Write `power(p, q, n)`: the chance that the
# exact McNemar test on `n` shared seeds says, at 5 %, that they differ. How large is it for eight
# seeds, if one never collapses and the other does on every second seed? And how many seeds would
# make it 80 %?
#
# :::{dropdown} Hint
# A seed is collapsed under the first alone with the chance $p(1-q)$, under the second alone with
# $q(1-p)$. Sum over the numbers of both kinds; `binomtest(k, k + m).pvalue` is the test's.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def power(p: float, q: float, n: int) -> float:
    apart = p * (1 - q) + q * (1 - p)
    side = p * (1 - q) / apart if apart else 0.5
    total = 0.0
    for m in range(1, n + 1):
        for k in range(m + 1):
            if binomtest(k, m).pvalue < 0.05:
                total += binom.pmf(m, n, apart) * binom.pmf(k, m, side)
    return float(total)


# %% tags=["check"]
at_least_six = sum(math.comb(8, k) for k in (6, 7, 8)) / 2**8
assert math.isclose(power(0.0, 0.5, 8), at_least_six)
assert 0.14 < power(0.0, 0.5, 8) < 0.15
assert power(0.0, 1.0, 8) == 1 and power(0.3, 0.3, 8) < 0.05
enough = [n for n in range(6, 20) if power(0.0, 0.5, n) >= 0.8]
assert enough[0] == 15
for p, q in ((0.1, 0.4), (0.2, 0.9)):
    first, second = np.random.default_rng(0).random((2, 4_000, 8))
    falls = np.stack([first < p, second < q])
    one, other = ((falls[i] & ~falls[1 - i]).sum(axis=1) for i in (0, 1))
    worst = np.minimum(one, other)
    told = (one + other >= 6) & (worst == 0)
    assert abs(told.mean() - power(p, q, 8)) < 0.03

# %% [markdown]
# Eight seeds find a method that fails every second time, beside one that never does, in one case of
# seven. "Can't tell" is what the rule will say of most true differences. It is there to say nothing
# where there is nothing.
#
# ## Next
#
# {doc}`22_your_own_estimator` changes the advantage in place of the weight, and puts an estimator
# of one's own to eight seeds.
