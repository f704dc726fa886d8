"""Answers to MMLU and GSM8K: a table of hard cases each, and texts that should break a parser."""

from __future__ import annotations

import random
import time

import pytest

from gsmrl_helpers.benchmark_answers import parse_gsm8k_response, parse_mmlu_response
from gsmrl_helpers.grading import is_equal
from gsmrl_helpers.numerals import MAX_RESPONSE_CHARS
from tests.adapters import run_parse_gsm8k_response, run_parse_mmlu_response

CAPITAL = {
    "subject": "geography",
    "question": "What is the capital of France?",
    "options": ["Rome", "Paris", "A dog", "None of these"],
    "answer": "B",
}
VIRUSES = {
    "subject": "virology",
    "question": "How many human polyomaviruses are known at present?",
    "options": ["100", "1", "10", "unknown"],
    "answer": "A",
}
LETTERS = {**CAPITAL, "options": ["B only", "B", "A and B", "B and C"]}

MMLU = [
    # stated
    ("The correct answer is B.", "B"),
    ("The correct answer is B. There is only one human polyomavirus known.", "B"),
    ("the correct answer is b.", "B"),
    ("The correct answer is (B).", "B"),
    ("The correct answer is (b)", "B"),
    ("The correct answer is B) Paris.", "B"),
    ('The correct answer is "B".', "B"),
    ("The correct answer is **B**.", "B"),
    ("The correct answer is: B", "B"),
    ("The correct answer is\n\nB", "B"),
    ("**Answer:** B", "B"),
    ("Answer: B", "B"),
    ("Answer = b", "B"),
    ("answer:B", "B"),
    ("The right option is B.", "B"),
    ("The answer to the question is B.", "B"),
    ("The answer is option B.", "B"),
    ("The answer is the letter B.", "B"),
    ("The answer would be B, because Paris is its capital.", "B"),
    ("So the answer is therefore B", "B"),
    (r"So it is \boxed{B}.", "B"),
    (r"The answer is $\boxed{\text{B}}$.", "B"),
    ("I would go with B.", "B"),
    ("I choose B", "B"),
    ("The answer is B. Again, the answer is B.", "B"),
    ("A. Rome is in Italy.\nThe answer is B.", "B"),
    ("The answer is not A. The answer is B.", "B"),
    ("I do not know Italy well, but the answer is B.", "B"),
    # an article or the letter
    ("The correct answer is A.", "A"),
    ("The correct answer is A because it is old.", "A"),
    ("The answer is A\n\nExplanation: it is.", "A"),
    ("The answer is a.", "A"),
    ("The answer is a city.", None),
    ("The answer is A city.", None),
    ("A city in Italy.", None),
    ("A", "A"),
    ("a", "A"),
    # an option's text
    ("The correct answer is Paris.", "B"),
    ("The correct answer is paris, of course.", "B"),
    ("The answer is a dog.", "C"),
    ("The answer is A dog.", "C"),
    ("The correct answer is none of these.", "D"),
    ("Paris", "B"),
    ("paris.", "B"),
    ("**Paris**", "B"),
    ("Paris is in France.", None),
    ("The correct answer is Parisian.", None),
    ("Rome or Paris", None),
    # two, or the other
    ("The correct answer is A or B.", None),
    ("The correct answer is A, B or C.", None),
    ("The correct answer is both.", None),
    ("The correct answer is (A) and (B).", None),
    ("The correct answer is A/B.", None),
    ("The answer is (A) Rome or (B) Paris.", None),
    ("The answer is A) Rome, B) Paris, C) A dog, D) None of these.", None),
    ("The answer is B, because (A) is in Italy.", "B"),
    ("The answer is a, b.", None),
    ("The answer is A. No, the answer is B.", None),
    ("The answer is A. The answer is B. The answer is C. The answer is D.", None),
    ("A, B, C, D", None),
    ("A) Rome\nB) Paris\nC) A dog\nD) None of these", None),
    ("The answer is not B.", None),
    ("The answer isn't B.", None),
    ("It is not B.", None),
    ("I don't think the answer is B.", None),
    ("The wrong answer is B.", None),
    ("The answer is neither A nor B.", None),
    ("Not (B)", None),
    ("Option B is wrong.", None),
    ("A) Rome B) Paris C) A dog D) None of these", None),
    ("A. Rome, B. Paris, C. A dog, D. None of these", None),
    ("(A) Rome (B) Paris", None),
    ("The answer is A) Rome B) Paris C) A dog D) None of these", None),
    ("The answer is A. B. C. D.", None),
    ("The answer is A; B; C; D", None),
    ("The answer is A. Or B.", None),
    ("The answer is 'Rome', 'Paris', 'A dog', 'None of these'", None),
    ("The answer is Rome or Paris.", None),
    ("Option A, B, C, D", None),
    ("B. is incorrect.", None),
    ("B) No, that is wrong.", None),
    ("B is clearly not right.", None),
    ("Could it be (B)?", None),
    ("The answer is B? No, it is C.", None),
    ("The answer is (B), because (A) is in Italy.", "B"),
    ("The answer is B. Rome is A) in Italy.", "B"),
    ("B. Paris is in France, and A. Rome is not.", "B"),
    ("B, since A. Rome lies in Italy", "B"),
    # a line opens with it
    ("B", "B"),
    (" b ", "B"),
    ("B.", "B"),
    ("(B)", "B"),
    ("[B]", "B"),
    ("B) Paris", "B"),
    ("B)Paris", "B"),
    ("b) Paris", "B"),
    ("B. Paris", "B"),
    ("B, since Paris is in France", "B"),
    ("**B** is right", "B"),
    ("**B.** Paris", "B"),
    ("B) Rome", "B"),
    ("Let us see.\nB", "B"),
    ("B\nQuestion: What is the capital of Italy?", "B"),
    ("D.C. is a capital.", None),
    ("B. F. Skinner wrote it", None),
    ("C'est la vie", None),
    ("B-sides are rare", None),
    # marked
    ("It must be (B), I suppose.", "B"),
    ("Option B fits best.", "B"),
    ("Vitamin C is an acid.", None),
    ("f(B) is a number", None),
    ("Either (A) or (B)", None),
    # nothing, and other alphabets
    ("", None),
    (" \n\t", None),
    ("The correct answer is", None),
    ("The correct answer is E.", None),
    ("The correct answer is 2.", None),
    ("42", None),
    ("The correct answer is В.", None),  # Cyrillic Ve
    ("The correct answer is Ｂ.", None),  # fullwidth
    ("The correct answer is ᗷ.", None),
    ("The correct answer is Ä.", None),
]


@pytest.mark.parametrize(("output", "letter"), MMLU)
def test_a_response_to_mmlu_has_this_answer(output: str, letter: str | None) -> None:
    assert parse_mmlu_response(CAPITAL, output) == letter


@pytest.mark.parametrize(
    ("output", "letter"),
    [
        ("The correct answer is 10000 polyomaviruses.", None),
        ("The correct answer is 10.", "C"),
        ("The correct answer is 1.", "B"),
        ("The correct answer is 10.5.", None),
        ("The correct answer is 10,000.", None),
        ("The correct answer is 10 polyomaviruses.", None),
        ("The correct answer is 1000.", None),
        ("unknown", "D"),
    ],
)
def test_a_number_is_an_answer_where_it_is_all_of_an_option(output, letter):
    assert parse_mmlu_response(VIRUSES, output) == letter


@pytest.mark.parametrize(
    ("output", "letter"),
    [
        ("The answer is B only.", "A"),
        ("The answer is B.", "B"),
        ("The answer is A and B.", "C"),
        ("The answer is A and C.", None),
        ("A and B", "C"),
        ("B", "B"),
    ],
)
def test_the_longest_option_that_stands_there_counts(output, letter):
    assert parse_mmlu_response(LETTERS, output) == letter


def test_a_name_with_initials_is_an_option_and_no_letter():  # in MMLU's psychology
    example = {**CAPITAL, "options": ["William James", "Carl Rogers", "B. F. Skinner", "Wundt"]}
    for reply in ("B. F. Skinner", "The answer is B. F. Skinner."):
        assert parse_mmlu_response(example, reply) == "C"
    assert parse_mmlu_response(example, "B. Carl Rogers") == "B"


def test_of_two_equal_options_none_is_named_by_its_text():
    example = {**CAPITAL, "options": ["Paris", "Paris", "Rome", "Bonn"]}
    assert parse_mmlu_response(example, "The answer is Paris.") is None
    assert parse_mmlu_response(example, "Paris") is None
    assert parse_mmlu_response(example, "The answer is B) Paris.") == "B"


GSM8K = [
    ("Natalia sold 48/2 = 24 clips in May, and 48+24 = 72 clips altogether.", "72"),
    ("Natalia sold seventy-two clips.", None),
    ("72", "72"),
    ("It is 72.", "72"),
    ("It is 72...", "72"),
    ("It is ...72", "72"),
    ("#### 72", "72"),
    ("**72**", "72"),
    (r"\boxed{72}", "72"),
    ("$72", "72"),
    ("72 dollars", "72"),
    ("72kg", "72"),
    ("72%", "72"),
    ("€72.50 in all", "72.50"),
    ("Rs.72", "72"),
    ("$1,080.", "1080"),
    ("109,200,000", "109200000"),
    ("1,080.50", "1080.50"),
    ("1,2,3", "3"),
    ("3, 7, 12", "12"),
    ("1,08", "08"),
    ("1 080", "080"),
    ("72.0", "72.0"),
    (".5", ".5"),
    ("it is .5.", ".5"),
    ("-7", "-7"),
    ("= -7", "-7"),
    ("−7", "-7"),
    ("-$7", "-7"),
    ("$-7", "-7"),
    ("5-7", "7"),
    ("5 - 7", "7"),
    ("from 5 to 7", "7"),
    ("3/4", "3/4"),
    ("10:30", "30"),
    ("version 1.2.3", "1.2"),
    ("H2O", None),
    ("4 cups of H2O", "4"),
    ("2e3", None),
    ("7 or 2e3", None),
    ("2 eggs", "2"),
    ("2each", "2"),
    ("x=72", "72"),
    ("Step 1: it is 72. Step 2: done", "2"),
    ("", None),
    (" \n", None),
    ("７２", None),
    ("٧٢", None),
    ("²", None),
    ("72 ７", "72"),
    ("1" * 201, None),
    ("1" * 200, "1" * 200),
]


@pytest.mark.parametrize(("output", "number"), GSM8K)
def test_a_response_to_gsm8k_ends_with_this_number(output: str, number: str | None) -> None:
    assert parse_gsm8k_response(output) == number


@pytest.mark.parametrize(("output", "gold"), [("$1,080.", "1,080"), ("−7", "-7"), ("3/4", "0.75")])
def test_what_is_found_can_be_graded(output, gold):
    assert is_equal(parse_gsm8k_response(output), gold)


def test_of_a_long_response_the_end_is_read_and_no_number_is_cut():
    assert parse_gsm8k_response("7 " + "x " * MAX_RESPONSE_CHARS) is None
    assert parse_gsm8k_response("x " * MAX_RESPONSE_CHARS + "7") == "7"
    digits = "123456" + "x" * (MAX_RESPONSE_CHARS - 3)
    assert parse_gsm8k_response(digits) is None  # "456" begins before what is read
    filler = "Let me think. " * MAX_RESPONSE_CHARS
    assert parse_mmlu_response(CAPITAL, filler + "The answer is B.") == "B"
    assert parse_mmlu_response(CAPITAL, "The answer is B." + filler) is None


PIECES = [
    *(
        "The answer is ",
        "answer:",
        " B",
        "(",
        ")",
        "A",
        "b",
        "not ",
        "or ",
        ",",
        "\n",
        "**",
        ".",
        " ",
    ),
    *("\\boxed{", "}", "'", "Paris", "1", ",000", "-", "/", "$", "e9", "é", "\ud800", "\x00", "٧"),
]


def test_no_text_makes_a_parser_raise_and_all_answers_are_of_the_right_kind():
    draw = random.Random(0)
    for _ in range(3_000):
        text = "".join(draw.choices(PIECES, k=draw.randrange(20)))
        assert parse_mmlu_response(CAPITAL, text) in {None, *"ABCD"}
        number = parse_gsm8k_response(text)
        assert number is None or set(number) <= set("0123456789.-/")


@pytest.mark.parametrize("piece", [*PIECES, "The answer is A or ", "A, ", "(A", "1,", "-$", "9.9/"])
def test_no_long_text_makes_a_parser_wait(piece):
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    parse_mmlu_response(CAPITAL, text)
    parse_gsm8k_response(text)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("output", [None, 7, b"B"])
def test_what_is_no_text_is_an_error_of_the_program(output):
    with pytest.raises(TypeError, match="must be a string"):
        parse_mmlu_response(CAPITAL, output)
    with pytest.raises(TypeError, match="must be a string"):
        parse_gsm8k_response(output)


def test_the_adapters_are_these_functions():
    assert run_parse_mmlu_response is parse_mmlu_response
    assert run_parse_gsm8k_response is parse_gsm8k_response
