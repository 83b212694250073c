"""Which rows the next steps will read: told ahead, and compared with what a prepared data loader then yields."""

import math

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from running import trainer_of
from tiny import ragged_rows
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, WeightedRandomSampler

from qcrd_trl.data.upcoming import steps_per_epoch, upcoming_rows


BATCH = 4


def prepared(rows=13, shuffle=True, processes=1, process=0, seed=7, split=False, **kwargs):
    """What `Trainer` gets of `Accelerator.prepare` on one of several processes."""
    loader = DataLoader(range(rows), batch_size=BATCH, shuffle=shuffle, collate_fn=list, **kwargs)
    return prepare_data_loader(
        loader,
        num_processes=processes,
        process_index=process,
        split_batches=split,
        put_on_device=False,
        use_seedable_sampler=True,
        data_seed=seed,
    )


def read(loaders, accumulation, epochs):
    """Rows that each optimizer step reads, on all processes together, when a trainer goes through the epochs."""
    steps = []
    for epoch in range(epochs):
        batches = []
        for loader in loaders:
            loader.set_epoch(epoch)
            batches.append(list(loader))
        assert len({len(own) for own in batches}) == 1
        for start in range(0, len(batches[0]), accumulation):
            steps.append({row for own in batches for batch in own[start : start + accumulation] for row in batch})
    return steps


WINDOWS = [(first, length) for first in range(7) for length in (1, 2, 5, 9)]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("rows", "drop_last"), [(12, False), (13, False), (3, False), (12, True), (13, True)])
def test_told_ahead_is_what_is_read(rows, shuffle, drop_last, accumulation):
    """A row that is read but was not told has no negatives in its iteration; one told in vain costs its sampling."""
    loader = prepared(rows, shuffle, drop_last=drop_last)
    steps = read([prepared(rows, shuffle, drop_last=drop_last)], accumulation, epochs=16)
    assert steps_per_epoch(loader, accumulation) == len(steps) / 16
    assert steps[0]
    for first, length in WINDOWS:
        expected = set().union(*steps[first : first + length])
        told = upcoming_rows(loader, first, length, accumulation)
        # Rows that are dropped at the end of an epoch may be told with the micro-batches of its last step.
        spare = BATCH - 1 if drop_last and accumulation > 1 else 0
        assert expected <= told
        assert len(told - expected) <= spare * math.ceil(length / (len(steps) // 16))
    if shuffle and rows > BATCH:
        assert upcoming_rows(loader, 0, 1) != upcoming_rows(loader, steps_per_epoch(loader, 1), 1)


def test_told_ahead_by_hand():
    """10 rows by 4 are three steps an epoch, the last of two rows; with accumulation 2 they are two."""
    loader = prepared(10, shuffle=False)
    assert upcoming_rows(loader, 0, 1) == {0, 1, 2, 3}
    assert upcoming_rows(loader, 2, 1) == {8, 9}
    assert upcoming_rows(loader, 2, 2) == {8, 9, 0, 1, 2, 3}
    assert upcoming_rows(loader, 4, 1) == {4, 5, 6, 7}
    assert upcoming_rows(loader, 0, 0) == set()
    assert upcoming_rows(loader, 0, 1, accumulation=2) == set(range(8))
    assert upcoming_rows(loader, 3, 1, accumulation=2) == {8, 9}
    assert [steps_per_epoch(loader, accumulation) for accumulation in (1, 2, 3, 4)] == [3, 2, 1, 1]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("rows", "drop_last"), [(5, False), (13, False), (16, False), (37, False), (13, True), (37, True)]
)
def test_told_ahead_for_two_processes(rows, drop_last, accumulation):
    """Each process trains on its own batches, and all sample together: what one of them reads must not be missing."""
    check_two_processes(accumulation, rows=rows, drop_last=drop_last)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_told_ahead_for_batches_that_are_split(accumulation):
    """`accelerator_config={"split_batches": True}` shares each batch out: the batch size is that of all processes."""
    check_two_processes(accumulation, rows=37, split=True)


def check_two_processes(accumulation, **kwargs):
    loaders = [prepared(processes=2, process=process, **kwargs) for process in range(2)]
    steps = read([prepared(processes=2, process=process, **kwargs) for process in range(2)], accumulation, epochs=16)
    per_epoch = steps_per_epoch(loaders[0], accumulation)
    assert per_epoch == len(steps) / 16
    for first, length in WINDOWS:
        expected = set().union(*steps[first : first + length])
        told = [upcoming_rows(loader, first, length, accumulation, num_processes=2) for loader in loaders]
        assert told[0] == told[1]
        assert expected <= told[0]
        # The last batches of an epoch may be filled up from its first ones, which are told with them.
        epochs = (first + length - 1) // per_epoch - first // per_epoch + 1
        assert len(told[0] - expected) <= epochs * BATCH * accumulation * 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_asking_does_not_move_the_loader(shuffle):
    """A sampler or a random state that moves when asked gives a run with negatives other rows than one without."""
    asked, plain = prepared(shuffle=shuffle), prepared(shuffle=shuffle)
    sampler = asked.batch_sampler.sampler

    def state():
        generator = getattr(sampler, "generator", None)
        own = None if generator is None else generator.get_state().tolist()
        return own, getattr(sampler, "epoch", None), asked.iteration, torch.get_rng_state().tolist()

    epochs = []
    for _ in range(3):
        epochs.append([])
        for batch in asked:
            epochs[-1].append(batch)
            before = state()
            assert (before[0] is not None) == shuffle
            assert upcoming_rows(asked, 5, 9)
            assert state() == before
    assert epochs == [list(plain) for _ in range(3)]
    assert (epochs[0] != epochs[1]) == shuffle


class _Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))


class _Batches(BatchSampler):
    """Batches of its own making."""


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(range(12), batch_size=4, shuffle=True),  # draws its seed when it begins
        DataLoader(range(12), batch_size=4, sampler=WeightedRandomSampler([1.0] * 12, 12)),
        DataLoader(range(12), batch_sampler=_Batches(SequentialSampler(range(12)), 4, False)),
        DataLoader(range(12), batch_size=None),
        DataLoader(_Stream(), batch_size=4),
        prepare_data_loader(DataLoader(_Stream(), batch_size=4), num_processes=1, process_index=0),
    ],
    ids=["random", "weighted", "batches", "no-batches", "stream", "prepared-stream"],
)
def test_an_order_that_is_not_known_ahead(loader):
    """A guess would leave the questions that are read without negatives; not knowing samples all."""
    assert upcoming_rows(loader, 0, 2) is None


def test_an_epoch_without_a_length():
    """It must not read as an epoch of no step."""
    assert steps_per_epoch(DataLoader(_Stream(), batch_size=4), 1) is None
    assert steps_per_epoch(prepared(3), 8) == 1


@pytest.mark.parametrize("strategy", ["random", "sequential", "group_by_length"])
def test_the_loader_of_a_trainer(tmp_path, strategy):
    """The wrappers are those of another library: where they change, every row would count as read, or none."""
    trainer = trainer_of(
        tmp_path,
        rows=[{**row, "positive_rationales": ["a"]} for row in ragged_rows(10)],
        train_sampling_strategy=strategy,
        per_device_train_batch_size=BATCH,
        data_seed=5,
    )
    loader = trainer.get_train_dataloader()
    steps = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        if strategy == "group_by_length":
            loader.batch_sampler.sampler.set_epoch(epoch)
        steps += [set(batch["question_index"].tolist()) for batch in loader]
    assert [len(step) for step in steps] == [4, 4, 2] * 2
    assert [upcoming_rows(loader, step, 1) for step in range(6)] == steps
    assert upcoming_rows(loader, 2, 3) == steps[2] | steps[3] | steps[4]
    assert (steps[0] != steps[3]) == (strategy != "sequential")
