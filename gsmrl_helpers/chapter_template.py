"""A new chapter: the pair of files with every part that a chapter has, ready to be executed.

The example in it is complete and true, so that the pair passes the rules of a chapter before its
author has written a word.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from gsmrl_helpers.notebooks import NotebookError, sync
from gsmrl_helpers.paths import NOTEBOOKS_DIR

STEM = re.compile(r"(\d\d)_[a-z][a-z0-9]*(_[a-z0-9]+)*")

TEMPLATE = Template('''\
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
# # $title
#
# ```{admonition} In this chapter
# :class: tip
# **You will be able to** say how likely it is that one of k answers is right.
#
# **You need** to know what a sampled answer is. **Reading** takes 2 minutes, **running** a second,
# on a **CPU**.
# ```

# %% [markdown]
# ## Why one answer says little
#
# Say first what goes wrong without the thing that this section defines. Eight answers to a problem
# were sampled and two are right. Had we drawn only four, would one of them have been right? Which
# four is luck, so we count all ways to choose them.

# %%
import math

# %% [markdown]
# With $$n$$ answers of which $$c$$ are right, all $$k$$ chosen ones are wrong with probability
# $$\\binom{n-c}{k} / \\binom{n}{k}$$. What is left is called pass@k.


# %% tags=["definition"]
def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that at least one of k samples is right."""
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"k={k} must lie between 1 and num_samples={num_samples}"
        )
    if not 0 <= num_correct <= num_samples:
        raise ValueError(
            f"num_correct={num_correct} must lie between 0 and {num_samples}"
        )
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(
        num_samples, k
    )


# %% tags=["check"]
expected = 0.785714
assert abs(pass_at_k(8, 2, k=4) - expected) < 0.000001

# %% [markdown]
# So four answers contain a right one in 79 of 100 cases. More answers never hurt:

# %%
[round(pass_at_k(8, 2, k), 2) for k in range(1, 9)]

# %% [markdown]
# ## Take away
#
# - pass@k counts all choices of k answers, so that it does not depend on their order.
#
# ## Exercises

# %% [markdown]
# ```{exercise} One answer
# :label: ex-$number-one-answer
#
# *Easy, 5 minutes.* Write `pass_at_1(num_samples, num_correct)` without binomial coefficients.
#
# :::{dropdown} Hint
# One answer is drawn, and every one is as likely as any other.
# :::
# ```


# %% tags=["solution", "hide-cell"]
def pass_at_1(num_samples: int, num_correct: int) -> float:
    return num_correct / num_samples


# %% tags=["check"]
for num_correct in range(9):
    wanted = pass_at_k(8, num_correct, k=1)
    assert math.isclose(pass_at_1(8, num_correct), wanted)

# %% [markdown]
# ## Next
#
# Say where the path goes on, and link there with `{doc}`.
''')


def new_chapter(stem: str, title: str, folder: Path = NOTEBOOKS_DIR) -> Path:
    """Write the pair of a new chapter from the template and return its `.ipynb`.

    Args:
        stem: number and slug, such as `14_on_policy_results`.
        title: one line.
        folder: where the pair goes.

    Raises:
        NotebookError: a name that is no `NN_slug`, an empty title, or a number that is taken.
    """
    match = STEM.fullmatch(stem)
    if not match:
        raise NotebookError(
            f"{stem!r} is no name of a chapter: two digits, then words in lower case, all joined "
            "by underscores, as in 14_on_policy_results"
        )
    if not title.strip() or "\n" in title:
        raise NotebookError(f"the title must be one line of text: got {title!r}")
    if taken := sorted(path.name for path in folder.glob(f"{match[1]}_*")):
        raise NotebookError(f"chapter {match[1]} exists: {', '.join(taken)}")
    script = folder / f"{stem}.py"
    text = TEMPLATE.substitute(title=title.strip(), number=match[1])
    script.write_text(text, encoding="utf-8")
    sync(script.with_suffix(".ipynb"))
    return script.with_suffix(".ipynb")
