"""Problems and GSM8K: rows read or refused by name, files checked, found, fetched, imported."""

from __future__ import annotations

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gsmrl_helpers import gsm8k
from gsmrl_helpers.grading import question_only_reward_fn, r1_zero_reward_fn
from gsmrl_helpers.gsm8k import (
    GSM8K_SHA256,
    Gsm8kChecksumError,
    Gsm8kNotFoundError,
    import_gsm8k,
    load_gsm8k,
)
from gsmrl_helpers.problems import Problem, problem_from_row, read_problems_jsonl

ROWS = [
    {"question": f"What is {i} + 1,000?", "answer": f"So <<{i}+1000={i + 1000}>>.\n#### 1,00{i} "}
    for i in range(5)
]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


# --- rows --------------------------------------------------------------------------------------


def test_a_row_is_read_and_its_gold_stripped():
    row = {"question": "How many?", "answer": "9+9 = <<9+9=18>>18 eggs.\n####  1,018 \n"}
    assert problem_from_row(row) == Problem("How many?", row["answer"], "1,018")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question": "How many?", "answer": "18"}, r"'####' exactly once, found it 0.*'18'"),
        ({"question": "Q", "answer": "#### 1 #### 2"}, r"exactly once, found it 2 times.*#### 1"),
        ({"question": "Q", "answer": "So. #### \n"}, r"nothing follows '####'.*'So\. #### "),
        ({"question": "Q"}, r"'answer' must be a non-empty string.*'Q'"),
        ({"question": " ", "answer": "#### 1"}, r"'question' must be a non-empty string.*#### 1"),
        ({"question": "Q", "answer": 18}, r"'answer' must be a non-empty string.*18"),
        (["#### 1"], r"expected a row with 'question' and 'answer', got \['#### 1'\]"),
    ],
)
def test_a_bad_row_is_refused_and_named(row, complaint):
    with pytest.raises(ValueError, match=complaint):
        problem_from_row(row)


@pytest.mark.parametrize("gold", ["#### 18", "So 18.\n#### 18", "", " ", None])
def test_a_gold_that_is_none_is_an_error_where_it_is_loaded(gold):
    with pytest.raises(ValueError, match="gold"):
        Problem("How many?", "So 18.\n#### 18", gold)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "blank line"),
        ("  ", "blank line"),
        ("{'question'}", "Expecting property name"),
        ('{"question": "Q", "answer": "18"}', "exactly once"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, complaint):
    path = tmp_path / "mine.jsonl"
    path.write_text(f"{json.dumps(ROWS[0])}\n{line}\n{json.dumps(ROWS[1])}\n")
    with pytest.raises(ValueError, match=rf"mine\.jsonl, line 2: .*{complaint}"):
        read_problems_jsonl(path)


def test_a_question_may_hold_any_character(tmp_path):
    question = "{How} many\u2028eggs\x85 of “José”?"
    row = {"question": question, "answer": "#### −5"}
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_problems_jsonl(path) == [Problem(question, "#### −5", "−5")]


# --- files -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with both splits, whose sums stand in for GSM8K's; nowhere else to look."""
    for split in GSM8K_SHA256:
        monkeypatch.setitem(GSM8K_SHA256, split, hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.delenv("GSMRL_DATA", raising=False)
    monkeypatch.setattr(gsm8k, "DATA_DIR", tmp_path / "project-data")
    monkeypatch.setattr(gsm8k, "GSM8K_URL", "http://127.0.0.1:9/")
    monkeypatch.setattr(gsm8k, "DOWNLOAD_RETRIES", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return write_splits(tmp_path / "here" / "gsm8k").parent


def write_splits(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(parents=True)
    for split in GSM8K_SHA256:
        (folder / f"{split}.jsonl").write_bytes(content)
    return folder


def test_problems_come_in_the_files_order(folder):
    problems = load_gsm8k("train", data_dir=folder)
    assert [p.gold for p in problems] == ["1,000", "1,001", "1,002", "1,003", "1,004"]
    assert problems[1] == Problem(ROWS[1]["question"], ROWS[1]["answer"], "1,001")


@pytest.mark.parametrize(("limit", "count"), [(0, 0), (1, 1), (4, 4), (5, 5), (99, 5), (None, 5)])
def test_a_limit_takes_the_first_so_many(folder, limit, count):
    problems = load_gsm8k("test", limit=limit, data_dir=folder)
    assert [p.question for p in problems] == [row["question"] for row in ROWS[:count]]


@pytest.mark.parametrize("limit", [-1, 2.0, "3", True])
def test_a_limit_that_is_none_is_refused(folder, limit):
    with pytest.raises(ValueError, match=re.escape(f"integer of at least 0, got {limit!r}")):
        load_gsm8k("test", limit=limit, data_dir=folder)


def test_an_unknown_split_is_refused(folder):
    with pytest.raises(ValueError, match="unknown split 'dev'; GSM8K has train, test"):
        load_gsm8k("dev", data_dir=folder)


def test_the_variable_names_the_folder_and_the_projects_own_comes_second(folder, monkeypatch):
    monkeypatch.setenv("GSMRL_DATA", str(folder))
    assert len(load_gsm8k("train")) == 5
    write_splits(gsm8k.DATA_DIR / "gsm8k")
    monkeypatch.setenv("GSMRL_DATA", str(folder / "nowhere"))
    assert len(load_gsm8k("train")) == 5


def test_a_relative_variable_counts_from_the_projects_root(folder, monkeypatch):
    monkeypatch.setattr(gsm8k, "ROOT", folder.parent)
    monkeypatch.setenv("GSMRL_DATA", folder.name)
    assert len(load_gsm8k("train")) == 5


def test_a_changed_file_is_named_with_both_sums(folder):
    path = folder / "gsm8k" / "train.jsonl"
    path.write_bytes(CONTENT[:-1])
    found, expected = hashlib.sha256(CONTENT[:-1]).hexdigest(), GSM8K_SHA256["train"]
    with pytest.raises(Gsm8kChecksumError, match=f"{path}.*{found}.*{expected}"):
        load_gsm8k("train", data_dir=folder)


def test_without_file_and_network_the_error_says_what_to_do(folder):
    with pytest.raises(Gsm8kNotFoundError, match=r"GSMRL_DATA.*`gsmrl data gsm8k --from DIR`"):
        load_gsm8k("train")


# --- download ----------------------------------------------------------------------------------


@pytest.fixture
def server(folder, monkeypatch):
    """A web server that gives the answers in its list, one a request."""
    answers: list[tuple[int, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        monkeypatch.setattr(gsm8k, "GSM8K_URL", f"http://127.0.0.1:{running.server_port}/")
        yield answers
        running.shutdown()


def test_a_download_survives_a_failure_and_is_made_once(server, monkeypatch):
    monkeypatch.setattr(gsm8k, "DOWNLOAD_RETRIES", 1)
    server[:] = [(503, b"busy"), (200, CONTENT)]
    assert len(load_gsm8k("train")) == 5
    assert (gsm8k.DATA_DIR / "gsm8k" / "train.jsonl").read_bytes() == CONTENT
    assert len(load_gsm8k("train")) == 5
    assert server == []


def test_a_download_that_is_not_gsm8k_leaves_nothing_behind(server):
    server[:] = [(200, b"<html>log in</html>")]
    found = hashlib.sha256(b"<html>log in</html>").hexdigest()
    with pytest.raises(Gsm8kChecksumError, match=f"{GSM8K_SHA256['test']}.*{found}"):
        load_gsm8k("test")
    assert list((gsm8k.DATA_DIR / "gsm8k").iterdir()) == []


# --- import ------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "gsm8k"])
def test_both_splits_are_imported_and_then_found(folder, inside):
    target = gsm8k.DATA_DIR / "gsm8k"
    source = folder if inside == "" else folder / inside
    assert import_gsm8k(source) == [target / "train.jsonl", target / "test.jsonl"]
    assert sorted(path.name for path in target.iterdir()) == ["test.jsonl", "train.jsonl"]
    assert len(load_gsm8k("test")) == 5


def test_an_import_repairs_a_changed_file(folder):
    write_splits(gsm8k.DATA_DIR / "gsm8k", b"cut")
    import_gsm8k(folder)
    assert len(load_gsm8k("train")) == 5


def test_nothing_is_imported_unless_both_files_are_right(folder):
    (folder / "gsm8k" / "test.jsonl").write_bytes(b"cut")
    with pytest.raises(Gsm8kChecksumError, match=r"test\.jsonl is not GSM8K's test split"):
        import_gsm8k(folder)
    (folder / "gsm8k" / "test.jsonl").unlink()
    with pytest.raises(Gsm8kNotFoundError, match=r"no test\.jsonl in"):
        import_gsm8k(folder)
    assert not gsm8k.DATA_DIR.exists()


# --- the real files ----------------------------------------------------------------------------


def real_split(split: str) -> list[Problem]:
    if gsm8k._find(split, gsm8k._data_folders()) is None:
        pytest.skip("GSM8K is not here: set GSMRL_DATA or run `gsmrl data gsm8k`")
    return load_gsm8k(split)


@pytest.mark.parametrize(("split", "rows", "commas"), [("train", 7473, 79), ("test", 1319, 14)])
def test_the_real_split_has_its_rows(split, rows, commas):
    problems = real_split(split)
    assert len(problems) == rows
    assert sum("," in p.gold for p in problems) == commas
    assert len({p.question for p in problems}) == rows


@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_every_real_gold_scores_in_each_format_and_plus_one_does_not(split, rows):
    right, wrong = 0, 0
    for problem in real_split(split):
        for answer in (problem.gold, str(int(problem.gold.replace(",", "")) + 1)):
            tagged = r1_zero_reward_fn(f" So. </think> <answer> {answer} </answer>", problem.gold)
            boxed = question_only_reward_fn(rf"So \boxed{{{answer}}}.", problem.gold)
            assert tagged == boxed
            right += tagged["reward"] == 1.0
            wrong += tagged["reward"] == 0.0
    assert (right, wrong) == (rows, rows)
