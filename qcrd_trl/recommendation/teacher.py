"""From what a user gives, a model, its path, a cache or both, to the teacher that a training run reads."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from ..errors import ConfigError, ModelError
from ..processes import together
from .cache_files import CacheFormat
from .layer_filters import check_layers, default_layers
from .loading import load_recommender
from .states import num_layers
from .teacher_cache import CachedTeacher, build_cache
from .teacher_states import LiveTeacher, TeacherStates, dtype_name, state_dtype


logger = logging.getLogger(__name__)


def find_teacher(
    teacher: Any,
    layers: Sequence[int] | None = None,
    dtype: str = "float16",
    cache: str | os.PathLike | None = None,
    quantization_config: Any = None,
    init_kwargs: Mapping[str, Any] | None = None,
) -> TeacherStates:
    """
    The teacher of a run, before its cache is looked at.

    Args:
        teacher (`str`, `os.PathLike`, `nn.Module`, [`TeacherStates`] or `None`):
            An id or path, a loaded model, or what reads its states already. `None`: from the cache alone.
        layers (`Sequence[int]`, *optional*):
            Candidate layers; those of the cache or of the [`TeacherStates`], or else [`~layer_filters.default_layers`], if
            left out.
        dtype (`str`, *optional*, defaults to `"float16"`):
            What states are rounded to.
        cache (`str` or `os.PathLike`, *optional*):
            Folder of a teacher cache.
        quantization_config (*optional*), init_kwargs (`Mapping[str, Any]`, *optional*):
            For [`~loading.load_recommender`], where an id or a path is given.

    Returns:
        [`LiveTeacher`] if a model is given, [`CachedTeacher`] if only a cache is.

    Raises:
        [`ConfigError`]: if there is neither, or the arguments contradict what is given.
    """
    if teacher is None and cache is None:
        raise ConfigError("There is no teacher: give teacher_model, or teacher_cache with a teacher's cached states.")
    if (init_kwargs or quantization_config is not None) and not isinstance(teacher, (str, os.PathLike)):
        raise ConfigError(
            "`teacher_model_init_kwargs` and `quantization_config` are used when the teacher is loaded here: give it as an id or "
            "a path, or leave them out."
        )
    if teacher is None:
        found = CachedTeacher(cache, layers=layers)
        _check_dtype(found, dtype, f"the teacher cache {str(cache)!r}")
        return found
    if not isinstance(teacher, (str, os.PathLike, nn.Module)):
        if not hasattr(teacher, "read") or not hasattr(teacher, "fingerprint"):
            raise ModelError(
                f"`teacher_model` must be an id, a path, a model or a TeacherStates, got {type(teacher).__name__}."
            )
        if cache is not None and not isinstance(teacher, LiveTeacher):
            raise ConfigError(
                "teacher_cache is built of a loaded teacher, and this one is cached itself: give one of the two."
            )
        _check_dtype(teacher, dtype, f"the {type(teacher).__name__}")
        if layers is not None and (lacking := sorted({*layers} - {*teacher.layers, teacher.last_layer})):
            raise ConfigError(f"The teacher reads layers {list(teacher.layers)}, and {lacking} are wanted too.")
        return teacher
    if isinstance(teacher, (str, os.PathLike)):
        teacher = load_recommender(teacher, quantization_config, **dict(init_kwargs or {}))
    if layers is None:
        layers = _layers_of(cache) or default_layers(num_layers(teacher))
    return LiveTeacher(teacher, check_layers(layers, num_layers(teacher)), dtype)


def cache_teacher(
    teacher: TeacherStates,
    cache: str | os.PathLike | None,
    datasets: Sequence[Sequence[Mapping[str, Any]]],
    collator: Callable,
    accelerator: Accelerator,
    batch_size: int = 8,
    progress: bool = True,
) -> TeacherStates:
    """
    Puts the teacher's states of all rows into its cache, and gives the teacher that is read from there; without a cache, the
    teacher as it is. A collective: called on every process.

    Args:
        teacher ([`TeacherStates`]): what [`find_teacher`] gave.
        cache (`str` or `os.PathLike`, *optional*): the folder of its cache.
        datasets (`Sequence`): tokenized datasets that the run reads.
        collator (`Callable`): makes batches of their rows.
        accelerator ([`~accelerate.Accelerator`]): the run's device and processes.
        batch_size (`int`, *optional*, defaults to `8`): rows that the teacher reads at a time.
        progress (`bool`, *optional*, defaults to `True`): whether to show progress bars.

    Raises:
        As [`build_cache`]; and a [`DataError`] if there is no teacher and the cache lacks rows.
    """
    if isinstance(teacher, CachedTeacher):
        for rows in datasets:
            together(accelerator, partial(teacher.check_rows, rows, collator))
        return teacher.to(accelerator.device)
    teacher.to(accelerator.device)
    if cache is None:
        return teacher
    for rows in datasets:
        report = build_cache(teacher, rows, collator, cache, batch_size, accelerator, progress)
        logger.info("Teacher cache %s: %d rows, %d of them new.", cache, report.rows, report.added)
    wanted = teacher.layers
    del teacher  # and with it its memory, unless the caller holds the model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return CachedTeacher(cache, accelerator.device, wanted)


def _layers_of(cache: str | os.PathLike | None) -> tuple[int, ...] | None:
    """The candidate layers of a cache that is there already."""
    if cache is None or not os.path.exists(os.path.join(cache, "cache.json")):
        return None
    return CacheFormat.read(Path(cache)).layers


def _check_dtype(teacher: TeacherStates, dtype: str, name: str) -> None:
    if teacher.dtype != state_dtype(dtype):
        raise ConfigError(
            f"teacher_dtype is {dtype!r}, and {name} has {dtype_name(teacher.dtype)}: set teacher_dtype="
            f"{dtype_name(teacher.dtype)!r}, or build it anew."
        )
