"""Scores of response tokens by the cheap ways: the plain function's values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gsmrl_helpers import response_scoring
from gsmrl_helpers.config import LoraSettings
from gsmrl_helpers.log_probs import get_response_log_probs
from gsmrl_helpers.lora import add_lora
from gsmrl_helpers.memory import LiveBytes
from gsmrl_helpers.response_scoring import can_share_prompts, score_responses
from gsmrl_helpers.small_batch import make_policy as make_table_policy
from tests.tiny_policy import exact, make_policy

SIZES = {
    "vocab_size": 27,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.5,
}
TEMPLATE = [3, 4, 5, 6]


def make_batch(prompts: list[list[int]], lengths: list[int]) -> dict[str, Tensor]:
    """Right-padded rows: each prompt followed by a random response of the given length."""
    generator = torch.Generator().manual_seed(0)
    width = max(len(p) + n for p, n in zip(prompts, lengths, strict=True))
    tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        response = torch.randint(3, 27, (length,), generator=generator).tolist()
        tokens[row, : len(prompt) + length] = torch.tensor(prompt + response)
        mask[row, len(prompt) : len(prompt) + length] = True
    return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:], "response_mask": mask[:, 1:]}


FIRST, SECOND, THIRD = [*TEMPLATE, 7], [*TEMPLATE, 8, 9, 10], [*TEMPLATE, 7, 11]
BATCHES = {
    "groups": make_batch([FIRST] * 3 + [SECOND] * 3 + [THIRD] * 2, [1, 9, 4, 5, 6, 1, 2, 12]),
    "groups apart": make_batch([FIRST, SECOND, FIRST, THIRD, SECOND], [3, 1, 8, 8, 2]),
    "one prompt": make_batch([SECOND] * 4, [5, 5, 2, 7]),
    "one row": make_batch([THIRD], [3]),
    "one token each": make_batch([FIRST, FIRST, SECOND], [1, 1, 1]),
    "nothing in common": make_batch([[3], [4, 5], [6]], [4, 4, 2]),
    "a prompt that begins another": make_batch([TEMPLATE, FIRST, THIRD], [2, 5, 3]),
    "a row without a response": make_batch([FIRST, SECOND, FIRST], [2, 0, 3]),
}


def olmo2(dtype: torch.dtype = torch.float64) -> Olmo2ForCausalLM:
    torch.manual_seed(1)
    model = Olmo2ForCausalLM(Olmo2Config(**SIZES)).to(dtype).eval()
    return exact(model) if dtype is torch.float64 else model


def other(kind: type, config: type) -> PreTrainedModel:
    torch.manual_seed(1)
    return kind(config(**SIZES)).double().eval()


def scores_and_gradients(
    score, model: nn.Module, batch: dict[str, Tensor], with_entropy: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Log-probs and entropies (M,), and the gradients of a weighted sum of them."""
    model.zero_grad()
    mask = batch["response_mask"]
    scored = score(model, mask)
    log_probs, token_entropy = scored["log_probs"][mask], scored["token_entropy"][mask]
    weights = torch.linspace(-1, 2, len(log_probs), dtype=log_probs.dtype)
    loss = (weights * log_probs).sum()
    if with_entropy:
        loss = loss + (weights.flip(0) * token_entropy).sum()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return log_probs.detach(), token_entropy.detach(), gradients


def both(model: nn.Module, batch: dict[str, Tensor], with_entropy: bool = False):
    """The plain function's scores and gradients, and ours."""
    ids, labels = batch["input_ids"], batch["labels"]
    plain = scores_and_gradients(
        lambda model, _: get_response_log_probs(model, ids, labels, True),
        model,
        batch,
        with_entropy,
    )
    ours = scores_and_gradients(
        lambda model, mask: score_responses(model, ids, labels, mask), model, batch, with_entropy
    )
    return plain, ours


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_a_tree_has_the_plain_scores_and_gradients(name: str, with_entropy: bool) -> None:
    model = olmo2()
    assert can_share_prompts(model)
    plain, ours = both(model, BATCHES[name], with_entropy)
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", BATCHES)
def test_in_float32_rounding_is_all_that_differs(name: str) -> None:
    exact_scores, _ = both(olmo2(), BATCHES[name])
    plain, ours = both(olmo2(torch.float32), BATCHES[name])

    def distance(found) -> float:
        flat = [torch.cat([g.double().flatten() for g in x[2]]) for x in (found, exact_scores)]
        return ((flat[0] - flat[1]).norm() / flat[1].norm()).item()

    assert distance(ours) < 1e-6
    assert distance(ours) < 3 * distance(plain)


@pytest.mark.parametrize(
    ("kind", "config"), [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)]
)
def test_other_linear_heads_see_response_tokens_only(kind: type, config: type) -> None:
    model = other(kind, config)
    assert not can_share_prompts(model)
    seen = []
    plain, ours = both(model, BATCHES["groups"], with_entropy=True)
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    body = model.model.register_forward_hook(lambda *call: seen.append(call[2][0].shape[:2]))
    both(model, BATCHES["groups"])
    body.remove()
    assert seen == [BATCHES["groups"]["labels"].shape] * 2


def test_a_model_of_another_kind_is_asked_for_all_its_logits() -> None:
    model = make_table_policy()
    batch = make_batch([[0, 1], [0, 1, 2]], [2, 3])
    batch = {n: v.clamp(max=4) if v.dtype is torch.int64 else v for n, v in batch.items()}
    ids, labels, mask = batch.values()
    torch.testing.assert_close(
        score_responses(model, ids, labels, mask),
        get_response_log_probs(model, ids, labels, True),
    )


def test_a_model_in_training_mode_is_not_shared_between_rows() -> None:
    model = make_policy(attention_dropout=0.5)
    batch = BATCHES["one prompt"]
    model.train()
    torch.manual_seed(0)
    dropped = score_responses(model, **batch)["log_probs"][batch["response_mask"]]
    torch.manual_seed(0)
    plain = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
    torch.testing.assert_close(dropped, plain[batch["response_mask"]])
    model.eval()
    kept = score_responses(model, **batch)["log_probs"][batch["response_mask"]]
    assert (kept - dropped).abs().max() > 0.01


def test_adapters_are_trained_through_the_tree() -> None:
    model = add_lora(olmo2(), LoraSettings(rank=2, alpha=4)).double()
    for name, parameter in model.named_parameters():
        if ".lora_B" in name:
            nn.init.normal_(parameter)
    plain, ours = both(model, BATCHES["groups"], with_entropy=True)
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    assert len(ours[2]) == sum(p.requires_grad for p in model.parameters()) == 2 * 7 * 2


def test_a_head_with_a_bias_is_scored_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = olmo2()
    model.lm_head = nn.Linear(16, 27, dtype=torch.float64)
    monkeypatch.setattr(response_scoring, "LOGITS_AT_ONCE", {"cpu": 100})
    plain, ours = both(model, BATCHES["groups"], with_entropy=True)
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)


def test_every_token_goes_through_the_model_once() -> None:
    model, batch = olmo2(), BATCHES["groups"]
    tokens = []
    hook = model.model.layers[0].mlp.register_forward_hook(
        lambda _, args, __: tokens.append(args[0].shape[0])
    )
    score_responses(model, **batch)
    hook.remove()
    # The template, what three prompts add, and responses of 1, 9, 4, 5, 6, 1, 2 and 12 tokens, of
    # which each last one predicts nothing.
    assert tokens == [4 + (1 + 3 + 2) + (0 + 8 + 3 + 4 + 5 + 0 + 1 + 11)]


def test_logits_are_held_for_a_few_response_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = olmo2(torch.float32)
    model.lm_head = nn.Linear(16, 50_000, bias=False)
    monkeypatch.setattr(response_scoring, "LOGITS_AT_ONCE", {"cpu": 4 * 50_000})
    batch = BATCHES["groups"]

    def peak(score) -> int:
        with LiveBytes() as memory:
            scores_and_gradients(score, model, batch, with_entropy=False)
        return memory.peak - model.lm_head.weight.nbytes  # the head's gradient

    plain = peak(
        lambda model, _: get_response_log_probs(model, batch["input_ids"], batch["labels"], True)
    )
    ours = peak(lambda model, _: score_responses(model, **batch))
    one_position = 4 * 50_000
    assert plain > 2 * batch["labels"].numel() * one_position  # 2 · 8 · 17 positions
    assert ours < (3 * 4 + 2 * 16) * one_position  # a chunk thrice, and a product for the head's
    assert ours < plain / 5


def test_scores_at_masked_positions_are_zero_and_carry_no_gradient() -> None:
    model, batch = olmo2(), BATCHES["groups"]
    log_probs = score_responses(model, **batch)["log_probs"]
    assert (log_probs[~batch["response_mask"]] == 0).all()
    log_probs[~batch["response_mask"]].sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters() if p.grad is not None)


def test_a_response_with_a_hole_is_scored_as_the_plain_function_scores_it() -> None:
    model, batch = olmo2(), dict(BATCHES["groups"])
    mask = batch["response_mask"].clone()
    row = int(mask.sum(dim=1).argmax())
    mask[row, int(mask[row].int().argmax()) + 2] = False
    scored = score_responses(model, **{**batch, "response_mask": mask})
    plain = get_response_log_probs(model, batch["input_ids"], batch["labels"], True)
    for name, values in scored.items():
        assert (values - plain[name])[mask].abs().max() < 1e-10


def test_what_is_no_batch_is_refused_with_the_reason() -> None:
    model, batch = olmo2(), BATCHES["groups"]
    with pytest.raises(ValueError, match=r"must be bool: got torch.int64; use mask.bool\(\)"):
        score_responses(model, **{**batch, "response_mask": batch["response_mask"].long()})
    with pytest.raises(ValueError, match=r"labels \(8, 3\).* must all be \(B, T\)"):
        score_responses(model, **{**batch, "labels": batch["labels"][:, :3]})
