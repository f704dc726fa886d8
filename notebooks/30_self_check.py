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
# # Self-check
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** find out which parts of the course you can explain without looking them
# up: fourteen questions, six things that you should be able to do, and one interview answer.
#
# **You need** the chapters before this one; each answer says which. Answer before you unfold.
# **Reading** takes 40 minutes, **running** a few seconds, on a **CPU**.
# ```
#
# Answer each question in words, on paper, before you unfold the answer. Where an answer has a
# number or a counter-example, the folded cell below it computes it: change it and see whether you
# knew why.

# %%
import copy
import math
from itertools import permutations, product

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gsmrl_helpers import (
    compute_group_normalized_rewards,
    get_response_log_probs,
    load_policy,
)
from gsmrl_helpers import small_batch as batch_by_hand
from gsmrl_helpers.diagnostics import check_first_ratio
from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.losses import compute_policy_gradient_loss, kl_estimate
from gsmrl_helpers.preferences import bradley_terry_loss
from gsmrl_helpers.reward_shaping import (
    format_reward,
    partial_reward,
    rlvr_reward,
)
from gsmrl_helpers.signal import no_signal_probability
from gsmrl_helpers.tokenization import tokenize_prompt_and_output

# %% [markdown]
# ## Preferences
#
# **1. Why is the Bradley–Terry loss a binary cross-entropy with the label 1?**
#
# ```{dropdown} Answer
# The model says that A is chosen over B with probability $\sigma(r_A - r_B)$. The loss of what was
# observed is minus its logarithm. A binary cross-entropy with the logit $z = r_A - r_B$ has two
# terms, one for each label; since the chosen answer is always written first, the label is always 1,
# and only $-\log \sigma(z)$ is left. See {doc}`23_reward_models`.
# ```

# %% tags=["check", "claim:W29a", "hide-cell"]
expected_label = 1
scores = torch.randn(2, 200, generator=torch.Generator().manual_seed(0)) * 3
margin = scores[0] - scores[1]
labels = torch.full_like(margin, expected_label)
as_bce = torch.nn.functional.binary_cross_entropy_with_logits(margin, labels)
assert torch.allclose(bradley_terry_loss(*scores), as_bce, rtol=1e-5)

# %% [markdown]
# **2. What is reward hacking? Give an example and a remedy.**
#
# ```{dropdown} Answer
# A policy finds answers that are paid well and are not what was meant: the reward is a proxy, and
# what is optimised stops measuring. A bonus of one half for the right number *anywhere* in the
# text is earned on every task by counting to a hundred. Remedies: pay for what can be checked
# (here: the number after one marker), keep the policy near a trusted one (a KL penalty), use
# several signals that fail in different ways, and read the best-paid answers. See
# {doc}`06_reward_functions`.
# ```

# %% tags=["check", "claim:W29b", "hide-cell"]
expected_hacked, expected_cured = 0.5, 0.0
counting = " ".join(map(str, range(1, 101)))
for gold in ("7", "42", "100"):
    assert partial_reward(counting, gold) == expected_hacked
    assert rlvr_reward(counting, gold) == expected_cured

# %% [markdown]
# **3. When would you take DPO, and when GRPO?**
#
# (claim-W29c)=
# ```{dropdown} Answer
# DPO needs fixed pairs, a frozen reference and one loss. GRPO needs a checker that can grade new
# answers, and samples its own. So what you have decides. Pairs from people and no checker: DPO. A
# program that can tell right from wrong: GRPO, which keeps exploring and can find answers that no
# pair contains. On one budget of samples {doc}`25_dpo` compares the two.
# ```
#
# **4. People prefer A to B, B to C and C to A, each with 70 %. What is the best Bradley–Terry loss,
# and why can't it come down to the entropy of the labels?**
#
# ```{dropdown} Answer
# Each pair wants a difference of scores of $\ln(.7/.3) = .85$. Round the cycle the three
# differences add up to 0, whatever the scores are, and not to 2.54. The loss is convex and treats
# the three pairs alike, so the best is equal scores: $\ln 2 = .693$ a pair. The entropy of the
# labels is .611. The gap is what a number per answer can't say: a cycle is not transitive. See
# {doc}`23_reward_models`.
# ```

# %% tags=["check", "claim:W29d", "hide-cell"]
expected_best, expected_entropy = 0.693, 0.611


def loss_of_cycle(scores: np.ndarray) -> float:
    margins = scores - np.roll(scores, -1)  # A − B, B − C, C − A
    up, down = np.logaddexp(0, -margins), np.logaddexp(0, margins)
    return float((0.7 * up + 0.3 * down).mean())


starts = np.random.default_rng(0).normal(scale=3, size=(20, 3))
found = [minimize(loss_of_cycle, start).fun for start in starts]
assert np.ptp(found) < 1e-6
assert abs(found[0] - expected_best) < 0.0005
entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
assert abs(entropy - expected_entropy) < 0.0005

# %% [markdown]
# **5. Why does GRPO stop learning on problems that the model has nearly solved? How many groups are
# empty at $p = .9$ and $G = 8$?**
#
# ```{dropdown} Answer
# If all answers of a group are paid alike, every advantage is 0. That happens with probability
# $p^G + (1-p)^G$, which is 43 % here. The few groups that are left mostly hold a single wrong
# answer. Draw new problems for the empty groups, make problems harder as the model gets better, or
# sample more answers. See {doc}`06_reward_functions` and {doc}`10_advantages`.
# ```

# %% tags=["check", "claim:W29e", "hide-cell"]
expected_empty = 0.43
share = no_signal_probability(torch.tensor(0.9), 8, "mean").item()
assert abs(share - expected_empty) < 0.005
draws = np.random.default_rng(0).random((100_000, 8)) < 0.9
n_right = draws.sum(axis=1)
assert abs(((n_right == 0) | (n_right == 8)).mean() - share) < 0.005

# %% [markdown]
# ## Rewards
#
# **6. Why does a reward for the format alone lead to hacking, while .1 for the format beside 1 for
# the right answer is useful?**
#
# ```{dropdown} Answer
# Paid for the format alone, a policy that solves nothing can earn all there is, and nothing pulls
# it towards right answers: {doc}`06_reward_functions` shows a run in which the format goes to 1 and
# the accuracy falls. Beside 1 for the answer, the bonus never makes a wrong answer better paid than
# a right one, and it teaches early, when hardly any answer is right, to write the answer where it
# is found.
# ```

# %% tags=["check", "claim:W29f", "hide-cell"]
expected_for_nothing, expected_gap = 0.1, 0.9
solved, unsolved = "3*4=12, 12-2=10. #### 10", "I like apples. #### 7"
assert format_reward(solved, "10") == format_reward(unsolved, "10")
assert format_reward(unsolved, "10") == expected_for_nothing
bare = "3*4=12, 12-2=10. It is 10."  # right, and in no format
worst_right = rlvr_reward("#### 10", "10")
best_wrong = max(rlvr_reward(text, "10") for text in (unsolved, bare))
assert abs(worst_right - best_wrong - 1.0) < 1e-9
assert abs(rlvr_reward(solved, "10") - 0.1 - 0.1 - expected_gap) < 1e-9

# %% [markdown]
# **7. All eight answers of a group get 0. What are the advantages and the gradient? What changes if
# two of the eight get a format bonus?**
#
# ```{dropdown} Answer
# Eight times 0, and no gradient: the rewards equal their mean. With two bonuses of .1 the group has
# a spread, the normalised advantages of the two are as large as if they were right answers, and the
# gradient teaches the format and nothing else. See {doc}`10_advantages` and
# {doc}`06_reward_functions`.
# ```


# %% tags=["check", "claim:W29g", "hide-cell"]
def advantages_of(rewards: list[float]) -> Tensor:
    found, _ = compute_group_normalized_rewards(
        torch.tensor(rewards, dtype=torch.float64), len(rewards)
    )
    return found


expected_none, expected_bonus = 0.0, 1.62
assert (advantages_of([0.0] * 8) == expected_none).all()
with_bonus = advantages_of([0.1, 0.1] + [0.0] * 6)
assert (with_bonus[:2] - expected_bonus).abs().max() < 0.005
as_if_right = advantages_of([1.0, 1.0] + [0.0] * 6)
assert (with_bonus - as_if_right).abs().max() < 1e-4

# %% [markdown]
# **8. The code is right, and the policy still does not learn the problems that you chose. How can
# that be, and which numbers show it?**
#
# ```{dropdown} Answer
# If the policy solves one in a thousand, a group of eight has no right answer in 99 % of the cases,
# and an empty group moves nothing. An accuracy near 0 together with a share of empty groups near 1
# shows it before any training. Easier problems, a bonus that gives a first signal, worked examples
# in the prompt or some supervised fine-tuning first bring the policy to where it samples right
# answers at all.
# ```

# %% tags=["check", "claim:W29h", "hide-cell"]
expected_empty = 0.992
hard = no_signal_probability(torch.tensor(0.001), 8, "mean").item()
assert abs(hard - expected_empty) < 0.0005
rng = np.random.default_rng(0)
rewards = torch.from_numpy((rng.random(32 * 8) < 0.001).astype(float))
moved, _ = compute_group_normalized_rewards(rewards, 8)
is_empty = (moved.reshape(32, 8) == 0).all(dim=1).double().mean().item()
assert rewards.mean() < 0.01 and is_empty > 0.9

# %% [markdown]
# **9. Three labellers with consistent tastes, and the majority makes a cycle. What is this called,
# what does Arrow's theorem say, and what follows for one reward model?**
#
# ```{dropdown} Answer
# Condorcet's cycle: with the orders ABC, BCA and CAB each of A over B, B over C and C over A has
# two votes of three. Arrow: with three options or more, no rule that is unanimous and decides each
# pair by that pair alone always gives an order, but a dictatorship. A reward model gives one number
# to each answer, hence an order, so that it must break one of the conditions: it averages, and a
# minority's taste disappears in it. See {doc}`23_reward_models`, which counts all the rules.
# ```

# %% tags=["check", "claim:W29i", "hide-cell"]
PAIRS = ((0, 1), (1, 2), (2, 0))
ORDERS = list(permutations(range(3)))


def is_above(order: tuple[int, ...], pair: tuple[int, int]) -> bool:
    return order.index(pair[0]) < order.index(pair[1])


def is_cycle(above: tuple[bool, ...]) -> bool:
    return all(above) or not any(above)


expected_votes, expected_rules = [2, 2, 2], 2
voters = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
votes = [sum(is_above(order, pair) for order in voters) for pair in PAIRS]
assert votes == expected_votes

# two voters: a rule says, for each pair, who wins when they disagree
transitive = []
for rule in product((False, True), repeat=6):
    groups = (
        tuple(
            one if one == other else rule[2 * i + one]
            for i, (one, other) in enumerate(
                (is_above(a, pair), is_above(b, pair)) for pair in PAIRS
            )
        )
        for a, b in product(ORDERS, repeat=2)
    )
    if not any(is_cycle(group) for group in groups):
        transitive.append(rule)
assert len(transitive) == expected_rules
assert set(transitive) == {(False, True) * 3, (True, False) * 3}  # dictators

# %% [markdown]
# ## Log-probabilities and modes
#
# **10. The four tokens of an answer have the probabilities .5, .5, .8 and .5. What is its
# log-probability, what does the mask leave out, and how are outputs shifted against tokens? Why is
# the mean log-probability inside an exponential another thing than the mean of a loss over
# tokens?**
#
# ```{dropdown} Answer
# The product is .1, its logarithm −2.30. The mask leaves out prompt and padding. The output at
# position $t$ predicts token $t + 1$, so that the first answer token is scored at the last token of
# the prompt. $\exp(\frac1L \sum_t \log \rho_t)$ is a geometric mean, one number for the answer; a
# loss over tokens averages terms that each have their own ratio. They agree only if all ratios are
# equal. See {doc}`08_tokenization_and_masks` and {doc}`09_log_probs_and_entropy`.
# ```

# %% tags=["check", "claim:W29j", "hide-cell"]
expected_log_prob, expected_positions = -2.30, [2, 3, 4, 5]
tokenizer = batch_by_hand.make_tokenizer()
policy = batch_by_hand.make_policy()
prompt, response = batch_by_hand.PROMPTS[0], batch_by_hand.RESPONSES[0]
rows = tokenize_prompt_and_output([prompt], [response], tokenizer)
assert len(prompt.split()) == 4
mask = rows["response_mask"][0]
places = mask.nonzero().flatten().tolist()
assert [place - 1 for place in places] == expected_positions
scored = get_response_log_probs(policy, rows["input_ids"], rows["labels"])
log_probs = scored["log_probs"][0][mask]
assert torch.allclose(
    log_probs.exp(), torch.tensor([0.5, 0.5, 0.8, 0.5]).double()
)
assert abs(log_probs.sum().item() - expected_log_prob) < 0.005
ratios = torch.tensor([1.2, 0.8, 1.0], dtype=torch.float64)
assert ratios.log().mean().exp() < ratios.mean() - 0.01

# %% [markdown]
# **11. At the first step of GRPO some tokens have a ratio $\pi_\theta / \pi_\text{old}$ of .9 and
# 1.15, though nothing was updated yet. Which mistake is it, and which check finds it? And what does
# the gradient become if the old log-probabilities are computed with a graph?**
#
# ```{dropdown} Answer
# Dropout is on in one of the passes or in both: `model.eval()` was forgotten. `max |ratio − 1|`
# before the first update must be 0 up to rounding. `torch.no_grad()` is another switch and does not
# help. Old log-probabilities with a graph move together with the new ones: the ratio is 1 for every
# $\theta$, and the gradient exactly 0. See {doc}`12_grpo_train_step`.
# ```

# %% tags=["check", "claim:W29k", "hide-cell"]
expected_gradient, expected_verdicts = 0.0, [True, False]
model, pocket_tokenizer = load_policy(
    experiment_config("on-policy", "pocket")
)
rows = tokenize_prompt_and_output(
    ["3+4="], [" 7. It is 7."], pocket_tokenizer
)
dropping = copy.deepcopy(model).train()
for layer in dropping.model.layers:
    layer.self_attn.attention_dropout = 0.1
torch.manual_seed(0)
verdicts = [check_first_ratio(m, rows).ok for m in (model.eval(), dropping)]
assert verdicts == expected_verdicts

log_probs = torch.tensor([[-0.7, -1.6]], requires_grad=True)
advantage = torch.tensor([1.0])
gradients = []
for old in (log_probs, log_probs.detach()):
    loss = -advantage[:, None] * (log_probs - old).exp()
    gradients.append(torch.autograd.grad(loss.sum(), log_probs)[0])
assert (gradients[0] == expected_gradient).all() and (
    gradients[1] == -1
).all()
package, _ = compute_policy_gradient_loss(
    advantage, log_probs, "noclip", log_probs.detach()
)
assert torch.equal(
    torch.autograd.grad(package.sum(), log_probs)[0], gradients[1]
)

# %% [markdown]
# ## Diagnostics
#
# **12. The mean advantage of every batch is 0. Is nothing learned?**
#
# ```{dropdown} Answer
# It is 0 by construction: the group's mean was subtracted. Whether there is a signal is said by the
# spread of raw rewards and by the share of groups in which all are equal. See {doc}`10_advantages`.
# ```

# %% tags=["check", "claim:W29l", "hide-cell"]
expected_mean, expected_size = 0.0, 0.866  # with torch's std, n − 1
learning = advantages_of([1, 0, 0, 1])
assert abs(learning.mean().item() - expected_mean) < 1e-12
assert abs(learning.abs().mean().item() - expected_size) < 5e-4
assert advantages_of([1, 1, 1, 1]).abs().mean() == 0

# %% [markdown]
# **13. A penalty of $\beta \cdot$ mean$(\log\pi - \log\pi_\text{ref})$ is in the loss, and training
# with another reference changes nothing. Why?**
#
# ```{dropdown} Answer
# The reference is a constant in that expression, so that its gradient is $\beta\,\nabla\log\pi$,
# whatever the reference is. The penalty has the value of a KL estimate and not the gradient of a
# KL. k2 and k3 as losses do depend on the reference, and so does the KL as a part of the reward.
# See {doc}`17_diagnostics` and {doc}`24_rlhf_and_kl`.
# ```

# %% tags=["check", "claim:W29m", "hide-cell"]
expected_difference = 0.0
new = torch.tensor(
    [-0.5, -1.5, -2.0], dtype=torch.float64, requires_grad=True
)
references = torch.tensor([[-0.5, -1.0, -3.0], [-2.0, -0.1, -1.0]]).double()
by_kind = {
    kind: [
        torch.autograd.grad(kl_estimate(new, ref, kind).mean(), new)[0]
        for ref in references
    ]
    for kind in ("k1", "k2", "k3")
}
difference = {k: (a - b).abs().max().item() for k, (a, b) in by_kind.items()}
assert difference["k1"] == expected_difference
assert difference["k2"] > 0.1 and difference["k3"] > 0.1

# %% [markdown]
# **14. A group holds eight wrong answers, some of them in format. What does a bonus for the format
# pay that is given to right answers alone?**
#
# ```{dropdown} Answer
# Nothing. With $R = C + .1\,C\,F$ a wrong answer gets 0 with and without the format. So form alone
# is never rewarded, and a group without a right answer gives no signal either. See
# {doc}`06_reward_functions`.
# ```

# %% tags=["check", "claim:W29n", "hide-cell"]
expected_rewards = [0.0] * 8
correct, in_format = [0.0] * 8, [1.0, 0, 1, 0, 0, 0, 1, 0]
rewards = [c + 0.1 * c * f for c, f in zip(correct, in_format, strict=True)]
assert rewards == expected_rewards
assert (advantages_of(rewards) == 0).all()
plain = [c + 0.1 * f for c, f in zip(correct, in_format, strict=True)]
assert (advantages_of(plain) != 0).all()

# %% [markdown]
# ## Six things that you can do
#
# Each is more than knowing: do it without looking, then compare with the chapter.
#
# 1. Derive the DPO loss from the KL-regularised objective of RLHF: {doc}`25_dpo`.
# 2. Answer "PPO against GRPO" in three minutes, with formulas: below, and {doc}`24_rlhf_and_kl`.
# 3. Explain the two faults of GRPO that Dr. GRPO mends, with numbers:
#    {doc}`18_difficulty_reweighting`.
# 4. Implement `dpo_loss` and check that it is log 2 where the policy is the reference:
#    {doc}`25_dpo`.
# 5. Explain Condorcet's cycle and Arrow's theorem with three labellers, and what follows for a
#    single reward model: {doc}`23_reward_models`.
# 6. Write out one step of GRPO from sampling to the optimizer, and say where `eval()`, `no_grad()`
#    and the response mask belong: {doc}`12_grpo_train_step`.
#
# ## The interview answer: PPO against GRPO
#
# ```{dropdown} Three minutes
# Both maximise the same clipped surrogate: for each token of an answer that an older policy
# sampled, $\min(\rho A,\ \mathrm{clip}(\rho, 1 \pm \varepsilon)\, A)$ with $\rho = \pi_\theta /
# \pi_\text{old}$. They differ in where the advantage $A$ comes from.
#
# PPO *learns* a baseline: a value head predicts the return at every token, and $A$ is what came out
# better than predicted, smoothed by GAE. That gives each token its own advantage, and costs a
# second model of about the same size, its optimizer state, and a loss of its own that has to be
# tuned: with a reward model and a reference, four models. The KL penalty is part of its rewards; in
# GRPO it stands in the loss, or is left out.
#
# GRPO *measures* the baseline: it samples $G$ answers to each prompt and subtracts their mean
# reward, so that each token of an answer gets the same advantage. It costs more sampling, and no
# second model. With one reward at the end of an answer and no discount, a value at each token has
# little to add; a group of eight tells how hard a prompt is without any learning.
#
# Then two numbers that show that you know the faults. GRPO divides by the group's standard
# deviation: among the rewards 1, 1, 1, 0 the wrong answer weighs −1.73 (−1.5 where the deviation is
# that of `torch.std`, with $n - 1$). And a loss averaged over
# each answer punishes a wrong answer of 16 tokens eight times less per token than one of 2. Dr.
# GRPO leaves both divisions out.
# ```

# %% tags=["check", "hide-cell"]
population = torch.tensor([1.0, 1, 1, 0], dtype=torch.float64)
wrong = (0 - population.mean()) / population.std(correction=0)
assert abs(wrong.item() + 1.73) < 0.005
assert abs((0 - population.mean()) / population.std() + 1.5) < 1e-12
assert (1 / 2) / (1 / 16) == 8

# %% [markdown]
# ## Take away
#
# - If you could say it before you unfolded it, you know it. If you could only agree with it, read
#   the chapter that it names.
# - Most of these answers are a number or a counter-example of a few lines. Keep them: they are how
#   one finds out what a training run is doing.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Answers enough
# :label: ex-30-group-size
#
# *Easy, 10 minutes.* A fifteenth question, for yourself. Write `group_size_for(p, most)`: the
# fewest answers a group must have so that at most a share `most` of the groups is empty, if each
# answer is right with probability `p`. How many does a problem need that is solved 97 times of 100,
# for half of its groups to say something?
#
# :::{dropdown} Hint
# $p^G + (1-p)^G$ falls as $G$ grows. Count up from 2.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def group_size_for(p: float, most: float) -> int:
    size = 2
    while p**size + (1 - p) ** size > most:
        size += 1
    return size


# %% tags=["check"]
assert group_size_for(0.5, 0.5) == 2 and group_size_for(0.5, 0.125) == 4
assert group_size_for(0.97, 0.5) == 23 == group_size_for(0.03, 0.5)
assert no_signal_probability(torch.tensor(0.97), 23, "mean") <= 0.5
assert no_signal_probability(torch.tensor(0.97), 22, "mean") > 0.5

# %% [markdown]
# ## Next
#
# {doc}`31_course_in_one_table` shows where all of this stands in a course that begins with a
# tokenizer.
