"""Quality of rationales on held-out questions: scores as training computes them, and numbers counted by hand."""

import json

import pytest
from datasets import Dataset
from running import trainer_of
from saved import TAUGHT
from tiny import tiny_llama, word_tokenizer

from qcrd_trl import RationaleStudent
from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.rationale_quality import QualityReport, ScoredRationale, rationale_quality


HELD_OUT = [{**row, "positive_rationales": [*row["positive_rationales"], "a is b so c"]} for row in TAUGHT]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trainer after some steps, whose discriminator has learned something."""
    trainer = trainer_of(
        tmp_path_factory.mktemp("run"), tiny_llama(initializer_range=0.4), TAUGHT, max_steps=3, logging_steps=1000,
        reduction="mean", discriminator_learning_rate=0.02, parts={"eval_dataset": Dataset.from_list(HELD_OUT)},
    )  # fmt: skip
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def student(trained):
    return RationaleStudent(
        trained.model, trained.processing_class, trained.student_format, trained.discriminator, task_kind="number"
    )


def test_scores_are_those_of_training(trained, student):
    """Another template, other tokens or other states, and the AUC tells of a discriminator that nobody trained."""
    report = rationale_quality(student, HELD_OUT, temperatures=())
    trained.evaluate()
    for source, side in (("teacher_positive", True), ("teacher_negative", False)):
        expected = sorted(trained._eval_scores[side])
        assert len(set(expected)) > 3
        assert sorted(report.scores(source)) == pytest.approx(expected, abs=2e-6)
    assert report.as_dict()["against"]["teacher_negative"]["auc"] == pytest.approx(
        trained.evaluate()["eval_discriminator_auc"], abs=1e-6
    )


def test_samples_are_the_students_and_repeatable(student):
    """Each temperature is a source of its own; the same seed gives the same report, byte for byte, another one not."""
    report = rationale_quality(student, HELD_OUT, (1.5, 2.0), num_samples=2, max_new_tokens=6)
    assert report.sources == ["teacher_positive", "teacher_negative", "student_1.5", "student_2"]
    explained = student.explain([row["prompt"] for row in HELD_OUT], 2, 2.0, 0, max_new_tokens=6)
    drawn = [(sample.text, sample.quality) for one in explained for sample in one.samples]
    assert [(one.text, one.score) for one in report.rationales if one.source == "student_2"] == drawn
    again = rationale_quality(student, Dataset.from_list(HELD_OUT), (1.5, 2.0), num_samples=2, max_new_tokens=6)
    assert json.dumps(again.as_dict()) == json.dumps(report.as_dict())
    other = rationale_quality(student, HELD_OUT, (1.5,), num_samples=2, max_new_tokens=6, seed=1)
    assert other.question_set == report.question_set
    assert other.scores("student_1.5") != report.scores("student_1.5")


def test_some_questions(student):
    """The draw must not depend on what else is asked, and a report on other questions must not pass for the same."""
    report = rationale_quality(student, HELD_OUT, (), num_questions=2)
    ids = {one.id for one in report.rationales}
    assert (len(ids), report.num_questions) == (2, 2)
    assert {one.id for one in rationale_quality(student, HELD_OUT, (), num_questions=2).rationales} == ids
    assert report.question_set != rationale_quality(student, HELD_OUT, ()).question_set
    assert rationale_quality(student, HELD_OUT, (), num_questions=99).num_questions == 4


def test_figures_by_hand():
    """AUC the wrong way round, or weights by the number of samples, would still look like numbers."""

    def one(source, score, reaches=None, text="a b", key="q"):
        return ScoredRationale(key, source, text, score, reaches)

    report = QualityReport(
        [
            one("teacher_positive", 0.95, True, "a b c"), one("teacher_positive", 0.55, True, "a b d"),
            one("teacher_positive", 0.95, True, "x", "other"),
            one("student_1.5", 0.95, True), one("student_1.5", 0.15, False), one("student_1.5", 0.15, False),
            one("student_1.5", 0.05, False), one("student_1.5", None, False, ""),
        ], 2, {}, "hash",
    ).as_dict()  # fmt: skip
    assert list(report["against"]) == ["student_1.5"]
    against = report["against"]["student_1.5"]
    # Pairs of 3 positives and 4 samples: 0.95 beats three and ties one, twice; 0.55 beats three.
    assert against["auc"] == pytest.approx((2 * 3.5 + 3) / 12)
    assert against["auc_of_wrong_ones"] == 1.0
    # Half the weight each side: positives 1/6, samples 1/8 each.
    bins = {round(part["low"], 1): part for part in against["reliability"] if part["weight"]}
    assert bins[0.9]["weight"] == pytest.approx(2 / 6 + 1 / 8)
    assert bins[0.9]["share_positive"] == pytest.approx((2 / 6) / (2 / 6 + 1 / 8))
    assert bins[0.1]["weight"] == pytest.approx(2 / 8)
    gap = abs(0.95 * (2 / 6 + 1 / 8) - 2 / 6) + 0.45 / 6 + 2 * 0.15 / 8 + 0.05 / 8
    assert against["expected_calibration_error"] == pytest.approx(gap)
    brier = (2 * 0.05**2 + 0.45**2) / 6 + (0.95**2 + 2 * 0.15**2 + 0.05**2) / 8
    assert against["brier_score"] == pytest.approx(brier)
    sample = report["sources"]["student_1.5"]
    assert (sample["rationales"], sample["scored"], sample["reach_the_label"]) == (5, 4, 0.2)
    assert sample["mean"] == pytest.approx(1.3 / 4)
    assert sum(sample["histogram"]) == 4
    assert report["diversity"] == {
        "questions_with_several_positives": 1, "distinct_1": 4 / 6, "distinct_2": 3 / 4, "pairwise_similarity": 0.5
    }  # fmt: skip


def test_without_negatives_or_labels(student):
    """A set without minority rationales still has positives and samples to tell apart."""
    rows = [{"prompt": row["prompt"], "positive_rationales": row["positive_rationales"]} for row in HELD_OUT]
    rows.append({"prompt": "a", "positive_rationales": None})
    report = rationale_quality(student, rows, (1.5,), max_new_tokens=4).as_dict()
    assert list(report["sources"]) == ["teacher_positive", "student_1.5"]
    assert report["questions"] == 4
    assert report["sources"]["student_1.5"]["reach_the_label"] is None
    assert report["against"]["student_1.5"]["auc_of_wrong_ones"] is None


@pytest.mark.parametrize(
    ("rows", "arguments", "error", "said"),
    [
        ([{"prompt": "a"}], {}, DataError, "no column 'positive_rationales'.*columns are 'prompt'"),
        ([{"prompt": "a", "positive_rationales": []}], {}, DataError, "0 of 1 rows"),
        ([], {}, DataError, "no column"),
        ([{"prompt": "a", "positive_rationales": "b"}], {}, DataError, "Row 0: column 'positive_rationales'"),
        ([{**HELD_OUT[0], "label": "many"}], {}, DataError, "Row 0, column 'label'"),
        (HELD_OUT, {"temperatures": (1.5, 0.0)}, ConfigError, "above 0"),
        (HELD_OUT, {"temperatures": (1.5, 1.5)}, ConfigError, "different"),
        (HELD_OUT, {"num_questions": 0}, ConfigError, "num_questions must be at least 1, got 0"),
    ],
)
def test_bad_input(student, rows, arguments, error, said):
    """Told before the first forward pass, naming the row."""
    with pytest.raises(error, match=said):
        rationale_quality(student, rows, **arguments)


def test_a_student_without_a_discriminator():
    """Label-only and DSS students have none."""
    with pytest.raises(ModelError, match="no discriminator to score rationales with"):
        rationale_quality(RationaleStudent(tiny_llama(), word_tokenizer()), HELD_OUT)
