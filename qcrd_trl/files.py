"""Folders that are whole or not there: written beside their place, flushed to the disk, then renamed."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


# Names that begin so are never taken for results, and `Trainer.push_to_hub` leaves them out.
UNFINISHED = "_unfinished-"
# What `torch.save` says when a write fails: its archive, its stream, its old format.
_TORCH_WRITES = ("PytorchStreamWriter", "inline_container.cc", "iostream error", "write(): fd")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """
    A new folder to write into, which takes the name `path` only once everything in it is on the disk.

    Whatever ends the block early, a kill included, leaves `path` as it was. A folder that stands there already is
    replaced.

    Args:
        path (`Path`): the folder's final name.

    Yields:
        `Path`: an empty folder beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{UNFINISHED}{path.name}")
    _remove(aside)
    aside.mkdir()
    try:
        yield aside
        put_in_place(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def put_in_place(aside: Path, path: Path) -> None:
    """Flushes a folder to the disk and renames it, replacing what stands there."""
    for name in aside.rglob("*"):
        if name.is_file():
            _flush(name)
    _flush(aside)
    old = path.with_name(f"{UNFINISHED}old-{path.name}")
    _remove(old)
    if path.exists():
        os.replace(path, old)
    try:
        os.replace(aside, path)
    except BaseException:
        if old.exists():
            os.replace(old, path)
        raise
    _flush(path.parent)
    _remove(old)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name only once it is on the disk, and else is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{UNFINISHED}{path.name}")
    try:
        yield aside
        _flush(aside)
        os.replace(aside, path)
        _flush(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def copy_folder(source: Path, target: Path, links: bool = False) -> None:
    """
    Copies a folder whose files are never changed. The copy is whole or not there.

    Args:
        source (`Path`): the folder.
        target (`Path`): its copy.
        links (`bool`, *optional*, defaults to `False`): whether to make hard links where the file system has them. They use
            no further space, but what damages one damages the other.
    """
    with whole_folder(target) as aside:
        for file in sorted(source.rglob("*")):
            place = aside / file.relative_to(source)
            if file.is_dir():
                place.mkdir(exist_ok=True)
                continue
            if not (links and _linked(file, place)):
                shutil.copy2(file, place)


def remove_unfinished(folder: Path) -> None:
    """Removes what an earlier process left half-written in a folder, and puts back what it was about to replace."""
    for path in folder.glob(f"{UNFINISHED}*") if folder.is_dir() else ():
        replaced = path.name.removeprefix(f"{UNFINISHED}old-")
        if replaced != path.name and not (folder / replaced).exists():
            os.replace(path, folder / replaced)
        else:
            _remove(path)


def is_disk_error(error: BaseException) -> bool:
    """Whether writing a file failed, whichever library wrote it: a full disk, a quota, no permission."""
    return isinstance(error, (OSError, SafetensorError)) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in _TORCH_WRITES)
    )


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(file)


def _sha256(file) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _linked(file: Path, place: Path) -> bool:
    try:
        os.link(file, place)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
        # some file systems cannot flush a folder
    finally:
        os.close(descriptor)
