"""Many requests to a server at once: how many, how they wait, how a run ends."""

import os
import signal
import threading
import time
from itertools import pairwise

import pytest
from serving import (
    HOW,
    QUICK,
    FaultServer,
    Reply,
    answers_of,
    ask,
    chat_reply,
    error_reply,
    prepare,
    request,
    teacher_of,
)

from qcrd_trl.errors import ConfigError, TeacherError
from qcrd_trl.sampling.teachers.base import SamplingSettings
from qcrd_trl.sampling.teachers.openai_policy import RetryPolicy


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    prepare(monkeypatch)


def test_waits_grow():
    """Retries at once, or evenly spaced, keep a server down that is overloaded."""
    policy = RetryPolicy(first=0.1, longest=0.3, jitter=0.05)
    with FaultServer(*[error_reply(500, "boom")] * 4) as server:
        ask(server, request(), policy=policy)
    times = [seen.time for seen in server.seen]
    waits = [after - before for before, after in pairwise(times)]
    # 0.1 x 1, 2, 4 and 8, the last two cut to 0.3; up to 0.05 by chance (also cut), and the time of the request itself.
    for wait, least in zip(waits, (0.1, 0.2, 0.3, 0.3), strict=True):
        assert least - 0.005 <= wait <= least + 0.05 + 0.15, waits


@pytest.mark.parametrize("headers", [{"Retry-After": "1"}, {"retry-after-ms": "1000", "Retry-After": "60"}])
def test_retry_after_is_obeyed(headers):
    """A server that is asked again too soon counts that as well, and may shut the user out."""
    with FaultServer(error_reply(429, "slow down", headers)) as server:
        [completion] = ask(server, request())
    assert completion.status == "ok"
    first, second = (seen.time for seen in server.seen)
    assert 1.0 <= second - first < 1.5


def test_retry_after_as_a_date():
    """Read against the server's own clock: this machine's may be hours off."""
    headers = {"Retry-After": "Wed, 21 Oct 2015 07:28:01 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}
    with FaultServer(error_reply(429, "slow down", headers)) as server:
        ask(server, request())
    assert len(server.seen) == 2
    assert 0.9 <= server.seen[1].time - server.seen[0].time < 1.5


def test_one_retry_after_slows_all():
    """Seven requests that run on into the same limit are seven more refusals."""
    with FaultServer(chat_reply("a"), error_reply(429, "slow down", {"Retry-After": "1"}), delay=0.05) as server:
        completions = ask(server, *map(request, range(8)), max_concurrency=2)
    assert {c.status for c in completions} == {"ok"}
    refused = server.seen[1].time
    # Those that were on their way already are served.
    assert sum(refused < seen.time < refused + 1 for seen in server.seen) <= 2
    assert not [seen for seen in server.seen if refused + 0.4 < seen.time < refused + 1]
    assert len(server.seen) == 9


def test_backoff_of_one_does_not_stop_the_others():
    """A poisoned question would make the whole run as slow as its own waits."""
    policy = RetryPolicy(first=0.5, longest=0.5, jitter=0.0)
    with FaultServer(error_reply(500, "boom")) as server:
        teacher = teacher_of(server, policy, max_concurrency=2)
        order = [asked.id for asked, _ in teacher.sample(map(request, range(6)), HOW)]
    assert order[-1] == "q0"
    assert len(order) == 6


def test_a_strict_rate_limit_costs_few_refusals():
    """16 requests that come back all at once get one answer and 15 refusals, until their retries are used up."""

    class Limited(FaultServer):
        last = 0.0

        def default(self, seen):
            if seen.time - self.last < 0.05:
                return error_reply(429, "slow down", {"Retry-After": "0.05"})
            self.last = seen.time
            return super().default(seen)

    with Limited() as server:
        teacher = teacher_of(server, max_retries=8, max_concurrency=16)
        answers = list(teacher.sample(map(request, range(30)), HOW))
    assert [c.status for _, (c,) in answers] == ["ok"] * 30
    # All at once would be some 360 requests: 30 answers with up to 15 refusals each.
    assert len(server.seen) < 30 * 6


def test_a_very_long_wait_stops_the_run():
    """A used-up daily limit: the user must hear of it, not find the run asleep the next morning."""
    with FaultServer(error_reply(429, "daily limit", {"Retry-After": "7200"})) as server:
        started = time.monotonic()
        with pytest.raises(TeacherError, match=r"7200 s, longer than 600 s .*daily limit.*Run again then"):
            ask(server, request())
    assert time.monotonic() - started < 5
    assert len(server.seen) == 1


def test_concurrency_is_reached_and_never_passed():
    with FaultServer(delay=0.4) as server:
        started = time.monotonic()
        completions = ask(server, *map(request, range(25)), max_concurrency=8)
    assert len(completions) == 25
    assert server.most_at_once == 8
    # The first alone, then 24 by eight: 4 rounds of 0.4 s, against 10 s one after the other.
    assert time.monotonic() - started < 5


def test_samples_one_by_one_run_at_once_too():
    """Few questions with many samples, on a server without n, would otherwise run one after the other."""
    with FaultServer(chat_reply("a"), delay=0.4) as server:
        completions = ask(server, request(0, 17), max_concurrency=8)
    assert [c.sample_index for c in completions] == list(range(17))
    assert server.most_at_once == 8


def test_requests_are_drawn_as_there_is_room():
    """A list of a million prompts would stand in memory, and be templated before the first request."""
    drawn = 0

    def requests():
        nonlocal drawn
        for number in range(1000):
            drawn += 1
            yield request(number)

    with FaultServer() as server:
        answers = teacher_of(server, max_concurrency=3).sample(requests(), HOW)
        assert drawn == 0
        for done in range(1, 20):
            next(answers)
            assert drawn <= done + 3
        answers.close()
    assert drawn < 25


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "qcrd-teacher"}


@pytest.mark.parametrize("end", ["close", "throw", "source", "consumer"])
def test_an_interrupted_run_leaves_nothing_behind(end):
    """Ctrl-C must not hang on a slow server, nor leave requests running that are paid for."""

    def requests():
        yield request(0)
        yield request(1)
        if end == "source":
            raise KeyboardInterrupt
        yield from map(request, range(2, 100))

    with FaultServer(chat_reply("a"), delay=30.0) as server:
        answers = teacher_of(server, max_concurrency=4, timeout=60.0).sample(requests(), HOW)
        started = time.monotonic()
        if end == "source":
            with pytest.raises(KeyboardInterrupt):
                list(answers)
        else:
            next(answers)
            assert len(threads()) == 1
            if end == "close":
                answers.close()
            elif end == "throw":
                with pytest.raises(KeyboardInterrupt):
                    answers.throw(KeyboardInterrupt)
            else:
                del answers
        assert time.monotonic() - started < 5
        assert threads() == set()
        time.sleep(0.3)  # until what was on its way has come
        sent = len(server.seen)
        time.sleep(0.3)
        assert len(server.seen) == sent <= 5


def test_ctrl_c_while_all_wait():
    """A wait that does not listen to signals keeps the user at a dead terminal until the server answers."""
    with FaultServer(delay=30.0) as server:
        answers = teacher_of(server, max_concurrency=4, timeout=60.0).sample(map(request, range(9)), HOW)
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        started = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(answers)
        assert 0.9 < time.monotonic() - started < 10
        assert threads() == set()
    assert len(server.seen) >= 1


def test_samples_come_as_they_are_answered():
    """A question's first samples, held back until its last, are paid for again if the run is killed between."""
    slow = chat_reply("slow", delay=3.0)
    with FaultServer(chat_reply("a"), chat_reply("b"), slow, chat_reply("c")) as server:
        started = time.monotonic()
        parts = teacher_of(server).sample([request(0, 4)], HOW)
        first = [next(parts)[1] for _ in range(3)]
        assert time.monotonic() - started < 2.5
        last = next(parts)[1]
        assert list(parts) == []
    assert [len(part) for part in [*first, last]] == [1, 1, 1, 1]
    assert {part[0].text for part in first} == {"a", "b", "c"}
    assert last[0].text == "slow"
    assert sorted(part[0].sample_index for part in [*first, last]) == [0, 1, 2, 3]


def test_inside_a_running_loop():
    """A notebook has a loop running in the thread that asks."""
    import asyncio

    async def cell():
        with FaultServer() as server:
            return ask(server, request(0, 2))

    assert [c.status for c in asyncio.run(cell())] == ["ok", "ok"]


def test_a_teacher_can_be_asked_again():
    """What the server takes is remembered; connections of the first run are not used in the second's loop."""
    with FaultServer(chat_reply("a")) as server:
        teacher = teacher_of(server)
        for number in range(2):
            completions = answers_of(teacher, [request(number, 2)])[f"q{number}"]
            assert [c.status for c in completions] == ["ok", "ok"]
        teacher.close()
        teacher.close()
    assert [seen.body.get("n") for seen in server.seen] == [2, None, None, None]


def test_a_teacher_that_does_not_sample(caplog):
    """K equal samples agree with themselves: self-consistency would be certain of whatever the teacher says first."""

    class Greedy(FaultServer):
        def default(self, seen):
            return chat_reply(*["same"] * seen.body["n"])

    with Greedy() as server:
        ask(server, *(request(i, 2) for i in range(12)))
        assert sum("does the teacher sample?" in r.message for r in caplog.records) == 1
        caplog.clear()
        ask(server, *(request(i, 2) for i in range(12)), how=SamplingSettings(temperature=0.0))
    with FaultServer() as server:
        ask(server, *(request(i, 2) for i in range(12)))
    assert "does the teacher sample?" not in caplog.text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model": ""}, "`model`"),
        ({"max_concurrency": 0}, "`max_concurrency` must be a whole number of at least 1, got 0"),
        ({"max_concurrency": 1.5}, "`max_concurrency`"),
        ({"max_retries": -1}, "`max_retries` must be a whole number of at least 0, got -1"),
        ({"timeout": 0}, "`timeout`"),
        ({"timeout": float("nan")}, "`timeout`"),
        ({"timeout": float("inf")}, "`timeout`"),
        ({"base_url": "localhost:8000/v1"}, "`base_url` must be an address .* got 'localhost:8000/v1'"),
        ({"base_url": "ftp://localhost/v1"}, "`base_url` must be an address"),
        ({"base_url": "http://"}, "`base_url` must be an address"),
        ({"base_url": "http://localhost:port/v1"}, "`base_url` must be an address"),
    ],
)
def test_bad_arguments(options, expected):
    from qcrd_trl.sampling.teachers.openai_server import OpenAITeacher

    with pytest.raises(ConfigError, match=expected):
        OpenAITeacher(**{"model": "teacher", "base_url": "http://localhost:1/v1", **options})


def test_settings_are_what_decides_the_texts():
    """The same samples from another address, or with other patience, must be reused."""
    one = teacher_of("http://localhost:1/v1", max_concurrency=3, timeout=5.0)
    other = teacher_of("http://localhost:2/v1", RetryPolicy(), chat=False)
    assert one.settings() == {"backend": "openai", "model": "teacher", "chat": True}
    assert other.settings() == {"backend": "openai", "model": "teacher", "chat": False}
    assert QUICK.max_retries == 8


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error_reply(401, "Incorrect API key"), "wants a key .*OPENAI_API_KEY is not set"),
        (error_reply(403, "no access"), "wants a key .*OPENAI_API_KEY is not set"),
        (error_reply(404, "The model `teacher` does not exist."), "does not know the model 'teacher'"),
        (Reply({"detail": "Not Found"}, 404), r"nothing at http://127.0.0.1:\d+/v1/chat/completions .*/v1"),
        (Reply({"detail": "Server is pinned to 'x'; requested 'teacher'."}, 400), "does not know the model"),
        (error_reply(402, "Insufficient Balance"), "no credit"),
        (error_reply(429, "You exceeded your current quota", code="insufficient_quota"), "no credit"),
    ],
)
def test_what_stops_the_run(reply, expected):
    """A wrong key found by each of 10,000 requests is an hour of retries and a file of failures."""
    with FaultServer(chat_reply("a"), *[reply] * 100) as server:
        answers = teacher_of(server, max_concurrency=4).sample(map(request, range(100)), HOW)
        assert next(answers)[1][0].status == "ok"
        with pytest.raises(TeacherError, match=expected):
            list(answers)
    assert len(server.seen) <= 6


def test_a_server_that_is_gone_stops_the_run():
    """A server that died in the night would leave thousands of samples marked failed."""
    with FaultServer() as server:
        teacher = teacher_of(server, max_retries=2, max_concurrency=2)
        answers = teacher.sample(map(request, range(1000)), HOW)
        statuses = [next(answers)[1][0].status for _ in range(10)]
        server.stop()

        def rest():
            for _, completions in answers:
                statuses.append(completions[0].status)

        with pytest.raises(TeacherError, match=r"has not answered any of 5 questions in a row.*run again"):
            rest()
    assert statuses[:10] == ["ok"] * 10
    assert 5 <= statuses.count("failed") <= 6  # one more may be in flight


def test_a_server_that_refuses_from_the_start_stops_the_run():
    refusal = error_reply(400, "This server only does embeddings.")
    with FaultServer(*[refusal] * 50) as server:
        with pytest.raises(TeacherError, match="only does embeddings"):
            ask(server, *map(request, range(50)), max_concurrency=1)
        assert len(server.seen) == 5
    # After an answer it is the question's fault.
    with FaultServer(chat_reply("a"), *[refusal] * 9) as server:
        completions = ask(server, *map(request, range(10)), max_concurrency=1)
    assert [c.status for c in completions] == ["ok"] + ["failed"] * 9
    assert len(server.seen) == 10


def test_a_poisoned_question_asked_one_by_one_does_not_stop_the_run():
    """Its samples fail one after the other, as many as there are: that is one question, not a dead server."""
    with FaultServer(chat_reply("a"), *[error_reply(500, "boom")] * 14) as server:
        completions = ask(server, request(0, 8), request(1, 8), max_retries=1, max_concurrency=1)
    assert [c.status for c in completions[:8]] == ["ok"] + ["failed"] * 7
    assert [c.status for c in completions[8:]] == ["ok"] * 8
