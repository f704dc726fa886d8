"""One style sheet: rules that can match stay, in their order, and addresses lead where they led."""

from __future__ import annotations

from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTFont

from gsmrl_helpers.site_styles import ICONS, StyleError, can_match, join_styles

PAGE = """<html><head>
<link rel="stylesheet" type="text/css" href="{root}_static/theme/main.css?v=1" />
<link href="{root}_static/book.css" rel="stylesheet" />
<link rel="index" href="genindex.html" />
</head><body class="used other-used">Text of .unused</body></html>"""
MAIN = """@charset "utf-8";
@import "../basic.css";
/* a comment */
.used, .unused { color: red }
.unused > p { color: blue }
.used:not(.unused) { margin: 0 }
.w-2\\.5 { width: 1px }
@media print { .unused { color: green } .other-used { background: url(img/a.png) } }
@media print { .unused { color: green } }
@font-face { font-family: F; src: url("../vendor/f.woff2") format("woff2") }
.later { left: 0 }
.bs-tooltip-top { top: 0 }
.fa-x:before { content: "\\f002" }
"""


def icon_font(path: Path, codes: list[int]) -> None:
    names = [".notdef", *(f"u{code:x}" for code in codes)]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(codes, names[1:], strict=True)))
    pen = TTGlyphPen(None)
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (600, 0)))
    builder.setupHorizontalHeader()
    builder.setupNameTable({})
    builder.setupOS2()
    builder.setupPost()
    builder.font.flavor = "woff2"
    path.parent.mkdir(parents=True)
    builder.save(path)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for folder in ("_static/theme", "notebooks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "_static" / "theme" / "main.css").write_text(MAIN)
    (tmp_path / "_static" / "basic.css").write_text("p { background: url(file.png) }")
    (tmp_path / "_static" / "book.css").write_text('a { src: url("data:image/png;base64,AA==") }')
    (tmp_path / "_static" / "run.js").write_text("element.classList.add('later', 'fa-x')")
    (tmp_path / "search.html").write_text(PAGE.format(root=""))
    (tmp_path / "notebooks" / "01.html").write_text(PAGE.format(root="../"))
    icon_font(tmp_path / ICONS / "solid.woff2", [0xF002, 0xF003])
    return tmp_path


def test_pages_share_one_sheet_with_what_can_match(site: Path) -> None:
    join_styles(site)
    (sheet,) = (site / "_static").glob("site-*.css")
    text = sheet.read_text(encoding="utf-8")
    for name, href in (("search", "_static"), ("notebooks/01", "../_static")):
        page = (site / f"{name}.html").read_text()
        assert page.count('rel="stylesheet"') == 1 and f'href="{href}/{sheet.name}"' in page
        assert 'rel="index"' in page
    assert text.startswith('@charset "utf-8";\np{') or text.startswith('@charset "utf-8";\np {')
    assert ".used{ color: red }" in text and ".used:not(.unused)" in text
    assert "blue" not in text and text.count("print") == 1 and "green" not in text
    assert ".later" in text and ".bs-tooltip-top" in text and ".w-2" in text
    assert 'url("file.png")' in text and 'url("theme/img/a.png")' in text
    assert 'url("vendor/f.woff2")' in text and "data:image/png;base64,AA==" in text
    assert text.index("p {" if "p {" in text else "p{") < text.index(".used") < text.index("a{")


def test_the_icon_font_keeps_what_is_asked_for(site: Path) -> None:
    join_styles(site)
    assert set(TTFont(site / ICONS / "solid.woff2").getBestCmap()) == {0xF002}


def test_pages_with_other_sheets_have_another_one(site: Path) -> None:
    (site / "search.html").write_text('<link rel="stylesheet" href="_static/book.css" />')
    join_styles(site)
    assert len(list((site / "_static").glob("site-*.css"))) == 2


def test_a_sheet_that_is_not_there_is_named(site: Path) -> None:
    (site / "_static" / "basic.css").unlink()
    with pytest.raises(StyleError, match=r"_static/basic\.css"):
        join_styles(site)


@pytest.mark.parametrize(
    ("selector", "stays"),
    [
        ("p", True),
        (".a .b", True),
        (".a .c", False),
        (".a:is(.c, .d)", True),
        (".a:not(:is(.c))", True),
        ('a[href$=".c"]', True),
        (".c\\:d", True),
    ],
)
def test_a_selector_stays_unless_it_needs_an_unknown_class(selector: str, stays: bool) -> None:
    assert can_match(selector, {"a", "b"}) is stays
