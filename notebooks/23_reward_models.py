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
# # Reward models
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** turn choices between two answers into a loss, say where its formula comes
# from and which preferences no score can express, train a reward model on pairs, and find out
# what it pays for besides the thing that you meant.
#
# **You need** rewards and how they are hacked, {doc}`06_reward_functions`, and the idea of
# rollouts, {doc}`07_rollouts`. **Reading** takes 35 minutes, **running** one minute, on a **CPU**.
# ```
#
# A checker can tell a right number from a wrong one. It can't tell a helpful answer from a rude
# one, and neither can people agree on a number for helpfulness. What people can do is choose: this
# answer rather than that one. A *reward model* turns such choices into a score for every answer
# {cite}`ouyang2022instructgpt`, and the score can then be maximised like any other reward.
#
# This chapter takes that step apart: first the formula, then what it can't express, then a reward
# model that is trained here, on answers of the pocket policy.

# %%
import math
import re
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from scipy.stats import linregress
from torch import Tensor, nn
from torch.nn import functional as F

from gsmrl_helpers import (
    LocalEngine,
    experiment_config,
    load_policy,
    load_problems,
)
from gsmrl_helpers.grading import r1_zero_reward_fn
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.prompt_audit import wilson_interval
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.social_choice import (
    all_orders,
    all_profiles,
    dictators,
    is_transitive,
    prefers,
    relation_of,
)
from gsmrl_helpers.tables import as_html

use_style()

# %% [markdown]
# ## From a choice to a loss
#
# A reward model scores answer A with $r_A = 2$ and answer B with $r_B = 1$. How sure is it that a
# person prefers A? The model of Bradley and Terry {cite}`bradley1952rank` says: with probability
# $\sigma(r_A - r_B)$, where $\sigma(z) = 1/(1 + e^{-z})$.

# %% tags=["check", "claim:W22a"]
scores = torch.tensor([2.0, 1.0], dtype=torch.float64)
preference = torch.sigmoid(scores[0] - scores[1]).item()
expected = 0.73
assert abs(preference - expected) < 0.005

# %% [markdown]
# The person did choose A. The loss of a pair is minus the logarithm of the probability of the
# choice that was made, $-\log \sigma(r_\text{chosen} - r_\text{rejected})$.

# %% tags=["check", "claim:W22b"]
loss = -math.log(preference)
expected = 0.31
assert abs(loss - expected) < 0.005

# %% [markdown]
# Written like that it breaks. At a margin of −1000, $\sigma$ is 0 to the last bit, and its
# logarithm infinite. Early in training, and on mislabelled pairs, margins are large and negative.

# %%
margin = torch.tensor(-1000.0)
print("log of the sigmoid:", torch.sigmoid(margin).log().item())
print("logsigmoid:        ", F.logsigmoid(margin).item())

# %% [markdown]
# `logsigmoid` computes the logarithm without that detour.


# %% tags=["definition"]
def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Mean of -log σ(chosen - rejected), in nats; scores of one shape."""
    if chosen.shape != rejected.shape or chosen.numel() == 0:
        raise ValueError(
            f"chosen {tuple(chosen.shape)} and rejected {tuple(rejected.shape)} must be of one "
            "shape, with at least one pair"
        )
    return -F.logsigmoid(chosen - rejected).mean()


# %% tags=["check"]
for margin, loss, slope in ((1000.0, 0.0, 0.0), (-1000.0, 1000.0, -1.0)):
    chosen = torch.tensor([margin], requires_grad=True)
    found = bradley_terry_loss(chosen, torch.zeros(1))
    found.backward()
    assert (found.item(), chosen.grad.item()) == (loss, slope)

# %% [markdown]
# The shapes are compared because of a quiet error: scores of shape (B,) and (B, 1) would broadcast
# to B × B pairs that nobody compared.
#
# The loss is an old acquaintance. Take a classifier with one logit, the difference of the scores,
# and the question "was the first answer chosen?". Pairs are written with the chosen answer first,
# so the label is always 1, and the loss is binary cross-entropy.

# %% tags=["check", "claim:W22c"]
generator = torch.Generator().manual_seed(0)
chosen, rejected = torch.randn(2, 1000, generator=generator).double()
label = torch.ones(1000).double()
cross_entropy = F.binary_cross_entropy_with_logits(chosen - rejected, label)
difference = abs(bradley_terry_loss(chosen, rejected) - cross_entropy)
assert difference < 1e-12

# %% [markdown]
# Only differences enter, so the same constant on all scores changes no preference. A reward
# model's scores have no zero: "this answer scores 3" says nothing, "it scores 3 more than that
# one" does.

# %% tags=["check", "claim:W22g"]
expected = [0.7311, 0.7311, 0.7311]
found = [
    torch.sigmoid((2.0 + shift) - (1.0 + shift)).item()
    for shift in torch.tensor([0.0, -7.5, 100.0], dtype=torch.float64)
]
assert np.allclose(found, expected, rtol=0, atol=5e-5)
shifted = bradley_terry_loss(chosen + 5, rejected + 5)
assert abs(shifted - bradley_terry_loss(chosen, rejected)) < 1e-12

# %% [markdown]
# ## Where the formula comes from
#
# Why $\sigma$, and not another curve from 0 to 1? Thurstone {cite}`thurstone1927law` thought of a
# choice as two noisy readings: a person perceives $r_A + \varepsilon_A$ and
# $r_B + \varepsilon_B$, and takes the larger. With normal noise of standard deviation $\sigma$ the
# difference of the two noises has the deviation $\sigma\sqrt{2}$, and the preference is
# $\Phi\left((r_A - r_B)/(\sigma\sqrt 2)\right)$.

# %% tags=["definition"]
from gsmrl_helpers.options import require_number


def thurstone_preference(margin: Tensor, sigma: float = 1.0) -> Tensor:
    """P(A is chosen over B) under normal noise of deviation sigma on each."""
    require_number("sigma", sigma, 0, above=True)
    return torch.special.ndtr(margin / (sigma * 2**0.5))


# %% tags=["check", "claim:W22d"]
DRAWS = 1_000_000


def share_of_choices(scores: Tensor, noise: Tensor) -> Tensor:
    """How often each of K noisy scores is the largest; noise (DRAWS, K)."""
    winners = (scores + noise).argmax(dim=1)
    return torch.bincount(winners, minlength=len(scores)) / len(noise)


four_errors = 4 * (0.25 / DRAWS) ** 0.5
expected = {1.0: 0.760, 0.5: 0.921, 3.0: 0.593}
for sigma, value in expected.items():
    formula = thurstone_preference(scores[0] - scores[1], sigma).item()
    noise = torch.randn(DRAWS, 2, generator=generator)
    simulated = share_of_choices(scores, sigma * noise)[0].item()
    assert abs(formula - value) < 0.0006
    assert abs(simulated - formula) < four_errors

# %% [markdown]
# Another noise gives Bradley and Terry's formula to the letter: Gumbel's, the distribution of a
# maximum of many. Its distribution function is $e^{-e^{-x}}$, so $-\log(-\log u)$ of a uniform
# $u$ is a draw from it. The difference of two such draws is logistic, and its distribution
# function is $\sigma$. Once by simulation, once by adding up the integral over B's noise.


# %% tags=["check", "claim:W22e"]
def gumbel(draws: int, options: int) -> Tensor:
    uniform = torch.rand(draws, options, generator=generator).double()
    return -(-uniform.clamp(1e-12, 1 - 1e-12).log()).log()


def gumbel_preference(margin: float) -> float:
    """∫ P(ε_A > x − margin) f(x) dx over B's noise x, by small steps."""
    x = torch.linspace(-8, 40, 200_001, dtype=torch.float64)
    density = torch.exp(-x - torch.exp(-x))
    a_wins = 1 - torch.exp(-torch.exp(-(x - margin)))
    return torch.trapezoid(a_wins * density, x).item()


expected = {1.0: 0.731059, 0.0: 0.500000, -2.5: 0.075858}
for margin, value in expected.items():
    logistic = 1 / (1 + math.exp(-margin))
    assert abs(logistic - value) < 5e-7
    assert abs(gumbel_preference(margin) - logistic) < 1e-7
simulated = share_of_choices(scores, gumbel(DRAWS, 2))[0].item()
assert abs(simulated - preference) < four_errors

# %% [markdown]
# In practice the two hardly differ. Scaled to the same slope at 0, the curves are never further
# apart than 2 points of probability.

# %%
margins = torch.linspace(-6, 6, 241, dtype=torch.float64)
same_slope = 4 / (2 * math.pi * 2) ** 0.5
curves = {
    "Bradley–Terry": torch.sigmoid(margins),
    "Thurstone": thurstone_preference(margins, same_slope),
}
figure, ax = plt.subplots(figsize=(5.6, 3.0), layout="constrained")
for name, curve in curves.items():
    ax.plot(margins, curve, **line(name), label=name)
ax.set(xlabel="margin $r_A - r_B$", ylabel="P(A is chosen)")
ax.legend(loc="best")
plt.show()

# %% [markdown]
# *Probability that A is chosen against the margin of the scores, under Gumbel noise (solid) and
# normal noise of deviation 1.13 (dashed). Normal noise is surer at large margins.*

# %% tags=["check"]
gap = (curves["Bradley–Terry"] - curves["Thurstone"]).abs().max().item()
assert 0.015 < gap < 0.02 and round(same_slope, 2) == 1.13

# %% [markdown]
# Luce {cite}`luce1959individual` came to the same place without noise. His axiom: how many times
# likelier A is chosen than B does not depend on what else is on offer. Then each answer has a
# weight, choices from any set are in proportion to the weights, and with weights $e^{r}$ that is
# the softmax. Bradley and Terry's formula is its case of two answers. Gumbel noise chooses by it,
# too, whatever the number of answers.

# %% tags=["check", "claim:W22f"]
three = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
# weights from pairs alone: the odds of each answer against the last
against_last = torch.sigmoid(three - three[-1])
weights = against_last / (1 - against_last)
by_axiom = (weights / weights.sum()).tolist()
simulated = share_of_choices(three, gumbel(DRAWS, 3)).tolist()
expected = [0.6652, 0.2447, 0.0900]
assert np.allclose(three.softmax(0), expected, rtol=0, atol=5e-5)
assert np.allclose(by_axiom, expected, rtol=0, atol=5e-5)
assert np.allclose(simulated, expected, rtol=0, atol=four_errors + 6e-5)

# %% [markdown]
# ## When no number fits
#
# Three answers. People prefer A to B in 70 % of comparisons, B to C in 70 %, and C to A in 70 %. It
# happens when people compare by different properties: one answer is shorter, one more precise, one
# friendlier. A single pair is no trouble: it wants the margin at which $\sigma$ is .7.

# %% tags=["check", "claim:W23a"]
wanted = math.log(0.7 / 0.3)
expected = 0.85
assert abs(wanted - expected) < 0.005
assert abs(1 / (1 + math.exp(-wanted)) - 0.7) < 1e-12

# %% [markdown]
# But three margins round the circle, $(r_A - r_B) + (r_B - r_C) + (r_C - r_A)$, sum to 0 whatever
# the scores are. The three pairs want a sum of 2.54.

# %% tags=["check", "claim:W23b"]
expected = 2.54
assert abs(3 * wanted - expected) < 0.005
cycles = torch.randn(1000, 3, generator=generator).double()
sums = (cycles - cycles.roll(-1, dims=1)).sum(dim=1)
assert sums.abs().max() < 1e-12

# %% [markdown]
# What is the best that scores can do? The loss of one pair at margin $m$ is
# $f(m) = -0.7 \log\sigma(m) - 0.3 \log\sigma(-m)$. It is convex, and the three margins have the
# mean 0. By Jensen's inequality the mean of the three losses is at least $f$ of the mean, and
# $f(0) = \log 2$. Equal scores reach it.


# %% tags=["check", "claim:W23c"]
def cycle_loss(scores: Tensor, share: float = 0.7) -> Tensor:
    """Mean loss of the three pairs; scores (…, 3)."""
    margins = scores - scores.roll(-1, dims=-1)
    losses = share * F.logsigmoid(margins)
    losses = losses + (1 - share) * F.logsigmoid(-margins)
    return -losses.mean(dim=-1)


expected = 0.693
at_equal_scores = cycle_loss(torch.zeros(3, dtype=torch.float64)).item()
assert abs(at_equal_scores - expected) < 0.0005
assert (cycle_loss(cycles) > at_equal_scores).all()

# %% [markdown]
# A model that was free to give each pair its own probability would say .7 three times. Its loss is
# the entropy of the labels, which bounds the loss of any model from below.

# %% tags=["check", "claim:W23d"]
entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
expected = 0.611
assert abs(entropy - expected) < 0.0005

# %%
m = torch.linspace(-2.2, 2.8, 200, dtype=torch.float64)
one_pair = -(0.7 * F.logsigmoid(m) + 0.3 * F.logsigmoid(-m))
figure, ax = plt.subplots(figsize=(5.6, 3.0), layout="constrained")
ax.plot(m, one_pair, **line("all"), label="loss of one pair")
for x, y, name, mark in (
    (wanted, entropy, "what each pair wants", "right"),
    (0, math.log(2), "the mean of the three margins", "wrong"),
):
    ax.plot(x, y, "o", color=line(mark)["color"], label=name)
ax.set(xlabel="margin of the pair", ylabel="loss (nats)")
ax.legend(loc="best")
plt.show()

# %% [markdown]
# *Loss of a pair against the margin of its two scores. Each pair would like to be at the lower
# dot. The mean of the three margins is 0, so the mean loss is no lower than the upper dot.*
#
# Would a larger network find a way? A score for each answer is all that it may return, and the
# proof did not ask where the scores come from. Twenty networks, each from another random start,
# minimise the loss of the cycle.


# %%
def minimise(loss: Callable[[nn.Module], Tensor], net: nn.Module) -> float:
    """The loss of the net after L-BFGS has taken it to a minimum."""
    optimizer = torch.optim.LBFGS(
        net.parameters(),
        max_iter=200,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-9,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(net)
        value.backward()
        return value

    optimizer.step(closure)
    return loss(net).item()


def network(seed: int, n_inputs: int) -> nn.Sequential:
    """Two layers with random weights of deviation 1."""
    torch.manual_seed(seed)
    layers = nn.Linear(n_inputs, 16), nn.Tanh(), nn.Linear(16, 1)
    net = nn.Sequential(*layers).double()
    for weight in net.parameters():
        nn.init.normal_(weight)
    return net


# %% [markdown]
# Next to them stand twenty networks that see both answers of a pair and return a logit for the
# pair. They are not bound to one number an answer.

# %%
answers = torch.eye(3).double()
both = torch.cat([answers, answers.roll(-1, dims=0)], dim=1)  # A|B, B|C, C|A
seventy = torch.full((3,), 0.7).double()


def scorer_loss(net: nn.Module) -> Tensor:
    return cycle_loss(net(answers)[:, 0])


def judge_loss(net: nn.Module) -> Tensor:
    return F.binary_cross_entropy_with_logits(net(both)[:, 0], seventy)


starts, ends, free = [], [], []
for seed in range(20):
    scorer, judge = network(seed, 3), network(seed, 6)
    starts.append(scorer_loss(scorer).item())
    ends.append(minimise(scorer_loss, scorer))
    free.append(minimise(judge_loss, judge))

# %% tags=["check", "claim:W23e"]
expected = 0.082
assert abs(math.log(2) - entropy - expected) < 0.0005
assert all(abs(end - entropy - expected) < 0.0005 for end in ends)
assert max(ends) - math.log(2) < 1e-6 < min(starts) - math.log(2)
assert max(free) - entropy < 1e-6

# %%
rows = {"one number an answer": ends, "one number a pair": free}
table = pd.DataFrame(
    {name: (min(v), max(v)) for name, v in rows.items()},
    index=["lowest of 20", "highest of 20"],
)
table.T.round(3)

# %% [markdown]
# All twenty scorers end at .693, and all twenty judges of pairs at .611. The gap of .082 nats lies
# in the question "one number an answer", not in the size of a network.
#
# On such a cycle there is no best answer, either. Against someone who answers A, B or C with
# probability one third each, every answer wins half of its comparisons.

# %% tags=["check", "claim:W24"]
wins = torch.tensor([[0.5, 0.7, 0.3], [0.3, 0.5, 0.7], [0.7, 0.3, 0.5]])
mixture = torch.full((3,), 1 / 3)
expected = [0.5, 0.5, 0.5]
assert torch.allclose(wins @ mixture, torch.tensor(expected), atol=1e-6)
assert (wins.min(dim=1).values < 0.5).all()  # and every answer loses to one

# %% [markdown]
# ## Consistent voters, an inconsistent majority
#
# One might blame the raters. But a cycle needs no rater who is confused. Condorcet's three voters
# each have a plain order: A B C, B C A, and C A B. They vote on pairs.

# %% tags=["definition"]
from gsmrl_helpers.social_choice import Profile


def majority(profile: Profile) -> np.ndarray:
    """(n, n) bool: a above b where more than half of the voters say so."""
    votes = sum(relation_of(order).astype(int) for order in profile)
    return votes > len(profile) / 2


# %% tags=["check", "claim:W25a"]
A, B, C = range(3)
condorcet = ((A, B, C), (B, C, A), (C, A, B))
circle = ((A, B), (B, C), (C, A))
votes = [sum(prefers(order, *pair) for order in condorcet) for pair in circle]
expected = [2, 2, 2]
assert votes == expected
group = majority(condorcet)
assert all(group[pair] for pair in circle)
assert not is_transitive(group)
assert all(is_transitive(relation_of(order)) for order in condorcet)

# %% [markdown]
# A over B by two to one, B over C by two to one, C over A by two to one. Of the $6^3 = 216$ ways in
# which three voters can order three options, 12 end in a cycle.

# %% tags=["check"]
profiles = all_profiles(3, all_orders())
in_a_cycle = [p for p in profiles if not is_transitive(majority(p))]
assert (len(profiles), len(in_a_cycle)) == (216, 12)

# %% [markdown]
# ## Arrow's theorem, by counting
#
# Is majority voting just a bad rule? Arrow {cite}`arrow1951social` asked which rules turn the
# orders of several people into one order, and wanted four things of them:
#
# 1. **Any tastes.** The rule works whatever orders the voters have.
# 2. **Unanimity.** If all put A above B, so does the group.
# 3. **Independence.** The group's verdict on A and B follows from how each voter compares A and B,
#    and from nothing else.
# 4. **No dictator.** There is no voter whose order is always the group's.
#
# With three options or more there is no such rule. For small groups that can be checked by trying
# all rules. Take two voters. By independence a rule is three separate tables, one for each pair of
# options: voters' verdicts in, the group's verdict out. Two voters can vote on a pair in four ways;
# unanimity settles two of them, and two are free. So there are $(2^2)^3 = 64$ rules. With three
# voters six votes are free, which makes $(2^6)^3 = 262{,}144$.

# %% tags=["definition"]
from itertools import product

from gsmrl_helpers.social_choice import MOST_VOTERS


def pair_tables(n_voters: int, unanimous: bool = True) -> np.ndarray:
    """(R, 2^n) bool: every table from the votes on a pair to a verdict."""
    if not 1 <= n_voters <= MOST_VOTERS:
        raise ValueError(
            f"n_voters={n_voters} must lie between 1 and {MOST_VOTERS}"
        )
    n_votes = 2**n_voters
    tables = np.array(list(product((False, True), repeat=n_votes)))
    return tables[~tables[:, 0] & tables[:, -1]] if unanimous else tables


# %% tags=["check"]
assert pair_tables(2).astype(int).tolist() == [
    [0, 0, 0, 1],  # both must agree
    [0, 0, 1, 1],  # the second voter decides
    [0, 1, 0, 1],  # the first voter decides
    [0, 1, 1, 1],  # one is enough
]
assert (len(pair_tables(2)) ** 3, len(pair_tables(3)) ** 3) == (64, 262_144)

# %% [markdown]
# Each rule is tried on every profile. The pairs stand round the circle, A–B, B–C, C–A, so the
# group is in a cycle exactly where its three verdicts are alike. Rules that never are survive.

# %% tags=["definition"]
from collections.abc import Sequence

from gsmrl_helpers.social_choice import Order, votes_on_pairs


def transitive_rules(
    n_voters: int,
    orders: Sequence[Order] | None = None,
    unanimous: bool = True,
) -> tuple[int, np.ndarray]:
    """How many independent rules there are, and those without a cycle."""
    tables = pair_tables(n_voters, unanimous)
    votes = votes_on_pairs(all_profiles(n_voters, orders or all_orders()))
    survives = np.ones((len(tables),) * 3, dtype=bool)
    for first, second, third in votes.T:
        a, b, c = tables[:, first], tables[:, second], tables[:, third]
        first_alike = a[:, None] == b[None, :]
        survives &= ~(
            first_alike[:, :, None] & (b[:, None] == c[None, :])[None]
        )
    found = np.argwhere(survives)
    return len(tables) ** 3, tables[found]


# %% tags=["check", "claim:W25b"]
expected = [(2, 64, 2, {0, 1}), (3, 262_144, 3, {0, 1, 2})]
for n_voters, n_rules, n_transitive, kings in expected:
    tried, survivors = transitive_rules(n_voters)
    assert (tried, len(survivors)) == (n_rules, n_transitive)
    assert set(dictators(survivors)) == kings

# %% [markdown]
# Two survivors of 64, three of 262,144, and every one of them repeats the verdicts of one voter.
#
# ## Each condition, given up
#
# For voters of any tastes the four conditions (the group has an order, unanimity, independence, no
# dictator) can't be had together, but any three can. `arrow_conditions` (in
# `gsmrl_helpers.social_choice`) tries a rule on all profiles and says which conditions it meets.
# Four rules for three voters, the last one on fewer profiles:
#
# - **Majority** gives up that the group has an order at all.
# - **Points** (Borda's count: two for a first place, one for a second) give up independence.
# - **A constant order**, alphabetical say, gives up unanimity.
# - **Majority among single-peaked voters** gives up "any tastes". Say A, B and C are short, medium
#   and long, and nobody likes the medium one least. Four of the six orders are left.

# %% tags=["check", "claim:W25c"]
from gsmrl_helpers.social_choice import arrow_conditions, borda

single_peaked = [order for order in all_orders() if order[-1] != B]
few = all_profiles(3, single_peaked)
table = {
    "one voter decides": arrow_conditions(
        lambda profile: relation_of(profile[0]), profiles
    ),
    "majority": arrow_conditions(majority, profiles),
    "points": arrow_conditions(borda, profiles),
    "constant order": arrow_conditions(
        lambda profile: relation_of((A, B, C)), profiles
    ),
    "majority, single-peaked": arrow_conditions(majority, few),
}
expected = {
    "one voter decides": [True, True, True, False],
    "majority": [False, True, True, True],
    "points": [True, True, False, True],
    "constant order": [True, False, True, True],
    "majority, single-peaked": [True, True, True, True],
}
assert {name: [*row.values()] for name, row in table.items()} == expected
assert (len(profiles), len(few)) == (216, 64)

# %%
shown = pd.DataFrame(table).T.replace({True: "yes", False: "no"})
shown["any tastes"] = ["no" if "peaked" in name else "yes" for name in table]
HTML(as_html(shown.rename_axis("rule").reset_index()))

# %% [markdown]
# Points break independence like this. Two voters say B A C, one says A B C, and B is ahead, 5 to 4.
# The third changes to A C B, without a change of mind on A and B. Now it is 4 to 4, and the tie
# goes to A by the alphabet.

# %% tags=["check"]
before = ((B, A, C), (B, A, C), (A, B, C))
after = ((B, A, C), (B, A, C), (A, C, B))
on_a_and_b = [[prefers(order, A, B) for order in p] for p in (before, after)]
assert on_a_and_b[0] == on_a_and_b[1]
assert borda(before)[B, A] and borda(after)[A, B]

# %% [markdown]
# How much freedom is there? Counted for the independent rules: without unanimity, 94 of 4,096 rules
# for two voters never make a cycle, and 92 of them have no dictator. With single-peaked voters
# 1,585 of the 262,144 survive, and three are dictators'.

# %% tags=["check"]
tried, survivors = transitive_rules(2, unanimous=False)
assert (tried, len(survivors)) == (4096, 94)
assert dictators(survivors).count(None) == 92
tried, survivors = transitive_rules(3, single_peaked)
assert (tried, len(survivors)) == (262_144, 1585)
assert dictators(survivors).count(None) == 1585 - 3

# %% [markdown]
# One more way out is to ask for more than orders. If each voter gives numbers, and numbers of
# different people can be added, the sum of the numbers always makes an order, meets unanimity, and
# has no dictator. Its verdict on A and B does not depend on C. It is outside of Arrow's question,
# because it needs to know more than the orders: here are two groups with the same orders and
# different verdicts.

# %% tags=["check"]
of_the_third = 1 / (1 + math.exp(-2 * math.log(0.7 / 0.3)))
assert abs(of_the_third - 0.84) < 0.005
mild = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # voters × (A, B)
strong = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
assert (mild.argmax(axis=1) == strong.argmax(axis=1)).all()
assert (mild.sum(axis=0).argmax(), strong.sum(axis=0).argmax()) == (A, B)

# %% [markdown]
# ## What follows for a reward model
#
# A reward model has a number for each answer. So the preferences it learns from must be *complete*
# (any two answers can be compared) and *transitive*, or it will be wrong about some. (That is
# needed and does not suffice: A over B, B over C and A over C in 70 % each is transitive, and no
# scores say so, since those that say the first two say 84 % of the third.) Its data are choices of
# many people. By adding up the losses of all their choices it adds up numbers of different people,
# and so it does come to one order. Whose?
#
# Take raters of two kinds and answers of three lengths. Seven of ten raters like short answers,
# the others long ones, each as strongly as the other.

# %%
taste = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]]).double()
crowd = torch.tensor([0.7, 0.3]).double()


def preferences(scores: Tensor) -> Tensor:
    """(…, 3) scores to (…, 3, 3): how often a is chosen over b."""
    return torch.sigmoid(scores[..., :, None] - scores[..., None, :])


pooled = torch.einsum("g,gab->ab", crowd, preferences(taste))
first, second = torch.triu_indices(3, 3, offset=1)


def pooled_loss(scores: Tensor) -> Tensor:
    """Bradley–Terry loss of the scores on everyone's choices, a mean."""
    predicted, said = (
        p[first, second] for p in (preferences(scores), pooled)
    )
    return F.binary_cross_entropy(predicted, said)


scorer = nn.Linear(3, 1).double()
minimise(lambda net: pooled_loss(net(answers)[:, 0]), scorer)
fitted = scorer(answers)[:, 0].detach()
fitted -= fitted.mean()
lengths = ["short", "medium", "long"]
pd.DataFrame(
    {
        "70 % of raters": taste[0],
        "30 % of raters": taste[1],
        "weighted mean": crowd @ taste,
        "fitted reward": fitted.round(decimals=2) + 0.0,
    },
    index=lengths,
)

# %% [markdown]
# The fitted reward ranks the answers as the majority does. The minority is visible only as a
# weaker taste: the fitted margin of short over long is .67, where both groups feel a margin of 2. A
# reader of the scores can't tell seven people with a strong wish and three with the opposite one
# from ten people who hardly care.

# %% tags=["check"]
gap = (fitted[0] - fitted[2]).item()
assert abs(gap - 0.671) < 0.001
assert fitted.argsort(descending=True).tolist() == [0, 1, 2]
lukewarm = torch.tensor([gap / 2, 0.0, -gap / 2]).double()
assert torch.allclose(fitted, lukewarm, atol=1e-4)

# %% [markdown]
# A policy that maximises this reward does not give short answers to 70 % of people. It gives short
# answers to everyone, and three in ten get what they like least. No more data repairs that. What
# does is a question that was not asked: who is choosing? With one reward for each group the
# loss falls to what the noise of the choices leaves.

# %% tags=["check"]
best = fitted.argmax()
assert [row.argsort().tolist().index(best) for row in taste] == [2, 0]
own = preferences(taste)[:, first, second]
by_group = F.binary_cross_entropy(own, own, reduction="none").mean(dim=1)
apart = (crowd * by_group).sum().item()
assert apart < pooled_loss(fitted).item() - 0.1

# %% [markdown]
# ## Pairs from a verifier
#
# Now a real one. To know what a reward model learnt, one needs to know the truth, so the rater here
# is the checker: of two answers to one problem it prefers the right one. The answers are samples of
# the pocket policy at temperature 1. Problems whose eight answers are all wrong, or all right,
# give no pair.

# %%
config = experiment_config("on-policy")
policy, tokenizer = load_policy(config)
rollouts = sample_rollouts(
    LocalEngine(policy, tokenizer),
    config.prompt_object(),
    load_problems(config, "train")[:224],
    group_size=8,
    seed=23,
    temperature=1.0,
    top_p=1.0,
    max_tokens=config.sampling_max_tokens,
)
known = rollouts.select_groups(range(96))
held_out = rollouts.select_groups(range(96, 224))

# %% tags=["definition"]
import random

from gsmrl_helpers.options import require_positive_integer
from gsmrl_helpers.preferences import PreferencePair
from gsmrl_helpers.rollouts import Rollouts


def verifier_pairs(
    rollouts: Rollouts,
    *,
    per_prompt: int,
    seed: int,
    may_be_rejected: Callable[[str], bool] = bool,
) -> list[PreferencePair]:
    """Right answers, chosen over wrong ones to the same prompt."""
    require_positive_integer("per_prompt", per_prompt)
    rng = random.Random(f"verifier pairs, {seed}")
    texts = [completion.text for completion in rollouts.completions]
    is_right = rollouts.answer_rewards.bool().tolist()
    pairs = []
    for start in range(0, len(texts), rollouts.group_size):
        group = range(start, start + rollouts.group_size)
        right = dict.fromkeys(texts[i] for i in group if is_right[i])
        wrong = dict.fromkeys(texts[i] for i in group if not is_right[i])
        possible = [
            PreferencePair(rollouts.prompts[start], chosen, rejected)
            for chosen in right
            for rejected in filter(may_be_rejected, wrong)
        ]
        pairs += rng.sample(possible, min(per_prompt, len(possible)))
    return pairs


# %% tags=["check"]
pairs = verifier_pairs(known, per_prompt=4, seed=0)
assert 130 < len(pairs) < 350
gold_of = dict(zip(known.prompts, known.problems, strict=True))
for pair in pairs:
    gold = gold_of[pair.prompt].gold
    assert r1_zero_reward_fn(pair.chosen, gold)["reward"] == 1
    assert r1_zero_reward_fn(pair.rejected, gold)["reward"] == 0

# %% tags=["nbval-ignore-output"]
print(len(pairs), "pairs from", len({p.prompt for p in pairs}), "problems")
shown = pd.DataFrame([vars(pair) for pair in pairs[::30]])
shown["prompt"] = shown["prompt"].str.extract(r"User: (.*)\n", expand=False)
del shown["source"]  # all are of one
HTML(as_html(shown.rename(columns={"prompt": "question"})))

# %% [markdown]
# ## The reward model
#
# It is the policy with another head. The body reads prompt and response as it always did; where the
# policy had a logit for each token of the vocabulary, one number is read off the hidden state at
# the response's last token, which has seen all of it. The head starts at 0.

# %% tags=["definition"]
import copy

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gsmrl_helpers.engine import evaluation_mode
from gsmrl_helpers.response_scoring import response_hidden_states
from gsmrl_helpers.tokenization import (
    encode,
    padding_token_id,
    tokenize_prompt_and_output,
)


class RewardModel(nn.Module):
    """A policy's body and a head that reads one number off the last token."""

    def __init__(
        self, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy).eval()
        self.body.lm_head = nn.Identity()
        self.head = nn.Linear(
            policy.config.hidden_size, 1, device=policy.device
        )
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.tokenizer = tokenizer

    def features(self, input_ids: Tensor, response_mask: Tensor) -> Tensor:
        """(B, D), the hidden state at each row's last token that counts."""
        hidden = response_hidden_states(self.body, input_ids, response_mask)
        return hidden[response_mask.sum(dim=1).cumsum(dim=0) - 1].float()

    def forward(self, input_ids: Tensor, response_mask: Tensor) -> Tensor:
        """Scores (B,) of the rows that `batch` returns, with gradient."""
        return self.head(self.features(input_ids, response_mask)).squeeze(-1)

    def batch(
        self, prompts: Sequence[str], responses: Sequence[str]
    ) -> dict[str, Tensor]:
        """Token ids and mask; a token that no one reads ends each row."""
        end = padding_token_id(self.tokenizer)
        ids = [
            [*encode(self.tokenizer, response), end] for response in responses
        ]
        rows = tokenize_prompt_and_output(
            prompts, responses, self.tokenizer, output_token_ids=ids
        )
        device = self.head.weight.device
        return {
            name: rows[name].to(device)
            for name in ("input_ids", "response_mask")
        }

    @torch.no_grad()
    def score(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        at_once: int = 256,
    ) -> Tensor:
        """Scores (B,) of B responses: the `raw_rewards` of a training loop."""
        if len(prompts) != len(responses) or not prompts:
            raise ValueError(
                f"prompts and responses must be equally many, and at least one: got "
                f"{len(prompts)} prompts and {len(responses)} responses"
            )
        starts = range(0, len(prompts), at_once)
        with evaluation_mode(self):
            scores = [
                self(
                    **self.batch(
                        prompts[i : i + at_once], responses[i : i + at_once]
                    )
                )
                for i in starts
            ]
        return torch.cat(scores).cpu()


# %% tags=["check"]
untrained = RewardModel(policy, tokenizer)
assert untrained.score(["2+2="] * 2, [" 4", " five"]).tolist() == [0, 0]
rows = untrained.batch(["2+2=", "2+2="], [" 4", " It is 4."])
states = untrained.features(**rows)
alone = tokenizer("2+2= It is 4.", return_tensors="pt")["input_ids"]
whole = policy.model(alone).last_hidden_state[0, -1]
assert states.shape == (2, policy.config.hidden_size)
assert torch.allclose(states[1], whole, atol=1e-4)

# %% [markdown]
# A problem gives several pairs, and an answer stands in several of them. Its score is computed
# once and used in each. InstructGPT puts all comparisons of a prompt into one step for a second
# reason: met again and again in other steps, an answer would be learnt by heart.


# %% tags=["definition"]
def pair_scores(
    model: RewardModel, pairs: Sequence[PreferencePair]
) -> tuple[Tensor, Tensor]:
    """Scores of the chosen and of the rejected answers, (P,) each."""
    chosen = [(pair.prompt, pair.chosen) for pair in pairs]
    rejected = [(pair.prompt, pair.rejected) for pair in pairs]
    place = {row: n for n, row in enumerate(dict.fromkeys(chosen + rejected))}
    scores = model(**model.batch(*map(list, zip(*place, strict=True))))
    return scores[[place[row] for row in chosen]], scores[
        [place[row] for row in rejected]
    ]


# %% tags=["check"]
few_pairs = pairs[:12]
loss = bradley_terry_loss(*pair_scores(untrained, few_pairs))
loss.backward()
assert abs(loss.item() - math.log(2)) < 1e-6
assert untrained.head.weight.grad.abs().max() > 1e-3
assert untrained.head.bias.grad.abs() < 1e-7

# %% [markdown]
# Before training every pair costs $\log 2$: worth a check in any implementation. And no gradient
# reaches the head's bias, because a constant on all scores changes no preference. So
# `train_reward_model` sets the bias afterwards, to make the mean score 0. It is an ordinary
# training loop: two passes over the pairs, eight problems a step, AdamW, a learning rate that
# falls from $10^{-3}$ to 0.

# %% tags=["nbval-ignore-output"]
from gsmrl_helpers.reward_model import train_reward_model

model, losses = train_reward_model(policy, tokenizer, pairs)
print(f"{len(losses)} steps, loss from {losses[0]:.2f} to {losses[-1]:.2f}")

# %% tags=["check"]
assert abs(losses[0] - math.log(2)) < 1e-4
assert np.mean(losses[-5:]) < 0.45

# %% [markdown]
# ## Held-out pairs, easy and hard
#
# How often does it rank a pair right that it was not trained on? It depends on the pairs. A right
# answer is always in format, and many wrong ones are not, so a reward model could do well
# by looking at tags. Three sets, one pair from each held-out problem:
#
# - **any**: the wrong answer may be anything;
# - **in format**: it has the tags, too;
# - **calculated**: it has the tags and a calculation before them, like nearly all right answers.

# %%
calculation = re.compile(r"\d+[-+*/]\d+=\d+")


def in_format(text: str) -> bool:
    return r1_zero_reward_fn(text, None)["format_reward"] == 1


def calculated(text: str) -> bool:
    thought = text.partition("</think>")[0]
    return in_format(text) and bool(calculation.search(thought))


tests = {
    name: verifier_pairs(held_out, per_prompt=1, seed=1, may_be_rejected=kind)
    for name, kind in (
        ("any", bool),
        ("in format", in_format),
        ("calculated", calculated),
    )
}

# %% [markdown]
# Next to the reward model stands a cheaper one. The body stays frozen, its hidden states are
# computed once, and only a head of 128 weights is fitted to the same pairs.

# %%
from gsmrl_helpers.reward_model import pairs_ranked_right, rows_of


@torch.no_grad()
def differences(pairs: list[PreferencePair]) -> Tensor:
    """(P, D) frozen features of the chosen minus those of the rejected."""
    rows = untrained.batch(*zip(*rows_of(pairs), strict=True))
    chosen, rejected = untrained.features(**rows).double().chunk(2)
    return chosen - rejected


x = differences(pairs)
head = nn.Linear(x.shape[1], 1, bias=False).double()


def head_loss(head: nn.Module) -> Tensor:
    margin = head(x / x.std())[:, 0]
    small = 1e-3 * head.weight.square().sum()
    return bradley_terry_loss(margin, torch.zeros_like(margin)) + small


fit = minimise(head_loss, head)

# %% tags=["nbval-ignore-output"]
ranked = {
    (name, kind): found
    for kind, test in tests.items()
    for name, found in (
        ("whole body", pairs_ranked_right(model, test)),
        ("frozen body", head(differences(test))[:, 0] > 0),
    )
}
rows = [
    (
        *key,
        len(v),
        v.double().mean().item(),
        *wilson_interval(v.sum().item(), len(v)),
    )
    for key, v in ranked.items()
]
columns = ["trained", "wrong answer", "pairs", "ranked right", "low", "high"]
pd.DataFrame(rows, columns=columns).round(2)

# %% tags=["check"]
for name in ("whole body", "frozen body"):
    share = [ranked[name, kind].double().mean().item() for kind in tests]
    easy, tagged, hard = share
    assert easy > 0.8 and tagged > 0.6
    assert hard < easy - 0.05 and hard < 0.85
assert min(map(len, tests.values())) > 25
like_right = [calculated(pair.rejected) for pair in pairs]
assert 0.08 < np.mean(like_right) < 0.3

# %% [markdown]
# On any pairs it looks like a model that knows right from wrong. Where the wrong answer looks like
# a right one, much of that is gone; there are few such pairs, so how much is left is known roughly.
# The share on **any** pairs is what would be reported, and it mostly measures how different the two
# answers of a pair look. The frozen body does about as well, at a fraction of the work.
#
# ## What it pays for
#
# People often prefer the longer of two answers, and reward models learn it from them. This rater
# looked at nothing but the number. Still, the score of wrong answers rises with their length.

# %%
texts = [completion.text for completion in held_out.completions]
answers = pd.DataFrame(
    {
        "prompt": held_out.prompts,
        "text": texts,
        "score": model.score(held_out.prompts, texts).tolist(),
        "tokens": [len(encode(tokenizer, text)) for text in texts],
        "right": held_out.answer_rewards.bool().tolist(),
        "in format": held_out.format_rewards.bool().tolist(),
        "calculated": [calculated(text) for text in texts],
    }
)
answers = answers[answers["in format"]]
kinds = {
    "right": answers[answers["right"]],
    "wrong": answers[~answers["right"]],
}
slopes = {
    name: linregress(rows["tokens"], rows["score"])
    for name, rows in kinds.items()
}

# %%
figure, axes = plt.subplots(
    1, 2, figsize=(7.6, 3.2), sharey=True, layout="constrained"
)
for ax, (name, rows) in zip(axes, kinds.items(), strict=True):
    color = line(name)["color"]
    for has, mark in ((True, "o"), (False, "x")):
        some = rows[rows["calculated"] == has]
        label = f"{'with' if has else 'without'} a calculation"
        ax.plot(
            some["tokens"],
            some["score"],
            mark,
            ms=4,
            alpha=0.5,
            color=color,
            label=f"{label} (n = {len(some)})",
        )
    fit = slopes[name]
    ends = np.array([rows["tokens"].min(), rows["tokens"].max()])
    ax.plot(ends, fit.intercept + fit.slope * ends, color="black", lw=1)
    ax.set(title=f"{name}, in format", xlabel="tokens")
    ax.legend(loc="center right")
axes[0].set_ylabel("score of the reward model")
plt.show()

# %% [markdown]
# *Score of held-out answers in format against their length: right ones on the left, wrong ones on
# the right, each with its least-squares line. Longer wrong answers score higher, and the marks say
# why: nearly every answer with a calculation is at the top, right or wrong, and nearly every one
# without is at the bottom. Guesses are short.* (The ± below takes all answers for independent;
# those to one problem are not quite.)

# %% tags=["nbval-ignore-output"]
for name, fit in slopes.items():
    half = 1.96 * fit.stderr
    print(f"{name}: {fit.slope:+.3f} ± {half:.3f} a token")
wrong = kinds["wrong"]
means = wrong.groupby("calculated")["score"].mean()
print(f"wrong: {means[False]:.2f} guessed, {means[True]:.2f} calculated")

# %% tags=["check"]
assert slopes["wrong"].slope - 1.96 * slopes["wrong"].stderr > 0.02
assert means[True] - means[False] > 0.5

# %% [markdown]
# A slope is not a cause. Perhaps it is the length that pays, perhaps what comes with it. To find
# out, right answers are edited, one thing at a time, and scored again. The checker's verdict on
# the edited text is known.


# %%
def filler(text: str) -> str:
    return " The question is about numbers. The User asks a question." + text


def wrong_result(text: str) -> str:
    """The final result plus 1, in the calculation and as the answer."""
    gold = re.search(r"<answer> (\d+)", text)[1]
    return re.sub(rf"(=|<answer> ){gold}\b", rf"\g<1>{int(gold) + 1}", text)


def guessed(text: str) -> str:
    """The right answer, without the work."""
    return re.sub(r"^.*=(\d+)(?=\. </think>)", r" Maybe \1", text)


def one_for_all(text: str) -> str:
    return " That is 1*1=1. </think> <answer> 1 </answer>"


# %% tags=["nbval-ignore-output"]
edits = [filler, wrong_result, guessed, one_for_all]
sure = kinds["right"]
sure = sure[
    sure["text"].str.fullmatch(r".*=(\d+)\. </think> <answer> \1 </answer>")
]
len(sure), len(kinds["right"])

# %% tags=["nbval-ignore-output"]
original = torch.tensor(sure["score"].to_numpy())
golds = held_out.problems
gold_of = {p: q.gold for p, q in zip(held_out.prompts, golds, strict=True)}
changes = {}
for edit in edits:
    edited = [edit(text) for text in sure["text"]]
    scored = model.score(sure["prompt"].tolist(), edited).double()
    still_right = [
        r1_zero_reward_fn(text, gold_of[prompt])["reward"]
        for text, prompt in zip(edited, sure["prompt"], strict=True)
    ]
    changes[edit.__name__] = (
        edited[0],
        np.mean(still_right),
        (scored - original).mean().item(),
    )
columns = ["example", "still right", "change of the score"]
shown = pd.DataFrame.from_dict(changes, orient="index", columns=columns)
shown = shown.round(2).astype(str).rename_axis("edit").reset_index()
print(f"{len(sure)} right answers, mean score {original.mean():.2f}")
HTML(as_html(shown))

# %% tags=["check"]
moved = {name: change for name, (_, _, change) in changes.items()}
rights = {name: share for name, (_, share, _) in changes.items()}
assert rights["filler"] == rights["guessed"] == 1
assert rights["wrong_result"] == 0 and rights["one_for_all"] < 0.1
assert abs(moved["wrong_result"]) < 0.3 and abs(moved["filler"]) < 0.4
assert moved["guessed"] < -0.5 < -0.4 < moved["one_for_all"]

# %% [markdown]
# The reward model hardly notices that the result became wrong, and it takes a lot off when the
# result stays right and the work is missing. It pays for *a calculation in format*, which is what
# most right answers of this policy have and most wrong ones lack. Filler moves the score little: so
# it was not length as such that paid, but a longer answer has more room for what does. A policy
# that is trained on this score has a reason to write calculations, and none to make them come out.
# One text for every problem, $1 \cdot 1 = 1$, is paid like a right answer.
#
# The policy gets most problems right when it decodes greedily ({doc}`19_variants_results` counts),
# so its body is able to tell. But few of the training pairs have a calculation on both sides, and
# held-out pairs drawn in the same way seldom ask for more. The test that finds such a thing changes
# one property and leaves the others alone. And as with any reward, the best-paid answers are read:

# %% tags=["nbval-ignore-output"]
best = answers.nlargest(60, "score")
print(f"of the 60 best-paid answers {best['right'].mean():.0%} are right")
shown = best[~best["right"]].head(5)
question = shown["prompt"].str.extract(r"User: (.*)\n", expand=False)
shown = shown.assign(question=question, score=shown["score"].round(2))
HTML(as_html(shown[["question", "text", "score"]].astype(str)))

# %% tags=["check"]
assert 0.2 < best["right"].mean() < 0.98
assert shown["text"].map(calculated).mean() > 0.5

# %% [markdown]
# ## Take away
#
# - A choice between two answers becomes binary cross-entropy on the difference of their scores,
#   with the label 1. Compute it with `logsigmoid`. Before training it is $\log 2$.
# - The formula is that of Gumbel noise and of Luce's axiom; normal noise gives nearly the same.
#   Scores have no zero.
# - Numbers can't express a cycle: on one of 70 % the loss stays .082 nats a pair above the entropy,
#   for any network. Consistent raters make cycles when they are pooled, and no rule that meets
#   Arrow's conditions avoids it.
# - One reward for many people is the taste of the weightier group, weakened. The others can't be
#   seen in it.
# - A reward model learns what tells the two answers of its pairs apart. Held-out pairs of the same
#   kind don't show what that is. Change one property at a time, and read the best-paid answers.
#
# ## Exercises

# %% [markdown]
# ```{exercise} How much a cycle costs
# :label: ex-23-gap
#
# *Easy, 5 minutes.* Write `unreachable(share)`: by how many nats a pair the best scores stay above
# the entropy of the labels, on a cycle in which each preference is held in `share` of comparisons.
# What is it at .5, and at .99?
#
# :::{dropdown} Hint
# The best scores are equal, whatever the share.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def unreachable(share: float) -> float:
    labels = share * math.log(share) + (1 - share) * math.log(1 - share)
    return math.log(2) + labels


# %% tags=["check"]
assert abs(unreachable(0.7) - 0.0823) < 0.00005
assert unreachable(0.5) == 0
assert abs(unreachable(0.99) - 0.6371) < 0.00005
for share in (0.6, 0.9):
    labels = torch.distributions.Bernoulli(share).entropy().item()
    at_best = cycle_loss(torch.zeros(3).double(), share).item()
    assert abs(unreachable(share) - (at_best - labels)) < 1e-6

# %% [markdown]
# ```{exercise} Raters who slip
# :label: ex-23-noise
#
# *Medium, 15 minutes.* A rater presses the wrong button with probability `error`. Then the first
# answer is chosen with probability $(1 - e)\,\sigma(m) + e\,\sigma(-m)$ at margin $m$. Write
# `noisy_loss(chosen, rejected, error)`, the mean of minus the logarithm, finite at margins of
# ±1000. At which share of choices do scores stop growing without bound?
#
# :::{dropdown} Hint
# `torch.logaddexp(a, b)` is the logarithm of $e^a + e^b$, and `F.logsigmoid` one of its arguments.
# :::
#
# :::{dropdown} Worked answer
# The probability can't exceed $1 - e$, and the loss of a pair that is always chosen alike falls to
# $-\log(1 - e)$ and no further. A pair on which the other answer was chosen costs at most
# $-\log e$, so one slip can't pull the scores as far as it likes: the gradient goes to 0 instead
# of −1. With shares between $e$ and $1 - e$ the best margin is finite.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def noisy_loss(chosen: Tensor, rejected: Tensor, error: float) -> Tensor:
    margin = chosen - rejected
    kept = math.log(1 - error) + F.logsigmoid(margin)
    slipped = math.log(error) + F.logsigmoid(-margin)
    return -torch.logaddexp(kept, slipped).mean()


# %% tags=["check"]
a, b = torch.randn(2, 50, generator=generator).double()
plain = 0.9 * torch.sigmoid(a - b) + 0.1 * torch.sigmoid(b - a)
assert torch.allclose(noisy_loss(a, b, 0.1), -plain.log().mean())
zero = torch.zeros(1).double()
for margin, wanted_loss in ((1000.0, 0.9), (-1000.0, 0.1)):
    far = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
    found = noisy_loss(far, zero, 0.1)
    found.backward()
    assert abs(found.item() + math.log(wanted_loss)) < 1e-9
    assert abs(far.grad.item()) < 1e-9

# %% [markdown]
# ```{exercise} The voter in the middle
# :label: ex-23-median
#
# *Medium, 15 minutes.* Write `condorcet_winner(profile)`: the option that beats each of the others
# by majority, or None. The check compares it with the median voter's favourite among single-peaked
# voters, and counts the profiles without a winner.
#
# :::{dropdown} Hint
# `majority(profile)` is a matrix, and a winner's row has a True for every other option.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def condorcet_winner(profile: Profile) -> int | None:
    above = majority(profile)
    winners = np.flatnonzero(above.sum(axis=1) == len(above) - 1)
    return int(winners[0]) if len(winners) else None


# %% tags=["check"]
assert condorcet_winner(condorcet) is None
assert sum(condorcet_winner(p) is None for p in profiles) == 12
for group in few:
    favourites = sorted(order[0] for order in group)
    assert condorcet_winner(group) == favourites[1]

# %% [markdown]
# ## Next
#
# {doc}`24_rlhf_and_kl` trains the policy on such a reward model's score, watches the score rise and
# the checker's verdict part from it, and holds the policy back with a penalty. What such
# a penalty can and can't do is sketched in {doc}`06_reward_functions`. {doc}`25_dpo` trains the
# policy on the pairs themselves, without a reward model.
