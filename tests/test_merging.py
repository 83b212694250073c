"""An adapter as a full model: the same student, or no folder at all."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from saved import questions_of, tokenizer_of
from tiny import tiny_gpt2, tiny_llama, word_tokenizer

from qcrd_trl import RationaleStudent
from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.merging import merge_student
from qcrd_trl.models import load_model


@pytest.mark.parametrize("kind", ["adapter", "adapter_t5", "adapter_chat"])
def test_the_merged_student_is_the_same(saved_student, tmp_path, kind):
    """A merge into the wrong weights, or without tokenizer, format or discriminator, still gives a model that writes."""
    folder, output = saved_student(kind), tmp_path / "new" / "merged"
    merged = merge_student(folder, output)
    assert merged.folder == output
    assert merged.dtype == "float32"
    assert 0 <= merged.difference < 1e-4
    names = {path.name for path in output.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "qcrd_format.json",
        "tokenizer.json",
        "generation_config.json",
    }
    assert not any("adapter" in name for name in names)
    assert sorted(path.name for path in (output / "discriminator").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in output.parent.iterdir()] == ["merged"]
    one, other = (RationaleStudent.from_pretrained(path) for path in (folder, output))
    assert other.student_format == one.student_format
    questions = questions_of(kind)
    assert [a.text for a in one.predict(questions)] == [a.text for a in other.predict(questions)]
    mine, yours = (student.explain(questions, max_new_tokens=8) for student in (one, other))
    assert [e.rationale for e in mine] == [e.rationale for e in yours]
    assert [e.quality for e in mine] == pytest.approx([e.quality for e in yours], abs=1e-4)
    # The comparison is none if the adapter does nothing.
    base = RationaleStudent.from_pretrained(folder.parent / "base", with_discriminator=False)
    base.student_format = one.student_format
    assert [e.rationale for e in base.explain(questions, max_new_tokens=8)] != [e.rationale for e in mine]


def test_no_path_of_this_machine_is_written(saved_student, tmp_path):
    """What is written is pushed to the Hub."""
    merge_student(saved_student("adapter"), tmp_path / "merged")
    for file in (tmp_path / "merged").rglob("*.json"):
        assert str(saved_student("adapter").parent) not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
def test_another_precision(saved_student, tmp_path, dtype):
    """Rounded once, at the end: a merge in bfloat16 loses what the adapter added."""
    base = tmp_path / "base"
    load_model(saved_student("adapter").parent / "base").to(torch.bfloat16).save_pretrained(base)
    merged = merge_student(saved_student("adapter"), tmp_path / "merged", base=str(base), dtype=dtype)
    assert merged.dtype == "bfloat16"
    assert 0 < merged.difference < 0.2
    written = load_model(tmp_path / "merged", dtype="auto")
    assert written.dtype == torch.bfloat16
    exact = merge_student(saved_student("adapter"), tmp_path / "exact", base=str(base))
    weights = load_model(exact.folder).state_dict()
    for name, tensor in written.state_dict().items():
        assert torch.equal(tensor, weights[name].to(torch.bfloat16)), name


def test_a_folder_that_is_there(saved_student, tmp_path):
    """Neither another model nor what is merged may be lost by a name typed wrong."""
    adapter = shutil.copytree(saved_student("adapter"), tmp_path / "adapter")
    output = tmp_path / "merged"
    output.mkdir()
    merge_student(adapter, output)  # it was empty
    (output / "mine").write_text("mine")
    with pytest.raises(ConfigError, match=r"not empty.*--overwrite_output_dir"):
        merge_student(adapter, output)
    assert (output / "mine").read_text() == "mine"
    merge_student(adapter, output, overwrite=True)
    assert not (output / "mine").exists()
    for place in (adapter, tmp_path):
        with pytest.raises(ConfigError, match="holds what is merged"):
            merge_student(adapter, place, overwrite=True)
    base = tmp_path / "base"
    shutil.copytree(saved_student("adapter").parent / "base", base)
    with pytest.raises(ConfigError, match="holds what is merged"):
        merge_student(adapter, base, base=str(base), overwrite=True)
    with pytest.raises(ConfigError, match="is a file"):
        merge_student(adapter, adapter / "adapter_config.json")


def test_a_failure_leaves_nothing(saved_student, tmp_path, monkeypatch):
    """Half a model under the final name would be loaded, or pushed."""
    before = merge_student(saved_student("adapter"), tmp_path / "merged")
    weights = (tmp_path / "merged" / "model.safetensors").read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qcrd_trl.merging.shutil.copytree", full)
    with pytest.raises(OSError, match="No space left"):
        merge_student(saved_student("adapter"), tmp_path / "merged", overwrite=True, dtype="bfloat16")
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    assert (before.folder / "model.safetensors").read_bytes() == weights


def quantized_base(folder, config):
    tiny_llama().save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": config}))
    return folder


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "4-bit, bitsandbytes"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8-bit, bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ],
)
def test_a_quantized_base_is_refused(saved_student, tmp_path, config, what):
    """Merged and rounded to 4 bits again, a student forgets a part of what it learned, and nothing says so."""
    base = quantized_base(tmp_path / "base", config)
    with pytest.raises(ModelError, match=rf"is quantized \({what}\).*--base_model.*--dtype"):
        merge_student(saved_student("adapter"), tmp_path / "merged", base=str(base))
    assert not (tmp_path / "merged").exists()


def test_what_cannot_be_merged(saved_student, tmp_path):
    """Each in one line that says what was got and what helps."""
    output = tmp_path / "merged"
    with pytest.raises(ModelError, match="is a full model: there is no adapter to merge"):
        merge_student(saved_student("full"), output)
    with pytest.raises(ModelError, match="There is no folder"):
        merge_student("./no/such", output)
    with pytest.raises(ModelError, match="does not fit the base"):
        merge_student(saved_student("adapter"), output, base=str(wider(tmp_path / "wider")))
    with pytest.raises(ModelError, match=r"No student in .*expected adapter_config\.json"):
        merge_student(tmp_path, output)
    with pytest.raises(ConfigError, match="Unknown dtype 'int4'"):
        merge_student(saved_student("adapter"), output, dtype="int4")
    lost = shutil.copytree(saved_student("adapter"), tmp_path / "lost")
    config = json.loads((lost / "adapter_config.json").read_text())
    for name, message in ((None, "does not name its base"), ("./no/base", r"'\./no/base'.*--base_model")):
        (lost / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": name}))
        with pytest.raises(ModelError, match=message):
            merge_student(lost, output)
    assert not output.exists()


def wider(folder):
    tiny_llama(hidden_size=32).save_pretrained(folder)
    return folder


def test_an_adapter_on_a_tied_embedding(tmp_path):
    """Merged into the embedding, it would change the head that is tied to it: another model, and nothing would say so."""
    tiny_gpt2().save_pretrained(tmp_path / "base")
    model = get_peft_model(
        load_model(tmp_path / "base"), LoraConfig(r=4, target_modules=["wte"], task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    model.save_pretrained(tmp_path / "adapter")
    word_tokenizer().save_pretrained(tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"another one than the adapter.*tied"):
        merge_student(tmp_path / "adapter", tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_without_a_tokenizer_that_of_the_base(saved_student, tmp_path):
    """PEFT saves none with an adapter."""
    adapter = shutil.copytree(saved_student("adapter"), tmp_path / "adapter")
    for file in adapter.glob("tokenizer*"):
        file.unlink()
    merge_student(adapter, tmp_path / "merged")
    assert (
        RationaleStudent.from_pretrained(tmp_path / "merged").tokenizer.get_vocab()
        == tokenizer_of("adapter").get_vocab()
    )
