"""Trainers that ask held-out questions at each evaluation, and what they log of it. `from asking import ...`."""

from datasets import Dataset
from generating import questions, sharp_llama
from running import trainer_of
from tiny import ids, tiny_llama, word_tokenizer
from transformers import Trainer, TrainingArguments

from qcrd_trl import AccuracyCallback


NAMES = ("eval_label_accuracy", "eval_answer_accuracy", "eval_agreement", "eval_accuracy_questions")
ASKING = {"eval_accuracy": True, "task_kind": "number", "eval_max_new_tokens": 6, "eval_label_max_new_tokens": 4}
EACH_STEP = {"eval_strategy": "steps", "eval_steps": 1}


def held_out(count=6):
    return Dataset.from_list([{"prompt": f"b + {i}", "label": str(i), "id": f"h{i}"} for i in range(count)])


def asked(folder, model=None, rows=None, eval_rows=None, parts=None, **overrides):
    """A trainer that asks six held-out questions at each evaluation."""
    parts = {"eval_dataset": held_out() if eval_rows is None else eval_rows, **(parts or {})}
    model = sharp_llama() if model is None else model
    return trainer_of(folder, model, questions() if rows is None else rows, parts=parts, **{**ASKING, **overrides})


def callback_of(trainer) -> AccuracyCallback:
    (found,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, AccuracyCallback)]
    return found


def accuracies(metrics):
    return {name: metrics[name] for name in NAMES if name in metrics}


def entries(trainer):
    """What was logged of each evaluation, less what the clock says."""
    clocks = ("runtime", "per_second", "preparation_time")
    return [
        {name: value for name, value in entry.items() if not any(clock in name for clock in clocks)}
        for entry in trainer.state.log_history
        if "eval_loss" in entry
    ]


def plain(folder, **overrides):
    """A trainer of transformers, on token ids."""
    rows = Dataset.from_list([{"input_ids": ids("<Predict> a + 1 1 </s>"), "labels": ids("<Predict> a + 1 1 </s>")}])
    kwargs = {"train_dataset": rows, "eval_dataset": rows, "processing_class": word_tokenizer(), **overrides}
    args = TrainingArguments(str(folder), use_cpu=True, report_to="none", disable_tqdm=True, **EACH_STEP, max_steps=2)
    return Trainer(model=tiny_llama(), args=args, **kwargs)
