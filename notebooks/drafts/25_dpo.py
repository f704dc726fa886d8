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
# # Direct preference optimization
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** derive the DPO loss from the objective of RLHF, check an implementation by
# three numbers, explain why the answer that people chose can become less likely, and say what DPO
# makes of a budget of samples, beside GRPO.
#
# **You need** {doc}`23_reward_models`, and {doc}`14_on_policy_results` for the comparison.
# **Reading** takes 25 minutes, **running** half a minute, on a **CPU**. (The long runs were
# recorded.)
# ```
#
# A reward model is trained on pairs, and then a policy is trained on the reward model: two stages,
# and a sampling loop in the second. DPO {cite}`rafailov2023dpo` leaves out the reward model and the
# loop. The policy itself is fitted to the pairs, by a loss that looks like that of a classifier.
# This chapter derives the loss, checks it, and then watches what it does to real answers, which is
# not always what its name promises.

# %% tags=["parameters"]
profile = "pocket"

# %%
import math

import numpy as np
import pandas as pd
import sympy as sp
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from gsmrl_helpers.dpo_runs import (
    reference_log_probs,
    sample_pairs,
)
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.preferences import bradley_terry_loss
from gsmrl_helpers.symbolic import show

use_style()

# %% [markdown]
# ## The best policy has a closed form
#
# The objective of RLHF pays for reward and charges for distance from a reference:
#
# $$ \max_\pi \; \mathbb{E}_{y \sim \pi}[r(y)] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_\text{ref}) . $$
#
# For one prompt with finitely many answers it is a problem of calculus. Three answers, with a
# Lagrange multiplier $\lambda$ for the probabilities' sum:

# %%
beta, lam = sp.symbols("beta lambda", positive=True)
r = sp.symbols("r_1:4", real=True)
p = sp.symbols("p_1:4", positive=True)
ref = sp.symbols("q_1:4", positive=True)
objective = sum(
    p[i] * r[i] - beta * p[i] * sp.log(p[i] / ref[i]) for i in range(3)
)
slope = sp.diff(objective - lam * (sum(p) - 1), p[0])
best = sp.solve(slope, p[0])[0]
show("p_1", sp.simplify(best))

# %% [markdown]
# The factor with $\lambda$ is the same for all answers, so it is whatever makes the sum 1:
#
# $$ \pi^*(y) = \frac{1}{Z}\, \pi_\text{ref}(y)\, e^{r(y)/\beta}, \qquad Z = \sum_y
# \pi_\text{ref}(y)\, e^{r(y)/\beta} . $$
#
# A small $\beta$ goes all the way to the best-paid answer, a large one stays at the reference.

# %% tags=["check"]
assert sp.simplify(best.subs(r[0], 0) * sp.exp(r[0] / beta) - best) == 0
rewards = np.array([1.0, 0.0, 0.3])
q = np.array([0.1, 0.7, 0.2])


def tilted(beta: float) -> np.ndarray:
    weights = q * np.exp(rewards / beta)
    return weights / weights.sum()


def minus_objective(logits: np.ndarray, beta: float) -> float:
    probs = np.exp(logits - np.logaddexp.reduce(logits))
    return -(probs @ rewards - beta * probs @ np.log(probs / q))


for number in (0.1, 0.5, 3.0):
    found = minimize(minus_objective, np.zeros(3), number, tol=1e-12).x
    found = np.exp(found - np.logaddexp.reduce(found))
    assert np.abs(found - tilted(number)).max() < 1e-4
assert tilted(0.01).argmax() == 0 and np.abs(tilted(100) - q).max() < 0.01

# %% [markdown]
# ## Read backwards
#
# Solved for the reward, the same equation says that every policy is the best one for *some* reward:
#
# $$ r(y) = \beta \log\frac{\pi(y)}{\pi_\text{ref}(y)} + \beta \log Z . $$
#
# $Z$ is a sum over all answers that nobody can compute. But Bradley and Terry's model
# ({doc}`23_reward_models`) looks at *differences* of rewards to one prompt, and there it drops out:

# %%
pi_w, pi_l, ref_w, ref_l, Z = sp.symbols(
    "pi_w pi_l pi_ref_w pi_ref_l Z", positive=True
)


def implied(policy: sp.Symbol, reference: sp.Symbol) -> sp.Expr:
    return beta * sp.log(policy / reference) + beta * sp.log(Z)


margin = sp.expand_log(implied(pi_w, ref_w) - implied(pi_l, ref_l))
show("r_w - r_l", sp.simplify(margin))

# %% tags=["check"]
assert Z not in margin.free_symbols
by_hand = beta * (sp.log(pi_w / ref_w) - sp.log(pi_l / ref_l))
assert sp.simplify(sp.expand_log(margin - by_hand)) == 0

# %% [markdown]
# Put into the loss of a reward model, $-\log\sigma(r_w - r_l)$, this is all of DPO. No reward model
# is left in it, and no sampling: four log-probabilities of whole answers for each pair.


# %% tags=["definition"]
from gsmrl_helpers.options import require_number


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    beta: float,
) -> Tensor:
    """−log σ(β [log π/π_ref (chosen) − log π/π_ref (rejected)])."""
    require_number("beta", beta, 0, above=True)
    given = (policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    if (
        len({tuple(log_probs.shape) for log_probs in given}) > 1
        or policy_chosen.dim() != 1
    ):
        raise ValueError(
            f"log-probabilities of shapes {[tuple(log_probs.shape) for log_probs in given]}: give "
            "four of (B,), one sum for each response"
        )
    margin = (policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)
    return -logsigmoid(beta * margin)


# %% [markdown]
# It is the Bradley–Terry loss, with the policy's log-ratios times $\beta$ in place of scores.

# %% tags=["check"]
log_probs = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
scores = 0.3 * (log_probs[:2] - log_probs[2:])
as_scores = bradley_terry_loss(*scores)
assert torch.allclose(dpo_loss(*log_probs, beta=0.3).mean(), as_scores)

# %% [markdown]
# ## Three numbers to check it by
#
# **Log 2.** Before the first step the policy is the reference. Both log-ratios are 0, and the loss
# is $-\log\sigma(0) = \log 2$, whatever the pair and whatever $\beta$. If yours is not, stop: the
# reference is another model, or is scored in another way.

# %% tags=["check", "claim:W26"]
expected = 0.6931
generator = torch.Generator().manual_seed(0)
chosen, rejected = 40 * torch.randn(2, 300, generator=generator).double()
for number in (0.01, 0.1, 5.0):
    losses = dpo_loss(chosen, rejected, chosen, rejected, number)
    assert (losses - expected).abs().max() < 0.00005

# %% [markdown]
# **.474.** With $\beta = .1$, let the chosen answer gain 2 nats on the reference and the rejected
# one lose 3. The margin is $.1 \cdot (2 + 3) = .5$, and $-\log\sigma(.5) = .474$.


# %% tags=["check", "claim:W27a"]
def loss_at(chosen: float, rejected: float, beta: float = 0.1) -> float:
    """The loss of one pair, from its two log-ratios."""
    ratios = torch.tensor([chosen, rejected], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    return dpo_loss(ratios[:1], ratios[1:], zero, zero, beta).item()


expected = 0.474
assert abs(loss_at(2, -3) - expected) < 0.0005

# %% [markdown]
# **.474 again.** Now *both* lose: the chosen answer 1 nat, the rejected one 6. The loss sees only
# the difference, and is the same.

# %% tags=["check", "claim:W27b"]
expected = 0.474
assert abs(loss_at(-1, -6) - expected) < 0.0005
assert math.isclose(loss_at(-1, -6), loss_at(2, -3))
rng = np.random.default_rng(0)
for chosen, rejected, shift in rng.normal(scale=5, size=(200, 3)):
    moved = loss_at(chosen + shift, rejected + shift)
    assert math.isclose(moved, loss_at(chosen, rejected), rel_tol=1e-9)

# %% [markdown]
# So the loss does not ask that the chosen answer becomes more likely. It asks that the gap grows.
#
# ## Far out
#
# Log-ratios of answers of hundreds of tokens can be hundreds of nats apart. Written as
# `-torch.log(torch.sigmoid(x))` the loss breaks there: $\sigma(-1000)$ is 0 in floating point, its
# logarithm $-\infty$, and the gradient NaN. `logsigmoid` computes the same for any $x$.

# %%
far = torch.tensor([-1000.0, 0.0, 1000.0], requires_grad=True)
naive = -torch.log(torch.sigmoid(far))
print("naive:", naive.tolist())
print("logsigmoid:", (-logsigmoid(far)).tolist())

# %% tags=["check"]
naive_gradient = torch.autograd.grad(naive.sum(), far)[0]
gradient = torch.autograd.grad(-logsigmoid(far).sum(), far)[0]
assert naive[0].isinf() and naive_gradient.isnan().any()
assert torch.allclose(gradient, torch.tensor([-1.0, -0.5, 0.0]))
assert math.isclose(loss_at(-1000, 1000, beta=0.5), 1000, rel_tol=1e-9)
assert loss_at(1000, -1000, beta=0.5) == 0.0

# %% [markdown]
# ## What the gradient does
#
# The derivative of $-\log\sigma(x)$ is $-\sigma(-x)$. With $x$ the margin, the gradient of a pair
# is
#
# $$ \nabla \mathcal{L} = -\beta\, \sigma(-x)\, \big( \nabla\log\pi(y_w) - \nabla\log\pi(y_l)
# \big) . $$
#
# Up with the chosen answer, down with the rejected one, with a weight that is half of $\beta$ at
# the start and goes to 0 for a pair that is settled. Does a larger $\beta$ stop earlier? The
# log-ratios at which a pair's weight has come down to a tenth of $\beta$:

# %%
x = sp.symbols("x", real=True)
derivative = sp.simplify(sp.diff(sp.log(1 + sp.exp(-x)), x))
settled = math.log(9)  # σ(−x) = .1
pd.DataFrame(
    {
        "difference of log-ratios, nats": {
            b: settled / b for b in (0.1, 0.5, 1)
        }
    }
).rename_axis("β").round(1)

# %% tags=["check"]
assert sp.simplify(derivative + 1 / (1 + sp.exp(x))) == 0
assert math.isclose(1 / (1 + math.exp(settled)), 0.1)
chosen = torch.tensor([3.0], requires_grad=True, dtype=torch.float64)
zero = torch.zeros(1, dtype=torch.float64)
(slope,) = torch.autograd.grad(
    dpo_loss(chosen, zero, zero, zero, 0.1), chosen
)
assert math.isclose(slope.item(), -0.1 / (1 + math.exp(0.3)))

# %% [markdown]
# With $\beta = .1$ a pair pulls until its answers are 22 nats apart, a factor of three billion,
# with $\beta = 1$ until 2.2. That is what "$\beta$ is the strength of the KL penalty" means in DPO.
# No divergence is computed anywhere; there are only pairs that stop pulling.
#
# ## Pairs, from a verifier
#
# DPO was made for pairs that people have compared. The pocket world has a verifier, so its pairs
# are made by it: of the answers that the untrained policy gives to a problem, a right one is chosen
# over a wrong one, one pair for each group that has both. `sample_pairs` takes the problems that
# GRPO meets in its first steps, with as many answers. Here those of two steps:


# %% tags=["nbval-ignore-output"]
config = experiment_config("on-policy", "pocket")
trainer = Trainer.from_config(config)
pairs = sample_pairs(trainer, n_steps=2)
print(f"{len(pairs)} pairs of {2 * config.prompts_per_step} groups")
for pair in pairs[:3]:
    print(f"chosen:  {pair.chosen!r}\nrejected:{pair.rejected!r}\n")

# %% tags=["check"]
assert 15 < len(pairs) < 55
assert all(pair.chosen != pair.rejected for pair in pairs)
reward_fn = config.prompt_object().reward_fn
assert all("</answer>" in pair.chosen for pair in pairs)

# %% [markdown]
# Most groups are all wrong and give no pair, as they would give no gradient in GRPO. Many rejected
# answers are wrong in two ways at once, in their number and in their format. The loss can't know
# which of the two the verifier meant.
#
# ## A step
#
# Everything that a step needs is there: the log-probability of an answer is the sum over its tokens
# ({doc}`09_log_probs_and_entropy`), the reference's values never change and are computed once.


# %% tags=["definition"]
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.dpo import pair_log_probs
from gsmrl_helpers.preferences import PreferencePair


def dpo_step(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    pairs: Sequence[PreferencePair],
    ref_log_probs: tuple[Tensor, Tensor],
    beta: float,
    max_grad_norm: float,
) -> dict[str, float]:
    """One optimizer step on a batch of pairs."""
    chosen, rejected = pair_log_probs(model, tokenizer, pairs)
    ratios = chosen - ref_log_probs[0], rejected - ref_log_probs[1]
    loss = dpo_loss(chosen, rejected, *ref_log_probs, beta).mean()
    optimizer.zero_grad()
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return {
        "loss": loss.item(),
        "chosen_log_ratio": ratios[0].mean().item(),
        "rejected_log_ratio": ratios[1].mean().item(),
        "pair_accuracy": (ratios[0] > ratios[1]).float().mean().item(),
        "grad_norm": grad_norm.item(),
    }


# %% tags=["nbval-ignore-output"]
reference = reference_log_probs(trainer, pairs)
rows = [
    dpo_step(
        trainer.model.eval(),
        trainer.tokenizer,
        trainer.optimizer,
        pairs,
        reference,
        beta=0.1,
        max_grad_norm=1.0,
    )
    for _ in range(6)
]
pd.DataFrame(rows).round(3)

# %% tags=["check"]
assert abs(rows[0]["loss"] - math.log(2)) < 1e-4
assert rows[-1]["loss"] < rows[0]["loss"] - 0.01
assert rows[-1]["chosen_log_ratio"] > 0 > rows[-1]["rejected_log_ratio"]

# %% [markdown]
# So far all is as one would wish: the chosen answers gain, the rejected ones lose.
