"""The teacher cache gives what the loaded teacher gives, holds no teacher, and says what it lacks."""

import copy
import gc
import json
import weakref
from collections import namedtuple

import pytest
import torch
from cached import LAYERS, WIDTH, cached, collator, item_rows, item_teacher, text_rows, text_teacher, tokenized
from torch import nn

from qcrd_trl.errors import ConfigError, DataError, TrainingError
from qcrd_trl.recommendation.cache_building import build_cache
from qcrd_trl.recommendation.collator import DataCollatorForC2KD
from qcrd_trl.recommendation.teacher_cache import CachedTeacher
from qcrd_trl.recommendation.teacher_states import LiveTeacher


MODES = {"item_head": (item_teacher, item_rows), "generative": (text_teacher, text_rows)}
UNIT = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 1e-5}  # of a rounding that falls to the other side


def counting(live: LiveTeacher) -> list[int]:
    """Makes a teacher note how many rows it reads at a time."""
    seen, read = [], live.read_rounded

    def noted(batch):
        seen.append(len(batch["keys"]))
        return read(batch)

    live.read_rounded = noted
    return seen


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize("mode", MODES)
def test_cached_states_are_the_live_ones(tmp_path, mode, dtype):
    """Rows that come in another order, in other batches, or twice must get their own states and no neighbour's."""
    make, rows = MODES[mode]
    live, rows = LiveTeacher(make(), [2, 3], dtype), tokenized(rows(), mode)
    cache = cached(tmp_path / "cache", live, rows, mode, batch_size=3)
    assert (cache.layers, cache.last_layer, cache.hidden_size) == ((2, 3), LAYERS, WIDTH)
    assert (cache.fingerprint, cache.vocab_size, cache.dtype) == (live.fingerprint, live.vocab_size, live.dtype)
    for places in ([5, 0, 3], [7], [2, 2, 6, 1]):
        batch = collator(mode)([rows[place] for place in places])
        mine, theirs = live.read(batch), cache.read(batch)
        assert sorted(mine) == sorted(theirs) == [2, 3, LAYERS]
        for layer in mine:
            assert theirs[layer].shape == mine[layer].shape
            assert theirs[layer].dtype == torch.float32
            # Both round the same number up to its last bits in float32: to the same value or to the next one.
            assert ((mine[layer] - theirs[layer]).abs() <= UNIT[dtype] * mine[layer].abs() + 1e-6).all()
        assert torch.equal(cache.head(theirs[LAYERS]), live.head(theirs[LAYERS]))


def test_batches_of_one_shape_are_bit_equal(tmp_path):
    """What is stored must be the very number that was computed: an encoding that loses a bit shows here alone."""
    live, rows = LiveTeacher(item_teacher(), [1, 3]), tokenized(item_rows(8, (5,)))
    cache = cached(tmp_path / "cache", live, rows, batch_size=4)
    for start in (4, 0):
        batch = collator()([rows[place] for place in range(start, start + 4)])
        for layer, states in live.read(batch).items():
            assert states.abs().max() > 1e-2
            assert torch.equal(cache.read(batch)[layer], states)


def test_padding_on_the_left_reads_the_same_rows(tmp_path):
    """A key or an order of positions that depends on the padding finds nothing, or the wrong positions."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows())
    cache = cached(tmp_path / "cache", live, rows)
    chosen = [rows[place] for place in (1, 0, 2)]
    right, left = (DataCollatorForC2KD(12, padding_side=side)(chosen) for side in ("right", "left"))
    assert torch.equal(cache.read(left)[3], cache.read(right)[3])


def test_a_row_without_a_position(tmp_path):
    """A batch may hold a row that predicts nothing; 0 states of it are neither an error nor the next row's."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows(3)).to_list()
    rows[1]["labels"] = [-100] * len(rows[1]["labels"])
    cache = cached(tmp_path / "cache", live, rows)
    batch = collator()(rows)
    assert torch.allclose(cache.read(batch)[3], live.read(batch)[3], atol=1e-3)
    assert len(cache.read(collator()(rows[1:2]))[3]) == 0
    alone = cached(tmp_path / "alone", live, rows[1:2])  # a file of no bytes cannot be mapped
    assert len(alone.read(collator()(rows[1:2]))[3]) == 0


def test_the_cache_holds_the_head_and_no_teacher(tmp_path):
    """The cache is there to save the teacher's memory: a reference to it would keep it alive unseen."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows())
    teacher = weakref.ref(live.model)
    cache = cached(tmp_path / "cache", live, rows)
    assert teacher() is not None
    del live
    cache.read(collator()([rows[0]]))
    gc.collect()
    assert teacher() is None
    held = [parameter for module in _modules(cache) for parameter in module.parameters()]
    assert [tuple(parameter.shape) for parameter in held] == [(12, WIDTH)]
    assert not held[0].requires_grad


def _modules(thing) -> list[nn.Module]:
    """The modules that an object refers to, by whatever way."""
    seen, todo, found = set(), [thing], []
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ == "module":
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module):
            found.append(one)
            continue
        todo += [other for other in gc.get_referents(one) if not callable(other) or isinstance(other, nn.Module)]
    return found


def test_rows_that_are_there_are_not_computed_again(tmp_path):
    """A teacher of 7B that reads everything anew for ten new users costs the hours that the cache is to save."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows(8))
    seen = counting(live)
    report = build_cache(live, rows.select([0, 1, 2, 0, 1]), collator(), tmp_path / "c", 2, progress=False)
    assert (report.rows, report.added) == (3, 3)  # equal rows once
    assert sum(seen) == 3
    before = CachedTeacher(tmp_path / "c").read(collator()([rows[1]]))[3]
    seen.clear()
    report = build_cache(live, rows.select([7, 2, 1, 4]), collator(), tmp_path / "c", 2, progress=False)
    assert (report.rows, report.added, seen) == (4, 2, [2])
    cache = CachedTeacher(tmp_path / "c")
    assert len(cache) == 5
    assert torch.equal(cache.read(collator()([rows[1]]))[3], before)
    seen.clear()
    assert build_cache(live, rows.select([4, 0]), collator(), tmp_path / "c", progress=False).added == 0
    assert seen == []


def test_rows_that_are_missing_are_an_error_that_names_the_remedy(tmp_path):
    """States of another row, or a teacher loaded in silence, would be the alternatives."""
    rows = tokenized(item_rows(8))
    cache = cached(tmp_path / "cache", LiveTeacher(item_teacher(), [3]), rows.select(range(6)))
    with pytest.raises(DataError, match=r"1 of the 3 rows of a batch are not in the teacher cache .*Give the teacher"):
        cache.read(collator()([rows[place] for place in (0, 6, 1)]))
    with pytest.raises(DataError, match=r"2 of the 8 different rows of the dataset .*max_history"):
        cache.check_rows(rows, collator())
    cache.check_rows(rows.select(range(6)), collator())
    other = tokenized(item_rows(8), train_positions="last")  # the same items, other labels
    with pytest.raises(DataError, match="8 of the 8"):
        cache.check_rows(other, collator())
    batch = collator()([rows[0], rows[1]])
    batch["keys"].reverse()
    with pytest.raises(DataError, match="the batch's keys are not those of its labels"):
        cache.read(batch)


def test_a_cache_of_another_teacher_is_refused(tmp_path):
    """Half of its rows would be of one teacher and half of the other."""
    rows, folder = tokenized(item_rows()), tmp_path / "cache"
    build_cache(LiveTeacher(item_teacher(), [2, 3]), rows, collator(), folder, progress=False)
    for live, told in (
        (LiveTeacher(item_teacher(1), [2, 3]), "is of another teacher: its fingerprint is"),
        (LiveTeacher(item_teacher(), [3]), r"built with layers \(2, 3\), and \(3,\) are wanted"),
        (LiveTeacher(item_teacher(), [2, 3], "float32"), "built with dtype float16, and float32 are wanted"),
    ):
        with pytest.raises(ConfigError, match=told):
            build_cache(live, rows, collator(), folder, progress=False)
    assert CachedTeacher(folder, layers=[3]).layers == (3,)
    with pytest.raises(ConfigError, match=r"holds layers \[2, 3, 4\] and not \[1\]"):
        CachedTeacher(folder, layers=[1, 3])


def test_folders_that_are_no_cache(tmp_path):
    """A cache among other files, or in the place of a file, mixes with what it does not know."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows(2))
    with pytest.raises(DataError, match=r"No teacher cache in .* Give the teacher together with teacher_cache"):
        CachedTeacher(tmp_path / "none")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("all of it")
    with pytest.raises(ConfigError, match="is not empty and holds no teacher cache"):
        build_cache(live, rows, collator(), tmp_path / "full", progress=False)
    with pytest.raises(ConfigError, match="is a file: give a folder"):
        build_cache(live, rows, collator(), tmp_path / "full" / "thesis.txt", progress=False)
    with pytest.raises(ConfigError, match="A streaming dataset cannot be cached"):
        build_cache(live, iter(rows), collator(), tmp_path / "stream", progress=False)


def test_want_of_room_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    """A disk that fills up after hours of a teacher's time is found out by arithmetic at once."""
    live, rows = LiveTeacher(item_teacher(), [3]), tokenized(item_rows(4, (5,)))
    seen = counting(live)
    # 4 rows of 4 positions, 2 layers of 16 numbers of 2 bytes, and 52 bytes a row for the index: 1,024 and 208 bytes.
    usage = namedtuple("usage", "total used free")
    free = [1231]
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**6, 0, free[0]))
    with pytest.raises(
        ConfigError, match=r"needs 1\.2 KiB for 4 more rows, and 1\.2 KiB are free.*fewer candidate layers"
    ):
        build_cache(live, rows, collator(), tmp_path / "c", progress=False)
    assert seen == []
    free[0] = 1232
    report = build_cache(live, rows, collator(), tmp_path / "c", progress=False)
    assert (report.added, report.added_bytes) == (4, 1232)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "c").iterdir()}
    assert sizes["states-00000.bin"] + sizes["index-00000.bin"] == 1232


def test_states_that_do_not_fit_the_dtype_leave_a_cache_that_can_be_gone_on_with(tmp_path):
    """The error is the same as without a cache, and names the setting."""
    model = item_teacher()
    with torch.no_grad():
        model.backbone.layers[2].mlp.down_proj.weight.mul_(1e9)
    live, rows = LiveTeacher(model, [3]), tokenized(item_rows(4))
    with pytest.raises(TrainingError, match="teacher_dtype='bfloat16'"):
        build_cache(live, rows, collator(), tmp_path / "c", progress=False)
    assert len(CachedTeacher(tmp_path / "c")) == 0
    cache = cached(tmp_path / "d", LiveTeacher(model, [3], "bfloat16"), rows)
    assert cache.read(collator()([rows[0]]))[3].abs().max() > 65504


@pytest.mark.parametrize("change", ["vocab_size", "kind", "format", "text", "layers"])
def test_a_damaged_format_is_told(tmp_path, change):
    """Sizes that do not belong to the files would cut rows at wrong places."""
    folder = tmp_path / "cache"
    cached(folder, LiveTeacher(item_teacher(), [3]), tokenized(item_rows(2)))
    told = json.loads((folder / "cache.json").read_text())
    expected = {
        "vocab_size": ("head.safetensors .* has the shape", {**told, "vocab_size": 13}),
        "kind": ("is no teacher cache", {**told, "kind": "other"}),
        "format": ("is of format 2, and format 1 is read here", {**told, "format": 2}),
        "layers": ("is damaged: KeyError", {name: value for name, value in told.items() if name != "layers"}),
        "text": ("is damaged", None),
    }
    match, content = expected[change]
    (folder / "cache.json").write_text("{" if content is None else json.dumps(content))
    with pytest.raises(DataError, match=match):
        CachedTeacher(folder)


def test_a_damaged_head_is_told(tmp_path):
    """Every logit of the teacher comes from it."""
    folder = tmp_path / "cache"
    cached(folder, LiveTeacher(item_teacher(), [3]), tokenized(item_rows(2)))
    data = bytearray((folder / "head.safetensors").read_bytes())
    data[-3] ^= 1
    (folder / "head.safetensors").write_bytes(data)
    with pytest.raises(DataError, match="is not the file that was written"):
        CachedTeacher(folder)
    (folder / "head.safetensors").unlink()
    with pytest.raises(DataError, match="missing or damaged"):
        CachedTeacher(folder)


def test_a_teacher_with_an_adapter(tmp_path):
    """The base's states in place of the adapted ones fit in every size."""
    from peft import get_peft_model
    from running import lora

    torch.manual_seed(2)
    model = get_peft_model(copy.deepcopy(item_teacher()), lora(init_lora_weights=False, task_type=None))
    live, rows = LiveTeacher(model, [3]), tokenized(item_rows(4, (5,)))
    cache = cached(tmp_path / "cache", live, rows, batch_size=4)
    batch = collator()([rows[place] for place in range(4)])
    assert torch.equal(cache.read(batch)[3], live.read(batch)[3])
    assert not torch.allclose(cache.read(batch)[3], LiveTeacher(item_teacher(), [3]).read(batch)[3], atol=1e-2)


def test_a_teacher_in_4_bit(tmp_path):
    """A quantized teacher is the usual one: its weights may not be repacked on the way, nor cast by the cache."""
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    text_teacher(hidden_size=64, intermediate_size=128).save_pretrained(tmp_path / "teacher")
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    try:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "teacher", quantization_config=quantization)
        live = LiveTeacher(model, [2, 3])
        rows = tokenized(text_rows(4), "generative")
        batch = collator("generative")([rows[0], rows[0]])
        live.read(batch)
    except (ImportError, RuntimeError) as err:
        pytest.skip(f"bitsandbytes cannot quantize here: {err}")
    assert any(type(module).__name__ == "Linear4bit" for module in model.modules())
    before = live.fingerprint
    cache = cached(tmp_path / "cache", live, rows, "generative", batch_size=1)
    live._fingerprint = None
    assert cache.fingerprint == live.fingerprint == before
    for row in rows:
        batch = collator("generative")([row])
        states = cache.read(batch)
        assert torch.equal(states[2], live.read(batch)[2])
        assert torch.isfinite(cache.head(states[LAYERS])).all()
