"""The vLLM engine against a stand-in server: what it asks, what it refuses, what it survives.

`tests/vllm` asks a real one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
import torch

from gsmrl_helpers import SamplingParams
from gsmrl_helpers import server_process as process_module
from gsmrl_helpers.paths import ROOT
from gsmrl_helpers.server_process import (
    PortTakenError,
    ServerError,
    ServerProcess,
    ServerStartError,
    check_port_is_free,
    free_port,
)
from gsmrl_helpers.vllm_client import ServerResponseError
from gsmrl_helpers.vllm_config import VLLMConfig
from gsmrl_helpers.vllm_process import arguments, environment
from gsmrl_helpers.vllm_server import ServerRestartedWarning, VLLMServer
from gsmrl_helpers.weight_sync import WeightSyncError
from tests.tiny_vllm import FakeVLLM, Unigram

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")

PROMPTS = ["1+1=", "2+2=", "a b c"]
PARAMS = SamplingParams(n=4, max_tokens=12, seed=1, stop=("</answer>",))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeVLLM:
    monkeypatch.setenv("FAKE_VLLM", "")  # and take it back afterwards
    return FakeVLLM(tmp_path)


@pytest.fixture
def server(fake: FakeVLLM):
    with fake.server() as server:
        yield server


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory):
    """A server for the tests that leave it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_VLLM", "")
        fake = FakeVLLM(tmp_path_factory.mktemp("shared"))
        with fake.server() as server:
            yield fake, server


@pytest.fixture
def shared(shared_server: tuple[FakeVLLM, VLLMServer]) -> tuple[FakeVLLM, VLLMServer]:
    shared_server[0].requests()  # those of the tests before
    return shared_server


def ids_of(completions) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def port_of(server: VLLMServer) -> int:
    return int(server.running.client.url.rsplit(":", 1)[1])


# --- completions -------------------------------------------------------------------------------


def test_completions_are_prompt_major_and_carry_their_log_probs(shared):
    _, server = shared
    completions = server.generate_completions(PROMPTS, PARAMS)
    places = [(c.prompt_index, c.sample_index) for c in completions]
    assert places == [(i, j) for i in range(3) for j in range(4)]
    known = Unigram().log_probs()
    for completion in completions:
        expected = known[torch.tensor(completion.token_ids)]
        torch.testing.assert_close(torch.tensor(completion.log_probs), expected)
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] == 1)
    assert len({tuple(ids) for ids in ids_of(completions)}) == 12


def test_a_group_is_one_request_with_every_parameter_said(shared):
    fake, server = shared
    server.generate_completions([PROMPTS[0], PROMPTS[1], PROMPTS[0]], PARAMS)
    requests = sorted(fake.requests(), key=lambda request: -request["n"])
    assert [request["n"] for request in requests] == [8, 4]  # a prompt that occurs twice
    assert requests[0]["seed"] != requests[1]["seed"]
    assert requests[0]["prompt"] == server.tokenizer.encode("1+1=", add_special_tokens=False)
    said = {name: requests[0][name] for name in requests[0].keys() - {"prompt", "seed", "model"}}
    assert said == {
        "path": "/v1/completions",
        "n": 8,
        **{"max_tokens": 12, "min_tokens": 0, "stop": ["</answer>"], "ignore_eos": False},
        **{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        **{"include_stop_str_in_output": True, "skip_special_tokens": True},
        **{"spaces_between_special_tokens": False, "logprobs": 0, "return_token_ids": True},
    }


def test_draws_follow_from_seed_prompt_and_number_alone(shared):
    _, server = shared
    reference = ids_of(server.generate_completions(PROMPTS, PARAMS))
    for batch_size in (1, 3, 5, 100):
        assert ids_of(server.generate_completions(PROMPTS, PARAMS, batch_size)) == reference
    backward = ids_of(server.generate_completions(PROMPTS[::-1], PARAMS))
    assert backward == reference[8:] + reference[4:8] + reference[:4]
    repeated = ids_of(
        server.generate_completions([PROMPTS[0]] * 4, PARAMS.model_copy(update={"n": 1}))
    )
    assert repeated == reference[:4]
    other = ids_of(server.generate_completions(PROMPTS, PARAMS.model_copy(update={"seed": 2})))
    assert all(a != b for a, b in zip(reference, other, strict=True))


def test_at_most_batch_size_draws_are_asked_for_at_a_time(shared):
    fake, server = shared
    server.generate_completions(PROMPTS, PARAMS, 3)
    requests = fake.requests()
    assert sorted(request["n"] for request in requests) == [1, 1, 1, 3, 3, 3]
    first = {tuple(r["prompt"]): r["seed"] for r in requests if r["n"] == 3}
    assert all(r["seed"] == first[tuple(r["prompt"])] + 3 for r in requests if r["n"] == 1)


def test_greedy_completions_are_one_draw_many_times(shared):
    fake, server = shared
    greedy = PARAMS.model_copy(update={"temperature": 0.0})
    completions = server.generate_completions([PROMPTS[0], PROMPTS[0]], greedy)
    assert [request["n"] for request in fake.requests()] == [1]
    assert len(completions) == 8 and len({tuple(ids) for ids in ids_of(completions)}) == 1
    assert [c.sample_index for c in completions] == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("choice_missing", r"4 completions were asked for; it answered with \[0, 1, 2\]"),
        ("aborted", "finish_reason='abort'"),
        ("no_log_probs", "log-probability for each"),
        ("refuse", "HTTP 400.*no such thing"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(shared, fault, message):
    fake, server = shared
    fake.switch(fault)
    with pytest.raises(ServerResponseError, match=message):
        server.generate_completions(PROMPTS, PARAMS)
    fake.switch(fault, on=False)
    assert len(server.generate_completions(PROMPTS, PARAMS)) == 12 and server.restarts == 0


@pytest.mark.parametrize(
    ("prompts", "batch_size", "message"),
    [
        ("1+1=", None, "one string"),
        (["1", ""], None, "prompt 1 is empty"),
        (["1" * 60], None, "prompt 0 has 60 tokens and max_tokens is 12.*context of 64"),
        (["1"], 0, "batch_size is 0"),
    ],
)
def test_what_cannot_be_sampled_is_refused_before_any_request(shared, prompts, batch_size, message):
    fake, server = shared
    with pytest.raises(ValueError, match=message):
        server.generate_completions(prompts, PARAMS, batch_size)
    assert fake.requests() == []


# --- the process -------------------------------------------------------------------------------


def test_start_and_stop_twice_leave_nothing_behind(fake):
    fake.switch("has_children")
    server, port = fake.server(port=free_port()), None
    for _ in range(2):
        server.start()
        process, port = server.running.process, port_of(server)
        assert listens(port) and len(process.members()) >= 3  # guard, server, its child
        server.stop()
        server.stop()
        assert not process.members() and not process.folder.exists()
        check_port_is_free(port)
    with pytest.raises(ServerError, match="call start"):
        server.generate_completions(PROMPTS, PARAMS)


def test_what_does_not_end_when_told_is_killed(fake, monkeypatch):
    monkeypatch.setattr(process_module, "GRACE_S", 0.5)
    fake.switch("stubborn")
    with fake.server() as server:
        process = server.running.process
    assert not process.members()


def test_only_our_own_group_is_signalled(fake, server):
    guard = psutil.Process(server.running.process.group)
    [child] = guard.children()
    twin = subprocess.Popen(child.cmdline())  # of the same command line, in another group
    server.stop()
    assert twin.poll() is None
    twin.kill()
    twin.wait()


def test_the_server_and_its_folder_go_with_a_killed_parent(tmp_path):
    (tmp_path / "other").mkdir()
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from gsmrl_helpers.server_process import ServerProcess\n"
            "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
            "process = ServerProcess(command)\n"
            "(process.folder / 'weights').mkdir()\n"
            "print(process.group, process.folder, flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    group, folder = parent.stdout.readline().split()
    assert Path(folder).parent == tmp_path and Path(folder, "weights").is_dir()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (group_lives(int(group)) or Path(folder).exists()):
        time.sleep(0.1)
    assert not group_lives(int(group))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("name", ["other", "gsmrl-server-link"])
def test_the_guard_removes_no_folder_but_a_server_s(tmp_path, name):
    folder, kept = tmp_path / name, tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder.symlink_to(kept) if "link" in name else kept.rename(folder)
    nobody = 0  # is not the guard's parent: so that this one is gone at once
    command = [sys.executable, "-I", process_module.GUARD, str(nobody), folder, "sleep", "600"]
    guard = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert guard.wait(60) == -signal.SIGKILL
    guard.communicate(timeout=60)  # its pipe is closed: the remover has ended, too
    assert (folder / "file").exists()


def group_lives(group: int) -> bool:
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
        except (ProcessLookupError, psutil.Error):
            pass
    return False


def test_a_process_that_ends_is_noticed_with_its_last_words():
    process = ServerProcess(
        [sys.executable, "-c", "print('one'); print('two'); raise SystemExit(3)"]
    )
    deadline = time.monotonic() + 30
    while process.running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.running() and process.last_lines(2) == "two\n(ended with exit code 3)"
    process.stop()


class Foreign(BaseHTTPRequestHandler):
    """A web server that has nothing to do with vLLM."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_a_taken_port_is_refused_and_its_owner_left_alone(fake):
    with HTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        with pytest.raises(PortTakenError, match=f"port {foreign.server_port} is taken"):
            fake.server(port=foreign.server_port).start()
        assert listens(foreign.server_port)
        foreign.shutdown()


def test_an_answer_of_another_server_is_not_taken_for_ours(fake):
    fake.switch("other_model")
    server = fake.server()
    with pytest.raises(ServerStartError, match=r"not with our model.*another-model"):
        server.start()
    assert server.running is None


def test_a_start_that_fails_says_why_and_leaves_nothing(fake):
    fake.switch("slow_start")
    with pytest.raises(ServerStartError, match=r"not up after start_timeout=3 s.*\narguments:"):
        fake.server(start_timeout=3.0).start()
    fake.switch("slow_start", on=False)
    server = fake.server()
    server.model = str(fake.model / "nowhere")
    with pytest.raises(ServerStartError, match=r"(?s)ended while it.*no model in .*nowhere"):
        server.start()
    assert not [p for p in psutil.Process().children() if "fake_vllm" in " ".join(p.cmdline())]
    server.config = server.config.model_copy(update={"python": "no/such/python"})
    with pytest.raises(ServerStartError, match=r"no/such/python.*make test-vllm"):
        server.start()


def test_the_command_line_says_what_decides_the_tokens(fake, server):
    line = server.running.process.last_lines().splitlines()[0]
    for words in (
        f"--model {fake.model}",
        "--host 127.0.0.1",
        "--dtype float32",
        "--generation-config vllm",
        f"--port {port_of(server)}",
    ):
        assert words in line


def test_the_server_s_gpu_is_counted_among_those_that_the_trainer_sees(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-8f")
    gpu = VLLMConfig(python="python", device="cuda:1", gpu_memory_utilization=0.5)
    assert environment("no folder", gpu) == {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-8f",
    }
    words = arguments("no folder", gpu, "bfloat16", 8000, "name")
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.5"
    with pytest.raises(ValueError, match="cuda:2, but 2 GPUs are to be seen"):
        environment("no folder", gpu.model_copy(update={"device": "cuda:2"}))


def test_a_gpu_that_the_machine_does_not_have_is_refused(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu = VLLMConfig(python="python", device="cuda:1")
    assert environment("no folder", gpu)["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(ValueError, match=r"cuda:2, but 2 GPUs are to be seen.*vllm\.device"):
        environment("no folder", gpu.model_copy(update={"device": "cuda:2"}))


def test_a_server_computes_in_the_policy_s_dtype_or_in_the_one_that_is_set(fake):
    assert VLLMServer(fake.model, fake.config(), "bfloat16").dtype == "bfloat16"
    assert VLLMServer(fake.model, fake.config(dtype="float16"), "float32").dtype == "float16"
    with pytest.raises(ValueError, match=r"--dtype is set by the setting vllm\.dtype"):
        fake.config(extra_args=("--dtype=half",))


def test_a_policy_that_is_not_there_and_a_program_that_says_nothing_are_named(fake):
    with pytest.raises(ServerStartError, match=r"no such policy: .*nowhere"):
        VLLMServer(fake.model / "nowhere", fake.config())
    mute = VLLMServer(fake.model, VLLMConfig(python="true"))
    with pytest.raises(ServerStartError, match=r"ended while it started.*\n.*exit code 0"):
        mute.start()


def test_the_trainer_s_cached_memory_is_given_back_before_the_server_wakes(fake, monkeypatch):
    before: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: before.append([r["path"] for r in fake.requests()])
    )
    with fake.server(sleep=True) as server:
        server.generate_completions(["1"], PARAMS)
        assert before == [[]] and fake.requests()[0]["path"] == "/wake_up"


# --- weights -----------------------------------------------------------------------------------


def synced(server: VLLMServer, seed: int = 0) -> Unigram:
    server.init_weight_sync("cpu")
    policy = Unigram(seed)
    server.sync_policy_weights(policy)
    return policy


def greedy_token(server: VLLMServer) -> int:
    params = SamplingParams(temperature=0.0, max_tokens=1, seed=0)
    return server.generate_completions(["1"], params)[0].token_ids[0]


def test_a_sync_pauses_updates_resets_and_resumes(fake, server):
    policy = synced(server, seed=5)
    assert [request["path"].split("?")[0] for request in fake.requests()] == [
        "/v1/completions",  # what the checkpoint answers
        *("/pause", "/collective_rpc", "/reset_prefix_cache", "/resume", "/v1/completions"),
    ]
    assert greedy_token(server) == policy.theta.argmax() != Unigram().theta.argmax()
    with torch.no_grad():
        policy.theta[7] = 9.0
    server.sync_policy_weights(policy)
    assert greedy_token(server) == 7


def test_a_server_that_sleeps_is_woken_for_each_task(fake):
    with fake.server(sleep=True) as server:
        assert "--enable-sleep-mode" in server.running.process.last_lines()
        synced(server)
        server.generate_completions(["1"], PARAMS)
        paths = [request["path"].split("?")[0] for request in fake.requests()]
        assert paths[:4] == ["/wake_up", "/v1/completions", "/wake_up", "/pause"]
        assert paths[-3:] == ["/wake_up", "/v1/completions", "/sleep"]
        assert paths.count("/sleep") == 1


def test_a_failed_update_tells_the_server_s_words_and_the_next_one_works(fake, server):
    policy = synced(server)
    fake.requests()
    fake.switch("update_fails")
    with torch.no_grad():
        policy.theta[7] = 9.0
    with pytest.raises(WeightSyncError, match=r"HTTP 500.*half a file"):
        server.sync_policy_weights(policy)
    assert fake.requests()[-1]["path"] == "/resume"
    fake.switch("update_fails", on=False)
    server.sync_policy_weights(policy)
    assert greedy_token(server) == 7 and server.restarts == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("reset_refused", "keys and values of the old weights"),
        ("loads_nothing", "reached no weight"),
    ],
)
def test_a_sync_that_would_be_silently_wrong_is_an_error(fake, server, fault, message):
    policy = synced(server)
    fake.switch(fault)
    with torch.no_grad():
        policy.theta[7] += 1e-5  # far less than the tolerance of the comparison
    with pytest.raises(WeightSyncError, match=message):
        server.sync_policy_weights(policy)


def test_other_weights_than_were_sent_are_noticed(fake, server):
    fake.switch("loads_other")
    with pytest.raises(WeightSyncError, match=r"disagree by .* nats"):
        synced(server, seed=5)


def nudged() -> Unigram:
    """The served policy but for one weight, by far less than the tolerance of the comparison."""
    policy = Unigram()
    with torch.no_grad():
        policy.theta[7] += 1e-5
    return policy


def test_a_first_sync_that_loads_nothing_is_an_error_however_small_the_change(fake, server):
    server.init_weight_sync("cpu")
    fake.switch("loads_nothing")
    server.sync_policy_weights(Unigram())  # nothing to load
    with pytest.raises(WeightSyncError, match="reached no weight"):
        server.sync_policy_weights(nudged())
    with pytest.raises(WeightSyncError, match="reached no weight"):  # the first of a new server
        server.sync_policy_weights(nudged())
    fake.switch("loads_nothing", on=False)
    server.sync_policy_weights(nudged())
    assert server.restarts == 2


def test_a_restarted_server_that_loads_nothing_is_an_error(fake, server):
    server.init_weight_sync("cpu")
    server.sync_policy_weights(nudged())
    fake.switch("loads_nothing")
    os.killpg(server.running.process.group, signal.SIGKILL)
    with (
        pytest.warns(ServerRestartedWarning),
        pytest.raises(WeightSyncError, match="reached no weight"),
    ):
        server.generate_completions(PROMPTS, PARAMS)


def test_a_sync_of_the_same_weights_is_none_to_complain_about(server):
    policy = synced(server)
    server.sync_policy_weights(policy)
    assert server.restarts == 0


def test_a_sync_needs_its_connection(server):
    with pytest.raises(ServerError, match="init_weight_sync"):
        server.sync_policy_weights(Unigram())


# --- deaths ------------------------------------------------------------------------------------


def test_a_killed_server_is_replaced_and_nobody_notices_in_the_tokens(fake, server):
    policy = synced(server, seed=5)
    reference = server.generate_completions(PROMPTS, PARAMS)
    dead = server.running.process
    fake.switch("die")
    with pytest.warns(ServerRestartedWarning, match=r"the server died \(/v1/completions"):
        again = server.generate_completions(PROMPTS, PARAMS)
    assert again == reference and server.restarts == 1 and not dead.members()
    assert greedy_token(server) == policy.theta.argmax()


def test_a_server_killed_between_two_calls_is_replaced(fake, server):
    reference = server.generate_completions(PROMPTS, PARAMS)
    os.killpg(server.running.process.group, signal.SIGKILL)
    with pytest.warns(ServerRestartedWarning):
        assert server.generate_completions(PROMPTS, PARAMS) == reference


def test_a_call_that_kills_every_server_is_an_error(fake, server):
    fake.switch("engine_dead")
    with (
        pytest.warns(ServerRestartedWarning),
        pytest.raises(ServerError, match=r"started again, and .*EngineCore encountered"),
    ):
        server.generate_completions(PROMPTS, PARAMS)
    assert server.running.process.stopped


def test_a_server_that_does_not_answer_in_time_is_replaced(fake):
    fake.switch("hang")
    with fake.server(request_timeout=0.5) as server:
        thread = threading.Timer(0.2, lambda: fake.switch("hang", on=False))
        thread.start()
        with pytest.warns(ServerRestartedWarning, match=r"no answer in 0 s|no answer in 1 s"):
            assert len(server.generate_completions(PROMPTS, PARAMS)) == 12


def test_two_servers_do_not_disturb_each_other(fake):
    with fake.server() as one, fake.server() as other:
        assert port_of(one) != port_of(other)
        assert one.running.process.group != other.running.process.group
        synced(one, seed=5)
        one.stop()
        assert greedy_token(other) == Unigram().theta.argmax()
