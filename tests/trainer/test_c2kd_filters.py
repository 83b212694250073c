"""Stage 2 of C2KD: the filters learn the task from the teacher's states, and nothing else is trained, read or saved."""

import json

import pytest
import torch
import torch.nn.functional as F
from cached import LAYERS, item_rows, item_teacher, text_rows, text_teacher
from datasets import Dataset
from filtering import filter_config, filter_trainer, record_gradients
from running import largest_difference, logged, moved, weights
from tiny import VOCAB_SIZE, word_tokenizer

from qcrd_trl.errors import ConfigError, DataError, ModelError, TrainingError
from qcrd_trl.recommendation.layer_filters import LayerFilters
from qcrd_trl.recommendation.teacher_cache import CachedTeacher
from qcrd_trl.recommendation.teacher_states import LiveTeacher, teacher_fingerprint
from qcrd_trl.trainer.filter_trainer import LayerFilterTrainer


def test_the_loss_is_the_sum_over_layers_of_the_mean_over_positions(tmp_path):
    """Padding that counts, a layer that is left out, or a mean of means trains at a plausible loss."""
    trainer = filter_trainer(tmp_path, teacher_dtype="float32")
    filters, teacher = trainer.layer_filters, item_teacher().eval()
    losses, hits = {2: [], 4: []}, {2: [], 4: []}
    with torch.no_grad():
        for row in item_rows(8):  # one by one, unpadded, in the words of torch
            items = torch.tensor([row["items"]])
            hidden = teacher(items, output_hidden_states=True).hidden_states
            for layer in losses:
                states = filters.filters[str(layer)](hidden[layer][0, :-1])
                logits = F.rms_norm(states, (6,), filters.norm.weight, 1e-6) @ filters.head.weight.T
                losses[layer] += F.cross_entropy(logits, items[0, 1:], reduction="none").tolist()
                hits[layer] += (logits.argmax(-1) == items[0, 1:]).tolist()
    count = sum(len(row["items"]) - 1 for row in item_rows(8))
    assert count == len(losses[2]) == 30
    trainer.train()
    entry = logged(trainer)[0]
    for layer in (2, 4):
        assert entry[f"loss/layer_{layer}"] == pytest.approx(sum(losses[layer]) / count, abs=1e-5)
        assert entry[f"hr@1/layer_{layer}"] == pytest.approx(sum(hits[layer]) / count, abs=1e-9)
    assert entry["loss"] == pytest.approx(sum(losses[2] + losses[4]) / count, abs=1e-5)


def test_filters_norm_and_head_move_and_the_teacher_does_not(tmp_path):
    """A teacher in the optimizer is changed by weight decay alone; a filter that is not stays at its random start."""
    teacher = item_teacher()
    before_teacher = weights(teacher)
    trainer = filter_trainer(tmp_path, teacher, max_steps=2, optim="adamw_torch", weight_decay=0.1)
    before = weights(trainer.model)
    trainer.train()
    assert moved(before, weights(trainer.model)) == set(before)
    assert moved(before_teacher, weights(teacher)) == set()
    trained = {id(p) for group in trainer.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in trainer.layer_filters.parameters()}
    assert not teacher.training


@pytest.mark.parametrize("batch_size", [1, 2])
def test_accumulated_micro_batches_equal_one_batch(tmp_path, batch_size):
    """Rows of different lengths: a mean of the micro-batches' means weighs the positions of short ones more."""
    one = filter_trainer(tmp_path / "one", teacher_dtype="float32")
    more = filter_trainer(
        *(tmp_path / "more",),
        teacher_dtype="float32",
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=8 // batch_size,
    )
    seen = [record_gradients(one), record_gradients(more)]
    one.train()
    more.train()
    assert max(grad.abs().max() for grad in seen[0][0].values()) > 1e-2
    assert largest_difference(seen[0][0], seen[1][0]) < 2e-6
    assert largest_difference(weights(one.model), weights(more.model)) < 2e-6
    assert logged(one)[0] == pytest.approx(logged(more)[0], abs=1e-5)


def test_padding_does_not_matter(tmp_path):
    """Rows padded to another width train the same filters."""
    plain = filter_trainer(tmp_path / "a", teacher_dtype="float32", max_steps=2)
    wide = filter_trainer(tmp_path / "b", teacher_dtype="float32", max_steps=2, pad_to_multiple_of=16)
    plain.train()
    wide.train()
    assert largest_difference(weights(plain.model), weights(wide.model)) < 2e-6


def test_the_filters_learn(tmp_path):
    """A run that moves every weight and learns nothing passes all other tests."""
    trainer = filter_trainer(tmp_path, max_steps=60, optim="adamw_torch", learning_rate=0.02, logging_steps=60)
    first = trainer.evaluate(trainer.train_dataset)
    trainer.train()
    last = trainer.evaluate(trainer.train_dataset)
    for layer in (2, 4):
        assert last[f"eval_loss/layer_{layer}"] < 0.5 * first[f"eval_loss/layer_{layer}"]
        assert last[f"eval_hr@1/layer_{layer}"] > 0.6


def test_evaluation_is_a_mean_over_positions_and_leaves_the_run_alone(tmp_path):
    """The base class weighs batches by rows; hit rates by a full ranking; an evaluation in between changes no weight."""
    rows = Dataset.from_list(item_rows(7))
    trainer = filter_trainer(tmp_path, parts={"eval_dataset": rows}, teacher_dtype="float32")
    found = [trainer.evaluate()]
    trainer.args.per_device_eval_batch_size = 7
    found.append(trainer.evaluate())
    for entry in found:
        for name in [name for name in entry if "runtime" in name or "per_second" in name or "preparation" in name]:
            del entry[name]
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert found[0]["eval_loss"] == pytest.approx(found[0]["eval_loss/layer_2"] + found[0]["eval_loss/layer_4"])
    assert 0 <= found[0]["eval_hr@1/layer_2"] <= found[0]["eval_hr@10/layer_2"] <= 1
    assert found[0]["eval_hr@10/layer_2"] > 0.5  # 10 of 12 items
    steps = {"max_steps": 4, "per_device_train_batch_size": 2}
    plain = filter_trainer(tmp_path / "a", **steps)
    evaluated = filter_trainer(
        tmp_path / "b", parts={"eval_dataset": rows}, **steps, eval_strategy="steps", eval_steps=1
    )
    plain.train()
    evaluated.train()
    assert largest_difference(weights(plain.model), weights(evaluated.model)) == 0
    assert logged(plain) == logged(evaluated)


def test_evaluation_is_of_the_last_items(tmp_path):
    """What precedes them was trained on, and would outweigh them."""
    rows = item_rows(5)
    trainer = filter_trainer(tmp_path, parts={"eval_dataset": Dataset.from_list(rows)}, teacher_dtype="float32")
    nll, hits = [], []
    for row in rows:
        items = torch.tensor([row["items"][:-1]])
        with torch.no_grad():
            states = trainer.teacher.model(items, output_hidden_states=True).hidden_states[2][0, -1:]
            logits = trainer.layer_filters.logits(trainer.layer_filters({2: states, 4: states})[0])[0]
        nll.append(-logits.log_softmax(0)[row["items"][-1]].item())
        hits.append(float(logits.argmax() == row["items"][-1]))
    found = trainer.evaluate()
    assert found["eval_loss/layer_2"] == pytest.approx(sum(nll) / len(rows), rel=1e-5)
    assert found["eval_hr@1/layer_2"] == pytest.approx(sum(hits) / len(rows))


def test_the_best_filters_by_one_layer(tmp_path):
    """The base class takes any metric but one whose name ends in `loss` for the larger the better."""
    best = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "load_best_model_at_end": True,
    }
    assert filter_config(tmp_path, **best, metric_for_best_model="eval_loss/layer_2").greater_is_better is False
    assert filter_config(tmp_path, **best, metric_for_best_model="eval_hr@10/layer_2").greater_is_better is True
    assert filter_config(tmp_path, **best).greater_is_better is False
    parts = {"eval_dataset": Dataset.from_list(item_rows(3))}
    with pytest.raises(
        ConfigError, match="choose one of eval_loss, eval_loss/layer_2, eval_loss/layer_4, eval_hr@1/layer_2"
    ):
        filter_trainer(tmp_path, parts=parts, **best, metric_for_best_model="ndcg@10")
    filter_trainer(tmp_path, parts=parts, **best, metric_for_best_model="loss/layer_4")


def test_saved_filters_belong_to_the_teacher(tmp_path):
    """The folder holds filters alone: a teacher among them would be pushed, or loaded as the student."""
    trainer = filter_trainer(tmp_path / "out", filter_form="linear")
    trainer.train()
    trainer.save_model()
    loaded = LayerFilters.from_pretrained(tmp_path / "out")
    assert largest_difference(weights(loaded), weights(trainer.model)) == 0
    assert loaded.teacher_fingerprint == teacher_fingerprint(item_teacher())
    assert (loaded.layers, loaded.form, loaded.vocab_size) == ((2, 4), "linear", 12)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("config.json", "model.safetensors", "training_args.bin")
    ]


# ---- The cache ----


def test_with_and_without_the_cache(tmp_path):
    """The same filters: bit for bit where the batches have the shape that the cache was built in."""
    rows = item_rows(8, (5,))
    run = {"max_steps": 5, "per_device_train_batch_size": 4, "optim": "adamw_torch", "learning_rate": 0.01}
    cache = {"teacher_cache": str(tmp_path / "cache"), "teacher_batch_size": 4}
    live = filter_trainer(tmp_path / "a", rows=rows, **run)
    built = filter_trainer(tmp_path / "b", rows=rows, **run, **cache)
    alone = filter_trainer(tmp_path / "c", None, rows=rows, **run, **cache)  # from the cache, without a teacher
    assert isinstance(live.teacher, LiveTeacher)
    assert isinstance(built.teacher, CachedTeacher)
    assert isinstance(alone.teacher, CachedTeacher)
    for trainer in (live, built, alone):
        trainer.train()
    assert largest_difference(weights(live.model), weights(built.model)) == 0
    assert largest_difference(weights(live.model), weights(alone.model)) == 0
    assert logged(live) == logged(built) == logged(alone)
    assert built.layer_filters.teacher_fingerprint == live.layer_filters.teacher_fingerprint


def test_the_cache_gets_the_evaluation_rows_too(tmp_path):
    """A run that ends at its first evaluation, hours in, for want of rows."""
    rows = Dataset.from_list(item_rows(12).copy()[8:])
    parts = {"eval_dataset": {"one": rows, "two": rows}}
    trainer = filter_trainer(tmp_path / "a", parts=parts, teacher_cache=str(tmp_path / "cache"), teacher_batch_size=2)
    trainer.train()
    assert len(trainer.teacher) == 12
    found = trainer.evaluate()
    assert found["eval_one_loss"] == pytest.approx(found["eval_two_loss"])


def test_a_cache_that_lacks_rows_is_told_at_once(tmp_path):
    """Not in the middle of an epoch."""
    filter_trainer(tmp_path / "a", teacher_cache=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="4 of the 12 different rows of the dataset are not in the teacher cache"):
        filter_trainer(tmp_path / "b", None, rows=item_rows(12), teacher_cache=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="is of another teacher"):
        filter_trainer(tmp_path / "b", item_teacher(1), teacher_cache=str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=r"teacher_dtype is 'float32', and the teacher cache .* has float16"):
        filter_trainer(tmp_path / "b", None, teacher_cache=str(tmp_path / "cache"), teacher_dtype="float32")


def test_layers_come_from_the_cache_where_none_are_given(tmp_path):
    """The default layers of the teacher's size would not be those that were cached."""
    cache = {"teacher_cache": str(tmp_path / "cache")}
    filter_trainer(tmp_path / "a", **cache)  # layers 2 and 4
    for teacher in (None, item_teacher()):
        assert filter_trainer(tmp_path / "b", teacher, **cache, candidate_layers=None).layer_filters.layers == (2, 4)
    assert filter_trainer(tmp_path / "c", candidate_layers=None).layer_filters.layers == (3, 4)


# ---- Generative mode, other teachers ----


def test_generative_mode(tmp_path):
    """Tokens of the title are predicted, EOS among them, by a head over the vocabulary; the prompt is not."""
    trainer = LayerFilterTrainer(
        text_teacher(),
        filter_config(tmp_path, task_mode="generative", max_steps=2, teacher_dtype="float32"),
        Dataset.from_list(text_rows(8)),
        processing_class=word_tokenizer(),
        eval_dataset=Dataset.from_list(text_rows(4)),
    )
    assert trainer.layer_filters.vocab_size == VOCAB_SIZE
    completions = [row["completion"].split() for row in text_rows(8)]
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(8)])
    assert int((batch["labels"] != -100).sum()) == sum(len(words) + 1 for words in completions)
    before = weights(trainer.model)
    trainer.train()
    assert moved(before, weights(trainer.model)) == set(before)
    assert trainer.evaluate()["eval_loss/layer_4"] > 0
    with pytest.raises(ConfigError, match="Generative mode needs `processing_class`"):
        LayerFilterTrainer(
            text_teacher(), filter_config(tmp_path, task_mode="generative"), Dataset.from_list(text_rows())
        )
    with pytest.raises(ModelError, match="they are not of one model"):
        LayerFilterTrainer(
            *(text_teacher(vocab_size=20), filter_config(tmp_path, task_mode="generative")),
            Dataset.from_list(text_rows()),
            processing_class=word_tokenizer(),
        )


def test_a_teacher_in_bfloat16_by_its_path(tmp_path):
    """Loaded here, in the precision asked for; the filters stay in float32."""
    item_teacher().save_pretrained(tmp_path / "teacher")
    trainer = filter_trainer(
        tmp_path / "out", str(tmp_path / "teacher"), teacher_model_init_kwargs={"dtype": "bfloat16"}, max_steps=2
    )
    assert next(trainer.teacher.model.parameters()).dtype == torch.bfloat16
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    before = weights(trainer.model)
    trainer.train()
    assert moved(before, weights(trainer.model)) == set(before)


def test_a_teacher_in_4_bit_by_its_path(tmp_path):
    """The usual teacher on one GPU."""
    pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    item_teacher(hidden_size=64, intermediate_size=128).save_pretrained(tmp_path / "teacher")
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    try:
        trainer = filter_trainer(
            *(tmp_path / "out", str(tmp_path / "teacher")), parts={"quantization_config": quantization}, max_steps=2
        )
        before = weights(trainer.model)
        trainer.train()
    except (ImportError, RuntimeError) as err:
        if isinstance(err, TrainingError):
            raise
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    assert any(type(module).__name__ == "Linear4bit" for module in trainer.teacher.model.modules())
    assert moved(before, weights(trainer.model)) == set(before)


# ---- Errors ----


def test_a_loss_that_is_not_finite_is_an_error(tmp_path):
    """NaN weights save and load like others."""
    trainer = filter_trainer(tmp_path)
    with torch.no_grad():
        trainer.layer_filters.head.weight[0, 0] = float("nan")
    with pytest.raises(
        TrainingError, match=r"A loss of the layer filters is not finite at step 0.*2: nan.*Lower the learning"
    ):
        trainer.train()
    with pytest.raises(TrainingError, match="not finite"):
        trainer.evaluate(trainer.train_dataset)


def test_what_is_missing_or_does_not_fit(tmp_path):
    """Each before the first step, with the argument's name."""
    with pytest.raises(ConfigError, match="There is no teacher: give teacher_model, or teacher_cache"):
        filter_trainer(tmp_path, None)
    with pytest.raises(ConfigError, match="`student_size` is missing"):
        filter_trainer(tmp_path, student_size=None)
    with pytest.raises(ConfigError, match="of 1 to 4"):
        filter_trainer(tmp_path, candidate_layers=[3, 5])
    with pytest.raises(ModelError, match="must be an id, a path, a model or a TeacherStates, got int"):
        filter_trainer(tmp_path, 3)
    with pytest.raises(ModelError, match="No "):
        filter_trainer(tmp_path, str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="are used when the teacher is loaded here"):
        filter_trainer(tmp_path, teacher_model_init_kwargs={"dtype": "bfloat16"})
    with pytest.raises(DataError, match="item 12 is not one of the 12 items"):
        filter_trainer(tmp_path, rows=[{"items": [1, 12]}])
    with pytest.raises(ConfigError, match="`args` must be a `LayerFilterConfig`, got NoneType"):
        LayerFilterTrainer(item_teacher())
    foreign = LayerFilters([2, 4], 16, 6, 12, teacher_fingerprint="0" * 64)
    with pytest.raises(ModelError, match="another teacher"):
        filter_trainer(tmp_path, parts={"layer_filters": foreign})
    with pytest.raises(ConfigError, match="Identity filters have nothing to learn"):
        filter_trainer(tmp_path, parts={"layer_filters": LayerFilters.identity([2], 16, 12)}, student_size=None)


@pytest.mark.parametrize("flag", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_sharded_training_is_refused(tmp_path, monkeypatch, flag):
    """Filters that are split up would be saved in part."""
    create = LayerFilterTrainer.create_accelerator_and_postprocess

    def sharded(self):
        create(self)
        setattr(self, flag, True)

    monkeypatch.setattr(LayerFilterTrainer, "create_accelerator_and_postprocess", sharded)
    with pytest.raises(ConfigError, match="FSDP and DeepSpeed are not supported"):
        filter_trainer(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"task_mode": "both"}, "Unknown task_mode 'both'"),
        ({"filter_form": "identity"}, "Unknown filter_form 'identity': expected one of mlp, linear"),
        ({"filter_form": "linear", "filter_size": 3}, "filter_size is the width within filter_form='mlp'"),
        ({"student_size": 0}, "student_size must be an integer of at least 1"),
        ({"candidate_layers": [4, 2]}, "candidate_layers must be ascending and different"),
        ({"candidate_layers": []}, "at least one"),
        ({"teacher_dtype": "int8"}, "Unknown teacher_dtype"),
        ({"train_positions": "some"}, "Unknown train_positions"),
        ({"teacher_batch_size": 0}, "teacher_batch_size must be"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be an integer of at least 1"),
    ],
)
def test_arguments_that_cannot_be(tmp_path, arguments, told):
    """When the configuration is built, not after the teacher is loaded."""
    with pytest.raises(ConfigError, match=told):
        filter_config(tmp_path, **arguments)


def test_filters_can_be_trained_further(tmp_path):
    """Given filters keep their form, and may leave student_size to themselves."""
    first = filter_trainer(tmp_path / "a", filter_form="linear")
    first.save_model()
    loaded = LayerFilters.from_pretrained(tmp_path / "a").freeze()
    trainer = filter_trainer(tmp_path / "b", parts={"layer_filters": loaded}, student_size=None, candidate_layers=None)
    before = weights(trainer.model)
    trainer.train()
    assert moved(before, weights(trainer.model)) == set(before)
    trainer.save_model()
    told = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (told["form"], told["layers"], LAYERS) == ("linear", [2, 4], 4)
