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
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import (
    curves,
    final_values,
    rows_of,
    summarize,
)
from gsmrl_helpers.rollouts import sample_rollouts
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
    assert start.loc["question_only", "in format"] < 0.2

# %% [markdown]
# {doc}`14_on_policy_results` found that the untrained policy knows more than it samples. Greedily,
# each token the likeliest, it solves most problems under `r1_zero`. The same question to all three
# prompts:


# %% tags=["nbval-ignore-output"]
def share_right(prompt: Prompt, temperature: float) -> float:
    """Right answers of the untrained policy to 128 validation problems."""
    return (
        sample_rollouts(
            LocalEngine(model.eval(), tokenizer),
            prompt,
            load_problems(configs["r1_zero"], "curve")[:128],
            group_size=1,
            seed=0,
            temperature=temperature,
            top_p=1.0,
            max_tokens=configs["r1_zero"].sampling_max_tokens,
        )
        .rewards.mean()
        .item()
    )


if profile == "pocket":
    greedy = {name: share_right(p, 0.0) for name, p in fixed.items()}
    print(
        {
            name: f"{share:.0%} right, greedily"
            for name, share in greedy.items()
        }
    )

# %% tags=["check"]
if profile == "pocket":
    assert greedy["question_only"] == 0.0
    assert 0.68 < greedy["r1_zero_three_shot"] < 0.80
    assert 0.82 < greedy["r1_zero"] < 0.91

# %% [markdown]
# Under `question_only` the greedy policy never writes a box. Its likeliest ending is the one of its
# pretraining text, "The answer is 16.", which this prompt does not pay. So the three prompts are
# three different tasks for a policy gradient. Under the r1_zero prompts the best-paid answers are
# the likeliest already, and sharpening is enough. Under `question_only` training has to lift an
# ending that is sampled in one answer of seven above another that is preferred.
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

# %% [markdown]
# ## What is left of a head start
#
# A prompt under which the policy starts better has a head start. The difference to `r1_zero` in the
# share of right validation answers, seed by seed, at the start, after ten and thirty steps, and at
# the end:

# %%
validation = rows_of(results, "curve_mean_answer_reward")
steps = [s for s in (0, 10, 30, last) if s in set(validation["step"])]
head_start = {
    step: compare_all(validation[validation["step"] == step], "r1_zero")
    for step in steps
}
pd.DataFrame(
    {
        f"step {step}": {
            v.variant: f"{v.difference:+.3f} ({v.low:+.3f} to {v.high:+.3f})"
            for v in verdicts_at
        }
        for step, verdicts_at in head_start.items()
    }
)

# %% [markdown]
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
# CAPTION

# %%
answers = read_answers("prompt-ablation", profile)
kept = answers[answers["seed"] == 0]
before, after = (
    kept[kept["step"] == step] for step in (0, kept["step"].max())
)
n_shown = 3
side_by_side = before.groupby("variant", sort=False).head(n_shown)
side_by_side = side_by_side[["variant", "question", "gold", "response"]].assign(
    after=after.groupby("variant", sort=False).head(n_shown)["response"].values
)
HTML(as_html(side_by_side.rename(columns={"response": "before"})))
