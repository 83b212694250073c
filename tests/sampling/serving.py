"""A small HTTP server on this machine that answers, and fails, as a test tells it to. `from serving import ...`."""

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qcrd_trl.sampling.teachers.base import SamplingSettings, Teacher, TeacherRequest
from qcrd_trl.sampling.teachers.openai_policy import RetryPolicy
from qcrd_trl.sampling.teachers.openai_server import OpenAITeacher


KEY = "sk-test-0123456789abcdef0123456789"
HOW = SamplingSettings(max_new_tokens=16)
QUICK = RetryPolicy(first=0.01, longest=0.05, jitter=0.01)


@dataclass
class Reply:
    """
    What the server does with one request.

    Attributes:
        body (`Any`): bytes, or what is written as JSON.
        status (`int`): HTTP status.
        headers (`dict[str, str]`): further headers.
        delay (`float`): seconds before the answer.
        drip (`float`): seconds between the bytes of the body; 0 writes it at once.
        drop (`str`, *optional*): `"before"` the answer or in the `"middle"` of its body, the connection is cut.
    """

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    drop: str | None = None


@dataclass
class Seen:
    """A request as it came."""

    path: str
    body: dict[str, Any]
    headers: Any  # looked up in any case
    time: float


def choice(content: Any, finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish_reason}


def chat_reply(*choices: dict[str, Any] | str, usage: tuple[int, int] | None = (10, 4), **options: Any) -> Reply:
    """An answer with the given choices; a text is one that ended by itself."""
    listed = [choice(c) if isinstance(c, str) else c for c in choices]
    body = {"id": "1", "object": "chat.completion", "model": "m", "created": 1}
    body["choices"] = [{"index": i, **c} for i, c in enumerate(listed)]
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Reply(body, **options)


def error_reply(status: int, message: str, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return Reply({"error": {"message": message, **fields}}, status, headers or {})


class FaultServer:
    """
    Used as a context. Requests take the replies of `script` in the order in which they come; without one left, `default`
    makes the answer: as many texts as are asked for, each with the question, the seed, and its number in the answer.

    Attributes:
        script (`deque[Reply]`): what comes next.
        seen (`list[Seen]`): requests for completions so far.
        most_at_once (`int`): largest number of requests that were being answered at the same time.
        models (`Reply`): the answer to `GET /v1/models`.
    """

    def __init__(self, *script: Reply, delay: float = 0.0):
        self.script = deque(script)
        self.delay = delay
        self.seen: list[Seen] = []
        self.listed: list[Seen] = []
        self.models = Reply({"object": "list", "data": [{"id": "teacher", "object": "model"}]})
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []

    def default(self, seen: Seen) -> Reply:
        question = seen.body["messages"][-1]["content"] if "messages" in seen.body else seen.body["prompt"]
        texts = [f"{question} {seen.body.get('seed')} {i}" for i in range(seen.body.get("n", 1))]
        if "messages" in seen.body:
            return chat_reply(*texts, delay=self.delay)
        body = {"choices": [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)]}
        return Reply(body, delay=self.delay)

    def __enter__(self) -> "FaultServer":
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                seen = Seen(self.path, {}, self.headers, time.monotonic())
                outer.listed.append(seen)
                self.answer(outer.models)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                seen = Seen(self.path, body, self.headers, time.monotonic())
                with outer._lock:
                    outer.seen.append(seen)
                    reply = outer.script.popleft() if outer.script else outer.default(seen)
                    outer._at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer._at_once)
                try:
                    outer._stopped.wait(reply.delay)
                finally:
                    with outer._lock:
                        outer._at_once -= 1
                self.answer(reply)

            def answer(self, reply):
                if reply.drop == "before":
                    self.close_connection = True
                    return
                body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                (self.send_response_only if "Date" in reply.headers else self.send_response)(reply.status)
                headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **reply.headers}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if reply.drop == "middle":
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                    return
                for start in range(0, len(body), 1) if reply.drip else ():
                    self.wfile.write(body[start : start + 1])
                    self.wfile.flush()
                    if outer._stopped.wait(reply.drip):
                        return
                if not reply.drip:
                    self.wfile.write(body)

            def handle(self):
                outer._connections.append(self.connection)
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

            def log_message(self, *args):
                pass

        self._stopped = threading.Event()

        class Listener(ThreadingHTTPServer):
            request_queue_size = 128  # of 5, a burst of new connections waits a second

        self._server = Listener(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing listens any more: open connections are cut, new ones refused."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def prepare(monkeypatch: Any) -> None:
    """No key, address or proxy of this machine's user; and no certificates, whose loading takes most of a short test."""
    proxies = [name for name in os.environ if name.lower().endswith("_proxy")]
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", *proxies):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *args, **options: None)


def teacher_of(server: FaultServer | str, policy: RetryPolicy = QUICK, **options: Any) -> OpenAITeacher:
    url = server if isinstance(server, str) else server.url
    return OpenAITeacher(**{"model": "teacher", "base_url": url, "timeout": 10.0, "retry_policy": policy, **options})


def request(number: int = 0, samples: int = 1, prompt: Any = None, first: int = 0) -> TeacherRequest:
    """Question `q<number>`; sample i has seed 100 * number + i."""
    indices = tuple(range(first, first + samples))
    prompt = [{"role": "user", "content": f"question {number}"}] if prompt is None else prompt
    return TeacherRequest(f"q{number}", prompt, indices, tuple(100 * number + i for i in indices))


def ask(
    server: FaultServer | str, *requests: TeacherRequest, how: SamplingSettings = HOW, **options: Any
) -> list[Any]:
    """All completions of some requests, in the order of the questions."""
    answers = answers_of(teacher_of(server, **options), requests, how)
    return [completion for asked in requests for completion in answers[asked.id]]


def answers_of(teacher: Teacher, requests: Iterable[TeacherRequest], how: SamplingSettings = HOW) -> dict[str, list]:
    """The completions of each question, put together from their parts, in the order of the samples."""
    answers: dict[str, list] = {}
    for asked, completions in teacher.sample(requests, how):
        assert completions, "a part without completions"
        answers.setdefault(asked.id, []).extend(completions)
    return {id: sorted(parts, key=lambda completion: completion.sample_index) for id, parts in answers.items()}
