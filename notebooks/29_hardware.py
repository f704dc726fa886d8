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
# # Hardware
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say before a run what each GPU must hold and whether it can, which
# setting frees how much, and why bfloat16 weights may stand still.
#
# **You need** the logits of {doc}`09_log_probs_and_entropy` and the microbatches of
# {doc}`12_grpo_train_step`. **Reading** takes 30 minutes, **running** half a minute, on a **CPU**.
# ```
#
# A run that is too large for its GPU ends in an error after minutes of loading, or after an hour,
# when the first long answer comes. What it needs can be computed beforehand. This chapter does so
# by hand, then with the planner `gsmrl plan`, and compares the planner with real train steps on
# this CPU. Nothing in it was measured on a GPU; `tools/gpu_check.py` is the script that measures
# there.

# %%
import logging
import math
import textwrap

import matplotlib.pyplot as plt
import pandas as pd
import torch
from matplotlib.patches import FancyBboxPatch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from gsmrl_helpers.config import make_config
from gsmrl_helpers.lora import merged_parameters
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.model_shape import KNOWN_SHAPES, ModelShape

# %%
from gsmrl_helpers.plan_explorer import draw_phases, plan_explorer
from gsmrl_helpers.planner import (
    BYTES,
    Parts,
    Workload,
    activations,
    kv_bytes_per_token,
    layer_activations,
    logits,
    peak,
    resident,
    step_peak,
    trainer_phases,
)
from gsmrl_helpers.plots import line, use_style
from gsmrl_helpers.random_steps import live_peak, random_policy
from gsmrl_helpers.response_scoring import LOGITS_AT_ONCE, score_with_head
from gsmrl_helpers.run_plan import GPU_MEMORY, plan_run
from gsmrl_helpers.step_time import Throughput, step_time, training_flops
from gsmrl_helpers.world import load_policy

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
use_style()
OLMO = KNOWN_SHAPES["allenai/OLMo-2-0425-1B"]
QWEN = KNOWN_SHAPES["Qwen/Qwen2.5-0.5B"]
GB = 1e9

# %% [markdown]
# ## Two GPUs, two jobs
#
# A step of GRPO samples and then trains. The two want different things of a GPU. Training needs
# gradients, the optimizer's state and activations. Sampling needs none of them, but the keys and
# values of all answers that are being written at the same time, and a program that is built for
# it. The assignment gives each job a GPU of its own: the trainer on `cuda:0`, a vLLM server on
# `cuda:1`, and before each sampling the weights travel from the one to the other.

# %% tags=["hide-input"]
figure, ax = plt.subplots(figsize=(7.5, 2.7))
boxes = {
    0.0: (
        "cuda:0, the trainer",
        "weights · gradients\noptimizer · activations",
    ),
    5.2: ("cuda:1, the vLLM server", "weights\nkeys and values"),
}
for x, (title, holds) in boxes.items():
    ax.add_patch(
        FancyBboxPatch(
            (x, 0), 3.2, 2.2, boxstyle="round,pad=0.1", fc="none", ec="0.3"
        )
    )
    ax.text(x + 1.6, 1.75, title, ha="center", weight="bold")
    ax.text(x + 1.6, 0.75, holds, ha="center", va="center")
arrows = [
    (1.8, "->", "1  weights (NCCL)"),
    (1.1, "->", "2  prompts"),
    (0.4, "<-", "3  answers, G each"),
]
for y, style, label in arrows:
    ax.annotate("", (5.0, y), (3.4, y), arrowprops={"arrowstyle": style})
    ax.text(4.2, y + 0.12, label, ha="center", fontsize=8)
ax.text(1.6, -0.45, "4  rewards, gradients, one step", ha="center", size=8)
ax.set(xlim=(-0.3, 8.7), ylim=(-0.7, 2.5))
ax.axis("off")
plt.show()

# %% [markdown]
# *The two-GPU layout, and the order of what happens in a step. While one GPU works the other
# waits: on-policy, the next answers need the weights of this step.*
#
# ## What stays: weights, gradients, moments
#
# Say a model has $N$ parameters. bfloat16 takes 2 bytes a number, float32 takes 4. AdamW keeps two
# moments for each parameter, running means of the gradient and of its square. With bf16 weights and
# float32 moments that is
#
# $$
# \underbrace{2N}_{\text{weights}} + \underbrace{2N}_{\text{gradients}} +
# \underbrace{2 \cdot 4N}_{\text{moments}} = 12N \text{ bytes}.
# $$
#
# For 1.5 billion parameters: 3 GB, 3 GB and 12 GB. (1 GB is $10^9$ bytes here.)


# %% tags=["definition"]
from typing import Literal

Dtype = Literal["float32", "bfloat16", "8bit"]


def training_state(
    n_parameters: int,
    weights: Dtype = "bfloat16",
    moments: Dtype = "float32",
    master_weights: bool = False,
) -> Parts:
    """Bytes of weights, gradients, Adam's two moments, and float32 masters."""
    return {
        "weights": n_parameters * BYTES[weights],
        "gradients": n_parameters * BYTES[weights],
        "moments": 2 * n_parameters * BYTES[moments],
        "masters": n_parameters * BYTES["float32"] if master_weights else 0.0,
    }


# %% tags=["check", "claim:A34a"]
state = training_state(1_500_000_000)
expected_parts = [3, 3, 12, 0]
for n_bytes, expected in zip(state.values(), expected_parts, strict=True):
    assert n_bytes == expected * GB
expected_sum = 17.8
total = sum(training_state(1_485_000_000).values()) / GB
assert abs(total - expected_sum) < 0.05

# %% [markdown]
# OLMo-2-0425-1B is called "1B", and its parameters can be counted from five sizes: the vocabulary
# $V$, the width $D$ of the residual stream, the width $F$ inside the MLP, and the number of layers.
# A layer has four matrices of $D \times D$ for attention and three of $D \times F$ for the MLP.
# Embedding and head have $V \times D$ each.

# %%
V, D, F = OLMO.vocab_size, OLMO.hidden_size, OLMO.intermediate_size
attention, mlp = 4 * D * D, 3 * D * F
by_hand = OLMO.n_layers * (attention + mlp) + 2 * V * D
print(f"V = {V:,}, D = {D:,}, F = {F:,}, {OLMO.n_layers} layers")
print(f"matrices {by_hand:,}, all {OLMO.n_parameters:,}")

# %% tags=["check"]
norms = OLMO.n_layers * 4 * D + D
assert OLMO.n_parameters == by_hand + norms == 1_484_916_736

# %% [markdown]
# 1.485 billion: with float32 moments 17.8 GB, more than a card of 16 GB has, before anything is
# computed.
#
# ### What torch does
#
# torch's AdamW makes its moments in the dtype of the parameters it is given. Give it bf16 weights,
# and the moments are bf16 as well.

# %%
weight = nn.Parameter(torch.ones(1000, 8, dtype=torch.bfloat16))
adamw = torch.optim.AdamW([weight], lr=1e-5)
weight.grad = torch.ones_like(weight)
adamw.step()
moments = {
    name: adamw.state[weight][name] for name in ("exp_avg", "exp_avg_sq")
}
print({name: str(moment.dtype) for name, moment in moments.items()})

# %% tags=["check", "claim:A34b"]
assert {moment.dtype for moment in moments.values()} == {torch.bfloat16}
bytes_a_parameter = (
    weight.nbytes
    + weight.grad.nbytes
    + sum(moment.nbytes for moment in moments.values())
) / weight.numel()
planned = training_state(1_485_000_000, moments="bfloat16")
expected_bytes, expected_sum = 8, 11.9
assert bytes_a_parameter == expected_bytes
assert abs(sum(planned.values()) / GB - expected_sum) < 0.05

# %% [markdown]
# $8N$ bytes, 11.9 GB. That is less than the $12N$ above, as each moment takes 2 bytes and not 4. It
# has a price.
#
# ## bf16 weights may stand still
#
# bfloat16 has 8 significant bits. Between two powers of two it has 128 numbers, so that around $w$
# neighbours are about $w/200$ apart. AdamW moves a weight by about the learning rate, whatever the
# gradient's size: with equal gradients by exactly that. At the learning rate $10^{-5}$ a weight of
# .005 has its next bf16 neighbour 3 steps away. The sum is rounded back to where it was, each time.
# The runs use $\beta = (.9, .95)$ and no weight decay, and so do the cells here.


# %%
run = make_config("two_gpu")
ADAM = {"lr": 1e-5, "betas": run.adam_betas, "weight_decay": run.weight_decay}


def spacing(value: float) -> float:
    """Distance from a bf16 number to the next larger one."""
    number = torch.tensor(value, dtype=torch.bfloat16)
    following = (number.view(torch.int16) + 1).view(torch.bfloat16)
    return (following.double() - number.double()).item()


def moved_by(value: float, dtype: torch.dtype, n_steps: int = 200) -> float:
    """How far equal gradients move a weight at a learning rate of 1e-5."""
    weight = nn.Parameter(torch.tensor([value], dtype=dtype))
    start = weight.item()
    adamw = torch.optim.AdamW([weight], **ADAM)
    for _ in range(n_steps):
        weight.grad = torch.ones_like(weight)
        adamw.step()
    return abs(weight.item() - start)


sizes = [0.001, 0.003, 0.005, 0.02, 0.1, 1.0]
pd.DataFrame(
    {
        "weight": sizes,
        "spacing / 1e-5": [round(spacing(w) / 1e-5, 2) for w in sizes],
        "bf16 moves": [f"{moved_by(w, torch.bfloat16):.4f}" for w in sizes],
        "fp32 moves": [f"{moved_by(w, torch.float32):.4f}" for w in sizes],
    }
)

# %% tags=["check", "claim:A35"]
generator = torch.Generator().manual_seed(0)
drawn = 0.005 * 1000 ** torch.rand(12, generator=generator)
expected_bf16, expected_fp32 = 0.0, 0.002
for value in [0.005, *drawn.tolist()]:
    assert moved_by(value, torch.bfloat16) == expected_bf16
    assert abs(moved_by(value, torch.float32) - expected_fp32) < 1e-4

# %% [markdown]
# 200 equal steps should move a weight by .002. In float32 they do. In bf16 no weight of .005 and
# more moves at all. Half a spacing is what a step must exceed, and above $2^{-8} = .0039$ half a
# spacing is at least $1.5 \cdot 10^{-5}$. Smaller weights do move: the two in the table by
# .0021.
#
# And with other gradients? A step is longest where each gradient is larger than the one before, by
# the factor $\beta_2 / \beta_1$. By the Cauchy–Schwarz inequality it is at most
#
# $$
# \frac{1 - \beta_1}{\sqrt{1 - \beta_2}\,\sqrt{1 - \beta_1^2 / \beta_2}} \cdot \text{lr}.
# $$
#
# With the runs' (.9, .95) that is 1.165 lr: $1.2 \cdot 10^{-5}$, below $1.5 \cdot 10^{-5}$. So with
# these betas no gradients move a bf16 weight above .0039. torch's default is (.9, .999), where the
# bound is 7.3 lr: there a weight needs to be above $2^{-5} = .031$ to be safe from all gradients.


# %%
def longest_step(beta1: float, beta2: float, n_steps: int = 3000) -> float:
    """AdamW's last step on growing gradients, in learning rates."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    options = ADAM | {"betas": (beta1, beta2)}
    adamw = torch.optim.AdamW([weight], **options)
    for i in range(n_steps):
        before = weight.item()
        weight.grad = torch.full_like(weight, (beta2 / beta1) ** i)
        adamw.step()
    return abs(weight.item() - before) / options["lr"]


def bound(beta1: float, beta2: float) -> float:
    """What no step exceeds, in learning rates."""
    shrink = math.sqrt(1 - beta2) * math.sqrt(1 - beta1**2 / beta2)
    return (1 - beta1) / shrink


for betas in (run.adam_betas, (0.9, 0.999)):
    found = longest_step(*betas), bound(*betas)
    print(betas, "step {:.3f} lr, bound {:.3f} lr".format(*found))

# %% tags=["check"]
assert ADAM["betas"] == (0.9, 0.95) and ADAM["weight_decay"] == 0
assert abs(bound(0.9, 0.95) - 1.165) < 5e-4
assert abs(bound(0.9, 0.999) - 7.270) < 5e-4
assert 1.164 < longest_step(0.9, 0.95) < bound(0.9, 0.95) + 1e-9
assert 7 < longest_step(0.9, 0.999) < bound(0.9, 0.999)
assert spacing(2**-8) / 2 > 1e-5 * bound(0.9, 0.95)
assert spacing(2**-5) / 2 > 1e-5 * bound(0.9, 0.999) > spacing(2**-6) / 2
generator = torch.Generator().manual_seed(1)
weight = nn.Parameter(drawn.bfloat16())
start, adamw = weight.detach().clone(), torch.optim.AdamW([weight], **ADAM)
for i in range(200):
    growth = 1.0 if i < 100 else (0.95 / 0.9) ** i
    noise = torch.randn(12, generator=generator)
    weight.grad = (growth * (1 + 0.1 * noise)).bfloat16()
    adamw.step()
assert torch.equal(weight, start)

# %% [markdown]
# The cure is old {cite}`micikevicius2018mixed`: the optimizer keeps its own float32 copy of each
# weight, the *master*. Steps add up there, and the bf16 weight that the model computes with is its
# rounded image.


# %% tags=["definition"]
from collections.abc import Callable, Iterable
from typing import Any


class MasterWeights:
    """An optimizer that steps on float32 copies of the parameters."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [
            nn.Parameter(p.detach().float().clone()) for p in self.parameters
        ]
        self.optimizer = make_optimizer(self.masters)

    @torch.no_grad()
    def step(self) -> None:
        """Step on the masters, one after the other, and round them."""
        for parameter, master in zip(
            self.parameters, self.masters, strict=True
        ):
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                self.optimizer.step()
                master.grad = None
                parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """The masters and the optimizer's state."""
        masters: list[Tensor] = [master.detach() for master in self.masters]
        return {
            "masters": masters,
            "optimizer": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what `state_dict` returned."""
        for master, saved in zip(self.masters, state["masters"], strict=True):
            master.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])


# %% tags=["check"]
for value in (0.005, 0.02, 1.0):
    weight = nn.Parameter(torch.tensor([value], dtype=torch.bfloat16))
    start = weight.item()
    masters = MasterWeights([weight], lambda m: torch.optim.AdamW(m, **ADAM))
    for _ in range(200):
        weight.grad = torch.ones_like(weight)
        masters.step()
    assert masters.masters[0].dtype == torch.float32
    assert torch.equal(weight, masters.masters[0].bfloat16())
    assert weight.item() < start

# %% [markdown]
# Only one gradient at a time is widened to float32: the step goes over the parameters one by one.
# A run of a bf16 policy has the setting `master_weights`, and every run logs
# `changed_parameter_share`, the share of the weights whose bits a step changed. Here for the
# weights of the pocket policy, rounded to bf16, and one step.

# %%
policy, _ = load_policy(make_config("pocket"))
trained = torch.cat([p.detach().flatten() for p in policy.parameters()])


def share_moved(dtype: torch.dtype) -> float:
    weight = nn.Parameter(trained.to(dtype))
    before = weight.detach().clone()
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], **ADAM).step()
    return (weight != before).double().mean().item()


shares = {
    str(dtype).removeprefix("torch."): round(share_moved(dtype), 3)
    for dtype in (torch.bfloat16, torch.float32)
}
print(shares)

# %% tags=["check"]
share = share_moved(torch.bfloat16)
assert round(1 - share, 2) == 0.94
assert share_moved(torch.float32) > 0.99

# %% [markdown]
# Of a hundred bf16 weights 94 stand still. That need not stop the policy from learning, as the
# small weights carry on, but it is not the experiment that the learning rate describes. Masters
# cost 4 bytes a parameter, and the moments of what is stepped on are then float32: $16N$ bytes.

# %% tags=["check", "claim:A34c"]
state = training_state(1_485_000_000, master_weights=True)
expected_sum = 23.8
assert abs(sum(state.values()) / GB - expected_sum) < 0.05

# %% [markdown]
# ## What a microbatch adds: activations
#
# The backward pass needs numbers of the forward pass again; autograd keeps them until then. How
# many can be read off the model's code. Write $e$ for the bytes of a number (2 in bf16). For each
# token, one layer of OLMo-2 keeps
#
# - in the MLP four tensors of width $F$: two inputs of the activation function and the product, its
#   result, and what goes into the last matrix: $4eF$;
# - queries, keys, values and what attention returns, each of width $D$: $4eD$;
# - the inputs of attention and of the MLP: $2eD$;
# - for each of four norms its input and the normalised input, in float32 because norms compute in
#   it: $4 \cdot 8D$;
# - one float32 number a head, the log-sum-exp of its scores. The scores themselves are not kept:
#   SDPA and FlashAttention compute them again {cite}`dao2023flashattention2`.

# %%
microbatch = Workload(
    shape=OLMO,
    dtype="bfloat16",
    master_weights=True,
    batch_rows=256,
    microbatch_rows=8,
    row_tokens=384 + 512,
    response_tokens=512,
    scored_at_once=16,
)
per_token = 4 * 2 * F + 4 * 2 * D + 2 * 2 * D + 4 * 8 * D + 4 * OLMO.n_heads
all_layers = OLMO.n_layers * per_token * microbatch.microbatch_tokens / GB
print(f"{per_token:,} bytes a token and layer")
print(f"{all_layers:.1f} GB for 8 rows of 896 tokens")

# %% tags=["check"]
assert per_token == layer_activations(microbatch) == 155_712
assert abs(all_layers - 17.9) < 0.05

# %% [markdown]
# The row of 896 tokens is an assumption on the safe side: prompts of up to 384, answers of up to
# 512, the profile's limit. Two numbers are behind the 384, and neither is computed here. The
# longest question of GSM8K's 7,473 training problems, formatted with `r1_zero`, has 1,424
# characters: counted once, in the published file, which is not part of this repository. Four
# characters a token is an assumption, a rule of thumb for English; it gives 356. With the policy's
# tokenizer at hand, count, and give the number to `gsmrl plan --prompt-tokens`.
#
# Then there are the logits of {doc}`09_log_probs_and_entropy`: $V$ numbers for each position. A
# plain step would compute them for all, and hold six tensors of that size at the end of its forward
# pass, as it also logs the entropy: the logits in bf16 (2 bytes), and in float32 the
# log-probabilities, the masked log-probabilities, their exponentials and the product of the two
# (4 bytes each), and a mask (1 byte). Ours computes them for response tokens only, in chunks of at
# most $2^{27}$ numbers on a GPU, and holds two float32 tensors of a chunk.

# %%
bytes_a_logit = 2 + 4 + 4 + 4 + 4 + 1
plain_logits = bytes_a_logit * V * microbatch.microbatch_tokens / GB
positions = 2**27 // V
of_logits = (4 + 4) * V * positions / GB
print(f"{plain_logits:.1f} GB at once, {of_logits:.1f} GB in a chunk")

# %% tags=["check"]
assert abs(plain_logits - 13.7) < 0.05
assert positions == 1337 < 8 * 512 and abs(of_logits - 1.1) < 0.05
assert math.isclose(of_logits * GB, logits(microbatch)["forward"])

# %% [markdown]
# ## The planner
#
# `trainer_phases` adds these terms up for each phase of a step, with the smaller ones: the tokens
# themselves, gradients that pass through a layer, the pass without gradients that scores answers.
# The peak is the largest sum.

# %%
phases = trainer_phases(microbatch)
table = pd.DataFrame(phases).fillna(0.0) / GB
table.loc["sum"] = table.sum()
table.round(1)

# %% tags=["check"]
phase, n_bytes = peak(phases)
assert phase == "backward, head" and abs(n_bytes / GB - 43.4) < 0.05
assert abs(phases[phase]["logits"] / GB - 1.6) < 0.05
state = sum(phases[phase][p] for p in ("weights", "gradients", "optimizer"))
assert abs(state / GB - 23.8) < 0.05

# %%
figure, ax = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
draw_phases(ax, phases, GPU_MEMORY["H100"])
plt.show()

# %% [markdown]
# *The trainer of the profile `two_gpu`, phase by phase, beside a card of 80 GB. More than half of
# the bytes at the peak are what stays; almost all the rest are the activations of one microbatch.
# Scoring has no gradients and almost no activations. Going backward, the head holds its chunk of
# logits once as a gradient, and beside it the gradient of its own weights in float32: 1.6 GB.* The
# 43.4 GB are the tensors. `gsmrl plan` says 44.4, as it adds a row "CUDA" to each phase: 1 GB,
# assumed and not counted, for CUDA's libraries and what the allocator keeps in reserve.
#
# ### Is it right?
#
# `LiveBytes` counts the bytes of all tensors that exist, operation by operation, on any device.
# Here are real train steps on this CPU, of small models with random weights and on random answers
# (`gsmrl_helpers.random_steps`, of which `tools/gpu_check.py` is made, too). The weights are made
# before the count, and left out of both columns. The models are Qwen2: an OLMo-2 would share its
# prompts on a CPU ({doc}`12_grpo_train_step`), and the planner plans for whole rows, as on a GPU.


# %%
small = ModelShape(
    architecture="qwen2",
    vocab_size=600,
    hidden_size=64,
    intermediate_size=192,
    n_layers=3,
    n_heads=4,
    n_kv_heads=4,
    head_dim=16,
    tied=False,
)


def config_of(**settings: object):
    """The pocket run's settings for eight rows, changed."""
    sizes = {
        "rollout_batch_size": 8,
        "train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "sampling_max_tokens": 12,
    }
    return make_config("pocket", overrides={**sizes, **settings})


# %%
def compare(shape: ModelShape, **settings: object) -> dict[str, float]:
    """Peak of two train steps of one size, measured and planned, in MB."""
    config = config_of(**settings)
    model = random_policy(shape, config)
    measured = live_peak(model, config, prompt_tokens=36)
    work = Workload.from_config(config, shape, prompt_tokens=36)
    planned = step_peak(work)[1] - resident(work)["weights"]
    return {"measured (MB)": measured / 1e6, "planned (MB)": planned / 1e6}


# %%
larger = small.model_copy(update={"hidden_size": 128, "head_dim": 32})
many = small.model_copy(update={"vocab_size": 6000})
masters = {"dtype": "bfloat16", "master_weights": True}
found = {
    "small, 4 rows": compare(small),
    "small, 1 row": compare(small, gradient_accumulation_steps=8),
    "twice as wide": compare(larger),
    "ten times the vocabulary": compare(many),
    "bf16 with masters": compare(small, **masters),
    "checkpointing": compare(small, gradient_checkpointing=True),
}
comparison = pd.DataFrame(found).T
ratio = comparison["planned (MB)"] / comparison["measured (MB)"]
comparison["error (%)"] = (100 * (ratio - 1)).round().astype(int)
comparison.round(1)

# %% tags=["check"]
assert ((ratio - 1).abs() < 0.05).all() and len(ratio) == 6
planned = comparison["planned (MB)"]
assert planned.max() > 3 * planned.min()

# %% [markdown]
# The planner is within a few percent. It promises 15. The same can be asked at full scale: torch's
# *fake tensors* have a shape and a dtype, but no contents. The model's own code runs over them,
# and `LiveBytes` counts what it would have held. This is OLMo-2-1B in bf16 with two rows of 896
# tokens, 512 of them the response, on a laptop, whose chunks of logits are smaller.

# %%
with FakeTensorMode():
    model = random_policy(OLMO, config_of(dtype="bfloat16")).eval()
    ids = torch.zeros(2, 896, dtype=torch.long)
    with LiveBytes() as memory:
        hidden = model.model(ids).last_hidden_state[:, -512:].flatten(0, 1)
        labels = ids[:, -512:].flatten()
        scored = score_with_head(model.lm_head, hidden, labels)
two_rows = microbatch.model_copy(
    update={"microbatch_rows": 2, "logits_at_once": LOGITS_AT_ONCE["cpu"]}
)
planned = activations(two_rows) + logits(two_rows)["forward"]
print(f"counted {memory.peak / GB:.2f} GB, planned {planned / GB:.2f} GB")

# %% tags=["check"]
assert abs(planned / memory.peak - 1) < 0.01
assert abs(memory.peak / GB - 4.6) < 0.05
del model, hidden, scored

# %% [markdown]
# Move the sliders: which of the settings brings OLMo-2-1B with masters into 16 GB?

# %% tags=["nbval-ignore-output"]
plan_explorer(
    {"OLMo-2-1B": OLMO, "Qwen2.5-0.5B": QWEN},
    {name: GPU_MEMORY[name] for name in ("RTX 4080", "H100", "B200")},
)

# %% [markdown]
# With rows of this length none does, and not all together. Without masters, checkpointing is
# enough; and so is LoRA, whose adapters are float32 already:


# %%
def peak_gb(**changes: object) -> float:
    """Peak of the trainer in GB, two rows at a time, so many scored."""
    base = {
        "microbatch_rows": 2,
        "scored_at_once": 2,
        "master_weights": False,
    }
    work = microbatch.model_copy(update={**base, **changes})
    return peak(trainer_phases(work))[1] / GB


checkpointed = {"gradient_checkpointing": True}
eight_bit = {**checkpointed, "optimizer": "adamw_8bit"}
ladder = {
    "float32 masters": peak_gb(master_weights=True),
    "+ checkpointing": peak_gb(**checkpointed, master_weights=True),
    "+ 8-bit moments": peak_gb(**eight_bit, master_weights=True),
    "bf16, no masters": peak_gb(),
    "no masters, 8 bit, checkpointing": peak_gb(**eight_bit),
    "LoRA 16, checkpointing": peak_gb(**checkpointed, lora_rank=16),
}
figure, ax = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
bars = ax.barh(list(ladder), list(ladder.values()), color="0.6")
ax.bar_label(bars, fmt="%.1f", padding=3)
ax.axvline(15, color=line("too high")["color"], ls="--")
ax.invert_yaxis()
ax.set_xlabel("peak of the trainer (GB)")
plt.show()

# %% [markdown]
# *OLMo-2-1B, two rows of 896 tokens at a time. The dashed line is a card of 16 GB with 1 GB set
# aside. Masters are out of reach there, even with 8-bit moments. Without them the activations of
# two rows are still too many, and checkpointing makes them few. LoRA needs least.*

# %% tags=["check"]
expected_ladder = [29.7, 25.4, 16.5, 17.9, 10.6, 4.2]
for value, wanted in zip(ladder.values(), expected_ladder, strict=True):
    assert abs(value - wanted) < 0.05

# %% [markdown]
# ## Three ways to need less
#
# ### 8-bit moments
#
# A moment can be stored as one byte: a table of 256 values, and a float32 scale for every block of
# 256 numbers, so that one large number spoils its own block only
# {cite}`dettmers2022eightbit`. Moments then take $2 + 8/256$ bytes a parameter in place of 8. The
# package bitsandbytes does this on GPUs and CPUs.

# %%
generator = torch.Generator().manual_seed(0)
start = 0.02 * torch.randn(64, 128, generator=generator)
gradients = [torch.randn(64, 128, generator=generator) for _ in range(5)]
moved, held = {}, {}
for name in ("adamw", "adamw_8bit"):
    weight = nn.Parameter(start.clone())
    optimizer = make_optimizer(config_of(optimizer=name), [weight])
    for weight.grad in gradients:
        optimizer.step()
    moved[name] = weight.detach() - start
    held[name] = sum(
        tensor.nbytes
        for key, tensor in optimizer.state[weight].items()
        if key != "step" and not key.startswith("qmap")
    )
difference = (moved["adamw_8bit"] - moved["adamw"]).norm()
difference = (difference / moved["adamw"].norm()).item()
bytes_each = {name: n / start.numel() for name, n in held.items()}
print({name: round(n, 1) for name, n in bytes_each.items()})

# %% tags=["check"]
assert bytes_each["adamw"] == 8
assert abs(bytes_each["adamw_8bit"] - 2 * BYTES["8bit"]) < 0.1
assert 0.005 < difference < 0.015

# %% [markdown]
# Its steps differ from AdamW's by about one percent here. The weights are still those it is given:
# in bf16 without masters they stand still as before.
#
# ### Checkpointing
#
# Keep only what goes into each layer, and compute the layer once more when its backward pass comes
# {cite}`chen2016sublinear`. Gradients are the same; one more forward pass makes 8 in place of 6
# FLOPs a parameter and token.

# %%
gradients, peaks = [], []
for checkpointing in (False, True):
    config = config_of(gradient_checkpointing=checkpointing)
    model = random_policy(small, config)
    ids = torch.arange(160).view(4, 40)
    with LiveBytes() as memory:
        model(ids).logits.square().mean().backward()
    gradients.append([p.grad for p in model.parameters()])
    peaks.append(memory.peak / 1e6)
print(f"{peaks[0]:.1f} MB and {peaks[1]:.1f} MB")

# %% tags=["check"]
for plain, recomputed in zip(*gradients, strict=True):
    assert torch.allclose(plain, recomputed, rtol=1e-4, atol=1e-7)
assert peaks[1] < 0.7 * peaks[0]

# %% [markdown]
# ### LoRA, and the merged sync
#
# A matrix $W$ is frozen, and beside it $A$ (rank × in) and $B$ (out × rank) are trained
# {cite}`hu2022lora`:
#
# $$ y = W x + \frac{\alpha}{r} B A x. $$
#
# $B$ starts at 0, so the policy starts as what it was. Gradients, moments and masters exist for $A$
# and $B$ only; they are float32, and small.

# %%
n_adapters = OLMO.n_lora_parameters(rank=16)
print(f"{n_adapters:,} parameters, {n_adapters / OLMO.n_parameters:.2%}")

# %% tags=["check"]
per_layer = 16 * (4 * (D + D) + 3 * (D + F))
assert n_adapters == OLMO.n_layers * per_layer == 12_058_624

# %% [markdown]
# The server knows nothing of adapters. Before each sampling it is sent $W + \frac{\alpha}{r} BA$,
# under the name of $W$: `merged_parameters` gives these, one after the other. Here with the package
# peft, on the small model, with adapters that are no longer zero.

# %%
adapted = config_of(lora={"rank": 4, "alpha": 8})
model = random_policy(small, adapted)
generator = torch.Generator().manual_seed(1)
for name, parameter in model.named_parameters():
    if "lora_B" in name:
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.1 * noise
engine = random_policy(small, config_of())
with torch.no_grad():
    unsynced = (model(ids).logits - engine(ids).logits).abs().max()
    engine.load_state_dict(dict(merged_parameters(model)))
    synced = (model(ids).logits - engine(ids).logits).abs().max()

# %% tags=["check"]
assert unsynced > 0.01 and synced < 1e-5
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
assert trained == small.n_lora_parameters(rank=4)

# %% [markdown]
# In bf16 the merged sum is rounded: what is smaller than half a spacing of $W$ does not reach the
# server. Trainer and engine then differ a little, and the old log-probabilities come from the
# trainer, as always.
#
# ## The server's GPU
#
# Whatever is left of the server's share after the weights holds keys and values: two vectors a
# layer for each token. `gpu_memory_utilization` is the share that vLLM may take.

# %%
kv = kv_bytes_per_token(OLMO, 2)
room = 0.85 * GPU_MEMORY["RTX 4080"] - 2 * OLMO.n_parameters - 1 * GB
print(f"{kv:,} bytes a token, {room / GB:.1f} GB of room,")
print(f"{room / kv / 896:.0f} rows of 896 tokens at once")

# %% tags=["check"]
assert kv == 2 * OLMO.n_layers * D * 2 == 131_072
assert round(room / kv / 896) == 82

# %% [markdown]
# ## Without a cluster: four RTX 4080
#
# Four cards of 16 GB make two pairs, so two runs at once, say two seeds. The profile `rtx4080` is
# the assignment's run made smaller, and its trainer one that fits.

# %%
rtx4080, two_gpu = make_config("rtx4080"), make_config("two_gpu")
names = ("rollout_batch_size", "group_size", "n_grpo_steps", "optimizer")
names += ("gradient_checkpointing", "master_weights", "scored_at_once")
table = pd.DataFrame(
    {
        run.profile: {
            **{name: str(getattr(run, name)) for name in names},
            "prompts of a step": str(run.prompts_per_step),
            "microbatch": str(
                run.train_batch_size // run.gradient_accumulation_steps
            ),
            "validation": str(run.splits.curve),
            "gpu_memory_utilization": str(run.vllm.gpu_memory_utilization),
        }
        for run in (two_gpu, rtx4080)
    }
)
table

# %% tags=["check"]
assert rtx4080.prompts_per_step * rtx4080.group_size == 16 * 8 == 128
assert rtx4080.n_grpo_steps == 100 and rtx4080.splits.curve == 512
assert rtx4080.vllm.gpu_memory_utilization == 0.85
assert rtx4080.optimizer == "adamw_8bit" and rtx4080.gradient_checkpointing
assert rtx4080.train_batch_size // rtx4080.gradient_accumulation_steps == 2

# %%
for text in plan_run(rtx4080).lines()[:3]:
    print(textwrap.fill(text, 76))

# %% tags=["check"]
plan = plan_run(rtx4080)
assert plan.fits
assert not plan_run(rtx4080.model_copy(update={"master_weights": True})).fits

# %% [markdown]
# The order in which to do it:
#
# 1. `gsmrl plan --profile rtx4080`, and the tests on the CPU.
# 2. A trial of 5 to 10 steps: `--set n_grpo_steps=10`. It shows whether memory and weight sync
#    hold, how long a step takes, and `changed_parameter_share`.
# 3. One seed of each variant, on four cards two runs at a time, each with its pair of cards:
#
#    ```
#    gsmrl run variants --profile rtx4080 --seeds 0
#    ```
#
# 4. Four seeds, for the final comparison only.
#
# Cards without NVLink send the weights over PCIe. If the sync hangs there, put `NCCL_P2P_DISABLE=1`
# in front of the command. With LoRA the weights that matter are float32:
# `--set lora='{"rank": 16, "alpha": 32}' --set optimizer=adamw --set learning_rate=1e-4`. What
# counts for a comparison is that all variants have the same settings.
#
# Responses of groups without a signal are left out of training ({doc}`12_grpo_train_step`). That
# saves most where it is slowest.
#
# ### Still too much: a smaller model, or one card
#
# `qwen_half_b` takes Qwen2.5-0.5B. It has a third of the parameters, so masters fit. Accuracies are
# others, and so is the threshold; the comparisons between methods are the same.
#
# `one_gpu` is for one card of 16 GB, of the class of a T4. Trainer and server take turns in its
# memory: the server sleeps while the trainer trains, its weights in the host's memory. A T4
# computes no bf16. float16 has the bits, but its smallest numbers are $6 \cdot 10^{-8}$, and
# gradients below vanish unless the loss is scaled up; the profile uses float32 and LoRA. Sampling
# has no gradients: a server in float16 (`vllm.dtype`) takes half the weights and half the keys and
# values, so that several times as many rows fit. Whether OLMo-2's activations stay within float16's
# range was not tried here, so the profile does not ask for it.

# %%
for name in ("qwen_half_b", "one_gpu"):
    for text in plan_run(make_config(name)).lines()[:-1]:
        print(textwrap.fill(text, 76))

# %% tags=["check"]
assert make_config("qwen_half_b").master_weights
assert make_config("one_gpu").lora.rank == 16
assert make_config("one_gpu").dtype == "float32"
for name in ("two_gpu", "qwen_half_b", "one_gpu"):
    assert plan_run(make_config(name)).fits
one_gpu = make_config("one_gpu")
server = one_gpu.vllm.model_copy(update={"dtype": "float16"})
in_float16 = plan_run(one_gpu.model_copy(update={"vllm": server}))
assert "of 5 rows" in plan_run(one_gpu).devices[0].note
assert "of 34 rows" in in_float16.devices[0].note
smallest = torch.finfo(torch.float16).smallest_normal / 2**10
assert abs(smallest / 6e-8 - 1) < 0.01

# %% [markdown]
# ## Time
#
# A training pass costs 6 FLOPs for each parameter in a matrix and each token, and attention on top
# {cite}`chowdhery2022palm`. What a GPU makes of its peak speed, its *MFU*, has to be measured.

# %%
n_tokens = 256 * 500
flops = training_flops(OLMO, n_tokens, 500)
print(f"{flops / 1e15:.2f} petaFLOP for 256 rows of 500 tokens")

# %% tags=["check"]
of_matrices = 6 * OLMO.n_matrix_parameters * n_tokens
assert abs(of_matrices / 9.8e14 - 1) < 0.01
assert abs(flops / of_matrices - 1.013) < 0.0005

# %% [markdown]
# A petaFLOP, $10^{15}$: about a second at the peak of a card that makes 1,000 TFLOP/s, and a few in
# practice. Sampling is slower than that, as each token of an answer has to wait for the one before
# it. So the planner asks for two speeds, in tokens per second, and does the rest:
# `gsmrl plan --measure` measures them on the machine that it runs on. With 1,000 and 5,000, numbers
# made up for the example:

# %%
speed = Throughput(
    sampling_tokens_per_second=1000, training_tokens_per_second=5000
)
time = step_time(rtx4080, speed, prompt_tokens=150, response_tokens=250)
parts = ("sampling", "scoring", "training", "validation")
print({name: round(getattr(time, name), 1) for name in parts}, "seconds")
print(f"{time.run / 3600:.2f} hours for the run")

# %% tags=["check"]
assert time.sampling == 128 * 250 / 1000
assert time.training == 128 * 400 / 5000
assert abs(time.scoring / time.training - 1 / 3) < 1e-9
assert abs(time.run / 3600 - 1.88) < 0.005

# %% [markdown]
# ## Take away
#
# - Training in bf16 takes 8 bytes a parameter with torch's AdamW, 12 with float32 moments, 16 with
#   float32 masters, 6 with 8-bit moments. OLMo-2-1B has 1.485 billion parameters.
# - At a learning rate of $10^{-5}$, and with the runs' betas (.9, .95), bf16 weights above .0039
#   never move; with torch's default betas a few might. Masters, or adapters in float32, do move.
#   Look at `changed_parameter_share`.
# - A microbatch adds activations (tokens × layers) and logits (tokens × vocabulary). Fewer rows and
#   checkpointing make the first small, chunks of response tokens the second.
# - Plan first (`gsmrl plan`), then try 5 to 10 steps, then run.
#
# ## Exercises
#
# ```{exercise} The largest model
# :label: ex-29-largest
#
# *Easy, 5 minutes.* Write `largest_model(gpu_bytes, other_bytes, moments, master_weights)`: the
# largest number of parameters whose weights, gradients and optimizer state (bf16 weights) fit
# beside `other_bytes` for everything else. `moments` is a key of `BYTES`. Is 1.485 billion within
# reach of 16 GB, with 3 GB for the rest?
#
# :::{dropdown} Hint
# `training_state` is proportional to the number of parameters, so one parameter is enough.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def largest_model(
    gpu_bytes: float, other_bytes: float, moments: str, master_weights: bool
) -> int:
    """Parameters that can be trained in what `other_bytes` leave."""
    state = training_state(1, "bfloat16", moments, master_weights)
    return math.floor((gpu_bytes - other_bytes) / sum(state.values()))


# %% tags=["check"]
assert largest_model(16e9, 4e9, "float32", False) == 1_000_000_000
assert largest_model(16e9, 3e9, "float32", True) == 812_500_000
assert largest_model(16e9, 3e9, "bfloat16", False) == 1_625_000_000
assert largest_model(16e9, 3e9, "8bit", False) > 2_100_000_000

# %% [markdown]
# ```{exercise} Merge by hand
# :label: ex-29-merge
#
# *Medium, 10 minutes.* Write `merge(weight, a, b, alpha)` for a matrix (out, in) and its adapter
# (rank, in), (out, rank): the merged matrix, in the dtype of `weight`, summed in float32.
#
# :::{dropdown} Hint
# The rank can be read off `a`. Convert before the sum, not after it.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def merge(weight: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """W + alpha / rank · B A: (out, in)."""
    change = alpha / a.shape[0] * (b.float() @ a.float())
    return (weight.float() + change).to(weight.dtype)


# %% tags=["check"]
layer = model.get_submodule("model.layers.2.mlp.up_proj")
a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
merged = merge(layer.base_layer.weight, a, b, alpha=8)
packaged = dict(merged_parameters(model))
wanted = packaged["model.layers.2.mlp.up_proj.weight"]
assert torch.allclose(merged, wanted, atol=1e-6)
weight = torch.full((2, 3), 1.0, dtype=torch.bfloat16)
ones = torch.ones(1, 3), torch.ones(2, 1)
assert (merge(weight, *ones, alpha=0.003) == 1).all()
assert (merge(weight, *ones, alpha=0.005) == 1.0078125).all()
# Just above half a spacing: the change alone, rounded to bf16, is half of it.
assert (merge(weight, *ones, alpha=0.003908) == 1.0078125).all()
assert merge(weight, *ones, alpha=0.003).dtype == torch.bfloat16

# %% [markdown]
# The lines on the matrix of ones are the rounding in the sync: at 1 the next bf16 number is .0078
# away, and a change of .003 does not reach the server. One of .003908, just over half of the
# spacing, does if the sum is made in float32. Rounded to bf16 before the sum it is exactly half,
# and the sum goes back to 1.
#
# ```{exercise} Round by lot
# :label: ex-29-lot
#
# *Hard, 20 minutes.* There is a way without masters. Write `round_by_lot(values, generator)`:
# float32 values to bf16, each up or down to one of its two neighbours, with probabilities such that
# the mean is the value itself (*stochastic rounding*).
#
# :::{dropdown} Hint
# A float32 number is a bf16 number with 16 more bits. Add a random number of 16 bits to its integer
# view, then cut the last 16 bits off.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def round_by_lot(values: Tensor, generator: torch.Generator) -> Tensor:
    """float32 to bf16, unbiased: the same shape."""
    bits = values.view(torch.int32)
    noise = torch.randint(
        0, 2**16, bits.shape, generator=generator, dtype=torch.int32
    )
    cut = (bits + noise) & -(2**16)
    return cut.view(torch.float32).bfloat16()


# %% tags=["check"]
generator = torch.Generator().manual_seed(0)
exact = torch.tensor([0.02, -0.5, 3.0]).bfloat16().float()
assert torch.equal(round_by_lot(exact, generator).float(), exact)
weights = torch.full((20_000,), 0.02).bfloat16()
start = weights.double().mean()
for _ in range(200):
    weights = round_by_lot(weights.float() - 1e-5, generator)
moved = start - weights.double().mean()
standard_error = weights.double().std() / math.sqrt(len(weights))
assert (moved - 0.002).abs() < 4 * standard_error
assert len(weights.unique()) > 10

for value in (0.0201, -0.02):  # neither is a bf16 number
    many = torch.full((20_000,), value)
    rounded = round_by_lot(many, generator).double()
    assert len(rounded.unique()) == 2
    standard_error = rounded.std() / math.sqrt(len(rounded))
    assert (rounded.mean() - many[0].double()).abs() < 4 * standard_error

# %% [markdown]
# Plain rounding would have left all of them where they were. By lot they move by .002 on average,
# each on its own random path.
#
# ## Next
#
# {doc}`13_run_grpo` is the notebook that a profile runs.
