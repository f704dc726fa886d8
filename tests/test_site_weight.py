"""Light pages: what is taken out, what an image says of itself, and what stays as it is."""

import re
from pathlib import Path

import pytest
from PIL import Image
from pygments.styles import get_style_by_name
from pygments.token import Token

from gsmrl_helpers.site_math import typeset
from gsmrl_helpers.site_weight import NotAPngError, first_words, lighten_site

SCRIPTS = """<script defer src="../_static/scripts/fontawesome.js?digest=55"></script>
<script src="../_static/searchtools.js"></script>
<script src="../searchindex.js"></script>
<script src="../_static/book.js?v=1"></script>"""
FIGURE = '<img alt="../_images/{name}" src="../_images/{name}" />'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "_images").mkdir()
    (tmp_path / "notebooks").mkdir()
    Image.new("RGB", (150, 100)).save(tmp_path / "_images" / "a.png")
    return tmp_path


def lightened(site: Path, text: str, name: str = "page.html") -> str:
    (site / "notebooks" / name).write_text(text)
    lighten_site(site)
    return (site / "notebooks" / name).read_text()


def test_scripts_that_nothing_needs_are_gone_but_from_the_search_page(site: Path) -> None:
    assert lightened(site, SCRIPTS) == '\n<script defer src="../_static/book.js?v=1"></script>'
    assert lightened(site, SCRIPTS, "search.html") == SCRIPTS


def test_text_waits_for_no_script_but_the_one_that_lines_in_the_page_need(site: Path) -> None:
    text = '<script src="_static/documentation_options.js?v=1"></script>\n<script>let a;</script>\n'
    assert lightened(site, text) == text
    tabs = '<script data-x="y" src="a.js"></script>'
    assert lightened(site, tabs) == '<script defer data-x="y" src="a.js"></script>'


def test_letters_of_formulas_are_asked_for_early_where_there_are_any(site: Path) -> None:
    text = '<head></head><span class="katex"></span>'
    page = lightened(site, text)
    assert page.count('rel="preload" as="font"') == 2
    assert 'href="../_static/katex/fonts/KaTeX_Main-Regular.woff2"' in page
    (site / "root.html").write_text(text)
    lighten_site(site)
    assert 'href="_static/katex/fonts' in (site / "root.html").read_text()
    assert lightened(site, "<head></head>") == "<head></head>"


def test_code_keeps_its_text_and_elements_for_what_has_a_colour(site: Path) -> None:
    code = '<span class="k">def</span><span class="w"> </span><span class="n">f</span>'
    assert lightened(site, code) == '<span class="k">def</span> f'


def test_a_fold_is_called_what_it_shows(site: Path) -> None:
    fold = '<summary aria-label="Toggle hidden content"><span>Show code</span></summary>'
    assert lightened(site, fold) == "<summary><span>Show code</span></summary>"


def test_a_chapter_s_edit_button_leads_to_its_script(site: Path) -> None:
    at = "https://example.org/a/edit/main"
    button = f'<a href="{at}/notebooks/01_x.ipynb" target="_blank">'
    assert lightened(site, button) == button.replace(".ipynb", ".py")
    run = f'<a href="{at}/book/runs/x.ipynb">'
    assert lightened(site, run) == run


def test_a_reference_is_an_item_of_its_list(site: Path) -> None:
    entry = '<div role="list"><div class="citation" role="doc-biblioentry">A</div></div>'
    assert 'class="citation" role="listitem"' in lightened(site, entry)


@pytest.mark.parametrize("style", ["a11y-high-contrast-light", "a11y-high-contrast-dark"])
def test_names_and_punctuation_have_the_colour_of_the_text(style: str) -> None:
    styles = get_style_by_name(style)
    text = styles.style_for_token(Token.Text)["color"]
    for token in (Token.Name, Token.Name.Namespace, Token.Punctuation, Token.Text.Whitespace):
        assert styles.style_for_token(token)["color"] == text


def test_a_figure_has_its_size_and_its_caption(site: Path) -> None:
    below = "\n</div>\n</div>\n<p><em>Left: <b>a</b> &lt; b, “so”.\nRight: c.</em></p>"
    text = lightened(site, f"<div><div>{FIGURE.format(name='a.png')}{below}")
    assert 'alt="Left: a &lt; b, “so”. Right: c."' in text
    assert 'width="150" height="100" loading="lazy"' in text and below in text


def test_without_a_caption_it_points_to_the_text_and_an_author_s_words_stay(site: Path) -> None:
    text = lightened(site, FIGURE.format(name="a.png") + "<p>Prose.</p>")
    assert 'alt="Figure, described in the text"' in text
    own = '<img alt="Two curves" src="../_images/a.png" style="width: 100%;" />'
    assert 'alt="Two curves" src="../_images/a.png" style="width: 100%;" width' in lightened(
        site, own
    )


def test_other_images_stay_and_a_broken_one_is_named(site: Path) -> None:
    other = FIGURE.format(name="a.svg")
    assert lightened(site, other) == other
    (site / "_images" / "b.png").write_text("<html>no picture</html>")
    with pytest.raises(NotAPngError, match=r"b\.png"):
        lightened(site, FIGURE.format(name="b.png"))


def test_a_formula_of_a_caption_is_read_once() -> None:
    text = r"The gain $\beta = .1$ at $\pi$."
    page = re.sub(r"\$(.*?)\$", lambda tex: typeset(tex[1]), text)
    assert "annotation" in page and "katex-html" in page
    assert first_words(page) == "The gain β=.1 at π."


def test_a_long_caption_ends_at_a_word() -> None:
    assert first_words("one two three", 9) == "one two …"
