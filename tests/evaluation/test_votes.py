"""Several samples a question: what their vote decides, and what they are drawn by."""

import random

import pytest
import torch
from generating import questions as training_rows
from generating import sharp_llama
from tiny import word_tokenizer

from qcrd_trl import StudentFormat, evaluate_student, select_rationales
from qcrd_trl.evaluation.asking import TEMPERATURE, EvaluationSettings
from qcrd_trl.evaluation.outcome import Written, outcome_of
from qcrd_trl.records import Question


def question(name="q", label="7", choices=None):
    return Question(0, name, "3 + 4?", label, (), choices)


def written(*texts, finished=True):
    return [Written(text, finished) for text in texts]


def outcome(predicted, rationales, **kwargs):
    asked = [question(**kwargs)]
    return outcome_of(asked, {"label": [written(*predicted)], "rationale": [written(*rationales)]}, "number")


def test_the_most_frequent_answer_counts():
    """The first sample, or a mean over samples, would be called a majority's accuracy."""
    rationales = ["3 + 4 = 8", "no idea", "4 + 3 = 7", "It is 7.0."]
    result = outcome(["8", "7", "7"], rationales)
    one = result.questions[0]
    assert (one.predicted, one.label_correct, one.predicted_text) == ("7", True, "7")
    assert (one.reached, one.answer_correct) == ("7", True)
    assert one.rationale == "4 + 3 = 7"  # the first that reaches what was decided
    assert one.samples.label_votes == {"7": 2, "8": 1}
    assert one.samples.answer_votes == {"7": 2, "8": 1}
    assert one.samples.rationales == rationales
    assert (one.samples.label_tie, one.samples.answer_tie) == (False, False)
    assert (result.label_accuracy, result.answer_accuracy, result.agreement) == (1, 1, 1)
    assert result.counts["label_ties"] == result.counts["answer_ties"] == 0


def test_a_tie_is_no_answer():
    """Broken by order, a tie would make accuracy depend on which of two samples was drawn first."""
    result = outcome(["7", "8"], ["It is 8.", "It is 7.", "Who knows?"])
    one = result.questions[0]
    assert (one.predicted, one.label_correct, one.reached, one.answer_correct) == (None, False, None, False)
    assert one.predicted_text == "7"
    assert result.counts["label_ties"] == result.counts["answer_ties"] == 1
    assert result.counts["no_predicted_answer"] == result.counts["no_reached_answer"] == 1
    assert result.agreement == 0  # no answer agrees with none


def test_the_vote_is_that_of_select():
    """Two rules of voting in one package would give a student and its teacher different majorities."""
    texts = ["It is 7.", "7.0", "It is 8.", "", "Who knows?", "8", "7"]
    chosen = select_rationales(texts, task_kind="number", label_source="majority")
    one = outcome(["7"], texts).questions[0]
    assert (one.reached, tuple(one.samples.answer_votes.items())) == (chosen.majority, chosen.votes)


def test_unfinished_rationales_are_counted_sample_by_sample():
    """A limit that is too short shows in them alone."""
    texts = [*written("It is 7."), *written("It is 7. And", "3 + 4", finished=False)]
    result = outcome_of([question()], {"rationale": [texts]}, "number", skipped=2)
    assert result.counts["unfinished_rationales"] == result.questions[0].samples.unfinished_rationales == 2
    assert result.questions[0].rationale_finished
    assert (result.counts["skipped"], result.label_accuracy) == (2, None)


def test_choices_are_read_with_their_options():
    """Read without them, the text of an option is no answer."""
    asked = [question(label="B", choices={"A": "a hat", "B": "a bank"})]
    result = outcome_of(asked, {"label": [written("a bank", "B", "a hat")]}, "choice")
    assert result.questions[0].predicted == "B"
    assert result.questions[0].samples.label_votes == {"B": 2, "A": 1}


# ---- What is drawn ----


def sampled(rows=None, **kwargs):
    kwargs = {"num_samples": 3, "max_new_tokens": 6, "label_max_new_tokens": 4, "progress": False, **kwargs}
    rows = training_rows(6) if rows is None else rows
    return evaluate_student(sharp_llama().eval(), word_tokenizer(), rows, "number", StudentFormat(), **kwargs)


def drawn(result):
    return {one.id: (one.samples.predicted_texts, one.samples.rationales) for one in result.questions}


@pytest.mark.parametrize("batch_size", [1, 4])
def test_samples_do_not_depend_on_the_batch(batch_size):
    """An accuracy that changes with the memory of a machine cannot be compared."""
    torch.manual_seed(batch_size)
    whole = drawn(sampled())
    assert drawn(sampled(batch_size=batch_size)) == whole
    assert any(len(set(texts)) > 1 for texts, _ in whole.values())
    # Nor on the other questions, nor on how many samples there are beside them.
    assert drawn(sampled(training_rows(6)[3:]))["q4"] == whole["q4"]
    fewer = drawn(sampled(num_samples=2))
    assert fewer["q1"] == tuple(texts[:2] for texts in whole["q1"])


def test_samples_depend_on_the_seed():
    """A seed that is not read gives the same draw, however often it is repeated."""
    assert drawn(sampled(seed=1)) != drawn(sampled())
    assert drawn(sampled(temperature=3.0)) != drawn(sampled())
    assert drawn(sampled(temperature=TEMPERATURE)) == drawn(sampled())


def test_each_sample_has_a_seed_of_its_own():
    """Shared seeds draw one text several times, or the same noise for a label and a rationale."""
    settings = EvaluationSettings("number", num_samples=2)
    seeds = [settings.seed_of(q, task, n) for q in ("a", "b") for task in ("label", "rationale") for n in (0, 1)]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 1 << 62 for seed in seeds)


def test_greedy_unless_it_is_asked_otherwise():
    """One sample at a temperature is a draw; without one it is the likeliest text, whatever the seed."""
    one, other = (sampled(num_samples=1, seed=seed) for seed in (0, 1))
    assert [q.rationale for q in one.questions] == [q.rationale for q in other.questions]
    assert one.questions[0].samples is None
    hot = sampled(num_samples=1, temperature=5.0)
    assert [q.rationale for q in hot.questions] != [q.rationale for q in one.questions]


def test_random_state_and_mode_are_left_as_they_were():
    """An evaluation in the middle of a run would change what the run draws next."""
    model = sharp_llama().train()
    model.model.layers[0].eval()
    state = torch.get_rng_state(), random.getstate()
    evaluate_student(
        model, word_tokenizer(), training_rows(4), "number", num_samples=2, max_new_tokens=4, progress=False
    )
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert model.training
    assert not model.model.layers[0].training
