"""`qcrd train`: trains a student on a training set of rationales."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trl import ModelConfig, get_peft_config, get_quantization_config

from ..data.sources import load_dataset_from
from ..errors import ConfigError
from ..models import reads_with_encoder
from ..report_callback import set_selection
from ..trainer.qcrd_config import QCRDConfig
from ..trainer.qcrd_trainer import QCRDTrainer
from .common import parse_arguments
from .early_stopping import callbacks_of
from .report_selection import is_selection, selection_of


@dataclass
class TrainArguments:
    """
    Arguments of `qcrd train` beside those of [`QCRDConfig`] and [`~trl.ModelConfig`].

    Args:
        dataset (`str`):
            Training set: what `qcrd select` wrote, or any file, folder or Hub name with its columns.
        split (`str`, *optional*):
            Its split.
        dataset_config (`str`, *optional*):
            Its configuration, for a Hub dataset.
        eval_dataset (`str`, *optional*):
            Held-out set of the same columns.
        eval_split (`str`, *optional*):
            Its split.
        eval_fraction (`float`, *optional*):
            Share of the training questions to hold out, drawn by `seed`, where there is no `eval_dataset`.
        early_stopping_patience (`int`, *optional*):
            Training ends after so many evaluations in a row without a better `metric_for_best_model`, counted on by a run
            that is resumed.
        resume (`bool`, *optional*, defaults to `False`):
            Whether to go on from the newest checkpoint in `output_dir`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
    """

    dataset: str = field(metadata={"help": "Training set: a folder of `qcrd select`, a file, or a Hub name."})
    split: str | None = field(default=None, metadata={"help": "Its split."})
    dataset_config: str | None = field(default=None, metadata={"help": "Its configuration, for a Hub dataset."})
    eval_dataset: str | None = field(default=None, metadata={"help": "Held-out set of the same columns."})
    eval_split: str | None = field(default=None, metadata={"help": "Its split."})
    eval_fraction: float | None = field(
        default=None, metadata={"help": "Share of the training questions to hold out, where there is no eval set."}
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "End after so many evaluations in a row without a better metric_for_best_model."},
    )
    resume: bool = field(default=False, metadata={"help": "Go on from the newest checkpoint in output_dir."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})


def main(argv: Sequence[str] | None = None) -> int:
    """
    Trains a student and saves it.

    Args:
        argv (`Sequence[str]`, *optional*):
            Flags; those of the process if left out, so that `accelerate launch -m qcrd_trl.cli.train` works.

    Returns:
        `int`: exit status, 0.
    """
    argv = sys.argv[1:] if argv is None else argv
    description = "Trains a student on a training set of rationales."
    script, args, model_args = parse_arguments(
        argv, TrainArguments, QCRDConfig, ModelConfig, prog="qcrd train", description=description
    )
    if not model_args.model_name_or_path:
        raise ConfigError("--model_name_or_path is missing: give the id or path of the student.")
    callbacks = callbacks_of(script, args)
    train_dataset, eval_dataset = _datasets(script, args)
    kwargs = _model_kwargs(script, model_args)
    args.model_init_kwargs = {**kwargs, **(args.model_init_kwargs or {})}
    trainer = QCRDTrainer(
        model=model_args.model_name_or_path,
        args=args,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
        quantization_config=get_quantization_config(model_args),
        peft_config=_peft_config(model_args, args.model_init_kwargs),
    )
    if args.report_plots and is_selection(Path(script.dataset).expanduser()):
        set_selection(trainer, selection_of(Path(script.dataset).expanduser()))
    trainer.dataset_name = script.dataset
    result = trainer.train(resume_from_checkpoint=_checkpoint(script, args))
    trainer.save_model(_internal_call=args.push_to_hub)  # a push that fails must not cost what is yet to be written
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    if eval_dataset is not None:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if args.push_to_hub:
        trainer.push_to_hub()
    elif eval_dataset is not None:
        trainer.create_model_card()  # with what was measured in the end
    if trainer.is_world_process_zero():
        print(f"Saved the student to {args.output_dir}")
    return 0


def _datasets(script: TrainArguments, args: QCRDConfig):
    dataset = load_dataset_from(script.dataset, script.split, script.dataset_config)
    if script.eval_dataset is not None:
        if script.eval_fraction is not None:
            raise ConfigError("--eval_dataset and --eval_fraction exclude each other.")
        return dataset, load_dataset_from(script.eval_dataset, script.eval_split)
    if script.eval_fraction is None:
        if args.eval_strategy != "no":
            raise ConfigError(
                f"eval_strategy={str(args.eval_strategy.value)!r} needs --eval_dataset or --eval_fraction."
            )
        if args.eval_accuracy:
            raise ConfigError("--eval_accuracy needs --eval_dataset or --eval_fraction: questions that are held out.")
        return dataset, None
    if not 0 < script.eval_fraction < 1 or not 1 <= round(script.eval_fraction * len(dataset)) < len(dataset):
        raise ConfigError(f"--eval_fraction must leave questions on both sides, got {script.eval_fraction}.")
    parts = dataset.train_test_split(test_size=script.eval_fraction, seed=args.seed)
    return parts["train"], parts["test"]


def _model_kwargs(script: TrainArguments, model_args: ModelConfig) -> dict:
    kwargs = {"dtype": model_args.dtype}
    if not Path(model_args.model_name_or_path).is_dir():
        kwargs["revision"] = model_args.model_revision
    if model_args.attn_implementation is not None:
        kwargs["attn_implementation"] = model_args.attn_implementation
    if script.trust_remote_code:
        kwargs["trust_remote_code"] = True
    return kwargs


def _peft_config(model_args: ModelConfig, kwargs: dict):
    # PEFT wraps an encoder-decoder in another class, and the flag's default is that of decoder-only models.
    is_default = model_args.use_peft and model_args.lora_task_type == "CAUSAL_LM"
    if is_default and reads_with_encoder(model_args.model_name_or_path, **kwargs):
        model_args.lora_task_type = "SEQ_2_SEQ_LM"
    return get_peft_config(model_args)


def _checkpoint(script: TrainArguments, args: QCRDConfig) -> bool | str | None:
    if args.resume_from_checkpoint:
        return args.resume_from_checkpoint
    has_checkpoint = Path(args.output_dir).is_dir() and any(Path(args.output_dir).glob("checkpoint-*"))
    if script.resume and not has_checkpoint:
        raise ConfigError(f"--resume: there is no checkpoint in {args.output_dir!r}.")
    return True if script.resume else None


if __name__ == "__main__":
    from .main import run_command

    sys.exit(run_command("train", main, sys.argv[1:]))
