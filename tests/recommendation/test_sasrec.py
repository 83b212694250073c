"""SASRec, the reference."""

import pytest
import torch
from recommenders import NUM_ITEMS, batch_of
from running import weights
from transformers import AutoModel

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.recommendation.sasrec import SASRecConfig, SASRecModel


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1], [0, 4, 4, 2]]


def sasrec(**settings) -> SASRecModel:
    torch.manual_seed(0)
    settings = {"hidden_size": 8, "num_attention_heads": 2, "initializer_range": 0.3, **settings}
    return SASRecModel(SASRecConfig(num_items=NUM_ITEMS, **settings)).eval()


def test_padding_changes_nothing_at_items():
    """Positions that are counted from the end of the padding differ from batch to batch."""
    model = sasrec()
    alone = [model(torch.tensor([row]), output_hidden_states=True) for row in ROWS]
    assert len(alone[0].hidden_states) == 3
    for left in (False, True):
        batch = batch_of(ROWS, left=left, extra=3)
        read = model(**batch, output_hidden_states=True)
        assert torch.isfinite(read.logits).all()
        for number, own in enumerate(alone):
            at = batch["attention_mask"][number].bool()
            assert torch.allclose(read.logits[number, at], own.logits[0], atol=1e-5)
            for layer in range(3):
                states = read.hidden_states[layer][number, at]
                assert torch.allclose(states, own.hidden_states[layer][0], atol=1e-5)


def test_a_position_sees_what_was_before_it():
    """A network that looks ahead knows the answer."""
    model = sasrec()
    long = model(torch.tensor([[1, 2, 3, 8]])).logits
    assert torch.allclose(model(torch.tensor([[1, 2, 3]])).logits, long[:, :3], atol=1e-6)
    assert not torch.allclose(model(torch.tensor([[5, 2, 3]])).logits[:, 2], long[:, 2], atol=1e-3)
    assert not torch.allclose(model(torch.tensor([[2, 1, 3]])).logits[:, 2], long[:, 2], atol=1e-3)  # order matters


def test_one_block_by_hand():
    """The norm before each part, the residual around it, and the root of the width on the embeddings, as the paper has them."""
    model = sasrec(num_hidden_layers=1, num_attention_heads=1)
    block, parts = model.backbone.layers[0], model.backbone
    states = model.item_embeddings.weight[[3, 5]] * 8**0.5 + parts.positions.weight[:2]
    normed = block.attention_norm(states)
    scores = block.query(normed) @ block.key(normed).T / 8**0.5
    shares = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    shares[1] = scores[1].softmax(0)
    states = states + block.output(shares @ block.value(normed))
    states = states + block.outer(block.inner(block.feed_forward_norm(states)).relu())
    expected = parts.norm(states) @ model.item_embeddings.weight.T
    assert torch.allclose(model(torch.tensor([[3, 5]])).logits[0], expected, atol=1e-5)


def test_the_head_is_the_embeddings(tmp_path):
    """As in the paper; and a saved model keeps it so."""
    model = sasrec()
    assert model.head.weight is model.item_embeddings.weight
    model.save_pretrained(tmp_path)
    for loaded in (SASRecModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(loaded) is SASRecModel
        assert loaded.head.weight is loaded.item_embeddings.weight
        assert all(torch.equal(value, weights(loaded)[name]) for name, value in weights(model).items())
        assert torch.equal(loaded(**batch_of(ROWS)).logits, model(**batch_of(ROWS)).logits)
    assert sasrec(tie_items=False).head.weight is not sasrec(tie_items=False).item_embeddings.weight


def test_it_learns_an_order():
    """The reference that the others are held against must itself be able to learn."""
    model = sasrec(hidden_size=16, initializer_range=0.02).train()
    rows = [[(start + step) % NUM_ITEMS for step in range(6)] for start in range(NUM_ITEMS)]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        model(**batch_of(rows)).loss.backward()
        optimizer.step()
    scores = model.eval()(torch.tensor([row[:-1] for row in rows])).logits[:, -1]
    assert scores.argmax(-1).tolist() == [row[-1] for row in rows]


def test_dropout_is_in_training_alone():
    """Dropout in evaluation makes every ranking another one."""
    model = sasrec(dropout=0.5)
    ids = torch.tensor([ROWS[0]])
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)


def test_what_cannot_work():
    """Positions end, and an index beyond them is an error of a GPU kernel."""
    with pytest.raises(DataError, match="A sequence has 4 items, but the model's positions end at 3"):
        sasrec(max_position_embeddings=3)(torch.tensor([[1, 2, 3, 4]]))
    for settings, said in (
        ({"num_attention_heads": 3}, "`num_attention_heads` must divide `hidden_size`, got 3 and 8"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be at least 1, got 0"),
        ({"max_position_embeddings": 0}, "`max_position_embeddings` must be at least 1, got 0"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\), got 1.0"),
    ):
        with pytest.raises(ConfigError, match=said):
            sasrec(**settings)
