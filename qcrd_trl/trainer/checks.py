"""Checks of arguments, made when a configuration is built."""

import math
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
