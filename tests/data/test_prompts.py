"""Prompts and completions as token ids: prefixes, templates, one BOS, a learned EOS."""

import json

import pytest
from tiny import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    bos_tokenizer,
    byte_tokenizer,
    chat_tokenizer,
    ids,
    pad_is_eos_tokenizer,
    t5_tokenizer,
    word_tokenizer,
)

from qcrd_trl import StudentFormat
from qcrd_trl.data.prompts import FORMAT_NAME, completion_ids, has_lone_surrogate, prompt_ids, with_prefix
from qcrd_trl.errors import DataError, ModelError


DECODER, ENCODER = StudentFormat(), StudentFormat(is_encoder_decoder=True)
PREDICT = DECODER.predict_prefix
CHAT = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "user", "content": "d + 1"},
]


def both(prompt, tokenizer, form=DECODER, text="7"):
    start = prompt_ids(prompt, PREDICT, tokenizer, form)
    return start, completion_ids(prompt, PREDICT, text, tokenizer, form)


@pytest.mark.parametrize("tokenizer", [word_tokenizer(), pad_is_eos_tokenizer()])
def test_standard_decoder_only(tokenizer):
    """A completion without EOS teaches a student that never stops; its loss looks fine."""
    assert both("a + 1", tokenizer) == (ids("<Predict> a + 1"), ids("7 </s>"))


def test_tokenizer_that_closes_every_text():
    """An EOS between prompt and completion asks the student to answer after its own end."""
    assert both("a + 1", t5_tokenizer()) == (ids("<Predict> a + 1"), ids("7 </s>"))


def test_encoder_decoder():
    """The encoder of T5 was pretrained on texts that end with EOS; the labels end with exactly one."""
    assert both("a + 1", t5_tokenizer(), ENCODER) == (ids("<Predict> a + 1 </s>"), ids("7 </s>"))
    assert both("a + 1", word_tokenizer(), ENCODER) == (ids("<Predict> a + 1"), ids("7 </s>"))


@pytest.mark.parametrize("text", ["7 </s>", "7</s>"])
@pytest.mark.parametrize("form", [DECODER, ENCODER])
def test_a_text_that_ends_with_eos_gets_no_second(text, form):
    """Teachers' texts may hold the token: the student would learn to write it twice."""
    for tokenizer in (word_tokenizer(), t5_tokenizer()):
        if not (form is ENCODER and tokenizer("a")["input_ids"][-1] == EOS):
            assert both("a", tokenizer, form, text)[1] == ids("7 </s>")


def test_separator_stands_between_prompt_and_completion():
    """Without it the last word of the question and the first of the answer are one word to most tokenizers."""
    form = StudentFormat(response_separator=" =")
    assert both("a + 1", word_tokenizer(), form) == (ids("<Predict> a + 1 ="), ids("7 </s>"))
    assert both("a + 1", t5_tokenizer(), StudentFormat(response_separator=" =", is_encoder_decoder=True)) == (
        ids("<Predict> a + 1 </s>"),
        ids("7 </s>"),
    )


def test_one_bos_from_the_tokenizer():
    """No BOS, or two, is a start that a pretrained student has never seen."""
    start, completion = both("a + 1", bos_tokenizer())
    assert start == ids("<s> <Predict> a + 1")
    assert completion == ids("7 </s>")


@pytest.mark.parametrize("prefix", ["<Predict>", ""])
@pytest.mark.parametrize("prompt", ["<s> a + 1", "<s>a + 1"])
@pytest.mark.parametrize("tokenizer", [bos_tokenizer(), word_tokenizer(bos="<s>")], ids=["adds_bos", "adds_none"])
def test_one_bos_where_the_prompt_begins_with_it(tokenizer, prompt, prefix):
    """A prompt that was rendered beforehand begins with BOS: it is to stay the only one, and the first token."""
    if tokenizer.bos_token is None:
        tokenizer.bos_token = "<s>"
    start = prompt_ids(prompt, prefix, tokenizer, DECODER)
    assert start == ids(f"<s> {prefix} a + 1")


@pytest.mark.parametrize("prompt", ["a + 1", "<s> a + 1"])
def test_one_bos_for_an_encoder(prompt):
    """BART's tokenizer frames every text: the encoder's input has one BOS and one EOS, whatever the prompt holds."""
    start, completion = both(prompt, word_tokenizer(adds_bos=True, adds_eos=True), ENCODER)
    assert start == ids("<s> <Predict> a + 1 </s>")
    assert completion == ids("<s> 7 </s>")


def test_template_and_tokenizer_both_write_bos():
    """The template writes BOS and so would the tokenizer: two of them, in every row."""
    start, completion = both([{"role": "user", "content": "a + 1"}], chat_tokenizer())
    assert start == ids("<s> <|user|> <Predict> a + 1 </s> <|assistant|>")
    assert completion == ids("7 </s>")
    assert (start + completion).count(BOS) == 1


def test_prefix_goes_before_the_last_user_message():
    """In the first message, or the system's, the prefix would name the task of another turn."""
    start, completion = both(CHAT, chat_tokenizer())
    assert start == ids(
        "<s> <|system|> a </s> <|user|> b </s> <|assistant|> c </s> <|user|> <Predict> d + 1 </s> <|assistant|>"
    )
    assert completion == ids("7 </s>")
    assert CHAT[3]["content"] == "d + 1"  # the caller's messages are not touched


def test_the_two_tasks_differ_in_the_prefix_alone():
    """With one prompt for both tasks the student would answer a label with a rationale."""
    for prompt in ("a + 1", CHAT):
        tokenizer = chat_tokenizer()
        predict = prompt_ids(prompt, DECODER.predict_prefix, tokenizer, DECODER)
        explain = prompt_ids(prompt, DECODER.explain_prefix, tokenizer, DECODER)
        different = [(a, b) for a, b in zip(predict, explain, strict=True) if a != b]
        assert different == [(*ids("<Predict>"), *ids("<Explain>"))]


def test_template_without_bos_or_line_break():
    """A template may close turns with EOS alone, or open the next turn otherwise than it writes past ones."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("{{ bos_token }}", "").replace("}}\n{%", "}}{%")
    start, completion = both([{"role": "user", "content": "a"}], tokenizer)
    assert (start, completion) == (ids("<|user|> <Predict> a </s> <|assistant|>"), ids("7 </s>"))


def test_line_break_after_the_turn_is_not_learned():
    """Templates end a turn with EOS and a line break, which generation never gets to write: it stops at the EOS."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    start, completion = both([{"role": "user", "content": "a"}], tokenizer, text="7\n8")
    assert tokenizer.decode(start) == "<|user|> <Predict> a</s>\n<|assistant|> "
    assert tokenizer.decode(completion) == "7\n8</s>"
    assert completion[-1] == EOS


def test_template_whose_generation_prompt_is_not_in_past_turns():
    """A template that opens the answer with a word which past turns lack must not cut the completion at that length."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<|assistant|> {% endif %}", "<|assistant|> so so {% endif %}")
    start, completion = both([{"role": "user", "content": "a"}], tokenizer)
    assert start[-3:] == ids("<|assistant|> so so")
    assert completion == ids("7 </s>")


def test_template_that_closes_turns_without_eos():
    """The end of a turn that is not the EOS token would leave the completion without the token that ends generation."""
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace("{{ eos_token }}", " .")
    assert both([{"role": "user", "content": "a"}], tokenizer)[1] == ids("7 . </s>")


@pytest.mark.parametrize("prompt", ["a", [{"role": "user", "content": "a"}]])
@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_a_text_without_tokens_gives_none(prompt, text):
    """A lone EOS as the whole completion teaches the student to say nothing."""
    assert completion_ids(prompt, PREDICT, text, chat_tokenizer(), DECODER) == []
    assert completion_ids("a", PREDICT, text, t5_tokenizer(), ENCODER) == []


def test_prefix_alone():
    """An empty prefix must not leave a blank that shifts the first token."""
    assert with_prefix("a", "") == "a"
    assert with_prefix("a", "<Predict>") == "<Predict> a"
    assert with_prefix([{"role": "user", "content": "a"}], "") == [{"role": "user", "content": "a"}]


def test_conversation_without_a_user():
    """There is no place for the prefix: the tasks could not be told apart."""
    with pytest.raises(DataError, match="role 'user'"):
        prompt_ids([{"role": "system", "content": "a"}], PREDICT, chat_tokenizer(), DECODER)


def test_conversation_without_a_template():
    """Transformers' own error does not say that texts would do."""
    with pytest.raises(ModelError, match=r"no chat template.*as texts"):
        prompt_ids(CHAT, PREDICT, bos_tokenizer(), DECODER)


def test_vocabulary_is_not_touched():
    """New embedding rows would start at random, and the checkpoint would no longer fit its base model."""
    tokenizer = chat_tokenizer()
    before = (len(tokenizer), tokenizer.get_vocab(), tokenizer.padding_side, tokenizer.chat_template)
    both(CHAT, tokenizer)
    both("a + 1", tokenizer)
    assert (len(tokenizer), tokenizer.get_vocab(), tokenizer.padding_side, tokenizer.chat_template) == before


@pytest.mark.parametrize(("text", "lone"), [("a 😀 é", False), ("\ud83d", True), ("a \udc00 b", True), ("", False)])
def test_lone_surrogates(text, lone):
    """A text with half an emoji stops the tokenizer in the middle of a run."""
    assert has_lone_surrogate(text) == lone


def test_format_round_trip(tmp_path):
    """Evaluation that asked with other prefixes than training would measure another student."""
    form = StudentFormat("<P😀>", "<E>", " ", True, 12)
    form.save_pretrained(tmp_path)
    assert StudentFormat.from_pretrained(tmp_path) == form
    assert StudentFormat.from_pretrained(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("content", ["{", json.dumps({"prefix": "a"}), "[1]"])
def test_damaged_format(tmp_path, content):
    """The default in place of a damaged file would ask the student in a form it never saw."""
    (tmp_path / FORMAT_NAME).write_text(content)
    with pytest.raises(ModelError, match=FORMAT_NAME):
        StudentFormat.from_pretrained(tmp_path)
