"""The backend `transformers`: the model's own texts, whatever batch they are in."""

import pytest
import torch
from peft import get_peft_model
from running import lora
from tiny import CHAT_TEMPLATE, byte_tokenizer, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.sampling.teachers import load_teacher
from qcrd_trl.sampling.teachers.base import SamplingSettings, TeacherRequest
from qcrd_trl.sampling.teachers.local import EndAtStop, LocalTeacher, Nucleus


WORDS = ["a + 1", "b", "a + 2 - 3 = 4 so b c", "d d", "e f g", "c = 1 2 3 4 5 6"]
HOW = SamplingSettings(temperature=0.8, max_new_tokens=8)


def save(folder, kind="llama", chat=False):
    """A tiny model with weights large enough that its texts differ by prompt, and its tokenizer."""
    model = {"llama": tiny_llama, "gpt2": tiny_gpt2, "t5": tiny_t5, "adapter": tiny_llama}[kind]()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    tokenizer = word_tokenizer(adds_eos=kind == "t5", chat_template=CHAT_TEMPLATE if chat else None, bos="<s>")
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    if kind != "adapter":
        return str(folder / "base")
    model.name_or_path = model.config._name_or_path = str(folder / "base")
    get_peft_model(model, lora(init_lora_weights=False)).save_pretrained(folder / "adapter")
    return str(folder / "adapter")


def teacher_of(folder, kind="llama", chat=None, **options):
    return LocalTeacher(save(folder, kind, bool(chat)), chat=chat, **{"dtype": "float32", **options})


def requests(samples=2, words=WORDS):
    return [
        TeacherRequest(f"q{i}", text, tuple(range(samples)), tuple(100 * i + k for k in range(samples)))
        for i, text in enumerate(words)
    ]


def ask(teacher, asked=None, how=HOW):
    """Completions by `(id, sample_index)`."""
    found = {}
    for request, completions in teacher.sample(iter(requests() if asked is None else asked), how):
        for completion in completions:
            assert (request.id, completion.sample_index) not in found
            found[request.id, completion.sample_index] = completion
    return found


@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5", "adapter"])
def test_greedy_is_what_generate_gives(tmp_path, kind):
    """Padding, a prompt with a token too many, or an adapter left out: another teacher than the one that was named."""
    teacher = teacher_of(tmp_path, kind)
    found = ask(teacher, requests(1), SamplingSettings(temperature=0, max_new_tokens=8))
    tokenizer, texts = teacher._tokenizer, []
    for number, words in enumerate(WORDS):
        inputs = tokenizer(words, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        out = teacher._model.generate(**inputs, do_sample=False, max_new_tokens=8)[0]
        new = out[1:] if kind == "t5" else out[inputs["input_ids"].shape[1] :]
        texts.append(tokenizer.decode(new, skip_special_tokens=True))
        assert found[f"q{number}", 0].text == texts[-1]
    assert len(set(texts)) > 2


def test_chat(tmp_path):
    """A chat model asked without its template answers as another model; a second BOS token is one it never saw."""
    teacher = teacher_of(tmp_path, chat=True)
    messages = [{"role": "system", "content": "b"}, {"role": "user", "content": "a + 1"}]
    seen = []
    teacher.check()
    generate = teacher._model.generate

    def noted(**kwargs):
        seen.append(kwargs["input_ids"].tolist())
        return generate(**kwargs)

    teacher._model.generate = noted
    ask(teacher, [TeacherRequest("q", messages, (0,), (1,))])
    text = teacher._tokenizer.decode(seen[0][0])
    assert text.split() == "<s> <|system|> b </s> <|user|> a + 1 </s> <|assistant|>".split()


def test_chat_or_plain(tmp_path):
    """Chosen by the tokenizer, unless the user says which."""
    assert LocalTeacher(save(tmp_path / "with", chat=True)).chat
    assert not LocalTeacher(save(tmp_path / "with", chat=True), chat=False).chat
    assert not LocalTeacher(save(tmp_path / "without")).chat
    with pytest.raises(ConfigError, match="no chat template"):
        LocalTeacher(save(tmp_path / "without"), chat=True)


def test_template_that_refuses(tmp_path):
    """Some models take no system message; the remedy is a flag."""
    teacher = teacher_of(tmp_path, chat=True)
    teacher._tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    asked = [TeacherRequest("q", [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}], (0,), (1,))]
    with pytest.raises(DataError, match=r"System role not supported.*leave --system_prompt out"):
        ask(teacher, asked)


def test_samples_do_not_depend_on_the_batch(tmp_path):
    """A run that is resumed makes other batches: what it adds must be what it would have added."""
    reference = ask(teacher_of(tmp_path, batch_size=1))
    assert len({completion.text for completion in reference.values()}) > 8
    for batch_size in (3, 5, 64):
        assert ask(teacher_of(tmp_path, batch_size=batch_size)) == reference
    assert ask(teacher_of(tmp_path), requests()[::-1]) == reference
    only = [TeacherRequest("q2", WORDS[2], (1,), (201,))]
    assert ask(teacher_of(tmp_path), only)["q2", 1].text == reference["q2", 1].text


def test_seeds(tmp_path):
    """Equal samples are one sample; a seed that does nothing makes no run repeatable."""
    teacher = teacher_of(tmp_path)
    asked = [TeacherRequest("q", "a + 1", tuple(range(20)), tuple(range(20)))]
    first = ask(teacher, asked)
    assert len({completion.text for completion in first.values()}) > 10
    state = torch.random.get_rng_state()
    torch.manual_seed(77)
    assert ask(teacher, asked) == first
    torch.random.set_rng_state(state)
    others = ask(teacher, [TeacherRequest("q", "a + 1", tuple(range(20)), tuple(range(100, 120)))])
    assert [c.text for c in others.values()] != [c.text for c in first.values()]


def test_nucleus_by_hand():
    """A nucleus taken before the temperature is another distribution."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    kept = lambda top_p, temperature: torch.isfinite(Nucleus(top_p, temperature)(None, logits))[0].tolist()  # noqa: E731
    assert kept(0.79, 1.0) == [True, True, False, False]
    assert kept(0.81, 1.0) == [True, True, True, False]
    # At temperature 2 the probabilities go with their roots: 0.707, 0.548, 0.387, 0.224 of 1.866 are 0.38, 0.29, 0.21, 0.12.
    assert kept(0.79, 2.0) == [True, True, True, False]
    assert kept(0.1, 1.0) == [True, False, False, False]
    assert torch.equal(Nucleus(0.79, 2.0)(None, logits)[0, :3], logits[0, :3])


def test_a_nucleus_of_one_token_is_greedy(tmp_path):
    """top_p that never reaches the sampler."""
    teacher = teacher_of(tmp_path)
    narrow = ask(teacher, how=SamplingSettings(temperature=0.8, top_p=1e-6, max_new_tokens=8))
    greedy = ask(teacher, requests(1), SamplingSettings(temperature=0, max_new_tokens=8))
    assert {key: c.text for key, c in narrow.items()} == {(id, k): greedy[id, 0].text for id, k in narrow}


@pytest.mark.parametrize("kind", ["llama", "t5"])
@pytest.mark.parametrize("batch_size", [4, 40])
def test_stop_texts(tmp_path, kind, batch_size):
    """A stop text that is part of the sample is read as the answer; one that is not acted upon is paid to the limit."""
    free = ask(
        teacher_of(tmp_path, kind, batch_size=batch_size), requests(7), SamplingSettings(1.0, max_new_tokens=24)
    )
    how = SamplingSettings(1.0, max_new_tokens=24, stop=(" 3", " b"))
    stopped = ask(teacher_of(tmp_path, kind, batch_size=batch_size), requests(7), how)
    cut = saved = 0
    for key, completion in stopped.items():
        text = free[key].text
        places = [place for place in (text.find(" 3"), text.find(" b")) if place >= 0]
        assert completion.text == (text[: min(places)] if places else text)
        if places:
            cut += 1
            assert completion.finish_reason == "stop"
            # Special tokens are no part of the text: a few rows have more tokens than words.
            saved += completion.usage["completion_tokens"] <= len(text[: min(places)].split()) + 3
    assert cut > 5
    assert saved > 0.6 * cut


def test_end_at_stop_sees_new_text_only():
    """A stop text in the question, as every few-shot prompt has it, would end each sample before it begins."""
    tokenizer = byte_tokenizer()
    processor = EndAtStop(["\nQ:"], tokenizer)
    prompt = tokenizer("x\nQ: y")["input_ids"]
    scores = torch.zeros(1, len(tokenizer))
    assert torch.equal(processor(torch.tensor([prompt]), scores), scores)
    assert torch.equal(processor(torch.tensor([prompt + tokenizer("so\nQ")["input_ids"]]), scores), scores)
    forced = processor(torch.tensor([prompt + tokenizer("so\nQ:")["input_ids"]]), scores)
    assert forced.argmax().item() == tokenizer.eos_token_id
    assert torch.isfinite(forced).sum() == 1
    assert torch.equal(scores, torch.zeros_like(scores))


def test_finish_reasons_and_usage(tmp_path):
    """A text that the limit cut off has no answer; the prompt counted once a sample makes the bill wrong."""
    how = SamplingSettings(1.0, max_new_tokens=6)
    teacher = teacher_of(tmp_path)
    found = ask(teacher, requests(12), how)
    by_reason = {reason: [c for c in found.values() if c.finish_reason == reason] for reason in ("stop", "length")}
    assert all(by_reason.values()), "one of the two was not met"
    assert all(c.usage["completion_tokens"] == 6 for c in by_reason["length"])
    assert {c.status for c in by_reason["length"]} == {"truncated"}
    assert {c.status for c in by_reason["stop"]} <= {"ok", "empty"}
    for (id, index), completion in found.items():
        prompt = len(WORDS[int(id[1:])].split())
        assert completion.usage.get("prompt_tokens") == (prompt if index == 0 else None)
    assert teacher.stats.prompt_tokens == sum(len(words.split()) for words in WORDS)
    assert teacher.stats.completion_tokens == sum(c.usage["completion_tokens"] for c in found.values())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_context_overflow(tmp_path, kind):
    """One long question must not end the run, nor be cut in silence; a long neighbour must not shorten another's answer."""
    teacher = teacher_of(tmp_path, kind)
    teacher.check()
    long, tight = " ".join(["a"] * 256), " ".join(["b"] * 251)
    how = SamplingSettings(1.0, max_new_tokens=12)
    found = ask(teacher, requests(3, [WORDS[0], long, tight, WORDS[1]]), how)
    assert [found["q1", k].status for k in range(3)] == ["failed"] * 3
    assert found["q1", 0].error == "the prompt has 256 tokens and leaves no room in the teacher's context of 256"
    assert found["q1", 2].seed == 102
    assert all(found["q2", k].usage["completion_tokens"] <= 5 for k in range(3))
    assert {found["q2", k].status for k in range(3)} <= {"truncated", "ok", "empty"}
    alone = ask(teacher, requests(3, [WORDS[0]]), how)
    assert [found["q0", k] for k in range(3)] == [alone["q0", k] for k in range(3)]


def test_requests_are_drawn_as_there_is_room(tmp_path):
    """All questions at once: nothing would be written before the last was tokenized."""
    teacher = teacher_of(tmp_path, batch_size=1)
    drawn = []
    asked = (drawn.append(i) or TeacherRequest(str(i), "a", (0,), (i,)) for i in range(100))
    answers = teacher.sample(asked, SamplingSettings(1.0, max_new_tokens=1))
    next(answers)
    assert len(drawn) == 16
    answers.close()


def test_settings(tmp_path):
    """What changes the texts is in the hash, what changes the speed is not."""
    path = save(tmp_path)
    base = LocalTeacher(path).settings()
    assert base == {"backend": "transformers", "model": path, "dtype": "auto", "quantization_bits": None}
    assert LocalTeacher(path, batch_size=3, device="cpu").settings() == base
    assert LocalTeacher(path, load_in_4bit=True).settings()["quantization_bits"] == 4
    assert LocalTeacher(path, load_in_8bit=True).settings()["quantization_bits"] == 8
    assert LocalTeacher(path, dtype="float32").settings() != base


def test_quantized(tmp_path):
    """Flags that are read and not used: a teacher that does not fit into memory after all."""
    pytest.importorskip("bitsandbytes")
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    teacher = LocalTeacher(str(tmp_path), load_in_4bit=True, device="cpu")
    found = ask(teacher, requests(1))
    assert len(found) == len(WORDS)
    assert "Linear4bit" in {type(module).__name__ for module in teacher._model.modules()}


def test_wrong_settings(tmp_path):
    """Found when the teacher is made, not after a model of 14 GB was loaded."""
    path = save(tmp_path)
    with pytest.raises(ConfigError, match="not both"):
        LocalTeacher(path, load_in_4bit=True, load_in_8bit=True)
    with pytest.raises(ConfigError, match="--batch_size must be at least 1"):
        LocalTeacher(path, batch_size=0)
    with pytest.raises(ModelError, match="No tokenizer could be loaded"):
        LocalTeacher(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="Unknown teacher_backend 'hf': expected one of transformers, openai, vllm"):
        load_teacher("hf", path)
    teacher = load_teacher("transformers", path, batch_size=2)
    assert isinstance(teacher, LocalTeacher)
    teacher.close()
    teacher.close()
