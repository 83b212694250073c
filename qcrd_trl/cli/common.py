"""What every command shares: flags and a YAML file into dataclasses, with clear errors before any work starts."""

import dataclasses
import difflib
import json
import tempfile
import types
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from trl import TrlParser

from ..errors import ConfigError, QCRDError


_POSITIONAL = "argument_without_flag"


class CommandParser(TrlParser):
    """
    [`~trl.TrlParser`] that also checks what a YAML file says.

    `argparse` never looks at defaults, and a YAML file sets defaults: there a list where a number belongs, a choice that
    does not exist, or a bare `no` (which YAML reads as false) would go through and fail, or worse not fail, much later.

    Args:
        dataclass_types (`Sequence[type]`):
            The dataclasses whose fields are the flags.
        prog (`str`):
            What help and errors call the command, such as `"qcrd select"`.
        description (`str`, *optional*):
            One line for the help.
        positional (`str`, *optional*):
            The field that may also be given without its flag.
    """

    def __init__(
        self,
        dataclass_types: Sequence[type],
        prog: str,
        description: str | None = None,
        positional: str | None = None,
    ):
        super().__init__(dataclass_types=dataclass_types, prog=prog, description=description, allow_abbrev=False)
        self._positional = positional
        if positional is not None:
            self.add_argument(_POSITIONAL, metavar=positional.upper(), nargs="?", help=f"The same as --{positional}.")
            flag = next(action for action in self._actions if action.dest == positional)
            self._needs_positional, flag.required = flag.required, False
        self.add_argument("--config", metavar="FILE", help="YAML file with values for these flags; flags override it.")

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """
        Parses flags and the YAML file they name.

        Args:
            argv (`Sequence[str]`):
                The arguments after the command's name.

        Returns:
            `tuple`: One instance a dataclass.

        Raises:
            ConfigError: a value or a combination of values cannot work.
        """
        argv = [part for arg in argv for part in (arg.split("=", 1) if arg.startswith("--config=") else [arg])]
        if argv.count("--config") > 1:
            self.error("argument --config: given more than once")
        if argv and argv[-1] == "--config":
            self.error("argument --config: expected one argument")
        if "--config" in argv:
            _check_file(Path(argv[argv.index("--config") + 1]))
        try:
            outputs = self.parse_args_and_config(argv)
        except QCRDError:
            raise
        except json.JSONDecodeError as error:
            raise ConfigError(
                f"A flag that takes a mapping was given {error.doc!r}, which is not JSON ({error}): write it like "
                '\'{"dtype": "bfloat16"}\'.'
            ) from error
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return outputs[: len(self.dataclass_types)]

    def parse_args_into_dataclasses(self, args=None, return_remaining_strings=False, **kwargs):
        kwargs["look_for_args_file"] = False  # a file that happens to lie beside the executable is no configuration
        *outputs, unknown = super().parse_args_into_dataclasses(args, return_remaining_strings=True, **kwargs)
        if unknown and not return_remaining_strings:
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_suggest(unknown[0], known)}")
        return (*outputs, unknown) if return_remaining_strings else tuple(outputs)

    def parse_known_args(self, args=None, namespace=None):
        """Gives the argument without a flag to its field; a flag and no flag for the same field is an error."""
        namespace, rest = super().parse_known_args(args, namespace)
        if self._positional is not None:
            value = vars(namespace).pop(_POSITIONAL, None)
            flags = (f"--{self._positional}", f"--{self._positional.replace('_', '-')}")
            if value is not None and any(arg.split("=", 1)[0] in flags for arg in args or ()):
                self.error(f"argument {self._positional.upper()}: given twice, once with {flags[0]}")
            if value is not None:
                setattr(namespace, self._positional, value)
            if self._needs_positional and getattr(namespace, self._positional) is None:
                self.error(f"the following argument is required: {self._positional.upper()}")
        return namespace, rest

    def error(self, message: str):
        """One line: the flags are far too many to print them before what matters."""
        self.exit(2, f"{self.prog}: error: {message} (`{self.prog} --help` shows the flags)\n")

    def set_defaults_with_config(self, **config):
        hints = {name: hint for kind in self.dataclass_types for name, hint in get_type_hints(kind).items()}
        fields = {field.name for kind in self.dataclass_types for field in dataclasses.fields(kind) if field.init}
        for key, value in config.items():
            if key not in fields:
                raise ConfigError(
                    f"Unknown key {key!r} in the config file{_suggest(key, fields)}. Its keys are the flags of "
                    f"`{self.prog} --help`, without the dashes."
                )
            if not _fits(value, hints[key]) and _fits([value], hints[key]):
                config[key] = [value]  # as a flag with one value gives a list of one
            elif not _fits(value, hints[key]):
                hint = (
                    f" YAML reads a bare yes, no, on or off as {value}: quote it." if isinstance(value, bool) else ""
                )
                raise ConfigError(
                    f"Config file, key {key!r}: expected {_name(hints[key])}, got {value!r} ({type(value).__name__}).{hint}"
                )
        return super().set_defaults_with_config(**config)


def parse_arguments(
    argv: Sequence[str],
    *dataclass_types: type,
    prog: str,
    description: str | None = None,
    positional: str | None = None,
) -> tuple[Any, ...]:
    """
    Parses a command's arguments.

    Args:
        argv (`Sequence[str]`):
            The arguments after the command's name.
        *dataclass_types (`type`):
            The dataclasses whose fields are the flags.
        prog (`str`):
            What help and errors call the command, such as `"qcrd select"`.
        description (`str`, *optional*):
            One line for the help.
        positional (`str`, *optional*):
            The field that may also be given without its flag.

    Returns:
        `tuple`: One instance a dataclass.

    Raises:
        ConfigError: a value or a combination of values cannot work.

    Example:

    ```python
    >>> @dataclass
    ... class Arguments:
    ...     model: str = field(metadata={"help": "Model id or folder."})
    >>> (args,) = parse_arguments(["--model", "gpt2"], Arguments, prog="qcrd train")
    ```
    """
    return CommandParser(dataclass_types, prog=prog, description=description, positional=positional).parse(argv)


def _check_file(path: Path) -> None:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"Config file {path} is not valid YAML: {error}") from error
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ConfigError(f"Config file {path} must hold `key: value` lines, one for each flag that it sets.")


def _suggest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _fits(value: Any, hint: Any, parsed: bool = False) -> bool:
    """
    Whether a YAML value can stand for a field.

    Text fits every single value, because the parser converts it (YAML reads 1e-4 as text); inside a list it does not
    (`parsed`).
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part, parsed) for part in args)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if hint is type(None):
        return value is None
    if hint is list or origin in (list, tuple):
        return isinstance(value, list) and all(_fits(item, args[0], parsed=True) for item in value if args)
    if hint is dict or origin is dict:
        return isinstance(value, dict)
    if hint is bool:
        return isinstance(value, bool) or (isinstance(value, str) and not parsed)
    if hint in (int, float):
        number = (int,) if hint is int else (int, float)
        return (isinstance(value, number) and not isinstance(value, bool)) or (isinstance(value, str) and not parsed)
    if hint is str or (isinstance(hint, type) and issubclass(hint, Enum | Path)):
        return isinstance(value, str)
    return True


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def check_output_file(path: Path) -> None:
    """Before hours of work: whether the results can be written in the end."""
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder: give a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as err:
        raise ConfigError(f"--output {path} cannot be written: {err.strerror or err}. Give another file.") from err
