"""Requests to a vLLM server: completions with every parameter said, log-probs, and its control.

vLLM's routes for reinforcement learning (/pause, /update_weights and so on) exist only where the
server was started with VLLM_SERVER_DEV_MODE=1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from gsmrl_helpers.engine import Completion
from gsmrl_helpers.sampling import SamplingParams
from gsmrl_helpers.server_process import ServerError

CONTROL_S = 60.0  # for what computes nothing

Json = dict[str, Any]


class ServerDiedError(ServerError):
    """No connection, or none any more: the server ended, or it is none."""


class ServerTimeoutError(ServerDiedError):
    """No answer in time; such a server is treated as a dead one."""


class ServerResponseError(ServerError):
    """An answer that says no, or that is not what was asked for; `status` is the HTTP status."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class VLLMClient:
    """Talks to one server.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        model: the name under which the server serves the policy.
        request_timeout: seconds that a completion or an update may take.
    """

    def __init__(self, url: str, model: str, request_timeout: float) -> None:
        self.url, self.model, self.request_timeout = url, model, request_timeout
        # A proxy of the environment has no business with the loopback interface, and a kept
        # connection that the server has closed would look like a dead server.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.Client(base_url=url, trust_env=False, limits=limits)

    def close(self) -> None:
        self._http.close()

    def post(
        self, path: str, body: Json | None = None, timeout: float = CONTROL_S, **query: str
    ) -> Json:
        """POST, and the answer's JSON.

        Raises:
            ServerDiedError: there is no server, or it ended while it worked.
            ServerTimeoutError: it did not answer in `timeout` seconds.
            ServerResponseError: it answered with an error; the message has its text.
        """
        return self._request("POST", path, timeout, json=body, params=query)

    def get(self, path: str, timeout: float = CONTROL_S) -> Json:
        """GET, with the errors of `post`."""
        return self._request("GET", path, timeout)

    def _request(self, method: str, path: str, timeout: float, **content: Any) -> Json:
        try:
            response = self._http.request(method, path, timeout=timeout, **content)
        except httpx.TimeoutException as error:
            raise ServerTimeoutError(f"{path}: no answer in {timeout:.0f} s") from error
        except httpx.TransportError as error:
            raise ServerDiedError(f"{path}: {error}") from error
        if response.is_error:
            message = f"{path}: HTTP {response.status_code}: {response.text[:1000]}"
            raise ServerResponseError(message, response.status_code)
        try:
            return response.json()
        except ValueError as error:
            raise ServerResponseError(f"{path}: not JSON: {response.text[:200]!r}") from error

    # --- tokens --------------------------------------------------------------------------------

    def complete(
        self, prompt_ids: Sequence[int], n: int, seed: int, params: SamplingParams
    ) -> list[Completion]:
        """Sample n completions of one prompt; vLLM seeds draw i with seed + i.

        Returns:
            n completions in the order of their draws, their indices still 0.

        Raises:
            ServerDiedError, ServerTimeoutError, ServerResponseError: see `post`; the last also
                where completions are missing, repeated, or not whole.
        """
        body = completion_request(self.model, prompt_ids, n, seed, params)
        answer = self.post("/v1/completions", body, self.request_timeout)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if (got := [choice["index"] for choice in choices]) != list(range(n)):
            raise ServerResponseError(f"{n} completions were asked for; it answered with {got}")
        return [completion_of(choice) for choice in choices]

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of a text's tokens under the server's weights, from the second on."""
        body = {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        choice = self.post("/v1/completions", body, self.request_timeout)["choices"][0]
        scored = zip(token_ids[1:], choice["prompt_logprobs"][1:], strict=True)
        return [known[str(token_id)]["logprob"] for token_id, known in scored]

    # --- control -------------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No request is computed within; what runs is finished first. Resumes in every case."""
        # clear_cache: the cache is reset after the update, where its answer can be checked.
        self.post("/pause", timeout=self.request_timeout, mode="wait", clear_cache="false")
        try:
            yield
        except BaseException:
            with suppress(ServerError):  # the first error is the one to tell
                self.post("/resume")
            raise
        self.post("/resume")

    def reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts: they belong to earlier weights.

        Raises:
            ServerResponseError: the server did not do it.
        """
        if self.post("/reset_prefix_cache").get("success") is not True:
            raise ServerResponseError(
                "/reset_prefix_cache: success=false: the next prompts would be continued from keys "
                "and values of the old weights"
            )


def completion_request(
    model: str, prompt_ids: Sequence[int], n: int, seed: int, params: SamplingParams
) -> Json:
    """The body of a request, with nothing left to the server's or the model's defaults."""
    return {
        "model": model,
        "prompt": list(prompt_ids),
        "n": n,
        "seed": seed,
        "max_tokens": params.max_tokens,
        "min_tokens": 0,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": max(params.top_k, 0),
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(params.stop),
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "ignore_eos": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": False,
        "logprobs": 0,  # of the sampled token, and of no other
        "return_token_ids": True,
    }


def completion_of(choice: Json) -> Completion:
    """One choice of an answer, checked.

    Raises:
        ServerResponseError: aborted, or without its ids or a log-probability for each of them.
    """
    token_ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    log_probs = (choice.get("logprobs") or {}).get("token_logprobs")
    if reason not in ("stop", "length"):
        raise ServerResponseError(f"a completion ended with finish_reason={reason!r}")
    if not token_ids or not log_probs or len(token_ids) != len(log_probs):
        raise ServerResponseError(
            "a completion came without its token ids, or without a log-probability for each: "
            f"{str(choice)[:300]}"
        )
    return Completion(choice["text"], token_ids, reason, 0, 0, log_probs)
