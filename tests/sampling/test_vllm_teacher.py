"""The backend `vllm`, against a stand-in module with the signatures of vLLM's offline engine: the mapping alone."""

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from peft import get_peft_model
from running import lora
from tiny import CHAT_TEMPLATE, ids, tiny_llama, word_tokenizer

from qcrd_trl.errors import ConfigError
from qcrd_trl.sampling.teachers import load_teacher
from qcrd_trl.sampling.teachers.base import SamplingSettings, TeacherRequest


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: Any = None
    max_tokens: int | None = 16


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


@dataclass
class LLM:
    model: str
    kwargs: dict = field(default_factory=dict)

    def __init__(self, model, *, dtype="auto", trust_remote_code=False, **kwargs):
        self.model, self.kwargs = model, {"dtype": dtype, "trust_remote_code": trust_remote_code, **kwargs}
        self.model_config = SimpleNamespace(max_model_len=20)
        self.calls = []
        engines.append(self)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None):
        self.calls.append((prompts, sampling_params, use_tqdm, lora_request))
        reasons = {3: "length", 5: "abort"}
        return [
            SimpleNamespace(
                prompt_token_ids=prompt["prompt_token_ids"],
                outputs=[
                    SimpleNamespace(
                        text=f"text {p.seed}", token_ids=[1] * 4, finish_reason=reasons.get(p.seed, "stop")
                    )
                ],
            )
            for prompt, p in zip(prompts, sampling_params, strict=True)
        ]


engines: list[LLM] = []


@pytest.fixture
def vllm(monkeypatch):
    engines.clear()
    module, lora_module, request = ModuleType("vllm"), ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    module.LLM, module.SamplingParams, request.LoRARequest = LLM, SamplingParams, LoRARequest
    for name, value in (("vllm", module), ("vllm.lora", lora_module), ("vllm.lora.request", request)):
        monkeypatch.setitem(sys.modules, name, value)


def folder_of(path, chat=False):
    tiny_llama().save_pretrained(path)
    word_tokenizer(chat_template=CHAT_TEMPLATE if chat else None, bos="<s>").save_pretrained(path)
    return str(path)


def test_mapping(vllm, tmp_path):
    """A seed or a limit that does not reach the engine changes what is sampled without an error."""
    teacher = load_teacher("vllm", folder_of(tmp_path), engine_args={"tensor_parallel_size": 2, "quantization": "fp8"})
    assert not teacher.chat
    teacher.check()
    assert (engines[0].model, engines[0].kwargs["tensor_parallel_size"]) == (str(tmp_path), 2)
    asked = [
        TeacherRequest("a", "a + 1", (0, 2), (7, 3)),
        TeacherRequest("long", "a " * 20, (0,), (1,)),
        TeacherRequest("b", "b", (1,), (5,)),
    ]
    how = SamplingSettings(0.7, 0.9, 33, ("\nQ:",))
    found = {request.id: completions for request, completions in teacher.sample(asked, how)}
    prompts, params, use_tqdm, adapter = engines[0].calls[0]
    assert prompts == [{"prompt_token_ids": ids(text)} for text in ("a + 1", "a + 1", "b")]
    assert params == [SamplingParams(1, 0.7, 0.9, seed, ["\nQ:"], 33) for seed in (7, 3, 5)]
    assert (use_tqdm, adapter, len(engines)) == (False, None, 1)
    first, second = found["a"]
    assert (first.sample_index, first.text, first.status, first.seed) == (0, "text 7", "ok", 7)
    assert first.usage == {"prompt_tokens": 3, "completion_tokens": 4}
    assert (second.sample_index, second.status, second.usage) == (2, "truncated", {"completion_tokens": 4})
    assert (found["b"][0].status, found["b"][0].error) == ("failed", "the engine ended it with finish reason 'abort'")
    assert found["long"][0].error == "the prompt has 20 tokens and leaves no room in the teacher's context of 20"
    assert (teacher.stats.prompt_tokens, teacher.stats.completion_tokens, teacher.stats.errors) == (4, 12, 1)


def test_chat_template(vllm, tmp_path):
    """The same token ids as the backend `transformers` gives: one BOS token, the template's."""
    teacher = load_teacher("vllm", folder_of(tmp_path, chat=True))
    assert teacher.chat
    asked = [TeacherRequest("a", [{"role": "user", "content": "a + 1"}], (0,), (7,))]
    list(teacher.sample(asked, SamplingSettings()))
    assert engines[0].calls[0][0] == [{"prompt_token_ids": ids("<s> <|user|> a + 1 </s> <|assistant|>")}]
    with pytest.raises(ConfigError, match="no chat template"):
        load_teacher("vllm", folder_of(tmp_path / "plain"), chat=True)


def test_adapter(vllm, tmp_path):
    """An adapter's folder: its base is served, and the adapter is asked, not the base."""
    base = folder_of(tmp_path / "base")
    model = tiny_llama()
    model.name_or_path = model.config._name_or_path = base
    get_peft_model(model, lora()).save_pretrained(tmp_path / "adapter")
    teacher = load_teacher("vllm", str(tmp_path / "adapter"))
    list(teacher.sample([TeacherRequest("a", "a", (0,), (7,))], SamplingSettings()))
    assert engines[0].model == base
    assert (engines[0].kwargs["enable_lora"], engines[0].kwargs["max_lora_rank"]) == (True, 4)
    assert engines[0].calls[0][3] == LoRARequest("teacher", 1, str(tmp_path / "adapter"))


def test_windows(vllm, tmp_path, monkeypatch):
    """All questions in one call: a crash in the last hour loses the whole day."""
    import qcrd_trl.sampling.teachers.vllm_offline as module

    monkeypatch.setattr(module, "WINDOW", 4)
    teacher = load_teacher("vllm", folder_of(tmp_path))
    asked = [TeacherRequest(str(i), "a", (0, 1), (10 + i, 20 + i)) for i in range(5)]
    answers = list(teacher.sample(asked, SamplingSettings()))
    assert [len(call[0]) for call in engines[0].calls] == [4, 4, 2]
    assert [(r.id, [c.text for c in cs]) for r, cs in answers] == [
        (str(i), [f"text {10 + i}", f"text {20 + i}"]) for i in range(5)
    ]


def test_settings(vllm, tmp_path):
    """On how many GPUs it runs is no other teacher; how it is quantized is."""
    path = folder_of(tmp_path)
    base = load_teacher("vllm", path, engine_args={"quantization": "fp8"}).settings()
    assert base == {"backend": "vllm", "model": path, "dtype": "auto", "engine_args": {"quantization": "fp8"}}
    many = {"quantization": "fp8", "tensor_parallel_size": 4, "gpu_memory_utilization": 0.5}
    assert load_teacher("vllm", path, engine_args=many).settings() == base
    with pytest.raises(ConfigError, match="must not set 'dtype'"):
        load_teacher("vllm", path, engine_args={"dtype": "half"})


def test_not_installed(tmp_path, monkeypatch):
    """A traceback about modules does not say what to install."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"needs vllm.*pip install 'qcrd_trl\[vllm\]'"):
        load_teacher("vllm", "any")
