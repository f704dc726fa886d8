"""Hand-written pages against the code: messages, sections, commands and settings are real."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.vllm_config import VLLMConfig

TROUBLE = (ROOT / "book" / "troubleshooting.md").read_text(encoding="utf-8")
PROSE = " ".join(TROUBLE.split())


def as_text(node: ast.expr) -> str:
    """A string of the source, with "…" in place of each value that is put in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(p.value if isinstance(p, ast.Constant) else "…" for p in parts)


@cache
def strings_of_the_package() -> str:
    """Every string of the source, one after the other."""
    found = []
    for path in sorted((ROOT / "gsmrl_helpers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr) or (
                isinstance(node, ast.Constant) and isinstance(node.value, str)
            ):
                found.append(as_text(node))
    return "\x00".join(found)


def quoted_messages() -> list[str]:
    blocks = re.findall(r"```text\n(.*?)```", TROUBLE, re.DOTALL)
    return [" ".join(block.split()) for block in blocks]


@pytest.mark.parametrize("message", quoted_messages())
def test_a_quoted_message_is_the_program_s(message):
    strings = " ".join(strings_of_the_package().split())
    assert message.removesuffix(" …") in strings


def test_there_are_messages_and_a_wrong_one_would_be_seen():
    assert len(quoted_messages()) >= 8
    assert "port … is busy" not in strings_of_the_package()


@pytest.mark.parametrize(
    ("notebook", "sections"), re.findall(r"\{doc\}`/notebooks/(\w+)`, (\*[^.\n]*\*)", PROSE)
)
def test_a_section_that_a_page_names_is_in_its_chapter(notebook, sections):
    script = (ROOT / "notebooks" / f"{notebook}.py").read_text(encoding="utf-8")
    for section in re.findall(r"\*([^*]+)\*", sections):
        assert re.search(rf"^# ###? {re.escape(section)}$", script, re.MULTILINE), section


def test_settings_and_metrics_that_the_page_names_exist():
    for name in re.findall(r"--set (?:vllm\.)?(\w+)=", TROUBLE):
        assert name in RunConfig.model_fields or name in VLLMConfig.model_fields, name
    for name in re.findall(r"`vllm\.(\w+)`", TROUBLE):
        assert name in VLLMConfig.model_fields, name
    assert VLLMConfig.model_fields["request_timeout"].default == 600  # "After 600 s"
    assert "changed_parameter_share" in TROUBLE
    assert "changed_parameter_share" in strings_of_the_package()


@pytest.mark.parametrize(
    "finding", ["answers of a group are distinct draws", "masked sums equal a plain loop"]
)
def test_findings_are_named_as_preflight_names_them(finding):
    assert finding in PROSE and finding in strings_of_the_package()
