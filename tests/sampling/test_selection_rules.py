"""Thresholds, near-duplicates and a discriminator's say, counted by hand."""

import builtins

import pytest

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.records import Sample
from qcrd_trl.sampling.quality import add_scores
from qcrd_trl.sampling.report import SelectionReport
from qcrd_trl.sampling.selecting import Selected
from qcrd_trl.sampling.self_consistency import select_rationales


def says(answer, note=""):
    return f"Let me think{note}. The answer is {answer}."


def test_threshold_is_a_share_of_all_samples():
    """By the votes alone, one voter among four that abstain would be of one mind."""
    samples = [says(7), says(7, " again"), "no idea", Sample(None, "failed"), says(5)]
    for share, label in ((0.4, "7"), (0.41, None)):
        chosen = select_rationales(samples, task_kind="number", label_source="threshold", min_agreement=share)
        assert (chosen.label, chosen.below_agreement) == (label, label is None)
        assert bool(chosen.positives) is (label is not None)
        assert bool(chosen.negatives) is (label is not None)


def test_threshold_at_the_bound_and_its_default():
    """3 of 5 is 0.6 and passes, though 3 / 5 as a float could fall below a computed bound; 2 of 4 does not."""
    for votes, label in (([7, 7, 7, 5, 6], "7"), ([7, 7, 5, 6], None)):
        chosen = select_rationales(
            [says(v, i) for i, v in enumerate(votes)], task_kind="number", label_source="threshold"
        )
        assert chosen.label == label
    for count in range(1, 40):
        samples = [says(7, i) for i in range(count)] + [says(i + 100) for i in range(40 - count)]
        chosen = select_rationales(
            samples, task_kind="number", label_source="threshold", min_agreement=round(count / 40, 6)
        )
        assert chosen.label == ("7" if count > 1 else None)


def test_tie_has_no_label_whatever_the_threshold():
    """Half for each of two answers meets 0.5 twice."""
    chosen = select_rationales([says(7), says(5)], task_kind="number", label_source="threshold", min_agreement=0.5)
    assert (chosen.label, chosen.tie, chosen.below_agreement) == (None, True, False)


def test_gold_with_an_agreement():
    """A right answer reached once in four is often luck: label and negatives stay, the lucky rationale does not."""
    samples = [says(7), says(5), says(6), says(8)]
    chosen = select_rationales(samples, task_kind="number", label="7", min_agreement=0.5)
    assert (chosen.label, chosen.positives, len(chosen.negatives)) == ("7", (), 3)
    assert (chosen.below_agreement, chosen.gold_votes) == (True, 1)
    report = SelectionReport("gold")
    assert report.add(chosen)
    assert report.as_dict()["agreement"]["questions_below_min_agreement"] == 1


def test_report_names_what_fell_below():
    """Questions lost to a threshold that is too high must not look like ties."""
    report = SelectionReport("threshold")
    report.add(
        select_rationales(
            [says(7), says(5), says(7, "!")], task_kind="number", label_source="threshold", min_agreement=0.9
        )
    )
    assert report.as_dict()["rows"]["dropped"] == {"below agreement": 1}
    assert "below the agreement asked for" in report.as_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_source": "majority", "min_agreement": 0.5}, "use label_source='threshold'"),
        ({"label_source": "threshold", "min_agreement": 0}, "above 0 and at most 1; got 0"),
        ({"label_source": "threshold", "min_agreement": 60}, "above 0 and at most 1; got 60"),
    ],
)
def test_wrong_agreement(settings, message):
    """60 for 60 % would leave out everything."""
    with pytest.raises(ConfigError, match=message):
        select_rationales([says(7)], task_kind="number", label="7", **settings)


TEXT = "Tom has 12 apples and eats 5 of them, so 12 - 5 = 7 apples are left over for him."


def test_near_duplicates_are_left_out_on_one_side_only():
    """A negative one word away from a positive is worth most: it shows the student exactly where the fault is."""
    near = TEXT.replace("eats", "ate")
    wrong = TEXT.replace("= 7", "= 8")
    samples = [TEXT, near, wrong, wrong.replace("eats", "ate"), "7 apples."]
    chosen = select_rationales(samples, task_kind="number", label="7", near_duplicates=0.9)
    assert chosen.positives == (TEXT, "7 apples.")
    assert chosen.negatives == (wrong,)
    assert (chosen.near_duplicates, chosen.duplicates) == (2, 0)
    off = select_rationales(samples, task_kind="number", label="7")
    assert (len(off.positives), len(off.negatives), off.near_duplicates) == (3, 2, 0)


def test_likeness_is_counted_by_hand():
    """One edit in ten characters is 0.9: at the bound it is a near-duplicate, above it is not."""
    samples = ["it is 7 aa", "it is 7 ab"]
    for likeness, kept in ((0.9, 1), (0.91, 2)):
        chosen = select_rationales(samples, task_kind="number", label="7", near_duplicates=likeness)
        assert len(chosen.positives) == kept


def test_near_duplicates_need_their_library(monkeypatch, tmp_path):
    """Found when the command starts, with the way to install it."""
    from qcrd_trl.cli.select import SelectArguments

    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("rapidfuzz"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'qcrd_trl\[select\]'"):
        SelectArguments(samples="x", output_dir=str(tmp_path), task_kind="number", near_duplicates=0.9)
    SelectArguments(samples="x", output_dir=str(tmp_path), task_kind="number")
    with pytest.raises(ConfigError, match="at most 1 "):
        SelectArguments(samples="x", output_dir=str(tmp_path), task_kind="number", near_duplicates=90)


class Lengths:
    """Scores a rationale by its length."""

    def score(self, prompts, rationales, batch_size=32):
        assert len(prompts) == len(rationales)
        return [len(text) / 10 for text in rationales]


def selected(*rows):
    report = SelectionReport("gold")
    for positives, negatives in rows:
        texts = [f"{text}7" for text in positives] + [f"{text}5" for text in negatives]
        report.add(select_rationales(texts, task_kind=lambda text: text[-1], label="7"))
    made = [
        (i, {"prompt": "q", "positive_rationales": list(p), "negative_rationales": list(n)})
        for i, (p, n) in enumerate(rows)
    ]
    return Selected(made, report, len(rows))


def test_quality_filter():
    """Scores that slip by one would judge each rationale by its neighbour's."""
    chunk = selected((["aaaa", "aaaaaa"], ["a"]), (["aa"], ["aaaaaaaa"]), ([], ["aaa"]))
    add_scores(chunk, Lengths(), min_quality=0.5)
    rows = [row for _, row in chunk.rows]
    assert [row["positive_rationales"] for row in rows] == [["aaaaaa"], [], []]
    assert [row["positive_scores"] for row in rows] == [[0.6], [], []]
    assert [row["negative_scores"] for row in rows] == [[0.1], [0.8], [0.3]]
    report = chunk.report.as_dict()
    assert report["quality"] == {"positives": 2, "questions": 1}
    assert report["rows"]["with_positive"] == 1
    assert report["positives_per_question"] == {"0": 2, "1": 1}


def test_scores_without_a_bound_leave_everything():
    """Looking at scores first is how a bound is chosen."""
    chunk = selected((["aaaa"], []))
    add_scores(chunk, Lengths())
    assert chunk.rows[0][1]["positive_scores"] == [0.4]
    assert chunk.report.as_dict()["quality"] == {}


def test_reports_add_up():
    """Shards that are reported one by one must give the report of the whole, to the last digit."""
    questions = [[7, 7, 5], [7, 5], [5, 5, 5], [7], ["none"], [7, 7, 7, 5, 5, 6, 6]]
    whole, parts = SelectionReport("gold", {"label_source": "gold"}), [SelectionReport("gold") for _ in range(2)]
    for i, votes in enumerate(questions):
        chosen = select_rationales([says(v, f" {j}") for j, v in enumerate(votes)], task_kind="number", label="7")
        whole.add(chosen)
        parts[i % 2].add(chosen)
    whole.drop("prompt", "null")
    parts[1].drop("prompt", "null")
    merged = SelectionReport.from_dict(parts[1].as_dict() | {"settings": {"label_source": "gold"}})
    merged.merge(parts[0])
    expected = whole.as_dict()
    got = merged.as_dict()
    assert got == expected
    assert SelectionReport.from_dict(expected).as_dict() == expected
    with pytest.raises(DataError, match="no report of `qcrd select`"):
        SelectionReport.from_dict({"rows": {}})
