"""The command `qcrd`: picks the sub-command, and turns an error of the user's into one line."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence

from ..errors import QCRDError
from ..version import __version__


# One line a command. Its module, `qcrd_trl.cli.<name>` with `main(argv) -> int`, is imported only when it runs.
COMMANDS = {
    "demo": "see the whole method work in about two minutes, offline",
    "sample": "sample rationales from a teacher",
    "select": "turn sampled rationales into a training set by self-consistency",
    "report": "show what was sampled, selected or trained, as tables and pictures",
    "train": "train a small model on a training set",
    "evaluate": "measure a trained model",
    "predict": "ask a trained model: labels, rationales, their quality",
    "score": "score rationales with a trained discriminator",
    "quality": "measure a trained discriminator on held-out rationales",
    "merge": "merge an adapter into its base, as a full model",
    "discriminator": "pretrain a discriminator that scores rationales by their texts",
    "push": "send a trained student to the Hub",
    "negatives": "export the negatives that a run generated",
    "c2kd": "distil a small recommender: data, teacher, layer filters, student, metrics",
}


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs `qcrd`.

    Args:
        argv (`Sequence[str]`, *optional*):
            The arguments, without the program's name. `sys.argv[1:]` when left out.

    Returns:
        `int`: The exit status: 0, 2 for an error of the user's, 130 after Ctrl-C.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a file name or text that is not UTF-8 must not break a message
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(argv)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help"):
        print(_help(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if name in ("-V", "--version"):
        print(f"qcrd {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"qcrd: error: unknown command {name!r}. The commands are: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    return run_command(name, lambda rest: importlib.import_module(f"qcrd_trl.cli.{name}").main(rest), argv[1:])


def run_command(name: str, command: Callable[[list[str]], int], argv: list[str]) -> int:
    """
    Runs a command and turns what the user can mend into one line on stderr.

    The environment variable `QCRD_DEBUG=1` shows the traceback instead. An error that is neither a [`QCRDError`] nor an
    [`OSError`] (no such file, disk full) is a bug and always shows its traceback.

    Args:
        name (`str`):
            The command's name.
        command (`Callable[[list[str]], int]`):
            What runs it, and returns its exit status.
        argv (`list[str]`):
            Its arguments.

    Returns:
        `int`: The exit status.
    """
    try:
        return command(argv)
    except KeyboardInterrupt:
        print(f"\nqcrd {name}: stopped by Ctrl-C.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (QCRDError, OSError) as error:
        if os.environ.get("QCRD_DEBUG", "0") not in ("", "0"):
            raise
        named = isinstance(error, OSError) and error.strerror and error.filename
        message = f"{error.filename}: {error.strerror}" if named else str(error)
        print(f"qcrd {name}: error: {' '.join(message.split())}", file=sys.stderr)
        return 2


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: qcrd [-h] [--version] COMMAND ...",
            "",
            "Distil reasoning from a large language model into a small one.",
            "",
            "commands:",
            *lines,
            "",
            "`qcrd COMMAND --help` shows a command's flags; each may also stand in a YAML file given by --config.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
