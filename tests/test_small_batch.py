"""The small batch is what chapters 08 to 12 say it is."""

from __future__ import annotations

import pytest
import torch

from gsmrl_helpers import compute_rollout_rewards, get_response_log_probs, small_batch
from gsmrl_helpers import tokenize_prompt_and_output as tokenize


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    tokenizer = small_batch.make_tokenizer()
    return tokenize(small_batch.repeated_prompts, small_batch.rollout_responses, tokenizer)


def test_each_response_has_the_probability_that_the_table_gives_it(batch):
    policy = small_batch.make_policy()
    log_probs = get_response_log_probs(policy, batch["input_ids"], batch["labels"])["log_probs"]
    by_response = (log_probs * batch["response_mask"]).sum(dim=1).exp()
    expected = torch.tensor([0.1, 0.1, 0.2, 0.2, 0.2, 0.25, 0.05, 0.2], dtype=torch.float64)
    torch.testing.assert_close(by_response, expected, rtol=0, atol=1e-15)
    assert batch["response_mask"].sum(dim=1).tolist() == [4, 3, 2, 2, 2, 1, 4, 2]


def test_every_row_of_the_table_is_a_distribution_and_finite():
    table = small_batch.make_policy().table.detach()
    assert table.isfinite().all()
    torch.testing.assert_close(table.exp().sum(dim=1), torch.ones(10, dtype=torch.float64))


def test_every_token_is_a_word_and_no_text_is_unknown():
    tokenizer = small_batch.make_tokenizer()
    for text in (*small_batch.PROMPTS, *small_batch.RESPONSES):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [small_batch.VOCABULARY[token] for token in ids] == text.split()
    assert tokenizer.pad_token_id is None and tokenizer.eos_token_id == 0


def test_rewards():
    rewards, metadata = compute_rollout_rewards(
        small_batch.last_number_reward_fn,
        small_batch.rollout_responses,
        small_batch.repeated_ground_truths,
    )
    assert rewards.tolist() == [1, 0, 0, 1, 1, 0, 0, 0]
    assert metadata["format_rewards"].tolist() == [1, 1, 1, 1, 1, 0, 1, 1]
    assert small_batch.last_number_reward_fn("", "4")["reward"] == 0.0
