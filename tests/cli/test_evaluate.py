"""`qcrd evaluate`: a student's accuracies as JSON and as a table."""

import json

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
    assert [path.name for path in output.parent.iterdir()] == ["result.json"]
    out = capsys.readouterr().out
    for part in ("label predicted", "75.0 %", "3 of 4", "50.0 %", "2 of 4", "on 4 questions"):
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
        (["--model", "./no/such/model"], "No model could be loaded from './no/such/model'"),
        (["--dataset", "./no/such.jsonl"], "./no/such.jsonl"),
        (["--prompt_column", "question"], "no column 'question'"),
        (["--batch_size", "0"], "--batch_size must be at least 1, got 0"),
        (["--max_questions", "0"], "--max_questions must be at least 1"),
        (["--output", "."], "is a folder: give a file"),
        (["--dtype", "float33"], "Unknown dtype 'float33'"),
        (["--label_column", "prompt"], "Row 0, column 'prompt'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_work_ends_in_one_line(student, tmp_path, capfd, flags, message):
    """A result file must not be there, or half there, after an error."""
    path = tmp_path / "questions.jsonl"
    Dataset.from_list([{"prompt": "which", "label": "1"}]).to_json(path)
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
