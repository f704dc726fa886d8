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
# # The prompt ablation
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what a prompt fixes before training begins, compare trained policies
# that were asked in different ways, and say how sure you are of a difference in spread, which is
# much less than of a difference in means.
#
# **You need** {doc}`14_on_policy_results`, whose runs are those of `r1_zero` here, and
# {doc}`04_prompting_baselines`. **Reading** takes 20 minutes, **running** half a minute, on a
# **CPU**.
# ```
#
# {doc}`04_prompting_baselines` asked an untrained policy in three ways and counted very different
# shares of right answers. Training changes the policy until it answers well under the prompt that
# it is trained with. So does the prompt still matter afterwards? The assignment asks for the same
# training under the other two prompts: which has the better mean reward, which the smaller spread,
# and how sure can one be?

# %% tags=["parameters"]
profile = "pocket"

# %%
import math
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML
from scipy.stats import f

from gsmrl_helpers import LocalEngine, load_policy, load_problems
from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.experiments import experiment_config, shared_run
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.prompting import Prompt, get_prompt
from gsmrl_helpers.recorded_rollouts import read_answers
from gsmrl_helpers.recordings import processors, read_recording
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import binned, final_values, rows_of, summarize
from gsmrl_helpers.rollouts import Rollouts, sample_rollouts
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.verdicts import compare, compare_all, stability

use_style()
results = read_recording("prompt-ablation", profile)
prompts = list(dict.fromkeys(results["variant"]))
configs = {
    prompt: experiment_config("prompt-ablation", profile, prompt)
    for prompt in prompts
}
last = results["step"].max()

# %% [markdown]
# ## A prompt is three things
#
# A run names a prompt and gets a text, the reward function that can read what the text asks for,
# and the strings at which an answer ends. Nothing else differs between these runs.

# %%
model, tokenizer = load_policy(experiment_config("on-policy", "pocket"))
fixed = {name: get_prompt(name) for name in prompts}
pd.DataFrame(
    {
        name: {
            "tokens without the question": len(
                tokenizer(prompt.format(""))["input_ids"]
            ),
            "reward": prompt.reward_name,
            "stops at": ", ".join(prompt.stop) or "end of text",
        }
        for name, prompt in fixed.items()
    }
).T

# %% tags=["check"]
assert prompts == ["r1_zero", "r1_zero_three_shot", "question_only"]
for name, config in configs.items():
    renamed = config.model_copy(
        update={"prompt": "r1_zero", "variant": "r1_zero"}
    )
    assert renamed == configs["r1_zero"], name
assert shared_run("prompt-ablation", "r1_zero") == ("on-policy", "standard")

# %% [markdown]
# So this is no comparison of three texts with all else equal. What earns a reward differs as well.
# By hand: two answers to "Mia has 3 apples and buys 4 more. How many does she have?", and what each
# prompt pays for them.

# %%
tagged = " That is 3+4=7. </think> <answer> 7 </answer>"
boxed = " That is 3+4=7. So \\boxed{7}."
pays = pd.DataFrame(
    {
        name: {
            text.strip(): prompt.reward_fn(text, "7")["reward"]
            for text in (tagged, boxed)
        }
        for name, prompt in fixed.items()
    }
)
pays

# %% tags=["check"]
assert pays["r1_zero"].tolist() == pays["r1_zero_three_shot"].tolist()
assert pays["r1_zero"].tolist() == [1.0, 0.0]
assert pays["question_only"].tolist() == [0.0, 1.0]

# %% [markdown]
# Both answers know that it is 7. Each earns its reward under one kind of prompt and nothing under
# the other, so a share of right answers is always one of *right answers in the place that was asked
# for*.
#
# ## Where the policy starts
#
# The first validation of each run is of the untrained policy. All seeds begin with the same
# weights, so that their mean is one measurement of it, with four times the answers.

# %%
start = pd.DataFrame(
    {
        part: rows_of(results, f"curve_mean_{part}_reward")
        .query("step == 0")
        .groupby("variant", sort=False)["value"]
        .mean()
        for part in ("answer", "format")
    }
).set_axis(["right", "in format"], axis=1)
start["right, of those in format"] = start["right"] / start["in format"]
start.round(3)

# %% tags=["check"]
if profile == "pocket":
    assert start["right"].idxmax() == "r1_zero_three_shot"
    assert start["right"].idxmin() == "question_only"
    assert start["in format"].idxmax() == "r1_zero_three_shot"
    assert 0.11 < start.loc["question_only", "in format"] < 0.15

# %% [markdown]
# {doc}`14_on_policy_results` found that the untrained policy knows more than it samples. Greedily,
# each token the likeliest, it solves most problems under `r1_zero`. The same question to all three
# prompts:


# %% tags=["nbval-ignore-output"]
def answer_greedily(prompt: Prompt) -> Rollouts:
    """The untrained policy's answers to 128 validation problems."""
    return sample_rollouts(
        LocalEngine(model.eval(), tokenizer),
        prompt,
        load_problems(configs["r1_zero"], "curve")[:128],
        group_size=1,
        seed=0,
        temperature=0.0,
        top_p=1.0,
        max_tokens=configs["r1_zero"].sampling_max_tokens,
    )


if profile == "pocket":
    greedy = {name: answer_greedily(prompt) for name, prompt in fixed.items()}
    for name, rollouts in greedy.items():
        print(f"{name}: {rollouts.rewards.mean().item():.0%} right, greedily")

# %% tags=["check"]
if profile == "pocket":
    shares = {name: r.rewards.mean().item() for name, r in greedy.items()}
    assert shares["question_only"] == 0.0
    assert 0.68 < shares["r1_zero_three_shot"] < 0.80
    assert 0.82 < shares["r1_zero"] < 0.91
    texts = [c.text for c in greedy["question_only"].completions]
    assert not any("\\boxed" in text for text in texts)
    assert np.mean(["The answer is" in text for text in texts]) > 0.9

# %% [markdown]
# Under `question_only` the greedy policy never writes a box. Its likeliest ending is the one of its
# pretraining text, "The answer is 16.", which this prompt does not pay. So the three prompts are
# three different tasks for a policy gradient. Under the r1_zero prompts most of the likeliest
# answers are paid already, and sharpening is enough. Under `question_only` sharpening alone would
# end at 0: training has to lift an ending that is sampled in one answer of eight above another that
# the policy prefers.
#
# ## The rule

# %%
print(EXPERIMENTS["prompt-ablation"].question)
print(EXPERIMENTS["prompt-ablation"].rule)

# %% [markdown]
# ## What the runs end with

# %%
finals = final_values(results, "test_mean_answer_reward")
columns = ["n", "mean", "std", "half_width", "t_half_width", "min", "max"]
summarize(finals)[columns].round(3)

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9.2, 3.8), layout="constrained")
plot_curves(axes[0], results, "curve_mean_answer_reward")
axes[0].set(title="Right answers, validation", ylabel="share")
axes[0].legend(loc="lower right")
plot_finals(axes[1], finals)
axes[1].set(title="Right answers, test, at the end", ylabel="share")
axes[1].tick_params(axis="x", labelsize=8)
for ax in axes:
    ax.set_ylim(-0.03, 1.03)
plt.show()

# %% [markdown]
# *Left: every seed faintly, the mean of each prompt with μ ± 1.96 σ/√n. Right: a dot for each seed
# and the mean with the same interval. The lines begin apart; look at where they are after thirty
# steps, and at the end.*

# %%
verdicts = compare_all(finals, "r1_zero")
for verdict in verdicts:
    print(verdict)

# %% tags=["check"]
assert [v.variant for v in verdicts] == prompts[1:]
for verdict in verdicts:
    gap = finals.pivot(index="seed", columns="variant", values="value")
    gap = (gap[verdict.variant] - gap["r1_zero"]).mean()
    assert math.isclose(verdict.difference, gap)
    assert (verdict.word == "can't tell") == (
        verdict.low <= 0 <= verdict.high
    )

# %% [markdown]
# The same between the two other prompts. This comparison was not announced, so it can suggest, and
# not decide.

# %%
print(compare(finals, "r1_zero_three_shot", "question_only"))

# %% tags=["check"]
if profile == "pocket":
    means = summarize(finals)["mean"]
    assert (means > 0.58).all() and np.ptp(means) < 0.05
    shots = verdicts[0]
    gaps = finals.pivot(index="seed", columns="variant", values="value")
    gaps = gaps["r1_zero_three_shot"] - gaps["r1_zero"]
    assert abs(shots.difference + 0.035) < 0.0005 and (gaps < 0).all()
    assert (
        abs(shots.low + 0.076) < 0.0005 and abs(shots.high - 0.007) < 0.0005
    )

# %% [markdown]
# At pocket scale all three means lie within five points. That is not to say that the prompts end
# equal: three-shot ends 3.5 points below `r1_zero`, in each of the four seeds, and its interval
# reaches from −.076 to +.007. Four seeds can't tell whether the examples cost something in the end.
#
# At pocket scale one thing more than the prompt differs: the runs of `r1_zero`, which are the
# standard ones of {doc}`14_on_policy_results`, were made on another processor, with an earlier
# version of the package. The arithmetic is the same up to rounding. But a sampled token hangs on
# it now and then, so that runs of one seed part after some steps and share only their problems and
# first answers. {doc}`22_your_own_estimator` has pairs made on two processors beside pairs made on
# one.

# %%
processors("prompt-ablation", profile).to_frame()

# %% tags=["check"]
if profile == "pocket":
    kinds = processors("prompt-ablation", profile).reset_index("processor")
    others = kinds.drop(index="r1_zero")["processor"]
    assert set(others) == {"AVX2"}
    assert kinds.loc["r1_zero", "processor"] == "AVX512"

# %% [markdown]
# ## What is left of a head start
#
# A prompt under which the policy starts better has a head start. The difference to `r1_zero` in the
# share of right validation answers, seed by seed, with its $t$ interval: at the start, after ten
# and thirty steps, and at the end.

# %%
validation = rows_of(results, "curve_mean_answer_reward")
known = sorted(set(validation["step"]))
steps = [step for step in (0, 10, 30, last) if step in known]
gaps = {
    step: compare_all(validation[validation["step"] == step], "r1_zero")
    for step in steps
}
pd.DataFrame(
    {
        f"step {step}": {
            gap.variant: f"{gap.difference:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
            for gap in at_step
        }
        for step, at_step in gaps.items()
    }
)

# %% tags=["check"]
if profile == "pocket":
    three_shot = {step: at_step[0] for step, at_step in gaps.items()}
    boxing = {step: at_step[1] for step, at_step in gaps.items()}
    assert three_shot[0].word == three_shot[10].word == "better"
    assert three_shot[10].difference > 0.2
    assert three_shot[last].word == "can't tell"
    assert three_shot[last].high < 0.02
    assert {gap.word for gap in boxing.values()} == {"can't tell"}

# %% [markdown]
# At pocket scale three examples are worth about 17 steps at first: after ten steps the three-shot
# runs stand where those of `r1_zero` come to between their twentieth and thirtieth. At the end no
# lead is seen, and one of more than two points is outside the interval. And `question_only`, whose
# greedy policy is never paid at the start, keeps pace with `r1_zero` from the first steps on: no
# column of the table tells the two apart, with intervals that leave room for some points.

# %%
table = validation.groupby(["step", "variant"], sort=False)["value"].mean()
table.unstack().loc[known[::2], prompts].round(3)

# %% tags=["check"]
if profile == "pocket":
    means_at = table.unstack()
    reached = means_at.loc[10, "r1_zero_three_shot"]
    assert means_at.loc[20, "r1_zero"] < reached < means_at.loc[30, "r1_zero"]
    (_, low), (_, high) = means_at["r1_zero"].loc[[20, 30]].items()
    assert abs(20 + 10 * (reached - low) / (high - low) - 10 - 17) < 0.5

# %% [markdown]
# So "sharpening" does not describe all that GRPO did here. A policy that is paid for boxes and
# prefers "The answer is" learned to write boxes, since it sampled a few. What is never sampled is
# never rewarded; what is sampled in one answer of eight is found within a few steps.
#
# ## Which has the smaller spread?
#
# The assignment also asks for the spread. A standard deviation over four seeds is known even less
# than their mean. For normal values the ratio of two variances, divided by that of the true ones,
# has Fisher's $F$ distribution with $n_1 - 1$ and $n_2 - 1$ degrees of freedom. With four seeds
# each, 95 % of it lies between $1/15.4$ and $15.4$: two equally steady methods can show standard
# deviations that differ almost fourfold.

# %%
quantile = f.ppf(0.975, 3, 3)
print(f"F {quantile:.2f}, in standard deviations {math.sqrt(quantile):.2f}")

# %% tags=["check"]
assert abs(quantile - 15.44) < 0.005
draws = np.random.default_rng(0).normal(size=(20_000, 2, 4)).std(axis=2)
ratio = draws[:, 0] / draws[:, 1]
apart = (ratio > math.sqrt(quantile)) | (ratio < 1 / math.sqrt(quantile))
assert abs(apart.mean() - 0.05) < 0.005


# %%
def spread_ratio(one: pd.Series, other: pd.Series) -> tuple[float, ...]:
    """Ratio of two standard deviations, and its 95 % interval."""
    ratio = one.std() / other.std()
    n, m = len(one) - 1, len(other) - 1
    return (
        ratio,
        ratio / math.sqrt(f.ppf(0.975, n, m)),
        ratio * math.sqrt(f.ppf(0.975, m, n)),
    )


by_prompt = finals.pivot(index="seed", columns="variant", values="value")
for one, other in combinations(prompts, 2):
    ratio, low, high = spread_ratio(by_prompt[one], by_prompt[other])
    word = "can't tell" if low <= 1 <= high else "differs"
    print(f"{one} / {other}: {ratio:.2f} ({low:.2f} to {high:.2f}): {word}")

# %% tags=["check"]
even = pd.Series([1.0, 2.0, 3.0, 4.0])
ratio, low, high = spread_ratio(4 * even, even)
assert math.isclose(ratio, 4) and low > 1
ratio, low, high = spread_ratio(3.9 * even, even)
assert low < 1 < high and math.isclose(ratio**2, low * high)

# %% [markdown]
# And has any run collapsed, by the rule of {doc}`14_on_policy_results`, below half of the best?

# %%
stability(finals).round(2)

# %% [markdown]
# ## What each learns

# %% tags=["hide-input"]
panels = {
    "In format, validation": ("curve_mean_format_reward", "share"),
    "Token entropy, validation": ("curve_token_entropy", "nats"),
    "Response length, validation": ("curve_response_length", "tokens"),
    "Groups without signal": ("no_signal_group_share", "share"),
}
in_tens = binned(results, 10)
figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.0), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    smooth = not metric.startswith("curve")
    plot_curves(ax, in_tens if smooth else results, metric)
    ax.set(title=title, ylabel=unit)
handles = axes[0, 0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# *Seeds are faint, means thick, the band is ± 1.96 σ/√n; the last panel shows means over ten steps.
# At pocket scale the format is what sets the prompts apart at the start, and it is learned within
# thirty to fifty steps under each. Entropy falls under all three.*

# %%
answers = read_answers("prompt-ablation", profile)
kept = answers[answers["seed"] == 0]
before, after = (
    kept[kept["step"] == step] for step in (0, kept["step"].max())
)
n_shown = 3
side_by_side = before.groupby("variant", sort=False).head(n_shown)
side_by_side = side_by_side[
    ["variant", "question", "gold", "response"]
].assign(
    after=after.groupby("variant", sort=False)
    .head(n_shown)["response"]
    .values
)
HTML(as_html(side_by_side.rename(columns={"response": "before"})))

# %% tags=["check"]
assert set(answers["variant"]) == set(prompts)
assert (side_by_side.groupby("variant").size() == n_shown).all()
format_at = rows_of(results, "curve_mean_format_reward").pivot_table(
    index="step", columns="variant", values="value"
)
if profile == "pocket":
    assert (format_at.loc[last] > 0.95).all()
    assert format_at.loc[0, "question_only"] < 0.2
    assert (format_at.loc[50] > 0.9).all()
    entropy = rows_of(results, "curve_token_entropy").pivot_table(
        index="step", columns="variant", values="value"
    )
    assert (entropy.loc[last] < 0.5 * entropy.loc[0]).all()

# %% [markdown]
# Each policy has learned the ending that its prompt pays, and under each the working looks alike.
# How often do the kept answers at the end contain a box, or the answer tag?

# %%
at_end = answers[answers["step"] == answers["step"].max()]
marks = {
    "\\boxed{": "a box",
    "<answer>": "the tag",
    "The answer is": "the words",
}
pd.DataFrame(
    {
        name: at_end.groupby("variant", sort=False)["response"].apply(
            lambda texts, mark=mark: texts.str.contains(
                mark, regex=False
            ).mean()
        )
        for mark, name in marks.items()
    }
).round(2)

# %% [markdown]
# ## What a longer prompt costs
#
# The three-shot prompt has more than twice the tokens of `r1_zero`, in front of each problem, at
# each step and for ever after: a policy that was trained under it must be asked under it. An engine
# that keeps a prompt's keys once for its group (chapter {doc}`07_rollouts`) reads it once for eight
# answers; training reads it once more. Tokens a step, prompts counted once a group:

# %%
questions = load_problems(experiment_config("on-policy", "pocket"), "train")
longest = {
    name: np.mean(
        [
            len(tokenizer(prompt.format(p.question))["input_ids"])
            for p in questions[:256]
        ]
    )
    for name, prompt in fixed.items()
}
lengths = rows_of(results, "train_response_length").groupby("variant")[
    "value"
]
config = configs["r1_zero"]
cost = pd.DataFrame(
    {
        "a prompt": longest,
        "prompts": {
            name: tokens * config.prompts_per_step
            for name, tokens in longest.items()
        },
        "answers": lengths.mean() * config.rollout_batch_size,
    }
).loc[prompts]
cost.round(0).astype(int)

# %% tags=["check"]
if profile == "pocket":
    tokens = cost["prompts"] + cost["answers"]
    assert 1.4 < tokens["r1_zero_three_shot"] / tokens["r1_zero"] < 1.6
    assert longest["r1_zero_three_shot"] > 2 * longest["r1_zero"]

# %% [markdown]
# So a step under the three-shot prompt processes about half as many tokens again as one under
# `r1_zero`. The head start of some 17 steps is paid for by every step that follows, and by every
# question that the trained policy is asked.
#
# ## How far this goes
#
# None of the reports that {doc}`14_on_policy_results` cites has figures for other prompts, so there
# is nothing to put beside these. Two things would be different at full scale. A base model that
# solves nothing under a prompt samples no answer that is paid, and gets no gradient: there a head
# start decides between learning and not learning, and not between thirty steps and fifty. And the
# pocket policy has seen all three prompts in its pretraining text, boxes among them, which no one
# can promise of OLMo-2. `gsmrl record prompt-ablation --profile two_gpu` makes the runs.

# %% tags=["check"]
from gsmrl_helpers.pocket_corpus import DOCUMENT_SHARES

assert {"r1_zero", "few_shot", "boxed"} <= DOCUMENT_SHARES.keys()

# %% [markdown]
# ## Take away
#
# - A prompt is a text, a reward and a stop. Runs under two prompts are runs of two tasks.
# - Before training look at what is sampled and at what is likeliest. The gradient can lift what is
#   sampled, be it the likeliest or not.
# - A head start at step 0 says little about step 100.
# - Four seeds tell means that differ by some points, and standard deviations that differ fourfold.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Steps ahead
# :label: ex-16-steps-ahead
#
# *Medium, 15 minutes.* Write `steps_ahead(curve, other, step)`: at which step `other` first comes
# to where `curve` is at `step`, minus `step`. Both are series of means, indexed by step; between
# two known steps `other` is a straight line. Return `math.inf` if it never comes there.
#
# :::{dropdown} Hint
# Walk through neighbouring pairs of `other`; where the first is below the level and the second is
# not, solve for the crossing.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def steps_ahead(curve: pd.Series, other: pd.Series, step: int) -> float:
    level = curve[step]
    if other.iloc[0] >= level:
        return other.index[0] - step
    pairs = zip(other.items(), list(other.items())[1:], strict=False)
    for (before, low), (after, high) in pairs:
        if low < level <= high:
            return (
                before
                + (level - low) / (high - low) * (after - before)
                - step
            )
    return math.inf


# %% tags=["check"]
slow = pd.Series([0.0, 0.2, 0.4, 0.6], index=[0, 10, 20, 30])
quick = pd.Series([0.3, 0.5, 0.7], index=[0, 10, 20])
assert math.isclose(steps_ahead(quick, slow, 0), 15)
assert math.isclose(steps_ahead(quick, slow, 10), 15)
assert steps_ahead(quick, slow, 20) == math.inf
assert steps_ahead(slow, quick, 10) == -10
if profile == "pocket":
    ahead = steps_ahead(
        means_at["r1_zero_three_shot"], means_at["r1_zero"], 10
    )
    assert 10 < ahead < 20

# %% [markdown]
# ```{exercise} All the ways to shuffle
# :label: ex-16-permutations
#
# *Medium, 15 minutes.* Is a difference in spread larger than luck? Write `shuffled_share(one,
# other)`: over all ways to deal the $n + m$ values into groups of $n$ and $m$, the share of those
# in which the absolute difference of the two standard deviations (with $n - 1$) is at least as
# large as the given one. Subtract each group's mean first, so that a difference in means does not
# count.
#
# :::{dropdown} Hint
# `itertools.combinations(range(n + m), n)` gives the first groups; 70 of them for four and four.
# Compare with a small tolerance, such as 1e-12, so that the given deal counts itself.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def shuffled_share(one: np.ndarray, other: np.ndarray) -> float:
    values = np.concatenate([one - one.mean(), other - other.mean()])
    given = abs(one.std(ddof=1) - other.std(ddof=1))
    deals = list(combinations(range(len(values)), len(one)))
    found = 0
    for deal in deals:
        first, rest = values[list(deal)], np.delete(values, deal)
        apart = abs(first.std(ddof=1) - rest.std(ddof=1))
        found += apart >= given - 1e-12
    return found / len(deals)


# %% tags=["check"]
wide, narrow = np.array([0.0, 9, 20, 31]), np.array([1.0, 2, 3, 4])
assert shuffled_share(narrow, narrow) == 1.0
assert shuffled_share(wide, narrow) == shuffled_share(narrow, wide)
assert 2 / 70 <= shuffled_share(wide, narrow) < 0.2
assert math.isclose(
    shuffled_share(wide + 7, narrow), shuffled_share(wide, narrow)
)

# %% [markdown]
# ```{exercise} A prompt of your own
# :label: ex-16-own-prompt
#
# *Easy, 10 minutes.* Write `one_shot(prompt)`: the prompt with one solved example before the
# question, in the form that its reward reads. For `r1_zero` use the first example of
# `r1_zero_three_shot`, for `question_only` the same example with a box. Everything but the text
# stays.
#
# :::{dropdown} Hint
# `dataclasses.replace(prompt, template=...)`. A template holds the field `{question}` once, where
# the new question goes; the example stands in front of `User: {question}`, or before the whole
# text.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def one_shot(prompt: Prompt) -> Prompt:
    from dataclasses import replace

    question = (
        "Mia has 3 apples and buys 4 more. How many apples does Mia have now?"
    )
    if prompt.reward_name == "question_only":
        example = (
            prompt.format(question) + "\n That is 3+4=7. So \\boxed{7}.\n"
        )
        return replace(prompt, template=example + prompt.template)
    working = " That is 3+4=7. </think> <answer> 7 </answer>"
    example = f"User: {question}\nAssistant: <think>{working}\n"
    return replace(
        prompt,
        template=prompt.template.replace(
            "User: {question}", example + "User: {question}"
        ),
    )


# %% tags=["check"]
three = get_prompt("r1_zero_three_shot")
for name in ("r1_zero", "question_only"):
    prompt = get_prompt(name)
    shown = one_shot(prompt)
    assert shown.reward_fn is prompt.reward_fn and shown.stop == prompt.stop
    text = shown.format("How many?")
    example = text[: text.rindex("How many?")]
    assert "3+4=7" in example and example.count("Mia has 3 apples") == 1
    solution = example[example.index(" That is") :].splitlines()[0]
    assert prompt.reward_fn(solution, "7")["answer_reward"] == 1.0
first = three.template.split("User: ")[1]
assert first in one_shot(get_prompt("r1_zero")).template + "\n"

# %% [markdown]
# ## Next
#
# {doc}`17_diagnostics` looks at single runs: which numbers tell a healthy one from one that has
# collapsed, and when.
