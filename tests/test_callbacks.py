"""When negatives are generated, by which snapshot of the student, for which questions, and which snapshots are kept."""

import pytest
from generating import (
    LORA,
    generating,
    kept_snapshots,
    questions,
    questions_sampled,
    questions_trained,
    rationales_scored,
    refreshes,
    sharp_llama,
    shortfall,
    watch,
)
from peft import PeftModel, get_peft_model
from running import lora, moved, weights
from safetensors.torch import load_file
from tiny import tiny_llama


@pytest.mark.parametrize(
    ("lag", "snapshots", "kept"),
    [
        # max(i - lag, 0), and the lag + 1 newest.
        (1, [0, 0, 1, 2, 3, 4, 5], [[0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]),
        (2, [0, 0, 0, 1, 2, 3, 4], [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]),
        (
            5,
            [0, 0, 0, 0, 0, 0, 1],
            [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [*range(6)], [*range(1, 7)]],
        ),
    ],
)
def test_the_snapshot_of_some_iterations_ago_generates(tmp_path, lag, snapshots, kept):
    """Off by one, the student would learn from negatives that are its own of today, or a snapshot too old is lost."""
    trainer = generating(tmp_path, parts=LORA, negative_lag=lag, max_steps=7)
    there = watch(trainer, lambda state: kept_snapshots(tmp_path))
    trainer.train()
    assert refreshes(trainer) == [(i, i, snapshot) for i, snapshot in enumerate(snapshots)]
    assert there == kept
    assert kept_snapshots(tmp_path) == kept[-1]
    assert {(n.iteration, n.snapshot) for _, n in trainer.negatives} == {(6, snapshots[-1])}


def test_fixed_is_always_the_student_before_training(tmp_path):
    """A later snapshot, or one that is saved and never used, would be another source under the same name."""
    trainer = generating(tmp_path, parts=LORA, negative_source="fixed", negative_lag=2)
    there = watch(trainer, lambda state: (kept_snapshots(tmp_path), {n.snapshot for _, n in trainer.negatives}))
    trainer.train()
    assert refreshes(trainer) == [(i, i, 0) for i in range(4)]
    assert there == [([0], {0})] * 4


@pytest.mark.parametrize(
    ("refresh", "shape", "at"),
    [
        # 8 questions, 2 at a time: an epoch has 4 steps, or 2 where two micro-batches make one.
        (None, {"max_steps": 9}, [0, 4, 8]),
        (None, {"max_steps": 8}, [0, 4]),
        (None, {"max_steps": 5, "gradient_accumulation_steps": 2}, [0, 2, 4]),
        (3, {"max_steps": 7}, [0, 3, 6]),
        (3, {"max_steps": 6}, [0, 3]),
        (6, {"max_steps": 7}, [0, 6]),
        (1.0, {"max_steps": 2}, [0, 1]),
        (0.5, {"max_steps": 6}, [0, 2, 4]),
        (0.25, {"max_steps": 3}, [0, 1, 2]),
        (0.01, {"max_steps": 3}, [0, 1, 2]),
        (0.5, {"max_steps": -1, "num_train_epochs": 1, "gradient_accumulation_steps": 2}, [0, 1]),
        # 5 steps an epoch, the last of one question.
        (None, {"max_steps": 6, "rows": questions(9)}, [0, 5]),
    ],
)
def test_an_iteration_is_so_many_steps_or_a_part_of_an_epoch(tmp_path, refresh, shape, at):
    """An iteration of another length shifts the lag and the decay of alpha_3; one after the last step is time lost."""
    trainer = generating(tmp_path, negative_refresh_steps=refresh, negative_lag=9, **shape)
    iterations = watch(trainer, lambda state: trainer.iteration)
    trainer.train()
    assert refreshes(trainer) == [(step, i, 0) for i, step in enumerate(at)]
    assert kept_snapshots(tmp_path) == [*range(len(at))]
    # alpha_3 decays at the same steps.
    assert [step for step in range(len(iterations)) if step == 0 or iterations[step] != iterations[step - 1]] == at


@pytest.mark.parametrize("adapter", [True, False])
def test_negatives_are_what_the_model_of_that_time_samples(tmp_path, adapter):
    """Weights put in place in part, dropout left on, padding attended to: negatives of a student that never was."""
    student = sharp_llama(attention_dropout=0.5)
    parts = {"peft_config": lora(lora_dropout=0.5)} if adapter else None
    trainer = generating(tmp_path, student, parts=parts, negative_refresh_steps=2, max_steps=6, negative_batch_size=3)
    before = watch(trainer, lambda state: weights(trainer.model))
    trainer.train()
    assert refreshes(trainer) == [(0, 0, 0), (2, 1, 0), (4, 2, 1)]

    def model_of(iteration):
        folder = tmp_path / "negative_generators" / f"iteration-{iteration:04d}"
        if adapter:
            return PeftModel.from_pretrained(sharp_llama(), folder)
        return type(student).from_pretrained(folder)

    prompts = {row["id"]: row["explain_prompt_ids"] for row in trainer.train_dataset}
    assert len(trainer.negatives) > 2
    short = {}
    for number in (1, 2):
        model = model_of(number)
        mine = {name: t for name, t in weights(model).items() if ("lora_" in name) == adapter}
        assert mine
        assert not moved(mine, {name: before[2 * number][name] for name in mine})
        short[number] = [shortfall(model, prompts[key], n) for key, n in trainer.negatives]
    assert max(short[1]) < 1e-4
    assert max(short[2]) > 0.1
    for _, n in trainer.negatives:
        assert n.temperature == 1.5
        assert n.text == trainer.processing_class.decode(n.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("adapter", [True, False])
def test_iteration_0_is_the_untrained_student(tmp_path, adapter):
    """The first negatives must not depend on what the callback or the discriminator does before the first step."""
    trainer = generating(
        tmp_path, parts=LORA if adapter else None, max_steps=1, negative_batch_size=3, per_device_train_batch_size=8,
    )  # fmt: skip
    trainer.train()
    prompts = {row["id"]: row["explain_prompt_ids"] for row in trainer.train_dataset}
    assert len(trainer.negatives) > 5
    assert len({n.seed for _, n in trainer.negatives}) == len(trainer.negatives)
    # An adapter does nothing before it is trained.
    assert max(shortfall(sharp_llama(), prompts[key], n) for key, n in trainer.negatives) < 1e-4
    assert max(shortfall(trainer.model, prompts[key], n) for key, n in trainer.negatives) > 0.01


def test_a_snapshot_is_a_plain_adapter(tmp_path):
    """A folder that only this package reads could not serve vLLM; one of all adapters would hold what is not trained."""
    model = get_peft_model(tiny_llama(), lora(init_lora_weights=False))
    model.add_adapter("other", lora(r=2))
    trainer = generating(tmp_path, model)
    before = weights(trainer.model)
    trainer.train()
    folder = tmp_path / "negative_generators" / "iteration-0002"
    assert {p.name for p in folder.iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "snapshot.json",
    }  # fmt: skip
    stored = load_file(folder / "adapter_model.safetensors")
    assert {name.replace(".weight", ".default.weight") for name in stored} == {n for n in before if ".default." in n}
    assert all("other" not in path.name for path in (tmp_path / "negative_generators").rglob("*"))


@pytest.mark.parametrize(
    ("refresh", "shape"),
    [
        (1, {"max_steps": 6}),
        (2, {"max_steps": 7}),  # the last iteration has one step
        (3, {"max_steps": 4}),
        # 3 steps an epoch, the last of one question.
        (2, {"max_steps": 5, "rows": questions(9), "gradient_accumulation_steps": 2}),
        (2, {"max_steps": 5, "rows": questions(9), "dataloader_drop_last": True}),
    ],
)
def test_only_questions_that_come_are_asked(tmp_path, monkeypatch, refresh, shape):
    """Questions of other steps are time lost; one that comes and was not asked trains without a negative, unseen."""
    asked = questions_sampled(monkeypatch)
    trainer = generating(tmp_path, negative_refresh_steps=refresh, **shape)
    batches = questions_trained(trainer)
    trainer.train()
    accumulation = trainer.args.gradient_accumulation_steps
    per_epoch = 5 if len(trainer.train_dataset) == 9 and not trainer.args.dataloader_drop_last else 4
    steps = []  # questions of each
    while batches:
        epoch, batches = batches[:per_epoch], batches[per_epoch:]
        steps += [set().union(*epoch[start : start + accumulation]) for start in range(0, len(epoch), accumulation)]
    assert len(steps) == trainer.state.max_steps
    together = [set().union(*steps[start : start + refresh]) for start in range(0, len(steps), refresh)]
    assert asked == [sorted(keys) for keys in together]
    assert min(map(len, asked)) < len(trainer.train_dataset)


def test_all_are_asked_where_the_order_is_not_known_ahead(tmp_path, monkeypatch):
    """A guess at the order would leave questions without negatives."""
    asked = questions_sampled(monkeypatch)
    generating(tmp_path, max_steps=2, accelerator_config={"use_seedable_sampler": False}).train()
    assert asked == [[f"q{i}" for i in range(8)]] * 2


def test_a_question_without_a_positive_is_not_asked(tmp_path, monkeypatch):
    """The loss compares the two: such a negative would be sampled for nothing."""
    rows = [{**row, "positive_rationales": row["positive_rationales"][: i % 3]} for i, row in enumerate(questions())]
    asked = questions_sampled(monkeypatch)
    generating(tmp_path, rows=rows, negative_refresh_steps=4).train()
    assert asked == [["q1", "q2", "q4", "q5", "q7"]]


def test_the_next_step_sees_a_refresh_whatever_fetches_its_batch(tmp_path, monkeypatch):
    """Batches are fetched ahead: read there, negatives would be those of earlier iterations, by the workers' number."""
    seen, losses = [], []
    for workers in (0, 2):
        trainer = generating(
            tmp_path / str(workers), parts=LORA, dataloader_num_workers=workers, gradient_accumulation_steps=2,
            max_steps=2,
        )  # fmt: skip
        there = watch(trainer, lambda state, store=trainer.negatives: {key: n.token_ids for key, n in store})
        scored = rationales_scored(trainer, monkeypatch)
        trainer.train()
        # Weights of mean 1 need the two micro-batches of a step scored before the first gradient, and then again.
        assert len(scored) == 8
        by_step = [set(), set()]
        for number, rows in enumerate(scored):
            by_step[number // 4] |= {(key[:2], ids) for key, all_ids in rows.items() if "-" in key for ids in all_ids}
        assert by_step == [set(negatives.items()) for negatives in there]
        seen.append(by_step)
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert seen[0] == seen[1]
    assert seen[0][0]
    assert seen[0][0].isdisjoint(seen[0][1])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2


def test_a_resumed_run_that_skips_no_data(tmp_path, monkeypatch):
    """It reads its epoch from the start again: asked for the rest of it, no question of the loss has a negative."""
    save = {"save_strategy": "steps", "save_steps": 2}
    generating(tmp_path, max_steps=2, **save).train()
    trainer = generating(tmp_path, max_steps=4, ignore_data_skip=True, **save)
    asked, batches = questions_sampled(monkeypatch), questions_trained(trainer)
    trainer.train(resume_from_checkpoint=True)
    assert len(batches) == 2
    assert all(set(batch) <= set(names) for batch, names in zip(batches, asked, strict=True))


@pytest.mark.parametrize("source", ["self", "fixed"])
def test_a_run_that_is_prolonged_is_the_run_that_was_planned_so(tmp_path, monkeypatch, source):
    """Asked up to its last step only, the questions behind it would be trained without negatives, unseen."""
    shape = {"parts": LORA, "negative_source": source, "save_strategy": "steps", "save_steps": 6}
    shape["negative_refresh_steps"] = 4
    whole = generating(tmp_path / "whole", max_steps=8, **shape)
    whole.train()
    asked = questions_sampled(monkeypatch)
    short = generating(tmp_path / "short", max_steps=6, **shape)
    short.train()
    longer = generating(tmp_path / "short", max_steps=8, **shape)
    longer.train(resume_from_checkpoint=True)
    assert [len(names) for names in asked] == [8, 4, 4]
    assert sorted(asked[1] + asked[2]) == asked[0]
    assert refreshes(longer) == [(0, 0, 0), (4, 1, 0), (6, 1, 0)]
    assert kept_snapshots(tmp_path / "short") == kept_snapshots(tmp_path / "whole")
    negatives = [{key: n.token_ids for key, n in trainer.negatives} for trainer in (whole, longer)]
    assert negatives[0] == negatives[1]
    assert not moved(weights(whole.model), weights(longer.model))
    assert len(negatives[0]) > 5
