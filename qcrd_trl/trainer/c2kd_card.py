"""What a trainer of recommenders leaves beside its student: the names of the items, the prompt, and the model card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftModel

from ..hub import left_out
from ..recommendation.card import RecommenderFacts, write_recommender_card
from ..recommendation.folder import RecommendationData
from ..recommendation.prompt_form import RecommendationPrompt
from ..recommendation.recommender import ItemNames
from ..recommendation.states import core_model
from .hub import HubTrainer


_ALWAYS = ("task_mode", "train_positions", "max_history", "max_length")
_LOSS = (
    *("feature_distillation", "logit_distillation", "lambda_feat", "lambda_logit", "lambda_orthogonal", "temperature"),
    *("feature_loss", "feature_alpha", "filter_target"),
    *("student_layer", "candidate_layers", "teacher_dtype", "num_blocks"),
)
_TRAINING = (
    *("learning_rate", "heads_learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "weight_decay"),
    *("max_grad_norm", "num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("world_size", "bf16", "fp16", "seed"),
)


class RecommenderCardTrainer(HubTrainer):
    """
    A trainer that writes a model card whenever it saves its student, and beside an item-head model the names of its items.

    Attributes:
        prompt_form ([`RecommendationPrompt`], *optional*): generative mode: the prompt that the rows were made with; saved beside
            the student, where evaluation finds it.
        results (`Mapping`, *optional*): what the card says of the test, in the form of
            [`~qcrd_trl.recommendation.results.results_of`].
    """

    prompt_form: RecommendationPrompt | None = None
    results: Mapping[str, Any] | None = None
    _items: ItemNames | None = None
    _method: str | None = None
    _teacher_name: str | None = None
    _dataset_name: str | None = None
    _counts: Mapping[str, int] | None = None

    def describe(
        self,
        data: RecommendationData,
        method: str | None = None,
        dataset_name: str | None = None,
        teacher_name: str | None = None,
    ) -> None:
        """
        Says what the rows were made of: `items.json` and the card tell it on.

        Args:
            data ([`RecommendationData`]): the data.
            method (`str`, *optional*): what the card calls the method; that of the arguments if left out.
            dataset_name (`str`, *optional*): what it calls the data; a path of this machine is left out.
            teacher_name (`str`, *optional*): id of the teacher; a path of this machine is left out.
        """
        self._items = ItemNames(data.item_ids, data.titles, self.args.max_history)
        self._method, self._dataset_name, self._teacher_name = method, dataset_name, teacher_name
        lengths = [len(items) for items in data.sequences]
        is_cut = self.args.task_mode == "item_head" and self.args.max_history is not None
        most = self.args.max_history + 1 if is_cut else max(lengths)
        self._counts = {
            "users": len(lengths),
            "items": data.num_items,
            "events": sum(lengths),
            "train_events": sum(min(length - 2, most) for length in lengths),
        }

    def _left_out_of_pushes(self, is_checkpoint: bool) -> list[str]:
        # A checkpoint goes whole, to be resumed from; the card of an adapter in it names its base's path.
        return ["*README.md"] if is_checkpoint else left_out()

    def _write_beside(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if self._items is not None and self.args.task_mode == "item_head":
            self._items.save(folder)
        if self.prompt_form is not None and self.args.task_mode == "generative":
            self.prompt_form.save_pretrained(folder)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        # The base class would push before there is a card.
        super().save_model(output_dir, _internal_call=True)
        if self.args.should_save:
            self._write_beside(Path(output_dir or self.args.output_dir))
        if _internal_call:
            return
        if self.is_world_process_zero():
            write_recommender_card(Path(output_dir or self.args.output_dir), self._card_facts())
        if self.args.push_to_hub:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

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
    ) -> None:
        """
        Writes the model card, README.md in `output_dir`. `push_to_hub` takes the same arguments.

        Args:
            language, license (`str`, *optional*):
                Of the model.
            tags (`str` or `list[str]`, *optional*):
                Further tags.
            model_name (`str`, *optional*):
                What it is called; the repository's name, or that of `output_dir`, if left out.
            finetuned_from (`str`, *optional*):
                Id of the base; that of the model that was trained if left out.
            dataset_tags, dataset, dataset_name (`str` or `list[str]`, *optional*):
                Names of the data: as [`~transformers.Trainer`] and as TRL call it.
            tasks, dataset_args (*optional*):
                Not shown; [`~transformers.Trainer`] has them.
        """
        if not self.is_world_process_zero():
            return
        facts = self._card_facts()
        facts.language, facts.license = language, license
        facts.name = model_name or facts.name
        facts.tags = [*facts.tags, *_list(tags)]
        facts.base_model = finetuned_from or facts.base_model
        given = [name for names in (dataset_name, dataset_tags, dataset) for name in _list(names)]
        facts.datasets = list(dict.fromkeys(given)) or facts.datasets
        write_recommender_card(Path(self.args.output_dir), facts)

    def _card_facts(self) -> RecommenderFacts:
        args, model = self.args, self.accelerator.unwrap_model(self.model)
        core = core_model(model)
        repo = self.hub_model_id or args.hub_model_id or Path(args.output_dir).resolve().name
        adapter = model.peft_config["default"] if isinstance(model, PeftModel) else None
        method = self._method or args.method
        names = [*_ALWAYS, *(_LOSS if args.uses_teacher else ()), *_TRAINING]
        settings = {"method": method, **{name: _value(getattr(args, name)) for name in names}}
        settings.pop("max_length" if args.task_mode == "item_head" else "train_positions")
        if settings["max_steps"] < 0:
            settings.pop("max_steps")
        if adapter is not None and hasattr(adapter, "r"):
            settings |= {f"lora_{name}": getattr(adapter, name) for name in ("r", "lora_alpha", "lora_dropout")}
        if getattr(core, "is_quantized", False):
            settings["quantization"] = str(core.quantization_method)
        item_ids = [] if self._items is None else self._items.item_ids
        return RecommenderFacts(
            name=repo.split("/")[-1],
            method=method,
            task_mode=args.task_mode,
            repo=repo,
            base_model=getattr(core.config, "_name_or_path", None)
            or getattr(adapter, "base_model_name_or_path", None),
            teacher=self._teacher_name,
            datasets=_list(self._dataset_name),
            counts=self._counts or {},
            history=item_ids[:3],
            settings=settings,
            results=self.results,
            steps=self.state.global_step,
            epochs=self.state.epoch or 0.0,
            parameters=sum(parameter.numel() for parameter in core.parameters()),
            is_adapter=adapter is not None,
            tags=_list(getattr(core, "model_tags", None)),
        )


def _list(value: Any) -> list:
    return [] if value is None else [value] if isinstance(value, (str, Path)) else list(value)


def _value(value: Any) -> Any:
    return getattr(value, "value", value)  # of an enumeration
