"""The book's Markdown as any Jupyter shows it: directives and roles become plain Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from nbformat import NotebookNode
from pybtex.database import parse_file

from gsmrl_helpers.notebooks import read_notebook
from gsmrl_helpers.paths import BOOK_DIR, NOTEBOOKS_DIR, ROOT

DIRECTIVE = re.compile(r"\{([\w:-]+)\}\s*(.*)")
OPTION = re.compile(r":([\w-]+):\s*(.*)")
ROLE = re.compile(r"\{([\w:-]+)\}`([^`]+)`")
EXPLICIT = re.compile(r"(?s)(.+?)\s*<([^<>]+)>")
TARGET_LINE = re.compile(r"^\([\w:-]+\)=\n+", re.MULTILINE)
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!https?:|mailto:|#)[^)\s]*\)")
QUOTED = ("admonition", "note", "tip", "hint", "important", "warning", "caution", "seealso")

READER = MarkdownIt().use(colon_fence_plugin)


class PlainMarkdownError(ValueError):
    """A directive or a link that has no plain form."""


def plain_markdown(text: str) -> str:
    """Rewrite MyST Markdown into what Jupyter shows without extensions.

    An exercise becomes a heading, an admonition a quote, a dropdown a folded `<details>`; links
    that lead somewhere in the book only become words. In an exercise only dropdowns called Hint
    and Stuck stay: the others are answers.

    Raises:
        PlainMarkdownError: a directive that has no plain form here, a page or source not found.
    """
    lines, parts, done = text.splitlines(), [], 0
    for start, end, name, argument, content in directives(text):
        parts.append(plain_prose("\n".join(lines[done:start])))
        fence = "\n".join(lines[start:end])
        parts.append(plain_directive(name, argument, content) if name else fence)
        done = end
    parts.append(plain_prose("\n".join(lines[done:])))
    return "\n".join(part for part in parts if part)


def directives(text: str) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield the fences of a text: first and last line (excluded), name, argument, content.

    A fence that is no directive, such as a block of code, has the name "".
    """
    for token in READER.parse(text):
        if token.type in ("fence", "colon_fence") and token.level == 0:
            found = DIRECTIVE.fullmatch(token.info.strip())
            yield *token.map, *(found.groups() if found else ("", "")), token.content


def without_answers(text: str) -> str:
    """Leave out an exercise's dropdowns that are not called Hint or Stuck."""
    lines = text.splitlines()
    for start, end, name, argument, _ in reversed(list(directives(text))):
        if name == "dropdown" and not argument.startswith(("Hint", "Stuck")):
            del lines[start:end]
    return "\n".join(lines).strip("\n")


def plain_prose(text: str) -> str:
    """Rewrite the roles and links of a text without fences; an indented directive is refused."""
    if inside := re.search(r"^\s*(?:`{3,}|:{3,})\{([\w:-]+)\}", text, re.MULTILINE):
        raise PlainMarkdownError(f"the directive {{{inside[1]}}} must not be indented")
    text = ROLE.sub(lambda role: plain_role(role[1], role[2]), TARGET_LINE.sub("", text))
    return RELATIVE_LINK.sub(r"\1", text)


def plain_directive(name: str, argument: str, content: str) -> str:
    """Return one directive, its own directives included, as plain Markdown."""
    options, body = split_options(content)
    if name == "math":
        return f"$$\n{body}\n$$"
    if name in ("code-block", "code"):
        return f"```{argument}\n{body}\n```"
    if name == "exercise":
        body = without_answers(body)
    title, body = plain_prose(argument), plain_markdown(body)
    if name == "exercise":
        return f"### Exercise: {title} (`{options.get('label', 'no label')}`)\n\n{body}"
    if name == "dropdown":
        return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
    if name in QUOTED:
        heading = title if name == "admonition" else name.capitalize()
        rest = body if name == "admonition" or not title else f"{title}\n{body}"
        return "\n".join(f"> {line}".rstrip() for line in [f"**{heading}**", "", *rest.split("\n")])
    raise PlainMarkdownError(
        f"the directive {{{name}}} has no plain form for the student edition: use one of exercise, "
        f"dropdown, math, code-block, {', '.join(QUOTED)}, or give it one in plain_markdown.py"
    )


def split_options(content: str) -> tuple[dict[str, str], str]:
    """Split a directive's content into its `:name: value` lines and the rest."""
    options, lines = {}, content.splitlines()
    while lines and (option := OPTION.fullmatch(lines[0].strip())):
        options[option[1]] = option[2]
        lines.pop(0)
    return options, "\n".join(lines).strip("\n")


def plain_role(name: str, text: str) -> str:
    """Return what a role stands for as words: a title, a citation, or its own text."""
    explicit = EXPLICIT.fullmatch(text)
    if explicit:
        return explicit[1]
    if name == "doc":
        return page_title(text)
    if name == "cite" or name.startswith("cite:"):
        sources = [citation(key.strip(), name == "cite:t") for key in text.split(",")]
        return "; ".join(sources) if name == "cite:t" else f"({'; '.join(sources)})"
    if name == "math":
        return f"${text}$"
    return f"`{text}`"


@cache
def page_title(target: str) -> str:
    """Return the title of a page of the book, named as in `{doc}`, and which chapter it is.

    Raises:
        PlainMarkdownError: no such page.
    """
    path = ROOT / target[1:] if target.startswith("/") else NOTEBOOKS_DIR / target
    if path.with_name(f"{path.name}.ipynb").is_file():
        title = notebook_title(read_notebook(path.with_name(f"{path.name}.ipynb")))
    elif path.with_name(f"{path.name}.md").is_file():
        title = first_heading(path.with_name(f"{path.name}.md").read_text(encoding="utf-8"))
    else:
        raise PlainMarkdownError(f"{{doc}}`{target}`: the book has no such page")
    number = re.match(r"\d\d(?=_)", path.name)
    return f"*{title}* (chapter {number[0]})" if number else f"*{title}* (in the book)"


def notebook_title(notebook: NotebookNode) -> str:
    """Return the first heading of a notebook."""
    return first_heading("\n".join(c.source for c in notebook.cells if c.cell_type == "markdown"))


def first_heading(text: str) -> str:
    """Return the first heading of a Markdown text.

    Raises:
        PlainMarkdownError: it has none.
    """
    if heading := re.search(r"^# +(.+?)\s*$", text, re.MULTILINE):
        return heading[1]
    raise PlainMarkdownError(f"no title in the text that starts {text[:40]!r}")


def citation(key: str, in_text: bool = False) -> str:
    """Return `Shao et al., 2024`, or as part of a sentence `Shao et al. (2024)`.

    Raises:
        PlainMarkdownError: book/references.bib has no such entry.
    """
    entry = references().get(key)
    if entry is None:
        raise PlainMarkdownError(f"{{cite}}`{key}`: book/references.bib has no such entry")
    names = [
        " ".join(person.prelast_names + person.last_names) for person in entry.persons["author"]
    ]
    names = [re.sub(r"[{}]", "", name) for name in names]
    who = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
    year = entry.fields["year"]
    return f"{who} ({year})" if in_text else f"{who}, {year}"


@cache
def references() -> dict:
    """The entries of the book's bibliography by key."""
    return dict(parse_file(str(BOOK_DIR / "references.bib"), "bibtex").entries.items())
