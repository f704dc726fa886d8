"""Questions to a judge: a language model behind an OpenAI-compatible server, such as vLLM's.

One route is used, `/chat/completions`, over httpx: no further package, and nothing is read from the
environment. A judge may be slow, overloaded or broken. Each of these is an exception with a name
after the last try, and none of them is a verdict.
"""

from __future__ import annotations

import ipaddress
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx

DEFAULT_JUDGE = "meta-llama/Llama-3.3-70B-Instruct"  # the judge of the assignment's supplement
MAX_ANSWER_BYTES = 1_000_000
RETRIED = {408, 429}  # and all from 500 on: the server's trouble, not the request's

Message = dict[str, str]


class JudgeError(RuntimeError):
    """A judge gave no answer, after all tries."""


class JudgeUnreachableError(JudgeError):
    """No connection, or none any more."""


class JudgeTimeoutError(JudgeError):
    """No whole answer in time."""


class JudgeResponseError(JudgeError):
    """An answer that says no, or that holds no text; `status` is the HTTP status."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class JudgeClient:
    """Asks one judge, greedily and with a seed, so that the same question has the same answer.

    Args:
        url: the API's address, such as `http://127.0.0.1:8000/v1`: https, or a loopback address.
        model: the name under which the server serves the judge.
        api_key: sent as a bearer token where it is given. It stands in no message of an error.
        timeout: seconds that one try may take in all.
        tries: how often a question is asked before the error is raised.
        wait: seconds before the second try, twice as many before each further one.
        max_tokens: the longest answer; a verdict is short.
        transport: in place of the network, for a judge in this process.
        sleep: what waits.

    Raises:
        ValueError: an address that is neither https nor loopback, or a number that makes no sense.
    """

    def __init__(
        self,
        url: str,
        model: str = DEFAULT_JUDGE,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        tries: int = 4,
        wait: float = 1.0,
        max_tokens: int = 16,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if tries < 1 or max_tokens < 1 or not timeout > 0 or not wait >= 0:
            raise ValueError(
                f"tries={tries}, max_tokens={max_tokens}, timeout={timeout}, wait={wait}: at least "
                "one try and one token, a timeout above 0, and no negative wait"
            )
        self.url, self.model = check_url(url), model
        self.timeout, self.tries, self.wait, self.max_tokens = timeout, tries, wait, max_tokens
        self._sleep, self._transport = sleep, transport
        # An answer that unpacks to more than was sent could be larger than memory.
        self._headers = {"Accept-Encoding": "identity", **authorization(api_key)}

    def ask(self, messages: list[Message]) -> str:
        """The judge's answer, as it wrote it.

        Args:
            messages: `{"role": …, "content": …}`, the last one the user's.

        Raises:
            JudgeUnreachableError, JudgeTimeoutError, JudgeResponseError: the error of the last try.
                A status that asking again can't mend, such as 401, is raised at once.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "temperature": 0.0,
            "seed": 0,
            "max_tokens": self.max_tokens,
        }
        for number in range(1, self.tries + 1):
            try:
                return text_of(self._post(body))
            except JudgeError as error:
                if number == self.tries or not can_be_mended(error):
                    times = "once" if number == 1 else f"{number} times"
                    error.add_note(f"the judge {self.model} was asked {times}")
                    raise
                self._sleep(self.wait * 2 ** (number - 1))
        raise AssertionError("unreachable: tries is at least 1")

    def _post(self, body: dict[str, Any]) -> Any:
        """One try: the JSON of the server's answer."""
        content, deadline = bytearray(), Deadline(self.timeout)
        # A proxy of the environment has no business with what is asked here.
        http = httpx.Client(
            headers=self._headers,
            timeout=self.timeout,
            transport=self._transport,
            trust_env=False,
        )
        try:
            with (
                deadline.closes(http),
                http.stream("POST", f"{self.url}/chat/completions", json=body) as response,
            ):
                if packed := response.headers.get("Content-Encoding"):
                    raise JudgeResponseError(f"an answer in {packed!r}, which was not asked for")
                for part in response.iter_bytes():
                    content += part
                    deadline.check()
                    if len(content) > MAX_ANSWER_BYTES:
                        raise JudgeResponseError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
            deadline.check()
        except httpx.TimeoutException as error:
            raise JudgeTimeoutError(f"no answer in {self.timeout:g} s") from error
        except (httpx.HTTPError, httpx.StreamError, OSError, RuntimeError) as error:
            if isinstance(error, JudgeError):
                raise
            deadline.check()  # a connection that was closed at the deadline breaks somewhere
            raise JudgeUnreachableError(f"{self.url}: {error}") from error
        text = content.decode("utf-8", errors="replace")
        if response.status_code != httpx.codes.OK:
            raise JudgeResponseError(
                f"HTTP {response.status_code}: {text[:200]!r}", response.status_code
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise JudgeResponseError(f"not JSON: {text[:200]!r}") from error


class Deadline:
    """The end of one try. httpx's timeout is one of silence: a server that drips would never end.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def check(self) -> None:
        """Raise JudgeTimeoutError if it has passed."""
        if time.monotonic() >= self._end:
            raise JudgeTimeoutError(f"no whole answer in {self.seconds:g} s")

    @contextmanager
    def closes(self, http: httpx.Client) -> Iterator[None]:
        """Close this client at the deadline, if the block has not ended; in any case at its end."""
        timer = threading.Timer(self.seconds, close_quietly, [http])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            close_quietly(http)


def close_quietly(http: httpx.Client) -> None:
    """Close a client in whose connection another thread may be reading."""
    with suppress(Exception):
        http.close()


def authorization(api_key: str | None) -> dict[str, str]:
    """The header with the key, if there is one.

    Raises:
        ValueError: the key can't stand in a header; the message does not show it.
    """
    if api_key is None:
        return {}
    if not api_key or any(not "!" <= character <= "~" for character in api_key):
        raise ValueError(
            "api_key is empty or holds a character that can't stand in a header, such as the line "
            "break at the end of a file: give the key alone"
        )
    return {"Authorization": f"Bearer {api_key}"}


def text_of(answer: Any) -> str:
    """The text of the one choice of an answer.

    Raises:
        JudgeResponseError: there is none.
    """
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise JudgeResponseError(f"no choice with a message: {str(answer)[:200]}") from error
    if not isinstance(text, str):
        raise JudgeResponseError(f"the message holds no text: {str(answer)[:200]}")
    return text


def can_be_mended(error: JudgeError) -> bool:
    """Whether asking again may help: not where the server understood and refused."""
    status = getattr(error, "status", None)
    return status is None or status in RETRIED or status >= 500


def check_url(url: str) -> str:
    """The address without a slash at its end, if it is https or loopback and names no password.

    Raises:
        ValueError: it is not; prompts and answers would cross a network where others can read them.
    """
    parts = urlsplit(url)
    try:
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"url={url!r}: {error}") from error
    if "@" in parts.netloc or not host:
        raise ValueError("a judge's address has a host and no password: give the key as api_key")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError(
            f"url={url!r}: a judge is asked over https, or over http on this machine "
            "(localhost, 127.0.0.1, [::1])"
        )
    return url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by name or by number."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
