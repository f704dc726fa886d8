r"""The gate: expressions, intervals and sets that a text writes, if small enough to compare.

A parser of a small grammar reads them; it and the trees it builds keep an account of characters,
depth, parts, letters, degree, and the digits that a value can have. What is outside the grammar or
exceeds a bound is None, and None is equal to nothing.

============  ========================================================  ===========================
rule          read                                                      not read
============  ========================================================  ===========================
arithmetic    ``2\sqrt{3}``, ``\frac{\pi}{3}``, ``3\cdot 2^{10}``       ``5!``, ``2^{3^4}``
letters       ``x^2+2x+1``, ``\frac{1}{x+1}``, ``x = 2y``               ``nan``, ``x``, ``f(x)``
roots         ``\sqrt[3]{2}``, ``2√3``, ``sqrt(3)/2``, ``2^{1/3}``      ``\sqrt{x}``
intervals     ``[0, 1)``, ``(-\infty, 2] \cup [3, \infty)``             ``0 < x < 1``
points        ``(1, 2)``, ``(\frac{1}{2}, -3, 0)``                      ``((1, 2), 3)``
sets          ``\{1, 2\}``, ``{2, 1}``, ``1, 2``: in any order          ``1 or 2``
a unit        ``2\pi\text{ cm}``, ``2\pi\text{ cm}^2``                  ``2\pi\text{/2}``
============  ========================================================  ===========================

A value without a digit, π or a root is a word, not an expression: a gold ``nan`` or ``N/A`` that
stands for a missing one equals nothing. Decimals are exact fractions, so no float is compared.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gsmrl_helpers.expressions import (
    MAX_ROOT,
    Answer,
    Expression,
    NotReadableError,
    combine,
    make_leaf,
    number_of,
)
from gsmrl_helpers.numerals import parse_number

MAX_CHARS = 120
MAX_DEPTH = 6
MAX_PARTS = 32  # numbers, letters and operations, of all items together
MAX_ITEMS = 8
MAX_LETTERS = 2


def parse_answer(text: str) -> Answer | None:
    """The expression, interval, point or set that the whole of ``text`` writes, or None.

    The rules are in the module's docstring. Never raises, for any string.
    """
    if len(text) > MAX_CHARS:
        return None
    try:
        if (number := parse_number(text)) is not None:
            return Answer("", (make_leaf(number),))
        return _Reader(_clean(text)).answer()
    except NotReadableError:
        return None


_SPELLINGS = [  # one spelling for each sign, and no marks without a meaning
    (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ()\[\]]|\$", " "),
    (r"^\s*\*\*(?=.*\*\*\s*$)|\*\*\s*$", " "),
    (r"\\[dt]?frac(?![A-Za-z])", r"\\frac "),
    (r"\\(?:cdot|times)(?![A-Za-z])|[·×]", "*"),
    (r"\\div(?![A-Za-z])|÷", "/"),
    (r"(?:√|(?<![\\A-Za-z])sqrt)\s*([0-9]+)", r"\\sqrt{\1}"),
    (r"√|(?<![\\A-Za-z])sqrt(?![A-Za-z])", r"\\sqrt "),
    (r"π|(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
    (r"∞|\\infty(?![A-Za-z])", "∞"),
    (r"∪|\\cup(?![A-Za-z])", "∪"),
    (r"[−–]", "-"),
    (r"²|\*\*2(?![0-9])", "^2"),
    (r"³", "^3"),
    (r"\*\*", "^"),
    (r"^\s*[A-Za-z]\s*(?:=|∈|\\in(?![A-Za-z]))", ""),  # a name, once
]
_COMPILED = [(re.compile(pattern), sign) for pattern, sign in _SPELLINGS]
# A unit is words: a digit, a fraction or a command in it would be another number. So would an
# exponent after nothing, which is the expression's.
_WORDS = r"[^{}0-9½¼¾\\]*"
_UNIT = re.compile(
    rf"\\(?:text|mathrm|mbox) ?\{{({_WORDS}[A-Za-z]{_WORDS}(?:\^[23])?)\}}"
    r"(?:\^ ?(?:[23]|\{[23]\}))?$"
)
_MEANS_SOMETHING = re.compile(r"[0-9∞]|\\pi|\\sqrt")
_NEXT_FACTOR = re.compile(r"\s*(?:[A-Za-z(]|\\(?:frac|sqrt|pi)(?![A-Za-z]))")


def _clean(text: str) -> str:
    for pattern, sign in _COMPILED:
        text = pattern.sub(sign, text)
    text = text.strip().removesuffix(".").rstrip()
    unit = _UNIT.search(text)
    if unit and parse_number(f"1 {unit[1]}") == 1:
        text = text[: unit.start()]
    if not _MEANS_SOMETHING.search(text):
        raise NotReadableError
    return text


class _Reader:
    """Recursive descent, one method a rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.depth = self.parts = 0
        self.letters: set[str] = set()

    def take(self, pattern: str) -> str | None:
        """The next sign, if it is of the pattern, white space before it skipped."""
        match = re.compile(rf"\s*({pattern})").match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[1]

    def expect(self, pattern: str) -> str:
        taken = self.take(pattern)
        if taken is None:
            raise NotReadableError
        return taken

    def answer(self) -> Answer:
        values, signs = [self.value()], set()
        while sign := self.take("[∪,]"):
            signs.add(sign)
            values.append(self.value())
        self.expect(r"\Z")
        if not signs:
            return values[0]
        if signs == {"∪"} and all(v.kind not in ("", "{}") and len(v.items) == 2 for v in values):
            return Answer("∪", tuple(values))
        if signs == {","} and all(v.kind == "" for v in values) and len(values) <= MAX_ITEMS:
            return Answer("{}", tuple(v.items[0] for v in values))
        raise NotReadableError

    def value(self) -> Answer:
        """A bracketed list of at least two items, or else an expression."""
        start, parts = self.at, self.parts
        try:
            return self.bracketed()
        except NotReadableError:
            self.at, self.parts, self.depth = start, parts, 0
        return Answer("", (self.expression(),))

    def bracketed(self) -> Answer:
        opening = self.expect(r"\\\{|[{(\[]")
        items = [self.item()]
        while self.take(","):
            items.append(self.item())
        closing = self.expect(r"\\\}|[})\]]")
        kind = (opening + closing).replace("\\", "")
        if kind not in ("{}", "()", "(]", "[)", "[]") or len(items) > MAX_ITEMS:
            raise NotReadableError
        if len(items) < 2 and opening != r"\{":
            raise NotReadableError
        return Answer(kind, tuple(items))

    def item(self) -> Expression | str:
        if infinity := self.take(r"[+-]?\s*∞"):
            return "-inf" if "-" in infinity else "inf"
        return self.expression()

    def expression(self) -> Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotReadableError
        total = self.signed(self.take("[+-]"))
        while sign := self.take("[+-]"):
            total = self.combine("+", total, self.signed(sign))
        self.depth -= 1
        return total

    def signed(self, sign: str | None) -> Expression:
        term = self.term()
        return self.combine("*", make_leaf(Fraction(-1)), term) if sign == "-" else term

    def term(self) -> Expression:
        product = self.power()
        while True:
            following = _NEXT_FACTOR.match(self.text, self.at)
            if self.take(r"\*"):
                product = self.combine("*", product, self.power())
            elif self.take("/"):
                product = self.combine("/", product, self.power())
                if _NEXT_FACTOR.match(self.text, self.at):  # 1/2x: which is it?
                    raise NotReadableError
            elif following:
                product = self.juxtaposed(product, following[0].strip())
            else:
                return product

    def juxtaposed(self, left: Expression, opening: str) -> Expression:
        """A product without a sign; refused where it may be a mixed number or a function."""
        is_letter = left.operation == "leaf" and left.operands[0] in self.letters
        right = self.power()
        both_numbers = number_of(left) is not None and number_of(right) is not None
        if (is_letter and opening == "(") or (both_numbers and opening != "("):
            raise NotReadableError
        return self.combine("*", left, right)

    def power(self) -> Expression:
        base = self.atom()
        if not self.take(r"\^"):
            return base
        if number := self.take("-?[0-9]+"):
            exponent = self.leaf(Fraction(int(number)))
        else:
            exponent = self.atom()
        return self.combine("^", base, exponent)

    def atom(self) -> Expression:
        if number := self.take(r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?![.])"):
            return self.leaf(Fraction(number))
        if self.take(r"\\frac(?![A-Za-z])"):
            return self.combine("/", self.argument(), self.argument())
        if self.take(r"\\sqrt(?![A-Za-z])"):
            root = int(self.expect(f"[2-{MAX_ROOT}](?=])")) if self.take(r"\[") else 2
            self.take("]")
            return self.combine("^", self.argument(), self.leaf(Fraction(1, root)))
        return self.argument()

    def argument(self) -> Expression:
        """What a command of LaTeX takes: a group, one digit, one letter."""
        if opening := self.take(r"[{(]"):
            inner = self.expression()
            self.expect(r"\}" if opening == "{" else r"\)")
            return inner
        if self.take(r"\\pi(?![A-Za-z])"):
            return self.leaf("pi")
        if digit := self.take("[0-9]"):
            return self.leaf(Fraction(int(digit)))
        letter = self.expect("[A-Za-z](?![A-Za-z]{2})")  # three in a row are a word
        self.letters.add(letter)
        if len(self.letters) > MAX_LETTERS:
            raise NotReadableError
        return self.leaf(letter)

    def leaf(self, value: Fraction | str) -> Expression:
        self.count()
        return make_leaf(value)

    def combine(self, operation: str, left: Expression, right: Expression) -> Expression:
        self.count()
        return combine(operation, left, right)

    def count(self) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise NotReadableError
