r"""Graders: does a response give the gold number?

Both reward functions find the answer in a response, read it as one number, and compare it with
the gold number exactly, as fractions. Their names and results are those of the assignment; the
reward is the answer's alone, format is only logged.

What a policy writes is untrusted. It is matched by regular expressions and never evaluated; what
is long is not read; what may mean another number is not a number. The rules:

=========  ====================================================  ===================================
rule       read                                                  not read
=========  ====================================================  ===================================
integers   ``18``, ``+18``, ``-18``, ``−18``, ``18.``            ``- 18``, ``1 8``, ``18!``, ``1e3``
decimals   ``18.00``, ``.5``, ``-0.5``                           ``1.080,5``, ``18..``
thousands  ``1,080``, ``1{,}080``, ``1\,080``                    ``1,8``, ``1,08``, ``0,018``
fractions  ``3/4``, ``\frac{3}{4}``                              ``3/0``, ``1/2/3``
mixed      ``-7 3/4``, ``7\frac{3}{4}``                          ``7 5/4``
money      ``$18``, ``-$18``, ``\$18``, ``5€``                   ``$18 or $19``
a unit     ``18%`` = ``18 eggs`` = ``$18/day`` = 18              ``18 dozen``, ``5k``, ``18th``
a name     ``x = 18``, ``Answer: 18``, ``The answer is 18``      ``17 = 18``, ``not 18``
marks      ``**18**``, ``$18$``, ``\(18\)``, ``\text{18 eggs}``  digits on two lines
=========  ====================================================  ===================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

RewardFn = Callable[[str, str], dict[str, float]]

# A final answer is short. With this bound every step below is fast, and no integer comes near
# the 4,300 digits at which Python refuses to read one.
MAX_ANSWER_CHARS = 200

# A final answer stands at the end of a response.
MAX_RESPONSE_CHARS = 50_000


def r1_zero_reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
    r"""Grade a response that ends its reasoning with ``</think> <answer> … </answer>``.

    The tags are taken literally, one space between them. The answer opens at the first
    ``</think> <answer>`` and is cut at the first ``</answer>`` after it; nothing outside scores.
    Where the answer holds a ``\boxed{…}``, the last one's content is the answer.

    Args:
        response: What the policy wrote after the prompt.
        ground_truth: The gold number. None, NaN, or what is no number never scores.

    Returns:
        ``reward`` and ``answer_reward`` (1.0 if the answer is the gold number, else 0.0), and
        ``format_reward`` (1.0 if the tags are there, else 0.0).

    Raises:
        TypeError: The response or the gold is not text.
        ValueError: The gold still holds ``####``.
    """
    _require_text(response)
    answer = find_tagged(response)
    boxed = find_boxed(answer) if answer is not None else None
    return _grade(answer if boxed is None else boxed, ground_truth)


def question_only_reward_fn(response: str, ground_truth: str | None) -> dict[str, float]:
    r"""Grade a response by its last complete ``\boxed{…}``, nested braces included.

    Arguments, result and errors are those of :func:`r1_zero_reward_fn`; ``format_reward`` is 1.0
    if there is a complete box.
    """
    _require_text(response)
    return _grade(find_boxed(response), ground_truth)


REWARD_FNS: dict[str, RewardFn] = {
    "question_only": question_only_reward_fn,
    "r1_zero": r1_zero_reward_fn,
}


def _grade(answer: str | None, ground_truth: str | None) -> dict[str, float]:
    """The three rewards; ``answer`` is None where the format is broken."""
    gold = _parse_gold(ground_truth)
    correct = answer is not None and gold is not None and parse_number(answer) == gold
    return {
        "reward": float(correct),
        "format_reward": float(answer is not None),
        "answer_reward": float(correct),
    }


def _require_text(response: object) -> None:
    if not isinstance(response, str):
        raise TypeError(f"a response must be a string, got {type(response).__name__}")


def _parse_gold(ground_truth: object) -> Fraction | None:
    # A missing value of a table arrives as None or as the float NaN, the one that is not itself.
    if ground_truth is None or ground_truth != ground_truth:
        return None
    if not isinstance(ground_truth, str):
        raise TypeError(f"a gold must be a string, got {type(ground_truth).__name__}")
    if "####" in ground_truth:
        raise ValueError(f"the gold is what follows '####', got {ground_truth[-80:]!r}")
    return parse_number(ground_truth)


# --- where the answer stands -------------------------------------------------------------------


def find_tagged(response: str) -> str | None:
    """The text from the first ``</think> <answer>`` to the next ``</answer>``, or None."""
    _, opened, rest = response.partition("</think> <answer>")
    answer, closed, _ = rest.partition("</answer>")
    return answer if opened and closed else None


_FLAT_BOX = re.compile(r"\\boxed\s*\{((?:[^{}\\]|\\[^{}])*)\}")
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


def find_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}`` that is closed, None if there is none.

    Of nested boxes the inner one counts. Only the last ``MAX_RESPONSE_CHARS`` are searched, in
    one pass.
    """
    text = text[-MAX_RESPONSE_CHARS:]
    last_start = text.rfind("\\boxed")
    if last_start < 0:
        return None
    if flat := _FLAT_BOX.match(text, last_start):  # the usual case, without the scan
        return flat[1]
    open_braces: list[tuple[int, bool]] = []  # (start of the content, whether it is a box's)
    last_box: tuple[int, int] | None = None
    for brace in _BRACE.finditer(text):
        token = brace[0]
        if token == "{" or token.startswith("\\boxed"):
            open_braces.append((brace.end(), token != "{"))
        elif token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and (last_box is None or start > last_box[0]):
                last_box = (start, brace.start())
    return None if last_box is None else text[slice(*last_box)]


# --- what number it is -------------------------------------------------------------------------

_PLAIN = re.compile(r"[+-]?[0-9]+")

_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
_WORD = r"[A-Za-z]{2,}"

# A name, a sign and a currency, the digits, a unit: nothing else, and nothing twice.
_NUMBER = re.compile(
    rf"""
    (?: (?: [A-Z] | (?:the\s+)? (?:final\s+)? (?:answer|total|result) )
        (?: (?:\s+is)? \s*[=:]\s* | \s+is\s+ ) )?
    (?P<sign> [+-]?¤\s* | ¤\s*[+-] | [+-]? )
    (?: (?P<integer> {_INTEGER} )? \. (?P<decimals> [0-9]+ )
      | (?: (?P<whole> {_INTEGER} )[ ]+ )? (?P<num> {_INTEGER} ) [ ]*/[ ]* (?P<den> {_INTEGER} )
      | (?P<only> {_INTEGER} )
    )
    (?: \s*[¤%¢°] )?
    (?P<unit> (?: \s*/\s* | \s+ )? {_WORD} (?: (?: \s*/\s* | \s+ ) {_WORD} ){{0,4}} )?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)

# A word after a number is its unit, unless it makes another number of it.
_NOT_UNITS = frozenset(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred hundreds thousand thousands million millions billion billions trillion trillions
    mil mn bn tn dozen dozens half halves third thirds quarter quarters fourth fourths fifth fifths
    sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths
    thousandth thousandths st nd rd th squared cubed root factorial point double twice triple
    plus minus times by multiplied divided over mod modulo remainder power less than except
    and or nor to not no never is isn are was wrong false
    """.split()  # noqa: SIM905
)

_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\!)(?=[0-9]{3})")
_BEFORE_FRACTION = re.compile(r"(?<=[0-9])(?=\\[dt]?frac)")
_FRACTION = re.compile(r"\\[dt]?frac ?\{ ?(-?[0-9,]+) ?\} ?\{ ?([0-9,]+) ?\}")
_MARKS = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox)(?![A-Za-z])|\\[,;:! ()\[\]]|[{}`*]"
)
_ALIKE = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "€": "¤", "£": "¤", "¥": "¤", "₹": "¤"})


def parse_number(text: str) -> Fraction | None:
    """The exact number that the whole of ``text`` writes, None if it is not one number.

    The rules are in the module's docstring. Never raises, for any string.
    """
    text = text.strip()
    if len(text) > MAX_ANSWER_CHARS:
        return None
    if _PLAIN.fullmatch(text):
        return Fraction(int(text))
    if len(text.splitlines()) != 1:
        return None
    match = _NUMBER.fullmatch(_strip_marks(text))
    if match is None or _changes_number(match["unit"]):
        return None
    magnitude = _magnitude(match)
    return -magnitude if magnitude is not None and "-" in match["sign"] else magnitude


def _strip_marks(text: str) -> str:
    r"""Take LaTeX and Markdown off: ``$\text{18 eggs}$.`` is ``18 eggs``, ``\$18`` is ``¤18``.

    A mark leaves a tab. So taking one off never joins two numbers, and never makes a mixed
    number, whose parts stand a space apart: ``2*3/4`` is not ``2 3/4``.
    """
    text = text.translate(_ALIKE).replace(r"\$", "¤").replace(r"\%", "%")
    text = text.replace("$", "¤" if text.count("$") % 2 else "\t")  # a pair delimits mathematics
    text = _THOUSANDS.sub(",", text)
    text = _FRACTION.sub(r"\1/\2" + "\t", _BEFORE_FRACTION.sub(" ", text))
    return _MARKS.sub("\t", text).strip().removesuffix(".").rstrip()


def _changes_number(unit: str | None) -> bool:
    return unit is not None and not _NOT_UNITS.isdisjoint(re.findall(_WORD, unit.lower()))


def _magnitude(match: re.Match[str]) -> Fraction | None:
    """The number without its sign; None where a fraction is none, as ``3/0`` or ``7 5/4``."""
    if match["only"]:
        return Fraction(_integer(match["only"]))
    if match["decimals"]:
        scale = 10 ** len(match["decimals"])
        return _integer(match["integer"]) + Fraction(int(match["decimals"]), scale)
    numerator, denominator = _integer(match["num"]), _integer(match["den"])
    if denominator == 0 or (match["whole"] and numerator >= denominator):
        return None
    return _integer(match["whole"]) + Fraction(numerator, denominator)


def _integer(digits: str | None) -> int:
    return int(digits.replace(",", "")) if digits else 0
