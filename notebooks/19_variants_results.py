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
# # Variants: results
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what four seeds tell about five variants of GRPO and what
# they don't, what leaving out responses without an advantage saves, and which conclusions are fair
# when only one of the methods was tuned.
#
# **You need** {doc}`18_difficulty_reweighting` for what each variant climbs, and
# {doc}`12_grpo_train_step`. **Reading** takes 25 minutes, **running** half a minute, on a **CPU**.
# (The twenty runs were recorded.)
# ```
#
# {doc}`18_difficulty_reweighting` derived that the variants climb different objectives. Whether the
# difference matters in training is a question for experiments, and an easy one to answer wrongly.
# Five curves are drawn, one ends highest, and it is called the best. Had each method been run once
# more, another might have ended highest. So the order of this chapter is: the rule, which was
# written before the runs; the verdicts by that rule; and only then what else the runs show.

# %% tags=["parameters"]
profile = "pocket"

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import chi2
from scipy.stats import t as student_t
from torch import Tensor

from gsmrl_helpers import (
    compute_group_normalized_rewards,
    load_problems,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.accumulation import (
    Objective,
    accumulate_gradients,
    rows_with_gradient,
)
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.experiments import (
    experiment_config,
    shared_run,
    variants_of,
)
from gsmrl_helpers.intervals import t_interval
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.published import read_published
from gsmrl_helpers.recordings import processors, read_recording
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import binned, final_values, summarize
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.verdicts import compare_all, paired_differences, stability
from gsmrl_helpers.world import problems_of_step

use_style()
results = read_recording("variants", profile)

# %% [markdown]
# ## Five sets of settings
#
# A variant is a few settings of one and the same loop. `GRPO` is the standard run of
# {doc}`14_on_policy_results`. `GRPO_constant` divides the loss by a constant $Z =
# B\,G\,L_\text{max}$ and not by each response's length, and changes nothing else. The other three
# are `GRPO_constant` with another advantage; `RFT`, without a baseline, is expert iteration
# {cite}`anthony2017thinking` or rejection fine-tuning {cite}`yuan2023scaling`, one batch at a time.
# So three of the four comparisons with `GRPO` change more than one thing, and the one with
# `GRPO_constant` tells which part the normalisation has in it.

# %%
options = [
    *("baseline", "advantage_normalizer"),
    *("loss_normalization", "normalization_constant"),
]
variants = variants_of("variants")
configs = {v: experiment_config("variants", profile, v) for v in variants}
pd.DataFrame(
    {
        variant: {name: str(getattr(config, name)) for name in options}
        for variant, config in configs.items()
    }
).T

# %% tags=["check"]
settings = {v: config.model_dump() for v, config in configs.items()}
for variant in variants:
    differing = {
        name
        for name in settings["GRPO"]
        if settings[variant][name] != settings["GRPO"][name]
    }
    assert differing <= {"variant", *options}
assert list(dict.fromkeys(results["variant"])) == list(variants)
assert shared_run("variants", "GRPO") == ("on-policy", "standard")

# %%
print(EXPERIMENTS["variants"].question)
print(EXPERIMENTS["variants"].rule)

# %% [markdown]
# ## What the runs end with

# %%
finals = final_values(results, "test_mean_answer_reward")
columns = ["n", "mean", "std", "half_width", "t_half_width", "min", "max"]
summarize(finals)[columns].round(3)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
plot_curves(axes[0], results, "curve_mean_answer_reward")
axes[0].set(title="Right answers, validation", ylabel="share")
axes[0].legend(loc="lower right", fontsize=7)
plot_finals(axes[1], finals)
axes[1].set(title="Right answers, test, at the end", ylabel="share")
axes[1].tick_params(axis="x", labelsize=7)
plt.show()

# %% [markdown]
# *Left: every seed is drawn faintly, the mean of each variant with μ ± 1.96 σ/√n. Right: a dot for
# each seed, and the mean with the same interval. Look at how far the dots of one variant lie apart
# before looking at which mean is higher.*

# %% tags=["check"]
runs = finals.groupby("variant")["seed"].agg(lambda seeds: sorted(seeds))
assert all(seeds == runs["GRPO"] for seeds in runs)
if profile == "pocket":
    assert runs["GRPO"] == [0, 1, 2, 3]

# %% [markdown]
# ## The verdicts
#
# Runs of one seed start from the same policy and meet the same problems in the same order. So they
# are compared as pairs: the difference for each seed, its mean, and a t interval. Where the
# interval holds 0, the verdict is that nothing can be told.

# %%
verdicts = compare_all(finals, "GRPO")
for verdict in verdicts:
    print(verdict)

# %% tags=["check"]
assert [verdict.variant for verdict in verdicts] == list(variants[1:])
for verdict in verdicts:
    gaps = paired_differences(finals, verdict.variant, "GRPO")
    low, high = t_interval(gaps)
    assert math.isclose(low, verdict.low) and math.isclose(high, verdict.high)
    assert (verdict.word == "can't tell") == (low <= 0 <= high)

# %% [markdown]
# These are four intervals, each of which fails one time in twenty by itself. To have all four hold
# together with 95 %, each is taken at 98.75 % (Bonferroni). With four seeds that makes it 1.7 times
# as wide.

# %%
jointly = compare_all(finals, "GRPO", jointly=True)
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
    width, joint_width = alone.high - alone.low, joint.high - joint.low
    assert math.isclose(joint.level, 0.9875)
    if len(joint.seeds) == 4:
        assert math.isclose(joint_width, 1.69 * width, rel_tol=0.005)
    assert joint.word in (alone.word, "can't tell")
if profile == "pocket":
    by_name = {verdict.variant: verdict for verdict in verdicts}
    assert [v for v in by_name if by_name[v].word == "worse"] == ["MaxRL"]
    assert abs(by_name["MaxRL"].difference + 0.014) < 0.0005
    assert -0.01 < by_name["MaxRL"].high < 0
    assert {joint.word for joint in jointly} == {"can't tell"}
    assert np.ptp(summarize(finals)["mean"]) < 0.02
    assert all(-0.033 < v.low < v.high < 0.033 for v in jointly)

# %% [markdown]
# At pocket scale the rule finds one difference of four: MaxRL is worse by 1.4 points, with an
# interval that ends just below 0. Of the four together it finds none. What these runs say of
# normalizer, baseline and aggregation is that their effect is small here, if there is one: all five
# means lie within two points, and the joint intervals exclude effects of more than about three.
#
# At pocket scale one thing more than the variant differs: the runs of `GRPO`, which are the
# standard ones of {doc}`14_on_policy_results`, were made on another processor, with an earlier
# version of the package. The arithmetic is the same up to rounding. But a sampled token hangs on
# it now and then, so that runs of one seed part after some steps and share only their problems and
# first answers. {doc}`22_your_own_estimator` has pairs made on two processors beside pairs made on
# one.

# %%
processors("variants", profile).to_frame()

# %% tags=["check"]
if profile == "pocket":
    kinds = processors("variants", profile).reset_index("processor")
    others = kinds.drop(index="GRPO")["processor"]
    assert set(others) == {"AVX2"}
    assert kinds.loc["GRPO", "processor"] == "AVX512"

# %% [markdown]
# The same rule with `GRPO_constant` as the baseline separates the advantage from the normalisation.
# This comparison was not announced beforehand, so it can suggest, and not decide. Its runs were all
# made on one kind of processor; there MaxRL's difference can't be told from none, even by itself.

# %%
after_the_fact = compare_all(
    finals[finals["variant"] != "GRPO"], "GRPO_constant", jointly=True
)
for verdict in after_the_fact:
    print(verdict)

# %% tags=["check"]
assert [v.variant for v in after_the_fact] == ["Dr_GRPO", "RFT", "MaxRL"]
if profile == "pocket":
    alone = compare_all(finals[finals["variant"] != "GRPO"], "GRPO_constant")
    assert {v.word for v in alone} == {"can't tell"}

# %% [markdown]
# ## Spread
#
# A method whose seeds lie close together may be worth more than one with a higher mean. But a
# spread is known from four seeds even less than a mean. The 95 % interval of a standard deviation
# from four normal values reaches from .57 to 3.7 times the value found.

# %%
n_test = configs["GRPO"].splits.test
spread = summarize(finals)[["n", "mean", "std"]]
low, high = (
    np.sqrt((spread["n"] - 1) / chi2.ppf(q, spread["n"] - 1))
    for q in (0.975, 0.025)
)
spread["std, from"], spread["to"] = spread["std"] * low, spread["std"] * high
share = spread["mean"]
spread["answers alone"] = (share * (1 - share) / n_test) ** 0.5
spread.round(3)

# %% tags=["check"]
for quantile, factor in ((0.975, 0.57), (0.025, 3.73)):
    assert abs((3 / chi2.ppf(quantile, 3)) ** 0.5 - factor) < 0.005
assert (spread["std, from"] < spread["std"]).all()
assert (spread["std"] < spread["to"]).all()

# %% [markdown]
# "Answers alone" is how far final values would differ if all seeds had ended with the same policy:
# each answers the test problems once, at random, and $\sqrt{p(1-p)/n}$ is the standard deviation of
# a share. (Problems that are answered nearly always or nearly never make it a little smaller.) A
# standard deviation of about that size says that the seeds did not differ in any way which the test
# could show.
#
# By the rule of stability, which is that of the off-policy runs, a seed has collapsed if it ends
# below half of the best run:

# %%
stability(finals).round(2)

# %% tags=["check"]
table = stability(finals)
best = finals["value"].max()
for variant, group in finals.groupby("variant"):
    assert table["n_collapsed"][variant] == (group["value"] < best / 2).sum()

# %% [markdown]
# ## Along the way

# %% tags=["hide-input"]
panels = {
    "Gradient norm, before clipping": ("grad_norm", "2-norm"),
    "Groups without signal": ("no_signal_group_share", "share"),
    "Responses through the model": ("trained_row_share", "share"),
    "Token entropy": ("token_entropy", "nats"),
    "Length of right responses": ("train_response_length_right", "tokens"),
    "Length of wrong responses": ("train_response_length_wrong", "tokens"),
}
in_tens = binned(results, 10)
figure, axes = plt.subplots(2, 3, figsize=(9.8, 5.6), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    plot_curves(ax, in_tens, metric)
    ax.set(title=title, ylabel=unit)
axes[0, 0].set_yscale("log")
axes[0, 0].legend(loc="best", fontsize=6)
plt.show()

# %% [markdown]
# *Means over ten steps: every seed faintly, all seeds with μ ± 1.96 σ/√n; the legend of the first
# panel holds for all. The norms stand on a log scale, since the variants measure their gradient in
# different units. Without a baseline only an all-wrong group has no signal, so RFT's line in the
# second panel counts another thing than the other four. Entropy is that of the tokens that went
# through the model: for RFT, of right responses.*
#
# Both baselines drop what can't teach. With a mean baseline those are whole groups, all right or
# all wrong. RFT drops every wrong response and keeps the groups that are all right.

# %% tags=["check"]
wide = results.pivot(
    index=["variant", "seed", "step"], columns="metric", values="value"
)
steps = wide.dropna(subset=["trained_row_share"])
rft = steps.loc["RFT"]
right = rft["train_mean_answer_reward"]
assert np.allclose(rft["trained_row_share"], right, atol=1e-6)
mean_baseline = steps.drop(index="RFT", level="variant")
kept = 1 - mean_baseline["no_signal_group_share"]
assert np.allclose(mean_baseline["trained_row_share"], kept, atol=1e-6)

# %% [markdown]
# Do the variants end with answers of different length? Under GRPO a long wrong answer is punished
# less per token than a short one ({doc}`18_difficulty_reweighting`), and the constant takes that
# away. If it matters, wrong answers should become shorter under `GRPO_constant`. The same paired
# intervals, on the length of wrong test answers:


# %%
def longer_or_shorter(finals: pd.DataFrame, variant: str, than: str) -> str:
    """A sentence: paired differences in tokens, with a t interval."""
    gaps = paired_differences(finals, variant, than)
    low, high = t_interval(gaps)
    word = "can't tell" if low <= 0 <= high else "longer"
    word = "shorter" if high < 0 else word
    return f"{variant}: {gaps.mean():+.1f} tokens ({low:+.1f} to {high:+.1f}): {word}"


for part in ("wrong", "right"):
    lengths = final_values(results, f"test_response_length_{part}")
    means = summarize(lengths)["mean"]
    print(f"{part} answers, GRPO {means['GRPO']:.1f} tokens, beside it")
    for variant in variants[1:]:
        print("  ", longer_or_shorter(lengths, variant, "GRPO"))

# %% tags=["check"]
made_up = pd.DataFrame(
    {
        "variant": ["GRPO"] * 3 + ["other"] * 3,
        "seed": [0, 1, 2] * 2,
        "step": 1,
        "metric": "length",
        "value": [20.0, 21.0, 22.0, 30.0, 31.5, 32.0],
    }
)
assert longer_or_shorter(made_up, "other", "GRPO").endswith("longer")
if profile == "pocket":
    for part in ("wrong", "right"):
        lengths = final_values(results, f"test_response_length_{part}")
        means = summarize(lengths)["mean"]
        assert means.between(24, 28).all() and np.ptp(means) < 0.5
assert longer_or_shorter(made_up, "GRPO", "other").endswith("shorter")

# %% [markdown]
# These are eight comparisons that no rule announced, so one or another may stand out by chance. At
# pocket scale all differences are below half a token, of some 25: whatever the normalisation does
# to length, a hundred steps on answers that are short and alike don't show it.
#
# ## What leaving out saves
#
# A response with advantage 0 adds nothing to the gradient, so that it need not go through the
# model. Seconds would measure the machine and whatever else it did; here the work is counted. First
# that nothing is lost, with the first batch of seed 0: 32 problems, 8 answers each.

# %%
config = experiment_config("variants", "pocket", "GRPO")
trainer = Trainer.from_config(config)
problems = problems_of_step(config, load_problems(config, "train"), 1)
rollouts = trainer.sample(problems, config.group_size, "train", 1)
batch = tokenize_prompt_and_output(
    rollouts.prompts,
    [completion.text for completion in rollouts.completions],
    trainer.tokenizer,
    output_token_ids=[c.token_ids for c in rollouts.completions],
)


# %%
def gradient(variant: str, pruned: bool = True) -> tuple[Tensor, int]:
    """A variant's gradient of the batch, and the tokens it took."""
    chosen = experiment_config("variants", "pocket", variant)
    advantages, _ = compute_group_normalized_rewards(
        rollouts.rewards,
        chosen.group_size,
        chosen.baseline,
        chosen.advantage_eps,
        chosen.advantage_normalizer,
    )
    objective = Objective(
        loss_normalization=chosen.loss_normalization,
        normalization_constant=chosen.normalization_constant,
    )
    whole = {**batch, "advantages": advantages}
    rows = torch.arange(len(advantages))
    if pruned:
        rows = rows_with_gradient(whole, objective)
    counted: list[int] = []
    hook = trainer.model.model.layers[0].mlp.register_forward_hook(
        lambda _, __, output: counted.append(output.shape[:-1].numel())
    )
    accumulate_gradients(trainer.model, whole, rows, objective, 64)
    hook.remove()
    parts = [p.grad.flatten() for p in trainer.model.parameters()]
    return torch.cat(parts), sum(counted)


# %% tags=["nbval-ignore-output"]
gradients = {variant: gradient(variant) for variant in variants}
unpruned = {v: gradient(v, pruned=False) for v in ("GRPO", "RFT")}
pd.DataFrame(
    {
        "tokens, all responses": unpruned[variant][1],
        "tokens, pruned": gradients[variant][1],
    }
    for variant in unpruned
).set_axis(list(unpruned))

# %% tags=["check"]
for variant, (whole, tokens) in unpruned.items():
    few, fewer = gradients[variant]
    assert (few - whole).norm() < 1e-5 * whole.norm()
    assert fewer < tokens
assert gradients["RFT"][1] < 0.5 * gradients["GRPO"][1]
assert 0.02 < rollouts.rewards.mean() < 0.15

# %% [markdown]
# The tokens are those that pass through the first layer, prompts included; a prompt that eight
# answers share goes through once. The gradients are the same up to the rounding of float32. At the
# start RFT trains on a few percent of the responses, since only so many are right.
#
# Over a whole run the recording has the share of response tokens that went through the model.


# %%
sampled = steps["train_response_length"]  # times the batch size
trained = steps["token_entropy_token_share"] * sampled
by_run = (
    pd.DataFrame({"sampled": sampled, "trained": trained})
    .groupby(["variant", "seed"], sort=False)
    .sum()
)
work = pd.DataFrame(
    {
        "responses": steps.groupby("variant", sort=False)[
            "trained_row_share"
        ].mean(),
        "tokens": (by_run["trained"] / by_run["sampled"])
        .groupby("variant", sort=False)
        .mean(),
    }
).loc[list(variants)]
work["passes left"] = (1 + 3 * work["tokens"]) / 4
work.round(2)

# %% tags=["check"]
assert ((work > 0) & (work <= 1)).all(axis=None)
assert (work["passes left"] >= 0.25).all()

# %% [markdown]
# Mean share of the responses, and of their tokens, that were trained on, over all steps and seeds.
# The last column adds what can't be saved: every response has to be sampled, wrong ones as well. In
# passes through the model, sampling a token is one, and training on it three (forward once,
# backward about twice as much), so of four parts one stays. Sampling one token at a time is the
# slower kind of pass on most machines, so that the share of *time* saved is smaller still.
#
# The savings change during a run, and not in the same way. RFT's share is that of the right
# answers, so it saves most at the start. With a mean baseline groups are dropped at both ends,
# where the policy fails all eight times or succeeds all eight times. In thirds of the steps:

# %%
thirds = pd.cut(
    steps.index.get_level_values("step"),
    3,
    labels=["first", "second", "last"],
)
by_third = steps["trained_row_share"].groupby(
    [steps.index.get_level_values("variant"), thirds],
    observed=True,
    sort=False,
)
by_third.mean().unstack().loc[list(variants)].round(2)

# %% tags=["check"]
assert by_third.mean().between(0, 1).all()

# %% [markdown]
# ## Fair tuning
#
# The learning rate of all five variants is the one that suits standard GRPO
# ({doc}`15_learning_rate`). To tune each method by itself would be fairest and cost five times as
# much. What follows from the cheap way is not symmetric. If a method is better than GRPO at GRPO's
# own rate, that is a finding: tuned, it could only be better still. If it is worse, nothing follows
# about the method, since it may just want another rate. In words, for the verdicts above:

# %%
READING = {
    "better": "a finding: it beats a tuned baseline untuned",
    "worse": "no finding about the method: its own rate was never looked for",
    "can't tell": "nothing: the difference is smaller than four seeds can show",
}
for verdict in verdicts:
    reading = READING[verdict.word].replace("four", str(len(verdict.seeds)))
    print(f"{verdict.variant} ({verdict.word}): {reading}.")

# %% tags=["check"]
assert {verdict.word for verdict in verdicts} <= set(READING)

# %% [markdown]
# How much does one rate mean different things to the five? Their gradients of the batch above,
# beside GRPO's: how long, and in how different a direction?


# %% tags=["nbval-ignore-output"]
def cosine(a: Tensor, b: Tensor) -> float:
    return torch.cosine_similarity(a.double(), b.double(), dim=0).item()


reference = gradients["GRPO"][0]
compared = pd.DataFrame(
    {
        variant: {
            "norm / GRPO's": (g.norm() / reference.norm()).item(),
            "cosine with GRPO's": cosine(g, reference),
        }
        for variant, (g, _) in gradients.items()
    }
).T
compared.round(2)

# %% tags=["check"]
assert compared["norm / GRPO's"]["RFT"] < 0.4
assert compared["norm / GRPO's"]["Dr_GRPO"] < 0.4
assert compared["norm / GRPO's"]["MaxRL"] > 0.8
assert compared["cosine with GRPO's"].min() > 0.7

# %% [markdown]
# The lengths differ by factors, and two parts of the step meet a length. *Clipping* bounds the norm
# at `max_grad_norm`. If it acted, the variants with long gradients would be slowed down and the
# others not. The recording has the norm before clipping, so the steps at which it acted can be
# counted:

# %%
limit = configs["GRPO"].max_grad_norm
clipped = (steps["grad_norm"] > limit).groupby("variant", sort=False).mean()
print(f"steps with a norm above {limit}:")
print(clipped.loc[list(variants)].round(3).to_string(header=False))

# %% tags=["check"]
largest = steps["grad_norm"].groupby("variant", sort=False).max()
assert ((clipped > 0) == (largest > limit)).all()

# %% [markdown]
# *Adam* divides each component by its own running size, and adds $10^{-8}$ to the divisor. But for
# that, a constant factor drops out. Three steps on the gradient of the batch, and on a tenth of it,
# from the same point:


# %%
def adam_move(gradient: Tensor) -> Tensor:
    """Where three steps of the run's optimizer lead from 0."""
    weights = torch.zeros_like(gradient, requires_grad=True)
    optimizer = torch.optim.AdamW(
        [weights],
        lr=config.learning_rate,
        betas=config.adam_betas,
        weight_decay=config.weight_decay,
    )
    for _ in range(3):
        weights.grad = gradient.clone()
        optimizer.step()
    return weights.detach()


# %% tags=["check"]
full, tenth = adam_move(reference), adam_move(reference / 10)
assert math.isclose(full.norm(), tenth.norm(), rel_tol=0.03)
assert (full - tenth).norm() < 0.10 * full.norm()
assert math.isclose(full.abs().max(), 3 * config.learning_rate, rel_tol=1e-3)
assert 0.1 < (reference.abs() < 1e-7).float().mean() < 0.25

# %% [markdown]
# The two moves are equally long, and their difference is less than a tenth of that. It comes from
# small components: about one in six is below $10^{-7}$, where the $10^{-8}$ counts. So neither $Z$
# nor the size of a normaliser is a learning rate in disguise, as either would be for plain gradient
# descent.
#
# What Adam does not absorb is what differs *within* a batch, which groups and which tokens count
# for how much, and what changes from step to step faster than its averages follow (with $\beta_2 =
# .95$ about twenty steps). It even makes more of a difference in direction, since it lifts the
# small components:

# %% tags=["nbval-ignore-output"]
moves = {variant: adam_move(g) for variant, (g, _) in gradients.items()}
compared["after Adam"] = {v: cosine(move, full) for v, move in moves.items()}
compared.round(2)

# %% tags=["check"]
assert math.isclose(1 / (1 - config.adam_betas[1]), 20)
others = compared.drop(index="GRPO")
assert (others["after Adam"] < others["cosine with GRPO's"]).all()
assert others["after Adam"].idxmin() == "RFT"

# %% [markdown]
# RFT goes the most different way, as it leaves out what GRPO takes from wrong answers. And two
# gradients of one size may still want different rates, the noisier one a smaller one. Whether a
# variant wants another is not known until it has been tried.

# %% [markdown]
# ## The published figures
#
# What students reported for the full scale: OLMo-2-0425-1B on GSM8K, 200 steps, share of right
# validation answers. These numbers are theirs, self-reported, and were not run here. Where a range
# of seeds was given, it stands beside the mean; for GRPO there are three reports.

# %%
standard = read_published("on-policy").assign(variant="GRPO")
published = pd.concat([standard, read_published("variants")])
pocket = summarize(finals)["mean"].round(2)
theirs = published.groupby("variant", sort=False)
table = pd.DataFrame(
    {
        "published": theirs["accuracy"].agg(
            lambda means: ", ".join(map("{:.2f}".format, means))
        ),
        "lowest seed": theirs["lowest"].min(),
        "highest seed": theirs["highest"].max(),
        f"here, {profile}": pocket,
    }
)
table.astype(object).fillna("")

# %% tags=["check"]
assert set(table.index) == set(variants)
assert table.loc["GRPO", "published"] == "0.46, 0.36, 0.36"
assert table.loc["Dr_GRPO", "lowest seed"] == 0.09

# %% [markdown]
# Can anything be told from the published column? The seeds of Dr. GRPO lie between .09 and .48. How
# many they were is not said; take four, as the assignment asks. The range of four normal values is
# 2.06 standard deviations on average, which makes the standard deviation .19, and the half width of
# a t interval for that mean .30. Every other number of the column is nearer than that.

# %% tags=["check"]
generator = np.random.default_rng(0)
ranges = np.ptp(generator.normal(size=(100_000, 4)), axis=1)
assert abs(ranges.mean() - 2.06) < 0.01
std = (0.48 - 0.09) / 2.06
half = student_t.ppf(0.975, 3) * std / 2
assert abs(std - 0.19) < 0.005 and abs(half - 0.30) < 0.005
dr_grpo = published.set_index("variant").loc["Dr_GRPO"]
assert pd.isna(dr_grpo["seeds"])
assert ((published["accuracy"] - dr_grpo["accuracy"]).abs() < half).all()

# %% [markdown]
# Which of what was reported is seen here as well? Three things can be put side by side: whether
# runs collapse, how far the seeds of a variant lie apart, and in which order the means stand. (The
# published spread contains collapsed runs: of 12 seeds of standard GRPO 2 ended near .1.)

# %%
ours = summarize(finals)
order = " > ".join(ours["mean"].sort_values(ascending=False).index)
theirs_order = theirs["accuracy"].mean().sort_values(ascending=False).index
n_collapsed = stability(finals)["n_collapsed"].sum()
print(f"collapsed here: {n_collapsed} of {len(finals)} runs")
print(f"widest range of seeds here: {(ours['max'] - ours['min']).max():.2f}")
print(f"order of means, here: {order}")
print(f"order of means, published: {' > '.join(theirs_order)}")

# %% tags=["check"]
assert list(theirs_order) == [
    *("MaxRL", "GRPO", "GRPO_constant", "RFT", "Dr_GRPO")
]
assert n_collapsed == (finals["value"] < finals["value"].max() / 2).sum()

# %% [markdown]
# An order of means that no interval carries is an order of luck, at both scales. And the two
# columns measure different things. The untrained pocket policy knows more than it shows: at
# temperature 1 about one answer in ten is right, and more than eight in ten if every token is the
# likeliest. On-policy training at this scale mostly sharpens that. OLMo-2-1B begins near 0 under
# this prompt, and has to find the format and better solutions, where the weight of hard prompts, or
# a collapse into short answers in format, has more room. So agreement would not confirm much, and
# disagreement refutes nothing. `gsmrl record variants --profile two_gpu` makes the runs that would.

# %% tags=["check"]
asked = load_problems(config, "curve")[:64]
shares = [
    sample_rollouts(
        trainer.engine,
        trainer.prompt,
        asked,
        group_size=1,
        seed=0,
        temperature=temperature,
        top_p=1.0,
        max_tokens=config.sampling_max_tokens,
    )
    .rewards.mean()
    .item()
    for temperature in (1.0, 0.0)
]
assert shares[0] < 0.2 and shares[1] > 0.8

# %% [markdown]
# ## Take away
#
# - Write the rule first. Four pairs of runs tell large differences and no small ones, and "can't
#   tell" is a result about the number of seeds, not about the methods.
# - A response without an advantage costs nothing but its sampling: the gradient is the same without
#   it. RFT saves most while most answers are wrong, a mean baseline when groups agree.
# - Norms differ by factors between variants. Adam absorbs a constant factor, but not how groups and
#   tokens are weighed against each other.
# - A tuned baseline that loses to an untuned method is a finding. The reverse is not.
#
# ## Exercises
#
# ```{exercise} The share that is trained on
# :label: ex-19-trained-share
#
# *Easy, 10 minutes.* Every answer is right with probability $p$, independently. Write
# `trained_share(p, group_size, baseline)`: the expected share of responses that have an advantage
# other than 0, for the baselines "mean" and "none". For which $p$ does RFT train on more than a
# mean baseline with $G = 8$?
#
# :::{dropdown} Hint
# With a mean baseline whole groups drop out: those all right and those all wrong.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def trained_share(p: float, group_size: int, baseline: str) -> float:
    if baseline == "none":
        return p
    return 1 - p**group_size - (1 - p) ** group_size


# %% tags=["check"]
for size in (2, 4, 8):
    for p in (0.05, 0.5, 0.9):
        shares = {"mean": 0.0, "none": 0.0}
        for k in range(size + 1):
            chance = math.comb(size, k) * p**k * (1 - p) ** (size - k)
            shares["mean"] += chance * (0 < k < size)
            shares["none"] += chance * k / size
        for baseline, share in shares.items():
            assert math.isclose(trained_share(p, size, baseline), share)
assert trained_share(0.79, 8, "none") < trained_share(0.79, 8, "mean")
assert trained_share(0.85, 8, "none") > trained_share(0.85, 8, "mean")

# %% [markdown]
# ```{exercise} Four comparisons, no difference
# :label: ex-19-false-alarms
#
# *Medium, 15 minutes.* Suppose the five variants do not differ at all. Write `any_alarm(generator,
# n_seeds, level)`: draw the finals of a baseline and of four variants, all from the same normal
# distribution, compare each variant with the baseline by the paired t interval at `level`, and
# return whether any interval excludes 0. How often does that happen at 95 %, and how often at 98.75
# %?
#
# :::{dropdown} Hint
# `generator.normal(size=(5, n_seeds))`, then `t_interval(row - baseline, level)` for each row.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def any_alarm(
    generator: np.random.Generator, n_seeds: int, level: float
) -> bool:
    baseline, *others = generator.normal(size=(5, n_seeds))
    intervals = [t_interval(other - baseline, level) for other in others]
    return any(not low <= 0 <= high for low, high in intervals)


# %% tags=["check"]
generator = np.random.default_rng(0)
alarms = {
    level: np.mean([any_alarm(generator, 4, level) for _ in range(1_000)])
    for level in (0.95, 0.9875)
}
assert 0.08 < alarms[0.95] < 0.20 and alarms[0.9875] < 0.06

# %% [markdown]
# ```{exercise} Each at its own rate
# :label: ex-19-own-rates
#
# *Medium, 15 minutes.* In a fair comparison each method has been run at several learning rates. The
# variants are then called `GRPO@5e-05`, `RFT@0.0001` and so on. Write `at_best_rates(dev, test)`:
# of each method take the rate whose mean on the dev finals is best, and return the test finals of
# these runs alone, their variants called by the method's name. How many runs would five rates cost?
#
# :::{dropdown} Hint
# `summarize(dev)["mean"]` has a mean for each variant; `variant.partition("@")[0]` is its method.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def at_best_rates(dev: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    means = summarize(dev)["mean"]
    methods = means.index.map(lambda variant: variant.partition("@")[0])
    best = set(means.groupby(methods).idxmax())
    kept = test[test["variant"].isin(best)]
    return kept.assign(variant=kept["variant"].str.partition("@")[0])


# %% tags=["check"]
values = {"GRPO@1": (0.5, 0.7), "GRPO@2": (0.6, 0.6), "RFT@1": (0.4, 0.3)}
tables = [
    pd.DataFrame(
        [
            (name, seed, 9, split, value[part] + 0.01 * seed)
            for name, value in values.items()
            for seed in range(4)
        ],
        columns=["variant", "seed", "step", "metric", "value"],
    )
    for part, split in enumerate(("dev", "test"))
]
chosen = summarize(at_best_rates(*tables))["mean"]
assert chosen.round(3).to_dict() == {"GRPO": 0.615, "RFT": 0.315}

# %% [markdown]
# Five variants, five rates and four seeds are a hundred runs. That is why the cheap way is common,
# and why its one fair conclusion is worth knowing.
#
# ## Next
#
# {doc}`22_your_own_estimator` compares one more estimator in the same way, and shows how to add
# yours. {doc}`20_importance_weighting` leaves the on-policy setting.
