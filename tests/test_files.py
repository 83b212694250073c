"""Folders and files that are whole or not there, and the errors of a full disk."""

import hashlib
import os
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from qcrd_trl.files import (
    UNFINISHED,
    copy_folder,
    is_disk_error,
    put_in_place,
    remove_unfinished,
    sha256,
    whole_file,
    whole_folder,
)


def tree(folder):
    """Text of every file below a folder, by its path there."""
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in folder.rglob("*") if p.is_file()}


def fill(folder, **texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@contextmanager
def full_disk(size=1000):
    """No file may grow beyond `size` bytes: writing further fails as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def killed_within(path):
    """A child process that is killed while it writes a folder."""
    child = os.fork()
    if child == 0:
        with whole_folder(path) as aside:
            fill(aside, a="half")
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_a_folder_takes_its_name_once_it_is_whole(tmp_path):
    """A reader that looks meanwhile must not find half of it; what stood there before must not shine through."""
    path = tmp_path / "runs" / "one"
    for texts in ({"a": "1", "b": "2"}, {"b": "3"}):
        with whole_folder(path) as aside:
            before = tree(path) if path.exists() else None
            fill(aside, **texts)
            (aside / "deeper").mkdir()
            (aside / "deeper" / "c").write_text("4", encoding="utf-8")
            assert aside.name.startswith(UNFINISHED)
            assert (tree(path) if path.exists() else None) == before
        assert tree(path) == {**texts, os.path.join("deeper", "c"): "4"}
        assert [p.name for p in path.parent.iterdir()] == ["one"]


def _fail(folder, error):
    fill(folder, a="new")
    raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("is_there", [False, True])
def test_what_ends_early_leaves_the_old_folder(tmp_path, error, is_there):
    """Ctrl-C in the middle of a save must not cost the save before it."""
    path = tmp_path / "one"
    if is_there:
        fill(path, a="old")
    before = tree(tmp_path)
    with pytest.raises(error), whole_folder(path) as aside:
        _fail(aside, error)
    assert tree(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["one"] * is_there


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_exchange_that_fails_halfway_leaves_the_old_folder(tmp_path, monkeypatch, error):
    """The old folder is moved away before the new one takes its name: a failure between them must not lose both."""
    path = tmp_path / "one"
    fill(path, a="old")
    replace = os.replace

    def fails(source, target):
        if os.path.basename(source) == f"{UNFINISHED}one":
            raise error("between the two")
        return replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(error), whole_folder(path) as aside:
        fill(aside, a="new")
    monkeypatch.undo()
    remove_unfinished(tmp_path)
    assert tree(tmp_path) == {os.path.join("one", "a"): "old"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_leaves_nothing_under_the_final_name(tmp_path):
    """A half-written snapshot that is taken for a whole one is the generator of all later negatives."""
    path = tmp_path / "one"
    killed_within(path)
    assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == [f"{UNFINISHED}one"]
    with whole_folder(path) as aside:  # what is left over is not mixed in
        fill(aside, b="whole")
    assert tree(tmp_path) == {os.path.join("one", "b"): "whole"}
    killed_within(path)
    assert tree(path) == {"b": "whole"}
    remove_unfinished(tmp_path)
    assert tree(tmp_path) == {os.path.join("one", "b"): "whole"}


def test_what_stood_in_the_way_of_an_exchange_is_removed(tmp_path):
    """What a kill left of an earlier exchange must not stop every later one."""
    for name in ("new", "one", f"{UNFINISHED}old-one"):
        fill(tmp_path / name, a=name)
    put_in_place(tmp_path / "new", tmp_path / "one")
    assert tree(tmp_path) == {os.path.join("one", "a"): "new"}


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("has_links", [True, False])
def test_a_copied_folder_outlives_the_other(tmp_path, monkeypatch, links, has_links):
    """A checkpoint that is rotated away takes the snapshots of the run with it, or the run those of the checkpoint."""
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    source, one, other = (tmp_path / name for name in ("source", "one", "other"))
    fill(source, a="1")
    fill(source / "deeper", b="2")
    fill(one, old="is replaced")
    expected = {"a": "1", os.path.join("deeper", "b"): "2"}
    copy_folder(source, one, links)
    copy_folder(one, other, links)
    assert tree(one) == tree(other) == expected
    assert os.path.samefile(source / "a", other / "a") == (links and has_links)
    shutil.rmtree(one)
    assert tree(source) == tree(other) == expected
    if not links:
        fill(source, a="damaged")
    shutil.rmtree(source)
    assert tree(other) == expected


def _write(path, text, error=None):
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")
        if error is not None:
            raise error


def test_a_file_is_whole_or_as_it_was(tmp_path):
    """An empty file in place of the last good one is what a full disk usually leaves."""
    path = tmp_path / "deeper" / "a.txt"
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            _write(path, "half", error)
        assert not list(path.parent.iterdir())
    _write(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    with full_disk(), pytest.raises(OSError) as raised:
        _write(path, "c" * 5000)
    assert is_disk_error(raised.value)
    assert tree(tmp_path) == {os.path.join("deeper", "a.txt"): "größer\n"}
    _write(path, "b")
    assert tree(tmp_path) == {os.path.join("deeper", "a.txt"): "b"}


def test_only_unfinished_things_are_removed(tmp_path):
    """One prefix too short, and the cleaning up removes results."""
    fill(tmp_path, **{f"{UNFINISHED}a": "1", "b": "2", f"b{UNFINISHED}": "3"})
    fill(tmp_path / f"{UNFINISHED}c", d="4")
    fill(tmp_path / "e", **{f"{UNFINISHED}f": "5"})
    remove_unfinished(tmp_path)
    assert tree(tmp_path) == {"b": "2", f"b{UNFINISHED}": "3", os.path.join("e", f"{UNFINISHED}f"): "5"}
    remove_unfinished(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def _torch_file(tensors, path):
    with path.open("wb") as file:
        torch.save(tensors, file)


WRITERS = {
    "torch": torch.save,
    "torch-file": _torch_file,
    "safetensors": save_file,
    "python": lambda tensors, path: path.write_bytes(bytes(tensors["a"].numel() * 4)),
}


@pytest.mark.parametrize(("numbers", "limit"), [(1, 3), (100_000, 1000)])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_known_whoever_writes(tmp_path, writer, numbers, limit):
    """torch and safetensors raise errors of their own: unknown, the user sees a C++ line in place of what to do."""
    with full_disk(limit), pytest.raises(Exception) as raised:
        WRITERS[writer]({"a": torch.zeros(numbers)}, tmp_path / "file")
    assert is_disk_error(raised.value), f"{type(raised.value).__name__}: {raised.value}"


def test_other_errors_are_no_disk_errors(tmp_path):
    """A bug that is told as a full disk sends the user to buy a disk."""
    torch.save({"a": torch.zeros(1000)}, tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError) as read:
        torch.load(tmp_path / "a.pt")
    with pytest.raises(RuntimeError) as shapes:
        torch.zeros(2) + torch.zeros(3)
    others = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("x"), ValueError("x"), KeyboardInterrupt()]
    for error in (read.value, shapes.value, *others):
        assert not is_disk_error(error), error


@pytest.mark.parametrize("is_old_python", [False, True])
def test_sha256(tmp_path, monkeypatch, is_old_python):
    """Block by block it must be the sum of the whole file, or every large snapshot is called damaged."""
    if is_old_python:
        monkeypatch.delattr(hashlib, "file_digest", raising=False)
    (tmp_path / "abc").write_bytes(b"abc")  # the example of FIPS 180-2
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    large = bytes(range(256)) * 5000
    (tmp_path / "large").write_bytes(large)
    assert sha256(tmp_path / "large") == hashlib.sha256(large).hexdigest()
