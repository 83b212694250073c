"""The snapshot of the untrained student, whose adapter adds nothing."""

import contextlib

import pytest
import torch
from peft import get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from running import lora
from tiny import ids, tiny_llama

from qcrd_trl.snapshots import Snapshots


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_an_adapter_that_adds_nothing_is_not_computed(tmp_path, error):
    """The untrained student generates for many iterations: its adapter costs a quarter of the time, and must be back after."""
    model = get_peft_model(tiny_llama(), lora())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in name)  # as some recipes train it
    snapshots, row = Snapshots(tmp_path), torch.tensor([ids("a is 3 so")])
    snapshots.save(model, 0, 0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    snapshots.save(model, 1, 1)
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    assert len(layers) == 14
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    own = model(row).logits
    for iteration, is_idle in ((0, True), (1, False)):
        with contextlib.suppress(KeyboardInterrupt), snapshots.activated(model, iteration):
            assert {layer.disable_adapters for layer in layers} == {is_idle}
            assert torch.equal(model(row).logits, tiny_llama()(row).logits if is_idle else own)
            if error is not None:
                raise error
        assert not any(layer.disable_adapters for layer in layers)
        assert {name: p.requires_grad for name, p in model.named_parameters()} == trained
        assert torch.equal(model(row).logits, own)
