"""Arguments of [`LayerFilterTrainer`]."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import TrainingArguments

from ..errors import ConfigError
from .checks import at_least_one, check_batches, one_of


FORMS = ("mlp", "linear")


@dataclass
class LayerFilterConfig(TrainingArguments):
    r"""
    Configuration class for the [`LayerFilterTrainer`], stage 2 of C2KD.

    This class includes only the parameters that are specific to it. For a full list of training arguments, please refer to the
    [`~transformers.TrainingArguments`] documentation. The paper's abstract (Chen et al., Findings of ACL 2025) is silent on all
    of these; docs/c2kd_filters.md says where each default is from.

    Args:
        task_mode (`str`, *optional*, defaults to `"item_head"`):
            `"item_head"` or `"generative"`, that of teacher and student.
        student_size (`int`, *optional*):
            Width d_S of the student's states, which the filters lead to. Needed, unless filters are given to the trainer.
        filter_form (`str`, *optional*, defaults to `"mlp"`):
            `"mlp"` (linear, GELU, linear) or `"linear"`.
        filter_size (`int`, *optional*):
            Width within an MLP; the teacher's if left out.
        candidate_layers (`list[int]`, *optional*):
            Layers of the teacher, ascending, counted from 1. Up to 4 at even distances in its late half, the last included, if
            left out. (Public code: 24, 26, 28 and 30 of 32.)

        > Parameters that control the teacher and the data: to be those of the student's training

        teacher_model_init_kwargs (`dict[str, Any]`, *optional*):
            Keyword arguments for `from_pretrained`, used when the teacher is given as an id or a path.
        teacher_cache (`str`, *optional*):
            Folder of the teacher's cached states. With a teacher, what it lacks is added first, and the teacher is let go;
            without one it must hold everything.
        teacher_dtype (`str`, *optional*, defaults to `"float16"`):
            What the teacher's states are rounded to, cached or not: `"float16"`, `"bfloat16"` or `"float32"`.
        teacher_batch_size (`int`, *optional*, defaults to `8`):
            Rows that the teacher reads at a time when the cache is built.
        train_positions (`str`, *optional*, defaults to `"all"`):
            Item-head mode: `"all"`: each item of a row but the first is predicted. `"last"`: only the last.
        max_history (`int`, *optional*):
            Item-head mode: a row keeps its last `max_history + 1` items. No limit if left out.
        max_length (`int`, *optional*, defaults to `1024`):
            Generative mode: largest number of tokens of prompt and title together.
        pad_to_multiple_of (`int`, *optional*):
            Widths of the batches are rounded up to a multiple of this.
        dataset_num_proc (`int`, *optional*):
            Number of processes that tokenize the dataset.

    Raises:
        [`ConfigError`]: naming the argument that cannot be.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "teacher_model_init_kwargs"]

    task_mode: str = field(default="item_head", metadata={"help": "item_head or generative."})
    student_size: int | None = field(default=None, metadata={"help": "Width of the student's states."})
    filter_form: str = field(default="mlp", metadata={"help": "mlp or linear."})
    filter_size: int | None = field(default=None, metadata={"help": "Width within an MLP. Default: the teacher's."})
    candidate_layers: list[int] | None = field(
        default=None, metadata={"help": "Teacher layers, from 1. Default: up to 4 in its late half."}
    )
    teacher_model_init_kwargs: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Keyword arguments for `from_pretrained` of a teacher given as an id or a path."},
    )
    teacher_cache: str | None = field(default=None, metadata={"help": "Folder of the teacher's cached states."})
    teacher_dtype: str = field(
        default="float16", metadata={"help": "What the teacher's states are rounded to: float16, bfloat16 or float32."}
    )
    teacher_batch_size: int = field(
        default=8, metadata={"help": "Rows that the teacher reads at a time when the cache is built."}
    )
    train_positions: str = field(
        default="all", metadata={"help": "all: each item but the first is predicted; last: only the last (item_head)."}
    )
    max_history: int | None = field(default=None, metadata={"help": "A row keeps its last max_history + 1 items."})
    max_length: int | None = field(
        default=1024, metadata={"help": "Largest number of tokens of prompt and title together (generative)."}
    )
    pad_to_multiple_of: int | None = field(default=None, metadata={"help": "Round batch widths up to a multiple."})
    dataset_num_proc: int | None = field(default=None, metadata={"help": "Number of processes that tokenize."})

    def __post_init__(self):
        one_of("task_mode", self.task_mode, ("item_head", "generative"))
        one_of("filter_form", self.filter_form, FORMS)
        one_of("teacher_dtype", self.teacher_dtype, ("float16", "bfloat16", "float32"))
        one_of("train_positions", self.train_positions, ("all", "last"))
        at_least_one("teacher_batch_size", self.teacher_batch_size)
        check_batches(self)
        for name in (
            "student_size",
            "filter_size",
            "max_history",
            "max_length",
            "pad_to_multiple_of",
            "dataset_num_proc",
        ):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        if self.filter_size is not None and self.filter_form != "mlp":
            raise ConfigError("filter_size is the width within filter_form='mlp': leave it out for 'linear'.")
        if self.candidate_layers is not None:
            layers = self.candidate_layers
            for layer in layers:
                at_least_one("candidate_layers", layer)
            if not layers or layers != sorted(set(layers)):
                raise ConfigError(f"candidate_layers must be ascending and different, at least one, got {layers!r}.")
        metric = self.metric_for_best_model
        if self.greater_is_better is None and metric is not None:
            # The base class knows a loss by the end of its name, and would keep the worst filters by `eval_loss/layer_L`.
            self.greater_is_better = not metric.split("/")[0].endswith("loss")
        super().__post_init__()
