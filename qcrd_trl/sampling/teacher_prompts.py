"""What a teacher is asked: an instruction, examples, the question, and the form `<Explanation>: ... <Answer>: ...` (QCRD)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, DataError
from .teacher_examples import EXAMPLES, FewShotExample


Prompt = str | list[dict[str, str]]

EXAMPLE_FORM = "<Explanation>: {explanation}\n<Answer>: {answer}"
QUESTION_FORM = "Question: {question}"
CHOICES_FORM = "Question: {question}\nChoices:\n{choices}"

_KEYS = ("system", "instruction", "question", "example", "examples")
_EXAMPLE_KEYS = ("question", "explanation", "answer", "choices")


@dataclass(frozen=True)
class TeacherPrompt:
    """
    The template that questions are put into. In every text of it `{question}`, `{choices}`, `{explanation}` and `{answer}`
    stand for those; other braces, and those of the questions, are plain text.

    Args:
        instruction (`str`, *optional*, defaults to `""`):
            What to do and in which form; before the first question.
        question (`str`, *optional*, defaults to `"Question: {question}"`):
            Form of a question.
        example (`str`, *optional*, defaults to `"<Explanation>: {explanation}\\n<Answer>: {answer}"`):
            Form of an example's answer. What stands before `{explanation}` also opens the completion of a plain text.
            Empty without examples: nothing opens it.
        examples (`tuple[FewShotExample, ...]`, *optional*):
            Examples before the question.
        system (`str`, *optional*, defaults to `""`):
            System message. Empty: none, since some chat models refuse one.
    """

    instruction: str = ""
    question: str = QUESTION_FORM
    example: str = EXAMPLE_FORM
    examples: tuple[FewShotExample, ...] = ()
    system: str = ""

    def __post_init__(self):
        if "{question}" not in self.question:
            raise ConfigError(f"The question's template must hold {{question}}, got {self.question!r:.80}.")
        if self.examples and not ("{explanation}" in self.example and "{answer}" in self.example):
            raise ConfigError(
                f"The form of the examples must hold {{explanation}} and {{answer}}, got {self.example!r:.80}."
            )
        for number, example in enumerate(self.examples, 1):
            if self.needs_choices and not example.choices:
                raise ConfigError(f"Example {number} has no choices, but the question's template holds {{choices}}.")

    @property
    def needs_choices(self) -> bool:
        """Whether a question without options cannot be put into it."""
        return "{choices}" in self.question

    @property
    def opening(self) -> str:
        """What a plain text ends with, so that the teacher goes on: `<Explanation>:`."""
        before, found, _ = self.example.partition("{explanation}")
        return before.rstrip() if found else ""

    def stop(self, chat: bool) -> tuple[str, ...]:
        """
        Texts that end a completion unless others are given: in a plain text the beginning of a further question, which
        models that are not trained to end their turn write next.
        """
        before = self.question.partition("{question}")[0].rpartition("\n")[2].strip()
        return () if chat or not before else (f"\n{before}",)

    def render(self, prompt: Prompt, choices: Mapping[str, str] | None, chat: bool) -> Prompt:
        """
        What the teacher gets for a question.

        Args:
            prompt (`str` or `list[dict]`):
                The question: a text or a conversation that ends with the user's turn.
            choices (`Mapping[str, str]`, *optional*):
                Letter to option text.
            chat (`bool`):
                Whether the teacher takes messages. For a plain one a conversation may hold one question and a system
                message.

        Returns:
            `list[dict]` or `str`: messages for a chat teacher, else a text.

        Raises:
            [`DataError`]: the options are missing, or the conversation has no form that the teacher takes.
        """
        before: list[dict[str, str]] = []
        own_system = ""
        if not isinstance(prompt, str):
            own_system, before, prompt = _split(prompt)
        if self.needs_choices and not choices:
            raise DataError("its template holds {choices}, and the question has none")
        system = "\n\n".join(part for part in (self.system, own_system) if part)
        asked = self._ask(prompt, choices)
        if not chat:
            if before:
                raise DataError(
                    "it is a conversation of several turns, which a teacher of plain texts does not take (use "
                    "--prompt_format chat)"
                )
            blocks = [system, self.instruction]
            blocks += [f"{self._ask(e.question, e.choices)}\n{self._answer(e)}" for e in self.examples]
            return "\n\n".join([*filter(None, blocks), f"{asked}\n{self.opening}" if self.opening else asked])
        messages = [{"role": "system", "content": system}] if system else []
        turns = []
        for example in self.examples:
            turns += [("user", self._ask(example.question, example.choices)), ("assistant", self._answer(example))]
        if turns and self.instruction:
            turns[0] = ("user", f"{self.instruction}\n\n{turns[0][1]}")
        elif self.instruction:
            asked = f"{self.instruction}\n\n{asked}"
        messages += [{"role": role, "content": content} for role, content in turns]
        return [*messages, *before, {"role": "user", "content": asked}]

    def settings(self) -> dict[str, Any]:
        """All that decides the texts, as JSON values."""
        return {**asdict(self), "examples": [asdict(example) for example in self.examples]}

    def _ask(self, question: str, choices: Mapping[str, str] | None) -> str:
        listed = "\n".join(f"({letter}) {text}" for letter, text in (choices or {}).items())
        return _fill(self.question, question=question, choices=listed)

    def _answer(self, example: FewShotExample) -> str:
        return _fill(self.example, explanation=example.explanation, answer=example.answer)


def builtin_prompt(task_kind: str, has_choices: bool = False, num_examples: int = 0) -> TeacherPrompt:
    """
    The template of a task kind.

    Args:
        task_kind (`str`): one of [`~qcrd_trl.answers.TASK_KINDS`].
        has_choices (`bool`, *optional*, defaults to `False`): whether the options come apart from the question.
        num_examples (`int`, *optional*, defaults to `0`): how many of our examples to use; 0 is zero-shot.

    Raises:
        [`ConfigError`]: there are not so many examples.
    """
    known = EXAMPLES[task_kind]
    if not 0 <= num_examples <= len(known):
        raise ConfigError(
            f"There are {len(known)} built-in examples of task kind {task_kind!r}, not {num_examples}: name yours with "
            "--few_shot_file."
        )
    examples = known[:num_examples]
    if task_kind == "choice" and not has_choices:  # the questions bring their options, so the examples do too
        examples = tuple(
            replace(e, question="\n".join([e.question, *(f"({k}) {v}" for k, v in e.choices.items())]), choices=None)
            for e in examples
        )
    return TeacherPrompt(
        instruction=f"{_TASKS[task_kind]} Write in exactly this form:\n<Explanation>: {_REASONING}\n<Answer>: "
        f"{_ANSWERS[task_kind]}",
        question=CHOICES_FORM if has_choices else QUESTION_FORM,
        examples=examples,
    )


def load_prompt(
    task_kind: str,
    has_choices: bool = False,
    prompt_file: str | None = None,
    few_shot_file: str | None = None,
    num_few_shot: int | None = None,
    system: str | None = None,
) -> TeacherPrompt:
    """
    The template that the flags of `qcrd sample` name.

    Args:
        task_kind (`str`): one of [`~qcrd_trl.answers.TASK_KINDS`].
        has_choices (`bool`, *optional*, defaults to `False`): whether the dataset has a column of options.
        prompt_file (`str`, *optional*): YAML file (`.yaml`, `.yml`) with `system`, `instruction`, `question`, `example` and
            `examples`, each optional; or a text file that holds `{question}`.
        few_shot_file (`str`, *optional*): YAML, JSON or JSON Lines file of examples: `question`, `explanation`, `answer`, and
            perhaps `choices`.
        num_few_shot (`int`, *optional*): use the first so many examples; all of a file, or else none, if left out.
        system (`str`, *optional*): system message in place of the template's.

    Raises:
        [`ConfigError`]: a file is not of this form, or holds too few examples.
    """
    if prompt_file is None:
        count = 0 if few_shot_file is not None or num_few_shot is None else num_few_shot
        prompt = builtin_prompt(task_kind, has_choices, count)
    else:
        prompt = _read_prompt(Path(prompt_file).expanduser(), builtin_prompt(task_kind, has_choices))
    if few_shot_file is not None:
        path = Path(few_shot_file).expanduser()
        prompt = replace(prompt, examples=_examples(_read_list(path), str(path)))
    if num_few_shot is not None:
        if num_few_shot < 0 or num_few_shot > len(prompt.examples):
            raise ConfigError(
                f"--num_few_shot {num_few_shot}: there are {len(prompt.examples)} examples in "
                f"{few_shot_file or prompt_file}."
            )
        prompt = replace(prompt, examples=prompt.examples[:num_few_shot])
    if system is not None:
        prompt = replace(prompt, system=system)
    if prompt.needs_choices and not has_choices:
        raise ConfigError("The question's template holds {choices}: name their column with --choices_column.")
    return prompt


def _read_prompt(path: Path, default: TeacherPrompt) -> TeacherPrompt:
    text = _read(path)
    if path.suffix.lower() not in (".yaml", ".yml"):
        if "{question}" not in text:
            raise ConfigError(f"--prompt_file {path} must hold {{question}} (or be a YAML file, named so).")
        return TeacherPrompt(question=text.strip("\n"), example="")
    given = _parse_yaml(text, path)
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"--prompt_file {path} must hold `key: value` lines, of the keys {', '.join(_KEYS)}.")
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise ConfigError(f"--prompt_file {path}: unknown key {unknown[0]!r}; expected {', '.join(_KEYS)}.")
    examples = given.pop("examples", None) or []
    for key, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"--prompt_file {path}, key {key!r}: expected a text, got {type(value).__name__}.")
    given = {key: value.rstrip("\n") for key, value in given.items()}
    return replace(default, **given, examples=_examples(examples, str(path)))


def _examples(items: Any, name: str) -> tuple[FewShotExample, ...]:
    from .questions import read_choices

    if not isinstance(items, list):
        raise ConfigError(f"{name}: the examples must be a list, got {type(items).__name__}.")
    found = []
    for number, item in enumerate(items, 1):
        keys = set(item) if isinstance(item, dict) else set()
        if not {"question", "explanation", "answer"} <= keys or not keys <= set(_EXAMPLE_KEYS):
            raise ConfigError(
                f"{name}, example {number}: expected the keys {', '.join(_EXAMPLE_KEYS)} (choices may lack)."
            )
        texts = {key: _text(item[key], f"{name}, example {number}, {key}") for key in _EXAMPLE_KEYS[:3]}
        try:
            choices = read_choices(item.get("choices"), "choices", number - 1)
        except DataError as error:
            raise ConfigError(f"{name}, example {number}: {error}") from error
        found.append(FewShotExample(**texts, choices=choices))
    return tuple(found)


def _text(value: Any, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise ConfigError(f"{name}: expected a text, got {value!r:.40}. Quote it.")
    return str(value).strip()


def _read_list(path: Path) -> Any:
    text = _read(path)
    if path.suffix.lower() == ".jsonl":
        try:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise ConfigError(f"--few_shot_file {path} is not JSON Lines: {error}.") from error
    return _parse_yaml(text, path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}).") from error


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error


def _fill(form: str, **texts: str) -> str:
    """Puts texts in, each as it is: one pass, so that braces in a text are never taken for a name."""
    return re.sub(r"\{(" + "|".join(texts) + r")\}", lambda match: texts[match.group(1)], form)


def _split(messages: Sequence[Mapping[str, str]]) -> tuple[str, list[dict[str, str]], str]:
    """System message, earlier turns and question of a conversation."""
    messages = [dict(message) for message in messages]
    system = messages.pop(0)["content"] if messages and messages[0].get("role") == "system" else ""
    if not messages or messages[-1].get("role") != "user":
        raise DataError("it is a conversation that does not end with the user's turn")
    return system, messages[:-1], messages[-1]["content"]


_REASONING = "your reasoning, step by step"
_TASKS = {
    "number": "Solve the problem. Think step by step, then give the result as one number.",
    "choice": "Choose the one option that answers the question. Think step by step, then give its letter.",
    "nli": "Decide what the premise says about the hypothesis. Think step by step, then give one word: entailment if the "
    "hypothesis must be true, contradiction if it cannot be true, neutral if it may be either.",
    "text": "Answer the question. Think step by step, then give the answer in as few words as possible.",
}
_ANSWERS = {
    "number": "the number",
    "choice": "the letter",
    "nli": "entailment, neutral or contradiction",
    "text": "the answer",
}
