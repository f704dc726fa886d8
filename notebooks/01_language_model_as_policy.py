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
# # A language model as a policy
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say what state, action, policy and reward are when a language model is
# trained with reinforcement learning, and derive the policy gradient, with a baseline, in four
# lines.
#
# **You need** derivatives and expectations; nothing of reinforcement learning. **Reading** takes
# 15 minutes, **running** less than a minute, on a **CPU**.
# ```

# %%
import itertools

import pandas as pd
import sympy as sp
import torch
from IPython.display import HTML

from gsmrl_helpers import (
    LocalEngine,
    experiment_config,
    get_prompt,
    load_pocket_problems,
    load_policy,
    r1_zero_reward_fn,
    small_batch,
)
from gsmrl_helpers.rollouts import sample_rollouts
from gsmrl_helpers.symbolic import show
from gsmrl_helpers.tables import as_html

# %% [markdown]
# ## No demonstrations, but a checker
#
# Pretraining imitates: from a great many texts a model learns to give every plausible continuation
# some probability. That is *coverage*. A task asks for *precision*: the right answer, nearly every
# time. Alignment narrows the model down, by imitation of chosen answers (instruction tuning), or,
# in this book, by reinforcement learning: the model answers, a program says whether the answer is
# right, and right answers are made more likely. Nobody writes a demonstration.
#
# All it takes is a checker. For code it is a test: does the function that the model wrote pass?


# %%
def passes(f) -> bool:
    return f([0, 1, 2]) == [2, 1, 0]


# %% tags=["check"]
assert passes(lambda xs: xs[::-1]) and not passes(sorted)
assert passes(lambda xs: [2, 1, 0])  # the test does not know *why* it passes

# %% [markdown]
# The last line is a warning that will return: a checker rewards whatever passes. For mathematics
# it compares the final number. What comes before is the model's own affair.

# %%
right = " 3 + 4 is 7. </think> <answer> 7 </answer>"
wrong = " 3 + 4 is 12. </think> <answer> 12 </answer>"
print(r1_zero_reward_fn(right, "7"))
print(r1_zero_reward_fn(wrong, "7"))

# %% [markdown]
# Coverage is what reinforcement learning lives on: an answer that the model never gives is never
# rewarded. Here is how much of it the pocket policy ({doc}`00_pocket_world`) has before any
# reinforcement learning. It answers 48 problems, sixteen times each.

# %%
config = experiment_config("on-policy", "pocket")
model, tokenizer = load_policy(config)
rollouts = sample_rollouts(
    LocalEngine(model, tokenizer),
    get_prompt("r1_zero"),
    load_pocket_problems("dev", 48, difficulty=config.difficulty),
    group_size=16,
    seed=0,
    temperature=1.0,
    top_p=1.0,
    max_tokens=config.sampling_max_tokens,
)

# %% tags=["nbval-ignore-output"]
one_answer = rollouts.answer_rewards.mean().item()
groups = rollouts.answer_rewards.reshape(48, 16)
any_of_sixteen = groups.amax(dim=1).mean().item()
print(f"a single answer is right       {one_answer:.0%}")
print(f"at least one of sixteen is     {any_of_sixteen:.0%}")

# %% tags=["check"]
assert one_answer < 0.2 < 0.5 < any_of_sixteen

# %% [markdown]
# The knowledge is there, and comes out once in a while. Most of the problems are solved by one of
# sixteen tries, so there is something to reinforce.
#
# ## State, action, reward
#
# Take the prompt `2 + 2 =` and the answer `so 4 .`, and read it as an episode. The *state* is the
# text so far, the *action* is the next token, and the next state is the old one with the token
# appended, $s' = s + a$. Nothing about that step is random. The *policy* $\pi(a \mid s)$ is the
# model: a distribution over the next token.

# %%
policy, vocabulary = small_batch.make_policy(), small_batch.VOCABULARY


def episode(prompt: str, answer: str) -> pd.DataFrame:
    tokens = [*prompt.split(), *answer.split()]
    rows = []
    for t in range(len(prompt.split()), len(tokens)):
        row = vocabulary.index(tokens[t - 1])  # this policy sees one token
        probs = policy.table[row].softmax(dim=0)
        chance = probs[vocabulary.index(tokens[t])].item()
        rows.append((" ".join(tokens[:t]), tokens[t], f"{chance:.2f}"))
    return pd.DataFrame(rows, columns=["state s", "action a", "π(a | s)"])


HTML(as_html(episode("2 + 2 =", "so 4 . <eos>")))

# %% tags=["check"]
steps = episode("2 + 2 =", "so 4 . <eos>")
states, actions = steps["state s"], steps["action a"]
assert (states + " " + actions)[:-1].tolist() == states[1:].tolist()
assert steps["π(a | s)"].tolist() == ["0.50", "0.50", "0.80", "0.50"]

# %% [markdown]
# A robot can't take a move back. A text can be: the states are our own invention, and going back to
# one costs nothing. So a model may try, check, discard and try again *while it answers*; planning
# is free, but for the tokens it takes.
#
# A reward for the whole answer, given once at its end, is an *outcome reward*. A *process reward*
# would grade the steps as well, and needs someone who can. We only use outcome rewards: 1 if the
# final number is right, else 0.
#
# Two tools of textbook reinforcement learning drop out with this choice.
#
# - *Discounting* weighs a reward that comes $k$ steps later with $\gamma^k$. Here no step has a
#   reward of its own; a $\gamma < 1$ would only punish long answers, at their first tokens most.
# - *Bootstrapping* replaces the rest of an episode by a learned guess of its value. Our episodes
#   are short, and each is played to its end: the return is known, there is nothing to guess.


# %%
def returns(n_tokens: int, reward: float, gamma: float) -> list[float]:
    """The discounted return after each token, the reward being the last's."""
    return [reward * gamma ** (n_tokens - 1 - t) for t in range(n_tokens)]


print("γ = 1:  ", returns(4, 1.0, 1.0))
print("γ = 0.9:", [round(value, 3) for value in returns(4, 1.0, 0.9)])

# %% tags=["check"]
assert set(returns(500, 1.0, 1.0)) == {1.0}
assert abs(returns(4, 1.0, 0.9)[0] - 0.729) < 1e-12
assert returns(50, 1.0, 0.9)[0] < 0.006

# %% [markdown]
# With $\gamma = 1$ every token of an answer has the same return, the answer's reward. So we may as
# well take the *whole answer* $y$ to a prompt $x$ as one action. Its value $Q(x, y)$, the reward to
# be expected after it, is then the reward $r(y \mid x)$ itself.
#
# Two communities have named the same things.
#
# | symbol | language modelling | reinforcement learning |
# |---|---|---|
# | $\rho$ | distribution of prompts, data set | distribution of initial states |
# | $x$ | prompt, question | initial state |
# | $y$ | answer, response, generation | trajectory, episode, rollout |
# | $y_t$ | token | action |
# | $x, y_{<t}$ | prompt and prefix | state |
# | $\pi_\theta$ | model | policy |
# | $r(y \mid x)$ | right or wrong | reward, return |
# | $L$ | length of the answer | horizon |
# | $B$, $G$ | prompts in a batch, answers to each | batch size, group size |
# | $A$ | weight of an answer | advantage |
#
# ## The objective
#
# Pretraining and fine-tuning minimise a cross-entropy: the expectation, over answers $y$ of a
# *data set* $q$, of $-\log \pi_\theta(y \mid x)$. The data stay; only the model moves.
# Reinforcement learning maximises
#
# $$
# J(\theta) = \mathbb{E}_{x \sim \rho}\, \mathbb{E}_{y \sim \pi_\theta(\cdot \mid x)}
# \big[\, r(y \mid x) \,\big],
# $$
#
# an expectation over the model's *own* answers: $\theta$ decides what is drawn.
#
# The smallest example has two answers, 0 and 1. The policy gives 1 with the probability
# $p = \sigma(\theta) = e^\theta / (1 + e^\theta)$, and only 1 is right.

# %%
theta = sp.symbols("theta", real=True)
p = sp.exp(theta) / (1 + sp.exp(theta))
pi = {1: p, 0: 1 - p}
r = {1: 1, 0: 0}
J = sum(pi[y] * r[y] for y in (0, 1))
dJ = sp.factor(sp.diff(J, theta))
show(r"\frac{dJ}{d\theta}", dJ)

# %% [markdown]
# By the rules of calculus this is $p(1-p)$: nothing to gain where the policy is already sure.

# %% tags=["check"]
assert sp.simplify(dJ - p * (1 - p)) == 0

# %% [markdown]
# ## The log-derivative trick
#
# For a language model the sum over all answers can't be written down. A derivative of the form
# $\sum_y \nabla\pi(y)\, r(y)$ is no expectation, so it can't be sampled either. One identity makes
# it one. As $\nabla \log \pi = \nabla \pi / \pi$,
#
# $$
# \nabla \mathbb{E}_{y \sim \pi}[r]
# = \sum_y \nabla \pi(y)\, r(y)
# = \sum_y \pi(y)\, \nabla \log \pi(y)\; r(y)
# = \mathbb{E}_{y \sim \pi}\big[\, r(y)\, \nabla \log \pi(y) \,\big].
# $$
#
# The factor $\nabla \log \pi(y)$ is called the *score*. For our two answers it is

# %%
score = {y: sp.factor(sp.diff(sp.log(pi[y]), theta)) for y in (0, 1)}
show(r"\nabla \log \pi(1)", score[1])

# %%
show(r"\nabla \log \pi(0)", score[0])

# %% [markdown]
# that is, $1 - p$ and $-p$: an answer's score is large when the answer was unlikely. Weighted with
# the rewards and summed, they give the derivative from above.

# %% tags=["check"]
assert sp.simplify(score[1] - (1 - p)) == 0
assert sp.simplify(score[0] + p) == 0

# %% tags=["check", "claim:A1"]
expectation = sum(pi[y] * r[y] * score[y] for y in (0, 1))
expected = 0
assert sp.simplify(expectation - dJ) == expected

# %% [markdown]
# The same holds for any number of answers and any reward. A policy small enough to be written out
# whole: answers of three tokens from a vocabulary of three, 27 in all, each token depending
# on all before it. Its logits and the rewards are random numbers.

# %%
torch.manual_seed(0)
answers = list(itertools.product(range(3), repeat=3))
logits = {
    prefix: torch.randn(3, dtype=torch.float64, requires_grad=True)
    for length in range(3)
    for prefix in itertools.product(range(3), repeat=length)
}
rewards = torch.randn(27, dtype=torch.float64)


def log_prob(answer: tuple[int, ...]) -> torch.Tensor:
    """log π of an answer: the sum over its tokens, each given its prefix."""
    steps = range(len(answer))
    return sum(logits[answer[:t]].log_softmax(0)[answer[t]] for t in steps)


# %% [markdown]
# The derivative of the objective, once straight through the sum over all 27 answers, once as the
# expectation of reward times score:


# %%
def gradient(scalar: torch.Tensor) -> torch.Tensor:
    """The derivative with respect to all 39 logits."""
    parts = torch.autograd.grad(
        scalar, list(logits.values()), materialize_grads=True
    )
    return torch.cat(parts)


probs = torch.stack([log_prob(y).exp() for y in answers])
through_the_sum = gradient((probs * rewards).sum())
probs = probs.detach()
scores = torch.stack([gradient(log_prob(y)) for y in answers])
as_expectation = (probs * rewards) @ scores

# %% tags=["check", "claim:A1"]
assert len(as_expectation) == 39 and through_the_sum.norm() > 0.05
assert (as_expectation - through_the_sum).abs().max() < 1e-12

# %% [markdown]
# Now it can be sampled: draw answers, average reward times score. With 100,000 draws every one of
# the 39 numbers lies within four standard errors.

# %%
draws = torch.multinomial(probs, 100_000, replacement=True)
terms = rewards[draws, None] * scores[draws]
standard_error = terms.std(dim=0) / len(draws) ** 0.5
error = (terms.mean(dim=0) - as_expectation).abs()

# %% tags=["check"]
assert (error < 4 * standard_error).all()

# %% [markdown]
# ## Fine-tuning is the case of weight 1
#
# Both objectives move $\theta$ along $\nabla \log \pi(y)$. Fine-tuning takes $y$ from a data set
# and gives every one the weight 1. The policy gradient takes $y$ from the model and gives it the
# weight $r(y)$. With rewards of 0 and 1 it is fine-tuning on one's own right answers, a data set
# that changes with the model. Set all rewards to 1, and nothing is left:

# %% tags=["check", "claim:A2"]
symbolic = sum(pi[y] * score[y] for y in (0, 1))
enumerated = probs @ scores
assert sp.simplify(symbolic) == 0
assert enumerated.abs().max() < 1e-12

# %% [markdown]
# The mean score is zero, for any policy: the probabilities add up to 1 whatever $\theta$ is, so
#
# $$
# \mathbb{E}_{y \sim \pi}[\nabla \log \pi(y)] = \sum_y \nabla \pi(y) = \nabla \sum_y \pi(y)
# = \nabla 1 = 0 .
# $$
#
# Praising every answer alike teaches nothing. It does so only in the mean: each single sample
# still pushes the policy towards itself, and that is noise.
#
# ## A baseline
#
# What adds nothing in the mean may be subtracted. For any number $b$ that does not depend on the
# answer,
#
# $$
# \mathbb{E}\big[(r(y) - b)\, \nabla \log \pi(y)\big]
# = \nabla \mathbb{E}[r] - b\, \mathbb{E}[\nabla \log \pi(y)] = \nabla \mathbb{E}[r] .
# $$
#
# With $b = 0.5$ the weights of right and wrong answers, 1 and 0, become $+0.5$ and $-0.5$: a wrong
# answer is no longer ignored but pushed down, and the expectation is what it was.

# %% tags=["check", "claim:A3"]
expected_weights = {1: 0.5, 0: -0.5}
weights = {y: r[y] - sp.Rational(1, 2) for y in (0, 1)}
assert {y: float(w) for y, w in weights.items()} == expected_weights
with_baseline = sum(pi[y] * weights[y] * score[y] for y in (0, 1))
assert sp.simplify(with_baseline - dJ) == 0
for b in (-2.0, 0.5, 30.0):
    shifted = (probs * (rewards - b)) @ scores
    assert (shifted - through_the_sum).abs().max() < 1e-12

# %% [markdown]
# Why bother, if nothing changes in the mean? Because a single estimate is not the mean. How far it
# strays, and which $b$ helps, is the next chapter.
#
# ## Take away
#
# - State is text, action is a token, the next state is the old one with the token appended. Seen as
#   one action, an answer has the value $Q = r$; discounting and bootstrapping have nothing to do.
# - The policy gradient is the mean of reward times score, $r(y)\,\nabla\log\pi(y)$, over the
#   model's own answers. Fine-tuning is the case of weight 1 and somebody else's answers.
# - The mean score is zero, so a baseline changes no expectation.
#
# ## Exercises
#
# ```{exercise} Returns with a reward at every step
# :label: ex-01-returns
#
# *Easy, 10 minutes.* A process reward gives each token a reward $r_t$ of its own. Write
# `returns_to_go(step_rewards, gamma)`, the list of $\sum_{k \ge 0} \gamma^k r_{t+k}$ for every $t$.
#
# :::{dropdown} Hint
# Go from the last token to the first: each return is the reward plus $\gamma$ times the next one.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def returns_to_go(step_rewards: list[float], gamma: float) -> list[float]:
    following, found = 0.0, []
    for reward in reversed(step_rewards):
        following = reward + gamma * following
        found.append(following)
    return found[::-1]


# %% tags=["check"]
assert returns_to_go([0.0, 0.0, 1.0], 1.0) == returns(3, 1.0, 1.0)
assert returns_to_go([0.0, 0.0, 1.0], 0.5) == [0.25, 0.5, 1.0]
assert returns_to_go([1.0, -1.0, 2.0], 1.0) == [2.0, 1.0, 2.0]
assert returns_to_go([], 0.9) == []

# %% [markdown]
# ```{exercise} The score of a softmax
# :label: ex-01-score
#
# *Medium, 15 minutes.* For a softmax over logits, $\nabla \log \pi(y)$ has a closed form. Write
# `softmax_score(logits, y)`, the derivative with respect to the logits, (V,) to (V,), without
# autograd. Every gradient of chapters 08 to 12 is a sum of these.
#
# :::{dropdown} Hint
# $\log \pi(y) = z_y - \log \sum_v e^{z_v}$. The derivative of the second term is a distribution.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def softmax_score(logits: torch.Tensor, y: int) -> torch.Tensor:
    score = -logits.softmax(dim=0)
    score[y] += 1.0
    return score


# %% tags=["check"]
z = torch.randn(7, dtype=torch.float64, requires_grad=True)
(wanted,) = torch.autograd.grad(z.log_softmax(0)[3], z)
assert (softmax_score(z.detach(), 3) - wanted).abs().max() < 1e-12
assert softmax_score(z.detach(), 0).sum().abs() < 1e-12

# %% [markdown]
# ```{exercise} A baseline that cheats
# :label: ex-01-cheating-baseline
#
# *Medium, 15 minutes.* The proof needs a $b$ that does not depend on the answer. Let $b(y) = r(y)$
# for one answer $y^*$, and 0 for all others. Write `bias(answer)`: by how much the expectation of
# $(r(y) - b(y))\,\nabla \log \pi(y)$ then differs from the gradient, a vector of 39 numbers. Use
# `answers`, `probs`, `rewards` and `scores` from above.
#
# :::{dropdown} Hint
# Only one term of the sum over the answers changes.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def bias(answer: tuple[int, ...]) -> torch.Tensor:
    index = answers.index(answer)
    return -probs[index] * rewards[index] * scores[index]


# %% tags=["check"]
b = torch.zeros(27, dtype=torch.float64)
b[answers.index((0, 1, 2))] = rewards[answers.index((0, 1, 2))]
cheated = (probs * (rewards - b)) @ scores
assert (cheated - through_the_sum - bias((0, 1, 2))).abs().max() < 1e-12
assert bias((0, 1, 2)).abs().max() > 1e-3

# %% [markdown]
# ## Next
#
# {doc}`02_baselines_and_variance` measures how noisy one estimate is, and what a baseline does
# about it.
