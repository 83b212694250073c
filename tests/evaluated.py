"""Results of evaluations that never were, with every outcome known. `from evaluated import ...`."""

from qcrd_trl.evaluation import results_of, write_results
from qcrd_trl.evaluation.outcome import EvaluationResult, QuestionResult


SETTINGS = {"task_kind": "number", "num_samples": 1, "temperature": None, "max_new_tokens": 256}


def saved(path, labels_right, answers_right=None, ids=None, label="7", model="student", **settings):
    """Results in which each question is right (1) or wrong (0), as `qcrd evaluate` writes them."""
    ids = [f"q{number}" for number in range(len(labels_right))] if ids is None else ids
    answers = [None] * len(ids) if answers_right is None else answers_right
    questions = [
        QuestionResult(
            id=key,
            label=label,
            predicted_text=None,
            predicted=label if right else "wrong",
            label_correct=bool(right),
            rationale=None,
            reached=None if answer is None else label if answer else "wrong too",
            answer_correct=None if answer is None else bool(answer),
            rationale_finished=None,
        )
        for key, right, answer in zip(ids, labels_right, answers, strict=True)
    ]
    asked = answers_right is not None
    result = EvaluationResult(
        label_accuracy=sum(labels_right) / len(ids),
        answer_accuracy=sum(answers) / len(ids) if asked else None,
        agreement=sum(one.agrees for one in questions) / len(ids) if asked else None,
        intervals={},
        counts={"questions": len(ids)},
        questions=questions,
    )
    write_results(path, results_of(result, model, 0, {**SETTINGS, **settings}))
    return path


# The second gets five questions that the first does not, and loses one.
FIRST = [1, 0, 0, 0, 0, 0, 1, 1, 0, 0]
SECOND = [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]
