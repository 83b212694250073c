"""Snapshots of a student: what is written, that it is put in place and taken out exactly, and what is refused."""

import contextlib
import json
import shutil

import pytest
import torch
from peft import PeftModel, get_peft_model
from running import largest_difference, lora, moved, weights
from safetensors.torch import load_file
from tiny import ids, tiny_gpt2, tiny_llama, tiny_t5
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from qcrd_trl.errors import ModelError
from qcrd_trl.files import UNFINISHED
from qcrd_trl.sampling.generate import inference_mode
from qcrd_trl.snapshots import Snapshots, fingerprint


ADAPTERS = {
    "lora": (tiny_llama, {}),
    "dora": (tiny_llama, {"use_dora": True}),
    "bias": (lambda **kw: tiny_llama(attention_bias=True, **kw), {"bias": "lora_only", "target_modules": ["q_proj"]}),
    "head": (tiny_llama, {"modules_to_save": ["lm_head"], "target_modules": ["q_proj", "v_proj"]}),
    "tokens": (tiny_llama, {"trainable_token_indices": [3, 9], "target_modules": ["q_proj"]}),
    "t5-lora": (tiny_t5, {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v", "wo"]}),
}
WHOLE = {"llama": tiny_llama, "gpt2": tiny_gpt2, "t5": tiny_t5}
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


def student(name="lora", seed=0):
    """A student whose trained weights, every one of them, are not as they began."""
    if name in WHOLE:
        return shaken(WHOLE[name](), seed)
    build, options = ADAPTERS[name]
    return shaken(get_peft_model(build(), lora(**options)), seed)


@torch.no_grad()
def shaken(model, seed):
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def forward(model):
    inputs = {"input_ids": torch.tensor([ids("a + 3 is"), ids("b c d e")])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([ids("<pad> b c")] * 2)
    return model(**inputs).logits


@torch.no_grad()
def logits(model):
    return forward(model.eval())


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.1)


def train(model, optimizer, steps):
    for _ in range(steps):
        forward(model).logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def auto(model):
    return AutoModelForSeq2SeqLM if model.config.is_encoder_decoder else AutoModelForCausalLM


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_loads_without_this_package(tmp_path, name):
    """A snapshot that loads with keys left over or missing is another student, and PEFT only warns of it."""
    ADAPTERS[name][0]().save_pretrained(tmp_path / "base")
    load = auto(student(name)).from_pretrained
    model = shaken(get_peft_model(load(tmp_path / "base"), lora(**ADAPTERS[name][1])), seed=1)
    then = logits(model)
    path = Snapshots(tmp_path / "run").save(model, 3, step=12)
    model.save_pretrained(tmp_path / "peft")
    assert not torch.equal(logits(shaken(model, seed=2)), then)
    names = {"README.md", "adapter_config.json", "adapter_model.safetensors", "snapshot.json"}
    assert {p.name for p in (tmp_path / "run" / "iteration-0003").iterdir()} == names
    assert all((path / p.name).read_bytes() == p.read_bytes() for p in (tmp_path / "peft").iterdir())
    assert json.loads((path / "adapter_config.json").read_bytes())["base_model_name_or_path"] == str(tmp_path / "base")
    assert torch.equal(logits(PeftModel.from_pretrained(load(tmp_path / "base"), path)), then)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_weights_load_without_this_package(tmp_path, name):
    """Tied weights are one tensor under several names: kept twice they take space, and lost they are drawn anew."""
    model = student(name)
    then = logits(model)
    path = Snapshots(tmp_path).save(model, 0, step=0)
    assert not torch.equal(logits(shaken(model, seed=2)), then)
    assert torch.equal(logits(auto(model).from_pretrained(path)), then)
    assert sum(t.numel() for t in load_file(path / WEIGHTS[1]).values()) == sum(p.numel() for p in model.parameters())


def around(model, optimizer):
    """What must not move, and what says so."""
    flags = [(n, id(p), p.data_ptr(), p.requires_grad) for n, p in model.named_parameters()]
    modes = [module.training for module in model.modules()]
    adapters = model.active_adapters if isinstance(model, PeftModel) else None
    tensors = weights(model)
    tensors |= {f"{n}.grad": p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    for number, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"{number}.{name}": value.clone() for name, value in entry.items()}
    return tensors, (flags, modes, adapters)


CASES = [*((name, None) for name in [*ADAPTERS, *WHOLE]), ("lora", KeyboardInterrupt), ("gpt2", ValueError)]


@pytest.mark.parametrize(("name", "error"), CASES)
def test_a_snapshot_is_put_in_place_and_taken_out(tmp_path, name, error):
    """One weight that is not put back, or one flag that moved, and the rest of the training is another run."""
    model, snapshots = student(name), Snapshots(tmp_path)
    optimizer = adamw(model)
    train(model, optimizer, 1)
    then = logits(model)
    snapshots.save(model, 0, step=1)
    train(model.train(), optimizer, 2)
    forward(model).sum().backward()  # gradients of a step that is not done yet
    tensors, flags = around(model, optimizer)
    assert any(value.any() for key, value in tensors.items() if key.endswith(".grad"))
    assert any(key.endswith("exp_avg") for key in tensors)

    raised = contextlib.nullcontext() if error is None else pytest.raises(error)
    with raised, snapshots.activated(model, 0), inference_mode(model):
        changed = moved(tensors, around(model, optimizer)[0])
        assert changed
        assert name in WHOLE or changed <= {n for n, p in model.named_parameters() if p.requires_grad}
        assert torch.equal(logits(model), then)
        if error is not None:
            raise error
    after, flags_after = around(model, optimizer)
    assert moved(tensors, after) == set()
    assert flags_after == flags


@pytest.mark.parametrize("name", ["lora", "gpt2"])
def test_training_goes_on_as_if_nothing_had_been_put_in_place(tmp_path, name):
    """Weight decay acts on every tensor that an optimizer holds: a snapshot must not be among them."""
    plain, model = student(name), student(name)
    optimizer, snapshots = adamw(model), Snapshots(tmp_path)
    path = snapshots.save(model, 0, step=0)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    train(model, optimizer, 5)
    with snapshots.activated(model, 0):
        logits(model)
    train(model, optimizer, 5)
    train(plain, adamw(plain), 10)
    assert largest_difference(weights(plain), weights(model)) == 0
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert moved(weights(student(name)), weights(model)) == set(weights(model)) - frozen  # of the base, not a bit
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before


def test_a_trained_weight_outside_the_adapter_is_refused(tmp_path):
    """It would be trained, saved nowhere, and the generator would be a mixture of two students."""
    model = student()
    model.base_model.model.model.norm.weight.requires_grad_(True)
    with pytest.raises(ModelError, match=r"1 trained parameters .*model\.norm\.weight.*`modules_to_save`"):
        Snapshots(tmp_path).save(model, 0, 0)
    assert not list(tmp_path.iterdir())


def test_only_whole_snapshots_are_seen(tmp_path):
    """A half-written snapshot among them would be generated from, or stop the run."""
    snapshots, model = Snapshots(tmp_path / "run"), student()
    assert snapshots.iterations() == []
    for iteration in (10, 2, 12345):
        snapshots.save(model, iteration, step=0)
    for name in (f"{UNFINISHED}iteration-0003", f"{UNFINISHED}old-iteration-0004", "iteration-5", "iteration-0006.b"):
        shutil.copytree(snapshots.path(2), snapshots.folder / name)
    shutil.copytree(snapshots.path(2), snapshots.path(7), ignore=shutil.ignore_patterns("snapshot.json"))
    (snapshots.folder / "iteration-0008").write_text("a file", encoding="utf-8")
    assert snapshots.iterations() == [2, 10, 12345]


def test_snapshots_are_kept_and_copied(tmp_path):
    """One that is removed too early leaves a later iteration without its generator."""
    run, checkpoint = Snapshots(tmp_path / "run"), Snapshots(tmp_path / "checkpoint-4" / "negative_generators")
    models = [student(seed=seed) for seed in range(4)]
    for iteration, model in enumerate(models):
        run.save(model, iteration, step=iteration)
    (run.folder / f"{UNFINISHED}iteration-0009").mkdir()
    run.keep({1, 2, 7})
    assert sorted(p.name for p in run.folder.iterdir()) == ["iteration-0001", "iteration-0002"]
    run.copy_to(checkpoint.folder)
    run.save(models[3], 2, step=9)  # written anew, not into the checkpoint's file
    run.save(models[3], 3, step=9)
    assert checkpoint.iterations() == [1, 2]
    run.copy_from(checkpoint.folder)
    assert run.iterations() == [1, 2]
    shutil.rmtree(checkpoint.folder)
    for iteration in (1, 2):
        with run.activated(models[0], iteration) as model:
            assert torch.equal(logits(model), logits(models[iteration]))


@pytest.mark.parametrize("name", ["lora", "gpt2"])
def test_damage_is_not_copied(tmp_path, name):
    """A checkpoint with a damaged snapshot in place of one with a good one, and nothing is left to resume from."""
    run, checkpoint = Snapshots(tmp_path / "run"), Snapshots(tmp_path / "checkpoint")
    file = run.save(student(name), 0, step=0) / WEIGHTS[name == "gpt2"]
    run.copy_to(checkpoint.folder)
    copy = checkpoint.path(0) / file.name
    assert copy.samefile(file) == (name == "gpt2")  # whole weights are too large to have twice
    file.unlink()
    file.write_bytes(b"cut")
    with pytest.raises(ModelError, match="iteration-0000"):
        run.copy_to(checkpoint.folder)
    run.copy_from(checkpoint.folder)
    copy.unlink()
    with pytest.raises(ModelError, match="iteration-0000"):
        run.copy_from(checkpoint.folder)
    assert run.iterations() == [0]


def _changed(change, name=None):
    def act(folder, weights):
        file = folder / (name or weights)
        file.write_bytes(change(file.read_bytes()))

    return act


def _without(key):
    return lambda state: json.dumps({k: v for k, v in json.loads(state).items() if k != key}).encode()


DAMAGES = {
    "cut": _changed(lambda data: data[:-40]),
    "flipped": _changed(lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]),
    "no-weights": lambda folder, weights: (folder / weights).unlink(),
    "state-list": _changed(lambda state: b"[]", "snapshot.json"),
    "state-gone": lambda folder, weights: (folder / "snapshot.json").unlink(),
    "state-not-utf8": _changed(lambda state: b"\xff\xfe", "snapshot.json"),
    **{f"state-without-{key}": _changed(_without(key), "snapshot.json") for key in ("kind", "sha256", "base")},
}


@pytest.mark.parametrize("name", ["lora", "gpt2"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_refused(tmp_path, name, damage):
    """Weights that were cut or changed still load: the negatives would come from a student that never was."""
    model, snapshots = student(name), Snapshots(tmp_path)
    path = snapshots.save(model, 0, step=0)
    shaken(model, seed=1)
    before = weights(model)
    DAMAGES[damage](path, WEIGHTS[name == "gpt2"])
    refused = pytest.raises(ModelError, match="iteration-0000")
    has_no_base = name == "gpt2" and damage == "state-without-base"  # nothing is missing
    with contextlib.nullcontext() if has_no_base else refused, snapshots.activated(model, 0):
        assert has_no_base, "it was put in place"
    assert moved(before, weights(model)) == set()


OTHERS = {
    "base": (student, lambda: shaken(get_peft_model(tiny_llama(seed=1), lora()), 0), "another base model"),
    "rank": (student, lambda: get_peft_model(tiny_llama(), lora(r=3)), "not of this student"),
    "scale": (student, lambda: get_peft_model(tiny_llama(), lora(lora_alpha=32)), "not of this student|adapter"),
    "kind": (student, tiny_llama, "adapter"),
    "kind-back": (tiny_llama, student, "adapter"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_snapshot_of_another_student_is_refused(tmp_path, other):
    """Left in the output folder by another run, it fits in shape and generates something."""
    one, build, message = OTHERS[other]
    Snapshots(tmp_path).save(one(), 0, step=0)
    before = weights(model := build())
    refused = pytest.raises(ModelError, match=f"iteration-0000.*({message})")
    with refused, Snapshots(tmp_path).activated(model, 0):
        pytest.fail("it was put in place")
    assert moved(before, weights(model)) == set()


@pytest.mark.parametrize("name", ADAPTERS)
def test_the_fingerprint_is_that_of_the_base(tmp_path, name):
    """One that moves with the adapter refuses every resumed run; one that does not see the base accepts any."""
    build, options = ADAPTERS[name]
    build().save_pretrained(tmp_path)
    model = get_peft_model(build(), lora(**options))
    mine = fingerprint(model)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = auto(model).from_pretrained(tmp_path, dtype=dtype)
        assert fingerprint(get_peft_model(loaded, lora(**options))) == mine
    train(model, adamw(model), 2)
    assert fingerprint(model) == mine
    assert fingerprint(get_peft_model(build(seed=1), lora(**options))) != mine
