"""Means over bins of steps, against numbers by hand."""

import numpy as np
import pandas as pd
import pytest

from gsmrl_helpers.records import LONG_COLUMNS
from gsmrl_helpers.results import binned


def test_bins_start_after_step_0_and_nulls_are_left_out() -> None:
    values = {0: 9.0, 1: 1.0, 2: 3.0, 3: np.nan, 4: 5.0, 5: np.nan}
    rows = [(v, 0, step, "norm", x) for v in ("b", "a") for step, x in values.items()]
    table = binned(pd.DataFrame(rows, columns=LONG_COLUMNS), 2)
    assert list(table.columns) == LONG_COLUMNS and list(table["variant"]) == ["b"] * 3 + ["a"] * 3
    one = table[table["variant"] == "b"].set_index("step")["value"]
    assert one[1.5] == 2.0 and one[3.5] == 5.0 and np.isnan(one[5.5])


def test_a_bin_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="width=0"):
        binned(pd.DataFrame(columns=LONG_COLUMNS), 0)
