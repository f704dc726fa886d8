"""SFT step by step: the loss against torch's and against a policy gradient, batches, schedule."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from gsmrl_helpers.losses import aggregate_loss_across_microbatch, compute_policy_gradient_loss
from gsmrl_helpers.packing import IGNORED, encode_example, flatten, packed_logits
from gsmrl_helpers.sft import (
    SFTConfig,
    learning_rate_factor,
    mean_label_loss,
    sft_batches,
    sft_loss,
    sft_step,
    train_sft,
)
from gsmrl_helpers.sft_runs import STUDIES, run_sft, sft_config, write_examples
from gsmrl_helpers.train_step import grpo_train_step
from tests.tiny_policy import make_policy, make_tokenizer

PAIRS = [("1+1=", "2"), ("ab", "cdef"), ("3+4=", "7"), ("gh ", "ij0123")]


def documents(pairs=PAIRS):
    return [encode_example(make_tokenizer(), *pair) for pair in pairs]


def gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_loss_is_torch_s_mean_over_the_labels_that_count() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 7, 5).double(), torch.randint(0, 5, (2, 7))
    labels[0, :3] = IGNORED
    ours = sft_loss(logits, labels, int((labels != IGNORED).sum()))
    assert torch.allclose(ours, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert sft_loss(logits.bfloat16(), labels, 11).dtype == torch.float32


def test_the_loss_is_the_policy_gradient_loss_with_the_weight_one() -> None:
    model, row = make_policy(0, torch.float64), flatten(documents())
    logits = packed_logits(model, row)
    mask = row["labels"] != IGNORED
    log_probs = logits.log_softmax(-1).gather(-1, row["labels"].clamp(min=0)[..., None])[..., 0]
    per_token, _ = compute_policy_gradient_loss(torch.ones(1), log_probs)
    n_labels = int(mask.sum())
    policy_gradient = aggregate_loss_across_microbatch(per_token, mask, "token", n_labels)
    assert torch.allclose(sft_loss(logits, row["labels"], n_labels), policy_gradient)


def test_a_step_is_grpo_s_with_the_reward_one_and_no_baseline() -> None:
    ours, theirs = make_policy(0, torch.float64), make_policy(0, torch.float64)
    sft_step(ours, torch.optim.SGD(ours.parameters(), lr=0.1), [flatten(documents())], 1e9)
    tokenizer = make_tokenizer()
    grpo_train_step(
        *(theirs, tokenizer, torch.optim.SGD(theirs.parameters(), lr=0.1), 1, None, None),
        *([p for p, _ in PAIRS], [r for _, r in PAIRS], [""] * len(PAIRS), 1),
        baseline="none",
        advantage_normalizer="none",
        loss_normalization="token",
        raw_rewards=[1.0] * len(PAIRS),
        rollout_token_ids=[
            [i for i, r in zip(d.ids, d.is_response, strict=True) if r] for d in documents()
        ],
    )
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("max_tokens", [1, 8, 1000])
def test_how_documents_are_spread_over_rows_changes_no_gradient(max_tokens: int) -> None:
    class Keep(torch.optim.SGD):
        def step(self, closure=None):
            self.kept = gradient(model).clone()

    kept, stats = [], []
    for tokens in (1000, max_tokens):
        model = make_policy(3, torch.float64)
        optimizer = Keep(model.parameters(), lr=1.0)
        config = SFTConfig(batch_size=4, max_tokens=tokens)
        (rows,) = sft_batches(documents(), config)
        stats.append(sft_step(model, optimizer, rows, 1e9))
        kept.append(optimizer.kept)
    assert torch.allclose(*kept, rtol=0, atol=1e-10)
    assert (
        stats[0]["n_labels"] == stats[1]["n_labels"] == sum(sum(d.is_response) for d in documents())
    )
    assert math.isclose(stats[0]["loss"], stats[1]["loss"])
    assert math.isclose(stats[0]["grad_norm"], kept[0].norm().item())


def test_a_batch_in_which_nothing_counts_and_a_gradient_that_is_not_finite_are_refused() -> None:
    model = make_policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    row = flatten(documents())
    with pytest.raises(ValueError, match="no label"):
        sft_step(model, optimizer, [{**row, "labels": row["labels"].fill_(IGNORED)}], 1.0)
    with torch.no_grad():
        model.lm_head.weight[0, 0] = math.inf
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match="learning rate"):
        sft_step(model, optimizer, [flatten(documents())], 1.0)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 100, 0.03) for step in range(100)]
    assert factors[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert all(a >= b for a, b in itertools.pairwise(factors[2:]))
    assert 0 < factors[-1] < 0.001
    assert factors[3 + 97 // 2] == pytest.approx(0.5, abs=0.02)
    assert [learning_rate_factor(s, 2, 0.0) for s in range(2)] == [1.0, 0.5]


def test_every_epoch_has_all_documents_once_and_the_seed_decides_their_order() -> None:
    many = documents([(f"{i} ", f"{i}") for i in range(10)])

    def passes(seed: int) -> list[list[int]]:
        config = SFTConfig(seed=seed, n_epochs=2, batch_size=4, max_tokens=9)
        batches = list(sft_batches(many, config))
        assert len(batches) == 6
        return [
            [i for batch in epoch for row in batch for i in row["input_ids"][0].tolist()]
            for epoch in (batches[:3], batches[3:])
        ]

    everything = sorted(i for d in many for i in d.ids)
    assert [sorted(epoch) for epoch in passes(0)] == [everything] * 2
    assert passes(0) == passes(0) != passes(1)
    assert passes(0)[0] != passes(0)[1]


def test_training_lowers_the_loss_of_responses_and_is_the_same_twice() -> None:
    config = SFTConfig(n_epochs=15, batch_size=2, learning_rate=1e-2, max_tokens=16)

    def run() -> tuple[list[dict[str, float]], dict[str, float]]:
        model = make_policy()
        return list(train_sft(model, documents(), config)), mean_label_loss(model, documents())

    steps, after = run()
    before = mean_label_loss(make_policy(), documents())
    assert len(steps) == 30 and [s["step"] for s in steps] == list(range(1, 31))
    assert steps[0]["learning_rate"] == 1e-2 and steps[-1]["learning_rate"] < 1e-4
    assert after["response"] < 0.3 * before["response"]
    assert run() == (steps, after)
    with pytest.raises(ValueError, match="no documents"):
        next(train_sft(make_policy(), [], config))


def test_losses_of_prompts_and_responses_are_told_apart() -> None:
    model = make_policy(0, torch.float64)
    sums, counts = {"prompt": 0.0, "response": 0.0}, {"prompt": 0, "response": 0}
    for document in documents():
        ids = torch.tensor([document.ids])
        log_probs = model(ids).logits[0].log_softmax(-1)
        for at in range(1, len(document.ids)):
            part = "response" if document.is_response[at] else "prompt"
            sums[part] -= log_probs[at - 1, document.ids[at]].item()
            counts[part] += 1
    for max_tokens in (1, 12, 4096):
        means = mean_label_loss(model, documents(), max_tokens)
        for part in sums:
            assert means[part] == pytest.approx(sums[part] / counts[part])
    one_token_prompts = documents([("c", "d")])
    assert math.isnan(mean_label_loss(model, one_token_prompts)["prompt"])


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="learning"):
        SFTConfig(learning=1.0)


# --- the recorded study ------------------------------------------------------------------------


def test_worked_solutions_are_right_and_slips_come_as_often_as_asked() -> None:
    from gsmrl_helpers.grading import r1_zero_reward_fn
    from gsmrl_helpers.pocket_problems import load_pocket_problems

    problems = load_pocket_problems("train", 300)

    def right(slip_share: float, seed: int = 0) -> float:
        examples = write_examples(problems, seed, slip_share)
        assert [e.prompt for e in examples] == [p.question for p in problems]
        rewards = [
            r1_zero_reward_fn(e.response, p.gold) for e, p in zip(examples, problems, strict=True)
        ]
        assert all(r["format_reward"] for r in rewards)
        return sum(r["reward"] for r in rewards) / len(rewards)

    assert right(0.0) == 1.0
    assert 0.55 < right(0.4) < 0.75 and right(1.0) < 0.15
    assert write_examples(problems, 0) == write_examples(problems, 0) != write_examples(problems, 1)
    with pytest.raises(ValueError, match="slip_share=2"):
        write_examples(problems, 0, 2)


def test_the_studies_differ_in_one_thing_each() -> None:
    base, prompt, slips = STUDIES.values()
    assert prompt == base | {"train_on_prompt": True} != base
    assert slips == base | {"slip_share": 0.4} != base
    settings = sft_config(3, train_on_prompt=True).model_dump()
    assert settings == sft_config(3).model_dump() | {"train_on_prompt": True}


def test_a_run_reports_every_step_and_evaluates_some(monkeypatch: pytest.MonkeyPatch) -> None:
    from gsmrl_helpers import sft_runs
    from gsmrl_helpers.experiments import experiment_config

    for name, size in (("N_EXAMPLES", 20), ("N_HELD_OUT", 2), ("N_ASKED", 2)):
        monkeypatch.setattr(sft_runs, name, size)
    monkeypatch.setattr(sft_runs, "EVALUATE_EVERY", 2)
    rows = run_sft(experiment_config("on-policy"), **STUDIES["prompt too"])
    made = {row.pop("step"): row for row in rows}
    assert list(made) == [0, 1, 2]
    evaluated = {
        *("curve_mean_answer_reward", "curve_mean_format_reward"),
        *("prompt_loss", "response_loss"),
    }
    answers = [made[step].pop("answers") for step in (0, 2)]
    assert [len(rows) for rows in answers] == [2, 2]
    assert set(made[0]) == evaluated and not (evaluated | {"answers"}) & set(made[1])
    assert set(made[2]) == evaluated | {"loss", "grad_norm", "n_labels", "learning_rate"}
    with pytest.raises(ValueError, match="two_gpu"):
        sft_runs.record_sft("two_gpu", None, 1, False)
