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
# # Baselines and variance
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** compute how noisy a policy-gradient estimate is, say when a baseline
# helps and when it hurts, and what GRPO's group mean and its division by the standard deviation do
# to the expectation.
#
# **You need** {doc}`01_language_model_as_policy`: the score, and why a baseline changes no
# expectation. **Reading** takes 20 minutes, **running** some seconds, on a **CPU**.
# ```

# %%
import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
import torch

from gsmrl_helpers import compute_group_normalized_rewards
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.symbolic import show

use_style()

# %% [markdown]
# ## One estimate is a coin toss
#
# Two answers again, 0 and 1. The policy gives 1 with the probability $p = \sigma(\theta)$, and
# only 1 is right. One sample estimates the gradient as reward times score:
#
# - answer 1, with probability $p$: reward 1, score $1 - p$, estimate $1 - p$;
# - answer 0, with probability $1 - p$: reward 0, estimate 0.
#
# The mean is $p(1-p)$, as it must be. But no single sample says so: it says $1 - p$ or nothing.
# A baseline $b$ changes both values, to $(1-b)(1-p)$ and $bp$.

# %%
p, b = sp.symbols("p b", positive=True)
chance = {1: p, 0: 1 - p}
score = {1: 1 - p, 0: -p}
reward = {1: 1, 0: 0}


def mean_of(value) -> sp.Expr:
    """The expectation over the two answers of `value(answer)`."""
    return sp.factor(sum(chance[y] * value(y) for y in (0, 1)))


def variance(baseline: sp.Expr) -> sp.Expr:
    """Variance of (reward - baseline) · score, for one sample."""
    first = mean_of(lambda y: (reward[y] - baseline) * score[y])
    second = mean_of(lambda y: ((reward[y] - baseline) * score[y]) ** 2)
    return sp.factor(second - first**2)


show(r"\operatorname{Var}_1(b)", variance(b))

# %% [markdown]
# So it is $p(1-p)(1-p-b)^2$ for one sample, and a mean over $n$ independent samples has an $n$-th
# of it. There is a way to see this without algebra. The estimate has two values only, whose
# difference is $(1-b)(1-p) - bp = 1 - p - b$. The variance of a coin with the probability $p$
# and two values that far apart is $p(1-p)$ times the square of the difference.
#
# Without a baseline, $b = 0$, it is

# %%
no_baseline = variance(sp.Integer(0))
show(r"\operatorname{Var}_1(0)", no_baseline)

# %% [markdown]
# so $p(1-p)^3/n$ for $n$ samples.

# %% tags=["check", "claim:A4"]
assert sp.simplify(no_baseline - p * (1 - p) ** 3) == 0

# %% tags=["check", "claim:A5"]
assert sp.simplify(variance(b) - p * (1 - p) * (1 - p - b) ** 2) == 0

# %% [markdown]
# In numbers, for a policy that is right three times in ten, $p = 0.3$:

# %%
examples = {
    "no baseline": 0.0,
    "b = 1/2": 0.5,
    "b = p": 0.3,
    "b = 1 − p": 0.7,
}
at_three_tenths = sp.lambdify(b, variance(b).subs(p, sp.Rational(3, 10)))
for name, value in examples.items():
    print(f"{name:12} {abs(at_three_tenths(value)):.4f}")

# %% tags=["check", "claim:A4", "claim:A5"]
expected = {0: 0.1029, 0.5: 0.0084, 0.3: 0.0336, 0.7: 0.0}
for value in expected:
    assert abs(at_three_tenths(value) - expected[value]) < 5e-5

# %% [markdown]
# Half an hour of algebra deserves a minute of simulation. A hundred thousand estimates, each the
# mean over $n = 4$ samples, and how far they lie from the true gradient $p(1-p)$:


# %%
def simulate(p: float, b: float, n: int = 4, n_estimates: int = 100_000):
    """Squared errors of so many estimates, (n_estimates,)."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(n_estimates, n, generator=generator) < p
    answers = draws.double()
    estimates = ((answers - b) * (answers - p)).mean(dim=1)
    return (estimates - p * (1 - p)) ** 2


# %% tags=["check"]
for p_value, b_value in itertools.product((0.1, 0.3, 0.8), (0.0, 0.5, 1.0)):
    errors = simulate(p_value, b_value)
    formula = p_value * (1 - p_value) * (1 - p_value - b_value) ** 2 / 4
    standard_error = errors.std() / len(errors) ** 0.5
    assert abs(errors.mean() - formula) < 4 * standard_error

# %% [markdown]
# ## When a baseline helps
#
# GRPO's baseline is the mean reward, here $b = p$. It leaves

# %%
show(r"\operatorname{Var}_1(p)", variance(p))

# %% tags=["check", "claim:A6a"]
assert sp.simplify(variance(p) - p * (1 - p) * (1 - 2 * p) ** 2) == 0
errors = simulate(0.3, 0.3)
standard_error = errors.std() / len(errors) ** 0.5
expected = 0.0336
assert abs(4 * errors.mean() - expected) < 4 * 4 * standard_error
assert abs(float(variance(p).subs(p, 0.3)) - expected) < 5e-5

# %% [markdown]
# Is that always less than without a baseline? The difference of the two,

# %%
difference = sp.factor(variance(p) - variance(sp.Integer(0)))
show(r"\operatorname{Var}_1(p) - \operatorname{Var}_1(0)", difference)

# %% [markdown]
# has the sign of $3p - 2$, as the other factors are positive: for these two answers the mean
# reward is the better baseline exactly when $p < 2/3$. Where the policy is nearly always right, it
# makes the estimate *noisier* than no baseline at all.

# %% tags=["check", "claim:A6b"]
expected = sp.Rational(2, 3)
(zero,) = sp.solve(sp.Eq(difference / (p**2 * (1 - p)), 0), p)
assert zero == expected
for value in (sp.Rational(1, 100), sp.Rational(66, 100)):
    assert difference.subs(p, value) < 0
for value in (sp.Rational(67, 100), sp.Rational(99, 100)):
    assert difference.subs(p, value) > 0

# %% [markdown]
# The best constant is $b = 1 - p$. Then both answers give the *same* estimate, $p(1-p)$, and a
# single sample knows the gradient exactly: the variance is 0.

# %% tags=["check", "claim:A7"]
(best,) = sp.solve(sp.diff(variance(b), b), b)
assert sp.simplify(best - (1 - p)) == 0
expected = 0
assert sp.simplify(variance(best)) == expected
assert simulate(0.3, 0.7).max() < 1e-24

# %% tags=["hide-input"]
ps, bs = np.meshgrid(
    np.linspace(0.005, 0.995, 200), np.linspace(-0.5, 1.5, 200)
)
variance_at = sp.lambdify((p, b), variance(b), "numpy")
ratio = variance_at(ps, bs) / variance_at(ps, 0)
figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.6), layout="constrained"
)
mesh = left.pcolormesh(
    ps, bs, np.log2(ratio.clip(2**-6, 2**6)), cmap="RdBu_r", vmin=-6, vmax=6
)
left.contourf(
    ps, bs, ratio, levels=[1, ratio.max()], colors="none", hatches=["///"]
)
axis = np.linspace(0.005, 0.995, 200)
left.plot(axis, 1 - axis, color="black", label="b = 1 − p: variance 0")
left.plot(axis, axis, color="black", linestyle="--", label="b = p")
left.set(xlabel="p, share right", ylabel="baseline b", ylim=(-0.5, 1.5))
left.set_title("Variance against no baseline, log2 of the ratio")
left.legend(loc="lower left", frameon=True)
figure.colorbar(mesh, ax=left)
for name, baseline in {
    "no baseline": 0 * axis,
    "b = 1/2": 0.5 + 0 * axis,
    "b = p": axis,
    "b = 1 − p": 1 - axis,
}.items():
    right.plot(axis, variance_at(axis, baseline), label=name, **line(name))
right.set(xlabel="p, share right", ylabel="variance of one sample")
right.set_title("Four baselines")
right.legend()
plt.show()

# %% [markdown]
# *Left: hatched is where a baseline hurts, below $b = 0$ and above $b = 2(1-p)$. The dashed line,
# the mean reward, enters that region at $p = 2/3$. Right: the same along four lines. Without a
# baseline an estimate is noisiest at $p = 1/4$; with the mean reward, most of the noise is gone
# around $p = 1/2$, where GRPO learns most.*

# %% tags=["check"]
hurts = sp.factor(variance(b) - variance(sp.Integer(0)))
assert sp.simplify(hurts - p * (1 - p) * b * (b - 2 * (1 - p))) == 0
assert sp.solve(sp.diff(no_baseline, p), p) == [sp.Rational(1, 4), 1]

# %% [markdown]
# ## Rare rewards
#
# How many samples does it take until the gradient stands out of its noise? The squared ratio of
# mean to standard deviation, for $n$ samples without a baseline, is

# %%
n = sp.symbols("n", positive=True)
squared = sp.factor(n * (p * (1 - p)) ** 2 / variance(sp.Integer(0)))
show(r"(\text{mean} / \text{std})^2", squared)

# %% [markdown]
# A policy that is right once in a hundred needs about a hundred samples
# for a ratio of 1. Rewards of right and wrong are *sparse*: most groups of answers to a hard
# problem hold no right one, and say nothing at all. A reward model, trained on people's
# preferences, gives every answer a grade, so that no two need be equal. Take ten equally likely
# answers, of which one is right, or which are graded 0 to 9. How often do eight draws all earn the
# same?


# %%
def equal_share(rewards: list[float], group_size: int) -> float:
    """Probability that so many uniform draws all have the same reward."""
    chances = [rewards.count(r) / len(rewards) for r in set(rewards)]
    return sum(chance**group_size for chance in chances)


sparse = [0.0] * 9 + [1.0]
dense = [float(grade) for grade in range(10)]
print(f"right or wrong: {equal_share(sparse, 8):.1%}")
print(f"graded:         {equal_share(dense, 8):.5%}")

# %% tags=["check"]
assert abs(float(squared.subs({p: 0.01, n: 99})) - 1) < 1e-12
assert abs(equal_share(sparse, 8) - 0.9**8) < 1e-7
assert equal_share(dense, 8) < 1e-6

# %% [markdown]
# ## More than one prompt
#
# A prompt of its own mean reward deserves a baseline of its own, $b(x)$. Two prompts, two answers
# each: the first pays 11 and 9, the second 0 and 2. Without baselines the worse answer to the
# first prompt, 9, is praised more than the better one to the second, 2. With the baselines 10 and
# 1, what is left is which answer is better. The rewards' standard deviation falls from 5.323 to
# 1.155.

# %% tags=["check", "claim:L1a"]
expected = 5.323
two_prompts = torch.tensor([[11.0, 9.0], [0.0, 2.0]], dtype=torch.float64)
assert abs(two_prompts.std().item() - expected) < 5e-4

# %% tags=["check", "claim:L1b"]
expected = 1.155
baselines = two_prompts.mean(dim=1, keepdim=True)
assert baselines.flatten().tolist() == [10.0, 1.0]
assert abs((two_prompts - baselines).std().item() - expected) < 5e-4

# %% [markdown]
# ## The best baseline
#
# Which constant makes the variance least, for any policy with one parameter? Write $s$ for the
# score $\nabla \log \pi(y)$. As $\mathbb{E}[(r-b)\,s]$ does not depend on $b$, only the second
# moment matters:
#
# $$
# \frac{d}{db}\, \mathbb{E}\big[(r-b)^2 s^2\big] = -2\,\mathbb{E}[r s^2] + 2 b\,\mathbb{E}[s^2] = 0
# \quad\Longrightarrow\quad
# b^* = \frac{\mathbb{E}[s^2 r]}{\mathbb{E}[s^2]} .
# $$
#
# It is a mean of the rewards, weighted by the *squared score*. The lecture from which these
# examples come prints the same formula with $\nabla \pi$ in place of $\nabla \log \pi$. One of the
# two is wrong. On our two answers:

# %%
slope = {y: chance[y] * score[y] for y in (0, 1)}  # ∇π = π ∇log π


def weighted_mean_reward(weight: dict[int, sp.Expr]) -> sp.Expr:
    return sp.factor(
        mean_of(lambda y: weight[y] ** 2 * reward[y])
        / mean_of(lambda y: weight[y] ** 2)
    )


show(r"b_{\nabla \log \pi}", weighted_mean_reward(score))

# %%
show(r"b_{\nabla \pi}", weighted_mean_reward(slope))

# %% [markdown]
# The score gives $1 - p$, the baseline without any variance from above. The printed version gives
# $p$, the mean reward, which is something else. At $p = 0.8$ it is even worse than no baseline: a
# variance of 0.0576 instead of 0.0064, where the right one leaves 0.

# %% tags=["check", "claim:L2"]
expected = {"score": 0.0, "printed": 0.0576, "none": 0.0064}
candidates = {
    "score": weighted_mean_reward(score),
    "printed": weighted_mean_reward(slope),
    "none": sp.Integer(0),
}
for name, baseline in candidates.items():
    value = float(variance(baseline).subs(p, 0.8))
    assert abs(value - expected[name]) < 5e-5

# %% [markdown]
# What decides is thus how the squared scores of right and wrong answers compare. With two answers
# the *likely* one has the small score, so that for large $p$ the right answers hardly count in
# $b^*$. If all scores have the same norm, the weights cancel and $b^*$ is the mean reward: then it
# is the best baseline at every $p$. Ten equally likely answers, eight of them right, are such a
# case. (With more than one parameter, squares become squared norms, and variances are summed.)


# %%
def total_variance(rewards: torch.Tensor, baseline: float) -> float:
    """Summed over the logits, for one sample of a uniform softmax."""
    n = len(rewards)
    scores = torch.eye(n, dtype=torch.float64) - 1 / n
    terms = (rewards - baseline)[:, None] * scores
    return (terms.square().mean(dim=0) - terms.mean(dim=0) ** 2).sum().item()


eight_right = torch.tensor([1.0] * 8 + [0.0] * 2, dtype=torch.float64)
print(f"no baseline:       {total_variance(eight_right, 0.0):.3f}")
print(f"the mean, b = 0.8: {total_variance(eight_right, 0.8):.3f}")

# %% tags=["check"]
assert abs(total_variance(eight_right, 0.0) - 0.704) < 5e-4
assert abs(total_variance(eight_right, 0.8) - 0.128) < 5e-4
for other in (0.5, 0.75, 0.85, 1.0):
    assert total_variance(eight_right, 0.8) < total_variance(
        eight_right, other
    )

# %% [markdown]
# The best baseline is rarely used: it takes one backward pass per answer. The mean reward is cheap,
# and where scores differ little in size, it is close to the best.
#
# ## Advantage
#
# The mean reward of a prompt is called its value, $V(x) = \mathbb{E}_y[r]$, the reward to be
# expected after an answer is $Q(x, y)$, and their difference is the answer's *advantage*, $A(x, y)
# = Q(x, y) - V(x)$: how much better it is than what the policy does on average. With $b = V$, a
# sampled $r - b$ has the mean $A$ *given the answer*. Over all answers its mean is 0. The lecture
# writes $\mathbb{E}[R - b(s)] = A(s, a)$, which equates the two. With rewards that are themselves
# random, the difference can be seen:

# %%
generator = torch.Generator().manual_seed(0)
answers = torch.randint(2, (200_000,), generator=generator)
noise = torch.randn(200_000, generator=generator, dtype=torch.float64)
rewards = two_prompts[0, answers] + noise  # Q is 11 and 9, and V = 10
sampled = rewards - 10.0
for y in (0, 1):
    print(
        f"mean of r - b, given answer {y}: {sampled[answers == y].mean():+.2f}"
    )
print(f"mean of r - b, all answers:     {abs(sampled.mean()):.2f}")

# %% tags=["check", "claim:L3"]
expected = {"answer 0": 1, "answer 1": -1, "all": 0}
parts = {
    "answer 0": sampled[answers == 0],
    "answer 1": sampled[answers == 1],
    "all": sampled,
}
for name, part in parts.items():
    assert (
        abs(part.mean() - expected[name]) < 4 * part.std() / len(part) ** 0.5
    )

# %% [markdown]
# ## The group's mean
#
# Nobody knows $V(x)$. GRPO estimates it from the answers it has anyway: $G$ of them to each
# prompt, and the baseline is their mean $\mu$. But that baseline *depends on the answer*: each
# answer is a $G$-th of its own mean. For one answer $j$ of the group,
#
# $$
# \mathbb{E}[(r_j - \mu)\, s_j]
# = \mathbb{E}[r_j s_j] - \frac{1}{G} \mathbb{E}[r_j s_j]
# - \frac{1}{G} \sum_{k \ne j} \mathbb{E}[r_k]\, \mathbb{E}[s_j] .
# $$
#
# The answers are independent, so the last terms factor, and $\mathbb{E}[s_j] = 0$ removes them.

# %%
G, E_rs, E_r, E_s = sp.symbols("G E_rs E_r E_s")
with_group_mean = E_rs - (E_rs + (G - 1) * E_r * E_s) / G
show(
    r"\mathbb{E}[(r_j - \mu)\, s_j]",
    sp.factor(with_group_mean.subs(E_s, 0)),
)

# %% [markdown]
# The gradient comes out too short by the factor $(G-1)/G$, in the right direction. With $G = 8$
# that is a learning rate of 7/8. Exact enumeration of all $2^G$ groups says the same.


# %%
def group_expectation(G: int) -> sp.Expr:
    """E of 1/G Σ (r_j - μ) s_j over all groups of G answers."""
    total = 0
    for group in itertools.product((0, 1), repeat=G):
        mean = sp.Rational(sum(group), G)
        estimate = sum((y - mean) * score[y] for y in group) / G
        total += sp.prod([chance[y] for y in group]) * estimate
    return sp.factor(total)


# %% tags=["check", "claim:A8"]
expected = [(2, "1/2"), (3, "2/3"), (4, "3/4")]
for size, fraction in expected:
    factor = sp.Rational(fraction)
    assert sp.simplify(group_expectation(size) / (p * (1 - p))) == factor
    assert (
        sp.simplify(with_group_mean.subs({E_s: 0, G: size}) / E_rs) == factor
    )

# %% [markdown]
# ## Dividing by the standard deviation
#
# GRPO then divides by the group's standard deviation. There is a reason, and a price.
#
# The reason is stability. Suppose scores are like Gaussian noise, independent of the rewards. Then
# the squared norm of a group's gradient, $\frac1G \sum_j A_j s_j$, is on average proportional to
# $\sum_j A_j^2$. Without the division that is $k(G-k)/G$ for $k$ right answers of $G$: for one
# right answer of eight less than half of what it is for a balanced group. With it, the sum is $G -
# 1$ for every group (with `torch.std`): all pull alike.


# %%
def mean_squared_norm(
    k: int, normalizer: str, G: int = 8
) -> tuple[float, float]:
    """Of a group's gradient with k right answers; and its standard error."""
    rewards = torch.tensor([1.0] * k + [0.0] * (G - k), dtype=torch.float64)
    advantages, _ = compute_group_normalized_rewards(
        rewards, G, advantage_eps=0.0, advantage_normalizer=normalizer
    )
    generator = torch.Generator().manual_seed(k)
    scores = torch.randn(
        20_000, G, 10, generator=generator, dtype=torch.float64
    )
    gradients = (advantages[:, None] * scores).mean(dim=1)
    norms = gradients.square().sum(dim=1)
    return norms.mean().item(), norms.std().item() / len(norms) ** 0.5


for k in (1, 2, 4):
    plain, divided = (
        mean_squared_norm(k, name)[0] for name in ("none", "std")
    )
    print(f"{k} of 8 right: {plain:.2f} undivided, {divided:.2f} divided")

# %% tags=["check", "claim:A31"]
expected = 1.09375  # dimension 10 · (G - 1) / G²
for k in range(1, 8):
    value, standard_error = mean_squared_norm(k, "std")
    assert abs(value - expected) < 4 * standard_error
    undivided, standard_error = mean_squared_norm(k, "none")
    assert abs(undivided - 10 * k * (8 - k) / 8**3) < 4 * standard_error
assert abs(10 * 7 / 64 - expected) < 5e-6

# %% [markdown]
# The price is the expectation. Each prompt's gradient is now multiplied by a weight that depends
# on how hard the prompt is, so that their sum is no longer the gradient of the mean reward. For
# the two answers and $G = 16$, summed over all numbers $k$ of right answers, with the package's own
# advantages:


# %%
def weight(p: float, normalizer: str, G: int = 16) -> float:
    """Expected estimate over the true gradient p (1 - p)."""
    total = 0.0
    for k in range(G + 1):
        rewards = torch.tensor([1.0] * k + [0.0] * (G - k)).double()
        advantages, _ = compute_group_normalized_rewards(
            rewards, G, advantage_normalizer=normalizer
        )
        estimate = (advantages * (rewards - p)).mean().item()
        total += math.comb(G, k) * p**k * (1 - p) ** (G - k) * estimate
    return total / (p * (1 - p))


for share in (0.5, 0.9):
    undivided, divided = weight(share, "none"), weight(share, "std")
    print(f"p = {share}: {undivided:.2f} undivided, {divided:.2f} divided")

# %% tags=["check", "claim:A31"]
expected = {0.5: 1.873, 0.9: 2.757}
for share, value in expected.items():
    assert abs(weight(share, "std") - value) < 5e-4
    assert abs(weight(share, "none") - 15 / 16) < 1e-12

# %% [markdown]
# Undivided, every prompt has the same weight, $15/16$. Divided, the prompt that is nearly solved
# counts half as much again as the one that is half solved. {doc}`18_difficulty_reweighting` works
# out that weight for every method of this book.
#
# ## Take away
#
# - For two answers, one sample's variance with baseline $b$ is $p(1-p)(1-p-b)^2$: zero at $b =
#   1-p$, worse than no baseline below 0 and above $2(1-p)$. The mean reward helps exactly where $p
#   < 2/3$.
# - Where all scores have the same norm, the mean reward is the best baseline. The best one weighs
#   rewards by the squared score, $\nabla \log \pi$; with $\nabla \pi$ the formula is wrong.
# - An advantage is a reward minus a baseline *given the answer*. Over all answers its mean is 0.
# - The group's mean costs the factor $(G-1)/G$. The division by the standard deviation evens out
#   the groups' pull, and changes what is optimised.
#
# ## Exercises
#
# ```{exercise} The assignment's question
# :label: ex-02-baseline-calcs
#
# *Medium, 20 minutes.* This is `baseline_calcs`, on paper: for a policy on two answers with
# $\pi(1) = p = \sigma(\theta)$ and reward 1 for answer 1, find the variance of the estimate from
# $n$ samples (a) without a baseline, (b) with the baseline $b$, (c) with $b = p$; is (c) always
# less than (a)? Then write `estimator_variance(p, b, n)`.
#
# :::{dropdown} Hint
# The variance of a variable with two values is $p(1-p)$ times their squared difference.
# :::
#
# :::{dropdown} Worked answer
# One sample's estimate is $(1-b)(1-p)$ with probability $p$, and $bp$ otherwise. The two differ by
# $1-p-b$, so the variance of one sample is $p(1-p)(1-p-b)^2$; $n$ independent samples divide it
# by $n$. (a) $b = 0$ gives $p(1-p)^3/n$. (b) is $p(1-p)(1-p-b)^2/n$. (c) $b = p$ gives
# $p(1-p)(1-2p)^2/n$. It is not always less: (c) minus (a) is $p^2(1-p)(3p-2)/n$, negative only for
# $p < 2/3$. This policy, once right in more than two of three cases, is better off without.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def estimator_variance(p: float, b: float, n: int) -> float:
    return p * (1 - p) * (1 - p - b) ** 2 / n


# %% tags=["check"]
for p_value, b_value, size in ((0.3, 0.0, 1), (0.3, 0.5, 4), (0.9, 0.9, 7)):
    exact = variance(b).subs({p: p_value, b: b_value}) / size
    assert abs(estimator_variance(p_value, b_value, size) - exact) < 1e-12

# %% [markdown]
# ```{exercise} Leaving one out
# :label: ex-02-leave-one-out
#
# *Easy, 10 minutes.* Take the mean of the *other* $G - 1$ answers as each answer's baseline. It
# does not depend on the answer, so there is no factor. Write `leave_one_out(rewards)`, the
# differences for one group, (G,) to (G,), and see how they relate to the group's mean.
#
# :::{dropdown} Hint
# The others' sum is the whole sum minus the answer's own reward.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


# %% tags=["check"]
group = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
centred, _ = compute_group_normalized_rewards(
    group, 4, advantage_normalizer="none"
)
assert (leave_one_out(group) - 4 / 3 * centred).abs().max() < 1e-12
assert abs(leave_one_out(group)[0] - 2 / 3) < 1e-12

# %% [markdown]
# ```{exercise} How many samples?
# :label: ex-02-samples-needed
#
# *Medium, 10 minutes.* Write `samples_needed(p, b, ratio)`: the least number $n$ of samples for
# which the mean of the estimate is at least `ratio` times its standard deviation.
#
# :::{dropdown} Hint
# The standard deviation falls with $\sqrt{n}$. Solve for $n$ and round up; at $b = 1-p$ one is
# enough.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def samples_needed(p: float, b: float, ratio: float) -> int:
    mean = p * (1 - p)
    one_sample = p * (1 - p) * (1 - p - b) ** 2
    needed = ratio**2 * one_sample / mean**2
    return max(1, int(np.ceil(needed - 1e-9)))  # 99.00000000000001 is 99


# %% tags=["check"]
assert samples_needed(0.01, 0.0, 1.0) == 99
assert samples_needed(0.01, 0.01, 1.0) == 98
assert samples_needed(0.3, 0.7, 10.0) == 1
assert samples_needed(0.9, 0.0, 2.0) < samples_needed(0.9, 0.9, 2.0)

# %% [markdown]
# ## Next
#
# {doc}`03_sorting_toy` trains a policy with all this, small enough to be watched, and lets it fail.
# {doc}`10_advantages` takes up the group's mean and standard deviation as code.
