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
# # Difficulty reweighting
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say which objective Dr. GRPO, GRPO, MaxRL and RFT really climb, with how
# much weight on easy and hard prompts, in the limit of large groups and for the group that you
# can afford.
#
# **You need** {doc}`02_baselines_and_variance` and {doc}`10_advantages`. **Reading** takes 25
# minutes, **running** half a minute, on a **CPU**.
# ```

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import sympy as sp
import torch

from gsmrl_helpers import (
    aggregate_loss_across_microbatch,
    compute_group_normalized_rewards,
)
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.symbolic import show

use_style()

# %% [markdown]
# ## A weight on every prompt
#
# Let $\eta(x)$ be the probability that the policy answers prompt $x$ rightly: near 1 for an easy
# prompt, near 0 for a hard one. The mean reward $J$ is the mean of $\eta(x)$ over the prompts, so
# its gradient is the mean of $\nabla \eta(x)$: every prompt counts alike. On fresh samples, and
# with the loss summed over tokens and divided by a constant $Z$, every variant in this chapter
# climbs, on average, along
#
# $$
# \mathbb{E}_{x}\big[\, w(\eta(x))\, \nabla \eta(x) \,\big]
# $$
#
# with a weight $w$ of its own. It is the gradient of an objective in which $w$ multiplies the
# prompt's reward and is not differentiated. We take one prompt and $Z = G$, its number of answers,
# so that the estimate is a mean over answers. "GRPO" here differs from GRPO as published in that
# constant only (`GRPO_constant` in the assignment); what dividing by each answer's own length does
# is the subject of the last section. The methods differ in two options of the same function
# ({doc}`10_advantages`):

# %%
METHODS = {
    "Dr_GRPO": {"baseline": "mean", "advantage_normalizer": "none"},
    "GRPO": {"baseline": "mean", "advantage_normalizer": "std"},
    "MaxRL": {"baseline": "mean", "advantage_normalizer": "mean"},
    "RFT": {"baseline": "none", "advantage_normalizer": "none"},
}

# %% [markdown]
# To find $w$, two facts about scores are enough. The score $s = \nabla \log \pi(y)$ of a *right*
# answer is on average $\nabla\eta / \eta$, that of a wrong one $-\nabla\eta / (1-\eta)$. The first
# holds because $\mathbb{E}[r s] = \nabla \eta$ and a share $\eta$ of the answers has $r = 1$; the
# second because all scores together have the mean 0. How the policy is built does not matter.
#
# So a group of $G$ answers with $k$ right ones, whose advantages are $A^+_k$ for a right and
# $A^-_k$ for a wrong answer, contributes on average
#
# $$
# \frac1G \Big( k\, A^+_k\, \frac{1}{\eta} - (G-k)\, A^-_k\, \frac{1}{1-\eta} \Big) \nabla \eta ,
# $$
#
# and $w(\eta)$ is the mean of the bracket, with its $\frac1G$, over the binomial number $k$.
#
# ## Very large groups
#
# As $G \to \infty$ the share $k/G$ becomes $\eta$, the group's mean is $\eta$, its standard
# deviation $\sqrt{\eta(1-\eta)}$. What is left is algebra.

# %%
eta = sp.symbols("eta", positive=True)


def limit_weight(baseline: sp.Expr, normalizer: sp.Expr) -> sp.Expr:
    """w(η) of very large groups."""
    right = (1 - baseline) / normalizer
    wrong = (0 - baseline) / normalizer
    return sp.simplify(right - wrong)  # η A⁺ / η - (1 - η) A⁻ / (1 - η)


std = sp.sqrt(eta * (1 - eta))
LIMITS = {
    "Dr_GRPO": limit_weight(eta, sp.Integer(1)),
    "GRPO": limit_weight(eta, std),
    "MaxRL": limit_weight(eta, eta),
    "RFT": limit_weight(sp.Integer(0), sp.Integer(1)),
}
show(r"w_{\mathrm{GRPO}}", LIMITS["GRPO"])

# %%
show(r"w_{\mathrm{MaxRL}}", LIMITS["MaxRL"])

# %% [markdown]
# Dr. GRPO and RFT have $w = 1$: they climb the mean reward itself. GRPO weighs both ends of the
# scale up, the nearly hopeless prompts and the nearly solved. MaxRL weighs hard prompts up, and as
# $\nabla\eta / \eta = \nabla \log \eta$, what it climbs is the mean *log*-probability of being
# right.

# %% tags=["check", "claim:A23a", "claim:A23b", "claim:A23c"]
expected = {
    "Dr_GRPO": "1",
    "GRPO": "1/sqrt(eta*(1 - eta))",
    "MaxRL": "1/eta",
    "RFT": "1",
}
for name, formula in expected.items():
    wanted = sp.sympify(formula, locals={"eta": eta})
    assert sp.simplify(LIMITS[name] - wanted) == 0

# %% [markdown]
# ## The group that you can afford
#
# Nobody samples infinitely many answers. For a finite $G$ the bracket is averaged over $k$,
# exactly, with the advantages that the package's own function gives to a group with $k$ right
# answers.


# %%
def bracket(
    k: int, G: int, eps: float = 1e-6, **options
) -> tuple[float, float]:
    """k A⁺ / G and -(G - k) A⁻ / G of a group with k right answers of G."""
    rewards = torch.tensor([1.0] * k + [0.0] * (G - k), dtype=torch.float64)
    advantages, _ = compute_group_normalized_rewards(
        rewards, G, advantage_eps=eps, **options
    )
    return (
        advantages[:k].sum().item() / G,
        -advantages[k:].sum().item() / G,
    )


def finite_weight(etas, G: int, eps: float = 1e-6, **options) -> np.ndarray:
    """w(η) of groups of G answers, exact, for every η between 0 and 1."""
    etas = np.asarray(etas, dtype=float)
    total = np.zeros_like(etas)
    for k in range(G + 1):
        right, wrong = bracket(k, G, eps, **options)
        likelihood = math.comb(G, k) * etas**k * (1 - etas) ** (G - k)
        total += likelihood * (right / etas + wrong / (1 - etas))
    return total


# %% [markdown]
# Two of the four have closed forms. Dr. GRPO is too short by the factor $(G-1)/G$ at every
# difficulty, as chapter 02 found, and RFT is exact. MaxRL's $1/\eta$ turns out to be cut off: with
# $G$ answers its weight is $\sum_{i=0}^{G-2} (1-\eta)^i$, the beginning of the geometric series of
# $1/\eta$.

# %% tags=["check"]
grid = np.linspace(0.02, 0.98, 49)
for G in (2, 4, 8, 16):
    series = sum((1 - grid) ** i for i in range(G - 1))
    wanted = {"Dr_GRPO": (G - 1) / G, "RFT": 1.0, "MaxRL": series}
    for name, weight in wanted.items():
        found = finite_weight(grid, G, eps=0.0, **METHODS[name])
        assert np.abs(found - weight).max() < 1e-10

# %% [markdown]
# So however hard the prompt, MaxRL's weight never exceeds $G - 1$. Of the limit $1/\eta$ it keeps
# the share $1 - (1-\eta)^{G-1}$: with $G = 8$ that is 79 % at $\eta = 0.2$, 52 % at 0.1 and 30 %
# at 0.05. GRPO's weight at the hard end comes from groups with a single right answer, and tends to
# $(G-1)/\sqrt{G}$, 2.47 for $G = 8$. A prompt that no answer of the group solves can't be weighed
# up: it is not seen at all.

# %%
print("w at η = 0.01     G = 8   limit")
for name in ("GRPO", "MaxRL"):
    finite = finite_weight(0.01, 8, **METHODS[name])
    limit = float(LIMITS[name].subs(eta, 0.01))
    print(f"{name:16} {finite:6.2f}  {limit:6.1f}")

# %% tags=["check"]
assert abs(finite_weight(0.01, 8, **METHODS["GRPO"]) - 2.44) < 5e-3
assert abs(finite_weight(1e-6, 8, **METHODS["GRPO"]) - 7 / 8**0.5) < 1e-4
for share, kept in ((0.2, 0.79), (0.1, 0.52), (0.05, 0.30)):
    found = finite_weight(share, 8, **METHODS["MaxRL"]) * share
    assert abs(found - kept) < 5e-3
    assert abs(found - (1 - (1 - share) ** 7)) < 1e-5
assert abs(finite_weight(0.01, 8, **METHODS["MaxRL"]) - 6.79) < 5e-3

# %% tags=["hide-input"]
etas = np.linspace(0.005, 0.995, 199)
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.4), layout="constrained")
for name in METHODS:
    limit = sp.lambdify(eta, LIMITS[name], "numpy")(etas) * np.ones_like(etas)
    axes[0].plot(etas, limit, label=name, **line(name))
axes[0].set(title="Limit of large groups", ylabel="weight w(η)")
axes[0].legend(loc="upper center")
dashes = {2: ":", 4: "-.", 8: "--", 16: "-"}
for ax, name in zip(axes[1:], ("GRPO", "MaxRL"), strict=True):
    color = line(name)["color"]
    limit = sp.lambdify(eta, LIMITS[name], "numpy")(etas)
    ax.plot(etas, limit, color="black", linewidth=0.8, label="limit")
    for G, dash in reversed(dashes.items()):
        weights = finite_weight(etas, G, **METHODS[name])
        ax.plot(etas, weights, color=color, linestyle=dash, label=f"G = {G}")
    ax.set(title=f"{name}, finite groups")
    ax.legend(
        loc="upper right" if name == "MaxRL" else "lower center", ncols=2
    )
for ax in axes:
    ax.set(xlabel="η, probability of being right", ylim=(0, 16))
axes[0].set_ylim(0, 8)
axes[1].set_ylim(-1.5, 6)
plt.show()

# %% [markdown]
# *Left: RFT and Dr. GRPO lie on each other at 1; GRPO lifts both ends, MaxRL the hard end. Middle
# and right, on scales of their own: what groups of 2 to 16 answers make of it. The steep parts of
# the limits are not there. (Dr. GRPO and RFT stay flat, at $(G-1)/G$ and 1.) With G = 2, GRPO and
# MaxRL are both flat: a pair of answers is either equal, or one right and one wrong, and no
# normaliser can tell hard from easy.*

# %% tags=["check"]
for name in ("GRPO", "MaxRL"):
    pairs = finite_weight(grid, 2, eps=0.0, **METHODS[name])
    assert np.ptp(pairs) < 1e-10

# %% [markdown]
# ## What eps does
#
# The small number that is added to the divisor, `advantage_eps`, is there against division by
# zero, and at $10^{-6}$ it changes nothing else: the smallest standard deviation that a group of
# eight can have is 0.35, its smallest mean 0.125. A large one is another method. With $\epsilon
# \gg 1$ the divisor is nearly constant, and GRPO and MaxRL become Dr. GRPO with a smaller learning
# rate.

# %%
hard, even = 0.05, 0.5


def hard_against_even(name: str, eps: float) -> float:
    """w(0.05) / w(0.5) in groups of eight."""
    return np.divide(*finite_weight([hard, even], 8, eps, **METHODS[name]))


print("w(0.05) / w(0.5)      GRPO  MaxRL")
for eps in (1e-6, 0.1, 1.0, 100.0):
    ratios = [hard_against_even(name, eps) for name in ("GRPO", "MaxRL")]
    print(f"eps = {eps:<14g} {ratios[0]:6.3f} {ratios[1]:6.3f}")

# %% tags=["check"]
group = torch.tensor([1.0] + [0.0] * 7, dtype=torch.float64)
assert abs(group.std() - 0.3536) < 5e-5 and group.mean() == 0.125
for name in ("GRPO", "MaxRL"):
    ratios = [
        hard_against_even(name, eps) for eps in (0.0, 1e-6, 0.1, 1.0, 100.0)
    ]
    assert abs(ratios[1] / ratios[0] - 1) < 1e-4
    assert ratios == sorted(ratios, reverse=True)
    assert abs(ratios[-1] - 1) < 0.02

# %% [markdown]
# ## The same by simulation
#
# The bracket was algebra. To see that nothing was lost on the way, here is the estimator itself:
# twenty thousand groups of 2, 4, 8 and 16 answers of the two-answer policy, whose scores are $1 -
# \eta$ and $-\eta$ and whose $\nabla\eta$ is $\eta(1-\eta)$, with the advantages of the package.


# %%
def simulate(eta: float, G: int, n_groups: int = 100_000, **options):
    """Estimates of w(η) from single groups, (n_groups,)."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(n_groups * G, generator=generator, dtype=torch.float64)
    rewards = (draws < eta).double()
    advantages, _ = compute_group_normalized_rewards(rewards, G, **options)
    estimates = (
        (advantages * (rewards - eta)).reshape(n_groups, G).mean(dim=1)
    )
    return estimates / (eta * (1 - eta))


# %% tags=["check"]
for G in (2, 4, 8, 16):
    for options in METHODS.values():
        for share in (0.1, 0.5, 0.9):
            estimates = simulate(share, G, 20_000, **options)
            exact = finite_weight(share, G, **options).item()
            error = abs(estimates.mean() - exact)
            assert error < 4 * estimates.std() / len(estimates) ** 0.5

# %% [markdown]
# ## RFT and Dr. GRPO
#
# Rejection fine-tuning (RFT) keeps the right answers and fine-tunes on them. It has no baseline,
# and climbs the same objective as Dr. GRPO: their expectations differ by the factor $(G-1)/G$.

# %% tags=["check", "claim:A24a"]
expected = {2: 0.5, 4: 0.75, 8: 0.875, 16: 0.9375}
for G, ratio in expected.items():
    dr_grpo, rft = (
        finite_weight(grid, G, **METHODS[name]) for name in ("Dr_GRPO", "RFT")
    )
    assert np.abs(dr_grpo / rft - ratio).max() < 1e-9

# %% [markdown]
# What differs is the noise. For the two-answer policy both variances can be written down. RFT's
# estimate is a mean of $G$ independent terms without a baseline; chapter 02 has its variance. In
# Dr. GRPO the answers of a group share their mean, and the estimate is $k(G-k)/G^2$. For its
# second moment, write $k^2 = k(k-1) + k$, the same for $G-k$, and use the binomial's factorial
# moments: with $a^{(j)} = a(a-1)\cdots(a-j+1)$, $\mathbb{E}\big[k^{(j)} (G-k)^{(l)}\big] =
# G^{(j+l)}\, \eta^j (1-\eta)^l$.

# %%
G = sp.symbols("G", positive=True, integer=True)


def falling(n: int) -> sp.Expr:
    return sp.prod([G - i for i in range(n)])


wrong = 1 - eta
first = falling(2) * eta * wrong  # E[k (G - k)]
second = (
    falling(4) * eta**2 * wrong**2
    + falling(3) * (eta**2 * wrong + eta * wrong**2)
    + falling(2) * eta * wrong
)  # E[k² (G - k)²]
dr_grpo_variance = sp.factor((second - first**2) / G**4)
rft_variance = eta * wrong**3 / G
show(r"\operatorname{Var}_{\mathrm{Dr.\,GRPO}}", dr_grpo_variance)

# %% tags=["check"]
for size, share in ((4, 0.3), (8, 0.9)):
    for name, formula in (
        ("Dr_GRPO", dr_grpo_variance),
        ("RFT", rft_variance),
    ):
        estimates = (
            simulate(share, size, **METHODS[name]) * share * (1 - share)
        )
        squares = (estimates - estimates.mean()) ** 2
        exact = float(formula.subs({G: size, eta: share}))
        assert abs(squares.mean() - exact) < 4 * squares.std() / 100_000**0.5

# %% [markdown]
# To compare them fairly, Dr. GRPO is scaled up by $G/(G-1)$, so that both have the same
# expectation. The difference of the variances is then

# %%
fair = dr_grpo_variance * (G / (G - 1)) ** 2
gap = sp.factor(fair - rft_variance)
show(
    r"\operatorname{Var}_{\mathrm{Dr.\,GRPO}} - \operatorname{Var}_{\mathrm{RFT}}",
    gap,
)

# %% [markdown]
# Its sign is that of the last bracket: for two answers, Dr. GRPO is the quieter one below
# $\eta^* = (2G-4)/(3G-5)$ and RFT above. For $G = 8$ that is $12/19 \approx 0.63$, for large groups
# the $2/3$ of chapter 02, and with $G = 2$ RFT is never the noisier.

# %%
(threshold,) = (root for root in sp.solve(gap, eta) if root.has(G))
show(r"\eta^*", sp.factor(threshold))

# %% tags=["check", "claim:A24b"]
expected = {4: "4/7", 8: "12/19", 16: "28/43"}
for size, root in expected.items():
    assert threshold.subs(G, size) == sp.Rational(root)
    gap_at = sp.lambdify(eta, gap.subs(G, size))
    below, above = (
        float(sp.Rational(root)) - 0.01,
        float(sp.Rational(root)) + 0.01,
    )
    assert gap_at(below) < 0 < gap_at(above)
assert sp.limit(threshold, G, sp.oo) == sp.Rational(2, 3)
assert sp.factor(gap.subs(G, 2) - eta**3 * (1 - eta) / 2) == 0

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for name, formula in (("RFT", rft_variance), ("Dr_GRPO", fair)):
    values = sp.lambdify(eta, formula.subs(G, 8), "numpy")(etas)
    ax.plot(etas, values, label=name, **line(name))
ax.axvline(12 / 19, color="black", linewidth=0.8)
ax.annotate(
    "η* = 12/19", (12 / 19, 0.012), xytext=(5, 0), textcoords="offset points"
)
ax.set(xlabel="η, probability of being right", ylabel="variance")
ax.set_title("One group of eight, equal expectations")
ax.legend()
plt.show()

# %% [markdown]
# *While most answers are wrong, the baseline pays: Dr. GRPO also learns from them. Once most are
# right, RFT is quieter, for this policy.*
#
# The threshold belongs to the two answers, where a right answer's score shrinks as it becomes
# likely. Chapter 02 showed the other extreme: with scores of equal norm the mean is the best
# baseline at every difficulty. Ten equally likely answers, eight of them right, in groups of
# eight:


# %%
def group_variances(n_right: int, G: int = 8, n_groups: int = 50_000):
    """Summed variance of Dr. GRPO, scaled by G/(G-1), and of RFT."""
    generator = torch.Generator().manual_seed(0)
    answers = torch.randint(10, (n_groups * G,), generator=generator)
    rewards = (answers < n_right).double()
    scores = torch.eye(10, dtype=torch.float64)[answers] - 0.1
    found = {}
    for name, scale in (("Dr_GRPO", G / (G - 1)), ("RFT", 1.0)):
        weights, _ = compute_group_normalized_rewards(
            rewards, G, **METHODS[name]
        )
        terms = (scale * weights[:, None] * scores).reshape(n_groups, G, 10)
        found[name] = terms.mean(dim=1).var(dim=0).sum().item()
    return found


for name, value in group_variances(8).items():
    print(f"{name:8} {value:.3f}")

# %% tags=["check"]
for n_right in (2, 5, 8, 9):
    variances = group_variances(n_right)
    assert variances["Dr_GRPO"] < variances["RFT"]
assert abs(group_variances(8)["RFT"] - 0.704 / 8) < 2e-3

# %% [markdown]
# ## Dr. GRPO's two repairs, in numbers
#
# Dr. GRPO {cite}`liu2025drgrpo` leaves out two divisions of GRPO. The first is the one of this
# chapter, by the standard deviation. In a nearly solved group, (1, 1, 1, 0), it gives the one
# wrong answer a larger weight, $-1.5$, than any answer of the informative group (1, 0, 0, 1) has,
# $\pm 0.87$. Without it, $-0.75$ and $\pm 0.5$ remain, and of all eight answers' squared weights
# the balanced group has the larger part.

# %% tags=["check", "claim:W21a"]
expected = {"GRPO": (-1.5, 0.866), "Dr_GRPO": (-0.75, 0.5)}
groups = torch.tensor([1, 1, 1, 0, 1, 0, 0, 1], dtype=torch.float64)
for name, (lone_wrong, balanced) in expected.items():
    advantages, _ = compute_group_normalized_rewards(
        groups, 4, **METHODS[name]
    )
    assert abs(advantages[3] - lone_wrong) < 5e-4
    assert abs(advantages[4] - balanced) < 5e-4
squares = advantages.square().reshape(2, 4).sum(dim=1)
assert squares[0] < squares[1]

# %% [markdown]
# The second is the division by the answer's own length. A wrong answer of 16 tokens is pushed down
# by $-1/16$ per token, one of 2 tokens by $-1/2$: who does not know the answer is punished less
# for writing more. Divided by a constant, every token weighs the same.

# %% tags=["check", "claim:W21b"]
expected = {"sequence": 8, "constant": 1}
lengths = torch.tensor([[16], [2]])
mask = torch.arange(16) < lengths
for normalization, ratio in expected.items():
    token_losses = torch.ones(2, 16, dtype=torch.float64, requires_grad=True)
    loss = aggregate_loss_across_microbatch(
        token_losses, mask, normalization, normalization_constant=2 * 16
    )
    (gradient,) = torch.autograd.grad(loss, token_losses)
    assert gradient[1, 0] / gradient[0, 0] == ratio

# %% [markdown]
# The two are independent. The first is about difficulty and would be there if all answers were
# equally long; the second is about length and would be there if all prompts were equally hard.
# Repairing one leaves the other as it was.
#
# ## Take away
#
# - In the limit, Dr. GRPO and RFT climb the mean reward ($w = 1$), GRPO weighs by
#   $1/\sqrt{\eta(1-\eta)}$, MaxRL by $1/\eta$, which is the gradient of $\log \eta$.
# - With $G$ answers the weights are bounded: MaxRL's is the first $G-1$ terms of a series.
#   Normalisers can't find prompts that the group never solves.
# - RFT and Dr. GRPO differ in noise. For two answers, Dr. GRPO is quieter below
#   $\eta^* = (2G-4)/(3G-5)$; where all scores have the same norm, everywhere.
# - Standard deviation is about difficulty, length is about length.
#
# ## Exercises
#
# ```{exercise} The weights, on paper
# :label: ex-18-weights
#
# *Hard, 30 minutes.* This is `derive_difficulty_reweightings`: with $Z = G$ and $G \to \infty$,
# find the weight $w$ that (a) Dr. GRPO, (b) GRPO with the standard deviation, (c) MaxRL implicitly
# optimise. Write `large_group_weight(eta, baseline, normalizer)` for numbers, where `normalizer`
# is a function of $\eta$.
#
# :::{dropdown} Hint
# Right answers have the mean score $\nabla\eta/\eta$, wrong ones $-\nabla\eta/(1-\eta)$.
# :::
#
# :::{dropdown} Worked answer
# Let $b$ be the baseline and $m$ the divisor, both functions of $\eta$ in the limit. Right answers
# come with probability $\eta$, have the advantage $(1-b)/m$ and the mean score $\nabla\eta/\eta$.
# Wrong ones come with $1-\eta$, have $-b/m$ and the mean score $-\nabla\eta/(1-\eta)$. The
# products of probability and mean score are $+\nabla\eta$ and $-\nabla\eta$, so the sum is
# $\frac{1-b+b}{m}\nabla\eta$, and $w = 1/m$, whatever the baseline. (a) $m = 1$: $w = 1$. (b) $m =
# \sqrt{\eta(1-\eta)}$: $w = 1/\sqrt{\eta(1-\eta)}$, least (2) at $\eta = 1/2$. (c) $m = \eta$: $w
# = 1/\eta$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def large_group_weight(eta: float, baseline: float, normalizer) -> float:
    right = eta * (1 - baseline) / normalizer(eta) / eta
    wrong = (1 - eta) * (-baseline) / normalizer(eta) / (1 - eta)
    return right - wrong


# %% tags=["check"]
for share in (0.1, 0.5, 0.8):
    for name, divisor in {
        "Dr_GRPO": lambda e: 1.0,
        "GRPO": lambda e: (e * (1 - e)) ** 0.5,
        "MaxRL": lambda e: e,
    }.items():
        weight = large_group_weight(share, share, divisor)
        assert abs(weight - LIMITS[name].subs(eta, share)) < 1e-12
        assert abs(large_group_weight(share, 0.3, divisor) - weight) < 1e-12

# %% [markdown]
# ```{exercise} When to prefer RFT
# :label: ex-18-rft
#
# *Medium, 20 minutes.* This is `think_about_rft`: for rewards of 0 and 1, do RFT and on-policy Dr.
# GRPO have the same expectation, which has the smaller variance, and when is which to be preferred?
# Write `quieter(eta, G)`, which returns "RFT" or "Dr_GRPO" for the two-answer policy.
#
# :::{dropdown} Hint
# Compare at equal expectations; the threshold stands above.
# :::
#
# :::{dropdown} Worked answer
# The expectations are equal up to $(G-1)/G$, which a learning rate absorbs. The variances depend
# on the policy: for two answers Dr. GRPO wins on hard and medium prompts, $\eta < (2G-4)/(3G-5)$,
# and RFT on easy ones; where all scores have about the same norm, as among many answers none of
# which is likely, Dr. GRPO wins everywhere. The variance is not the whole comparison. RFT has no
# term that pushes a sampled answer down, and only right answers go through the model: at $\eta =
# 0.1$ a tenth of the batch, so that its training pass is cheaper (sampling costs the same). It is
# plain fine-tuning, which every trainer has. It also pulls towards whatever was right, by luck or
# for bad reasons, just as hard when nearly all are right, where Dr. GRPO has long fallen silent: a
# group without a wrong answer moves RFT and not Dr. GRPO. On problems that the policy mostly
# solves RFT is a reasonable, simple choice; on hard ones the negative examples are most of the
# information.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def quieter(eta: float, G: int) -> str:
    return "Dr_GRPO" if eta * (3 * G - 5) < 2 * G - 4 else "RFT"


# %% tags=["check"]
for size in (2, 4, 8, 16):
    for share in (0.1, 0.5, 0.6, 0.65, 0.9):
        difference = gap.subs({G: size, eta: share})
        assert quieter(share, size) == (
            "Dr_GRPO" if difference < 0 else "RFT"
        )

# %% [markdown]
# ```{exercise} By what to divide advantages
# :label: ex-18-advantage-normalization
#
# *Medium, 20 minutes.* This is `think_about_advantage_normalization`: what speaks for and against
# dividing by the standard deviation, by the mean, and by nothing? Write `share_of_weight(etas,
# weights)`: the share of the total weight that falls on prompts with $\eta < 0.2$, (N,) and (N,)
# to a number, and compare the three on prompts spread evenly from 0.02 to 0.98.
#
# :::{dropdown} Hint
# Use `finite_weight` with $G = 8$ for the weights.
# :::
#
# :::{dropdown} Worked answer
# *Standard deviation*: every group pulls with about the same force, so one learning rate suits all
# stages of training and all reward scales. But the objective is no longer the mean reward: prompts
# that are almost solved weigh as much as those that are almost hopeless, and in a nearly solved
# group all the force falls on one answer, possibly a mislabelled one. *Mean*: weight goes to hard
# prompts, where there is most to gain; in the limit it is maximum likelihood of being right. But
# the estimate of those prompts is the noisiest, a lucky right answer to a hopeless prompt gets the
# largest weight of all, and rewards must not be negative. *Nothing*: the estimate follows the mean
# reward, the thing one reports. But the force of a step shrinks as prompts become easy or hard,
# and the scale of the reward acts on the learning rate.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def share_of_weight(etas: np.ndarray, weights: np.ndarray) -> float:
    return weights[etas < 0.2].sum() / weights.sum()


# %% tags=["check"]
shares = {
    name: share_of_weight(grid, finite_weight(grid, 8, **METHODS[name]))
    for name in ("Dr_GRPO", "GRPO", "MaxRL")
}
assert abs(shares["Dr_GRPO"] - (grid < 0.2).mean()) < 1e-9
assert shares["Dr_GRPO"] < shares["GRPO"] < shares["MaxRL"]
assert 0.3 < shares["MaxRL"] < 0.5

# %% [markdown]
# ```{exercise} By what to divide the sum over tokens
# :label: ex-18-length-normalization
#
# *Medium, 20 minutes.* This is `think_about_length_normalization`: what speaks for and against
# dividing each answer's loss by its own length, and by a constant? Write `pull(length,
# normalization, Z)`: the sum of absolute gradients over the tokens of one answer with advantage
# $-1$, in a batch of one.
#
# :::{dropdown} Hint
# Each token's gradient is the advantage times the normaliser's factor, 1/length or $1/Z$.
# :::
#
# :::{dropdown} Worked answer
# *By its own length*: every answer pulls with the same total force, long or short, so that a few
# long ones do not rule the batch, and the scale of the loss needs no constant. But a token of a
# long answer weighs less. Among wrong answers the long ones are punished less per token, and the
# policy learns to ramble where it does not know; among right ones the short are praised more per
# token. The expectation is not a multiple of the policy gradient. *By a constant*: the sum over
# tokens is the log-probability of the answer, so that the expectation is the policy gradient, up
# to a factor. But a long answer pulls more, in proportion to its length, the estimate's variance
# grows with it, and the constant (such as the length limit) must be fixed beforehand and acts on
# the learning rate.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def pull(length: int, normalization: str, Z: float = 1.0) -> float:
    token_losses = torch.ones(1, length, requires_grad=True)
    loss = aggregate_loss_across_microbatch(
        token_losses, torch.ones(1, length), normalization, Z
    )
    (gradient,) = torch.autograd.grad(loss, token_losses)
    return gradient.abs().sum().item()


# %% tags=["check"]
assert abs(pull(16, "sequence") - 1) < 1e-6 and pull(2, "sequence") == 1
assert pull(16, "constant", 16.0) == 8 * pull(2, "constant", 16.0) == 1

# %% [markdown]
# ## Next
#
# {doc}`20_importance_weighting` asks what becomes of an estimate when the policy that sampled is
# not the one that is trained. {doc}`13_run_grpo` runs any of these variants.
