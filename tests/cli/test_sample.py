"""`qcrd sample`: flags, checks before any work, exit statuses."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from teaching import NotingTeacher, flags, served, write_questions
from tiny import CHAT_TEMPLATE, tiny_llama, word_tokenizer

from qcrd_trl.cli import main as cli
from qcrd_trl.cli import sample as command
from qcrd_trl.cli.sample import SampleArguments
from qcrd_trl.data.samples_file import read_samples, settings_path
from qcrd_trl.data.shards import shard_of
from qcrd_trl.errors import ConfigError, TeacherError
from qcrd_trl.sampling.teachers import BACKENDS


def arguments(**changes):
    given = {"dataset": "d.jsonl", "teacher_backend": "openai", "teacher": "t", "output": "o.jsonl"}
    return SampleArguments(**{**given, **changes})


@pytest.fixture
def noting(tmp_path, monkeypatch):
    """Ten questions and the noting teacher as a backend; gives what its next teacher is made with."""
    write_questions(tmp_path / "questions.jsonl")
    options = {"log": tmp_path / "served"}
    monkeypatch.setitem(BACKENDS, "noting", ("noting", "NotingTeacher", None))
    monkeypatch.setitem(command._OPTIONS, "noting", {})
    monkeypatch.setattr(command, "load_teacher", lambda backend, model, **own: NotingTeacher(model, **own, **options))
    return options


def test_samples(noting, tmp_path, capsys):
    """From flags to a file that the next command reads."""
    assert cli.main(flags(tmp_path, "--temperature", "1.2", "--seed", "4", "--task_kind", "number")) == 0
    assert "40 of 40 samples of 10 questions: 0 were there, 40 are new (40 ok)" in capsys.readouterr().out
    samples = list(read_samples(tmp_path / "samples.jsonl"))
    assert len({sample.key for sample in samples}) == 40
    assert {sample.temperature for sample in samples} == {1.2}
    settings = json.loads(settings_path(tmp_path / "samples.jsonl").read_text())
    (hash,) = settings
    assert {sample.settings_hash for sample in samples} == {hash}
    assert settings[hash]["sampling"] == {"temperature": 1.2, "top_p": 1.0, "max_new_tokens": 512, "stop": []}
    assert settings[hash]["teacher"] == {"backend": "noting", "model": "noting"}
    assert (settings[hash]["task_kind"], settings[hash]["chat"], settings[hash]["seed"]) == ("number", True, 4)
    assert settings[hash]["prompt"]["instruction"].startswith("Solve the problem.")
    assert cli.main(flags(tmp_path, "--temperature", "1.2", "--seed", "4", "--task_kind", "number")) == 0
    assert "40 were there, 0 are new" in capsys.readouterr().out


def test_plain_texts_stop_at_a_next_question(noting, tmp_path):
    """What the flag leaves open is decided by the form in which the teacher is asked."""
    assert cli.main(flags(tmp_path, "--prompt_format", "plain")) == 0
    (settings,) = json.loads(settings_path(tmp_path / "samples.jsonl").read_text()).values()
    assert (settings["sampling"]["stop"], settings["chat"]) == (["\nQuestion:"], False)
    assert cli.main(flags(tmp_path, "--stop", "x", "y", output="o.jsonl")) == 0
    (settings,) = json.loads(settings_path(tmp_path / "o.jsonl").read_text()).values()
    assert settings["sampling"]["stop"] == ["x", "y"]


@pytest.mark.parametrize(
    "more",
    [
        ("--temperature", "0.9"),
        ("--top_p", "0.9"),
        ("--max_new_tokens", "64"),
        ("--stop", "x"),
        ("--seed", "1"),
        ("--task_kind", "number"),
        ("--prompt_format", "plain"),
        ("--system_prompt", "Be brief."),
        ("--num_few_shot", "1"),
        ("--teacher", "another"),
    ],
)
def test_every_setting_that_decides_the_samples(noting, tmp_path, capsys, more):
    """A flag that is not in the hash lets old samples pass for new ones."""
    assert cli.main(flags(tmp_path)) == 0
    before = (tmp_path / "samples.jsonl").read_bytes()
    assert cli.main(flags(tmp_path, *more)) == 2
    err = capsys.readouterr().err
    assert "holds samples of other settings" in err
    assert " was " in err
    assert (tmp_path / "samples.jsonl").read_bytes() == before
    assert len(served(tmp_path / "served")) == 40
    assert cli.main(flags(tmp_path, *more, "--allow_other_settings")) == 0
    assert len({sample.key for sample in read_samples(tmp_path / "samples.jsonl")}) == 80


@pytest.mark.parametrize(
    "more", [("--num_samples", "3"), ("--num_shards", "2"), ("--max_questions", "4"), ("--max_failed_share", "1")]
)
def test_settings_that_do_not(noting, tmp_path, more):
    """Whoever asks for one sample more, or shares the work out, must not pay for all again."""
    assert cli.main(flags(tmp_path)) == 0
    assert cli.main(flags(tmp_path, *more)) == 0
    assert len(served(tmp_path / "served")) == 40


def test_shards_and_first_rows(noting, tmp_path):
    """The flags of a job array: each machine its share."""
    for index in range(3):
        more = ("--num_shards", "3", "--shard_index", str(index), "--max_questions", "8")
        assert cli.main(flags(tmp_path, *more, output=f"{index}.jsonl")) == 0
        found = {sample.id for sample in read_samples(tmp_path / f"{index}.jsonl")}
        assert found == {f"q{i}" for i in range(8) if shard_of(f"q{i}", 3) == index}
    assert Counter(served(tmp_path / "served")) == Counter({(f"q{i}", k): 1 for i in range(8) for k in range(4)})


def test_too_many_failed(noting, tmp_path, capsys):
    """A script that goes on to train on half of its samples; and a file that is thrown away for a few failures."""
    noting["failing"] = {("q0", 0), ("q1", 0), ("q2", 0), ("q3", 0)}
    assert cli.main(flags(tmp_path)) == 0, "4 of 40 are not more than 0.1"
    noting["failing"] |= {("q4", 0)}
    (tmp_path / "samples.jsonl").unlink()
    assert cli.main(flags(tmp_path)) == 1
    captured = capsys.readouterr()
    assert "5 of 40 samples failed, more than --max_failed_share 0.1" in captured.err
    assert "35 of 40 samples of 10 questions: 0 were there, 40 are new (35 ok, 5 failed)" in captured.out
    assert len(list(read_samples(tmp_path / "samples.jsonl"))) == 40
    assert cli.main(flags(tmp_path, "--max_failed_share", "0.2")) == 0
    noting["failing"] = set()
    assert cli.main(flags(tmp_path)) == 0
    assert Counter(sample.status for sample in read_samples(tmp_path / "samples.jsonl")) == Counter(ok=40)


def test_a_teacher_that_cannot_go_on(noting, tmp_path, capsys):
    """The error alone would leave the user to guess what is lost."""

    def gone():
        raise TeacherError("The server at http://x does not answer: is it running?")

    noting["at"] = {3: gone}
    assert cli.main(flags(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "12 of 40 samples of 10 questions: 0 were there, 12 are new" in err
    assert "Run the same command again to go on" in err
    assert err.strip().splitlines()[-1] == "qcrd sample: error: The server at http://x does not answer: is it running?"


def test_a_teacher_that_cannot_be_reached(noting, tmp_path, monkeypatch, capsys):
    """Nothing is written, and failed samples of an earlier run are still there, before the teacher is known to work."""
    noting["failing"] = {("q0", 0)}
    assert cli.main(flags(tmp_path)) == 0
    before = (tmp_path / "samples.jsonl").read_bytes()

    def refuse(self):
        raise TeacherError("The key is refused.")

    monkeypatch.setattr(NotingTeacher, "check", refuse)
    assert cli.main(flags(tmp_path)) == 2
    assert cli.main(flags(tmp_path, output="other.jsonl")) == 2
    assert "The key is refused." in capsys.readouterr().err
    assert (tmp_path / "samples.jsonl").read_bytes() == before
    assert not (tmp_path / "other.jsonl").exists()
    assert not (tmp_path / "other.jsonl.settings.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "--num_samples must be at least 1, got 0"),
        ({"num_samples": -2}, "--num_samples"),
        ({"max_new_tokens": 0}, "--max_new_tokens"),
        ({"max_questions": 0}, "--max_questions"),
        ({"max_concurrency": 0}, "--max_concurrency"),
        ({"temperature": -0.1}, "--temperature must be at least 0"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"temperature": 0.0}, "all 5 samples of a question would be equal"),
        ({"top_p": 0.0}, "--top_p"),
        ({"top_p": 1.1}, "--top_p"),
        ({"max_failed_share": 1.1}, "--max_failed_share"),
        ({"stop": ["a", ""]}, "--stop must not hold an empty text"),
        ({"seed": -1}, "--seed"),
        ({"teacher_backend": "hf"}, "Unknown teacher_backend 'hf': expected one of transformers, openai, vllm"),
        ({"task_kind": "maths"}, "Unknown task_kind 'maths': expected one of number"),
        ({"prompt_format": "messages"}, "Unknown prompt_format"),
        ({"num_shards": 2, "shard_index": 2}, "--shard_index"),
        ({"load_in_4bit": True}, "--load_in_4bit is of the backend transformers: openai has no use for it"),
        ({"dtype": "float32"}, "--dtype is of the backend transformers and vllm"),
        ({"teacher_backend": "transformers", "base_url": "http://x"}, "--base_url is of the backend openai"),
        ({"teacher_backend": "transformers", "load_in_4bit": True, "load_in_8bit": True}, "not both"),
        ({"teacher_backend": "vllm", "vllm_engine_args": "{"}, "--vllm_engine_args is not JSON"),
        ({"teacher_backend": "vllm", "vllm_engine_args": "[1]"}, "must be a JSON object"),
    ],
)
def test_wrong_flags(changes, message):
    """A flag without effect, or one that fails after an hour."""
    with pytest.raises(ConfigError, match=message):
        arguments(**changes)


def test_right_flags():
    """The checks must not refuse what works."""
    assert arguments(temperature=0.0, num_samples=1).num_samples == 1
    assert arguments(teacher_backend="vllm", vllm_engine_args='{"a": 1}', dtype="auto").vllm_engine_args == {"a": 1}
    assert arguments(base_url="http://x/v1", max_concurrency=4, request_timeout=3.0, max_retries=0).max_retries == 0


def test_options_reach_the_backends(monkeypatch):
    """A flag that is parsed and dropped."""
    made = []
    monkeypatch.setattr(command, "load_teacher", lambda *names, **options: made.append((names, options)))
    command._teacher(arguments(base_url="http://x", max_concurrency=4, request_timeout=3.0, max_retries=0))
    command._teacher(arguments(prompt_format="plain", api_key_env="MY_KEY"))
    command._teacher(arguments(teacher_backend="transformers", batch_size=2, load_in_8bit=True, device="cpu"))
    command._teacher(arguments(teacher_backend="vllm", vllm_engine_args='{"a": 1}', prompt_format="chat"))
    assert made == [
        (("openai", "t"), {"base_url": "http://x", "max_concurrency": 4, "timeout": 3.0, "max_retries": 0}),
        (("openai", "t"), {"base_url": None, "chat": False, "api_key_env": "MY_KEY"}),
        (
            ("transformers", "t"),
            {
                **{"batch_size": 2, "device": "cpu", "load_in_4bit": False, "load_in_8bit": True},
                "trust_remote_code": False,
            },
        ),
        (("vllm", "t"), {"engine_args": {"a": 1}, "trust_remote_code": False, "chat": True}),
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--num_samples", "0"), "--num_samples must be at least 1"),
        (("--prompt_column", "q"), "has no column 'q' for the prompt"),
        (("--label_column", "gold"), "has no column 'gold' for the label"),
        (("--choices_column", "options"), "has no column 'options' for the choices"),
        (("--split", "test"), "no split 'test'"),
        (("--num_few_shot", "9"), "There are 3 built-in examples"),
        (("--prompt_file", "/nothing.yaml"), "nothing.yaml: No such file"),
    ],
)
def test_bad_input_is_one_line(noting, tmp_path, capsys, more, message):
    """Before any sample is asked for, and nothing is left behind."""
    assert cli.main(flags(tmp_path, *more)) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert served(tmp_path / "served") == []
    assert not (tmp_path / "samples.jsonl").exists()


def test_output_that_cannot_be_written(noting, tmp_path, capsys):
    """Found after the first answer is paid for, it is too late."""
    (tmp_path / "folder").mkdir()
    assert cli.main(flags(tmp_path, output="folder")) == 2
    assert "is a folder" in capsys.readouterr().err
    assert cli.main(flags(tmp_path, output="questions.jsonl")) == 2
    assert "questions.jsonl, line 1: no sample" in capsys.readouterr().err
    assert cli.main(flags(tmp_path, output="questions.jsonl/s.jsonl")) == 2
    assert served(tmp_path / "served") == []


def test_full_disk(noting, tmp_path, monkeypatch, capsys):
    """The teacher must not be asked on and on while nothing can be kept."""
    import qcrd_trl.data.samples_file as samples_file

    write, count = samples_file._write, []

    def full(file, data):
        count.append(data)
        if len(count) == 3:
            file.write(data[:30])
            raise OSError(28, "No space left on device", str(tmp_path / "samples.jsonl"))
        write(file, data)

    monkeypatch.setattr(samples_file, "_write", full)
    assert cli.main(flags(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "8 of 40 samples" in err
    assert "No space left on device" in err
    assert len(served(tmp_path / "served")) == 12
    assert cli.main(flags(tmp_path)) == 0
    assert len({sample.key for sample in read_samples(tmp_path / "samples.jsonl")}) == 40


def test_config_file(noting, tmp_path):
    """Every flag may stand in a YAML file, and a flag wins over it."""
    config = {"dataset": str(tmp_path / "questions.jsonl"), "teacher_backend": "noting", "teacher": "noting"}
    config |= {"output": str(tmp_path / "s.jsonl"), "num_samples": 2, "stop": ["a", "b"], "max_questions": 3}
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    assert cli.main(["sample", "--config", str(tmp_path / "c.yaml"), "--num_samples", "1"]) == 0
    assert len(list(read_samples(tmp_path / "s.jsonl"))) == 3


def test_choices_and_row_numbers(noting, tmp_path):
    """Options must reach the prompt and the file; a dataset without ids is keyed by its rows."""
    rows = [{"q": f"Where {i}?", "o": ["here", "there"], "a": "B"} for i in range(2)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ("--prompt_column", "q", "--label_column", "a", "--choices_column", "o", "--task_kind", "choice")
    assert cli.main(flags(tmp_path, *more)) == 0
    samples = list(read_samples(tmp_path / "samples.jsonl"))
    assert {sample.id for sample in samples} == {"0", "1"}
    assert samples[0].choices == {"A": "here", "B": "there"}
    assert samples[0].label == "B"
    (settings,) = json.loads(settings_path(tmp_path / "samples.jsonl").read_text()).values()
    assert settings["prompt"]["question"] == "Question: {question}\nChoices:\n{choices}"


def test_transformers_backend(tmp_path, capsys):
    """The whole way with a model, and again without asking it."""
    write_questions(tmp_path / "questions.jsonl", 5)
    tiny_llama().save_pretrained(tmp_path / "model")
    word_tokenizer(chat_template=CHAT_TEMPLATE, bos="<s>").save_pretrained(tmp_path / "model")
    argv = [
        *("sample", "--dataset", str(tmp_path / "questions.jsonl"), "--teacher_backend", "transformers"),
        *("--teacher", str(tmp_path / "model"), "--output", str(tmp_path / "s.jsonl"), "--num_samples", "2"),
        *("--max_new_tokens", "8", "--batch_size", "3"),
    ]
    assert cli.main(argv) == 0
    first = list(read_samples(tmp_path / "s.jsonl"))
    assert len(first) == 10
    assert cli.main([*argv[:-1], "7"]) == 0, "another batch size is no other setting"
    assert "10 were there, 0 are new" in capsys.readouterr().out
    (tmp_path / "s.jsonl").unlink()
    assert cli.main([*argv[:-1], "7"]) == 0
    by_key = lambda samples: {sample.key: sample.text for sample in samples}  # noqa: E731
    assert by_key(read_samples(tmp_path / "s.jsonl")) == by_key(first)


def test_help_is_quick():
    """Torch, once imported by accident, makes every `--help` wait, and a client of a server need it."""
    code = (
        "import sys\nfrom qcrd_trl.cli.main import main\ntry: main(['sample', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets', 'openai', 'peft'} & set(sys.modules); assert not heavy, heavy"
    )
    environment = {**os.environ, "COLUMNS": "200"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert "--teacher_backend" in result.stdout
