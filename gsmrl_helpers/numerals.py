r"""Numerals: the exact number that a text writes, or None if it does not write one number.

What a policy writes is untrusted. It is matched by regular expressions and never evaluated; what
is long is not read; what may mean another number is not a number. The rules:

=========  ====================================================  ==================================
rule       read                                                  not read
=========  ====================================================  ==================================
integers   ``18``, ``+18``, ``-18``, ``−18``, ``18.``            ``- 18``, ``1 8``, ``18!``
decimals   ``18.00``, ``.5``, ``-0.5``                           ``1.080,5``, ``18..``, ``1.8e1``
thousands  ``1,080``, ``1{,}080``, ``1\,080``                    ``1,8``, ``1,08``, ``0,018``
fractions  ``3/4``, ``\frac{3}{4}``, ``\frac34``, ``¾``          ``3/0``, ``1/2/3``, ``½2``
mixed      ``-7 3/4``, ``7\frac{3}{4}``, ``7¾``                  ``7 5/4``
money      ``$18``, ``-$18``, ``\$18``, ``5€``, ``18 dollars``   ``$18 or $19``, ``18 cents``
percent    ``18%``, ``18\%``, ``18 percent``                     ``18% off``, ``18% of 50``
a unit     ``18 eggs``, ``18 square feet``, ``18 years old``     ``18 of them too many``
a rate     ``$18 per day``, ``18 km/h``, ``18 pounds of food``   ``18 off``, ``18 below zero``
a scale    ``18 pairs``                                          ``18 dozen``, ``5k``, ``18 tenths``
a name     ``x = 18``, ``Answer: 18``, ``The answer is 18``      ``17 = 18``, ``not 18``
marks      ``**18**``, ``$18$``, ``\(18\)``, ``\text{18 eggs}``  ``17 or 18``, ``18, 17``
=========  ====================================================  ==================================

A unit is a plain word or two, and is not compared, since a gold of GSM8K has none: ``18 dollars``
answers ``18``. So is the percent sign; 106 of the 8,792 golds are percentages, and not one says
so. Cents are the exception, for they stand beside dollars in one problem and are another number
of them: ``18 cents`` is equal to ``18 cents`` or ``18¢`` alone (32 of the golds are in cents).
A list of words, and of forms of words, that make another number or another claim of it ends the
reading: ``18 dozen``, ``18 elevenths``, ``18 sextillion``, ``18 less than x``, ``18 possibly``. No
such list is complete. A word that is not on it is taken for a unit: ``18 Dutzend`` is 18.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

# A final answer is short. With this bound every step below is fast, and no integer comes near
# the 4,300 digits at which Python refuses to read one.
MAX_ANSWER_CHARS = 200

# A final answer stands at the end of a response.
MAX_RESPONSE_CHARS = 50_000


class Numeral(NamedTuple):
    """What a text writes: two numerals are equal if number and scale are."""

    value: Fraction
    in_cents: bool = False


def parse_number(text: str) -> Fraction | None:
    """The exact number that the whole of ``text`` writes, None if it is not one number.

    The rules are in the module's docstring. Never raises, for any string.
    """
    numeral = parse_numeral(text)
    return None if numeral is None or numeral.in_cents else numeral.value


def parse_numeral(text: str) -> Numeral | None:
    """The number that the whole of ``text`` writes, and whether it counts cents."""
    text = text.strip()
    if len(text) > MAX_ANSWER_CHARS:
        return None
    if _PLAIN.fullmatch(text):
        return Numeral(Fraction(int(text)))
    if len(text.splitlines()) != 1:
        return None
    match = _NUMERAL.fullmatch(_strip_marks(text).lower())
    magnitude = None if match is None else _magnitude(match)
    if match is None or magnitude is None:
        return None
    value = -magnitude if "-" in match["sign"] else magnitude
    return Numeral(value, match["cents"] is not None)


_DIGITS = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?")


def names_number(text: str, number: str) -> bool:
    """Whether the number stands anywhere in the text, whatever its sign."""
    wanted = parse_number(number)
    found = (parse_number(n.rstrip(",")) for n in _DIGITS.findall(text[-MAX_RESPONSE_CHARS:]))
    return wanted is not None and any(value == abs(wanted) for value in found)


def _magnitude(match: re.Match[str]) -> Fraction | None:
    """The number without its sign; None where a fraction is none, as ``3/0`` or ``7 5/4``."""
    if match["only"]:
        return Fraction(_integer(match["only"]))
    if decimals := match["decimals"]:
        digits = (match["integer"] or "") + decimals
        return Fraction(_integer(digits), 10 ** len(decimals))
    whole = _integer(match["whole"] or "0")
    numerator, denominator = _integer(match["num"]), _integer(match["den"])
    if denominator == 0 or (match["whole"] and numerator >= denominator):
        return None
    return Fraction(whole * denominator + numerator, denominator)


def _integer(digits: str) -> int:
    return int(digits.replace(",", ""))


# --- marks around a number ---------------------------------------------------------------------

_PLAIN = re.compile(r"[+-]?[0-9]+")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\!)(?=[0-9]{3})")
_BEFORE_FRACTION = re.compile(r"(?<=[0-9])(?=\\[dt]?frac)")
_FRACTION = re.compile(
    r"\\[dt]?frac ?(?:\{ ?(-?[0-9,]+) ?\}|([0-9])) ?(?:\{ ?([0-9,]+) ?\}|([0-9])(?![0-9]))"
)
_VULGAR = re.compile(r"(?<=[0-9])(?=[½¼¾])")
_DEGREES = re.compile(r"\^ ?(?:\\circ(?![A-Za-z])|\{ ?\\circ ?\})")
_MARKS = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|displaystyle)(?![A-Za-z])"
    r"|\\[,;:! ()\[\]]|[{}`*]"
)
_ALIKE = str.maketrans(
    {"−": "-", "–": "-", "\u00a0": " ", "€": "¤", "£": "¤", "¥": "¤", "₹": "¤", "²": "^2"}
    | {"³": "^3", "½": "1/2\t", "¼": "1/4\t", "¾": "3/4\t"}
)


def _strip_marks(text: str) -> str:
    r"""Take LaTeX and Markdown off: ``$\text{18 eggs}$.`` is ``18 eggs``, ``\$18`` is ``¤18``.

    A mark leaves a tab. So taking one off never joins two numbers, and never makes a mixed
    number, whose parts stand a space apart: ``2*3/4`` is not ``2 3/4``.
    """
    if not text.isascii():
        text = _VULGAR.sub(" ", text).translate(_ALIKE)
    if "\\" in text:
        text = _DEGREES.sub("°", text.replace(r"\$", "¤").replace(r"\%", "%"))
    if "$" in text:  # a pair delimits mathematics, a single one is money
        text = text.replace("$", "¤" if text.count("$") % 2 else "\t")
    if "\\" in text or "{" in text:
        text = _BEFORE_FRACTION.sub(" ", _THOUSANDS.sub(",", text))
        text = _FRACTION.sub(lambda m: f"{m[1] or m[2]}/{m[3] or m[4]}\t", text)
    return _MARKS.sub("\t", text).strip().removesuffix(".").rstrip()


# --- the number and its unit -------------------------------------------------------------------

# Words that make another number, or another claim, of the number before them.
_NOT_UNITS = "|".join(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred hundreds thousand thousands million millions billion billions trillion trillions
    mil mn bn tn lakh lakhs crore crores dozen dozens gross score scores couple half halves third
    thirds
    quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth
    ninths tenth tenths hundredth hundredths thousandth thousandths st nd rd th kilo mega giga
    pi tau sqrt root squared cubed exp log ln sin cos tan factorial point double twice triple
    zillion quadrillion quintillion milliard milliards myriad myriads grand googol ones tens teens
    twos threes fours fives sixes sevens eights nines twenties thirties forties fifties fold
    hundredfold tenfold twofold threefold millionth millionths billionth billionths doubled tripled
    quadrupled halved increased decreased reduced multiplied added subtracted excluded negated
    negatives reversed backwards reciprocal inverse opposite complement unless otherwise whatever
    incorrectly untrue isnt any
    inf infinity infinite nan mod modulo remainder base hex hexadecimal octal binary decimal power
    plus minus by itself divided over less than except negative percent pct cent cents
    below under above behind ahead before after ago short off too many much
    and or nor but if in of per an as at to from for with without on out is isn are was were be
    will not no never none nothing only about almost nearly roughly approximately maybe perhaps
    the that this these those them they it its we you he she wrong false incorrect impossible
    unknown undefined instead vs versus
    nth nths thou thous mill mills mils bil bils mio mrd mln bln trn mille doz dzn hund googolplex
    penny pennies pence basis bps ppm ppb ppt permille permil promille permyriad percentile
    thrice treble trebled roots rooted squareroot squareroots logarithm logarithms factorials
    exponent exponents exponential exponentiated times time powers sine cosine tangent minuses
    opposites inverses reciprocals raised halfs halfes halve nil null nought naught void
    possibly probably presumably supposedly allegedly apparently hopefully likely unlikely guess
    guesses guessed estimate estimates estimated approx approximate circa barely hardly scarcely
    rounded ish nope nah nay neither never rejected refuted refused disproved denied dismissed
    discarded invalid bogus mistaken mistakenly erroneous inaccurate inexact wrongly doubtful unsure
    uncertain fake error typo oops cannot cant dont doesnt wasnt alternatively either else
    fewer lower lesser smaller higher bigger larger greater
    """.split()  # noqa: SIM905
)
# Forms of words that do the same: number words written together and their fractions, however
# spelled (`twentyone`, `fourty`, `elevenths`), large numbers, multiples, prefixes of units alone,
# and a square or a cube of nothing.
_NUMBER_WORD = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|hundred|thousand|dozen"
    "|thir|twen|thirty|fif|fort|four?ty|eigh|nin|twelf|seventy|teen|ty|and"
)
_NOT_UNIT_FORMS = "|".join(
    (
        rf"(?:{_NUMBER_WORD})+(?:e?s|e?ths?|tieths?|e?ty|folds?|some)?",
        "[a-z]*(?:hundred|thousand|dozen|illion|illiard)(?:s|ths?)?",
        "(?:tri|dou|quadru|[a-z]*tu|dec[au]|nonu|octu)[pb]l(?:e[ds]?|ing|y)",
        "[a-z]*[a-z]fold",
        "(?:kilo|mega|giga|tera|peta|exa|hecto|deca|deci|centi|milli|micro|nano|pico|femto|atto)s?",
        r"(?:square|cube|cubic)(?!\s+[a-z])",
    )
)
_INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
_SHORT = "kg|mg|km|cm|mm|ml|cl|dl|lb|oz|ft|yd|mi|hr|sq|cu|kb|mb|gb|tb|tv"  # 18xy is no unit
_NO = rf"(?!(?:{_NOT_UNITS}|{_NOT_UNIT_FORMS})(?![a-z]))"
_WORD = rf"{_NO}(?:[a-z]{{3,}}(?:-{_NO}[a-z]{{2,}})*|{_SHORT})(?![a-z-])"
_NOUN = rf"{_WORD}(?:\s+{_WORD}|\s+over(?<=left\sover))?(?:\s*\^\s*[23])?"
_EACH = rf"(?:\s*/\s*(?:[hs](?![a-z])|{_NOUN})|\s+(?:per|an?|each|every)\s+{_NOUN})"

# A name, a sign and a currency, the digits, a unit: nothing else, and nothing twice.
_NUMERAL = re.compile(
    rf"""
    (?: (?: [a-z] | (?:the\s+)? (?:final\s+)? (?:answer|total|result) )
        (?: (?:\s+is)? \s*[=:]\s* | \s+is\s+ ) )?
    (?P<sign> [+-]?¤\s* | ¤\s*[+-] | [+-]? )
    (?: (?P<only> {_INTEGER} ) (?! [0-9.] | [ ]*/[ ]*[0-9] | [ ]+[0-9] )
      | (?P<integer> {_INTEGER} )? \. (?P<decimals> [0-9]+ )
      | (?: (?P<whole> {_INTEGER} )[ ]+ )? (?P<num> {_INTEGER} ) [ ]*/[ ]* (?P<den> {_INTEGER} )
    )
    (?: | \s* (?: % | percent | per\s+cent )
      | (?P<cents> \s* (?: ¢ | cents? ) ) {_EACH}?
      | \s* [¤°]? (?: {_EACH} | \s* {_NOUN} (?: \s+of\s+{_NOUN} | {_EACH} )? )?
        (?: \s+ in \s+ (?:total|all|change) | (?<=°)[cf] )?
    )
    """,
    re.VERBOSE | re.ASCII,
)
