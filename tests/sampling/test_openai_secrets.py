"""The key of a teacher: from the environment, to the server, and nowhere else."""

import json
import logging
import traceback

import pytest
from serving import HOW, KEY, FaultServer, Reply, ask, chat_reply, error_reply, prepare, request, teacher_of

from qcrd_trl.errors import ConfigError, TeacherError
from qcrd_trl.sampling.teachers.openai_server import OpenAITeacher


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    prepare(monkeypatch)


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def has_key(text):
    return [KEY[i : i + 8] for i in range(len(KEY) - 7) if KEY[i : i + 8] in text]


ECHOES = {
    "json": error_reply(500, f"Internal error; headers: Authorization: Bearer {KEY}"),
    "html": Reply(f"<html>Bearer {KEY}</html>".encode(), 500, {"Content-Type": "text/html"}),
    "200 html": Reply(f"<html>key {KEY}</html>".encode(), 200, {"Content-Type": "text/html"}),
    "200 error": Reply({"error": {"message": f"key {KEY}", "code": 500}}),
    "refused": error_reply(400, f"key {KEY} may not do this"),
    "filtered": error_reply(400, f"key {KEY} asked for it", code="content_filter"),
}


@pytest.mark.parametrize("echo", ECHOES)
def test_a_key_that_a_server_quotes_does_not_reach_records_or_logs(echo, key, caplog, capfd):
    """Servers in trouble print the headers of the request into their answer; the samples file is shared later."""
    caplog.set_level(logging.DEBUG)
    with FaultServer(chat_reply("good"), *[ECHOES[echo]] * 3) as server:
        teacher = teacher_of(server, max_retries=2, max_concurrency=1)
        answers = [completions[0] for _, completions in teacher.sample([request(0), request(1)], HOW)]
    assert [seen.headers["Authorization"] for seen in server.seen[:1]] == [f"Bearer {KEY}"]
    assert [c.status for c in answers] == ["ok", "filtered" if echo == "filtered" else "failed"]
    assert "***" in answers[1].error
    assert caplog.records, "nothing is logged: the test would see no leak"
    shown = "".join(str(part) for part in (answers, teacher, vars(teacher), teacher.settings(), teacher.stats))
    shown += "\n".join(f"{record.getMessage()} {record.args}" for record in caplog.records)
    shown += "".join(capfd.readouterr())
    assert not has_key(shown)


@pytest.mark.parametrize("status", [401, 403, 404, 402])
def test_a_key_that_a_server_quotes_does_not_reach_a_traceback(status, key, caplog):
    """The client's own error, with the whole body, must not come along as the cause."""
    caplog.set_level(logging.DEBUG)
    reply = error_reply(status, f"Incorrect API key provided: {KEY}. The model is unknown.")
    with FaultServer(reply) as server, pytest.raises(TeacherError) as caught:
        ask(server, request())
    error, chain = caught.value, []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    shown = "".join(traceback.format_exception(caught.value)) + "".join(map(repr, chain)) + caplog.text
    assert "***" in str(caught.value)
    assert not has_key(shown)


def test_a_refused_key_names_the_variable(key, monkeypatch):
    reply = error_reply(401, "Incorrect API key provided")
    with FaultServer(*[reply] * 3) as server:
        with pytest.raises(TeacherError, match="refuses the key in the environment variable OPENAI_API_KEY"):
            ask(server, request())
        with pytest.raises(TeacherError, match="environment variable OTHER_KEY is not set"):
            ask(server, request(), api_key_env="OTHER_KEY")
        monkeypatch.setenv("OTHER_KEY", "other-" + KEY)
        with pytest.raises(TeacherError, match="refuses the key in the environment variable OTHER_KEY"):
            ask(server, request(), api_key_env="OTHER_KEY")
    sent = [seen.headers["Authorization"] for seen in server.seen]
    assert sent == [f"Bearer {KEY}", "Bearer none", f"Bearer other-{KEY}"]


def test_no_key():
    """OpenAI's server would answer 401; a server of one's own wants none."""
    with pytest.raises(TeacherError, match=r"OPENAI_API_KEY is not set.*api_key_env.*base_url"):
        OpenAITeacher("gpt-4o-mini")
    with FaultServer() as server:
        assert ask(server, request())[0].status == "ok"


def test_the_address_of_the_environment(monkeypatch):
    """`OPENAI_BASE_URL` is what users of the client library have set; it is checked like an argument."""
    with FaultServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        [(_, [completion])] = OpenAITeacher("teacher").sample([request()], HOW)
        assert completion.status == "ok"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:secret@localhost/v1")
    with pytest.raises(ConfigError, match="user name or password"):
        OpenAITeacher("teacher")


@pytest.mark.parametrize("value", [f"{KEY}\nX-Other: 1", f"{KEY} two", f"{KEY}…"])
def test_a_key_that_cannot_be_sent(value, monkeypatch):
    """The HTTP library would quote it in its error."""
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds characters that no key has") as caught:
        OpenAITeacher("teacher", "http://localhost:1/v1")
    assert not has_key(str(caught.value))


def test_a_line_break_behind_a_key_is_left_out(monkeypatch):
    """As `export KEY="$(cat file)"` and .env files leave it."""
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    with FaultServer() as server:
        ask(server, request())
    assert server.seen[0].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:hunter2secret@localhost:8000/v1", "user name or password"),
        ("https://hunter2secret@localhost/v1", "user name or password"),
        ("http://user:hunter2secret@localhost:port/v1", "user name or password"),
        ("http://user:hunter2/secret@localhost/v1", "user name or password"),
        ("https://localhost/v1?key=hunter2secret", "query or fragment"),
        ("https://localhost/v1#hunter2secret", "query or fragment"),
    ],
)
def test_secrets_in_the_address_are_refused(url, expected):
    """The address is shown in errors and logs."""
    with pytest.raises(ConfigError, match=expected) as caught:
        OpenAITeacher("teacher", url)
    assert "hunter2" not in str(caught.value)
    assert "api_key_env" in str(caught.value)


def test_a_key_in_the_place_of_the_address(key):
    with pytest.raises(ConfigError, match="`base_url` must be an address") as caught:
        OpenAITeacher("teacher", KEY)
    assert not has_key(str(caught.value))


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://10.0.0.7:8000/v1", True),
        ("http://gpu-node:8000/v1", True),
        ("https://10.0.0.7/v1", False),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.1:8000/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_a_key_over_an_open_line(url, warns, key, caplog):
    OpenAITeacher("teacher", url)
    assert ("not encrypted" in caplog.text) == warns
    assert not has_key(caplog.text)


def test_without_a_key_an_open_line_is_no_matter(caplog):
    OpenAITeacher("teacher", "http://10.0.0.7:8000/v1")
    assert caplog.text == ""


def test_settings_are_json_without_secrets(key):
    assert not has_key(json.dumps(teacher_of("http://localhost:1/v1").settings()))
