"""One style sheet for a built site, with the rules that its pages can use, and one icon font.

Text waits for style sheets, and the theme brings nine, most of them rules for what the book never
shows (icons, widgets of forms). A rule stays unless it names a class that stands in no page and in
no script. The font keeps the icons that a rule still asks for.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path

import tinycss2
from fontTools import subset
from tinycss2.ast import AtRule, Node, QualifiedRule

LINK = re.compile(r'\s*<link (?=[^>]*rel="stylesheet")[^>]*href="(?P<href>[^":?]+\.css)[^>]*>')
URL = re.compile(
    r"""url\(\s*(?P<quote>["']?)(?!data:|[a-z]+:|[/#])(?P<file>[^"')]+)(?P=quote)\s*\)"""
)
IN_PARENTHESES = re.compile(r"\([^()]*\)")
SELECTED_CLASS = re.compile(r"\.(-?[A-Za-z_][\w-]*)")
CLASSES = re.compile(r'\bclass="([^"]*)"')
WORD = re.compile(r"[\w-]+")
NESTING = {"media", "supports", "layer", "container"}
ICONS = Path("_static") / "vendor" / "fontawesome" / "webfonts"
PRIVATE_USE = re.compile(r"[\ue000-\uf8ff]")  # where the theme's icon font has its icons
COMPOSED = "bs-"  # Bootstrap puts these names together while it runs: bs-tooltip-top


class StyleError(ValueError):
    """A style sheet that a page or another sheet names, and that is not there."""


def join_styles(html: Path) -> None:
    """Give the pages of a built site one style sheet in place of their own, in place.

    Raises:
        StyleError: a page names a sheet that the site lacks.
    """
    pages = [page for page in html.rglob("*.html") if "_static" not in page.parts]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    known = site_classes(html, list(texts.values()))
    made: dict[tuple[str, ...], Path] = {}
    for page, text in texts.items():
        base = page.parent.relative_to(html).as_posix()
        sheets = tuple(posixpath.normpath(posixpath.join(base, h)) for h in LINK.findall(text))
        if sheets and sheets not in made:
            made[sheets] = write_sheet(html, sheets, known)
        if sheets:
            href = posixpath.relpath(made[sheets].relative_to(html).as_posix(), base)
            links = iter([f'\n  <link rel="stylesheet" href="{href}" />'])
            text = LINK.sub(lambda _, links=links: next(links, ""), text)
            page.write_text(text, encoding="utf-8")
    cut_icons(html, [path.read_text(encoding="utf-8") for path in made.values()])


def cut_icons(html: Path, sheets: list[str]) -> None:
    """Leave in the site's icon fonts what these style sheets ask for, in place."""
    wanted = {ord(icon) for sheet in sheets for icon in PRIVATE_USE.findall(sheet)}
    options = subset.Options(flavor="woff2")
    for file in sorted((html / ICONS).glob("*.woff2")):
        font = subset.load_font(str(file), options)
        shorter = subset.Subsetter(options)
        shorter.populate(unicodes=wanted)
        shorter.subset(font)
        subset.save_font(font, str(file), options)


def site_classes(html: Path, texts: list[str]) -> set[str]:
    """Return the classes that elements have, or that a script may give them."""
    known = {name for text in texts for names in CLASSES.findall(text) for name in names.split()}
    for script in (html / "_static").rglob("*.js"):
        known.update(WORD.findall(script.read_text(encoding="utf-8")))
    return known


def write_sheet(html: Path, sheets: tuple[str, ...], known: set[str]) -> Path:
    """Write one sheet in place of these, in their order, under a name made from its content."""
    rules = [rule for sheet in sheets for rule in read_rules(html, sheet)]
    text = '@charset "utf-8";\n' + shorten(rules, known)
    path = html / "_static" / f"site-{hashlib.sha256(text.encode()).hexdigest()[:8]}.css"
    path.write_text(text, encoding="utf-8")
    return path


def read_rules(html: Path, sheet: str) -> list[Node]:
    """Return a sheet's rules, those of the sheets that it imports in their place; addresses in
    them lead from the folder `_static`.

    Raises:
        StyleError: the site lacks the sheet.
    """
    if not (html / sheet).is_file():
        raise StyleError(f"a page or a style sheet names {sheet}, which the site lacks")
    here = posixpath.dirname(sheet)

    def moved(url: re.Match[str]) -> str:
        return f'url("{posixpath.relpath(posixpath.join(here, url["file"]), "_static")}")'

    text = URL.sub(moved, (html / sheet).read_text(encoding="utf-8"))
    rules: list[Node] = []
    for rule in tinycss2.parse_stylesheet(text, skip_comments=True, skip_whitespace=True):
        if isinstance(rule, AtRule) and rule.lower_at_keyword == "import":
            (name,) = [token.value for token in rule.prelude if token.type == "string"]
            rules += read_rules(html, posixpath.normpath(posixpath.join(here, name)))
        elif not isinstance(rule, AtRule) or rule.lower_at_keyword != "charset":
            rules.append(rule)
    return rules


def shorten(rules: list[Node], known: set[str]) -> str:
    """Write rules without the selectors that need a class which is not known."""
    return "\n".join(filter(None, (shorten_rule(rule, known) for rule in rules)))


def shorten_rule(rule: Node, known: set[str]) -> str:
    """Write a rule, or nothing where none of its selectors can match."""
    if isinstance(rule, QualifiedRule):
        kept = [part for part in selectors(rule) if can_match(part, known)]
        return ",".join(kept) + "{" + tinycss2.serialize(rule.content) + "}" if kept else ""
    if isinstance(rule, AtRule) and rule.lower_at_keyword in NESTING and rule.content is not None:
        inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
        body = shorten(inner, known)
        head = f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}"
        return f"{head}{{{body}}}" if body else ""
    return rule.serialize()


def selectors(rule: QualifiedRule) -> list[str]:
    """Return the selectors of a rule, parted at the commas that stand in no parentheses."""
    parts: list[list[Node]] = [[]]
    for token in rule.prelude:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return [tinycss2.serialize(part).strip() for part in parts]


def can_match(selector: str, known: set[str]) -> bool:
    """Say whether each class that the selector requires is known; what stands in parentheses may
    be an exception or a choice, and requires nothing. One with an escaped name may match."""
    if "\\" in selector:
        return True
    while (plain := IN_PARENTHESES.sub("", selector)) != selector:
        selector = plain
    needed = SELECTED_CLASS.findall(re.sub(r'"[^"]*"', "", selector))
    return all(name in known or name.startswith(COMPOSED) for name in needed)
