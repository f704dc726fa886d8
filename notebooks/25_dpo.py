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

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sympy as sp
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import logsigmoid

from gsmrl_helpers.dpo_runs import (
    BATCH_SIZE,
    EPOCHS,
    SAMPLED_STEPS,
    reference_log_probs,
    sample_pairs,
)
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.loop import Trainer
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.preferences import bradley_terry_loss
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_plots import plot_curves, plot_finals
from gsmrl_helpers.results import rows_of, summarize
from gsmrl_helpers.symbolic import show
from gsmrl_helpers.verdicts import choose_on_dev, compare
from gsmrl_helpers.world import load_problems

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
assert abs(settled / 0.1 - 22) < 0.05 and abs(settled - 2.2) < 0.005
assert math.isclose(math.exp(settled / 0.1), 9**10) and 3e9 < 9**10 < 4e9
chosen = torch.tensor([3.0], requires_grad=True, dtype=torch.float64)
zero = torch.zeros(1, dtype=torch.float64)
(slope,) = torch.autograd.grad(
    dpo_loss(chosen, zero, zero, zero, 0.1), chosen
)
assert math.isclose(slope.item(), -0.1 / (1 + math.exp(0.3)))

# %% [markdown]
# With $\beta = .1$ a pair pulls until its answers are 22 nats apart, a factor of $9^{10}$, over
# three billion, with $\beta = 1$ until 2.2. That is what "$\beta$ is the strength of the KL
# penalty" means in DPO. No divergence is computed anywhere; there are only pairs that stop pulling.
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
    print(f"chosen:   {pair.chosen!r}\nrejected: {pair.rejected!r}\n")

# %% tags=["check"]
assert 0.3 < len(pairs) / (2 * config.prompts_per_step) < 0.7
prompt = config.prompt_object()
gold_of = {
    prompt.format(problem.question): problem.gold
    for problem in load_problems(config, "train")
}
graded = {
    kind: [
        prompt.reward_fn(getattr(pair, kind), gold_of[pair.prompt])
        for pair in pairs
    ]
    for kind in ("chosen", "rejected")
}
assert all(reward["answer_reward"] == 1 for reward in graded["chosen"])
assert not any(reward["answer_reward"] for reward in graded["rejected"])
unformatted = [1 - reward["format_reward"] for reward in graded["rejected"]]
assert 0.25 < np.mean(unformatted) < 0.8

# %% [markdown]
# About half of the groups hold no right answer and give no pair, as they would give no gradient in
# GRPO. Many rejected answers, between a quarter and four fifths, are wrong in two ways at once: the
# number is not right, and the answer is not in format. The loss can't know which of the two the
# verifier meant.
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


# %% tags=["check"]
reference = reference_log_probs(trainer, pairs)
policy = trainer.model.eval()
given = (policy, trainer.tokenizer, trainer.optimizer, pairs, reference)
rows = [dpo_step(*given, beta=0.1, max_grad_norm=1.0)]
assert abs(rows[0]["loss"] - math.log(2)) < 1e-4
assert abs(rows[0]["chosen_log_ratio"]) < 1e-3

# %% tags=["nbval-ignore-output"]
for _ in range(5):
    rows.append(dpo_step(*given, beta=0.1, max_grad_norm=1.0))
pd.DataFrame(rows).round(3)

# %% tags=["check"]
assert rows[-1]["loss"] < rows[0]["loss"] - 0.01
assert rows[-1]["chosen_log_ratio"] > 0 > rows[-1]["rejected_log_ratio"]

# %% [markdown]
# So far all is as one would wish: on average the chosen answers gain, and the rejected ones lose.
#
# ## Where the probability goes
#
# It need not stay so. One set of weights gives the probabilities of all answers, so that no answer
# moves alone. The smallest case is a policy with one weight $\theta$, to which only the length of
# an answer matters: its probability is in proportion to $e^{\theta \cdot \text{length}}$. Three
# answers have the lengths 2, 3 and 1, and the first was chosen over the second. All that this
# policy can do about it is to like shorter answers.


# %%
lengths = np.array([2, 3, 1])  # chosen, rejected, never compared


def probabilities(theta: float) -> np.ndarray:
    weights = np.exp(theta * lengths)
    return weights / weights.sum()


rows = {}
for theta in (0.0, -1.0, -2.0, -3.0):
    p_theta = probabilities(theta)
    ratios = np.log(p_theta / probabilities(0.0))
    rows[theta] = [*p_theta, loss_at(ratios[0], ratios[1], beta=1.0)]
columns = ["chosen", "rejected", "never compared", "loss, β = 1"]
pd.DataFrame(rows, index=columns).T.rename_axis("θ").round(3)

# %% tags=["check"]
table = np.array(list(rows.values()))
steps_down = np.diff(table, axis=0)
assert (steps_down[:, [0, 1, 3]] < 0).all() and (steps_down[:, 2] > 0).all()
assert math.isclose(table[1, 3], math.log(1 + math.exp(-1)), rel_tol=1e-9)
assert table[-1, 0] < 0.05 and table[-1, 2] > 0.9

# %% [markdown]
# At each step the loss falls, and the chosen answer becomes less likely, from one third to less
# than a twentieth. The probability goes to an answer that nobody compared with anything. A language
# model has more weights than one, but its answers have more in common than their length.
#
# ## Eight recorded runs
#
# The recorded runs take as many answers as GRPO samples in its first 20 steps, to the same
# problems, but all at once, from the untrained policy. They make a pair of each mixed group and
# train for eight passes over the pairs, 32 a step, with the optimizer and learning rate of the GRPO
# runs. $\beta$ is .1 or 1, with four seeds each. After each pass the policy answers the problems of
# dev and of the validation set "curve", at temperature 1. A pass has more steps where a seed has
# more pairs, so the tables count in passes: metrics of training are means over the steps of a pass.


# %%
def in_passes(results: pd.DataFrame) -> pd.DataFrame:
    """The long form, with passes as its steps."""
    keys = ["variant", "seed", "step"]
    passes = rows_of(results, "epoch").rename(columns={"value": "epoch"})
    joined = results.merge(passes[[*keys, "epoch"]], how="left", on=keys)
    joined["step"] = joined["epoch"].fillna(0).astype(int)
    return joined.groupby([*keys, "metric"], sort=False, as_index=False)[
        "value"
    ].mean()


results = read_recording("dpo", profile)
along = in_passes(results)
betas = list(dict.fromkeys(results["variant"]))
n_groups = SAMPLED_STEPS * config.prompts_per_step
n_pairs = rows_of(results, "pairs").pivot(
    index="seed", columns="variant", values="value"
)
print(f"{n_groups} groups of {config.group_size} answers; pairs:")
n_pairs.astype(int)

# %% tags=["check"]
first = rows_of(results[results["step"] == 1], "loss")["value"]
assert len(first) == n_pairs.size
assert (first - math.log(2)).abs().max() < 1e-4
assert along["step"].max() == EPOCHS
assert (n_pairs.nunique(axis=1) == 1).all()
assert sorted(set(rows_of(along, "dev_mean_answer_reward")["step"])) == list(
    range(EPOCHS + 1)
)

# %% tags=["hide-input"]
panels = {
    "Loss": ("loss", "nats"),
    "Pairs with a margin above 0": ("pair_accuracy", "share"),
    "Chosen answers, log π/π_ref": ("chosen_log_ratio", "nats"),
    "Rejected answers, log π/π_ref": ("rejected_log_ratio", "nats"),
}
figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.0), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    plot_curves(ax, along, metric)
    ax.set(title=title, ylabel=unit, xlabel="pass")
handles = axes[0, 0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# *Means over the steps of each pass; seeds are faint, the band is ± 1.96 σ/√n. By the upper two
# panels training goes well from beginning to end. Look at the lower left one: with $\beta = .1$ the
# chosen answers gain for some passes, and then lose again.*
#
# All that a training loop prints looks good: the loss falls from pass to pass, and hardly a pair is
# on the wrong side. But from some pass on the chosen answers become *less* likely while the loss
# goes on falling. The rejected ones lose more, and the loss sees the difference. With $\beta = .1$
# that is so for each of the four seeds:

# %% tags=["check", "claim:W28"]
expected_seeds = 4
of_pass = along.pivot(
    index=["variant", "seed", "step"], columns="metric", values="value"
).dropna(subset="loss")
falling = 0
for _, run in of_pass.loc[betas[0]].groupby("seed"):
    chosen = run["chosen_log_ratio"].to_numpy()
    after_peak = run["loss"].to_numpy()[chosen.argmax() :]
    lost = chosen.max() - chosen[-1]
    falling += bool(lost > 0.5 and (np.diff(after_peak) < 0).all())
if profile == "pocket":
    assert betas[0] == "beta 0.1" and falling == expected_seeds

# %% [markdown]
# ## What the trained policies answer

# %% tags=["hide-input"]
panels = {
    "Right answers, validation": ("curve_mean_answer_reward", "share"),
    "In format, validation": ("curve_mean_format_reward", "share"),
    "Token entropy, validation": ("curve_token_entropy", "nats"),
    "Response length, validation": ("curve_response_length", "tokens"),
}
figure, axes = plt.subplots(2, 2, figsize=(8.8, 6.0), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    plot_curves(ax, along, metric)
    ax.set(title=title, ylabel=unit, xlabel="pass")
handles = axes[0, 0].get_legend_handles_labels()
figure.legend(*handles, loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# *Answers to validation problems after each pass; pass 0 is the untrained policy. Seeds are faint,
# the band is ± 1.96 σ/√n. At pocket scale and $\beta = .1$ accuracy is highest after pass four and
# format after pass five; then both fall. Entropy falls until pass five and rises again, and answers
# get longer all the time. The loss shows nothing of it.*

# %%
shown = [
    *("loss", "pair_accuracy", "chosen_log_ratio", "rejected_log_ratio"),
    *("curve_mean_answer_reward", "curve_mean_format_reward"),
]
by_pass = of_pass.loc[betas[0]].groupby("step").mean()
table = by_pass[shown].rename(columns=lambda c: c.removeprefix("curve_mean_"))
table.rename_axis("pass").round(2)

# %% tags=["check"]
if profile == "pocket":
    right, in_format = (by_pass[name] for name in shown[-2:])
    assert right.idxmax() == 4 and in_format.idxmax() == 5
    assert right[4] - right[EPOCHS] > 0.1
    assert in_format[5] - in_format[EPOCHS] > 0.1
    assert by_pass["curve_token_entropy"].idxmin() == 5
    assert (by_pass["curve_response_length"].diff().loc[2:] > 0).all()
    longer = rows_of(results, "curve_response_length")
    longer = longer[longer["variant"] == betas[0]].groupby("step")["value"]
    assert longer.mean().iloc[0] < by_pass["curve_response_length"].loc[1]

# %% tags=["check"]
if profile == "pocket":
    chosen, rejected = (by_pass[name] for name in shown[2:4])
    assert (by_pass["loss"].diff().loc[2:] < 0).all()
    assert (by_pass["pair_accuracy"].loc[2:] > 0.95).all()
    assert chosen.idxmax() == 4 and abs(chosen[4] - 1.5) < 0.05
    last_pass = of_pass.loc[betas[0]].xs(EPOCHS, level="step")
    assert (last_pass["chosen_log_ratio"] > 0).sum() == 3
    assert abs(chosen[EPOCHS] - 0.3) < 0.05
    assert abs(rejected[EPOCHS] + 19) < 0.5

# %% [markdown]
# What happened? The pairs hold answers that the *untrained* policy gave. From the second pass on
# nearly all of them are on the right side, and the loss still pulls, until two answers are 22 nats
# apart. In the last pass the rejected answers are 19 nats below the reference. The chosen ones, 1.5
# nats above it in pass four, have come down to .3. (So they fell from a peak; in three seeds of
# four they end above the reference still.) Where both answers of a pair lose, the probability goes
# to answers that are in no pair, as in the small example. GRPO would sample them, and grade them.
# DPO doesn't look.
#
# ## When to stop
#
# The loss can't say when, so the answers must. Of the passes the best on dev is taken, by the mean
# over the seeds, and its accuracy is read on "curve", which had no say in the choice.


# %%
DEV, CURVE = "dev_mean_answer_reward", "curve_mean_answer_reward"


def passes(name: str, metric: str) -> pd.DataFrame:
    """Finals, with each pass of a study as a variant."""
    rows = rows_of(along[along["variant"] == name], metric)
    rows = rows[rows["step"] > 0]
    return rows.assign(variant="pass " + rows["step"].astype(str))


choices = {
    name: choose_on_dev(passes(name, DEV), passes(name, CURVE))
    for name in betas
}
for name, choice in choices.items():
    print(f"{name}: {choice}")

# %% tags=["check"]
for name, choice in choices.items():
    on_dev = summarize(passes(name, DEV))["mean"]
    assert choice.variant == on_dev.idxmax() and choice.n_variants == EPOCHS

# %% [markdown]
# And what the passes after it do:

# %%
last = f"pass {EPOCHS}"
for name, choice in choices.items():
    if choice.variant != last:
        print(f"{name}: {compare(passes(name, CURVE), last, choice.variant)}")

# %% [markdown]
# ## The effect of β
#
# A tenfold $\beta$ lets go of a pair at a tenth of the distance. Metrics of training in some
# passes, with the norm of the gradient before it is clipped to 1:

# %%
columns = ["loss", "chosen_log_ratio", "rejected_log_ratio", "grad_norm"]
means = of_pass.groupby(["variant", "step"], sort=False).mean()
at_passes = means[columns].unstack("variant").loc[[1, 3, 5, EPOCHS]]
at_passes.rename_axis("pass").round(2)

# %%
after = {}
for step in (3, EPOCHS):
    rows = rows_of(along[along["step"] == step], CURVE)
    after[step] = compare(rows, betas[1], betas[0])
    print(f"After pass {step}: {after[step]}")

# %% tags=["check"]
if profile == "pocket":
    apart = (means.loc["beta 1"] - means.loc["beta 0.1"]).loc[:3].abs()
    assert apart["chosen_log_ratio"].max() < 0.1
    assert apart["curve_mean_answer_reward"].max() < 0.05
    norm = means["grad_norm"].unstack("variant")
    assert norm["beta 1"][1] > 7 and norm["beta 1"][EPOCHS] < 0.5
    assert norm["beta 0.1"].between(0.7, 1).all()
    assert -6 < means.loc["beta 1", "rejected_log_ratio"][EPOCHS] < -5
    assert [after[step].word for step in after] == ["can't tell", "better"]

# %% [markdown]
# At pocket scale the two go alike for three passes. At $\beta = 1$ the gradient is larger in the
# beginning, but it is clipped, and Adam divides by its size. Then the pairs of $\beta = 1$ are
# settled: the gradient fades, the rejected answers stop five to six nats below the reference, and
# the policy stays near its best. At $\beta = .1$ the pairs are not settled until the end, and the
# policy moves on. So what a large $\beta$ did here was to stop early by itself.
#
# ## DPO against GRPO, on one budget of samples
#
# GRPO's runs ({doc}`14_on_policy_results`) sampled as many answers in their first 20 steps, to the
# same problems. They are read at step 20 on the same validation problems.

# %%
grpo = rows_of(read_recording("on-policy", profile), CURVE)
entries = {"GRPO, 20 steps": grpo[grpo["step"] == SAMPLED_STEPS]}
for name, choice in choices.items():
    rows = passes(name, CURVE)
    entries[f"DPO, {name}"] = rows[rows["variant"] == choice.variant]
entries["GRPO, all steps"] = grpo[grpo["step"] == grpo["step"].max()]
finals = pd.concat(
    [rows.assign(variant=name) for name, rows in entries.items()]
)
summarize(finals)[["n", "mean", "std", "t_half_width"]].round(3)

# %%
baseline, *dpo_runs, whole = entries
verdicts = [
    compare(finals, name, other)
    for other in (baseline, whole)
    for name in dpo_runs
]
for verdict in verdicts:
    print(verdict)
print(compare(finals, *reversed(dpo_runs)))

# %% tags=["check"]
words = [verdict.word for verdict in verdicts]
assert grpo["step"].max() > SAMPLED_STEPS
if profile == "pocket":
    assert words == ["better", "better", "worse", "worse"]
    assert grpo["step"].max() == 5 * SAMPLED_STEPS

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
plot_finals(ax, finals, {name: name for name in entries})
ax.set(title="Right answers, validation", ylabel="share")
plt.show()

# %% [markdown]
# *A dot for each seed, and the mean with ± 1.96 σ/√n. The last entry has sampled five times as many
# answers as the others (at pocket scale).*
#
# At pocket scale DPO makes more of 5,120 answers than 20 steps of GRPO do, with either $\beta$, and
# less than GRPO makes of five times as many. It is no riddle: GRPO as it was run uses each answer
# in one step, and DPO goes over its pairs several times. ({doc}`20_importance_weighting` is about
# what it takes to use answers more than once in GRPO.) Each of the five intervals above holds for
# itself, not all of them together. The rest is in the small print.

# %%
on_policy = read_recording("on-policy", profile)
early = on_policy[on_policy["step"].between(1, SAMPLED_STEPS)]
trained = rows_of(early, "trained_row_share")["value"].mean()
n_answers = n_groups * config.group_size
rows = {
    baseline: [
        n_answers,
        SAMPLED_STEPS,
        SAMPLED_STEPS,
        trained * n_answers,
        0,
    ]
}
for name, choice in choices.items():
    n_steps = int(choice.variant.split()[1]) * (n_pairs[name] // BATCH_SIZE)
    rows[f"DPO, {name}"] = [
        n_answers,
        1,
        n_steps.mean(),
        2 * BATCH_SIZE * n_steps.mean(),
        EPOCHS * config.splits.dev,
    ]
columns = [
    *("answers sampled", "policies that sample", "optimizer steps"),
    *("answers trained on", "answers for the choice"),
]
cost = pd.DataFrame(rows, index=columns).T.round(0).astype(int)
cost

# %% tags=["check"]
assert cost["answers sampled"].nunique() == 1
if profile == "pocket":
    assert cost["answers sampled"].iloc[0] == 5120
    assert cost["answers for the choice"].max() == 8192

# %% [markdown]
# **What DPO saves.** It samples once, from a policy that stays as it is: no weights have to reach
# the sampler during training, no old log-probabilities are needed, and the answers could have come
# from anywhere, from people too. The reference is scored once, and then only one model is in memory
# beside the optimizer. It needs no verifier, only somebody who compared.
#
# **What it lacks.** It never sees an answer of the policy that it trains. It uses two answers of a
# group of eight, and none of a group without both kinds. And when to stop has to be found out by
# grading answers after all: here the choice of the pass took more of them (at pocket scale 8,192 on
# dev) than the whole budget of training. GRPO was not stopped at a chosen step, it was just read at
# step 20. Both had the learning rate of GRPO's runs; a search for one of DPO's own is not on
# record.
#
# ## Take away
#
# - The best policy under reward minus $\beta$ KL is $\pi_\text{ref}\, e^{r/\beta} / Z$. Read
#   backwards, a policy is a reward model, and Bradley and Terry's loss trains it on pairs.
# - Check it by $\log 2$ at the start, and by .474 twice. Use `logsigmoid`.
# - The loss sees the difference of two log-ratios. The chosen answer can become less likely while
#   the loss falls, and does so in real runs: log both log-ratios.
# - Loss and pair accuracy don't say when to stop. Grade samples of the policy, and choose on data
#   that is not reported.
# - With a verifier, on one budget of samples, fresh samples and several passes over old ones are
#   rivals: compare at equal cost, and say what was counted.
#
# ## Exercises

# %% [markdown]
# ```{exercise} The policy as a reward model
# :label: ex-25-implied
#
# *Easy, 5 minutes.* Write `implied_preference(chosen, rejected, beta)`: the probability that the
# policy, read as a reward model, gives to the choice, from the two log-ratios. Which one is more
# certain of its pair: $\beta = .1$ with +2 and −3, or $\beta = 1$ with −1 and −6?
#
# :::{dropdown} Hint
# Bradley and Terry: $\sigma$ of the difference of two rewards, each $\beta$ times a log-ratio.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def implied_preference(chosen: float, rejected: float, beta: float) -> float:
    return 1 / (1 + math.exp(-beta * (chosen - rejected)))


# %% tags=["check"]
assert abs(implied_preference(2, -3, 0.1) - 0.6225) < 0.00005
assert abs(implied_preference(-1, -6, 1) - 0.9933) < 0.00005
assert implied_preference(4, 4, 3.0) == 0.5
for b, (one, other) in zip(
    (0.1, 0.5, 2), rng.normal(size=(3, 2)), strict=True
):
    preference = implied_preference(one, other, b)
    assert math.isclose(-math.log(preference), loss_at(one, other, b))

# %% [markdown]
# ```{exercise} A chosen answer that must not fall
# :label: ex-25-positive
#
# *Medium, 10 minutes.* DPO-Positive {cite}`pal2024smaug` takes off the margin what the chosen
# answer has lost on the reference: with log-ratios $c$ and $r$ the loss is $-\log\sigma\big(\beta\,
# (c - r - \lambda \max(0, -c))\big)$. Write `positive_loss(chosen, rejected, beta, weight)` for
# tensors. Which weight makes +2, −3 and −1, −6 differ, and by how much?
#
# :::{dropdown} Hint
# `torch.relu(-chosen)`, and `logsigmoid` as before.
# :::
#
# :::{dropdown} Worked answer
# Any weight above 0: the first pair has lost nothing and stays at .474. The second has lost 1 nat,
# so that at $\lambda = 5$ its margin of 5 is gone and the loss is $\log 2$ again.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def positive_loss(
    chosen: Tensor, rejected: Tensor, beta: float, weight: float
) -> Tensor:
    margin = chosen - rejected - weight * torch.relu(-chosen)
    return -logsigmoid(beta * margin)


# %% tags=["check"]
pair_of_pairs = torch.tensor([[2.0, -1.0], [-3.0, -6.0]]).double()
plain, tied = (positive_loss(*pair_of_pairs, 0.1, w) for w in (0.0, 5.0))
assert (plain - 0.474).abs().max() < 0.0005
assert abs(tied[0] - 0.474) < 0.0005
assert abs(tied[1].item() - math.log(2)) < 1e-9
fallen = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
far_above = torch.tensor([900.0], dtype=torch.float64)
positive_loss(fallen, far_above, 1.0, 5.0).backward()
assert abs(fallen.grad.item() + 6) < 1e-9

# %% [markdown]
# ```{exercise} Who gains from a step
# :label: ex-25-step
#
# *Medium, 15 minutes.* A policy over $n$ answers with features $\phi$ (a row for each answer) and
# weights $\theta$: $\pi \propto e^{\phi\theta}$. A DPO step moves $\theta$ along $\phi_w -
# \phi_l$. Write `first_order_change(features, probs, chosen, rejected)`: by how much $\log\pi$ of
# each answer changes per unit of step. When does the chosen answer lose?
#
# :::{dropdown} Hint
# $\nabla_\theta \log\pi(y) = \phi_y - \sum_k \pi_k \phi_k$.
# :::
#
# :::{dropdown} Worked answer
# $(\phi_y - \bar\phi) \cdot (\phi_w - \phi_l)$ with $\bar\phi$ the mean of the features under the
# policy. The chosen answer loses where, seen from the mean, it lies in the direction from it to the
# rejected one. With a weight of its own for each answer ($\phi$ the unit matrix) it gains
# $1 - \pi_w + \pi_l$ and never loses: what falls, falls because weights are shared.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def first_order_change(
    features: np.ndarray, probs: np.ndarray, chosen: int, rejected: int
) -> np.ndarray:
    direction = features[chosen] - features[rejected]
    return (features - probs @ features) @ direction


# %% tags=["check"]
uniform = np.full(4, 0.25)
by_length = np.array([[2.0], [3.0], [1.0], [1.0]])
assert np.allclose(
    first_order_change(by_length, uniform, 0, 1), [-0.25, -1.25, 0.75, 0.75]
)
assert np.allclose(
    first_order_change(np.eye(4), uniform, 0, 1), [1, -1, 0, 0]
)
for features in rng.normal(size=(20, 4, 3)):
    weights = np.exp(features @ np.ones(3))
    shares = weights / weights.sum()
    own = first_order_change(np.eye(4), shares, 2, 0)
    assert math.isclose(own[2], 1 - shares[2] + shares[0])
    change = first_order_change(features, shares, 2, 0)
    assert abs(shares @ change) < 1e-12
    assert math.isclose(
        change[2] - change[0], ((features[2] - features[0]) ** 2).sum()
    )

# %% [markdown]
# ## Next
#
# {doc}`26_sft` goes back to where a policy comes from before anybody compares its answers, and
# {doc}`28_dpo_on_hh` reads pairs that people compared, and what else they prefer.
