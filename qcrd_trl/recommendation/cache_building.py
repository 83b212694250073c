"""Builds teacher caches: which rows are missing, whether there is room for them, and the teacher's states of them."""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import save_file
from tqdm import tqdm

from ..errors import ConfigError, TrainingError
from ..files import sha256, whole_file
from ..processes import by_one, together
from .cache_files import (
    FORMAT_NAME,
    HEAD_NAME,
    REBUILD,
    RECORD,
    CacheFormat,
    ShardWriter,
    all_locked,
    is_clean,
    is_full,
    mend,
    read_records,
    shards,
)
from .states import label_positions
from .teacher_states import LiveTeacher, dtype_name


logger = logging.getLogger(__name__)

_LOOKED_AT = 256  # rows collated at a time to learn their keys


@dataclass(frozen=True)
class CacheReport:
    """
    What [`build_cache`] found and did.

    Attributes:
        rows (`int`): different rows of the datasets.
        added (`int`): those of them that were computed now, by all processes.
        added_bytes (`int`): disk space of what was added.
    """

    rows: int
    added: int
    added_bytes: int


@dataclass(frozen=True)
class _Missing:
    """A row to be computed: which it is, and how long."""

    place: int
    key: bytes
    positions: int
    length: int


def build_cache(
    teacher: LiveTeacher,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable,
    folder: Any,
    batch_size: int = 8,
    accelerator: Accelerator | None = None,
    progress: bool = True,
) -> CacheReport:
    """
    Writes a teacher's states of all rows that a cache does not hold yet, and the weight of its head.

    Rows are found by what they hold (SHA-256 of ids and labels), so they may come in another order or in other batches than
    they were cached in, and equal rows are computed once. Stored are the candidate layers and the last one, in the teacher's
    `dtype`; logits are not: they are the head's of the last layer's states. A run that was killed goes on from the rows that it
    wrote.

    The rows of a batch are padded together. A row that is run alone or in another batch may differ in the last bits of float32,
    and so, after rounding, by one unit of `dtype` now and then.

    Args:
        teacher ([`LiveTeacher`]):
            Whose states.
        rows (`Sequence[Mapping]`):
            Tokenized rows, such as a [`~datasets.Dataset`].
        collator (`Callable`):
            Makes batches of them, with `input_ids`, `attention_mask`, `labels` and `keys`.
        folder (`str` or `os.PathLike`):
            The cache; made if it is absent. Processes of several machines need one that they share.
        batch_size (`int`, *optional*, defaults to `8`):
            Rows that the teacher reads at a time, in each process.
        accelerator ([`~accelerate.Accelerator`], *optional*):
            Processes that share the work; a collective, called on every one of them.
        progress (`bool`, *optional*, defaults to `True`):
            Whether to show a progress bar.

    Returns:
        [`CacheReport`].

    Raises:
        [`ConfigError`]: if the folder holds another teacher's states, or of other layers or in another dtype; if the disk has no
            room for what is to come; or if another process is building it.
        [`TrainingError`]: if the disk is full all the same, or states are not finite in `dtype`. What was written is kept.
    """
    folder = Path(folder)
    accelerator = _OneProcess() if accelerator is None else accelerator
    if not hasattr(rows, "__len__"):
        raise ConfigError("A streaming dataset cannot be cached: it has no length. Leave teacher_cache out.")
    form = by_one(accelerator, lambda: _prepared(folder, teacher), accelerator.process_index == 0)
    todo, number = together(accelerator, lambda: _to_compute(folder, rows, collator, progress))
    need = sum(row.positions for row in todo) * form.position_bytes + len(todo) * RECORD.itemsize
    together(accelerator, lambda: _check_room(folder, need, len(todo)))
    if todo:
        batches = [todo[start : start + batch_size] for start in range(0, len(todo), batch_size)]
        mine = batches[accelerator.process_index :: accelerator.num_processes]
        shows = progress and accelerator.process_index == 0
        logger.info("The teacher cache %s grows by %d rows and %s.", folder, len(todo), size_text(need))
        title = f"Caching the teacher's states ({size_text(need)})" if shows else None
        together(accelerator, lambda: _compute(teacher, rows, collator, mine, folder, form, accelerator, title))
    return CacheReport(number, len(todo), need if todo else 0)


class _OneProcess:
    """Stands for an [`~accelerate.Accelerator`] of one process."""

    process_index, num_processes = 0, 1


def _prepared(folder: Path, teacher: LiveTeacher) -> CacheFormat:
    """The format of the cache, which is begun if it is not there; what a killed writer left is cut off."""
    head = teacher.head
    form = CacheFormat(
        fingerprint=teacher.fingerprint,
        layers=teacher.layers,
        last_layer=teacher.last_layer,
        hidden_size=teacher.hidden_size,
        vocab_size=teacher.vocab_size,
        dtype=dtype_name(teacher.dtype),
        scale=head.form.scale,
        softcap=head.form.softcap,
    )
    if (folder / FORMAT_NAME).exists():
        found = CacheFormat.read(folder)
        _check_same(folder, replace(found, head_sha256=""), form)
        if not all(is_clean(folder, shard, found) for shard in shards(folder)):
            with all_locked(folder) as numbers:
                for shard in numbers:
                    mend(folder, shard, found)
        return found
    if folder.is_dir() and any(folder.iterdir()) and not _is_begun(folder):
        raise ConfigError(f"{str(folder)!r} is not empty and holds no teacher cache: give a folder of its own.")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{str(folder)!r} is a file: give a folder for the teacher cache.")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    try:
        with whole_file(folder / HEAD_NAME) as file:
            save_file(tensors, file)
        form = replace(form, head_sha256=sha256(folder / HEAD_NAME))
        form.write(folder)
    except (OSError, SafetensorError) as err:
        raise TrainingError(f"The teacher cache {str(folder)!r} could not be begun: {err}") from err
    return form


def _is_begun(folder: Path) -> bool:
    """Whether only the head is there: a process was killed before it wrote the format."""
    return all(path.name == HEAD_NAME or path.name.endswith(HEAD_NAME) for path in folder.iterdir())


def _check_same(folder: Path, found: CacheFormat, wanted: CacheFormat) -> None:
    if found.fingerprint != wanted.fingerprint:
        raise ConfigError(
            f"The teacher cache {str(folder)!r} is of another teacher: its fingerprint is {found.fingerprint[:12]}, this "
            f"teacher's {wanted.fingerprint[:12]}. Weights, adapters, precision and configuration count. Give each teacher a "
            "folder of its own."
        )
    for name in ("layers", "dtype"):
        if getattr(found, name) != getattr(wanted, name):
            raise ConfigError(
                f"The teacher cache {str(folder)!r} was built with {name} {getattr(found, name)}, and {getattr(wanted, name)} "
                "are wanted. Set the same candidate layers and teacher_dtype, or give another folder."
            )
    if found != wanted:
        raise ConfigError(f"The teacher cache {str(folder)!r} is of another head than this teacher's. {REBUILD}")


def _to_compute(
    folder: Path, rows: Sequence[Mapping[str, Any]], collator: Callable, progress: bool
) -> tuple[list[_Missing], int]:
    """Rows that no shard holds, the longest first, so that memory runs out at once or never; and the number of rows."""
    held = {key.tobytes() for shard in shards(folder) for key in read_records(folder, shard)["key"]}
    todo, seen = [], set()
    for place, (key, positions, length) in enumerate(looked_through(rows, collator, progress)):
        if key not in held and key not in seen:
            todo.append(_Missing(place, key, positions, length))
        seen.add(key)
    return sorted(todo, key=lambda row: -row.length), len(seen)


def looked_through(
    rows: Sequence[Mapping[str, Any]], collator: Callable, progress: bool = False
) -> Iterator[tuple[bytes, int, int]]:
    """Key, number of positions and length of each row."""
    with tqdm(total=len(rows), desc="Looking for cached rows", disable=not progress, leave=False) as bar:
        for start in range(0, len(rows), _LOOKED_AT):
            batch = collator([rows[place] for place in range(start, min(start + _LOOKED_AT, len(rows)))])
            size = len(batch["keys"])
            counts = torch.bincount(label_positions(batch["labels"])[0], minlength=size).tolist()
            lengths = batch["attention_mask"].sum(1).tolist()
            yield from zip(map(bytes.fromhex, batch["keys"]), counts, lengths, strict=True)
            bar.update(size)


def _check_room(folder: Path, need: int, number: int) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ConfigError(
            f"The teacher cache {str(folder)!r} needs {size_text(need)} for {number} more rows, and {size_text(free)} are free. "
            "Give a folder on another disk, fewer candidate layers, fewer positions (train_positions='last'), or leave "
            "teacher_cache out."
        )


def _compute(
    teacher: LiveTeacher,
    rows: Sequence[Mapping[str, Any]],
    collator: Callable,
    batches: list[list[_Missing]],
    folder: Path,
    form: CacheFormat,
    accelerator: Any,
    title: str | None,
) -> None:
    """Computes and appends this process's batches, with a progress bar if it is given a title."""
    written = 0
    total = sum(len(batch) for batch in batches)
    try:
        with (
            ShardWriter(folder, accelerator.process_index, form) as shard,
            tqdm(total=total, desc=title, unit="row", disable=title is None) as bar,
        ):
            for batch in batches:
                states = _stored(teacher, collator([rows[row.place] for row in batch]), form)
                shard.add(
                    [row.key for row in batch], np.split(states, np.cumsum([row.positions for row in batch])[:-1])
                )
                written += len(batch)
                bar.update(len(batch))
    except OSError as err:
        if not is_full(err):
            raise
        raise TrainingError(
            f"The disk of the teacher cache {str(folder)!r} is full: {err}. {written} of {total} rows were written here and "
            "are kept. Make room and run the same again, or copy the folder to a larger disk and give that."
        ) from err


def _stored(teacher: LiveTeacher, batch: Mapping[str, Any], form: CacheFormat) -> np.ndarray:
    """The teacher's states of a batch as the integers of a file, shape `(positions, layers, hidden_size)`."""
    rounded = teacher.read_rounded(batch)
    states = torch.stack([rounded[layer] for layer in form.stored], 1).cpu().contiguous()
    as_integers = torch.int16 if form.storage.itemsize == 2 else torch.int32
    return states.view(as_integers).numpy()


def size_text(size: float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.1f} {unit}" if unit != "bytes" else f"{int(size)} bytes"
        size /= 1024
    raise AssertionError("unreachable")
