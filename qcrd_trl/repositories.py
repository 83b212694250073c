"""Repositories of the Hub that are loaded from by their names."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import ModelError


# What a student is loaded from. No pickles, and nothing of a run that a repository may hold beside it.
_DOWNLOADED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_LEFT_OUT = ["checkpoint-*/*", "negatives*", "negative_generators/*", "plots/*", "runs/*"]
_BROKEN = {"TransportError", "ConnectionError", "TimeoutError", "RequestException"}
_MORE = re.compile(r" For more information check: \S+")
_REPO_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)?")


def shown_name(source: str) -> str:
    """A model or dataset as it may be told to others: its name, and of a path on this machine only the last part."""
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() else source


def is_repo_name(name: str) -> bool:
    """Whether a text may be the name of a repository: `USER/NAME`, or the name alone."""
    return _REPO_NAME.fullmatch(name) is not None


def is_path(name: str) -> bool:
    """Whether a name is a path of some machine, or may be one: not for others to read."""
    is_like_one = (
        name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1 or re.match(r"[A-Za-z]:", name)
    )
    return bool(is_like_one) or Path(name).expanduser().exists()


def student_folder(
    path_or_repo: str | os.PathLike,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    trust_remote_code: bool = False,
    only: Sequence[str] | None = None,
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
        only (`Sequence[str]`, *optional*):
            Patterns of the files that are downloaded, where not all of a student is needed.

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
    if not is_repo_name(name):
        raise ModelError(f"There is no folder {name!r}: name the folder of a saved student, or its repository.")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=_DOWNLOADED + ["*.py"] * trust_remote_code if only is None else list(only),
            ignore_patterns=_LEFT_OUT,
        )
    except Exception as err:
        is_broken = is_broken_line(err)
        if not is_broken and not isinstance(
            err, (OSError, ValueError)
        ):  # the errors of huggingface_hub are of these kinds
            raise
        at = "" if revision is None else f" at revision {revision!r}"
        said = _MORE.sub("", " ".join(str(err).split()))[:300].rstrip(".")
        remedy = " Check the network, and load it again: what has arrived is not fetched twice." if is_broken else ""
        if getattr(getattr(err, "response", None), "status_code", None) in (401, 403, 404):
            remedy = " A private one needs a token that may read it: log in by `hf auth login`, or set HF_TOKEN."
        raise ModelError(
            f"There is no folder {name!r}, and no repository of this name{at} could be had from the Hub: {said}.{remedy}"
        ) from err
    return Path(found)


def is_broken_line(err: BaseException) -> bool:
    """Whether it was the line: an error of transport of the client's (of httpx, its successor or requests), or of the system's."""
    return bool({kind.__name__ for kind in type(err).__mro__} & _BROKEN)
