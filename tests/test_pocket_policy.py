"""The pocket policy: its corpus, its tokenizer, its pretraining, and what is shipped."""

import json
import random
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import Olmo2ForCausalLM, PreTrainedTokenizerFast

from gsmrl_helpers.experiments import experiment_config
from gsmrl_helpers.grading import r1_zero_reward_fn
from gsmrl_helpers.paths import DATA_DIR
from gsmrl_helpers.pocket_corpus import (
    DOCUMENT_SHARES,
    TURN_SHARES,
    calculations_of,
    draw_turn,
    slipped,
    stream_documents,
    worked,
)
from gsmrl_helpers.pocket_policy import (
    PretrainConfig,
    encode_document,
    microbatches_of_step,
    pretrain,
    train_tokenizer,
)
from gsmrl_helpers.pocket_problems import apply_operator, load_pocket_problems, split_of
from gsmrl_helpers.problems import Problem
from gsmrl_helpers.prompting import PROMPTS, get_prompt
from gsmrl_helpers.world import load_policy

TINY = PretrainConfig(
    vocab_size=400,
    tokenizer_documents=300,
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    n_steps=4,
    documents_per_step=4,
)


@pytest.fixture(scope="module")
def shipped() -> tuple[Olmo2ForCausalLM, PreTrainedTokenizerFast]:
    return load_policy(experiment_config("on-policy"))


def test_the_corpus_reads_only_questions_of_its_own_split() -> None:
    def questions(prompt: str) -> list[str]:
        return [part.split("\nAssistant:")[0] for part in prompt.split("User: ")[1:]]

    asked = [q for d in islice(stream_documents(0), 2000) for q in questions(d.prompt)]
    assert len(asked) > 500 and {split_of(question) for question in asked} == {"pretrain"}


def test_a_worked_turn_is_right_and_a_slip_is_one_consistent_mistake() -> None:
    rng = random.Random(0)
    still_right = 0
    for problem in load_pocket_problems("dev", 300):
        assert r1_zero_reward_fn(worked(rng, problem), problem.gold)["reward"] == 1
        right, wrong = calculations_of(problem), slipped(rng, calculations_of(problem))
        assert wrong != right
        miscalculated = [
            (a, op, b) for a, op, b, claimed in wrong if apply_operator(op, a, b) != claimed
        ]
        assert len(miscalculated) <= 1
        still_right += wrong[-1][-1] == right[-1][-1]
    assert still_right < 15  # 2·2 = 2+2: a mistake that happens to lead to the right number


def test_turns_are_drawn_with_their_shares() -> None:
    rng = random.Random(0)
    problem = load_pocket_problems("dev", 1)[0]
    turns = [draw_turn(rng, "r1_zero", problem) for _ in range(4000)]
    formatted = Counter(r1_zero_reward_fn(t, problem.gold)["format_reward"] for t in turns)
    shares = TURN_SHARES["r1_zero"]
    assert sum(shares.values()) == pytest.approx(1)
    expected = shares["slip"] + shares["guess"]
    assert formatted[1.0] / len(turns) == pytest.approx(expected, abs=0.03)


def test_the_page_says_what_was_read() -> None:
    page = (DATA_DIR / "README.md").read_text()
    rows = re.findall(r"^\| ([\w -]+?)(?: conversations|s)? \| (\d+) % \|", page, re.MULTILINE)
    names = {"few-shot": "few_shot"}
    shares = {names.get(name, name): int(share) / 100 for name, share in rows}
    assert shares == pytest.approx(DOCUMENT_SHARES) and sum(shares.values()) == pytest.approx(1)
    config = PretrainConfig()
    assert f"{config.n_steps:,} steps of {config.documents_per_step} documents" in page


def test_digits_stand_alone_and_any_text_survives(shipped: tuple) -> None:
    tokenizer = shipped[1]
    assert tokenizer.tokenize("12+345=357") == list("12+345=357")
    for text in ("naïve 😀 {x} \\boxed{7}\n", " </think> <answer> 10 </answer>"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    lengths = {
        name: len(tokenizer.encode(prompt.format(""), add_special_tokens=False))
        for name, prompt in PROMPTS.items()
    }
    assert 80 < lengths["r1_zero"] < 110
    assert lengths["r1_zero_three_shot"] < 300 and lengths["question_only"] < 20


def test_a_document_is_tokenised_like_a_prompt_and_its_response(shipped: tuple) -> None:
    tokenizer = shipped[1]
    document = next(d for d in stream_documents(0) if d.prompt)
    ids = encode_document(tokenizer, document)
    prompt_ids = tokenizer.encode(document.prompt, add_special_tokens=False)
    assert ids[: len(prompt_ids)] == prompt_ids and ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids[len(prompt_ids) : -1]) == document.response


def test_microbatches_hold_every_document_of_the_step_once(shipped: tuple) -> None:
    tokenizer = shipped[1]
    batches = list(microbatches_of_step(PretrainConfig(), tokenizer, 3))
    assert sum(len(batch) for batch in batches) == PretrainConfig().documents_per_step
    rows = [ids[ids >= 0].tolist() for batch in batches for ids in batch]
    again = stream_documents("0, step 3", PretrainConfig().difficulty)
    expected = [encode_document(tokenizer, d) for d in islice(again, len(rows))]
    assert sorted(rows) == sorted(expected)


def test_pretraining_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole = pretrain(TINY, tmp_path / "whole", save_every=2)
    stopped = tmp_path / "stopped"
    pretrain(TINY, stopped, save_every=2, last_step=2)
    resumed = pretrain(TINY, stopped, save_every=2)
    for name in ("model.safetensors", "tokenizer.json", "pretraining.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    with pytest.raises(ValueError, match="another configuration"):
        pretrain(TINY.model_copy(update={"seed": 1}), stopped)


def test_the_same_seed_makes_the_same_tokenizer() -> None:
    assert train_tokenizer(TINY).get_vocab() == train_tokenizer(TINY).get_vocab()


def test_what_is_shipped_is_small_real_and_of_this_configuration(shipped: tuple) -> None:
    model, tokenizer = shipped
    folder = DATA_DIR / "pocket_policy"
    assert type(model) is Olmo2ForCausalLM and model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert (folder / "model.safetensors").stat().st_size <= 4 * 2**20
    assert model.config.max_position_embeddings >= 512
    made_by = json.loads((folder / "pretraining.json").read_text())
    assert made_by == PretrainConfig().model_dump()
    assert train_tokenizer(PretrainConfig()).get_vocab() == tokenizer.get_vocab()


def test_the_shipped_policy_knows_its_arithmetic(shipped: tuple) -> None:
    """Given a textbook's form and no choice, it works most problems out."""
    model, tokenizer = shipped
    problems = load_pocket_problems("dev", 48)

    def loss(problem: Problem, gold: str) -> float:
        last = calculations_of(problem)[-1]
        text = f"Question: {problem.question}\nAnswer:"
        text += "".join(f" {a}{op}{b}={c}." for a, op, b, c in calculations_of(problem)[:-1])
        ids = tokenizer.encode(f"{text} {last[0]}{last[1]}{last[2]}={gold}.", return_tensors="pt")
        with torch.no_grad():
            return model.eval()(ids, labels=ids).loss.item() * ids.shape[1]

    better = [loss(p, p.gold) < loss(p, str(int(p.gold) + 1)) for p in problems]
    assert sum(better) / len(better) > 0.9


def test_the_r1_zero_template_precedes_every_such_document() -> None:
    start = get_prompt("r1_zero").template.partition("User: {question}")[0]
    documents = [d for d in islice(stream_documents(1), 500) if "<think>" in d.prompt]
    assert documents and all(d.prompt.startswith(start) for d in documents)
