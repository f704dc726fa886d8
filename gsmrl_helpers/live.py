"""Progress that is seen while a cell runs and leaves nothing in its stored output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from IPython import get_ipython
from IPython.display import clear_output
from tqdm.auto import tqdm

from gsmrl_helpers.records import Row

T = TypeVar("T")


@contextmanager
def bar_of(total: int | None, unit: str) -> Iterator[tqdm]:
    """A bar with the time left, gone at the end with all that its cell has shown until then.

    Outside of a notebook it is shown in a terminal only, not in a file of what was printed. Where
    nobody looks on, as in tests, the environment's `TQDM_DISABLE=1` leaves it out, as it does in
    tqdm's own programs.

    Args:
        total: how many units there are; without it the bar counts.
        unit: what is counted, singular.
    """
    in_notebook = get_ipython() is not None
    seen = not os.environ.get("TQDM_DISABLE") and (in_notebook or sys.stderr.isatty())
    bar = tqdm(total=total, unit=unit, leave=False, disable=not seen)
    try:
        yield bar
    finally:
        bar.close()
        if in_notebook and seen:
            clear_output()


def live(items: Iterable[T], unit: str = "step", total: int | None = None) -> Iterator[T]:
    """Go through the items under a bar of `bar_of`; `total` where they have no length."""
    with bar_of(len(items) if hasattr(items, "__len__") else total, unit) as bar:
        for item in items:
            yield item
            bar.update()


@contextmanager
def live_progress(n_steps: int) -> Iterator[Callable[[Row], None]]:
    """A bar over the steps 0 … n_steps, with the newest rewards beside it.

    Yields:
        What `train` takes as `on_row`.
    """
    with bar_of(n_steps + 1, "step") as bar:

        def on_row(row: Row) -> None:
            bar.update()
            rewards = {name: row.get(f"{name}_mean_reward") for name in ("train", "curve", "test")}
            known = {name: f"{value:.3f}" for name, value in rewards.items() if value is not None}
            bar.set_postfix(known)

        yield on_row
