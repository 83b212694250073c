"""Accuracies of answers as [`evaluate.Metric`] classes: no download, usable wherever such metrics are."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import datasets
import evaluate

from .answers import answers_equal, extract_answer, parse_label
from .answers.values import check_task_kind
from .errors import DataError


_CITATION = """\
@inproceedings{wang2025qcrd,
    title = {{QCRD}: Quality-guided Contrastive Rationale Distillation for Large Language Models},
    author = {Wang, Wei and Li, Zhaowei and Xu, Qi and Cai, Yiqing and Song, Hang and Qi, Qi and Zhou, Ran and Huang, Zhida \
and Wang, Tao and Xiao, Li},
    booktitle = {Proceedings of the 2025 Conference on Empirical Methods in Natural Language Processing},
    year = {2025}
}
"""
_KIND = """\
    task_kind (`str` or `Callable`):
        How an answer is read from a text: `"number"`, `"choice"`, `"nli"`, `"text"`, or a function of yours.
    choices (`list[dict[str, str]]`, *optional*):
        Of a choice, the options of each question: letter to text.
"""


class _AnswerMetric(evaluate.Metric):
    """A metric of texts, whose answers are compared by value."""

    _description: str
    _inputs: str

    def __init__(self, *args: Any, keep_in_memory: bool = True, **kwargs: Any):
        # In memory: a cache on the disk is only of use for more texts than fit into it.
        super().__init__(*args, keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        texts = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self._description,
            citation=_CITATION,
            inputs_description=f"Args:\n{self._inputs}{_KIND}",
            features=datasets.Features({"predictions": texts, "references": texts}),
        )


class AnswerAccuracy(_AnswerMetric):
    """
    Share of the texts whose answer is the label: of predicted labels and of rationales alike.

    `compute` takes:
        predictions (`list[str]`): texts, such as rationales or bare answers.
        references (`list[str]`): labels.
        task_kind (`str` or `Callable`): how an answer is read from a text.
        choices (`list[dict[str, str]]`, *optional*): of a choice, the options of each question.

    and gives `accuracy` and `no_answer`, the share of the texts from which no answer is read, both in [0, 1].

    Raises:
        [`DataError`]: if a label cannot be read, naming its place, or there is no text.

    Example:

    ```python
    >>> from qcrd_trl import AnswerAccuracy
    >>> texts = ["3 + 4 = 7. The answer is 7.", "It is 12.", "Who knows?"]
    >>> AnswerAccuracy().compute(predictions=texts, references=["7", "7", "7"], task_kind="number")
    {'accuracy': 0.3333333333333333, 'no_answer': 0.3333333333333333}
    ```
    """

    _description = "Share of the texts whose answer, read from what they commit to, is the label."
    _inputs = "    predictions (`list[str]`): texts.\n    references (`list[str]`): labels.\n"

    def _compute(
        self,
        predictions: Sequence[str | None],
        references: Sequence[str],
        task_kind: str | Callable[[str], Hashable | None] | None = None,
        choices: Sequence[Mapping[str, str] | None] | None = None,
    ) -> dict[str, float]:
        options = _options(predictions, task_kind, choices)
        answers = [extract_answer(*row) for row in zip(predictions, *options, strict=True)]
        labels = []
        for place, row in enumerate(zip(references, *options, strict=True)):
            try:
                labels.append(parse_label(*row))
            except DataError as err:
                raise DataError(f"Reference {place}: {err}") from err
        right = sum(answers_equal(*pair, task_kind) for pair in zip(answers, labels, strict=True))
        return {"accuracy": right / len(answers), "no_answer": sum(one is None for one in answers) / len(answers)}


class AnswerAgreement(_AnswerMetric):
    """
    Share of the questions for which two texts reach the same answer, such as a predicted label and a rationale.

    `compute` takes:
        predictions (`list[str]`): texts.
        references (`list[str]`): other texts on the same questions. A text without an answer agrees with none.
        task_kind (`str` or `Callable`): how an answer is read from a text.
        choices (`list[dict[str, str]]`, *optional*): of a choice, the options of each question.

    and gives `agreement`, in [0, 1].

    Raises:
        [`DataError`]: if there is no text.

    Example:

    ```python
    >>> from qcrd_trl import AnswerAgreement
    >>> AnswerAgreement().compute(predictions=["7", "8"], references=["3 + 4 = 7", "no idea"], task_kind="number")
    {'agreement': 0.5}
    ```
    """

    _description = "Share of the questions for which two texts reach the same answer."
    _inputs = "    predictions (`list[str]`): texts.\n    references (`list[str]`): other texts.\n"

    def _compute(
        self,
        predictions: Sequence[str | None],
        references: Sequence[str | None],
        task_kind: str | Callable[[str], Hashable | None] | None = None,
        choices: Sequence[Mapping[str, str] | None] | None = None,
    ) -> dict[str, float]:
        options = _options(predictions, task_kind, choices)
        answers = [
            [extract_answer(*row) for row in zip(texts, *options, strict=True)] for texts in (predictions, references)
        ]
        same = sum(answers_equal(*pair, task_kind) for pair in zip(*answers, strict=True))
        return {"agreement": same / len(predictions)}


def _options(predictions: Sequence[Any], task_kind: Any, choices: Sequence[Any] | None) -> tuple[list, list]:
    """The task kind and the options of each text."""
    check_task_kind(task_kind)
    if len(predictions) == 0:
        raise DataError("There are no texts to measure.")
    if choices is not None and len(choices) != len(predictions):
        raise DataError(f"`choices` needs the options of each text: got {len(choices)} for {len(predictions)} texts.")
    return [task_kind] * len(predictions), list(choices or [None] * len(predictions))
