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
# # RLHF and the KL penalty
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** run the three stages of RLHF, say where the KL penalty stands in them and
# which of its estimates has which gradient, build PPO from GRPO's parts, and read from a run that
# a reward model is being hacked.
#
# **You need** reward models, {doc}`23_reward_models`, the clipped loss,
# {doc}`11_policy_gradient_loss` and {doc}`20_importance_weighting`, and fine-tuning, {doc}`26_sft`,
# of which a sentence is enough. **Reading** takes 35 minutes, **running** one minute, on a **CPU**.
# ```
#
# *Reinforcement learning from human feedback* is three stages {cite}`ouyang2022instructgpt`. The
# policy imitates written answers (SFT). People choose between two of its answers, and a reward
# model learns their choices (RM). The policy is trained by RL on the reward model's score, and held
# near the policy that it started from by a KL penalty.
#
# Here all three are run with the checker in the place of the people. That is for the sake of
# observation: the training sees the reward model only, and the checker says what the answers are
# worth while the score rises.

# %%
import inspect
import math
import re

import matplotlib.pyplot as plt
import pandas as pd
import sympy as sp
import torch
from IPython.display import HTML
from torch import Tensor

from gsmrl_helpers import load_problems
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.loop import Trainer, update_policy
from gsmrl_helpers.losses import (
    clipped_loss,
    compute_policy_gradient_loss,
    kl_estimate,
)
from gsmrl_helpers.model_shape import model_shape
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.recorded_rollouts import read_answers
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_plots import plot_curves
from gsmrl_helpers.results import binned, final_values
from gsmrl_helpers.tables import as_html
from gsmrl_helpers.verdicts import compare, paired_differences

use_style()

# %% tags=["parameters"]
profile = "pocket"

# %% [markdown]
# ## The objective
#
# $$
# J(\pi) = \mathbb{E}_{y \sim \pi}\big[r(y)\big]
#   - \beta\, \mathrm{KL}(\pi \,\|\, \pi_\text{ref}),
# \qquad
# \mathrm{KL}(\pi \,\|\, \pi_\text{ref})
#   = \mathbb{E}_{y \sim \pi}\Big[\log\frac{\pi(y)}{\pi_\text{ref}(y)}\Big].
# $$
#
# $r$ is the reward model's score and $\pi_\text{ref}$ the policy after SFT, frozen. Both terms are
# means over the policy's own answers, so they are one mean: that of
# $r(y) - \beta \log(\pi(y)/\pi_\text{ref}(y))$. And the logarithm of a whole answer is a sum over
# its tokens. The penalty can be handed out token by token, *as a reward*.
#
# Take an answer of three tokens whose log-ratios are .2, −.1 and .5. The reward model gives it 1,
# and $\beta = .1$. Then the tokens earn −.02, .01 and 1 − .05, together .94.


# %% tags=["definition"]
from gsmrl_helpers.losses import check_shapes
from gsmrl_helpers.options import require_number


def token_rewards(
    final_rewards: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    kl_coef: float,
) -> Tensor:
    """What each token earns: −β log(π/π_ref), and at the last the reward."""
    require_number("kl_coef", kl_coef, 0)
    check_shapes(log_probs, ref_log_probs=ref_log_probs, mask=mask)
    if final_rewards.shape != log_probs.shape[:1]:
        raise ValueError(
            f"final_rewards {tuple(final_rewards.shape)} must be one for each of the "
            f"{len(log_probs)} rows"
        )
    penalties = (-kl_coef * (log_probs - ref_log_probs)).masked_fill(
        ~mask, 0.0
    )
    is_last = mask & (mask.flip(1).cumsum(dim=1).flip(1) == 1)
    return (penalties + is_last * final_rewards[:, None]).detach()


# %% tags=["check"]
log_ratios = torch.tensor([[0.0, 0.2, -0.1, 0.5, 0.0]])
mask = torch.tensor([[False, True, True, True, False]])
earned = token_rewards(
    torch.tensor([1.0]), log_ratios, torch.zeros(1, 5), mask, 0.1
)
assert torch.allclose(earned, torch.tensor([[0.0, -0.02, 0.01, 0.95, 0.0]]))
assert abs(earned.sum().item() - 0.94) < 1e-6

# %% [markdown]
# ## Three estimates, and their gradients
#
# GRPO puts the penalty elsewhere: into the loss, with an estimate of the KL at each token. Three
# are in use {cite}`schulman2020kl`. With $x = \log \pi_\text{ref} - \log \pi$ of the sampled token:
#
# $$k_1 = -x, \qquad k_2 = x^2/2, \qquad k_3 = e^x - 1 - x.$$
#
# A token that has the probability .5 under the policy and .25 under the reference:

# %% tags=["check", "claim:W36a", "claim:W36b", "claim:W36c"]
p, ref = torch.tensor(0.5).log().double(), torch.tensor(0.25).log().double()
expected = {"k1": 0.6931, "k2": 0.2402, "k3": 0.1931}
for kind, value in expected.items():
    assert abs(kl_estimate(p, ref, kind).item() - value) < 0.00005, kind

# %% [markdown]
# Three numbers for one token are no contradiction, since an estimate is right on average. Take all
# tokens of a small vocabulary and the averages can be compared. $k_1$ and $k_3$ come out at the
# divergence, $k_2$ a little above it.

# %%
logits = torch.tensor([1.0, 0.3, -0.4, -1.2], dtype=torch.float64)
reference = torch.tensor([0.15, 0.25, 0.25, 0.35]).double().log()


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q), exactly."""
    return (log_p.exp() * (log_p - log_q)).sum()


log_policy = logits.log_softmax(dim=0)
exact = divergence(log_policy, reference).item()
means = {
    kind: (log_policy.exp() @ kl_estimate(log_policy, reference, kind)).item()
    for kind in ("k1", "k2", "k3")
}
pd.Series({"KL(π ‖ π_ref)": exact, **means}).round(4).to_frame("mean")

# %% tags=["check"]
assert abs(means["k1"] - exact) < 1e-12 and abs(means["k3"] - exact) < 1e-12
assert abs(means["k2"] - exact) > 0.04

# %% [markdown]
# A loss does nothing with its value, though. It acts through its gradient, and there the three
# differ in another way. The sampled tokens are constants, so what an optimizer follows is the mean
# of $\nabla k$ over tokens drawn from $\pi$, not the gradient of the mean.


# %%
def mean_gradient(kind: str) -> Tensor:
    """The gradient that a penalty in the loss has on average, (V,)."""
    parameters = logits.clone().requires_grad_()
    log_p = parameters.log_softmax(dim=0)
    chances = log_p.detach().exp()
    loss = (chances * kl_estimate(log_p, reference, kind)).sum()
    return torch.autograd.grad(loss, parameters)[0]


def gradient_of(of_policy: object) -> Tensor:
    """The gradient of an exact divergence in the logits, (V,)."""
    parameters = logits.clone().requires_grad_()
    return torch.autograd.grad(
        of_policy(parameters.log_softmax(dim=0)), parameters
    )[0]


reverse = gradient_of(lambda log_p: divergence(log_p, reference))
forward = gradient_of(lambda log_p: divergence(reference, log_p))
gradients = {kind: mean_gradient(kind) for kind in means}
rows = {**gradients, "∇KL(π ‖ π_ref)": reverse, "∇KL(π_ref ‖ π)": forward}
(
    pd.DataFrame({name: row.numpy() for name, row in rows.items()}).T.round(4)
    + 0.0
)

# %% tags=["check", "claim:W36d"]
expected_zero = torch.zeros(4, dtype=torch.float64)
assert torch.allclose(gradients["k1"], expected_zero, atol=1e-12)
assert torch.allclose(gradients["k2"], reverse, atol=1e-12)
assert torch.allclose(gradients["k3"], forward, atol=1e-12)
assert not torch.allclose(reverse, forward, atol=0.01)

# %% [markdown]
# - $k_1$, unbiased as a value, has no gradient at all on average: only noise. (That it does not
#   even contain the reference is shown in {doc}`20_importance_weighting`.)
# - $k_2$, biased as a value, has exactly the gradient of $\mathrm{KL}(\pi \,\|\, \pi_\text{ref})$.
# - $k_3$, unbiased and never negative, follows the gradient of the *other* divergence,
#   $\mathrm{KL}(\pi_\text{ref} \,\|\, \pi)$. Where the two policies are close that is nearly the
#   same.
#
# The three lines of the proof are sympy's: differentiate in $\log\pi$, take the mean.

# %% tags=["check"]
x = sp.symbols(
    "x", real=True
)  # log π_ref − log π, so that d x / d log π = −1
weights = {
    name: sp.simplify(-sp.diff(k, x))
    for name, k in {"k1": -x, "k2": x**2 / 2, "k3": sp.exp(x) - 1 - x}.items()
}
assert weights == {"k1": 1, "k2": -x, "k3": 1 - sp.exp(x)}

# %% [markdown]
# The weight stands before $\nabla\log\pi$. A weight of 1 averages to nothing, since
# $\mathbb{E}_\pi[\nabla\log\pi] = 0$. The weight $-x = \log(\pi/\pi_\text{ref})$ is the log-ratio
# itself, and makes the gradient of the reverse divergence. And
# $\mathbb{E}_\pi[(1 - \pi_\text{ref}/\pi)\nabla\log\pi] = -\mathbb{E}_\text{ref}[\nabla\log\pi]$.
#
# As a *reward*, $k_1$ is right: there it is multiplied with $\nabla\log\pi$ by the policy gradient,
# which gives it the weight that $k_2$ has as a loss.

# %% tags=["check"]
parameters = logits.clone().requires_grad_()
log_p = parameters.log_softmax(dim=0)
chances, penalty = log_p.detach().exp(), (log_p - reference).detach()
surrogate = (chances * penalty * log_p).sum()
as_reward = torch.autograd.grad(surrogate, parameters)[0]
assert torch.allclose(as_reward, reverse, atol=1e-12)

# %% [markdown]
# ## A value at every token
#
# GRPO needs eight answers to a problem to know what one of them is worth. PPO
# {cite}`schulman2017ppo` asks a second network, the *value model*: before each token it predicts
# what the answer will earn from there on. The advantage of a token is by how much things went
# better than predicted.
#
# Two ways of saying "went" stand at the ends of a scale. Compare the prediction with what finally
# came out, $\lambda = 1$: right on average, and noisy. Or with the next prediction, $\lambda = 0$:
# quiet, and wrong where predictions are. *Generalized advantage estimation* {cite}`schulman2016gae`
# mixes them:
#
# $$A_t = \sum_{k \ge 0} (\gamma\lambda)^k \delta_{t+k}, \qquad
# \delta_t = r_t + \gamma V_{t+1} - V_t.$$


# %% tags=["definition"]
def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Advantages (B, T), and the returns that the values should be."""
    check_shapes(rewards, values=values, mask=mask)
    for name, number in (("gamma", gamma), ("lam", lam)):
        require_number(name, number, 0)
        if number > 1:
            raise ValueError(
                f"{name}={number!r} must be a number from 0 to 1"
            )
    rewards, values = (
        x.detach().masked_fill(~mask, 0.0) for x in (rewards, values)
    )
    later, next_value = (
        torch.zeros_like(rewards[:, 0]),
        torch.zeros_like(rewards[:, 0]),
    )
    advantages = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + gamma * next_value - values[:, t]
        later = torch.where(mask[:, t], surprise + gamma * lam * later, 0.0)
        advantages[:, t], next_value = later, values[:, t]
    return advantages, advantages + values


# %% [markdown]
# Three tokens, of which the last earns 1, and a value model that predicts .5 everywhere. Nothing
# surprises it before the end, where .5 more than predicted comes in. With $\lambda = 1$ all three
# tokens get that .5; with 0 the last one alone; with ½ it is halved at each step back.

# %% tags=["check"]
rewards = torch.tensor([[0.0, 0.0, 1.0]])
values, all_three = torch.full((1, 3), 0.5), torch.ones(1, 3).bool()
for lam, wanted in {
    1.0: [0.5, 0.5, 0.5],
    0.0: [0.0, 0.0, 0.5],
    0.5: [0.125, 0.25, 0.5],
}.items():
    found, _ = generalized_advantages(rewards, values, all_three, lam=lam)
    assert found.tolist() == [wanted]

# %% [markdown]
# The values are trained on the squared distance from the returns, and clipped like the ratio, so
# that one batch can't move them far.


# %% tags=["definition"]
def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    cliprange: float,
) -> Tensor:
    """Half the squared error, the larger one of the value and its clip."""
    require_number("cliprange", cliprange, 0)
    check_shapes(values, old_values=old_values, returns=returns, mask=mask)
    clipped = old_values + (values - old_values).clamp(-cliprange, cliprange)
    errors = torch.maximum(
        (values - returns).square(), (clipped - returns).square()
    )
    return errors[mask].mean() / 2


# %% tags=["check"]
one, here = torch.ones(1, 1), torch.ones(1, 1).bool()
for moved, error, slope in ((0.1, 0.405, -0.9), (0.5, 0.32, 0.0)):
    value = torch.full((1, 1), moved, requires_grad=True)
    loss = value_loss(value, 0 * one, one, here, cliprange=0.2)
    loss.backward()
    assert abs(loss.item() - error) < 1e-6
    assert abs(value.grad.item() - slope) < 1e-6

# %% [markdown]
# ## PPO against GRPO: one surrogate
#
# A favourite question of interviews, and a short answer. Both maximise the same expression,
#
# $$\min\big(\rho_t A_t,\ \mathrm{clip}(\rho_t, 1-\epsilon, 1+\epsilon) A_t\big), \qquad
# \rho_t = \frac{\pi_\theta(y_t)}{\pi_\text{old}(y_t)}.$$
#
# They differ in $A_t$. GRPO has the rewards of a group, and subtracts their mean and divides by
# their standard deviation: one number for all tokens of an answer, no second network. PPO has a
# value model and an advantage for each token. Give PPO a value model that always predicts the
# group's mean, with $\lambda = 1$ and no KL, and out comes GRPO without its division.

# %% tags=["check"]
generator = torch.Generator().manual_seed(24)
scores = torch.randn(8, generator=generator).double()
answers = torch.ones(8, 5).bool()
answers[3, 3:] = answers[6, 2:] = False
nothing = torch.zeros(8, 5).double()
group_mean = scores.mean().expand(8, 5)
at_tokens = token_rewards(scores, nothing, nothing, answers, 0.0)
by_ppo, _ = generalized_advantages(at_tokens, group_mean, answers, lam=1.0)
by_grpo, _ = compute_group_normalized_rewards(
    scores, group_size=8, advantage_normalizer="none"
)
assert torch.allclose(by_ppo, by_grpo[:, None] * answers)

# %% tags=["check"]
old = torch.full((8, 5), -2.0).double()
new = old + 0.4 * torch.randn(8, 5, generator=generator).double()
from_ppo, _ = clipped_loss(by_ppo, (new - old).exp(), 0.2)
from_grpo, _ = compute_policy_gradient_loss(by_grpo, new, "grpo", old, 0.2)
assert torch.allclose(from_ppo[answers], from_grpo[answers])

# %% [markdown]
# What is left are the surroundings, and in three minutes one names these: where the KL penalty
# stands (in PPO's rewards, in GRPO's loss), how tokens are averaged, and the price. PPO keeps four
# models.
#
# ## Four models in memory
#
# A model that is trained with AdamW in float32 takes 16 bytes a parameter: the weight, its
# gradient, and two moments, 4 each. One that only answers takes 4. Activations come on top of it.

# %%
TRAINED, FROZEN = 16, 4
gigabytes = model_shape("allenai/OLMo-2-0425-1B").n_parameters / 1e9
models = {
    "PPO": {
        "policy": TRAINED,
        "value": TRAINED,
        "reference": FROZEN,
        "reward": FROZEN,
    },
    "GRPO on a reward model": {
        "policy": TRAINED,
        "reference": FROZEN,
        "reward": FROZEN,
    },
    "DPO": {"policy": TRAINED, "reference": FROZEN},
    "GRPO on a checker": {"policy": TRAINED},
}
table = pd.DataFrame(models).T.fillna(0)
table["bytes a parameter"] = table.sum(axis=1)
table["GB for OLMo-2-1B"] = (table["bytes a parameter"] * gigabytes).round(1)
HTML(
    as_html(
        table.astype(dict.fromkeys(table.columns[:-1], int))
        .rename_axis("method")
        .reset_index()
    )
)

# %% tags=["check"]
assert table["bytes a parameter"].tolist() == [40, 24, 20, 16]
assert abs(gigabytes - 1.485) < 0.001
assert table.loc["PPO", "GB for OLMo-2-1B"] == 59.4

# %% [markdown]
# Beside them stands the engine that samples. {doc}`29_hardware` counts the rest.
#
# ## The three stages
#
# The first: the pocket policy imitates 192 worked solutions, as in {doc}`26_sft`. What comes out is
# the policy that RL starts from, and its frozen copy is the reference.

# %%
from gsmrl_helpers.rlhf import imitate
from gsmrl_helpers.rlhf_runs import METHODS, rlhf_config

config = rlhf_config("GRPO, KL")
trainer = Trainer.from_config(config)
imitate(trainer)

# %% [markdown]
# The second: it answers problems that it has not imitated, eight times each. The checker chooses
# between pairs of answers, and a reward model learns the choices. Here that is done with 24
# problems, to be quick; the recorded runs below take 128.

# %%
from gsmrl_helpers.reward_model import train_reward_model
from gsmrl_helpers.rlhf import rate_answers

pairs = rate_answers(trainer, n_problems=24)
reward_model, losses = train_reward_model(
    trainer.model, trainer.tokenizer, pairs
)

# %% tags=["check"]
assert 36 < len(pairs) <= 96
assert abs(losses[0] - math.log(2)) < 1e-6  # an untrained head scores all 0

# %% [markdown]
# On pairs from other problems, the four reward models of the recorded runs rank two in three right.
# A coin would rank one in two.

# %%
results = read_recording("rlhf", profile)
ranked = results[results["metric"] == "pairs_ranked_right"]
ranked.pivot(index="variant", columns="seed", values="value").round(2)

# %% tags=["check"]
if profile == "pocket":
    assert ranked["value"].between(0.63, 0.72).all()
    assert (ranked.groupby("seed")["value"].nunique() == 1).all()

# %% [markdown]
# That is much less than in {doc}`23_reward_models`. The untrained policy there answers half of the
# problems out of format, which is easy to see. After SFT nearly all answers are in format, and what
# tells right from wrong is the arithmetic.
#
# The third stage is GRPO's loop, but for one line. The scores take the place of the rewards; the
# checker's grades stay beside them, for us.

# %% tags=["definition"]
from dataclasses import replace

from gsmrl_helpers.reward_model import RewardModel
from gsmrl_helpers.rollouts import Rollouts


def paid_by(reward_model: RewardModel, rollouts: Rollouts) -> Rollouts:
    """The rollouts with the reward model's scores as rewards."""
    texts = [completion.text for completion in rollouts.completions]
    return replace(
        rollouts, rewards=reward_model.score(rollouts.prompts, texts)
    )


# %% tags=["check"]
problems = load_problems(config, "train")[:16]
sampled = trainer.sample(problems, config.group_size, "train", 1)
rollouts = paid_by(reward_model, sampled)
assert torch.equal(rollouts.answer_rewards, sampled.answer_rewards)
assert rollouts.rewards.unique().numel() > 20  # a checker has only two

# %% [markdown]
# How far an answer has gone from the reference is the log-ratio that the objective has. At the
# start of the third stage it is 0, for every answer.


# %% tags=["definition"]
from gsmrl_helpers.loop import score
from gsmrl_helpers.rlhf import response_mask


def nats_from_reference(trainer: Trainer, rollouts: Rollouts) -> Tensor:
    """(B,) log π(y)/π_ref(y) of whole answers."""
    log_probs = score(trainer, trainer.model, rollouts)
    ref_log_probs = score(trainer, trainer.reference, rollouts)
    differences = log_probs - ref_log_probs
    return differences.masked_fill(
        ~response_mask(trainer, rollouts), 0.0
    ).sum(dim=1)


# %% tags=["check"]
assert (nats_from_reference(trainer, rollouts) == 0).all()
metrics = update_policy(trainer, rollouts)
assert (nats_from_reference(trainer, rollouts) != 0).any()

# %% [markdown]
# That was one step of GRPO. Answers that were paid better than their group's mean have become
# likelier than the others:

# %% tags=["check"]
moved = nats_from_reference(trainer, rollouts)
groups = rollouts.rewards.view(-1, config.group_size)
above = (groups > groups.mean(dim=1, keepdim=True)).flatten()
assert moved[above].mean() > moved[~above].mean()

# %% [markdown]
# And one step of PPO on half of the answers. Policy and value model are updated side by side, each
# on its own loss.


# %% tags=["definition"]
from torch import nn

from gsmrl_helpers.losses import bounded_exp
from gsmrl_helpers.ppo import PPOBatch, ValueModel
from gsmrl_helpers.response_scoring import score_responses


def ppo_step(
    policy: nn.Module,
    value_model: ValueModel,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
    batch: PPOBatch,
    cliprange: float,
    max_grad_norm: float,
) -> dict[str, float]:
    """One step of the policy, and one of the value model."""
    mask = batch.response_mask
    scored = score_responses(policy, batch.input_ids, batch.labels, mask)
    log_ratio = (scored["log_probs"] - batch.log_probs).masked_fill(
        ~mask, 0.0
    )
    losses, is_clipped = clipped_loss(
        batch.advantages, bounded_exp(log_ratio), cliprange
    )
    loss = losses[mask].mean()
    values = value_model(batch.input_ids, mask)
    error = value_loss(values, batch.values, batch.returns, mask, cliprange)
    norms = []
    for model, objective, optimizer in zip(
        (policy, value_model), (loss, error), optimizers, strict=True
    ):
        optimizer.zero_grad()
        objective.backward()
        norms.append(
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm).item()
        )
        optimizer.step()
    return {
        "loss": loss.item(),
        "value_loss": error.item(),
        "grad_norm": norms[0],
        "value_grad_norm": norms[1],
        "clip_fraction": is_clipped[mask].float().mean().item(),
    }


# %% tags=["check"]
from gsmrl_helpers.rlhf import PPO

ppo = PPO(trainer)  # an untrained value model, and its optimizer
half = rollouts.select_groups(range(16))
before = ppo.batch(half)
optimizers = trainer.optimizer, ppo.optimizer
made = ppo_step(trainer.model, ppo.value_model, optimizers, before, 0.2, 1.0)
after = ppo.batch(half)
tokens = before.response_mask
assert (before.values == 0).all() and made["clip_fraction"] == 0
missed = [
    (b.values - before.returns)[tokens].square() for b in (before, after)
]
assert missed[1].mean() < missed[0].mean()

# %% [markdown]
# An untrained value model predicts 0 for every answer. After one step its predictions are nearer to
# what came out.
#
# ## The score rises, the answers get worse
#
# The run was recorded with four seeds, each with an SFT policy and a reward model of its own: GRPO
# without the penalty, GRPO with it ($\beta = .3$, in the loss, by $k_3$), and PPO with it
# ($\beta = .1$, as a token reward). All take 25 steps of 256 answers, in two clipped updates each.

# %%
panels = {
    "Reward model's score": ("mean_reward", "score, logits"),
    "Checker's verdict": ("mean_answer_reward", "share right"),
    "Distance from the reference": ("kl", "nats an answer"),
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for ax, (title, (metric, unit)) in zip(axes, panels.items(), strict=True):
    plot_curves(ax, results, metric)
    ax.set(title=title, ylabel=unit)
handles = axes[0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# *Means over the 256 sampled answers of each step; seeds faint, the mean with μ ± 1.96 σ/√n. Left,
# what is trained on: it rises in every run, with the penalty nearly as high as without. Middle,
# what was meant: without the penalty it falls while the score rises. Right, how far each run has
# gone.*

# %% tags=["check"]
in_fives = binned(results, 5)
if profile == "pocket":
    means = in_fives.groupby(["variant", "metric", "step"])["value"].mean()
    free, held = means["GRPO, no KL"], means["GRPO, KL"]
    assert free["mean_reward"].is_monotonic_increasing
    assert free["mean_answer_reward"].is_monotonic_decreasing
    assert free["mean_answer_reward"].iloc[-1] < 0.25
    assert held["mean_reward"].iloc[-1] > 0.85 * free["mean_reward"].iloc[-1]
    assert free["kl"].iloc[-1] > 5 > 1.2 > held["kl"].iloc[-1]

# %% [markdown]
# At the end each policy answered the same 256 validation problems. Beside it, the SFT policy that
# it started from:

# %%
answered = final_values(results, "curve_mean_answer_reward")
start = results.query(
    "metric == 'curve_mean_answer_reward' and step == 0 "
    "and variant == 'GRPO, no KL'"
).assign(variant="SFT")
both = pd.concat([start, answered], ignore_index=True)
for method in METHODS:
    print(compare(both, method, "SFT"))

# %% tags=["check"]
verdicts = {name: compare(both, name, "SFT").word for name in METHODS}
scores_at_end = final_values(results, "curve_mean_reward")
scores_at_start = results.query("metric == 'curve_mean_reward' and step == 0")
gains = (
    scores_at_end.set_index(["variant", "seed"])["value"]
    - scores_at_start.set_index(["variant", "seed"])["value"]
)
if profile == "pocket":
    assert gains.size == 12 and (gains > 0.2).all()  # the score, in every run
    assert free["mean_format_reward"].iloc[-1] > 0.97
    assert (
        1
        < free["response_length"].iloc[-1] / free["response_length"].iloc[0]
        < 1.1
    )
    assert verdicts["GRPO, no KL"] == "worse"

# %% [markdown]
# Nothing in the columns that the training sees says that anything is wrong. The score rises, the
# answers are in format and about as long as before. That is what *hacking a reward* looks like from
# within: one has to look at something that is not paid for.
#
# ## What it does instead
#
# What do the policies do for the score? The answers were kept. An answer's calculations can be
# checked one by one.

# %%
CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
RESULT = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else None,
}


def calculations(text: str) -> list[bool]:
    """Of each calculation in a text, whether it comes out."""
    return [
        RESULT[sign](int(a), int(b)) == int(c)
        for a, sign, b, c in CALCULATION.findall(text)
    ]


# %% tags=["check"]
assert calculations(" First 4*4=22. Then 22-2=20. </think>") == [False, True]
assert calculations(" That is 8/0=8, or so.") == [False]

# %%
kept = read_answers("rlhf", profile)
done = kept["response"].map(calculations)
kept = kept.assign(n=done.map(len), n_right=done.map(sum))
name = kept["variant"].where(kept["step"] > 0, "SFT")
habits = kept.groupby(name).agg(
    score=("reward", "mean"),
    in_format=("format_reward", "mean"),
    right=("answer_reward", "mean"),
    calculations=("n", "mean"),
    come_out=("n_right", "sum"),
)
habits["come_out"] /= kept.groupby(name)["n"].sum()
habits.loc[["SFT", *METHODS]].round(2)

# %% tags=["check"]
if profile == "pocket":
    hacked, before_rl = habits.loc["GRPO, no KL"], habits.loc["SFT"]
    assert (habits.loc[list(METHODS), "calculations"] > 1.4).all()
    assert before_rl["calculations"] < 1.35
    with_penalty = habits.loc[["GRPO, KL", "PPO, KL"], "come_out"]
    assert (with_penalty > before_rl["come_out"] - 0.05).all()
    assert hacked["come_out"] < before_rl["come_out"] - 0.15
    assert hacked["in_format"] > 0.95

# %% [markdown]
# All three methods write more calculations than the SFT policy did. What is peculiar to the one
# without a penalty is that few of them come out, while its answers are in format nearly always. The
# best-paid answers of one run:

# %%
from gsmrl_helpers.recorded_rollouts import best_paid

last = kept.query("variant == 'GRPO, no KL' and step > 0 and seed == 1")
shown = best_paid(last, 8).assign(score=lambda rows: rows["reward"].round(2))
columns = ["question", "gold", "response", "score"]
HTML(as_html(shown[columns].astype(str)))

# %% [markdown]
# The calculations are there, and their results are round. It is this run's own habit: in others of
# the four, other numbers are favoured.

# %%
ended = kept[(kept["variant"] == "GRPO, no KL") & (kept["step"] > 0)]
number = ended["response"].str.extract(r"<answer> (\d+) ", expand=False)
round_share = number.str.endswith("0").groupby(ended["seed"]).mean()
round_share.rename("answers that end in 0").round(2).to_frame().T

# %% tags=["check"]
if profile == "pocket":
    assert (shown["answer_reward"] == 0).sum() >= 4
    assert round_share.max() > 0.5 > 0.3 > round_share.min()

# %% [markdown]
# Chapter 23 found by editing answers that such a reward model pays for a calculation in format, and
# hardly for its result. Here a policy found the same, by trying. The reward model ranked two of
# three held-out pairs right, and on the answers that the policy gives *now* that is not known any
# more: it was trained on answers of the SFT policy, and every nat of distance takes the policy to
# where it has seen less. The pattern, score and quality rising together and then parting along the
# distance, is what Gao et al. {cite}`gao2022overoptimization` measured at large scale.

# %% tags=["hide-input"]
wide = (
    in_fives[in_fives["metric"].isin(["kl", "mean_answer_reward"])]
    .pivot_table(
        index=["variant", "seed", "step"], columns="metric", values="value"
    )
    .reset_index()
)
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for method in METHODS:
    style = line(method)
    rows = wide[wide["variant"] == method]
    for _, seed in rows.groupby("seed"):
        ax.plot(
            seed["kl"],
            seed["mean_answer_reward"],
            alpha=0.35,
            lw=0.8,
            color=style["color"],
        )
    mean = rows.groupby("step")[["kl", "mean_answer_reward"]].mean()
    ax.plot(
        mean["kl"],
        mean["mean_answer_reward"],
        marker="o",
        ms=4,
        label=f"{method} (n = {rows['seed'].nunique()} seeds)",
        **style,
    )
ax.set(
    xlabel="distance from the reference, nats an answer", ylabel="share right"
)
ax.legend()
plt.show()

# %% [markdown]
# *The checker's verdict against the distance, means over five steps. The runs with the penalty stay
# within about a nat of the reference, most of them near its share of right answers or above it.
# Those without go on, and the farther they are, the fewer answers are right.*
#
# ## What the penalty buys, and what it costs
#
# The penalty says nothing about right and wrong. It holds the policy where the reward model was
# trained, so that the score there still means something. On the validation problems at the end:

# %%
for method in ("GRPO, KL", "PPO, KL"):
    print(compare(answered, method, "GRPO, no KL"))
print(compare(answered, "PPO, KL", "GRPO, KL"))

# %% tags=["check"]
if profile == "pocket":
    cured = compare(answered, "GRPO, KL", "GRPO, no KL")
    assert verdicts["GRPO, KL"] == "can't tell"
    assert verdicts["PPO, KL"] == "better"
    assert cured.word == "better"
    distance = (
        final_values(results, "curve_kl").groupby("variant")["value"].mean()
    )
    assert distance["GRPO, KL"] < 0.3 * distance["GRPO, no KL"]
    assert abs(distance["GRPO, KL"] - 0.9) < 0.05
    assert abs(distance["PPO, KL"] - 0.3) < 0.05
    beside_sft = compare(both, "GRPO, KL", "SFT")
    lost = paired_differences(both, "GRPO, KL", "SFT")
    assert abs(beside_sft.difference) < 0.01 and -0.1 < beside_sft.low < -0.09
    assert (lost < -0.05).sum() == 1 and abs(lost.min() + 0.09) < 0.005
    assert inspect.signature(PPO).parameters["lam"].default == 0.95

# %% [markdown]
# GRPO's policies with the penalty can't be told from the SFT policy. That is no proof that nothing
# was lost: on average they end where it does, one seed ended nine points lower, and four seeds
# don't exclude as much. PPO's are better than the SFT policy.
#
# **PPO against GRPO**, on the same reward models and with as many answers: the last line above is
# the comparison that was run, and what differs is more than $A_t$. The recorded PPO has a value
# model that learns at a rate of its own, $\lambda = .95$, and advantages that are brought to mean 0
# and deviation 1 over the batch. All runs take two updates a batch at twice the profile's rate,
# with one $\beta$ each, chosen after trials of one seed. And PPO's end nearer to the reference, at
# .3 nats where GRPO's have .9, so that part of a difference may be one of distance.
#
# The two $\beta$ are not the same dial. In GRPO the rewards were divided by the group's standard
# deviation before the penalty was added; a $\beta$ in the loss is worth $\beta$ times that
# deviation in units of the score.

# %% tags=["check"]
group_scores, kl = torch.tensor([[0.1, 0.4, 0.5, 0.8], [2.0, 0.0, 1.0, 3.0]])
centred, deviation = group_scores - group_scores.mean(), group_scores.std()
in_the_loss = centred / deviation - 0.3 * kl
in_the_score = (centred - 0.3 * deviation * kl) / deviation
assert torch.allclose(in_the_loss, in_the_score)

# %% [markdown]
# What the penalty costs is a third model in memory, one more pass over each batch, and the way: it
# pulls back what is good and far, too. So with a checker for a reward it is often left out
# ({doc}`20_importance_weighting`), since a checker can't be talked round by what a policy writes,
# though its holes can be found. It comes back where the reward is a trained model, where answers
# decay into mixed languages or loops, and where many epochs go over few problems.
#
# ## Which method when
#
# | | PPO | GRPO | DPO | RLAIF |
# |---|---|---|---|---|
# | needs | a reward for any answer | the same | pairs | a model that judges |
# | samples | yes | yes, a group a prompt | no | as PPO, GRPO or DPO |
# | models | four | one to three | two | and the judge |
# | advantage | of a token, by a value | of an answer, by its group | none | as these |
# | KL | in the rewards | in the loss, or none | in the derivation | as these |
# | choose it for | long, uneven answers | a checker | pairs at hand, little memory | few people |
#
# GRPO's one to three models are the policy, a reward model if there is no checker, and a reference
# if there is a penalty.
#
# RLAIF {cite}`lee2023rlaif` is no other algorithm. The pairs are chosen by a model, and what that
# model prefers is what will be learnt. (The pairs of this chapter were chosen in the same way, by a
# program in the model's place.)
#
# *Test-time compute* spends where all of these save. A policy that answers eight times and takes
# the majority, or a longer thought, gains without training, at every question again. Training moves
# what one answer achieves. `pass@8` in {doc}`14_on_policy_results` is a bound on what eight would:
# it asks whether any is right, and a majority does not know which.
#
# ## Take away
#
# - RLHF is SFT, a reward model of pairs, and RL on its score minus $\beta$ times the KL divergence
#   from the SFT policy. The divergence of an answer is a sum over its tokens, and so can be a token
#   reward.
# - $k_1$ belongs into the reward: as a loss it has no gradient on average. As losses, $k_2$ follows
#   $\nabla\mathrm{KL}(\pi\|\pi_\text{ref})$ and $k_3$ that of the other direction.
# - PPO and GRPO maximise one clipped surrogate. PPO's advantage comes from a value model, GRPO's
#   from a group. PPO holds four models, DPO two.
# - A score that rises is no news about what it stands for. Look at something that is not paid for,
#   and read the best-paid answers.
# - The penalty does not correct a reward model. It keeps the policy where the model is still right.
#
# ## Exercises

# %% [markdown]
# ```{exercise} How far is the best of n?
# :label: ex-24-best-of-n
#
# *Medium, 10 minutes.* Instead of training one can draw $n$ answers and keep the best-paid. That is
# a policy as well, and its divergence from the one that it draws from does not depend on the
# scores: $\log n - (n-1)/n$, if there are so many answers that none is drawn twice and no two have
# one score (otherwise it is less). Write `nats_of_best_of(n)`, and say how many answers go as far
# as 2 nats.
#
# :::{dropdown} Hint
# The best of $n$ has rank $u$ (0 lowest, 1 highest) with the density $n u^{n-1}$; the divergence is
# the mean of its logarithm.
# :::
#
# :::{dropdown} Worked answer
# $\int_0^1 n u^{n-1} \log(n u^{n-1})\,du = \log n + (n-1)\int_0^1 n u^{n-1}\log u\,du$, and the
# last integral is $-1/n$. Twenty answers go 2.05 nats far, nineteen 2.00.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def nats_of_best_of(n: int) -> float:
    return math.log(n) - (n - 1) / n


# %% tags=["check"]
for n in (1, 2, 8, 50):
    rank = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    density = n * rank ** (n - 1)
    numerically = (density * density.log().nan_to_num(neginf=0.0)).mean()
    assert abs(nats_of_best_of(n) - numerically.item()) < 1e-4
assert nats_of_best_of(18) < nats_of_best_of(19) < 2 <= nats_of_best_of(20)
assert abs(nats_of_best_of(19) - 2.00) < 0.005
best_of_two = torch.tensor(
    [0.25, 0.75]
).double()  # two answers, the worse one twice
assert nats_of_best_of(2) > (best_of_two * (best_of_two / 0.5).log()).sum()

# %% [markdown]
# ```{exercise} All that is still to come
# :label: ex-24-lambda-one
#
# *Easy, 5 minutes.* Write `advantages_to_the_end(rewards, values)` for (B, T) rewards and values of
# answers that fill their rows: the rewards from a token to the end, minus what was predicted there.
# No loop. Which $\lambda$ is it?
#
# :::{dropdown} Hint
# `cumsum` adds up from the left; `flip(1)` turns a row round.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def advantages_to_the_end(rewards: Tensor, values: Tensor) -> Tensor:
    return rewards.flip(1).cumsum(dim=1).flip(1) - values


# %% tags=["check"]
some, predicted = torch.randn(2, 4, 6, generator=generator).double()
everywhere = torch.ones(4, 6).bool()
by_gae, _ = generalized_advantages(some, predicted, everywhere, lam=1.0)
assert torch.allclose(advantages_to_the_end(some, predicted), by_gae)
by_gae, _ = generalized_advantages(some, predicted, everywhere, lam=0.9)
assert not torch.allclose(advantages_to_the_end(some, predicted), by_gae)

# %% [markdown]
# ```{exercise} What a token does to later ones
# :label: ex-24-later-tokens
#
# *Hard, 20 minutes.* Answers of two tokens, each 0 or 1. `theta` has three logits: of a 1 at first,
# of a 1 after a 0, of a 1 after a 1. The reference is a fair coin at each token. Write
# `exact_kl(theta)`, the divergence of whole answers. The check compares its gradient with that of
# $k_2$ in the loss, summed over tokens. In which of the three logits do they differ, and why?
#
# :::{dropdown} Hint
# Four answers, each with a probability that is a product of two. `answer_log_probs` has them.
# :::
#
# :::{dropdown} Worked answer
# In the first. It decides not only how unlike the reference the first token is, but also which
# second token is met, and so how much divergence is still to come. A penalty in the loss acts on
# each token for itself and does not see that. As a reward, the penalties of later tokens are part
# of what an earlier one brings about, and the gradient is the whole one.
# :::
# ```


# %%
def answer_log_probs(theta: Tensor) -> Tensor:
    """(4, 2): log-probabilities of both tokens of 00, 01, 10 and 11."""
    zero, one = nn.functional.logsigmoid(torch.stack([-theta, theta]))
    first = torch.stack([zero[0], zero[0], one[0], one[0]])
    second = torch.stack([zero[1], one[1], zero[2], one[2]])
    return torch.stack([first, second], dim=1)


# %% tags=["solution", "hide-cell"]
def exact_kl(theta: Tensor) -> Tensor:
    of_answers = answer_log_probs(theta).sum(dim=1)
    return (of_answers.exp() * (of_answers - math.log(0.25))).sum()


# %% tags=["check"]
theta = torch.tensor(
    [0.3, 2.0, -0.1], dtype=torch.float64, requires_grad=True
)
assert (
    abs(exact_kl(torch.zeros(3).double())) < 1e-12
)  # of the reference itself
exact_gradient = torch.autograd.grad(exact_kl(theta), theta)[0]
of_tokens = answer_log_probs(theta)
of_answers = of_tokens.sum(dim=1).detach().exp()
coins = torch.full((4, 2), math.log(0.5)).double()
k2 = kl_estimate(of_tokens, coins, "k2").sum(dim=1)
by_token = torch.autograd.grad((of_answers * k2).sum(), theta)[0]
assert torch.allclose(exact_gradient[1:], by_token[1:])
assert abs(exact_gradient[0] - by_token[0]) > 0.02

# %% [markdown]
# ## Next
#
# {doc}`25_dpo` leaves out the reward model and the sampling: the objective at the top of this
# chapter has a best policy in closed form, and that turns it into one loss on pairs.
