"""Progress that is seen while a cell runs and leaves nothing in its stored output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from IPython import get_ipython
from IPython.display import clear_output
from tqdm.auto import tqdm

from gsmrl_helpers.records import Row


@contextmanager
def live_progress(n_steps: int) -> Iterator[Callable[[Row], None]]:
    """A bar over the steps 0 … n_steps, with the newest rewards beside it.

    Yields:
        What `train` takes as `on_row`.
    """
    bar = tqdm(total=n_steps + 1, unit="step", leave=False)

    def on_row(row: Row) -> None:
        bar.update()
        rewards = {name: row.get(f"{name}_mean_reward") for name in ("train", "curve", "test")}
        known = {name: f"{value:.3f}" for name, value in rewards.items() if value is not None}
        bar.set_postfix(known)

    try:
        yield on_row
    finally:
        bar.close()
        if get_ipython() is not None:
            clear_output()
