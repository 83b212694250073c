"""The head over items on further families of backbones, each of which makes masks, positions or states in its own way."""

import pytest
import torch
from recommenders import BACKBONES, NUM_ITEMS, batch_of

from qcrd_trl.recommendation.item_model import ItemHeadConfig, ItemHeadModel
from qcrd_trl.recommendation.loading import load_recommender
from qcrd_trl.recommendation.states import label_positions, read_positions


ROWS = [[1, 2, 3, 4, 5, 6], [7, 8, 1], [0, 4, 4, 2]]
_SIZES = BACKBONES["llama"]
_OLD = {"initializer_range": 0.2, "n_layer": 3, "n_head": 2}
FAMILIES = {
    **dict.fromkeys(("gemma", "gpt_neox", "granite", "olmo2", "phi3", "qwen2", "smollm3"), _SIZES),
    "bloom": {**_OLD, "hidden_size": 16},  # ALiBi: no positions
    "cohere2": {**_SIZES, "sliding_window": 3},
    "gemma2": {**_SIZES, "sliding_window": 3, "query_pre_attn_scalar": 8},
    "gpt_oss": {**_SIZES, "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 3},  # attention sinks
    "gptj": {**_OLD, "n_embd": 16, "rotary_dim": 4},
    "mixtral": {**_SIZES, "num_local_experts": 3},
    "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 3, "expansion_ratio": 2},
    "opt": {**_SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0},
    "qwen3_moe": {**_SIZES, "num_experts": 3, "num_experts_per_tok": 1, "moe_intermediate_size": 16},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family(tmp_path, kind):
    """A family that takes no mask, looks ahead, or gives other states trains too, at a plausible loss."""
    torch.manual_seed(0)
    model = ItemHeadModel(ItemHeadConfig({"model_type": kind, **FAMILIES[kind]}, num_items=NUM_ITEMS)).eval()
    alone = [model(torch.tensor([row])).logits[0] for row in ROWS]
    assert alone[0].std() > 0.01
    for left in (False, True):
        batch = batch_of(ROWS, left=left, extra=4)
        whole = model(**batch, output_hidden_states=True)
        for number, own in enumerate(alone):
            at = batch["attention_mask"][number].bool()
            assert torch.allclose(whole.logits[number, at], own, atol=1e-5)
        row, column = label_positions(batch["labels"])
        read = read_positions(model, batch, [1, 2, 3])
        for layer, states in read.states.items():
            assert torch.equal(states, whole.hidden_states[layer][row, column])
    assert torch.allclose(model(torch.tensor([ROWS[0] + [8]])).logits[0, :6], alone[0], atol=1e-5)
    model.save_pretrained(tmp_path)
    assert torch.equal(load_recommender(tmp_path)(**batch).logits, whole.logits)
    model.train()(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
