"""Figures that others published for the full scale: theirs, self-reported, not run here.

Students of the course (spring 2026) trained OLMo-2-0425-1B on GSM8K for 200 steps and reported the
share of right validation answers. What a report does not say is null.
"""

from __future__ import annotations

import pandas as pd

from gsmrl_helpers.paths import DATA_DIR

REPOSITORIES = (
    "Jerryson520/assignment5-alignment",
    "semioz/alignment",
    "OHHHHHHei/Post-Training-LM-From-Scratch",
)
THRESHOLD = 0.25  # the assignment's, for the mean over seeds of standard GRPO


def read_published(experiment: str) -> pd.DataFrame:
    """What was published of an experiment of the catalogue, one row a report and variant.

    Returns:
        variant, seeds (their number, null where it is not said), accuracy (a share), lowest and
        highest seed, note; from data/published.csv.

    Raises:
        ValueError: nothing was published of it.
    """
    table = pd.read_csv(DATA_DIR / "published.csv", dtype={"seeds": "Int64"})
    if experiment not in set(table["experiment"]):
        known = ", ".join(dict.fromkeys(table["experiment"]))
        raise ValueError(f"nothing was published of experiment={experiment!r}; known: {known}")
    rows = table[table["experiment"] == experiment].drop(columns="experiment")
    return rows.fillna({"note": ""}).reset_index(drop=True)
