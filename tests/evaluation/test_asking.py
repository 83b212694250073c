"""Accuracies of students whose every answer is known."""

import json

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from running import trainer_of
from tiny import CHAT_TEMPLATE, EOS, PAD, byte_tokenizer, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer
from torch import nn

from qcrd_trl import StudentFormat, evaluate_student
from qcrd_trl.errors import ConfigError, DataError


class Known(nn.Module):
    """A student that answers each prompt by what stands in a table, or by nothing."""

    def __init__(self, tokenizer, answers, encoder_decoder=False):
        super().__init__()
        self.config = tiny_t5().config if encoder_decoder else tiny_llama().config
        self.config.is_encoder_decoder = encoder_decoder
        self.device = torch.device("cpu")
        self.tokenizer, self.answers, self.asked, self.limits = tokenizer, answers, [], []

    def generate(self, input_ids, attention_mask, generation_config):
        texts = []
        for row, mask in zip(input_ids, attention_mask, strict=True):
            prompt = self.tokenizer.decode(row[mask.bool()])
            self.asked.append(prompt)
            self.limits.append(generation_config.max_new_tokens)
            text = self.tokenizer(self.answers.get(prompt.strip(), "")).input_ids
            texts.append([*text, EOS][: generation_config.max_new_tokens])
        width = max(map(len, texts))
        out = torch.tensor([[*text, *[PAD] * (width - len(text))] for text in texts])
        if self.config.is_encoder_decoder:
            return torch.cat([torch.full((len(out), 1), PAD), out], 1)
        return torch.cat([input_ids, out], 1)


ROWS = [
    {"id": "first", "prompt": "1 + 1", "label": "2"},
    {"id": "second", "prompt": "2 + 2", "label": "4"},
    {"id": "third", "prompt": "3 + 3", "label": "6.0"},
    {"id": None, "prompt": "4 + 4", "label": "8"},
    {"id": "no label", "prompt": "5 + 5", "label": None},
    {"id": "no prompt", "prompt": None, "label": "1"},
]
ANSWERS = {
    "<Predict> 1 + 1": "2",
    "<Explain> 1 + 1": "One and one. The answer is 2.",
    "<Predict> 2 + 2": "5",
    "<Explain> 2 + 2": "Two and two. The answer is 4.",
    "<Predict> 3 + 3": "6",
    "<Explain> 3 + 3": "Three and three. The answer is 7.",
    "<Predict> 4 + 4": "no idea",
    "<Explain> 4 + 4": "let us see and " * 10,
}


def evaluate(model=None, rows=ROWS, task_kind="number", **kwargs):
    model = model or Known(byte_tokenizer(), ANSWERS)
    kwargs = {"max_new_tokens": 60, "progress": False, **kwargs}
    return evaluate_student(model, byte_tokenizer(), rows, task_kind, **kwargs)


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_accuracies_of_known_answers(batch_size, as_dataset):
    """An answer given to another question, or counted on the wrong side, still gives a number between 0 and 1."""
    result = evaluate(rows=Dataset.from_list(ROWS) if as_dataset else ROWS, batch_size=batch_size)
    assert result.label_accuracy == 2 / 4  # the first and the third
    assert result.answer_accuracy == 2 / 4  # the first and the second
    assert result.agreement == 1 / 4  # the first alone: of the fourth, nothing can be read
    assert result.counts == {
        "questions": 4,
        "label_correct": 2,
        "answer_correct": 2,
        "agrees": 1,
        "no_predicted_answer": 1,
        "no_reached_answer": 1,
        "unfinished_rationales": 1,
        "skipped": 2,
    }
    outcomes = [(q.id, q.label, q.predicted, q.reached, q.label_correct, q.answer_correct) for q in result.questions]
    assert outcomes == [
        ("first", "2", "2", "2", True, True),
        ("second", "4", "5", "4", False, True),
        ("third", "6", "6", "7", True, False),
        ("3", "8", None, None, False, False),
    ]
    assert result.questions[1].predicted_text == "5"
    assert result.questions[1].rationale == ANSWERS["<Explain> 2 + 2"]
    assert [q.rationale_finished for q in result.questions] == [True, True, True, False]
    assert json.loads(json.dumps(result.to_dict()))["questions"][0]["id"] == "first"


def test_each_task_has_its_own_prefix_and_length():
    """Asked under the wrong prefix, a student gives the rationale where the label is measured."""
    model = Known(byte_tokenizer(), ANSWERS)
    evaluate(model, label_max_new_tokens=5, max_new_tokens=70)
    assert [prompt for prompt in model.asked if prompt.startswith("<Predict>")] == [
        f"<Predict> {row['prompt']}\n" for row in ROWS[:4]
    ]
    assert sum(prompt.startswith("<Explain>") for prompt in model.asked) == 4
    assert model.limits == [5] * 4 + [70] * 4

    model = Known(byte_tokenizer(), {"Label: 1 + 1 =": "2", "Why: 1 + 1 =": "The answer is 2."})
    form = StudentFormat("Label:", "Why:", response_separator=" =")
    result = evaluate(model, ROWS[:1], student_format=form)
    assert model.asked == ["Label: 1 + 1 =", "Why: 1 + 1 ="]
    assert result.label_accuracy == result.answer_accuracy == 1


def test_an_encoder_decoder():
    """Its texts begin after the start token, not after the prompt."""
    result = evaluate(Known(byte_tokenizer(), ANSWERS, encoder_decoder=True))
    assert (result.label_accuracy, result.answer_accuracy) == (0.5, 0.5)
    assert result.questions[0].rationale == ANSWERS["<Explain> 1 + 1"]


def test_conversations():
    """A chat template writes the prompt; the prefix goes before what the user says."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    rows = [{"prompt": [{"role": "user", "content": "1 + 1"}], "label": "2"}]
    model = Known(tokenizer, {"<|user|> <Predict> 1 + 1</s>\n<|assistant|>": "2"})
    result = evaluate_student(model, tokenizer, rows, "number", progress=False)
    assert result.label_accuracy == 1
    assert result.answer_accuracy == 0


@pytest.mark.parametrize("choices", [{"A": "a hat", "B": "a bank"}, ["a hat", "a bank"]])
def test_choices(choices):
    """An option named by its text is an answer, and a letter that is no option is none."""
    rows = [{"prompt": "Which?", "label": "B", "options": choices}] * 2
    model = Known(byte_tokenizer(), {"<Predict> Which?": "a bank", "<Explain> Which?": "The answer is (D)."})
    result = evaluate(model, rows, "choice", choices_column="options")
    assert result.label_accuracy == 1
    assert result.counts["no_reached_answer"] == 2


@pytest.mark.parametrize(
    ("task_kind", "label", "right", "wrong"),
    [
        ("number", "1,000", "1000.0", "100"),
        ("choice", "B", "(B)", "(A)"),
        ("nli", "entailment", "It is entailment.", "It is neutral."),
        ("text", "New York", "new york", "york"),
    ],
)
def test_every_task_kind(task_kind, label, right, wrong):
    """Answers compared as another kind than they were read by are all wrong, or all right."""
    model = Known(byte_tokenizer(), {"<Predict> Which?": right, "<Explain> Which?": f"The answer is {wrong}"})
    result = evaluate(model, [{"prompt": "Which?", "label": label}], task_kind)
    assert (result.label_accuracy, result.answer_accuracy) == (1, 0)
    assert result.counts["no_reached_answer"] == 0


def test_a_task_kind_of_ones_own():
    """Any function from a text to a value reads answers and labels alike."""
    rows = [{"prompt": "1 + 1", "label": "two"}]
    model = Known(byte_tokenizer(), {"<Predict> 1 + 1": "it is two", "<Explain> 1 + 1": "it is three"})
    result = evaluate(model, rows, lambda text: text.split()[-1] if text else None)
    assert (result.label_accuracy, result.answer_accuracy) == (1, 0)
    assert result.questions[0].reached == "three"


@pytest.mark.parametrize(
    ("rows", "kwargs", "message"),
    [
        ([*ROWS[:2], {"id": "x", "prompt": "a", "label": "many"}], {}, r"Row 2, column 'label'.*many"),
        (ROWS, {"label_column": "answer"}, "no column 'answer' for the label; its columns are: id, prompt, label"),
        (ROWS, {"prompt_column": "question"}, "no column 'question'"),
        (ROWS, {"choices_column": "options"}, "no column 'options'"),
        (ROWS[4:], {}, "0 of 2 rows have a prompt and a label"),
        ([], {}, "The dataset has no rows to evaluate on"),
        (ROWS, {"id_column": "key"}, "no column 'key' for the id"),
        ([ROWS[0], ROWS[1], {**ROWS[2], "id": "first"}], {}, r"Rows 0 and 2 .* have the same id 'first'"),
        ([{**ROWS[0], "prompt": 1}], {}, r"Column 'prompt', row 0 .*expected a text or a list of messages"),
    ],
    ids=[
        *("label", "label_column", "prompt_column", "choices_column", "no_row_left", "empty"),
        *("id_column", "same_id", "prompt"),
    ],
)
def test_what_cannot_be_evaluated_is_named(rows, kwargs, message):
    """A label that cannot be read would count as a wrong answer of the student's."""
    model = Known(byte_tokenizer(), ANSWERS)
    with pytest.raises(DataError, match=message):
        evaluate(model, rows, **kwargs)
    assert model.asked == []


def test_labels_that_are_class_numbers():
    """A class number compared with a name is wrong for every question; a class of -1 is the Hub's mark for no label."""
    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = Features({"prompt": Value("string"), "label": classes})
    rows = Dataset.from_dict({"prompt": ["Which?", "What?"], "label": [1, -1]}, features=features)
    model = Known(byte_tokenizer(), {"<Predict> Which?": "neutral", "<Explain> Which?": "It is neutral."})
    result = evaluate(model, rows, "nli")
    assert (result.label_accuracy, result.answer_accuracy) == (1, 1)
    assert (result.counts["questions"], result.counts["skipped"]) == (1, 1)


def test_rows_that_nobody_can_be_asked():
    """Counted as wrong they would lower the accuracy of every student alike; and half a surrogate fits no file."""
    unusable = [{"prompt": " ", "label": "1"}, {"prompt": "a", "label": " "}, {"prompt": "a\ud800", "label": "1"}]
    result = evaluate(rows=[*ROWS[:2], *unusable, {"prompt": "a", "label": "\udc00"}])
    assert (result.counts["questions"], result.counts["skipped"]) == (2, 4)


def test_intervals():
    """Wilson's, by hand in `tests/test_statistics.py`: 2 of 4 is (2 + 1.92) / 7.84 = 0.5 plus or minus 0.35."""
    intervals = evaluate().intervals
    assert intervals.keys() == {"label_accuracy", "answer_accuracy", "agreement"}
    assert intervals["label_accuracy"] == pytest.approx((0.15, 0.85), abs=1e-3)
    assert intervals["agreement"] == pytest.approx((0.0456, 0.6994), abs=1e-4)


def test_one_task_alone():
    """What was not asked is not 0: an accuracy that nobody measured must not look like a bad one."""
    model = Known(byte_tokenizer(), ANSWERS)
    result = evaluate(model, tasks=["label"])
    assert result.label_accuracy == 0.5
    assert (result.answer_accuracy, result.agreement) == (None, None)
    assert result.intervals.keys() == {"label_accuracy"}
    assert set(result.counts) == {"questions", "label_correct", "no_predicted_answer", "skipped"}
    assert all(prompt.startswith("<Predict>") for prompt in model.asked)
    assert (result.questions[0].rationale, result.questions[0].answer_correct) == (None, None)
    assert evaluate(tasks=["rationale"]).label_accuracy is None


def test_a_student_without_a_rationale_task():
    """Asked for what it was never taught, a student trained on labels alone would look like one that reasons badly."""
    form = StudentFormat(explains=False)
    assert evaluate(student_format=form).answer_accuracy is None
    with pytest.raises(ConfigError, match=r"was not taught the rationale task \(alpha_2 was 0"):
        evaluate(student_format=form, tasks=["label", "rationale"])
    with pytest.raises(ConfigError, match=r"was not taught the label task \(alpha_1 was 0"):
        evaluate(student_format=StudentFormat(predicts=False), tasks=["label"])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be a finite number above 0"),
        ({"tasks": []}, "tasks must be one or both of label, rationale"),
        ({"tasks": ["answer"]}, "tasks must be one or both of label, rationale, got"),
        ({"task_kind": "essay"}, "`task_kind` is 'essay'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work(kwargs, message):
    """Before anything is generated."""
    model = Known(byte_tokenizer(), ANSWERS)
    with pytest.raises(ConfigError, match=message):
        evaluate(model, **kwargs)
    assert model.asked == []


def test_a_trained_student_gives_what_it_was_taught(tmp_path):
    """Asked in another form than it was taught in (a separator, a BOS, an end), it would know nothing of it."""
    rows = [
        {"prompt": f"a + {i}", "label": str(i + 1), "positive_rationales": [f"{i} + 1 = {9 - i}"]} for i in range(4)
    ]
    for make, tokenizer in ((tiny_gpt2, word_tokenizer()), (tiny_t5, word_tokenizer(adds_eos=True))):
        trainer = trainer_of(
            tmp_path, make(), rows, tokenizer, preset="dss_all", max_steps=60, optim="adamw_torch", learning_rate=0.02
        )
        trainer.train()
        result = evaluate_student(
            trainer.model, tokenizer, rows, "number", trainer.student_format, max_new_tokens=8, progress=False
        )
        assert [q.rationale for q in result.questions] == [row["positive_rationales"][0] for row in rows]
        assert result.label_accuracy == 1
        assert result.answer_accuracy == 0  # the rationales reach 9 - i, which is never i + 1
        assert result.counts["unfinished_rationales"] == 0
        assert trainer.model.training  # as training left it
