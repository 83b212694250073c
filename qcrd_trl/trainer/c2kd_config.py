"""Arguments of [`C2KDTrainer`]."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import TrainingArguments

from ..errors import ConfigError
from ..losses.c2kd import FEATURE_LOSSES
from ..repositories import is_repo_name
from .checks import at_least_one, check_batches, not_negative, one_of, own_folder


TASK_MODES = ("item_head", "generative")
FEATURE_DISTILLATIONS = ("router", "last", "blocks", "none")
LOGIT_DISTILLATIONS = ("cross_head", "own_heads", "none")
TRAIN_POSITIONS = ("all", "last")
FILTER_TARGETS = ("raw", "normed")
TEACHER_DTYPES = ("float16", "bfloat16", "float32")

# method: (feature_distillation, logit_distillation)
METHODS = {
    "c2kd": ("router", "cross_head"),
    "none": ("none", "none"),
    "feature_kd": ("last", "none"),
    "logit_kd": ("none", "own_heads"),
    "blockwise": ("blocks", "none"),
}


@dataclass
class C2KDConfig(TrainingArguments):
    r"""
    Configuration class for the [`C2KDTrainer`].

    This class includes only the parameters that are specific to C2KD training. For a full list of training arguments, please
    refer to the [`~transformers.TrainingArguments`] documentation. "Paper" below is C2KD (Chen et al., Findings of ACL 2025),
    whose abstract fixes the two parts and no constant; docs/c2kd_trainer.md says where each default is from.

    Args:
        task_mode (`str`, *optional*, defaults to `"item_head"`):
            `"item_head"`: rows are item indices, and the student scores all items with a head over them. `"generative"`: rows
            are prompts and titles, and the student writes the title.
        method (`str`, *optional*, defaults to `"c2kd"`):
            `"c2kd"`, or a baseline: `"none"` (the task alone; how a teacher is trained, too), `"feature_kd"` (imitation of the
            teacher's last layer), `"logit_kd"` (KL between the two models' own heads), `"blockwise"` (SLMRec's form). It sets
            the next two arguments where they are left out.
        feature_distillation (`str`, *optional*):
            What the student's states imitate. `"router"`: the filtered teacher layer that each row's router chooses. `"last"`:
            the teacher's last layer, through a trained projection. `"blocks"`: the ends of the teacher's blocks of layers.
            `"none"`.
        logit_distillation (`str`, *optional*):
            Whose logits are compared with the teacher's. `"cross_head"`: those of the teacher's head on the student's projected
            states. `"own_heads"`: those of the student's head. `"none"`.

        > Parameters that control the model and the data

        num_items (`int`, *optional*):
            Item-head mode: number of items. Taken from the student, the teacher or the teacher cache if left out.
        model_init_kwargs (`dict[str, Any]`, *optional*):
            Keyword arguments for `from_pretrained`, used when `model` is given as an id or a path.
        teacher_model_init_kwargs (`dict[str, Any]`, *optional*):
            The same for `teacher_model`.
        train_positions (`str`, *optional*, defaults to `"all"`):
            Item-head mode: `"all"`: each item of a training row but the first is predicted. `"last"`: only the last.
        max_history (`int`, *optional*):
            Item-head mode: a row keeps its last `max_history + 1` items. No limit if left out.
        max_length (`int`, *optional*, defaults to `1024`):
            Generative mode: largest number of tokens of prompt and title together; the oldest history is left out first.
        pad_to_multiple_of (`int`, *optional*):
            Widths of the batches are rounded up to a multiple of this.
        dataset_num_proc (`int`, *optional*):
            Number of processes that tokenize the dataset.

        > Parameters that control distillation

        lambda_feat (`float`, *optional*, defaults to `0.5`):
            Weight of feature imitation. 0 switches the part off. (Value of the public code.)
        lambda_logit (`float`, *optional*, defaults to `0.5`):
            Weight of logit distillation. 0 switches the part off. (Value of the public code.)
        lambda_orthogonal (`float`, *optional*, defaults to `0.0`):
            Weight of the penalty that keeps the cross-head projection near to orthogonal. The public code has 0.05.
        temperature (`float`, *optional*, defaults to `1.0`):
            T of logit distillation, whose KL is multiplied by T^2.
        feature_loss (`str`, *optional*, defaults to `"mse"`):
            `"mse"`, or `"normalized"`: a MSE + (1 - a) (1 - cos) on L2-normalised states. `"blocks"` has a form of its own.
        feature_alpha (`float`, *optional*, defaults to `0.5`):
            a of `"normalized"`, in [0, 1].
        filter_target (`str`, *optional*, defaults to `"raw"`):
            What the router compares with and the student imitates. `"raw"`: what the filter gives, g^l(H_t^l), whose scale
            the filters' training leaves free. `"normed"`: the same behind the norm that the filters share, which is what
            their task was learned from, as long as the states of a student are behind its final norm.
        student_layer (`int`, *optional*):
            Layer of the student that imitates, counted from 1; the last if left out.
        candidate_layers (`list[int]`, *optional*):
            Layers of the teacher that the router chooses from, counted from 1. Those of the layer filters if left out.
        layer_filters (`str`, *optional*):
            Folder of the trained layer filters, as `qcrd c2kd filters` writes it.
        teacher_cache (`str`, *optional*):
            Folder of the teacher's cached states. Training then holds no teacher in memory.
        teacher_dtype (`str`, *optional*, defaults to `"float16"`):
            What the teacher's states are rounded to, cached or not, so that both train alike: `"float16"`, `"bfloat16"` or
            `"float32"`.
        heads_learning_rate (`float`, *optional*):
            Learning rate of what is trained outside the student (projections, heads of blocks); `learning_rate` if left out.

        > Parameters of block-wise imitation

        num_blocks (`int`, *optional*):
            Blocks that the layers of both models are cut into; 4 (SLMRec), or as many as the student has layers, if left out.
        block_norm_weight (`float`, *optional*, defaults to `0.1`):
            Weight of the length of the difference against that of the angle. (Value of SLMRec's public code.)
        lambda_block_task (`float`, *optional*, defaults to `1.0`):
            Weight of the task's loss at the ends of all blocks but the last. (Value of SLMRec's public code.)

        > Parameters that control what a run tells of itself

        report_plots (`bool`, *optional*, defaults to `True`):
            Whether `output_dir` gets `training_log.json` and pictures of it (`plots/*.png`) at the end of training.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *TrainingArguments._VALID_DICT_FIELDS,
        "model_init_kwargs",
        "teacher_model_init_kwargs",
    ]

    task_mode: str = field(default="item_head", metadata={"help": "item_head or generative."})
    method: str = field(default="c2kd", metadata={"help": "c2kd, none, feature_kd, logit_kd or blockwise."})
    feature_distillation: str | None = field(
        default=None, metadata={"help": "router, last, blocks or none. Default: the method's."}
    )
    logit_distillation: str | None = field(
        default=None, metadata={"help": "cross_head, own_heads or none. Default: the method's."}
    )
    num_items: int | None = field(
        default=None, metadata={"help": "Number of items (item_head). Default: that of the student or the teacher."}
    )
    model_init_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Keyword arguments for `from_pretrained` when the model is an id or a path."}
    )
    teacher_model_init_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "The same for the teacher."}
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
    lambda_feat: float = field(default=0.5, metadata={"help": "Weight of feature imitation. 0 switches it off."})
    lambda_logit: float = field(default=0.5, metadata={"help": "Weight of logit distillation. 0 switches it off."})
    lambda_orthogonal: float = field(
        default=0.0, metadata={"help": "Weight of the cross-head projection's orthogonality penalty."}
    )
    temperature: float = field(default=1.0, metadata={"help": "Temperature of logit distillation."})
    feature_loss: str = field(default="mse", metadata={"help": "mse or normalized."})
    feature_alpha: float = field(default=0.5, metadata={"help": "Weight of the MSE in normalized, in [0, 1]."})
    filter_target: str = field(
        default="raw", metadata={"help": "raw: imitate what the filters give; normed: that behind their shared norm."}
    )
    student_layer: int | None = field(
        default=None, metadata={"help": "Layer of the student that imitates, from 1. Default: the last."}
    )
    candidate_layers: list[int] | None = field(
        default=None, metadata={"help": "Teacher layers that the router chooses from. Default: the layer filters'."}
    )
    layer_filters: str | None = field(default=None, metadata={"help": "Folder of the trained layer filters."})
    teacher_cache: str | None = field(default=None, metadata={"help": "Folder of the teacher's cached states."})
    teacher_dtype: str = field(
        default="float16", metadata={"help": "What the teacher's states are rounded to: float16, bfloat16 or float32."}
    )
    heads_learning_rate: float | None = field(
        default=None,
        metadata={"help": "Learning rate of what is trained outside the student. Default: learning_rate."},
    )
    num_blocks: int | None = field(default=None, metadata={"help": "Blocks of layers in block-wise imitation."})
    block_norm_weight: float = field(default=0.1, metadata={"help": "Weight of lengths in block-wise imitation."})
    lambda_block_task: float = field(default=1.0, metadata={"help": "Weight of the task's loss at the blocks' ends."})
    report_plots: bool = field(
        default=True, metadata={"help": "Write training_log.json and plots/*.png into output_dir after training."}
    )

    def __post_init__(self):
        one_of("method", self.method, tuple(METHODS))
        features, logits = METHODS[self.method]
        self.feature_distillation = features if self.feature_distillation is None else self.feature_distillation
        self.logit_distillation = logits if self.logit_distillation is None else self.logit_distillation
        self._check()
        super().__post_init__()

    @property
    def uses_features(self) -> bool:
        """Whether the student's states imitate the teacher's."""
        return self.feature_distillation != "none" and self.lambda_feat > 0

    @property
    def uses_router(self) -> bool:
        """Whether rows choose the layer that they imitate."""
        return self.uses_features and self.feature_distillation == "router"

    @property
    def uses_blocks(self) -> bool:
        """Whether imitation is block-wise."""
        return self.uses_features and self.feature_distillation == "blocks"

    @property
    def uses_logits(self) -> bool:
        """Whether logits are distilled."""
        return self.logit_distillation != "none" and self.lambda_logit > 0

    @property
    def uses_teacher(self) -> bool:
        """Whether a teacher has a part in the loss."""
        return self.uses_features or self.uses_logits

    @property
    def trains_heads(self) -> bool:
        """Whether something is trained outside the student."""
        projected = self.uses_logits and self.logit_distillation == "cross_head"
        return projected or (self.uses_features and self.feature_distillation in ("last", "blocks"))

    def _check(self) -> None:
        one_of("task_mode", self.task_mode, TASK_MODES)
        one_of("feature_distillation", self.feature_distillation, FEATURE_DISTILLATIONS)
        one_of("logit_distillation", self.logit_distillation, LOGIT_DISTILLATIONS)
        one_of("train_positions", self.train_positions, TRAIN_POSITIONS)
        one_of("feature_loss", self.feature_loss, FEATURE_LOSSES)
        one_of("filter_target", self.filter_target, FILTER_TARGETS)
        one_of("teacher_dtype", self.teacher_dtype, TEACHER_DTYPES)
        for name in ("lambda_feat", "lambda_logit", "lambda_orthogonal", "block_norm_weight", "lambda_block_task"):
            not_negative(name, getattr(self, name))
        for name in ("temperature", "feature_alpha", "heads_learning_rate"):
            if getattr(self, name) is not None:
                not_negative(name, getattr(self, name))
        if self.temperature == 0:
            raise ConfigError("temperature must be above 0, got 0: logits are divided by it.")
        if self.feature_alpha > 1:
            raise ConfigError(f"feature_alpha must be at most 1, got {self.feature_alpha!r}.")
        for name in (
            *("num_items", "max_history", "max_length", "pad_to_multiple_of", "dataset_num_proc", "student_layer"),
            "num_blocks",
        ):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        if self.candidate_layers is not None:
            self._check_layers()
        self._check_parts()
        check_batches(self)
        own_folder(self, layer_filters=self.layer_filters, teacher_cache=self.teacher_cache)
        for name in ("hub_model_id",):
            value = getattr(self, name)
            if value is not None and not is_repo_name(value):
                raise ConfigError(f"`{name}` must be the name of a repository, USER/NAME, got {value!r}.")

    def _check_layers(self) -> None:
        layers = self.candidate_layers
        if not layers or len(set(layers)) != len(layers):
            raise ConfigError(f"candidate_layers must be different layers, at least one, got {layers!r}.")
        for layer in layers:
            at_least_one("candidate_layers", layer)

    def _check_parts(self) -> None:
        """Raises for arguments of a part that the recipe does not have: they would do nothing."""
        of = f"method={self.method!r} with feature_distillation={self.feature_distillation!r}"
        if self.lambda_feat == 0 and self.feature_distillation != "none":
            of += " and lambda_feat=0"
        if not self.uses_router:
            for name in ("layer_filters", "candidate_layers"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{name} is for the router, and {of} has none. Leave it out, or set feature_distillation='router' "
                        "and a lambda_feat above 0."
                    )
            if self.filter_target != "raw":
                raise ConfigError(
                    f"filter_target={self.filter_target!r} is for the router, and {of} has none. Leave it out, or set "
                    "feature_distillation='router'."
                )
        if self.uses_blocks and self.student_layer is not None:
            raise ConfigError("student_layer has no part in block-wise imitation, which has a layer for each block.")
        if self.num_blocks is not None and not self.uses_blocks:
            raise ConfigError(f"num_blocks is for block-wise imitation, and {of} has none. Leave it out.")
        if self.lambda_orthogonal > 0 and not (self.uses_logits and self.logit_distillation == "cross_head"):
            raise ConfigError(
                "lambda_orthogonal is for the projection of logit_distillation='cross_head', and "
                f"logit_distillation={self.logit_distillation!r} with lambda_logit={self.lambda_logit} has none. Set it to 0."
            )
        if self.teacher_cache is not None and not self.uses_teacher:
            raise ConfigError(f"teacher_cache does nothing here: method={self.method!r} has no teacher. Leave it out.")
        if self.label_smoothing_factor:
            raise ConfigError(
                f"label_smoothing_factor={self.label_smoothing_factor} has no part in the loss of C2KDTrainer. Leave it out."
            )
        if self.trains_heads and self.save_only_model and self.load_best_model_at_end:
            raise ConfigError(
                "save_only_model=True leaves out what is trained outside the student, which load_best_model_at_end needs: set one "
                "of them to False."
            )
        if self.method != "none" and not self.uses_teacher:
            raise ConfigError(
                f"method={self.method!r} with feature_distillation={self.feature_distillation!r}, lambda_feat="
                f"{self.lambda_feat}, logit_distillation={self.logit_distillation!r} and lambda_logit={self.lambda_logit} "
                "distils nothing. Set method='none', or a weight above 0."
            )
