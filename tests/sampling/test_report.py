"""The report's numbers, counted by hand."""

import json

import pytest

from qcrd_trl.sampling.report import SelectionReport
from qcrd_trl.sampling.self_consistency import select_rationales


QUESTIONS = [
    (["it is 1", "so 1", "maybe 2"], "1"),  # m 2, k 1, majority right
    (["it is 3", "so 4"], "4"),  # m 1, k 1, tie
    (["it is 5", None, "no idea"], "6"),  # m 0, k 1, majority wrong, one null, one abstention
]


def report_of(label_source):
    report = SelectionReport(label_source, {"task_kind": "number"})
    for samples, label in QUESTIONS:
        report.add(select_rationales(samples, task_kind="number", label=label, label_source=label_source))
    report.drop("prompt", "null")
    return report


def test_gold_report():
    """Shares over the wrong whole (votes for samples, tied questions left in) look right and mislead every choice."""
    got = json.loads(json.dumps(report_of("gold").as_dict()))
    assert got["rows"] == {
        "in": 4, "out": 3, "dropped": {"prompt null": 1}, "with_positive": 2, "with_negative": 3, "yield": 0.5
    }  # fmt: skip
    assert got["samples"] == {
        "total": 8, "voting": 6, "abstained": 1, "dropped": {"null": 1}, "duplicates_left_out": 0,
        "near_duplicates_left_out": 0, "without_explanation": 0, "statuses": {"ok": 8},
    }  # fmt: skip
    assert got["agreement"] == {
        "mean_majority_share_of_votes": pytest.approx((2 / 3 + 1 / 2 + 1) / 3, abs=1e-6),
        "mean_majority_share_of_samples": pytest.approx((2 / 3 + 1 / 2 + 1 / 3) / 3, abs=1e-6),
        "ties": 1,
        "questions_without_votes": 0,
        "questions_below_min_agreement": 0,
        "of_votes": {"1/1": 1, "1/2": 1, "2/3": 1},
        "of_samples": {"1/2": 1, "1/3": 1, "2/3": 1},
    }
    assert got["gold"] == {
        "questions": 3,
        "counts": {"questions": 3, "with_majority": 2, "majority": 1, "votes": 3, "of_votes": 6, "of_samples": 8},
        "questions_with_majority": 2,
        "majority_equals_gold": 0.5,
        "majority_equals_gold_of_all_questions": pytest.approx(1 / 3, abs=1e-6),
        "share_of_samples": 3 / 8,
        "share_of_votes": 3 / 6,
    }
    assert got["positives_per_question"] == {"0": 1, "1": 1, "2": 1}
    assert got["negatives_per_question"] == {"1": 3}
    assert got["settings"] == {"task_kind": "number"}


def test_majority_report_counts_the_tie_as_dropped():
    """A tied question has no label: left in, it would train on nothing; not counted, rows would vanish unseen."""
    got = report_of("majority").as_dict()
    assert got["rows"]["dropped"] == {"prompt null": 1, "tie": 1}
    assert (got["rows"]["in"], got["rows"]["out"], got["rows"]["with_positive"]) == (4, 2, 2)


def test_text_fits_a_terminal():
    """Lines that wrap make a table unreadable; an empty report must not divide by zero."""
    for report in (report_of("gold"), SelectionReport("majority")):
        lines = report.as_text().splitlines()
        assert len(lines) > 10
        assert max(map(len, lines)) <= 80
    assert SelectionReport("gold").as_dict()["rows"]["yield"] is None
