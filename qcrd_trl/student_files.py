"""Where a saved student lies: a folder, or a repository of the Hub; and the discriminator in it."""

import json
import os
from pathlib import Path
from typing import Any

from .discriminator import CONFIG_NAME, RationaleDiscriminator
from .errors import ModelError
from .repositories import student_folder


ADAPTER_CONFIG_NAME = "adapter_config.json"
DISCRIMINATOR_FOLDER = "discriminator"


def check_student_folder(folder: Path, name: str) -> bool:
    """
    Whether a student's folder holds an adapter, rather than a full model.

    Raises:
        [`ModelError`]: if it holds neither.
    """
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        return True
    kind = discriminator_kind(folder)
    if kind is not None:
        raise ModelError(
            f"{name!r} holds a discriminator of kind {kind!r} and no student: name the folder of the student."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"No student in {name!r}: expected {ADAPTER_CONFIG_NAME} (an adapter) or config.json there.")
    return False


def _holds_student(folder: Path) -> bool:
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        return True
    config = _read_config(folder)
    return config is not None and "model_type" in config


def discriminator_kind(folder: Path) -> str | None:
    """`"student"`, `"encoder"` or another kind if the folder itself holds a discriminator, and `None` if it does not."""
    config = _read_config(folder)
    return None if config is None or "model_type" in config else config.get("kind")


def _read_config(folder: Path) -> dict[str, Any] | None:
    file = folder / CONFIG_NAME
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except ValueError:
        return None  # whoever loads it tells what is wrong
    return config if isinstance(config, dict) else None


def load_scorer(folder: Path, **kwargs: Any) -> Any:
    """
    The discriminator in a folder that is its own, or a student's.

    Args:
        folder (`Path`): the folder; it holds the discriminator, or has it as `discriminator/`.
        kwargs: further keyword arguments for the `from_pretrained` of an encoder.

    Returns:
        [`RationaleDiscriminator`], which reads the student's hidden states, or
        [`~qcrd_trl.rationale_scorer.RationaleScorer`], which has an encoder of its own.

    Raises:
        [`ModelError`]: if there is none, or it is damaged.
    """
    place = folder / DISCRIMINATOR_FOLDER if (folder / DISCRIMINATOR_FOLDER).is_dir() else folder
    if discriminator_kind(place) == "encoder":
        from .rationale_scorer import RationaleScorer

        return RationaleScorer.from_pretrained(place, **kwargs)
    if place == folder and _holds_student(folder):
        raise ModelError(
            f"The student in {str(folder)!r} has no discriminator: it was trained without one (discriminator='none', or a "
            f"preset that has none), or {DISCRIMINATOR_FOLDER}/ was left behind when it was copied."
        )
    return RationaleDiscriminator.from_pretrained(place)


def load_discriminator(
    path_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> Any:
    """[`load_scorer`] of what [`student_folder`] finds: `load_discriminator("me/my-student")`."""
    return load_scorer(student_folder(path_or_repo, revision, token, cache_dir))
