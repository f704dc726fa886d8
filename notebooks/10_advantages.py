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
# # Advantages
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** turn the rewards of a group of responses into advantages under each
# baseline and normaliser of the assignment, say what each choice does to easy and to hard
# questions, and log what shows whether a batch can teach anything.
#
# **You need** the small batch of {doc}`08_tokenization_and_masks`. **Reading** takes 25 minutes,
# **running** half a minute, on a **CPU**.
# ```
#
# Policy gradient training raises or lowers the log-probability of each response that was sampled,
# each with its own weight. The reward could be that weight: 1 for a right answer, 0 for a wrong
# one. Then wrong answers teach nothing, and a right answer counts the same whether the question
# is always solved or was solved for the first time.
#
# The *advantage* is a weight that compares: how much better is this response than others to the
# same question? GRPO {cite}`shao2024deepseekmath` measures the others instead of predicting
# them. It samples a *group* of $G$ responses to each question and compares within the group.
#
# In the formulas $y_{ij}$ is response $j$ to question $i$, $r_{ij}$ its reward and $A_{ij}$ its
# advantage. A batch has $B$ questions, so $B$ groups and $N = B \cdot G$ responses.

# %%
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import matplotlib.pyplot as plt
import pandas as pd
import torch
from einops import rearrange
from IPython.display import HTML
from torch import Tensor

from gsmrl_helpers import small_batch
from gsmrl_helpers.advantage_explorer import advantage_explorer, plot_groups
from gsmrl_helpers.plots import line, plot_metric, use_style
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.tables import as_html

use_style()

# %% [markdown]
# ## Rewards
#
# A reward function gets a response and the right answer, and returns three numbers: `reward`, the
# one that is paid, and its parts `format_reward` and `answer_reward`, which are logged. The small
# batch is graded by one that wants the right answer as the last number, and a full stop after it.

# %%
small_batch.last_number_reward_fn("so 4 . <eos>", "4")

# %% [markdown]
# People write their own reward functions, and a forgotten key or a NaN would spread through the
# whole update without an error. So each result is checked where it arrives.

# %% tags=["definition"]
from gsmrl_helpers.rewards import REWARD_KEYS


def checked_scores(scores: Mapping[str, float]) -> list[float]:
    """The three numbers, in the order of REWARD_KEYS."""
    missing = [key for key in REWARD_KEYS if key not in scores]
    if missing:
        raise ValueError(
            f"reward_fn returned {scores!r}, without {', '.join(missing)}"
        )
    values = [float(scores[key]) for key in REWARD_KEYS]
    if not all(map(math.isfinite, values)):
        raise ValueError(
            f"reward_fn returned {scores!r}: every reward must be finite"
        )
    return values


# %% tags=["check"]
def refusal(function: Callable, *args, **kwargs) -> str:
    """The message with which a call is refused."""
    try:
        function(*args, **kwargs)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{function.__name__} accepted this")


good = {"reward": 1, "format_reward": True, "answer_reward": 1.0}
assert checked_scores(good) == [1.0, 1.0, 1.0]
assert "without format" in refusal(checked_scores, {"reward": 1})
assert "finite" in refusal(checked_scores, good | {"reward": math.nan})

# %% [markdown]
# `compute_rollout_rewards` grades a batch. Response $n$ meets entry $n$ of
# `repeated_ground_truths`, the list in which each question's answer stands $G$ times.

# %% tags=["definition", "solution"]
from gsmrl_helpers.rewards import RewardFn


def compute_rollout_rewards(
    reward_fn: RewardFn,
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
) -> tuple[Tensor, dict[str, float | Tensor]]:
    """Raw rewards (N,), and the means and parts to log."""
    num_responses, num_truths = (
        len(rollout_responses),
        len(repeated_ground_truths),
    )
    if num_responses != num_truths or num_responses == 0:
        raise ValueError(
            "responses and ground truths must be equally many, and at least one: "
            f"got {num_responses} responses and {num_truths} ground truths"
        )
    pairs = zip(rollout_responses, repeated_ground_truths, strict=True)
    scores = [
        checked_scores(reward_fn(response, truth))
        for response, truth in pairs
    ]
    rewards, format_rewards, answer_rewards = torch.tensor(
        scores, dtype=torch.float32
    ).unbind(1)
    return rewards, {
        "mean_reward": rewards.mean().item(),
        "mean_format_reward": format_rewards.mean().item(),
        "mean_answer_reward": answer_rewards.mean().item(),
        "format_rewards": format_rewards,
        "answer_rewards": answer_rewards,
    }


# %% tags=["check"]
raw_rewards, metadata = compute_rollout_rewards(
    small_batch.last_number_reward_fn,
    small_batch.rollout_responses,
    small_batch.repeated_ground_truths,
)
assert raw_rewards.tolist() == [1, 0, 0, 1, 1, 0, 0, 0]
assert metadata["format_rewards"].tolist() == [1, 1, 1, 1, 1, 0, 1, 1]
assert metadata["mean_reward"] == 3 / 8
assert metadata["mean_format_reward"] == 7 / 8

# %% [markdown]
# Seven of the eight responses are in format and three are right. Only the last column is paid.

# %%
columns = {
    "prompt": small_batch.repeated_prompts,
    "response": small_batch.rollout_responses,
    "right answer": small_batch.repeated_ground_truths,
    "format": metadata["format_rewards"].int().tolist(),
    "reward": raw_rewards.int().tolist(),
}
HTML(as_html(pd.DataFrame(columns)))

# %% [markdown]
# ## Groups
#
# The rewards arrive as a flat vector, the $G$ responses to a question side by side. One line turns
# it into a table with a group in each row. From here on the chapter computes in float64, so that
# numbers can be compared with those on paper.

# %%
groups = rearrange(
    raw_rewards.double(),
    "(group response) -> group response",
    response=small_batch.GROUP_SIZE,
)
groups.int().tolist()

# %% [markdown]
# The line can't know whether the order is right. Suppose that question 1 is always solved,
# question 2 never, and that the responses arrive alternately. Neither question has anything to
# compare. The rows, however, mix the two, and each seems to have two winners and two losers: the
# update would reward having been asked question 1.

# %% tags=["check"]
solved, unsolved = torch.ones(4), torch.zeros(4)
in_order = torch.cat([solved, unsolved])
alternating = rearrange(
    [solved, unsolved], "group response -> (response group)"
)
for flat, right_in_row in ((in_order, [4, 0]), (alternating, [2, 2])):
    rows = rearrange(flat, "(group response) -> group response", response=4)
    assert rows.sum(dim=1).tolist() == right_in_row

# %% [markdown]
# ## The baseline
#
# What a response is compared with is called the *baseline*. GRPO takes the mean reward of the
# group, $\mu_i = \frac{1}{G} \sum_j r_{ij}$:
#
# $$A_{ij} = r_{ij} - \mu_i .$$

# %%
centred = groups - groups.mean(dim=1, keepdim=True)
centred.tolist()

# %% [markdown]
# Half of the first group is right, so its responses are .5 above or .5 below. In the second group
# one response in four is right. It stands out more, and gets .75. Wrong answers now have a
# negative weight: their probability goes down. In each group the weights sum to 0.

# %% tags=["check"]
assert centred[0].tolist() == [0.5, -0.5, -0.5, 0.5]
assert centred[1].tolist() == [0.75, -0.25, -0.25, -0.25]
assert centred.sum(dim=1).tolist() == [0.0, 0.0]

# %% [markdown]
# A baseline that does not depend on the response leaves the expected gradient as it is. This one
# does depend on it, a little: a response's own reward is one of the $G$ in the mean. The expected
# gradient keeps its direction and shrinks to $(G-1)/G$ of its length, as
# {doc}`02_baselines_and_variance` derives. {ref}`ex-10-leave-one-out` takes the factor out.
#
# ## The normaliser
#
# GRPO then divides by the group's standard deviation, $s_i$, so that every group's advantages
# are of the same size, whatever the rewards are counted in. A small $\varepsilon$ is added to it:
#
# $$A_{ij} = \frac{r_{ij} - \mu_i}{s_i + \varepsilon} .$$
#
# There are two standard deviations. The population's divides the sum of squares by $G$, the
# sample's by $G - 1$. Papers write "std" and seldom say which. `torch.std` is the sample's, and so
# is ours.

# %% tags=["check", "claim:W11a", "claim:W11b", "claim:W11c", "claim:W11d"]
half_right, one_wrong = torch.tensor(
    [[1.0, 0, 0, 1], [1.0, 1, 1, 0]]
).double()


def normalized(rewards: Tensor, correction: int) -> Tensor:
    """Centred rewards over their std, whose divisor is G - correction."""
    return (rewards - rewards.mean()) / rewards.std(correction=correction)


expected_half_right = {"population": 1.000, "sample": 0.866}
expected_one_wrong = {"population": -1.732, "sample": -1.500}
signs = torch.tensor([1.0, -1, -1, 1]).double()
for correction, name in enumerate(("population", "sample")):
    advantages = normalized(half_right, correction)
    wanted = expected_half_right[name] * signs
    assert torch.allclose(advantages, wanted, atol=6e-4, rtol=0)
    lone_wrong = normalized(one_wrong, correction)[3].item()
    assert abs(lone_wrong - expected_one_wrong[name]) < 6e-4

# %% [markdown]
# The advantage of a right and of a wrong response in both groups:

# %%
pd.DataFrame(
    {
        f"{kind}, divisor {divisor}": [
            extreme(normalized(rewards, correction)).item()
            for rewards in (half_right, one_wrong)
        ]
        for correction, divisor in enumerate(("G", "G − 1"))
        for kind, extreme in (("right", torch.max), ("wrong", torch.min))
    },
    index=["1, 0, 0, 1", "1, 1, 1, 0"],
).round(3)

# %% [markdown]
# Both divide the same sum of squares, once by $G$ and once by $G - 1$. So the advantages differ by
# the factor $\sqrt{(G-1)/G}$, and by nothing else: .707 for pairs, .866 for four, .935 for eight.

# %% tags=["check"]
generator = torch.Generator().manual_seed(0)
factors = {2: 0.707, 4: 0.866, 8: 0.935, 64: 0.992}
for group_size, factor in factors.items():
    rewards = torch.rand(group_size, generator=generator).double()
    ratio = normalized(rewards, 1) / normalized(rewards, 0)
    exact = math.sqrt((group_size - 1) / group_size)
    assert torch.allclose(ratio, torch.full_like(ratio, exact))
    assert round(exact, 3) == factor

# %% [markdown]
# The factor is the same for every response, so it scales the whole gradient. Plain gradient
# descent then moves .866 times as far, as with a smaller learning rate. Adam divides a gradient by
# its own running size, and the factor cancels. It comes back where a gradient meets an absolute
# number: a bound on its norm, or a KL term with a weight of its own.


# %% tags=["check"]
def distance_moved(optimizer_class: type, scale: float) -> float:
    """How far three steps go on the gradient `scale`."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = optimizer_class([weight], lr=0.01)
    for _ in range(3):
        weight.grad = torch.full_like(weight, scale)
        optimizer.step()
    return -weight.item()


for optimizer_class, ratio in (
    (torch.optim.SGD, 0.866),
    (torch.optim.Adam, 1),
):
    moved = [distance_moved(optimizer_class, scale) for scale in (0.866, 1.0)]
    assert math.isclose(moved[0], ratio * moved[1], rel_tol=1e-6)

# %% [markdown]
# ## Equal groups
#
# If all responses to a question get the same reward, nothing in the group is better than anything
# else. With a mean baseline its advantages are 0 and it adds nothing to the gradient. Such a group
# is called *empty*, or *degenerate*. The $\varepsilon$ in the divisor keeps it from being 0/0.
#
# These zeros must be exact. Training skips responses whose advantage is 0
# ({doc}`12_grpo_train_step`), and the log counts them; both compare with 0. Arithmetic does not
# always give it: the mean of three times 0.1 is not quite 0.1, and without $\varepsilon$ the
# rest of the rounding would be divided by its own size.

# %% tags=["check"]
equal = torch.full((1, 3), 0.1, dtype=torch.float64)
dust = equal - equal.mean(dim=1, keepdim=True)
assert (dust != 0).all() and dust.abs().max() < 1e-16
assert (dust / equal.std(dim=1, keepdim=True)).abs().min() > 0.1

# %% [markdown]
# So the rewards themselves are compared, before any arithmetic. Without a baseline the weight of a
# response is its reward, and only a group without any reward is empty.

# %% tags=["definition"]
from gsmrl_helpers.options import AdvantageNormalizer, Baseline


def groups_without_signal(groups: Tensor, baseline: Baseline) -> Tensor:
    """Which groups get advantages of 0: (B, G) rewards to (B, 1)."""
    level = groups[:, :1] if baseline == "mean" else 0.0
    return (groups == level).all(dim=1, keepdim=True)


# %% tags=["check"]
rows = torch.tensor([[0.1, 0.1, 0.1], [0, 0, 0], [0.1, 0, 0]])
silent = {b: groups_without_signal(rows, b) for b in ("mean", "none")}
assert silent["mean"].tolist() == [[True], [True], [False]]
assert silent["none"].tolist() == [[False], [True], [False]]

# %% [markdown]
# ## The function
#
# The assignment asks for two switches. `baseline` is `"mean"` or `"none"`.
# `advantage_normalizer` is `"std"`, `"mean"`, which divides by $\mu_i$, or `"none"`. Four of
# the pairs are methods with names:
#
# | method | baseline | normaliser | $A_{ij}$ |
# |---|---|---|---|
# | GRPO {cite}`shao2024deepseekmath` | mean | std | $(r_{ij} - \mu_i) / (s_i + \varepsilon)$ |
# | Dr. GRPO {cite}`liu2025drgrpo` | mean | none | $r_{ij} - \mu_i$ |
# | MaxRL {cite}`tajwar2026maxrl` | mean | mean | $(r_{ij} - \mu_i) / (\mu_i + \varepsilon)$ |
# | RFT, fine-tuning on right answers | none | none | $r_{ij}$ |
#
# In figures and in code Dr. GRPO is written `Dr_GRPO`. The fifth pair that is accepted, none/mean,
# belongs to no method.
#
# Two helpers stay in the package. `checked_rewards` refuses a reward that is not finite, and
# detaches: no gradient flows through a reward. `check_advantage_options` refuses unknown names and
# the pairs that we come to below.

# %% tags=["definition", "solution"]
from gsmrl_helpers.advantages import check_advantage_options, checked_rewards


def compute_group_normalized_rewards(
    raw_rewards: Tensor,
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: AdvantageNormalizer = "std",
) -> tuple[Tensor, dict[str, float | None]]:
    """Rewards (N,) to advantages (N,), and the share of empty groups."""
    rewards = checked_rewards(raw_rewards)
    check_advantage_options(
        rewards, group_size, baseline, advantage_eps, advantage_normalizer
    )
    if rewards.numel() % group_size:  # allowed for none/none only
        return rewards, {"no_signal_group_share": None}

    groups = rearrange(
        rewards, "(group response) -> group response", response=group_size
    )
    advantages = groups
    if baseline == "mean":
        advantages = advantages - groups.mean(dim=1, keepdim=True)
    if advantage_normalizer == "std":
        advantages = advantages / (
            groups.std(dim=1, keepdim=True) + advantage_eps
        )
    elif advantage_normalizer == "mean":
        advantages = advantages / (
            groups.mean(dim=1, keepdim=True) + advantage_eps
        )

    no_signal = groups_without_signal(groups, baseline)
    advantages = advantages.masked_fill(no_signal, 0.0)
    advantages = rearrange(advantages, "group response -> (group response)")
    return advantages, {
        "no_signal_group_share": no_signal.float().mean().item()
    }


# %% tags=["check"]
advantages, metadata = compute_group_normalized_rewards(raw_rewards, 4)
by_hand = [0.866, -0.866, -0.866, 0.866, 1.5, -0.5, -0.5, -0.5]
assert torch.allclose(advantages, torch.tensor(by_hand), atol=1e-4)
assert metadata == {"no_signal_group_share": 0.0}

in_thirds = torch.tensor([0.1, 0.1, 0.1, 1.0, 0.0, 0.0]).double()
advantages, metadata = compute_group_normalized_rewards(in_thirds, 3)
assert advantages[:3].tolist() == [0.0, 0.0, 0.0]
assert metadata == {"no_signal_group_share": 0.5}

by_hand = {  # (baseline, eps, normalizer): the second group's advantages
    ("mean", 0.5, "std"): [0.75, -0.25, -0.25, -0.25],
    ("mean", 1e-6, "mean"): [3.0, -1.0, -1.0, -1.0],
    ("mean", 0.5, "mean"): [1.0, -1 / 3, -1 / 3, -1 / 3],
    ("mean", 1e-6, "none"): [0.75, -0.25, -0.25, -0.25],
    ("none", 1e-6, "mean"): [4.0, 0.0, 0.0, 0.0],
    ("none", 1e-6, "none"): [1.0, 0.0, 0.0, 0.0],
}
for options, wanted in by_hand.items():
    found, _ = compute_group_normalized_rewards(raw_rewards[4:], 4, *options)
    assert torch.allclose(found, torch.tensor(wanted), atol=1e-4), options

solved = torch.ones(4)  # nothing to compare, but something to reward
found, metadata = compute_group_normalized_rewards(
    solved, 4, "none", advantage_normalizer="none"
)
assert found.equal(solved) and metadata == {"no_signal_group_share": 0.0}
assert "baseline" in refusal(
    compute_group_normalized_rewards, solved, 4, "none"
)

# %% [markdown]
# The second group of the small batch under three normalisers. By hand: its mean is .25 and its
# sample std .5. So the right response is .75 above the mean, which is 1.5 stds, or three times the
# mean.

# %% tags=["check", "claim:A15a", "claim:A15b", "claim:A15c"]
expected = {
    "std": [1.500, -0.500, -0.500, -0.500],
    "mean": [3.000, -1.000, -1.000, -1.000],
    "none": [0.750, -0.250, -0.250, -0.250],
}
for normalizer, wanted in expected.items():
    advantages, _ = compute_group_normalized_rewards(
        raw_rewards[4:], 4, advantage_normalizer=normalizer
    )
    assert torch.allclose(advantages, torch.tensor(wanted), atol=5e-4, rtol=0)

# %% [markdown]
# Other code keeps the rewards as a table of shape (questions, $G$). `group_advantages` is the
# mean/std case in that shape.

# %% tags=["check"]
from gsmrl_helpers.rl import group_advantages

table = rearrange(
    raw_rewards, "(group response) -> group response", response=4
)
advantages, _ = compute_group_normalized_rewards(raw_rewards, 4)
assert torch.equal(group_advantages(table, eps=1e-6).flatten(), advantages)

# %% [markdown]
# ## What each choice does
#
# Five groups, from the small batch and beyond, under each pair that is accepted.

# %% tags=["hide-input"]
figure = plot_groups(
    [[1, 0, 0, 1], [1, 0, 0, 0], [1, 1, 1, 0], [0, 0.1, 0, 0], [1, 1, 1, 1]]
)

# %% [markdown]
# *Rows: the rewards of a group. Columns: baseline / normaliser, and the method that uses the pair,
# if there is one; the fifth pair, in grey, has none. The first column is the rewards themselves.
# All panels have one scale. In the fourth row only a tenth of a point was paid, for the format say.
# The normalisers in the third, fourth and fifth column blow it up to the size of a right answer.*
#
# The explorer does the same for rewards of your own. It needs a running kernel, so it does not
# show on the web page: open the notebook. Drag a reward below 0, or make all four equal.

# %% tags=["nbval-ignore-output"]
advantage_explorer([1, 0, 0, 0])

# %% [markdown]
# ### Easy and hard questions
#
# With rewards of 0 and 1 a group is described by the number of its right answers. Let $p$ be their
# share. Then right answers are $1 - p$ above the mean and wrong ones $p$ below, and the std is
# $\sqrt{p\,(1-p)}$, times $\sqrt{G/(G-1)}$.

# %% tags=["hide-input"]
G = 8
counts = range(1, G)
figure, axes = plt.subplots(
    1, 2, figsize=(9, 3.3), sharex=True, layout="constrained"
)
choices = {"GRPO": "std", "Dr_GRPO": "none", "MaxRL": "mean"}
for method, normalizer in choices.items():
    pairs = [
        compute_group_normalized_rewards(
            torch.tensor([1.0] * k + [0.0] * (G - k)).double(),
            G,
            advantage_normalizer=normalizer,
        )[0][[0, -1]].tolist()
        for k in counts
    ]
    for ax, values in zip(axes, zip(*pairs, strict=True), strict=True):
        ax.plot(
            counts, values, marker="o", ms=4, label=method, **line(method)
        )
for ax, kind in zip(axes, ("right", "wrong"), strict=True):
    ax.axhline(0, color="black", lw=0.8)
    ax.set(title=f"Advantage of a {kind} response", ylabel="advantage")
    ax.set_xlabel(f"right responses among {G}")
axes[1].legend(loc="lower left")
plt.show()

# %% [markdown]
# *Left: what one right response among eight weighs, for questions from hard (1 right) to easy
# (7 right). Right: what a wrong one weighs. GRPO's curves mirror each other; MaxRL lifts the hard
# questions only, and a wrong response always weighs −1.*
#
# Dr. GRPO's weights stay below 1. GRPO divides by a std that is small at both ends, and there
# single responses get large weights: the lone wrong one among seven right gets −2.47, as much as
# the lone right one among seven wrong. In a group with four of each, where the question is in the
# balance, every response weighs ±.94. {cite:t}`liu2025drgrpo` call this a bias towards questions
# that are too easy or too hard, and leave the std out.


# %% tags=["check"]
def advantages_of(rewards: Sequence[float], **options) -> Tensor:
    """The advantages of one group, in float64."""
    given = torch.tensor(rewards, dtype=torch.float64)
    return compute_group_normalized_rewards(given, len(rewards), **options)[0]


lone_wrong = advantages_of([1] * 7 + [0])
even = advantages_of([1] * 4 + [0] * 4)
assert round(lone_wrong.min().item(), 2) == -2.47
assert torch.allclose(even.abs(), torch.full_like(even, 0.94), atol=0.005)
lone_right = advantages_of([1] + [0] * 7)
assert round(lone_right.max().item(), 2) == 2.47

# %% [markdown]
# ### What is refused
#
# **None with std.** A group of equal rewards 1 has the std 0. With nothing subtracted, each of its
# responses would weigh $1/\varepsilon$: a million, for a question that is solved.
#
# **Mean with negative rewards.** $\mu_i$ stands in the divisor. If it is negative, it turns the
# signs around, and the worst response is the one to be learned.

# %% tags=["check"]
eps = 1e-6
equal = torch.ones(4)
assert round((1 / (equal.std() + eps)).item()) == 1_000_000

negative = torch.tensor([1.0, -1.0, -1.0, -1.0])
turned = (negative - negative.mean()) / (negative.mean() + eps)
assert turned.argmin() == negative.argmax() == 0

# %%
print(refusal(advantages_of, [1, 1, 1, 1], baseline="none"))
print(refusal(advantages_of, [1, -1, -1, -1], advantage_normalizer="mean"))

# %% [markdown]
# ### The size of eps
#
# For rewards of 0 and 1, `advantage_eps` changes the sixth digit. It matters if rewards are real
# numbers, a reward model's scores for example, and differ by noise. Without it a difference of a
# millionth weighs as much as one between right and wrong.

# %% tags=["check"]
noise = [1e-6, 0, 0, 0]
for eps, largest in ((0.0, 1.5), (1e-6, 0.5), (1e-3, 0.00075)):
    found = advantages_of(noise, advantage_eps=eps).max().item()
    assert math.isclose(found, largest, rel_tol=1e-2)

# %% [markdown]
# ## What to log
#
# It is tempting to log the mean advantage and see whether it rises. It can't. With a mean baseline
# it is 0 in each group, in the first step as in the last. The std of the advantages tells as
# little, since the normaliser has made it what it is. Four batches of two groups each:

# %%
batches = {
    "few right": [1, 0, 0, 0, 0, 1, 0, 0],
    "most right": [1, 1, 1, 0, 1, 0, 1, 1],
    "only a bonus for format": [0, 0.1, 0, 0, 0, 0, 0, 0.1],
    "one question solved": [1, 1, 1, 1, 1, 1, 0, 1],
}
measures = {}
for name, batch in batches.items():
    rewards = torch.tensor(batch, dtype=torch.float64)
    advantages, info = compute_group_normalized_rewards(rewards, 4)
    measures[name] = {
        "right": (rewards == 1).double().mean().item(),
        "mean advantage": abs(advantages.mean().item()),
        "std of advantages": advantages.std().item(),
        "std of rewards": rewards.std().item(),
        "equal groups": info["no_signal_group_share"],
    }
logged = pd.DataFrame(measures).T.round(3)
logged

# %% tags=["check"]
assert (logged["mean advantage"] == 0).all()
assert logged["std of advantages"].tolist() == [0.926] * 3 + [0.655]
assert logged["right"].tolist() == [0.25, 0.75, 0.0, 0.875]
assert logged["std of rewards"].tolist() == [0.463, 0.463, 0.046, 0.354]
assert logged["equal groups"].tolist() == [0.0, 0.0, 0.0, 0.5]

# %% [markdown]
# The first three can't be told apart by their advantages, though in one a quarter is right, in one
# three quarters, in one nothing. The raw rewards tell them apart: their mean, and their spread,
# which shows that the third was paid in tenths. The fourth differs by the share of equal groups.
#
# That share is the only thing that the std of GRPO's advantages depends on: their squares sum to
# $G - 1$ in each group that is not empty, whatever is in it. So log the mean and the spread of
# *raw* rewards, and the share of equal groups. The training step does (`mean_reward`,
# `reward_std`, `no_signal_group_share`).

# %% tags=["check", "claim:W12"]
expected_mean = 0.000
generator = torch.Generator().manual_seed(0)
accuracies = []
for p in torch.rand(200, generator=generator):
    rewards = (torch.rand(512, generator=generator) < p).double()
    advantages, info = compute_group_normalized_rewards(rewards, 8)
    assert abs(advantages.mean().item() - expected_mean) < 1e-9
    informative = 64 * (1 - info["no_signal_group_share"])
    std_from_share = math.sqrt(informative * (8 - 1) / (512 - 1))
    assert abs(advantages.std().item() - std_from_share) < 1e-4
    accuracies.append(rewards.mean().item())
assert min(accuracies) < 0.05 and max(accuracies) > 0.95

# %% [markdown]
# ## In a recorded run
#
# Standard GRPO on the pocket policy, four seeds, $G = 8$. Its rewards are 0 and 1, so equal groups
# are of two kinds, all wrong and all right. They can be read off what the run logged: the share of
# groups with at least one right response is `pass_at_8`.

# %% tags=["hide-input"]
runs = read_recording("on-policy")
wide = runs.pivot(
    index=["variant", "seed", "step"], columns="metric", values="value"
).dropna(subset=["no_signal_group_share"])
wide["all_wrong"] = 1 - wide["train_pass_at_8"]
wide["all_right"] = wide["no_signal_group_share"] - wide["all_wrong"]
shares = wide.stack().rename("value").reset_index()
figure, axes = plt.subplots(1, 3, figsize=(9, 3.1), layout="constrained")
panels = {
    "Right answers": ("share", {"train": "train_mean_answer_reward"}),
    "Spread of raw rewards": ("std", {"train": "train_reward_std"}),
    "Equal groups": ("share", {"right": "all_right", "wrong": "all_wrong"}),
}
for ax, (title, (unit, metrics)) in zip(axes, panels.items(), strict=True):
    for name, metric in metrics.items():
        plot_metric(ax, shares, metric, name)
    ax.set(title=title, xlabel="step", ylabel=unit, ylim=(-0.03, 0.83))
    ax.legend(loc="upper right", fontsize=7)

# %% [markdown]
# *Each thin line is a seed, the thick one their mean with its 95 % t interval. In the right panel
# "wrong" are groups with eight wrong responses, "right" those with eight right ones. Training
# empties the first kind and fills the second.*

# %% tags=["check"]
by_step = wide.groupby("step").mean()
first, last = by_step.iloc[:10].mean(), by_step.iloc[-10:].mean()
assert round(first["all_wrong"], 2) == 0.35 and first["all_right"] == 0
assert round(last["all_wrong"], 2) == 0.03
assert round(last["all_right"], 2) == 0.16
assert round(last["train_mean_answer_reward"], 2) == 0.64
assert by_step["no_signal_group_share"].idxmin() in range(20, 50)

# %% [markdown]
# Over the first ten steps 35 % of the groups are empty, all of them because every answer is wrong.
# Over the last ten 3 % are all wrong and 16 % all right. In between the questions suited the
# policy, and nearly every group taught something.
#
# At the end 64 % of the answers are right. Were each question solved with that probability, only
# 3 % of the groups would be empty ({ref}`ex-10-empty-groups`). In fact 19 % are: questions differ,
# some are solved nearly always and others nearly never, and the mean hides it.

# %% tags=["check"]
p = last["train_mean_answer_reward"]
assert round(p**8 + (1 - p) ** 8, 2) == 0.03
assert round(last["no_signal_group_share"], 2) == 0.19

# %% [markdown]
# ## Take away
#
# - An advantage compares a response with others to the same question, so the order of the rows
#   matters: the responses to one question stand side by side.
# - Subtracting the group's mean says which responses are better. The normaliser says how much a
#   group counts: std lifts hard and easy questions, the mean lifts hard ones, none lifts nothing.
# - `torch.std` divides by $G - 1$. With the other convention all advantages are
#   $\sqrt{G/(G-1)}$ times as large.
# - With a mean baseline a group of equal rewards teaches nothing, and its advantages are exactly 0.
#   Without a baseline that holds for a group of zero rewards only.
# - With a mean baseline the mean advantage is always 0. Log raw rewards, their spread, and the
#   share of equal groups.
#
# ## Exercises
#
# ```{exercise} Leave one out
# :label: ex-10-leave-one-out
#
# *Medium, 10 minutes.* Write `leave_one_out_advantages(raw_rewards, group_size)`: from (N,)
# rewards, (N,) advantages whose baseline is the mean of the $G - 1$ *other* responses of the group.
# It no longer depends on the response itself. By what factor do these advantages differ from
# mean/none?
#
# :::{dropdown} Hint
# The others' sum is the group's sum minus the response's own reward.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def leave_one_out_advantages(raw_rewards: Tensor, group_size: int) -> Tensor:
    """Each reward minus the mean of the others in its group, (N,) to (N,)."""
    groups = rearrange(
        raw_rewards, "(group response) -> group response", response=group_size
    )
    others = groups.sum(dim=1, keepdim=True) - groups
    advantages = groups - others / (group_size - 1)
    return rearrange(advantages, "group response -> (group response)")


# %% [markdown]
# The check also looks at the expected gradient, by going through all outcomes of a group of four.
# A response is right with probability $p = \sigma(\theta)$; the derivative of its log-probability
# is $1 - p$ if it is right and $-p$ if it is wrong, and that of the expected reward is $p(1-p)$.

# %% tags=["check"]
left_out = leave_one_out_advantages(raw_rewards.double(), 4)
assert torch.allclose(
    left_out[4:], torch.tensor([1, -1 / 3, -1 / 3, -1 / 3]).double()
)
assert torch.allclose(left_out, 4 / 3 * centred.flatten())

p, expected_gradient = 0.3, {"leave one out": 0.0, "group mean": 0.0}
for outcome in product((0.0, 1.0), repeat=4):
    rewards = torch.tensor(outcome, dtype=torch.float64)
    probability = (rewards * p + (1 - rewards) * (1 - p)).prod()
    scores = rewards - p
    for name, weights in (
        ("leave one out", leave_one_out_advantages(rewards, 4)),
        ("group mean", rewards - rewards.mean()),
    ):
        expected_gradient[name] += probability * (weights * scores).mean()
assert math.isclose(expected_gradient["leave one out"], p * (1 - p))
assert math.isclose(expected_gradient["group mean"], 3 / 4 * p * (1 - p))

# %% [markdown]
# ```{exercise} Empty groups
# :label: ex-10-empty-groups
#
# *Easy, 5 minutes.* Each response to a question is right with probability $p$, independently.
# Write `share_of_empty_groups(p, group_size)`: the probability that all rewards of a group are
# equal, as a sum over all $2^G$ outcomes. Which formula does it agree with?
#
# :::{dropdown} Hint
# `itertools.product((0, 1), repeat=group_size)` lists the outcomes; one with $k$ right responses
# has the probability $p^k (1-p)^{G-k}$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def share_of_empty_groups(p: float, group_size: int) -> float:
    """Probability that all rewards of a group are equal, by enumeration."""
    return sum(
        p ** sum(outcome) * (1 - p) ** (group_size - sum(outcome))
        for outcome in product((0, 1), repeat=group_size)
        if len(set(outcome)) == 1
    )


# %% tags=["check"]
assert share_of_empty_groups(0.5, 4) == 0.125
for p, group_size in product((0.0, 0.1, 0.64, 0.9), (2, 4, 8)):
    formula = p**group_size + (1 - p) ** group_size
    assert math.isclose(share_of_empty_groups(p, group_size), formula)

# %% [markdown]
# ```{exercise} The largest weight
# :label: ex-10-largest-weight
#
# *Medium, 10 minutes.* Write `largest_weight(num_right, group_size)`: the largest $|A|$ in a group
# with rewards of 0 and 1 under mean/std, with $\varepsilon = 0$, as a formula in the number of
# right responses, without building the rewards. A group of equal rewards gives 0.
#
# :::{dropdown} Hint
# Start from the mean and the std under "Easy and hard questions". Whichever kind is rarer has the
# larger weight.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def largest_weight(num_right: int, group_size: int) -> float:
    """The largest |A| of a group with rewards 0 and 1, under mean/std."""
    rarer = min(num_right, group_size - num_right)
    if rarer == 0:
        return 0.0
    odds = (group_size - rarer) / rarer
    return math.sqrt(odds * (group_size - 1) / group_size)


# %% tags=["check"]
for group_size in (2, 4, 8, 16):
    for num_right in range(group_size + 1):
        rewards = [1] * num_right + [0] * (group_size - num_right)
        found = advantages_of(rewards, advantage_eps=0.0).abs().max().item()
        assert math.isclose(
            largest_weight(num_right, group_size), found, abs_tol=1e-9
        )
assert round(largest_weight(15, 16), 2) == 3.75

# %% [markdown]
# In a group of sixteen the lone response already weighs 3.75. The larger the group, the rarer a
# response can be in it, and the larger its weight.
#
# ## Next
#
# {doc}`11_policy_gradient_loss` multiplies these weights with the log-probabilities of
# {doc}`09_log_probs_and_entropy`.
