"""`qcrd push`: sends a trained student to the Hub."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from .common import parse_arguments


@dataclass
class PushArguments:
    """
    Arguments of `qcrd push`.

    Args:
        model (`str`):
            `output_dir` of a run, or another folder of a student.
        repo_id (`str`):
            Repository, made if there is none.
        results (`str`, *optional*):
            What `qcrd evaluate` wrote of the student: its accuracies are put into the card first.
        baselines (`list[str]`, *optional*):
            What it wrote of others on the same questions, as `NAME=FILE`.
        commit_message (`str`, *optional*):
            Message of the commit.
        private (`bool`, *optional*, defaults to `False`):
            Whether a repository that is made here is private.
        revision (`str`, *optional*):
            Branch.
        save_negative_generators (`bool`, *optional*, defaults to `False`):
            Whether the snapshots go too.
    """

    model: str | None = field(default=None, metadata={"help": "Folder of the student."})
    repo_id: str | None = field(default=None, metadata={"help": "Repository, USER/NAME; made if there is none."})
    results: str | None = field(
        default=None, metadata={"help": "Its file of `qcrd evaluate`, whose accuracies go into the card first."}
    )
    baselines: list[str] | None = field(
        default=None,
        metadata={"help": "Files of others on the same questions, as NAME=FILE: label_only=a.json dss=b.json."},
    )
    commit_message: str = field(default="Upload student", metadata={"help": "Message of the commit."})
    private: bool = field(default=False, metadata={"help": "A repository that is made here is private."})
    revision: str | None = field(default=None, metadata={"help": "Branch to commit to."})
    save_negative_generators: bool = field(default=False, metadata={"help": "Send the snapshots too."})


def main(argv: Sequence[str]) -> int:
    """
    Sends a student and returns the exit status.

    Args:
        argv (`Sequence[str]`): the arguments.
    """
    description = "Sends a trained student to the Hub. The token is that of `hf auth login`, or HF_TOKEN."
    (args,) = parse_arguments(argv, PushArguments, prog="qcrd push", description=description)
    for name in ("model", "repo_id"):
        if getattr(args, name) is None:
            raise ConfigError(f"--{name} is missing.")
    baselines = {}
    for given in args.baselines or []:
        name, is_pair, file = given.partition("=")
        if not (is_pair and name and file):
            raise ConfigError(f"--baselines takes NAME=FILE, got {given!r}.")
        baselines[name] = file
    from ..hub import push_student

    folder = Path(args.model).expanduser()
    if args.results is not None or baselines:
        from ..card_accuracy import accuracies_of_files
        from ..model_card import add_accuracies

        add_accuracies(folder, accuracies_of_files(args.results, baselines))
    url = push_student(
        folder,
        args.repo_id,
        args.commit_message,
        args.private or None,
        args.revision,
        save_negative_generators=args.save_negative_generators,
    )
    print(f"Pushed the student to {url}")
    return 0
