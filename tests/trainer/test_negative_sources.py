"""Where negatives come from: by one flag, by preset, in training and in evaluation; and what is counted and logged."""

import time

import pytest
from datasets import Dataset
from generating import generating, questions, rationales_scored, refreshes, scripted, texts, watch
from tiny import ids

from qcrd_trl import SelfAdversarialCallback
from qcrd_trl.errors import DataError


SOURCES = ("self", "minority", "both", "fixed", "none")
OWN = {f"q{i}": tuple(ids(f"b = {i} c </s>")) for i in range(8)}


def generates(trainer):
    return any(isinstance(callback, SelfAdversarialCallback) for callback in trainer.callback_handler.callbacks)


def test_one_flag_decides_which_negatives_the_loss_sees(tmp_path, monkeypatch):
    """The paper's comparison of sources is rerun by this flag: a source that leaks into another makes it worthless."""
    losses = {}
    for source in SOURCES:
        trainer = generating(tmp_path / source, negative_source=source, max_steps=3)
        there = watch(trainer, lambda state, store=trainer.negatives: {key: n.token_ids for key, n in store})
        scored = rationales_scored(trainer, monkeypatch)
        trainer.train()
        losses[source] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert len(scored) == 3
        for generated, rows in zip(there, scored, strict=True):
            batch = [name[:2] for name in rows if "+" in name]
            assert len(batch) == 2
            for key in batch:
                expected = [OWN[key]] if source in ("minority", "both") else []
                if source in ("self", "both", "fixed"):
                    expected.append(generated[key])
                assert rows.get(f"{key} -", []) == expected
        assert generates(trainer) == (source in ("self", "both", "fixed"))
        for folder in ("negative_generators", "negatives"):
            assert (tmp_path / source / folder).exists() == generates(trainer)
        monkeypatch.undo()
    # The third step is the first whose negatives are not of the untrained student.
    assert losses["self"][:2] == losses["fixed"][:2]
    assert losses["self"][2] != losses["fixed"][2]
    assert len({losses[source][0] for source in SOURCES}) == 4


@pytest.mark.parametrize(
    ("preset", "source"),
    [("qcrd", "self"), ("qcrd_paper", "both"), ("dss", None), ("dss_all", None), ("label_only", None)],
)
def test_a_preset_names_its_source(tmp_path, monkeypatch, preset, source):
    """A baseline that generates would pay for what it does not use; the paper's recipe has both kinds."""
    trainer = generating(tmp_path, negative_source=None, preset=preset, max_steps=1)
    scored = rationales_scored(trainer, monkeypatch)
    trainer.train()
    assert generates(trainer) == (source is not None) == (tmp_path / "negative_generators").exists()
    if source is None:
        assert not any("-" in name for rows in scored for name in rows)
        return
    assert trainer.args.negative_source == source
    assert [len(found) for rows in scored for name, found in rows.items() if "-" in name] == [
        1 + (source == "both")
    ] * 2


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"beta": 0.0, "discriminator": "none", "quality_weighting": "none"}, False),
        ({"alpha_2": 0.0, "discriminator": "none", "quality_weighting": "none"}, False),
        ({"beta": 0.0}, True),  # the discriminator learns by them
        ({"discriminator": "none", "quality_weighting": "none"}, True),
    ],
)
def test_nothing_is_generated_that_nothing_reads(tmp_path, overrides, expected):
    """Hours of sampling for a loss that multiplies it by 0 would show in no number but the time."""
    trainer = generating(tmp_path, max_steps=1, **overrides)
    trainer.train()
    assert len(refreshes(trainer)) == expected
    assert (len(trainer.negatives) > 0) == expected == (tmp_path / "negative_generators").exists()


@pytest.mark.parametrize("source", SOURCES)
def test_held_out_questions_have_their_own_negatives(tmp_path, monkeypatch, source):
    """Generated negatives of the same ids would make the evaluation of each source another one."""
    held_out = [{**row, "prompt": "b " + row["prompt"]} for row in questions(4)]
    trainer = generating(
        tmp_path, negative_source=source, parts={"eval_dataset": Dataset.from_list(held_out)}, max_steps=1,
        preset="qcrd_paper",
    )  # fmt: skip
    trainer.train()
    store = dict(trainer.negatives)
    scored = rationales_scored(trainer, monkeypatch)
    metrics = trainer.evaluate()
    [rows] = scored
    assert len([name for name in rows if "+" in name]) == 4
    expected = {} if source == "none" else {f"q{i} -": [OWN[f"q{i}"]] for i in range(4)}
    assert {name: found for name, found in rows.items() if "-" in name} == expected
    assert ("eval_nll/negative" in metrics) == (source != "none")
    assert dict(trainer.negatives) == store


# Two answers for each of four questions, asked in one refresh; tokens of each on the right.
ANSWERS = {
    "q0": ["a is 0 so 0 </s>", "b b </s>"],  # 6, a positive; 3
    "q1": ["</s>", "c c c c c c c c"],  # 1, no text; 8, cut
    "q2": ["d d </s>", "d d </s>"],  # 3; 3, the same
    "q3": ["e e e e e e e e", "f </s>"],  # 8, cut; 2
}
COUNTS = {
    "negatives/sampled": 8,
    "negatives/kept": 5 / 8,
    "negatives/equal_to_positive": 1 / 8,
    "negatives/empty": 1 / 8,
    "negatives/duplicate": 1 / 8,
    "negatives/cut": 2 / 8,
    "negatives/mean_length": (6 + 3 + 1 + 8 + 3 + 3 + 8 + 2) / 8,
    "negatives/seconds": 200.0,
    "negatives/tokens_per_second": 34 / 200,
}


def test_what_is_counted_and_the_time_it_took(tmp_path, monkeypatch):
    """These numbers are all that tells a user that negatives fail, or eat the run; the training speed is without them."""
    trainer = generating(
        tmp_path, rows=questions(4), num_negatives=2, negative_batch_size=4, negative_refresh_steps=2, negative_lag=1
    )
    clock, training_step = [0.0], trainer.training_step

    def step(*args, **kwargs):
        clock[0] += 4  # two questions in four seconds
        return training_step(*args, **kwargs)

    def call():
        clock[0] += 100  # each of two batches of four

    monkeypatch.setattr(trainer, "training_step", step)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    scripted(trainer, {key: answers * 2 for key, answers in ANSWERS.items()}, monkeypatch, call)
    trainer.train()
    assert texts(trainer.negatives) == {
        "q0": ["b b"], "q1": ["c c c c c c c c"], "q2": ["d d"], "q3": ["e e e e e e e e", "f"],
    }  # fmt: skip
    assert {n.token_ids: n.is_finished for _, n in trainer.negatives} == {
        tuple(ids(text)): "</s>" in text for key, text in [
            ("q0", "b b </s>"), ("q1", "c c c c c c c c"), ("q2", "d d </s>"), ("q3", "e e e e e e e e"), ("q3", "f </s>"),
        ]
    }  # fmt: skip
    of_negatives = [entry for entry in trainer.state.log_history if "negatives/sampled" in entry]
    assert of_negatives == [
        {**COUNTS, "negatives/iteration": 0, "negatives/snapshot": 0, "step": 0, "epoch": 0},
        {**COUNTS, "negatives/iteration": 1, "negatives/snapshot": 0, "step": 2, "epoch": 1.0},
    ]
    speed = [entry["questions_per_second"] for entry in trainer.state.log_history if "questions_per_second" in entry]
    assert speed == [0.5] * 4


def test_two_negatives_a_question_reach_the_loss(tmp_path, monkeypatch):
    """A second negative that is stored and not scored would be paid for and never learned from."""
    trainer = generating(tmp_path, num_negatives=2, max_steps=2)
    there = watch(trainer, lambda state: list(trainer.negatives))
    scored = rationales_scored(trainer, monkeypatch)
    trainer.train()
    for negatives, rows in zip(there, scored, strict=True):
        found = [(name[:2], row) for name, side in rows.items() if "-" in name for row in side]
        assert sorted(found) == sorted((key, n.token_ids) for key, n in negatives)
        assert len(found) == len(set(found)) == 4


NUMBERS = [  # the answers to four questions, whose labels are 0 to 3; the last has none
    {"prompt": f"a + {i}", "label": None if i == 3 else str(i), "positive_rationales": [f"a is {i}"], "id": f"q{i}"}
    for i in range(4)
]
CHOICES = [
    {**row, "label": row["label"] and "B", "options": ["b c", "d e"], "positive_rationales": ["g is d e"]}
    for row in NUMBERS
]
CASES = {
    # Right, wrong, a positive (right, and left out in any case), and one that nothing can be said of.
    "number": (NUMBERS, {}, ["b is 0 </s>", "b is 7 </s>", "a is 2 </s>", "b is 3 </s>"]),
    "choice": (CHOICES, {"choices_column": "options"}, ["so d e </s>", "so b c </s>", "g is d e </s>", "d e </s>"]),
}


@pytest.mark.parametrize("correct", ["keep", "mark", "drop"])
@pytest.mark.parametrize("kind", CASES)
def test_negatives_that_reach_the_answer(tmp_path, monkeypatch, kind, correct):
    """A right answer among the negatives teaches the student away from it; a wrong one dropped is a negative lost."""
    rows, overrides, answers = CASES[kind]
    trainer = generating(
        tmp_path, rows=rows, task_kind=kind, correct_negatives=correct, per_device_train_batch_size=4, max_steps=1,
        **overrides,
    )  # fmt: skip
    scripted(trainer, {f"q{i}": [answer] for i, answer in enumerate(answers)}, monkeypatch)
    trainer.train()
    marks = {key: n.reaches_label for key, n in trainer.negatives}
    expected = {
        "keep": {"q0": None, "q1": None, "q3": None},
        "mark": {"q0": True, "q1": False, "q3": None},
        "drop": {"q1": False, "q3": None},
    }
    assert marks == expected[correct]
    [entry] = [entry for entry in trainer.state.log_history if "negatives/sampled" in entry]
    assert entry["negatives/kept"] == len(marks) / 4
    assert entry["negatives/equal_to_positive"] == 1 / 4
    assert entry.get("negatives/correct") == (None if correct == "keep" else 2 / 4)


@pytest.mark.parametrize(
    ("rows", "overrides", "message"),
    [
        ([{**row, "label": "none"} for row in NUMBERS], {"task_kind": "number"}, "Row 0, column 'label'"),
        (CHOICES, {"task_kind": "choice", "choices_column": "choices"}, "no column 'choices'"),
    ],
)
def test_labels_that_cannot_be_read(tmp_path, rows, overrides, message):
    """Read as missing, they would switch the filter off without a word."""
    with pytest.raises(DataError, match=message):
        generating(tmp_path, rows=rows, correct_negatives="drop", **overrides)


def test_the_store_has_the_scores_that_the_loss_used(tmp_path):
    """Scores of other rows in the export would be read as the quality of these texts."""
    trainer = generating(tmp_path, max_steps=3)
    trainer.train()
    scores = [n.quality for _, n in trainer.negatives]
    assert len(set(scores)) == len(scores) == 2
    [*_, last] = [entry for entry in trainer.state.log_history if "quality/negative" in entry]
    assert sum(scores) / 2 == pytest.approx(last["quality/negative"], abs=1e-7)
