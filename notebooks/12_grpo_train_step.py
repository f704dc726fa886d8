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
# # One step of GRPO
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** put the parts of the last four chapters in order and take one step of
# GRPO, work out by hand what it changes, and recognise five faults that raise no error.
#
# **You need** {doc}`08_tokenization_and_masks`, {doc}`09_log_probs_and_entropy`,
# {doc}`10_advantages` and {doc}`11_policy_gradient_loss`. **Reading** takes 35 minutes,
# **running** less than a minute, on a **CPU**.
# ```
#
# We have token ids and a mask, log-probabilities, advantages and losses. A step of GRPO
# {cite}`shao2024deepseekmath` puts them in order and changes the weights. Little of it is new, and
# yet this is where most programs go wrong: the parts can be joined in several ways that run without
# an error, print a loss and learn nothing, or learn something else. So we first take a step small
# enough to be checked with a pencil. Then we build the function that takes every step of this book.
# Then we break it.
#
# ## Seven things in order
#
# 1. **Sample** $G$ responses to each of $B$ prompts from the current policy $\pi_\theta$, at
#    temperature 1, with dropout off and without a graph of the computation.
# 2. **Reward** each response.
# 3. Turn rewards into **advantages** $A$ within each group.
# 4. Compute the **old log-probabilities** $\log \pi_\text{old}$ of the sampled tokens: once, after
#    sampling, with the model that is trained, again with dropout off and without a graph.
# 5. Compute the **new log-probabilities** $\log \pi_\theta$ of the same tokens, with a graph.
# 6. Make one number of them, the **loss**.
# 7. **Backward**, clip the gradient's norm, and let the **optimizer** take its step.
#
# 3 and 4 need nothing of each other and may change places. Several updates from the same rollouts
# repeat 5 to 7; what 1 to 4 gave stays as it is.

# %%
import copy
import math
import sys

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
from IPython.display import HTML
from torch import Tensor
from torch.nn.functional import one_hot, pad

# %%
import gsmrl_helpers
from gsmrl_helpers import (
    aggregate_loss_across_microbatch,
    compute_group_normalized_rewards,
    compute_policy_gradient_loss,
    compute_rollout_rewards,
    experiment_config,
    get_response_log_probs,
    kl_estimate,
    load_problems,
    small_batch,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.accumulation import Objective
from gsmrl_helpers.diagnostics import (
    check_accumulation,
    check_distinct_samples,
    check_finite_gradients,
    check_first_ratio,
    check_first_step,
    check_mask_alignment,
    check_no_dropout,
)

# %%
from gsmrl_helpers.findings import Findings
from gsmrl_helpers.loop import Trainer, score, update_policy
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.step_metrics import STEP_METRICS
from gsmrl_helpers.tables import as_html

use_style()
torch.set_num_threads(1)  # so that all calls are in this thread

# %% [markdown]
# ### 1 to 3: responses, rewards, advantages
#
# The small batch again: $B = 2$ prompts with $G = 4$ responses each, and a policy that is a table.
# `advantage_eps` is the small number that {doc}`10_advantages` adds to the standard deviation. Here
# it is 0, so that the advantages are exactly those of a calculation by hand.

# %%
policy, tokenizer = small_batch.make_policy(), small_batch.make_tokenizer()
prompts = small_batch.repeated_prompts
responses = small_batch.rollout_responses
truths = small_batch.repeated_ground_truths

# %%
rewards, _ = compute_rollout_rewards(
    small_batch.last_number_reward_fn, responses, truths
)
advantages, _ = compute_group_normalized_rewards(
    rewards, group_size=4, advantage_eps=0.0
)

# %%
batch = tokenize_prompt_and_output(prompts, responses, tokenizer)
batch["advantages"] = advantages
mask, lengths = batch["response_mask"], batch["response_mask"].sum(dim=1)

# %%
shown = {"prompt": prompts, "response": responses, "tokens": lengths}
shown |= {"reward": rewards, "A": advantages.numpy().round(4)}
pd.DataFrame(shown, index=range(1, 9))

# %% tags=["check"]
assert rewards.tolist() == [1, 0, 0, 1, 1, 0, 0, 0]
assert lengths.tolist() == [4, 3, 2, 2, 2, 1, 4, 2] and lengths.sum() == 20
expected = [0.8660, -0.8660, -0.8660, 0.8660, 1.5, -0.5, -0.5, -0.5]
assert torch.allclose(advantages, torch.tensor(expected), atol=5e-5)

# %% [markdown]
# ### 4 and 5: old and new log-probabilities
#
# The same function twice. `eval()` and `no_grad()` are two switches, and the old log-probabilities
# need both.


# %%
def scores(policy: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return get_response_log_probs(
        policy, batch["input_ids"], batch["labels"]
    )["log_probs"]


# %%
policy.eval()
with torch.no_grad():
    old_log_probs = scores(policy, batch)
log_probs = scores(policy, batch)

# %% [markdown]
# ### 6 and 7: loss, backward, clip, step
#
# The clipped loss of GRPO, the mean over each response's tokens, then over the responses. Plain
# SGD with learning rate 1 makes the change of the table minus its gradient.

# %%
token_loss, importance = compute_policy_gradient_loss(
    advantages, log_probs, "grpo", old_log_probs, 0.2, mask
)
loss = aggregate_loss_across_microbatch(token_loss, mask)

# %%
optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
optimizer.zero_grad()
loss.backward()
gradient = policy.table.grad.clone()
grad_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=1.0)
optimizer.step()
print(f"norm of the gradient: {grad_norm:.4f}")

# %% tags=["check"]
assert abs(loss.item()) < 1e-7
assert math.isclose(grad_norm, 0.0744, abs_tol=5e-5)

# %% [markdown]
# That was the step. The loss was 0, because every ratio was 1 and the advantages of a group add
# up to 0. The gradient was not, and its norm lies below 1, so that clipping left it as it was.
#
# ## What it changed, by hand
#
# Which numbers of the table moved, and why? Let $p_v$ be the table's probabilities after token
# $v$. A softmax has a gradient that one can write down: raising the logits by
#
# $$\nabla \log p_v(y) = \text{one-hot}(y) - p_v$$
#
# is the fastest way to make $y$ more likely after $v$. A token $y$ of response $i$ asks for this
# direction with the weight that chapter 11 gave it, $w = A_i / (B G\, L_i)$, where $L_i$ is the
# number of tokens in the response. The whole update is the sum over the 20 tokens:
#
# $$
# \Delta\theta_v
# = \sum_{\text{tokens } y \text{ that follow } v} w\,\big(\text{one-hot}(y) - p_v\big).
# $$
#
# All eight responses begin after `=`. These are their first tokens and what each asks for:

# %%
weights = advantages.double() / (8 * lengths)
first_tokens = [response.split()[0] for response in responses]
start = pd.DataFrame(
    {"A": advantages, "L": lengths, "w": weights, "token": first_tokens},
    index=range(1, 9),
)

# %%
next_probs = small_batch.NEXT_TOKEN_PROBS["="]
for token, p in next_probs.items():
    start[token] = start["w"] * ((start["token"] == token) - p)
start.round(4)

# %% [markdown]
# Take the column `4`. Responses 4, 6 and 8 begin with `4`, with the weights .0541, −.0625 and
# −.0312, in sum −.0396. All eight weights sum to −.0246, and each token asks for $-p = -.25$ of
# its weight: $-.0396 + .25 \cdot .0246 = -.0335$. So after `=` the logit of `4` falls by .0335,
# although `4 .` was right for the first prompt: this policy sees the last token only and answers
# both prompts alike, and response 6 puts a whole advantage of −.5 on its single token.

# %% tags=["check"]
hand = start[["so", "4", "5"]].sum()
expected = {"so": -0.0123, "4": -0.0335, "5": 0.0458}
assert all(math.isclose(hand[t], expected[t], abs_tol=5e-5) for t in expected)
by_token = start.groupby("token")["w"].sum()
assert math.isclose(by_token["4"], -0.0396, abs_tol=5e-5)
assert math.isclose(start["w"].sum(), -0.0246, abs_tol=5e-5)

# %% [markdown]
# The same for all twenty tokens at once, and for the whole table.


# %%
def table_update(batch: dict[str, Tensor], token_weights: Tensor) -> Tensor:
    """Σ w (one-hot(y) − p_v) into row v, for (N, T) weights: (V, V)."""
    probs = small_batch.make_policy().table.detach().softmax(dim=-1)
    present, following = batch["input_ids"], batch["labels"]
    direction = one_hot(following, len(probs)) - probs[present]
    change = token_weights[..., None] * direction
    return torch.zeros_like(probs).index_put((present,), change, True)


# %%
update = table_update(batch, weights[:, None] * mask)

# %% tags=["check"]
table_before = small_batch.make_policy().table.detach()
table_after = policy.table.detach()
assert (update + gradient).abs().max() < 1e-12
assert (table_after - table_before - update).abs().max() < 1e-12

# %% tags=["hide-input"]
rows, columns = ["=", "so", "4", "5", "."], ["so", "4", "5", ".", "<eos>"]


def corner(table: Tensor) -> pd.DataFrame:
    names = list(small_batch.VOCABULARY)
    return pd.DataFrame(table, names, names).loc[rows, columns]


impossible = corner(table_before.softmax(-1)) < 1e-6
figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
panels = [
    ("p before", table_before.softmax(-1), ".2f", "Greys", (0, 1.3)),
    ("change of the logits", update, "+.3f", "PuOr", (-0.13, 0.13)),
    ("p after", table_after.softmax(-1), ".2f", "Greys", (0, 1.3)),
]
for ax, (title, table, digits, colours, (low, high)) in zip(
    axes, panels, strict=True
):
    sns.heatmap(
        corner(table), mask=impossible, annot=True, fmt=digits,
        cmap=colours, vmin=low, vmax=high, cbar=False, ax=ax,
        linewidths=0.5, annot_kws={"size": 9},
    )  # fmt: skip
    ax.set(title=title, xlabel="next token", ylabel="after")
    ax.tick_params(rotation=0)

# %% [markdown]
# *The part of the table that the responses touch: the probability of the column's token after the
# row's, the change of its logit, and the probability after the step. Each row of the middle panel
# sums to 0: what one token gains, the others lose. After `.` a single response went on, with
# `<eos>`; its advantage was positive, and `so` pays for it without having occurred there.*
#
# ## The first step is REINFORCE
#
# In the step above $\pi_\text{old}$ and $\pi_\theta$ were the same policy. Then the ratio
# $r_t = \pi_\theta(y_t) / \pi_\text{old}(y_t)$ is 1 at every token, nothing is clipped, and since
# $\nabla r_t = r_t \nabla \log \pi_\theta(y_t)$, the gradient is that of $-A \log \pi_\theta(y_t)$:
# REINFORCE {cite}`williams1992reinforce` with the group's mean as its baseline. This holds for
# every method of chapter 11. They differ from the second update on.


# %%
def first_update(policy, method: str) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, ratios and clipped tokens, old policy = new policy."""
    new = scores(policy, batch)
    token_loss, info = compute_policy_gradient_loss(
        advantages, new, method, new.detach(), 0.2, mask
    )
    loss = aggregate_loss_across_microbatch(token_loss, mask)
    (gradient,) = torch.autograd.grad(loss, policy.table)
    return gradient, info["ratio"][mask], info["is_clipped"]


# %% tags=["check", "claim:W15"]
generator = torch.Generator().manual_seed(0)
off_by, n_clipped, differences = [], 0, []
for _ in range(20):
    table = torch.randn(10, 10, generator=generator, dtype=torch.float64)
    random_policy = small_batch.TablePolicy(table)
    reinforce, *_ = first_update(random_policy, "none")
    for method in ("noclip", "grpo", "gspo", "cispo"):
        result, ratio, is_clipped = first_update(random_policy, method)
        off_by.append((ratio - 1).abs().max().item())
        n_clipped += int(is_clipped.sum())
        differences.append((result - reinforce).abs().max().item())
    assert reinforce.norm() > 0.01
expected_off_by, expected_clipped, expected_difference = 0.0, 0, 0.0
assert abs(max(off_by) - expected_off_by) < 1e-12
assert n_clipped == expected_clipped
assert abs(max(differences) - expected_difference) < 1e-12

# %% [markdown]
# So with one update per batch of rollouts, step 4 and the ratio can be left out, and the standard
# experiment of this book leaves them out. With several updates they decide. Take a second update on
# the same rollouts, in two ways: with the old log-probabilities of step 4, and with ones that were
# "refreshed" before the second update. The refreshed ones make every ratio 1 again. The loss no
# longer knows which policy sampled, and clipping can never act.

# %%
kept = (scores(policy, batch) - old_log_probs).exp()[mask].detach()
refreshed = scores(policy, batch)
refreshed = (refreshed - refreshed.detach()).exp()[mask].detach()

# %%
ratios = {"old scored once": kept, "old scored again": refreshed}
extremes = {name: [r.min(), r.max()] for name, r in ratios.items()}
table = pd.DataFrame(extremes, ["smallest ratio", "largest ratio"]).T
table.astype(float).round(3)

# %% tags=["check"]
assert math.isclose(kept.min(), 0.966, abs_tol=5e-4)
assert math.isclose(kept.max(), 1.050, abs_tol=5e-4)
assert (refreshed == 1).all()

# %% [markdown]
# ## Microbatches
#
# A batch of 256 responses of a large model does not fit into memory with its graph. So it is cut
# into microbatches. Each has its own loss and its own `backward()`, which *adds* to the gradients
# that are already there; its graph is then freed. Clearing the gradients and the optimizer's step
# happen once per batch.
#
# First the loss of one microbatch, with everything that it may contain. An `Objective` holds the
# options: method, clip range, normalisation, and two coefficients. $\beta$ = `kl_coef` weighs a KL
# penalty against a frozen reference policy, `entropy_coef` a bonus for entropy. `Objective()` takes
# the method "none", so no clip range, the normalisation "sequence", and 0 for both coefficients.
#
# The penalty of a token $y$ is $k_3 = u - 1 - \log u$ with
# $u = \pi_\text{ref}(y) / \pi_\theta(y)$: never negative, and 0 where both agree.
# {doc}`03_sorting_toy` shows that its mean is the KL divergence. `kl_estimate` computes it from two
# log-probabilities. Beside the loss the function returns what is logged of every token, among it
# the same estimate of how far $\pi_\theta$ has moved from $\pi_\text{old}$. `score_responses` is
# `get_response_log_probs` with the entropy, for response tokens only; how it spares the others is
# told {ref}`below <sec-12-every-token-once>`.

# %% tags=["definition"]
from gsmrl_helpers.accumulation import Batch
from gsmrl_helpers.response_scoring import score_responses


def microbatch_loss(
    model: torch.nn.Module, microbatch: Batch, objective: Objective
) -> tuple[Tensor, Batch]:
    """Aggregated loss, and the (b, T) token values worth averaging."""
    mask = microbatch["response_mask"]
    old, ref = (
        microbatch.get("old_log_probs"),
        microbatch.get("ref_log_probs"),
    )
    scored = score_responses(
        model, microbatch["input_ids"], microbatch["labels"], mask
    )
    # No gradient comes back through a masked position, whatever old or ref
    # hold there.
    log_probs = scored["log_probs"].masked_fill(~mask, 0.0)
    token_loss, importance = compute_policy_gradient_loss(
        microbatch["advantages"],
        log_probs,
        objective.importance_reweighting_method,
        old,
        objective.cliprange,
        mask,
    )
    token_entropy = scored["token_entropy"]
    # Only logged, it would keep a second graph over the vocabulary alive.
    token_entropy = (
        token_entropy if objective.entropy_coef else token_entropy.detach()
    )
    token_values = {"token_entropy": token_entropy, **importance}
    if old is not None:
        token_values["kl_to_old"] = kl_estimate(old, log_probs, "k3")
    if ref is not None:
        token_values["kl_to_ref"] = kl_estimate(
            log_probs, ref, objective.kl_estimator
        )
        token_loss = (
            token_loss + objective.kl_coef * token_values["kl_to_ref"]
        )
    if objective.entropy_coef:
        token_loss = token_loss - objective.entropy_coef * token_entropy
    loss = aggregate_loss_across_microbatch(
        token_loss,
        mask,
        objective.loss_normalization,
        objective.normalization_constant,
    )
    return loss, token_values


# %% tags=["check"]
policy = small_batch.make_policy()
with_old = {**batch, "old_log_probs": old_log_probs}
objective = Objective("grpo", cliprange=0.2)
loss, token_values = microbatch_loss(policy, with_old, objective)
(table_gradient,) = torch.autograd.grad(loss, policy.table)
assert (table_gradient - gradient).abs().max() < 1e-12
assert (token_values["ratio"][mask] == 1).all()
assert (token_values["kl_to_old"][mask] == 0).all()
assert Objective() == Objective("none", None, "sequence", None, 0.0, "k3", 0)

# %% [markdown]
# Which gradient must come out in the end? That of the whole batch, to the last digit that floating
# point keeps, however the batch is cut. Here it is, in one graph and for each normalisation of
# {doc}`11_policy_gradient_loss`: "constant" divides by $Z = B\,G\,L_\text{max}$, as there with
# a sampler's limit of $L_\text{max} = 8$ tokens, so $Z = 2 \cdot 4 \cdot 8 = 64$, and "token" by
# the 20 tokens of the batch.

# %%
Z = 2 * 4 * 8


def full_batch_gradient(normalization: str) -> Tensor:
    """One graph over all eight responses, nothing accumulated."""
    policy = small_batch.make_policy()
    token_loss, _ = compute_policy_gradient_loss(
        advantages, scores(policy, batch)
    )
    constant = {"sequence": None, "constant": Z, "token": 20}
    aggregate_loss_across_microbatch(
        token_loss, mask, normalization, constant[normalization]
    ).backward()
    return policy.table.grad


# %% [markdown]
# Now in pieces. For "constant" and "token" the loss is a sum over tokens, divided by a number of
# the *whole* batch, so the microbatches' losses add up. For "sequence" each microbatch returns the
# mean over *its* responses. It has to be weighted by its share of all of them: 3 of 8 responses
# count 3/8. `rows` says which responses go through the model; for now, all.

# %% tags=["definition", "solution"]
from dataclasses import replace

from gsmrl_helpers.accumulation import dropout_off, take_rows
from gsmrl_helpers.step_metrics import TokenMeans


def accumulate_gradients(
    model: torch.nn.Module,
    batch: Batch,
    rows: Tensor,
    objective: Objective,
    microbatch_size: int,
) -> tuple[Tensor, TokenMeans]:
    """Leave the whole batch's gradient in `.grad`; return its loss."""
    for parameter in model.parameters():
        parameter.grad = (
            torch.zeros_like(parameter) if parameter.requires_grad else None
        )
    if objective.loss_normalization == "token":
        num_tokens = int(batch["response_mask"].sum())
        objective = replace(objective, normalization_constant=num_tokens)
    device = next(model.parameters()).device
    total_loss, token_means = torch.zeros((), device=device), TokenMeans()
    with dropout_off(model):
        for start in range(0, len(rows), microbatch_size):
            chosen = rows[start : start + microbatch_size]
            microbatch = take_rows(batch, chosen, device)
            loss, token_values = microbatch_loss(model, microbatch, objective)
            if objective.loss_normalization == "sequence":
                # A mean over few responses, weighted by their share of all B.
                loss = loss * (len(chosen) / len(batch["labels"]))
            loss.backward()
            total_loss = total_loss + loss.detach()
            token_means.add(token_values, microbatch["response_mask"])
    return total_loss, token_means


# %% tags=["check", "claim:A19"]
orders = [torch.randperm(8, generator=generator) for _ in range(10)]
differences = {}
for normalization in ("sequence", "constant", "token"):
    objective = Objective(
        loss_normalization=normalization, normalization_constant=Z
    )
    whole = full_batch_gradient(normalization)
    for size in range(1, 9):
        for order in orders:
            accumulate_gradients(policy, batch, order, objective, size)
            difference = (policy.table.grad - whole).abs().max().item()
            differences[normalization, size, tuple(order)] = difference
assert len(differences) >= 3 * 8 * 9
expected = 0.0
assert abs(max(differences.values()) - expected) < 1e-12

# %% [markdown]
# Every size of microbatch from 1 to 8, the rows in ten random orders, three normalisations: the
# gradient of the full batch each time. Of the helpers, `take_rows` picks the rows and drops columns
# that hold only padding; `dropout_off` puts every module into eval mode for the length of the
# block, and gradients still flow; `TokenMeans` averages the values to be logged over all tokens.
#
# ## Responses that can be left out
#
# A response with advantage 0 adds nothing to a policy-gradient loss, and its gradient is exactly 0.
# Under a mean baseline these are the groups in which all rewards are equal; without a baseline, all
# wrong responses. They need not go through the model at all, and late in training they can be most
# of the batch.


# %% tags=["definition"]
def rows_with_gradient(batch: Batch, objective: Objective) -> Tensor:
    """(K,) indices of the rows that can move the policy."""
    moves = batch["response_mask"].any(dim=1)
    if objective.kl_coef == objective.entropy_coef == 0:
        moves = moves & (batch["advantages"] != 0)
    return moves.nonzero().flatten()


# %% tags=["check"]
rft = {**batch, "advantages": rewards}  # no baseline, no normaliser
assert rows_with_gradient(batch, Objective()).tolist() == list(range(8))
assert rows_with_gradient(rft, Objective()).tolist() == [0, 3, 4]
assert len(rows_with_gradient(rft, Objective(kl_coef=0.1))) == 8

# %% [markdown]
# Two conditions come with it. The first: the denominators stay those of the whole batch, left-out
# responses included. `accumulate_gradients` divides by all rows of `batch`, whatever `rows` says.
#
# The second is about the optimizer. SGD with momentum and Adam carry on the direction of earlier
# steps. A gradient of 0 lets this average decay and still moves the weights, but a parameter
# *without* a gradient (`grad is None`) is skipped: no decay, no move. If no response of a batch has
# a signal, leaving all of them out must still look to the optimizer like a gradient of zeros. So
# `accumulate_gradients` starts with zeros.


# %%
def two_adam_steps(cases: list[Tensor], pruned: bool) -> tuple[Tensor, ...]:
    """Table and running averages after one step for each (8,) of A."""
    policy, objective, trained = small_batch.make_policy(), Objective(), 0
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1)
    for case in cases:
        case_batch = {**batch, "advantages": case}
        rows = torch.arange(8)
        if pruned:
            rows = rows_with_gradient(case_batch, objective)
        accumulate_gradients(policy, case_batch, rows, objective, 3)
        optimizer.step()
        trained += len(rows)
    state = optimizer.state[policy.table]
    averages = state["exp_avg"], state["exp_avg_sq"]
    return policy.table.detach(), *averages, torch.tensor(trained)


# %% tags=["check", "claim:A20"]
differences, rows_saved = [], 0
for _ in range(20):
    drawn = torch.randn(8, generator=generator)
    drawn[torch.rand(8, generator=generator) < 0.5] = 0.0
    *pruned, few = two_adam_steps([drawn, torch.zeros(8)], pruned=True)
    *whole, all_rows = two_adam_steps([drawn, torch.zeros(8)], pruned=False)
    differences += [
        (a - b).abs().max() for a, b in zip(pruned, whole, strict=True)
    ]
    rows_saved += int(all_rows - few)
expected = 0.0
assert abs(max(differences) - expected) < 1e-12
assert rows_saved > 160

# %% [markdown]
# In each case the second batch had no signal whatever. The weights moved all the same, by
# momentum, and equally on both sides. With `grad = None` they would have stayed:

# %% tags=["check"]
first, second = advantages, torch.zeros(8)
after_one, *_ = two_adam_steps([first], pruned=True)
after_two, *_ = two_adam_steps([first, second], pruned=True)
assert (after_two - after_one).abs().max() > 0.05

# %% tags=["check"]
skipped = small_batch.make_policy()
optimizer = torch.optim.AdamW(skipped.parameters(), lr=0.1)
accumulate_gradients(skipped, batch, torch.arange(8), Objective(), 8)
optimizer.step()
skipped.table.grad = None
optimizer.step()
assert (skipped.table - after_one).abs().max() < 1e-12

# %% [markdown]
# One case remains in which nothing may be left out. A KL penalty pulls every response towards the
# reference policy, and an entropy bonus rewards every uncertain token, right or wrong. A group of
# equal rewards then has a gradient, and dropping it would change the objective. To see it, all
# advantages are set to 0, and the reference is another policy: a table of random logits.

# %%
random_logits = torch.randn(
    10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64
)
reference = small_batch.TablePolicy(random_logits)

# %% tags=["check", "claim:W34"]
equal = {**batch, "advantages": torch.zeros(8)}
equal["ref_log_probs"] = scores(reference, batch).detach()
norms, trained, everything = {}, {}, torch.arange(8)
for name, objective in {
    "neither": Objective(),
    "KL": Objective(kl_coef=0.1),
    "entropy": Objective(entropy_coef=0.1),
}.items():
    trained[name] = len(rows_with_gradient(equal, objective))
    accumulate_gradients(policy, equal, everything, objective, 8)
    norms[name] = policy.table.grad.norm().item()
expected_trained = {"neither": 0, "KL": 8, "entropy": 8}
expected_norms = {"neither": 0.0, "KL": 0.0160, "entropy": 0.0132}
assert trained == expected_trained
for name, expected_norm in expected_norms.items():
    assert math.isclose(norms[name], expected_norm, abs_tol=5e-5)

# %% [markdown]
# ## The whole step
#
# Now the function that takes every step of this book. It has no model-specific line and samples
# nothing: it starts from graded or ungraded rollouts, which is where steps 2 and 3 begin. Old and
# reference log-probabilities come in as arguments, because they belong to the rollouts and not to
# the update.
#
# The helpers refuse what does not fit (rows of a prompt that do not stand side by side, a missing
# `cliprange`), grade the responses, and gather metrics. `clip_gradients` returns the norm that the
# gradient had *before* clipping and stops if it is not finite: one NaN in one weight would spoil
# the policy for good.

# %% tags=["hide-input"]
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from gsmrl_helpers.accumulation import check_objective, order_rows
from gsmrl_helpers.options import (
    AdvantageNormalizer,
    Baseline,
    ImportanceReweighting,
    KLEstimator,
    LossNormalization,
)
from gsmrl_helpers.rewards import RewardFn
from gsmrl_helpers.step_metrics import (
    changed_share,
    rollout_metrics,
    sample_parameters,
)
from gsmrl_helpers.train_step import (
    AccumulateFn,
    check_groups,
    check_step_options,
    clip_gradients,
    constants_of_loss,
    score_rollouts,
    training_metrics,
)


# %%
def one_step(step, **options) -> tuple[torch.nn.Module, dict]:
    policy = small_batch.make_policy()
    arguments = {
        "gradient_accumulation_steps": 3,
        "max_grad_norm": 1.0,
        "reward_fn": small_batch.last_number_reward_fn,
        "repeated_prompts": prompts,
        "rollout_responses": responses,
        "repeated_ground_truths": truths,
        "group_size": 4,
        "advantage_eps": 0.0,
    }
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    _, metadata = step(
        policy, tokenizer, optimizer, **{**arguments, **options}
    )
    return policy, metadata


# %% tags=["definition", "solution"]
def grpo_train_step(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    optimizer: torch.optim.Optimizer,
    gradient_accumulation_steps: int,
    max_grad_norm: float | None,
    reward_fn: RewardFn | None,
    repeated_prompts: Sequence[str],
    rollout_responses: Sequence[str],
    repeated_ground_truths: Sequence[str],
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: AdvantageNormalizer = "std",
    importance_reweighting_method: ImportanceReweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
    *,
    rollout_token_ids: Sequence[Sequence[int]] | None = None,
    raw_rewards: Tensor | Sequence[float] | None = None,
    kl_coef: float = 0.0,
    ref_log_probs: Tensor | None = None,
    kl_estimator: KLEstimator = "k3",
    entropy_coef: float = 0.0,
    accumulate: AccumulateFn = accumulate_gradients,
) -> tuple[Tensor, dict[str, float | None]]:
    """One optimizer step on the rollouts; returns the loss and metrics."""
    objective = Objective(
        importance_reweighting_method,
        cliprange,
        loss_normalization,
        normalization_constant,
        kl_coef,
        kl_estimator,
        entropy_coef,
    )
    check_step_options(gradient_accumulation_steps, max_grad_norm)
    check_objective(objective, old_log_probs, ref_log_probs)
    check_groups(repeated_prompts, repeated_ground_truths, group_size)

    # Rewards, and advantages within each group.
    rewards, format_rewards, answer_rewards = score_rollouts(
        reward_fn, rollout_responses, repeated_ground_truths, raw_rewards
    )
    advantages, group_metadata = compute_group_normalized_rewards(
        rewards, group_size, baseline, advantage_eps, advantage_normalizer
    )

    # Tokens, and what of the loss does not depend on the policy.
    batch = tokenize_prompt_and_output(
        repeated_prompts,
        rollout_responses,
        tokenizer,
        output_token_ids=rollout_token_ids,
    )
    batch |= constants_of_loss(
        batch["response_mask"], advantages, old_log_probs, ref_log_probs
    )

    # New log-probabilities, loss and gradient, microbatch by microbatch;
    # then clip and step.
    rows = order_rows(model, batch, rows_with_gradient(batch, objective))
    microbatch_size = math.ceil(len(advantages) / gradient_accumulation_steps)
    parameters_before = sample_parameters(model)
    try:
        loss, token_means = accumulate(
            model, batch, rows, objective, microbatch_size
        )
        grad_norm = clip_gradients(model, max_grad_norm)
        optimizer.step()
    finally:
        model.zero_grad(set_to_none=True)

    lengths = batch["response_mask"].sum(dim=1)
    return loss, {
        "loss": loss.item(),
        "grad_norm": grad_norm,
        **group_metadata,
        **training_metrics(batch, rows, token_means),
        **rollout_metrics(
            rewards, format_rewards, answer_rewards, lengths, group_size
        ),
        "changed_parameter_share": changed_share(
            parameters_before, sample_parameters(model)
        ),
    }


# %% tags=["check"]
stepped, metadata = one_step(grpo_train_step)
assert (stepped.table - table_after).abs().max() < 1e-12
assert math.isclose(metadata["grad_norm"], grad_norm, abs_tol=1e-12)
for options in (
    {"loss_normalization": "token", "max_grad_norm": 0.01},
    {"baseline": "none", "advantage_normalizer": "none"},
    {"entropy_coef": 0.1, "gradient_accumulation_steps": 1},
    {
        "importance_reweighting_method": "cispo",
        "cliprange": 0.1,
        "old_log_probs": equal["ref_log_probs"],
    },
):
    ours, our_metadata = one_step(grpo_train_step, **options)
    theirs, their_metadata = one_step(
        gsmrl_helpers.grpo_train_step, **options
    )
    assert (ours.table - theirs.table).abs().max() < 1e-12
    assert our_metadata == their_metadata

# %% [markdown]
# The checks compare it with the step in plain cells above, then with the package's own under four
# other sets of options. From here on the chapter uses the function of this cell.
#
# ## A step of a real policy
#
# The same function on the pocket policy of {doc}`00_pocket_world`: eight problems, eight answers to
# each. `Trainer` is what {doc}`13_run_grpo` builds for a run: the model, its AdamW optimizer and
# the engine that samples from it.

# %%
config = experiment_config(
    "smoke", "pocket", overrides={"attention": "eager"}
)
trainer = Trainer.from_config(config)
problems = load_problems(config, "train")[:8]

# %%
rollouts = trainer.sample(problems, 8, "train", 1)
sampled_ids = [c.token_ids for c in rollouts.completions]
old_log_probs = score(trainer, trainer.model, rollouts)

# %%
_, metadata = grpo_train_step(
    trainer.model,
    trainer.tokenizer,
    trainer.optimizer,
    gradient_accumulation_steps=4,
    max_grad_norm=1.0,
    reward_fn=trainer.prompt.reward_fn,
    repeated_prompts=rollouts.prompts,
    rollout_responses=[c.text for c in rollouts.completions],
    repeated_ground_truths=[p.gold for p in rollouts.problems],
    group_size=8,
    importance_reweighting_method="grpo",
    cliprange=0.2,
    old_log_probs=old_log_probs,
    rollout_token_ids=sampled_ids,
)

# %% tags=["nbval-ignore-output"]
shown = [
    *("mean_reward", "mean_format_reward", "response_length"),
    *("no_signal_group_share", "trained_row_share", "token_entropy"),
    *("loss", "grad_norm", "mean_ratio", "clip_fraction", "kl_to_ref"),
]
known = {n: metadata[n] for n in shown if metadata[n] is not None}
in_short = {n: f"{round(value, 3) + 0:g}" for n, value in known.items()}
report = [(n, in_short.get(n, "None"), STEP_METRICS[n]) for n in shown]
HTML(as_html(pd.DataFrame(report, columns=["metric", "value", "meaning"])))

# %% tags=["check"]
assert metadata["trained_row_share"] == 1 - metadata["no_signal_group_share"]
assert abs(metadata["mean_ratio"] - 1) < 1e-4
assert metadata["clip_fraction"] == 0 and metadata["kl_to_ref"] is None
assert metadata["mean_reward"] <= metadata["mean_format_reward"]
assert metadata["grad_norm"] > 0 and abs(metadata["loss"]) < 1e-4

# %% [markdown]
# Read it from the top. About one answer in ten is right, and more than half keep the format; the
# answers are some twenty tokens long. In half of the groups all eight were wrong. These have no
# signal and did not go through the model, so the entropy is that of the other half, as its
# definition says. The loss is 0 because this is a first update, and so the mean ratio is 1 and
# nothing was clipped: had one of the two been different, something would be broken. There is no
# reference policy, so there is no KL to it: `None`, not 0.
#
# (sec-12-every-token-once)=
# ### Every token once
#
# Most of what such a step puts through the model is repetition. All prompts begin with the same
# instructions, the template; each prompt stands before eight responses; and shorter rows are
# padded. Here are the rows that have a signal:

# %%
tokens = tokenize_prompt_and_output(
    rollouts.prompts,
    ["" for _ in sampled_ids],
    trainer.tokenizer,
    output_token_ids=sampled_ids,
)
real_advantages, _ = compute_group_normalized_rewards(
    torch.as_tensor(rollouts.rewards), 8
)
with_advantages = tokens | {"advantages": real_advantages}
rows = rows_with_gradient(with_advantages, Objective())
real = take_rows(tokens, rows, "cpu")

# %%
from gsmrl_helpers.prompt_tree import build_prompt_tree

tree = build_prompt_tree(real["input_ids"], real["response_mask"])
positions = {
    "all rows, padded": real["input_ids"].numel(),
    "response tokens": int(real["response_mask"].sum()),
    "the tree": len(tree.token_ids),
}

# %% tags=["nbval-ignore-output"]
pd.Series(positions, name="positions").to_frame()

# %% [markdown]
# The tree holds the template once, what each prompt adds to it once for its eight responses, and
# the responses without padding. A token of a response attends to the same tokens as in its row, so
# its log-probability is the same; and a gradient that eight rows send to the same prompt adds up,
# as gradients do. On a CPU the package sends OLMo-2 through this tree (`tree_hidden_states`). Other
# models, and all on a GPU, get whole rows, the longest first, so that a microbatch holds rows of
# like length (`order_rows`). In every case the head sees response tokens only
# ({doc}`09_log_probs_and_entropy`). The plain function is the judge, for values and for gradients:


# %%
def values_and_gradient(score_tokens) -> list[Tensor]:
    trainer.model.eval()
    scored = score_tokens(real["input_ids"], real["labels"])
    values = [v[real["response_mask"]] for v in scored.values()]
    weights = torch.linspace(-1, 1, len(values[0]))
    parameters = list(trainer.model.parameters())
    gradients = torch.autograd.grad((weights * values[0]).sum(), parameters)
    return [*values, torch.cat([g.flatten() for g in gradients])]


# %% tags=["check"]
plain = values_and_gradient(
    lambda ids, labels: get_response_log_probs(
        trainer.model, ids, labels, True
    )
)
fast = values_and_gradient(
    lambda ids, labels: score_responses(
        trainer.model, ids, labels, real["response_mask"]
    )
)
for wanted, found in zip(plain, fast, strict=True):
    assert (found - wanted).norm() < 2e-5 * wanted.norm()
assert positions["the tree"] < positions["all rows, padded"] / 4

# %% [markdown]
# (In float64, where rounding does not blur the comparison, the package's tests ask for equality to
# ten digits.)
#
# One more thing the loop does on a CPU: it passes `accumulate=accumulate_on_cores`, with which each
# of two cores accumulates the gradient of half of the rows, on a replica that reads the same
# weights. The two are then added. The halves are the same on any machine, and so is the sum.
#
# ### Two updates from one set of rollouts
#
# Now two updates from one set of rollouts, half of the rows each, as the package's training loop
# takes them. Which of its functions run, in which order, and which model computes the old
# log-probabilities?

# %%
parts = {
    "generate_completions": "sample",
    "compute_rollout_rewards": "reward",
    "score": "old log-probs",
    "compute_group_normalized_rewards": "advantages",
    "microbatch_loss": "new log-probs, loss, backward",
    "clip_gradients": "clip, step",
}
calls, scored_by = [], []


# %%
def note_call(frame, event, _) -> None:
    part = parts.get(frame.f_code.co_name) if event == "call" else None
    if part and calls[-1:] != [part]:
        calls.append(part)
    if part == "old log-probs":
        scored_by.append(frame.f_locals["model"])


# %%
two_updates = {"train_batch_size": 32, "cliprange": 0.2}
two_updates["importance_reweighting_method"] = "grpo"
looped = replace(trainer, config=config.model_copy(update=two_updates))
sys.setprofile(note_call)
update_policy(looped, looped.sample(problems, 8, "train", 2))
sys.setprofile(None)
print(*calls, sep="\n")

# %% tags=["check", "claim:W14"]
expected_once = ["sample", "reward", "old log-probs"]
expected_update = [
    "advantages",
    "new log-probs, loss, backward",
    "clip, step",
]
assert calls == expected_once + 2 * expected_update
expected_is_trained_model = [True]
is_trained_model = [model is looped.model for model in scored_by]
assert is_trained_model == expected_is_trained_model

# %% [markdown]
# Sampling, rewards and old log-probabilities come once, in this order; new log-probabilities, loss,
# backward, clip and step once per update. Steps 3 and 4 have changed places, and step 3 appears in
# each update: `grpo_train_step` is given rewards, so it computes the advantages of its rows itself.
# This changes nothing. Advantages depend only on the rewards of their own group, the rewards do not
# change, and an update holds whole groups:

# %% tags=["check"]
graded = torch.as_tensor(rollouts.rewards)
once, _ = compute_group_normalized_rewards(graded, 8)
halves = [compute_group_normalized_rewards(h, 8)[0] for h in graded.split(32)]
assert torch.equal(torch.cat(halves), once)

# %% [markdown]
# ## Broken on purpose
#
# Five faults follow, none of which raises an error. For each: the faulty line, a number that gives
# it away, and the check. The checks are functions of `gsmrl_helpers.diagnostics` and return a
# finding that says what was measured and what to do.
#
# ### Old log-probabilities with a graph
#
# Somebody forgets `no_grad()`. The ratio is then a function of $\theta$ above and below the
# fraction line, and since both policies are the same, both derivatives are: the ratio is 1
# whatever $\theta$ is. (`compute_policy_gradient_loss` detaches what it gets as old, for this
# reason; we write the loss out to see the fault.)


# %%
def plain_loss(
    batch: dict[str, Tensor], new: Tensor, old: Tensor, mask: Tensor
) -> Tensor:
    ratio = (new - old).exp()
    terms = -batch["advantages"][:, None] * ratio
    return aggregate_loss_across_microbatch(terms, mask)


# %%
policy = small_batch.make_policy()
with LiveBytes() as memory:
    new = scores(policy, batch)
    one_graph = memory.live
    old_with_graph = scores(policy, batch)
    two_graphs = memory.live

# %%
loss = plain_loss(batch, new, old_with_graph, mask)
loss.backward()
check_finite_gradients(policy)

# %% tags=["check", "claim:W17"]
expected_gradient, expected_memory_ratio = 0.0, 2.0
assert abs(policy.table.grad.abs().max() - expected_gradient) < 1e-15
assert abs(two_graphs / one_graph - expected_memory_ratio) < 1e-9
assert not check_finite_gradients(policy).ok

# %% tags=["check"]
policy.zero_grad()
new = scores(policy, batch)
plain_loss(batch, new, new.detach(), mask).backward()
assert (policy.table.grad - gradient).abs().max() < 1e-12
assert check_finite_gradients(policy).ok

# %% [markdown]
# The loss has its usual value. The gradient is 0 in every entry, and until the backward pass memory
# holds two graphs in place of one.
#
# ### A mask that was not shifted
#
# Labels are the ids moved by one place, and the mask has to move with them. Here it stays with the
# ids; next to it, the opposite mistake, a mask that was moved twice.

# %%
wrong_masks = {"not shifted": pad(mask, (1, -1)), "twice": pad(mask, (-1, 1))}
names = [tokenizer.convert_ids_to_tokens(row) for row in batch["labels"]]


def counted(mask: Tensor) -> list[str]:
    pairs = [
        zip(*pair, strict=True) for pair in zip(names, mask, strict=True)
    ]
    return [" ".join(name for name, on in pair if on) for pair in pairs]


# %%
shown_masks = {"right": mask, **wrong_masks}
pd.DataFrame(
    {f"mask {name}": counted(mask) for name, mask in shown_masks.items()},
    index=range(1, 9),
)

# %% [markdown]
# A mask that was not shifted loses the first token of every response, and all but the longest gain
# a token that nobody wrote: padding, which is `<eos>` here. So the choice after `=` is not trained
# at all, and each wrong answer but the longest, response 7, now says "less `<eos>`". A mask that
# was shifted twice counts the prompt's last token and loses the response's. Either sum of
# log-probabilities is a plausible number. A plain loop over single responses, without padding and
# masks, says that it is not the right one.

# %%
prompt_ids = [tokenizer.encode(text) for text in prompts]
response_ids = [tokenizer.encode(text) for text in responses]
not_shifted = {**batch, "response_mask": wrong_masks["not shifted"]}
check_mask_alignment(policy, not_shifted, prompt_ids, response_ids)

# %% tags=["check", "claim:W18"]
lost = {n: int((mask & ~wrong).sum()) for n, wrong in wrong_masks.items()}
gained = {n: int((wrong & ~mask).sum()) for n, wrong in wrong_masks.items()}
expected_lost = {"not shifted": 8, "twice": 8}
expected_gained = {"not shifted": 7, "twice": 8}
assert lost == expected_lost and gained == expected_gained
expected_is_right = {"right": True, "not shifted": False, "twice": False}
is_right = {
    name: check_mask_alignment(
        policy, {**batch, "response_mask": shown}, prompt_ids, response_ids
    ).ok
    for name, shown in shown_masks.items()
}
assert is_right == expected_is_right

# %% tags=["check"]
policy.zero_grad()
new = scores(policy, batch)
plain_loss(batch, new, new.detach(), wrong_masks["not shifted"]).backward()
after_equals = policy.table.grad[small_batch.VOCABULARY.index("=")]
assert (after_equals == 0).all() and (policy.table.grad != 0).any()

# %% [markdown]
# ### All samples equal
#
# Four requests for one answer to each problem, all with the same seed, or greedy decoding: the
# four answers to a problem are one answer. All rewards of a group are equal then, whether right or
# wrong.

# %%
requests = [trainer.sample(problems, 1, "train", 3) for _ in range(4)]
same = [r.completions[i] for i in range(8) for r in requests]
repeated = replace(rollouts, completions=same, group_size=4)
check_distinct_samples(repeated)

# %%
copies = ["so 4 ."] * 4 + ["5 ."] * 4
_, no_signal = one_step(grpo_train_step, rollout_responses=copies)
shown = ["mean_reward", "no_signal_group_share", "grad_norm", "token_entropy"]
values = {name: no_signal[name] for name in shown}
pd.Series(values, name="value", dtype=object).to_frame()

# %% tags=["check"]
assert not check_distinct_samples(repeated).ok
assert check_distinct_samples(rollouts).ok
assert no_signal["mean_reward"] == no_signal["no_signal_group_share"] == 1
assert no_signal["grad_norm"] == no_signal["trained_row_share"] == 0
assert no_signal["token_entropy"] is None

# %% [markdown]
# Even with every answer right there is nothing to learn. The symptom is the same as for a policy
# that solves all problems or none, so the share of groups without a signal does not tell them
# apart. Comparing the answers does.
#
# ### Each microbatch takes its own mean
#
# `loss.mean()` in each microbatch, divided by the number of microbatches. This is right as long as
# all microbatches are of one size. With 8 responses in microbatches of 3, the last two weigh half
# as much again as the others. Under the "token" normalisation the sizes are numbers of tokens, and
# they practically never agree.


# %%
def own_means(policy, batch, rows, objective, microbatch_size) -> None:
    policy.zero_grad()
    chunks = rows.split(microbatch_size)
    for chosen in chunks:
        own = take_rows(batch, chosen, rows.device)
        own_tokens = int(own["response_mask"].sum())
        own_objective = replace(objective, normalization_constant=own_tokens)
        loss, _ = microbatch_loss(policy, own, own_objective)
        (loss / len(chunks)).backward()


# %%
def error_by_size(normalization: str) -> dict[int, float]:
    whole, objective = full_batch_gradient(normalization), Objective()
    objective = replace(objective, loss_normalization=normalization)
    errors = {}
    for size in range(1, 9):
        own_means(policy, batch, torch.arange(8), objective, size)
        difference = policy.table.grad - whole
        errors[size] = (difference.norm() / whole.norm()).item()
    return errors


# %%
errors = pd.DataFrame({n: error_by_size(n) for n in ("sequence", "token")})
errors.rename_axis("rows in a microbatch").abs().round(2).T

# %% tags=["check"]
assert (errors["sequence"][[1, 2, 4, 8]] < 1e-12).all()
assert (errors["sequence"][[3, 5, 6, 7]] > 0.05).all()
assert (errors["token"][:7] > 0.05).all() and errors["token"][8] < 1e-12

# %% [markdown]
# *The error of the gradient, as a share of its length.* The check compares two splits of the same
# batch that no equal sizes can reconcile: single rows, and all rows but the last together.

# %%
check_accumulation(policy, batch, Objective(), own_means)

# %% tags=["check"]
for normalization in ("sequence", "token"):
    objective = Objective(loss_normalization=normalization)
    ours = (policy, batch, objective, accumulate_gradients)
    assert check_accumulation(*ours).ok
    assert not check_accumulation(policy, batch, objective, own_means).ok

# %% [markdown]
# ### Dropout left on
#
# Dropout sets random activations to 0 while a model trains. Two passes with the same weights then
# give different log-probabilities, and the ratio is not 1 before any update. `eval()` switches
# dropout off and builds a graph all the same; `no_grad()` builds no graph and leaves dropout on.
# The pocket policy is trained without dropout; we give its attention 10 %, and score two groups
# twice in each of the four combinations.

# %%
dropping = copy.deepcopy(trainer.model)
for layer in dropping.model.layers:
    layer.self_attn.attention_dropout = 0.1

# %%
real_batch = tokenize_prompt_and_output(
    rollouts.prompts[:16],
    [c.text for c in rollouts.completions[:16]],
    trainer.tokenizer,
    output_token_ids=sampled_ids[:16],
)

# %% tags=["nbval-ignore-output"]
torch.manual_seed(0)
switches = {}
for is_training in (True, False):
    for with_graph in (True, False):
        dropping.train(is_training)
        with torch.set_grad_enabled(with_graph):
            one, two = (scores(dropping, real_batch) for _ in range(2))
        ratio = (one - two).detach().exp()[real_batch["response_mask"]]
        off_by = (ratio - 1).abs()
        mode = "train()" if is_training else "eval()"
        grad = "with graph" if with_graph else "no_grad()"
        switches[mode, grad] = {
            "ratio is 1": bool(off_by.max() < 1e-3),
            "builds a graph": one.requires_grad,
            "ratio beyond .8 to 1.2": round(
                (off_by > 0.2).double().mean().item(), 2
            ),
            "largest ratio": f"{ratio.max().item():,.1f}",
        }
table_of_switches = pd.DataFrame(switches).T
table_of_switches

# %% tags=["check", "claim:W16"]
expected = {
    ("train()", "with graph"): [False, True],
    ("train()", "no_grad()"): [False, False],
    ("eval()", "with graph"): [True, True],
    ("eval()", "no_grad()"): [True, False],
}
for switch, expected_columns in expected.items():
    row = switches[switch]
    assert [row["ratio is 1"], row["builds a graph"]] == expected_columns
assert table_of_switches.iloc[:2, 2].min() > 0.1
largest = table_of_switches["largest ratio"].str.replace(",", "")
assert (largest.astype(float)[:2] > 1000).all()

# %% [markdown]
# Only the last row is fit for old log-probabilities, and the third for new ones. In the first two,
# more than one token in ten lies outside the clip range of .2, for a policy that has not moved:
# the gradient of some is cut for nothing, that of others multiplied. The largest ratio runs into
# the thousands and far beyond. It belongs to a token that one pass was almost sure of and the other
# thought next to impossible, because it had dropped what pointed there; without clipping, this one
# token outweighs the rest of the batch. Two checks find the fault, one by looking for modules that
# drop, one by measuring the largest distance from 1.

# %% tags=["nbval-ignore-output"]
dropping.train()
found = check_no_dropout(dropping), check_first_ratio(dropping, real_batch)
Findings(found)

# %% [markdown]
# A ratio that is not 1 has a second common cause. The engine that samples may run in another
# precision than the trainer, and its log-probabilities are then those of a slightly different
# policy. That is why step 4 scores with the model that is trained.

# %% tags=["check"]
dropping.eval()
assert check_no_dropout(dropping).ok
assert check_first_ratio(dropping, real_batch).ok

# %% tags=["check"]
sixteen_bits = copy.deepcopy(dropping).bfloat16()
with torch.no_grad():
    engine_log_probs = scores(sixteen_bits, real_batch)
assert not check_first_ratio(dropping, real_batch, engine_log_probs).ok

# %% [markdown]
# ## What a reward curve shows of it
#
# Would one have noticed without the checks? Let the table policy answer the first prompt only,
# `2 + 2 =`, for 30 steps with 16 new responses each, in two groups of eight. Its expected
# reward need not be estimated: it is the sum over all responses of up to eight tokens, which a
# table allows to compute exactly.

# %% tags=["hide-input"]
VOCABULARY = list(small_batch.VOCABULARY)


def sample_responses(
    policy, n: int, generator, one_seed: bool = False
) -> list[str]:
    """n responses of up to eight tokens; with `one_seed` n times the same."""
    cumulative = policy.table.detach().softmax(-1).cumsum(-1)
    shape = (1 if one_seed else n, 8)
    uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)
    token = torch.full((n,), VOCABULARY.index("="))
    columns = []
    for u in uniforms.expand(n, -1).unbind(dim=1):
        token = (cumulative[token] < u[:, None]).sum(-1).clamp(max=9)
        columns.append([VOCABULARY[i] for i in token])
    texts = [" ".join(row) for row in zip(*columns, strict=True)]
    return [
        text.split("<eos>")[0] + "<eos>" * ("<eos>" in text) for text in texts
    ]


# %% tags=["hide-input"]
def exact_reward(policy) -> float:
    """Σ π(y) r(y) for the prompt 2 + 2 =, by the state of a response:
    its present token, whether its last number is 4, whether it has a stop."""
    probs = policy.table.detach().softmax(-1)
    mass = torch.zeros(10, 2, 2, dtype=probs.dtype)
    mass[VOCABULARY.index("="), 0, 0] = 1
    for _ in range(8):
        ended, mass[0] = mass[0].clone(), 0
        mass = torch.einsum("vrs,vw->wrs", mass, probs)
        for number in "12345":
            at = VOCABULARY.index(number)
            moved, mass[at] = mass[at].sum(0), 0
            mass[at, int(number == "4")] = moved
        stop = VOCABULARY.index(".")
        moved, mass[stop] = mass[stop].sum(1), 0
        mass[stop, :, 1] = moved
        mass[0] += ended
    return mass[:, 1, 1].sum().item()


# %% tags=["check"]
generator = torch.Generator().manual_seed(1)
sampled = sample_responses(small_batch.make_policy(), 4000, generator)
graded = [
    small_batch.last_number_reward_fn(r, "4")["reward"] for r in sampled
]
exact = exact_reward(small_batch.make_policy())
assert math.isclose(exact, 0.4999, abs_tol=5e-5)
assert abs(sum(graded) / 4000 - exact) < 4 * (0.25 / 4000) ** 0.5

# %% tags=["check"]
twice = sample_responses(small_batch.make_policy(), 2, generator, True)
assert twice[0] == twice[1]

# %% [markdown]
# Each way of taking the step leaves a gradient in the table; the optimizer is the same SGD.


# %%
def sound(policy, batch) -> None:
    accumulate_gradients(policy, batch, torch.arange(16), Objective(), 16)


def graph_kept(policy, batch) -> None:
    new = scores(policy, batch)
    plain_loss(batch, new, new, batch["response_mask"]).backward()


# %%
def mask_unshifted(policy, batch) -> None:
    new, mask = scores(policy, batch), batch["response_mask"]
    plain_loss(batch, new, new.detach(), pad(mask, (1, -1))).backward()


def own_mean_of_15_and_1(policy, batch) -> None:
    own_means(policy, batch, torch.arange(16), Objective(), 15)


# %%
def reward_curve(set_gradient, seed: int, one_seed: bool = False) -> Tensor:
    policy, generator = small_batch.make_policy(), torch.Generator()
    generator.manual_seed(seed)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    curve = [exact_reward(policy)]
    for _ in range(30):
        texts = sample_responses(policy, 16, generator, one_seed)
        batch = tokenize_prompt_and_output(["2 + 2 ="] * 16, texts, tokenizer)
        rewards, _ = compute_rollout_rewards(
            small_batch.last_number_reward_fn, texts, ["4"] * 16
        )
        batch["advantages"], _ = compute_group_normalized_rewards(rewards, 8)
        optimizer.zero_grad()
        set_gradient(policy, batch)
        optimizer.step()
        curve.append(exact_reward(policy))
    return torch.tensor(curve)


# %%
ways = {
    "sound": (sound, False),
    "graph through the old log-probs": (graph_kept, False),
    "all samples equal": (sound, True),
    "mask not shifted": (mask_unshifted, False),
    "microbatch's own mean (15 + 1)": (own_mean_of_15_and_1, False),
}

# %%
curves = {
    name: torch.stack([reward_curve(way, seed, same) for seed in range(4)])
    for name, (way, same) in ways.items()
}

# %% tags=["hide-input"]
figure, axes = plt.subplots(
    2, 2, figsize=(9, 5.2), sharex=True, sharey=True, layout="constrained"
)
for ax, name in zip(axes.flat, list(curves)[1:], strict=True):
    for drawn, label, style in (
        ("sound", "sound", line("GRPO")),
        (name, "broken", line("wrong")),
    ):
        thin = {"color": style["color"], "lw": 1.0, "alpha": 0.6}
        ax.plot(curves[drawn].T, **thin)
        ax.plot(curves[drawn].mean(0), **style, lw=2, label=label)
    ax.set(title=name, ylim=(0.45, 1.0))
    ax.legend(loc="upper left")
for ax in axes[1]:
    ax.set_xlabel("step")
for ax in axes[:, 0]:
    ax.set_ylabel("expected reward")

# %% [markdown]
# *Exact expected reward over 30 steps, four seeds (thin) and their mean (thick), learning rate 1.
# Look at the lower row: broken steps that learn. In the upper row nothing moves, for two different
# reasons.*

# %%
last = pd.Series({name: c[:, -1].mean().item() for name, c in curves.items()})
last.rename("expected reward after 30 steps").to_frame().round(2)

# %% tags=["check"]
assert (curves["sound"][:, 0] - 0.4999).abs().max() < 5e-5
for flat in ("graph through the old log-probs", "all samples equal"):
    assert (curves[flat] - curves[flat][:, :1]).abs().max() < 1e-12
assert last["sound"] > 0.85
assert last["sound"] - last["mask not shifted"] > 0.04
assert abs(last["sound"] - last["microbatch's own mean (15 + 1)"]) < 0.02

# %% [markdown]
# The flat curves one would notice, without knowing which of several causes it is. The policy with
# the unshifted mask goes from .50 to .81: whoever has not seen .88 takes that for success, although
# its choice after `=` was never trained. And the microbatch's own mean leaves no trace here. It
# gives the last of the 16 responses half of the weight, so the gradient points the same way on
# average, with more noise. Uneven microbatches are the rule as soon as responses are left out. A
# reward curve is no test of a training step.
#
# ## All checks before the first step
#
# On a first step one knows what must hold: answers are distinct draws, no module drops activations,
# the ratio is 1, the masked sums equal a plain loop, gradients flow, microbatches add up.
# `check_first_step` runs all six checks on a trainer and its rollouts, and `gsmrl preflight`
# does so before a run is worth its time.

# %% tags=["nbval-ignore-output"]
trainer = Trainer.from_config(config)
findings = check_first_step(
    trainer, trainer.sample(problems[:4], 4, "train", 1)
)
findings

# %% tags=["check"]
assert findings.ok and len(findings.findings) == 6

# %% [markdown]
# ## Take away
#
# - A step: sample, reward, advantages and old log-probabilities, which stay the same for all
#   updates from these rollouts; then new log-probabilities, loss, backward, clip and optimizer
#   step, anew in each update.
# - The update of a softmax is a sum over tokens of weight times (one-hot − p). On the first update
#   after sampling, every method is REINFORCE with a group's baseline.
# - Microbatches divide by numbers of the whole batch. Responses with advantage 0 can be left out
#   if they stay in these numbers, if gradients start at 0, and if there is neither a KL nor an
#   entropy term.
# - A broken step seldom fails, and a rising reward does not acquit it. Compare with what is known
#   exactly: ratio 1, a plain loop, another split.
#
# ## Exercises
#
# ```{exercise} A constant instead of lengths
# :label: ex-12-constant
#
# *Easy, 10 minutes.* Dr. GRPO divides the sum over all tokens by a constant, here
# $Z = B\,G\,L_\text{max} = 64$. Write `constant_weights(advantages, mask, constant)`, which returns
# the weight $w$ of every token as an (N, T) tensor, so that `table_update` gives the change of the
# table.
#
# :::{dropdown} Hint
# No length occurs in it, and positions outside the mask weigh 0.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def constant_weights(
    advantages: Tensor, mask: Tensor, constant: float
) -> Tensor:
    return advantages[:, None] * mask / constant


# %% tags=["check"]
options = {"loss_normalization": "constant", "normalization_constant": Z}
stepped, _ = one_step(gsmrl_helpers.grpo_train_step, **options)
token_weights = constant_weights(advantages.double(), mask, Z)
change = stepped.table.detach() - table_before
assert (table_update(batch, token_weights) - change).abs().max() < 1e-12

# %% [markdown]
# ```{exercise} A trainer that averages
# :label: ex-12-averaging
#
# *Medium, 15 minutes.* Many training frameworks divide each microbatch's loss by the number of
# microbatches $K$, and yours hands you the mean over the microbatch's *own* responses (or tokens).
# Write `factor(own, whole, n_microbatches)`: what to multiply that mean by, so that the sum of the
# $K$ gradients is the whole batch's. `own` and `whole` are numbers of responses for "sequence" and
# of tokens for "token".
#
# :::{dropdown} Hint
# Write down the sum that should come out, and the sum that does.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def factor(own: int, whole: int, n_microbatches: int) -> float:
    return n_microbatches * own / whole


# %% tags=["check"]
for normalization in ("sequence", "token"):
    policy = small_batch.make_policy()
    for rows in torch.arange(8).split([1, 5, 2]):
        part = take_rows(batch, rows, rows.device)
        own_tokens = int(part["response_mask"].sum())
        objective = Objective("none", None, normalization, own_tokens)
        loss, _ = microbatch_loss(policy, part, objective)
        is_token = normalization == "token"
        own, whole = (own_tokens, 20) if is_token else (len(rows), 8)
        (loss / 3 * factor(own, whole, 3)).backward()
    error = policy.table.grad - full_batch_gradient(normalization)
    assert error.abs().max() < 1e-12

# %% [markdown]
# ```{exercise} Three broken steps
# :label: ex-12-three-steps
#
# *Medium, 15 minutes.* A first step was taken three times on fresh rollouts, each time with another
# fault, in two folded cells (their code gives the faults away). The table shows what was
# logged. Write `diagnose(report)`, which returns `"dropout"`, `"graph"` or `"equal samples"`
# for a dictionary with `grad_norm`, `mean_ratio` and `no_signal_group_share`.
#
# :::{dropdown} Hint
# Two of them have the same gradient. What differs is whether there was anything to learn.
# :::
# ```

# %% tags=["hide-input"]
policy = small_batch.make_policy()
new = scores(policy, batch)
plain_loss(batch, new, new, mask).backward()
noise = 0.3 * torch.randn(new.shape, generator=generator)
ratio_options = {"importance_reweighting_method": "noclip"}
ratio_options["old_log_probs"] = new.detach() + noise

# %% tags=["hide-input"]
symptoms = ["grad_norm", "mean_ratio", "no_signal_group_share"]
package_step = gsmrl_helpers.grpo_train_step
reports = {
    "A": one_step(package_step, **ratio_options)[1],
    "B": {
        "grad_norm": policy.table.grad.norm().item(),
        "mean_ratio": 1.0,
        "no_signal_group_share": 0.0,
    },
    "C": one_step(package_step, rollout_responses=copies)[1],
}
logged = {
    name: ["None" if row[s] is None else f"{row[s]:.3f}" for s in symptoms]
    for name, row in reports.items()
}
pd.DataFrame(logged, symptoms)


# %% tags=["solution", "hide-cell"]
def diagnose(report: dict[str, float | None]) -> str:
    if report["no_signal_group_share"] == 1:
        return "equal samples"
    return "graph" if report["grad_norm"] == 0 else "dropout"


# %% tags=["check"]
assert diagnose(reports["A"]) == "dropout"
assert diagnose(reports["B"]) == "graph"
assert diagnose(reports["C"]) == "equal samples"

# %% [markdown]
# ## Next
#
# {doc}`13_run_grpo` repeats this step a hundred times, samples in between, and writes everything
# down.
