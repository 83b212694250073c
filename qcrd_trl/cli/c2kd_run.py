"""What the commands of `qcrd c2kd` that train have in common: data, models, checkpoints, and what a run leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint
from trl import ModelConfig, get_peft_config, get_quantization_config

from ..errors import ConfigError
from ..models import load_tokenizer
from ..recommendation.folder import MAX_HISTORY, RecommendationData, eval_rows, load_data, train_rows
from ..recommendation.loading import build_recommender
from ..trainer.checks import own_folder


RESULTS_FILE = "results.json"


@dataclass
class RunArguments:
    """
    Arguments of `qcrd c2kd teacher` and `qcrd c2kd train` beside those of [`C2KDConfig`] and [`~trl.ModelConfig`].

    Args:
        dataset (`str`):
            Folder that `qcrd c2kd prepare` wrote.
        backbone_config (`dict` or `str`, *optional*):
            Configuration of a model with random weights, in place of `model_name_or_path`: a mapping with its `model_type` as
            JSON, the path of a JSON or YAML file that holds one, or in a `--config` file the mapping itself.
        item_init (`str`, *optional*, defaults to `"random"`):
            Item-head mode: how new embeddings of items begin. `"random"`, or `"titles"`: the mean of the token embeddings of each
            item's title.
        item_size (`int`, *optional*):
            Item-head mode: width of the embeddings of items, where it is not the backbone's.
        tie_items (`bool`, *optional*):
            Item-head mode: whether the head's weights are the embeddings of the items.
        train_windows (`str`, *optional*, defaults to `"last"`):
            Item-head mode: `"last"`: one training row a user, of the latest events. `"all"`: as many as hold all events.
        prompt_file (`str`, *optional*):
            Generative mode: file with the prompt's template.
        examples_per_user (`int`, *optional*, defaults to `1`):
            Generative mode: training rows a user, the latest targets first.
        max_users (`int`, *optional*):
            Generative mode: only so many users, drawn with `user_seed`, for training and evaluation.
        user_seed (`int`, *optional*, defaults to `0`):
            Seed of the draw of users.
        max_new_tokens (`int`, *optional*):
            Generative mode: longest title that is written in the evaluation at the end; the longest candidate's length if left
            out.
        early_stopping_patience (`int`, *optional*):
            Training ends after so many evaluations in a row without a better `metric_for_best_model`.
        skip_test (`bool`, *optional*, defaults to `False`):
            Whether the evaluation of the test split at the end is left out, as while settings are chosen.
        resume (`bool`, *optional*, defaults to `False`):
            Whether to go on from the newest checkpoint in `output_dir`.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may bring code of its own.
    """

    dataset: str = field(metadata={"help": "Folder that `qcrd c2kd prepare` wrote."})
    backbone_config: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Model with random weights: a mapping as JSON, or a JSON or YAML file that holds one."},
    )
    item_init: str = field(default="random", metadata={"help": "New embeddings of items: random or titles."})
    item_size: int | None = field(default=None, metadata={"help": "Width of the embeddings of items."})
    tie_items: bool | None = field(default=None, metadata={"help": "Tie the head to the embeddings of items."})
    train_windows: Literal["last", "all"] = field(
        default="last", metadata={"help": "Training rows of a user's latest events, or of all (item-head mode)."}
    )
    prompt_file: str | None = field(default=None, metadata={"help": "File with the prompt's template (generative)."})
    examples_per_user: int = field(default=1, metadata={"help": "Training rows a user (generative)."})
    max_users: int | None = field(default=None, metadata={"help": "Only so many users (generative)."})
    user_seed: int = field(default=0, metadata={"help": "Seed of the draw of users (generative)."})
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Longest title that is written (generative). Default: the longest candidate's."},
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={"help": "End after so many evaluations in a row without a better metric_for_best_model."},
    )
    skip_test: bool = field(default=False, metadata={"help": "Leave out the evaluation of the test split at the end."})
    resume: bool = field(default=False, metadata={"help": "Go on from the newest checkpoint in output_dir."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Let a model bring code of its own."})


def read_mapping(given: Mapping[str, Any] | str, flag: str) -> dict[str, Any]:
    """
    A mapping that is given as itself, as JSON, or by the name of a file.

    Args:
        given (`Mapping` or `str`): the mapping, its JSON, or the path of a JSON or YAML file.
        flag (`str`): what errors call it.

    Raises:
        [`ConfigError`]: if it is none of these.
    """
    if isinstance(given, Mapping):
        return dict(given)
    text, source = given, f"{flag} {given!r}"
    if not given.lstrip().startswith("{"):
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"{source} is neither a JSON mapping nor a file: give something like "
                '\'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}\'.'
            )
        text, source = path.read_text(encoding="utf-8"), f"The file of {flag}, {given!r},"
    try:
        found = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as err:
        raise ConfigError(f"{source} can be read neither as JSON nor as YAML: {err}") from err
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{source} must hold a mapping of settings, got {type(found).__name__}.")
    return found


def model_source(script: RunArguments, model_args: ModelConfig, is_sasrec: bool, max_history: int) -> Any:
    """The id, path or settings of the model to train."""
    name = model_args.model_name_or_path
    if is_sasrec:
        if name:
            raise ConfigError("--method sasrec makes a model of its own: leave --model_name_or_path out.")
        given = {} if script.backbone_config is None else read_mapping(script.backbone_config, "--backbone_config")
        if given.get("model_type", "qcrd_sasrec") != "qcrd_sasrec":
            raise ConfigError(
                f"--method sasrec makes a model of type 'qcrd_sasrec', and --backbone_config says {given['model_type']!r}."
            )
        # A training row is a history and its target.
        return {"max_position_embeddings": max_history + 1, **given, "model_type": "qcrd_sasrec"}
    if (name is None) == (script.backbone_config is None):
        raise ConfigError(
            "Give one of --model_name_or_path, the id or path of a model, and --backbone_config, the configuration of one with "
            f"random weights; {'neither was' if name is None else 'both were'} given."
        )
    return name if name is not None else read_mapping(script.backbone_config, "--backbone_config")


def build_model(
    script: RunArguments, args: Any, model_args: ModelConfig, data: RecommendationData, source: Any, tokenizer: Any
):
    """The model to train, with its adapter, as [`~qcrd_trl.recommendation.loading.build_recommender`] makes it."""
    kwargs = dict(args.model_init_kwargs or {})
    if isinstance(source, str):
        kwargs = {"dtype": model_args.dtype, **kwargs}
        if not Path(source).is_dir() and model_args.model_revision is not None:
            kwargs.setdefault("revision", model_args.model_revision)
        if model_args.attn_implementation is not None:
            kwargs.setdefault("attn_implementation", model_args.attn_implementation)
        if script.trust_remote_code:
            kwargs["trust_remote_code"] = True
    is_item_head = args.task_mode == "item_head"
    if not is_item_head and (script.item_init != "random" or script.item_size or script.tie_items is not None):
        raise ConfigError("--item_init, --item_size and --tie_items are for --task_mode item_head: leave them out.")
    peft_config = get_peft_config(model_args)
    args.model_init_kwargs = None  # used up: the trainer gets a model
    return build_recommender(
        args.task_mode,
        source,
        data.num_items if is_item_head else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=peft_config,
        seed=args.seed,
        init_kwargs=kwargs,
        titles=data.titles,
        tokenizer=tokenizer,
        item_init=script.item_init,
        item_size=script.item_size,
        tie_items=script.tie_items,
        args=args,
    )


def tokenizer_of(script: RunArguments, args: Any, source: Any):
    """The tokenizer of a model that reads text; `None` in item-head mode, unless the titles are read once."""
    if args.task_mode == "item_head" and script.item_init != "titles":
        return None
    if not isinstance(source, str):
        raise ConfigError(
            "A model with random weights has no tokenizer, which --task_mode generative and --item_init titles need: give "
            "--model_name_or_path."
        )
    return load_tokenizer(source, **({"trust_remote_code": True} if script.trust_remote_code else {}))


def open_data(dataset: str, args: Any) -> RecommendationData:
    """The prepared data of a run; in item-head mode `max_history` is that of the data where the arguments leave it out."""
    own_folder(args, dataset=dataset)
    data = load_data(dataset)
    if args.max_history is None and args.task_mode == "item_head":
        args.max_history = data.settings.get("max_history") or MAX_HISTORY
    return data


def rows_of(script: RunArguments, args: Any, data: RecommendationData, tokenizer: Any, split: str):
    """Rows of a split, `"train"`, `"validation"` or `"test"`, in the task mode's form."""
    if args.task_mode == "item_head":
        if script.max_users is not None or script.prompt_file is not None:
            raise ConfigError("--max_users and --prompt_file are for --task_mode generative: leave them out.")
        if split == "train":
            return train_rows(data, args.max_history, script.train_windows)
        return eval_rows(data, split, args.max_history)
    from ..recommendation.prompts import generative_rows, sample_users

    form = prompt_form(script, args, tokenizer)
    return generative_rows(
        data,
        split,
        form.max_history,
        examples_per_user=script.examples_per_user,
        seed=args.seed,
        form=form,
        users=None if script.max_users is None else sample_users(data, script.max_users, script.user_seed),
    )


def prompt_form(script: Any, args: Any, tokenizer: Any):
    """The form of generative mode's prompts: messages where the tokenizer has a chat template."""
    from ..recommendation.prompt_form import load_prompt_form

    limits = {} if args.max_history is None else {"max_history": args.max_history}
    chat = bool(getattr(tokenizer, "chat_template", None))
    return load_prompt_form(script.prompt_file, chat=chat, max_length=args.max_length, **limits)


def checkpoint_of(script: Any, args: Any) -> bool | str | None:
    """The checkpoint to go on from."""
    named = args.resume_from_checkpoint
    if named:
        if not (Path(named) / TRAINER_STATE_NAME).is_file():
            raise ConfigError(
                f"--resume_from_checkpoint: {named!r} is no checkpoint (--resume takes the newest of output_dir)."
            )
        return named
    if script.resume and not (Path(args.output_dir).is_dir() and get_last_checkpoint(args.output_dir)):
        raise ConfigError(f"--resume: there is no checkpoint in {args.output_dir!r}.")
    return True if script.resume else None


def train_and_save(trainer: Any, checkpoint: bool | str | None) -> None:
    """Trains, and saves what was trained and measured while training; nothing is pushed yet."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model(_internal_call=True)  # a push that fails must not cost what is yet to be written
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    if trainer.eval_dataset is not None:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


def print_metrics(results: Mapping[str, Any]) -> None:
    """One line a metric, with its interval."""
    for name, value in results["metrics"].items():
        interval = (results.get("intervals") or {}).get(name)
        ends = "" if interval is None else f"  (95 %: {interval[0]:.4f} to {interval[1]:.4f})"
        print(f"  {name:<10} {value:.4f}{ends}")
