"""What may be chosen about generated negatives, checked alike by the configuration and by the callback."""

import math
from typing import Any

from .errors import ConfigError


# Where the negatives of training come from. `GENERATED` are those that need a generator.
NEGATIVE_SOURCES = ("self", "minority", "both", "fixed", "none")
GENERATED = ("self", "both", "fixed")
CORRECT_NEGATIVES = ("keep", "mark", "drop")


def check_negative_options(
    num_negatives: Any,
    temperature: Any,
    lag: Any,
    refresh_steps: Any,
    max_new_tokens: Any,
    batch_size: Any,
    correct: Any,
    task_kind: Any,
    prefix: str = "negative_",
) -> None:
    """
    Raises a [`ConfigError`] for options that cannot work, before anything is loaded.

    Args:
        prefix (`str`, *optional*, defaults to `"negative_"`): what the names of the options begin with in the message.
        The others: as in [`SelfAdversarialCallback`].
    """
    for name, value in (
        ("num_negatives", num_negatives),
        (f"{prefix}lag", lag),
        (f"{prefix}max_new_tokens", max_new_tokens),
        (f"{prefix}batch_size", batch_size),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}.")
    if not _is_number(temperature) or temperature <= 0:
        raise ConfigError(f"{prefix}temperature must be a finite number above 0, got {temperature!r}.")
    if refresh_steps is not None and not (
        _is_number(refresh_steps) and refresh_steps > 0 and (refresh_steps < 1 or refresh_steps == int(refresh_steps))
    ):
        raise ConfigError(
            f"{prefix}refresh_steps must be a whole number of steps, or a fraction of an epoch between 0 and 1, got "
            f"{refresh_steps!r}. Leave it out for one epoch."
        )
    if correct not in CORRECT_NEGATIVES:
        raise ConfigError(f"Unknown correct_negatives {correct!r}: expected one of {', '.join(CORRECT_NEGATIVES)}.")
    if correct != "keep" and task_kind is None:
        raise ConfigError(
            f"correct_negatives={correct!r} needs `task_kind`: without it no answer is read from a negative. Set it to "
            "'number', 'choice', 'nli' or 'text'."
        )


def iteration_steps(refresh_steps: float | None, per_epoch: int | None) -> int | None:
    """
    Optimizer steps of an iteration.

    Args:
        refresh_steps (`float`, *optional*): steps if 1 or more, a fraction of an epoch if less; an epoch if left out.
        per_epoch (`int`, *optional*): optimizer steps of an epoch; `None` if it has no length.

    Returns:
        `int` or `None`: `None` where the length depends on an epoch that has none.
    """
    if refresh_steps is not None and refresh_steps >= 1:
        return int(refresh_steps)
    if per_epoch is None:
        return None
    return max(1, round(per_epoch * (1.0 if refresh_steps is None else refresh_steps)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
