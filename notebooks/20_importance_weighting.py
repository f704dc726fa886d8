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
# # Importance weighting
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what each way of reweighting old samples really climbs, how far its
# expectation lies from the policy gradient and how noisy it is, and why none of them has both
# small.
#
# **You need** {doc}`02_baselines_and_variance` and {doc}`11_policy_gradient_loss`. **Reading**
# takes 50 minutes, **running** half a minute, on a **CPU**.
# ```

# %%
import itertools
import math
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
from einops import reduce, repeat
from torch import Tensor
from torch.func import grad, jvp, vmap

from gsmrl_helpers import (
    LocalEngine,
    aggregate_loss_across_microbatch,
    compute_group_normalized_rewards,
    compute_policy_gradient_loss,
    experiment_config,
    load_policy,
    load_problems,
    rl,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.live import live
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.symbolic import show

use_style()
torch.set_num_threads(1)  # for tensors this small, more only get in the way

# %% [markdown]
# ## Samples of an older policy
#
# Writing answers takes longer than learning from them. So one likes to take several updates on one
# batch of answers. The first update is on-policy. From the second on, the answers come from an
# *old* policy $\pi_0$, while the gradient is wanted for the present one, $\pi_\theta$.
#
# The smallest example in which everything happens: an answer has two tokens, each 0 or 1, and only
# 11 is right. The first token is 1 with the probability $p = \sigma(\theta_1)$, the second with
# $q = \sigma(\theta_2)$. The old policy had $p_0$ and $q_0$. Chapter 01's identity gives the true
# gradient of the mean reward $J = pq$ as the mean of reward times score, over answers of the
# *present* policy.

# %%
p, q, b = sp.symbols("p q b", positive=True)
# \mathit only makes sympy write p - p_0, not -p_0 + p
p_0, q_0 = sp.symbols(r"\mathit{p}_0 \mathit{q}_0", positive=True)


# %%
def mean_over(p, q, value) -> sp.Expr:
    """The mean of `value(y, z)` when 1 has the probabilities p and q."""
    total = 0
    for y, z in itertools.product((0, 1), repeat=2):
        chance = (p if y else 1 - p) * (q if z else 1 - q)
        total += chance * value(y, z)
    return sp.factor(total)


# %%
true = mean_over(p, q, lambda y, z: y * z * (y - p))
show(r"\frac{\partial J}{\partial \theta_1}", true)

# %% [markdown]
# The score of the first token is $1 - p$ for a 1 and $-p$ for a 0, that is, $y - p$. (The second
# token is the same with $p$ and $q$ exchanged; we show the first only.) The naive estimate takes
# reward times score over the *old* policy's answers, as if nothing had happened:

# %%
naive = mean_over(p_0, q_0, lambda y, z: y * z * (y - p))
show(r"\mathbb{E}_{\pi_0}[\text{naive}]", naive)

# %% [markdown]
# Right answers come as often as they came before, $p_0 q_0$, and not as often as they would now.
# In numbers, for an old policy of $p_0 = q_0 = 0.5$ that has become $p = 0.7$, $q = 0.8$: the
# gradient is $0.56 \cdot 0.3 = 0.168$ and the naive estimate has the mean $0.25 \cdot 0.3 =
# 0.075$.
#
# A baseline was harmless in chapter 01, as the mean score is zero. But that is the mean over the
# present policy. Over old answers it is not:

# %%
baseline_part = mean_over(p_0, q_0, lambda y, z: -b * (y - p))
show(r"\mathbb{E}_{\pi_0}[-b \cdot \text{score}]", baseline_part)

# %% [markdown]
# If the policy has moved up, $p > p_0$, a positive baseline pushes it further up; if it has moved
# down, further down. Wherever the policy has gone, the baseline tells it to go on. With $b =
# 0.25$, the old policy's mean reward, the means of the two components are 0.125 and 0.125. The
# true ones are 0.168 and 0.112: the first token should get half as much again as the second, and
# gets the same, as the baseline has pushed $q$, which had moved further, the harder.

# %% tags=["check"]
NUMBERS = {p: 0.7, q: 0.8, p_0: 0.5, q_0: 0.5, b: 0.25}
assert sp.simplify(true - p * q * (1 - p)) == 0
assert sp.simplify(naive - p_0 * q_0 * (1 - p)) == 0
assert sp.simplify(baseline_part - b * (p - p_0)) == 0
assert abs(true.subs(NUMBERS) - 0.168) < 1e-12
assert abs(naive.subs(NUMBERS) - 0.075) < 1e-12
for own, old, wanted in ((p, p_0, 0.168), (q, q_0, 0.112)):
    first_part, shift = p_0 * q_0 * (1 - own), b * (own - old)
    assert abs((first_part + shift).subs(NUMBERS) - 0.125) < 1e-12
    assert abs((p * q * (1 - own)).subs(NUMBERS) - wanted) < 1e-12
    assert abs(shift.subs(NUMBERS) - (0.05 if own is p else 0.075)) < 1e-12

# %% [markdown]
# ## Exact weights
#
# A mean over one distribution can be written as a mean over another. For any function $f$ of an
# answer $y$,
#
# $$
# \mathbb{E}_{y \sim \pi_\theta}[f(y)] = \sum_y \pi_0(y)\, \frac{\pi_\theta(y)}{\pi_0(y)}\, f(y)
# = \mathbb{E}_{y \sim \pi_0}\big[\, w(y)\, f(y) \,\big], \qquad
# w(y) = \frac{\pi_\theta(y)}{\pi_0(y)} .
# $$
#
# The *importance weight* $w$ counts an answer up that has become likelier and one that has become
# rare down. All it needs is that $\pi_0$ can write every answer that
# $\pi_\theta$ can. An answer's probability
# is the product of its tokens', so $w$ is the product of the token ratios $r_t$ of
# {doc}`11_policy_gradient_loss`. In the example the right answer has the weight $1.4 \cdot 1.6 =
# 2.24$, and $2.24 \cdot 0.075 = 0.168$. Baseline or no baseline, the error is gone:


# %%
def weight(y: int, z: int) -> sp.Expr:
    """The ratio of the answer's new and old probabilities."""
    first = p / p_0 if y else (1 - p) / (1 - p_0)
    second = q / q_0 if z else (1 - q) / (1 - q_0)
    return first * second


# %%
weighted = mean_over(
    p_0, q_0, lambda y, z: weight(y, z) * (y * z - b) * (y - p)
)
show(
    r"\mathbb{E}_{\pi_0}[w \cdot (\text{reward} - b) \cdot \text{score}]",
    weighted,
)

# %% tags=["check"]
assert sp.simplify(weighted - true) == 0
assert mean_over(p_0, q_0, weight) == 1
assert abs(weight(1, 1).subs(NUMBERS) - 2.24) < 1e-12

# %% [markdown]
# ## The price grows with the length
#
# The mean of $w$ is always 1. How much does it vary? Let an answer be $L$ tokens long, each drawn
# like the first token above: 1 with the probability $p_0$ then, $p$ now. The second moment of one
# ratio is

# %%
second_moment = mean_over(
    p_0, q_0, lambda y, z: (p / p_0 if y else (1 - p) / (1 - p_0)) ** 2
)
ratio_variance = sp.factor(second_moment - 1)
show(r"\mathbb{E}_{\pi_0}[r^2] - 1", ratio_variance)

# %% [markdown]
# This is the variance of one ratio; call it $\kappa$. The tokens are independent, so that the
# second moment of the product is the product of the second moments, and
#
# $$\operatorname{Var}(w) = (1 + \kappa)^L - 1 .$$
#
# Take a coin that was fair and now shows 1 in six of ten cases: $\kappa = 0.1^2 / 0.25 = 0.04$.
# After ten tokens the variance is 0.48, after a hundred 49.5, after 512 it is 500 million.

# %% tags=["check", "claim:A25"]
coin = {p_0: sp.Rational(1, 2), p: sp.Rational(3, 5)}
expected_kappa = 0.04
assert abs(float(ratio_variance.subs(coin)) - expected_kappa) < 1e-12
expected_variance = {10: 0.480, 100: 49.5, 512: 5.26e8}
for length, value in expected_variance.items():
    exact = float((1 + ratio_variance.subs(coin)) ** length - 1)
    assert abs(exact / value - 1) < 1e-3

# %% [markdown]
# The same by sampling. What an answer weighs depends only on how many ones it has: each one counts
# $0.6/0.5 = 1.2$, each zero $0.8$.


# %%
def sample_log_weights(length: int, n: int, seed: int = 0) -> np.ndarray:
    """log w of n answers of the fair coin, now one with p = 0.6; (n,)."""
    ones = np.random.default_rng(seed).binomial(length, 0.5, size=n)
    return ones * math.log(1.2) + (length - ones) * math.log(0.8)


# %% tags=["check", "claim:A25"]
sampled = {}
for length in (2, 5, 10, 15, 20):
    squares = (np.exp(sample_log_weights(length, 200_000)) - 1) ** 2
    standard_error = squares.std() / len(squares) ** 0.5
    sampled[length] = (squares.mean(), standard_error)
    assert abs(squares.mean() - (1.04**length - 1)) < 4 * standard_error

# %% [markdown]
# A mean of 1 with such a variance means that nearly all answers weigh nothing, and a few carry
# everything. Of 256 answers with 512 tokens, a typical one weighs $3 \cdot 10^{-5}$, and the
# heaviest has most of the weight. What is left of a batch is its *effective size*,
# $(\sum w)^2 / \sum w^2$: it is the batch's size if all weights are equal, and 1 if one has it all.

# %%
for length in (8, 64, 512):
    log_w = sample_log_weights(length, 256 * 500).reshape(500, 256)
    w = np.exp(log_w - log_w.max(axis=1, keepdims=True))
    effective = w.sum(axis=1) ** 2 / (w**2).sum(axis=1)
    heaviest = w.max(axis=1) / w.sum(axis=1)
    print(
        f"{length:3} tokens: typical weight {np.exp(np.median(log_w)):.0e}, "
        f"heaviest has {heaviest.mean():.0%}, "
        f"effective size {effective.mean():.0f} of 256"
    )

# %% tags=["check"]
assert abs(np.exp(np.median(log_w)) / 3e-5 - 1) < 0.1
assert heaviest.mean() > 0.5 and effective.mean() < 4

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.6, 3.2), layout="constrained"
)
lengths = np.arange(1, 513)
for now, share in ((0.55, 0.4), (0.6, 1.0), (0.7, 0.4)):
    log10 = lengths * math.log10(1 + (now - 0.5) ** 2 / 0.25)
    variance = 10.0 ** log10[log10 < 12] - 1
    shown = lengths[: len(variance)]
    left.plot(shown, variance, **line("all"), alpha=share)
    left.annotate(
        f"p = {now}",
        (shown[-1], variance[-1]),
        xytext=(-38, 4) if variance[-1] < 1e11 else (6, -8),
        textcoords="offset points",
        fontsize=8.5,
    )
left.errorbar(
    list(sampled),
    [value for value, _ in sampled.values()],
    yerr=[4 * error for _, error in sampled.values()],
    fmt="o",
    markersize=4,
    color=line("train")["color"],
    label="sampled, ± 4 standard errors",
)
left.set(yscale="log", ylim=(0.005, 3e12), xlabel="length L, tokens")
left.set(ylabel="variance of w", title="Variance of an answer's weight")
left.legend(loc="lower right")
for length, dash in ((8, "-"), (64, "--"), (512, ":")):
    log_w = np.sort(sample_log_weights(length, 20_000)) / math.log(10)
    right.plot(
        log_w,
        np.linspace(0, 1, len(log_w)),
        color="black",
        linestyle=dash,
        label=f"L = {length}",
    )
right.axvline(0, color="0.6", linewidth=0.8)
right.set(xlabel="log10 of the weight", ylabel="share of answers below")
right.set_title("Weights of 20,000 answers, p = 0.6")
right.legend(loc="upper left")
plt.show()

# %% [markdown]
# *Left: on the logarithmic axis the variance of the weight soon is a straight line in the length:
# it grows exponentially, and the steeper, the further the policy has moved. Right: the mean of all
# three distributions is a weight of 1, the grey line. With 512 tokens nearly all answers lie far
# to its left.*
#
# So there are two ends. The naive estimate has no weights that could vary, and a bias. Exact
# weights have no bias and, for a text of some length, nothing but noise. The methods in use look
# for something in between.
#
# ## A tree that can be enumerated
#
# To see bias and variance of a method exactly, we need a policy whose answers can all be listed,
# and in which each token depends on all before it. Three tokens, four positions: 81 answers. Each
# prefix has logits of its own, and there are $1 + 3 + 9 + 27 = 40$ prefixes, so $\theta$ is a
# table of 40 rows. Prefixes are numbered like the nodes of a heap: row $n$ followed by token $v$
# leads to row $3n + 1 + v$.

# %%
LENGTH = 4
answers = torch.cartesian_prod(*[torch.arange(3)] * LENGTH)  # (81, 4)
rows = torch.zeros_like(answers)  # the row of each token's prefix
for t in range(LENGTH - 1):
    rows[:, t + 1] = 3 * rows[:, t] + 1 + answers[:, t]
mask = torch.ones_like(answers)


# %%
def token_log_probs(theta: Tensor) -> Tensor:
    """log π(y_t) of all tokens of all answers: (40, 3) to (81, 4)."""
    return theta.log_softmax(dim=1)[rows, answers]


# %% tags=["check"]
theta = torch.randn(
    40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
for t in range(LENGTH):
    digits = answers[:, :t] @ 3 ** torch.arange(t).flip(0)  # in base 3
    assert torch.equal(rows[:, t], (3**t - 1) // 2 + digits)
assert rows.unique().tolist() == list(range(40))
assert abs(token_log_probs(theta).sum(dim=1).exp().sum() - 1) < 1e-12

# %% [markdown]
# Logits are random, and each answer is right with a chance of 0.3. The advantage of an answer is
# its reward minus the old policy's mean reward; it is computed once and stays. A policy moves away
# from the old one along a random direction. Its length is set such that at distance 1 the tokens'
# log-probabilities have changed by 1, in the root mean square over the old policy's answers (to
# first order): the distance is the spread of $\log r_t$. (`jvp` gives the change along a
# direction.)


# %%
class Tree(NamedTuple):
    """An old policy and what its answers are worth."""

    theta_0: Tensor  # (40, 3)
    old: Tensor  # (81, 4), log-probabilities
    p_0: Tensor  # (81,), probabilities of the answers
    advantages: Tensor  # (81,)


# %%
def make_tree(seed: int) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    theta_0 = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    rewards = (torch.rand(81, generator=generator) < 0.3).double()
    old = token_log_probs(theta_0)
    p_0 = old.sum(dim=1).exp()
    return Tree(theta_0, old, p_0, rewards - p_0 @ rewards)


# %%
def move(tree: Tree, direction: Tensor, distance: float) -> Tensor:
    """θ at a distance from θ_0, both (40, 3)."""
    _, change = jvp(token_log_probs, (tree.theta_0,), (direction,))
    spread = (tree.p_0 @ change.square().mean(dim=1)).sqrt()
    return tree.theta_0 + distance * direction / spread


# %%
def random_direction(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(40, 3, generator=generator, dtype=torch.float64)


# %% [markdown]
# Most of what follows is shown on one tree, at distance 0.5, and asserted on eight.

# %%
TREES = [make_tree(seed) for seed in range(8)]
MOVED = [
    move(tree, random_direction(seed), 0.5) for seed, tree in enumerate(TREES)
]
tree, theta = TREES[0], MOVED[0]

# %%
log_ratio = token_log_probs(theta) - tree.old
spread = (tree.p_0 @ log_ratio.square().mean(dim=1)).sqrt()
print(f"spread of log r {spread:.2f}")
print(f"ratios from {log_ratio.exp().min():.2f}", end=" ")
print(f"to {log_ratio.exp().max():.2f}")

# %% tags=["check"]
for other, there in zip(TREES, MOVED, strict=True):
    change = (token_log_probs(there) - other.old).square().mean(dim=1)
    assert 0.4 < (other.p_0 @ change).sqrt() < 0.65
    assert abs(other.p_0 @ other.advantages) < 1e-12

# %% [markdown]
# The expectation of an estimate is a sum over the 81 answers, weighted with $\pi_0(y)$. We give
# all of them to the package's loss as one batch and multiply each row by its weight. The sum over
# the tokens of an answer is what {doc}`11_policy_gradient_loss` calls "constant", with $Z = 1$.
# With other weights we get something else: those of one single answer give that answer's estimate.
# `grad` of `torch.func` turns a function into its gradient with respect to the first argument.
#
# Exact weighting has no method of its own in the package, nor need it: it is "noclip", whose token
# has its own ratio, times the ratios of the answer's other tokens. The function below multiplies by
# the others of a *block*; for the whole answer, that is a block of four. (Pairs come later.)


# %%
def others_in_block(ratio: Tensor, size: int) -> Tensor:
    """Product of the other tokens' ratios in blocks of a size, (81, 4)."""
    products = reduce(ratio, "y (n size) -> y n", "prod", size=size)
    return repeat(products, "y n -> y (n size)", size=size) / ratio


# %%
BLOCKS = {"pairs": 2, "exact": LENGTH}


def token_loss(
    theta: Tensor, tree: Tree, method: str, cliprange: float | None = None
) -> Tensor:
    """(81, 4): the package's loss, for blocks times the other ratios."""
    loss, info = compute_policy_gradient_loss(
        tree.advantages,
        token_log_probs(theta),
        "noclip" if method in BLOCKS else method,
        tree.old,
        cliprange,
        mask,
    )
    return loss * others_in_block(info["ratio"], BLOCKS.get(method, 1))


# %%
def objective(
    theta: Tensor,
    weights: Tensor,
    tree: Tree,
    method: str,
    cliprange: float | None = None,
) -> Tensor:
    """Minus the loss of the batch, each answer counted with its weight."""
    loss = token_loss(theta, tree, method, cliprange)
    return -aggregate_loss_across_microbatch(
        weights[:, None] * loss, mask, "constant", 1.0
    )


# %%
def expected_estimate(theta: Tensor, tree: Tree, *method) -> Tensor:
    """E over π_0 of a method's estimate, (40, 3)."""
    return grad(objective)(theta, tree.p_0, tree, *method)


# %% [markdown]
# The truth is the gradient of $J(\theta) = \sum_y \pi_\theta(y) A(y)$, straight through the sum.
# (Rewards and advantages differ by a constant, which has no gradient.)


# %%
def J(theta: Tensor, tree: Tree) -> Tensor:
    """The mean advantage of the policy's own answers."""
    return token_log_probs(theta).sum(dim=1).exp() @ tree.advantages


true_gradient = grad(J)


# %%
def relative_error(found: Tensor, truth: Tensor) -> float:
    return ((found - truth).norm() / truth.norm()).item()


# %%
truth = true_gradient(theta, tree)
for method in ("none", "exact"):
    found = expected_estimate(theta, tree, method)
    print(f"{method:5} off by {relative_error(found, truth):.2f} of |∇J|")

# %% [markdown]
# Where the policy has not moved, both are exact. Elsewhere exact weights stay so, and the naive
# estimate is off by 0.58 of the gradient's length, and on every one of the eight trees by more than
# 0.4.

# %% tags=["check"]
for other, there in zip(TREES, MOVED, strict=True):
    at_start = true_gradient(other.theta_0, other)
    found = expected_estimate(other.theta_0, other, "none")
    assert (found - at_start).abs().max() < 1e-10
    moved_truth = true_gradient(there, other)
    found = expected_estimate(there, other, "exact")
    assert (found - moved_truth).abs().max() < 1e-10
    found = expected_estimate(there, other, "none")
    assert relative_error(found, moved_truth) > 0.4
found = expected_estimate(theta, tree, "none")
assert abs(relative_error(found, truth) - 0.58) < 5e-3


# %% [markdown]
# And the estimates of single answers, sampled from the old policy, have that mean. (`vmap` takes
# the gradient once for each row of the identity, all 81 at a time.)


# %%
def single_estimates(theta: Tensor, tree: Tree, *method) -> Tensor:
    """The estimate of each answer, (81, 120)."""
    one_answer = torch.eye(81, dtype=torch.float64)
    of_answer = vmap(
        lambda weights: grad(objective)(theta, weights, tree, *method)
    )
    return of_answer(one_answer).flatten(1)


# %% tags=["check"]
generator = torch.Generator().manual_seed(0)
draws = torch.multinomial(
    tree.p_0, 100_000, replacement=True, generator=generator
)
for method in ("none", "exact", "noclip"):
    each = single_estimates(theta, tree, method)
    mean = expected_estimate(theta, tree, method).flatten()
    assert (tree.p_0 @ each - mean).abs().max() < 1e-12
    estimates = each[draws]
    standard_error = estimates.std(dim=0) / len(draws) ** 0.5
    assert ((estimates.mean(dim=0) - mean).abs() < 4 * standard_error).all()

# %% [markdown]
# ## A weight for each token
#
# PPO {cite}`schulman2017ppo` and GRPO {cite}`shao2024deepseekmath` give each token its own ratio
# $r_t$ and leave out the product. What does
#
# $$\hat g = A(y) \sum_{t=1}^{L} r_t\, \nabla \log \pi_\theta(y_t \mid y_{<t}),
# \qquad y \sim \pi_0$$
#
# climb? Take the $t$-th term and write $\pi_0(y)$ as prefix, token and continuation:
#
# $$
# \sum_y \pi_0(y_{<t})\, \pi_0(y_t \mid y_{<t})\, \pi_0(y_{>t} \mid y_{\le t})\; A(y)\;
# \cdot\frac{\pi_\theta(y_t \mid y_{<t})}{\pi_0(y_t \mid y_{<t})}\, \nabla \log \pi_\theta(y_t \mid
# y_{<t}).
# $$
#
# The old probability of the token cancels, and $\pi_\theta \nabla \log \pi_\theta = \nabla
# \pi_\theta$ is the only factor that depends on $\theta$. So the gradient can be drawn out of the
# sum:
#
# $$
# \nabla \sum_y \pi_0(y_{<t})\, \pi_\theta(y_t \mid y_{<t})\, \pi_0(y_{>t} \mid y_{\le t})\, A(y)
# = \nabla\, \mathbb{E}_{y \sim h_t}[A(y)] .
# $$
#
# $h_t$ is a *hybrid policy*: the old one, but for token $t$, which comes from the new. The
# estimate is unbiased for the gradient of $\sum_t \mathbb{E}_{h_t}[A]$, its *surrogate objective*.
# In the example of two tokens this is $p\, q_0 + p_0\, q$ where it should be $p\, q$.

# %%
token_estimate = mean_over(p_0, q_0, lambda y, z: y * z * (p / p_0) * (y - p))
show(
    r"\mathbb{E}_{\pi_0}[r_1 \cdot \text{reward} \cdot \text{score}]",
    token_estimate,
)

# %% [markdown]
# Its derivative for $\theta_1$ is $p(1-p)\,q_0$, in numbers 0.105, instead of $p(1-p)\,q = 0.168$:
# the second token is taken as the old policy would have written it. On the trees, the surrogate is
# a sum of four mean advantages under four hybrids.


# %%
def hybrid_reward(theta: Tensor, tree: Tree, new_at: set[int]) -> Tensor:
    """Mean advantage if the tokens `new_at` are new and the rest old."""
    is_new = torch.tensor([t in new_at for t in range(LENGTH)])
    log_probs = torch.where(is_new, token_log_probs(theta), tree.old)
    return log_probs.sum(dim=1).exp() @ tree.advantages


# %%
def surrogate(theta: Tensor, tree: Tree, blocks: list[set[int]]) -> Tensor:
    """Sum of the mean advantages of one hybrid for each block."""
    return sum(hybrid_reward(theta, tree, block) for block in blocks)


# %% tags=["check"]
slope = sp.diff(p * q_0 + p_0 * q, p) * p * (1 - p)  # dp/dθ = p (1 - p)
assert sp.simplify(token_estimate - slope) == 0
assert abs(token_estimate.subs(NUMBERS) - 0.105) < 1e-12
everything_new = hybrid_reward(theta, tree, {0, 1, 2, 3})
assert abs(everything_new - J(theta, tree)) < 1e-12

# %% tags=["check", "claim:A26"]
for other, there in zip(TREES, MOVED, strict=True):
    found = expected_estimate(there, other, "noclip")
    wanted = grad(surrogate)(there, other, [{0}, {1}, {2}, {3}])
    assert (found - wanted).abs().max() < 1e-10
    assert relative_error(found, true_gradient(there, other)) > 0.2

# %% [markdown]
# ### Two biases
#
# The exact weight is the product of three factors, of which "noclip" keeps the middle one:
#
# $$
# w = \underbrace{\textstyle\prod_{k<t} r_k}_{\text{prefix}} \cdot \; r_t \; \cdot
# \underbrace{\textstyle\prod_{k>t} r_k}_{\text{continuation}} .
# $$
#
# Without the first, prefixes come as often as the *old* policy wrote them. Without the last, a
# token is judged by how the *old* policy went on after it. We can put either one back, and see what
# is then left of the error.


# %%
def repaired(
    theta: Tensor, tree: Tree, prefix: bool, continuation: bool
) -> Tensor:
    """The objective of "noclip", with one or both factors put back."""
    loss, info = compute_policy_gradient_loss(
        tree.advantages, token_log_probs(theta), "noclip", tree.old
    )
    up_to = info["ratio"].cumprod(dim=1)
    before, after = up_to / info["ratio"], up_to[:, -1:] / up_to
    factors = before**prefix * after**continuation
    return -aggregate_loss_across_microbatch(
        tree.p_0[:, None] * factors * loss, mask, "constant", 1.0
    )


# %%
corners = {
    (prefix, continuation): grad(repaired)(theta, tree, prefix, continuation)
    for prefix, continuation in itertools.product((False, True), repeat=2)
}

# %%
errors = pd.DataFrame(
    [
        [relative_error(corners[x, y], truth) for y in (True, False)]
        for x in (True, False)
    ],
    index=["prefix new", "prefix old"],
    columns=["continuation new", "continuation old"],
)
errors.round(2)

# %% [markdown]
# The two are of different kinds. The prefix bias does not bend anything: a prefix that the old
# policy wrote twice as often has its row of the gradient doubled, and each row on its own points
# where it should. In a table, every row still climbs, at a wrong speed. (A network shares its
# weights between rows, so there a wrong speed is a wrong direction.) The continuation bias is
# about values: a token is praised for what the old policy made of it. It turns the rows, and one
# row of our tree by more than a right angle. The first token's row has no prefix bias, and those
# of the last tokens have no continuation bias.

# %% tags=["check", "claim:A26"]
expected = [[0.00, 0.39], [0.35, 0.53]]
assert np.abs(errors.to_numpy() - expected).max() < 5e-3
up_to = log_ratio.exp().cumprod(dim=1)
speed = torch.ones(40, dtype=torch.float64)
for t in range(1, LENGTH):
    speed[rows[:, t]] = 1 / up_to[:, t - 1]  # π_0 over π_θ of the prefix
assert (corners[0, 1] - speed[:, None] * truth).abs().max() < 1e-10
assert (corners[1, 0][13:] - truth[13:]).abs().max() < 1e-10
turned = torch.cosine_similarity(corners[1, 0], truth, dim=1)
assert (turned < -0.3).sum() == 1

# %% [markdown]
# ## A weight for each pair
#
# Between one token and all of them lie blocks. Give the tokens $2t-1$ and $2t$ the product of both
# their ratios. Nothing in the derivation needed the middle part to be a single token, so the
# surrogate is $\sum_t \mathbb{E}_{h_t}[A]$ again, now with hybrids that are new at the positions
# $2t-1$ and $2t$ and old elsewhere. (The worked answer of the first exercise has every line.) In
# the example of two tokens a pair is the whole answer, and nothing is missing.

# %% tags=["check", "claim:A27"]
expected = [{0, 1}, {2, 3}]  # counted from 0
for other, there in zip(TREES, MOVED, strict=True):
    found = expected_estimate(there, other, "pairs")
    wanted = grad(surrogate)(there, other, expected)
    assert (found - wanted).abs().max() < 1e-10

# %% [markdown]
# Within a pair nothing is missing any more; what is left is the prefix before the pair and the
# continuation after it. On our tree a larger block has less bias and more variance:


# %%
BLOCK_METHODS = ("noclip", "pairs", "exact")


def bias_and_variance(theta: Tensor, tree: Tree, method: str) -> list[float]:
    """Relative error of the mean, and variance of one answer over |∇J|²."""
    each = single_estimates(theta, tree, method)
    truth = true_gradient(theta, tree).flatten()
    mean = tree.p_0 @ each
    variance = tree.p_0 @ (each - mean).square().sum(dim=1)
    return [
        relative_error(mean, truth),
        (variance / truth.square().sum()).item(),
    ]


# %%
dial = {name: bias_and_variance(theta, tree, name) for name in BLOCK_METHODS}
pd.DataFrame(
    dial, index=["bias / |∇J|", "variance of one answer / |∇J|²"]
).round(2)

# %% [markdown]
# Is that a law? At distance 0.2, whether the trees go in a random direction or up their own
# gradient, the averages of the eight trees have this order. Not every tree has it: uphill there is
# one on which pairs have more bias than single tokens, and in a random direction one on which they
# have less variance. So blocks are a dial close to the old policy, and on average. The map will
# show how little is left of it further out.

# %% tags=["check"]
biases, variances = zip(*dial.values(), strict=True)
assert list(biases) == sorted(biases, reverse=True)
assert list(variances) == sorted(variances)
dials = np.array(
    [
        [
            [bias_and_variance(there, other, name) for name in BLOCK_METHODS]
            for there in (
                move(other, random_direction(seed), 0.2),
                move(other, true_gradient(other.theta_0, other), 0.2),
            )
        ]
        for seed, other in enumerate(TREES)
    ]
)  # tree, direction, method, bias or variance
of_trees = np.moveaxis(dials, 3, 0)
biases, variances = of_trees
assert (np.diff(biases.mean(axis=0)) < 0).all()
assert (np.diff(variances.mean(axis=0)) > 0).all()
assert (biases[..., 1] > biases[..., 0]).sum(axis=0).tolist() == [0, 1]
assert (variances[..., 1] < variances[..., 0]).sum(axis=0).tolist() == [1, 0]
assert (variances[..., 2] > variances[..., 1]).all()

# %% [markdown]
# ## Clip
#
# Token weights are right as long as the policy stays close to the old one. Clipping
# (PPO, and "grpo" in the package) is there to keep it close. Chapter 11 has the formula,
# $-\min(A r_t, A\,\text{clip}(r_t, 1-\varepsilon, 1+\varepsilon))$. Whether the token keeps its
# gradient $A\, r_t \nabla \log \pi_\theta(y_t)$ is a matter of sign and side:
#
# | | ratio above $1 + \varepsilon$ | ratio below $1 - \varepsilon$ |
# |---|---|---|
# | $A > 0$ | silent: far enough up | kept: it has fallen and should rise |
# | $A < 0$ | kept: it has risen and should fall | silent: far enough down |
#
# On our tree with $\varepsilon = 0.2$, all 324 tokens of all answers, by the gradient with respect
# to each token's own log-probability, the *push*:


# %%
def push(method: str, cliprange: float | None = None) -> Tensor:
    """Minus the gradient at each token's log-probability, (81, 4)."""
    new = token_log_probs(theta).requires_grad_()
    loss, _ = compute_policy_gradient_loss(
        tree.advantages, new, method, tree.old, cliprange, mask
    )
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return -gradient


# %%
ratio = log_ratio.exp()
good = (tree.advantages > 0)[:, None].expand_as(ratio)
CASES = {
    "A > 0, above": good & (ratio > 1.2),
    "A > 0, below": good & (ratio < 0.8),
    "A < 0, above": ~good & (ratio > 1.2),
    "A < 0, below": ~good & (ratio < 0.8),
}

# %%
pd.DataFrame(
    {
        name: [
            int(where.sum()),
            int((push("grpo", 0.2)[where] != 0).sum()),
            int((push("cispo", 0.2)[where] != 0).sum()),
        ]
        for name, where in CASES.items()
    },
    index=["tokens", "with a gradient, clip", "with a gradient, CISPO"],
)

# %% tags=["check", "claim:A28a", "claim:A28b", "claim:A28c", "claim:A28d"]
expected_kept = {
    "A > 0, above": 0,
    "A > 0, below": 1,
    "A < 0, above": 1,
    "A < 0, below": 0,
}
for name, kept in expected_kept.items():
    where = CASES[name]
    wanted = kept * push("noclip")[where]  # A r
    assert (
        where.sum() > 10
        and (wanted - push("grpo", 0.2)[where]).abs().max() < 1e-12
    )
inside = (ratio > 0.8) & (ratio < 1.2)
assert torch.equal(push("grpo", 0.2)[inside], push("noclip")[inside])

# %% [markdown]
# CISPO {cite}`minimax2025m1` does not silence those tokens. It pushes each with $A \min(r_t, 1 +
# \varepsilon)$: the weight is capped, the gradient stays.

# %% tags=["check", "claim:A29"]
expected_cap = 1.2
silenced = (push("grpo", 0.2) == 0) & (push("noclip") != 0)
assert torch.equal(silenced, CASES["A > 0, above"] | CASES["A < 0, below"])
weights = push("cispo", 0.2) / tree.advantages[:, None]
assert (weights[silenced] > 0).all()
assert (weights - ratio.clamp(max=expected_cap)).abs().max() < 1e-12

# %% [markdown]
# The two answer different questions. CISPO is an estimate of the gradient, a tamer "noclip".
# Clipping takes away what agrees with the way that the policy has gone already. What it leaves is
# no estimate of the gradient any more, but a brake: it says where one may still go *near the old
# policy*.
#
# ## One weight for an answer, after all
#
# A reward belongs to the whole answer, and so should its weight, says GSPO {cite}`zheng2025gspo`.
# To tame the product it takes the geometric mean,
#
# $$s = \Big(\prod_{t=1}^{L} r_t\Big)^{1/L} = w^{1/L}
# = \exp\Big(\frac1L \sum_{t=1}^{L} \log r_t\Big),$$
#
# and clips it as PPO clips a token's ratio. By hand: the ratios 2, 0.5, 1, 1.5 have the product
# 1.5, and $s = 1.5^{1/4} = 1.1067$. The exponential of the mean log-ratio gives the same, also
# where a product would leave the range of numbers.

# %% tags=["check", "claim:A30a"]
expected = 1.1067


def gspo_weight(ratios: list[float]) -> float:
    """The package's weight of one answer, with a wide clip range."""
    new = torch.tensor([ratios], dtype=torch.float64).log()
    loss, _ = compute_policy_gradient_loss(
        torch.ones(1), new, "gspo", torch.zeros_like(new), 9.0, new == new
    )
    return -loss[0, 0].item()


assert abs(gspo_weight([2, 0.5, 1, 1.5]) - expected) < 5e-5
assert math.prod([1.5] * 5000) == math.inf
assert abs(gspo_weight([1.5] * 5000) - 1.5) < 1e-9
found = -token_loss(theta, tree, "gspo", 9.0)[:, 0] / tree.advantages
assert (found - ratio.prod(dim=1) ** (1 / LENGTH)).abs().max() < 1e-12

# %% [markdown]
# ### Where 1/L comes from
#
# The objective of an answer is $A s$. Differentiate it with respect to the log-probability of one
# token, $x = \log \pi_\theta(y_t)$. The constant $c$ stands for the rest of the sum: the other
# tokens' log-ratios and this one's $-\log \pi_0(y_t)$.

# %%
x, c = sp.symbols("x c", real=True)
L = sp.symbols("L", positive=True)
s = sp.exp((x + c) / L)
ratio_of_slopes = sp.simplify(sp.diff(s, x) / s)
show(
    r"\frac{1}{s} \cdot \frac{\partial s}{\partial \log \pi_\theta(y_t)}",
    ratio_of_slopes,
)

# %% [markdown]
# Every token is pushed with $A s / L$. The mean over the answer's tokens, GRPO's "sequence", is
# there without anybody having asked for it.
#
# In the package each token has a copy of $s$ with a gradient of its own, $s \nabla \log
# \pi_\theta(y_t)$. Adding up the $L$ copies, one per token, gives $L$ times the gradient of $s$,
# and the $1/L$ is gone. It is then the normalisation that decides: "sequence" divides by $L$, and
# we are back at GSPO's objective; "constant" divides by $Z$, and no $1/L$ appears. Two answers of 2
# and 4 tokens with the same $s$ and $A = 1$, per token and in units of $s$:


# %%
two_masks = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
two_old = torch.full((2, 4), math.log(0.5), dtype=torch.float64)
S = 1.25


# %%
def from_package(new: Tensor, normalization: str) -> Tensor:
    loss, _ = compute_policy_gradient_loss(
        torch.ones(2), new, "gspo", two_old, 9.0, two_masks
    )
    return aggregate_loss_across_microbatch(
        loss, two_masks, normalization, normalization_constant=2.0
    )


def from_formula(new: Tensor) -> Tensor:
    """Minus the mean of s over the two answers."""
    sums = ((new - two_old) * two_masks).sum(dim=1)
    return -(sums / two_masks.sum(dim=1)).exp().mean()


# %% tags=["check", "claim:A30b"]
two_new = two_old + math.log(S)
per_token = {
    "formula": grad(from_formula)(two_new),
    "sequence": grad(from_package)(two_new, "sequence"),
    "constant": grad(from_package)(two_new, "constant"),
}
expected = {
    "formula": [0.5, 0.25],
    "sequence": [0.5, 0.25],
    "constant": [1.0, 1.0],
}
for name, pushes in expected.items():
    found = -per_token[name][:, 0] * 2 / S  # two answers
    assert np.abs(found.numpy() - pushes).max() < 1e-9
assert ratio_of_slopes == 1 / L

# %% [markdown]
# ### What a root of the weight repairs
#
# How much of the naive estimate's bias does $s$ remove? Write $\lambda = \log w$, the sum of all
# log-ratios. Near the old policy $\lambda$ is small. The exact weight is then $1 + \lambda$, the
# naive one 1, so that $\lambda$ is what the naive estimate lacks. GSPO's weight $s = e^{\lambda /
# L}$ starts with the slope

# %%
lam = sp.symbols("lambda")
kept_share = sp.diff(sp.exp(lam / L), lam).subs(lam, 0)
show(r"\frac{ds}{d\lambda}\Big|_{\lambda = 0}", kept_share)

# %% [markdown]
# so that $s \approx 1 + \lambda/L$. The root leaves the share $1 - 1/L$ of the bias: three
# quarters on the tree, and on answers of 512 tokens all but a five-hundredth. Without its clip,
# GSPO on long answers *is* the naive estimate, near the old policy. What it changes, it changes by
# clipping. Token weights are not much better off: each token gets one of the $L$ log-ratios, its
# own, and lacks the others. On the eight trees they leave between 0.66 and 1.07 of the bias.

# %% tags=["check"]
left_by_tokens = []
for seed, other in enumerate(TREES):
    near = move(other, random_direction(seed), 1e-5)
    near_truth = true_gradient(near, other)
    none, root, tokens = (
        expected_estimate(near, other, *method) - near_truth
        for method in (("none",), ("gspo", 9.0), ("noclip",))
    )
    assert relative_error(root, none * (1 - 1 / LENGTH)) < 1e-3
    left_by_tokens.append((tokens.norm() / none.norm()).item())
assert abs(min(left_by_tokens) - 0.66) < 5e-3
assert abs(max(left_by_tokens) - 1.07) < 6e-3

# %% [markdown]
# ### The two tokens, once more
#
# Back to the example of the beginning, whose right answer has the ratios 1.4 and 1.6. Without a
# baseline it is the only answer with a reward, so the mean estimate is how often the old policy
# wrote it, 0.25, times the push on its first token, times that token's score, 0.3.


# %%
def mean_of_example(method: str, cliprange: float | None = None) -> float:
    """The first component of the mean estimate, without a baseline."""
    new = torch.tensor([[0.7, 0.8]], dtype=torch.float64).log()
    new.requires_grad_()
    old = torch.full_like(new, math.log(0.5))
    loss, _ = compute_policy_gradient_loss(
        torch.ones(1), new, method, old, cliprange, new < 0
    )
    (gradient,) = torch.autograd.grad(-loss.sum(), new)
    return 0.25 * gradient[0, 0].item() * 0.3


# %%
example = {
    "none": ("1", mean_of_example("none")),
    "noclip": ("1.4", mean_of_example("noclip")),
    "clip, ε = 0.2": ("0, as 1.4 > 1.2", mean_of_example("grpo", 0.2)),
    "cispo, ε = 0.2": ("1.2", mean_of_example("cispo", 0.2)),
    "gspo, ε = 0.2": ("0, as 1.497 > 1.2", mean_of_example("gspo", 0.2)),
    "gspo, ε = 9": ("√2.24 = 1.497", mean_of_example("gspo", 9.0)),
    "exact": ("1.4 · 1.6 = 2.24", float(weighted.subs(NUMBERS))),
}
shown = pd.DataFrame(example, index=["weight", "mean estimate"]).T
shown["mean estimate"] = shown["mean estimate"].map("{:.4f}".format)
shown

# %% tags=["check"]
by_hand = [1, 1.4, 0, 1.2, 0, 2.24**0.5, 2.24]
for (_, value), in_front in zip(example.values(), by_hand, strict=True):
    assert abs(value - 0.075 * in_front) < 1e-12

# %% [markdown]
# ## The map
#
# Now all methods on one sheet. For each we compute, on eight trees, the bias (the length of the
# error of the mean estimate, in units of $|\nabla J|$) and the variance of a single answer's
# estimate (summed over all 120 parameters, in units of the variance that a *fresh* sample of
# $\pi_\theta$ would have), as the policy moves away. GSPO has two clip ranges: the assignment's $3
# \cdot 10^{-4}$ is meant for hundreds of tokens; here the mean of four log-ratios has about half
# the spread of one, so half of 0.2 compares with clip's.
#
# In which direction the policy moves matters. A *random* direction is what learning from other
# prompts does to this one, by accident. *Uphill*, along $\nabla J(\theta_0)$, is what training is
# for: in the mean, right answers have become likelier and wrong ones rarer.

# %%
METHODS = {
    "none": ("none",),
    "noclip": ("noclip",),
    "pairs": ("pairs",),
    "exact": ("exact",),
    "clip": ("grpo", 0.2),
    "cispo": ("cispo", 0.2),
    "gspo": ("gspo", 0.1),
    "gspo, 3e-4": ("gspo", 3e-4),
}
DISTANCES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)


# %%
def measure_method(
    theta: Tensor, tree: Tree, method: tuple, fresh: Tensor, truth: Tensor
) -> dict[str, float]:
    """Exact bias and variance of a method at θ, and its way uphill."""
    each = single_estimates(theta, tree, *method)
    mean = tree.p_0 @ each
    variance = tree.p_0 @ (each - mean).square().sum(dim=1)
    return {
        "bias": relative_error(mean, truth),
        "variance": (variance / fresh).item(),
        "noise": (variance / truth.square().sum()).item(),
        "uphill part": (mean @ truth / truth.square().sum()).item(),
    }


# %%
def measure(theta: Tensor, tree: Tree) -> dict[str, dict[str, float]]:
    """The same of all methods, by name."""
    truth = true_gradient(theta, tree).flatten()
    new_probs = token_log_probs(theta).sum(dim=1).exp()
    errors = single_estimates(theta, tree, "none") - truth
    fresh = new_probs @ errors.square().sum(dim=1)
    return {
        name: measure_method(theta, tree, method, fresh, truth)
        for name, method in METHODS.items()
    }


# %%
records = []
for seed, each_tree in enumerate(live(TREES, "tree")):
    ways = {
        "random": random_direction(seed),
        "uphill": true_gradient(each_tree.theta_0, each_tree),
    }
    for (way, direction), distance in itertools.product(
        ways.items(), DISTANCES
    ):
        there = move(each_tree, direction, distance)
        for name, values in measure(there, each_tree).items():
            key = {"way": way, "distance": distance, "method": name}
            records.append(key | {"tree": seed} | values)
table = pd.DataFrame(records)
means = table.groupby(["way", "distance", "method"]).mean()

# %% tags=["hide-input"]
STYLES = {
    name: line(name) for name in ("none", "noclip", "clip", "cispo", "gspo")
}
STYLES["exact"] = line("all")
STYLES["pairs"] = line("noclip") | {"linestyle": (0, (4, 1, 1, 1, 1, 1))}
STYLES["gspo, 3e-4"] = line("gspo") | {"linewidth": 1.0, "linestyle": "-"}
TITLES = {"random": "A random direction", "uphill": "Uphill"}


def finish(figure, axes) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    plt.show()


# %% tags=["hide-input"]
figure, axes = plt.subplots(
    2, 2, figsize=(8.6, 6.6), sharex=True, sharey="row", layout="constrained"
)
panels = itertools.product(enumerate(("bias", "variance")), enumerate(TITLES))
for (row, quantity), (column, way) in panels:
    ax = axes[row, column]
    for name in METHODS:
        rows_of = (table["way"] == way) & (table["method"] == name)
        for _, one in table[rows_of].groupby("tree"):
            faint = STYLES[name] | {"linewidth": 0.7, "alpha": 0.15}
            ax.plot(one["distance"], one[quantity], **faint)
        mean = means.loc[way].xs(name, level="method")[quantity]
        ax.plot(mean, label=name, **STYLES[name])
for column, title in enumerate(TITLES.values()):
    axes[0, column].set(title=title, ylim=(-0.05, 4.0))
    axes[1, column].set(yscale="log", ylim=(0.08, 80))
    ticks = [0.1, 0.3, 1, 3, 10, 30]
    axes[1, column].set_yticks(ticks, ticks)
    axes[1, column].set_xlabel("distance, spread of log r")
    axes[1, column].axhline(1, color="0.5", linewidth=0.8, zorder=0)
axes[0, 0].set_ylabel("bias / |∇J|")
axes[1, 0].set_ylabel("variance / that of a fresh sample")
finish(figure, axes)

# %% [markdown]
# *Thick: the mean of eight trees; faint: each (some leave the frame). Upper row: exact weights have
# no bias anywhere. In a random direction the naive estimate has most of the unclipped ones, then
# token weights, then pairs; CISPO lies on "noclip". Uphill these four nearly coincide up to 0.5.
# Then the naive estimate leaves the others below, and at 2 its bias is nearly four times the
# gradient, while pairs are no better than single tokens. Clip and GSPO part from the rest as soon
# as ratios reach their range. Lower row, on a logarithmic axis: exact weights become by far the
# noisiest. The grey line is a fresh sample. Clip, GSPO and CISPO become quieter than that, as they
# say less. The naive estimate is quieter uphill up to 0.5 and louder far out, more so than token
# weights.*

# %% tags=["check"]
by_bias = means["bias"].unstack("method")
by_variance = means["variance"].unstack("method")
close = by_bias.loc["uphill"].loc[:0.5, ["none", "noclip", "pairs", "cispo"]]
assert (close.max(axis=1) - close.min(axis=1)).max() < 0.05
assert 3.8 < by_bias.loc[("uphill", 2.0), "none"] < 3.85
further = by_bias.loc["uphill"].loc[0.75:]
for name in ("noclip", "pairs", "cispo"):
    assert (further["none"] - further[name]).min() > 0.1
assert abs(further.loc[1.0, "pairs"] - further.loc[1.0, "noclip"]) < 5e-3
assert further.loc[2.0, "pairs"] > further.loc[2.0, "noclip"] + 0.05
quiet = by_variance[["clip", "gspo", "gspo, 3e-4", "cispo"]]
assert quiet.drop(0.0, level="distance").max().max() < 1
assert by_variance.loc["uphill", "none"].loc[0.02:0.5].max() < 0.98
expected = {1.0: [1.73, 1.30], 2.0: [3.66, 1.60]}  # random direction
for distance, pair in expected.items():
    found = by_variance.loc[("random", distance), ["none", "noclip"]]
    assert np.abs(found.to_numpy() - pair).max() < 5e-3

# %% tags=["hide-input"]
figure, axes = plt.subplots(
    1, 2, figsize=(8.6, 4.4), sharex=True, sharey=True, layout="constrained"
)
for ax, way in zip(axes, TITLES, strict=True):
    for name in METHODS:
        path = means.loc[way].xs(name, level="method").loc[:1.0]
        ax.plot(path["variance"], path["bias"], label=name, **STYLES[name])
        for mark, distance in (("o", 0.2), ("s", 1.0)):
            point = path.loc[distance, ["variance", "bias"]]
            color = STYLES[name]["color"]
            ax.plot(*point, mark, color=color, markersize=5)
    ax.plot(1, 0, "*", color="black", markersize=11)
    ax.set(title=TITLES[way], xscale="log", xlim=(0.12, 14))
    ax.set_xticks([0.2, 0.5, 1, 2, 5, 10], [0.2, 0.5, 1, 2, 5, 10])
    ax.set_xlabel("variance / that of a fresh sample")
axes[0].set_ylabel("bias / |∇J|")
finish(figure, axes)

# %% [markdown]
# *The same as paths, one for each method, from the star, where the policy has not moved, over the
# circle at distance 0.2 to the square at distance 1. Exact weights walk to the right; the naive
# estimate, token weights and pairs up, and in a random direction to the right as well; whatever
# clips or caps, up and to the left. Uphill, at the square, the naive estimate has a third more bias
# than token weights. Nobody stays at the star.*
#
# At distance 1 exact weights have ten times the variance of a fresh sample in a random direction,
# on answers of four tokens. Uphill, clip has a bias of 1.15 as early as at distance 0.2, more than
# an estimate that is always zero. The part of its mean that points along the gradient is 0.02 of
# what it should be: tokens that have gone the right way are silent, and what is left is to call
# others back.

# %% tags=["check"]
far, near = means.xs(1.0, level="distance"), means.xs(0.2, level="distance")
assert means.xs("exact", level="method")["bias"].max() < 1e-8
for name in ("none", "noclip", "pairs"):
    assert far.loc[("random", name), "variance"] > 1.25
more = far.loc["uphill", "bias"]["none"] / far.loc["uphill", "bias"]["noclip"]
assert abs(more - 4 / 3) < 0.03
assert abs(far.loc[("random", "exact"), "variance"] - 10.1) < 0.05
assert abs(near.loc[("uphill", "clip"), "bias"] - 1.15) < 5e-3
assert abs(near.loc[("uphill", "clip"), "uphill part"] - 0.02) < 5e-3
by_method = means.loc["random", "bias"].drop(0.0).unstack("method")
for more, less in (("none", "noclip"), ("noclip", "pairs")):
    assert (by_method[more] > by_method[less]).all()
assert (by_method["cispo"] - by_method["noclip"]).abs().max() < 0.05

# %% [markdown]
# ### What a step is worth
#
# Bias and variance are two numbers; a training step is one thing. Let the optimizer make steps of
# length 1 along the mean of $n$ estimates. What share of the step's length goes uphill? In the
# numerator stands the uphill part of the mean estimate, in the denominator the root mean square
# of the estimate's length, which is $\sqrt{|\text{mean}|^2 + \text{variance}/n}$. 1 is the gradient
# itself, 0 is lost effort, and below 0 the step goes down.


# %%
def progress(row: pd.DataFrame, n: int) -> pd.Series:
    """Uphill part of a step of length 1 along a mean of n estimates."""
    # |m|² = |m - g|² + 2 m·g - |g|², in units of |g|², the gradient's
    mean_square = row["bias"] ** 2 + 2 * row["uphill part"] - 1
    return row["uphill part"] / (mean_square + row["noise"] / n) ** 0.5


# %%
def progress_table(n: int) -> pd.DataFrame:
    shown = table[table["distance"].isin([0.05, 0.2, 1.0])].copy()
    shown["progress"] = progress(shown, n)
    keys = ["way", "distance"]
    by_method = shown.pivot_table("progress", "method", keys, "mean")
    return by_method.loc[list(METHODS)]


# %%
progress_table(256).round(2)

# %% [markdown]
# Three things are to be read off. Close to the old policy, and at 0.05 that is still close, all
# but the narrow GSPO are the same: it is not the weights that limit a step there, but noise. At
# 0.2 the unclipped ones, weights or no weights, still agree within a few hundredths, whereas
# uphill the clip has put on the brake. At distance 1, unweighted and token-weighted steps have
# lost between a third and two thirds of their worth, and only exact weights, which four tokens
# allow, keep more than 0.7 both ways. With eight answers instead of 256 noise takes more than half
# of every step. What the weights do still shows: at distance 1, in a random direction, exact
# weights have 0.33 and no weights 0.19, and uphill the clip goes down, with -0.17.

# %%
progress_table(8).round(2)

# %% tags=["check"]
shown = progress_table(256)
unclipped = ["none", "noclip", "pairs", "exact", "cispo"]
assert np.ptp(shown.drop("gspo, 3e-4")[("random", 0.05)]) < 0.01
assert np.ptp(shown.drop("gspo, 3e-4")[("uphill", 0.05)]) < 0.01
assert np.ptp(shown.loc[unclipped, ("random", 0.2)]) < 0.06
assert np.ptp(shown.loc[unclipped, ("uphill", 0.2)]) < 0.06
assert shown.loc["clip", ("uphill", 0.2)] < 0.1
steady = (shown.xs(1.0, axis=1, level="distance") > 0.7).all(axis=1)
assert steady[steady].index.tolist() == ["exact"]
for name, way in itertools.product(("none", "noclip"), TITLES):
    lost = 1 - shown.loc[name, (way, 1.0)] / shown.loc[name, (way, 0.05)]
    assert 1 / 3 < lost < 2 / 3
shown = progress_table(8)
assert shown.max().max() < 0.45
found = shown.loc[["exact", "none"], ("random", 1.0)]
assert np.abs(found.to_numpy() - [0.33, 0.19]).max() < 5e-3
assert abs(shown.loc["clip", ("uphill", 1.0)] + 0.17) < 5e-3

# %% [markdown]
# ## Thirty-two updates on one batch
#
# The assignment samples 256 answers and takes 32 updates on them, of eight answers each. The first
# is on-policy. The last one learns from answers that a policy wrote 31 updates ago. Each answer
# is used once, so that what has moved its probability since are other answers.
#
# Where on the map is that? We let the pocket policy of {doc}`11_policy_gradient_loss` do the same:
# eight answers to each of 32 problems, one group for each update. Just before its update, we
# measure how far the tokens of a group have moved: the root mean square of $\log r_t$, which is the
# distance of the map.

# %% tags=["nbval-ignore-output"]
config = experiment_config("on-policy", "pocket")
model, tokenizer = load_policy(config)
model.eval()
rollouts = sample_rollouts(
    LocalEngine(model, tokenizer),
    config.prompt_object(),
    load_problems(config, "train")[:32],
    group_size=8,
    seed=0,
    temperature=1.0,
    top_p=1.0,
    max_tokens=48,
)

# %%
batch = tokenize_prompt_and_output(
    rollouts.prompts,
    [completion.text for completion in rollouts.completions],
    tokenizer,
    output_token_ids=[
        completion.token_ids for completion in rollouts.completions
    ],
)
inputs, labels = batch["input_ids"], batch["labels"]
response_mask = batch["response_mask"]
group_advantages, _ = compute_group_normalized_rewards(rollouts.rewards, 8)
with torch.no_grad():
    before = rl.sequence_logprobs(model, inputs, labels)

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
spreads = []
groups = torch.arange(256).split(8)
for group in live(groups, "group"):
    now = rl.sequence_logprobs(model, inputs[group], labels[group])
    moved = (now - before[group]).detach()[response_mask[group]]
    spreads.append(moved.square().mean().sqrt().item())
    loss = rl.grpo_loss(
        now, before[group], group_advantages[group], response_mask[group]
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% tags=["nbval-ignore-output"]
shown = {f"group {i + 1}": spreads[i] for i in (0, 4, 10, 16, 24, 31)}
pd.DataFrame(shown, index=["spread of log r"]).round(2)

# %% [markdown]
# The first group has not moved. The last eight have moved by 0.1 to 0.2, though in two thirds of
# the groups all answers had the same reward, and no gradient. A policy that learns from more groups
# goes further. So the end of a batch lies just where the methods part: uphill, 0.1 is where the
# clip starts to bite, and at 0.2 it has taken nearly all of a step's worth. And exact weights are
# out of the question there. The variance of one ratio is about the squared spread. Over 512 tokens
# a spread of 0.1 makes $(1 + 0.1^2)^{512} - 1 = 162$, and 0.2 is our coin from above, with its 500
# million.

# %% tags=["check"]
assert len(groups) == 256 // 8 == 32 and spreads[0] < 1e-4
assert 0.1 < np.mean(spreads[-8:]) < 0.2
silent = (group_advantages.reshape(32, 8) == 0).all(dim=1)
assert abs(silent.double().mean() - 2 / 3) < 0.1
assert abs((1 + 0.1**2) ** 512 - 1 - 162) < 0.5
assert abs(0.2**2 - expected_kappa) < 1e-12
at_256 = progress_table(256)
assert at_256.loc["clip", ("uphill", 0.2)] < 0.1

# %% [markdown]
# So the practical question is less which weight estimates best than how far one lets the policy go
# before it samples again: by few updates, by a small learning rate, or by a clip.
# {doc}`12_grpo_train_step` has the step that takes old answers.
#
# ## Take away
#
# - On old answers the naive estimate is biased, and a baseline makes it push on in whatever
#   direction the policy has gone.
# - Exact weights remove the bias. Their variance is $(1+\kappa)^L - 1$: hopeless for long answers.
# - A token's own ratio climbs the sum of hybrid policies' rewards. Missing are the new prefix (a
#   wrong speed) and the new continuation (a wrong direction). Close to the old policy, and on
#   average, blocks of tokens are a dial between this and exact weights.
# - Clipping is a brake, no estimate: it silences what has gone far enough the right way. CISPO caps
#   the weight and silences nothing.
# - GSPO's root repairs a share $1/L$ of the bias; the rest of its effect is its clip. Its $1/L$ is
#   there by itself under "sequence", and not under "constant".
#
# ## Exercises
#
# ```{exercise} What blocks of weights climb
# :label: ex-20-surrogate
#
# *Hard, 30 minutes.* This is `derive_surrogate_objectives`, on paper: answers have $L$ tokens, $L$
# even, and each pair of tokens $2t-1$, $2t$ has the weight $r_{2t-1} r_{2t}$. Of which objective is
# the mean estimate the gradient? Then write `block_surrogate(theta, tree, size)`, its value for
# blocks of any size that divides four. Use `hybrid_reward`.
#
# :::{dropdown} Hint
# Write $\pi_0(y)$ as what comes before the pair, the pair, and what comes after it.
# :::
#
# :::{dropdown} Worked answer
# Let $u_t = (y_{2t-1}, y_{2t})$ be the $t$-th pair, $y_{<}$ what stands before it and $y_{>}$ what
# follows. A policy gives the pair the probability $\pi(u_t \mid y_{<}) = \pi(y_{2t-1} \mid y_{<})\,
# \pi(y_{2t} \mid y_{<}, y_{2t-1})$, and its log is the sum of the two tokens'. The estimate is
# $A(y) \sum_t \frac{\pi_\theta(u_t \mid y_{<})}{\pi_0(u_t \mid y_{<})} \nabla \log \pi_\theta(u_t
# \mid y_{<})$.
#
# The mean of the $t$-th term over $\pi_0(y) = \pi_0(y_{<})\, \pi_0(u_t \mid y_{<})\, \pi_0(y_{>}
# \mid y_{<}, u_t)$: the old probability of the pair cancels, and $\pi_\theta \nabla \log
# \pi_\theta = \nabla \pi_\theta$. What is left is $\sum_y \pi_0(y_{<})\, \nabla \pi_\theta(u_t
# \mid y_{<})\, \pi_0(y_{>} \mid y_{<}, u_t)\, A(y)$. The two old factors and $A$ do not depend on
# $\theta$, so it is the gradient of $\mathbb{E}_{h_t}[A]$, where $h_t$ is new at the positions
# $2t-1$ and $2t$ and old elsewhere. The objective is $\sum_{t=1}^{L/2} \mathbb{E}_{y \sim
# h_t}[A(y)]$.
#
# Compared with single tokens, the second token of a pair has its prefix right as far as the pair
# goes, and the first its continuation. The bias of whatever lies outside the pair remains. With one
# block for the whole answer nothing lies outside, and the objective is $J$. Equal lengths are
# needed only so that a division by the length is the same number for all answers; otherwise $1/L$
# belongs to $A(y)$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def block_surrogate(theta: Tensor, tree: Tree, size: int) -> Tensor:
    blocks = [
        set(range(start, start + size)) for start in range(0, LENGTH, size)
    ]
    return surrogate(theta, tree, blocks)


# %% tags=["check"]
for size, method in ((1, "noclip"), (2, "pairs"), (4, "exact")):
    for other, there in zip(TREES, MOVED, strict=True):
        climbed = grad(block_surrogate)(there, other, size)
        found = expected_estimate(there, other, method)
        assert (climbed - found).abs().max() < 1e-10
assert abs(block_surrogate(theta, tree, 4) - J(theta, tree)) < 1e-12

# %% [markdown]
# ```{exercise} Bias, variance, and what to choose
# :label: ex-20-bias-variance
#
# *Medium, 25 minutes.* This is `think_about_importance_reweighting`: where on the scale from bias
# to variance are no weights, clipped token weights, and GSPO? Write `ranking(way, distance, n)`:
# the names of the methods, the one with the most progress first, from `table` and `progress`, as a
# mean over the trees. Does the order depend on $n$?
#
# :::{dropdown} Hint
# `progress_table` does most of it, for three distances.
# :::
#
# :::{dropdown} Worked answer
# *No weights*: a bias that grows with the distance, in a random direction from 0.32 at 0.2 to 0.95
# at 1. It includes a push away from the old policy that every positive baseline adds. Nor is the
# estimate a quiet one: it starts out as noisy as a fresh sample, and in a random direction has 1.7
# times its variance at 1 and 3.7 times at 2.
#
# *Exact weights* are the other end: no bias, and a variance that grows exponentially with the
# length.
#
# *Token weights* without a clip keep one of the $L$ factors of the exact weight. It corrects the
# choice of this token, not the prefix before it nor the continuation after it. What that is worth
# depends on the direction. In a random one there is less bias than without weights at every
# distance, and from 0.35 on less variance, too. Uphill, up to 0.5, they do not reduce the bias by
# more than 0.02; only from 0.75 on there is a difference.
#
# *With the clip* nothing changes up to 0.05. From 0.1 on there is less variance than without it,
# and more bias, in both directions. Uphill is the worse one, as what is silenced is what has gone
# the right way. Beyond $\varepsilon$ the clip is no estimator but a limit on the distance, and so a
# limit on everyone's bias.
#
# *GSPO* looks like the exact end, as its weight belongs to the whole answer, but the root takes it
# to the opposite one. Up to 0.05 the wide range leaves about three quarters of the bias, $1 - 1/L$,
# and nearly the variance of no weights. Then it clips whole answers, so that the silence is all or
# nothing. With the narrow range that has happened at 0.02: the bias is 0.85 in a random direction,
# 1.20 uphill.
#
# *Does the order depend on $n$?* Up to 0.05 there is hardly an order: for any $n$ all but the
# narrow GSPO are within 0.01. Beyond, it does. With very many answers only the bias of the
# direction counts, and exact weights come first everywhere; with 256 they still do, but only
# because four tokens are so few. With one answer the noise counts as well: no weights come first
# uphill at 0.35, and in a random direction the quiet clip does at 1.5 and 2; with eight, at 2. But
# noise does not cover everything: with eight answers at distance 1 exact weights are still far
# ahead of none in a random direction. Over many updates noise averages out while a bias stays.
#
# Which is to be chosen depends on the distance first. Where the unclipped methods agree, weights
# hardly matter; beyond, something has to stop the policy.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def ranking(way: str, distance: float, n: int) -> list[str]:
    chosen = (table["way"] == way) & (table["distance"] == distance)
    shown = table[chosen].copy()
    shown["progress"] = progress(shown, n)
    by_method = shown.groupby("method")["progress"].mean()
    return by_method.sort_values(ascending=False).index.tolist()


# %% tags=["check"]
for way, distance in itertools.product(TITLES, DISTANCES[1:]):
    assert ranking(way, distance, 10**9)[0] == "exact"
    assert distance < 0.1 or ranking(way, distance, 256)[0] == "exact"
assert ranking("random", 1.0, 256)[:2] == ["exact", "pairs"]
assert ranking("uphill", 0.2, 256)[-2:] == ["clip", "gspo, 3e-4"]
assert ranking("uphill", 0.05, 8)[-1] == "gspo, 3e-4"
first_of_few = {
    (way, distance, n): ranking(way, distance, n)[0]
    for way, distance, n in (
        ("uphill", 0.35, 1),
        ("random", 1.5, 1),
        ("random", 2.0, 1),
        ("random", 2.0, 8),
    )
}
assert list(first_of_few.values()) == ["none", "clip", "clip", "clip"]
assert ranking("random", 1.5, 8)[0] == "exact"

# %% [markdown]
# The other numbers of the worked answer, from the table:

# %% tags=["check"]
random_bias, uphill_bias = by_bias.loc["random"], by_bias.loc["uphill"]
random_variance = by_variance.loc["random"]
expected = [0.32, 0.95]
found = random_bias.loc[[0.2, 1.0], "none"].to_numpy()
assert np.abs(found - expected).max() < 5e-3
assert (random_bias["none"] > random_bias["noclip"])[0.02:].all()
assert (random_variance["none"] > random_variance["noclip"])[0.35:].all()
gain = uphill_bias["none"] - uphill_bias["noclip"]
assert gain[:0.5].max() < 0.02 and gain[0.75:].min() > 0.1

# %% tags=["check"]
for bias, variance in (
    (by_bias.loc[way], by_variance.loc[way]) for way in TITLES
):
    assert (bias["clip"] - bias["noclip"])[:0.05].abs().max() < 1e-3
    assert (bias["clip"] > bias["noclip"])[0.1:].all()
    assert (variance["clip"] < variance["noclip"])[0.1:].all()
    left = (bias["gspo"] / bias["none"])[0.02:0.05]
    assert (left - (1 - 1 / LENGTH)).abs().max() < 0.02
    louder = (variance["gspo"] - variance["none"])[:0.05]
    assert louder.abs().max() < 0.03
assert (uphill_bias["clip"] > random_bias["clip"])[0.1:].all()
expected = [0.85, 1.20]
found = [bias.loc[0.02, "gspo, 3e-4"] for bias in (random_bias, uphill_bias)]
assert np.abs(np.array(found) - expected).max() < 5e-3
for n, way, distance in itertools.product(
    (1, 8, 256, 10**9), TITLES, (0.02, 0.05)
):
    chosen = (table["way"] == way) & (table["distance"] == distance)
    shares = progress(table[chosen].set_index("method"), n)
    by_method = shares.groupby("method").mean()
    assert np.ptp(by_method.drop("gspo, 3e-4")) < 0.01

# %% [markdown]
# ```{exercise} Effective size
# :label: ex-20-effective-size
#
# *Easy, 10 minutes.* Write `effective_size(log_weights)`, $(\sum w)^2 / \sum w^2$, for log-weights
# of any size, also where $w$ itself overflows. A batch of 256 old answers is worth about how many
# fresh ones?
#
# :::{dropdown} Hint
# The quotient stays the same when all weights are divided by the largest.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def effective_size(log_weights: np.ndarray) -> float:
    w = np.exp(log_weights - log_weights.max())
    return w.sum() ** 2 / (w**2).sum()


# %% tags=["check"]
assert abs(effective_size(np.full(256, 2000.0)) - 256) < 1e-9
assert abs(effective_size(np.array([2000.0, 0.0, -2000.0])) - 1) < 1e-9
assert abs(effective_size(np.log([2.0, 1.0, 1.0])) - 16 / 6) < 1e-9
many = effective_size(sample_log_weights(10, 200_000)) / 200_000
assert abs(many - 1 / 1.04**10) < 0.01  # 1 / (1 + variance)

# %% [markdown]
# ```{exercise} Is a baseline still free?
# :label: ex-20-baseline
#
# *Medium, 15 minutes.* On fresh answers a constant baseline changes no expectation. Write
# `baseline_shift(theta, tree, *method)`: the length of the mean estimate when every answer has the
# advantage 1. For which of the methods is it zero on old answers, and why?
#
# :::{dropdown} Hint
# `tree._replace(advantages=...)`, and `expected_estimate`.
# :::
#
# :::{dropdown} Worked answer
# It is zero for exact weights, pairs and single tokens: with $A = 1$ each of their surrogates is a
# sum of total probabilities, $\mathbb{E}_{h_t}[1] = 1$, whose gradient is 0. The others have no
# such surrogate: without weights, with a root, a cap or a clip the mean score does not vanish. So
# for them it matters how a group's baseline was chosen even in the mean.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def baseline_shift(theta: Tensor, tree: Tree, *method) -> float:
    ones = torch.ones_like(tree.advantages)
    flat = tree._replace(advantages=ones)
    return expected_estimate(theta, flat, *method).norm().item()


# %% tags=["check"]
for name, method in METHODS.items():
    shift = baseline_shift(theta, tree, *method)
    assert (shift < 1e-10) == (name in ("exact", "pairs", "noclip"))
    assert baseline_shift(tree.theta_0, tree, *method) < 1e-10

# %% [markdown]
# ## Next
#
# {doc}`21_off_policy_results` puts the weights to forty runs: 32 updates on each batch of rollouts.
# {doc}`12_grpo_train_step` takes a step on old answers with any of these losses, and
# {doc}`18_difficulty_reweighting` asks of advantages what was asked here of weights: what is it
# that they really climb.
