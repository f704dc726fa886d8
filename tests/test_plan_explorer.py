"""The planner's pictures: bars as long as the bytes, and sliders that change them."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from ipywidgets import HTML, Checkbox, SelectionSlider

from gsmrl_helpers.model_shape import KNOWN_SHAPES
from gsmrl_helpers.plan_explorer import draw_phases, plan_explorer
from gsmrl_helpers.run_plan import GPU_MEMORY

OLMO = KNOWN_SHAPES["allenai/OLMo-2-0425-1B"]


def test_bars_are_stacked_in_gb() -> None:
    _, ax = plt.subplots()
    phases = {"forward": {"weights": 3e9, "logits": 2e9, "batch": 1e9}, "update": {"weights": 3e9}}
    draw_phases(ax, phases, 16e9)
    ends = {bar.get_x() + bar.get_width() for bar in ax.patches}
    assert ends == {3.0, 5.0, 6.0}
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "the card",
        "weights",
        "logits",
        "other",
    ]
    plt.close(ax.figure)


def test_sliders_change_the_verdict() -> None:
    box = plan_explorer({"OLMo": OLMO}, {"RTX 4080": GPU_MEMORY["RTX 4080"]})
    columns, verdict, picture = box.children
    assert isinstance(verdict, HTML)
    controls = [control for column in columns.children for control in column.children]
    rank = next(c for c in controls if c.description == "LoRA rank")
    masters = next(c for c in controls if c.description == "float32 masters")
    assert isinstance(rank, SelectionSlider) and isinstance(masters, Checkbox)
    before = picture.value
    masters.value = True
    assert "does not fit in 16 GB" in verdict.value and picture.value != before
    rank.value = 16
    assert ", fits in 16 GB" in verdict.value and masters.disabled
    gigabytes = float(verdict.value.split()[0])
    assert gigabytes == pytest.approx(5.2, abs=0.1)
