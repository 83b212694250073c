"""`qcrd evaluate`: a student's accuracies as JSON and as a table."""

import errno
import json
import shutil

import pytest
from datasets import Dataset
from peft import get_peft_model
from running import lora, trainer_of
from tiny import tiny_gpt2, word_tokenizer

from qcrd_trl import StudentFormat
from qcrd_trl.cli.main import main
from qcrd_trl.models import load_model
from qcrd_trl.version import __version__


# The rationale of the first two questions reaches the label, that of the others does not.
TAUGHT = [
    {"prompt": "a + 1", "label": "2", "positive_rationales": ["1 + 1 = 2"]},
    {"prompt": "b + 3", "label": "4", "positive_rationales": ["3 + 1 = 4"]},
    {"prompt": "c + 5", "label": "6", "positive_rationales": ["5 + 1 = 8"]},
    {"prompt": "d + 7", "label": "8", "positive_rationales": ["7 + 1 = 9"]},
]
# Asked with one other label than was taught, and one question without.
ASKED = [*TAUGHT[:3], {**TAUGHT[3], "label": "3"}, {"prompt": "e + 1", "label": None, "positive_rationales": []}]


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """Folder of a student that knows four answers by heart, and was asked in a form of its own."""
    folder = tmp_path_factory.mktemp("student")
    trainer = trainer_of(
        folder,
        tiny_gpt2(),
        TAUGHT,
        preset="dss_all",
        max_steps=60,
        optim="adamw_torch",
        learning_rate=0.02,
        predict_prefix="<|user|>",
        explain_prefix="<|system|>",
    )
    trainer.train()
    trainer.save_model()
    return folder


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    Dataset.from_list(ASKED).to_json(path)
    return path


def evaluate(student, questions, output, *flags):
    argv = ["evaluate", "--model", str(student), "--dataset", str(questions), "--output", str(output)]
    return main([*argv, "--task_kind", "number", "--max_new_tokens", "8", *flags])


def test_writes_json_and_prints_a_table(student, questions, tmp_path, capsys):
    """The JSON is what papers and plots are made from: counts must say what the shares are shares of."""
    output = tmp_path / "new" / "result.json"  # in a folder that is made
    assert evaluate(student, questions, output) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["label_accuracy"] == 0.75  # 2, 4, 6, and 8 where 3 is asked
    assert result["answer_accuracy"] == 0.5
    assert result["agreement"] == 0.5
    assert result["counts"] == {
        "questions": 4,
        "label_correct": 3,
        "answer_correct": 2,
        "agrees": 2,
        "no_predicted_answer": 0,
        "no_reached_answer": 0,
        "unfinished_rationales": 0,
        "skipped": 1,
    }
    assert [question["reached"] for question in result["questions"]] == ["2", "4", "8", "9"]
    assert result["questions"][3]["rationale"] == "7 + 1 = 9"
    assert result["versions"]["qcrd_trl"] == __version__
    assert result["settings"]["max_new_tokens"] == 8
    assert (result["format"], result["seed"], result["model"]) == (1, 0, student.name)
    assert len(result["question_set"]) == 64
    # (3 + 1.92) / 7.84 = 0.6274 plus or minus 1.96 / 7.84 * sqrt(3 * 1 / 4 + 0.96) = 0.3269.
    assert result["intervals"]["label_accuracy"] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    assert str(tmp_path) not in output.read_text(encoding="utf-8")
    assert result["settings"]["dataset"] == "questions.jsonl"
    assert [path.name for path in output.parent.iterdir()] == ["result.json"]
    out = capsys.readouterr().out
    for part in ("label predicted", "75.0 %", "3 of 4", "50.0 %", "2 of 4", "30.1 to 95.4", "on 4 questions"):
        assert part in out


def test_asks_in_the_form_that_was_taught(student, questions, tmp_path):
    """The form is saved beside the student: in the default form, this one knows nothing."""
    form = StudentFormat.from_pretrained(student)
    assert (form.predict_prefix, form.explain_prefix) == ("<|user|>", "<|system|>")
    copy = tmp_path / "copy"
    load_model(student).save_pretrained(copy)
    word_tokenizer().save_pretrained(copy)
    assert evaluate(copy, questions, tmp_path / "result.json") == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["label_accuracy"] < 0.75


def test_a_repository_is_asked_in_its_form(student, questions, tmp_path, monkeypatch):
    """By its name no file of it is found: asked in the default form, this student knows nothing."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kwargs: str(student))
    output = tmp_path / "result.json"
    assert evaluate("me/student", questions, output) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["label_accuracy"] == 0.75
    assert result["model"] == "me/student"
    assert result["settings"]["student_format"]["predict_prefix"] == "<|user|>"


def test_what_is_no_student_and_no_device(student, questions, tmp_path, capsys):
    """In one line, as every other flag that cannot work."""
    (tmp_path / "discriminator").mkdir()
    (tmp_path / "discriminator" / "config.json").write_text('{"kind": "student"}')
    for model, flags, message in (
        (tmp_path / "discriminator", (), "holds a discriminator of kind 'student' and no student"),
        ("./nope", (), "There is no folder './nope'"),
        (student, ("--device", "xpu:77"), "The device 'xpu:77' cannot be used here"),
        (student, ("--device", "abacus"), "The device 'abacus' cannot be used here"),
    ):
        assert evaluate(model, questions, tmp_path / "result.json", *flags) == 2
        assert message in capsys.readouterr().err


def test_an_adapter(student, questions, tmp_path):
    """An adapter's folder holds no model: its base comes first."""
    model = get_peft_model(load_model(student), lora())  # lora_B is 0: the same student
    model.save_pretrained(tmp_path / "adapter")
    StudentFormat.from_pretrained(student).save_pretrained(tmp_path / "adapter")
    assert evaluate(tmp_path / "adapter", questions, tmp_path / "result.json") == 0
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["label_accuracy"] == 0.75


def test_columns_and_limits(student, tmp_path):
    """Data sets name their columns as they like, and a first look takes the first rows."""
    path = tmp_path / "other.csv"
    path.write_text("question,answer\na + 1,2\nb + 3,4\nc + 5,7\n", encoding="utf-8")
    flags = ["--prompt_column", "question", "--label_column", "answer", "--max_questions", "2", "--batch_size", "1"]
    assert evaluate(student, path, tmp_path / "result.json", *flags) == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["counts"]["questions"] == 2
    assert result["label_accuracy"] == 1


def test_samples_that_vote(student, questions, tmp_path, capsys):
    """What decided a question must be in the file, or nobody can look at a tie."""
    results = []
    for batch_size in ("1", "32"):
        flags = ["--num_samples", "4", "--temperature", "1.2", "--seed", "3", "--batch_size", batch_size]
        assert evaluate(student, questions, tmp_path / "result.json", *flags) == 0
        results.append(json.loads((tmp_path / "result.json").read_text(encoding="utf-8")))
    one, other = results
    assert (one["seed"], one["settings"]["num_samples"], one["settings"]["temperature"]) == (3, 4, 1.2)
    assert one["questions"] == other["questions"]
    samples = [question["samples"] for question in one["questions"]]
    assert all(len(drawn["rationales"]) == len(drawn["predicted_texts"]) == 4 for drawn in samples)
    assert one["counts"]["answer_ties"] == sum(drawn["answer_tie"] for drawn in samples)
    assert "By the vote of 4 samples a question at temperature 1.2; a tie is no answer" in capsys.readouterr().out


def test_the_temperature_of_several_samples(student, questions, tmp_path):
    """A default that the file does not hold cannot be repeated."""
    assert evaluate(student, questions, tmp_path / "result.json", "--num_samples", "2") == 0
    assert json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["settings"]["temperature"] == 0.7


def test_a_student_of_labels_alone(student, questions, tmp_path, capsys):
    """An accuracy of 0 in place of one that was not measured would be plotted."""
    copy = tmp_path / "copy"
    shutil.copytree(student, copy)
    told = json.loads((copy / "qcrd_format.json").read_text(encoding="utf-8"))
    (copy / "qcrd_format.json").write_text(json.dumps({**told, "explains": False}), encoding="utf-8")
    assert evaluate(copy, questions, tmp_path / "result.json") == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["label_accuracy"], result["answer_accuracy"], result["agreement"]) == (0.75, None, None)
    out = capsys.readouterr().out
    assert out.count("not measured") == 3
    assert "The student was not taught the rationale task (alpha_2 = 0): not measured." in out
    (tmp_path / "result.json").unlink()
    assert evaluate(copy, questions, tmp_path / "result.json", "--tasks", "label", "rationale") == 2
    assert "The student was not taught the rationale task" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()


def test_one_task(student, questions, tmp_path):
    """Labels are short: whoever wants only them does not wait for rationales."""
    assert evaluate(student, questions, tmp_path / "result.json", "--tasks", "label") == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["label_accuracy"], result["answer_accuracy"]) == (0.75, None)
    assert result["settings"]["tasks"] == ["label"]


def test_ids_and_options_of_a_table(tmp_path, student):
    """In a CSV every cell is text: options and messages are there as JSON, as for `qcrd select`."""
    path = tmp_path / "choices.csv"
    path.write_text('key,prompt,label,options\nx,a + 1,B,"[""1"", ""2""]"\n', encoding="utf-8")
    flags = ["--task_kind", "choice", "--choices_column", "options", "--id_column", "key"]
    assert evaluate(student, path, tmp_path / "result.json", *flags) == 0
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert result["questions"][0]["id"] == "x"
    assert result["label_accuracy"] == 1  # it says 2, the text of option B


def test_a_yaml_file(student, questions, tmp_path):
    """As for every command; a flag wins over it."""
    config = tmp_path / "evaluate.yaml"
    config.write_text(
        f"model: {student}\ndataset: {questions}\ntask_kind: text\nmax_new_tokens: 1\n", encoding="utf-8"
    )
    output = tmp_path / "result.json"
    assert main(["evaluate", "--config", str(config), "--output", str(output), "--task_kind", "number"]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    assert result["settings"]["task_kind"] == "number"
    assert result["counts"]["unfinished_rationales"] == 4  # of one token each


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task_kind", "essay"], "Unknown task kind 'essay': expected one of number, choice"),
        (["--model", "./no/such/model"], "There is no folder './no/such/model'"),
        (["--dataset", "./no/such.jsonl"], "./no/such.jsonl"),
        (["--prompt_column", "question"], "no column 'question'"),
        (["--batch_size", "0"], "--batch_size must be at least 1, got 0"),
        (["--max_questions", "0"], "--max_questions must be at least 1"),
        (["--output", "."], "is a folder: give a file"),
        (["--dtype", "float33"], "Unknown dtype 'float33'"),
        (["--label_column", "prompt"], "Row 0, column 'prompt'"),
        (["--id_column", "key"], "no column 'key'"),
        (["--num_samples", "0"], "--num_samples must be at least 1, got 0"),
        (["--temperature", "0"], "temperature must be a finite number above 0, got 0.0"),
        (["--tasks", "answer"], "tasks must be one or both of label, rationale"),
        (["--output", "questions.jsonl/result.json"], "questions.jsonl/result.json cannot be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_ends_in_one_line(student, tmp_path, monkeypatch, capfd, flags, message):
    """A result file must not be there, or half there, after an error."""
    path = tmp_path / "questions.jsonl"
    Dataset.from_list([{"prompt": "which", "label": "1"}]).to_json(path)
    monkeypatch.chdir(tmp_path)
    assert evaluate(student, path, tmp_path / "result.json", *flags) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("qcrd evaluate: error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "result.json").exists()


def test_flags_that_do_not_exist(student, questions, tmp_path, capsys):
    """A misspelt limit that is ignored evaluates everything, for hours."""
    with pytest.raises(SystemExit) as ended:
        evaluate(student, questions, tmp_path / "result.json", "--max_question", "1")
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments: --max_question" in lines[-1]
    assert not any("[--" in line for line in lines)


@pytest.mark.parametrize("name", ["model", "dataset", "output"])
def test_what_is_missing_is_named(student, questions, tmp_path, capsys, name):
    """None of them has a default, because a comparison needs none of them."""
    given = {"model": student, "dataset": questions, "output": tmp_path / "result.json", "task_kind": "number"}
    argv = [part for key, value in given.items() if key != name for part in (f"--{key}", str(value))]
    assert main(["evaluate", *argv]) == 2
    assert f"--{name} is missing" in capsys.readouterr().err


def test_a_disk_that_cannot_be_written(student, questions, tmp_path, capsys, monkeypatch):
    """Found before the student is loaded, not after hours."""

    def full(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    monkeypatch.setattr("qcrd_trl.models.load_model", lambda *args, **kwargs: pytest.fail("was loaded"))
    assert evaluate(student, questions, tmp_path / "result.json") == 2
    assert "cannot be written: Read-only file system. Give another file." in capsys.readouterr().err


def test_an_empty_set(student, tmp_path, capsys):
    """0 of 0 is no accuracy."""
    (tmp_path / "empty.csv").write_text("prompt,label\n", encoding="utf-8")
    (tmp_path / "unlabelled.csv").write_text("prompt,label\na + 1,\n", encoding="utf-8")
    for name, message in (("empty", "has no rows"), ("unlabelled", "0 of 1 rows have a prompt and a label")):
        assert evaluate(student, tmp_path / f"{name}.csv", tmp_path / "result.json") == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()
