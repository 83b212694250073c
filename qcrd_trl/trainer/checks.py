"""Checks of arguments, made when a configuration is built."""

import math
import os
from collections.abc import Iterable
from typing import Any, Literal

from ..errors import ConfigError


# From a shell a truth value comes as a word.
Switch = Literal["auto", True, False, "true", "false"]


def switch(name: str, value: Any) -> bool | str:
    """The value of a [`Switch`]."""
    if value == "auto" or isinstance(value, bool):
        return value
    words = {"true": True, "false": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ConfigError(f"{name} must be 'auto', True or False, got {value!r}.")
    return words[value.lower()]


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raises unless a value is one of those allowed."""
    if value not in allowed:
        raise ConfigError(f"Unknown {name} {value!r}: expected one of {', '.join(allowed)}.")


def not_negative(name: str, value: Any) -> None:
    """Raises unless a value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} must be a finite number of at least 0, got {value!r}.")


def at_least_one(name: str, value: Any) -> None:
    """Raises unless a value is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}.")


def check_batches(args: Any) -> None:
    """Raises unless batches have rows: what reads them would say so in its own words, after all models are loaded."""
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        at_least_one(name, getattr(args, name))


def check_best_metric(args: Any, eval_dataset: Any, names: Iterable[str]) -> None:
    """
    Raises unless `metric_for_best_model` is a metric that evaluations give: the base class looks for it after the first of them.

    Args:
        args ([`~transformers.TrainingArguments`]): the run's arguments.
        eval_dataset (`Dataset` or `dict` of them, *optional*): what is evaluated.
        names (`Iterable[str]`): the metrics, without a prefix.
    """
    metric = args.metric_for_best_model
    if metric is None or args.eval_strategy == "no":
        return
    prefixes = [f"eval_{key}_" for key in eval_dataset] if isinstance(eval_dataset, dict) else ["eval_"]
    known = [f"{prefix}{name}" for prefix in prefixes for name in names]
    if (metric if metric.startswith("eval_") else f"eval_{metric}") not in known:
        raise ConfigError(
            f"metric_for_best_model={metric!r} is no metric of this run's evaluations: choose one of {', '.join(known)}."
        )


def own_folder(args: Any, **others: Any) -> None:
    """Raises if `output_dir` is one of the folders that the run reads, by the names of the arguments that name them."""
    for name, folder in others.items():
        if isinstance(folder, (str, os.PathLike)) and os.path.realpath(folder) == os.path.realpath(args.output_dir):
            raise ConfigError(
                f"output_dir and {name} are one folder, {str(folder)!r}: what is read would be mixed with what is written. Give the "
                "output a folder of its own."
            )
