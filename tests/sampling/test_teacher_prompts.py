"""What a teacher is asked, word for word."""

from pathlib import Path

import pytest

from qcrd_trl.answers import TASK_KINDS, extract_answer
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.sampling.teacher_examples import EXAMPLES, FewShotExample
from qcrd_trl.sampling.teacher_prompts import TeacherPrompt, builtin_prompt, load_prompt


NUMBER = """\
Solve the problem. Think step by step, then give the result as one number. Write in exactly this form:
<Explanation>: your reasoning, step by step
<Answer>: the number"""
CHOICE = """\
Choose the one option that answers the question. Think step by step, then give its letter. Write in exactly this form:
<Explanation>: your reasoning, step by step
<Answer>: the letter"""
SHORT = TeacherPrompt("Do it.", examples=(FewShotExample("1 + 1?", "One and one.", "2"),), system="Be good.")


def test_zero_shot_plain():
    """The words are what the teacher's answers hang on; a change of them is another experiment."""
    text = builtin_prompt("number").render("What is 2 + 3?", None, chat=False)
    assert text == f"{NUMBER}\n\nQuestion: What is 2 + 3?\n<Explanation>:"


def test_zero_shot_chat():
    """A system message that nobody asked for is refused by some models."""
    messages = builtin_prompt("choice", has_choices=True).render("Where?", {"A": "here", "B": "there"}, chat=True)
    asked = f"{CHOICE}\n\nQuestion: Where?\nChoices:\n(A) here\n(B) there"
    assert messages == [{"role": "user", "content": asked}]


def test_few_shot():
    """An example without its end, or the instruction after it, teaches another form."""
    assert SHORT.render("2 + 2?", None, chat=False) == (
        "Be good.\n\nDo it.\n\nQuestion: 1 + 1?\n<Explanation>: One and one.\n<Answer>: 2\n\nQuestion: 2 + 2?\n<Explanation>:"
    )
    assert SHORT.render("2 + 2?", None, chat=True) == [
        {"role": "system", "content": "Be good."},
        {"role": "user", "content": "Do it.\n\nQuestion: 1 + 1?"},
        {"role": "assistant", "content": "<Explanation>: One and one.\n<Answer>: 2"},
        {"role": "user", "content": "Question: 2 + 2?"},
    ]


def test_conversations():
    """The user's own system message or earlier turns left out: the question makes no sense any more."""
    system, user = {"role": "system", "content": "You are a pirate."}, {"role": "user", "content": "2 + 2?"}
    earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Ahoy."}]
    prompt = TeacherPrompt("Do it.", question="Q: {question}")
    asked = {"role": "user", "content": "Do it.\n\nQ: 2 + 2?"}
    given = [system, *earlier, user]
    assert prompt.render(given, None, chat=True) == [system, *earlier, asked]
    assert given == [system, *earlier, {"role": "user", "content": "2 + 2?"}], "the dataset's row was changed"
    assert SHORT.render([system, user], None, True)[0] == {
        "role": "system",
        "content": "Be good.\n\nYou are a pirate.",
    }
    assert (
        prompt.render([system, user], None, chat=False) == "You are a pirate.\n\nDo it.\n\nQ: 2 + 2?\n<Explanation>:"
    )
    with pytest.raises(DataError, match="several turns"):
        prompt.render(given, None, chat=False)
    for bad in ([], [system], [user, {"role": "assistant", "content": "4"}]):
        with pytest.raises(DataError, match="does not end with the user's turn"):
            prompt.render(bad, None, chat=True)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("text", ["{question}", "{choices} {0} {} {{x}} {answer!r}", r"\1 \g<0>", "50% {"])
def test_braces_are_text(text, chat):
    """A question with braces (code, LaTeX, JSON) filled by str.format is an error or a hole at row 40,000."""
    prompt = TeacherPrompt(
        "{x} {question}", "{{question}} {y}\n{choices}", examples=(FewShotExample(text, text, text, {"A": text}),)
    )
    asked = f"{{{text}}} {{y}}\n(A) {text}"
    rendered = prompt.render(text, {"A": text}, chat)
    whole = rendered if not chat else "\n\n".join(message["content"] for message in rendered)
    assert whole.count(asked) == 2
    assert f"<Explanation>: {text}\n<Answer>: {text}" in whole
    assert whole.startswith("{x} {question}\n\n")


def test_stop_texts():
    """A base model goes on with the next question until the limit: paid for, and read as the answer."""
    assert builtin_prompt("nli").stop(chat=False) == ("\nQuestion:",)
    assert builtin_prompt("nli").stop(chat=True) == ()
    assert TeacherPrompt(question="Long rules.\nQ: {question}\nA:").stop(chat=False) == ("\nQ:",)
    assert TeacherPrompt(question="{question}").stop(chat=False) == ()


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_built_in_examples_are_right(kind):
    """A wrong or unreadable example teaches the teacher to answer so."""
    assert len(EXAMPLES[kind]) == 3
    for example in EXAMPLES[kind]:
        written = TeacherPrompt()._answer(example)
        answer = extract_answer(written, kind, example.choices)
        assert answer is not None
        assert answer == extract_answer(f"The answer is {example.answer}.", kind, example.choices)
        assert (example.choices is not None) == (kind == "choice")
    assert len(builtin_prompt(kind, kind == "choice", 2).examples) == 2
    with pytest.raises(ConfigError, match="There are 3 built-in examples"):
        builtin_prompt(kind, num_examples=4)


def test_choice_whose_options_are_in_the_question():
    """Without a column of options an empty list of choices would stand in every prompt."""
    prompt = builtin_prompt("choice", has_choices=False, num_examples=1)
    text = prompt.render("Which? (A) x (B) y", None, chat=False)
    assert "Choices:" not in text
    assert "bus?\n(A) roof\n(B) umbrella\n(C) towel\n(D) fountain\n<Explanation>:" in text
    with pytest.raises(DataError, match="the question has none"):
        builtin_prompt("choice", has_choices=True).render("Which?", None, chat=False)


def test_yaml_file(tmp_path):
    """Each key replaces its part and leaves the others."""
    path = tmp_path / "prompt.yaml"
    path.write_text(
        "system: |\n  Be good.\ninstruction: Do {it}.\nquestion: 'Q: {question}'\nexample: 'R: {explanation} A: {answer}'\n"
        "examples:\n- {question: '1 + 1?', explanation: One., answer: 2}\n- {question: '1 + 2?', explanation: Two., answer: 3}\n"
    )
    prompt = load_prompt("number", prompt_file=str(path), num_few_shot=1)
    text = prompt.render("2 + 2?", None, chat=False)
    assert text == "Be good.\n\nDo {it}.\n\nQ: 1 + 1?\nR: One. A: 2\n\nQ: 2 + 2?\nR:"
    path.write_text("instruction: Only this.\n")
    prompt = load_prompt("number", prompt_file=str(path), system="S")
    assert prompt.render("x", None, chat=False) == "S\n\nOnly this.\n\nQuestion: x\n<Explanation>:"


def test_text_file(tmp_path):
    """A template that is one text is used as it is, with nothing added."""
    path = tmp_path / "prompt.txt"
    path.write_text("Solve {this}:\n{question}\n\nThink aloud.\n")
    prompt = load_prompt("number", prompt_file=str(path))
    assert prompt.render("2 + 2?", None, chat=False) == "Solve {this}:\n2 + 2?\n\nThink aloud."
    assert prompt.render("2 + 2?", None, chat=True) == [
        {"role": "user", "content": "Solve {this}:\n2 + 2?\n\nThink aloud."}
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("e.yaml", "- question: 1 + 1?\n  explanation: One.\n  answer: 2\n"),
        ("e.json", '[{"question": "1 + 1?", "explanation": "One.", "answer": "2"}]'),
        ("e.jsonl", '{"question": "1 + 1?", "explanation": "One.", "answer": "2"}\n\n'),
    ],
)
def test_few_shot_files(tmp_path, name, text):
    """Examples of the user's own take the place of ours, all of them unless fewer are asked for."""
    (tmp_path / name).write_text(text)
    prompt = load_prompt("number", few_shot_file=str(tmp_path / name))
    assert prompt.examples == (FewShotExample("1 + 1?", "One.", "2"),)
    assert load_prompt("number", few_shot_file=str(tmp_path / name), num_few_shot=0).examples == ()
    with pytest.raises(ConfigError, match="there are 1 examples in"):
        load_prompt("number", few_shot_file=str(tmp_path / name), num_few_shot=2)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "no place for it", r"must hold \{question\}"),
        ("p.yaml", "a: [", "not valid YAML"),
        ("p.yaml", "- a\n", "must hold `key: value` lines"),
        ("p.yaml", "sytem: x\n", "unknown key 'sytem'"),
        ("p.yaml", "system: [x]\n", "key 'system': expected a text, got list"),
        ("p.yaml", "question: x\n", r"must hold \{question\}"),
        ("p.yaml", "question: '{question} {choices}'\n", "--choices_column"),
        ("p.yaml", "examples: 3\n", "must be a list"),
        ("p.yaml", "examples: [{question: a, answer: b}]\n", "example 1: expected the keys"),
        ("p.yaml", "examples: [{question: a, answer: no, explanation: c}]\n", "answer: expected a text, got False"),
        (
            "p.yaml",
            "examples: [{question: a, answer: b, explanation: c, choices: 3}]\n",
            "example 1: Column 'choices'",
        ),
        ("p.yaml", "example: x\nexamples: [{question: a, answer: b, explanation: c}]\n", r"must hold \{explanation\}"),
    ],
)
def test_wrong_files(tmp_path, name, text, message):
    """A template that is half understood asks thousands of questions wrongly."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_prompt("number", prompt_file=str(tmp_path / name))


def test_examples_lack_their_choices(tmp_path):
    """An example without options under a template with options shows an empty list."""
    (tmp_path / "e.yaml").write_text("- {question: a, explanation: b, answer: c}\n")
    with pytest.raises(ConfigError, match="Example 1 has no choices"):
        load_prompt("choice", has_choices=True, few_shot_file=str(tmp_path / "e.yaml"))


def test_settings_tell_all(tmp_path):
    """A part that is not in the settings can change without the hash: old samples pass for new ones."""
    import dataclasses
    import json

    fields = {field.name for field in dataclasses.fields(TeacherPrompt)}
    settings = builtin_prompt("choice", True, 2).settings()
    assert set(settings) == fields
    assert settings["examples"][0]["choices"] == {"A": "roof", "B": "umbrella", "C": "towel", "D": "fountain"}
    assert json.loads(json.dumps(settings))["examples"] == settings["examples"]


def test_the_example_of_the_docs(tmp_path):
    """Whoever copies a template from the docs must not be told that it is wrong."""
    docs = Path(__file__).resolve().parents[2] / "docs" / "sampling.md"
    (tmp_path / "p.yaml").write_text(docs.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])
    prompt = load_prompt("choice", has_choices=True, prompt_file=str(tmp_path / "p.yaml"))
    messages = prompt.render("Which is even?", {"A": "3", "B": "4"}, chat=True)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1]["content"] == "Problem: Which is even?\nOptions:\n(A) 3\n(B) 4"
    assert messages[2]["content"] == "<Explanation>: 3 rows of 4 eggs are 3 * 4 = 12 eggs.\n<Answer>: B"
