"""Pictures of groups without signal."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from gsmrl_helpers.signal_explorer import mark_no_signal, no_signal_explorer, plot_no_signal


def test_the_curves_are_the_formula_s() -> None:
    figure = plot_no_signal((4, 16))
    left, right = figure.axes
    for drawn, size in zip(left.lines, (4, 16), strict=True):
        p, lost = drawn.get_data()
        np.testing.assert_allclose(lost, p**size + (1 - p) ** size)
        assert drawn.get_label() == f"G = {size}"
    p, variance = right.lines[0].get_data()
    assert p[np.argmax(variance)] == 0.5
    plt.close(figure)


def test_the_mark_says_what_is_lost() -> None:
    figure = mark_no_signal(0.9, 8)
    assert figure.axes[0].texts[0].get_text() == "p = 0.90, G = 8: 43.0% lost"
    plt.close(figure)


def test_the_sliders_draw_anew_and_leave_no_figure_open() -> None:
    box = no_signal_explorer()
    (share, _), picture = box.children[0].children, box.children[1]
    before = bytes(picture.value)
    share.value = 0.5
    assert bytes(picture.value) != before and not plt.get_fignums()
    with pytest.raises(ValueError, match="group_size=1"):
        no_signal_explorer(0.5, 1)
