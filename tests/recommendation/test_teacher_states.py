"""What is read of a loaded teacher: its states at the positions that predict, its head, and what tells it from another."""

import pytest
import torch
from cached import LAYERS, collator, item_rows, item_teacher, text_rows, text_teacher, tokenized
from running import lora
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from qcrd_trl.errors import ConfigError, ModelError, TrainingError
from qcrd_trl.recommendation.item_model import ItemHeadModel
from qcrd_trl.recommendation.teacher_states import LiveTeacher, TeacherHead, teacher_fingerprint


MODES = {"item_head": (item_teacher, item_rows), "generative": (text_teacher, text_rows)}


def batch_of(mode: str, places=(0, 1, 2, 3)):
    rows = tokenized(MODES[mode][1](), mode)
    return collator(mode)([rows[place] for place in places])


@pytest.mark.parametrize("mode", MODES)
def test_states_are_those_of_transformers_at_the_positions_that_predict(mode):
    """Shifted by one, or taken before the final norm, states train a student to imitate something else."""
    model, batch = MODES[mode][0](), batch_of(mode)
    states = LiveTeacher(model, [2, 3], "float32").read(batch)
    hidden = model(batch["input_ids"], batch["attention_mask"], output_hidden_states=True).hidden_states
    row, column = (batch["labels"][:, 1:] != -100).nonzero(as_tuple=True)
    assert len(row) > 8
    assert sorted(states) == [2, 3, LAYERS]
    for layer in states:
        assert torch.equal(states[layer], hidden[layer][row, column])


def test_prompt_of_3_and_answer_of_2_is_read_at_2_and_3():
    """Position t predicts t + 1: the last token of the prompt has the first state, EOS has none."""
    batch = {
        "input_ids": torch.tensor([[5, 6, 7, 8, 1]]),
        "attention_mask": torch.ones(1, 5, dtype=torch.long),
        "labels": torch.tensor([[-100, -100, -100, 8, 1]]),
    }
    model = text_teacher()
    states = LiveTeacher(model, [1], "float32").read(batch)[1]
    hidden = model(batch["input_ids"], output_hidden_states=True).hidden_states[1]
    assert torch.equal(states, hidden[0, [2, 3]])


@pytest.mark.parametrize("mode", MODES)
def test_padding_does_not_matter(mode):
    """States of a padded batch that see the padding depend on which rows happen to be together."""
    live = LiveTeacher(MODES[mode][0](), [3], "float32")
    together = live.read(batch_of(mode))
    alone = [live.read(batch_of(mode, [place])) for place in range(4)]
    for layer in together:
        assert torch.allclose(together[layer], torch.cat([one[layer] for one in alone]), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_live_states_are_rounded_as_cached_ones(dtype):
    """A live teacher that is more exact than its cache trains another student."""
    model, batch = item_teacher(), batch_of("item_head")
    exact, rounded = (LiveTeacher(model, [3], name).read(batch)[3] for name in ("float32", dtype))
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact.to(getattr(torch, dtype)).float())
    assert torch.equal(rounded, exact) == (dtype == "float32")


@pytest.mark.parametrize("mode", MODES)
def test_the_head_gives_the_teachers_own_logits(mode):
    """Cached logits are the head's of the last states: a head that differs distils another distribution."""
    model, batch = MODES[mode][0](), batch_of(mode)
    live = LiveTeacher(model, [3], "float32")
    logits = live.head(live.read(batch)[LAYERS])
    row, column = (batch["labels"][:, 1:] != -100).nonzero(as_tuple=True)
    own = model(batch["input_ids"], batch["attention_mask"]).logits[row, column]
    assert own.abs().max() > 0.01
    assert torch.allclose(logits, own, atol=1e-6)
    assert live.head.weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()  # shared, not a second copy


@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(
            Gemma2Config(
                vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.05, pad_token_id=0,
            )
        ),
        lambda: GraniteForCausalLM(
            GraniteConfig(
                vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, logits_scaling=8.0, pad_token_id=0,
            )
        ),
    ],
)  # fmt: skip
def test_factor_and_cap_of_the_logits(model):
    """Without its cap or factor a teacher's distribution has another temperature."""
    torch.manual_seed(0)
    model, batch = model().eval(), batch_of("generative")
    live = LiveTeacher(model, [1], "float32")
    row, column = (batch["labels"][:, 1:] != -100).nonzero(as_tuple=True)
    own = model(batch["input_ids"], batch["attention_mask"]).logits[row, column]
    states = live.read(batch)[2]
    assert torch.allclose(live.head(states), own, atol=1e-6)
    assert not torch.allclose(states @ live.head.weight.T, own, atol=1e-3)  # the plain product would not do


def test_a_teacher_is_frozen_and_in_eval_mode_for_good():
    """A trainer that walks over all modules puts dropout back on, and the teacher gives other states each time."""
    model = item_teacher(attention_dropout=0.5)
    live, batch = LiveTeacher(model, [3]), batch_of("item_head")
    assert not any(parameter.requires_grad for parameter in [*model.parameters(), *live.head.parameters()])
    first = live.read(batch)
    model.train()
    assert torch.equal(live.read(batch)[3], first[3])
    states = first[LAYERS].requires_grad_()
    live.head(states).sum().backward()
    assert states.grad is not None
    assert all(parameter.grad is None for parameter in [*model.parameters(), *live.head.parameters()])


def test_autocast_of_the_student_does_not_reach_the_teacher():
    """A cache that is built outside of autocast would hold other states than training under it reads."""
    live, batch = LiveTeacher(item_teacher(), [3], "float32"), batch_of("item_head")
    plain = live.read(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(live.read(batch)[3], plain[3])
        logits = live.head(plain[live.last_layer])
    assert logits.dtype == torch.float32
    assert torch.equal(logits, live.head(plain[live.last_layer]))  # 8 bits of a logit of 20 are off by 5 percent


def test_a_teacher_in_bfloat16():
    """Half-precision weights meet float32 states in the head: a type error in the first step, or logits of 8 bits."""
    model, batch = item_teacher().to(torch.bfloat16), batch_of("item_head")
    live = LiveTeacher(model, [3])
    states = live.read(batch)
    assert states[3].dtype == torch.float32
    logits = live.head(states[LAYERS])
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, states[LAYERS] @ model.head.weight.float().T, atol=1e-6)


@pytest.mark.parametrize("options", [{"modules_to_save": ["head"]}, {"target_modules": ["q_proj", "head"]}])
def test_a_head_with_an_adapter(options):
    """The base's head in place of the trained one scores items as before the teacher was trained."""
    from peft import get_peft_model

    model = get_peft_model(item_teacher(), lora(**{"init_lora_weights": False, "task_type": None, **options}))
    if "modules_to_save" in options:
        with torch.no_grad():
            model.get_base_model().head.modules_to_save["default"].weight.normal_()
    live, batch = LiveTeacher(model, [3], "float32"), batch_of("item_head")
    row, column = (batch["labels"][:, 1:] != -100).nonzero(as_tuple=True)
    own = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[row, column]
    assert torch.allclose(live.head(live.read(batch)[LAYERS]), own, atol=1e-5)
    base = model.get_base_model().head.base_layer.weight if "target_modules" in options else item_teacher().head.weight
    assert (live.head.weight - base).abs().max() > 0.01


def test_a_head_that_is_not_linear_is_refused():
    """Its first-order part would be distilled in silence."""
    model = item_teacher()

    class Bent(nn.Linear):
        def forward(self, states):
            return super().forward(states).square()

    model.head = Bent(16, 12, bias=False)
    with pytest.raises(ModelError, match="Bent, which is not linear"):
        TeacherHead.of(model)


def test_states_beyond_half_precision_are_an_error_that_names_the_setting():
    """Infinite states make a loss that is not finite, epochs later, if the router ever picks their layer."""
    model, batch = item_teacher(), batch_of("item_head")
    with torch.no_grad():
        model.backbone.layers[2].mlp.down_proj.weight.mul_(1e9)
    with pytest.raises(TrainingError, match=r"layer 3 reach .* float16 ends at 65504.*teacher_dtype='bfloat16'"):
        LiveTeacher(model, [2, 3]).read(batch)
    assert torch.isfinite(LiveTeacher(model, [3], "bfloat16").read(batch)[3]).all()
    with torch.no_grad():
        model.backbone.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(TrainingError, match="layer 2 are not finite, in float32, the precision that it is loaded in"):
        LiveTeacher(model, [2, 3]).read(batch)


@pytest.mark.parametrize("layers", [[], [0, 1], [3, 2], [2, 2], [5], [True]])
def test_layers_that_cannot_be(layers):
    """Layers in another order than the filters' would be paired with the wrong ones."""
    with pytest.raises(ConfigError, match="ascending integers of 1 to 4"):
        LiveTeacher(item_teacher(), layers)


def test_an_unknown_dtype():
    """It would fail in the first batch, with a KeyError."""
    with pytest.raises(ConfigError, match="Unknown teacher_dtype 'int8': expected one of float16, bfloat16, float32"):
        LiveTeacher(item_teacher(), [3], "int8")


def test_the_fingerprint_tells_teachers_apart(tmp_path):
    """Filters and caches of another teacher fit by their shapes, and train a student on nonsense."""
    own = teacher_fingerprint(item_teacher())
    assert own == teacher_fingerprint(item_teacher()) == LiveTeacher(item_teacher(), [3]).fingerprint
    changed = item_teacher()
    with torch.no_grad():
        changed.backbone.layers[0].mlp.up_proj.weight[0, 0] += 1e-7
    others = [
        item_teacher(1),
        changed,
        item_teacher().to(torch.bfloat16),
        item_teacher(rope_parameters={"rope_type": "default", "rope_theta": 77.0}),
    ]
    assert len({own, *map(teacher_fingerprint, others)}) == 5
    item_teacher().save_pretrained(tmp_path / "item")
    assert teacher_fingerprint(ItemHeadModel.from_pretrained(tmp_path / "item")) == own
    text_teacher().save_pretrained(tmp_path / "text")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "text", dtype=torch.float32)
    assert teacher_fingerprint(loaded) == teacher_fingerprint(text_teacher())


def test_the_fingerprint_knows_adapters(tmp_path):
    """The adapter is all that was trained of a LoRA teacher: by its base alone every such teacher is the same."""
    from peft import PeftModel, get_peft_model

    def adapted(**options):
        torch.manual_seed(3)
        return get_peft_model(text_teacher(), lora(init_lora_weights=False, **options))

    own = teacher_fingerprint(adapted())
    changed = adapted()
    with torch.no_grad():
        next(p for name, p in changed.named_parameters() if "lora_B" in name).add_(1e-3)
    found = {own, teacher_fingerprint(text_teacher()), teacher_fingerprint(changed)}
    assert len(found | {teacher_fingerprint(adapted(lora_alpha=16))}) == 4  # alpha is in no weight
    adapted().save_pretrained(tmp_path)
    assert teacher_fingerprint(PeftModel.from_pretrained(text_teacher(), tmp_path)) == own


def test_the_fingerprint_is_the_same_after_reading():
    """One that moves with use would refuse its own cache."""
    live = LiveTeacher(item_teacher(), [3])
    before = teacher_fingerprint(live.model)
    live.read(batch_of("item_head"))
    assert teacher_fingerprint(live.model) == before == live.fingerprint
