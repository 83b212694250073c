"""What a token costs, from the sizes of modules, by hand."""

import pytest
from peft import get_peft_model
from running import lora
from tiny import tiny_bart, tiny_gpt2, tiny_llama, tiny_t5
from torch import nn

from qcrd_trl.trainer.work import TokenWork, token_work


HEAD = 33 * 16
PAIR = 2 * 16 * 2  # a multiplication by a key and one by a value, width 16, two layers
SEPARATE = TokenWork(2 * 2048, 2 * 2560 + HEAD, 2 * 512, PAIR)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (tiny_llama, TokenWork(2 * 2560, 2 * 2560 + HEAD, 0, PAIR)),
        # Two heads for the queries, one for keys and values: 2 x 16 x 16 + 2 x 16 x 8 and 1536 a layer.
        (lambda: tiny_llama(num_key_value_heads=1), TokenWork(2 * 2304, 2 * 2304 + HEAD, 0, PAIR)),
        # Not linear modules: 16 x 48, 16 x 16 and 2 x 16 x 64 a layer.
        (tiny_gpt2, TokenWork(2 * 3072, 2 * 3072 + HEAD, 0, PAIR)),
        (tiny_t5, SEPARATE),
        (tiny_bart, SEPARATE),
    ],
)
def test_weights_that_a_token_meets(build, expected):
    """A part that is passed over, or counted twice, makes the choice of another model."""
    assert token_work(build()) == expected
    if build in (tiny_llama, tiny_t5):
        kind = "SEQ_2_SEQ_LM" if build is tiny_t5 else "CAUSAL_LM"
        model = get_peft_model(build(), lora(task_type=kind, target_modules="all-linear"))
        assert token_work(model.get_base_model()) == expected


def test_packed_weights_count_whole():
    """Four bits a weight are stored in half as many bytes: the head would look twice as dear beside them."""
    model = tiny_llama()
    for module in model.model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.data.view(-1)[: module.weight.numel() // 2, None])
    assert token_work(model) == token_work(tiny_llama())
