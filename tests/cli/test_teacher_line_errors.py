"""What can go wrong between questions and a samples file, at the command line and against a server that fails."""

import json

import pytest
from datasets import load_dataset
from teacher_line import QUESTIONS, Adder, sample, serving, write_questions

from qcrd_trl.cli import main as cli


@pytest.fixture(autouse=True)
def _prepared(monkeypatch):
    serving.prepare(monkeypatch)


@pytest.fixture
def questions(tmp_path):
    return write_questions(tmp_path / "questions.jsonl")


BAD = {
    "a number of samples": ([], ["--num_samples", "0"], "--num_samples must be at least 1, got 0"),
    "a column": ([], ["--prompt_column", "question"], "has no column 'question' for the prompt"),
    "an id twice": ([{**QUESTIONS[0]}, {**QUESTIONS[0]}], [], "'q0' in rows 0, 1"),
    "no question": ([{}], [], "no column 'prompt'"),
    "a template": ([], ["--prompt_file", "broken.yaml"], "broken.yaml is not valid YAML"),
    "an empty template": ([], ["--prompt_file", "empty.yaml"], "empty.yaml"),
    "a template's key": ([], ["--prompt_file", "unknown.yaml"], "unknown key 'instructions'"),
    "examples": ([], ["--few_shot_file", "broken.yaml"], "broken.yaml is not valid YAML"),
    "a file that is not there": ([], ["--few_shot_file", "none.yaml"], "none.yaml"),
    "an output": ([], ["--output", "."], "--output . is a folder"),
    "a shard": ([], ["--num_shards", "2", "--shard_index", "2"], "shard_index"),
    "a dataset": ([], ["--dataset", "none.jsonl"], "none.jsonl does not exist"),
    "an empty dataset": ([], ["--dataset", "empty.jsonl"], "empty.jsonl has no rows"),
    "a model": ([], ["--teacher", "teecher"], "'teacher'"),
    "an address": ([], ["--base_url", "localhost:8000"], "`base_url` must be an address"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_against_a_server(questions, tmp_path, monkeypatch, capsys, name):
    """One line with the remedy, status 2, nothing asked and nothing written: a run at night must not end in a traceback."""
    rows, more, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    for file, text in (
        ("broken.yaml", "a: [1\n"),
        ("empty.yaml", ""),
        ("unknown.yaml", "instructions: x\n"),
        ("empty.jsonl", "\n"),
    ):
        (tmp_path / file).write_text(text)
    if rows:
        write_questions(questions, rows)
    with Adder() as server:
        if name == "a model":
            server.script.append(serving.error_reply(404, "The model `teecher` does not exist."))
        assert sample(questions, server, tmp_path / "samples.jsonl", *more) == 2
        assert len(server.seen) == (name == "a model")
    error = capsys.readouterr().err
    assert message in error
    assert error.splitlines()[-1].startswith("qcrd sample: error: ")
    assert not (tmp_path / "samples.jsonl").exists()


def test_a_file_of_other_settings_is_left_as_it_is(questions, tmp_path, capsys):
    """Samples of two temperatures that vote together, or a file of them written over, are found when it is too late."""
    samples = tmp_path / "samples.jsonl"
    with Adder() as server:
        assert sample(questions, server, samples) == 0
        before = samples.read_bytes()
        asked = len(server.seen)
        assert sample(questions, server, samples, "--temperature", "1.0") == 2
        assert "sampling.temperature was 0.7, now 1.0" in capsys.readouterr().err
        assert (samples.read_bytes(), len(server.seen)) == (before, asked)
        assert sample(questions, server, samples, "--temperature", "1.0", "--allow_other_settings") == 0
        assert samples.read_bytes().startswith(before)
    capsys.readouterr()
    select = ["select", "--samples", str(samples), "--task_kind", "number", "--output_dir", str(tmp_path / "out")]
    assert cli.main(select) == 2
    error = capsys.readouterr().err
    assert "holds samples of 2 settings" in error
    chosen = json.loads(before.splitlines()[0])["settings_hash"]
    assert chosen in error
    assert cli.main([*select, "--settings_hash", chosen]) == 0


def test_a_prompt_beyond_the_context(questions, tmp_path, capsys):
    """One question that is too long must not end the run, nor be tried eight times, nor pass for an answer."""
    samples = tmp_path / "samples.jsonl"
    with Adder() as server:
        assert sample(questions, server, samples, "--max_questions", "5") == 0
        server.script.append(
            serving.error_reply(
                400, "This model's maximum context length is 64 tokens.", code="context_length_exceeded"
            )
        )
        asked = len(server.seen)
        assert sample(questions, server, samples, "--max_failed_share", "0.1") == 1  # 5 of 30
        assert len(server.seen) == asked + 1
    assert "5 of 30 samples failed" in capsys.readouterr().err
    last = [json.loads(line) for line in samples.read_text().splitlines()][-5:]
    assert {(row["status"], row["text"]) for row in last} == {("failed", None)}
    assert "maximum context length" in last[0]["error"]


def test_the_key_is_in_no_file_and_on_no_screen(questions, tmp_path, capfd, monkeypatch):
    """A server or a proxy in trouble answers with what it was sent; samples files are shared."""
    monkeypatch.setenv("OPENAI_API_KEY", serving.KEY)
    header = f"Authorization: Bearer {serving.KEY}"
    with Adder() as server:
        server.script.extend(
            [
                serving.chat_reply(*[f"So 2. {header}"] * 5),
                serving.error_reply(400, header),
                serving.chat_reply(*[serving.choice(header, header)] * 5),
                serving.error_reply(500, header),
            ]
        )
        status = sample(questions, server, tmp_path / "samples.jsonl", "--max_retries", "0", "--max_concurrency", "1")
        assert (status, len(server.seen)) == (1, 6)
        assert server.seen[0].headers["Authorization"] == f"Bearer {serving.KEY}"
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) >= 3
    written = "".join(path.read_text() for path in files) + "".join(capfd.readouterr())
    assert "Authorization: Bearer ***" in written
    assert serving.KEY not in written
    assert serving.KEY[:12] not in written


def test_a_word_that_stands_for_a_key_is_no_secret(questions, tmp_path, monkeypatch):
    """Servers of one's own take any key; "2" or "EMPTY" must not be cut out of the answers."""
    monkeypatch.setenv("OPENAI_API_KEY", "make")
    with Adder() as server:
        assert sample(questions, server, tmp_path / "samples.jsonl") == 0
    assert "0 and 2 make 2." in (tmp_path / "samples.jsonl").read_text()


def test_a_shard_without_a_question(questions, tmp_path, capsys):
    """Small sets on many machines: the file that the others are put together with must be there."""
    with Adder() as server:
        for index in range(40):
            part = tmp_path / f"part-{index}.jsonl"
            assert sample(questions, server, part, "--num_shards", "40", "--shard_index", str(index)) == 0
        assert len(server.seen) == 6
    parts = [(tmp_path / f"part-{index}.jsonl").read_bytes() for index in range(40)]
    assert parts.count(b"") >= 34
    assert len(b"".join(parts).splitlines()) == 30


class Teacher(serving.FaultServer):
    """Gives the same five texts to every question, and remembers what it was asked."""

    def __init__(self, *texts):
        super().__init__()
        self.texts = texts

    def default(self, seen):
        return serving.chat_reply(*self.texts[: seen.body.get("n", 1)])


KINDS = {
    "choice": (
        {"prompt": "Where is money kept?", "label": "B", "choices": {"A": "river", "B": "bank", "C": "tree"}},
        [],
        [
            "<Explanation>: Banks keep it.\n<Answer>: B",
            "<Explanation>: Vaults are in banks.\n<Answer>: (B) bank",
            "**Explanation:** One pays it in there.\n**Answer:** bank",
            "<Explanation>: Rivers have banks.\n<Answer>: (A)",
            "<Explanation>: I cannot say.\n<Answer>: none of them",
        ],
        ["(A) river\n(B) bank\n(C) tree"],
    ),
    "nli": (
        {"prompt": "Premise: A dog runs.\nHypothesis: An animal moves.", "label": "entailment"},
        [],
        [
            "<Explanation>: Dogs are animals, and running is moving.\n<Answer>: entailment",
            "<Explanation>: A dog is an animal.\n<Answer>: Entailment.",
            "<explanation> Who runs moves. <answer> entailment",
            "<Explanation>: The dog may be a toy.\n<Answer>: neutral",
            "<Explanation>: Hm.\n<Answer>: yes",
        ],
        ["entailment", "neutral", "contradiction"],
    ),
    "text": (
        {"prompt": "What is the capital of France?", "label": "Paris"},
        [],
        [
            "<Explanation>: It lies on the Seine.\n<Answer>: Paris",
            "<Explanation>: The Louvre is there.\n<Answer>: paris.",
            "<Explanation>: The government sits there.\n<Answer>: **Paris**",
            "<Explanation>: It is the second largest.\n<Answer>: Lyon",
            "<Explanation>: I cannot answer that.\n<Answer>: I don't know",
        ],
        ["<Explanation>"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_from_the_question_to_the_training_set(tmp_path, capsys, kind):
    """Options that are asked but not read, or a word for a letter, leave a kind without positives."""
    row, more, texts, shown = KINDS[kind]
    questions = write_questions(tmp_path / "questions.jsonl", [{"id": "a", **row}])
    samples, out = tmp_path / "samples.jsonl", tmp_path / "out"
    with Teacher(*texts) as server:
        assert sample(questions, server, samples, *more, "--num_few_shot", "2", kind=kind) == 0
        messages = [message["content"] for message in server.seen[0].body["messages"]]
    assert len(messages) == 5  # two examples with their answers, and the question
    assert row["prompt"] in messages[-1]
    assert all(text in "\n".join(messages) for text in shown)
    assert cli.main(["select", "--samples", str(samples), "--task_kind", kind, "--output_dir", str(out)]) == 0
    (got,) = load_dataset("parquet", data_files=str(out / "train.parquet"), split="train")
    assert got["label"] == row["label"]
    assert (len(got["positive_rationales"]), len(got["negative_rationales"])) == (3, 1)
    assert not any("<" in text or "**" in text for text in got["positive_rationales"] + got["negative_rationales"])
    capsys.readouterr()
    figures = tmp_path / "figures.json"
    assert cli.main(["report", str(samples), "--json", str(figures)]) == 0
    votes = json.loads(figures.read_text())["votes_per_question"]
    assert (votes["for_reference"], votes["for_others"]) == ({"3": 1}, {"1": 1})
