"""What several rationales of one question come to: the answer that most reach, and the best of those that reach it."""

from collections.abc import Callable, Hashable, Sequence

from .answers import answers_equal, format_answer
from .records import Explanation, StudentRationale


def explanation_of(
    samples: tuple[StudentRationale, ...],
    answers: Sequence[Hashable | None],
    task_kind: str | Callable[[str], Hashable | None] | None,
) -> Explanation:
    """
    The samples of a question with their vote.

    Args:
        samples (`tuple[StudentRationale, ...]`): the rationales in the order in which they were drawn, at least one.
        answers (`Sequence`): the value that each reaches, `None` for none.
        task_kind (`str` or `Callable`, *optional*): how values are compared; none is an answer if left out.
    """
    count = len(samples)
    reaches = [
        [task_kind is not None and answers_equal(one, other, task_kind) for other in answers] for one in answers
    ]
    leader = max(range(count), key=lambda i: sum(reaches[i]))  # the first of the most frequent
    members = [i for i in range(count) if reaches[leader][i]]
    answer = samples[leader].answer if members else None
    # Without any answer, all of them stand for the question. A quality is above 0.
    best = max(members or range(count), key=lambda i: samples[i].quality or 0.0)
    return Explanation(samples, answer, best)


def shown_answer(answer: Hashable | None) -> str | None:
    """An answer as text; what a function of the user's returns may be neither a number nor a text."""
    if answer is None:
        return None
    try:
        return format_answer(answer)
    except TypeError:
        return str(answer)
