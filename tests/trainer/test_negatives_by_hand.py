"""The callback attached by hand: to a plain Trainer whose own loss reads the store, and to a QCRDTrainer."""

import shutil

import pytest
import torch
from datasets import Dataset
from generating import (
    LORA,
    NEW_TOKENS,
    generating,
    kept_snapshots,
    questions,
    questions_sampled,
    questions_trained,
    refreshes,
    sharp_llama,
    shortfall,
    watch,
)
from peft import get_peft_model
from running import largest_difference, logged, lora, weights
from tiny import ids, word_tokenizer
from transformers import Trainer, TrainerCallback, TrainingArguments

from qcrd_trl import SelfAdversarialCallback, StudentFormat
from qcrd_trl.errors import ConfigError, DataError, QCRDError


class ContrastTrainer(Trainer):
    """Anybody's trainer: the loss of a row less a part of that of its question's negatives."""

    store = ()

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        names = [f"q{row}" for row in inputs.pop("row").tolist()]
        loss = model(**inputs).loss
        for name in names:
            for negative in self.store.get(name) if self.store else ():
                self.used.append((self.state.global_step, name, negative.text))
                tokens = torch.tensor([ids("<Explain>") + list(negative.token_ids)])
                loss = loss - 0.1 * model(input_ids=tokens, labels=tokens).loss
        return loss


def plain(folder, model=None, tokenizer=None, rows=None, **overrides):
    """A plain trainer of two of eight rows a step; row i belongs to question i."""
    arguments = {
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    torch.manual_seed(0)
    if rows is None:
        rows = Dataset.from_list([{"row": i, "id": f"q{i}", "words": f"+ {i} is"} for i in range(8)])
    trainer = ContrastTrainer(
        model=get_peft_model(sharp_llama(), lora()) if model is None else model,
        args=TrainingArguments(str(folder), **{**arguments, **overrides}),
        train_dataset=rows,
        processing_class=word_tokenizer() if tokenizer is None else tokenizer,
        data_collator=collate,
    )
    trainer.used = []
    return trainer


def collate(rows):
    tokens = torch.tensor([ids(row["words"]) for row in rows])
    return {"row": torch.tensor([row["row"] for row in rows]), "input_ids": tokens, "labels": tokens}


def attached(trainer, rows=None, **options):
    """The trainer with the callback, an iteration of one step and a lag of one."""
    rows = Dataset.from_list(questions() if rows is None else rows)
    options = {"questions": rows, "refresh_steps": 1, "lag": 1, "max_new_tokens": NEW_TOKENS, **options}
    callback = SelfAdversarialCallback(trainer, **options)
    trainer.add_callback(callback)
    trainer.store = callback.store
    return callback


@pytest.mark.parametrize("adapter", [True, False])
def test_any_loss_reads_the_store(tmp_path, monkeypatch, adapter):
    """Another trainer gets the same negatives as this package's own: of the same snapshots, for the rows of each step."""
    asked = questions_sampled(monkeypatch)
    trainer = plain(tmp_path, None if adapter else sharp_llama())
    before = weights(trainer.model)
    callback = attached(trainer)
    there = watch(trainer, lambda state: list(callback.store))
    trainer.train()
    assert refreshes(trainer) == [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert kept_snapshots(tmp_path) == [2, 3]
    assert sorted(sum(asked, [])) == [f"q{i}" for i in range(8)]  # noqa: RUF017
    assert all(len(names) == 2 for names in asked)
    used = [(step, key, n.text) for step, negatives in enumerate(there) for key, n in negatives]
    assert sorted(trainer.used) == sorted(used)
    prompts = {row["id"]: ids(f"<Explain> {row['prompt']}") for row in questions()}
    first, last = ([shortfall(sharp_llama(), prompts[key], n) for key, n in there[step]] for step in (1, 3))
    assert max(first) < 1e-4  # of the untrained student
    assert max(last) > 0.01
    assert len(trainer.used) > 4
    assert largest_difference(before, weights(trainer.model)) > 0.01


@pytest.mark.parametrize("unknown", ["another number", "no ids of the rows", "no ids of the questions"])
def test_questions_that_no_row_is_known_of_are_all_asked(tmp_path, monkeypatch, unknown):
    """Matched by their place, rows and questions that do not correspond would be trained without negatives."""
    asked = questions_sampled(monkeypatch)
    trainer = plain(tmp_path, max_steps=2)
    rows, expected = questions(), [f"q{i}" for i in range(8)]
    if unknown == "another number":
        rows, expected = questions(9), None
    elif unknown == "no ids of the rows":
        trainer.train_dataset = trainer.train_dataset.remove_columns("id")
    else:
        rows, expected = [{**row, "id": None} for row in rows], [str(i) for i in range(8)]
        rows = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    attached(trainer, rows)
    trainer.train()
    if expected is None:  # the rows tell by their ids which of nine it is
        assert [len(names) for names in asked] == [2, 2]
    else:
        assert asked == [expected] * 2


def test_questions_in_another_order_are_matched(tmp_path, monkeypatch):
    """By their place alone, the wrong ones would be asked."""
    asked = questions_sampled(monkeypatch)
    trainer = generating(tmp_path, negative_source="none", parts=LORA)
    attached(trainer, questions()[::-1])
    batches = questions_trained(trainer)
    trainer.train()
    assert asked == [sorted(batch) for batch in batches]
    assert len(asked) == 4


class Stop(TrainerCallback):
    """Ends a run at step 2, with its schedule planned for all steps, as a kill would."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_training_stop or state.global_step == 2


@pytest.mark.parametrize("where", ["its own folder", "another folder"])
def test_a_plain_run_is_resumed(tmp_path, where):
    """Resumed without its snapshots, a run would learn from its own negatives of today under the name of earlier ones."""
    save = {"save_strategy": "steps", "save_steps": 1}
    whole = plain(tmp_path / "whole", **save)
    attached(whole)
    whole.train()
    stopped = plain(tmp_path / "stopped", **save)
    attached(stopped)
    stopped.add_callback(Stop())
    stopped.train()
    folder = tmp_path / "stopped"
    if where == "another folder":  # the checkpoint alone is what is left of the first run
        folder = tmp_path / "resumed"
        shutil.copytree(tmp_path / "stopped" / "checkpoint-2", tmp_path / "moved" / "checkpoint-2")
        shutil.rmtree(tmp_path / "stopped")
    resumed = plain(folder, **save)
    callback = attached(resumed)
    resumed.train(
        resume_from_checkpoint=True if where == "its own folder" else str(tmp_path / "moved" / "checkpoint-2")
    )
    assert refreshes(resumed) == refreshes(whole) == [(0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0
    assert logged(resumed) == logged(whole)
    assert dict(callback.store) == dict(whole.store)
    assert resumed.used == [use for use in whole.used if use[0] >= 2]


def test_it_takes_the_place_of_what_the_configuration_left_out(tmp_path, monkeypatch):
    """The documented way to choose other options; beside the rows' own negatives where these are asked for."""
    asked = questions_sampled(monkeypatch)
    trainer = generating(tmp_path, negative_source="minority", parts=LORA)
    callback = SelfAdversarialCallback(
        trainer, temperature=0.8, lag=2, refresh_steps=2, max_new_tokens=3, source="fixed"
    )
    trainer.add_callback(callback)
    trainer.train()
    assert callback.store is trainer.negatives
    assert refreshes(trainer) == [(0, 0, 0), (2, 1, 0)]
    assert [len(names) for names in asked] == [4, 4]
    assert {n.temperature for _, n in trainer.negatives} == {0.8}
    assert all(len(n.token_ids) <= 3 for _, n in trainer.negatives)


def test_a_second_one_is_refused(tmp_path):
    """Two would overwrite each other's negatives and snapshots, in turn."""
    trainer = generating(tmp_path)
    with pytest.raises(ConfigError, match="already"):
        SelfAdversarialCallback(trainer)
    trainer = plain(tmp_path)
    attached(trainer)
    with pytest.raises(ConfigError, match="already"):
        attached(trainer)
    both = [SelfAdversarialCallback(trainer) for trainer in [generating(tmp_path, negative_source="none")] * 2]
    for callback in both:
        both[0].trainer.add_callback(callback)
    with pytest.raises(ConfigError, match="already"):
        both[0].trainer.train()


def test_one_that_was_removed_has_no_part_in_checkpoints(tmp_path):
    """A checkpoint that wants what nothing writes could not be resumed from."""
    save = {"save_strategy": "steps", "save_steps": 2, "parts": LORA}
    for steps, resume in ((2, None), (4, True)):
        trainer = generating(tmp_path, max_steps=steps, **save)
        trainer.remove_callback(SelfAdversarialCallback)
        trainer.train(resume_from_checkpoint=resume)
    assert trainer.state.global_step == 4
    assert not (tmp_path / "checkpoint-4" / "negative_generators").exists()
    assert not (tmp_path / "negative_generators").exists()


def test_the_form_of_a_question_is_chosen(tmp_path, monkeypatch):
    """Asked otherwise than it is taught, a student writes texts of no use."""
    trainer = plain(tmp_path, max_steps=1)
    seen, generate = [], trainer.model.generate
    monkeypatch.setattr(
        trainer.model, "generate", lambda **inputs: seen.append(inputs["input_ids"]) or generate(**inputs)
    )
    attached(trainer, student_format=StudentFormat(explain_prefix="so", response_separator=" ="))
    trainer.train()
    [prompts] = seen
    assert {(row[row != 0][0].item(), row[-1].item()) for row in prompts} == {tuple(ids("so ="))}


def test_a_stream_needs_questions_and_a_number_of_steps(tmp_path, monkeypatch):
    """A part of an epoch that has no end cannot be known: said before the first step, not in the middle of the run."""
    asked = questions_sampled(monkeypatch)
    rows = plain(tmp_path).train_dataset
    trainer = plain(tmp_path, rows=rows.to_iterable_dataset(), max_steps=2)
    with pytest.raises(ConfigError, match="streaming"):
        SelfAdversarialCallback(trainer)
    callback = attached(trainer, refresh_steps=None)
    with pytest.raises(ConfigError, match="refresh_steps"):
        trainer.train()
    assert trainer.state.global_step == 0
    trainer.remove_callback(callback)
    attached(trainer)
    trainer.train()
    assert asked == [[f"q{i}" for i in range(8)]] * 2


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (None, ConfigError, "questions="),
        ([{"text": "a + 1"}], DataError, "no column 'prompt', 'positive_rationales'"),
        ([{"prompt": "a", "positive_rationales": ["b"], "id": "x"}] * 2, DataError, "same id 'x'"),
        ([{"prompt": "a", "positive_rationales": []}], DataError, "none of its 1 rows"),
        ([{"prompt": "a", "positive_rationales": ["b"], "id": "x"}], DataError, "None of the `questions`"),
    ],
)
def test_questions_that_cannot_be_asked(tmp_path, given, error, message):
    """A plain trainer's rows have no questions in them: a guess at its columns would ask anything."""
    with pytest.raises(error, match=message):
        SelfAdversarialCallback(plain(tmp_path), questions=None if given is None else Dataset.from_list(given))
    assert not tmp_path.joinpath("negative_generators").exists()


def test_an_adapter_of_another_name(tmp_path):
    """Snapshots are of the adapter 'default': any other must be refused in these words, before the first step."""
    model = get_peft_model(sharp_llama(), lora(), adapter_name="student")
    with pytest.raises(QCRDError, match="student"):
        attached(plain(tmp_path, model))


def test_a_trainer_without_a_tokenizer(tmp_path):
    """Texts cannot be asked or read without one: to be said in these words, before anything is done."""
    trainer = plain(tmp_path)
    trainer.processing_class = None
    with pytest.raises(QCRDError, match="processing_class"):
        attached(trainer)


def test_a_tokenizer_without_an_end(tmp_path):
    """Every negative would run to the limit of new tokens."""
    trainer = plain(tmp_path, tokenizer=word_tokenizer(eos=None))
    with pytest.raises(QCRDError, match="eos"):
        attached(trainer)


def test_a_tokenizer_without_padding(tmp_path):
    """EOS pads then, as in the package's own trainer; a batch of questions of several lengths must not fail on it."""
    tokenizer = word_tokenizer(pad=None)
    trainer = plain(tmp_path, max_steps=1, per_device_train_batch_size=8)
    trainer.processing_class = tokenizer
    callback = attached(trainer)
    trainer.train()
    assert len(callback.store) > 4
