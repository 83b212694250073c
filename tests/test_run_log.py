"""The log of a run: what is written of it, and which of several is read."""

import json

import pytest

from qcrd_trl.errors import DataError
from qcrd_trl.run_log import SCORE_BINS, SOURCES, RunLog, is_run, read_run


HISTORY = [{"step": 2, "loss": 1.0}, {"step": 4, "loss": 0.5}]


def counts(first):
    return {source: [first + place, *[0] * (SCORE_BINS - 1)] for place, source in enumerate(SOURCES)}


def state(folder, step, history=HISTORY, scores=()):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": step}))
    for process, part in enumerate(scores):
        (folder / f"meters_{process}.json").write_text(json.dumps({"train": {}, "scores": part}))


def test_what_is_written_is_read(tmp_path):
    """A run without checkpoints has nothing else to be reported from."""
    scores, selection = {"iteration": 3, "counts": counts(1)}, {"report": {"rows": {"out": 1}}, "shares": [0] * 10}
    log = RunLog(HISTORY, 4, scores, selection, {"preset": "qcrd", "beta": 0.2})
    path = log.write(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["training_log.json"]
    assert path.name == "training_log.json"
    found = read_run(tmp_path)
    assert (found.log_history, found.global_step, found.scores, found.selection, found.settings, found.source) == (
        HISTORY, 4, scores, selection, {"preset": "qcrd", "beta": 0.2}, "training_log.json"
    )  # fmt: skip


def test_numbers_that_json_does_not_know(tmp_path):
    """A run that diverged is when a report is wanted, and NaN is no JSON: other readers refuse the whole file."""
    import numpy as np
    import torch

    entry = {"step": 1, "loss": float("nan"), "grad_norm": float("inf"), "mine": torch.tensor(2.5), "own": np.int64(3)}
    text = RunLog([entry], 1).write(tmp_path).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["log_history"] == [
        {"step": 1, "loss": None, "grad_norm": None, "mine": 2.5, "own": 3}
    ]


def test_the_one_that_goes_furthest_is_read(tmp_path):
    """A stale log would be shown in place of the run that was killed after it, or the checkpoint before the end."""
    assert not is_run(tmp_path)
    state(tmp_path / "checkpoint-9", 9, [{"step": 9, "loss": 9.0}])
    state(tmp_path / "checkpoint-10", 10, [{"step": 10, "loss": 10.0}])
    assert is_run(tmp_path)
    assert read_run(tmp_path).source == "checkpoint-10/trainer_state.json"  # 10 is later than 9, "10" is not
    state(tmp_path, 4)
    assert read_run(tmp_path).global_step == 10
    RunLog(HISTORY, 10).write(tmp_path)
    assert read_run(tmp_path).source == "training_log.json"  # of equal ones that which has more
    assert read_run(tmp_path / "checkpoint-9").global_step == 9


def test_scores_of_a_checkpoint_are_those_of_all_processes(tmp_path):
    """Each process keeps its own sums: the first alone would show a part of the scores as all."""
    parts = [{"iteration": 2, "counts": counts(1)}, {"iteration": 2, "counts": counts(10)}]
    state(tmp_path / "checkpoint-4", 4, scores=[*parts, {"iteration": 1, "counts": counts(100)}, {}])
    scores = read_run(tmp_path).scores
    assert scores["iteration"] == 2
    assert [scores["counts"][source][0] for source in SOURCES] == [11, 13, 15]
    state(tmp_path / "checkpoint-5", 5, scores=[{}])
    assert read_run(tmp_path).scores is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"log_history": [], "global_step": 1}', "nothing was logged"),
        ('{"log_history": [{"loss": 1}], "global_step": 1}', "no step"),
        ('{"log_history": [], "global_step": 1, "format": 7}', "format 7"),
    ],
)
def test_damage_is_told(tmp_path, text, said):
    """A half-read log is a wrong picture."""
    (tmp_path / "training_log.json").write_text(text)
    with pytest.raises(DataError, match=said):
        read_run(tmp_path)


def test_no_run(tmp_path):
    """The wrong folder is a question of where to look, not a traceback."""
    with pytest.raises(DataError, match=r"holds no log of a run: expected training_log\.json"):
        read_run(tmp_path)
    state(tmp_path / "checkpoint-4", 4, scores=[{}])
    (tmp_path / "checkpoint-4" / "meters_0.json").write_text("{")
    with pytest.raises(DataError, match=r"meters_0\.json is damaged"):
        read_run(tmp_path)
