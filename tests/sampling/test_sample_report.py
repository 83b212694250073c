"""The figures of a samples file, counted by hand."""

import json
import random
import tracemalloc

import pytest

from qcrd_trl.data.sources import Rows
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.sampling.questions import find_columns
from qcrd_trl.sampling.report import SelectionReport
from qcrd_trl.sampling.sample_report import SamplesReport
from qcrd_trl.sampling.sample_rows import samples_of_rows
from qcrd_trl.sampling.self_consistency import select_rationales


# id, label, (text, status) of each sample
QUESTIONS = [
    ("a", "3", [("So 3.", "ok"), ("So 3.0", "ok"), ("So 4.", "ok")]),  # majority right, 2 of 3
    ("b", "5", [("So 6.", "ok"), ("So 6.", "ok"), ("So", "truncated")]),  # majority wrong, unanimous
    ("c", "1", [("So 1.", "ok"), ("So 2.", "ok")]),  # a tie
    ("d", None, [("So 9.", "ok")]),  # a majority, but no label
    ("e", "7", [("no idea", "ok"), ("", "empty"), (None, "failed")]),  # no vote
]
USAGE = [{"prompt_tokens": 10, "completion_tokens": 3}, {"completion_tokens": 4}, {"completion_tokens": 8}]


def long_rows(settings_hash="h", model="m"):
    rows = [
        {"id": key, "prompt": f"{key}?", "label": label, "sample_index": i, "text": text, "status": status}
        | {"settings_hash": settings_hash, "model": model, "temperature": 0.7}
        | {"finish_reason": "length" if status == "truncated" else "stop", "usage": USAGE[i] if key == "a" else {}}
        for key, label, samples in QUESTIONS
        for i, (text, status) in enumerate(samples)
    ]
    return sorted(rows, key=lambda row: row["sample_index"])  # the samples of a question stand apart


def report_of(rows, task_kind="number", parse_completions=False):
    report, source = SamplesReport(task_kind, parse_completions), Rows("rows", lambda: rows)
    for question, sample in samples_of_rows(source, find_columns(source, task_kind)):
        report.add(question, sample)
    return json.loads(json.dumps(report.as_dict()))


def test_figures():
    """Shares over the wrong whole, or a status that votes, look right and mislead whoever pays for the next samples."""
    got = report_of(long_rows())
    assert (got["questions"], got["samples"]) == (5, 12)
    assert got["samples_per_question"] == {"least": 1, "most": 3}
    assert got["statuses"] == {"ok": 9, "truncated": 1, "empty": 1, "filtered": 0, "failed": 1}
    assert got["finish_reasons"] == {"stop": 11, "length": 1}
    assert got["answers"] == {"voting": 8, "without_answer": 1, "not_usable": {}}
    assert got["usage"] == {"prompt_tokens": 10, "completion_tokens": 15, "samples_with_usage": 3}
    empty = {"questions": 0, "right": 0, "wrong": 0, "unlabelled": 0, "tie": 0}
    assert got["agreement"] == {
        "mean_majority_share_of_votes": pytest.approx((2 / 3 + 1 + 1 / 2 + 1) / 4, abs=1e-6),
        "unanimous": 2,
        "single_vote": 1,
        "ties": 1,
        "questions_without_votes": 1,
        "bins": {
            "0-20": empty,
            "20-40": empty,
            "40-60": {**empty, "questions": 1, "tie": 1},  # c
            "60-80": {**empty, "questions": 1, "right": 1},  # a
            "80-100": empty,
            "100": {**empty, "questions": 2, "wrong": 1, "unlabelled": 1},  # b, d
        },
    }
    assert got["yield"] == {
        "with_majority": 3,
        "with_majority_share": 0.6,
        "with_label": 4,
        "labelled_with_majority": 2,
        "majority_right": 1,
        "majority_right_share": 0.5,
        "with_right_sample": 2,
        "with_right_sample_share": 0.5,
    }
    assert got["votes_per_question"] == {
        "reference": "label",
        "for_reference": {"0": 2, "1": 1, "2": 1},  # b and e, c, a
        "for_others": {"0": 1, "1": 2, "2": 1},  # e, a and c, b
    }


def test_lengths():
    """A median of the lengths in the order of the file, or a mean that counts absent texts as 0, is not the length."""
    lengths = report_of(long_rows())["lengths"]
    # characters: 0 (empty), 2 (So), seven of 5, 6 (So 3.0), 7 (no idea); the failed one has no text
    assert lengths["characters"] == {
        "samples": 11,
        "mean": pytest.approx((0 + 2 + 7 * 5 + 6 + 7) / 11, abs=1e-6),
        "median": 5,
        "p95": 7,  # 95 % of 11 are 10.45: the 11th
        "longest": 7,
        "histogram": {"0": 1, "2": 1, "5": 7, "6": 1, "7": 1},
    }
    assert {**lengths["tokens"], "histogram": None} == {
        "samples": 3, "mean": 5, "median": 4, "p95": 8, "longest": 8, "histogram": None
    }  # fmt: skip
    even = report_of([{"id": "a", "text": text} for text in ("1", "12", "1234", "12345678")])
    assert even["lengths"]["characters"]["median"] == 3  # between 2 and 4
    assert even["lengths"]["tokens"] is None


@pytest.mark.parametrize(
    ("votes", "name"),
    [
        ("1 2 3 4 5", "0-20"),
        ("1 1 2 3 4", "20-40"),
        ("1 1 1 2 3", "40-60"),
        ("1 1 1 2", "60-80"),
        ("1 1 1 1 2", "60-80"),
        ("1 1 1 1 1 1 2", "80-100"),
        ("1 1", "100"),
    ],
)
def test_bins_hold_their_upper_end(votes, name):
    """3 of 5 as a float lies beside 0.6: whole columns of the histogram would move with the number of samples."""
    bins = report_of([{"id": "a", "text": f"So {vote}."} for vote in votes.split()])["agreement"]["bins"]
    assert [key for key, outcomes in bins.items() if outcomes["questions"]] == [name]


def test_wide_and_long_are_the_same():
    """One file in two layouts would else have two yields."""
    long = long_rows()
    parts = ("text", "status", "finish_reason", "usage", "sample_index", "settings_hash", "model", "temperature")
    wide = [
        {
            "id": key,
            "prompt": f"{key}?",
            "label": label,
            "rationales": [{part: row[part] for part in parts} for row in long if row["id"] == key],
        }
        for key, label, _ in QUESTIONS
    ]
    assert report_of(wide) == report_of(long)
    random.Random(0).shuffle(long)
    assert report_of(long) == report_of(wide)


def test_votes_are_those_of_the_selection():
    """A report that counts otherwise than the selection shows a yield that the training set does not have."""
    drawn = random.Random(0)
    rows = [
        {"id": str(i), "label": "2", "rationales": [f"So {drawn.choice('1223')}." for _ in range(drawn.randrange(7))]}
        for i in range(200)
    ]
    got, selected = report_of(rows), SelectionReport("gold")
    for row in rows:
        selected.add(select_rationales(row["rationales"], task_kind="number", label=row["label"]))
    want = selected.as_dict()
    assert got["samples"] == want["samples"]["total"] > 500
    for name in ("mean_majority_share_of_votes", "ties", "questions_without_votes"):
        assert got["agreement"][name] == want["agreement"][name]
    assert got["agreement"]["ties"] > 10
    assert got["yield"]["majority_right_share"] == want["gold"]["majority_equals_gold"]
    assert got["yield"]["with_right_sample"] == want["rows"]["with_positive"]


def test_without_labels_the_majority_is_the_reference():
    """Votes for a label that is not there would all be votes for others."""
    got = report_of([{**row, "label": None} for row in long_rows()])
    assert got["yield"]["with_label"] == 0
    assert got["yield"]["majority_right_share"] is None
    assert got["votes_per_question"] == {
        "reference": "majority", "for_reference": {"1": 1, "2": 2}, "for_others": {"0": 2, "1": 1}
    }  # fmt: skip


def test_settings_apart_and_together():
    """Two temperatures in one file: their mean says nothing about either."""
    other = [{**row, "text": "So 3."} for row in long_rows("g", "n") if row["id"] == "a"]
    got = report_of([*long_rows(), *other])
    assert (got["questions"], got["samples"]) == (5, 15)
    assert [(part["settings_hash"], part["model"], part["samples"]) for part in got["settings"]] == [
        ("h", "m", 12),
        ("g", "n", 3),
    ]
    assert got["settings"][1]["agreement"]["mean_majority_share_of_votes"] == 1
    # together a has 5 of 6 votes
    assert got["agreement"]["bins"]["80-100"]["right"] == 1
    assert got["votes_per_question"]["for_reference"] == {"0": 2, "1": 1, "5": 1}


def test_a_sample_that_stands_twice_votes_once():
    """Files joined that overlap: the doubled votes turn a tie into a majority."""
    rows = long_rows()
    got = report_of([*rows, *[row for row in rows if row["text"] == "So 1."]])
    assert got["repeated_left_out"] == 1
    assert {**got, "repeated_left_out": 0} == report_of(rows)


def test_texts_that_cannot_be_used():
    """Half an emoji, a number or a blank marked ok must neither vote nor stop the report."""
    got = report_of([{"id": "a", "rationales": [None, " ", "So 3. \ud83d", 3, "So 3."]}])
    assert got["answers"] == {
        "voting": 1, "without_answer": 0, "not_usable": {"null": 1, "blank": 1, "lone_surrogate": 1, "not_text": 1}
    }  # fmt: skip


def test_choices():
    """An option in words is a vote for its letter only if the options are read."""
    row = {"id": "a", "label": "bank", "choices": ["tree", "bank"]}
    row["rationales"] = ["The answer is bank.", "The answer is B.", "The answer is A."]
    got = report_of([row], task_kind="choice")
    assert got["votes_per_question"]["for_reference"] == {"2": 1}


def test_own_function():
    """A task of the user's own; what it returns is counted by value, and a list cannot be."""
    got = report_of([{"id": "a", "rationales": ["x 1", "y 1", "x 2"]}], task_kind=lambda text: (text[0],))
    assert got["agreement"]["mean_majority_share_of_votes"] == pytest.approx(2 / 3, abs=1e-6)
    with pytest.raises(ConfigError, match=r"returned a list, which cannot be counted"):
        report_of([{"id": "a", "rationales": ["x"]}], task_kind=list)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": "a", "prompt": "p", "text": "1"}, {"id": "a", "prompt": "q", "text": "1"}], "same id 'a' .* prompt"),
        ([{"id": "a", "label": "1", "text": "1"}, {"id": "a", "label": "2", "text": "1"}], "same id 'a' .* label"),
        ([{"id": "a", "text": "1"}, {"id": "b", "label": "blue", "text": "1"}], r"^Row 1 .*'blue' cannot be read"),
    ],
)
def test_rows_that_contradict(rows, message):
    """Two datasets joined by their row numbers: the votes of two questions would be one vote."""
    with pytest.raises(DataError, match=message):
        report_of(rows)


def test_unknown_kind():
    """Found before the first sample."""
    with pytest.raises(ConfigError, match="'numbers'"):
        SamplesReport("numbers")


def test_no_text_is_kept():
    """A file of a million samples has gigabytes of text; what is kept of one must not grow with its length."""

    def rows(length):
        for i in range(400):
            yield {"id": f"q{i % 50}", "prompt": "p", "label": "3", "text": "a" * length + f" so {i % 7}."}

    def kept(length):
        tracemalloc.start()
        try:
            report = SamplesReport("text")  # the answer itself is long here
            source = Rows("rows", lambda: rows(length))
            for question, sample in samples_of_rows(source, find_columns(source, "text")):
                report.add(question, sample)
            used, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert report.as_dict()["samples"] == 400
        return used, peak

    short, long = kept(100), kept(20_000)
    assert long[0] < short[0] + 100_000  # 8 MB of text have passed
    assert long[1] < short[1] + 1_000_000
