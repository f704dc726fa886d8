"""Bars are seen while a cell runs, and leave nothing."""

from __future__ import annotations

import os

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from gsmrl_helpers.live import live, live_progress
from gsmrl_helpers.notebooks import QUIET_KERNEL

LOOP = """
from gsmrl_helpers.live import live
print([2 * item for item in live({items})])
"""


class Watched(NotebookClient):
    """Keeps what the cells showed, also what they took back."""

    def process_message(self, msg, cell, cell_index):
        self.seen.append((msg["msg_type"], str(msg["content"].get("data", ""))))
        return super().process_message(msg, cell, cell_index)


def executed(source: str, disable: str) -> tuple[list, list[tuple[str, str]]]:
    """The outputs that a cell is stored with, and the messages of its execution."""
    client = Watched(
        new_notebook(cells=[new_code_cell(source)]),
        kernel_name="python3",
        extra_arguments=QUIET_KERNEL,
    )
    client.seen = []
    client.execute(env={**os.environ, "TQDM_DISABLE": disable})
    return client.nb.cells[0].outputs, client.seen


def test_items_come_through_in_order_and_an_end_before_the_last_is_an_end():
    assert list(live([3, 1, 2])) == [3, 1, 2]
    assert list(live(iter("ab"), total=2)) == ["a", "b"]
    for item in live(range(9)):
        if item == 3:
            break
    assert item == 3
    with pytest.raises(ZeroDivisionError):
        list(live(1 // n for n in (1, 0)))


def test_what_is_printed_to_a_file_has_no_bar(capfd):
    list(live(range(3)))
    with live_progress(1) as on_row:
        on_row({"step": 0, "train_mean_reward": 0.5})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("items", ["range(3)", "iter(range(3)), total=3"])
def test_a_cell_shows_a_bar_of_all_items_and_keeps_only_what_it_prints(items):
    outputs, seen = executed(LOOP.format(items=items), disable="")
    assert [output.get("text") for output in outputs] == ["[0, 2, 4]\n"]
    bars = [data for kind, data in seen if kind == "display_data"]
    assert len(bars) == 1 and "0/3" in bars[0]


def test_where_nobody_looks_on_nothing_is_shown_nor_taken_back():
    source = "print('before')\n" + LOOP.format(items="range(3)")
    outputs, seen = executed(source, disable="1")
    assert "".join(output.text for output in outputs) == "before\n[0, 2, 4]\n"
    assert not {"display_data", "clear_output"} & {kind for kind, _ in seen}
