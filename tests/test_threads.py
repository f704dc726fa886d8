"""Threads follow the free cores, unless it is said how many."""

import psutil
import pytest

from gsmrl_helpers import threads
from gsmrl_helpers.threads import choose_threads, free_cores


@pytest.mark.parametrize(
    ("busy", "free"), [([0, 0, 0, 0], 4), ([100, 3, 80, 10], 2), ([100, 99, 98, 97], 1)]
)
def test_busy_cores_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, busy: list[int], free: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: busy)
    monkeypatch.setattr(threads, "allowed_cores", lambda: {0, 1, 2, 3})
    assert free_cores() == free


def test_what_is_said_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_cores", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(5) == 5 and choose_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert choose_threads() == 7


@pytest.mark.parametrize("said", ["", "0", "two", "-1", "1,2"])
def test_a_number_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    with pytest.raises(ValueError, match="OMP_NUM_THREADS"):
        choose_threads()
