"""The teacher behind a real server, `transformers serve`, gives the texts of the same model in this process."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch
from serving import prepare
from tiny import CHAT_TEMPLATE, byte_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from qcrd_trl.errors import TeacherError
from qcrd_trl.sampling.teachers.base import SamplingSettings, TeacherRequest
from qcrd_trl.sampling.teachers.openai_server import OpenAITeacher


QUESTIONS = [
    "2 apples and 3 pears: how many fruits?",
    "Ben had 7 pens and lost 4. How many are left?",
    "Name a colour.",
]


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    prepare(monkeypatch)


@contextmanager
def served(folder, log):
    """`transformers serve` of a folder, in a process of its own; gives its address once it answers."""
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (pip install 'transformers[serving]')")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from transformers.cli.transformers import main; main()"
    arguments = [
        "serve",
        str(folder),
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("w") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        for _ in range(600):
            assert child.poll() is None, log.read_text()[-3000:]
            try:
                with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        else:
            pytest.fail(f"no server within 120 s: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.terminate()
        child.wait(timeout=30)


def messages(question):
    return [{"role": "system", "content": "Answer in short."}, {"role": "user", "content": question}]


def requests(prompts, samples=1):
    return [
        TeacherRequest(f"q{i}", prompt, tuple(range(samples)), tuple(1000 * i + k for k in range(samples)))
        for i, prompt in enumerate(prompts)
    ]


def answers_of(teacher, asked, how):
    """The completions of each request, in the order of the requests."""
    found = {}
    for request, completions in teacher.sample(asked, how):
        found.setdefault(request.id, []).extend(completions)
    return [sorted(found[request.id], key=lambda completion: completion.sample_index) for request in asked]


@torch.no_grad()
def generated(folder, prompts, max_new_tokens):
    """Greedy texts by plain `generate`, and how many tokens each has."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        else:
            ids = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )["input_ids"]
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, temperature=None, max_new_tokens=max_new_tokens
        )[0, ids.shape[1] :]
        texts.append((tokenizer.decode(out, skip_special_tokens=True), len(out), ids.shape[1]))
    return texts


def assert_equal(answers, expected, max_new_tokens):
    """The same texts, cut at the same place, with the same counts of tokens."""
    assert len(answers) == len(expected) > 1
    for [completion], (text, tokens, prompt_tokens) in zip(answers, expected, strict=True):
        assert completion.text == text
        assert completion.usage == {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        cut = tokens == max_new_tokens
        assert (completion.status, completion.finish_reason) == (("truncated", "length") if cut else ("ok", "stop"))
    assert len({text for text, *_ in expected}) > 1, "the texts do not depend on the prompt: nothing was compared"


def assert_equals_local(folder, prompts, answers, how):
    """And the same as the backend that runs the model in this process, once there is one."""
    if importlib.util.find_spec("qcrd_trl.sampling.teachers.local") is None:
        return
    from qcrd_trl.sampling.teachers.local import LocalTeacher

    local = answers_of(LocalTeacher(str(folder), dtype="float32", device="cpu", chat=True), requests(prompts), how)
    assert [c.text.strip() for [c] in answers] == [c.text.strip() for [c] in local]
    assert [c.status for [c] in answers] == [c.status for [c] in local]


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory):
    """A random chat model of a few thousand weights that reads and writes bytes."""
    folder = tmp_path_factory.mktemp("teacher")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    model = tiny_llama(seed=3, vocab_size=len(tokenizer), max_position_embeddings=512, initializer_range=0.6)
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with served(folder, folder.parent / f"{folder.name}.log") as url:
        yield folder, url


def test_the_tiny_teacher_says_the_same(tiny_server):
    """A server that got another prompt, template or temperature than was meant gives plausible texts all the same."""
    folder, url = tiny_server
    how = SamplingSettings(temperature=0.0, max_new_tokens=12)
    teacher = OpenAITeacher(str(folder), url)
    teacher.check()
    prompts = [messages(question) for question in QUESTIONS]
    answers = answers_of(teacher, requests(prompts), how)
    assert_equal(answers, generated(folder, prompts, 12), 12)
    assert_equals_local(folder, prompts, answers, how)
    plain = answers_of(OpenAITeacher(str(folder), url, chat=False), requests(QUESTIONS), how)
    assert_equal(plain, generated(folder, QUESTIONS, 12), 12)
    assert [c.text for [c] in plain] != [c.text for [c] in answers]


def test_the_tiny_teacher_samples(tiny_server, caplog):
    """
    The server ignores `n` and takes the seed. One request at a time: its seed is that of the whole process, so of two
    requests at once neither is drawn by its own.
    """
    folder, url = tiny_server
    teacher = OpenAITeacher(str(folder), url, max_concurrency=1)
    how = SamplingSettings(temperature=1.0, max_new_tokens=12)
    asked = requests([messages(QUESTIONS[0])], samples=4)
    [first] = answers_of(teacher, asked, how)
    [second] = answers_of(teacher, asked, how)
    assert [(c.sample_index, c.seed) for c in first] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [c.text for c in first] == [c.text for c in second]
    assert len({c.text for c in first}) == 4
    assert sum("gives 1 sample where n = 4" in record.message for record in caplog.records) == 1


def test_an_unknown_model_on_a_real_server(tiny_server):
    folder, url = tiny_server
    with pytest.raises(TeacherError, match=rf"does not know the model 'tinny'.*pinned.*models: '{folder}'"):
        OpenAITeacher("tinny", url).check()
    with pytest.raises(TeacherError, match="does not know the model 'tinny'"):
        answers_of(OpenAITeacher("tinny", url), requests([messages("a")]), SamplingSettings())


def test_an_address_without_v1_on_a_real_server(tiny_server):
    folder, url = tiny_server
    with pytest.raises(TeacherError, match="The base URL of most servers ends in /v1"):
        OpenAITeacher(str(folder), url.removesuffix("/v1")).check()


@pytest.fixture
def smollm(shared_dir, tmp_path):
    """Folder of SmolLM2-135M-Instruct: in the folder that QCRD_MODELS_DIR names, or fetched."""
    kept = os.environ.get("QCRD_MODELS_DIR")
    folder = Path(kept or tmp_path) / "smollm2-135m-instruct"
    if not kept:
        tool = shared_dir / "tools" / "fetch_models.py"
        if not tool.is_file():
            pytest.skip(f"no {tool}, and QCRD_MODELS_DIR is not set")
        done = subprocess.run([sys.executable, str(tool), str(tmp_path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{tool} cannot fetch the model: {done.stderr[-500:]}")
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return folder


@pytest.mark.slow
def test_smollm2_says_the_same(smollm, tmp_path):
    """A real model and its template: 48 greedy tokens of each question."""
    prompts = [messages(question) for question in QUESTIONS]
    how = SamplingSettings(temperature=0.0, max_new_tokens=48)
    with served(smollm, tmp_path / "server.log") as url:
        teacher = OpenAITeacher(str(smollm), url, timeout=600.0, max_concurrency=4)
        teacher.check()
        answers = answers_of(teacher, requests(prompts), how)
    assert teacher.stats.retries == 0
    assert teacher.stats.completion_tokens == sum(c.usage["completion_tokens"] for [c] in answers) > 0
    assert_equal(answers, generated(smollm, prompts, 48), 48)
    assert_equals_local(smollm, prompts, answers, how)
