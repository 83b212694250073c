"""What a refresh leaves behind in the student, its optimizer and the random state: nothing, also when it fails."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from generating import LORA, Watch, generating, kept_snapshots, questions, refreshes, sharp_llama, watch
from peft import get_peft_model
from running import largest_difference, logged, lora, trainer_of, weights

from qcrd_trl import SelfAdversarialCallback


DROPOUT = {"attention_dropout": 0.3}


def student(adapter=True):
    """A student with dropout; with an adapter, also one that is not trained."""
    torch.manual_seed(3)
    if not adapter:
        return sharp_llama(**DROPOUT)
    model = get_peft_model(sharp_llama(**DROPOUT), lora(lora_dropout=0.3))
    model.add_adapter("other", lora(r=2, init_lora_weights=False))
    return model


@dataclass
class State:
    """All that generation could change, as it is now: what is compared by `==` in `plain`, tensors in `tensors`."""

    trainer: object
    plain: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)

    def __post_init__(self):
        trainer, model = self.trainer, self.trainer.model
        self.trainer = None
        self.plain["modes"] = {name: module.training for name, module in model.named_modules()}
        self.plain["requires_grad"] = {name: p.requires_grad for name, p in model.named_parameters()}
        self.plain["objects"] = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
        self.plain["optimized"] = [id(p) for group in trainer.optimizer.param_groups for p in group["params"]]
        self.plain["python"], numpy_state = random.getstate(), np.random.get_state()
        self.plain["numpy"] = (numpy_state[1].tolist(), numpy_state[2:])
        self.plain["padding_side"] = trainer.processing_class.padding_side
        self.plain["adapter"] = str(getattr(model, "active_adapter", None))
        self.plain["use_cache"] = model.config.use_cache
        self.plain["checkpointing"] = [getattr(m, "gradient_checkpointing", None) for m in model.modules()]
        self.plain["generation"] = model.generation_config.to_dict()
        self.plain["config"] = model.config.to_dict()
        self.tensors |= weights(model)
        self.tensors["torch"] = torch.get_rng_state()
        states = trainer.optimizer.state_dict()["state"]
        self.tensors |= {f"optimizer.{i}.{name}": t.clone() for i, s in states.items() for name, t in s.items()}
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        self.tensors |= {f"grad.{name}": grad.clone() for name, grad in grads.items()}

    def check(self, other):
        assert self.plain == other.plain
        assert largest_difference(self.tensors, other.tensors) == 0


def stirred(trainer):
    """A state that no code would set by itself: modes that differ by module, another padding side, a pending gradient."""
    layers = [module for name, module in trainer.model.named_modules() if name.endswith("layers.0")]
    layers[0].eval()
    assert layers[0].training != trainer.model.training
    trainer.processing_class.padding_side = "right"
    parameter = next(p for p in trainer.model.parameters() if p.requires_grad)
    parameter.grad = torch.ones_like(parameter)
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    return State(trainer)


def stirring(tmp_path, adapter, **overrides):
    """A trainer whose state is stirred and noted before the callback of each step, and the notes."""
    holder = {}
    before = Watch(lambda state: stirred(holder["trainer"]))
    trainer = holder["trainer"] = generating(
        tmp_path, student(adapter), parts={"callbacks": [before]}, negative_lag=2, **overrides
    )
    return trainer, before.seen


@pytest.mark.parametrize("overrides", [{}, {"gradient_checkpointing": True}, {"bf16": True}])
@pytest.mark.parametrize("adapter", [True, False])
def test_a_refresh_leaves_all_as_it_was(tmp_path, adapter, overrides):
    """A module left in eval mode, a flag or a random state that moved bends the run from then on, at a plausible loss."""
    trainer, before = stirring(tmp_path, adapter, **overrides)
    after = watch(trainer, lambda state: State(trainer))
    trainer.train()
    assert refreshes(trainer) == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 1)]
    assert len(before) == len(after) == 4
    for one, other in zip(before, after, strict=True):
        one.check(other)
    # Not in vain: weights, modes and optimizer differ by step and module.
    assert largest_difference(weights_of(before[1]), weights_of(before[2])) > 0.01
    assert set(before[0].plain["modes"].values()) == {True, False}
    assert any(name.startswith("optimizer.") for name in before[1].tensors)


def weights_of(state):
    return {name: t for name, t in state.tensors.items() if "lora_B" in name or name.endswith("mlp.up_proj.weight")}


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("adapter", [True, False])
def test_the_student_is_itself_again_after_an_error(tmp_path, monkeypatch, adapter, error):
    """Whoever saves the student after Ctrl-C would save an earlier one, in eval mode, and see nothing."""
    trainer, before = stirring(tmp_path, adapter)
    generate, meanwhile = trainer.model.generate, []

    def fails(*args, **kwargs):
        out = generate(*args, **kwargs)
        if trainer.state.global_step == 2:
            meanwhile.append(State(trainer))
            raise error
        return out

    monkeypatch.setattr(trainer.model, "generate", fails)
    with pytest.raises(type(error)):
        trainer.train()
    assert len(before) == 3
    before[2].check(State(trainer))
    # At that moment another student was in place: that of iteration 0, in eval mode.
    [then] = meanwhile
    assert largest_difference(weights_of(then), weights_of(before[0])) == 0
    assert largest_difference(weights_of(then), weights_of(before[2])) > 0.01
    assert not any(then.plain["modes"].values())
    assert kept_snapshots(tmp_path) == [0, 1, 2]
    assert {n.iteration for _, n in trainer.negatives} == {1}

    monkeypatch.undo()
    trainer.train()  # goes on to the end, anew
    assert len(refreshes(trainer)) == 4
    assert {n.iteration for _, n in trainer.negatives} == {3}


@pytest.mark.parametrize("adapter", [True, False])
def test_negatives_that_no_loss_reads_change_nothing(tmp_path, adapter):
    """The callback's own mark on a run, whatever it is, would be taken for the effect of the negatives."""
    runs = []
    for attached in (False, True):
        trainer = trainer_of(
            tmp_path / str(attached), student(adapter), questions(), per_device_train_batch_size=2, max_steps=5,
            gradient_accumulation_steps=2, optim="adamw_torch", learning_rate=0.01,
        )  # fmt: skip
        if attached:
            trainer.add_callback(SelfAdversarialCallback(trainer, refresh_steps=1, lag=1, max_new_tokens=8))

            def emptied(state, store=trainer.negatives):
                found = len(store)
                store.replace(store.iteration, {})
                return found

            found = watch(trainer, emptied)
        states = watch(trainer, lambda state, trainer=trainer: State(trainer))
        trainer.train()
        runs.append((trainer, states))
    assert min(found) > 0
    (one, states), (other, other_states) = runs
    assert len(states) == 5
    assert logged(one) == logged(other)
    for state, other_state in zip(states, other_states, strict=True):
        state.plain.pop("objects"), other_state.plain.pop("objects")
        state.plain.pop("optimized"), other_state.plain.pop("optimized")
        state.check(other_state)
    assert largest_difference(weights(one.model), weights(other.model)) == 0
    assert largest_difference(weights(one.discriminator), weights(other.discriminator)) == 0
    assert not refreshes(one)
    assert len(refreshes(other)) == 5


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("adapter", [True, False])
def test_gradient_checkpointing_changes_no_loss(tmp_path, adapter, reentrant):
    """Checkpointing that a refresh switches off costs the memory it was set for; a cache dropped under it, the negatives."""
    runs = []
    for checkpointing in (False, True):
        trainer = generating(
            tmp_path / str(checkpointing), sharp_llama(), parts=LORA if adapter else None,
            gradient_checkpointing=checkpointing, gradient_checkpointing_kwargs={"use_reentrant": reentrant},
        )  # fmt: skip
        flags = watch(trainer, lambda state, model=trainer.model: model.is_gradient_checkpointing)
        before = weights(trainer.model)
        trainer.train()
        assert flags == [checkpointing] * 4
        runs.append((trainer, before))
    (one, before), (other, _) = runs
    assert dict(one.negatives) == dict(other.negatives)
    assert len(one.negatives) > 0
    assert logged(one) == logged(other)
    assert largest_difference(weights(one.model), weights(other.model)) == 0
    names = [name for name in before if "lora_B" in name or (not adapter and "proj" in name)]
    assert names
    assert not any(torch.equal(before[name], weights(other.model)[name]) for name in names)
