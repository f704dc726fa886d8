"""Gradients on several cores: the same as on one, and the same sum however many there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from gsmrl_helpers.accumulation import Batch, Objective, accumulate_gradients
from gsmrl_helpers.config import LoraSettings
from gsmrl_helpers.data_parallel import accumulate_on_cores, replica
from gsmrl_helpers.lora import add_lora
from gsmrl_helpers.threads import map_on_cores
from tests.test_response_scoring import BATCHES
from tests.tiny_policy import make_policy


@pytest.fixture(params=[1, 2])
def n_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def make_batch() -> Batch:
    batch = BATCHES["groups"]
    return {**batch, "advantages": torch.linspace(-1, 2, len(batch["labels"])).double()}


@pytest.mark.parametrize("normalization", ["sequence", "token"])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5, 6, 7], [1, 5, 6], [4], []])
@pytest.mark.parametrize("microbatch_size", [1, 3, 8])
def test_gradient_loss_and_means_are_those_of_one_core(
    normalization: str, rows: list[int], microbatch_size: int, n_threads: int
) -> None:
    objective = Objective(loss_normalization=normalization, entropy_coef=0.1)
    found = []
    for accumulate in (accumulate_gradients, accumulate_on_cores):
        model = make_policy(dtype=torch.float64)
        loss, means = accumulate(
            model, make_batch(), torch.tensor(rows, dtype=torch.int64), objective, microbatch_size
        )
        gradients = [p.grad for p in model.parameters()]
        values = [means.num_tokens, means["token_entropy"] if rows else None]
        found.append((gradients, loss, values))
    torch.testing.assert_close(found[1][:2], found[0][:2], atol=1e-12, rtol=1e-12)
    assert found[1][2] == pytest.approx(found[0][2])


def test_one_core_and_two_give_the_same_bits() -> None:
    gradients = []
    threads = torch.get_num_threads()
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        model = make_policy()
        batch = {**make_batch(), "advantages": torch.linspace(-1, 2, 8)}
        accumulate_on_cores(model, batch, torch.arange(8), Objective(), 2)
        gradients.append([p.grad for p in model.parameters()])
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_replicas_share_weights_and_nothing_else(n_threads: int) -> None:
    model = make_policy()
    other = replica(model)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours is not theirs and ours.data_ptr() == theirs.data_ptr()
    modes = [module.training for module in model.modules()]
    model.train()
    accumulate_on_cores(model, make_batch(), torch.arange(8), Objective(), 4)
    assert model.training and not other.training and len(modes) > 3


def test_frozen_weights_get_no_gradient(n_threads: int) -> None:
    model = add_lora(make_policy(), LoraSettings(rank=2, alpha=4))
    batch = {**make_batch(), "advantages": torch.linspace(-1, 2, 8)}
    accumulate_on_cores(model, batch, torch.arange(8), Objective(), 4)
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (".lora_" in name)


def test_items_keep_their_order_and_each_thread_computes_alone(n_threads: int) -> None:
    seen = map_on_cores(
        lambda item: (item, torch.get_num_threads(), threading.get_ident()), range(6)
    )
    assert [item for item, *_ in seen] == list(range(6))
    assert {threads for _, threads, _ in seen} == {1}
    assert (threading.get_ident() in {ident for *_, ident in seen}) == (n_threads == 1)
    assert torch.get_num_threads() == n_threads
    with pytest.raises(ZeroDivisionError):
        map_on_cores(lambda item: 1 // item, [1, 0])
