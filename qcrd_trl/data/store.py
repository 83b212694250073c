"""The negatives that a student's snapshots generated: what the next batch reads, and what checkpoints carry."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError
from ..files import sha256, whole_folder
from ..records import Negative
from .prompts import Prompt, is_conversational


NEGATIVES_FOLDER = "negatives"
ROWS_NAME, STATE_NAME = "negatives.parquet", "state.json"

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_FIELDS = pa.schema(
    [
        ("negative", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("iteration", pa.int32()),
        ("snapshot", pa.int32()),
        ("seed", pa.int64()),
        ("temperature", pa.float64()),
        ("is_finished", pa.bool_()),
        ("reaches_label", pa.bool_()),
        ("quality", pa.float64()),
    ]
)


class NegativeStore:
    """
    Generated negatives of the current iteration, keyed by the question's id.

    The trainer reads it at each step in its own process, so that a refresh counts from the very next step, whatever
    `dataloader_num_workers` is.

    Attributes:
        iteration (`int` or `None`): iteration of the negatives; `None` before the first refresh.
        until (`int` or `None`): optimizer step up to which the questions have been asked.
    """

    def __init__(self):
        self.iteration: int | None = None
        self.until: int | None = None
        self._negatives: dict[str, tuple[Negative, ...]] = {}
        self._prompts: dict[str, Prompt | None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._negatives.values()))

    def __iter__(self) -> Iterator[tuple[str, Negative]]:
        for key, negatives in self._negatives.items():
            for negative in negatives:
                yield key, negative

    def get(self, key: str) -> tuple[Negative, ...]:
        """Negatives of a question; none for a question that has none."""
        return self._negatives.get(key, ())

    def replace(
        self,
        iteration: int | None,
        negatives: Mapping[str, Sequence[Negative]],
        prompts: Mapping[str, Prompt | None] | None = None,
        until: int | None = None,
    ) -> None:
        """
        Takes the negatives of a new iteration in place of those of the last.

        Args:
            iteration (`int`): the iteration.
            negatives (`Mapping[str, Sequence[Negative]]`): negatives of each question, by its id.
            prompts (`Mapping[str, str or list[dict]]`, *optional*): the questions, for whoever reads what is saved.
            until (`int`, *optional*): optimizer step up to which the questions have been asked.
        """
        self._negatives = {key: tuple(values) for key, values in negatives.items() if values}
        self._prompts = {key: prompts.get(key) for key in self._negatives} if prompts else {}
        self.iteration, self.until = iteration, until

    def extend(
        self, negatives: Mapping[str, Sequence[Negative]], prompts: Mapping[str, Prompt | None], until: int
    ) -> None:
        """Adds negatives of further questions of the iteration; those that are there stay. Args as in `replace`."""
        prompts = {**prompts, **self._prompts}
        self.replace(self.iteration, {**negatives, **self._negatives}, prompts, until)

    def take(self, other: "NegativeStore") -> None:
        """Becomes equal to another store, and stays the same object for whoever reads it."""
        self.replace(other.iteration, other._negatives, other._prompts, other.until)

    def clear(self) -> None:
        """Forgets everything, as before the first refresh."""
        self.replace(None, {})

    def set_quality(self, scores: Mapping[tuple[str, int], float]) -> None:
        """
        Notes the discriminator's scores.

        Args:
            scores (`Mapping[tuple[str, int], float]`): score of a question's id and the place of its negative.
        """
        for (key, place), score in scores.items():
            negatives = list(self._negatives[key])
            negatives[place] = dataclasses.replace(negatives[place], quality=score)
            self._negatives[key] = tuple(negatives)

    def save(self, folder: Path) -> None:
        """Writes the store into a folder of its own, which is whole or not there."""
        keys = [key for key, _ in self]
        prompts = [_plain(self._prompts.get(key)) for key in keys]
        has_messages = any(map(is_conversational, prompts))
        columns = {"id": pa.array(keys, pa.string())}
        columns["prompt"] = pa.array(prompts, _MESSAGES if has_messages else pa.string())
        rows = [{**vars(n), "negative": n.text, "token_ids": list(n.token_ids)} for _, n in self]
        columns |= {field.name: pa.array([row[field.name] for row in rows], field.type) for field in _FIELDS}
        with whole_folder(folder) as aside:
            pq.write_table(pa.table(columns), aside / ROWS_NAME)
            state = {"iteration": self.iteration, "until": self.until, "negatives": len(self)}
            state["sha256"] = sha256(aside / ROWS_NAME)
            (aside / STATE_NAME).write_text(json.dumps(state) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "NegativeStore":
        """
        Reads what [`~NegativeStore.save`] wrote.

        Raises:
            [`DataError`]: if there is no store, or it is damaged.
        """
        if not (folder / STATE_NAME).is_file():
            raise DataError(f"There is no store of negatives in {str(folder)!r}.")
        store = cls()
        try:
            state = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
            if sha256(folder / ROWS_NAME) != state["sha256"]:
                raise ValueError("its rows are not those that were written")
            rows = pq.read_table(folder / ROWS_NAME).to_pylist()
            store.iteration, store.until = state["iteration"], state["until"]
            for row in rows:
                key, prompt, text = row.pop("id"), row.pop("prompt"), row.pop("negative")
                negative = Negative(text=text, token_ids=tuple(row.pop("token_ids")), **row)
                store._negatives[key] = (*store.get(key), negative)
                store._prompts[key] = prompt
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as err:
            raise DataError(
                f"The store of negatives in {str(folder)!r} is damaged ({' '.join(str(err).split())})."
            ) from err
        return store


def _plain(prompt: Prompt | None) -> Prompt | None:
    """Messages with what every one of them has, or the text."""
    if not is_conversational(prompt):
        return prompt
    return [{"role": message["role"], "content": message["content"]} for message in prompt]
