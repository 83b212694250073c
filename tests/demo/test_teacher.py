"""The noisy teacher, and the selection of its samples."""

from collections import Counter
from itertools import islice

import pytest

from qcrd_trl import extract_answer
from qcrd_trl.demo.data import make_data
from qcrd_trl.demo.task import is_correct, problems
from qcrd_trl.demo.teacher import sample_rationales


@pytest.fixture(scope="module")
def questions():
    return list(islice(problems(11), 1000))


@pytest.fixture(scope="module")
def samples(questions):
    return sample_rationales(questions, seed=11)


def test_a_fifth_to_a_quarter_of_the_samples_is_wrong(questions, samples):
    """Without errors there is nothing to select; with too many the vote, and so every label, is wrong."""
    pairs = [(problem, text) for problem, texts in zip(questions, samples, strict=True) for text in texts]
    assert len(pairs) == 5000
    wrong_answers = sum(extract_answer(text, "number") != problem.answer for problem, text in pairs)
    wrong_steps = sum(not is_correct(problem, text) for problem, text in pairs)
    assert 0.19 < wrong_answers / len(pairs) < 0.26
    assert wrong_answers < wrong_steps < 1.2 * wrong_answers  # now and then two errors cancel


def test_the_majority_is_wrong_now_and_then(questions, samples):
    """Errors that are independent would be voted away: no teacher errs like that."""
    wrong = 0
    for problem, texts in zip(questions, samples, strict=True):
        votes = Counter(extract_answer(text, "number") for text in texts).most_common(2)
        wrong += votes[0][0] != problem.answer and (len(votes) == 1 or votes[0][1] > votes[1][1])
    assert 0.04 < wrong / len(questions) < 0.15


def test_samples_of_a_question_are_worded_differently(samples):
    """Five equal texts would leave one positive a question, and nothing for many-to-one reductions to do."""
    assert sum(len(set(texts)) for texts in samples) / len(samples) > 3.5


def test_samples_depend_on_the_seed_alone(questions, samples):
    """Two runs of the demo could not be compared."""
    assert sample_rationales(questions, seed=11) == samples
    assert sample_rationales(questions, seed=12) != samples


def test_data_is_what_it_says():
    """Rows that lose their label, their sides or their held-out questions would still train."""
    data = make_data(200, 50, seed=13)
    drawn = list(islice(problems(13), 250))
    sampled = sample_rationales(drawn[:200], seed=13)
    assert [row["prompt"] for row in data.test] == [problem.question for problem in drawn[200:]]
    assert [row["label"] for row in data.test] == [str(problem.answer) for problem in data.test_problems]
    assert len(data.train) + data.facts["ties_left_out"] == 200
    assert 150 < len(data.train) < 200
    for row in data.train:
        index = int(row["id"].removeprefix("train-"))
        assert row["prompt"] == drawn[index].question
        assert row["raw_rationale"] == sampled[index][0]
        assert set(row["positive_rationales"]) | set(row["negative_rationales"]) == set(sampled[index])
        assert all(text.endswith(f"the answer is {row['label']}") for text in row["positive_rationales"])
        assert not any(text.endswith(f"the answer is {row['label']}") for text in row["negative_rationales"])
    right = sum(row["label"] == str(drawn[int(row["id"].removeprefix("train-"))].answer) for row in data.train)
    assert data.facts["vote_accuracy"] == right / len(data.train)
    assert data.facts["vote_accuracy"] > data.facts["sample_answer_accuracy"]
    assert make_data(200, 50, seed=13) == data
