"""[`RationaleTableCallback`]: what a student learns from, and what it writes itself, with scores, while it trains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datasets import IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from trl.trainer.utils import print_prompt_completions_sample

from .callbacks import base_of
from .data.draws import draw
from .data.prompts import Prompt, is_conversational
from .discriminator import RationaleDiscriminator
from .errors import ConfigError
from .quality import rationale_qualities


TABLE = "rationales"  # what trackers call it
_QUESTIONS, _RATIONALES = 5, 6  # tell these draws from those of training


@dataclass
class ShownRationale:
    """
    A line of the table.

    Attributes:
        question (`str` or `list[dict]`): the question, as the dataset has it.
        source (`str`): `"teacher positive"`, `"teacher negative"` or `"student sample"`.
        rationale (`str`): its text, as the student reads it.
        quality (`float` or `None`): the discriminator's score now, in (0, 1); `None` where there is none.
    """

    question: Prompt
    source: str
    rationale: str
    quality: float | None = None


class RationaleTableCallback(TrainerCallback):
    """
    Shows, at the start of each iteration, rationales of some questions with the scores that the discriminator gives them
    then: a teacher's positive, a teacher's negative and a sample of the student's own past, where there are such.

    The table goes to the terminal, as TRL's tables of completions do, and to what `report_to` names: `wandb` and `trackio`
    get a table, `tensorboard` a text. The main process alone makes it. Which questions are shown depends on the seed and the
    step; the random state and the student are left as they were.

    [`QCRDTrainer`] attaches this callback by itself where [`QCRDConfig`] says `log_rationales=True`.

    Args:
        trainer ([`QCRDTrainer`]):
            The trainer that it is attached to.
        num_questions (`int`, *optional*, defaults to `3`):
            Questions whose rationales are shown.

    Raises:
        [`ConfigError`]: if the questions, or the student's weights, are not there to be looked at.
    """

    def __init__(self, trainer: Trainer, num_questions: int = 3):
        self.trainer, self.num_questions = trainer, num_questions
        self._shown: int | None = None
        self._places: dict[str, int] | None = None
        if trainer.train_dataset is None or isinstance(trainer.train_dataset, IterableDataset):
            raise ConfigError(
                "log_rationales=True shows questions of the training set, and a streaming one cannot be looked into. Set "
                "log_rationales=False, or pass a `Dataset`."
            )
        plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
        if trainer.is_fsdp_enabled or getattr(plugin, "zero_stage", 0) == 3:
            raise ConfigError(
                "log_rationales=True scores rationales by whole weights, which FSDP and ZeRO-3 split up. Use DDP or ZeRO-2, "
                "or log_rationales=False."
            )

    def on_train_begin(self, args, state, control, **kwargs):
        self._shown = self.trainer.negatives.iteration  # of a resumed run, which has shown them

    def on_step_begin(self, args, state, control, **kwargs):
        iteration = self.trainer.negatives.iteration  # they are refreshed by now
        iteration = self.trainer.iteration if iteration is None else iteration
        if iteration == self._shown:
            return
        self._shown = iteration
        if args.process_index == 0:
            self.show(self.rows(state.global_step), state.global_step)

    def rows(self, step: int) -> list[ShownRationale]:
        """The lines of a step's table, question by question."""
        trainer = self.trainer
        rows: list[ShownRationale] = []
        pairs: list[tuple[Sequence[int], Sequence[int]]] = []
        for place in self._chosen(step):
            entry = trainer.train_dataset[place]
            question = trainer.questions[entry["question_index"]]["prompt"]
            generated = [negative.token_ids for negative in trainer.negatives.get(entry["id"])]
            sources = {"teacher positive": entry["positive_ids"], "teacher negative": entry["negative_ids"]}
            for source, texts in {**sources, "student sample": generated}.items():
                if texts:
                    ids = texts[draw(len(texts), trainer.args.seed, step, place, _RATIONALES)]
                    text = trainer.processing_class.decode(ids, skip_special_tokens=True).strip()
                    rows.append(ShownRationale(question, source, text))
                    pairs.append((entry["explain_prompt_ids"], ids))
        for row, score in zip(rows, self._scores(rows, pairs), strict=True):
            row.quality = score
        return rows

    def show(self, rows: Sequence[ShownRationale], step: int) -> None:
        """Prints the table, and gives it to the trackers."""
        if not rows:
            return
        trainer = self.trainer
        qualities = [float("nan") if row.quality is None else row.quality for row in rows]
        scores = {} if trainer.discriminator is None else {"Quality": qualities}
        questions, texts = [_text(row.question) for row in rows], [row.rationale for row in rows]
        print_prompt_completions_sample(
            questions, texts, scores, None, step, extra={"Source": [row.source for row in rows]}
        )
        columns = ["step", "question", "source", "rationale", "quality"]
        data = [
            [step, question, row.source, row.rationale, row.quality]
            for question, row in zip(questions, rows, strict=True)
        ]
        named = trainer.args.report_to
        for backend in [*(["wandb"] if "wandb" in named else []), *(["trackio"] if "trackio" in named else [])]:
            _log_table(backend, columns, data, step)
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
                callback.tb_writer.add_text(TABLE, _markdown(columns, data), step)

    def _chosen(self, step: int) -> list[int]:
        """Rows of the training set: of those with generated negatives, if there are any."""
        trainer = self.trainer
        if self._places is None:
            self._places = {key: place for place, key in enumerate(trainer.train_dataset["id"])}
        asked = sorted({self._places[key] for key, _ in trainer.negatives if key in self._places})
        left = asked or list(range(len(trainer.train_dataset)))
        chosen = []
        for number in range(min(self.num_questions, len(left))):
            chosen.append(left.pop(draw(len(left), trainer.args.seed, step, number, _QUESTIONS)))
        return chosen

    def _scores(self, rows: Sequence[ShownRationale], pairs) -> list[float | None]:
        trainer, discriminator = self.trainer, self.trainer.discriminator
        if discriminator is None or not rows:
            return [None] * len(rows)
        with trainer.accelerator.autocast():
            if isinstance(discriminator, RationaleDiscriminator):
                chosen = [place for place, (_, ids) in enumerate(pairs) if len(ids)]
                tokenizer = trainer.processing_class
                found = rationale_qualities(
                    base_of(trainer), discriminator, [pairs[place] for place in chosen], tokenizer.pad_token_id
                )
            else:
                chosen = [place for place, row in enumerate(rows) if row.rationale]
                found = discriminator.score(
                    [rows[place].question for place in chosen], [rows[place].rationale for place in chosen]
                )
        scores: list[float | None] = [None] * len(rows)
        for place, score in zip(chosen, found, strict=True):
            scores[place] = float(score)
        return scores


def _log_table(backend: str, columns: list[str], data: list[list[Any]], step: int) -> None:
    import pandas as pd

    if backend == "wandb":
        import wandb as tracker

        if tracker.run is None:
            return
    else:
        import trackio as tracker
    table = tracker.Table(dataframe=pd.DataFrame(data, columns=columns))
    tracker.log({TABLE: table, "train/global_step": step})


def _text(prompt: Prompt) -> str:
    if not is_conversational(prompt):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _markdown(columns: Sequence[str], data: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", "<br>")

    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in data)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
