"""The tables of rationales with scores that a run shows: on the terminal and in trackers."""

import sys
import types

import pytest
import torch
from datasets import Dataset
from running import config, largest_difference, logged, trainer_of, weights
from tiny import CHAT_TEMPLATE, ragged_rows, tiny_llama, word_tokenizer

from qcrd_trl import QCRDTrainer
from qcrd_trl.errors import ConfigError
from qcrd_trl.rationale_tables import RationaleTableCallback


def table_of(trainer):
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, RationaleTableCallback))


def noted(trainer):
    """Trains, and gives what was shown at which step."""
    shown, callback = [], table_of(trainer)
    show = callback.show

    def noting(rows, step):
        shown.append((step, rows))
        show(rows, step)

    callback.show = noting
    trainer.train()
    return shown


def run(folder, **overrides):
    arguments = {"negative_source": "both", "negative_max_new_tokens": 4, "max_steps": 4, "log_rationales": True}
    return trainer_of(folder, **{**arguments, "per_device_train_batch_size": 4, **overrides})


def test_each_refresh_is_shown_with_the_scores_of_then(tmp_path, capsys):
    """Sampled rationales are the one thing in which a person sees at once that training goes wrong."""
    trainer = run(tmp_path, num_rationales_to_log=2)
    stores, callback = [], table_of(trainer)
    rows_of = callback.rows

    def noting(step):
        stores.append({key: [n.text for n in trainer.negatives.get(key)] for key, _ in trainer.negatives})
        return rows_of(step)

    callback.rows = noting
    shown = noted(trainer)
    assert [step for step, _ in shown] == [0, 2]  # 8 questions by fours: an iteration has two steps
    rows = ragged_rows()
    by_prompt = {row["prompt"]: row for row in rows}
    for (_, lines), store in zip(shown, stores, strict=True):
        assert len({line.question for line in lines}) == 2
        assert all(0 < line.quality < 1 for line in lines if line.rationale)
        for line in lines:
            row = by_prompt[line.question]
            texts = {
                "teacher positive": row["positive_rationales"],
                "teacher negative": row["negative_rationales"],
                "student sample": store.get(row["id"], []),
            }[line.source]
            assert line.rationale in texts
        assert "student sample" in {line.source for line in lines}
    out = capsys.readouterr().out
    assert "Step 0" in out
    assert "Step 2" in out
    assert f"{shown[0][1][0].quality:.2f}" in out


def test_scores_are_those_that_training_computes(tmp_path):
    """Scores of other tokens, or of the model in training mode, would look plausible."""
    trainer = trainer_of(
        tmp_path, log_rationales=True, num_rationales_to_log=8, reduction="mean", max_steps=1,
        parts={"eval_dataset": Dataset.from_list(ragged_rows())},
    )  # fmt: skip
    trainer.train()
    rows = table_of(trainer).rows(1)
    trainer.evaluate()
    for source, side in (("teacher positive", True), ("teacher negative", False)):
        mine = [row.quality for row in rows if row.source == source]
        scores = torch.tensor(trainer._eval_scores[side])
        assert len(mine) > 4
        assert all((scores - score).abs().min() < 2e-6 for score in mine)


def test_showing_changes_nothing(tmp_path):
    """Dropout's mask, or the next negative, would depend on whether somebody looked."""
    one = run(tmp_path / "a", model=tiny_llama(attention_dropout=0.5))
    assert len(noted(one)) == 2
    other = run(tmp_path / "b", model=tiny_llama(attention_dropout=0.5), log_rationales=False)
    other.train()
    assert logged(one) == logged(other)
    assert largest_difference(weights(one.model), weights(other.model)) == 0


def test_without_generated_negatives(tmp_path):
    """Each iteration then shows the teacher's alone, and without a discriminator no score."""
    shown = noted(run(tmp_path, preset="dss_all", negative_source=None))
    assert [step for step, _ in shown] == [0, 2]
    lines = [line for _, rows in shown for line in rows]
    assert lines
    assert {line.source for line in lines} <= {"teacher positive", "teacher negative"}
    assert {line.quality for line in lines} == {None}


def test_a_resumed_run_shows_only_what_is_new(tmp_path):
    """The same table twice looks like two refreshes."""
    run(tmp_path, save_strategy="steps", save_steps=1, max_steps=3).train()
    resumed = run(tmp_path, save_strategy="no", max_steps=6)
    steps = []
    callback = table_of(resumed)
    callback.show = lambda rows, step: steps.append(step)
    resumed.train(resume_from_checkpoint=True)
    assert steps == [4]


def test_trackers_get_a_table(tmp_path, monkeypatch):
    """wandb is not installed here: what is called is what TRL calls."""
    logs = []

    class Table:
        def __init__(self, dataframe):
            self.frame = dataframe

    fake = types.SimpleNamespace(run=object(), Table=Table, log=logs.append)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    trainer = run(tmp_path, num_rationales_to_log=1)
    trainer.args.report_to = ["wandb"]
    trainer.train()
    assert [sorted(entry) for entry in logs] == [["rationales", "train/global_step"]] * 2
    assert [entry["train/global_step"] for entry in logs] == [0, 2]
    frame = logs[0]["rationales"].frame
    assert list(frame.columns) == ["step", "question", "source", "rationale", "quality"]
    assert len(frame) >= 1
    logs.clear()
    fake.run = None  # not started: the callback of transformers was removed, say
    table_of(trainer).show(table_of(trainer).rows(0), 0)
    assert logs == []


def test_conversations_are_shown_as_text(tmp_path):
    """A list of messages is no cell of a table."""
    rows = [
        {"prompt": [{"role": "user", "content": f"a + {i}"}], "label": str(i), "positive_rationales": ["b | c"]}
        for i in range(4)
    ]
    tokenizer = word_tokenizer(adds_bos=True, chat_template=CHAT_TEMPLATE)
    trainer = trainer_of(tmp_path, rows=rows, processing_class=tokenizer, log_rationales=True)
    written = []

    class Writer:
        def add_text(self, name, text, step):
            written.append((name, text, step))

        def flush(self):
            pass

    from transformers.integrations import TensorBoardCallback

    board = TensorBoardCallback(Writer())
    trainer.callback_handler.callbacks.append(board)
    table_of(trainer).show(table_of(trainer).rows(0), 0)
    ((name, text, step),) = written
    assert (name, step) == ("rationales", 0)
    assert text.splitlines()[0] == "| step | question | source | rationale | quality |"
    assert "user: a + " in text
    assert all(line.count(" | ") == 4 for line in text.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"log_rationales": True, "preset": "label_only", "negative_source": None}, "nothing to show: alpha_2 is 0"),
        ({"num_rationales_to_log": 0}, "num_rationales_to_log must be an integer of at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work(tmp_path, arguments, said):
    """Found when the arguments are built, not after the first epoch."""
    with pytest.raises(ConfigError, match=said):
        config(tmp_path, **arguments)


def test_a_stream_cannot_be_looked_into(tmp_path):
    """Its questions would be used up, or read twice."""
    rows = Dataset.from_list(ragged_rows()).to_iterable_dataset()
    with pytest.raises(ConfigError, match="streaming one cannot be looked into"):
        QCRDTrainer(tiny_llama(), config(tmp_path, log_rationales=True), rows, processing_class=word_tokenizer())
