"""The samples of a file one by one, long or wide, without holding the file: what a report counts."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..data.sources import Rows
from ..errors import DataError
from ..records import Question
from .questions import (
    Columns,
    check_columns,
    check_single,
    is_long,
    question_key,
    read_cell,
    read_id,
    read_question,
    read_sample,
    read_samples,
)


def samples_of_rows(rows: Rows, columns: Columns) -> Iterator[tuple[Question, Mapping[str, Any] | None]]:
    """
    The samples of a source, one after the other, in the layouts that [`~qcrd_trl.sampling.chunks.Chunks`] reads.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]): the source.
        columns ([`~qcrd_trl.sampling.questions.Columns`]): where to find what. Without an id, rows of single texts belong
            together by their prompt, and rows of lists by nothing. A column `prompt` may be absent.

    Yields:
        `tuple[Question, Mapping | None]`: a question, without its samples, and one sample of it: a mapping with `text`, and the
        other keys of [`~qcrd_trl.records.TeacherSample`] where they are there. `None` for a question without samples.

    Raises:
        DataError: a column is missing, a cell is of a wrong type, or an id stands twice where a row is a question.
    """
    check_columns(rows, columns, needs_prompt=False)
    each = _long if is_long(rows, columns) else _wide
    yield from each(rows, columns)


def _long(rows: Rows, columns: Columns) -> Iterator[tuple[Question, Mapping[str, Any]]]:
    for index, row in enumerate(rows):
        text = row.get(columns.samples)
        check_single(text, columns.samples, index)
        question = read_question(row, columns, index, question_key(row, columns, index), (), rows.text_cells)
        yield question, {**row, "text": text}


def _wide(rows: Rows, columns: Columns) -> Iterator[tuple[Question, Mapping[str, Any] | None]]:
    seen: set[str] = set()
    for index, row in enumerate(rows):
        key = read_id(row, columns.id, index)
        if key in seen:
            raise DataError(
                f"{rows.name}, row {index} (rows count from 0): the id {key!r} has stood in a row before. Make ids unique, "
                f"or name another column with --id_column."
            )
        seen.add(key)
        question = read_question(row, columns, index, key, (), rows.text_cells)
        items = read_samples(read_cell(row, columns.samples, index, rows.text_cells), columns.samples, index)
        if not items:
            yield question, None
        for item in items:
            read_sample(item, columns.samples, index)  # it has a text, or that is an error
            yield question, (item if isinstance(item, dict) else {"text": item})
