"""What a [`C2KDTrainer`] is given, made into a student, a teacher and layer filters that fit together."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from datasets import IterableDataset
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..errors import ConfigError, ModelError
from ..models import load_tokenizer, prepare_tokenizer
from ..recommendation.layer_filters import LayerFilters
from ..recommendation.loading import build_recommender
from ..recommendation.states import core_model, hidden_size, num_layers
from ..recommendation.teacher import find_teacher
from ..recommendation.teacher_states import LiveTeacher
from .c2kd_config import C2KDConfig
from .c2kd_objective import block_ends, num_blocks
from .checks import own_folder


logger = logging.getLogger(__name__)


def check_arguments(args: C2KDConfig, train_dataset: Any, model: Any, teacher_model: Any, layer_filters: Any) -> None:
    """Raises a [`ConfigError`] for what cannot work, before anything is loaded."""
    if not isinstance(args, C2KDConfig):
        raise ConfigError(f"`args` must be a `C2KDConfig`, got {type(args).__name__}.")
    own_folder(args, model=model, teacher_model=teacher_model)
    if args.n_gpu > 1:
        raise ConfigError(
            f"{args.n_gpu} GPUs in one process are not supported. Start the script with `accelerate launch`, or set "
            "CUDA_VISIBLE_DEVICES to one of them."
        )
    if isinstance(train_dataset, IterableDataset) and args.max_steps <= 0:
        raise ConfigError("A streaming train_dataset has no length: set `max_steps` to a positive number.")
    if args.uses_teacher and teacher_model is None and args.teacher_cache is None:
        raise ConfigError(
            f"method={args.method!r} needs a teacher: pass `teacher_model`, or set teacher_cache to its cached states."
        )
    if not args.uses_teacher and teacher_model is not None:
        raise ConfigError(
            f"method={args.method!r} has no teacher, so `teacher_model` would do nothing. Leave it out, or choose a method that "
            "distils."
        )
    # An adapter is put into its base in place: a `PeftModel` and the model that it was made of are one, too.
    frozen = teacher_model.model if isinstance(teacher_model, LiveTeacher) else teacher_model
    pair = (model, frozen) if isinstance(model, nn.Module) and isinstance(frozen, nn.Module) else ()
    if pair and not {*map(id, model.parameters())}.isdisjoint(map(id, frozen.parameters())):
        raise ConfigError(
            "`model` and `teacher_model` share weights, which cannot be both trained and frozen: pass a copy."
        )
    if args.uses_router and layer_filters is None and args.layer_filters is None:
        raise ConfigError(
            "feature_distillation='router' needs the layer filters g^l: set layer_filters to the folder of `qcrd c2kd filters`, "
            "or pass a `LayerFilters`."
        )
    if layer_filters is not None and not args.uses_router:
        raise ConfigError(
            f"feature_distillation={args.feature_distillation!r} has no router, so `layer_filters` would do nothing. Leave it out."
        )
    kwargs = args.gradient_checkpointing_kwargs or {}
    if args.gradient_checkpointing and kwargs.get("use_reentrant", False):
        raise ConfigError(
            "gradient_checkpointing_kwargs={'use_reentrant': True} would cut the gradient of the states of inner layers: set it "
            "to False."
        )


def load_student(
    model: Any,
    args: C2KDConfig,
    num_items: int | None,
    quantization_config: Any = None,
    peft_config: Any = None,
) -> nn.Module:
    """
    A student ready for training.

    Args:
        model (`str` or `os.PathLike` or `dict` or `nn.Module`): what [`C2KDTrainer`] is given.
        args ([`C2KDConfig`]): its configuration.
        num_items (`int`, *optional*): items that a new head gets, in item-head mode.
        quantization_config (*optional*): quantization of the model loaded here.
        peft_config ([`~peft.PeftConfig`], *optional*): adapter to add.
    """
    return build_recommender(
        args.task_mode,
        dict(model) if isinstance(model, Mapping) else model,
        num_items if args.task_mode == "item_head" else None,
        quantization_config=quantization_config,
        peft_config=peft_config,
        seed=args.seed,
        init_kwargs=dict(args.model_init_kwargs or {}),
        args=args,
    )


def load_teacher(teacher: Any, args: C2KDConfig, filters: LayerFilters | None) -> Any:
    """What reads the teacher's states, of what [`C2KDTrainer`] is given; `None` where the recipe has no teacher."""
    if not args.uses_teacher:
        return None
    layers = None if filters is None else filters.layers
    return find_teacher(
        teacher, layers, args.teacher_dtype, args.teacher_cache, init_kwargs=args.teacher_model_init_kwargs
    )


def with_layers_needed(teacher: Any, args: C2KDConfig, student: nn.Module) -> Any:
    """A teacher that was loaded here without layer filters, and now reads the layers that the recipe needs, and no others."""
    last = teacher.last_layer
    if args.uses_blocks:
        layers = block_ends(last, num_blocks(args, num_layers(student), last))
    elif args.teacher_cache is not None:
        return teacher  # of the cache's layers
    else:
        layers = [last]
    return LiveTeacher(teacher.model, layers, args.teacher_dtype)


def load_filters(given: LayerFilters | None, args: C2KDConfig) -> LayerFilters | None:
    """The layer filters, frozen, or `None` where the recipe has no router."""
    if not args.uses_router:
        return None
    filters = LayerFilters.from_pretrained(args.layer_filters) if given is None else given
    if filters.form == "identity" and args.filter_target == "normed":
        raise ConfigError(
            "filter_target='normed' takes the norm that filters were trained with, and identity filters are not trained: set "
            "filter_target='raw'."
        )
    return filters.freeze()


def check_fit(
    student: nn.Module,
    teacher: Any,
    filters: LayerFilters | None,
    args: C2KDConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    teacher_name: str | None,
) -> None:
    """
    Raises where student, teacher, filters and tokenizer are not of one task.

    Raises:
        [`ModelError`]: naming what does not fit.
    """
    if args.task_mode == "item_head":
        items = items_of(student)
        if teacher.vocab_size != items:
            raise ModelError(
                f"The teacher scores {teacher.vocab_size} items and the student {items}: both must be of the same items, and in "
                "one task mode. Train both on one data folder of `qcrd c2kd prepare`."
            )
    else:
        if teacher.vocab_size < len(tokenizer):
            raise ModelError(
                f"The teacher's head has {teacher.vocab_size} tokens and the student's tokenizer {len(tokenizer)}: in generative "
                "mode both must have one tokenizer."
            )
        if teacher_name is not None:
            other = load_tokenizer(teacher_name)
            if other.get_vocab() != tokenizer.get_vocab():
                raise ModelError(
                    f"The tokenizer of the teacher {teacher_name!r} gives other ids than the student's: in generative mode the "
                    "teacher reads what the student reads. Choose models of one family."
                )
    if filters is not None:
        filters.check(teacher, hidden_size(student), items_of(student))


def generative_tokenizer(
    given: PreTrainedTokenizerBase | None, model: Any, args: C2KDConfig
) -> PreTrainedTokenizerBase | None:
    """The tokenizer of generative mode; in item-head mode what was given, which is saved beside the student."""
    if args.task_mode == "item_head":
        return given
    if given is None:
        name = (
            str(model)
            if isinstance(model, (str, os.PathLike))
            else getattr(getattr(model, "config", None), "_name_or_path", "")
        )
        if not name:
            raise ConfigError("Generative mode needs a tokenizer: pass it as `processing_class`.")
        trust = {"trust_remote_code": True} if (args.model_init_kwargs or {}).get("trust_remote_code") else {}
        given = load_tokenizer(name, **trust)
    return prepare_tokenizer(given)


def items_of(model: nn.Module) -> int | None:
    """Items that a model's head scores; `None` of a model that writes text."""
    return getattr(core_model(model).config, "num_items", None)
