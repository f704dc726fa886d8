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
# # Run GRPO
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** launch any run of the course, at either scale, and read what it leaves
# behind: the metrics of each step, the rollouts, the manifest.
#
# **You need** the idea of a group of answers to one question, and of a reward that checks the
# final number. **Reading** takes 10 minutes, **running** half a minute, on a **CPU**.
# ```
#
# This notebook is the program that every experiment of the book launches. Opened as it is, it makes
# two small steps, enough to see that everything works. A real run is the same notebook with other
# parameters:
#
# ```bash
# gsmrl run on-policy --profile pocket --seeds 0
# ```
#
# executes it from the first cell to the last and keeps the executed copy beside the run's metrics.
# {doc}`/book/runs/on_policy_pocket` is such a copy.

# %% [markdown]
# ## Parameters
#
# `profile` chooses the scale, `experiment` and `variant` choose settings from the catalogue, and
# `overrides` changes single settings of this run. An `output_dir` keeps the run; left empty, the
# run goes to a temporary folder.

# %% tags=["parameters"]
profile = "pocket"
experiment = "smoke"
variant = "standard"
seed = 0
output_dir = ""
overrides = {}

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from IPython.display import HTML

from gsmrl_helpers import experiment_config, load_problems, train
from gsmrl_helpers.experiments import run_command
from gsmrl_helpers.live import live_progress
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.plots import plot_run, use_style
from gsmrl_helpers.records import (
    METRICS,
    long_table,
    read_manifest,
    read_rollouts,
    read_rows,
)
from gsmrl_helpers.tables import as_html

use_style()
config = experiment_config(experiment, profile, variant, seed, overrides)
run_dir = (
    ROOT / output_dir
    if output_dir
    else Path(tempfile.mkdtemp(prefix="grpo-"))
)

# %% [markdown]
# The settings that decide the run. Those of the algorithm stand where the assignment puts them;
# sizes, learning rate and precision differ between a laptop and two GPUs.

# %%
shown = [
    *(
        "prompt",
        "n_grpo_steps",
        "rollout_batch_size",
        "group_size",
        "sampling_max_tokens",
    ),
    *("train_batch_size", "learning_rate", "adam_betas", "max_grad_norm"),
    *(
        "baseline",
        "advantage_normalizer",
        "loss_normalization",
        "importance_reweighting_method",
    ),
]
pd.Series(
    {name: getattr(config, name) for name in shown}, name="setting"
).to_frame()

# %% tags=["check"]
assert (
    config.rollout_batch_size == config.prompts_per_step * config.group_size
)
assert config.rollout_batch_size % config.train_batch_size == 0

# %% [markdown]
# ## What the policy sees
#
# A problem of the validation split, inside the prompt. Generation starts right after `<think>` and
# stops at `</answer>`; the reward is 1 if the number between the answer tags equals the gold
# answer, else 0. Format is counted, not paid.

# %%
problem = load_problems(config, "curve")[0]
prompt = config.prompt_object()
print(prompt.format(problem.question))
print("\ngold:", problem.gold, "| stops at:", prompt.stop)

# %% tags=["check"]
right = (
    f" So it is {problem.gold}. </think> <answer> {problem.gold} </answer>"
)
untagged = f" So it is {problem.gold}."
if prompt.reward_name == "r1_zero":
    assert prompt.reward_fn(right, problem.gold)["reward"] == 1
    assert prompt.reward_fn(untagged, problem.gold)["reward"] == 0

# %% [markdown]
# ## The run
#
# One step samples $G$ answers to each of $B$ questions, grades them, turns the rewards $r$ into
# advantages $A$ within each group, and takes one optimizer step along the estimate
#
# $$
# \hat g = \frac{1}{BG} \sum_{i=1}^{B} \sum_{j=1}^{G} \frac{1}{L_{ij}} \sum_{t=1}^{L_{ij}}
# A_{ij}\, \nabla_\theta \log \pi_\theta\big(y_{ij,t} \mid x_i, y_{ij,<t}\big),
# \qquad A_{ij} = \frac{r_{ij} - \mu_i}{\mathrm{std}_i + \epsilon},
# $$
#
# with $L_{ij}$ the length of an answer in tokens, $\mu_i$ and $\mathrm{std}_i$ the mean and the
# standard deviation of its group's rewards. Where all answers of a group earn the same, its
# advantages are 0 and it teaches nothing.
#
# Validation answers problems that no update has seen. A run that is stopped goes on from its last
# checkpoint when it is started again in the same folder.

# %% tags=["nbval-ignore-output"]
with live_progress(config.n_grpo_steps) as on_row:
    command = run_command(experiment, profile, variant, seed, overrides)
    train(config, run_dir, on_row, command)

# %% tags=["check"]
rows = read_rows(run_dir / METRICS)
assert [row["step"] for row in rows] == list(range(config.n_grpo_steps + 1))
assert read_manifest(run_dir)["status"] == "finished"
assert all(row["mean_ratio"] is None for row in rows[1:]) == (
    config.importance_reweighting_method == "none"
    and config.train_batch_size == config.rollout_batch_size
)

# %% [markdown]
# `metrics.jsonl` has one row a step. A metric that was not computed is null, never 0: on fresh
# rollouts there is no old policy, so there is no ratio to report. The same numbers in long form,
# one line a number, are what every figure of the book is drawn from.

# %% tags=["nbval-ignore-output"]
table = long_table(run_dir)
some = ["train_mean_reward", "curve_mean_reward", "grad_norm"]
table[table["metric"].isin(some)].tail(6)

# %% [markdown]
# ## What happened

# %% tags=["nbval-ignore-output"]
figure = plot_run(table)

# %% [markdown]
# *The run, step by step. "train" is measured on the sampled batch before its update, "curve" on
# validation problems after it. What to look for in a full run: right answers and format rise
# together, groups without signal first become fewer (the policy finds right answers at all) and
# then more (it finds nothing else), and entropy falls as the policy settles.*

# %% tags=["nbval-ignore-output"]
first, last = rows[0], rows[-1]
for name, metric in {"right": "answer", "in format": "format"}.items():
    start, end = (row[f"curve_mean_{metric}_reward"] for row in (first, last))
    print(f"{name} on the curve split: {start:.1%} -> {end:.1%}")
print(f"right on the test split, at the end: {last['test_mean_reward']:.1%}")

# %% tags=["check"]
assert all(
    0 <= row["train_mean_reward"] <= row["train_mean_format_reward"] <= 1
    for row in rows[1:]
)
if (profile, config.prompt) == (
    "pocket",
    "r1_zero",
):  # the untrained policy, on few problems
    assert (
        first["curve_mean_reward"]
        < 0.35
        < first["curve_mean_format_reward"]
        < 0.85
    )

# %% [markdown]
# ## Rollouts, before and after
#
# Numbers say that something changed, answers say what. The same problems, answered by the policy
# before the first and after the last step.

# %% tags=["nbval-ignore-output"]
before = read_rollouts(run_dir, "curve", 0)
after = read_rollouts(run_dir, "curve", config.n_grpo_steps)
answers = before[["question", "gold"]].assign(
    before=before["response"], after=after["response"]
)
HTML(as_html(answers.head(6)))

# %% tags=["check"]
assert (before["question"] == after["question"]).all()
assert before["reward"].mean() == first["curve_mean_reward"]

# %% [markdown]
# ## Take away
#
# - A run is a profile, a variant's settings and a seed; they and the versions of everything stand
#   in its manifest. The same seed with the same number of threads on the same machine gives the
#   same tokens.
# - Training reward is measured while the policy changes, on problems it is about to learn from.
#   Judge a run by problems that it never trains on.
# - Format and answer are logged apart, because either can rise without the other.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Groups without signal
# :label: ex-13-no-signal
#
# *Easy, 5 minutes.* Write `no_signal_share(rewards, group_size)`: the share of the groups in which
# all rewards are equal. The rewards are in one row, answers to one question side by side. The check
# counts them at the first step whose rollouts were saved, and compares with the metric.
#
# :::{dropdown} Hint
# Reshape to (groups, group size) and compare each group with its first reward.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def no_signal_share(rewards: np.ndarray, group_size: int) -> float:
    groups = rewards.reshape(-1, group_size)
    return (groups == groups[:, :1]).all(axis=1).mean()


# %% tags=["check"]
saved = min(config.save_rollouts_every, config.n_grpo_steps)
rewards = read_rollouts(run_dir, "train", saved)["reward"].to_numpy()
share = no_signal_share(rewards, config.group_size)
assert abs(share - rows[saved]["no_signal_group_share"]) < 1e-6

# %% [markdown]
# ## Next
#
# {doc}`/book/runs/on_policy_pocket` shows the full run that the `pocket` profile describes.
