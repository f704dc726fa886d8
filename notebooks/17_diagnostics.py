# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The diagnostic laboratory
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** read a run's journal as a physician reads a chart: note what is there and
# what was not recorded, name two possible causes of a suspicious stretch and the check that tells
# them apart, and have a program watch for a collapse while the run is under way.
#
# **You need** what a run logs ({doc}`13_run_grpo`), why format and answers are rewarded apart
# ({doc}`06_reward_functions`), and the clipped loss of {doc}`11_policy_gradient_loss`.
# **Reading** takes 35 minutes, **running** half a minute, on a **CPU**.
# ```
#
# A run that goes wrong seldom ends with an error. It ends, hours later, with a policy that solves
# nothing, and what is left is its journal: dozens of numbers a step. This chapter trains nothing.
# It reads three journals that are on record, and it asks of each sentence about them: is there a
# check that could have come out otherwise?
#
# The letters: $\pi_\theta$ is the policy, $G$ answers are sampled to each problem (a *group*),
# $r_t$ is the ratio of a token's probability now to that at which it was sampled.

# %% tags=["parameters"]
profile = "pocket"

# %%
import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import HTML
from torch import Tensor

from gsmrl_helpers import (
    experiment_config,
    kl_estimate,
    load_policy,
    tokenize_prompt_and_output,
)
from gsmrl_helpers.losses import clipped_loss
from gsmrl_helpers.plots import use_style
from gsmrl_helpers.published import read_published
from gsmrl_helpers.recorded_rollouts import read_answers
from gsmrl_helpers.recordings import read_recording
from gsmrl_helpers.result_plots import plot_curves
from gsmrl_helpers.results import final_values
from gsmrl_helpers.scoring import batch_log_probs
from gsmrl_helpers.tables import as_html

use_style()

# %% [markdown]
# ## Three journals
#
# | journal | recording | what was done |
# |---|---|---|
# | healthy | `on-policy` | standard GRPO, all settings as in the profile |
# | collapsed | `learning-rate`, x20 | the same with twenty times the learning rate |
# | hacked | `format-only` | the same, paid for the format alone |
#
# All three are of seed 0; the other seeds are drawn with them where there are any. We know what
# was done. The exercise is to forget it, and to see what the journal alone can tell.

# %%
recordings = {
    name: read_recording(name, profile)
    for name in ("on-policy", "learning-rate", "format-only")
}
sources = {
    "healthy": ("on-policy", "standard"),
    "collapsed": ("learning-rate", "x20"),
    "hacked": ("format-only", "format_only"),
}
three = pd.concat(
    recordings[name].query("variant == @variant").assign(variant=label)
    for label, (name, variant) in sources.items()
)

# %% tags=["hide-input"]
panels = {
    "Right": ("train_mean_answer_reward", "share"),
    "In format": ("train_mean_format_reward", "share"),
    "Empty groups": ("no_signal_group_share", "share"),
    "Entropy of a token": ("curve_token_entropy", "nats"),
    "Length": ("train_response_length", "tokens"),
    "Loss": ("loss", "loss"),
}
figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.6), layout="constrained")
for ax, (title, (metric, unit)) in zip(
    axes.flat, panels.items(), strict=True
):
    plot_curves(ax, three, metric)
    ax.set(title=title, ylabel=unit)
axes[0, 1].legend(loc="lower right", fontsize=8)
plt.show()

# %% [markdown]
# *Training answers, and for the entropy the validation. Every seed on record is drawn faintly, the
# mean with its interval μ ± 1.96 σ/√n where there is more than one. At pocket scale the format
# tells nothing: it goes to 1 in all three. The answers, the empty groups and the length tell the
# first from the other two. Lower left: in the end the hacked policy varies most. Lower right: the
# loss of the healthy run is the one that moves.*
#
# ## First a table
#
# A figure shows shapes, and shapes suggest stories. So first a table, with the same questions for
# every run: how many answers are right, what is paid and for what, how many groups are empty, how
# much the policy still varies, how long right and wrong answers are, how many are cut off. And
# what the journal can't tell is said in words: "not recorded". A 0 in its place would be a
# measurement that nobody made. `journal_of` picks one run out of a recording and `recorded` gives
# what is known of a metric; a null, which a run writes where it computed nothing, is unknown too.

# %% tags=["definition"]
from gsmrl_helpers.journal import NOT_RECORDED, QUESTIONS
from gsmrl_helpers.results import RUN


def journal_of(table: pd.DataFrame, variant: str, seed: int) -> pd.DataFrame:
    """One run: one row a step, one column a metric, NaN where unknown."""
    rows = table[(table["variant"] == variant) & (table["seed"] == seed)]
    if rows.empty:
        known = ", ".join(
            f"{v} {s}"
            for v, s in sorted(set(map(tuple, table[RUN].to_numpy())))
        )
        raise ValueError(
            f"variant={variant!r}, seed={seed} is not in this table; allowed (variant seed): "
            f"{known}"
        )
    return rows.pivot(
        index="step", columns="metric", values="value"
    ).rename_axis(columns=None)


def recorded(journal: pd.DataFrame, metric: str) -> pd.Series:
    """A metric's known values by step; empty where there are none."""
    if metric not in journal:
        return pd.Series(dtype="float64")
    return journal[metric].dropna()


def journal_table(
    journal: pd.DataFrame,
    steps: Iterable[int],
    questions: Mapping[str, tuple[str, str]] = QUESTIONS,
) -> pd.DataFrame:
    """One row a question, one column a step, all of it text."""

    def said(metric: str, form: str, step: int) -> str:
        values = recorded(journal, metric)
        return (
            form.format(values[step])
            if step in values.index
            else NOT_RECORDED
        )

    steps = list(steps)
    rows = [
        (question, *(said(metric, form, step) for step in steps))
        for question, (metric, form) in questions.items()
    ]
    return pd.DataFrame(
        rows, columns=["", *(f"step {step}" for step in steps)]
    )


# %% [markdown]
# A run of two steps. Of the KL divergence a null was written, of the clip fraction nothing:

# %% tags=["check"]
toy = pd.DataFrame(
    [
        ("toy", 0, 1, "train_mean_answer_reward", 0.0),
        ("toy", 0, 2, "train_mean_answer_reward", 0.25),
        ("toy", 0, 2, "kl_to_old", math.nan),
    ],
    columns=["variant", "seed", "step", "metric", "value"],
)
told = journal_table(journal_of(toy, "toy", 0), [1, 2]).set_index("")
assert told.loc["right, training"].tolist() == ["0.0%", "25.0%"]
for question in ("KL to the old policy", "clip fraction"):
    assert told.loc[question].tolist() == ["not recorded", "not recorded"]

# %%
journals = {
    label: journal_of(recordings[name], variant, 0)
    for label, (name, variant) in sources.items()
}


def some_steps(journal: pd.DataFrame) -> list[int]:
    """Before training, the first step, and validations on the way."""
    validated = recorded(journal, "curve_mean_answer_reward").index
    last = validated[-1]
    on_the_way = {last // 10, 3 * last // 10, 6 * last // 10, last}
    return [0, 1, *(int(s) for s in validated if s in on_the_way)]


def show(label: str) -> HTML:
    """A journal's table at these steps."""
    journal = journals[label]
    return HTML(as_html(journal_table(journal, some_steps(journal))))


show("healthy")

# %% [markdown]
# KL and clip fraction are not recorded, and rightly so: with one update on fresh rollouts there is
# no older policy to diverge from, and nothing is clipped. They can't be guessed from the loss. Nor
# does "not recorded" stand only where somebody forgot: dev is asked once, at the end, and before
# the first step there is nothing to train on. Training metrics are of the answers from which a
# step was made, validation metrics of the policy after it.
#
# The other two. Where no answer of a step is right, as in five late steps of the collapsed run,
# right answers have no length either; it is not 0.

# %%
show("collapsed")

# %%
show("hacked")

# %% tags=["check"]
if profile == "pocket":
    length = journals["collapsed"].loc[81:, "train_response_length_right"]
    assert length.isna().sum() == 5
for journal in journals.values():
    table = journal_table(journal, journal.index).set_index("")
    for question, (metric, _) in QUESTIONS.items():
        unknown = (table.loc[question] == "not recorded").sum()
        known = 0 if metric not in journal else journal[metric].notna().sum()
        assert unknown + known == len(journal)

# %% [markdown]
# ## Numbers that look like news
#
# **The mean advantage** is 0 in each of these runs at each step by construction
# ({doc}`10_advantages`), whether the policy learns or forgets. It is not in the table; the spread
# of what is paid is.
#
# **The loss** says little more. On fresh rollouts it is a mean of advantages times
# log-probabilities, and has no reason to fall ({doc}`11_policy_gradient_loss`). At pocket scale
# that of the healthy run falls for some 25 steps and then rises, while its answers get better all
# along; that of the others goes to 0 because their groups become empty. **The gradient norm** is
# measured before the learning rate multiplies it: with twenty times the rate it looks as it does
# in the healthy run.
#
# **Entropy** measures how far the policy's probabilities are spread, not whether what they are
# spread over is right. It falls in the healthy run, and has to: the untrained pocket policy is
# right far more often greedily than when it samples ({doc}`07_rollouts`), so that much of what it
# learns at this scale is to be as sure as it has reason to be. There is no good entropy. The last
# validation of each:

# %%
last = {label: j.loc[j.index.max()] for label, j in journals.items()}
shown = {
    "right": "curve_mean_answer_reward",
    "entropy of a token, nats": "curve_token_entropy",
    "tokens of an answer": "curve_response_length",
    "loss": "loss",
}
ends = pd.DataFrame(
    {
        title: {k: row[m] for k, row in last.items()}
        for title, m in shown.items()
    }
)
ends["gradient norm, median"] = [
    j["grad_norm"].median() for j in journals.values()
]
ends.round(2) + 0.0

# %% tags=["check"]
for journal in journals.values():
    assert (
        recorded(journal, "curve_token_entropy")
        .between(0, math.log(1e6))
        .all()
    )
if profile == "pocket":
    entropy, right = ends["entropy of a token, nats"], ends["right"]
    assert entropy["hacked"] > 2 * entropy["healthy"]
    assert right["hacked"] < 0.1 * right["healthy"]
    assert recorded(journals["healthy"], "curve_token_entropy").loc[0] > 0.3
    norms = ends["gradient norm, median"]
    assert norms["collapsed"] < norms["healthy"] < 0.3
    loss = journals["healthy"]["loss"].rolling(9).mean()
    assert 20 <= loss.idxmin() <= 30 and loss.iloc[-1] > 0.6 * loss.min()
    assert journals["collapsed"]["loss"].tail(10).abs().max() < 0.005

# %% [markdown]
# At pocket scale the hacked policy has more than twice the entropy of the healthy one and solves
# next to nothing. **And an entropy must say over what.** `token_entropy` is a mean over the tokens
# that went through the model in training, and answers of empty groups do not. In the last steps of
# the hacked run there were none left, so the metric is not recorded there; before that, it is the
# entropy of the few groups that still differed. The table therefore takes the validation's, over
# all answers, each token weighing the same, of the model's own distribution at temperature 1.

# %% tags=["check"]
hacked = journals["hacked"]
trained_on = recorded(hacked, "token_entropy_token_share")
unknown = trained_on.index.difference(recorded(hacked, "token_entropy").index)
assert (trained_on[unknown] == 0).all()
if profile == "pocket":
    assert len(unknown) > 3 and unknown.min() > 60

# %% [markdown]
# ## Symptoms, and lines drawn beforehand
#
# Whoever looks long enough finds something in every journal. So a symptom is written down before
# the journal is read: what has to hold, from which metrics, and from which value on it does not.
# Six of them, with their dials; none of the dials is a law.
#
# - *Answers rise with the format.* Not so where the format has risen by .2 and no more of the
#   answers in format are right than before training: the format alone explains the rise.
# - *Right answers are kept.* Not below half of the best so far, once that was .05. It is the rule
#   of stability, asked at every step.
# - *Groups have a signal.* Not where .8 are empty: five answers are sampled for one that is
#   trained on.
# - *Answers to one problem differ.* Not where $e^H$, with $H$ the entropy of an answer, is below
#   4: as few equally likely answers have that entropy, and half of a group of eight repeats the
#   other half.
# - *Answers keep their length.* Not below .75 of the start: the working may be gone.
# - *Answers end by themselves.* Not where .1 are cut off: cut off is graded wrong.
#
# A single step is noisy: 256 answers. Each check therefore takes the mean of the last five steps.

# %% tags=["definition"]
from gsmrl_helpers.symptoms import JOURNAL_RULE, JournalRule


def recent(
    journal: pd.DataFrame, metric: str, rule: JournalRule = JOURNAL_RULE
) -> pd.Series:
    """A metric's mean over the last `rule.window` known steps."""
    return recorded(journal, metric).rolling(rule.window).mean().dropna()


# %% tags=["check"]
steps = pd.DataFrame({"a": [None, 1.0, 2, 3, 4, 5, 6]}, dtype=float)
assert recent(steps, "a").to_dict() == {5: 3.0, 6: 4.0}
assert recent(steps, "b").empty
error = math.sqrt(0.2 * 0.8 / (5 * 256))
assert round(error, 3) == 0.011
in_groups = error * math.sqrt(1 + 7 * 0.4)  # alike in groups of 8
assert 1.9 < in_groups / error < 2

# %% [markdown]
# Five steps of 256 answers know a share of .2 to about .011, and to twice that if the answers of a
# group are alike (a correlation of .4 within groups of 8 does it). A rise of the format by .2 is
# no accident.
#
# The first symptom compares with the untrained policy. Two measurements of it are in every
# journal: the validation before the first step, and the answers from which the first step was
# made.

# %% tags=["definition"]
from gsmrl_helpers.symptoms import IN_FORMAT, RIGHT


def untrained(journal: pd.DataFrame, part: str) -> float:
    """The untrained policy's share in "format", or right ("answer")."""
    before = recorded(journal, f"curve_mean_{part}_reward").loc[:0]
    first = recorded(journal, f"train_mean_{part}_reward").head(1)
    return float(pd.concat([before, first]).mean())


def right_in_format(journal: pd.DataFrame) -> float:
    """Its share right among answers in format; 0 if none is in format."""
    in_format = untrained(journal, "format")
    return untrained(journal, "answer") / in_format if in_format else 0.0


def answers_margin(
    journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE
) -> pd.Series:
    """What share right among answers in format was gained, by step."""
    in_format = recent(journal, IN_FORMAT, rule)
    gain = recent(journal, RIGHT, rule) / in_format - right_in_format(journal)
    return gain[in_format >= untrained(journal, "format") + rule.format_rise]


def accuracy_margin(
    journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE
) -> pd.Series:
    """Right answers as a part of the best so far, less what must be kept."""
    right = recent(journal, RIGHT, rule)
    best = right.cummax()
    return (right / best - rule.kept_share)[best >= rule.worth_keeping]


# %% [markdown]
# By hand, with a window of one step: a policy that starts with half of its answers in format and a
# fifth of those right. In the second step the format is learned and nothing else. In the third the
# right answers double, in the fourth they fall to less than half of that.

# %% tags=["check"]
by_hand = pd.DataFrame(
    {RIGHT: [0.1, 0.16, 0.4, 0.18], IN_FORMAT: [0.5, 0.8, 1.0, 1.0]},
    index=[1, 2, 3, 4],
)
each_step = JournalRule(window=1)
assert untrained(by_hand, "format") == 0.5
assert right_in_format(by_hand) == 0.2
gained = answers_margin(by_hand, each_step).round(6) + 0.0
assert gained.to_dict() == {2: 0.0, 3: 0.2, 4: -0.02}
kept = accuracy_margin(by_hand, each_step).round(6)
assert kept.to_dict() == {1: 0.5, 2: 0.5, 3: 0.5, 4: -0.05}

# %% [markdown]
# A symptom is there where its margin is 0 or less: at step 2 by the first, at step 4 by both. The
# others are a line each. `check_journal` runs all six, and says for each since which step it was
# there, what was measured, and where to look next. A metric that is not recorded passes no check.

# %%
from gsmrl_helpers.symptoms import check_journal

check_journal(journals["healthy"])

# %%
check_journal(journals["collapsed"])

# %%
check_journal(journals["hacked"])

# %% tags=["check"]
blind = check_journal(journals["healthy"].drop(columns=IN_FORMAT))
said = {f.measured for f in blind if not f.ok}
assert f"not recorded: {IN_FORMAT}" in said
if profile == "pocket":
    found = {
        label: [f.name for f in check_journal(j) if not f.ok]
        for label, j in journals.items()
    }
    assert found["healthy"] == []
    assert len(found["collapsed"]) == 5 and len(found["hacked"]) == 4
    assert set(found["hacked"]) < set(found["collapsed"])

# %% [markdown]
# At pocket scale the healthy journal passes all six. The two sick ones share four symptoms, though
# what was done to them has nothing in common. Symptoms say *that* something is wrong. Which of
# several causes it is, they do not say.
#
# ## An alarm while there is time
#
# The two margins above need nothing but the training metrics of the steps so far. So they can
# watch a run that is under way. The alarm is the first step at which either is there:


# %% tags=["definition"]
def plain_first_alarm(
    journal: pd.DataFrame, rule: JournalRule = JOURNAL_RULE
) -> int | None:
    """The first step at which one of the two margins is 0 or less."""
    margins = [answers_margin(journal, rule), accuracy_margin(journal, rule)]
    steps = [int(s) for m in margins for s in m.index[m <= 0]]
    return min(steps, default=None)


# %% [markdown]
# The package's `first_alarm` refuses a journal that lacks a metric: silence would mean nothing. An
# alarm must not know the future, so it has to be the same for a journal that is cut off there.

# %% tags=["check"]
from gsmrl_helpers.symptoms import first_alarm

for journal in [*journals.values(), by_hand]:
    alarm = plain_first_alarm(journal)
    assert alarm == first_alarm(journal)
    if alarm is not None:
        assert first_alarm(journal.loc[:alarm]) == alarm
        assert first_alarm(journal.loc[: alarm - 1]) is None

# %%
for label, journal in journals.items():
    alarm = first_alarm(journal)
    print(
        f"{label}: {'no alarm' if alarm is None else f'alarm at step {alarm}'}"
    )

# %% [markdown]
# Early is a comparison. At the step of its alarm, what would a reader of the collapsed run have
# seen who watches validation accuracy, and when does the run fall below where it began for good?

# %%
collapsed = journals["collapsed"]
alarm = first_alarm(collapsed)
validated = recorded(collapsed, "curve_mean_answer_reward")
print("validation, first three:", validated.head(3).round(3).to_dict())
below = validated.index[validated < validated.iloc[0]]
above = validated.index[validated >= validated.iloc[0]]
for_good = min(below[below > above.max()], default=None)
print(f"below its start for good from the validation at step {for_good} on")
if alarm is not None:
    saved = 1 - alarm / collapsed.index.max()
    print(f"steps that need not be run: {saved:.0%}")

# %% tags=["check"]
if profile == "pocket":
    assert alarm <= 12 and alarm < for_good
    at_alarm = validated[validated.index >= alarm].iloc[0]
    assert at_alarm > validated.iloc[0]

# %% [markdown]
# At pocket scale the validation at the step of the alarm is still above the first one: more
# answers can be read, since all are in format now. Only the share right *among* those has fallen.
# That the two are logged apart is what makes the alarm early.
#
# Does it cry wolf? All runs of the three recordings, beside the rule of stability: a run has
# collapsed that ends, on test, below half of the best one.

# %%
runs = [
    (name, variant, seed, first_alarm(journal_of(table, variant, seed)))
    for name, table in recordings.items()
    for variant, seed in table[RUN].drop_duplicates().itertuples(index=False)
]
alarms = pd.DataFrame(runs, columns=["recording", "variant", "seed", "alarm"])
accuracy = pd.concat(
    final_values(table, "test_mean_answer_reward").assign(recording=name)
    for name, table in recordings.items()
)
alarms = alarms.merge(accuracy, on=["recording", "variant", "seed"])
alarms["ends"] = alarms["value"] / alarms["value"].max()
by_variant = alarms.groupby(["recording", "variant"], sort=False)
summary = pd.DataFrame(
    {
        "seeds": by_variant.size(),
        "below half of the best": by_variant["ends"].agg(
            lambda e: (e < 0.5).sum()
        ),
        "alarms": by_variant["alarm"].count(),
        "earliest": by_variant["alarm"].min(),
        "latest": by_variant["alarm"].max(),
    }
).reset_index()
whole = summary.astype({"earliest": "Int64", "latest": "Int64"})
shown = whole.astype(object).where(summary.notna(), "none")
HTML(as_html(shown.astype(str)))

# %% tags=["check"]
healthy_runs = alarms[alarms["recording"] == "on-policy"]
sick = alarms[alarms["variant"].isin(["x20", "format_only"])]
assert (shown.loc[summary["alarms"] == 0, "earliest"] == "none").all()
if profile == "pocket":
    assert len(healthy_runs) == 4 and healthy_runs["alarm"].isna().all()
    assert sick["alarm"].notna().all() and sick["alarm"].max() < 50
    assert (sick["ends"] < 0.5).all() and (healthy_runs["ends"] > 0.5).all()
    slow = alarms[alarms["variant"] == "x0.05"]
    assert slow["alarm"].isna().all() and (slow["ends"] < 0.5).all()

# %% [markdown]
# At pocket scale every run that was broken on purpose gives the alarm in its first half, and no
# healthy seed does. The run with a twentieth of the learning rate gives none although it ends low:
# it forgets nothing, it only learns too slowly. Silence of this alarm is no health; for a curve
# that stays flat there is the stop rule of the pilot ({doc}`06_reward_functions`).
#
# One part of the rule was changed after a look at these very journals. It first compared with the
# mean of the first five steps; in the collapsed run the format was full before five steps had
# passed, and that alarm could not go off. Two numbers were set after that look, too: the smallest
# best accuracy from which a fall is judged, and the entropy of the fourth symptom, which is no part
# of the alarm (four answers, at first two). The other dials were set by the noise and left as they
# were. Do the alarms depend on them? For windows of 3, 5 and 10 steps and three rises of the
# format:

# %%
known = {
    group: [
        journal_of(recordings[r.recording], r.variant, r.seed)
        for r in rows.itertuples()
    ]
    for group, rows in {"healthy": healthy_runs, "sick": sick}.items()
}
sweep = []
for window in (3, 5, 10):
    for rise in (0.1, 0.2, 0.3):
        rule = JournalRule(window=window, format_rise=rise)
        healthy, ill = (
            [first_alarm(j, rule=rule) for j in known[group]]
            for group in ("healthy", "sick")
        )
        false = sum(a is not None for a in healthy)
        seen = sum(a is not None for a in ill)
        latest = max((a for a in ill if a is not None), default=None)
        sweep.append((window, rise, false, seen, latest))
columns = ["window", "rise", "false alarms", "seen", "latest"]
swept = pd.DataFrame(sweep, columns=columns)
HTML(as_html(swept.astype(str)))

# %% tags=["check"]
if profile == "pocket":
    assert swept["false alarms"].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert (swept["seen"] == len(sick)).all()
    started = [right_in_format(j) for j in known["sick"]]
    at_latest = sick.reset_index()["alarm"].idxmax()
    assert started[at_latest] == min(started)

# %% [markdown]
# At pocket scale a window of three steps and a rise of .1 accuse one healthy seed; every wider
# setting accuses none, and all of them see every sick run. The latest alarm is that of a hacked
# seed of which the untrained policy was measured lowest, so that it had the least to lose.
#
# Others have seen the same collapse at full scale, without having asked for it (self-reported by
# students, OLMo-2-0425-1B on GSM8K, 200 steps, standard GRPO; not run here):

# %%
print(read_published("on-policy").loc[0, "note"])

# %% [markdown]
# Right answers few, format near 1, answers short: the same three signs as in the collapsed pocket
# run, so the phenomenon carries over. How it comes about does not. Theirs came with standard
# settings, on 2 of 12 seeds; ours took twenty times the learning rate, and none of four standard
# seeds has it. That is no contradiction: of 0 in 4 the exact 95 % interval reaches up to 60 %.

# %% tags=["check"]
from scipy.stats import binomtest

upper = binomtest(0, 4).proportion_ci(0.95, method="exact").high
assert abs(upper - 0.60) < 0.005

# %% [markdown]
# ## Two stretches, two causes each
#
# A note on a suspicious stretch has four lines: what was observed, two causes that could have made
# it, a check whose result differs between them, and what the check found. The third line is the
# one that is usually missing. It has to be written before the fourth.
#
# ### The format is full at once, and the answers go
#
# In the collapsed journal the format is learned within a few steps, several times as fast as in
# the healthy one; right answers rise with it, and then go. Either **the format is paid**, and the
# policy does what it is paid for. Or **the steps are too large**: the policy jumps to whatever the
# first batches favoured. If the format were paid, the mean reward would differ from the share of
# right answers, at each step by the same multiple of the format. That is in the journal.


# %%
def paid_for_format(journal: pd.DataFrame) -> float:
    """Largest gap between what was paid and the answer reward."""
    paid, answer = (
        recorded(journal, f"train_mean_{part}reward")
        for part in ("", "answer_")
    )
    return (paid - answer).abs().max()


for label, journal in journals.items():
    print(
        f"{label}: paid and right differ by up to {paid_for_format(journal):.3f}"
    )

# %% tags=["check"]
assert paid_for_format(journals["healthy"]) == 0
assert paid_for_format(journals["collapsed"]) == 0
bonus = (
    journals["hacked"]["train_mean_reward"] / journals["hacked"][IN_FORMAT]
)
assert (bonus.dropna() - 0.1).abs().max() < 1e-6

# %% [markdown]
# The first cause is out: not once was anything but a right answer paid. In the hacked journal, for
# comparison, a tenth of the format is paid and nothing else. That leaves the second cause
# possible, and not yet proven: two causes were written down, there may be a third. What supports
# it is a run in which only the step size differs. `recorded_settings` reads what a run was made
# with from its manifest, and `changed_settings` says in what two runs differ.

# %% tags=["definition"]
from gsmrl_helpers.journal import LABELS


def changed_settings(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The settings in which two runs differ; labels are left out."""
    names = [name for name in {**one, **other} if name not in LABELS]
    return {
        n: (one.get(n), other.get(n))
        for n in names
        if one.get(n) != other.get(n)
    }


# %% tags=["check"]
one = {"variant": "x1", "learning_rate": 1e-5, "seed": 0}
other = {"variant": "x2", "learning_rate": 2e-5, "seed": 0}
assert changed_settings(one, other) == {"learning_rate": (1e-5, 2e-5)}
assert changed_settings(one, one | {"variant": "y"}) == {}

# %%
from gsmrl_helpers.journal import recorded_settings

settings = {
    label: recorded_settings(name, profile)[variant, 0]
    for label, (name, variant) in sources.items()
}
pairs = [
    ("healthy", "collapsed"),
    ("healthy", "hacked"),
    ("collapsed", "hacked"),
]
for one, other in pairs:
    print(
        f"{one} and {other}:",
        changed_settings(settings[one], settings[other]),
    )

# %% tags=["check"]
changed = [set(changed_settings(settings[a], settings[b])) for a, b in pairs]
assert changed == [{"learning_rate"}, {"reward"}, {"learning_rate", "reward"}]
assert len({s["policy_sha256"] for s in settings.values()}) == 1

# %% [markdown]
# (A reward of None is the prompt's own.) One factor at a time. Healthy and collapsed differ in the
# learning rate and in nothing else, the policy's weights and the random seed included, so the
# difference between their journals can be put down to it. The collapsed and the hacked run differ
# in two settings, and a comparison of those two alone would prove nothing about either. Nor would
# two runs of different policies, however similar their curves. The whole note:


# %%
def note(**lines: str) -> HTML:
    """A note on a stretch as a table of two columns."""
    rows = [(key.replace("_", " "), text) for key, text in lines.items()]
    return HTML(as_html(pd.DataFrame(rows, columns=["", "note"])))


def full_from(journal: pd.DataFrame) -> int | None:
    """The first step with 95 % of the answers in format, if any."""
    in_format = recorded(journal, IN_FORMAT)
    return min(in_format.index[in_format >= 0.95], default=None)


best = recent(collapsed, RIGHT)
fast, usual = (full_from(journals[k]) for k in ("collapsed", "healthy"))
note(
    observed=f"95 % in format from step {fast} on (healthy: {usual}); right answers, "
    f"mean of five steps, reach {best.max():.0%} and end at {best.iloc[-1]:.0%}",
    cause_1="the reward pays for the format",
    cause_2="the steps are too large",
    check="is anything paid that is not a right answer? If not: the same run "
    "with a smaller step, all else equal",
    found=f"paid and right differ by {paid_for_format(collapsed):.0f}; with "
    f"{settings['healthy']['learning_rate']:.0e} in place of "
    f"{settings['collapsed']['learning_rate']:.0e} right answers end at "
    f"{recent(journals['healthy'], RIGHT).iloc[-1]:.0%}",
)

# %% tags=["check"]
if profile == "pocket":
    assert fast <= 5 and usual > 6 * fast
    assert best.max() > 0.2 and best.iloc[-1] < 0.06
    assert recent(journals["healthy"], RIGHT).iloc[-1] > 0.6

# %% [markdown]
# ### All groups are empty
#
# At the end of both sick runs nearly all groups are empty while hardly anything is right, so it is
# not that everything is solved. Two causes are left. Either **the answers of a group agree**: the
# policy gives a problem one answer, eight times. Or **they differ and are paid alike**. The
# remedies are opposite: the first policy has to be brought back from an earlier checkpoint, the
# second has to be paid otherwise.
#
# The share right alone can't tell, but the journal has another number: pass@$G$, the share of
# problems that at least one of the $G$ answers solves. If the answers agree, eight tries find no
# more than one does. If they differ, some of them are right by luck.


# %%
def tries_help(journal: pd.DataFrame, group_size: int) -> pd.Series:
    """pass@1 and pass@G, mean over the last fifth of the steps."""
    late = journal.loc[0.8 * journal.index.max() :]
    metrics = [f"train_pass_at_{k}" for k in (1, group_size)]
    return late[["no_signal_group_share", *metrics]].mean()


G = settings["healthy"]["group_size"]
late = pd.DataFrame({k: tries_help(j, G) for k, j in journals.items()}).T
late.columns = ["empty groups", "pass@1", f"pass@{G}"]
late.round(3)

# %% tags=["check"]
luck = late[f"pass@{G}"] / late["pass@1"]
if profile == "pocket":
    assert (late.loc[["collapsed", "hacked"], "empty groups"] > 0.95).all()
    assert luck["collapsed"] < 1.3 and luck["hacked"] > 4

# %% [markdown]
# At pocket scale: the same symptom, two diagnoses. In the collapsed run eight answers solve hardly
# more than one does: a problem that is solved at all is mostly solved eight times, the groups
# agree. In the hacked run eight solve several times as much as one: they guess, each time anew, and
# every guess earns its .1. The recorded answers say the same. These are the most frequent ones of
# the hacked run at its end, to as many different questions:

# %%
told = read_answers("format-only", profile).query("seed == 0")
told = told[told["step"] == told["step"].max()]
frequent = told["response"].str.strip().value_counts()
print(frequent.head(4).rename_axis(None).to_string())
print("different questions:", told["question"].nunique())

# %% tags=["check"]
if profile == "pocket":
    assert frequent.head(4).sum() > 0.5 * len(told)
    assert told["response"].str.contains(r"\d=\d").mean() < 0.1
    assert told["question"].nunique() == len(told) == 64

# %%
note(
    observed=f"{late.loc['collapsed', 'empty groups']:.0%} and "
    f"{late.loc['hacked', 'empty groups']:.0%} of the groups are empty, "
    f"{late.loc['collapsed', 'pass@1']:.0%} and "
    f"{late.loc['hacked', 'pass@1']:.0%} of the answers right",
    cause_1="the answers of a group agree",
    cause_2="they differ and are paid alike",
    check=f"pass@{G} beside pass@1: equal if they agree",
    found=f"collapsed: {luck['collapsed']:.1f} times pass@1, cause 1; hacked: "
    f"{luck['hacked']:.1f} times, cause 2",
)

# %% tags=["check"]
assert (late[f"pass@{G}"] >= late["pass@1"]).all()

# %% [markdown]
# ### A stretch that stays open
#
# The healthy journal has something to ask about as well. At the start its wrong answers are the
# shorter ones, at the end they are the longer ones, by three tokens. One cause: the loss divides
# by each answer's length, so that long wrong answers are pushed down less
# ({doc}`11_policy_gradient_loss`). Another: what is still wrong are the long problems. The check
# would compare lengths within a problem, or a run with a constant normalizer and nothing else
# changed. The first is not recorded, and the second is another chapter's experiment. Until then
# the note ends with "open".

# %%
healthy = journals["healthy"]
gap = recorded(healthy, "train_response_length_wrong") - recorded(
    healthy, "train_response_length_right"
)
fifth = healthy.index.max() // 5
print(f"wrong − right, first fifth: {gap.loc[:fifth].mean():+.1f} tokens")
print(
    f"wrong − right, last fifth: {gap.loc[4 * fifth + 1 :].mean():+.1f} tokens"
)

# %% tags=["check"]
if profile == "pocket":
    assert gap.loc[:fifth].mean() < -1 and gap.loc[4 * fifth + 1 :].mean() > 3

# %% [markdown]
# For the run that repeats an experiment the same holds as for reading one: change one factor, and
# keep policy, data, sampler and budget. Choose the checkpoint on dev, and look at test once, at
# the end ({doc}`05_grading_answers` has the splits of GSM8K).

# %% [markdown]
# ## A penalty that never looks at its reference
#
# The metrics above are values. A term of the loss acts through its *gradient*, and the two can
# tell different stories. Some teaching scripts hold the policy near a reference by adding
#
# $$\beta\; \mathrm{mean}_y \big( \log \pi_\theta(y) - \log \pi_{ref}(y) \big)$$
#
# over the answers $y$ of the batch. Logged, it looks like a KL divergence. But with the answers
# fixed and the reference frozen, $\log \pi_{ref}(y)$ is a number, and a number has no gradient.
# Below are eight recorded answers of the pocket policy, and two references: the policy itself, and
# a copy whose weights were disturbed.

# %%
config = experiment_config("on-policy", "pocket")
model, tokenizer = load_policy(config)
model.eval()
torch.manual_seed(0)
disturbed = copy.deepcopy(model)
with torch.no_grad():
    for parameter in disturbed.parameters():
        parameter += 0.1 * torch.randn_like(parameter)

sampled = read_answers("on-policy", "pocket").query("step == 0").head(8)
batch = tokenize_prompt_and_output(
    [
        config.prompt_object().format(question)
        for question in sampled["question"]
    ],
    sampled["response"].tolist(),
    tokenizer,
)


# %% [markdown]
# `kl_estimate` with `kind="k1"` is the bracket above. One function gives the value of the penalty
# and its whole gradient, every parameter in one vector.


# %%
def answer_log_probs(policy: torch.nn.Module) -> Tensor:
    """log π of each of the eight answers."""
    tokens = batch_log_probs(policy, batch)
    return tokens.masked_fill(~batch["response_mask"].bool(), 0.0).sum(dim=1)


def penalty(reference: Tensor, kind: str) -> tuple[float, Tensor]:
    """The mean over the answers, and its gradient."""
    value = kl_estimate(answer_log_probs(model), reference, kind).mean()
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return value.item(), torch.cat([g.flatten() for g in gradients])


with torch.no_grad():
    references = {
        "itself": answer_log_probs(model),
        "disturbed": answer_log_probs(disturbed),
    }
of_kind = {
    kind: [penalty(reference, kind) for reference in references.values()]
    for kind in ("k1", "k2")
}
for kind, ((value, gradient), (other_value, other)) in of_kind.items():
    print(
        f"{kind}: value {value:.1f} or {other_value:.1f}, gradients "
        f"{'equal' if torch.equal(gradient, other) else 'different'}"
    )

# %% [markdown]
# The values differ, and the gradients of k1 are equal, bit by bit: the penalty pushes
# $\beta\,\nabla \log \pi_\theta(y)$, down, for every answer and whatever the reference. The square
# of the same bracket, k2, does ask which reference it is. So does k3. The claim again, over a
# hundred seeded policies, answers and pairs of references:

# %% tags=["check", "claim:W19"]
beta = 0.3
expected_difference = 0.0
for seed in range(100):
    generator = torch.Generator().manual_seed(seed)
    logits, one, other = torch.randn(
        3, 5, 7, generator=generator, dtype=torch.float64
    )
    logits.requires_grad_()
    y = torch.randint(7, (5, 1), generator=generator)
    log_probs, *ref = (
        z.log_softmax(-1).gather(-1, y) for z in (logits, one, other)
    )
    gradients, with_k3 = (
        [
            torch.autograd.grad(
                beta * kl_estimate(log_probs, r, kind).mean(),
                logits,
                retain_graph=True,
            )[0]
            for r in ref
        ]
        for kind in ("k1", "k3")
    )
    difference = (gradients[0] - gradients[1]).abs().max().item()
    assert difference == expected_difference
    assert gradients[0].norm() > 0.01
    assert (with_k3[0] - with_k3[1]).abs().max() > 1e-3

# %% tags=["check", "claim:W19"]
(value, gradient), (other_value, other) = of_kind["k1"]
expected_change = 0.0
assert (gradient - other).abs().max().item() == expected_change
assert other_value - value > 10 and gradient.norm() > 1
assert not torch.equal(of_kind["k2"][0][1], of_kind["k2"][1][1])

# %% [markdown]
# On average over the policy's own answers the push is nothing at all: $\mathbb{E}_{y \sim
# \pi_\theta}[\nabla \log \pi_\theta(y)] = 0$. A KL divergence has another gradient, because the
# distribution that is averaged over moves too. For three answers it can be written out, from a
# policy that has them equally likely to a reference $(.7, .2, .1)$:

# %%
logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
log_p = logits.log_softmax(0)
log_ref = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log()
weight = log_p.detach().exp()  # how often each answer is sampled
terms = {
    "KL(π‖ref) itself": (log_p.exp() * (log_p - log_ref)).sum(),
    "k1 on samples": (weight * kl_estimate(log_p, log_ref, "k1")).sum(),
    "k2 on samples": (weight * kl_estimate(log_p, log_ref, "k2")).sum(),
    "k3 on samples": (weight * kl_estimate(log_p, log_ref, "k3")).sum(),
}
mean_gradient = {
    name: torch.autograd.grad(term, logits, retain_graph=True)[0]
    for name, term in terms.items()
}
shown = pd.DataFrame(mean_gradient, index=["y = 1", "y = 2", "y = 3"]).T
shown.round(3) + 0.0

# %% tags=["check"]
assert mean_gradient["k1 on samples"].abs().max() < 1e-12
assert torch.allclose(
    mean_gradient["k2 on samples"], mean_gradient["KL(π‖ref) itself"]
)
assert torch.allclose(
    mean_gradient["k3 on samples"], log_p.detach().exp() - log_ref.exp()
)

# %% [markdown]
# *Each row is the expected gradient with respect to the three logits.* k1 has the right value and
# no gradient; k2 has the gradient of the KL divergence and the wrong value; the gradient of k3 is
# that of the other divergence, $\mathrm{KL}(\pi_{ref} \| \pi_\theta)$, on fresh samples. So log
# the value you trust and check the gradient of what you add: with a second reference, as above, it
# takes two lines. And no KL term repairs a checker that pays for the wrong thing.
#
# ## A clip that can't bind, and a clip of another thing
#
# The clip fraction of our journals is "not recorded", because with one update on fresh rollouts
# every ratio is 1. Where there are several updates, it can be 0 for a reason that has nothing to
# do with stability: the interval. Which interval does `clipped_loss` use for a given
# $\varepsilon$? It is found by giving it ratios far outside, one of which no ratio can be: a ratio
# of probabilities is positive.


# %%
def interval(eps: float) -> tuple[float, float]:
    """The bounds that clipped_loss holds a ratio to, by its values."""
    one, far = torch.ones(1, 1).double(), torch.full((1, 1), 1e6).double()
    upper = -clipped_loss(one, far, eps)[0].item()
    lower = clipped_loss(-one, -far, eps)[0].item()
    return lower + 0.0, upper


for eps in (0.2, 0.5, 1.0, 10.0):
    print(
        f"ε = {eps:4}: from {interval(eps)[0]:4.1f} to {interval(eps)[1]:4.1f}"
    )

# %% [markdown]
# With $\varepsilon = 10$, a value from a script for whole answers, the interval is $[-9, 11]$. The
# lower bound is what stops a bad answer from being pushed down without end, and it can't be
# reached from $\varepsilon = 1$ on: of ratios from $10^{-12}$ to $10^{12}$ it clips none.

# %% tags=["check", "claim:W20"]
expected_interval = (-9.0, 11.0)
assert interval(10.0) == expected_interval
epsilons = (0.2, 0.9, 1.0, 10.0)
expected_clipped = (True, True, False, False)
ratios = torch.logspace(-12, 12, 4801, dtype=torch.float64)[:, None]
for eps, expected in zip(epsilons, expected_clipped, strict=True):
    is_clipped = clipped_loss(-torch.ones_like(ratios), ratios, eps)[1]
    assert is_clipped.any().item() == expected
is_clipped = clipped_loss(torch.ones_like(ratios), ratios, 10.0)[1]
assert torch.equal(is_clipped, ratios > 11)

# %% [markdown]
# The upper bound is far away, too. A token's ratio is at most $1/\pi_{old}$, so only tokens that
# were less likely than 1/11 can ever reach 11. Of the tokens that the untrained pocket policy
# sampled in those eight answers, and of the answers as wholes:

# %%
with torch.no_grad():
    token_log_probs = batch_log_probs(model, batch)
    of_tokens = token_log_probs[batch["response_mask"].bool()].exp()
    of_answers = answer_log_probs(model).exp()
for name, p in {"tokens": of_tokens, "answers": of_answers}.items():
    share = (p < 1 / 11).double().mean().item()
    print(f"{name}: {share:.0%} of {len(p)} could reach a ratio of 11")

# %% tags=["check"]
assert (of_answers < 1 / 11).all()
assert 0.02 < (of_tokens < 1 / 11).double().mean() < 0.3

# %% [markdown]
# So an $\varepsilon$ does not carry over from answers to tokens. And it is not only the number:
# the two are different objectives. One clips the ratio of the whole answer, the product of its
# tokens' ratios. GRPO as published clips each token's term and averages. Two answers with the
# advantage 1 and $\varepsilon = .2$, by hand: ratios 1.5 and .7 have the product 1.05, which is
# inside, while the first token alone is outside; four ratios of 1.1 are inside one by one, and
# their product, 1.46, is not.


# %%
def whole_answer_loss(log_ratios: Tensor, eps: float = 0.2) -> Tensor:
    """The ratio of the answer, clipped."""
    return clipped_loss(torch.ones(()), log_ratios.sum().exp(), eps)[0]


def token_loss(log_ratios: Tensor, eps: float = 0.2) -> Tensor:
    """The tokens' ratios, clipped one by one, then averaged."""
    return clipped_loss(torch.ones(()), log_ratios.exp(), eps)[0].mean()


def minus_gradient(loss: Callable[[Tensor], Tensor], *ratios: float) -> list:
    """How each token's log-probability is pushed."""
    log_ratios = torch.tensor(ratios).log().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(log_ratios), log_ratios)
    return [round(-g, 3) + 0.0 for g in gradient.tolist()]


two, four = (1.5, 0.7), (1.1, 1.1, 1.1, 1.1)
for name, loss in {"answer": whole_answer_loss, "token": token_loss}.items():
    print(f"{name:>6}: {minus_gradient(loss, *two)}", end=" and ")
    print(minus_gradient(loss, *four))

# %% tags=["check", "claim:W35"]
expected_of_answer = [[1.05, 1.05], [0.0, 0.0, 0.0, 0.0]]
expected_of_token = [[0.0, 0.35], [0.275, 0.275, 0.275, 0.275]]
for ratios, of_answer, of_token in zip(
    (two, four), expected_of_answer, expected_of_token, strict=True
):
    assert minus_gradient(whole_answer_loss, *ratios) == of_answer
    assert minus_gradient(token_loss, *ratios) == of_token

# %% [markdown]
# Where the one is silent, the other pushes, in both directions. They do not even agree on which
# tokens to leave alone. GSPO's geometric mean ({doc}`11_policy_gradient_loss`) is a third
# objective. So a clip fraction has a meaning only beside the words "of tokens" or "of answers".
#
# Nor does any of them bound how far the policy goes. At a ratio of 1 nothing is clipped, and the
# step that is taken there can end anywhere:

# %% tags=["check"]
logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
log_ratio = logits.log_softmax(0)[:1] - math.log(0.5)
loss = clipped_loss(torch.ones(()), log_ratio.exp(), 0.2)[0].sum()
(gradient,) = torch.autograd.grad(loss, logits)
after = (logits - 4.0 * gradient).softmax(0)[0].item() / 0.5
assert after > 1.9  # the bound was 1.2

# %% [markdown]
# ## Take away
#
# - First a table, the same for every run, with "not recorded" where nothing was recorded. Mean
#   advantage, loss and gradient norm say little; entropy says how sure a policy is, not of what.
# - A symptom is written down with its line before the journal is read. The share right among the
#   answers in format gives a collapse and a hack away long before accuracy does, and costs
#   nothing.
# - Symptoms are shared by causes. A note names two causes and the check that tells them apart.
# - Only one factor may differ where a difference is to be explained.
# - Of a penalty or a clip, look at what it does to the gradient: its value can look right while it
#   does nothing.
#
# ## Exercises

# %% [markdown]
# ```{exercise} Name the journal
# :label: ex-17-name
#
# *Medium, 15 minutes.* Write `name_journal(journal)`, which returns `"healthy"`, `"collapsed"` or
# `"hacked"`. It may use everything that the journal records, and nothing else. The check gives it
# every seed of the three recordings.
#
# :::{dropdown} Hint
# Is anything wrong at all? If so: is something paid that is no right answer?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def name_journal(journal: pd.DataFrame) -> str:
    if first_alarm(journal) is None:
        return "healthy"
    paid = recorded(journal, "train_mean_reward")
    right = recorded(journal, "train_mean_answer_reward")
    return "hacked" if (paid - right).abs().max() > 1e-6 else "collapsed"


# %% tags=["check"]
made_up = pd.DataFrame(
    {
        RIGHT: [0.4] * 9 + [0.0] * 9,
        IN_FORMAT: [0.5] * 18,
        "train_mean_reward": [0.4] * 9 + [0.0] * 9,
    }
)
assert name_journal(made_up) == "collapsed"
assert name_journal(made_up.head(9)) == "healthy"
assert name_journal(made_up.assign(train_mean_reward=0.05)) == "hacked"
if profile == "pocket":
    for label, seed in three[RUN].drop_duplicates().itertuples(index=False):
        assert name_journal(journal_of(three, label, seed)) == label

# %% [markdown]
# ```{exercise} Where to go back to
# :label: ex-17-back
#
# *Easy, 10 minutes.* After an alarm the run goes back to a checkpoint. Write
# `step_to_return_to(journal)`: the step of the best validation, `curve_mean_answer_reward`, not
# later than the first alarm; of equally good ones the first. Without an alarm it returns None.
#
# :::{dropdown} Hint
# `recorded` gives the validations, `.loc[:alarm]` those up to the alarm, `idxmax` the first best.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def step_to_return_to(journal: pd.DataFrame) -> int | None:
    alarm = first_alarm(journal)
    if alarm is None:
        return None
    validated = recorded(journal, "curve_mean_answer_reward").loc[:alarm]
    return int(validated.idxmax())


# %% tags=["check"]
made_up = pd.DataFrame(
    {
        RIGHT: [0.1, 0.2, 0.3, *[0.4] * 8, *[0.0] * 9],
        IN_FORMAT: [0.5] * 20,
        "curve_mean_answer_reward": [None, 0.3, 0.2, 0.3, *[None] * 15, 0.9],
    },
    index=range(1, 21),
)
assert step_to_return_to(made_up) == 2
assert step_to_return_to(made_up.head(9)) is None
back = step_to_return_to(journals["collapsed"])
if profile == "pocket":
    assert back == 10 and step_to_return_to(journals["healthy"]) is None

# %% [markdown]
# ```{exercise} Can this token be clipped?
# :label: ex-17-reach
#
# *Easy, 5 minutes.* Write `within_reach(old_log_probs, eps)`: the share of tokens whose ratio can
# ever exceed $1 + \varepsilon$, whatever the policy becomes.
#
# :::{dropdown} Hint
# A probability is at most 1. What is the largest ratio of a token of probability $p$?
# :::
# ```


# %% tags=["solution", "hide-cell"]
def within_reach(old_log_probs: Tensor, eps: float) -> float:
    largest_ratio = (-old_log_probs).exp()
    return (largest_ratio > 1 + eps).double().mean().item()


# %% tags=["check"]
p = torch.tensor([0.01, 0.05, 0.2, 0.5, 0.9, 0.99], dtype=torch.float64)
for eps, share in {0.0: 1, 0.2: 4 / 6, 3.0: 3 / 6, 10.0: 2 / 6}.items():
    assert abs(within_reach(p.log(), eps) - share) < 1e-9
certain = (1 - 1e-6) / p[:, None]  # as large as a ratio gets
clipped = clipped_loss(torch.ones_like(certain), certain, 10.0)[1]
assert within_reach(p.log(), 10.0) == clipped.double().mean().item()

# %% [markdown]
# ## Next
#
# {doc}`18_difficulty_reweighting` asks which objective each variant of GRPO climbs.
# {doc}`20_importance_weighting` has the ratios, once several updates are made on one batch.
