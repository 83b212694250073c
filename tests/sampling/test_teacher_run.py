"""The driver: which samples are asked for, and what becomes of the answers, whatever the backend."""

import json
from collections import Counter

import pytest
from teaching import NotingTeacher, sample_seed, served, write_questions

from qcrd_trl.data.draws import draw, number_of
from qcrd_trl.data.samples_file import SamplesFile, read_samples
from qcrd_trl.data.shards import shard_of
from qcrd_trl.data.sources import load_rows
from qcrd_trl.errors import DataError, TeacherError
from qcrd_trl.sampling.questions import Columns
from qcrd_trl.sampling.teacher_prompts import TeacherPrompt
from qcrd_trl.sampling.teacher_run import TeacherQuestions, check_questions, run_teacher
from qcrd_trl.sampling.teachers.base import SamplingSettings, TeacherCompletion, status_of


PROMPT = TeacherPrompt("Do it.")
COLUMNS = Columns(label="label", id="id")


class Crash(Exception):
    """Something that nobody foresaw."""


def crash():
    raise Crash


def run(folder, teacher=None, count=10, num_samples=4, name="samples.jsonl", temperature=0.7, shard=(1, 0), **options):
    """Runs the driver as the command does; gives its report and the samples of the file by key."""
    dataset = folder / "questions.jsonl"
    if not dataset.exists():
        write_questions(dataset, count)
    teacher = teacher or NotingTeacher(log=folder / "served")
    questions = TeacherQuestions(load_rows(dataset), COLUMNS, *shard)
    how = SamplingSettings(temperature=temperature)
    settings = {"teacher": teacher.settings(), "temperature": temperature}
    with SamplesFile(folder / name, settings, options.pop("allow_other_settings", False)) as file:
        report = check_questions(questions, PROMPT, file, num_samples, teacher.chat)
        run_teacher(teacher, questions, PROMPT, how, file, report, num_samples=num_samples, progress=False, **options)
    return report, {sample.key[:2]: sample for sample in read_samples(folder / name)}


def test_records(tmp_path):
    """What the next steps read: the question as the dataset has it, the label, the seed, the usage once a request."""
    report, samples = run(tmp_path, count=2, num_samples=2, seed=3)
    seed = draw(2**31, 3, number_of("q1"), 1)
    first, second = samples["q1", 0], samples["q1", 1]
    assert (second.prompt, second.label, second.seed, second.status) == ("What is 1 + 1?", "2", seed, "ok")
    assert second.text == f"So q1 1 {seed} 0.7."
    assert (second.model, second.temperature, second.finish_reason) == ("noting", 0.7, "stop")
    assert (first.usage, second.usage) == ({"prompt_tokens": 10, "completion_tokens": 4}, {})
    assert (report.questions, report.wanted, report.found, report.new) == (2, 4, 0, 4)
    assert (report.prompt_tokens, report.completion_tokens, report.failed_share) == (20, 8, 0.0)
    assert "4 of 4 samples of 2 questions: 0 were there, 4 are new (4 ok)" in report.as_text()


def test_what_the_teacher_is_asked(tmp_path):
    """The template must reach the teacher, and one request holds all that a question lacks."""
    teacher = NotingTeacher(log=tmp_path / "served")
    run(tmp_path, teacher, count=3)
    assert [request.id for request in teacher.requests] == ["q0", "q1", "q2"]
    request = teacher.requests[1]
    assert request.prompt == [{"role": "user", "content": "Do it.\n\nQuestion: What is 1 + 1?"}]
    assert request.sample_indices == (0, 1, 2, 3)
    assert request.seeds == tuple(sample_seed(0, "q1", index) for index in range(4))
    assert len(set(request.seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in request.seeds)
    assert teacher.closed == 1


def test_four_answers_of_a_server(tmp_path):
    """A null, an empty and a filtered answer that vote, or a null that ends the run."""
    answers = {
        ("q0", 0): (None, "length"),
        ("q0", 1): ("", "stop"),
        ("q0", 2): ("half", "content_filter"),
        ("q0", 3): ("The answer is 0.", "stop"),
    }
    report, samples = run(tmp_path, NotingTeacher(log=tmp_path / "served", answers=answers), count=1)
    assert [samples["q0", index].status for index in range(4)] == ["truncated", "empty", "filtered", "ok"]
    assert report.statuses == Counter(truncated=1, empty=1, filtered=1, ok=1)
    assert len(served(tmp_path / "served")) == 4
    assert "(1 ok, 1 truncated, 1 empty, 1 filtered)" in report.as_text()
    run(tmp_path)
    assert len(served(tmp_path / "served")) == 4, "what came, usable or not, is paid: it is not asked for again"


@pytest.mark.parametrize(
    ("text", "reason", "status"),
    [
        ("a", "stop", "ok"),
        ("a", None, "ok"),
        ("a", "length", "truncated"),
        (None, "length", "truncated"),
        (None, "stop", "empty"),
        (" \n", "stop", "empty"),
        ("", None, "empty"),
        ("a", "content_filter", "filtered"),
        (None, "content_filter", "filtered"),
    ],
)
def test_statuses(text, reason, status):
    """Only `ok` votes: a text that was cut off has no answer, or a wrong one."""
    assert status_of(text, reason) == status


def test_crash_at_prompt_seven(tmp_path):
    """Ten questions, four samples, a crash at the seventh: 40 keys in the end, and none is paid twice."""
    with pytest.raises(Crash):
        run(tmp_path, NotingTeacher(log=tmp_path / "served", at={6: crash}))
    assert len(served(tmp_path / "served")) == 24
    path = tmp_path / "samples.jsonl"
    path.write_bytes(path.read_bytes() + b'{"id": "q6", "prompt": "Wha')
    report, samples = run(tmp_path)
    assert (report.found, report.new) == (24, 16)
    assert len(samples) == 40
    assert sorted(Counter(served(tmp_path / "served")).values()) == [1] * 40
    assert path.read_bytes().count(b"\n") == 40


def test_another_temperature_reuses_nothing(tmp_path):
    """Samples at 0.7 that pass for samples at 1.5."""
    run(tmp_path, count=2)
    report, _ = run(tmp_path, temperature=1.5, allow_other_settings=True)
    assert (report.found, report.new) == (0, 8)
    assert len(served(tmp_path / "served")) == 16
    by_settings = Counter(sample.settings_hash for sample in read_samples(tmp_path / "samples.jsonl"))
    assert sorted(by_settings.values()) == [8, 8]


def test_more_samples_later(tmp_path):
    """Raising K asks for the new numbers alone, and those are what a run with that K at once would have."""
    run(tmp_path, count=3, num_samples=2)
    report, grown = run(tmp_path, num_samples=5)
    assert (report.found, report.new) == (6, 9)
    assert served(tmp_path / "served")[6:] == [(f"q{i}", index) for i in range(3) for index in (2, 3, 4)]
    _, at_once = run(tmp_path, num_samples=5, name="at_once.jsonl")
    assert {key: sample.text for key, sample in grown.items()} == {key: s.text for key, s in at_once.items()}
    report, _ = run(tmp_path, num_samples=1)
    assert (report.wanted, report.found, report.new) == (3, 3, 0)


def test_failed_samples_are_asked_again(tmp_path):
    """A server that was down for an hour must not leave holes for ever."""
    failing = {("q0", 1), ("q2", 3)}
    report, samples = run(tmp_path, NotingTeacher(log=tmp_path / "served", failing=failing), count=3)
    assert report.failed_share == 2 / 12
    assert report.held == 10
    assert samples["q0", 1].status == "failed"
    assert samples["q0", 1].error == "HTTP 500 after 5 attempts"
    report, samples = run(tmp_path)
    assert served(tmp_path / "served")[12:] == [("q0", 1), ("q2", 3)]
    assert {sample.status for sample in samples.values()} == {"ok"}
    assert (report.found, report.new, report.failed_share) == (10, 2, 0.0)
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 12


def test_nothing_is_missing(tmp_path):
    """A finished file is not touched, and the teacher is not asked."""
    run(tmp_path, count=2)
    before = (tmp_path / "samples.jsonl").stat().st_mtime_ns
    teacher = NotingTeacher(log=tmp_path / "served")
    report, _ = run(tmp_path, teacher)
    assert (report.found, report.new, teacher.requests) == (8, 0, [])
    assert (tmp_path / "samples.jsonl").stat().st_mtime_ns == before


def test_order_of_the_answers_does_not_matter(tmp_path):
    """Servers answer in any order: what a sample is must not hang on it."""
    _, forward = run(tmp_path)
    _, backward = run(tmp_path, NotingTeacher(log=tmp_path / "served", reverse=True), name="backward.jsonl")
    assert list(forward) != list(backward), "the order was the same: the test shows nothing"
    assert forward == backward


def test_answers_in_parts(tmp_path):
    """A local backend answers batch by batch, and a batch may hold a part of a question's samples."""

    class InParts(NotingTeacher):
        def sample(self, requests, how):
            for request, completions in super().sample(requests, how):
                for completion in completions[::-1]:
                    yield request, [completion]

    _, samples = run(tmp_path, InParts(log=tmp_path / "served"), count=3)
    assert {key: s.text for key, s in samples.items()} == {
        key: s.text for key, s in run(tmp_path, name="b")[1].items()
    }


@pytest.mark.parametrize("num_shards", [2, 3, 7])
def test_shards_together_are_one_run(tmp_path, num_shards):
    """Files of many machines, put together, must be the file of one: no question twice, none left out."""
    _, whole = run(tmp_path, count=20)
    parts = []
    for index in range(num_shards):
        report, part = run(tmp_path, name=f"part-{index}.jsonl", shard=(num_shards, index))
        assert {id for id, _ in part} == {f"q{i}" for i in range(20) if shard_of(f"q{i}", num_shards) == index}
        assert report.wanted == len(part)
        parts.append((tmp_path / f"part-{index}.jsonl").read_bytes() if part else b"")
    assert sum(map(bool, parts)) > 1
    (tmp_path / "merged.jsonl").write_bytes(b"".join(parts))
    merged = list(read_samples(tmp_path / "merged.jsonl"))
    assert len(merged) == 80
    assert {sample.key[:2]: sample for sample in merged} == whole
    report, _ = run(tmp_path, name="merged.jsonl")
    assert report.new == 0, "the merged file is a samples file like any other"


def test_seeds_depend_on_run_question_and_number_alone():
    """Equal seeds for two samples are one sample paid twice."""
    seeds = {sample_seed(run, id, index) for run in range(3) for id in ("a", "b", "c") for index in range(20)}
    assert len(seeds) == 180
    assert sample_seed(0, "a", 0) == draw(2**31, 0, number_of("a"), 0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": " "}, {"id": "c", "prompt": None}],
            r"2 questions.*row 1: blank; row 2: null",
        ),
        ([{"id": "a", "prompt": "half \ud83d"}], "row 0: not writable as UTF-8"),
        ([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}], "1 id stands more than once.*'a' in rows 0, 1"),
        (
            [{"id": "a", "prompt": [{"role": "assistant", "content": "x"}]}],
            "Row 0 .*does not end with the user's turn",
        ),
        ([{"id": "a", "prompt": 3}], "expected a text or a list of messages"),
    ],
)
def test_questions_that_cannot_be_asked(tmp_path, rows, message):
    """Found at row 40,000, the first 39,999 are paid."""
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps({"label": "1", **row}) + "\n" for row in rows))
    with pytest.raises(DataError, match=message):
        run(tmp_path)
    assert served(tmp_path / "served") == []
    assert not (tmp_path / "samples.jsonl").exists()


def test_changed_question(tmp_path):
    """The old answers must not pass for answers to the new question."""
    run(tmp_path, count=2)
    text = (tmp_path / "questions.jsonl").read_text()
    (tmp_path / "questions.jsonl").write_text(text.replace("1 + 1", "1 + 3"))
    with pytest.raises(DataError, match="Question 'q1' is not the one"):
        run(tmp_path)


class Faulty(NotingTeacher):
    """A backend that breaks the contract in one way."""

    def __init__(self, fault, **kwargs):
        super().__init__(**kwargs)
        self.fault = fault

    def sample(self, requests, how):
        for request, completions in super().sample(requests, how):
            if self.fault == "short":
                return
            if self.fault == "lacking":
                completions = completions[:-1]
            if self.fault == "twice":
                yield request, completions
            if self.fault == "number":
                completions = [TeacherCompletion(9, "x", "stop", "ok")]
            if self.fault == "status":
                completions = [TeacherCompletion(0, "x", "stop", "good")]
            yield request, completions


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short", "without an answer for 8 samples"),
        ("lacking", "without an answer for 2 samples, such as those of 'q0'"),
        ("twice", "'q0', which it was not asked for"),
        ("number", "sample 9 of question 'q0'"),
        ("status", "'good'"),
    ],
)
def test_backends_that_break_the_contract(tmp_path, fault, message):
    """A backend of the user's own: samples that vanish or double in silence."""
    with pytest.raises(TeacherError, match=message):
        run(tmp_path, Faulty(fault, log=tmp_path / "served"), count=2)


def test_a_teacher_that_goes_away(tmp_path):
    """What was answered before is kept, the report tells of it, and the rest is asked for later."""

    def gone():
        raise TeacherError("The server is gone.")

    with pytest.raises(TeacherError, match="gone"):
        run(tmp_path, NotingTeacher(log=tmp_path / "served", at={2: gone}), count=5)
    assert len(list(read_samples(tmp_path / "samples.jsonl"))) == 8
    report, samples = run(tmp_path)
    assert (report.found, len(samples)) == (8, 20)


def test_ctrl_c_in_the_middle_of_a_write(tmp_path, monkeypatch):
    """Ctrl-C between the write and the count: the report would be off by one answer."""
    import os
    import signal

    import qcrd_trl.data.samples_file as samples_file

    write, writes = samples_file._write, []

    def interrupted(file, data):
        writes.append(data)
        if len(writes) == 3:
            file.write(data[:50])
            os.kill(os.getpid(), signal.SIGINT)
            file.write(data[50:])
            return
        write(file, data)

    monkeypatch.setattr(samples_file, "_write", interrupted)
    teacher = NotingTeacher(log=tmp_path / "served")
    handler = signal.getsignal(signal.SIGINT)
    report, samples = run(tmp_path, teacher)
    assert report.interrupted
    assert report.new == len(samples) == 12
    assert teacher.closed == 1
    assert signal.getsignal(signal.SIGINT) is handler


def test_bar(tmp_path, capsys):
    """One line with the rate, the errors, the retries and the tokens."""
    write_questions(tmp_path / "questions.jsonl", 3)
    teacher = NotingTeacher(log=tmp_path / "served", failing={("q1", 0)})
    teacher.stats.retries = 7
    questions = TeacherQuestions(load_rows(tmp_path / "questions.jsonl"), COLUMNS)
    with SamplesFile(tmp_path / "s.jsonl", {}) as file:
        report = check_questions(questions, PROMPT, file, 2, True)
        run_teacher(teacher, questions, PROMPT, SamplingSettings(), file, report, num_samples=2)
    err = capsys.readouterr().err
    assert "6/6" in err
    assert "samples/s" in err
    assert "errors=1, retries=7, tokens=28" in err


def test_a_million_questions_would_not_be_held(tmp_path):
    """Requests are made as the backend takes them: a list of all would be the memory of a million prompts."""
    taken = []

    class Counting(NotingTeacher):
        def sample(self, requests, how):
            def counted():
                for request in requests:
                    taken.append(request.id)
                    yield request

            for number, answer in enumerate(super().sample(counted(), how), 1):
                assert len(taken) == number
                yield answer

    run(tmp_path, Counting(log=tmp_path / "served"), count=30)
    assert len(taken) == 30
