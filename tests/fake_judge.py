"""A stand-in for an OpenAI-compatible server: it judges by a plain rule, or misbehaves."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Texts = dict[str, str]


def longer_wins(texts: Texts) -> str:
    first, second = len(texts["answer_1"]), len(texts["answer_2"])
    return "VERDICT: tie" if first == second else f"VERDICT: {1 if first > second else 2}"


def first_wins(texts: Texts) -> str:
    return "VERDICT: 1"


def rude(texts: Texts) -> str:
    return "Both are awful. If I must: VERDICT: 1"


class FakeJudge:
    """What a test sees of the server: its address, what it was asked, and its faults to come.

    Attributes:
        faults: names, one for each request to come; then it answers by the rule.
        requests: the bodies that were posted, and the headers.
    """

    def __init__(self, url: str) -> None:
        self.url, self.rule = url, longer_wins
        self.faults: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []


@contextmanager
def serve(rule: Callable[[Texts], str] = longer_wins) -> Iterator[FakeJudge]:
    """Run the server on a loopback port that the system picks."""
    server = Server(("127.0.0.1", 0), Handler)
    server.judge = FakeJudge(f"http://127.0.0.1:{server.server_port}/v1")
    server.judge.rule = rule
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.judge
    finally:
        server.shutdown()
        server.server_close()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that has heard enough and hangs up is no error of a test."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        judge = self.server.judge
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        judge.requests.append({"path": self.path, **body})
        judge.headers.append(dict(self.headers))
        fault = judge.faults.pop(0) if judge.faults else None
        if fault is None:
            texts = json.loads(body["messages"][-1]["content"])
            return self.reply({"choices": [{"message": {"content": judge.rule(texts)}}]})
        return getattr(self, f"fault_{fault}")()

    def reply(self, content: object, status: int = 200) -> None:
        self.send_bytes(json.dumps(content).encode(), status)

    def send_bytes(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    # --- faults -------------------------------------------------------------------------------

    def fault_broken_json(self) -> None:
        self.send_bytes(b'{"choices": [{"mess')

    def fault_no_choice(self) -> None:
        self.reply({"choices": []})

    def fault_null(self) -> None:
        self.reply({"choices": [{"message": {"content": None}}]})

    def fault_list(self) -> None:
        self.reply(["VERDICT: 1"])

    def fault_deep(self) -> None:
        self.send_bytes(b"[" * 200_000)

    def fault_busy(self) -> None:
        self.reply({"error": "overloaded"}, 503)

    def fault_too_many(self) -> None:
        self.reply({"error": "slow down"}, 429)

    def fault_no_key(self) -> None:
        self.reply({"error": "who are you?"}, 401)

    def fault_elsewhere(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def fault_silent(self) -> None:
        time.sleep(1.0)

    def fault_drips_header(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        self.drip(b"a")

    def fault_continues(self) -> None:
        self.drip(b"HTTP/1.1 100 Continue\r\n\r\n")

    def drip(self, part: bytes) -> None:
        for _ in range(200):
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(0.05)

    def fault_packed_bomb(self) -> None:
        body = gzip.compress(b" " * 50_000_000)
        self.send_response(200)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fault_drips(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(40):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def fault_hangs_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def fault_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(40):
            self.wfile.write(b" " * 100_000)
