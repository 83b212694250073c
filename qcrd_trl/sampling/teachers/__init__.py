"""Where a teacher's samples come from: one small interface, and a module for each backend."""

from importlib import import_module
from typing import Any

from ...errors import ConfigError
from .base import Teacher


# Name, module, class, and the extra that brings what it needs. A module is imported only when its backend is used.
BACKENDS = {
    "transformers": ("local", "LocalTeacher", None),
    "openai": ("openai_server", "OpenAITeacher", "teacher"),
    "vllm": ("vllm_offline", "VLLMTeacher", "vllm"),
}


def load_teacher(backend: str, model: str, **options: Any) -> Teacher:
    """
    Makes a teacher.

    Args:
        backend (`str`): one of `BACKENDS`.
        model (`str`): its model: a Hub name or a folder, or the name that a server knows it by.
        options: keyword arguments of the backend's class.

    Raises:
        [`ConfigError`]: there is no such backend, or what it needs is not installed.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"Unknown teacher_backend {backend!r}: expected one of {', '.join(BACKENDS)}.")
    module, name, extra = BACKENDS[backend]
    try:
        teacher = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("qcrd_trl"):
            raise
        raise missing_extra(backend, extra, error) from error
    return teacher(model, **options)


def missing_extra(backend: str, extra: str, error: ImportError) -> ConfigError:
    """The error for a backend whose libraries are not installed."""
    return ConfigError(
        f"The teacher backend {backend!r} needs {error.name or error}, which is not installed: pip install "
        f"'qcrd_trl[{extra}]'."
    )
