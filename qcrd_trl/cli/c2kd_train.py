"""`qcrd c2kd train`: trains a student by C2KD or one of its baselines, and measures it on the test split."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl import ModelConfig

from ..errors import ConfigError
from ..recommendation.folder import RecommendationData
from ..trainer.c2kd_config import C2KDConfig
from ..trainer.c2kd_trainer import C2KDTrainer
from .c2kd_configs import SASREC, StudentConfig
from .c2kd_run import (
    RESULTS_FILE,
    RunArguments,
    build_model,
    checkpoint_of,
    model_source,
    open_data,
    print_metrics,
    prompt_form,
    rows_of,
    tokenizer_of,
    train_and_save,
)
from .common import parse_arguments
from .early_stopping import callbacks_of


@dataclass
class StudentArguments(RunArguments):
    """
    Arguments of `qcrd c2kd train` beside those of [`C2KDConfig`] and [`~trl.ModelConfig`].

    Args:
        teacher (`str`, *optional*):
            Id or path of the teacher, as `qcrd c2kd teacher` saves it. May be left out where `teacher_cache` holds its states,
            and where the method has no teacher.

    The others are those of [`RunArguments`].
    """

    teacher: str | None = field(default=None, metadata={"help": "Id or path of the teacher."})


def main(argv: Sequence[str] | None = None) -> int:
    """
    Trains, saves and measures a student.

    Args:
        argv (`Sequence[str]`, *optional*):
            Flags; those of the process if left out, so that `accelerate launch -m qcrd_trl.cli.c2kd_train` works.

    Returns:
        `int`: exit status, 0.
    """
    argv = sys.argv[1:] if argv is None else argv
    description = "Trains a small recommender by C2KD or one of its baselines, and measures it on the test split."
    script, args, model_args = parse_arguments(
        argv, StudentArguments, StudentConfig, ModelConfig, prog="qcrd c2kd train", description=description
    )
    if args.is_sasrec and script.teacher is not None:
        raise ConfigError("--method sasrec learns the task alone, without a teacher: leave --teacher out.")
    run(script, args, model_args, SASREC if args.is_sasrec else args.method, teacher=script.teacher)
    return 0


def run(
    script: RunArguments,
    args: C2KDConfig,
    model_args: ModelConfig,
    method: str,
    teacher: str | None = None,
    what: str = "student",
) -> None:
    """
    Trains a model, saves it, and measures it: what `qcrd c2kd teacher` and `qcrd c2kd train` do.

    Args:
        script ([`RunArguments`]): data, model and what is done beside training.
        args ([`C2KDConfig`]): the trainer's arguments.
        model_args ([`~trl.ModelConfig`]): the model's.
        method (`str`): what results and the card call the method.
        teacher (`str`, *optional*): id or path of the teacher.
        what (`str`, *optional*, defaults to `"student"`): what the last line calls the model.
    """
    checkpoint, callbacks = checkpoint_of(script, args), callbacks_of(script, args)
    data = open_data(script.dataset, args)
    source = model_source(script, model_args, method == SASREC, args.max_history)
    tokenizer = tokenizer_of(script, args, source)
    model = build_model(script, args, model_args, data, source, tokenizer)
    is_generative = args.task_mode == "generative"
    trainer = C2KDTrainer(
        model=model,
        teacher_model=teacher,
        args=args,
        train_dataset=rows_of(script, args, data, tokenizer, "train"),
        eval_dataset=None if args.eval_strategy == "no" else rows_of(script, args, data, tokenizer, "validation"),
        processing_class=tokenizer if is_generative else None,
        callbacks=callbacks,
    )
    trainer.describe(data, method=method, dataset_name=script.dataset, teacher_name=teacher)
    if is_generative:
        trainer.prompt_form = prompt_form(script, args, tokenizer)
    train_and_save(trainer, checkpoint)
    if not script.skip_test and trainer.is_world_process_zero():
        from ..recommendation.results import write_results

        trainer.results = test_results(script, args, trainer, data, tokenizer, method)
        write_results(Path(args.output_dir) / RESULTS_FILE, trainer.results)
        print("test split:")
        print_metrics(trainer.results)
    trainer.create_model_card()
    trainer.accelerator.wait_for_everyone()
    if args.push_to_hub:
        trainer.push_to_hub()
    if trainer.is_world_process_zero():
        print(f"Saved the {what} to {args.output_dir}")


def test_results(
    script: RunArguments, args: C2KDConfig, trainer: C2KDTrainer, data: RecommendationData, tokenizer: Any, method: str
) -> dict[str, Any]:
    """The results of the test split, as `qcrd c2kd evaluate` writes them."""
    from ..recommendation.evaluation import evaluate_model
    from ..recommendation.results import results_of

    users = None
    if script.max_users is not None:
        from ..recommendation.prompts import sample_users

        users = sample_users(data, script.max_users, script.user_seed)
    result = evaluate_model(
        trainer.accelerator.unwrap_model(trainer.model),
        data,
        "test",
        args.task_mode,
        max_history=args.max_history,
        batch_size=args.per_device_eval_batch_size,
        users=users,
        tokenizer=tokenizer if args.task_mode == "generative" else None,
        form=trainer.prompt_form,
        max_new_tokens=script.max_new_tokens,
        progress=not args.disable_tqdm,
    )
    settings = {
        "max_history": args.max_history,
        "training_seed": args.seed,
        "steps": trainer.state.global_step,
        "best_step": trainer.state.best_global_step if args.load_best_model_at_end else None,
        "data": data.fingerprint,
    }
    return results_of(result, args.output_dir, method, settings=settings)


if __name__ == "__main__":
    from .main import run_command

    sys.exit(run_command("c2kd train", main, sys.argv[1:]))
