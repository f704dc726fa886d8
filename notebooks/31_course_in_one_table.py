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
# # The course in one table
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say where reinforcement learning stands in the making of a
# language model, one thought for each part of CS336, and what the course's last lecture leaves its
# listeners with.
#
# **You need** nothing. **Reading** takes 5 minutes, **running** a second, on a **CPU**.
# ```
#
# This book follows the last assignment of a course that builds a language model from the beginning.
# Seventeen lectures of it fall into seven parts. Each can be brought down to one thought; the words
# are those of the course's translators into Russian, not of its lecturers.

# %%
import pandas as pd

PARTS = """
Foundations | 1 2 | Efficiency decides: count bytes and FLOPs. | 1
Architecture | 3 4 | All modern blocks are alike; experts buy parameters by sparsity. | 1
Systems | 5 6 7 8 | Computing is cheap, moving data is dear, in a GPU and between GPUs. | 2
Scaling | 9 11 | What a large model should be is decided on small ones. | 3
Inference, evaluation | 10 12 | Generation is bound by memory; no evaluation is the right one. | –
Data | 13 14 | Data doesn't fall from the sky: filters and deduplication decide. | 4
Post-training | 15 16 17 | SFT brings out what is there, RL optimises what can be measured. | 5
"""

# %% tags=["hide-input"]
from IPython.display import HTML

from gsmrl_helpers.tables import as_html

rows = [line.split(" | ") for line in PARTS.strip().splitlines()]
heads = ["part", "lectures", "one thought", "assignment"]
table = pd.DataFrame(rows, columns=heads)
HTML(as_html(table))

# %% tags=["check"]
lectures = sorted(map(int, " ".join(table["lectures"]).split()))
assert len(table) == 7 and lectures == list(range(1, 18))
assert set(table["assignment"]) - {"–"} == set("12345")

# %% [markdown]
# ## Where this book stands in it
#
# In the last row. The policy comes from the rows above: an architecture, trained on filtered data,
# at a size that small models decided. What {doc}`29_hardware` plans, memory and the traffic between
# two GPUs, is the third row's subject. That sampling is bound by memory is the fifth's. And the
# thought of the last row is the one that the experiments come back to: at pocket scale GRPO mostly
# brings out what the policy could do already ({doc}`14_on_policy_results`), and what it optimises
# is what was measured, wanted or not ({doc}`06_reward_functions`).
#
# ## Four theses at the end
#
# (claim-L13)=
# The lecture on policy gradients closes with four:
#
# 1. Reinforcement learning is the key to go beyond what people can do.
# 2. What you can measure, you can optimise.
# 3. The idea of a policy gradient is clear; it needs baselines against its variance.
# 4. Systems for reinforcement learning are much more complex than those for pretraining: they have
#    to run inference, and to keep several models.
#
# Which of them can the chapters speak to? The second, with a warning: {doc}`06_reward_functions`
# optimises a format, a bonus and a list of numbers, each measured without fault, and gets what was
# measured. The third, whole: {doc}`02_baselines_and_variance` derives what a baseline does, and
# {doc}`18_difficulty_reweighting` what a normaliser does besides. The fourth: {doc}`07_rollouts`
# and {doc}`29_hardware` are there because of it. Of the first the book shows nothing. Its problems
# are those of grade school, and people can solve them.
#
# ## Take away
#
# - Post-training is one part of seven, and inherits from all the others.
# - What can be measured can be optimised. So measure what you want.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Where is it taught?
# :label: ex-31-where
#
# *Easy, 5 minutes.* Write `part_of(lecture)`: the part that a lecture belongs to, from `table`.
#
# :::{dropdown} Hint
# `row.lectures.split()` has a row's lectures, as texts.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def part_of(lecture: int) -> str:
    for row in table.itertuples():
        if str(lecture) in row.lectures.split():
            return row.part
    raise ValueError(f"lecture={lecture}: there are 1 to 17")


# %% tags=["check"]
assert [part_of(lecture) for lecture in (1, 10, 17)] == [
    *("Foundations", "Inference, evaluation", "Post-training")
]
assert part_of(11) == "Scaling" and part_of(12) == "Inference, evaluation"

# %% [markdown]
# ## Next
#
# That was the last page to be read in order. What was left out of the book, and what is known of
# it, is on the page {doc}`/book/status`.
