"""Formulas set while the book is built, by KaTeX: a page needs no script to show them.

A Sphinx extension. KaTeX is JavaScript, which runs here in V8 (mini-racer); its files lie in
`book/_static/katex`. What it does not know is a warning of the build, with the page and the line.
"""

from __future__ import annotations

from functools import cache
from html import escape

from docutils import nodes
from py_mini_racer import JSEvalException, MiniRacer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

from gsmrl_helpers.paths import BOOK_DIR

KATEX = BOOK_DIR / "_static" / "katex" / "katex.min.js"
CLASSES = "math notranslate nohighlight"
JOINER = "\N{WORD JOINER}"  # a line may break beside a formula, even before the full stop after it
logger = logging.getLogger(__name__)


class FormulaError(ValueError):
    """TeX that KaTeX can't set."""


@cache
def _katex() -> MiniRacer:
    program = MiniRacer()
    program.eval(KATEX.read_text(encoding="utf-8"))
    return program


def typeset(tex: str, display: bool = False) -> str:
    """Return a formula's HTML: glyphs for the eye, MathML for a screen reader and the clipboard.

    Args:
        tex: the formula, without dollars.
        display: in a line of its own, rather than within the text.

    Raises:
        FormulaError: a command or an environment that KaTeX does not have, or a brace too many.
    """
    options = {"displayMode": display, "strict": "error"}
    try:
        return _katex().call("katex.renderToString", tex, options)
    except JSEvalException as error:
        reason = str(error).split("ParseError:")[-1].strip().splitlines()[0]
        raise FormulaError(f"{reason}, in the formula {tex.strip()!r}") from None


def display_tex(node: nodes.math_block) -> str:
    """Return the TeX of a block: its lines broken at \\\\, its paragraphs one below the other."""
    if node["nowrap"]:  # an environment of its own
        return node.astext()
    parts = [part for part in node.astext().split("\n\n") if part.strip()]
    broken = [rf"\begin{{split}}{part}\end{{split}}" if r"\\" in part else part for part in parts]
    if len(broken) == 1:
        return broken[0]
    return r"\begin{gathered}" + r"\\".join(broken) + r"\end{gathered}"


def _set(translator: HTML5Translator, node: nodes.Element, tex: str, display: bool) -> None:
    try:
        translator.body.append(typeset(tex, display))
    except FormulaError as error:
        logger.warning("%s", error, location=node)
        translator.body.append(escape(tex))


def touches(character: str) -> bool:
    """Say whether the character beside a formula, if there is one, is no space."""
    return bool(character) and not character.isspace()


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within the text, on one line with what touches it."""
    at = node.parent.index(node)
    before = "".join(sibling.astext() for sibling in node.parent[:at])
    after = "".join(sibling.astext() for sibling in node.parent[at + 1 :])
    translator.body.append(JOINER * touches(before[-1:]))
    translator.body.append(translator.starttag(node, "span", "", CLASS=CLASSES))
    _set(translator, node, node.astext(), display=False)
    translator.body.append("</span>" + JOINER * touches(after[:1]))
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula in a line of its own, with its number if it has one."""
    translator.body.append(translator.starttag(node, "div", CLASS=CLASSES))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    _set(translator, node, display_tex(node), display=True)
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Make this the book's renderer of mathematics (`html_math_renderer: katex`)."""
    app.add_html_math_renderer("katex", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
