r"""Answers to MMLU and GSM8K, found in what a model wrote. Names are those of the assignment.

What a model writes is untrusted: it is matched by regular expressions whose every repetition is
bounded, never evaluated, and no text makes a parser raise or wait. A parser that guesses gives a
model points that it did not earn, and one that is too strict measures obedience in place of
knowledge. Where the rule is a choice, it is this one, for MMLU:

==================  ==============================================  =============================
rule                the answer is B                                 no answer
==================  ==============================================  =============================
1. it is stated     ``The correct answer is B.`` ``answer: (b)``    ``The answer is not B.``
                    ``I choose B`` ``\boxed{B}``                    ``The answer is B or C.``
                    ``The answer is Paris.`` (option B's text)      ``The answer is a dog.``
2. an option alone  ``Paris`` ``paris.``                            ``Paris is in France.``
3. a line opens     ``B`` ``(b)`` ``B) Paris`` ``**B.** It is …``   ``A dog has four legs.``
                    ``B) Rome`` (the letter counts, not the text)   ``A) Rome`` and ``B) Paris``
4. it is marked     ``I would say (B)`` ``Option B fits.``          ``Not (B)`` ``(A) and (B)``
==================  ==============================================  =============================

The first rule that finds a letter decides; where it finds two different ones there is no answer, so
that to state every option does not score. Only the ASCII letters A to D count, lower-case ones
where no word can follow them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gsmrl_helpers.numerals import MAX_ANSWER_CHARS, MAX_RESPONSE_CHARS

LETTERS = "ABCD"


def parse_mmlu_response(mmlu_example: Mapping[str, Any], model_output: str) -> str | None:
    """The letter that a response to a question of MMLU gives; the module's docstring has the rules.

    Args:
        mmlu_example: with `options`, the four texts (an :class:`MmluExample`).
        model_output: What the model wrote; of a longer one the last 50,000 characters are read.

    Returns:
        "A", "B", "C" or "D", or None where there is no answer, or more than one.

    Raises:
        TypeError: The output is not text: an error of the program, not of the model.
    """
    require_text(model_output)
    options = mmlu_example["options"]
    text = model_output[-MAX_RESPONSE_CHARS:]
    for rule in (stated_letters, option_alone, opening_letters, marked_letters):
        if found := rule(text, options):
            return found.pop() if len(found) == 1 else None
    return None


def parse_gsm8k_response(model_output: str) -> str | None:
    """The last number of a response, as the assignment has it.

    Thousands commas and a full stop at the end are taken off, a currency sign and a unit are left
    out: ``$1,080.`` is ``"1080"``. A minus sign counts where no number stands before it, so that
    ``5-7`` ends in ``"7"``; ``3/4`` is one number. Digits are ASCII. A last number that has an
    exponent (``2e3``) or more than 200 characters is not read, nor is another one in its place.

    The rule is the assignment's, and it is kind: it pays a text that lists guesses and ends with
    the right one. :mod:`gsmrl_helpers.grading` has the strict graders.

    Returns:
        The number's text, to be compared by :func:`gsmrl_helpers.grading.is_equal`; None if the
        last 50,000 characters hold no number.

    Raises:
        TypeError: The output is not text.
    """
    require_text(model_output)
    start = max(0, len(model_output) - MAX_RESPONSE_CHARS)
    *_, last = (None, *NUMBER.finditer(model_output, start))
    if last is None or last["exponent"] or len(last["number"]) > MAX_ANSWER_CHARS:
        return None
    return last["number"].replace(",", "").replace("−", "-").replace("$", "")


NUMBER = re.compile(
    r"""
    (?<![A-Za-z0-9]) (?<![0-9]\.)
    (?P<number> (?: [-−] \$? )?
      (?: (?: [0-9]{1,3} (?:,[0-9]{3})+ (?![0-9]) | [0-9]+ ) (?: \.[0-9]+ )? (?: /[0-9]+ )?
        | (?<!\.) \.[0-9]+ ) )
    (?P<exponent> [eE][+-]?[0-9] )?
    """,
    re.VERBOSE,
)


def require_text(model_output: object) -> None:
    if not isinstance(model_output, str):
        raise TypeError(f"a response must be a string, got {type(model_output).__name__}")


# --- the rules for MMLU --------------------------------------------------------------------------

# What stands between "the answer is" and the letter: blanks, quotes, brackets, Markdown, LaTeX.
_BEFORE = " \t\n\r*_\"'“‘`([{$:"
_MARKS = rf"[{re.escape(_BEFORE)}]{{0,8}}"
_STATED = re.compile(
    rf"""
    (?: \b (?:answer|option|choice|letter) (?: \s(?:to|for)\s(?:the|this)\squestion )? \s{{1,3}}
          (?: is | would\sbe | must\sbe | should\sbe | has\sto\sbe ) \b
          (?: \s (?:therefore|thus|clearly|definitely|indeed|then) \b ,? )?
      | \b answer \s{{0,3}} [:=]
      | \b I (?: \swould | 'd | \swill | 'll )? \s (?: choose | pick | select | go\swith | say ) \b
      | \\boxed (?= \s?\{{ )
    )
    {_MARKS} (?: (?:the\s)? (?:option|choice|letter) \s {_MARKS} )? (?: \\text\{{ )?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
# Before it in the same clause, it makes a statement of something else.
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot|wrong|incorrect|if|whether|unless|than|every|any)\b|n['’]t\b)"
    r"[^.,;:!?\n]{0,40}$",
    re.IGNORECASE | re.ASCII,
)
_WINDOW = 64  # characters in which _DENIED looks

_AFTER_A = "because|since|as|for|which|that|and|or|with|but|by|due|it|is"
_NO_WORD = r"\s{0,3}(?:[.,;:!?)\]}*_\"'”’`$]|$)"
# A capital A before a word is an article, unless the word goes on with the sentence.
_LETTER = re.compile(
    rf"(?:A(?![ \t]{{1,3}}(?!(?:{_AFTER_A})\b)\w)|[B-D]|[a-d](?={_NO_WORD}|\n))(?![\w'’&+#%°/-])",
    re.ASCII,
)
_JOINED = re.compile(
    r"[\s)\]*\"'”’}]{0,4}(?:,|/|&|\bor\b|\band\b)\s?(?:or\s|and\s)?[\s(*\"'“]{0,3}"
    rf"([A-D]|[a-d](?={_NO_WORD}))(?!\w)",
    re.ASCII,
)
# as in "(A) Rome or (B) Paris" and "A. Rome B. Paris", where a text stands between the letters; and
# "A; B", where none does
_LISTED = re.compile(
    r"(?:[,;/&]|\bor\b|\band\b)\s?\(?([A-D])\)"
    r"|(?<![\w(])\(?([A-D])[.)](?=[\s,;]|$)"
    r"|[,;.]\s(?:(?i:or|and)\s)?([A-D])(?=[,;.]|$)",
    re.ASCII,
)
# what makes the letters after it part of a reason, not of the list
_REASON = re.compile(r"\b(?:because|since|as|is|are|was|not|but|while|than|that)\b", re.IGNORECASE)
# right after a label or a letter: it is asked, or denied
_TAKEN_BACK = re.compile(
    r"[)\].*_:\s]{0,6}(?:\?"
    r"|(?:is|was|seems|looks|can|could)\s(?:\w{1,12}\s){0,2}(?:wrong|incorrect|false|not)\b"
    r"|no,\s[^.!?\n]{0,30}\b(?:wrong|incorrect|false)\b|wrong\b|incorrect\b|isn['’]t\b|cannot\b|can['’]t\b)",
    re.IGNORECASE | re.ASCII,
)
_TWO_IN_ONE = re.compile(r"[A-D]\s?[/&]\s?[A-D](?!\w)", re.ASCII)
_END = re.compile(r"[\s*_\"'”’`)\]}$]{0,8}(?:$|[.!?,;\n](?![0-9]))", re.ASCII)


def stated_letters(text: str, options: Sequence[str]) -> set[str]:
    """The letters that are stated to be the answer, by letter or by an option's text."""
    found: set[str] = set()
    for lead in _STATED.finditer(text):
        if _DENIED.search(text[max(0, lead.start() - _WINDOW) : lead.start()]):
            continue
        # An option such as "A dog" or "B only" says more than its first letter.
        found |= options_from(text, lead.end(), options) or letters_at(text, lead.end())
    return found


def letters_at(text: str, start: int) -> set[str]:
    """The letter that stands at a place, and those listed with it: ``B or C``, ``(B) x, (C) y``."""
    if two := _TWO_IN_ONE.match(text, start):
        return {letter for letter in two[0] if letter in LETTERS}
    first = _LETTER.match(text, start)
    if first is None or _TAKEN_BACK.match(text, first.end()):
        return set()
    found, end = {first[0].upper()}, first.end()
    for _ in LETTERS:
        joined = _JOINED.match(text, end)
        if joined is None:
            break
        found.add(joined[1].upper())
        end = joined.end()
    rest = text[end : end + MAX_ANSWER_CHARS].partition("\n")[0]
    if reason := _REASON.search(rest):
        rest = rest[: reason.start()]
    return found | {letter for groups in _LISTED.findall(rest) for letter in groups if letter}


def options_from(text: str, start: int, options: Sequence[str]) -> set[str]:
    """The letters of the options that stand at a place, one after another as in a list."""
    found: set[str] = set()
    for _ in LETTERS:
        here = options_at(text, start, options)
        if not here:
            break
        found |= here
        length = max(len(options[LETTERS.index(letter)]) for letter in here)
        start = _BETWEEN.match(text, start + length).end()
    return found


_BETWEEN = re.compile(r"[\s*_\"'”’`)\]}$.,;/&]{0,6}(?:(?:or|and)\s)?[\s\"'“‘(]{0,3}", re.IGNORECASE)


def options_at(text: str, start: int, options: Sequence[str]) -> set[str]:
    """The letters of the longest options whose whole text stands at a place and ends a clause."""
    found: dict[str, int] = {}
    for letter, option in zip(LETTERS, options, strict=False):
        wanted = option.lstrip(_BEFORE).rstrip(" \t\n.").lower()
        end = start + len(wanted)
        is_letter = wanted in {"", *LETTERS.lower()}
        if not is_letter and text[start:end].lower() == wanted and _END.match(text, end):
            found[letter] = len(wanted)
    return {letter for letter, length in found.items() if length == max(found.values())}


_OPENING = re.compile(
    r"^[ \t>*_(\[\"'“]{0,6}(?P<letter>[A-Da-d])"
    r"(?=[ \t*_\"'”]{0,4}(?:[)\]]|\.(?![A-Za-z0-9]| [A-Z]\.)|,[ \t]|$)|\*\*)",
    re.MULTILINE | re.ASCII,
)


def opening_letters(text: str, options: Sequence[str]) -> set[str]:
    """The letters with which lines begin as a label does: two are a list, and no answer."""
    found: set[str] = set()
    for opening in _OPENING.finditer(text):
        if not _TAKEN_BACK.match(text, opening.end("letter")):
            found |= letters_at(text, opening.start("letter")) or {opening["letter"].upper()}
    return found


def option_alone(text: str, options: Sequence[str]) -> set[str]:
    """The letters of the options that the whole response is, capitals and marks aside."""
    whole = bare(text)
    return {
        letter
        for letter, option in zip(LETTERS, options, strict=False)
        if bare(option) == whole and whole not in {"", *LETTERS.lower()}
    }


def bare(text: str) -> str:
    """A text without the marks and full stops around it, in lower case."""
    return text.strip(" \t\n\r*_\"'“”‘’`.").lower()


_MARKED = re.compile(
    r"(?<!\w)\((?P<in_brackets>[A-D])\)|\b(?i:option|choice) \(?(?P<named>[A-D])\b(?![+#'’])",
    re.ASCII,
)
_NEGATION = re.compile(
    r"\b(?:not|never|cannot|neither|nor|except|wrong|incorrect|eliminated?|rule[sd]?\sout)\b|n['’]t\b",
    re.IGNORECASE | re.ASCII,
)


def marked_letters(text: str, options: Sequence[str]) -> set[str]:
    """The letters in brackets or after "option", anywhere; none if the text denies anything."""
    if _NEGATION.search(text):
        return set()
    found: set[str] = set()
    for match in _MARKED.finditer(text):
        name = "in_brackets" if match["in_brackets"] else "named"
        if not _TAKEN_BACK.match(text, match.end(name)):
            found |= letters_at(text, match.start(name)) or {match[name]}
    return found
