"""What the check before a run finds out about a server."""

import time

import pytest
from serving import FaultServer, Reply, chat_reply, error_reply, prepare, teacher_of

from qcrd_trl.errors import TeacherError


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    prepare(monkeypatch)


def models(*names):
    return Reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


UNKNOWN = error_reply(404, "The model does not exist.", code="model_not_found")


def test_a_listed_model_costs_nothing():
    with FaultServer() as server:
        teacher_of(server).check()
    assert [seen.path for seen in server.listed] == ["/v1/models"]
    assert server.seen == []


def test_an_unreachable_server():
    """Found out at once, by name, not after the retries of 10,000 requests."""
    with FaultServer() as server:
        pass
    started = time.monotonic()
    with pytest.raises(
        TeacherError, match=rf"at {server.url} does not answer \(no connection.*whether the server runs"
    ):
        teacher_of(server).check()
    assert time.monotonic() - started < 5


def test_a_server_that_still_loads():
    """llama.cpp answers 503 until its model is in memory."""
    with FaultServer() as server:
        ready, server.models = server.models, error_reply(503, "Loading model")
        with pytest.raises(TeacherError, match="Loading model"):
            teacher_of(server).check()
        assert len(server.listed) == 4
        server.models = ready
        teacher_of(server).check()


@pytest.mark.parametrize(("status", "expected"), [(401, "wants a key"), (403, "wants a key"), (402, "no credit")])
def test_no_permission(status, expected):
    with FaultServer() as server:
        server.models = error_reply(status, "no")
        with pytest.raises(TeacherError, match=expected):
            teacher_of(server).check()
    assert len(server.listed) == 1
    assert server.seen == []


def test_an_unknown_model():
    """A typing error: the name that was meant is in the message."""
    with FaultServer(UNKNOWN) as server:
        server.models = models("HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-8B", "llama3.1:latest")
        with pytest.raises(TeacherError) as caught:
            teacher_of(server, model="smollm-135m").check()
    message = str(caught.value)
    assert "does not know the model 'smollm-135m'" in message
    assert "nearest of its 3 models: 'HuggingFaceTB/SmolLM2-135M-Instruct'" in message
    assert "Qwen3" not in message


def test_an_unknown_model_that_is_near_to_none():
    with FaultServer(UNKNOWN) as server:
        server.models = models(*(f"model-{letter}" * 3 for letter in "abcdefg"))
        with pytest.raises(TeacherError, match=r"Its models: 'model-amodel-amodel-a'.*, \.\.\.\.$"):
            teacher_of(server, model="zzz").check()


def test_an_empty_list():
    with FaultServer(UNKNOWN) as server:
        server.models = models()
        with pytest.raises(TeacherError, match="lists no models"):
            teacher_of(server).check()


def test_a_name_that_is_not_listed_but_answered(caplog):
    """Ollama lists `llama3:latest` and knows `llama3`; llama.cpp answers to any name, and the records would carry it."""
    with FaultServer(chat_reply("Hi")) as server:
        server.models = models("llama3:latest", "phi4")
        teacher = teacher_of(server, model="llama3")
        teacher.check()
    assert "does not list the model 'llama3', but answers" in caplog.text
    assert "'llama3:latest'" in caplog.text
    assert server.seen[0].body["max_tokens"] <= 16
    assert (teacher.stats.prompt_tokens, teacher.stats.errors, teacher.stats.retries) == (0, 0, 0)


NO_LISTS = {
    "404": Reply({"detail": "Not Found"}, 404),
    "405": Reply({"detail": "Method Not Allowed"}, 405),
    "501": error_reply(501, "not implemented"),
    "HTML": Reply(b"<html></html>", headers={"Content-Type": "text/html"}),
    "another list": Reply({"models": ["teacher"]}),
}


@pytest.mark.parametrize("answer", NO_LISTS)
def test_a_server_without_a_list(answer, caplog):
    """One question of a few tokens tells as much."""
    with FaultServer(chat_reply("Hi")) as server:
        server.models = NO_LISTS[answer]
        teacher_of(server).check()
        assert len(server.seen) == 1
        assert caplog.text == ""
        server.script.append(UNKNOWN)
        with pytest.raises(TeacherError, match=r"does not know the model 'teacher' .*server has\.$"):
            teacher_of(server).check()
        server.script.append(error_reply(400, "no"))
        with pytest.raises(TeacherError, match="does not answer to 'teacher': HTTP 400: no"):
            teacher_of(server).check()


def test_a_plain_server_is_asked_in_plain():
    with FaultServer() as server:
        server.models = NO_LISTS["404"]
        teacher_of(server, chat=False).check()
    assert (server.seen[0].path, server.seen[0].body["prompt"]) == ("/v1/completions", "Hello")


def test_an_address_without_its_path():
    """The commonest mistake: http://localhost:8000 for http://localhost:8000/v1."""

    class Missing(FaultServer):
        def default(self, seen):
            return Reply({"detail": "Not Found"}, 404)

    with Missing() as server:
        server.models = NO_LISTS["404"]
        with pytest.raises(TeacherError, match=r"nothing at http://127.0.0.1:\d+/chat/completions .* ends in /v1"):
            teacher_of(server.url.removesuffix("/v1")).check()
