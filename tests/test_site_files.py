"""What a site gets beside its pages."""

from __future__ import annotations

import json

import pytest
import yaml

from gsmrl_helpers import site_files
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.toc import toc_files

GLOSSARY = """<dl class="glossary">
<dt id="term-importance-weighting">importance weighting (веса)<a href="#x">#</a></dt>
<dd><p>A sample <em>counts</em>.</p></dd>
<dt id="term-state">state (состояние)</dt><dd><p>Seen.</p></dd>
<dt id="term-fine-tuning-SFT">fine-tuning, SFT (дообучение)</dt><dd><p>Training.</p></dd>
</dl>"""


def test_terms_have_their_definition_and_everyday_words_are_left_out():
    terms = site_files.glossary_terms(GLOSSARY)
    assert [(term["name"], term["id"]) for term in terms] == [
        ("importance weighting", "term-importance-weighting"),
        ("fine-tuning", "term-fine-tuning-SFT"),
        ("SFT", "term-fine-tuning-SFT"),
    ]
    assert terms[0]["html"] == "<p>A sample <em>counts</em>.</p>"


def test_previews_are_a_script_also_without_a_glossary(tmp_path):
    (tmp_path / "_static").mkdir()
    script = tmp_path / "_static" / "glossary.js"
    site_files.write_previews(tmp_path)
    assert script.read_text() == "window.glossaryTerms = [];\n"
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "glossary.html").write_text(GLOSSARY)
    site_files.write_previews(tmp_path)
    terms = json.loads(script.read_text().removeprefix("window.glossaryTerms = ")[:-2])
    assert len(terms) == 3


def test_downloads_are_the_notebooks_as_they_were_before_the_build(tmp_path, make_notebook):
    made = make_notebook([("1", [])], "source/notebooks/01_x.ipynb", pair=True)
    source = tmp_path / "source"
    (source / "_toc.yml").write_text("format: jb-book\nroot: notebooks/01_x.ipynb\n")
    assert len(toc_files(source)) == 1
    downloads = site_files.read_downloads(source)
    before, script = made.read_bytes(), made.with_suffix(".py").read_bytes()
    made.write_text("marked")
    site_files.write_downloads(tmp_path / "html", downloads)
    sources = tmp_path / "html" / "_sources" / "notebooks"
    assert (sources / "01_x.ipynb").read_bytes() == before
    assert (sources / "01_x.py").read_bytes() == script


@pytest.mark.parametrize("url", ["", "https://github.com/someone/somebook"])
def test_one_value_turns_the_buttons_on(tmp_path, url):
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    assert config["repository"]["url"] == ""  # whoever publishes the book sets it
    config["repository"]["url"] = url
    (tmp_path / "_config.yml").write_text(yaml.safe_dump(config))
    assert site_files.show_buttons(tmp_path) == bool(url)
    after = yaml.safe_load((tmp_path / "_config.yml").read_text())
    for button in site_files.BUTTONS:
        assert after["html"].get(button, False) == bool(url)
    assert ("binderhub_url" in after["launch_buttons"]) == bool(url)
    assert after["sphinx"] == config["sphinx"]


def test_what_a_launch_button_installs_is_in_the_clone():
    lines = (ROOT / ".binder" / "requirements.txt").read_text().splitlines()
    options = dict(line.split(" ") for line in lines if line.startswith("--"))
    assert (ROOT / ".binder" / options["--constraint"]).resolve() == ROOT / "constraints.txt"
    assert (ROOT / options["--editable"] / "pyproject.toml").is_file()
