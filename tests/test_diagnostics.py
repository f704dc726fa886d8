"""Each check lets a sound loop pass and catches the fault that it is for."""

from __future__ import annotations

import copy
import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from gsmrl_helpers import get_response_log_probs, load_problems, tokenize_prompt_and_output
from gsmrl_helpers.accumulation import Batch, Objective, microbatch_loss
from gsmrl_helpers.diagnostics import (
    check_accumulation,
    check_distinct_samples,
    check_finite_gradients,
    check_first_ratio,
    check_first_step,
    check_mask_alignment,
    check_no_dropout,
)
from gsmrl_helpers.findings import Finding, Findings
from gsmrl_helpers.loop import Trainer, score
from gsmrl_helpers.rollouts import Rollouts
from gsmrl_helpers.scoring import batch_log_probs
from gsmrl_helpers.tokenization import encode
from tests.tiny_trainer import make_trainer, tiny_config


@pytest.fixture
def trainer() -> Trainer:
    return make_trainer(tiny_config())


@pytest.fixture
def rollouts(trainer: Trainer) -> Rollouts:
    return trainer.sample(load_problems(trainer.config, "train")[:4], 4, "train", 1)


@pytest.fixture
def batch(trainer: Trainer, rollouts: Rollouts) -> dict[str, torch.Tensor]:
    return tokenize_prompt_and_output(
        rollouts.prompts,
        [c.text for c in rollouts.completions],
        trainer.tokenizer,
        output_token_ids=[c.token_ids for c in rollouts.completions],
    )


def ids_of(trainer: Trainer, rollouts: Rollouts) -> tuple[list[list[int]], list[list[int]]]:
    prompt_ids = [encode(trainer.tokenizer, prompt) for prompt in rollouts.prompts]
    return prompt_ids, [c.token_ids for c in rollouts.completions]


# --- distinct samples --------------------------------------------------------------------------


def with_answers(rollouts: Rollouts, groups: list[str]) -> Rollouts:
    """The rollouts with one token, the letter's number, as each answer: "aabb" is one group."""
    answers = [[ord(letter)] for letter in "".join(groups)]
    completions = [
        replace(c, token_ids=ids) for c, ids in zip(rollouts.completions, answers, strict=True)
    ]
    return replace(rollouts, completions=completions)


def test_draws_of_an_engine_are_distinct(rollouts: Rollouts) -> None:
    finding = check_distinct_samples(rollouts)
    assert finding.ok and finding.to_do == "" and "100%" in finding.measured


def test_requests_that_share_a_seed_are_caught(trainer: Trainer, rollouts: Rollouts) -> None:
    problems = rollouts.problems[::4]
    requests = [trainer.sample(problems, 1, "train", 1).completions for _ in range(4)]
    same = [request[i] for i in range(len(problems)) for request in requests]
    finding = check_distinct_samples(replace(rollouts, completions=same))
    assert not finding.ok and finding.measured.startswith("0% ") and "seed" in finding.to_do


@pytest.mark.parametrize(
    ("groups", "ok", "share"),
    [
        (["abcd", "abca", "aaaa", "abcd"], True, "67%"),  # one certain problem, one coincidence
        (["abab", "cdcd", "abab", "cdcd"], False, "33%"),  # two seeds, in turn
        (["aaaa", "bbbb", "cccc", "dddd"], False, "0%"),
    ],
)
def test_the_whole_batch_is_judged(rollouts: Rollouts, groups, ok, share) -> None:
    finding = check_distinct_samples(with_answers(rollouts, groups))
    assert finding.ok is ok and finding.measured.startswith(share)


def test_groups_of_one_are_refused(rollouts: Rollouts) -> None:
    with pytest.raises(ValueError, match="group_size=1"):
        check_distinct_samples(replace(rollouts, group_size=1))


# --- dropout and the ratio ---------------------------------------------------------------------


def test_dropout_that_would_act_is_named() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    finding = check_no_dropout(layers.train())
    assert not finding.ok and "1.p = 0.1" in finding.measured
    assert check_no_dropout(layers.eval()).ok
    assert check_no_dropout(nn.Dropout(0.0).train()).ok


def test_dropout_inside_attention_is_named() -> None:
    model = make_trainer(tiny_config(), attention_dropout=0.1).model
    finding = check_no_dropout(model.train())
    assert not finding.ok and "self_attn.attention_dropout = 0.1" in finding.measured
    assert check_no_dropout(model.eval()).ok


def test_no_grad_leaves_dropout_on_and_the_ratio_shows_it(batch) -> None:
    model = make_trainer(tiny_config(), attention_dropout=0.1).model
    with torch.no_grad():
        assert not check_first_ratio(model.train(), batch).ok
    assert check_first_ratio(model.eval(), batch).ok


def test_scores_of_the_loop_have_ratio_one_and_another_precision_has_not(
    trainer: Trainer, rollouts: Rollouts, batch
) -> None:
    model = trainer.model.eval()
    assert check_first_ratio(model, batch, score(trainer, model, rollouts)).ok
    engine = copy.deepcopy(model).bfloat16()
    with torch.no_grad():
        finding = check_first_ratio(model, batch, batch_log_probs(engine, batch))
    assert not finding.ok and "precision" in finding.to_do


def test_only_response_tokens_count_in_the_ratio_and_nan_is_no_ratio(
    trainer: Trainer, rollouts: Rollouts, batch
) -> None:
    old = score(trainer, trainer.model, rollouts)
    mask = batch["response_mask"]
    assert check_first_ratio(trainer.model.eval(), batch, old.masked_fill(~mask, -7.0)).ok
    broken = old.masked_fill(mask & (mask.cumsum(1) == 2), torch.nan)
    assert not check_first_ratio(trainer.model, batch, broken).ok


# --- mask and shift ----------------------------------------------------------------------------


def test_the_mask_of_the_course_agrees_with_a_plain_loop(trainer, rollouts, batch) -> None:
    finding = check_mask_alignment(trainer.model.eval(), batch, *ids_of(trainer, rollouts))
    assert finding.ok and "16 responses" in finding.measured


@pytest.mark.parametrize("fault", ["not shifted", "prompt counted", "last token lost"])
def test_a_wrong_mask_is_caught(trainer, rollouts, batch, fault: str) -> None:
    mask = batch["response_mask"]
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    wrong = {
        "not shifted": mask.roll(1, dims=1),
        "prompt counted": mask.flip(1).cumsum(1).flip(1) > 0,
        "last token lost": mask & ~last,
    }[fault]
    batch = {**batch, "response_mask": wrong}
    finding = check_mask_alignment(trainer.model.eval(), batch, *ids_of(trainer, rollouts))
    assert not finding.ok and "shift the mask" in finding.to_do


# --- gradients ---------------------------------------------------------------------------------


def test_gradients_that_flow_pass_and_their_norm_is_told() -> None:
    layer = nn.Linear(1, 1, bias=False)
    (3 * layer.weight.sum()).backward()
    assert check_finite_gradients(layer) == Finding(
        "gradients are finite and flow", True, "norm 3 over 1 tensors"
    )


def test_a_gradient_that_is_not_finite_is_named() -> None:
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers(torch.ones(1, 2)).sum().backward()
    layers[1].bias.grad[0] = torch.nan
    finding = check_finite_gradients(layers)
    assert not finding.ok and "1 of 4 are not finite, the first: 1.bias" in finding.measured


def test_old_log_probs_with_a_gradient_leave_none(trainer: Trainer, batch) -> None:
    model, mask = trainer.model.eval(), batch["response_mask"]

    def loss(old_has_gradient: bool) -> torch.Tensor:
        new = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
        old = new if old_has_gradient else new.detach()
        return -(new - old).exp()[mask].mean()

    loss(old_has_gradient=True).backward()
    finding = check_finite_gradients(model)
    assert not finding.ok and "exactly 0" in finding.measured and "no_grad" in finding.to_do
    loss(old_has_gradient=False).backward()
    assert check_finite_gradients(model).ok


def test_without_a_backward_pass_there_is_nothing_to_check() -> None:
    finding = check_finite_gradients(nn.Linear(1, 1))
    assert not finding.ok and "backward" in finding.to_do


# --- accumulation ------------------------------------------------------------------------------


def own_mean(
    model: nn.Module, batch: Batch, rows: torch.Tensor, objective: Objective, size: int
) -> None:
    """Accumulates the mean of the microbatches' own means: the fault."""
    model.zero_grad()
    chunks = rows.split(size)
    for chosen in chunks:
        microbatch = {name: values[chosen] for name, values in batch.items()}
        own = replace(objective, normalization_constant=float(microbatch["response_mask"].sum()))
        (microbatch_loss(model, microbatch, own)[0] / len(chunks)).backward()


@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(loss_normalization="constant", normalization_constant=99.0),
        Objective(loss_normalization="token"),
        Objective(entropy_coef=0.1),
    ],
)
def test_accumulation_of_the_course_adds_up_and_means_of_means_do_not(
    trainer: Trainer, batch: Batch, objective: Objective
) -> None:
    batch["advantages"] = torch.linspace(-1.0, 2.0, len(batch["labels"]))
    assert check_accumulation(trainer.model.eval(), batch, objective).ok
    finding = check_accumulation(trainer.model, batch, objective, own_mean)
    assert not finding.ok and "whole batch" in finding.to_do
    assert all(p.grad is None for p in trainer.model.parameters())


def test_a_gradient_of_zero_or_nan_is_judged_as_well(trainer: Trainer, batch: Batch) -> None:
    batch["advantages"] = torch.zeros(len(batch["labels"]))
    assert check_accumulation(trainer.model, batch, Objective()).ok
    batch["advantages"][0] = torch.nan
    assert not check_accumulation(trainer.model, batch, Objective()).ok


def test_two_rows_can_not_be_split_unequally(trainer: Trainer, batch: Batch) -> None:
    two = {name: values[:2] for name, values in batch.items()}
    with pytest.raises(ValueError, match="2 rows with tokens"):
        check_accumulation(trainer.model, {**two, "advantages": torch.ones(2)}, Objective())


# --- all on a trainer --------------------------------------------------------------------------


def test_a_sound_trainer_passes_and_stays_as_it_was(trainer: Trainer, rollouts: Rollouts) -> None:
    before = copy.deepcopy(trainer.model.state_dict())
    findings = check_first_step(trainer, rollouts)
    assert findings.ok and len(list(findings)) == 6
    assert all(torch.equal(before[k], v) for k, v in trainer.model.state_dict().items())
    assert all(p.grad is None for p in trainer.model.parameters())
    assert all(module.training for module in trainer.model.modules())
    assert not trainer.optimizer.state


def test_the_loop_s_own_switch_takes_care_of_ordinary_dropout() -> None:
    trainer = make_trainer(tiny_config(), attention_dropout=0.1)
    rollouts = trainer.sample(load_problems(trainer.config, "train")[:4], 4, "train", 1)
    assert check_first_step(trainer, rollouts).ok


def failed(findings: Findings) -> set[str]:
    return {finding.name for finding in findings if not finding.ok}


def test_dropout_that_no_switch_reaches_is_caught(trainer: Trainer, rollouts: Rollouts) -> None:
    trainer.model.lm_head.register_forward_hook(lambda *call: F.dropout(call[-1], 0.1))
    assert "the ratio π_θ/π_old is 1" in failed(check_first_step(trainer, rollouts))


def test_weights_that_are_not_finite_are_caught(trainer: Trainer, rollouts: Rollouts) -> None:
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = torch.nan
    findings = check_first_step(trainer, rollouts)
    assert {"the ratio π_θ/π_old is 1", "gradients are finite and flow"} <= failed(findings)


def test_without_groups_there_is_no_question_of_distinct_draws(trainer: Trainer) -> None:
    alone = trainer.sample(load_problems(trainer.config, "train")[:4], 1, "train", 1)
    assert len(list(check_first_step(trainer, alone))) == 5


# --- how it is shown ---------------------------------------------------------------------------


def test_findings_are_shown_in_notebooks_and_terminals() -> None:
    sound, broken = Finding("1 < 2", True, "so it is"), Finding("[b]2 < 1", False, "no", "think")
    html = Findings((sound, broken))._repr_html_()
    assert "1 &lt; 2" in html and "✓" in html and "✗" in html and "think" in html
    assert html == Findings((sound, broken))._repr_html_() != sound._repr_html_()
    terminal = io.StringIO()
    console = Console(file=terminal, width=90)
    console.print(Findings((sound, broken)))
    console.print(broken)
    assert terminal.getvalue().count("[b]2 < 1") == 2
