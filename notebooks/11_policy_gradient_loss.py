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
# # The policy-gradient loss
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** turn advantages into a loss whose gradient an optimizer can follow, say
# how much each token weighs in it under three ways to average, and say for each of five losses
# which tokens it still moves once the policy has changed since it sampled.
#
# **You need** log-probabilities ({doc}`09_log_probs_and_entropy`) and advantages
# ({doc}`10_advantages`). **Reading** takes 30 minutes, **running** less than a minute, on a
# **CPU**.
# ```
#
# We carry on with the small batch: two prompts, four responses to each ($B = 2$, $G = 4$), one row
# a response and so $N = BG = 8$ rows, each $T$ positions wide. The policy $\pi_\theta$ is a table,
# and $\theta$ that table's logits.

# %%
import copy
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gsmrl_helpers import (
    LocalEngine,
    compute_group_normalized_rewards,
    compute_rollout_rewards,
    experiment_config,
    get_response_log_probs,
    load_policy,
    load_problems,
    rl,
    small_batch,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.losses import (
    as_column,
    check_importance_options,
    check_normalization_options,
    check_shapes,
    kl_estimate,
)
from gsmrl_helpers.options import ImportanceReweighting, LossNormalization
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.rollouts import sample_rollouts

use_style()
policy, tokenizer = small_batch.make_policy(), small_batch.make_tokenizer()

# %% [markdown]
# ## What we have so far
#
# Token ids and the response mask, rewards, and an advantage $A$ for each response: the reward
# minus its group's mean, divided by the group's standard deviation. (The small number that is
# usually added to the divisor is 0 here, so that the numbers stay round.)

# %%
batch = tokenize_prompt_and_output(
    small_batch.repeated_prompts, small_batch.rollout_responses, tokenizer
)
mask = batch["response_mask"]
lengths = mask.sum(dim=1)
rewards, _ = compute_rollout_rewards(
    small_batch.last_number_reward_fn,
    small_batch.rollout_responses,
    small_batch.repeated_ground_truths,
)
advantages, _ = compute_group_normalized_rewards(
    rewards.double(), small_batch.GROUP_SIZE, advantage_eps=0.0
)

# %%
pd.DataFrame(
    {
        "prompt": small_batch.repeated_prompts,
        "response": small_batch.rollout_responses,
        "tokens": lengths.tolist(),
        "A": advantages.round(decimals=4).tolist(),
    },
    index=range(1, 9),
)

# %% tags=["check"]
half = math.sqrt(3) / 2
by_hand = [half, -half, -half, half, 1.5, -0.5, -0.5, -0.5]
assert np.allclose(advantages, by_hand)
assert lengths.tolist() == [4, 3, 2, 2, 2, 1, 4, 2]

# %% [markdown]
# ## A minus sign
#
# We want to go up the expected reward $J(\theta)$. REINFORCE {cite}`williams1992reinforce` says
# which way that is: for every token $y_t$ of a sampled response, along
# $A\,\nabla_\theta \log \pi_\theta(y_t)$, where $\pi_\theta(y_t)$ is short for the probability of
# the token given the prompt and all tokens before it. An optimizer wants a number to go down on,
# and finds the direction by itself. So we hand it a number with that gradient and a minus sign:
#
# $$\ell_t = -A \log \pi_\theta(y_t).$$


# %%
def on_small_batch(policy: torch.nn.Module) -> Tensor:
    """(N, T): log-probabilities of the labels of the small batch."""
    scored = get_response_log_probs(
        policy, batch["input_ids"], batch["labels"]
    )
    return scored["log_probs"]


# %%
log_probs = on_small_batch(policy)
token_loss = -advantages[:, None] * log_probs


# %% [markdown]
# All 20 response tokens, each beside the number of its response and with its term of the loss. A
# term is positive where the advantage is, as log-probabilities are negative.


# %%
def token_table(**columns: Tensor) -> pd.DataFrame:
    """One row for each response token, under its response's number."""
    ids = batch["labels"][mask].tolist()
    table = pd.DataFrame({"token": [small_batch.VOCABULARY[i] for i in ids]})
    for name, values in columns.items():
        table[name] = values.detach().expand_as(mask)[mask]
    return table.set_axis((mask.nonzero()[:, 0] + 1).tolist()).round(4)


# %%
token_table(
    π=log_probs.exp(), log_π=log_probs, A=advantages[:, None], loss=token_loss
)

# %% [markdown]
# The derivative of $\ell_t$ with respect to its own log-probability is $-A$. So an optimizer that
# steps against it makes tokens with a positive advantage likelier.

# %% tags=["check", "claim:A16"]
(slope,) = torch.autograd.grad(
    token_loss[mask].sum(), log_probs, retain_graph=True
)
expected = [-0.866, 0.866, 0.866, -0.866, -1.5, 0.5, 0.5, 0.5]
for row, number in enumerate(expected):
    assert np.allclose(slope[row, mask[row]], number, rtol=0, atol=5e-4)

# %% [markdown]
# Drop the sign, and the same optimizer unlearns what was right.


# %%
def change_after_one_step(sign: float) -> Tensor:
    """Change of each response's log-probability in one step of SGD."""
    moved = copy.deepcopy(policy)
    terms = sign * advantages[:, None] * on_small_batch(moved)
    terms[mask].sum().backward()
    torch.optim.SGD(moved.parameters(), lr=0.01).step()
    change = on_small_batch(moved) - log_probs
    return change.masked_fill(~mask, 0.0).sum(dim=1).detach()


# %% tags=["check"]
weighted = [(advantages * change_after_one_step(s)).sum() for s in (-1, 1)]
assert weighted[0] > 0 and weighted[1] < 0

# %% [markdown]
# ## What a token does to the policy
#
# Our policy's row of logits for the present token gives, through a softmax, the probabilities $p$
# of the next. There the gradient can be written down:
#
# $$\nabla \ell_t = -A\,(\text{one-hot}(y_t) - p).$$
#
# Take the second token of response 2, "5" after "so". From "so" the policy goes on to "4", "5" and
# "so" with probabilities .5, .25, .25, and $A = -.866$. The step against the gradient takes logit
# from "5", and gives it to the others in proportion to their probabilities.

# %%
id_of = small_batch.VOCABULARY.index
so, equals = id_of("so"), id_of("=")
columns = [id_of("so"), id_of("4"), id_of("5")]

# %% tags=["check"]
second_token = token_loss[1, mask[1]][1]
(gradient,) = torch.autograd.grad(
    second_token, policy.table, retain_graph=True
)
p, one_hot = np.array([0.25, 0.5, 0.25]), np.array([0, 0, 1])
assert np.allclose(gradient[so, columns], half * (one_hot - p))

# %% [markdown]
# The sum over all tokens, without any division yet. A row belongs to the present token, a column
# to the next.

# %%
(gradient,) = torch.autograd.grad(
    token_loss[mask].sum(), policy.table, retain_graph=True
)
visited = ["=", "so", "4", "5", "."]
gradient_table = pd.DataFrame(gradient, *[small_batch.VOCABULARY] * 2)
gradient_table = gradient_table.loc[visited, ["so", "4", "5", ".", "<eos>"]]
gradient_table.round(4) + 0.0

# %% [markdown]
# The row of "=" can be added up by hand. Each response chooses there once, so the advantages in
# this row sum to 0 and the terms with $p$ cancel. What is left is minus the sum of the
# advantages of the responses that chose "so" (1, 2, 7), "4" (4, 6, 8) and "5" (3, 5).

# %% tags=["check"]
chose = {"so": [1, 2, 7], "4": [4, 6, 8], "5": [3, 5]}
for token, responses in chose.items():
    total = sum(by_hand[number - 1] for number in responses)
    assert math.isclose(gradient_table.loc["=", token], -total)

# %% [markdown]
# ## Three ways to average
#
# One loss has to come out of 20 terms. By what are they divided? Three answers are in use, and they
# are not the same objective.
#
# - **sequence**: the mean over each response's tokens, then the mean over responses. So did GRPO
#   {cite}`shao2024deepseekmath`. A token of a response with $L$ tokens weighs $1/(BG\,L)$.
# - **constant**: the sum, divided by a number $Z$ that does not depend on the responses. Dr. GRPO
#   {cite}`liu2025drgrpo` takes $Z = BG\,L_{\max}$, where $L_{\max}$ is the sampler's limit.
# - **token**: the sum, divided by the number of response tokens in the whole batch, as in DAPO
#   {cite}`yu2025dapo`. All tokens of a batch weigh the same; how much, depends on the batch.
#
# What stands at prompt and padding positions must not matter, be it infinite or NaN.


# %% tags=["definition", "solution"]
def aggregate_loss_across_microbatch(
    per_token_policy_gradient_loss: Tensor,
    mask: Tensor,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
) -> Tensor:
    """One loss from the (N, T) losses of the response tokens."""
    check_normalization_options(loss_normalization, normalization_constant)
    check_shapes(per_token_policy_gradient_loss, mask=mask)
    mask = mask.bool()
    # Not a product with the mask: inf · 0 is NaN.
    losses = per_token_policy_gradient_loss.masked_fill(~mask, 0.0)
    if loss_normalization == "sequence":
        lengths = mask.sum(dim=1).clamp(min=1)
        return (losses.sum(dim=1) / lengths).mean()
    return losses.sum() / normalization_constant


# %% [markdown]
# Suppose that the sampler's limit was 8 tokens, so $Z = 8 \cdot 8 = 64$. The terms of a response
# sum to $-A$ times the logarithm of its probability, so that this table can be checked by hand:
# response 1, with probability .1, has $.866 \cdot 2.3026 = 1.9941$.

# %% tags=["check", "claim:A17a", "claim:A17b", "claim:A17c"]
L_MAX = 8
constants = {"sequence": None, "constant": 8 * L_MAX, "token": 20}
losses = {
    name: aggregate_loss_across_microbatch(token_loss, mask, name, constant)
    for name, constant in constants.items()
}
expected = {"sequence": -0.0536, "constant": -0.0091, "token": -0.0291}
for name, number in expected.items():
    assert abs(losses[name].item() - number) < 5e-5

spoiled = token_loss.detach().masked_fill(~mask, math.inf)
spoiled[0, -1] = math.nan  # padding
spoiled.requires_grad_()
for name, constant in constants.items():
    loss = aggregate_loss_across_microbatch(spoiled, mask, name, constant)
    assert math.isclose(loss.item(), losses[name].item())
    (gradient,) = torch.autograd.grad(loss, spoiled)
    assert gradient.isfinite().all() and not gradient[~mask].any()

# %%
sums = token_loss.masked_fill(~mask, 0.0).sum(dim=1).tolist()
averages = pd.DataFrame(
    {"tokens": lengths.tolist(), "sum": sums}, index=range(1, 9)
)
averages["sequence"] = averages["sum"] / averages["tokens"] / 8
averages["constant"] = averages["sum"] / 64
averages["token"] = averages["sum"] / 20
averages.loc["loss"] = averages.sum()
averages.round(4)

# %% tags=["check"]
probabilities = [0.1, 0.1, 0.2, 0.2, 0.2, 0.25, 0.05, 0.2]
for number, (A, p) in enumerate(
    zip(by_hand, probabilities, strict=True), start=1
):
    assert math.isclose(averages.loc[number, "sum"], -A * math.log(p))
for name in losses:
    assert math.isclose(averages.loc["loss", name], losses[name].item())

# %% [markdown]
# ### A long wrong answer gets off lightly
#
# Two wrong answers, $A = -1$, one of 16 tokens and one of 2. Under "sequence" each token of the
# long one is pushed down with $1/16$, each of the short one with $1/2$: eight times as hard. A
# policy that does not know the answer is punished less, token for token, if it rambles. The other
# two treat the tokens alike. (Below, weights times the number of responses; $L_{\max}$ is 16.)


# %%
def token_weights(
    mask: Tensor, advantage: float, name: str, constant: float | None
) -> Tensor:
    """(N, T): minus the gradient at each log-probability, times N."""
    log_probs = torch.zeros(mask.shape, requires_grad=True)
    loss = aggregate_loss_across_microbatch(
        -advantage * log_probs, mask, name, constant
    )
    (gradient,) = torch.autograd.grad(loss, log_probs)
    return -gradient * len(mask)


# %%
two_answers = torch.arange(16) < torch.tensor([[16], [2]])
weights = pd.DataFrame(index=["16 tokens", "2 tokens"])
for name, constant in {"sequence": None, "constant": 32, "token": 18}.items():
    found = token_weights(two_answers, -1.0, name, constant)
    weights[name] = found[:, 0].tolist()
weights.round(4)

# %% tags=["check", "claim:W13"]
expected = [-0.0625, -0.5]
assert weights["sequence"].tolist() == expected
expected_quotient = 8
assert expected[1] / expected[0] == expected_quotient
assert weights["constant"].nunique() == weights["token"].nunique() == 1

# %% [markdown]
# ### The constant is a constant
#
# In the assignment, with 32 prompts, 8 responses each and at most 512 tokens,
# $Z = BG\,L_{\max} = 131{,}072$ at every step. (MaxRL's own paper {cite}`tajwar2026maxrl` divides
# by the tokens of the batch; the assignment gives all its variants the same $Z$, so that they
# differ in one thing only.)

# %% tags=["check", "claim:A33"]
config = experiment_config("on-policy", "two_gpu")
Z = config.prompts_per_step * config.group_size * config.sampling_max_tokens
expected = 131_072
assert expected == Z

# %% [markdown]
# A tempting mistake is to take $L$ from the tensor at hand, `token_loss.shape[1]`. That width
# follows the longest row of a microbatch, prompt included. Here are our eight responses, put
# through the model two at a time, each pair cut to its own width:

# %% tags=["check"]
pairs = torch.arange(8).split(2)
widths = [int(mask[pair].any(dim=0).nonzero().max()) + 1 for pair in pairs]
assert widths == [7, 5, 7, 9]

# %% [markdown]
# A token of response 3 would now weigh $1/(8 \cdot 5)$, one of response 7 $1/(8 \cdot 9)$, for no
# better reason than their neighbours. In the row of "=", one entry even changes its sign.


# %%
def gradient_after_equals(divisors: list[float]) -> list[float]:
    """Gradient at "so", "4", "5" after "=", a divisor for each pair."""
    loss = sum(
        aggregate_loss_across_microbatch(
            token_loss[pair], mask[pair], "constant", divisor
        )
        for pair, divisor in zip(pairs, divisors, strict=True)
    )
    (gradient,) = torch.autograd.grad(loss, policy.table, retain_graph=True)
    return gradient[equals, columns].tolist()


# %%
right = gradient_after_equals([64] * 4)
wrong = gradient_after_equals([8 * width for width in widths])
pd.DataFrame(
    [right, wrong], ["Z = 64", "Z = 8 · width"], ["so", "4", "5"]
).round(4)

# %% tags=["check"]
assert np.allclose(right, gradient_table.loc["=", ["so", "4", "5"]] / 64)
assert right[1] > 0.002 and wrong[1] < -0.004

# %% [markdown]
# The first row also shows a virtue of a fixed divisor: losses of microbatches simply add up, as
# they do for "token" if every microbatch is given the *whole* batch's 20. For "sequence", a mean
# over few responses, each microbatch's loss must first be multiplied by its share of the batch.

# %% tags=["check"]
for name, constant in constants.items():
    share = 2 / 8 if name == "sequence" else 1.0
    parts = [
        share
        * aggregate_loss_across_microbatch(
            token_loss[pair], mask[pair], name, constant
        )
        for pair in pairs
    ]
    assert math.isclose(sum(parts).item(), losses[name].item())

# %% [markdown]
# ## The loss is not a loss
#
# A loss in supervised learning measures how bad a model is. This one measures nothing. It was built
# to have a certain gradient at the present $\theta$, and its value is a by-product.
#
# The plainest case: write the loss with the ratio of the policy to itself,
# $-A\,\pi_\theta(y_t)/\pi_{\text{old}}(y_t)$ with $\pi_{\text{old}} = \pi_\theta$ held fixed. Every
# ratio is 1, so under "sequence" the value is minus the mean advantage, and that is 0 at every
# first update, however good or bad the policy is. The gradient is not 0.

# %% tags=["check"]
ratio = (log_probs - log_probs.detach()).exp()
loss = aggregate_loss_across_microbatch(-advantages[:, None] * ratio, mask)
(gradient,) = torch.autograd.grad(loss, policy.table, retain_graph=True)
print(f"loss {abs(loss.item()):.4f}, gradient norm {gradient.norm():.4f}")
assert abs(loss.item()) < 1e-12 and gradient.norm() > 0.07

# %% [markdown]
# And the value of $-A \log \pi_\theta$ need not fall while the policy gets better. To see that
# without the noise of sampling, we train the table with *all* responses of at most four tokens to
# "2 + 2 =", each weighted by its probability. The expected reward $J$ is then known exactly, and a
# response with reward $R$ has the advantage $R - J$.


# %%
def every_response(last: str = "=", room: int = 4) -> list[list[str]]:
    """All responses of at most `room` tokens that the table allows."""
    if last == "<eos>" or room == 0:
        return [[]]
    return [
        [token, *rest]
        for token in small_batch.NEXT_TOKEN_PROBS[last]
        for rest in every_response(token, room - 1)
    ]


# %%
responses = [" ".join(tokens) for tokens in every_response()]
of_each, _ = compute_rollout_rewards(
    small_batch.last_number_reward_fn, responses, ["4"] * len(responses)
)
print(len(responses), "responses,", int(of_each.sum()), "of them right")

# %%
table = small_batch.make_policy()
everything = tokenize_prompt_and_output(
    ["2 + 2 ="] * len(responses), responses, tokenizer
)
inputs = [everything[k] for k in ("input_ids", "labels", "response_mask")]
optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
history = []
for _ in range(60):
    log_p = rl.sequence_logprob(table, *inputs)
    p = log_p.detach().exp()
    J = (p * of_each).sum()
    loss = -(p * (of_each - J) * log_p).sum()
    history.append((J.item(), loss.item()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
J_seen, loss_seen = np.array(history).T

# %% tags=["hide-input"]
figure, (left, right_ax) = plt.subplots(
    1, 2, figsize=(8.4, 2.8), layout="constrained"
)
left.plot(J_seen, **line("right"))
left.set(title="Expected reward J", ylabel="share of right answers")
left.set(xlabel="step", ylim=(0, 1))
right_ax.plot(loss_seen, **line("none"))
_ = right_ax.set(title="The loss, −A log π", ylabel="nats", xlabel="step")
# %% [markdown]
# *The same 60 steps. The expected reward rises at every one of them. The "loss" falls for a few
# steps, then rises, and ends above where it began.*

# %% tags=["check", "claim:A18"]
expected_J = [0.475, 0.971]
assert np.allclose(J_seen[[0, -1]], expected_J, rtol=0, atol=5e-4)
assert (np.diff(J_seen) > 0).all()
expected_loss = [-0.145, -0.118]
assert np.allclose(loss_seen[[0, -1]], expected_loss, rtol=0, atol=5e-4)
assert np.argmin(loss_seen) < 10
assert (np.diff(loss_seen[10:]) > 0).all()

# %% [markdown]
# So neither a falling nor a rising loss is news. What to watch instead are rewards, and the other
# measures of {doc}`12_grpo_train_step`.
#
# ## When the policy has moved
#
# Sampling is slow, so one would like to take several steps on the same responses. After the first,
# they come from an *old* policy $\pi_{\text{old}}$, no longer from $\pi_\theta$. The ratio
#
# $$r_t = \frac{\pi_\theta(y_t)}{\pi_{\text{old}}(y_t)}$$
#
# says how much likelier each token has become since. Let the table of the small batch move like
# this:

# %%
moved_probs = {
    "=": {"so": 0.65, "4": 0.225, "5": 0.125},
    "so": {"4": 0.75, "5": 0.15, "so": 0.1},
    "5": {".": 0.6, "<eos>": 0.4},
}
moved = small_batch.make_policy()
for present, following in moved_probs.items():
    for token, p in following.items():
        moved.table.data[id_of(present), id_of(token)] = math.log(p)

# %%
old_log_probs = log_probs.detach()
new_log_probs = on_small_batch(moved)
ratio = (new_log_probs - old_log_probs).exp().detach()
token_table(
    π_old=old_log_probs.exp(),
    π=new_log_probs.exp(),
    ratio=ratio,
    A=advantages[:, None],
)

# %% tags=["check"]
ratios_by_hand = [
    [1.3, 1.5, 1, 1],
    [1.3, 0.6, 0.75],
    [0.5, 0.75],
    [0.9, 1],
    [0.5, 0.75],
    [0.9],
    [1.3, 0.4, 1.5, 1],
    [0.9, 1],
]
for row, numbers in enumerate(ratios_by_hand):
    assert np.allclose(ratio[row, mask[row]], numbers)

# %% [markdown]
# Five losses put this ratio to use, or do not. $\varepsilon$ is the clip range (`cliprange`), .2
# unless we say otherwise.
#
# **none** goes on with $-A \log \pi_\theta(y_t)$, as if nothing had happened. It is exact for fresh
# samples, and biased for old ones.
#
# **noclip** is $-A\,r_t$. Its gradient is $-A\,r_t \nabla \log \pi_\theta(y_t)$: what has become
# likelier weighs more. Nothing holds the weight back.
#
# The exponential needs some care. In float32 $e^{89}$ is infinite, and infinity times 0 is NaN.
# A log-ratio of 20 already says "far off", so from there on the package follows the tangent.

# %% tags=["definition"]
MAX_LOG_RATIO = 20.0


def bounded_exp(x: Tensor, minus_one: bool = False) -> Tensor:
    """exp(x), or exp(x) - 1, continued beyond x = 20 by its tangent."""
    # clamp would drop a NaN's gradient
    head = torch.where(x > MAX_LOG_RATIO, MAX_LOG_RATIO, x)
    tangent = math.exp(MAX_LOG_RATIO) * (x - MAX_LOG_RATIO).clamp(min=0.0)
    return (head.expm1() if minus_one else head.exp()) + tangent


# %% tags=["check"]
usual, far = torch.linspace(-30, 20, 101), torch.tensor([89.0, 1000.0])
assert torch.equal(bounded_exp(usual), usual.exp())
assert far.exp().isinf().all() and bounded_exp(far).isfinite().all()

# %% [markdown]
# ### clip: PPO and GRPO
#
# PPO {cite}`schulman2017ppo` and GRPO take the smaller of two objectives:
#
# $$\ell_t = -\min\bigl(A\,r_t,\; A\,\text{clip}(r_t, 1-\varepsilon, 1+\varepsilon)\bigr).$$
#
# Where the clipped one is smaller, the term is constant and the token has no gradient. That is so
# in two of four cases: a good token that is already $1+\varepsilon$ times as likely, and a bad one
# that is already less than $1-\varepsilon$ times as likely. A token that went the wrong way keeps
# its full gradient, and can come back.


# %% tags=["definition", "solution"]
def clipped_loss(
    advantages: Tensor, ratio: Tensor, cliprange: float
) -> tuple[Tensor, Tensor]:
    """-min(A r, A clip(r, 1-ε, 1+ε)), and where it clips."""
    objective = advantages * ratio
    clipped = advantages * ratio.clamp(1 - cliprange, 1 + cliprange)
    return -torch.minimum(objective, clipped), clipped < objective


# %% tags=["check"]
good_and_bad = torch.tensor([[1.0], [-1.0]])
r = torch.tensor([[1.5, 0.5], [1.5, 0.5]], requires_grad=True)
loss, is_clipped = clipped_loss(good_and_bad, r, 0.2)
(gradient,) = torch.autograd.grad(loss.sum(), r)
assert torch.allclose(loss, torch.tensor([[-1.2, -0.5], [1.5, 0.8]]))
assert gradient.tolist() == [[0.0, -1.0], [1.0, 0.0]]
assert is_clipped.tolist() == [[True, False], [False, True]]

# %% [markdown]
# ### GSPO: one ratio for a response
#
# A reward is earned by a whole response, so GSPO {cite}`zheng2025gspo` reweights whole responses.
# The ratio of the responses' probabilities would be $\prod_t r_t$, which for hundreds of tokens is
# nearly 0 or enormous. GSPO takes the geometric mean
#
# $$s = \Bigl(\prod_{t=1}^{L} r_t\Bigr)^{1/L}
#   = \exp\Bigl(\frac{1}{L} \sum_{t=1}^{L} \log r_t\Bigr)$$
#
# and clips that. It is computed as on the right: with 300 tokens of ratio 1.5 the product
# overflows.

# %% tags=["check"]
many = torch.full((300,), 1.5)
assert many.prod().isinf()
assert math.isclose(many.log().mean().exp().item(), 1.5, rel_tol=1e-5)

# %% [markdown]
# The gradient of $s$ is $s\,\frac{1}{L}\sum_t \nabla \log \pi_\theta(y_t)$. Each token thus gets
# $s/L$. Our losses are averaged over tokens afterwards, and under "sequence" that mean is where the
# $1/L$ comes from. So each token needs a copy of $s$ with the gradient
# $s\,\nabla \log \pi_\theta(y_t)$, its own and no other's. The factor
# $\pi_\theta(y_t)/\text{sg}(\pi_\theta(y_t))$ does it, where sg stops the gradient: it has the
# value 1, and the gradient of the logarithm.


# %% tags=["definition", "solution"]
def sequence_ratio(
    log_probs: Tensor, old_log_probs: Tensor, mask: Tensor
) -> Tensor:
    """s of each response, (N, T), with the gradient s ∇log π at token t."""
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratio = (log_probs - old_log_probs).sum(dim=1, keepdim=True)
    # value 1, gradient ∇log π
    own_gradient = (log_probs - log_probs.detach()).exp()
    return bounded_exp(log_ratio / lengths).detach() * own_gradient


# %% [markdown]
# For response 1 the ratios are 1.3, 1.5, 1 and 1, so $s = 1.95^{1/4} = 1.1817$. The mean over its
# four tokens has the gradient of $s$ itself, taken straight from the definition.

# %% tags=["check"]
new, old = (
    values.masked_fill(~mask, 0.0)
    for values in (new_log_probs, old_log_probs)
)
s = sequence_ratio(new, old, mask)
assert abs(s[0, 0].item() - 1.1817) < 5e-5
straight = ((new - old).sum(dim=1) / lengths).exp()
assert torch.allclose(s, straight[:, None].expand_as(s))
token_mean = (s * mask).sum(dim=1) / lengths
gradients = [
    torch.autograd.grad(v.sum(), new, retain_graph=True)[0][mask]
    for v in (token_mean, straight)
]
assert torch.allclose(*gradients)

# %% [markdown]
# ### CISPO: cap the weight, keep the gradient
#
# Clipping silences a token altogether. MiniMax {cite}`minimax2025m1` saw that this met rare tokens
# first, such as "However" and "Wait", at which an answer turns around. CISPO clips only the
# *weight* of the gradient, and only from above:
#
# $$\ell_t = -A\;\text{sg}\bigl(\min(r_t, 1+\varepsilon)\bigr) \log \pi_\theta(y_t).$$


# %% tags=["definition", "solution"]
def cispo_loss(
    advantages: Tensor, log_probs: Tensor, ratio: Tensor, cliprange: float
) -> tuple[Tensor, Tensor]:
    """-A sg(min(r, 1+ε)) log π, and where the weight is capped."""
    weight = ratio.detach().clamp(max=1 + cliprange)
    return -advantages * weight * log_probs, ratio > 1 + cliprange


# %% tags=["check"]
log_p = torch.tensor([[0.75, 0.25]] * 2).log().requires_grad_()
loss, is_clipped = cispo_loss(good_and_bad, log_p, log_p.exp() / 0.5, 0.2)
(gradient,) = torch.autograd.grad(loss.sum(), log_p)
assert torch.allclose(gradient, torch.tensor([[-1.2, -0.5], [1.2, 0.5]]))
assert is_clipped.tolist() == [[True, False]] * 2

# %% [markdown]
# ### All five
#
# Side by side they are one short function. `is_clipped` says which tokens the clip has touched.


# %% tags=["definition", "solution"]
def reweighted_loss(
    method: ImportanceReweighting,
    advantages: Tensor,
    log_probs: Tensor,
    old_log_probs: Tensor,
    mask: Tensor,
    cliprange: float | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(N, T) losses; log-probabilities are 0 at masked positions."""
    ratio = bounded_exp(log_probs - old_log_probs)
    is_clipped = torch.zeros_like(mask)
    match method:
        case "none":
            loss = -advantages * log_probs
        case "noclip":
            loss = -advantages * ratio
        case "grpo":
            loss, is_clipped = clipped_loss(advantages, ratio, cliprange)
        case "gspo":
            ratios = sequence_ratio(log_probs, old_log_probs, mask)
            loss, is_clipped = clipped_loss(advantages, ratios, cliprange)
        case "cispo":
            loss, is_clipped = cispo_loss(
                advantages, log_probs, ratio, cliprange
            )
    return loss, {"ratio": ratio.detach(), "is_clipped": is_clipped & mask}


# %% [markdown]
# On fresh samples all ratios are 1, and the five have one gradient: that of REINFORCE.

# %% tags=["check"]
METHODS = ["none", "noclip", "grpo", "gspo", "cispo"]
A = advantages[:, None]
fresh = old.clone().requires_grad_()
for method in METHODS:
    loss, info = reweighted_loss(method, A, fresh, old, mask, 0.2)
    (gradient,) = torch.autograd.grad(loss[mask].sum(), fresh)
    assert torch.allclose(gradient[mask], -A.expand_as(mask)[mask])
    assert (info["ratio"] == 1).all() and not info["is_clipped"].any()

# %% [markdown]
# The assignment's function adds what makes it safe to call: options are checked, advantages become
# a column, old log-probabilities become constants, and what stands at prompt and padding positions
# is replaced by 0 *before* anything is computed from it.


# %% tags=["definition", "solution"]
def compute_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor,
    policy_log_probs: Tensor,
    importance_reweighting_method: ImportanceReweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    response_mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Minus the policy-gradient objective at every token, (N, T)."""
    method = importance_reweighting_method
    check_importance_options(method, old_log_probs, cliprange)
    advantages = as_column(raw_rewards_or_advantages, policy_log_probs)
    check_shapes(
        policy_log_probs,
        old_log_probs=old_log_probs,
        response_mask=response_mask,
    )
    if old_log_probs is None:
        return -advantages * policy_log_probs, {}

    if response_mask is None:
        if method == "gspo":
            raise ValueError(
                "importance_reweighting_method='gspo' needs "
                "response_mask, got None"
            )
        response_mask = ~(
            policy_log_probs.isneginf() | old_log_probs.isneginf()
        )
    mask = response_mask.bool()
    log_probs = policy_log_probs.masked_fill(~mask, 0.0)
    old_log_probs = old_log_probs.detach().masked_fill(~mask, 0.0)
    return reweighted_loss(
        method, advantages, log_probs, old_log_probs, mask, cliprange
    )


# %% tags=["check"]
first, old = {}, old_log_probs.clone().requires_grad_()
for method in METHODS:
    loss, _ = compute_policy_gradient_loss(
        advantages, new_log_probs, method, old, 0.2, mask
    )
    first[method] = loss[0, mask[0]][0].item() / half
    (at_old,) = torch.autograd.grad(
        loss.sum(), old, retain_graph=True, allow_unused=True
    )
    assert at_old is None  # no gradient reaches the old policy
assert len(set(first.values())) == 5

# %% tags=["check"]
assert math.isclose(first["none"], -math.log(0.65))
assert math.isclose(first["noclip"], -1.3)
assert math.isclose(first["grpo"], -1.2)
assert math.isclose(first["gspo"], -(1.95**0.25))
assert math.isclose(first["cispo"], -1.2 * math.log(0.65))

# %% [markdown]
# ## The five as pictures
#
# We follow one token of a response of four, while the other three keep ratio 1. The old policy
# gave it the probability .25. Below each loss stands *minus* its gradient, the push on
# $\log \pi_\theta(y_t)$: above 0 the token becomes likelier.


# %%
def over_the_ratio(
    ratios: Tensor, method: str, advantage: float
) -> tuple[Tensor, Tensor]:
    """Loss of the first of four tokens, and the push on its log π."""
    old = torch.full((len(ratios), 4), math.log(0.25), dtype=torch.float64)
    new = old.clone()
    new[:, 0] += ratios.log()
    new.requires_grad_()
    A, mask = torch.full((len(ratios),), advantage), torch.ones_like(old)
    loss, _ = compute_policy_gradient_loss(A, new, method, old, 0.2, mask)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return loss[:, 0].detach(), -gradient[:, 0]


# %% tags=["hide-input"]
NAMES = {"grpo": "clip"}  # the figure's name where it isn't the option's
WIDE = {"linewidth": 5, "alpha": 0.5}  # under what coincides with it
ratios = torch.linspace(0.05, 3, 600, dtype=torch.float64)
figure, axes = plt.subplots(
    2, 2, figsize=(8.4, 6.4), sharex=True, sharey="row", layout="constrained"
)
for column, advantage in enumerate((1.0, -1.0)):
    for method in METHODS:
        name = NAMES.get(method, method)
        curves = over_the_ratio(ratios, method, advantage)
        for row in (0, 1):
            style = line(name) | (WIDE if name == "noclip" else {})
            axes[row, column].plot(ratios, curves[row], label=name, **style)
    for ax in axes[:, column]:
        ax.axvspan(0.8, 1.2, color="0.9", zorder=0)
        ax.axhline(0, color="0.7", lw=0.8, zorder=1)
    axes[0, column].set(title=f"advantage {'+−'[column]}1")
    axes[1, column].set(xlabel="ratio of the token")
axes[0, 0].set(ylabel="loss of the token")
axes[1, 0].set(ylabel="push: − gradient of the loss")
handles, labels = axes[0, 0].get_legend_handles_labels()
_ = figure.legend(handles, labels, loc="outside lower center", ncols=5)
# %% [markdown]
# *Grey: the clip range, .8 to 1.2. "clip" is the option "grpo". All five push alike at ratio 1,
# where the curves of the lower row meet. To the right, for a good token (left column), "clip" falls
# to 0 at 1.2 and "gspo" at $1.2^4 = 2.07$, as one token moves the mean of four only so far; "cispo"
# stays at 1.2, "noclip" goes on rising. For a bad token (right column), "clip" falls silent on the
# other side, below .8, and "gspo" below $.8^4 = .41$.*
#
# Two things are easily missed. The heights in the upper row mean nothing, and for "cispo" not even
# the slope does: behind the stop gradient its weight changes with the ratio, and the gradient does
# not see it. And "clip" is no bound: for a bad token that has become likelier its push grows with
# the ratio, as that of "noclip" does.

# %% tags=["check"]
at = torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5], dtype=torch.float64)
push = {
    (method, sign): over_the_ratio(at, method, sign)[1].numpy()
    for method in METHODS
    for sign in (1.0, -1.0)
}
assert np.allclose(push["none", 1.0], 1)
assert np.allclose(push["noclip", 1.0], at)
assert np.allclose(push["grpo", 1.0], [0.5, 1, 0, 0, 0])
assert np.allclose(push["grpo", -1.0], [0, -1, -1.5, -2, -2.5])
assert np.allclose(push["cispo", 1.0], [0.5, 1, 1.2, 1.2, 1.2])
assert (push["gspo", 1.0] > 0).tolist() == [True] * 4 + [False]
assert math.isclose(push["gspo", 1.0][3], 2**0.25)

# %% [markdown]
# ## How much is clipped
#
# The share of clipped tokens is worth logging. It is a share of *response tokens*: padding does not
# count, and a clipped response counts in GSPO with all its tokens. For our batch, after the move:

# %%
shares = {}
for method, cliprange in [
    ("grpo", 0.2),
    ("cispo", 0.2),
    ("gspo", 0.2),
    ("gspo", 3e-4),
]:
    _, info = compute_policy_gradient_loss(
        advantages, new_log_probs, method, old_log_probs, cliprange, mask
    )
    clipped = info["is_clipped"][mask]
    shares[f"{method}, ε = {cliprange:g}"] = clipped.double().mean().item()
pd.Series(shares, name="clipped share of the 20 tokens").to_frame()

# %% [markdown]
# By hand: "grpo" clips the first two tokens of response 1 (good, ratios 1.3 and 1.5), two of
# response 2 (bad, .6 and .75), both of response 3, and the .4 of response 7: 7 of 20. "cispo" caps
# the five ratios above 1.2, whatever the advantage. For GSPO a range of .2 is wide: response 3,
# with $s = \sqrt{.375} = .61$, is the only bad one below .8, and no good one is above 1.2. At
# $3 \cdot 10^{-4}$, the assignment's value, all responses that have moved the right way are silent.

# %% tags=["check"]
assert list(shares.values()) == [7 / 20, 5 / 20, 2 / 20, 16 / 20]

# %% [markdown]
# ## Padding may hold anything
#
# An engine may report −∞ at padding, and other code leaves NaN there. A product with the mask does
# not remove these: $\infty \cdot 0$ is NaN. `masked_fill` does, in the value and in the gradient.

# %% tags=["check"]
clean = new_log_probs.detach(), old_log_probs
dirty = [values.masked_fill(~mask, -math.inf) for values in clean]
dirty[0][0, -1] = math.nan
assert (dirty[0] * mask).sum().isnan()
results = []
for values, old_values in (clean, dirty):
    values = values.clone().requires_grad_()
    for method in METHODS:
        token_loss, _ = compute_policy_gradient_loss(
            advantages, values, method, old_values, 0.2, mask
        )
        loss = aggregate_loss_across_microbatch(token_loss, mask)
        (gradient,) = torch.autograd.grad(loss, values)
        results.append(torch.cat([gradient.flatten(), loss[None]]).detach())
assert all(result.isfinite().all() for result in results)
assert all(map(torch.equal, results[:5], results[5:]))

# %% [markdown]
# ## Short names
#
# A course page on RLHF and GRPO that this book follows names its functions differently. They are
# all here, in `gsmrl_helpers.rl`, each a line or two on the components:
#
# | function | is |
# |---|---|
# | `group_advantages(rewards)` | `compute_group_normalized_rewards`, rewards as $(B, G)$ |
# | `sequence_logprobs(model, input_ids, labels)` | `get_response_log_probs`, per token |
# | `sequence_logprob(model, input_ids, labels, mask)` | their sum over each response |
# | `grpo_loss(logprobs, old_logprobs, advantages, mask)` | "grpo", averaged by "sequence" |
# | `dr_grpo_loss(…, max_completion_length)` | "grpo", divided by $BG\,L_{\max}$ |
# | `kl_penalty_k3(logprobs, ref_logprobs, mask)` | `kl_estimate`, averaged by "sequence" |
#
# The last one is a price for leaving a reference policy $\pi_{\text{ref}}$. With
# $u = \pi_{\text{ref}}(y_t)/\pi_\theta(y_t)$, `kl_estimate` gives each token
# $k_3 = u - 1 - \log u$. It is never negative, and on tokens sampled from $\pi_\theta$ it estimates
# $\text{KL}(\pi_\theta \,\|\, \pi_{\text{ref}})$ ({doc}`03_sorting_toy`). A token that is half as
# likely as under the reference has $u = 2$ and pays $1 - \log 2 = .3069$.

# %% tags=["check"]
token_loss, _ = compute_policy_gradient_loss(
    advantages, new_log_probs, "grpo", old_log_probs, 0.2, mask
)
grouped = rl.group_advantages(rewards.double().reshape(2, 4), eps=0.0)
arguments = new_log_probs, old_log_probs, grouped, mask
assert torch.equal(
    rl.grpo_loss(*arguments),
    aggregate_loss_across_microbatch(token_loss, mask),
)
assert torch.equal(
    rl.dr_grpo_loss(*arguments, max_completion_length=L_MAX),
    aggregate_loss_across_microbatch(token_loss, mask, "constant", 64),
)

# %% tags=["check"]
now, reference = new_log_probs.detach(), old_log_probs
u = (reference - now).exp()
k3 = u - 1 - u.log()
assert torch.allclose(kl_estimate(now, reference), k3)
assert math.isclose(ratio[4, mask[4]][0], 0.5)
assert math.isclose(k3[4, mask[4]][0], 0.3069, abs_tol=5e-5)
assert torch.allclose(
    rl.kl_penalty_k3(now, reference, mask),
    aggregate_loss_across_microbatch(k3, mask),
)

# %% [markdown]
# ## On the pocket policy
#
# The same functions take a real model. Eight rollouts of each of eight problems; those whose group
# has rewards apart are kept, and two updates are made on them.

# %% tags=["nbval-ignore-output"]
config = experiment_config("on-policy", "pocket")
model, pocket_tokenizer = load_policy(config)
model.eval()
rollouts = sample_rollouts(
    LocalEngine(model, pocket_tokenizer),
    config.prompt_object(),
    load_problems(config, "train")[:8],
    group_size=8,
    seed=0,
    temperature=1.0,
    top_p=1.0,
    max_tokens=48,
)

# %% tags=["nbval-ignore-output"]
pocket_advantages, _ = compute_group_normalized_rewards(rollouts.rewards, 8)
kept = (pocket_advantages != 0).nonzero().flatten().tolist()
pocket = tokenize_prompt_and_output(
    [rollouts.prompts[i] for i in kept],
    [rollouts.completions[i].text for i in kept],
    pocket_tokenizer,
    output_token_ids=[rollouts.completions[i].token_ids for i in kept],
)
pocket_mask = pocket["response_mask"]
print(len(kept), "responses,", int(pocket_mask.sum()), "tokens")

# %% tags=["nbval-ignore-output"]
optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
pocket_old, rows = None, []
for _ in range(3):
    now = rl.sequence_logprobs(model, pocket["input_ids"], pocket["labels"])
    pocket_old = now.detach() if pocket_old is None else pocket_old
    arguments = now, pocket_old, pocket_advantages[kept], pocket_mask
    loss = rl.grpo_loss(*arguments)
    log_ratio = (now - pocket_old).detach().masked_fill(~pocket_mask, 0.0)
    log_s = log_ratio.sum(dim=1) / pocket_mask.sum(dim=1)
    rows.append(
        (loss.item(), log_ratio[pocket_mask].std().item(), log_s.std().item())
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% tags=["nbval-ignore-output"]
pocket_table = pd.DataFrame(
    rows, columns=["loss", "spread of log r", "spread of log s"]
).rename_axis("updates so far")
pocket_table.round(4)

# %% [markdown]
# The loss starts at 0, as it must. And look at the two spreads: the mean of a response's 20-odd
# log-ratios varies several times less than they do, as means do. With hundreds of tokens it
# varies less still. A clip range of .2 would hardly ever touch it, which is one reason why GSPO's
# is so narrow.

# %% tags=["check"]
assert abs(pocket_table["loss"][0]) < 1e-5
assert (pocket_table.iloc[0, 1:] == 0).all()
quotient = pocket_table["spread of log r"] / pocket_table["spread of log s"]
assert (quotient[1:] > 2.5).all()

# %% [markdown]
# ## Take away
#
# - The loss is minus advantage times log-probability. Its gradient is the policy gradient; its
#   value means nothing and need not fall.
# - "sequence" gives every response the same weight, and so a token of a long one less. "constant"
#   and "token" give all tokens of a batch the same. A constant is fixed before training: never a
#   tensor's width.
# - On fresh samples all five losses have the same gradient. Later, "clip" silences tokens that
#   have already gone far enough the right way, GSPO does so with whole responses, and CISPO
#   silences none.
# - Means of log-ratios, not roots of products; `masked_fill`, not a product with the mask.
#
# ## Exercises
#
# ```{exercise} Silent tokens
# :label: ex-11-silent-tokens
#
# *Easy, 5 minutes.* Write `is_silent(method, advantage, ratio, cliprange)`: is the gradient of a
# response with one single token exactly 0? Use comparisons only, no autograd.
#
# :::{dropdown} Hint
# What is the geometric mean of a single ratio? And what does an advantage of 0 do?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def is_silent(
    method: str, advantage: float, ratio: float, cliprange: float
) -> bool:
    """Say whether a token that is its whole response has no gradient."""
    if advantage == 0:
        return True
    if method not in ("grpo", "gspo"):
        return False
    if advantage > 0:
        return ratio > 1 + cliprange
    return ratio < 1 - cliprange


# %% tags=["check"]
for method in METHODS:
    for advantage in (-2.0, 0.0, 1.0):
        for r in (0.5, 0.85, 1.0, 1.15, 1.5):
            log_p = torch.tensor([[math.log(r)]], requires_grad=True)
            A, zero, one = (torch.tensor([[x]]) for x in (advantage, 0.0, 1))
            loss, _ = compute_policy_gradient_loss(
                A, log_p, method, zero, 0.2, one
            )
            (slope,) = torch.autograd.grad(loss.sum(), log_p)
            assert is_silent(method, advantage, r, 0.2) == (slope.item() == 0)

# %% [markdown]
# ```{exercise} What a token weighs
# :label: ex-11-token-weight
#
# *Easy, 5 minutes.* Write `token_weight(lengths, name, max_length)`: the weight of one token of
# each response in the loss, for the given lengths of all responses in the batch. `name` is
# "sequence", "constant" (with $Z$ = responses · `max_length`) or "token".
#
# :::{dropdown} Hint
# The weights of all tokens together sum to 1 for "sequence" and "token". For "constant" they
# sum to the share of the allowed tokens that were used.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def token_weight(
    lengths: list[int], name: str, max_length: int
) -> list[float]:
    """Weight of one token of each response under a normalization."""
    n = len(lengths)
    if name == "sequence":
        return [1 / (n * length) for length in lengths]
    divisor = n * max_length if name == "constant" else sum(lengths)
    return [1 / divisor] * n


# %% tags=["check"]
for name, constant in {"sequence": None, "constant": 32, "token": 18}.items():
    # of minus the log-probability, times N = 2
    found = token_weights(two_answers, 1.0, name, constant)[:, 0] / 2
    assert np.allclose(found, token_weight([16, 2], name, 16))

# %% [markdown]
# ```{exercise} A clip on one side
# :label: ex-11-one-sided
#
# *Medium, 10 minutes.* Write `one_sided_loss(advantages, ratio, cliprange)`:
# $-\min(A\,r, A\min(r, 1+\varepsilon))$, per token, with no lower bound. Before running the
# check, say what becomes of tokens with a negative advantage.
#
# :::{dropdown} Hint
# `clipped_loss` with another `clamp`. For $A < 0$, which of the two products is the smaller?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def one_sided_loss(
    advantages: Tensor, ratio: Tensor, cliprange: float
) -> Tensor:
    """-min(A r, A min(r, 1+ε)): for A < 0 that is -A r, unclipped."""
    capped = ratio.clamp(max=1 + cliprange)
    return -torch.minimum(advantages * ratio, advantages * capped)


# %% tags=["check"]
r = torch.linspace(0.05, 3, 60)
loss = one_sided_loss(good_and_bad, r.expand(2, -1), 0.2)
two_sided, _ = clipped_loss(good_and_bad, r.expand(2, -1), 0.2)
assert torch.equal(loss[0], two_sided[0])  # good: as PPO clips
assert torch.equal(loss[1], r)  # bad: never clipped
assert not torch.equal(loss[1], two_sided[1])

# %% [markdown]
# ```{exercise} How long until the product fails
# :label: ex-11-product
#
# *Medium, 10 minutes.* Write `first_failure(ratio)`: the smallest number of tokens, each with this
# float32 ratio, whose product is 0 or infinite. Then compare with the lengths of answers to GSM8K,
# which run to a few hundred tokens.
#
# :::{dropdown} Hint
# Multiply in a loop. The product of no ratios is 1. Above 0, the smallest number that float32 can
# hold is $2^{-149}$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def first_failure(ratio: float) -> int:
    """The shortest response whose product of ratios leaves float32."""
    product, length = torch.tensor(1.0), 0
    while product.isfinite() and product > 0:
        product, length = product * ratio, length + 1
    return length


# %% tags=["check"]
assert first_failure(1.5) == 219
assert first_failure(0.5) == 150  # 2 ** -150 rounds to 0
for ratio, length in ((1.5, 219), (0.5, 150)):
    mean_log = torch.full((length,), ratio).log().mean()
    assert math.isclose(mean_log.exp().item(), ratio, rel_tol=1e-5)

# %% [markdown]
# ## Next
#
# {doc}`12_grpo_train_step` puts rewards, advantages, log-probabilities and this loss together into
# one step of GRPO, and breaks it on purpose.
