"""Tiny trained students as they lie on the disk. `from saved import ...`."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from datasets import Dataset
from running import lora, trainer_of
from tiny import CHAT_TEMPLATE, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl import QCRDTrainer


# Each is taught by heart, by label and by rationale.
TAUGHT = [
    {
        "id": f"q{i}",
        "prompt": "a + " * (i % 3 + 1) + str(i),
        "label": str(i + 1),
        "positive_rationales": [f"{i} + 1 = {i + 1}"],
        "negative_rationales": [f"{i} - 1 = 9 9", "b c d"],
    }
    for i in range(4)
]
QUESTIONS = [row["prompt"] for row in TAUGHT]


def as_chat(prompt: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "b c"}, {"role": "user", "content": prompt}]


CHATS = [as_chat(prompt) for prompt in QUESTIONS]
CHAT_ROWS = [{**row, "prompt": chat} for row, chat in zip(TAUGHT, CHATS, strict=True)]

# What a student may be: family, adapter or not, conversations or texts. The full ones know their answers by heart; the others
# begin from a base with preferences, and have moved far from it.
KINDS = {
    "full": {"make": tiny_gpt2},
    "full_t5": {"make": tiny_t5},
    "adapter": {"make": lambda: tiny_llama(initializer_range=0.4), "adapter": True},
    "adapter_t5": {"make": lambda: tiny_t5(initializer_factor=2.0), "adapter": True},
    "adapter_chat": {"make": lambda: tiny_llama(initializer_range=0.4), "adapter": True, "chat": True},
}
LEARNED = ("full", "full_t5")


def tokenizer_of(kind: str):
    """The tokenizer that a student of a kind is trained with."""
    if KINDS[kind].get("chat"):
        return word_tokenizer(adds_bos=True, chat_template=CHAT_TEMPLATE)
    return word_tokenizer(adds_eos="t5" in kind)


def questions_of(kind: str) -> list:
    """What a student of a kind was taught, in the form that it was taught in."""
    return CHATS if KINDS[kind].get("chat") else QUESTIONS


def trainer_of_kind(folder: Path, kind: str, **overrides: Any) -> QCRDTrainer:
    """A trainer whose student is loaded from `folder/base` and saved to `folder/student`."""
    how = KINDS[kind]
    base = folder / "base"
    if how.get("adapter"):
        how["make"]().save_pretrained(base)
        tokenizer_of(kind).save_pretrained(base)
        model, parts = str(base), {"peft_config": lora(task_type="SEQ_2_SEQ_LM" if "t5" in kind else "CAUSAL_LM")}
    else:
        model, parts = how["make"](), {}
    arguments = {
        "preset": "qcrd",
        "negative_source": "minority",
        "beta": 0.0,
        "max_steps": 60 if kind in LEARNED else 3,
        "logging_steps": 1000,
        "optim": "adamw_torch",
        "learning_rate": 0.02,
        "discriminator_learning_rate": 0.02,
    }
    rows = CHAT_ROWS if how.get("chat") else TAUGHT
    return trainer_of(
        folder / "student",
        model,
        rows,
        tokenizer_of(kind),
        parts={**parts, "eval_dataset": Dataset.from_list(rows)},
        **{**arguments, **overrides},
    )


def save_student(folder: Path, kind: str, **overrides: Any) -> Path:
    """Trains a student and gives the folder that it is saved in."""
    with redirect_stdout(io.StringIO()):  # a test that looks at the output may be the first to ask for the student
        trainer = trainer_of_kind(folder, kind, **overrides)
        trainer.train()
        trainer.save_model()
    return folder / "student"
