"""The book's Markdown without the book: what a student reads in Jupyter."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from markdown_it import MarkdownIt

from gsmrl_helpers.plain_markdown import PlainMarkdownError, citation, plain_markdown, references

EXERCISE = """Before {doc}`13_run_grpo`.

```{exercise} The dial
:label: ex-00-dial

*Easy, 5 minutes.* Turn it, says {cite:t}`shao2024deepseekmath`.

:::{dropdown} Hint
Use {doc}`the data </data/README>`.
:::
```
After.
"""


def test_an_exercise_becomes_a_heading_and_its_hint_a_fold():
    assert plain_markdown(EXERCISE).splitlines() == [
        "Before *Run GRPO* (chapter 13).",
        "",
        "### Exercise: The dial (`ex-00-dial`)",
        "",
        "*Easy, 5 minutes.* Turn it, says Shao et al. (2024).",
        "",
        "<details><summary>Hint</summary>",
        "",
        "Use the data.",
        "",
        "</details>",
        "After.",
    ]


def test_only_hints_stay_in_an_exercise():
    answer = ":::{dropdown} Worked answer\nIt is 4.\n:::\n"
    with_answer = EXERCISE.replace(":::{dropdown} Hint", f"{answer}\n:::{{dropdown}} Hint")
    assert with_answer != EXERCISE
    plain = plain_markdown(with_answer)
    assert "It is 4" not in plain and "Use the data." in plain
    assert "Worked answer" in plain_markdown(answer)  # outside of an exercise it is no answer


def test_admonitions_are_quotes_whole_with_their_blank_lines():
    text = "```{admonition} In *this* chapter\n:class: tip\n**You** can.\n\nMore.\n```"
    assert plain_markdown(text) == "> **In *this* chapter**\n>\n> **You** can.\n>\n> More."
    assert plain_markdown(":::{note}\nMind.\n:::") == "> **Note**\n>\n> Mind."
    assert plain_markdown(":::{warning} Mind\nthis.\n:::") == "> **Warning**\n>\n> Mind\n> this."
    assert MarkdownIt().render(plain_markdown(text)).startswith("<blockquote>\n<p><strong>In")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("{cite}`shao2024deepseekmath`", "(Shao et al., 2024)"),
        (
            "{cite:p}`williams1992reinforce,cobbe2021gsm8k`",
            "(Williams, 1992; Cobbe et al., 2021)",
        ),
        ("{doc}`/book/how_to_run`", "*How to run it* (in the book)"),
        ("{ref}`the cell <claim-W8a>` and {ref}`claim-W8a`", "the cell and `claim-W8a`"),
        ("{math}`x_1`", "$x_1$"),
        ("[a page](13_run_grpo.ipynb), [a site](https://a.example/b)", "a page, [a site](https://a.example/b)"),
        ("(claim-L9c)=\nA sentence.", "A sentence."),
        ("```{math}\n:label: eq\nx = 1\n```", "$$\nx = 1\n$$"),
        ("```{code-block} bash\ngsmrl run x\n```", "```bash\ngsmrl run x\n```"),
        ("```python\nf(x)  # {doc}`no`\n```", "```python\nf(x)  # {doc}`no`\n```"),
        ("$\\{x\\}$ and `f(x)`", "$\\{x\\}$ and `f(x)`"),
    ],
)  # fmt: skip
def test_roles_links_and_other_directives(text, plain):
    assert plain_markdown(text) == plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```{grid} 2\n```", r"\{grid\} has no plain form"),
        ("- a\n\n  ```{note}\n  b\n  ```", r"\{note\} must not be indented"),
        ("{doc}`99_nowhere`", "no such page"),
        ("{cite}`nobody1999`", "no such entry"),
    ],
)
def test_what_has_no_plain_form_is_refused(text, said):
    with pytest.raises(PlainMarkdownError, match=said):
        plain_markdown(text)


def test_a_work_is_in_the_bibliography_once_and_with_one_address_of_arxiv():
    works = [
        re.sub(r"\W", "", entry.fields["title"].lower()) + entry.fields.get("volume", "")
        for entry in references().values()
    ]
    assert [work for work, n in Counter(works).items() if n > 1] == []
    both = [key for key, entry in references().items() if {"url", "eprint"} <= {*entry.fields}]
    assert [key for key in both if "arxiv.org" in references()[key].fields["url"]] == []


def test_citations_name_one_two_or_the_first_of_more_authors():
    assert citation("williams1992reinforce") == "Williams, 1992"
    assert citation("deepseek2025r1") == "DeepSeek-AI, 2025"
    assert citation("cobbe2021gsm8k", in_text=True) == "Cobbe et al. (2021)"
