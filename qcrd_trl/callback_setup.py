"""What [`SelfAdversarialCallback`] asks of the trainer that it is attached to, before training."""

from datasets import Dataset, IterableDataset
from peft import PeftModel
from torch import nn
from transformers import Trainer
from transformers.trainer_utils import has_length

from .data.dataset import prepare_dataset
from .data.prompts import StudentFormat
from .data.tokenize import RowTokenizer
from .errors import ConfigError, DataError, ModelError
from .models import base_model, check_adapter, is_encoder_decoder
from .sampling.negatives import NegativeQuestion, NegativeSettings, negative_questions


def base_of(trainer: Trainer) -> nn.Module:
    """The student of a trainer, without what wraps it for several processes."""
    return trainer.accelerator.unwrap_model(trainer.model)


def check_generator(trainer: Trainer) -> None:
    """
    Raises a [`ModelError`] unless the student of a trainer can generate, and a [`ConfigError`] where its weights are split up
    over processes.
    """
    if isinstance(base_of(trainer), PeftModel):
        check_adapter(base_of(trainer))
    remedy = '`negative_source="minority"`'
    check_can_generate(trainer, "negatives", remedy, remedy)


def check_can_generate(trainer: Trainer, what: str, without: str, split_up: str) -> None:
    """
    Raises an error unless the model of a trainer can generate, from whole weights.

    Args:
        trainer ([`~transformers.Trainer`]): has the model.
        what (`str`): what it is to generate, for the message.
        without (`str`): what to do without a model that can, beside taking another.
        split_up (`str`): what to do where its weights have to be split up.

    Raises:
        [`ModelError`]: it cannot generate.
        [`ConfigError`]: its weights are split up over processes.
    """
    model = base_model(base_of(trainer))
    if not callable(getattr(model, "generate", None)) or not getattr(model, "can_generate", lambda: True)():
        raise ModelError(
            f"{type(model).__name__} cannot generate {what}. Use a model with a language-modelling head, or {without}."
        )
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(plugin, "zero_stage", 0) == 3:
        raise ConfigError(
            f"{what.capitalize()} are generated from whole weights, which FSDP and ZeRO-3 split up. Use DDP or ZeRO-2, or "
            f"{split_up}."
        )


def questions_to_ask(
    trainer: Trainer,
    questions: Dataset | None,
    student_format: StudentFormat | None,
    settings: NegativeSettings,
    choices_column: str | None,
) -> list[NegativeQuestion]:
    """
    The questions that negatives are generated for.

    Args:
        trainer ([`~transformers.Trainer`]): has the tokenizer, and the training set that is asked where no questions are given.
        questions ([`~datasets.Dataset`], *optional*): rows with `prompt` and `positive_rationales`.
        student_format ([`StudentFormat`], *optional*): how they are put to the student; the trainer's own if left out.
        settings ([`~sampling.negatives.NegativeSettings`]): seed, and how answers are read, if they are.
        choices_column (`str`, *optional*): column with the options of a choice.

    Raises:
        [`ConfigError`]: if there are no questions, or only a stream of them.
    """
    tokenizer = trainer.processing_class
    tokenized, rows = trainer.train_dataset, getattr(trainer, "questions", None)
    if questions is not None:
        form = student_format or getattr(trainer, "student_format", None)
        form = form or StudentFormat(is_encoder_decoder=is_encoder_decoder(base_of(trainer)))
        row_tokenizer = RowTokenizer(tokenizer, form, seed=settings.seed)
        tokenized, rows = prepare_dataset(questions, row_tokenizer, "questions"), questions
    if isinstance(tokenized, IterableDataset):
        raise ConfigError(
            "Negatives are generated before the questions are trained on, which a streaming train_dataset does not tell. "
            'Pass a `Dataset`, or set `negative_source="minority"` (or "none").'
        )
    if tokenized is None or "explain_prompt_ids" not in (tokenized.column_names or []):
        raise ConfigError(
            "There are no questions to generate negatives for. Pass `questions=`, a dataset with the columns 'prompt' and "
            "'positive_rationales'."
        )
    kind = None if settings.correct == "keep" else settings.task_kind
    return negative_questions(tokenized, rows, tokenizer, kind, choices_column)


def row_ids(trainer: Trainer, asked: list[NegativeQuestion], questions: Dataset | None) -> list[str] | None:
    """
    Id of the question of each row of the training set; `None` if that is not known.

    Args:
        trainer ([`~transformers.Trainer`]): has the training set.
        asked (`list[NegativeQuestion]`): what [`questions_to_ask`] gave.
        questions ([`~datasets.Dataset`], *optional*): the rows that it was given, if any.

    Raises:
        [`DataError`]: if no question has an id of the training set.
    """
    if questions is None:
        return [question.id for question in asked]
    rows = trainer.train_dataset
    if "id" not in (getattr(questions, "column_names", None) or []) or "id" not in (
        getattr(rows, "column_names", None) or []
    ):
        return None
    ids = [str(key) for key in rows["id"]] if has_length(rows) else None
    if ids is not None and not {question.id for question in asked} & set(ids):
        raise DataError("None of the `questions` has an id of the train_dataset, so no negative would ever be used.")
    return ids
