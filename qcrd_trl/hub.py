"""What goes to the Hub of a trained student's folder, and what to do when the Hub refuses it."""

import fnmatch
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import HubError, ModelError
from .files import UNFINISHED
from .repositories import is_broken_line


CARD_FILE = "README.md"
# Of a run's folder these stay at home: checkpoints and what is half-written; what names this machine's paths and nothing needs
# that loads a student: the pickled arguments, and PEFT's cards of snapshots.
NEVER_PUSHED = ("_*", "checkpoint-*", f"*/{UNFINISHED}*", "training_args.bin", "negative_generators/*README.md")
# The negatives and the snapshots that generated them: a push has the latter only where it was asked for. What
# `qcrd negatives export` wrote begins alike.
NEGATIVES = "negatives*"
GENERATORS = "negative_generators/*"

_REMEDIES = {
    400: "It does not accept what it was sent; what it says is above. If that is the metadata of README.md, mend them there.",
    401: (
        "It does not know the token, or got none. Log in by `hf auth login`, or set HF_TOKEN, to a token with write "
        "permission."
    ),
    403: "The token may not write there. Use a token with write permission, or a repository of your own.",
    404: (
        "There is no such repository, branch or user, or the token may not see it. Check the name, which is USER/NAME, and "
        "whose token it is."
    ),
    409: (
        "Something else holds or changes the repository. If it is another push, wait for it and push again; else choose "
        "another name."
    ),
    413: "It is more than the Hub takes at once.",
    429: "Too many requests: wait some minutes, and push again.",
}
_NO_TOKEN = re.compile(r"\bhf_[A-Za-z0-9_]{6,}|\b(Bearer|Basic)\s+\S+")


@contextmanager
def hub_errors(
    repo_id: str,
    doing: str,
    again: str | None = None,
    folder: str | os.PathLike | None = None,
    ignore_patterns: Sequence[str] = (),
    secrets: Sequence[str | None] = (),
) -> Iterator[None]:
    """
    Turns what the client of the Hub raises into a [`HubError`] that says what failed, of which repository, and what to do.

    Only calls of the client belong into the block: whatever they raise is taken for the Hub's.

    Args:
        repo_id (`str`): the repository.
        doing (`str`): what is being done, such as `"upload the student"`.
        again (`str`, *optional*): the command or call that does it again.
        folder (`str` or `os.PathLike`, *optional*): what is being sent, of which an error of size names the largest file.
        ignore_patterns (`Sequence[str]`, *optional*): what is not sent of it.
        secrets (`Sequence[str]`, *optional*): tokens that must not be in the text.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as err:
        raise hub_error(err, repo_id, doing, again, folder, ignore_patterns, secrets) from err


def hub_error(
    err: BaseException,
    repo_id: str,
    doing: str,
    again: str | None = None,
    folder: str | os.PathLike | None = None,
    ignore_patterns: Sequence[str] = (),
    secrets: Sequence[str | None] = (),
) -> HubError:
    """The [`HubError`] of an error of the client's; arguments as for [`hub_errors`]."""
    chain = list(_chain(err))
    status = next(filter(None, map(_status, chain)), None)
    said = _without_secrets(_said(chain, status), secrets)
    if status is None:
        remedy, answered = _broken(chain), "The connection failed" if _is_broken(chain) else "It failed"
    else:
        remedy = _REMEDIES.get(status, "The Hub has a fault of its own: push again later.")
        answered = f"The Hub answered {status}"
    if status == 413 and folder is not None:
        remedy += f" {_largest(Path(folder), ignore_patterns)}"
    home = "" if folder is None else " The local files are as they were."
    once_more = "" if again is None else f" Then: {again}"
    return HubError(f"Could not {doing} ({repo_id!r}). {answered}: {said}. {remedy}{home}{once_more}")


def push_command(folder: str | os.PathLike, repo_id: str) -> str:
    """The command that pushes a folder again."""
    return f"`qcrd push --model {shlex.quote(str(folder))} --repo_id {shlex.quote(repo_id)}`"


def left_out(save_negative_generators: bool = False) -> list[str]:
    """Patterns of what a push of a run's folder leaves out."""
    # The log is in training_log.json; the trainer's state names the path of the best checkpoint too.
    return [*NEVER_PUSHED, "trainer_state.json", NEGATIVES] + ([] if save_negative_generators else [GENERATORS])


def push_student(
    folder: str | os.PathLike,
    repo_id: str,
    commit_message: str = "Upload student",
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    save_negative_generators: bool = False,
) -> str:
    """
    Pushes the folder of a trained student to the Hub, as a [`QCRDTrainer`] does at the end of training.

    Args:
        folder (`str` or `os.PathLike`):
            `output_dir` of a run, or another folder of a student.
        repo_id (`str`):
            The repository, made if there is none.
        commit_message (`str`, *optional*):
            Message of the commit.
        private (`bool`, *optional*):
            Whether a repository that is made here is private.
        revision (`str`, *optional*):
            Branch to commit to.
        token (`str`, *optional*):
            Token; that of `huggingface_hub` if left out.
        save_negative_generators (`bool`, *optional*, defaults to `False`):
            Whether the snapshots go too.

    Returns:
        `str`: address of the commit.

    Raises:
        [`ModelError`]: if there is no student in the folder.
        [`HubError`]: if the Hub refuses it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import DEFAULT_IGNORE_PATTERNS, filter_repo_objects

    from .snippets import named_anew
    from .student_files import check_student_folder

    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ModelError(f"There is no folder {str(folder)!r}: name the folder of a saved student.")
    check_student_folder(folder, str(folder))
    api, patterns = HfApi(library_name="qcrd_trl"), left_out(save_negative_generators)
    again = push_command(folder, repo_id)
    with hub_errors(repo_id, "make or find the repository", again, secrets=[token]):
        repo_id = api.create_repo(repo_id, token=token, private=private, exist_ok=True).repo_id
    names = sorted(path.relative_to(folder).as_posix() for path in folder.glob("**/*") if path.is_file())
    names = list(filter_repo_objects(names, ignore_patterns=[*patterns, *DEFAULT_IGNORE_PATTERNS]))
    with hub_errors(repo_id, "upload the student", again, folder, patterns, [token]):
        # The local card is left as it is.
        card = named_anew((folder / CARD_FILE).read_text(encoding="utf-8"), repo_id) if CARD_FILE in names else ""
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(name, card.encode() if name == CARD_FILE else folder / name) for name in names],
            commit_message=commit_message,
            token=token,
            revision=revision,
        )
    return commit.commit_url


# ---- What an error says ----


def _chain(err: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: uploads of large files wrap what happened to them."""
    while err is not None:
        yield err
        err = err.__cause__


def _status(err: BaseException) -> int | None:
    return getattr(getattr(err, "response", None), "status_code", None)


def _said(chain: Sequence[BaseException], status: int | None) -> str:
    first = next((err for err in chain if _status(err) is not None), chain[0] if status else chain[-1])
    server = getattr(first, "server_message", None)
    wrapped = str(chain[0]).rstrip(".") if first is not chain[0] and isinstance(chain[0], RuntimeError) else ""
    text = server or (str(first) if status is None else str(first).split("\n\nFor more")[0]) or type(first).__name__
    return " ".join(f"{wrapped}: {text}".strip(": ").split())[:400].rstrip(".")


def _without_secrets(text: str, secrets: Sequence[str | None]) -> str:
    known = [*secrets, os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")]
    for secret in filter(None, known):
        if isinstance(secret, str):
            text = text.replace(secret, "***")
    return _NO_TOKEN.sub("***", text)


def _is_broken(chain: Sequence[Any]) -> bool:
    return any(map(is_broken_line, chain))


def _broken(chain: Sequence[BaseException]) -> str:
    names = {kind.__name__ for err in chain for kind in type(err).__mro__}
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE forbids it to be reached: unset it, and push again."
    if "LocalTokenNotFoundError" in names:
        return _REMEDIES[401]
    if "HFValidationError" in names:
        return "The name of a repository is USER/NAME, of letters, digits, '-', '_' and '.'."
    if _is_broken(chain):
        return "Check the network, and push again: what has arrived is not sent twice."
    return "See the error that caused this one."


def _largest(folder: Path, ignore_patterns: Sequence[str]) -> str:
    sizes = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not any(fnmatch.fnmatch(name, pattern) for pattern in ignore_patterns):
            sizes[name] = path.stat().st_size
    if not sizes:
        return ""
    name = max(sizes, key=sizes.__getitem__)
    total = sum(sizes.values())
    return (
        f"{len(sizes)} files of {_megabytes(total)} in all were to go, the largest of them {name} ({_megabytes(sizes[name])}). "
        "Remove what need not go, or save the model in smaller shards."
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
