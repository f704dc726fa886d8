"""Formulas are set at build: every one of the book, and a wrong one is named."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from docutils import nodes

from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.site_math import (
    JOINER,
    KATEX,
    FormulaError,
    display_tex,
    typeset,
    visit_math,
)


def test_a_formula_is_glyphs_and_mathml() -> None:
    html = BeautifulSoup(typeset(r"\nabla \log \pi_\theta"), "html.parser")
    assert "∇" in html.select_one(".katex-html").get_text()
    assert html.select_one(".katex-html")["aria-hidden"] == "true"
    assert html.select_one("math annotation").get_text() == r"\nabla \log \pi_\theta"
    assert html.select_one(".katex-display") is None


def test_a_line_of_its_own_is_displayed() -> None:
    assert 'class="katex-display"' in typeset("x^2", display=True)
    assert 'display="block"' in typeset("x^2", display=True)


@pytest.mark.parametrize("tex", [r"\nolla x", r"\frac{1}{2", r"\begin{tikzpicture}", "x_a_b"])
def test_what_it_can_t_set_is_named(tex: str) -> None:
    with pytest.raises(FormulaError, match=re.escape(repr(tex))):
        typeset(tex)


def test_nothing_in_a_formula_is_markup_of_the_page() -> None:
    html = typeset(r"a < b \text{<script>alert(1)</script>} \href{javascript:alert(1)}{x}")
    assert not BeautifulSoup(html, "html.parser").select("script, a, [href]")


def test_a_line_does_not_break_between_a_formula_and_what_touches_it() -> None:
    paragraph = nodes.paragraph()
    formulas = [nodes.math("x", "x") for _ in range(2)]
    paragraph += [nodes.Text("say ("), formulas[0], nodes.Text(") or "), formulas[1]]
    writer = SimpleNamespace(body=[], starttag=lambda *_, **__: "<span>")
    for formula in formulas:
        with pytest.raises(nodes.SkipNode):
            visit_math(writer, formula)
    text = "".join(writer.body)
    first, second = text.rsplit("<span><span", 1)
    assert first.startswith(JOINER) and first.endswith("</span>" + JOINER)
    assert JOINER not in second


def block(text: str, nowrap: bool = False) -> nodes.math_block:
    return nodes.math_block(text, text, nowrap=nowrap)


def test_lines_and_paragraphs_of_a_block_stand_below_each_other() -> None:
    assert display_tex(block("a = b")) == "a = b"
    assert display_tex(block(r"a \\ b")) == r"\begin{split}a \\ b\end{split}"
    assert display_tex(block("a\n\nb")) == r"\begin{gathered}a\\b\end{gathered}"
    aligned = "\\begin{align}\na &= b\n\\end{align}"
    assert display_tex(block(aligned, nowrap=True)) == aligned
    for text in ("a\n\nb", "a &= b \\\\ c &= d"):
        assert "mtable" in typeset(display_tex(block(text)), display=True)


def test_the_files_are_those_of_one_version() -> None:
    folder = KATEX.parent
    (version,) = re.findall(r"# KaTeX (\S+)", (folder / "README.md").read_text())
    assert f'"{version}"' in KATEX.read_text(encoding="utf-8")
    css = (folder / "katex.min.css").read_text(encoding="utf-8")
    assert f'content:"{version}"' in css
    named = set(re.findall(r"url\(fonts/([\w-]+\.woff2)\)", css))
    assert named == {file.name for file in (folder / "fonts").iterdir()}
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert json.dumps(package).count("katex") == 0  # the book's, not the package's


def formulas(text: str) -> list[str]:
    plain = re.sub(r"```(?!\{math\}).*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return re.findall(r"(?<![\\$\w])\$(?![\s$])([^$]+?)(?<!\s)\$(?![\d$])", plain)


@pytest.mark.parametrize("page", sorted((ROOT / "book").glob("*.md")), ids=lambda path: path.name)
def test_every_formula_of_a_page_can_be_set(page: Path) -> None:
    for tex in formulas(page.read_text(encoding="utf-8")):
        assert typeset(tex)
