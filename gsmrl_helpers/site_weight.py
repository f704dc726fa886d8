"""What makes a built page light: no script that it does not need, none that text waits for, and
images that keep their place.
"""

from __future__ import annotations

import re
import struct
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup

# The icons come from the theme's own style sheet and font; the script would draw all 2,000 again.
# The others search while one types, which is off; the search page has them under other marks.
SCRIPTS = re.compile(
    r'\s*<script[^>]* src="[^"]*(?:fontawesome\.js|searchtools\.js|language_data\.js'
    r'|searchindex\.js)[^"]*"></script>'
)
# Text is shown before these run. Lines within the page set what the one left out declares.
WAITED_FOR = re.compile(
    r'<script(?![^>]* defer\b)(?=[^>]* src="(?![^"]*documentation_options\.js))'
)
# A formula's letters are asked for with the styles: were they late, lines would break anew.
FONTS = ("KaTeX_Main-Regular", "KaTeX_Math-Italic")
EARLY = '<link rel="preload" as="font" type="font/woff2" crossorigin href="{}" />\n'
# Names and punctuation have the colour of the text, which they need no element for.
PLAIN_TOKEN = re.compile(r'<span class="(?:n|nn|p|w)">([^<]*)</span>')
# What docutils calls an entry of a bibliography is no item of a list for a screen reader.
ENTRY = 'role="doc-biblioentry"'
# A chapter is changed in its script, from which its notebook is made.
EDIT_NOTEBOOK = re.compile(r'(href="[^"]*/edit/[^"]*/notebooks/[^"]*)\.ipynb"')
FOLD = '<summary aria-label="Toggle hidden content">'  # which reads aloud other words than it shows
IMAGE = re.compile(
    r'<img alt="(?P<alt>[^"]*)"(?P<between>[^>]*?) src="(?P<src>[^"]+)"(?P<rest>[^>]*?)/>'
)
CAPTION = re.compile(r"\s*(?:</div>\s*)*<p><em>(?P<caption>.*?)</em></p>", re.DOTALL)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_ALT = 200
SEARCH_PAGE = "search.html"


class NotAPngError(ValueError):
    """An image that ends in .png and is none."""


def lighten_site(html: Path) -> None:
    """Make every page of a built site lighter, in place."""
    for page in html.rglob("*.html"):
        if "_static" not in page.parts:
            text = page.read_text(encoding="utf-8")
            page.write_text(lighten_page(text, page, html), encoding="utf-8")


def lighten_page(text: str, page: Path, html: Path) -> str:
    """A page's HTML without superfluous scripts, its images with size and description.

    Raises:
        NotAPngError: see `png_size`.
    """
    if page.name != SEARCH_PAGE:
        text = WAITED_FOR.sub("<script defer", SCRIPTS.sub("", text))
    text = PLAIN_TOKEN.sub(r"\1", text).replace(FOLD, "<summary>")
    text = EDIT_NOTEBOOK.sub(r'\1.py"', text)
    text = text.replace(ENTRY, 'role="listitem"')
    if 'class="katex"' in text:
        folder = "../" * (len(page.relative_to(html).parts) - 1) + "_static/katex/fonts"
        early = "".join(EARLY.format(f"{folder}/{name}.woff2") for name in FONTS)
        text = text.replace("</head>", early + "</head>", 1)
    return IMAGE.sub(lambda image: describe(image, page), text)


def describe(image: re.Match[str], page: Path) -> str:
    """An image with its size, loaded when it is near, and told by its caption.

    A figure of a notebook has the name of its file as description, which says nothing to who can't
    see it. The caption, in italics right below, does.
    """
    file = page.parent / image["src"]
    if file.suffix != ".png":
        return image[0]
    width, height = png_size(file)
    alt = image["alt"]
    if alt == image["src"]:
        below = CAPTION.match(image.string, image.end())
        alt = "Figure, described in the text" if below is None else first_words(below["caption"])
    return (
        f'<img alt="{alt}"{image["between"]} src="{image["src"]}"{image["rest"].rstrip()} '
        f'width="{width}" height="{height}" loading="lazy" />'
    )


def first_words(caption: str, limit: int = MAX_ALT) -> str:
    """The beginning of a caption as the text of an attribute."""
    soup = BeautifulSoup(caption, "html.parser")
    for repeated in soup.select("annotation, .katex-html"):
        repeated.decompose()  # a formula's source, and how it is seen; what is read aloud stays
    words = " ".join(soup.get_text().split())
    if len(words) > limit:
        words = words[:limit].rsplit(" ", 1)[0] + " …"
    return escape(words)


def png_size(file: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header.

    Raises:
        NotAPngError: it is none.
    """
    with file.open("rb") as content:
        head = content.read(24)
    if head[:8] != PNG_SIGNATURE:
        raise NotAPngError(f"{file.name} is no PNG")
    return struct.unpack(">II", head[16:24])
