"""The rows of a samples file as chunks of questions, in bounded memory, whatever layout the file has.

Two layouts are understood. Wide: one row a question, the samples column a list of texts or of mappings with a `text` (and
perhaps a `status`). Long: one row a sample, the samples column a text (and perhaps columns `status`, `sample_index` and
`settings_hash`); rows with the same id, or without an id column the same prompt, belong together, wherever they stand.

A question belongs to the chunk of its number, counted by first appearance. What is held for each question is its key; the
rows of a long source wait on the disk until their chunk is complete, which is at the end of the source.
"""

import hashlib
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..data.shards import shard_of
from ..data.sources import Rows
from ..data.text_files import read_lines_at
from ..errors import DataError
from ..records import Question, Sample
from .questions import (
    Columns,
    check_columns,
    check_same,
    check_single,
    is_long,
    question_key,
    read_cell,
    read_id,
    read_position,
    read_question,
    read_sample,
    read_samples,
)


QUESTIONS_A_CHUNK = 1000
_ROWS_IN_MEMORY = 20_000  # of a long source, before they are written to the disk
_SAMPLE_COLUMNS = ("status", "sample_index", "settings_hash")
_LONG_KEY = 48
_TEXTS = frozenset({str, type(None)})  # equal cells of these types are the same; 1 and True are equal and not the same


@dataclass(frozen=True)
class Part:
    """
    Which rows of a source are wanted.

    Args:
        num_shards (`int`, *optional*, defaults to 1):
            How many shards the questions are shared out among.
        shard_index (`int`, *optional*, defaults to 0):
            The shard that is wanted.
        settings_hash (`str`, *optional*):
            The settings whose samples are wanted, in a long source. Left out, there may be one only.
    """

    num_shards: int = 1
    shard_index: int = 0
    settings_hash: str | None = None

    def has(self, key: str) -> bool:
        """Whether the question with this id is wanted."""
        return self.num_shards == 1 or shard_of(key, self.num_shards) == self.shard_index


@dataclass
class Chunk:
    """
    Rows of some questions, not yet looked into, so that another process can do that.

    Attributes:
        is_long (`bool`): whether a row is a sample.
        columns ([`~sampling.questions.Columns`]): where to find what.
        names (`tuple[str, ...]`): the columns that are carried.
        text_cells (`bool`): whether every cell is text.
        rows (`list[tuple]`): row number, number or id of the question, and the cells; a list: what
            [`~data.text_files.read_lines_at`] reads them from.
        spilled (`str` or `None`): the file that holds the rows before those.
        settings (`str` or `None`): the settings of all samples that are read from lines.
    """

    is_long: bool
    columns: Columns
    names: tuple[str, ...]
    text_cells: bool
    rows: list[tuple[int, str, tuple[Any, ...] | list[Any]]]
    spilled: str | None = None
    settings: str | None = None

    def questions(self) -> list[Question]:
        """Reads the questions, in the order of their first rows."""
        if self.is_long:
            return self._grouped()
        questions = []
        for index, key, cells in self.rows:
            row = dict(zip(self.names, cells, strict=True))
            column = self.columns.samples
            items = read_samples(read_cell(row, column, index, self.text_cells), column, index)
            samples = tuple(read_sample(item, column, index) for item in items)
            questions.append(read_question(row, self.columns, index, key, samples, self.text_cells))
        return questions

    def _all_rows(self) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
        for block in self._waiting_rows():
            for is_place, rows in groupby(block, key=lambda row: type(row[2]) is list):
                if is_place:
                    yield from self._read_places(list(rows))
                else:
                    yield from rows

    def _read_places(self, rows: list[tuple[int, str, list[Any]]]) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
        names, settings = self.names, self.settings
        of_id = names.index(self.columns.id)
        of_settings = None if settings is None else names.index("settings_hash")
        lines = read_lines_at([place for _, _, place in rows], names)
        for (index, key, place), cells in zip(rows, lines, strict=True):
            if cells[of_id] != key or (settings is not None and cells[of_settings] != settings):
                path, _, number = place
                raise DataError(
                    f"{path}, line {number}: {self.columns.id!r} or 'settings_hash' stands there twice, or inside another "
                    "column, or the file was changed while it was read. Write each column once, and select again."
                )
            yield index, key, cells

    def _waiting_rows(self) -> Iterator[list[tuple[int, str, tuple[Any, ...] | list[Any]]]]:
        if self.spilled is not None:
            with open(self.spilled, "rb") as file:
                while True:
                    try:
                        yield pickle.load(file)  # written by this run, into a folder that only its user can enter
                    except EOFError:
                        break
        yield self.rows

    def _grouped(self) -> list[Question]:
        columns, names = self.columns, self.names
        text, status, position = (
            names.index(name) if name in names else None for name in (columns.samples, "status", "sample_index")
        )
        shared = [names.index(name) for name in (columns.prompt, columns.label, columns.choices) if name is not None]
        shared_cells = itemgetter(*shared, shared[0])  # two places and more: then it gives a tuple
        questions: dict[str, Question] = {}
        asked: dict[str, tuple] = {}  # what a question was read from: equal texts need not be read again
        drawn: dict[str, list[tuple[float, Sample, int]]] = {}
        for index, key, cells in self._all_rows():
            cell = cells[text]
            if type(cell) is not str:
                check_single(cell, columns.samples, index)
            of_question = shared_cells(cells)
            earlier = asked.get(key)
            if earlier is None or earlier != of_question or not _TEXTS.issuperset(map(type, earlier)):
                row = dict(zip(names, cells, strict=True))
                question = read_question(row, columns, index, key, (), self.text_cells)
                if earlier is None:
                    questions[key], asked[key], drawn[key] = question, of_question, []
                else:
                    check_same(question, questions[key])
            place = read_position(None if position is None else cells[position], index)
            state = None if status is None else cells[status]
            drawn[key].append((place, Sample(cell, "ok" if state is None else str(state)), index))
        return [
            Question(q.row, q.id, q.prompt, q.label, self._samples(drawn[key], key), q.choices)
            for key, q in questions.items()
        ]

    def _samples(self, drawn: list[tuple[float, Sample, int]], key: str) -> tuple[Sample, ...]:
        drawn.sort(key=itemgetter(0))
        if "settings_hash" not in self.names:
            return tuple(sample for _, sample, _ in drawn)
        kept = drawn[:1]
        for one in drawn[1:]:
            if one[0] != kept[-1][0] or one[0] == float("inf"):
                kept.append(one)
            elif one[1] != kept[-1][1]:
                raise DataError(
                    f"Rows {kept[-1][2]} and {one[2]} (rows count from 0) are both sample {one[0]:.0f} of the question "
                    f"{key!r}, but differ. Files of different runs were joined: select from each, or number them anew."
                )
        return tuple(sample for _, sample, _ in kept)


class Chunks(Iterable[Chunk]):
    """
    The chunks of a source, in order. A long source is read to its end when this is made, a wide one while it is iterated.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]):
            The source.
        columns ([`~sampling.questions.Columns`]):
            Where to find what.
        part ([`Part`], *optional*):
            Which rows are wanted; all if left out.
        folder (`Path`, *optional*):
            Where the rows of a long source wait. Left out, they wait in memory.
        size (`int`, *optional*, defaults to 1000):
            Questions of a chunk.

    Attributes:
        num_questions (`int` or `None`): how many questions there are; `None`: unknown.
        num_chunks (`int` or `None`): how many chunks.
        settings (`Counter`): rows of each settings hash.

    Raises:
        DataError: a column is missing, a cell is of a wrong type, an id stands twice, or samples of several settings are
            mixed; raised here or while iterating.
    """

    def __init__(
        self,
        rows: Rows,
        columns: Columns,
        part: Part | None = None,
        folder: Path | None = None,
        size: int = QUESTIONS_A_CHUNK,
    ):
        self._rows, self._columns, self._part, self._size = rows, columns, part or Part(), size
        self._folder = folder
        check_columns(rows, columns)
        self.is_long = is_long(rows, columns)
        used = [columns.prompt, columns.label, columns.samples, columns.id, columns.choices]
        if self.is_long:
            used += [name for name in _SAMPLE_COLUMNS if name in rows.column_names]
        self._names = tuple(dict.fromkeys(name for name in used if name is not None))
        self.settings: Counter[str] = Counter()
        self.num_questions = self.num_chunks = None
        self._lines_settings: str | None = None
        if self.is_long:
            self._chunks = self._partition()
            self.num_chunks = len(self._chunks)
        elif self._part.settings_hash is not None:
            raise DataError(
                f"{rows.name} has one row a question: --settings_hash is for samples files, one row a sample."
            )
        elif rows.num_rows is not None and self._part.num_shards == 1:
            self.num_questions, self.num_chunks = rows.num_rows, -(-rows.num_rows // size)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks) if self.is_long else self._wide()

    def _chunk(self, rows: list, spilled: str | None = None) -> Chunk:
        settings = self._lines_settings
        return Chunk(self.is_long, self._columns, self._names, self._rows.text_cells, rows, spilled, settings)

    # Wide

    def _wide(self) -> Iterator[Chunk]:
        seen: set[str] = set()
        rows: list[tuple] = []
        for index, row in enumerate(self._rows):
            key = read_id(row, self._columns.id, index)
            if self._columns.id is not None:
                if key in seen:
                    raise DataError(_duplicates(self._rows, self._columns.id))
                seen.add(key)
            if not self._part.has(key):
                continue
            rows.append((index, key, tuple(map(row.get, self._names))))
            if len(rows) == self._size:
                yield self._chunk(rows)
                rows = []
        if rows:
            yield self._chunk(rows)

    # Long

    def _partition(self) -> list[Chunk]:
        numbers: dict[str | bytes, int] = {}  # a question's number in this part; -1: it belongs to another
        ids: dict[int, str] = {}  # without a column for it: a question's number in the whole source
        waiting: dict[int, list[tuple]] = defaultdict(list)
        num_waiting, num_questions, num_places = 0, 0, 0
        spilled: dict[int, str] = {}
        columns, names, part, size = self._columns, self._names, self._part, self._size
        has_settings = "settings_hash" in names
        key_of = self._key_of()
        for index, row in enumerate(self._rows if key_of is None else self._rows.lines(key_of)):
            if is_place := type(row) is tuple:  # a line with the settings of the first row
                num_places += 1
                if part.settings_hash not in (None, self._lines_settings):
                    continue
                key, cells = row
            else:
                if has_settings:
                    settings = str(row.get("settings_hash"))
                    self.settings[settings] += 1
                    if part.settings_hash not in (None, settings):
                        continue
                key = question_key(row, columns, index)
            short = (
                key if len(key) <= _LONG_KEY else hashlib.blake2b(key.encode("utf-8", "surrogatepass")).digest()[:16]
            )
            number = numbers.get(short)
            if number is None:
                name = key if columns.id else str(len(numbers))
                number = num_questions if part.has(name) else -1
                num_questions += number >= 0
                numbers[short] = number
                if not columns.id and number >= 0:
                    ids[number] = name
            if number < 0:
                continue
            name = key if columns.id else ids[number]
            waiting[number // size].append((index, name, cells if is_place else tuple(map(row.get, names))))
            num_waiting += 1
            if num_waiting >= _ROWS_IN_MEMORY and self._folder is not None:
                self._spill(waiting, spilled)
                num_waiting = 0
        if has_settings and num_places:
            self.settings[self._lines_settings] += num_places
        self._check_settings()
        self.num_questions = num_questions
        return [self._chunk(waiting.get(place, []), spilled.get(place)) for place in range(-(-num_questions // size))]

    def _key_of(self) -> Callable[[bytes], str | None] | None:
        """
        What reads the id of a line that `qcrd sample` wrote, with the settings of the first row; `None` for other sources.
        Whoever reads the line compares both.
        """
        if self._columns.id != "id":
            return None
        settings = b""
        if "settings_hash" in self._names:
            first = next(iter(self._rows), {}).get("settings_hash")
            if not isinstance(first, str) or not re.fullmatch(r"\w+", first, re.ASCII):
                return None
            self._lines_settings = first
            settings = f'"settings_hash": "{first}"'.encode()
        match_id = re.compile(rb'\{"id": "([^"\\]+)"').match

        def key_of(line: bytes) -> str | None:
            found = match_id(line)
            if found is None or settings not in line:
                return None
            try:
                return found.group(1).decode()
            except UnicodeDecodeError:
                return None

        return key_of

    def _spill(self, waiting: dict[int, list[tuple]], spilled: dict[int, str]) -> None:
        for place, rows in waiting.items():
            path = spilled.setdefault(place, str(self._folder / f"rows-{place}.pickle"))
            with open(path, "ab") as file:
                pickle.dump(rows, file, protocol=pickle.HIGHEST_PROTOCOL)
        waiting.clear()

    def _check_settings(self) -> None:
        wanted = self._part.settings_hash
        shown = ", ".join(f"{name} ({count} rows)" for name, count in self.settings.most_common())
        if wanted is not None and not self.settings:
            raise DataError(f"{self._rows.name} has no column 'settings_hash': leave --settings_hash out.")
        if wanted is not None and wanted not in self.settings:
            raise DataError(f"{self._rows.name} holds no samples of the settings {wanted}. It has: {shown}.")
        if wanted is None and len(self.settings) > 1:
            raise DataError(
                f"{self._rows.name} holds samples of {len(self.settings)} settings, which should not vote together: {shown}. "
                f"Choose one with --settings_hash."
            )


def read_questions(rows: Rows, columns: Columns) -> tuple[Iterator[Question], int | None]:
    """
    Reads questions with their samples, in one process; the rows of a long source wait in memory.

    Args:
        rows ([`~qcrd_trl.data.sources.Rows`]):
            The source.
        columns ([`~sampling.questions.Columns`]):
            Where to find what.

    Returns:
        `tuple[Iterator[Question], int | None]`: The questions, and how many there are (`None`: unknown).

    Raises:
        DataError: as [`Chunks`].
    """
    chunks = Chunks(rows, columns)
    return (question for chunk in chunks for question in chunk.questions()), chunks.num_questions


def _duplicates(rows: Rows, column: str) -> str:
    seen: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        seen.setdefault(read_id(row, column, index), []).append(index)
    twice = {key: places for key, places in seen.items() if len(places) > 1}
    shown = "; ".join(f"{key!r} in rows {', '.join(map(str, places[:5]))}" for key, places in list(twice.items())[:5])
    more = f"; and {len(twice) - 5} more" if len(twice) > 5 else ""
    return (
        f"Column {column!r}: {len(twice)} id{'s stand' if len(twice) > 1 else ' stands'} more than once (rows count from "
        f"0): {shown}{more}. Make them unique, or name another column with --id_column."
    )
