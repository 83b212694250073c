"""`qcrd c2kd`: small models for sequential recommendation, distilled across layers and heads."""

import importlib
from collections.abc import Sequence

from ..errors import ConfigError


# One line a sub-command. Its module, `qcrd_trl.cli.c2kd_<name>` with `main(argv) -> int`, is imported only when it runs.
COMMANDS = {
    "prepare": "turn interactions and item titles into leave-one-out sequences and candidates",
    "teacher": "fine-tune a teacher on the sequences",
    "filters": "train the teacher's layer filters",
    "train": "train a student, by C2KD or one of its baselines",
    "evaluate": "measure a model by full ranking, and compare runs",
}


def main(argv: Sequence[str]) -> int:
    """
    Runs the sub-command and returns the exit status.

    Args:
        argv (`Sequence[str]`): the sub-command and its arguments.
    """
    name = argv[0] if argv else ""
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        got = f"unknown sub-command {name!r}" if name else "no sub-command"
        raise ConfigError(f"{got}: expected one of {', '.join(COMMANDS)} (`qcrd c2kd --help` tells more).")
    return importlib.import_module(f"qcrd_trl.cli.c2kd_{name}").main(argv[1:])


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: qcrd c2kd [-h] {{{','.join(COMMANDS)}}} ...",
            "",
            "C2KD: distil a language model's next-item predictions into a small one, across layers and heads.",
            "",
            "commands, in the order of their use:",
            *lines,
            "",
            "`qcrd c2kd COMMAND --help` shows a command's flags; each may also stand in a YAML file given by --config.",
        ]
    )
