"""Counted bytes: known sizes, and the allocator's own count as a second opinion."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch.profiler import profile

from gsmrl_helpers.memory import LiveBytes

KIB = 256  # float32 numbers


def test_live_and_peak_of_a_chain_of_operations() -> None:
    given = torch.zeros(KIB)
    with LiveBytes() as memory:
        first = given + 1
        assert (memory.live, memory.peak) == (1024, 1024)
        second = first * 2
        del first
        assert (memory.live, memory.peak) == (1024, 2048)
        del second
    assert (memory.live, memory.peak) == (0, 2048)


def test_what_is_not_new_does_not_count() -> None:
    given = torch.zeros(KIB)
    with LiveBytes() as memory:
        given.add_(1)
        view = given.view(16, 16).T
        assert memory.peak == 0
        made = torch.zeros(KIB)
        parts = made.split(100)
        del made
        made_in_place = parts[0].mul_(2)
        assert (memory.live, memory.peak) == (1024, 1024)
        del parts, made_in_place
    assert memory.live == 0 and view.shape == (16, 16)


def test_tensors_that_outlive_the_block_stay_live() -> None:
    with LiveBytes() as memory:
        kept = torch.zeros(KIB, dtype=torch.bfloat16)
    assert memory.live == 512 == kept.nbytes
    del kept
    assert memory.live == 0


def test_a_graph_keeps_what_its_backward_pass_needs() -> None:
    weight = torch.zeros(KIB, requires_grad=True)
    with LiveBytes() as memory:
        result = weight.exp().sum()
        assert memory.live == 1024 + 4
        result.backward()
        del result
        assert memory.live == 1024 == weight.grad.nbytes


@pytest.mark.parametrize("n_rows", [1, 7])
def test_the_allocator_counts_the_same(n_rows: int) -> None:
    weight = torch.linspace(-1, 1, n_rows * KIB).view(n_rows, KIB).requires_grad_()

    def work() -> None:
        weight.grad = None
        log_probs = weight.log_softmax(-1)
        (log_probs.exp() * log_probs).sum().backward()

    work()
    with LiveBytes() as memory:
        work()
    weight.grad = None  # so that the allocator's count, too, starts without it
    with profile(profile_memory=True) as profiler:
        work()
    events = profiler.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert memory.peak == max(accumulate(changes)) > 3 * weight.nbytes
