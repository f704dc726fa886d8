"""Benchmarks' files: samples, broken rows by line, and the real files if GSMRL_DATA is set."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from gsmrl_helpers.benchmark_answers import parse_mmlu_response
from gsmrl_helpers.benchmark_files import (
    SAMPLES_DIR,
    gsm8k_prompt,
    load_alpaca_eval,
    load_mmlu,
    load_safety_tests,
    mmlu_prompt,
)
from gsmrl_helpers.csv_files import read_csv, read_csv_with_header
from gsmrl_helpers.jsonl_files import BrokenRow
from gsmrl_helpers.paths import ROOT

SUPPLEMENT = ROOT / os.environ.get("GSMRL_DATA", "none") / "supplement"
needs_supplement = pytest.mark.skipif(
    not SUPPLEMENT.is_dir(), reason="GSMRL_DATA names no folder with supplement/"
)

# --- CSV ------------------------------------------------------------------------------------------


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "rows.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_an_empty_file_a_folder_and_none_are_said(tmp_path):
    empty = written(tmp_path, "")
    assert read_csv(empty, list) == ([], [BrokenRow(1, "the file is empty")])
    with pytest.raises(ValueError, match="must name the columns a, got none"):
        read_csv_with_header(empty, ["a"], dict)
    for wrong, said in ((tmp_path, "is a folder: give one of"), (tmp_path / "no", "no such file")):
        with pytest.raises(FileNotFoundError, match=said):
            read_csv(wrong, list)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("a,b\nc,d\n", [["a", "b"], ["c", "d"]]),
        ("a,b\r\nc,d", [["a", "b"], ["c", "d"]]),
        ('"a,1","say ""b"""\n', [["a,1", 'say "b"']]),
        ('"a\n\nb",c\nd,e\n', [["a\n\nb", "c"], ["d", "e"]]),
        ('5" pipe,b\n', [['5" pipe', "b"]]),
        ("\ufeffa,b\n", [["a", "b"]]),
        ("N/A,None\n", [["N/A", "None"]]),
        ("é,\u2028\n", [["é", "\u2028"]]),
    ],
)
def test_rows_are_read_as_they_stand(tmp_path, content, rows):
    assert read_csv(written(tmp_path, content), lambda fields: fields) == (rows, [])


@pytest.mark.parametrize(
    ("content", "lines", "rows"),
    [
        ('a,b\n"c,d\ne,f\ng,h\n', [2], [["a", "b"], ["e", "f"], ["g", "h"]]),
        ('a,b\n"c,d\n"e",f\n', [2], [["a", "b"], ["e", "f"]]),
        ('"a"b,c\nd,e\n', [1], [["d", "e"]]),
        (b"a,b\n\xff,c\nd,e\n", [2], [["a", "b"], ["d", "e"]]),
        ('"a\nb",c\n\nd,e\n', [3], [["a\nb", "c"], ["d", "e"]]),
        ('"' + "x" * 200_000 + '",b\nc,d\n', [1], [["c", "d"]]),
        ('"' + "a\n" * 300, None, None),
    ],
)
def test_broken_rows_are_reported_by_line_and_the_rest_is_kept(tmp_path, content, lines, rows):
    found, broken = read_csv(written(tmp_path, content), lambda fields: fields)
    if lines is None:  # one quote, never closed: it costs its own line
        lines, rows = [1], [["a"]] * 299
    assert ([row.line for row in broken], found) == (lines, rows)
    assert all(row.problem for row in broken)


def test_what_is_refused_is_reported_by_the_line_on_which_it_starts(tmp_path):
    def refuse(fields):
        if fields[0] == "bad":
            raise ValueError("it is bad")
        return fields[0]

    content = '"a\n\n",1\nbad,"x\ny"\nb,2\nbad,3\n'
    rows, broken = read_csv(written(tmp_path, content), refuse)
    assert rows == ["a\n\n", "b"]
    assert broken == [(4, "it is bad"), (7, "it is bad")]


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_csv(tmp_path / "none.csv", list)


# --- the samples ----------------------------------------------------------------------------------


def test_the_samples_are_whole():
    for path in sorted(SAMPLES_DIR.glob("mmlu/test/*.csv")):
        examples, broken = load_mmlu(path)
        assert len(examples) == 8 and not broken
        assert f"{examples[0]['subject']}_test.csv" == path.name
    instructions, broken = load_alpaca_eval(SAMPLES_DIR / "alpaca_eval_sample.jsonl")
    assert len(instructions) == 12 and not broken
    prompts, broken = load_safety_tests(SAMPLES_DIR / "safety_sample.csv")
    assert len(prompts) == 10 and not broken
    assert Counter(prompt.harm_area for prompt in prompts) == {
        "House rule": 3,
        "Sounds alarming": 4,
        "Ordinary": 3,
    }


def test_every_right_letter_of_the_sample_is_read_from_a_plain_answer():
    for path in SAMPLES_DIR.glob("mmlu/*/*.csv"):
        for example in load_mmlu(path)[0]:
            right = example["options"]["ABCD".index(example["answer"])]
            for reply in (f"The correct answer is {example['answer']}.", right, f"Answer: {right}"):
                assert parse_mmlu_response(example, reply) == example["answer"]


# --- broken rows of the formats -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("Q?,a,b,c,A", "expected 6 fields, got 5"),
        ("Q?,a,b,c,d,e,A", "expected 6 fields, got 7"),
        ("Q?,a,b,c,d,E", "must be one of A, B, C, D, got 'E'"),
        ("Q?,a,b,c,d,a", "must be one of A, B, C, D, got 'a'"),
        ("Q?,a,b,c,d,AB", "must be one of A, B, C, D, got 'AB'"),
        ("Q?,a,b,c,d,", "must be one of A, B, C, D, got ''"),
        (",a,b,c,d,A", "must not be empty"),
        ("Q?,a,,c,d,A", "must not be empty"),
        ("Q?,a", "expected 6 fields, got 2"),
        ("Q?", "expected 6 fields, got 1"),
    ],
)
def test_a_broken_row_of_mmlu_is_reported_and_the_rest_is_kept(tmp_path, row, problem):
    path = tmp_path / "odd_things_test.csv"
    path.write_text(f"Q1?,a,b,c,d,A\n{row}\n Q2?, a,N/A,None,d , D \n")
    examples, broken = load_mmlu(path)
    assert [line for line, _ in broken] == [2] and problem in broken[0].problem
    assert examples[1] == {
        "subject": "odd_things",
        "question": "Q2?",
        "options": ["a", "N/A", "None", "d"],
        "answer": "D",
    }
    assert len(examples) == 2


@pytest.mark.parametrize("name", ["things.csv", "things_test.txt", "_test.csv", "a_train.csv"])
def test_a_file_without_a_subject_is_an_error(tmp_path, name):
    with pytest.raises(ValueError, match=r"names no subject: expected SUBJECT_test\.csv"):
        load_mmlu(tmp_path / name)


def test_broken_rows_of_alpaca_eval_are_reported(tmp_path):
    path = tmp_path / "eval.jsonl"
    good = '{"instruction": "Hi", "output": "Hello", "generator": "g", "dataset": "d"}'
    lines = [good, good.replace('"g"', "7"), good[:-1], "", "[]", '{"instruction": "Hi"}', good]
    path.write_text("\n".join(lines))
    rows, broken = load_alpaca_eval(path)
    assert rows == [("Hi", "Hello", "g", "d")] * 2
    assert [row.line for row in broken] == [2, 3, 4, 5, 6]
    assert "'generator' must be a non-empty string, got 7" in broken[0].problem


def test_broken_rows_of_safety_tests_are_reported(tmp_path):
    path = tmp_path / "sst.csv"
    path.write_text(
        "id,counter,harm_area,category,prompts_final,more\n"  # in another order, and one more
        'S1,1,Area,Kind,"a\nb",x\n'
        "S2,one,Area,Kind,p,x\n"
        "S3,3,Area,Kind,,x\n"
        "S4,4,Area,Kind\n"
        "S5,٤,Area,Kind,p,x\n"
        "S6,6,Area,Kind,p,\n"
    )
    prompts, broken = load_safety_tests(path)
    assert prompts == [("S1", "Area", 1, "Kind", "a\nb"), ("S6", "Area", 6, "Kind", "p")]
    assert [row.line for row in broken] == [4, 5, 6, 7]
    assert "counter must be a whole number, got 'one'" in broken[0].problem
    assert "expected 6 fields, got 4" in broken[2].problem


@pytest.mark.parametrize(
    "content",
    ["", "Q?,a,b,c,d,A\n", "id,id,harm_area,counter,category,prompts_final\n", '"'],
)
def test_a_file_without_the_columns_is_an_error(tmp_path, content):
    path = tmp_path / "sst.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match="first row must name the columns id, harm_area"):
        load_safety_tests(path)


# --- prompts --------------------------------------------------------------------------------------


def test_the_prompt_of_mmlu_shows_question_and_options():
    example = {
        "subject": "odd_things",
        "question": "Which {set}?",
        "options": ["{a}", "b", "c", "d"],
        "answer": "C",
    }
    prompt = mmlu_prompt(example)
    assert "about odd things." in prompt and "Question: Which {set}?\nA. {a}\nB. b\n" in prompt
    assert prompt.endswith("D. d\nAnswer:")
    assert gsm8k_prompt("How many?") == "How many?\nAnswer:"


# --- the real files -------------------------------------------------------------------------------


@needs_supplement
def test_the_real_files_of_mmlu_are_read_whole():
    sizes = {}
    for path in sorted(SUPPLEMENT.glob("mmlu/*/*.csv")):
        examples, broken = load_mmlu(path)
        assert not broken
        sizes[path.stem] = len(examples)
    tests = {name: size for name, size in sizes.items() if name.endswith("_test")}
    assert tests == {
        "abstract_algebra_test": 100,
        "elementary_mathematics_test": 378,
        "high_school_psychology_test": 545,
        "world_religions_test": 171,
    }
    assert [size for name, size in sizes.items() if name.endswith("_dev")] == [5] * 4


@needs_supplement
def test_every_answer_of_mmlu_is_read_by_its_letter_and_by_its_text():
    for path in sorted(SUPPLEMENT.glob("mmlu/test/*.csv")):
        for example in load_mmlu(path)[0]:
            for letter, option in zip("ABCD", example["options"], strict=True):
                for form in ("The correct answer is {}.", "({})", "{}", "Answer: **{}**"):
                    assert parse_mmlu_response(example, form.format(letter)) == letter, example
                by_text = parse_mmlu_response(example, option)
                assert by_text in {letter, None}, (example, option)


@needs_supplement
def test_the_real_rows_of_alpaca_eval_are_read_whole():
    rows, broken = load_alpaca_eval(SUPPLEMENT / "alpaca_eval_first200.jsonl")
    assert len(rows) == 200 and not broken
    assert {row.generator for row in rows} == {"text_davinci_003"}
    assert Counter(row.dataset for row in rows).keys() == {"helpful_base", "koala"}
