"""Where a saved student lies: a folder, or a repository of the Hub; and the discriminator in it."""

import json
import os
import re
from pathlib import Path
from typing import Any

from .discriminator import CONFIG_NAME, RationaleDiscriminator
from .errors import ModelError


ADAPTER_CONFIG_NAME = "adapter_config.json"
DISCRIMINATOR_FOLDER = "discriminator"

# What a student is loaded from. No pickles, and nothing of a run that a repository may hold beside it.
_DOWNLOADED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_LEFT_OUT = ["checkpoint-*/*", "negatives*", "negative_generators/*", "plots/*", "runs/*"]
_REPO_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")


def student_folder(
    path_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """
    The folder of a saved student, downloaded from the Hub if it is a repository's name.

    Args:
        path_or_repo (`str` or `os.PathLike`):
            A folder, or the name of a repository. A path that exists is never taken for a name.
        revision (`str`, *optional*):
            Branch, tag or commit of the repository.
        token (`str` or `bool`, *optional*):
            Token for the Hub; that of `huggingface_hub` if left out.
        cache_dir (`str` or `os.PathLike`, *optional*):
            Where downloads are kept; where `huggingface_hub` keeps them if left out.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether Python files are downloaded too.

    Raises:
        [`ModelError`]: if there is no such folder, and no repository can be had.
    """
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        if revision is not None:
            raise ModelError(f"{str(path_or_repo)!r} is a folder and has no revision {revision!r}: leave it out.")
        return path
    if path.exists():
        raise ModelError(f"{str(path_or_repo)!r} is a file: name the folder of a saved student.")
    name = str(path_or_repo)
    if not _REPO_NAME.fullmatch(name):
        raise ModelError(f"There is no folder {name!r}: name the folder of a saved student, or its repository.")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=_DOWNLOADED + ["*.py"] * trust_remote_code,
            ignore_patterns=_LEFT_OUT,
        )
    except (OSError, ValueError) as err:  # the errors of huggingface_hub are of these kinds
        at = "" if revision is None else f" at revision {revision!r}"
        raise ModelError(
            f"There is no folder {name!r}, and no repository of this name{at} could be had from the Hub: "
            f"{' '.join(str(err).split())[:300]}"
        ) from err
    return Path(found)


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
