"""States and scores at the positions that predict a target."""

import pytest
import torch
from peft import get_peft_model
from recommenders import BACKBONES, CAPPED, batch_of, item_model, language_model
from running import lora
from torch import nn

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.sasrec import SASRecConfig, SASRecModel
from qcrd_trl.recommendation.states import (
    core_model,
    head_of,
    hidden_size,
    label_positions,
    num_layers,
    read_positions,
)


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1], [0, 4, 4, 2]]


def sasrec(**settings) -> SASRecModel:
    torch.manual_seed(0)
    config = SASRecConfig(num_items=9, hidden_size=16, num_hidden_layers=3, initializer_range=0.2, **settings)
    return SASRecModel(config).eval()


MODELS = {
    **{f"items-{kind}": lambda kind=kind: item_model(kind) for kind in BACKBONES},
    **{f"text-{kind}": lambda kind=kind: language_model(kind) for kind in [*BACKBONES, *CAPPED]},
    "sasrec": sasrec,
}


def test_position_t_predicts_label_t_plus_1():
    """Prompt of 3, answer of 2: the answer's tokens 3 and 4 are predicted at 2 and 3. One off, and the student is taught to
    repeat."""
    labels = torch.tensor([[-100, -100, -100, 5, 6], [-100, 3, -100, -100, 4]])
    row, column = label_positions(labels)
    assert row.tolist() == [0, 0, 1, 1]
    assert column.tolist() == [2, 3, 0, 3]
    assert [part.tolist() for part in label_positions(torch.tensor([[7, -100]]))] == [
        [],
        [],
    ]  # nothing predicts label 0


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_those_of_the_whole_pass(name, left):
    """A state of another layer, position or side of the final norm would be imitated just as well."""
    model = MODELS[name]()
    batch = batch_of(ROWS, left=left, extra=2, prompt=2)
    row, column = label_positions(batch["labels"])
    assert row.tolist() == [0, 0, 0, 0, 1, 2, 2]
    positions = {}
    if left and name.startswith("text"):
        positions["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    whole = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        output_hidden_states=True,
        **positions,
    )
    read = read_positions(model, {**batch, "keys": ["x"] * 3}, [3, 1])
    assert list(read.states) == [1, 3]
    for layer, states in read.states.items():
        assert torch.equal(states, whole.hidden_states[layer][row, column])
    assert read.logits.dtype == torch.float32
    assert torch.allclose(read.logits, whole.logits[row, column], atol=1e-6)
    assert read.logits.std() > 0.01
    if name in ("text-gemma2", "text-granite"):  # the head alone gives other logits
        assert not torch.allclose(read.logits, head_of(model)(read.states[3]), atol=1e-2)
    assert read_positions(model, batch, [2]).states[2].shape == (7, 16)
    assert num_layers(model) == 3
    assert hidden_size(model) == 16


@pytest.mark.parametrize("name", ["items-llama", "text-llama", "sasrec"])
def test_the_head_sees_the_positions_alone(name):
    """Scores of all positions of a batch are the largest tensor of a run."""
    model = MODELS[name]()
    seen = []
    handle = head_of(model).register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    batch = batch_of(ROWS)
    read = read_positions(model, batch, [3])
    assert seen == [(1, 10, 9 if name != "text-llama" else 40)]
    without = read_positions(model, batch, [3], with_logits=False)
    assert seen[1][1] == 0
    assert without.logits is None
    assert torch.equal(without.states[3], read.states[3])
    handle.remove()
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks


def test_rows_without_a_target():
    """The last batch of a run may have none."""
    batch = batch_of(ROWS)
    batch["labels"].fill_(-100)
    read = read_positions(item_model(), batch, [1, 3])
    assert read.states[1].shape == (0, 16)
    assert read.logits.shape == (0, 9)


@pytest.mark.parametrize("name", ["items-llama", "text-llama", "text-gpt2"])
def test_under_wrappers(name):
    """A wrapper that is taken off is not called: DDP would average no gradient, and an adapter would not be used."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            self.calls = 0

        def forward(self, **inputs):
            self.calls += 1
            return self.module(**inputs)

    model = MODELS[name]()
    batch = batch_of(ROWS)
    plain = read_positions(model, batch, [1, 3])
    target = ["c_attn"] if name == "text-gpt2" else ["q_proj", "v_proj"]
    adapted = get_peft_model(model, lora(init_lora_weights=False, target_modules=target, task_type=None)).eval()
    wrapped = Wrapper(adapted)
    assert core_model(wrapped) is model
    assert head_of(wrapped) is head_of(model)
    read = read_positions(wrapped, batch, [1, 3])
    assert wrapped.calls == 1
    assert torch.equal(read.logits, read_positions(adapted, batch, [1, 3]).logits)
    assert not torch.allclose(read.logits, plain.logits, atol=1e-4)
    with adapted.disable_adapter():
        assert torch.equal(read_positions(wrapped, batch, [1, 3]).logits, plain.logits)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", ["items-llama", "text-gpt2", "sasrec"])
def test_gradients_pass_through_them(name, use_reentrant):
    """States that are read inside a checkpointed layer may carry no gradient, and the student learns nothing by them."""
    grads = []
    for checkpointed in (False, True):
        model = (sasrec(dropout=0.0) if name == "sasrec" else MODELS[name]()).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        read = read_positions(model, batch_of(ROWS), [1, 2, 3])
        weights = torch.linspace(-1, 1, 16)
        loss = sum((states * weights).square().sum() for states in read.states.values()) + read.logits.square().sum()
        loss.backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(value is not None and value.abs().sum() > 0 for value in grads[0].values())
    for key, value in grads[0].items():
        assert torch.allclose(value, grads[1][key], rtol=1e-4, atol=1e-3), key


def test_states_without_their_gradient_are_an_error():
    """Older forms of reentrant checkpointing give such states."""
    model = item_model().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.backbone.layers[0].register_forward_hook(lambda module, args, output: output.detach())
    with pytest.raises(ModelError, match="layer 1 carry no gradient under this gradient checkpointing"):
        read_positions(model, batch_of(ROWS), [1, 3])
    with torch.no_grad():
        read_positions(model, batch_of(ROWS), [1, 3])


def test_what_cannot_be_read_is_named():
    """A layer that is not there must not be the last one, as an index of -1 would give."""
    model = item_model()
    for layer in (0, 4, -1):
        with pytest.raises(ConfigError, match=f"The model has the layers 1 to 3, got layer {layer}"):
            read_positions(model, batch_of(ROWS), [1, layer])
    with pytest.raises(ModelError, match="Expected a model of transformers, got Linear"):
        read_positions(nn.Linear(2, 2), batch_of(ROWS), [1])
    with pytest.raises(ModelError, match="LlamaModel has no output head"):
        head_of(model.backbone)
    model.config.backbone_config.num_hidden_layers = 4
    with pytest.raises(ModelError, match="has no list of its 4 layers"):
        read_positions(model, batch_of(ROWS), [1, 4])


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_under_ddp(one_process):
    """DDP averages gradients in hooks of its own forward: a model that is called past it trains in each process alone."""
    seen, grads = [], []
    for wrap in (lambda model: model, nn.parallel.DistributedDataParallel):
        model = wrap(item_model().train())
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model.register_comm_hook(seen, note)
        read = read_positions(model, batch_of(ROWS), [2, 3])
        (sum(states.square().sum() for states in read.states.values()) + read.logits.square().sum()).backward()
        grads.append({name: p.grad.clone() for name, p in core_model(model).named_parameters()})
        assert bool(seen) == isinstance(model, nn.parallel.DistributedDataParallel)
    assert all(torch.equal(value, grads[1][name]) for name, value in grads[0].items())


def note(seen: list, bucket):
    """What DDP calls with each bucket of gradients that is to be averaged."""
    seen.append(bucket.index())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
