"""The figures that others published, as the book quotes them."""

import pytest

from gsmrl_helpers.catalogue import EXPERIMENTS
from gsmrl_helpers.published import THRESHOLD, read_published


def test_every_published_row_is_of_the_catalogue_and_a_share() -> None:
    for experiment in ("on-policy", "variants", "off-policy"):
        table = read_published(experiment)
        assert set(table["variant"]) <= set(EXPERIMENTS[experiment].variants)
        assert table["accuracy"].between(0, 1).all()
    assert (read_published("on-policy")["accuracy"] > THRESHOLD).all()


def test_an_interval_holds_its_mean() -> None:
    row = read_published("variants").set_index("variant").loc["Dr_GRPO"]
    assert row["lowest"] < row["accuracy"] < row["highest"]


def test_what_nobody_published_is_refused() -> None:
    with pytest.raises(ValueError, match=r"experiment='signal'; known: on-policy, learning-rate"):
        read_published("signal")
