"""Tables of texts, shown in notebooks and terminals, whatever a model wrote into them."""

from __future__ import annotations

import hashlib

import pandas as pd
from pandas.io.formats.style import Styler
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text


def as_html(table: pd.DataFrame) -> str:
    """HTML for a notebook's output, the same at each execution; tags in a text stay text."""
    left = "text-align: left; vertical-align: top; white-space: pre-wrap; padding: 0.2em 0.7em"
    name = hashlib.sha256(table.to_csv().encode()).hexdigest()[:8]
    style = Styler(table, uuid=name, cell_ids=False).hide(axis="index").format(escape="html")
    return style.set_table_styles([{"selector": "th, td", "props": left}]).to_html()


def as_rich(table: pd.DataFrame, title: str) -> Table:
    """A rich table for a terminal; rich's markup and control characters in a text do nothing."""
    shown = Table(title=title, title_justify="left", box=SIMPLE)
    for column in table.columns:
        shown.add_column(column, overflow="fold")
    for row in table.itertuples(index=False):
        shown.add_row(*(Text(printable(value)) for value in row))
    return shown


def printable(text: str) -> str:
    """The text with "�" in place of each character that could steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
