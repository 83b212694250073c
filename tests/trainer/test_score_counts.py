"""Histograms of the discriminator's scores by who wrote the rationale."""

import torch

from qcrd_trl.run_log import SCORE_BINS, SOURCES
from qcrd_trl.trainer.objective import RationaleRows
from qcrd_trl.trainer.score_counts import ScoreCounts


def rows(is_positive, generated=None):
    empty = torch.zeros(len(is_positive), 1, dtype=torch.long)
    return RationaleRows(
        empty, empty, empty, empty[:, 0], torch.tensor(is_positive), 1, None if generated is None else torch.tensor(generated)
    )  # fmt: skip


def same(tensor):
    return tensor


def places(found):
    """Of each source the bins that are not empty, with their counts."""
    return [{i: n for i, n in enumerate(found["counts"][source]) if n} for source in SOURCES]


def test_each_score_is_counted_under_its_author():
    """The student's samples under the teacher's name would show a teacher whose errors look nothing like reasoning."""
    counts = ScoreCounts(torch.device("cpu"))
    assert counts.compute(same) is None
    scores = torch.tensor([0.999, 0.5, 0.5, 0.01, 0.011])
    counts.add(rows([True, True, False, False, False], [-1, -1, -1, 0, 1]), scores, 0)
    found = counts.compute(same)
    assert found["iteration"] == 0
    assert all(len(column) == SCORE_BINS for column in found["counts"].values())
    assert places(found) == [{49: 1, 25: 1}, {25: 1}, {0: 2}]
    counts.add(rows([True, False]), torch.tensor([1.0, 0.0]), 0)  # the ends, and no generated ones
    assert places(counts.compute(same)) == [{49: 2, 25: 1}, {0: 1, 25: 1}, {0: 2}]


def test_an_iteration_begins_anew():
    """Scores of the untrained discriminator would blur those of the trained one."""
    counts = ScoreCounts(torch.device("cpu"))
    counts.add(rows([True]), torch.tensor([0.1]), 0)
    counts.add(rows([True]), torch.tensor([0.9]), 1)
    assert counts.compute(same) == {"iteration": 1, "counts": counts.state()["counts"]}
    assert places(counts.compute(same)) == [{45: 1}, {}, {}]


def test_a_resumed_run_goes_on():
    """Else the picture of a run that was interrupted shows the part after it as the whole."""
    counts, again = (ScoreCounts(torch.device("cpu")) for _ in range(2))
    counts.add(rows([True, False]), torch.tensor([0.9, 0.1]), 2)
    again.add(rows([True]), torch.tensor([0.5]), 7)
    again.load_state(counts.state())
    for one in (counts, again):
        one.add(rows([True]), torch.tensor([0.3]), 2)
    assert again.state() == counts.state() == again.compute(same)
    assert places(again.compute(same)) == [{45: 1, 15: 1}, {5: 1}, {}]
    again.load_state({})  # of a checkpoint that has none
    assert again.compute(same) is None
    assert again.state() == {}


def test_several_processes_add_up():
    """Every process scores its own questions."""
    counts = ScoreCounts(torch.device("cpu"))
    counts.add(rows([True]), torch.tensor([0.9]), 0)
    assert places(counts.compute(lambda tensor: 3 * tensor)) == [{45: 3}, {}, {}]
    assert places(counts.compute(same)) == [{45: 1}, {}, {}]  # the sum is not counted again
