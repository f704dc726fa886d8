"""Light pages: what is taken out, what an image says of itself, and what stays as it is."""

from pathlib import Path

import pytest
from PIL import Image

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
    assert lightened(site, SCRIPTS) == '\n<script src="../_static/book.js?v=1"></script>'
    assert lightened(site, SCRIPTS, "search.html") == SCRIPTS


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


def test_a_long_caption_ends_at_a_word() -> None:
    assert first_words("one two three", 9) == "one two …"
