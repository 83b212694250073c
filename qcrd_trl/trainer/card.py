"""What a trainer tells of itself in its model card."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import PeftModel

from ..card_accuracy import accuracies_of_files, logged_accuracies
from ..data.prompts import StudentFormat
from ..hub import GENERATORS, NEGATIVES, left_out
from ..hub_dataset import push_run_dataset
from ..markdown import code
from ..model_card import CardFacts, write_card
from ..models import base_model
from ..report_callback import RunReportCallback
from ..repositories import is_path
from ..snippets import plain_snippet, qcrd_snippet
from .rows import RowsTrainer


logger = logging.getLogger(__name__)

_RATIONALES = (
    *(
        "alpha_2",
        "alpha_3",
        "alpha_3_decay",
        "beta",
        "margin",
        "margin_type",
        "positive_reduction",
        "negative_reduction",
    ),
    *("quality_weighting", "rationale_source", "negative_source", "discriminator", "discriminator_loss"),
    "discriminator_learning_rate",
)
_NEGATIVES = ("num_negatives", "negative_temperature", "negative_lag", "negative_refresh_steps")
_SETTINGS = (
    *("max_length", "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay", "max_grad_norm"),
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size"),
    *("bf16", "fp16", "seed"),
)


class CardTrainer(RowsTrainer):
    """
    A trainer that writes a model card whenever it saves its student.

    Attributes:
        dataset_name (`str` or `list[str]`, *optional*): what the card calls the training set; a path of this machine is left
            out.
    """

    dataset_name: str | list[str] | None = None

    def _left_out_of_pushes(self, is_checkpoint: bool) -> list[str]:
        snapshots = self.args.save_negative_generators
        if (
            is_checkpoint
        ):  # whole, to be resumed from, or the student's alone; the card of an adapter names its base's path
            return ["*README.md"] + ([] if snapshots else [NEGATIVES, GENERATORS])
        return left_out(snapshots)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        # The base class would push before there is a card.
        super().save_model(output_dir, _internal_call=True)
        if _internal_call:
            return
        if self.is_world_process_zero():
            write_card(Path(output_dir or self.args.output_dir), self._card_facts())
        if self.args.push_to_hub:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ):
        facts = self._card_facts()
        if facts.is_adapter and facts.base_model and is_path(facts.base_model) and self.is_world_process_zero():
            logger.warning(
                "The base of this adapter is the local folder %r: who loads the adapter from the Hub needs that folder. Train "
                "from a base of the Hub, or push what `qcrd merge` writes.",
                facts.base_model,
            )
        pushed = super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)
        if self.args.hub_dataset_id is not None:
            self.push_dataset_to_hub(self.args.hub_dataset_id, private, token)
        return pushed

    push_to_hub.__doc__ = RowsTrainer.push_to_hub.__doc__

    def push_dataset_to_hub(self, repo_id: str, private: bool | None = None, token: str | None = None) -> str | None:
        """
        Uploads the training set and the negatives that were generated, as a dataset.

        Args:
            repo_id (`str`):
                The dataset's repository, made if there is none.
            private (`bool`, *optional*):
                Whether a repository that is made here is private; `hub_private_repo` of the arguments if left out.
            token (`str`, *optional*):
                As for `push_to_hub`.

        Returns:
            `str`: address of the commit; `None` on all processes but the main one.

        Raises:
            [`DataError`]: if the training set is a stream and there are no negatives.
            [`HubError`]: if the Hub refuses it.
        """
        if not self.is_world_process_zero():
            return None
        args = self.args
        return push_run_dataset(
            repo_id,
            self.questions,
            args.output_dir,
            args.preset,
            args.hub_private_repo if private is None else private,
            args.hub_token if token is None else token,
            again=f"`trainer.push_dataset_to_hub({repo_id!r})`",
        )

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
        dataset_name: str | list[str] | None = None,
        results: str | Path | None = None,
        baselines: Mapping[str, str | Path] | None = None,
    ) -> None:
        """
        Writes the model card, README.md in `output_dir`. `push_to_hub` takes the same arguments.

        Args:
            language (`str`, *optional*):
                Language of the model.
            license (`str`, *optional*):
                Its licence.
            tags (`str` or `list[str]`, *optional*):
                Further tags.
            model_name (`str`, *optional*):
                What it is called; the repository's name, or that of `output_dir`, if left out.
            finetuned_from (`str`, *optional*):
                Id of the base; that of the model that was trained if left out.
            tasks (`str` or `list[str]`, *optional*):
                Its pipeline, on the Hub.
            dataset_tags, dataset, dataset_name (`str` or `list[str]`, *optional*):
                Names of the training set: as [`~transformers.Trainer`] and as TRL call it.
            dataset_args (`str` or `list[str]`, *optional*):
                Not shown; [`~transformers.Trainer`] has it.
            results (`str` or `Path`, *optional*):
                The student's file of `qcrd evaluate`. If left out, the card has the accuracies of the last evaluation of
                training, if there was one.
            baselines (`Mapping[str, str or Path]`, *optional*):
                Files of others on the same questions, by name: `{"label_only": ..., "dss": ...}`.
        """
        if not self.is_world_process_zero():
            return
        given = [name for names in (dataset_name, dataset_tags, dataset) for name in _list(names)]
        facts = self._card_facts(model_name, given)
        facts.language, facts.license, facts.pipeline_tag = language, license, _list(tasks)[0] if tasks else None
        facts.tags = [*facts.tags, *_list(tags)]
        facts.base_model = finetuned_from or facts.base_model
        if results is not None or baselines:
            facts.accuracies = accuracies_of_files(results, baselines)
        write_card(Path(self.args.output_dir), facts)

    def _card_facts(self, model_name: str | None = None, dataset_names: Iterable[str] = ()) -> CardFacts:
        args, form, model = self.args, self.student_format, self.accelerator.unwrap_model(self.model)
        repo = self.hub_model_id or args.hub_model_id or Path(args.output_dir).resolve().name
        adapter = model.peft_config["default"] if isinstance(model, PeftModel) else None
        names = ["preset", "alpha_1", *(_RATIONALES if args.uses_rationales else ())]
        names += [*(_NEGATIVES if args.generates_negatives else ()), *_SETTINGS]
        settings = {name: _value(getattr(args, name)) for name in names}
        if settings["max_steps"] < 0:
            settings.pop("max_steps")
        if adapter is not None and hasattr(adapter, "r"):
            settings |= {
                f"lora_{name.removeprefix('lora_')}": getattr(adapter, name)
                for name in ("r", "lora_alpha", "lora_dropout")
            }
        if getattr(base_model(model), "is_quantized", False):
            settings["quantization"] = str(base_model(model).quantization_method)
        reports = [callback for callback in self.callback_handler.callbacks if isinstance(callback, RunReportCallback)]
        selection = next((report.selection for report in reports if report.selection is not None), {})
        return CardFacts(
            name=model_name or repo.split("/")[-1],
            preset=args.preset,
            base_model=getattr(base_model(model).config, "_name_or_path", None)
            or getattr(adapter, "base_model_name_or_path", None),
            datasets=list(dict.fromkeys([*dataset_names] or _list(self.dataset_name))),
            num_questions=len(self.questions) if isinstance(self.questions, Dataset) else None,
            selection=selection.get("report"),
            settings=settings,
            steps=self.state.global_step,
            epochs=self.state.epoch or 0.0,
            accuracies=logged_accuracies(self.state.log_history),
            is_adapter=adapter is not None,
            is_encoder_decoder=form.is_encoder_decoder,
            has_discriminator=getattr(self, "discriminator", None) is not None,
            adapter_type=None if adapter is None else str(getattr(adapter.peft_type, "value", adapter.peft_type)),
            tasks=_tasks(form),
            qcrd_snippet=qcrd_snippet(repo, form),
            plain_snippet=plain_snippet(
                repo, self.processing_class, form, adapter is not None, self._is_conversational()
            ),
            tags=_list(getattr(base_model(model), "model_tags", None)),
        )

    def _is_conversational(self) -> bool:
        row = next(iter(self.questions), {}) if self.questions is not None else {}
        return isinstance(row.get("prompt"), list)


def _tasks(form: StudentFormat) -> str:
    asked = []
    if form.predicts:
        asked.append(f"the prefix {code(form.predict_prefix)} asks for the answer")
    if form.explains:
        asked.append(
            f"the prefix {code(form.explain_prefix)} for a rationale"
            if asked
            else f"the prefix {code(form.explain_prefix)} asks for a rationale"
        )
    return (
        f"Before a question, {' and '.join(asked)}. `qcrd_format.json` holds the form that the student was taught in."
    )


def _list(value: Any) -> list:
    return [] if value is None else [value] if isinstance(value, (str, Path)) else list(value)


def _value(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enumeration
