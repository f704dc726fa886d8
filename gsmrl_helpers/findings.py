"""What a check found, as a value that shows itself in a notebook and in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from rich.table import Table

from gsmrl_helpers.tables import as_html, as_rich


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: what has to hold.
        ok: whether it does.
        measured: the measured value, in words.
        to_do: what to do about it; empty where it holds.
    """

    name: str
    ok: bool
    measured: str
    to_do: str = ""

    def _repr_html_(self) -> str:
        return Findings((self,))._repr_html_()

    def __rich__(self) -> Table:
        return Findings((self,)).__rich__()


@dataclass(frozen=True)
class Findings:
    """Several findings, shown as one table; in a terminal under a title."""

    findings: tuple[Finding, ...]
    title: str = "Before the first step"

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def table(self) -> pd.DataFrame:
        """One row a finding, all of it text."""
        rows = [("✓" if f.ok else "✗", f.name, f.measured, f.to_do) for f in self.findings]
        return pd.DataFrame(rows, columns=["", "check", "measured", "what to do"])

    def _repr_html_(self) -> str:
        return as_html(self.table())

    def __rich__(self) -> Table:
        return as_rich(self.table(), self.title)
