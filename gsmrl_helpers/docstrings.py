"""Signatures and docstrings of the package's source as Markdown. Nothing is imported or executed.

Docstrings are Google style, with Markdown's single backticks for code.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

SECTIONS = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
}
HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):$")
ENTRY = re.compile(r"^(\S[^:`]*): (.*)$")
FENCE = "`````"

Definition = ast.FunctionDef | ast.ClassDef


def public_definitions(tree: ast.Module) -> list[Definition]:
    """The functions and classes at the top of a module whose names have no underscore in front."""
    return [n for n in tree.body if isinstance(n, Definition) and not n.name.startswith("_")]


def first_sentence(docstring: str | None) -> str:
    """The first paragraph's first sentence, on one line, as Markdown."""
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return as_markdown(re.split(r"(?<=[.:])\s", paragraph)[0].rstrip(":"))


def as_markdown(text: str) -> str:
    """Text of a docstring so that Markdown shows it as it is: only code keeps its meaning."""
    parts = re.split(r"(``.+?``|`[^`\n]+`)", text)
    plain = [re.sub(r"([\\*$<>\[\]{}|])", r"\\\1", part) for part in parts[::2]]
    code = [f"`` {part.strip('`').strip()} ``" for part in parts[1::2]]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=True))


def definition_markdown(definition: Definition, module: str, where: str) -> str:
    """A function or class as a directive of Sphinx's Python domain.

    Args:
        definition: its syntax tree.
        module: the module's whole name.
        where: Markdown that says where the book shows it; may be empty.
    """
    kind = "function" if isinstance(definition, ast.FunctionDef) else "class"
    parts = [where] if where else []
    parts += docstring_markdown(ast.get_docstring(definition) or "")
    if isinstance(definition, ast.ClassDef):
        parts += method_lines(definition)
    body = "\n\n".join(parts)
    return f"{FENCE}{{py:{kind}}} {module}.{signature(definition)}\n\n{body}\n{FENCE}"


def signature(definition: Definition) -> str:
    """Name, arguments and result on one line; none for a class without an `__init__` of its own."""
    if isinstance(definition, ast.ClassDef):
        found = [n for n in definition.body if getattr(n, "name", "") == "__init__"]
        if not found:
            return definition.name
        arguments = found[0].args
        arguments.args = arguments.args[1:]  # self
        return f"{definition.name}({ast.unparse(WithoutFStrings().visit(arguments))})"
    result = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    arguments = ast.unparse(WithoutFStrings().visit(definition.args))
    return f"{definition.name}({arguments}){result}"


class WithoutFStrings(ast.NodeTransformer):
    """Puts `...` in the place of a default that is an f-string, which Sphinx can't read."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        """Leave the default open."""
        return ast.copy_location(ast.Constant(...), node)


def method_lines(definition: ast.ClassDef) -> list[str]:
    """A class's public methods and properties that have a docstring, one line each."""
    methods = [n for n in definition.body if isinstance(n, ast.FunctionDef)]
    lines = [
        f"- `{method.name}`: {first_sentence(ast.get_docstring(method))}"
        for method in methods
        if not method.name.startswith("_") and ast.get_docstring(method)
    ]
    return ["**Methods**", "\n".join(lines)] if lines else []


def docstring_markdown(docstring: str) -> list[str]:
    """A docstring's paragraphs; each section becomes a heading in bold and a list."""
    parts: list[str] = []
    for title, text in split_sections(inspect.cleandoc(docstring)):
        if title is None:
            parts += [as_markdown(paragraph) for paragraph in text.split("\n\n") if paragraph]
        else:
            parts += [f"**{SECTIONS[title]}**", "\n".join(entries(inspect.cleandoc(text)))]
    return parts


def split_sections(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the text before the sections as (None, text), then each section's title and text."""
    title, lines = None, []
    for line in text.splitlines():
        head = HEAD.match(line)
        if head or (title and line and not line.startswith(" ")):
            yield title, "\n".join(lines).strip("\n")
            title, lines = (head[1], []) if head else (None, [line])
        else:
            lines.append(line)
    yield title, "\n".join(lines).strip("\n")


def entries(text: str) -> list[str]:
    """The entries of a section as lines of a list: `name: description`, or a description alone."""
    found: list[str] = []
    for line in text.splitlines():
        if found and (line.startswith(" ") or not line.strip() or not ENTRY.match(line)):
            found[-1] = f"{found[-1]} {line.strip()}".rstrip()
        elif line.strip():
            found.append(line)
    shown = []
    for entry in found:
        named = ENTRY.match(entry)
        if named and re.fullmatch(r"[\w*., ]+", named[1]):
            names = ", ".join(f"`{name.strip()}`" for name in named[1].split(","))
            shown.append(f"- {names}: {as_markdown(named[2])}")
        else:
            shown.append(f"- {as_markdown(entry)}")
    return shown
