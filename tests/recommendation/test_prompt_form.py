"""The template: what it makes of a history, and what is refused before anything runs."""

import pytest

from qcrd_trl.errors import ConfigError, ModelError
from qcrd_trl.recommendation.prompt_form import FORM_NAME, RecommendationPrompt, load_prompt_form


FORM = RecommendationPrompt(prompt="Seen {history}? Of {candidates}:", item="<{title}>", separator=", ")


def test_a_plain_prompt():
    """A start that is off by one would cut titles in two when the history is shortened."""
    made = FORM.render(["a", "b"], ["c", "a"])
    assert made == {"prompt": "Seen <a>, <b>? Of <c>, <a>:", "history": ["<a>, ", "<b>"], "history_start": 5}


def test_messages_and_system():
    """The system message stands before the history in a plain text, and moves where it begins."""
    chat = RecommendationPrompt(prompt="Seen {history}.", system="Be brief.", chat=True).render(["a"], ["c"])
    assert chat["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Seen a."}]
    assert chat["history_start"] == 5
    plain = RecommendationPrompt(prompt="Seen {history}.", system="Be brief.").render(["a"], ["c"])
    assert plain["prompt"] == "Be brief.\n\nSeen a."
    assert plain["prompt"][plain["history_start"] :] == "a."
    assert RecommendationPrompt(chat=True).render(["a"], ["c"])["prompt"][0]["role"] == "user"


def test_titles_are_plain_text():
    """A title that looks like a placeholder would put the candidates into the history."""
    form = RecommendationPrompt(prompt="{candidates}|{history}|{candidates")
    assert form.render(["{candidates}", "{history}"], ["{history}", "{title}"])["prompt"] == (
        "{history}\n{title}|{candidates}\n{history}|{candidates"
    )


def test_the_built_in_template_shows_both():
    """A template that lacks one of the two teaches guessing."""
    text = RecommendationPrompt().render(["First", "Second"], ["Third", "Fourth"])["prompt"]
    assert "First\nSecond" in text
    assert "Third\nFourth" in text
    assert RecommendationPrompt().lists_candidates
    assert not RecommendationPrompt(prompt="{history}").lists_candidates


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "Next?"}, r"prompt must hold \{history\}, got 'Next\?'"),
        ({"prompt": "{history} {history}"}, "once, got it 2 times"),
        ({"prompt": "{history} {candidate}"}, r"holds \{candidate\}, which nothing stands for"),
        ({"item": "-"}, r"item must hold \{title\}"),
        ({"item": "{title} {history}"}, r"item holds \{history\}"),
        ({"separator": ""}, "separator"),
        ({"max_history": 0}, "`max_history` must be at least 1"),
        ({"max_length": 0}, "`max_length` must be at least 1"),
    ],
)
def test_what_is_refused(fields, message):
    """A mistyped placeholder is plain text to a lenient template: no candidates are listed, and nobody is told."""
    with pytest.raises(ConfigError, match=message):
        RecommendationPrompt(**fields)


def test_braces_that_are_no_names_are_text():
    """JSON in a template is no mistake."""
    text = RecommendationPrompt(prompt='{history} {"title": 1} {}').render(["a"], [])["prompt"]
    assert text == 'a {"title": 1} {}'


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_files(tmp_path):
    """A file that is read otherwise than it looks changes every prompt of a run."""
    settings = {"chat": True, "max_history": 5, "max_length": 99}
    read = load_prompt_form(write(tmp_path, "a.txt", "\nAfter {history}?\n"), **settings)
    assert read == RecommendationPrompt(prompt="After {history}?", **settings)
    text = 'prompt: |\n  After {history}\n  which of {candidates}?\nseparator: "\\n- "\nitem: "«{title}»"\n'
    read = load_prompt_form(write(tmp_path, "a.yaml", text))
    assert read.prompt == "After {history}\nwhich of {candidates}?"
    assert (read.separator, read.item, read.system) == ("\n- ", "«{title}»", "")
    assert load_prompt_form(max_history=3) == RecommendationPrompt(max_history=3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "Next?", r"a\.txt.*prompt must hold \{history\}"),
        ("a.yaml", "- a", "must hold `key: value` lines"),
        ("a.yaml", "prompts: '{history}'", "unknown key 'prompts'; expected system, prompt"),
        ("a.yaml", "system: 3", "key 'system': expected a text, got int"),
        ("a.yaml", "prompt: '{history'", r"a\.yaml.*must hold \{history\}"),
        ("a.yml", "a: [", "not valid YAML"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    """What is wrong with a file is to be known before a model is loaded, and by the file's name."""
    with pytest.raises(ConfigError, match=message):
        load_prompt_form(write(tmp_path, name, text))


def test_files_that_cannot_be_read(tmp_path):
    """A path that is wrong is no reason for the built-in template."""
    with pytest.raises(ConfigError, match="cannot be read"):
        load_prompt_form(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes("é {history}".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_prompt_form(tmp_path / "latin.txt")


def test_a_saved_form_comes_back(tmp_path):
    """A model that is asked otherwise than it was taught is worse for no reason that its weights show."""
    assert RecommendationPrompt.from_pretrained(tmp_path) is None
    form = RecommendationPrompt(prompt="«{history}»", separator="\n\n", chat=True, max_history=7, max_length=300)
    form.save_pretrained(tmp_path)
    assert RecommendationPrompt.from_pretrained(tmp_path) == form
    for text in ("{", '{"colour": 1}', '{"prompt": "x"}'):
        write(tmp_path, FORM_NAME, text)
        with pytest.raises(ModelError, match="damaged"):
            RecommendationPrompt.from_pretrained(tmp_path)
