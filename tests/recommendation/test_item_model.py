"""The head over items on every family of backbones."""

import json
import subprocess
import sys

import pytest
import torch
from recommenders import BACKBONES, NUM_ITEMS, PAD_ITEM, backbone, batch_of, item_model
from running import weights
from transformers import AutoConfig, AutoModel, BertConfig, LlamaConfig, T5Config

from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.recommendation.item_model import ItemEmbedding, ItemHeadConfig, ItemHeadModel


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1], [0, 4, 4, 2]]
KINDS = list(BACKBONES)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_at_items(kind):
    """States that depend on how much is padded, or where, make the loss of a row depend on its neighbours in the batch."""
    model = item_model(kind)
    alone = [model(torch.tensor([row]), output_hidden_states=True) for row in ROWS]
    assert len(alone[0].hidden_states) == 4
    for left in (False, True):
        for extra in (0, 5):
            batch = batch_of(ROWS, left=left, extra=extra)
            del batch["labels"]
            read = model(**batch, output_hidden_states=True)
            assert torch.equal(model(batch["input_ids"]).logits, read.logits)  # the mask is read from the padding
            for number, own in enumerate(alone):
                at = batch["attention_mask"][number].bool()
                assert torch.allclose(read.logits[number, at], own.logits[0], atol=1e-5)
                for layer in range(4):
                    states = read.hidden_states[layer][number, at]
                    assert torch.allclose(states, own.hidden_states[layer][0], atol=1e-5)
    assert not torch.allclose(alone[0].logits[0, 0], alone[0].logits[0, 1], atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_position_sees_what_was_before_it(kind):
    """A backbone that looks ahead knows the answer: the loss is near zero, and the model ranks at random."""
    model = item_model(kind)
    short, long = model(torch.tensor([[1, 2, 3]])).logits, model(torch.tensor([[1, 2, 3, 8]])).logits
    assert torch.allclose(short, long[:, :3], atol=1e-6)
    assert not torch.allclose(model(torch.tensor([[5, 2, 3]])).logits[:, 2], short[:, 2], atol=1e-4)


@pytest.mark.parametrize("item_size", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_exactly(tmp_path, kind, item_size):
    """Weights that do not come back are drawn anew, with a warning that nobody reads."""
    model = item_model(kind, item_size=item_size)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert type(AutoConfig.from_pretrained(tmp_path)) is ItemHeadConfig
    for loaded in (ItemHeadModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(loaded) is ItemHeadModel
        assert not loaded.training
        here, there = weights(model), weights(loaded)
        assert here.keys() == there.keys()
        assert all(torch.equal(value, there[name]) for name, value in here.items())
        batch = batch_of(ROWS)
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)
        loaded.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_no_tokens_are_kept(tmp_path):
    """The token embeddings of a language model may be half of its weights, and no item uses them."""
    model = item_model(backbone_settings={"vocab_size": 5000})
    model.save_pretrained(tmp_path)
    assert not any("embed_tokens" in name or "lm_head" in name for name in model.state_dict())
    assert not any(5000 in value.shape for value in model.state_dict().values())
    text = (tmp_path / "config.json").read_text(encoding="utf-8")
    assert json.loads(text)["backbone_config"]["vocab_size"] == 1
    assert str(tmp_path) not in text


def test_a_users_configuration_is_not_changed():
    """A language model that is made from it afterwards would have a vocabulary of one token."""
    config = LlamaConfig(**backbone())
    ItemHeadModel(ItemHeadConfig(config, num_items=3))
    assert config.vocab_size == 32000
    settings = backbone()
    ItemHeadConfig(settings, num_items=3)
    assert settings == backbone()


def test_sharded_and_in_bfloat16(tmp_path):
    """Large models come in parts, and in half precision."""
    model = item_model(tie_items=True)
    model.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    loaded = AutoModel.from_pretrained(tmp_path / "parts")
    assert all(torch.equal(value, weights(loaded)[name]) for name, value in weights(model).items())

    half = item_model(item_size=8).to(torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    loaded = AutoModel.from_pretrained(tmp_path / "half")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert all(torch.equal(value, weights(loaded)[name]) for name, value in weights(half).items())
    assert loaded(**batch_of(ROWS)).logits.dtype == torch.bfloat16
    assert AutoModel.from_pretrained(tmp_path / "half", dtype=torch.float32).dtype == torch.float32


def test_the_head_is_tied_on_demand(tmp_path):
    """A head that is only a copy of the embeddings drifts away from them in training."""
    model = item_model(tie_items=True)
    assert model.head.weight is model.item_embeddings.weight
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.head.weight is loaded.item_embeddings.weight
    assert torch.equal(loaded.head.weight, model.head.weight)
    assert item_model().head.weight is not item_model().item_embeddings.weight


def test_padding_is_zero_and_learns_nothing():
    """Padding that learns is another item that every short history ends in."""
    embed = ItemEmbedding(3, 2)
    ids = torch.tensor([[0, 3, 2]])
    read = embed(ids)
    assert torch.equal(read[0, 1], torch.zeros(2))
    assert torch.equal(read[0, 0], embed.weight[0])
    (read * torch.tensor([1.0, 10.0, 3.0])[None, :, None]).sum().backward()
    assert embed.weight.grad.tolist() == [[1, 1], [0, 0], [3, 3]]  # nothing of the padding went to item 0
    model = item_model()
    assert model.item_embeddings.weight.shape == (NUM_ITEMS, 16)
    assert model.config.pad_item_id == PAD_ITEM


def test_the_loss_is_that_of_the_next_item():
    """A loss at the item itself is learnt at once, and ranks nothing."""
    model = item_model()
    batch = batch_of(ROWS)
    read = model(**batch)
    logits = read.logits
    pairs = [(0, t) for t in range(5)] + [(1, 0), (1, 1)] + [(2, 0), (2, 1), (2, 2)]
    expected = [-logits[row, t].log_softmax(-1)[ROWS[row][t + 1]] for row, t in pairs]
    assert torch.allclose(read.loss, torch.stack(expected).mean())
    assert torch.allclose(model(**batch, num_items_in_batch=20).loss, torch.stack(expected).sum() / 20)
    row, column = (torch.tensor(part) for part in zip(*pairs, strict=True))
    chosen = model(**batch, positions=(row, column))
    assert torch.allclose(chosen.logits, logits[row, column], atol=1e-6)
    assert torch.allclose(chosen.loss, read.loss)
    none = model(**{**batch, "labels": torch.full_like(batch["labels"], -100)})
    assert none.loss == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(kind, use_reentrant):
    """Where the inputs of the first layer need no gradient, reentrant checkpointing leaves the layers as they are."""
    grads = []
    for checkpointed in (False, True):
        model = item_model(kind).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        calls = []
        layers = model.backbone.h if kind == "gpt2" else model.backbone.layers
        layers[0].mlp.register_forward_pre_hook(lambda *args, calls=calls: calls.append(1))
        model(**batch_of(ROWS)).loss.backward()
        assert len(calls) == 1 + checkpointed  # the layer is computed again in the backward pass
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(value is not None and value.abs().sum() > 0 for name, value in grads[0].items() if "bias" not in name)
    assert all(torch.allclose(value, grads[1][name], atol=1e-6) for name, value in grads[0].items())


def test_what_is_no_item_is_named():
    """On a GPU an index that is out of range ends the process with a message about a kernel."""
    model = item_model()
    for ids, wrong in (([[1, 10]], 10), ([[-1, 2]], -1)):
        with pytest.raises(
            DataError, match=f"`input_ids` holds {wrong}, but the model knows the items 0 to 8, and 9 pads"
        ):
            model(torch.tensor(ids))
    with pytest.raises(
        DataError, match="`labels` holds 9, but the model knows the items 0 to 8, and -100 is no label"
    ):
        model(torch.tensor([[1, 9]]), labels=torch.tensor([[-100, 9]]))
    with pytest.raises(DataError, match="A sequence has 65 items, but the model's positions end at 64"):
        model(torch.zeros(1, 65, dtype=torch.long))


def test_a_configuration_that_cannot_work():
    """What is wrong is said before anything is loaded."""
    for config in (T5Config(), T5Config().to_dict()):
        with pytest.raises(ConfigError, match="must be a decoder-only language model, got model_type='t5'"):
            ItemHeadConfig(config, num_items=3)
    for settings, said in (
        ({"model_type": "llame"}, "No backbone of model_type='llame' could be configured"),
        ({"hidden_size": 16}, "No backbone of model_type=None"),
        (backbone(hidden_size="wide"), "No backbone of model_type='llama'"),
    ):
        with pytest.raises(ConfigError, match=said):
            ItemHeadConfig(settings, num_items=3)
    with pytest.raises(ConfigError, match="`num_items` must be at least 1, got 0"):
        ItemHeadConfig(backbone(), num_items=0)
    with pytest.raises(ConfigError, match="`item_size` must be at least 1, got 0"):
        ItemHeadConfig(backbone(), num_items=2, item_size=0)
    with pytest.raises(ConfigError, match="`tie_items` needs embeddings of the backbone's width: got item_size=8"):
        ItemHeadConfig(backbone(), num_items=2, item_size=8, tie_items=True)


def test_a_bidirectional_backbone_is_refused():
    """BERT reads `inputs_embeds` like the others, and sees the item that it is to predict."""
    with pytest.raises(ConfigError, match="must be a decoder-only language model, got model_type='bert'"):
        ItemHeadConfig(BertConfig(), num_items=3)


def test_a_backbone_without_embedded_inputs_is_refused():
    """It could only read tokens."""

    class Reader(torch.nn.Module):
        config = ItemHeadConfig(backbone(), num_items=3).backbone_config

        def forward(self, input_ids):
            return input_ids

    with pytest.raises(ModelError, match="Reader reads no `inputs_embeds`"):
        ItemHeadModel(ItemHeadConfig(backbone(), num_items=3), Reader())


def test_auto_classes_know_the_model_once_it_is_imported(tmp_path):
    """Whoever loads it elsewhere knows the names of transformers."""
    item_model().save_pretrained(tmp_path)
    code = (
        "from transformers import AutoConfig, AutoModel\n"
        "from qcrd_trl.recommendation import ItemHeadModel\n"
        f"assert type(AutoModel.from_pretrained({str(tmp_path)!r})) is ItemHeadModel\n"
        f"assert AutoConfig.from_pretrained({str(tmp_path)!r}).num_items == {NUM_ITEMS}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
