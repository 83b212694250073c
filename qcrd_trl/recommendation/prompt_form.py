"""The form in which a model is asked for the next title, built in or from a file, kept beside the weights that learned it."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, ModelError


FORM_NAME = "recommendation_prompt.json"

PROMPT = (
    "The titles that a user chose so far, the oldest first:\n{history}\n\nOne of the following titles comes next:\n{candidates}\n\n"
    "Answer with that title alone, written as above."
)

_KEYS = ("system", "prompt", "item", "separator")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")


@dataclass(frozen=True)
class RecommendationPrompt:
    """
    The template of generative mode, and how much goes into it. In `prompt` the names `{history}` and `{candidates}` stand for
    lists of titles, in `item` the name `{title}` for one of them; titles are plain text whatever they hold.

    Args:
        prompt (`str`, *optional*):
            What is asked. It holds `{history}` once, and `{candidates}` once or (nothing is listed, any title may be named) not.
        item (`str`, *optional*, defaults to `"{title}"`):
            Form of a title in both lists. The answer is the bare title.
        separator (`str`, *optional*, defaults to `"\\n"`):
            Between the titles of a list.
        system (`str`, *optional*, defaults to `""`):
            System message, or the beginning of a plain text. Empty: none, since some chat models refuse one.
        chat (`bool`, *optional*, defaults to `False`):
            Whether prompts are messages, for the tokenizer's chat template, rather than plain texts.
        max_history (`int`, *optional*, defaults to `20`):
            Most titles of a history, the newest.
        max_length (`int`, *optional*):
            Largest number of tokens of prompt and answer together.

    Raises:
        [`ConfigError`]: a template without its placeholders, with one twice or with an unknown one; a limit below 1.
    """

    prompt: str = PROMPT
    item: str = "{title}"
    separator: str = "\n"
    system: str = ""
    chat: bool = False
    max_history: int = 20
    max_length: int | None = None

    def __post_init__(self):
        _check_names(self.prompt, "prompt", needed=("history",), known=("history", "candidates"))
        _check_names(self.item, "item", needed=("title",), known=("title",))
        if not self.separator:
            raise ConfigError("The separator of the prompt's lists must not be empty: titles would run together.")
        if self.max_history < 1:
            raise ConfigError(f"`max_history` must be at least 1, got {self.max_history}.")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"`max_length` must be at least 1, got {self.max_length}.")

    @property
    def lists_candidates(self) -> bool:
        """Whether the model is shown what it is to choose from."""
        return "{candidates}" in self.prompt

    def render(self, history: Sequence[str], candidates: Sequence[str]) -> dict[str, Any]:
        """
        A prompt, and where its history stands, so that the oldest of it can be left out later.

        Args:
            history (`Sequence[str]`): titles, the oldest first.
            candidates (`Sequence[str]`): titles in the order in which they are listed.

        Returns:
            `dict`: `prompt` (a text, or messages with `chat`), `history` (the pieces of text that the history consists of) and
            `history_start` (where the first of them begins in the text, or in the last message).
        """
        lines = [self._line(title) for title in history]
        pieces = [line + self.separator for line in lines[:-1]] + lines[-1:]
        listed = self.separator.join(self._line(title) for title in candidates)
        before, after = (part.replace("{candidates}", listed) for part in self.prompt.split("{history}"))
        if self.system and not self.chat:
            before = f"{self.system}\n\n{before}"
        text: Any = before + "".join(pieces) + after
        if self.chat:
            system = [{"role": "system", "content": self.system}] if self.system else []
            text = [*system, {"role": "user", "content": text}]
        return {"prompt": text, "history": pieces, "history_start": len(before)}

    def save_pretrained(self, save_directory: str | os.PathLike) -> None:
        """Writes the form beside a model's weights, where evaluation finds it."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (Path(save_directory) / FORM_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike) -> "RecommendationPrompt | None":
        """Reads the form that a trained model's folder holds, or gives `None` where there is none."""
        file = Path(path) / FORM_NAME
        if not file.is_file():
            return None
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as err:
            raise ModelError(f"{str(file)!r} is damaged ({err}). Remove it to use the built-in prompt.") from err

    def _line(self, title: str) -> str:
        return self.item.replace("{title}", title)


def load_prompt_form(prompt_file: str | os.PathLike | None = None, **settings: Any) -> RecommendationPrompt:
    """
    The built-in template, or that of a file.

    Args:
        prompt_file (`str` or `os.PathLike`, *optional*): YAML file (`.yaml`, `.yml`) with `prompt`, `item`, `separator` and
            `system`, each optional; or a text file that is the prompt.
        settings: further fields of [`RecommendationPrompt`]: `chat`, `max_history`, `max_length`.

    Raises:
        [`ConfigError`]: there is no such file, or it is not of this form.
    """
    form = RecommendationPrompt(**settings)
    if prompt_file is None:
        return form
    path = Path(prompt_file).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"The prompt file {str(path)!r} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The prompt file {str(path)!r} is not UTF-8 text ({error}).") from error
    given: Any = {"prompt": text.strip("\n")}
    if path.suffix.lower() in (".yaml", ".yml"):
        try:
            given = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"The prompt file {str(path)!r} is not valid YAML: {error}") from error
        given = _checked(given, path)
    try:
        return replace(form, **given)
    except ConfigError as error:
        raise ConfigError(f"The prompt file {str(path)!r}: {error}") from error


def _checked(given: Any, path: Path) -> dict[str, str]:
    if not isinstance(given, dict) or not given:
        raise ConfigError(
            f"The prompt file {str(path)!r} must hold `key: value` lines, of the keys {', '.join(_KEYS)}."
        )
    for key, value in given.items():
        if key not in _KEYS:
            raise ConfigError(f"The prompt file {str(path)!r}: unknown key {key!r}; expected {', '.join(_KEYS)}.")
        if not isinstance(value, str):
            raise ConfigError(
                f"The prompt file {str(path)!r}, key {key!r}: expected a text, got {type(value).__name__}. Quote it."
            )
    # The line break that ends a block of YAML is none of the text; a separator may well be one.
    return {key: value if key == "separator" else value.rstrip("\n") for key, value in given.items()}


def _check_names(text: str, name: str, needed: Sequence[str], known: Sequence[str]) -> None:
    found = _PLACEHOLDER.findall(text)
    for placeholder in found:
        if placeholder not in known:
            raise ConfigError(
                f"The template's {name} holds {{{placeholder}}}, which nothing stands for; expected "
                f"{' and '.join(f'{{{k}}}' for k in known)}."
            )
        if found.count(placeholder) > 1:
            raise ConfigError(
                f"The template's {name} must hold {{{placeholder}}} once, got it {found.count(placeholder)} times."
            )
    for placeholder in needed:
        if placeholder not in found:
            raise ConfigError(f"The template's {name} must hold {{{placeholder}}}, got {text!r:.80}.")
