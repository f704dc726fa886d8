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
# # The pocket world
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what the small world of this book consists of, how good its policy is
# before any reinforcement learning, and how far standard GRPO takes it.
#
# **You need** nothing. **Reading** takes 8 minutes, **running** less than a minute, on a **CPU**.
# ```
#
# Every chapter runs at two scales. The large one is OLMo-2 with one billion parameters on GSM8K; it
# wants two GPUs. The small one, *pocket*, wants two CPU cores: a real OLMo-2 with less than one
# million parameters, on generated word problems. {doc}`/data/README` says how both were made. Here
# we look at them.

# %%
import re

import matplotlib.pyplot as plt
import pandas as pd

from gsmrl_helpers import (
    experiment_config,
    get_prompt,
    load_pocket_problems,
    load_policy,
)
from gsmrl_helpers.plots import plot_metric, use_style
from gsmrl_helpers.pocket_problems import recompute_gold
from gsmrl_helpers.recordings import read_recording

use_style()
config = experiment_config("on-policy", "pocket")

# %% [markdown]
# ## Problems
#
# A problem is a question, a worked answer in GSM8K's format, and a gold answer, which is what
# stands after `####`.

# %%
problem = load_pocket_problems("dev", 1, difficulty=config.difficulty)[0]
print(problem.question)
print(problem.answer)

# %% [markdown]
# No model is needed to check one: every calculation between `<<` and `>>` is done again, on numbers
# that must come from the question.

# %% tags=["check"]
problems = load_pocket_problems("dev", 200, difficulty=config.difficulty)
assert all(recompute_gold(p) == int(p.gold) for p in problems)

# %% [markdown]
# The difficulty dial turns one-step stories with small numbers into two-step stories with larger
# ones.

# %%
for difficulty in (0.0, 0.5, 1.0):
    example = load_pocket_problems("train", 1, seed=2, difficulty=difficulty)[
        0
    ]
    print(f"{difficulty}: {example.question}")

# %% tags=["check"]
easy, hard = (
    load_pocket_problems("dev", 200, difficulty=d) for d in (0.0, 1.0)
)
assert all(p.answer.count("<<") == 1 for p in easy)
assert all(p.answer.count("<<") == 2 for p in hard)
assert max(int(n) for p in easy for n in re.findall(r"\d+", p.question)) == 9

# %% [markdown]
# ## The policy
#
# It is small, but nothing about it is special: `AutoModelForCausalLM` loads it, and its digits are
# tokens of their own, as sums are easier that way.

# %%
model, tokenizer = load_policy(config)
n_parameters = sum(p.numel() for p in model.parameters())
print(
    type(model).__name__,
    f"{n_parameters:,} parameters, {len(tokenizer)} tokens",
)
print(tokenizer.tokenize(" 12+7=19. </think>"))

# %% tags=["check"]
assert type(model).__name__ == "Olmo2ForCausalLM" and n_parameters < 1_000_000
assert tokenizer.tokenize("12+7=19") == list("12+7=19")

# %% [markdown]
# ## How good it is untrained
#
# One answer to each of 1,024 problems at temperature 1, under the three prompts of the assignment.
# The prompt decides what the policy does: it rarely uses a box when asked to, it keeps the
# format of three examples nearly always, and it is right most often when it has seen examples.

# %%
recorded = read_recording("prompts").pivot(
    index="variant", columns="metric", values="value"
)
columns = [
    "dev_mean_answer_reward",
    "dev_mean_format_reward",
    "dev_response_length",
]
untrained = (
    recorded[columns]
    .round(3)
    .set_axis(["right", "in format", "tokens"], axis=1)
)
untrained

# %% tags=["check"]
assert untrained.loc["question_only", "in format"] < 0.3
assert untrained.loc["r1_zero_three_shot", "in format"] > 0.85
assert untrained["right"].idxmax() == "r1_zero_three_shot"

# %% [markdown]
# ## What reinforcement learning does to it
#
# Standard GRPO with the `r1_zero` prompt, four seeds. A seed decides which problems come in which
# order and what is sampled; the policy at the start is the same.

# %%
runs = read_recording("on-policy")
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.4), layout="constrained"
)
for ax, reward, title in (
    (left, "answer", "Right answers"),
    (right, "format", "In format"),
):
    plot_metric(ax, runs, f"train_mean_{reward}_reward", "train")
    plot_metric(ax, runs, f"curve_mean_{reward}_reward", "curve")
    ax.set(title=title, xlabel="step", ylabel="share", ylim=(-0.03, 1.03))
    ax.legend(loc="lower right")

# %% [markdown]
# *Each thin line is a seed, the thick one their mean, the band its 95 % t interval. "train" is the
# sampled batch, "curve" are 256 validation problems. Look at the order of events: when half of
# the answers are right, more than 85 % are in format.*

# %%
start = recorded.loc[
    "r1_zero", ["dev_mean_answer_reward", "test_mean_answer_reward"]
]
last = runs[runs["metric"].isin(start.index)].pivot(
    index="seed", columns="metric", values="value"
)
summary = last.T.assign(start=start, mean=last.mean())[
    ["start", *last.index, "mean"]
]
summary.rename(index=lambda metric: metric.split("_")[0]).round(
    3
).rename_axis(None, axis=1)

# %% tags=["check"]
assert (last.min() > 0.45).all() and (last.mean() > 0.55).all()
assert (last.mean() >= 3 * start).all()
by_step = runs.groupby(["metric", "step"])["value"].mean()
half_way = by_step["curve_mean_answer_reward"].ge(0.5).idxmax()
assert by_step["curve_mean_format_reward", half_way] > 0.85

# %% [markdown]
# ## Learning rates
#
# The same run with a twentieth and with twenty times the profile's learning rate, one seed each.
# The first hardly moves. The second finds the format at once, and then forgets how to solve
# problems: full format, no right answers, shorter ones.

# %%
rates = read_recording("learning-rate")
names = {"x0.05": "too low", "x1": "as tuned", "x20": "too high"}
panels = {
    "mean_answer_reward": ("Right answers", "share"),
    "mean_format_reward": ("In format", "share"),
    "response_length": ("Response length", "tokens"),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
for ax, (metric, (title, unit)) in zip(axes, panels.items(), strict=True):
    for variant, name in names.items():
        runs_of_rate = rates[rates["variant"] == variant]
        plot_metric(ax, runs_of_rate, f"train_{metric}", name)
    ax.set(title=title, xlabel="step", ylabel=unit)
    ax.legend(fontsize=7)

# %% [markdown]
# *Measured on the sampled batch of each step. The three start from the same policy; look at the
# left and the middle panel together: reward for the answer and format come apart.*

# %% tags=["check"]
late = (
    rates[rates["step"] > 90].groupby(["variant", "metric"])["value"].mean()
)
answer = late.xs("train_mean_answer_reward", level="metric")
in_format = late.xs("train_mean_format_reward", level="metric")
length = late.xs("train_response_length", level="metric")
assert answer["x20"] < 0.1 < answer["x0.05"] < 0.3 < 0.5 < answer["x1"]
assert in_format["x20"] > 0.9 and length["x20"] < length["x1"]

# %% [markdown]
# ## What it is asked
#
# The text that precedes every answer of those runs, as the policy sees it.

# %%
print(get_prompt("r1_zero").format(problem.question))

# %% [markdown]
# ## Take away
#
# - The pocket policy *can* work out most of these problems, and untrained it rarely does.
#   Pretraining gave it coverage; reinforcement learning gives it precision, out of nothing but a
#   checker.
# - All of this is small enough to be run again: `gsmrl record --help`.
#
# ## Exercises

# %% [markdown]
# ```{exercise} The dial
# :label: ex-00-dial
#
# *Easy, 5 minutes.* The recording `difficulty` has the untrained policy at six settings of the
# dial. Write `fall(recording, metric)`: how much lower a metric is at the hardest setting, 1.0,
# than at the easiest, 0.0. Does the format fall as the share of right answers does?
#
# :::{dropdown} Hint
# Each row has a `variant` (the setting, as text), a `metric` and a `value`: select, then subtract.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def fall(recording: pd.DataFrame, metric: str) -> float:
    rows = recording[recording["metric"] == metric]
    by_setting = rows.set_index("variant")["value"]
    return by_setting["0.0"] - by_setting["1.0"]


# %% tags=["check"]
dial = read_recording("difficulty")
right = fall(dial, "dev_mean_answer_reward")
in_format = fall(dial, "dev_mean_format_reward")
assert right > 0.05 and abs(in_format) < 0.1
toy = pd.DataFrame({"variant": ["1.0", "0.0", "0.8"], "value": [3, 2, 9]})
assert fall(toy.assign(metric="any"), "any") == -1
print(f"right: {right:.3f} lower, in format: {in_format:.3f} lower")

# %% [markdown]
# ## Next
#
# {doc}`01_language_model_as_policy` begins with the gradient. {doc}`13_run_grpo` is the program
# behind these runs.
