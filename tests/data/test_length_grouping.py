"""Questions of like length in a batch, in an order that nothing but the seed and the epoch decides."""

import itertools

from running import logged, trainer_of, weights
from tiny import ragged_rows

from qcrd_trl.data.length_grouping import LengthGroupedSampler
from qcrd_trl.data.upcoming import upcoming_rows


LENGTHS = [(37 * i) % 101 for i in range(101)]


def batches(order, size=4):
    return [order[i : i + size] for i in range(0, len(order), size)]


def test_batches_are_of_like_length_and_in_random_order():
    """Sorted outright, the last steps of each epoch would see the longest texts alone."""
    order = list(LengthGroupedSampler(LENGTHS, 4, batches_per_group=25))
    assert sorted(order) == list(range(101))
    spans = [max(LENGTHS[i] for i in batch) - min(LENGTHS[i] for i in batch) for batch in batches(order)[:-1]]
    assert max(spans) <= 8  # 25 batches of 4 neighbours in 101 lengths
    assert len(batches(order)[-1]) == 1
    means = [sum(LENGTHS[i] for i in batch) for batch in batches(order)[:-1]]
    rises = sum(a < b for a, b in itertools.pairwise(means))
    assert 6 <= rises <= 18


def test_the_order_is_a_function_of_seed_and_epoch():
    """An order that depends on what was drawn before is another one after resuming, or on another process."""
    sampler, other = LengthGroupedSampler(LENGTHS, 4, seed=3), LengthGroupedSampler(LENGTHS, 4, seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second
    other.set_epoch(1)
    assert list(other) == second
    assert list(LengthGroupedSampler(LENGTHS, 4, seed=4)) != first
    # A group is drawn anew in each epoch, and with it who shares a batch.
    assert {frozenset(b) for b in batches(first)} & {frozenset(b) for b in batches(second)} == set()


def test_fewer_questions_than_a_batch():
    """The smallest dataset must be drawn too."""
    assert sorted(LengthGroupedSampler([3, 1], 4)) == [0, 1]
    assert list(LengthGroupedSampler([], 4)) == []


def run(folder, steps, resume=None, **overrides):
    trainer = trainer_of(
        folder,
        rows=ragged_rows(14),
        train_sampling_strategy="group_by_length",
        per_device_train_batch_size=3,
        max_steps=steps,
        save_strategy="steps",
        save_steps=7,
        **overrides,
    )
    seen = []
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: seen.append([row["question_index"] for row in rows]) or collate(rows)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


def test_a_resumed_run_draws_the_same_questions(tmp_path):
    """In the middle of its second epoch a run that was stopped would see some questions twice and others never."""
    whole, seen = run(tmp_path / "whole", 12)
    resumed, rest = run(tmp_path / "resumed", 12, resume=str(tmp_path / "whole" / "checkpoint-7"))
    assert seen[5:10] != seen[:5]
    assert rest[:5] == seen[7:12]  # the loader may have fetched another one ahead
    assert logged(whole)[7:] == logged(resumed)[7:]
    assert all(weights(whole.model)[name].equal(tensor) for name, tensor in weights(resumed.model).items())


def test_what_comes_is_known_ahead(tmp_path):
    """Negatives are generated for the questions that the next steps read: for others they are generated in vain."""
    trainer, seen = run(tmp_path, 12)
    loader = trainer.get_train_dataloader()
    for first, number in ((0, 2), (3, 4), (7, 5)):
        expected = {index for batch in seen[first : first + number] for index in batch}
        assert upcoming_rows(loader, first, number) == expected
