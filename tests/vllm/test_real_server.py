"""The engine against a real vLLM server on the CPU: tokens, weights, faults, and what stays behind.

Each start of a server costs most of a minute, so the tests share one, in this order. A second run
samples from another server at the same time: neither may disturb the other. By hand:
`pytest -m vllm --timeout=0 tests/vllm`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from torch import nn

from gsmrl_helpers import LocalEngine, SamplingParams, load_policy, load_problems, make_config
from gsmrl_helpers.config import RunConfig
from gsmrl_helpers.engine import Completion
from gsmrl_helpers.loop import Trainer, take_step
from gsmrl_helpers.master_weights import make_optimizer
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.records import METRICS, read_manifest, read_rows
from gsmrl_helpers.runs import EXECUTED_NAME
from gsmrl_helpers.server_process import (
    PortTakenError,
    ServerProcess,
    ServerStartError,
    check_port_is_free,
)
from gsmrl_helpers.stopping import StopStrings, decode_text
from gsmrl_helpers.vllm_client import ServerResponseError
from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_server import ServerRestartedWarning, VLLMServer
from gsmrl_helpers.weight_sync import WeightSyncError
from gsmrl_helpers.world import policy_location
from tests.vllm.conftest import PYTHON
from tests.vllm.other_run import Run
from tools.record_vllm import another_policy, compare, no_cache_reset

POLICY = ROOT / "data" / "pocket_policy"
TOLERANCE = 1e-3  # nats, on any token
SPLITS = {"curve": 16, "dev": 16, "test": 16}
SMALL = {
    "n_grpo_steps": 3,
    "rollout_batch_size": 64,
    "train_batch_size": 64,
    "splits": SPLITS,
    "validate_every": 3,
    "save_rollouts_every": 1,
}
# What a run of its own has: 32 prompts × 8, and steps large enough to change greedy answers.
LARGE_STEPS = {"rollout_batch_size": 256, "train_batch_size": 256, "learning_rate": 3e-4}
# The prefix cache keeps whole blocks, of 128 tokens by default here.
SMALL_BLOCKS = ("--block-size", "32")


# --- what the tests share ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """`gsmrl run on-policy --profile pocket_vllm`, which samples while the other tests do."""
    run = Run(
        tmp_path_factory.mktemp("runs"),
        **(SMALL | LARGE_STEPS),
        vllm={"python": PYTHON, "extra_args": SMALL_BLOCKS},
    )
    yield run
    run.process.kill()  # its kernel ends with it, and the kernel's server with the kernel
    run.process.wait()


@pytest.fixture(scope="module")
def started() -> list[tuple[ServerProcess, int]]:
    """Every server of these tests with its port, in the order of their starts."""
    return []


@pytest.fixture(scope="module")
def server(other_run: Run, started: list) -> Iterator[VLLMServer]:
    server = VLLMServer(POLICY, VLLMConfig(python=PYTHON, extra_args=SMALL_BLOCKS))
    with server:
        remember(server, started)
        server.init_weight_sync("cpu")
        yield server


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def remember(server: VLLMServer, started: list[tuple[ServerProcess, int]]) -> None:
    started.append((server.running.process, port_of(server.running.client.url)))


def assert_nothing_is_left(process: ServerProcess, port: int) -> None:
    assert not process.members() and not process.folder.exists()
    check_port_is_free(port)


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return make_config("pocket", overrides=SMALL)


@pytest.fixture
def model(config: RunConfig) -> nn.Module:
    return load_policy(config)[0]


@pytest.fixture(scope="module")
def prompts(config: RunConfig) -> list[str]:
    prompt = make_config("pocket").prompt_object()
    problems = load_problems(make_config("pocket"), "dev")
    return [prompt.format(problem.question) for problem in problems]


@pytest.fixture(scope="module")
def group(config: RunConfig) -> SamplingParams:
    return SamplingParams(n=8, max_tokens=48, stop=config.prompt_object().stop, seed=3)


@pytest.fixture(scope="module")
def greedy(group: SamplingParams) -> SamplingParams:
    return group.model_copy(update={"n": 1, "temperature": 0.0})


def ids_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def assert_engine_has(
    server: VLLMServer, model: nn.Module, prompts: list[str], greedy: SamplingParams
) -> None:
    """The server's greedy answers are the model's, and so are their log-probabilities."""
    theirs = server.generate_completions(prompts, greedy)
    ours = LocalEngine(model, server.tokenizer).generate_completions(prompts, greedy)
    assert ids_of(theirs) == ids_of(ours)
    assert [c.text for c in theirs] == [c.text for c in ours]
    assert compare(model, server.tokenizer, prompts, theirs)["quantiles"]["1.0"] < TOLERANCE


# --- tokens ------------------------------------------------------------------------------------


def test_completions_are_what_the_local_engine_promises(server, model, prompts, group):
    few = prompts[:32]
    completions = server.generate_completions(few, group)
    assert [(c.prompt_index, c.sample_index) for c in completions] == [
        (i, j) for i in range(32) for j in range(8)
    ]
    tokenizer = server.tokenizer
    stop = StopStrings(tokenizer, len(tokenizer), group.stop, group.include_stop_str_in_output)
    for c in completions:  # ids as sampled, the text cut after the stop string or before the end
        ended = c.token_ids[-1] == tokenizer.eos_token_id
        stopped = stop.find(c.token_ids)
        assert c.finish_reason == ("stop" if ended or stopped else "length")
        whole = decode_text(tokenizer, c.token_ids[:-1] if ended else c.token_ids)
        assert c.text == (whole if stopped is None else stopped)
        assert stop.find(c.token_ids[:-1]) is None and len(c.token_ids) <= 48
    repeated = [prompt for prompt in few for _ in range(8)]
    difference = compare(model, tokenizer, repeated, completions)
    assert difference["tokens"] > 4000 and difference["quantiles"]["1.0"] < TOLERANCE

    again = server.generate_completions(few, group, batch_size=12)
    same = [a == b for a, b in zip(ids_of(again), ids_of(completions), strict=True)]
    assert sum(same) >= 254  # other batches round differently: one of 50,000 tokens may flip
    assert server.restarts == 0


def test_one_seed_for_every_request_gives_one_answer(server, prompts, group):
    ids = server.tokenizer.encode(prompts[0], add_special_tokens=False)
    client = server.running.client
    one_by_one = [client.complete(ids, 1, 7, group)[0] for _ in range(8)]
    together = client.complete(ids, 8, 7, group)
    assert len({tuple(ids) for ids in ids_of(one_by_one)}) == 1
    assert len({tuple(ids) for ids in ids_of(together)}) > 4


def test_the_engines_agree(server, model, config, prompts, group, greedy):
    assert_engine_has(server, model, prompts[:32], greedy)
    problems = load_problems(make_config("pocket"), "dev")[:250]
    reward_fn = config.prompt_object().reward_fn

    def right_shares(engine: VLLMServer | LocalEngine) -> torch.Tensor:
        completions = engine.generate_completions(prompts[:250], group)
        golds = [problem.gold for problem in problems for _ in range(8)]
        rewards = [
            reward_fn(c.text, gold)["answer_reward"]
            for c, gold in zip(completions, golds, strict=True)
        ]
        return torch.tensor(rewards).view(250, 8).mean(dim=1)

    difference = right_shares(server) - right_shares(LocalEngine(model, server.tokenizer))
    standard_error = difference.std() / 250**0.5  # of paired problems, eight answers each
    assert 0 < standard_error < 0.03 and difference.mean().abs() < 3 * standard_error


# --- weights -----------------------------------------------------------------------------------


def test_three_grpo_steps_and_a_sync_after_each(server, model, config, prompts, greedy, tmp_path):
    optimizer = make_optimizer(config, model.parameters())
    trainer = Trainer(
        config,
        model,
        server.tokenizer,
        optimizer,
        server,
        config.prompt_object(),
        None,
        config.difficulty,
    )
    problems = {split: load_problems(config, split) for split in ("train", *SPLITS)}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for step in (1, 2, 3):
        row = take_step(trainer, problems, step, tmp_path)
        assert row["engine_log_prob_difference_max"] < TOLERANCE and row["grad_norm"] > 0
        server.sync_policy_weights(model)
        assert_engine_has(server, model, prompts[:32], greedy)
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(moved) and server.restarts == 0


def test_a_cache_that_is_not_reset_answers_from_the_old_weights(server, model, prompts, greedy):
    few, other = prompts[:16], another_policy(model)
    assert all(len(server.tokenizer.encode(prompt)) > 3 * 32 for prompt in few)
    server.sync_policy_weights(model)
    server.generate_completions(few, greedy)
    with no_cache_reset(server):
        server.sync_policy_weights(other)
        with pytest.raises(AssertionError):
            assert_engine_has(server, other, few, greedy)
    server.sync_policy_weights(other)
    assert_engine_has(server, other, few, greedy)


def test_a_failed_update_tells_the_server_s_words_and_the_next_sync_works(
    server, model, prompts, greedy, started
):
    with pytest.raises(WeightSyncError, match=r"HTTP 500.*no module or parameter named 'theta'"):
        server.sync_policy_weights(nn.ParameterDict({"theta": torch.zeros(3)}))
    assert_nothing_is_left(*started[-1])  # it has generated for 32 prompts × 8
    server.sync_policy_weights(model)
    remember(server, started)
    assert_engine_has(server, model, prompts[:16], greedy)


# --- faults ------------------------------------------------------------------------------------


def test_a_server_killed_while_it_generates_is_replaced(server, model, prompts, group, started):
    other = another_policy(model, noise=0.02)
    server.sync_policy_weights(other)
    reference = server.generate_completions(prompts[:32], group)
    dead = server.running.process
    killer = threading.Timer(0.3, lambda: os.killpg(dead.group, signal.SIGKILL))
    killer.start()
    with pytest.warns(ServerRestartedWarning, match="the server died"):
        again = server.generate_completions(prompts[:256], group)[: 32 * 8]
    assert_nothing_is_left(*started[-1])
    remember(server, started)
    same = [a == b for a, b in zip(ids_of(again), ids_of(reference), strict=True)]
    assert sum(same) >= 254  # the weights of the last sync, the draws of the first attempt


def test_what_the_server_refuses(server, prompts, greedy):
    with pytest.raises(ValueError, match="prompt 0 has 1200 tokens"):
        server.generate_completions(["3 " * 600], greedy)
    too_long = server.tokenizer.encode("3 " * 600, add_special_tokens=False)
    with pytest.raises(ServerResponseError, match=r"HTTP 400.*maximum context length"):
        server.running.client.complete(too_long, 1, 0, greedy)
    assert len(server.generate_completions(prompts[:1], greedy)) == 1


class Foreign(BaseHTTPRequestHandler):
    """A web server that has nothing to do with vLLM."""

    def log_message(self, *_: object) -> None:
        pass


def test_starts_that_fail(tmp_path):
    with HTTPServer(("127.0.0.1", 0), Foreign) as foreign, pytest.raises(PortTakenError):
        VLLMServer(POLICY, VLLMConfig(python=PYTHON, port=foreign.server_port)).start()
    with pytest.raises(ServerStartError, match="not up after start_timeout=2 s"):
        VLLMServer(POLICY, VLLMConfig(python=PYTHON, start_timeout=2.0)).start()
    unknown = VLLMServer(POLICY, VLLMConfig(python=PYTHON))
    unknown.model = str(tmp_path / "no_policy")
    with pytest.raises(ServerStartError, match=r"(?s)ended while it started.*no_policy"):
        unknown.start()


# --- the end -----------------------------------------------------------------------------------


def test_nothing_is_left_of_a_server_that_is_stopped(server, prompts, group, started):
    assert len(server.generate_completions(prompts[:32], group)) == 32 * 8
    server.stop()
    assert len(started) == 3 and len({process.group for process, _ in started}) == 3
    assert_nothing_is_left(*started[-1])


def test_the_run_through_papermill_was_not_disturbed(other_run):
    assert other_run.process.wait() == 0, other_run.output.read_text()[-3000:]
    rows = read_rows(other_run.folder / METRICS)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["engine_log_prob_difference_max"] < TOLERANCE
        assert row["engine_log_prob_difference_mean"] < TOLERANCE / 10
        assert row["identical_group_share"] < 1
    manifest = read_manifest(other_run.folder)
    assert manifest["status"] == "finished" and manifest["config"]["engine"] == "vllm"
    assert (other_run.folder / EXECUTED_NAME).is_file()


def test_after_each_sync_of_that_run_the_engine_answered_as_the_trainer(other_run):
    assert other_run.process.wait() == 0
    syncs = read_rows(other_run.syncs)
    assert len(syncs) == 1 + 3 + 3  # curve at step 0, three steps, then curve, dev and test
    for sync in syncs:
        assert sync["engine"] == sync["trainer"]
        assert len(sync["engine"]) == 16 and sum(map(len, sync["engine"])) > 300
    # Four policies, of which no two answer alike: the one before would have been found out.
    assert len({sync["weights"] for sync in syncs}) == 4
    assert len({str(sync["trainer"]) for sync in syncs}) == 4


def test_nothing_is_left_of_that_run_and_its_server(other_run):
    assert other_run.process.wait() == 0
    (url,) = {sync["url"] for sync in read_rows(other_run.syncs)}
    deadline = time.monotonic() + 30
    while other_run.descendants() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not other_run.descendants()
    check_port_is_free(port_of(url))


def test_the_profile_names_the_environment_that_make_test_vllm_makes():
    config = make_config("pocket_vllm")
    assert config.vllm.python == ".venv-vllm/bin/python" and config.engine == "vllm"
    assert policy_location(config) == POLICY
