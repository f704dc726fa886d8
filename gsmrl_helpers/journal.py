"""A run's journal: what it recorded, as a table for people, and what sets it apart from another.

A journal is the part of a long table (`records.LONG_COLUMNS`) that belongs to one run, one row a
step. What was not recorded stays unknown: it is not 0, and nothing else can stand in for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from gsmrl_helpers.recordings import read_recording, recording_path
from gsmrl_helpers.records import stored_config
from gsmrl_helpers.results import RUN

NOT_RECORDED = "not recorded"

# What a journal should tell -> the metric, and how it is written. Training metrics are of the
# answers that the step was made from, validation metrics (curve) of the policy after the step.
QUESTIONS: dict[str, tuple[str, str]] = {
    "right, validation": ("curve_mean_answer_reward", "{:.1%}"),
    "right, dev": ("dev_mean_answer_reward", "{:.1%}"),
    "right, training": ("train_mean_answer_reward", "{:.1%}"),
    "in format, training": ("train_mean_format_reward", "{:.1%}"),
    "paid, training": ("train_mean_reward", "{:.3f}"),
    "spread of what is paid": ("train_reward_std", "{:.3f}"),
    "empty groups": ("no_signal_group_share", "{:.1%}"),
    "entropy, validation, nats": ("curve_token_entropy", "{:.2f}"),
    "tokens of right answers": ("train_response_length_right", "{:.1f}"),
    "tokens of wrong answers": ("train_response_length_wrong", "{:.1f}"),
    "cut off at the limit": ("train_truncated_share", "{:.1%}"),
    "gradient norm": ("grad_norm", "{:.2f}"),
    "KL to the old policy": ("kl_to_old", "{:.4f}"),
    "clip fraction": ("clip_fraction", "{:.1%}"),
    "KL to a reference": ("kl_to_ref", "{:.3f}"),
}

# Settings that name a run and do nothing in it.
LABELS = ("variant",)


def journal_of(table: pd.DataFrame, variant: str, seed: int) -> pd.DataFrame:
    """One run of a long table: one row a step, one column a metric, NaN where it is not known.

    Raises:
        ValueError: there is no such run; the message lists those that there are.
    """
    rows = table[(table["variant"] == variant) & (table["seed"] == seed)]
    if rows.empty:
        known = ", ".join(f"{v} {s}" for v, s in sorted(set(map(tuple, table[RUN].to_numpy()))))
        raise ValueError(
            f"variant={variant!r}, seed={seed} is not in this table; allowed (variant seed): "
            f"{known}"
        )
    return rows.pivot(index="step", columns="metric", values="value").rename_axis(columns=None)


def recorded(journal: pd.DataFrame, metric: str) -> pd.Series:
    """A metric's known values by step; empty where the journal has none."""
    if metric not in journal:
        return pd.Series(dtype="float64")
    return journal[metric].dropna()


def journal_table(
    journal: pd.DataFrame,
    steps: Iterable[int],
    questions: Mapping[str, tuple[str, str]] = QUESTIONS,
) -> pd.DataFrame:
    """What a journal says at some steps: one row a question, one column a step, all of it text.

    Args:
        journal: of `journal_of`.
        steps: such as those of the validations, at which every metric may be known.
        questions: what is asked -> its metric and the format of its value.

    Returns:
        The table, with "not recorded" where the journal has no value.
    """

    def said(metric: str, form: str, step: int) -> str:
        values = recorded(journal, metric)
        return form.format(values[step]) if step in values.index else NOT_RECORDED

    steps = list(steps)
    rows = [
        (question, *(said(metric, form, step) for step in steps))
        for question, (metric, form) in questions.items()
    ]
    return pd.DataFrame(rows, columns=["", *(f"step {step}" for step in steps)])


# --- one factor at a time ------------------------------------------------------------------------


def recorded_settings(name: str, profile: str = "pocket") -> dict[tuple[str, int], dict[str, Any]]:
    """The settings of each run of an experiment's recording, by (variant, seed), from its manifest.

    The manifest lists the runs in the order of the table, each under its own name, which is another
    than the table's where two experiments share a run. The policy that a run began with is one of
    its settings, as the sha256 of its weights.

    Raises:
        ValueError: it is not on record, or its manifest is not of the runs in its table.
    """
    table = read_recording(name, profile)
    runs = [(str(variant), int(seed)) for variant, seed in table[RUN].drop_duplicates().to_numpy()]
    path = recording_path(name, profile).with_suffix(".manifest.json")
    manifests = json.loads(path.read_text())["runs"]
    if [seed for _, seed in runs] != [manifest["config"]["seed"] for manifest in manifests]:
        raise ValueError(
            f"{path.name} has {len(manifests)} runs and its table {len(runs)}, or another order of "
            f"them: record it again (gsmrl record {name})"
        )
    return {
        run: {**stored_config(manifest), "policy_sha256": manifest["policy_sha256"]}
        for run, manifest in zip(runs, manifests, strict=True)
    }


def changed_settings(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The settings in which two runs differ, with both values; labels are left out.

    Only where this is a single one can a difference between two journals be put down to it.
    """
    names = [name for name in {**one, **other} if name not in LABELS]
    return {n: (one.get(n), other.get(n)) for n in names if one.get(n) != other.get(n)}
