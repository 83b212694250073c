"""The exported student without this package: the very lines that a model card shows, in a process that cannot import it."""

import json
import os
import subprocess
import sys

import pytest
from running import trainer_of
from saved import KINDS, TAUGHT, questions_of, tokenizer_of
from tiny import tiny_llama, word_tokenizer

from qcrd_trl import RationaleStudent, StudentFormat
from qcrd_trl.merging import merge_student
from qcrd_trl.snippets import plain_snippet, qcrd_snippet


WITHOUT_THIS_PACKAGE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("qcrd_trl", "trl"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
try:
    import qcrd_trl
except ImportError:
    pass
else:
    raise SystemExit("qcrd_trl can be imported")
"""


def run(code: str) -> list[str]:
    """Lines that a fresh interpreter without this package prints."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_THIS_PACKAGE + code],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.splitlines()


def answers(folder, kind, tokenizer=None, student_format=None) -> tuple[list[str], list[str]]:
    """Labels and rationales that the snippet's `ask` gives, each as one line of JSON; and what the snippet itself prints."""
    how = KINDS.get(kind, {})
    form = student_format or StudentFormat.from_pretrained(folder)
    code = plain_snippet(
        str(folder),
        tokenizer or tokenizer_of(kind),
        form,
        is_adapter=(folder / "adapter_config.json").is_file(),
        is_conversational=how.get("chat", False),
        question="a + 0",
        max_new_tokens=8,
    )
    questions = [row["prompt"] for row in TAUGHT]
    code += f"\nimport json\nfor prefix in {[form.predict_prefix, form.explain_prefix]!r}:\n"
    code += f"    print(json.dumps([ask(prefix, question) for question in {questions!r}]))\n"
    lines = run(code)
    return json.loads(lines[-2]), json.loads(lines[-1]), lines[:-2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_greedy_texts(saved_student, kind):
    """A card whose lines ask in another form shows a student that knows nothing."""
    folder = saved_student(kind)
    labels, rationales, printed = answers(folder, kind)
    student = RationaleStudent.from_pretrained(folder)
    questions = questions_of(kind)
    if KINDS[kind].get("chat"):  # the snippet asks without a system message
        questions = [[{"role": "user", "content": row["prompt"]}] for row in TAUGHT]
    assert labels == [answer.text for answer in student.predict(questions, max_new_tokens=8)]
    assert rationales == [e.rationale for e in student.explain(questions, max_new_tokens=8)]
    assert printed == [labels[0], rationales[0]]
    assert len(set(rationales)) > 1


def test_a_merged_student(saved_student, tmp_path):
    """It is a plain model: no PEFT is needed."""
    merge_student(saved_student("adapter"), tmp_path / "merged")
    labels, rationales, _ = answers(tmp_path / "merged", "adapter")
    student = RationaleStudent.from_pretrained(saved_student("adapter"))
    assert labels == [answer.text for answer in student.predict(questions_of("adapter"), max_new_tokens=8)]
    assert rationales == [e.rationale for e in student.explain(questions_of("adapter"), max_new_tokens=8)]


def test_a_form_of_ones_own_and_a_tokenizer_that_ends_texts(tmp_path):
    """Prefixes, separator and quotes as they were taught; a prompt that ends in EOS would be answered by nothing."""
    tokenizer = word_tokenizer(adds_bos=True, adds_eos=True)
    trainer = trainer_of(
        tmp_path,
        tiny_llama(initializer_range=0.4),
        TAUGHT,
        tokenizer,
        predict_prefix="",
        explain_prefix='"why" \\',
        response_separator=" =",
        optim="adamw_torch",
        max_steps=3,
    )
    trainer.train()
    trainer.save_model()
    labels, rationales, _ = answers(tmp_path, "", tokenizer)
    student = RationaleStudent.from_pretrained(tmp_path)
    questions = [row["prompt"] for row in TAUGHT]
    assert labels == [answer.text for answer in student.predict(questions, max_new_tokens=8)]
    assert rationales == [e.rationale for e in student.explain(questions, max_new_tokens=8)]
    assert "less the EOS" in plain_snippet("x", tokenizer, student.student_format)


def test_what_a_model_decodes_by_itself_is_left_out(saved_student, tmp_path):
    """Many published models sample or punish repetition by default: the texts would be others than those measured."""
    import shutil

    folder = shutil.copytree(saved_student("full"), tmp_path / "student")
    file = folder / "generation_config.json"
    config = {**json.loads(file.read_text()), "do_sample": True, "temperature": 9.0, "repetition_penalty": 5.0}
    file.write_text(json.dumps(config))
    labels, rationales, _ = answers(folder, "full")
    assert labels == [row["label"] for row in TAUGHT]
    assert rationales == [row["positive_rationales"][0] for row in TAUGHT]


@pytest.mark.parametrize("explains", [True, False])
def test_a_card_asks_for_what_was_taught(explains):
    """A label-only student's card must not ask it to explain."""
    form = StudentFormat(explains=explains)
    assert ("explain" in qcrd_snippet("me/student", form)) == explains
    assert ('ask("<Explain>"' in plain_snippet("me/student", word_tokenizer(), form)) == explains
    assert 'ask("<Predict>", question)' in plain_snippet("me/student", word_tokenizer(), form)
    assert '"me/student"' in qcrd_snippet("me/student", form)
    for code in (qcrd_snippet("me/student", form), plain_snippet("me/student", word_tokenizer(), form)):
        compile(code, "card", "exec")
        assert max(map(len, code.splitlines())) < 120


def test_the_lines_with_this_package(saved_student, capsys):
    """They are run as they stand in the card."""
    folder = saved_student("full")
    exec(compile(qcrd_snippet(str(folder), question="a + 0"), "card", "exec"), {})
    label, explanation = capsys.readouterr().out.strip().splitlines()
    assert label == "1"
    assert explanation.startswith("0 + 1 = 1 0.")
