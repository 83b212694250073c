"""`qcrd c2kd teacher`: fine-tunes a teacher on the task alone."""

import sys
from collections.abc import Sequence

from trl import ModelConfig

from .c2kd_configs import TeacherConfig
from .c2kd_run import RunArguments
from .c2kd_train import run
from .common import parse_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """
    Trains, saves and measures a teacher.

    Args:
        argv (`Sequence[str]`, *optional*):
            Flags; those of the process if left out, so that `accelerate launch -m qcrd_trl.cli.c2kd_teacher` works.

    Returns:
        `int`: exit status, 0.
    """
    argv = sys.argv[1:] if argv is None else argv
    description = "Fine-tunes a teacher on the task alone, and measures it on the test split."
    script, args, model_args = parse_arguments(
        argv, RunArguments, TeacherConfig, ModelConfig, prog="qcrd c2kd teacher", description=description
    )
    run(script, args, model_args, "none", what="teacher")
    return 0


if __name__ == "__main__":
    from .main import run_command

    sys.exit(run_command("c2kd teacher", main, sys.argv[1:]))
