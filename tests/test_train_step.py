"""The GRPO step against plain full-batch autograd, and what it logs, refuses and leaves behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gsmrl_helpers.accumulation import dropout_off
from gsmrl_helpers.advantages import compute_group_normalized_rewards
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.step_metrics import STEP_METRICS, changed_share, sample_parameters
from gsmrl_helpers.tokenization import tokenize_prompt_and_output
from gsmrl_helpers.train_step import check_groups, grpo_train_step
from tests.tiny_policy import make_policy, make_tokenizer

# Lengths 1, 4, 2, 6, 1, 2; with groups of two, the middle one has no signal.
RESPONSES = ["1", "2=+3", "4 ", "567890", "j", "hi"]
PROMPTS = ["a+b=", "a+b=", "cc", "cc", "d e f =", "d e f ="]
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]
LENGTHS = [1, 4, 2, 6, 1, 2]


def grade(response: str, ground_truth: str) -> dict[str, float]:
    reward = REWARDS[RESPONSES.index(response)]
    return {"reward": reward, "format_reward": float(len(response) > 1), "answer_reward": reward}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any):
    arguments = {
        "tokenizer": make_tokenizer(),
        "optimizer": optimizer or torch.optim.SGD(model.parameters(), lr=0.1),
        "gradient_accumulation_steps": 2,
        "max_grad_norm": None,
        "reward_fn": grade,
        "repeated_prompts": PROMPTS,
        "rollout_responses": RESPONSES,
        "repeated_ground_truths": ["?"] * 6,
        "group_size": 2,
    }
    return grpo_train_step(model, **{**arguments, **options})


def row_log_probs(model: torch.nn.Module, prompt: str, response: str) -> tuple[Tensor, Tensor]:
    """log π of the tokens of one response and the entropies there: one unpadded row, by hand."""
    tokenizer = make_tokenizer()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    response_ids = tokenizer.encode(response, add_special_tokens=False)
    logits = model(torch.tensor([prompt_ids + response_ids])).logits[0]
    distributions = logits[len(prompt_ids) - 1 : -1].log_softmax(-1)
    entropies = -(distributions.exp() * distributions).sum(-1)
    return distributions[range(len(response_ids)), response_ids], entropies


def reference_loss(
    model: torch.nn.Module,
    normalization: str,
    token_loss: Callable[[int, Tensor, Tensor], Tensor],
    responses: list[str] = RESPONSES,
) -> Tensor:
    """The full-batch loss in one graph; `token_loss(row, log π, entropies)` are its terms."""
    total, num_tokens = torch.zeros(()), 0
    for row, (prompt, response) in enumerate(zip(PROMPTS, responses, strict=True)):
        terms = token_loss(row, *row_log_probs(model, prompt, response))
        num_tokens += len(terms)
        total = total + (
            terms.sum() / max(len(terms), 1) if normalization == "sequence" else terms.sum()
        )
    return (
        total / {"sequence": len(responses), "constant": 24.0, "token": num_tokens}[normalization]
    )


def advantages_of(rewards: list[float] = REWARDS, **options: Any) -> Tensor:
    return compute_group_normalized_rewards(torch.tensor(rewards), 2, **options)[0]


def assert_same_parameters(
    model: torch.nn.Module, other: torch.nn.Module, tolerance: float
) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (ours - theirs).abs().max() <= tolerance, name


@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
@pytest.mark.parametrize("accumulation_steps", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("pruned", [True, False])
def test_one_sgd_step_is_that_of_full_batch_autograd(
    normalization: str, accumulation_steps: int, pruned: bool
) -> None:
    expected_model, model = make_policy(), make_policy()
    advantages = advantages_of()
    loss = reference_loss(
        expected_model, normalization, lambda row, log_probs, _: -advantages[row] * log_probs
    )
    loss.backward()
    torch.optim.SGD(expected_model.parameters(), lr=0.1).step()

    # A vanishing entropy term turns pruning off and is far below the tolerance.
    returned, metadata = step(
        model,
        gradient_accumulation_steps=accumulation_steps,
        loss_normalization=normalization,
        normalization_constant=24.0 if normalization == "constant" else None,
        entropy_coef=0.0 if pruned else 1e-12,
    )
    assert_same_parameters(model, expected_model, tolerance=1e-6)
    assert returned.item() == pytest.approx(loss.item(), abs=1e-6)
    assert metadata["trained_row_share"] == pytest.approx(4 / 6 if pruned else 1.0)


@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
@pytest.mark.parametrize("accumulation_steps", [1, 2, 3, 4, 6])
def test_two_adamw_steps_of_which_the_second_has_no_signal(
    normalization: str, accumulation_steps: int
) -> None:
    settings = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1}
    expected_model, model = make_policy(dtype=torch.float64), make_policy(dtype=torch.float64)
    expected_optimizer = torch.optim.AdamW(expected_model.parameters(), **settings)
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    for rewards in (REWARDS, [1.0] * 6):
        advantages = advantages_of(rewards)
        expected_optimizer.zero_grad()
        reference_loss(
            expected_model,
            normalization,
            lambda row, log_probs, _, advantages=advantages: -advantages[row] * log_probs,
        ).backward()
        expected_optimizer.step()

        before = sample_parameters(model)
        loss, metadata = step(
            model,
            optimizer,
            gradient_accumulation_steps=accumulation_steps,
            raw_rewards=rewards,
            loss_normalization=normalization,
            normalization_constant=24.0 if normalization == "constant" else None,
        )
    assert_same_parameters(model, expected_model, tolerance=1e-12)
    assert metadata["no_signal"] == 1.0 and loss == 0.0 and metadata["grad_norm"] == 0.0
    assert changed_share(before, sample_parameters(model)) > 0.9  # momentum and decay moved them


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("normalization", ["sequence", "token"])
def test_kl_and_entropy_terms_are_those_of_full_batch_autograd(
    kind: str, accumulation_steps: int, normalization: str
) -> None:
    reference_policy = make_policy(seed=1)
    expected_model, model = make_policy(), make_policy()
    advantages = advantages_of([1.0] * 6)  # no signal at all but that of the two terms

    def token_loss(row: int, log_probs: Tensor, entropies: Tensor) -> Tensor:
        ref = row_log_probs(reference_policy, PROMPTS[row], RESPONSES[row])[0].detach()
        x = ref - log_probs
        kl = {"k1": -x, "k2": x**2 / 2, "k3": x.exp() - 1 - x}[kind]
        return -advantages[row] * log_probs + 0.3 * kl - 0.2 * entropies

    loss = reference_loss(expected_model, normalization, token_loss)
    loss.backward()
    torch.optim.SGD(expected_model.parameters(), lr=0.1).step()
    returned, metadata = step(
        model,
        gradient_accumulation_steps=accumulation_steps,
        raw_rewards=[1.0] * 6,
        loss_normalization=normalization,
        kl_coef=0.3,
        ref_log_probs=log_probs_of(reference_policy),
        kl_estimator=kind,
        entropy_coef=0.2,
    )
    assert_same_parameters(model, expected_model, tolerance=2e-6)
    assert returned.item() == pytest.approx(loss.item(), rel=1e-5)
    assert metadata["no_signal"] == 1.0 and metadata["trained_row_share"] == 1.0
    assert metadata["kl_to_ref"] is not None and metadata["grad_norm"] > 0


def log_probs_of(model: torch.nn.Module, extra_columns: int = 0) -> Tensor:
    """(6, T + extra) log-probabilities of all rows; what stands outside responses is -inf."""
    batch = tokenize_prompt_and_output(PROMPTS, RESPONSES, make_tokenizer())
    with torch.no_grad():
        log_probs = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
    log_probs = log_probs.masked_fill(~batch["response_mask"], -math.inf)
    return torch.nn.functional.pad(log_probs, (0, extra_columns), value=-1000.0)


@pytest.mark.parametrize("method", ["none", "noclip", "grpo", "gspo", "cispo"])
@pytest.mark.parametrize("accumulation_steps", [1, 4])
@pytest.mark.parametrize("extra_columns", [0, 3])
def test_off_policy_steps_are_those_of_full_batch_autograd(
    method: str, accumulation_steps: int, extra_columns: int
) -> None:
    old_policy = make_policy()
    expected_model, model = (perturbed(make_policy()) for _ in range(2))
    advantages = advantages_of()
    ratios, clipped = {}, {}

    def token_loss(row: int, log_probs: Tensor, _: Tensor) -> Tensor:
        old = row_log_probs(old_policy, PROMPTS[row], RESPONSES[row])[0].detach()
        advantage, ratio = advantages[row], (log_probs - old).exp()
        ratios[row], clipped[row] = ratio.detach(), torch.zeros(len(old))
        if method == "none":
            return -advantage * log_probs
        if method == "noclip":
            return -advantage * ratio
        if method == "cispo":
            clipped[row] = (ratio > 1.1).float()
            return -advantage * ratio.detach().clamp(max=1.1) * log_probs
        if method == "gspo":
            ratio = (log_probs - old).mean().exp().expand(len(old))
        # By hand, as two cases: beyond the side that gains, the objective is constant.
        bound = 1.1 if advantage > 0 else 0.9
        beyond = ratio > bound if advantage > 0 else ratio < bound
        clipped[row] = beyond.float()
        return torch.where(beyond, -advantage * bound, -advantage * ratio)

    loss = reference_loss(expected_model, "sequence", token_loss)
    loss.backward()
    torch.optim.SGD(expected_model.parameters(), lr=0.1).step()
    returned, metadata = step(
        model,
        gradient_accumulation_steps=accumulation_steps,
        importance_reweighting_method=method,
        old_log_probs=log_probs_of(old_policy, extra_columns),
        cliprange=0.1,
    )
    assert_same_parameters(model, expected_model, tolerance=1e-6)
    assert returned.item() == pytest.approx(loss.item(), abs=1e-6)

    trained = [0, 1, 4, 5]  # the rows with an advantage
    ratio = torch.cat([ratios[row] for row in trained])
    assert metadata["mean_ratio"] == pytest.approx(ratio.mean().item(), rel=1e-4)
    k3 = (ratio - 1 - ratio.log()).mean().item()
    assert metadata["kl_to_old"] == pytest.approx(k3, rel=1e-3)
    clip_fraction = torch.cat([clipped[row] for row in trained]).mean().item()
    assert metadata["clip_fraction"] == pytest.approx(clip_fraction)
    assert (clip_fraction > 0) == (method in ("grpo", "gspo", "cispo"))


def perturbed(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("method", ["noclip", "grpo", "gspo", "cispo"])
def test_on_the_first_step_every_method_is_reinforce(method: str) -> None:
    expected_model, model = make_policy().train(), make_policy().train()
    step(expected_model)
    _, metadata = step(
        model,
        importance_reweighting_method=method,
        old_log_probs=log_probs_of(make_policy()),
        cliprange=0.2,
    )
    assert_same_parameters(model, expected_model, tolerance=1e-6)
    assert metadata["mean_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metadata["clip_fraction"] == 0.0
    assert 0 <= metadata["kl_to_old"] < 1e-10


def test_a_response_of_zero_tokens_counts_in_the_mean() -> None:
    responses = ["", *RESPONSES[1:]]
    advantages = advantages_of()
    for options in ({}, {"entropy_coef": 0.1}):
        expected_model, model = make_policy(), make_policy()
        coefficient = options.get("entropy_coef", 0.0)

        def token_loss(row: int, log_probs: Tensor, entropies: Tensor, c=coefficient) -> Tensor:
            return -advantages[row] * log_probs - c * entropies

        reference_loss(expected_model, "sequence", token_loss, responses).backward()
        torch.optim.SGD(expected_model.parameters(), lr=0.1).step()
        _, metadata = step(model, rollout_responses=responses, raw_rewards=REWARDS, **options)
        assert_same_parameters(model, expected_model, tolerance=1e-6)
        assert metadata["response_length"] == pytest.approx(15 / 6)


def test_a_batch_without_any_token_leaves_every_parameter_as_it_was() -> None:
    for normalization in ("sequence", "token"):
        model = make_policy()
        before = sample_parameters(model)
        loss, metadata = step(
            model,
            rollout_responses=[""] * 6,
            raw_rewards=REWARDS,
            repeated_prompts=["c"] * 6,
            loss_normalization=normalization,
        )
        assert loss == 0 and metadata["no_signal"] == 1.0
        assert metadata["token_entropy"] is None and metadata["token_entropy_token_share"] is None
        assert changed_share(before, sample_parameters(model)) == 0.0


class RowCounter(torch.nn.Module):
    """Passes everything on to a model and notes what went in."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.shapes = model, []

    def forward(self, input_ids: Tensor) -> Any:
        self.shapes.append(tuple(input_ids.shape))
        return self.model(input_ids)


def test_only_rows_with_signal_reach_the_model_in_fewer_and_narrower_microbatches() -> None:
    model = RowCounter(make_policy())
    step(model, gradient_accumulation_steps=3)
    # Prompt and response have 4 + 1, 4 + 4, 7 + 1 and 7 + 2 tokens; inputs lack the last one.
    # The longest two go first, so that 4 + 4 is the widest of the others.
    assert model.shapes == [(2, 8), (2, 7)]
    model.shapes.clear()
    step(model, gradient_accumulation_steps=4, entropy_coef=0.1)
    assert [rows for rows, _ in model.shapes] == [2, 2, 2]
    model.shapes.clear()
    step(model, gradient_accumulation_steps=3, raw_rewards=[1.0] * 6)
    assert model.shapes == []


def test_sampled_ids_are_trained_as_sampled() -> None:
    tokenizer = make_tokenizer()
    sampled = [tokenizer.encode(text, add_special_tokens=False) for text in RESPONSES]
    expected_model, model = make_policy(), make_policy()
    step(expected_model)
    step(model, rollout_token_ids=sampled)
    assert_same_parameters(model, expected_model, tolerance=0.0)
    _, metadata = step(model, rollout_token_ids=[[*ids, 1] for ids in sampled])  # a sampled EOS
    assert metadata["response_length"] == pytest.approx(sum(LENGTHS) / 6 + 1)
    assert metadata["mean_reward"] == pytest.approx(4 / 6)  # graded by the strings


def test_the_gradient_is_clipped_and_then_gone() -> None:
    free, clipped = make_policy(), make_policy()
    before = sample_parameters(free)
    _, metadata = step(free)
    _, clipped_metadata = step(clipped, max_grad_norm=0.01)

    def moved(model: torch.nn.Module) -> float:
        changes = [a - b for a, b in zip(sample_parameters(model), before, strict=True)]
        return torch.cat(changes).norm().item()

    assert clipped_metadata["grad_norm"] == pytest.approx(metadata["grad_norm"])
    assert moved(free) == pytest.approx(0.1 * metadata["grad_norm"], rel=1e-3)
    assert moved(clipped) == pytest.approx(0.1 * 0.01, rel=1e-2)
    assert all(p.grad is None for model in (free, clipped) for p in model.parameters())


def test_stale_gradients_do_not_leak_into_the_step() -> None:
    expected_model, model = make_policy(), make_policy()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    step(expected_model)
    step(model)
    assert_same_parameters(model, expected_model, tolerance=0.0)


def test_dropout_is_off_and_every_mode_restored() -> None:
    expected_model, model = make_policy(), make_policy(attention_dropout=0.5).train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    step(expected_model)
    step(model)
    assert_same_parameters(model, expected_model, tolerance=1e-6)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError), dropout_off(model):
        raise RuntimeError
    assert [module.training for module in model.modules()] == modes


def test_activation_checkpointing_stays_on() -> None:
    expected_model, model = make_policy(), make_policy(attention_dropout=0.5).train()
    model.gradient_checkpointing_enable()
    calls = []
    for layer in model.model.layers:
        checkpoint = layer._gradient_checkpointing_func
        layer._gradient_checkpointing_func = lambda *a, f=checkpoint: calls.append(1) or f(*a)
    step(expected_model)
    step(model)
    assert len(calls) == 2 * 2  # two layers, two microbatches
    assert_same_parameters(model, expected_model, tolerance=1e-6)


def test_a_gradient_that_is_not_finite_takes_no_step() -> None:
    model = make_policy().train()
    before = sample_parameters(model)
    old = log_probs_of(make_policy())
    old[0] = math.nan
    with pytest.raises(FloatingPointError, match="no step was taken"):
        step(model, importance_reweighting_method="noclip", old_log_probs=old)
    assert changed_share(before, sample_parameters(model)) == 0.0
    assert model.training and all(p.grad is None for p in model.parameters())


def test_metadata_holds_the_defined_metrics() -> None:
    loss, metadata = step(make_policy())
    expected_names = set(STEP_METRICS) - {"pass_at_k"} | {"pass_at_1", "pass_at_2"}
    assert set(metadata) == expected_names
    assert all(value is None or type(value) is float for value in metadata.values())
    assert not loss.requires_grad and metadata["loss"] == loss.item()

    with torch.no_grad():
        entropies = [
            row_log_probs(make_policy(), PROMPTS[i], RESPONSES[i])[1] for i in (0, 1, 4, 5)
        ]
    assert metadata["token_entropy"] == pytest.approx(torch.cat(entropies).mean().item(), rel=1e-4)
    expected = {
        "token_entropy_token_share": 8 / 16,
        "no_signal": 0.0,
        "no_signal_group_share": 1 / 3,
        "mean_reward": 4 / 6,
        "mean_format_reward": 4 / 6,
        "mean_answer_reward": 4 / 6,
        "reward_std": torch.tensor(REWARDS).std().item(),
        "response_length": 16 / 6,
        "response_length_right": (1 + 2 + 6 + 2) / 4,
        "response_length_wrong": (4 + 1) / 2,
        "pass_at_1": 4 / 6,
        "pass_at_2": 1.0,
        "changed_parameter_share": metadata["changed_parameter_share"],
    }
    assert {name: metadata[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert metadata["changed_parameter_share"] > 0.5
    not_computed = {"mean_ratio", "kl_to_old", "clip_fraction", "kl_to_ref"}
    assert {name for name, value in metadata.items() if value is None} == not_computed


def test_what_was_not_computed_is_none() -> None:
    _, metadata = step(
        make_policy(),
        raw_rewards=[0.0] * 6,
        reward_fn=None,
        importance_reweighting_method="grpo",
        old_log_probs=log_probs_of(make_policy()),
        cliprange=0.2,
    )
    assert {name for name, value in metadata.items() if value is None} == {
        "token_entropy", "mean_ratio", "kl_to_old", "clip_fraction", "kl_to_ref",
        "mean_format_reward", "mean_answer_reward", "format_reward_std", "answer_reward_std",
        "response_length_right", "response_length_wrong", "pass_at_1", "pass_at_2",
    }  # fmt: skip
    assert metadata["token_entropy_token_share"] == 0.0


def test_raw_rewards_replace_the_reward_function() -> None:
    def never(response: str, ground_truth: str) -> dict[str, float]:
        raise AssertionError("the reward function was called")

    expected_model, model = make_policy(), make_policy()
    step(expected_model)
    _, metadata = step(model, raw_rewards=torch.tensor(REWARDS), reward_fn=never)
    assert_same_parameters(model, expected_model, tolerance=0.0)
    assert metadata["mean_reward"] == pytest.approx(4 / 6)


def test_groups_of_one_work_without_statistics() -> None:
    model = make_policy()
    _, metadata = step(model, group_size=1, baseline="none", advantage_normalizer="none")
    assert metadata["no_signal_group_share"] == pytest.approx(2 / 6)
    assert metadata["pass_at_1"] == pytest.approx(4 / 6)


def test_bf16_parameters_below_their_spacing_do_not_change() -> None:
    model = make_policy(dtype=torch.bfloat16)
    _, metadata = step(model, torch.optim.SGD(model.parameters(), lr=1e-9))
    assert metadata["grad_norm"] > 0 and metadata["changed_parameter_share"] < 0.01
    model = make_policy(dtype=torch.bfloat16)
    _, metadata = step(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert metadata["changed_parameter_share"] > 0.5


def test_of_a_large_model_an_even_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_policy()
    total = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr("gsmrl_helpers.step_metrics.MAX_COMPARED_PARAMETERS", total // 10)
    before = sample_parameters(model)
    assert total // 20 < sum(values.numel() for values in before) < total // 5
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[: parameter.numel() // 2] += 1
    assert changed_share(before, sample_parameters(model)) == pytest.approx(0.5, abs=0.05)


def test_changed_share_is_by_bits() -> None:
    before = [torch.tensor([0.0, 1.0, math.nan, 2.0])]
    after = [torch.tensor([-0.0, 1.0, math.nan, 3.0])]
    assert changed_share(before, after) == 0.5
    assert changed_share([], []) is None


@pytest.mark.parametrize(
    "options, message",
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0 must be an integer"),
        ({"gradient_accumulation_steps": 1.5}, r"gradient_accumulation_steps=1\.5 must be an int"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm=0\.0 must be a number greater than 0"),
        ({"baseline": "median"}, "baseline='median' is unknown"),
        ({"baseline": "none"}, "advantage_normalizer='std' needs baseline='mean'"),
        ({"group_size": 4}, "group_size=4 and 6 rewards"),
        ({"importance_reweighting_method": "ppo"}, "importance_reweighting_method='ppo' is unk"),
        ({"importance_reweighting_method": "grpo"}, "'grpo' needs old_log_probs, got None"),
        ({"cliprange": -1}, "cliprange=-1 must be a number at least 0"),
        ({"loss_normalization": "mean"}, "loss_normalization='mean' is unknown"),
        ({"loss_normalization": "constant"}, "'constant' needs normalization_constant, got None"),
        ({"kl_coef": 0.1}, r"kl_coef=0\.1 needs ref_log_probs, got None"),
        ({"kl_coef": -0.1}, r"kl_coef=-0\.1 must be a number at least 0"),
        ({"kl_estimator": "k4"}, "kl_estimator='k4' is unknown: allowed are 'k1', 'k2', 'k3'"),
        ({"entropy_coef": math.nan}, "entropy_coef=nan must be"),
        ({"entropy_coef": math.inf}, "entropy_coef=inf must be"),
        ({"reward_fn": None}, "reward_fn=None needs raw_rewards"),
        ({"raw_rewards": [1.0, 0.0]}, "2 rewards for 6 prompts"),
        ({"rollout_token_ids": [[3]]}, "6 prompts and 1 outputs"),
        ({"repeated_ground_truths": ["?"]}, "6 responses and 1 ground truths"),
        ({"old_log_probs": torch.zeros(6, 7)}, r"old_log_probs must have shape \(6, T\), T ≥ 8"),
        ({"old_log_probs": torch.zeros(4, 8)}, r"old_log_probs must have shape \(6, T\), T ≥ 8"),
        ({"ref_log_probs": torch.zeros(6)}, r"ref_log_probs must have shape \(6, T\), T ≥ 8"),
    ],
)
@pytest.mark.parametrize("signal", [True, False])
def test_bad_arguments_are_named_before_anything_moves(
    options: dict, message: str, signal: bool
) -> None:
    if not signal:  # what is wrong is wrong for a batch that no model sees, too
        options = {"reward_fn": lambda *_: dict.fromkeys(
            ("reward", "format_reward", "answer_reward"), 1.0), **options}  # fmt: skip
    model = make_policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match=message):
        step(model, optimizer, **options)
    assert_same_parameters(model, make_policy(), tolerance=0.0)
    assert not optimizer.state


@pytest.mark.parametrize(
    ("prompts", "truths", "message"),
    [
        (["a", "b", "a", "b"], ["1"] * 4, r"repeated_prompts\[1\]='b' differs"),
        (["a", "a", "b", "b"], ["1", "2", "3", "3"], r"repeated_ground_truths\[1\]='2'"),
        ("aabb", ["1"] * 4, "repeated_prompts is one string"),
    ],
)
def test_rows_of_a_prompt_must_stand_side_by_side(prompts, truths, message) -> None:
    with pytest.raises(ValueError, match=message):
        check_groups(prompts, truths, group_size=2)
