"""`qcrd c2kd filters`: trains a teacher's layer filters, stage 2 of C2KD."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError
from ..models import load_tokenizer
from ..trainer.filter_config import LayerFilterConfig
from ..trainer.filter_trainer import LayerFilterTrainer
from .c2kd_run import checkpoint_of, open_data, rows_of, train_and_save
from .common import parse_arguments
from .early_stopping import callbacks_of


@dataclass
class FilterArguments:
    """
    Arguments of `qcrd c2kd filters` beside those of [`LayerFilterConfig`].

    Args:
        dataset (`str`):
            Folder that `qcrd c2kd prepare` wrote.
        teacher (`str`, *optional*):
            Id or path of the teacher, as `qcrd c2kd teacher` saves it. May be left out where `teacher_cache` holds its states.
        tokenizer (`str`, *optional*):
            Generative mode: id or path of the tokenizer; the teacher's if left out.
        train_windows (`str`, *optional*, defaults to `"last"`):
            Item-head mode: `"last"`: one training row a user, of the latest events. `"all"`: as many as hold all events.
        prompt_file (`str`, *optional*):
            Generative mode: file with the prompt's template.
        examples_per_user (`int`, *optional*, defaults to `1`):
            Generative mode: training rows a user, the latest targets first.
        max_users (`int`, *optional*):
            Generative mode: only so many users, drawn with `user_seed`.
        user_seed (`int`, *optional*, defaults to `0`):
            Seed of the draw of users.
        early_stopping_patience (`int`, *optional*):
            Training ends after so many evaluations in a row without a better `metric_for_best_model`.
        resume (`bool`, *optional*, defaults to `False`):
            Whether to go on from the newest checkpoint in `output_dir`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
    """

    dataset: str = field(metadata={"help": "Folder that `qcrd c2kd prepare` wrote."})
    teacher: str | None = field(default=None, metadata={"help": "Id or path of the teacher."})
    tokenizer: str | None = field(default=None, metadata={"help": "Tokenizer (generative). Default: the teacher's."})
    train_windows: Literal["last", "all"] = field(
        default="last", metadata={"help": "Training rows of a user's latest events, or of all (item-head mode)."}
    )
    prompt_file: str | None = field(default=None, metadata={"help": "File with the prompt's template (generative)."})
    examples_per_user: int = field(default=1, metadata={"help": "Training rows a user (generative)."})
    max_users: int | None = field(default=None, metadata={"help": "Only so many users (generative)."})
    user_seed: int = field(default=0, metadata={"help": "Seed of the draw of users (generative)."})
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "End after so many evaluations in a row without a better metric_for_best_model."},
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the newest checkpoint in output_dir."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})


def main(argv: Sequence[str] | None = None) -> int:
    """
    Trains and saves layer filters.

    Args:
        argv (`Sequence[str]`, *optional*):
            Flags; those of the process if left out, so that `accelerate launch -m qcrd_trl.cli.c2kd_filters` works.

    Returns:
        `int`: exit status, 0.
    """
    argv = sys.argv[1:] if argv is None else argv
    description = "Trains a teacher's layer filters on the task: stage 2 of C2KD."
    script, args = parse_arguments(
        argv, FilterArguments, LayerFilterConfig, prog="qcrd c2kd filters", description=description
    )
    if args.push_to_hub:
        raise ConfigError("Layer filters are a part of training and no model: leave --push_to_hub out.")
    checkpoint, callbacks = checkpoint_of(script, args), callbacks_of(script, args)
    data = open_data(script.dataset, args)
    tokenizer = _tokenizer(script, args)
    if script.trust_remote_code:
        args.teacher_model_init_kwargs = {"trust_remote_code": True, **(args.teacher_model_init_kwargs or {})}
    trainer = LayerFilterTrainer(
        teacher_model=script.teacher,
        args=args,
        train_dataset=rows_of(script, args, data, tokenizer, "train"),
        eval_dataset=None if args.eval_strategy == "no" else rows_of(script, args, data, tokenizer, "validation"),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    train_and_save(trainer, checkpoint)
    if trainer.is_world_process_zero():
        print(f"Saved the layer filters to {args.output_dir}")
    return 0


def _tokenizer(script: FilterArguments, args: LayerFilterConfig):
    name = script.tokenizer or script.teacher
    if args.task_mode == "item_head":
        if script.tokenizer is not None:
            raise ConfigError("--tokenizer is for --task_mode generative: leave it out.")
        return None
    if name is None:
        raise ConfigError("--task_mode generative needs a tokenizer: give --teacher, or --tokenizer.")
    return load_tokenizer(name, **({"trust_remote_code": True} if script.trust_remote_code else {}))


if __name__ == "__main__":
    from .main import run_command

    sys.exit(run_command("c2kd filters", main, sys.argv[1:]))
