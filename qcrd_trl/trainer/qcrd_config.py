"""Arguments of [`QCRDTrainer`]."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from transformers import TrainingArguments

from ..answers import TASK_KINDS
from ..data.tokenize import RATIONALE_SOURCES
from ..errors import ConfigError
from ..losses import MARGIN_TYPES, QUALITY_WEIGHTINGS, REDUCTIONS, SIDE_REDUCTIONS, side_reductions
from ..negative_options import GENERATED, NEGATIVE_SOURCES, check_negative_options
from .accuracy_options import AccuracyOptions
from .checks import Switch, at_least_one, not_negative, one_of, switch
from .discriminator_options import DiscriminatorOptions
from .hub_options import HubOptions
from .presets import PRESETS
from .report_options import ReportOptions


PICKS = ("min", "max")  # reductions that leave all rationales but one without a gradient


@dataclass
class QCRDConfig(AccuracyOptions, DiscriminatorOptions, ReportOptions, HubOptions, TrainingArguments):
    r"""
    Configuration class for the [`QCRDTrainer`].

    This class includes only the parameters that are specific to QCRD training. For a full list of training arguments,
    please refer to the [`~transformers.TrainingArguments`] documentation. Arguments whose default is a recipe's may be
    left out: `preset` then sets them; given, they win. "Paper" below is QCRD (Wang et al., EMNLP 2025).

    Args:
        preset (`str`, *optional*, defaults to `"qcrd"`):
            Recipe: `"label_only"`, `"dss"` (one raw sample a question), `"dss_all"` (all positives averaged),
            `"qcrd_paper"` (as printed), `"qcrd"` (printed, but for positives drawn by sampling, quality weights of mean
            1 and a margin relative to the positive: a miniature benchmark lost accuracy by the printed forms).

        > Parameters that control the model and the data

        model_init_kwargs (`dict[str, Any]`, *optional*):
            Keyword arguments for `from_pretrained`, used when `model` is given as an id or a path.
        max_length (`int`, *optional*, defaults to `1024`):
            Largest number of tokens of prompt and completion together (of each, for an encoder-decoder student).
            Rationales are cut there, with a count; a longer prompt is an error. `None`: no limit. TRL's default.
        predict_prefix (`str`, *optional*, defaults to `"<Predict>"`):
            Plain text before a question of the label task (paper, section 3). The vocabulary is not touched.
        explain_prefix (`str`, *optional*, defaults to `"<Explain>"`):
            Plain text before a question of the rationale task (paper, section 3).
        response_separator (`str`, *optional*, defaults to `"\n"`):
            Between a standard prompt and the completion of a decoder-only student. Not in the paper, whose students are
            encoder-decoders.
        rationale_source (`str`, *optional*):
            `"selected"`: the positives and negatives of the dataset. `"raw"`: one unfiltered teacher sample as the only
            positive (distilling step-by-step). Set by the preset.
        dataset_num_proc (`int`, *optional*):
            Number of processes that tokenize the dataset.
        pad_to_multiple_of (`int`, *optional*):
            Widths of the batches are rounded up to a multiple of this.
        rationale_forward_passes (`int`, *optional*, defaults to `4`):
            Forward passes that the rationales of a micro-batch are split into, by length: a long rationale then does not
            pad all others. The loss does not depend on it.

        > Parameters that control how rationales are scored: none of them changes the loss or its gradient

        shared_prompt (`bool` or `str`, *optional*, defaults to `"auto"`):
            Whether the rationales of a question share one reading of its prompt: in one row with a mask of its own
            (decoder-only; attention `sdpa` or `eager`), or by encoding it once (encoder-decoder). `"auto"`: where the
            architecture is known to allow it and a trial on a few tokens agrees; else the log says why not. `True`: an
            error there.
        selection (`bool` or `str`, *optional*, defaults to `"auto"`):
            Whether rationales are first scored without a graph, so that forward and backward are run on those alone that
            `min` or `max` picks. It saves memory always and time where there are many. `"auto"`: batch by batch, where
            it takes fewer multiplications, by the weights that tokens meet and the pairs that attention compares, or up
            to 3 % more.
        chunked_logits (`bool` or `str`, *optional*, defaults to `"auto"`):
            Whether losses are computed a few tokens at a time, without ever holding all logits. `"auto"`: where the
            student's head is a plain linear layer and a trial agrees.

        > Parameters that control the loss

        reduction (`str`, *optional*):
            Many rationales to one loss (paper, table of reductions): `"min_max"` (paper: the best), `"max_min"`,
            `"sampling"`, `"mean"` or `"weighted_mean"`. Set by the preset.
        positive_reduction (`str`, *optional*):
            How positives are reduced, where it differs from `reduction`: `"min"`, `"max"`, `"sampling"`, `"mean"`,
            `"weighted_mean"`. Taken from `reduction` if only that is given; else set by the preset.
        negative_reduction (`str`, *optional*):
            The same for negatives.
        alpha_1 (`float`, *optional*):
            Weight of the label loss in eq. 8. Paper: 0.5. Set by the preset.
        alpha_2 (`float`, *optional*):
            Weight of the contrastive rationale loss in eq. 8. Paper: 0.5. 0 leaves the rationale task out. Set by the
            preset.
        alpha_3 (`float`, *optional*):
            Weight of the discriminator's loss in eq. 8. Paper: 0.5. 0 leaves the discriminator as it was initialised.
            Set by the preset.
        alpha_3_decay (`float`, *optional*, defaults to `0.9`):
            Factor on `alpha_3` at each iteration (paper: 0.9), see `negative_refresh_steps`. As Adam cancels the scale of
            a loss, the decay acts on the discriminator's learning rate.
        beta (`float`, *optional*):
            Weight of the negatives in eq. 3. Paper: 0.2. Set by the preset.
        margin (`float`, *optional*):
            delta of eq. 7, nats per token. Paper: 3 for a vocabulary of 32,128. Set by the preset.
        margin_type (`str`, *optional*):
            `"absolute"`: negatives are pushed up to a loss of delta, as printed. `"relative"`: up to the positive's
            loss plus delta. Set by the preset.
        quality_weighting (`str`, *optional*):
            `"printed"`: the discriminator's scores weight the rationale losses as in eq. 6 and 7. `"normalized"`: the
            same divided by their mean over the global batch. `"none"`. Set by the preset.

        > Parameters that control the negatives

        negative_source (`str`, *optional*):
            `"self"`: sampled from the student as it was `negative_lag` iterations ago (see [`SelfAdversarialCallback`]).
            `"minority"`: those of the dataset, such as the teacher's minority rationales. `"both"` of them (paper).
            `"fixed"`: sampled from the student as it was before training. `"none"`: no negatives. Held-out questions are
            measured by the negatives that their rows bring. Set by the preset; a streaming training set, whose questions
            are not known ahead, then falls back to `"minority"`.
        num_negatives (`int`, *optional*, defaults to `1`):
            Samples a question (paper: 1).
        negative_temperature (`float`, *optional*, defaults to `1.5`):
            Their sampling temperature (paper: 1.5).
        negative_lag (`int`, *optional*, defaults to `5`):
            Iterations between the snapshot that generates and the student that learns (paper: j = 5).
        negative_refresh_steps (`float`, *optional*):
            Length of an iteration: optimizer steps if 1 or more, the fraction of an epoch if less, an epoch if left out.
            The paper does not define it.
        negative_max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a sample. TRL's default for completions.
        negative_batch_size (`int`, *optional*, defaults to `64`):
            Samples generated at a time on each device.
        task_kind (`str`, *optional*):
            How an answer is read from a negative, or from what the student says in evaluation: `"number"`, `"choice"`,
            `"nli"` or `"text"`.
        choices_column (`str`, *optional*):
            Column with the options of a choice, for `task_kind="choice"`.
        correct_negatives (`str`, *optional*, defaults to `"keep"`):
            What becomes of generated negatives whose answer is the label: `"keep"` (not looked at), `"mark"` (kept, and
            marked in the store) or `"drop"`. The last two need `task_kind`.
        save_negative_generators (`bool`, *optional*, defaults to `False`):
            Whether a push to the Hub has the snapshots too.

        > Parameters that control evaluation

        eval_accuracy (`bool`, *optional*, defaults to `False`):
            Whether each evaluation asks the student all held-out questions, see [`AccuracyCallback`]. Needs `task_kind`.
        eval_max_questions (`int`, *optional*):
            Only the first so many rows of each held-out set are asked.
        eval_label_max_new_tokens (`int`, *optional*, defaults to `32`):
            Largest number of tokens of a predicted label.
        eval_max_new_tokens (`int`, *optional*, defaults to `256`):
            Largest number of tokens of a rationale.

        > Parameters that control the discriminator

        discriminator (`str`, *optional*):
            `"student"`: a head on the student's own hidden states, without gradient to them. `"encoder"`: one with an
            encoder of its own, as in the paper, see `discriminator_model_name_or_path`. `"none"`. Set by the preset, or
            by that argument.
        discriminator_model_name_or_path (`str`, *optional*):
            What `qcrd discriminator train` wrote (paper: pretrained, then updated online), or the id or path of an encoder
            such as `google-t5/t5-base`, whose head is then new. It reads texts, so it need not be of the student's kind.
        discriminator_encoder_learning_rate (`float`, *optional*, defaults to `0.0`):
            Learning rate of that encoder. 0 leaves it as it was pretrained and updates the head alone: it then costs its
            weights, but no gradients, no moments of Adam (12 bytes a parameter together) and no activations. The paper trains
            it online; `1e-5` to `5e-5` is usual.
        discriminator_loss (`str`, *optional*):
            `"ratio"`: eq. 2 as printed. `"binary"`: binary cross-entropy. `"ratio"` if left out: as printed, and the
            better of the two by the measurement in `docs/discriminator.md`.
        discriminator_hidden_size (`int`, *optional*, defaults to `256`):
            Width between the two linear layers. The paper is silent.
        discriminator_learning_rate (`float`, *optional*, defaults to `1e-3`):
            Learning rate of the discriminator's own AdamW. The paper is silent.
        discriminator_weight_decay (`float`, *optional*, defaults to `0.01`):
            Its weight decay (AdamW's default). The paper is silent.
        discriminator_max_grad_norm (`float`, *optional*, defaults to `1.0`):
            Its gradients are clipped to this norm. The paper is silent.
        discriminator_update_interval (`int`, *optional*, defaults to `1`):
            Optimizer steps of the student between two updates of the discriminator. The paper says "a regular epoch
            interval"; the head is cheap enough to be updated at every step.

        > Parameters that control what a run tells of itself

        report_plots (`bool`, *optional*, defaults to `True`):
            Whether `output_dir` gets `training_log.json` and pictures of it (`plots/*.png`) at the end of training.
        log_rationales (`bool`, *optional*, defaults to `False`):
            Whether each iteration shows some positives, negatives and student samples with the discriminator's scores: on
            the terminal, and as a table in what `report_to` names (`wandb`, `trackio`; a text in `tensorboard`).
        num_rationales_to_log (`int`, *optional*, defaults to `3`):
            Questions whose rationales are shown then, one of each source.

        > Parameters that control what goes to the Hub

        hub_dataset_id (`str`, *optional*):
            Dataset repository that `push_to_hub` also sends the training set and the generated negatives to.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    preset: str = field(
        default="qcrd",
        metadata={"help": "Recipe: label_only, dss, dss_all, qcrd_paper or qcrd. Other flags win over it."},
    )
    model_init_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Keyword arguments for `from_pretrained` when the model is an id or a path."}
    )
    max_length: int | None = field(
        default=1024, metadata={"help": "Largest number of tokens of prompt and completion together."}
    )
    predict_prefix: str = field(
        default="<Predict>", metadata={"help": "Plain text before a question that asks for the label."}
    )
    explain_prefix: str = field(
        default="<Explain>", metadata={"help": "Plain text before a question that asks for a rationale."}
    )
    response_separator: str = field(
        default="\n", metadata={"help": "Between a standard prompt and its completion in a decoder-only student."}
    )
    rationale_source: str | None = field(
        default=None, metadata={"help": "selected, or raw: one unfiltered sample a question. Default: the preset's."}
    )
    dataset_num_proc: int | None = field(default=None, metadata={"help": "Number of processes that tokenize."})
    pad_to_multiple_of: int | None = field(default=None, metadata={"help": "Round batch widths up to a multiple."})
    rationale_forward_passes: int = field(
        default=4, metadata={"help": "Forward passes the rationales of a micro-batch are split into, by length."}
    )
    shared_prompt: Switch = field(
        default="auto", metadata={"help": "Read a question's prompt once for all of its rationales."}
    )
    selection: Switch = field(
        default="auto", metadata={"help": "Score without a graph first, and differentiate what min or max picks."}
    )
    chunked_logits: Switch = field(
        default="auto", metadata={"help": "Compute losses a few tokens at a time, without all logits."}
    )
    reduction: str | None = field(
        default=None,
        metadata={"help": "min_max, max_min, sampling, mean or weighted_mean. Default: the preset's."},
    )
    positive_reduction: str | None = field(
        default=None,
        metadata={"help": "min, max, sampling, mean or weighted_mean, where it differs from --reduction."},
    )
    negative_reduction: str | None = field(
        default=None, metadata={"help": "The same for negatives, where it differs from --reduction."}
    )
    alpha_1: float | None = field(default=None, metadata={"help": "Weight of the label loss. Default: the preset's."})
    alpha_2: float | None = field(
        default=None, metadata={"help": "Weight of the contrastive rationale loss. Default: the preset's."}
    )
    alpha_3: float | None = field(
        default=None, metadata={"help": "Weight of the discriminator's loss. Default: the preset's."}
    )
    alpha_3_decay: float = field(default=0.9, metadata={"help": "Factor on alpha_3 at each iteration (epoch)."})
    beta: float | None = field(default=None, metadata={"help": "Weight of the negatives. Default: the preset's."})
    margin: float | None = field(
        default=None,
        metadata={"help": "delta, nats per token, up to which negatives are pushed. Default: the preset's."},
    )
    margin_type: str | None = field(
        default=None, metadata={"help": "absolute, or relative to the positive's loss. Default: the preset's."}
    )
    quality_weighting: str | None = field(
        default=None, metadata={"help": "none, printed or normalized. Default: the preset's."}
    )
    negative_source: str | None = field(
        default=None, metadata={"help": "self, minority, both, fixed or none. Default: the preset's."}
    )
    num_negatives: int = field(default=1, metadata={"help": "Generated negatives a question."})
    negative_temperature: float = field(default=1.5, metadata={"help": "Their sampling temperature."})
    negative_lag: int = field(
        default=5, metadata={"help": "Iterations between the snapshot that generates and the student."}
    )
    negative_refresh_steps: float | None = field(
        default=None,
        metadata={"help": "Length of an iteration: steps, or below 1 a fraction of an epoch. Default: an epoch."},
    )
    negative_max_new_tokens: int = field(default=256, metadata={"help": "Largest number of tokens of a negative."})
    negative_batch_size: int = field(default=64, metadata={"help": "Negatives generated at a time on a device."})
    task_kind: str | None = field(
        default=None, metadata={"help": "How an answer is read from a text: number, choice, nli or text."}
    )
    choices_column: str | None = field(default=None, metadata={"help": "Column with the options of a choice."})
    correct_negatives: str = field(
        default="keep",
        metadata={"help": "keep, mark or drop generated negatives whose answer is the label; needs --task_kind."},
    )
    save_negative_generators: bool = field(
        default=False, metadata={"help": "Whether a push to the Hub has the snapshots too."}
    )

    def __post_init__(self):
        self._resolve_preset()
        self._check()
        self.check_report()
        super().__post_init__()

    @property
    def uses_rationales(self) -> bool:
        """Whether there is a rationale task: alpha_2 > 0. Without one there is no discriminator either."""
        return self.alpha_2 > 0

    @property
    def uses_negatives(self) -> bool:
        """Whether negatives have a part in the loss: by beta, or by teaching the discriminator."""
        return self.uses_rationales and (self.beta > 0 or self.discriminator != "none")

    @property
    def picks_rationales(self) -> bool:
        """Whether some of the rationales that are scored have no gradient: by `min` or `max`, or negatives by beta = 0."""
        sides = [self.positive_reduction] + [self.negative_reduction] * self.uses_negatives
        return self.uses_rationales and (any(how in PICKS for how in sides) or (self.uses_negatives and not self.beta))

    @property
    def generates_negatives(self) -> bool:
        """Whether the student's snapshots generate negatives."""
        return self.uses_negatives and self.negative_source in GENERATED

    def generator_options(self) -> dict[str, Any]:
        """The options of [`SelfAdversarialCallback`] that these arguments ask for."""
        return {
            "source": "fixed" if self.negative_source == "fixed" else "self",
            "num_negatives": self.num_negatives,
            "temperature": self.negative_temperature,
            "lag": self.negative_lag,
            "refresh_steps": self.negative_refresh_steps,
            "max_new_tokens": self.negative_max_new_tokens,
            "max_length": self.max_length,
            "batch_size": self.negative_batch_size,
            "task_kind": self.task_kind,
            "correct": self.correct_negatives,
            "choices_column": self.choices_column,
        }

    def _resolve_preset(self) -> None:
        one_of("preset", self.preset, tuple(PRESETS))
        recipe = dict(PRESETS[self.preset])
        self.negative_source_is_given = self.negative_source is not None
        if self.reduction is not None:
            one_of("reduction", self.reduction, REDUCTIONS)
            # A reduction that the user names governs both sides, whatever the recipe does with one of them.
            recipe.pop("positive_reduction", None)
            recipe.pop("negative_reduction", None)
        self.resolve_discriminator(recipe)
        for name, value in recipe.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        positive, negative = side_reductions(self.reduction)
        for name, value in (("positive_reduction", positive), ("negative_reduction", negative)):
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _check(self) -> None:
        for name in ("shared_prompt", "selection", "chunked_logits"):
            setattr(self, name, switch(name, getattr(self, name)))
        one_of("rationale_source", self.rationale_source, RATIONALE_SOURCES)
        one_of("positive_reduction", self.positive_reduction, SIDE_REDUCTIONS)
        one_of("negative_reduction", self.negative_reduction, SIDE_REDUCTIONS)
        one_of("margin_type", self.margin_type, MARGIN_TYPES)
        one_of("quality_weighting", self.quality_weighting, QUALITY_WEIGHTINGS)
        one_of("negative_source", self.negative_source, NEGATIVE_SOURCES)
        if self.task_kind is not None:
            one_of("task_kind", self.task_kind, TASK_KINDS)
        check_negative_options(
            self.num_negatives,
            self.negative_temperature,
            self.negative_lag,
            self.negative_refresh_steps,
            self.negative_max_new_tokens,
            self.negative_batch_size,
            self.correct_negatives,
            self.task_kind,
        )
        for name in ("alpha_1", "alpha_2", "alpha_3", "alpha_3_decay", "beta", "margin"):
            not_negative(name, getattr(self, name))
        self.check_accuracy()
        self.check_hub()
        for name in ("max_length", "dataset_num_proc", "pad_to_multiple_of"):
            if getattr(self, name) is not None:
                at_least_one(name, getattr(self, name))
        at_least_one("rationale_forward_passes", self.rationale_forward_passes)
        if self.selection is True and not self.picks_rationales:
            raise ConfigError(
                f"selection=True has nothing to leave out: the reductions {self.positive_reduction!r} and "
                f"{self.negative_reduction!r} differentiate every rationale they score. Set selection='auto'."
            )
        if self.alpha_1 == 0 and self.alpha_2 == 0:
            raise ConfigError("alpha_1 and alpha_2 are both 0: the student would learn nothing. Set one above 0.")
        if self.predict_prefix == self.explain_prefix and self.alpha_1 > 0 and self.alpha_2 > 0:
            raise ConfigError(
                f"predict_prefix and explain_prefix are both {self.predict_prefix!r}: the student could not tell the label "
                "task from the rationale task. Make them differ."
            )
        self.check_discriminator()
