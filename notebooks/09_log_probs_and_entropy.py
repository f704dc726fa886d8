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
# # Log-probabilities and entropy
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** compute the log-probability of a response token by token, say what an
# average of entropies averages, and score responses over a vocabulary of 100,352 tokens without
# running out of memory.
#
# **You need** the shifted labels and the response mask of {doc}`08_tokenization_and_masks`.
# **Reading** takes 25 minutes, **running** half a minute, on a **CPU**.
# ```
#
# A policy gradient asks the model for one number per response token: how likely was this token,
# given all before it? The model answers with something else, a score for each token of its
# vocabulary. What lies between is one formula, and it can go wrong without an error: by overflow,
# by too few bits, by averaging in the wrong place, and by needing more memory than there is.

# %%
import math
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from gsmrl_helpers import (
    experiment_config,
    get_prompt,
    load_pocket_problems,
    load_policy,
    small_batch,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.options import require_positive_integer
from gsmrl_helpers.plots import line, use_style

use_style()

# %% [markdown]
# ## The probability of a response
#
# We write $x$ for the prompt, $y = (y_1, \dots, y_L)$ for the $L$ tokens of the response and
# $\pi_\theta$ for the policy, the language model with parameters $\theta$. A response is written
# token by token, so its probability is a product (the chain rule), and its logarithm is a sum:
#
# $$
# \pi_\theta(y \mid x) = \prod_{t=1}^{L} \pi_\theta(y_t \mid x, y_{<t}),
# \qquad
# \log \pi_\theta(y \mid x) = \sum_{t=1}^{L} \log \pi_\theta(y_t \mid x, y_{<t}).
# $$
#
# The batch that chapters 08 to 12 share has a policy that one can look up. It sees the last token
# only, and a table says what may follow.

# %%
next_probs = small_batch.NEXT_TOKEN_PROBS
pd.DataFrame(next_probs).T.fillna(0.0).rename_axis("after", axis=0)

# %% [markdown]
# The second response to the prompt `2 + 2 =` is `so 5 .`, three tokens. The prompt ends with `=`,
# so that is where the first one is looked up.

# %%
tokens = ["=", *small_batch.RESPONSES[1].split()]
steps = pd.DataFrame({"after": tokens[:-1], "token": tokens[1:]})
steps["probability"] = [next_probs[a][token] for a, token in pairwise(tokens)]
steps["log-probability"] = [math.log(p) for p in steps["probability"]]
steps.round(4)

# %% tags=["check", "claim:W8a", "claim:W8b", "claim:W8c", "claim:W8d"]
total = steps["log-probability"].sum()
mean = steps["log-probability"].mean()
expected_product, expected_log = 0.1, -2.3026
expected_mean, expected_geometric_mean = -0.7675, 0.4642
assert math.isclose(steps["probability"].prod(), expected_product)
assert math.isclose(total, expected_log, abs_tol=5e-5)
assert math.isclose(math.log(expected_product), total)
assert math.isclose(mean, expected_mean, abs_tol=5e-5)
assert math.isclose(math.exp(mean), expected_geometric_mean, abs_tol=5e-5)

# %% [markdown]
# The response has probability .1 and log-probability −2.3026. The *mean* log-probability is
# −.7675, and $e^{-.7675} = .4642$ is the geometric mean of the three probabilities. That is not
# the probability of anything: it says how likely a token was on average, and it does not shrink as
# responses grow longer.
#
# The first response, `so 4 . <eos>`, is as likely as the second, with one token more. The sum sees
# no difference between the two. The mean does: its geometric mean is .5623 and not .4642.

# %% tags=["check", "claim:W30"]
tokens = ["=", *small_batch.RESPONSES[0].split()]
first = [next_probs[after][token] for after, token in pairwise(tokens)]
assert first == [0.5, 0.5, 0.8, 0.5]
expected = 0.1
assert math.isclose(math.prod(first), expected)
assert math.isclose(math.prod(first) ** (1 / 4), 0.5623, abs_tol=5e-5)

# %% [markdown]
# A test of the difference: the probabilities of all pairs of tokens that may follow `=` add up
# to 1. Their geometric means don't.

# %%
two_tokens = [
    p * q
    for token, p in next_probs["="].items()
    for q in next_probs[token].values()
]
geometric_means = [p**0.5 for p in two_tokens]
print(f"{sum(two_tokens):.2f} and {sum(geometric_means):.2f}")

# %% tags=["check"]
assert len(two_tokens) == 7 and math.isclose(sum(two_tokens), 1)
assert math.isclose(sum(geometric_means), 2.55, abs_tol=0.005)

# %% [markdown]
# Products of probabilities are never computed as such. At .5 a token, a response of 1,024 tokens
# has the probability $2^{-1024}$, and float32 calls anything below about $10^{-45}$ zero. Its
# log-probability is −709.8, a number like any other.

# %% tags=["check"]
assert torch.full((1024,), 0.5).prod() == 0
log_prob = torch.full((1024,), 0.5).log().sum().item()
assert math.isclose(log_prob, -709.8, abs_tol=0.05)

# %% [markdown]
# ## From logits to log-probabilities
#
# A language model returns logits: one real number $z_v$ for each of the $V$ tokens of its
# vocabulary. Softmax turns them into probabilities, and its logarithm is the logit minus a number
# that all tokens share:
#
# $$
# p_v = \frac{e^{z_v}}{\sum_u e^{z_u}},
# \qquad
# \log p_v = z_v - \operatorname{logsumexp}(z),
# \qquad
# \operatorname{logsumexp}(z) = \log \sum_u e^{z_u}.
# $$
#
# Written down as it stands, it works on small logits only: $e^{89}$ is more than float32 can hold,
# and $e^{-110}$ is 0 to it.


# %%
def naive_logsumexp(logits: Tensor) -> Tensor:
    return logits.exp().sum(dim=-1).log()


examples = torch.tensor([[2.0, 1.0, 0.0], [102.0, 101.0, 100.0]])
examples = torch.cat([examples, examples[1:] - 222])
print(naive_logsumexp(examples))

# %% tags=["check"]
assert torch.tensor([89.0, -110.0]).exp().tolist() == [math.inf, 0]
assert naive_logsumexp(examples)[1:].tolist() == [math.inf, -math.inf]

# %% [markdown]
# The three rows differ by a constant, so they have the same probabilities. The second overflows
# to infinity, the third asks for the logarithm of 0. The cure is a constant as well. With
# $m = \max_u z_u$,
#
# $$
# \log \sum_u e^{z_u} = m + \log \sum_u e^{z_u - m},
# $$
#
# and now the largest term of the sum is $e^0 = 1$: nothing overflows, and the sum is at least 1.


# %%
def logsumexp(logits: Tensor) -> Tensor:
    """log Σ_v exp(z_v) over the last dimension, which it keeps."""
    largest = logits.max(dim=-1, keepdim=True).values
    exponentials = (logits - largest).exp()
    return largest + exponentials.sum(dim=-1, keepdim=True).log()


print(logsumexp(examples).squeeze(-1))


# %% tags=["definition"]
def plain_log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last dimension: (..., V) to (..., V)."""
    return logits - logsumexp(logits)


# %% tags=["check"]
from gsmrl_helpers.log_probs import log_softmax

expected = [-0.4076, -1.4076, -2.4076]
difference = plain_log_softmax(examples) - torch.tensor(expected)
assert difference.abs().max() < 5e-5
logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * 100
assert torch.allclose(
    plain_log_softmax(logits), log_softmax(logits), atol=1e-4
)

# %% [markdown]
# The package calls `torch.log_softmax`, which does the same in one pass. Taking
# `softmax(...).log()` instead is a second way to fall: a probability too small for a float becomes
# 0, and its logarithm $-\infty$.

# %% tags=["check"]
far_apart = torch.tensor([0.0, -200.0])
assert far_apart.softmax(-1).log().tolist() == [0, -math.inf]
assert log_softmax(far_apart).tolist() == [0, -200]

# %% [markdown]
# ## How many bits
#
# Large models compute in bfloat16, which keeps 8 significant bits. Between 2 and 4 its numbers are
# 1/64 apart, and $\ln .1 = -2.3026$ becomes −2.2969. That looks harmless until two such numbers
# are subtracted. The ratio of a token's probability under the new and the old policy is
# $e^{\log \pi_\theta - \log \pi_\text{old}}$, and one update may move a log-probability
# by thousandths.

# %%
old = torch.tensor(0.1).log()
moves = torch.tensor([0.005, -0.004])
ratios = {
    name: ((old + moves).to(dtype) - old.to(dtype)).float().exp()
    for name, dtype in {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }.items()
}
pd.DataFrame(ratios, index=["moved by +.005", "moved by -.004"]).round(4)

# %% tags=["check"]
assert old.bfloat16().item() == -2.296875
assert torch.tensor(9.03).bfloat16().item() == 9
expected = {"float32": [1.0050, 0.9960], "bfloat16": [1.0000, 0.9845]}
for name, ratio in ratios.items():
    assert (ratio - torch.tensor(expected[name])).abs().max() < 5e-5

# %% [markdown]
# In bfloat16 the first move is lost, and the second is four times too large. Rare tokens fare
# worse, as the numbers are 1/16 apart between 8 and 16.
#
# Two roundings have to be told apart. If the model computes in bfloat16, its logits are already
# rounded, and nothing brings the lost bits back. Rounding the log-probabilities once more is our
# own choice. On 200 random distributions over 1,000 tokens:

# %%
generator = torch.Generator().manual_seed(0)
logits = 3 * torch.randn(200, 1000, generator=generator, dtype=torch.float64)
exact = logits.log_softmax(-1)
ways = {
    "all in float32": logits.float().log_softmax(-1),
    "bfloat16 logits, then float32": log_softmax(logits.bfloat16()),
    "all in bfloat16": logits.bfloat16().log_softmax(-1),
}
errors = {
    name: (way - exact).abs().mean().item() for name, way in ways.items()
}
for name, error in errors.items():
    print(f"{name:30}: mean error {error:.3f}")

# %% tags=["check"]
float32, rounded_logits, all_bfloat16 = errors.values()
assert float32 < 1e-6
assert 0.004 < rounded_logits < 0.009 and 0.01 < all_bfloat16 < 0.02

# %% [markdown]
# So the package converts logits to float32 before anything else, and leaves float64 as it is.


# %% tags=["definition"]
def log_softmax(logits: Tensor) -> Tensor:
    """log softmax in float32 at least: (..., V) to (..., V)."""
    return logits.to(
        torch.promote_types(logits.dtype, torch.float32)
    ).log_softmax(dim=-1)


# %% tags=["check"]
for given, returned in {
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}.items():
    scored = log_softmax(torch.tensor([1.0, 1.0], dtype=given))
    assert scored.dtype == returned
    assert math.isclose(scored[0].item(), -math.log(2), abs_tol=1e-7)

# %% [markdown]
# ## Entropy
#
# The log-probability speaks of the token that was chosen. The entropy speaks of the choice: how
# spread out the distribution was,
#
# $$
# H = -\sum_{v=1}^{V} p_v \ln p_v ,
# $$
#
# in nats, as the logarithm is natural. $e^H$ reads as a number of equally likely tokens. A policy
# whose entropy falls to 0 gives the same response every time; then all rewards of a group are
# equal and nothing is learned. Entropy says nothing about being right.
#
# A token may have probability 0, where a sampler forbids it with the logit $-\infty$. It should
# add nothing, but in floats $0 \cdot \ln 0 = 0 \cdot (-\infty)$ is not a number.


# %% tags=["definition"]
def entropy_from_log_probs(vocabulary_log_probs: Tensor) -> Tensor:
    """Entropy in nats of distributions: (..., V) to (...)."""
    # 0 · ln 0 counts as 0; as floats it is 0 · (-inf) = NaN.
    finite_log_probs = vocabulary_log_probs.masked_fill(
        vocabulary_log_probs.isneginf(), 0.0
    )
    return -(vocabulary_log_probs.exp() * finite_log_probs).sum(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits): (..., V) to (...)."""
    return entropy_from_log_probs(log_softmax(logits))


# %% tags=["check", "claim:W9a", "claim:W9b"]
halves, mostly_one = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
expected_halves, expected_mostly_one = 0.6931, 0.3251
assert math.isclose(entropy(halves), expected_halves, abs_tol=5e-5)
assert math.isclose(entropy(mostly_one), expected_mostly_one, abs_tol=5e-5)
assert entropy_from_log_probs(torch.tensor([0, -math.inf])) == 0

# %% [markdown]
# Two equally likely tokens have $H = \ln 2 = .6931$ and $e^H = 2$; with .9 and .1 it is
# $e^{.3251} = 1.38$. The smallest entropy is 0, where one token has all probability. The largest
# is $\ln V$, where all are equally likely. There is no value in between that would be "good" for
# every model: it depends on the vocabulary and on the task.

# %% tags=["check", "claim:W9c"]
generator = torch.Generator().manual_seed(0)
for vocabulary_size in (2, 3, 10, 1000):
    for scale in (0.01, 1, 10, 1000):
        logits = scale * torch.randn(
            500, vocabulary_size, generator=generator, dtype=torch.float64
        )
        assert entropy(logits).min() >= 0
        assert entropy(logits).max() <= math.log(vocabulary_size)
    uniform = torch.zeros(vocabulary_size, dtype=torch.float64)
    assert math.isclose(entropy(uniform), math.log(vocabulary_size))

# %% [markdown]
# ## The component
#
# Now the function that the assignment asks for. The batch, $N$ rows of $T$ positions and one row a
# response, goes through the model once. At position $t$ of a row the logits say what may follow
# `input_ids[t]`, and what did follow is `labels[t]`: its log-probability is picked from the last
# dimension with `gather`. The entropy is computed from the same log-softmax, and only on request.


# %% tags=["definition", "solution"]
def label_log_probs(
    logits: Tensor, labels: Tensor, return_token_entropy: bool = False
) -> dict[str, Tensor]:
    """Log-probability of one label for each row: (..., V), (...) to (...)."""
    vocabulary_log_probs = log_softmax(logits)
    result = {
        "log_probs": vocabulary_log_probs.gather(
            -1, labels.unsqueeze(-1)
        ).squeeze(-1)
    }
    if return_token_entropy:
        result["token_entropy"] = entropy_from_log_probs(vocabulary_log_probs)
    return result


def get_response_log_probs(
    model: torch.nn.Module,
    input_ids: Tensor,
    labels: Tensor,
    return_token_entropy: bool = False,
) -> dict[str, Tensor]:
    """`log_probs` (N, T) of the labels, and on request `token_entropy`."""
    # No attention mask: the rows are padded on the right and attention is
    # causal, so padding comes after every position that counts.
    return label_log_probs(
        model(input_ids).logits, labels, return_token_entropy
    )


# %% tags=["check"]
policy, tokenizer = small_batch.make_policy(), small_batch.make_tokenizer()
batch = tokenize_prompt_and_output(
    small_batch.repeated_prompts, small_batch.RESPONSES, tokenizer
)
mask = batch["response_mask"]
inputs = {name: batch[name] for name in ("input_ids", "labels")}
scored = get_response_log_probs(policy, **inputs, return_token_entropy=True)
assert set(scored) == {"log_probs", "token_entropy"}
assert scored["log_probs"].shape == mask.shape == (8, 9)
second = scored["log_probs"][1, mask[1]].exp().tolist()
assert all(map(math.isclose, second, [0.5, 0.25, 0.8]))
first_entropy = scored["token_entropy"][1, mask[1]][0].item()
assert math.isclose(first_entropy, 1.0397, abs_tol=5e-5)
one = label_log_probs(torch.tensor([0.25, 0.75]).log(), torch.tensor(1))
assert math.isclose(one["log_probs"].exp(), 0.75, abs_tol=1e-6)

# %% [markdown]
# The whole batch, one row a response, four to each prompt. Sums and means run over the mask. The
# package has the sum under the name `sequence_logprob`.

# %%
log_probs = scored["log_probs"].detach()
token_entropy = scored["token_entropy"].detach()
lengths = mask.sum(dim=1)
sums = (log_probs * mask).sum(dim=1)
overview = pd.DataFrame(
    {
        "response": small_batch.RESPONSES,
        "tokens": lengths,
        "sum": sums,
        "probability": sums.exp(),
        "mean": sums / lengths,
        "mean entropy": (token_entropy * mask).sum(dim=1) / lengths,
    },
    index=range(1, 9),
)
overview.round(4)

# %% tags=["check"]
from gsmrl_helpers.rl import sequence_logprob

for response, probability in zip(
    small_batch.RESPONSES, sums.exp(), strict=True
):
    path = pairwise(["=", *response.split()])
    by_hand = math.prod(next_probs[after][token] for after, token in path)
    assert math.isclose(probability, by_hand)
assert lengths.sum() == 20
assert torch.equal(sequence_logprob(policy, **inputs, mask=mask), sums)

# %% [markdown]
# `log_probs` has a number at *every* position, those of the prompt and of the padding included.
# They are correct log-probabilities of tokens that the policy did not choose. Forgetting the mask
# raises no error. Here it makes the second response less likely by a factor of 200,000: five
# positions at which anything is as likely, 1/10 each, and one end token after the full stop, 1/2.

# %%
unmasked = log_probs[1].sum()
print(f"with the mask {sums[1]:.2f}, without it {unmasked:.2f}")

# %% tags=["check"]
assert math.isclose(math.exp(sums[1] - unmasked), 200_000)

# %% [markdown]
# A transformer is called in the same way. This is the pocket policy of {doc}`00_pocket_world` on a
# problem and its worked answer. The batch computes all positions at once; the loop feeds one
# prefix after the other and asks for the next token, as one would explain it. Both agree.

# %%
model, pocket_tokenizer = load_policy(
    experiment_config("on-policy", "pocket")
)
problem = load_pocket_problems("dev", 1)[0]
text = get_prompt("r1_zero").format(problem.question)
real = tokenize_prompt_and_output([text], [problem.answer], pocket_tokenizer)
model.eval()
with torch.no_grad():
    real_scores = get_response_log_probs(
        model, real["input_ids"], real["labels"]
    )
print("response tokens:", int(real["response_mask"].sum()))

# %% tags=["check"]
with torch.no_grad():
    for row, t in real["response_mask"].nonzero().tolist():
        prefix = real["input_ids"][row : row + 1, : t + 1]
        next_token = model(prefix).logits[0, -1].softmax(-1)
        by_hand = next_token[real["labels"][row, t]].log()
        difference = real_scores["log_probs"][row, t] - by_hand
        assert difference.abs() < 1e-4

# %% [markdown]
# `eval()` switches dropout off, `no_grad()` builds no graph. They are two switches, and the
# function touches neither: {doc}`12_grpo_train_step` shows what happens when one is forgotten.
#
# ## What an average entropy averages
#
# "The entropy of the policy" as one number hides two decisions.
#
# *Which distribution?* A sampler with temperature $\tau$ divides the logits by $\tau$ before the
# softmax. Below 1 that sharpens the distribution, and the entropy of what the sampler draws from
# is lower than that of the model. Top-k and top-p lower it further.
#
# *Which weights?* One may average over all response tokens, which lets long responses count for
# more, or over each response first and then over responses, which lets every response count the
# same.

# %% tags=["check", "claim:W9d"]
averages = {}
for temperature in (1.0, 0.5):
    with torch.no_grad():
        at_positions = entropy(
            policy(batch["input_ids"]).logits / temperature
        )
    of_responses = (at_positions * mask).sum(dim=1) / lengths
    averages[f"temperature {temperature}"] = {
        "over tokens": at_positions[mask].mean().item(),
        "over responses": of_responses.mean().item(),
    }
averages = pd.DataFrame(averages).T
expected = [[0.8336, 0.8379], [0.6335, 0.6341]]
assert abs(averages.to_numpy() - expected).max() < 5e-5
averages.round(4)

# %% [markdown]
# Four numbers, one policy, one batch. None of them is wrong, and no two may stand in one figure
# under one name. The response `4`, a single token, has the mean entropy 1.0397. "Over responses" it
# weighs as much as `so so 4 .`, "over tokens" a quarter as much. With lengths between 1 and 4 that
# changes the third digit. Two responses, one of 30 tokens with .2 nats each and one of 1,000 with
# 1.2, have a mean of 1.17 over tokens and of .70 over responses.

# %% tags=["check"]
over_tokens = (30 * 0.2 + 1000 * 1.2) / (30 + 1000)
assert math.isclose(over_tokens, 1.17, abs_tol=0.005)
assert math.isclose((0.2 + 1.2) / 2, 0.70, abs_tol=0.005)

# %% [markdown]
# This book logs the entropy of the model's own distribution, at temperature 1, averaged over all
# response tokens of a batch. The training loss has the same question, with larger consequences:
# {doc}`11_policy_gradient_loss`.
#
# ## Inside the exponent or outside
#
# Off-policy losses are built on ratios $r_t = e^{\log \pi_\theta - \log \pi_\text{old}}$, one per
# token. A response has $L$ of them, and there are two ways to one number: the mean of the ratios,
# or the exponential of the mean log-ratio,
#
# $$
# \frac{1}{L} \sum_t r_t
# \qquad \text{or} \qquad
# \exp\Big( \frac{1}{L} \sum_t \log r_t \Big) = \Big( \prod_t r_t \Big)^{1/L} .
# $$
#
# The second is the geometric mean of the same ratios. To have two policies, let an update make `so`
# likelier after `=`, and `4` likelier after `so`.

# %%
updated = small_batch.make_policy()
changed = {
    "=": {"so": 0.6, "4": 0.2, "5": 0.2},
    "so": {"4": 0.6, "5": 0.2, "so": 0.2},
}
with torch.no_grad():
    for after, probs in changed.items():
        for token, prob in probs.items():
            row, column = map(small_batch.VOCABULARY.index, (after, token))
            updated.table[row, column] = math.log(prob)
    new = get_response_log_probs(updated, **inputs)["log_probs"]

log_ratios = (new - log_probs) * mask
means = pd.DataFrame(
    {
        "response": small_batch.RESPONSES,
        "mean ratio": (log_ratios.exp() * mask).sum(1) / lengths,
        "exp of mean log-ratio": (log_ratios.sum(1) / lengths).exp(),
    },
    index=range(1, 9),
)
means.round(4)

# %% tags=["check", "claim:W10"]
ratios = log_ratios[1, mask[1]].exp()
expected_ratios = [1.2, 0.8, 1.0]
expected_outside, expected_inside = 1.0000, 0.9865
assert all(map(math.isclose, ratios, expected_ratios))
assert math.isclose(ratios.mean(), expected_outside, abs_tol=5e-5)
inside = ratios.log().mean().exp()
assert math.isclose(inside, expected_inside, abs_tol=5e-5)

# %% [markdown]
# The second response has the ratios 1.2, .8 and 1. Their mean is 1, as if nothing had happened.
# The geometric mean is $.96^{1/3} = .9865$: the response as a whole has become less likely, .096
# instead of .1. The geometric mean is never the larger one, and the two agree only where all ratios
# are equal.

# %% tags=["check"]
generator = torch.Generator().manual_seed(0)
log_r = torch.randn(1000, 5, generator=generator, dtype=torch.float64)
assert (log_r.mean(1).exp() < log_r.exp().mean(1)).all()
assert math.isclose(sums[1].exp() * ratios.prod(), 0.096)

# %% [markdown]
# GRPO takes ratios token by token, clips them, and averages the finished terms
# {cite}`shao2024deepseekmath`. GSPO averages inside the exponent and clips one ratio per response
# {cite}`zheng2025gspo`. They are two objectives with two gradients, compared in
# {doc}`11_policy_gradient_loss`. Averaging log-probabilities "to be safe" before the exponential
# silently turns the one into the other.
#
# ## The memory of a vocabulary
#
# The small batch has ten tokens in its vocabulary. OLMo-2's embedding has 100,352 rows, and the
# logits have one number for each of them at every position. Take a step of the assignment,
# 32 prompts with 8 responses each, and 1,024 tokens in every row.

# %% tags=["check"]
V = 100_352  # vocabulary
n_prompts, group_size, n_tokens = 32, 8, 1024
BYTES = 4  # of a float32 number


def logits_bytes(n_positions: int) -> int:
    return n_positions * V * BYTES


expected_gigabytes = 105.2
one_copy = logits_bytes(n_prompts * group_size * n_tokens) / 1e9
assert abs(one_copy - expected_gigabytes) < 0.05

# %% [markdown]
# One float32 copy of the logits takes 105.2 GB, and it grows with the product of prompts, group
# size and tokens. The model itself, with 1.5 billion parameters, has 6 GB of weights. That is one
# reason to cut a batch into microbatches ({doc}`12_grpo_train_step`), and one copy is not all.
#
# How many are there? `LiveBytes` counts the bytes of all tensors that are made inside its `with`
# block and still exist, in the forward and the backward pass. It counts the same on every machine.
# Here is the real vocabulary, with 128 positions (one copy: 51.4 MB) and a narrow model of width 8,
# so that the head is small beside the logits.

# %%
n_positions, width = 128, 8
generator = torch.Generator().manual_seed(0)
hidden_states = torch.randn(n_positions, width, generator=generator)
hidden_states.requires_grad_()
labels = torch.randint(V, (n_positions,), generator=generator)
head = torch.nn.Linear(width, V, bias=False)
torch.nn.init.normal_(head.weight, generator=generator)


def live_copies(memory_bytes: int) -> float:
    """In units of one float32 copy of the logits."""
    return round(memory_bytes / logits_bytes(n_positions), 2)


# %%
peaks = {}
for with_entropy in (False, True):
    head.weight.grad = hidden_states.grad = None
    with LiveBytes() as memory:
        plain = label_log_probs(head(hidden_states), labels, with_entropy)
        sum(values.sum() for values in plain.values()).backward()
    peaks[with_entropy] = live_copies(memory.peak)
print(f"log-probs: {peaks[False]} copies, with entropy: {peaks[True]}")

# %% tags=["check"]
assert peaks == {False: 3.00, True: 5.25}

# %% [markdown]
# Three copies are alive at the worst moment of the backward pass: the log-softmax, its gradient,
# and the gradient of the logits. With the entropy and its gradient it is 5.25 (the quarter is the
# mask of forbidden tokens, one byte a number).
#
# Most runs only *log* the entropy. Then nothing is differentiated through it, but its graph does
# not know that, and holds the tensors of a backward pass that never comes for as long as the
# entropy is kept. Detaching it lets them go at once.

# %%
held = {}
for name in ("without entropy", "entropy kept", "entropy detached"):
    with LiveBytes() as memory:
        kept = label_log_probs(
            head(hidden_states), labels, name != "without entropy"
        )
        if name == "entropy detached":
            kept["token_entropy"] = kept["token_entropy"].detach()
        held[name] = live_copies(memory.live)
    del kept
pd.Series(held, name="copies held until the backward pass").to_frame()

# %% tags=["check"]
assert list(held.values()) == [1.00, 3.25, 1.00]

# %% [markdown]
# ## Chunk by chunk
#
# The log-probability of one position needs the logits of that position and of no other. So take
# the positions in chunks: multiply a chunk of hidden states with the head (the model's last
# matrix, from width $D$ to $V$), keep one log-probability for each position, and forget the logits
# before the next chunk.
#
# Forward, that is a loop. Backward, the gradient needs the logits again, and a graph would keep
# those of all chunks. `torch.utils.checkpoint` computes them a second time instead, chunk by
# chunk, when the backward pass comes to them: memory bought with time {cite}`chen2016sublinear`.


# %% tags=["definition"]
def chunked_label_log_probs(
    hidden_states: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    labels: Tensor,
    chunk_size: int,
    return_token_entropy: bool = False,
) -> dict[str, Tensor]:
    """`label_log_probs` of lm_head(hidden_states), in chunks of positions."""
    require_positive_integer("chunk_size", chunk_size)
    shape = tuple(hidden_states.shape)
    if shape[:-1] != labels.shape:
        raise ValueError(
            f"{shape=} of hidden_states must be {tuple(labels.shape)} and D"
        )

    def score(hidden_chunk: Tensor, label_chunk: Tensor) -> dict[str, Tensor]:
        return label_log_probs(
            lm_head(hidden_chunk), label_chunk, return_token_entropy
        )

    hidden_chunks = hidden_states.flatten(end_dim=-2).split(chunk_size)
    label_chunks = labels.flatten().split(chunk_size)
    scored = [
        checkpoint(
            score, *chunk, use_reentrant=False, preserve_rng_state=False
        )
        for chunk in zip(hidden_chunks, label_chunks, strict=True)
    ]
    return {
        name: torch.cat([s[name] for s in scored]).view_as(labels)
        for name in scored[0]
    }


# %% [markdown]
# Values and gradients are those of the plain function, to rounding, for any chunk size.

# %% tags=["check"]
plain = label_log_probs(head(hidden_states), labels, True)
chunked = chunked_label_log_probs(hidden_states, head, labels, 100, True)
parameters = (hidden_states, head.weight)
for name in plain:
    assert torch.allclose(chunked[name], plain[name])
    wanted, found = (
        torch.autograd.grad(scored[name].sum(), parameters, retain_graph=True)
        for scored in (plain, chunked)
    )
    assert torch.allclose(found[0], wanted[0], atol=1e-4)
    assert torch.allclose(found[1], wanted[1], atol=1e-4)

# %% [markdown]
# Now the peak against the chunk size, forward and backward, from all 128 positions at once down to
# two.


# %%
def peak_bytes(chunk_size: int, with_entropy: bool) -> int:
    head.weight.grad = hidden_states.grad = None
    with LiveBytes() as memory:
        scored = chunked_label_log_probs(
            hidden_states, head, labels, chunk_size, with_entropy
        )
        sum(values.sum() for values in scored.values()).backward()
    return memory.peak


chunk_sizes = [128, 64, 32, 16, 8, 4, 2]
measured = {
    name: [
        peak_bytes(size, name != "log-probs") / 1e6 for size in chunk_sizes
    ]
    for name in ("log-probs", "log-probs and entropy")
}
peaks = pd.DataFrame(measured, index=pd.Index(chunk_sizes, name="chunk size"))
peaks.round(1)

# %% tags=["hide-input"]
figure, ax = plt.subplots()
for name, style in {
    "log-probs and entropy": line("train"),
    "log-probs": line("curve"),
}.items():
    ax.plot(chunk_sizes, peaks[name], marker="o", label=name, **style)
head_bytes = head.weight.nbytes / 1e6
ax.axhline(
    3 * head_bytes, label="three gradients of the head", **line("test")
)
memory_ticks = [8, 16, 32, 64, 128, 256]
ax.set_xscale("log", base=2)
ax.set_yscale("log", base=2)
ax.set_xticks(chunk_sizes, chunk_sizes)
ax.set_yticks(memory_ticks, memory_ticks)
ax.set(xlabel="positions per chunk", ylabel="peak live memory (MB)")
ax.set_title("128 positions, vocabulary 100,352, forward and backward")
legend = ax.legend()
# %% [markdown]
# *Peak bytes of the tensors made on the way, without weights and inputs; both axes logarithmic.
# On the right, half the chunk needs half the memory. On the left is a floor that chunks don't
# move: the gradient of the head, as large as the head, which exists up to three times while one
# chunk's share is added to it.*
#
# The measured points follow a formula: 3 copies of a chunk's logits (5.25 with the entropy) and
# one gradient of the head, or three gradients of the head, whichever is more. All 128 positions at
# once are the exception: nothing is added up there, and the peak is the copies alone.


# %%
def chunked_peak(chunk_size: int, head_bytes: int, copies: float) -> float:
    """Peak bytes in chunks, with that many copies of a chunk's logits."""
    one_chunk = copies * logits_bytes(chunk_size) + head_bytes
    return max(one_chunk, 3 * head_bytes)


# %% tags=["check"]
for name, copies in {"log-probs": 3.0, "log-probs and entropy": 5.25}.items():
    found = 1e6 * peaks[name]
    at_once = copies * logits_bytes(n_positions)
    assert math.isclose(found[n_positions], at_once, rel_tol=0.01)
    for size in chunk_sizes[1:]:
        wanted = chunked_peak(size, head.weight.nbytes, copies)
        assert math.isclose(found[size], wanted, rel_tol=0.01)

# %% [markdown]
# The counter sees tensors. Does a process really need that much? Linux keeps, for every process,
# the largest amount of memory that it has ever held. So ask a fresh process, before and after.
#
# One trap on the way. By default the C library's allocator (glibc's `malloc`) holds on to blocks
# that were freed, and small objects in between keep it from using them again: with small chunks the
# process grows by a whole copy of the logits that nobody holds. `MALLOC_MMAP_THRESHOLD_` makes it
# give every large block back at once. PyTorch has an allocator of its own for GPUs.

# %%
script = r"""
import re, sys, torch
from gsmrl_helpers.chunked_log_probs import chunked_label_log_probs

chunk_size, n_positions, width, V = map(int, sys.argv[1:])
head = torch.nn.Linear(width, V, bias=False)
hidden_states = torch.randn(n_positions, width)
labels = torch.zeros(n_positions, dtype=torch.int64)
for n in (1, n_positions):
    scored = chunked_label_log_probs(
        hidden_states[:n], head, labels[:n], chunk_size
    )
    scored["log_probs"].sum().backward()
    status = open("/proc/self/status").read()
    print(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # the high-water mark
"""


def resident_megabytes(chunk_size: int) -> float:
    """What a fresh process grows by, from 1 position to all of them."""
    arguments = map(str, (chunk_size, n_positions, width, V))
    finished = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        check=True,
    )
    one, all_positions = map(int, finished.stdout.split())
    return 1024 * (all_positions - one) / 1e6  # kB here means KiB


# %% [markdown]
# The process agrees with the counter, with all positions at once and with chunks of 16. The exact
# number depends on the machine, so the check allows a range.

# %% tags=["check"]
if sys.platform == "linux":
    for size in (128, 16):
        counted = peaks.loc[size, "log-probs"]
        assert 0.85 < resident_megabytes(size) / counted < 1.25

# %% [markdown]
# The price is arithmetic. Without chunks the head costs three matrix products: one forward, and
# two backward, for the gradients of its input and of its weight. Recomputing the logits makes
# them four.


# %%
def head_products(chunk_size: int | None) -> float:
    """Matrix products of the size of the head's, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        if chunk_size is None:
            scored = label_log_probs(head(hidden_states), labels)
        else:
            scored = chunked_label_log_probs(
                hidden_states, head, labels, chunk_size
            )
        scored["log_probs"].sum().backward()
    return counter.get_total_flops() / (2 * n_positions * width * V)


products = {"plain": head_products(None), "chunked": head_products(16)}
print(products)

# %% tags=["check"]
assert products == {"plain": 3, "chunked": 4}

# %% [markdown]
# ## On a GPU
#
# Back to 256 rows of 1,024 tokens. At once, three float32 copies would be 315.7 GB, four GPUs
# of 80 GB for the logits alone. A microbatch of 8 rows needs 9.9 GB for them. In chunks of 1,024
# positions they take 1.2 GB, whatever the number of rows.
#
# But at OLMo-2's width of 2,048 a gradient of the head is .8 GB in float32, and three of them are
# more than one and the chunk. So the floor governs, and the peak is 2.5 GB. From 1,365 positions
# down the formula gives the same: smaller chunks no longer help.

# %% tags=["check"]
at_once = 3 * logits_bytes(256 * 1024) / 1e9
microbatch = 3 * logits_bytes(8 * 1024) / 1e9
chunk = 3 * logits_bytes(1024) / 1e9
head_bytes = V * 2048 * BYTES
peak = chunked_peak(1024, head_bytes, copies=3.0)
found = [at_once, microbatch, chunk, head_bytes / 1e9, peak / 1e9]
expected = [315.7, 9.9, 1.2, 0.8, 2.5]
for value, wanted in zip(found, expected, strict=True):
    assert abs(value - wanted) < 0.05
for size in (16, 512, 1365):
    assert chunked_peak(size, head_bytes, copies=3.0) == peak
assert chunked_peak(1366, head_bytes, copies=3.0) > peak

# %% [markdown]
# ## What a run uses
#
# The chunks above take any head. Automatic differentiation of a chunk still makes a new tensor at
# each step: log-softmax, its gradient, the gradient of the logits. Where the head is one matrix,
# the gradient can be written out instead. With logits $z$, probabilities $p = \text{softmax}(z)$
# and entropy $H$,
#
# $$
# \frac{\partial \log p_y}{\partial z_v} = [v = y] - p_v,
# \qquad
# \frac{\partial H}{\partial z_v} = -p_v \, (\log p_v + H).
# $$
#
# By hand, for the distribution (.5, .25, .25) with $H = 1.0397$ and the label 0: the first gives
# (.5, −.25, −.25), the second (−.1733, .0866, .0866).

# %% tags=["check"]
z = torch.tensor([0.5, 0.25, 0.25]).log().requires_grad_()
scored = label_log_probs(z, torch.tensor(0), True)
(of_log_prob,) = torch.autograd.grad(
    scored["log_probs"], z, retain_graph=True
)
(of_entropy,) = torch.autograd.grad(scored["token_entropy"], z)
expected = [0.5, -0.25, -0.25]
assert torch.allclose(of_log_prob, torch.tensor(expected), atol=5e-5)
expected = [-0.1733, 0.0866, 0.0866]
assert torch.allclose(of_entropy, torch.tensor(expected), atol=5e-5)

# %% [markdown]
# `linear_head_log_probs` does this to a chunk of logits where they stand, and makes them anew in
# the backward pass, as before. Each number is still needed in a handful of passes, but now over one
# piece of memory. Entropy comes along at no cost: whether anybody differentiates it, the backward
# pass is told.

# %%
from gsmrl_helpers.linear_head import linear_head_log_probs

written_out = linear_head_log_probs(hidden_states, head.weight, labels, 16)

# %% [markdown]
# Its judge is the plain function in float64, with which it agrees to ten digits when it computes in
# float64, too. In float32, sums over 100,352 numbers cost digits, and how many depends on the
# processor; the written-out gradient is within a thousandth of the judge's, as that of automatic
# differentiation is.

# %% tags=["check"]
parameters = (hidden_states, head.weight)
doubles = [p.detach().double().requires_grad_() for p in parameters]
judge = label_log_probs(doubles[0] @ doubles[1].T, labels, True)
in_doubles = linear_head_log_probs(*doubles, labels, 16)
assert written_out.keys() == plain.keys() == judge.keys()
for name in plain:
    assert (written_out[name] - judge[name]).abs().max() < 1e-5
    gradients = [
        torch.autograd.grad(scored[name].sum(), inputs, retain_graph=True)
        for scored, inputs in (
            (judge, doubles),
            (in_doubles, doubles),
            (plain, parameters),
            (written_out, parameters),
        )
    ]
    for right, same, automatic, found in zip(*gradients, strict=True):
        assert (same - right).norm() < 1e-10 * right.norm()
        assert (automatic - right).norm() < 1e-3 * right.norm()
        assert (found - right).norm() < 1e-3 * right.norm()

# %%
with LiveBytes() as memory:
    scored = linear_head_log_probs(hidden_states, head.weight, labels, 64)
    scored["log_probs"].sum().backward()
written_out_peak = memory.peak / 1e6
print(f"{written_out_peak:.1f} MB against {peaks['log-probs'][64]:.1f} MB")

# %% tags=["check"]
assert written_out_peak < peaks["log-probs"][64]

# %% [markdown]
# With chunks of 64 positions the peak is lower than that of the same chunks under automatic
# differentiation. {doc}`../book/how_fast` has its time and memory beside the plain function's and
# TRL's. A run calls `score_responses`. It computes logits for response tokens only, through
# this function where the head allows it; how it spares the model the repeated prompts is told in
# {doc}`12_grpo_train_step`.
#
# ## Take away
#
# - The log-probability of a response is the *sum* over its tokens. The mean is the logarithm of a
#   geometric mean, and $e^{\text{mean log-ratio}}$ is not the mean of the ratios.
# - Log-softmax subtracts the largest logit first and runs in float32: in bfloat16 the steps
#   between neighbouring log-probabilities are larger than an update.
# - An entropy lies in $[0, \ln V]$. Say whether it is the model's or the sampler's, and whether
#   tokens or responses weigh the same. If it is only logged, detach it.
# - Logits cost positions × $V$ × 4 bytes, about three times over. Chunks with recomputation give
#   the same values and gradients for one more matrix product. Their memory is that of one chunk and
#   a gradient of the head, but never less than three such gradients.
#
# ## Exercises
#
# ```{exercise} The sampler's entropy
# :label: ex-09-temperature
#
# *Easy, 5 minutes.* Write `temperature_entropy(logits, temperature)`: the entropy, in nats, of the
# distribution from which a sampler with this temperature draws. At which temperature is that of
# (.5, .25, .25) as low as .8676?
#
# :::{dropdown} Hint
# The temperature divides logits. Log-probabilities serve as logits.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def temperature_entropy(logits: Tensor, temperature: float) -> Tensor:
    """Entropy of softmax(logits / temperature): (..., V) to (...)."""
    return entropy(logits / temperature)


# %% tags=["check"]
logits = torch.tensor([0.5, 0.25, 0.25]).log()
for temperature, wanted in {0.01: 0, 0.5: 0.8676, 1: 1.0397}.items():
    found = temperature_entropy(logits, temperature).item()
    assert math.isclose(found, wanted, abs_tol=5e-5)
hottest = temperature_entropy(logits, 1e6).item()
assert math.isclose(hottest, math.log(3), abs_tol=5e-5)

# %% [markdown]
# ```{exercise} Every response the same
# :label: ex-09-response-mean
#
# *Easy, 5 minutes.* Write `mean_over_responses(values, response_mask)` for two tensors of shape
# (N, T): the mean over each response's own tokens, then the mean over the N responses. What the
# masked positions hold, be it NaN, must not matter.
#
# :::{dropdown} Hint
# NaN times 0 is NaN: fill the masked positions instead of multiplying them away.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def mean_over_responses(values: Tensor, response_mask: Tensor) -> Tensor:
    """Mean of the rows' means over the mask: (N, T), (N, T) to a scalar."""
    sums = values.masked_fill(~response_mask, 0.0).sum(dim=1)
    return (sums / response_mask.sum(dim=1)).mean()


# %% tags=["check"]
found = mean_over_responses(token_entropy, mask).item()
assert math.isclose(found, 0.8379, abs_tol=5e-5)
spoiled = token_entropy.masked_fill(~mask, math.nan)
assert mean_over_responses(spoiled, mask).item() == found

# %% [markdown]
# ```{exercise} The gradient by hand
# :label: ex-09-gradient
#
# *Medium, 10 minutes.* Write `log_prob_gradient(logits, labels)` for logits (N, V) and labels (N,):
# the derivative of each label's log-probability with respect to its row of logits, (N, V), without
# autograd.
#
# :::{dropdown} Hint
# $\log p_y = z_y - \operatorname{logsumexp}(z)$, and the derivative of logsumexp with respect to
# $z_v$ is $p_v$.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def log_prob_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """d log p(label) / d logits, one-hot minus softmax: (N, V), (N,) to (N, V)."""
    one_hot = torch.nn.functional.one_hot(labels, logits.shape[-1])
    return one_hot - logits.softmax(dim=-1)


# %% tags=["check"]
generator = torch.Generator().manual_seed(0)
logits = torch.randn(20, 9, generator=generator, requires_grad=True)
labels_of_rows = torch.arange(20) % 9
label_log_probs(logits, labels_of_rows)["log_probs"].sum().backward()
found = log_prob_gradient(logits.detach(), labels_of_rows)
assert torch.allclose(found, logits.grad, atol=1e-6)

# %% [markdown]
# The gradient of a likely token is small: at $p_y = .8$ its own entry is .2, and all entries of a
# row add up to 0. In the batch of chapters 08 to 12 every gradient can be read off the table this
# way.
#
# ```{exercise} The other direction
# :label: ex-09-vocabulary-chunks
#
# *Hard, 20 minutes.* One can cut the vocabulary as well. Write
# `vocabulary_chunked_log_probs(hidden_states, weight, labels, chunk_size)` for hidden states
# (N, D), the head's weight (V, D) and labels (N,): the log-probabilities (N,), holding the logits
# of `chunk_size` tokens of the vocabulary at a time. The forward pass is enough.
#
# :::{dropdown} Hint
# `torch.logaddexp(a, b)` is $\log(e^a + e^b)$, computed stably. The label's own logit needs one row
# of the weight only.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def vocabulary_chunked_log_probs(
    hidden_states: Tensor, weight: Tensor, labels: Tensor, chunk_size: int
) -> Tensor:
    """Log-probabilities of labels, `chunk_size` tokens of V at a time: (N,)."""
    total = torch.full_like(hidden_states[:, 0], -math.inf)
    for rows in weight.split(chunk_size):
        chunk_total = (hidden_states @ rows.T).logsumexp(dim=-1)
        total = torch.logaddexp(total, chunk_total)
    label_logits = (hidden_states * weight[labels]).sum(dim=-1)
    return label_logits - total


# %% tags=["check"]
with torch.no_grad(), LiveBytes() as memory:
    found = vocabulary_chunked_log_probs(
        hidden_states, head.weight, labels, 10_000
    )
    assert live_copies(memory.peak) < 0.3
wanted = label_log_probs(head(hidden_states), labels)["log_probs"].detach()
assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)

# %% [markdown]
# ## Next
#
# {doc}`10_advantages` turns the rewards of a group into the weight that each log-probability gets.
