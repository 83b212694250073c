"""Work that several processes do together: where one fails, all do, instead of waiting for it for ever."""

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from .errors import TrainingError


def together(accelerator: Accelerator, work: Callable[[], Any]) -> Any:
    """
    Does something on every process.

    Args:
        accelerator ([`~accelerate.Accelerator`]): the processes. A collective: called on every one of them.
        work (`Callable[[], Any]`): what is done.

    Returns:
        What `work` gave on this process.

    Raises:
        What `work` raised here, or a [`TrainingError`] that tells what it raised on another process.
    """
    result, error = _tried(work)
    _raise_everywhere(accelerator, error)
    return result


def by_one(accelerator: Accelerator, work: Callable[[], Any], is_here: bool) -> Any:
    """
    Does something on some processes, and gives every process the result of the first of them. Args as in [`together`].

    Args:
        is_here (`bool`): whether this process does it, such as `args.should_save`.
    """
    result, error = _tried(work) if is_here else (None, None)
    _raise_everywhere(accelerator, error)
    if accelerator.num_processes == 1:
        return result
    results = gather_object([(is_here, result)])
    return next((value for is_there, value in results if is_there), None)


def _tried(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _raise_everywhere(accelerator: Accelerator, error: Exception | None) -> None:
    if accelerator.num_processes > 1:
        told = gather_object([None if error is None else f"{type(error).__name__}: {error}"])
        failed = [(rank, message) for rank, message in enumerate(told) if message is not None]
        if failed and error is None:
            raise TrainingError(f"Process {failed[0][0]} failed: {failed[0][1]}")
    if error is not None:
        raise error
