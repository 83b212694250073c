"""The teacher behind a server: what becomes of each answer, and of each fault, that a server can give."""

import re

import pytest
from serving import HOW, FaultServer, Reply, ask, chat_reply, choice, error_reply, prepare, request, teacher_of

from qcrd_trl.errors import ConfigError, TeacherError
from qcrd_trl.sampling.teachers.base import SamplingSettings


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    prepare(monkeypatch)


def test_what_is_sent_and_what_comes_back():
    """A field under another name is ignored by most servers: the teacher would sample by its own settings."""
    how = SamplingSettings(temperature=0.7, top_p=0.9, max_new_tokens=33, stop=("\n\n", "Q:"))
    with FaultServer() as server:
        teacher = teacher_of(server)
        [(asked, completions)] = teacher.sample([request(3, samples=2)], how)
    assert asked == request(3, samples=2)
    [seen] = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.body == {
        "model": "teacher",
        "messages": [{"role": "user", "content": "question 3"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 33,
        "stop": ["\n\n", "Q:"],
        "seed": 300,
        "n": 2,
    }
    assert [(c.sample_index, c.text, c.status, c.finish_reason, c.seed) for c in completions] == [
        (0, "question 3 300 0", "ok", "stop", 300),
        (1, "question 3 300 1", "ok", "stop", None),
    ]
    # 10 tokens of the prompt once, 4 of two texts of equal length.
    assert [dict(c.usage) for c in completions] == [
        {"prompt_tokens": 10, "completion_tokens": 2},
        {"prompt_tokens": 0, "completion_tokens": 2},
    ]
    assert (teacher.stats.prompt_tokens, teacher.stats.completion_tokens, teacher.stats.retries) == (10, 4, 0)


def test_plain_completions():
    """A base model has no chat template: its prompt must arrive as it is."""
    with FaultServer() as server:
        [completion] = ask(server, request(1, prompt="Q: 1 + 1\nA:"), chat=False)
    [seen] = server.seen
    assert (seen.path, seen.body["prompt"]) == ("/v1/completions", "Q: 1 + 1\nA:")
    assert (completion.text, completion.status) == ("Q: 1 + 1\nA: 100 0", "ok")
    assert completion.usage == {}  # the server counts none


@pytest.mark.parametrize(("chat", "prompt"), [(True, "a text"), (False, [{"role": "user", "content": "a"}])])
def test_a_prompt_of_the_other_kind(chat, prompt):
    with FaultServer() as server, pytest.raises(ConfigError, match=f"chat={not chat}"):
        ask(server, request(prompt=prompt), chat=chat)
    assert server.seen == []


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        (choice("good"), "ok", "good"),
        (choice(" good \n"), "ok", " good \n"),
        (choice(None, "length"), "truncated", None),  # all tokens went into reasoning
        (choice("", "length"), "truncated", ""),
        (choice("half a", "length"), "truncated", "half a"),
        (choice(""), "empty", ""),
        (choice(" \n"), "empty", " \n"),
        (choice(None), "empty", None),
        (choice(None, "tool_calls", tool_calls=[{"id": "1", "type": "function"}]), "empty", None),
        (choice("something", "content_filter"), "filtered", "something"),
        (choice(None, "content_filter"), "filtered", None),
        (choice(None, refusal="I cannot help with that."), "filtered", None),
        (choice("good", refusal=None), "ok", "good"),
        (choice("good", None), "ok", "good"),
        (choice("4", reasoning_content="2 and 2", reasoning="2 and 2"), "ok", "4"),
        (choice([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]), "ok", "4"),
    ],
)
def test_statuses(given, status, text):
    """A filtered or cut text that counts as ok votes, and may become a rationale that the student learns."""
    with FaultServer(chat_reply(given)) as server:
        [completion] = ask(server, request())
    assert (completion.status, completion.text, completion.error) == (status, text, None)
    assert completion.finish_reason == given["finish_reason"]
    assert len(server.seen) == 1


def test_four_answers_one_vote():
    """openai-python#2730: null content with finish reason length is a whole answer, not a fault to be tried again."""
    given = [choice(None, "length"), choice(""), choice("no", "content_filter"), choice("The answer is 4.")]
    with FaultServer(*map(chat_reply, given)) as server:
        completions = ask(server, *map(request, range(4)), max_concurrency=1)
    assert [c.status for c in completions] == ["truncated", "empty", "filtered", "ok"]
    assert len(server.seen) == 4


HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
WHOLE = chat_reply("früh").body
FAULTS = {
    "429": error_reply(429, "slow down"),
    "429 without a body": Reply(status=429),
    "408": error_reply(408, "timeout"),
    "409": error_reply(409, "conflict"),
    "500": error_reply(500, "boom"),
    "503": error_reply(503, "loading model"),
    "529": error_reply(529, "overloaded"),
    "502 as HTML": Reply(HTML, 502, {"Content-Type": "text/html"}),
    "200 as HTML": Reply(HTML, headers={"Content-Type": "text/html"}),
    "HTML that says it is JSON": Reply(HTML),
    "dropped before": Reply(drop="before"),
    "dropped in the middle": chat_reply("good", drop="middle"),
    "slow": chat_reply("good", delay=0.6),
    "drop by drop": chat_reply("good", drip=0.05),
    "malformed": Reply(b'{"choices": [{"message": {"content": "go'),
    "truncated UTF-8": Reply(b'{"choices": [{"message": {"content": "fr\xc3"}, "finish_reason": "stop"}]}'),
    "empty": Reply(b""),
    "null": Reply(None),
    "a list": Reply([1]),
    "no choices": Reply({"id": "1"}),
    "empty choices": Reply({"choices": []}),
    "null choices": Reply({"choices": None}),
    "choices of another kind": Reply({"choices": ["good"]}),
    "no message": Reply({"choices": [{"message": None, "finish_reason": "stop"}]}),
    "no text": Reply({"choices": [{"finish_reason": "stop"}]}),
    "content of another kind": chat_reply(choice(7)),
    "gave up": chat_reply(choice("go", "error")),
    "an error with status 200": Reply({"error": {"message": "upstream is down", "code": 502}}),
    "an error without a code": Reply({"error": "upstream is down"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_tried_again(fault):
    """A body that is not whole, taken as an answer, is a lost sample that was paid for, or a crash of the run."""
    with FaultServer(FAULTS[fault]) as server:
        teacher = teacher_of(server, timeout=0.3)
        [(_, [completion])] = teacher.sample([request()], HOW)
    assert (completion.status, completion.text, completion.error) == ("ok", "question 0 0 0", None)
    assert len(server.seen) == 2
    assert (teacher.stats.retries, teacher.stats.errors) == (1, 0)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("500", r"HTTP 500: boom \(3 attempts\)"),
        ("502 as HTML", "HTTP 502: <html>.*Bad Gateway"),
        ("dropped before", "no connection: "),
        ("slow", "no whole answer within 0.3 s"),
        ("drop by drop", "no whole answer within 0.3 s"),
        ("malformed", "not JSON .JSONDecodeError.*go"),
        ("truncated UTF-8", "not JSON .UnicodeDecodeError"),
        ("no choices", "no choices"),
    ],
)
def test_a_fault_that_stays(fault, expected):
    """The samples of a poisoned question fail by themselves; the others must not go with them."""
    with FaultServer(*[FAULTS[fault]] * 3) as server:
        teacher = teacher_of(server, timeout=0.3, max_retries=2, max_concurrency=1)
        answers = {asked.id: c for asked, c in teacher.sample([request(0, 2), request(1, 2)], HOW)}
    assert [(c.sample_index, c.text, c.status, c.seed) for c in answers["q0"]] == [
        (0, None, "failed", 0),
        (1, None, "failed", 1),
    ]
    for completion in answers["q0"]:
        assert re.search(expected, completion.error), completion.error
        assert len(completion.error) < 400
    assert [c.status for c in answers["q1"]] == ["ok", "ok"]
    assert len(server.seen) == 4
    assert (teacher.stats.retries, teacher.stats.errors) == (2, 2)


def test_a_lost_connection_is_made_again():
    """A server that restarts is back after some refused connections."""
    with FaultServer() as gone:
        pass
    teacher = teacher_of(gone, max_retries=1)
    [(_, [completion])] = teacher.sample([request()], HOW)
    assert completion.status == "failed"
    assert "no connection" in completion.error


def test_fewer_choices_than_asked_for():
    """Servers ignore n in silence: the samples they do not give must be asked for, and each have its own seed."""

    class One(FaultServer):
        def default(self, seen):
            seen.body["many"] = seen.body.pop("n", None)
            return super().default(seen)

    with One() as server:
        completions = ask(server, request(0, 3), request(1, 3))
    # Found out by one request, which the others waited for.
    assert [seen.body["many"] for seen in server.seen] == [3, None, None, None, None, None]
    assert [c.text.split()[2] for c in completions] == ["0", "1", "2", "100", "101", "102"]
    assert [c.seed for c in completions] == [0, 1, 2, 100, 101, 102]
    assert {c.usage["prompt_tokens"] for c in completions} == {10}


def test_missing_samples_are_asked_for_again():
    """Two of five: the rest come from the next request, with the seed of the first that is missing."""
    with FaultServer(chat_reply("a", "b")) as server:
        completions = ask(server, request(0, 5))
    assert [(seen.body["n"], seen.body["seed"]) for seen in server.seen] == [(5, 0), (3, 2)]
    assert [c.text for c in completions] == ["a", "b", "question 0 2 0", "question 0 2 1", "question 0 2 2"]
    assert [c.seed for c in completions] == [0, None, 2, None, None]


def test_more_choices_than_asked_for():
    with FaultServer(chat_reply("a", "b", "c")) as server:
        assert [c.text for c in ask(server, request(0, 2))] == ["a", "b"]


REFUSED_N = [
    (400, {"message": "Only one completion choice is allowed", "type": "invalid_request_error"}),
    (400, {"message": "'n' : number must be at most 1 but is 3", "type": "invalid_request_error"}),
    (400, {"message": "Invalid n value (currently only n = 1 is supported)", "code": "invalid_request_error"}),
    (400, {"message": "n must be 1 when using greedy sampling, got 3."}),
    (400, {"message": "Unsupported parameter", "param": "n"}),
]


@pytest.mark.parametrize(("status", "error"), REFUSED_N)
def test_a_server_that_refuses_n(status, error):
    with FaultServer(Reply({"error": error}, status)) as server:
        completions = ask(server, request(0, 3), request(1, 3))
    assert [seen.body.get("n") for seen in server.seen] == [3, *[None] * 6]
    assert [c.text.split()[2] for c in completions] == ["0", "1", "2", "100", "101", "102"]


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "type": "extra_forbidden"}]},
        {"detail": "Unexpected fields in the request: {'seed'}"},
        {"error": {"message": "Unrecognized request argument supplied: seed"}},
    ],
)
def test_a_server_that_refuses_seeds(body, caplog):
    """Records that name a seed which was not used would promise that a sample can be drawn again."""
    with FaultServer(Reply(body, 422)) as server:
        completions = ask(server, request(0, 2), request(1, 2))
    assert ["seed" in seen.body for seen in server.seen] == [True, False, False]
    assert [c.seed for c in completions] == [None] * 4
    assert [r.message for r in caplog.records if "refuses `seed`" in r.message] != []
    assert sum("refuses `seed`" in r.message for r in caplog.records) == 1


def test_a_model_that_wants_max_completion_tokens():
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    )
    for extra in ({"param": "max_tokens", "code": "unsupported_parameter"}, {}):
        with FaultServer(error_reply(400, message, **extra)) as server:
            completions = ask(server, request(0), request(1))
        assert [c.status for c in completions] == ["ok", "ok"]
        assert [seen.body.get("max_tokens") for seen in server.seen] == [16, None, None]
        assert [seen.body.get("max_completion_tokens") for seen in server.seen] == [None, 16, 16]


def test_a_model_that_refuses_the_temperature():
    """Sampled at another temperature than asked for, the teacher's votes would not be those of the settings."""
    message = (
        "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) is supported."
    )
    refusal = error_reply(400, message, param="temperature", code="unsupported_value")
    with FaultServer(*[refusal] * 20) as server:
        with pytest.raises(
            TeacherError, match=r"refuses `temperature` = 0.7 for the model 'teacher' .*Choose a value"
        ):
            ask(server, *map(request, range(8)))
        assert len(server.seen) <= 2
    with FaultServer(refusal) as server:
        # 1 is what the model does anyway: it need not be said.
        teacher = teacher_of(server)
        [(_, [completion])] = teacher.sample([request()], SamplingSettings(temperature=1.0))
        assert completion.status == "ok"
        assert [seen.body.get("temperature") for seen in server.seen] == [1.0, None]
        # But another value is said again.
        [(_, [completion])] = teacher.sample([request()], SamplingSettings(temperature=0.7))
        assert server.seen[-1].body["temperature"] == 0.7


def test_too_many_tokens_is_not_another_name():
    message = "max_tokens is too large: 16. This model supports at most 8 completion tokens."
    refusal = error_reply(400, message, param="max_tokens")
    with FaultServer(refusal) as server, pytest.raises(TeacherError, match="refuses `max_tokens` = 16"):
        ask(server, request())


def test_context_overflow_fails_alone():
    """No retry makes a prompt shorter; a dataset sorted by length must not stop the run either."""
    message = "This model's maximum context length is 2048 tokens. However, you requested 3000 tokens."
    with FaultServer(*[error_reply(400, message, code="context_length_exceeded")] * 7) as server:
        completions = ask(server, *map(request, range(8)), max_concurrency=1)
    assert [c.status for c in completions] == ["failed"] * 7 + ["ok"]
    assert "maximum context length" in completions[0].error
    assert len(server.seen) == 8


def test_a_filter_before_the_model():
    message = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
    with FaultServer(error_reply(400, message, code="content_filter")) as server:
        [completion] = ask(server, request())
    assert (completion.status, completion.finish_reason, len(server.seen)) == ("filtered", "content_filter", 1)
