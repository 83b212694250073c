"""A teacher's states on the disk, so that a student is trained without the teacher in memory."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..errors import ConfigError, DataError
from ..files import sha256
from ..losses import LogitForm
from .cache_building import CacheReport, build_cache, looked_through
from .cache_files import HEAD_NAME, REBUILD, CacheFormat, ShardReader, shards
from .layer_filters import check_layers
from .states import label_positions
from .teacher_states import TEACHER_DTYPES, TeacherHead


__all__ = ["CacheReport", "CachedTeacher", "build_cache"]


class CachedTeacher:
    """
    A teacher read from the disk: no teacher is in memory, only the weight of its head.

    The states are memory-mapped. An index of about 200 bytes a row is held in memory. Size and order of the rows are checked
    when the cache is opened, and the checksum of each row when it is first read.

    Args:
        folder (`str` or `os.PathLike`):
            What [`build_cache`] wrote.
        device (`torch.device` or `str`, *optional*, defaults to `"cpu"`):
            Where states and head are wanted.
        layers (`Sequence[int]`, *optional*):
            Candidate layers wanted; all that the cache was built for if left out.

    Raises:
        [`DataError`]: if there is no cache, or its files are damaged or do not belong together.
        [`ConfigError`]: if it does not hold a layer.
    """

    def __init__(self, folder: Any, device: torch.device | str = "cpu", layers: Sequence[int] | None = None):
        self.folder = Path(folder)
        self.form = CacheFormat.read(self.folder)
        self.layers = check_layers(self.form.layers if layers is None else layers, self.form.last_layer)
        if lacking := sorted(set(self.layers) - set(self.form.stored)):
            raise ConfigError(
                f"The teacher cache {str(folder)!r} holds layers {list(self.form.stored)} and not {lacking}: build one with the "
                "candidate layers wanted, in another folder."
            )
        self.last_layer, self.hidden_size = self.form.last_layer, self.form.hidden_size
        self.vocab_size, self.fingerprint = self.form.vocab_size, self.form.fingerprint
        self.dtype, self.device = TEACHER_DTYPES[self.form.dtype], torch.device(device)
        self.head = _load_head(self.folder, self.form).to(self.device)
        self._shards = [ShardReader(self.folder, shard, self.form) for shard in shards(self.folder)]
        self._row: dict[bytes, tuple[int, int]] = {}
        for place, shard in enumerate(self._shards):
            for number, key in enumerate(shard.records["key"]):
                self._row.setdefault(key.tobytes(), (place, number))

    def __len__(self) -> int:
        return len(self._row)

    def to(self, device: torch.device | str) -> "CachedTeacher":
        """Has states and head given on another device."""
        self.device = torch.device(device)
        self.head.to(self.device)
        return self

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Those of the rows' keys that are not in the cache."""
        return [key for key in keys if bytes.fromhex(key) not in self._row]

    def check_rows(self, rows: Sequence[Mapping[str, Any]], collator: Callable) -> None:
        """
        Checks before a run that the cache holds all that the run will read.

        Args:
            rows (`Sequence[Mapping]`): tokenized rows, such as a [`~datasets.Dataset`].
            collator (`Callable`): makes the batches of them.

        Raises:
            [`DataError`]: with the number of those that it lacks.
        """
        keys = {key.hex(): None for key, _, _ in looked_through(rows, collator)}
        if lacking := self.missing(list(keys)):
            raise self._lacks(len(lacking), f"the {len(keys)} different rows of the dataset", lacking[0])

    def read(self, batch: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """
        States at the positions that predict a label; see [`TeacherStates.read`].

        Raises:
            [`DataError`]: if a row is not in the cache, or its states are damaged. There is no teacher to compute them.
        """
        keys = batch["keys"]
        if lacking := self.missing(keys):
            raise self._lacks(len(lacking), f"the {len(keys)} rows of a batch", lacking[0])
        found = [self._row[bytes.fromhex(key)] for key in keys]
        rows = [self._shards[shard].read(number) for shard, number in found]
        row, _ = label_positions(batch["labels"])
        counts = torch.bincount(row, minlength=len(keys)).tolist()
        if counts != [len(states) for states in rows]:
            raise DataError(
                f"The teacher cache {str(self.folder)!r} has states of {[len(states) for states in rows]} positions for the "
                f"rows of a batch that predicts at {counts}: the batch's keys are not those of its labels."
            )
        states = torch.from_numpy(np.concatenate(rows)).view(self.dtype).to(self.device)
        wanted = sorted({*self.layers, self.last_layer})
        return {layer: states[:, self.form.stored.index(layer)].float() for layer in wanted}

    def _lacks(self, number: int, of: str, example: str) -> DataError:
        return DataError(
            f"{number} of {of} are not in the teacher cache {str(self.folder)!r} (the first: {example[:12]}). It was built of "
            "other rows, or with another max_history, max_length, train_positions, prompt or tokenizer. Give the teacher "
            "together with teacher_cache, and the rows are added; or leave teacher_cache out."
        )


def _load_head(folder: Path, form: CacheFormat) -> TeacherHead:
    path = folder / HEAD_NAME
    try:
        if sha256(path) != form.head_sha256:
            raise DataError(f"{HEAD_NAME} in {str(folder)!r} is not the file that was written. {REBUILD}")
        tensors = load_file(path)
        weight = tensors["weight"]
    except (OSError, SafetensorError, KeyError) as err:
        raise DataError(f"{HEAD_NAME} in {str(folder)!r} is missing or damaged: {err}. {REBUILD}") from err
    if tuple(weight.shape) != (form.vocab_size, form.hidden_size):
        raise DataError(
            f"{HEAD_NAME} in {str(folder)!r} has the shape {tuple(weight.shape)}, expected "
            f"{(form.vocab_size, form.hidden_size)}. {REBUILD}"
        )
    return TeacherHead(weight, tensors.get("bias"), LogitForm(form.scale, form.softcap))
