"""[`QCRDTrainer`]: quality-guided contrastive rationale distillation as a Hugging Face Trainer."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import EvalPrediction

from ..callbacks import SelfAdversarialCallback
from ..data.collator import DataCollatorForQCRD
from ..data.prompts import StudentFormat
from ..data.store import NegativeStore
from ..data.upcoming import steps_per_epoch
from ..discriminator import RationaleDiscriminator
from ..errors import ConfigError
from ..evaluation_callback import AccuracyCallback
from ..models import is_encoder_decoder, load_student
from ..negative_options import GENERATED, iteration_steps
from ..rationale_scorer import RationaleScorer
from ..report_callback import report_callbacks
from ..run_log import SCORES
from .card import CardTrainer
from .checkpoints import MeterPart
from .discriminator_update import DISCRIMINATOR_FOLDER, load_scorer, update_of
from .engine import ScoringEngine, for_later
from .evaluating import EvaluatesRationales
from .meter import Meter
from .negatives import GeneratedNegatives, negative_source_of
from .objective import LOGGED, RationaleParts, RationaleRows, rationale_parts, rationale_rows, record_rationales
from .qcrd_config import QCRDConfig
from .score_counts import ScoreCounts
from .scoring import RowScores


class QCRDTrainer(EvaluatesRationales, CardTrainer):
    """
    Trainer for Quality-guided Contrastive Rationale Distillation (QCRD).

    QCRD was introduced in [Quality-guided Contrastive Rationale Distillation for Large Language
    Models](https://huggingface.co/papers/2405.13014). The student learns to predict the label of a question and, under
    another prefix, a rationale for it: near to the teacher's consistent rationales, away from its inconsistent ones, each
    weighted by a discriminator that is trained alongside.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Student: an id or path, or a loaded model. Encoder-decoder and decoder-only models work alike.
        args ([`QCRDConfig`], *optional*):
            Configuration for this trainer. If `None`, a default configuration is used.
        train_dataset ([`~datasets.Dataset`] or [`~datasets.IterableDataset`], *optional*):
            Rows with `prompt` (text or messages), `label` (text or null), `positive_rationales` (list of texts), and
            optionally `negative_rationales`, `raw_rationale` and `id`.
        eval_dataset ([`~datasets.Dataset`], [`~datasets.IterableDataset`] or `dict` of them, *optional*):
            Rows of the same form.
        processing_class ([`~transformers.PreTrainedTokenizerBase`], *optional*):
            Tokenizer. If `None`, that of the model's id or path.
        data_collator ([`~transformers.DataCollator`], *optional*):
            Collator. If `None`, a [`DataCollatorForQCRD`].
        compute_metrics (`Callable[[EvalPrediction], dict]`, *optional*):
            Metrics of the label task. Gets `predictions`, the likeliest token ids of shape `(questions, length)` given
            the label's earlier tokens, and `label_ids`, of the same shape, both -100 where there is nothing to predict.
        callbacks (list of [`~transformers.TrainerCallback`], *optional*):
            Further callbacks.
        optimizers (`tuple`, *optional*, defaults to `(None, None)`):
            Optimizer and scheduler of the student.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            Quantization of the base model, when `model` is an id or a path.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapter to train in place of the whole model.

    Examples:

    ```python
    >>> from datasets import load_dataset
    >>> from qcrd_trl import QCRDConfig, QCRDTrainer

    >>> trainer = QCRDTrainer(
    ...     model="HuggingFaceTB/SmolLM2-135M-Instruct",
    ...     args=QCRDConfig(output_dir="smollm2-qcrd"),
    ...     train_dataset=load_dataset("json", data_files="selected/train.jsonl", split="train"),
    ... )
    >>> trainer.train()
    ```
    """

    _tag_names = ("trl", "qcrd", "distillation")
    # The loss of a micro-batch is divided by the questions of the whole accumulated batch on all processes.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: str | os.PathLike | PreTrainedModel | nn.Module,
        args: QCRDConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator: Callable | None = None,
        compute_metrics: Callable[[EvalPrediction], dict] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
    ):
        given = isinstance(model, (str, os.PathLike))
        name = str(model) if given else getattr(getattr(model, "config", None), "_name_or_path", "")
        if args is None:
            args = QCRDConfig(f"{Path(name).name or 'student'}-QCRD")
        elif not isinstance(args, QCRDConfig):
            raise ConfigError(f"`args` must be a `QCRDConfig`, got {type(args).__name__}.")
        if args.n_gpu > 1:
            raise ConfigError(
                f"{args.n_gpu} GPUs in one process are not supported. Start the script with `accelerate launch`, or set "
                "CUDA_VISIBLE_DEVICES to one of them."
            )
        if isinstance(train_dataset, IterableDataset) and args.max_steps <= 0:
            raise ConfigError("A streaming train_dataset has no length: set `max_steps` to a positive number.")
        model, processing_class = load_student(model, processing_class, args, quantization_config, peft_config)

        self.student_format = StudentFormat(
            predict_prefix=args.predict_prefix,
            explain_prefix=args.explain_prefix,
            response_separator=args.response_separator,
            is_encoder_decoder=is_encoder_decoder(model),
            max_length=args.max_length,
            predicts=args.alpha_1 > 0,
            explains=args.uses_rationales,
        )
        scorer = load_scorer(args)
        self.discriminator_pairs = None if scorer is None else scorer.pairs
        self.questions, self.eval_questions = train_dataset, eval_dataset
        train_dataset, eval_dataset = self._tokenize_all(train_dataset, eval_dataset, processing_class, args)
        collator = DataCollatorForQCRD(
            processing_class.pad_token_id,
            self.student_format.is_encoder_decoder,
            args.pad_to_multiple_of,
            self.discriminator_pairs,
        )

        super().__init__(
            model=model,
            args=args,
            data_collator=collator if data_collator is None else data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.label_names = ["labels"]
        self.model_accepts_loss_kwargs = True  # asks the base class for the number of items, which we count
        if hasattr(self.model, "add_model_tags"):
            self.model.add_model_tags(list(self._tag_names))

        self._engine = ScoringEngine(self.model, args, self.accelerator)
        self.discriminator_update = update_of(scorer, self._engine.head.module, args, self.accelerator)
        if self.discriminator_update is not None:
            self.checkpoint_parts.append(self.discriminator_update)
        self._meters = {mode: Meter(LOGGED, self.accelerator.device) for mode in ("train", "eval")}
        self._meters["run"] = Meter(["train_loss"], self.accelerator.device)
        self.score_counts = ScoreCounts(self.accelerator.device)
        kept = {name: self._meters[name] for name in ("train", "run")} | {SCORES: self.score_counts}
        self.checkpoint_parts.append(MeterPart(kept, args.process_index))
        self._evaluating = False
        self._eval_scores: dict[bool, list[float]] = {True: [], False: []}
        self._quality_sums: torch.Tensor | None = None
        self._unscored: list[dict[str, torch.Tensor]] = []
        self._scored_ahead: list[RowScores] = []
        self._discriminator_loss: torch.Tensor | None = None
        self._clock = time.perf_counter()
        self.negatives = NegativeStore()
        source = negative_source_of(args, train_dataset)
        self._generated = GeneratedNegatives(self.negatives, self.train_dataset, collator, source)
        if args.uses_negatives and source in GENERATED and train_dataset is not None:
            self.add_callback(SelfAdversarialCallback(self, **args.generator_options()))
        if args.eval_accuracy:
            self.add_callback(AccuracyCallback(self, **args.accuracy_options()))
        for callback in report_callbacks(self):  # after the one whose negatives they show
            self.add_callback(callback)

    @property
    def discriminator(self) -> RationaleDiscriminator | RationaleScorer | None:
        """The discriminator, or `None` where the recipe has none."""
        return None if self.discriminator_update is None else self.discriminator_update.discriminator

    @property
    def iteration(self) -> int:
        """Completed iterations, of `negative_refresh_steps` each: the exponent of alpha_3's decay."""
        loader = self.callback_handler.train_dataloader
        per_epoch = None if loader is None else steps_per_epoch(loader, self.args.gradient_accumulation_steps)
        steps = iteration_steps(self.args.negative_refresh_steps, per_epoch)
        return int((self.state.epoch or 0.0) + 1e-6) if steps is None else self.state.global_step // steps

    # ---- Batches ----

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        samples, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._quality_sums = None
        # Weights of mean 1 over the accumulated batch need every score before the first gradient. They are made at its
        # first micro-batch, not here: a resumed run restores its random state in between.
        self._unscored = samples if self._normalizes_quality and num_batches > 1 else []
        self._scored_ahead = []
        return samples, count

    @property
    def _normalizes_quality(self) -> bool:
        return self.args.quality_weighting == "normalized" and self.discriminator is not None

    @torch.no_grad()
    def _score_ahead(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        # In training mode: an eval-mode pass would draw other dropout masks, and repack 4-bit weights on some CPUs.
        self.model_wrapped.train()
        inputs = self._prepare_inputs(batch)
        with self.compute_loss_context_manager():
            parts, _, scored = self._rationale_task(self.model_wrapped, inputs)
        self._scored_ahead.append(for_later(scored))
        return parts.quality_sums()

    # ---- Loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ):
        """
        L_total of eq. 8, summed over the questions of the micro-batch and divided by those of the global batch.

        The discriminator's own loss is a part of the value but not of the gradient: it is trained by its own optimizer,
        and the student's hidden states carry no gradient to the student from it.

        Args:
            model (`nn.Module`): the student, as wrapped for training.
            inputs (`dict[str, torch.Tensor]`): a batch of [`DataCollatorForQCRD`].
            return_outputs (`bool`, *optional*, defaults to `False`): whether to return the label task's predictions.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): questions of the global batch; those of `inputs` if
                left out.
        """
        args, questions = self.args, len(inputs["question_index"])
        scale = 1.0 / questions
        if num_items_in_batch is not None:
            # Gradients are averaged over processes, while the loss is a mean over all their questions.
            scale = self.args.world_size / num_items_in_batch
        total = torch.zeros((), device=inputs["labels"].device)
        meter = self._meters["eval" if self._evaluating else "train"]
        outputs = {}
        tokens = 0
        if args.alpha_1 > 0 or return_outputs:
            label = self._engine.labels(model, inputs, predicts=return_outputs)
            total = total + args.alpha_1 * label.nll.sum() + label.anchor
            meter.add("loss/label", label.nll.sum(), questions)
            meter.add("nll/label", label.nll.sum(), (label.num_tokens > 0).sum())
            tokens = tokens + inputs["attention_mask"].sum()
            if return_outputs:
                outputs["predictions"] = torch.full_like(inputs["labels"], -100)
                outputs["predictions"][inputs["labels"] != -100] = label.predicted
        if args.uses_rationales:
            parts, rows, scored = self._rationale_task(model, inputs)
            sums = None
            if self._normalizes_quality and not self._evaluating:
                sums = self._quality_sums
                if sums is None:
                    sums = parts.quality_sums().detach()
                    if num_items_in_batch is not None:
                        sums = self._sum_over_processes(sums)
            contrast, positive, negative = parts.contrast(args, sums)
            contrast = self._engine.differentiate(model, rows, scored.nll, contrast.sum())
            alpha_3 = args.alpha_3 * args.alpha_3_decay**self.iteration
            total = total + args.alpha_2 * contrast + alpha_3 * parts.discriminator.detach().sum() + scored.anchor
            self._discriminator_loss = parts.discriminator.sum() * scale
            meter.add("alpha_3", alpha_3 * questions, questions if self.discriminator is not None else 0)
            record_rationales(meter, parts, positive, negative, questions)
            if self._evaluating and parts.scores is not None:
                for side in (True, False):
                    self._eval_scores[side] += parts.scores[rows.is_positive == side].tolist()
            elif parts.scores is not None:
                self._generated.note_scores(rows, parts.scores)
                self.score_counts.add(rows, parts.scores, self.iteration)
            tokens = tokens + rows.attention_mask.sum()
        meter.add("tokens_per_second", tokens, 0)
        meter.add("questions_per_second", questions, 0)
        loss = total * scale
        return (loss, outputs) if return_outputs else loss

    def _rationale_task(
        self, model: nn.Module, inputs: dict[str, torch.Tensor]
    ) -> tuple[RationaleParts, RationaleRows, RowScores]:
        inputs = self._generated.in_batch(inputs, self._evaluating)
        rows = rationale_rows(inputs, self.args, 0 if self._evaluating else self.state.global_step)
        ahead = self._scored_ahead.pop(0) if self._scored_ahead and torch.is_grad_enabled() else None
        scored = self._engine.rationales(model, rows, ahead, self._sum_over_processes)
        quality = None
        if self.discriminator is not None:
            learns = torch.is_grad_enabled() and self.discriminator_update.is_due(self.state)
            quality = self.discriminator_update.scores(rows, scored, learns)
        return rationale_parts(rows, scored, self.args, quality), rows, scored

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch=None) -> torch.Tensor:
        if self._unscored:
            sums = [self._score_ahead(batch) for batch in self._unscored]
            self._quality_sums = self._sum_over_processes(torch.stack(sums).sum(0))
            self._unscored = []
        self._discriminator_loss = None
        loss = super().training_step(model, inputs, num_items_in_batch)
        ends_step = self.accelerator.sync_gradients
        logged = loss.detach().double()
        if self.args.logging_nan_inf_filter:
            logged = logged.nan_to_num(0.0, 0.0, 0.0)
        self._meters["train"].add("loss", logged, int(ends_step))
        self._meters["run"].add("train_loss", logged, int(ends_step))
        if self.discriminator_update is not None:
            self.discriminator_update.accumulate(self._discriminator_loss)
            if ends_step:
                self.discriminator_update.step(self.iteration)
        return loss

    # ---- Logging, saving, resuming ----

    def train(self, *args, **kwargs):
        self._clock = time.perf_counter()
        self._meters["train"].reset()
        self._meters["run"].reset()
        self.score_counts.reset()
        self._generated.take_scores()  # those of a run that was interrupted
        output = super().train(*args, **kwargs)
        return output._replace(training_loss=output.metrics["train_loss"])

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and not self._evaluating:
            meter, now = self._meters["train"], time.perf_counter()
            for name in ("tokens_per_second", "questions_per_second"):
                meter.add(name, 0, (now - self._clock) / self.args.world_size)
            # The base class's own sum starts anew when a run is resumed; this one is a part of the checkpoint.
            logs = {**logs, **meter.compute(self._sum_over_processes)}
            meter.reset()
            self._clock = now
        elif "train_loss" in logs:
            logs.update(self._meters["run"].compute(self._sum_over_processes))
        elif "negatives/seconds" in logs:
            self._clock += logs["negatives/seconds"]  # not a part of the training speed
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            self._write_beside(Path(output_dir or self.args.output_dir))

    def _write_beside(self, folder: Path) -> None:
        self.student_format.save_pretrained(folder)
        if self.discriminator is not None:
            self.discriminator.save_pretrained(folder / DISCRIMINATOR_FOLDER)

    def gather_score_counts(self) -> dict[str, Any] | None:
        """How the discriminator scored rationales in the latest iteration, by source; called on every process."""
        return self.score_counts.compute(self._sum_over_processes)

    def gather_negative_scores(self) -> None:
        """Notes the discriminator's latest scores of all processes in the store; called on every process."""
        if self.discriminator is not None:
            scores = self._generated.take_scores()
            for part in gather_object([scores]) if self.args.world_size > 1 else [scores]:
                self.negatives.set_quality(part)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.discriminator_update is not None:
            self.discriminator_update.load(Path(self.state.best_model_checkpoint) / DISCRIMINATOR_FOLDER)
