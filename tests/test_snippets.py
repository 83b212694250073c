"""The exported student without this package: the very lines that a model card shows, in a process that cannot import it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import trainer_of
from saved import KINDS, TAUGHT, tokenizer_of
from tiny import tiny_llama, word_tokenizer

from qcrd_trl import RationaleStudent, StudentFormat
from qcrd_trl.merging import merge_student
from qcrd_trl.snippets import named_anew, plain_snippet, qcrd_snippet


WITHOUT_THIS_PACKAGE = """
import sys
from pathlib import Path

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


# Runs each card's lines as they stand, and then asks more by the function that they define.
ASKING = """
import contextlib, io, json

for code, prefixes, questions in json.load(sys.stdin):
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "card", "exec"), names)
    texts = [[names["ask"](prefix, question) for question in questions] for prefix in prefixes]
    print(json.dumps([printed.getvalue().splitlines(), *texts]))
"""
QUESTIONS = [row["prompt"] for row in TAUGHT]
OWN_FORM = {"predict_prefix": "", "explain_prefix": '"why" \\', "response_separator": " ="}


@dataclass
class Case:
    """A student of a kind in a folder, and what the lines of its card gave without this package."""

    folder: Path
    kind: str
    tokenizer: object = None
    printed: list[str] | None = None
    labels: list[str] | None = None
    rationales: list[str] | None = None

    @property
    def is_chat(self):
        return KINDS[self.kind].get("chat", False)

    def task(self):
        form = StudentFormat.from_pretrained(self.folder)
        code = plain_snippet(
            str(self.folder),
            self.tokenizer or tokenizer_of(self.kind),
            form,
            is_adapter=(self.folder / "adapter_config.json").is_file(),
            is_conversational=self.is_chat,
            question=QUESTIONS[0],
            max_new_tokens=8,
        )
        return code, [form.predict_prefix, form.explain_prefix], QUESTIONS


@pytest.fixture(scope="module")
def cases(saved_student, tmp_path_factory):
    """Students of all kinds, asked in one process that has only transformers and PEFT."""
    cases = {kind: Case(saved_student(kind), kind) for kind in KINDS}
    folder = tmp_path_factory.mktemp("snippets")
    merge_student(saved_student("adapter"), folder / "merged")
    cases["merged"] = Case(folder / "merged", "adapter")
    tokenizer = word_tokenizer(adds_bos=True, adds_eos=True)
    trainer = trainer_of(
        *(folder / "own", tiny_llama(initializer_range=0.4), TAUGHT, tokenizer),
        **{**OWN_FORM, "optim": "adamw_torch", "max_steps": 3},
    )
    trainer.train()
    trainer.save_model()
    cases["own_form"] = Case(folder / "own", "full", tokenizer)
    sampling = shutil.copytree(saved_student("full"), folder / "sampling")
    file = sampling / "generation_config.json"
    config = {**json.loads(file.read_text()), "do_sample": True, "temperature": 9.0, "repetition_penalty": 5.0}
    file.write_text(json.dumps(config))
    cases["sampling"] = Case(sampling, "full")

    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_THIS_PACKAGE + ASKING],
        input=json.dumps([case.task() for case in cases.values()]),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert child.returncode == 0, child.stderr
    for case, line in zip(cases.values(), child.stdout.splitlines(), strict=True):
        case.printed, case.labels, case.rationales = json.loads(line)
    return cases


@pytest.mark.parametrize("name", [*KINDS, "merged", "own_form", "sampling"])
def test_the_same_greedy_texts(cases, name):
    """
    A card whose lines ask in another form shows a student that knows nothing: with another prefix or separator, with an EOS at
    the end of the question, or by the sampling and penalties that many published models have by default.
    """
    case = cases[name]
    questions = [[{"role": "user", "content": text}] for text in QUESTIONS] if case.is_chat else QUESTIONS
    student = RationaleStudent.from_pretrained(case.folder)
    assert case.labels == [answer.text for answer in student.predict(questions, max_new_tokens=8)]
    assert case.rationales == [e.rationale for e in student.explain(questions, max_new_tokens=8)]
    assert case.printed == [case.labels[0], case.rationales[0]]
    assert len(set(case.rationales)) > 1


def test_the_cases_differ(cases, saved_student):
    """Each case is none if the lines would do as well without what it is about."""
    for name in ("full", "full_t5", "sampling"):
        assert cases[name].rationales == [row["positive_rationales"][0] for row in TAUGHT]
    own = cases["own_form"]
    assert "less the EOS" in own.task()[0]
    assert "less the EOS" not in cases["full"].task()[0]
    for part in ("if prefix else question", '" ="'):
        assert part in own.task()[0]
    assert "apply_chat_template" in cases["adapter_chat"].task()[0]
    assert cases["merged"].rationales == cases["adapter"].rationales
    assert "peft" not in cases["merged"].task()[0]


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


def test_the_documentation_shows_these_lines():
    """Lines that are copied into a page grow old."""
    page = Path(__file__).resolve().parents[1] / "docs" / "student.md"
    code = plain_snippet("OUT", word_tokenizer(), StudentFormat(), is_adapter=True)
    assert f"```python\n{code}```" in page.read_text(encoding="utf-8")


def test_a_card_names_another_place():
    """A reader on the Hub who runs the lines would look for a folder of somebody else's machine."""
    form, tokenizer = StudentFormat(), word_tokenizer()
    own, others = (
        f"A.\n\n```python\n{qcrd_snippet(name, form)}```\n```python\n{plain_snippet(name, tokenizer, form)}```\n"
        for name in ('out "1"', "me/student")
    )
    assert own != others
    assert named_anew(own, "me/student") == others
    assert named_anew(others, 'out "1"') == own
    assert named_anew('name = "out"\n', "me/student") == 'name = "out"\n'  # somebody else's card
