"""A trained student from its folder: asked as it was taught, and scored as training scores."""

import random

import numpy as np
import pytest
import torch
from saved import CHATS, LEARNED, QUESTIONS, TAUGHT, questions_of, save_student, tokenizer_of, trainer_of_kind
from tiny import ids, tiny_gpt2, tiny_llama, tiny_t5, word_tokenizer

from qcrd_trl import RationaleDiscriminator, RationaleStudent, StudentFormat
from qcrd_trl.data.prompts import prompt_ids
from qcrd_trl.errors import ConfigError, DataError, ModelError
from qcrd_trl.records import Negative
from qcrd_trl.sampling.generate import generate_completions


NEW = {"max_new_tokens": 8}


@pytest.fixture(scope="module")
def student(saved_student):
    """A full decoder-only student that reads numbers."""
    return RationaleStudent.from_pretrained(saved_student("full"), task_kind="number")


@pytest.mark.parametrize("kind", LEARNED)
def test_gives_what_it_was_taught(saved_student, kind):
    """Asked in another form than it was taught in, or with the adapter left behind, it would know nothing of it."""
    student = RationaleStudent.from_pretrained(saved_student(kind), task_kind="number")
    labels = student.predict(questions_of(kind))
    assert [answer.text for answer in labels] == [row["label"] for row in TAUGHT]
    assert [answer.label for answer in labels] == [row["label"] for row in TAUGHT]
    explanations = student.explain(questions_of(kind), **NEW)
    for row, explanation in zip(TAUGHT, explanations, strict=True):
        assert explanation.rationale in row["positive_rationales"]
        assert explanation.answer == row["label"]
        assert explanation.is_finished
        assert 0 < explanation.quality < 1
        assert len(explanation.samples) == 1
        assert explanation.samples[0].temperature is explanation.samples[0].seed is None
    assert len({explanation.quality for explanation in explanations}) == len(TAUGHT)


def test_no_answer_is_read_without_a_task_kind(saved_student):
    """A guess at how answers are read would be wrong for some task, and look like the student's fault."""
    student = RationaleStudent.from_pretrained(saved_student("full"))
    assert [(answer.text, answer.label) for answer in student.predict(QUESTIONS[:1])] == [("1", None)]
    (explanation,) = student.explain(QUESTIONS[:1], **NEW)
    assert explanation.rationale
    assert explanation.answer is None


@pytest.mark.parametrize("kind", ["full", "adapter_t5", "adapter_chat"])
def test_scores_are_those_of_training(tmp_path, kind):
    """A quality read one token off, or from other layers, is still a number between 0 and 1."""
    trainer = trainer_of_kind(tmp_path, kind, max_steps=3)
    trainer.train()
    trainer.save_model()
    trainer.model.eval()
    trainer._evaluating = True
    batch = next(iter(trainer.get_eval_dataloader(trainer.eval_dataset)))
    with torch.no_grad():
        parts, rows, _ = trainer._rationale_task(trainer.model, batch)
    student = RationaleStudent.from_pretrained(tmp_path / "student")
    questions, texts = [], []
    for question, labels in zip(rows.question.tolist(), rows.labels, strict=True):
        questions.append(questions_of(kind)[int(batch["question_index"][question])])
        texts.append(student.tokenizer.decode(labels[labels != -100], skip_special_tokens=True))
    expected = [texts_of for row in TAUGHT[:4] for texts_of in row["positive_rationales"] + row["negative_rationales"]]
    assert sorted(texts) == sorted(expected)
    found = student.score(questions, texts, batch_size=5)
    assert found == pytest.approx(parts.scores.tolist(), abs=1e-5)
    assert max(found) - min(found) > 0.01


@pytest.mark.parametrize("kind", ["adapter", "full_t5"])
def test_own_samples_are_scored_as_generated_negatives(tmp_path, kind):
    """The tokens that were drawn, not those of their text: the two differ where a sample was cut or has special tokens."""
    trainer = trainer_of_kind(tmp_path, kind, max_steps=3)
    trainer.train()
    trainer.model.eval()
    student = RationaleStudent(trainer.model, trainer.processing_class, trainer.student_format, trainer.discriminator)
    explanations = student.explain(QUESTIONS, num_samples=2, temperature=1.5, **NEW)
    form, negatives, expected = trainer.student_format, {}, {}
    for row, explanation in zip(TAUGHT, explanations, strict=True):
        seeds = [sample.seed for sample in explanation.samples]
        start = prompt_ids(row["prompt"], form.explain_prefix, student.tokenizer, form)
        drawn = generate_completions(
            *(student.model, student.tokenizer, [start] * 2, 8),
            progress=False,
            temperature=1.5,
            seeds=seeds,
        )
        negatives[row["id"]] = [
            Negative(c.text, c.token_ids, 0, 0, seed, 1.5, c.is_finished) for c, seed in zip(drawn, seeds, strict=True)
        ]
        expected.update({c.token_ids: s.quality for c, s in zip(drawn, explanation.samples, strict=True) if c.text})
    trainer.negatives.replace(0, negatives)
    with torch.no_grad():
        parts, rows, _ = trainer._rationale_task(trainer.model, next(iter(trainer.get_train_dataloader())))
    found = {
        tuple(labels[labels != -100].tolist()): score
        for labels, score, place in zip(rows.labels, parts.scores.tolist(), rows.generated.tolist(), strict=True)
        if place >= 0
    }
    assert len(expected) > 4
    assert {tokens: found[tokens] for tokens in expected} == pytest.approx(expected, abs=1e-5)


def test_quality_by_hand(saved_student):
    """Of the tokens that were generated: the states that predict them, from the one before the first on."""
    student = RationaleStudent.from_pretrained(saved_student("adapter"))
    (explanation,) = student.explain(QUESTIONS[1:2], **NEW)
    start = ids("<Explain> " + QUESTIONS[1])
    (completion,) = generate_completions(student.model, student.tokenizer, [start], 8, progress=False)
    tokens = list(completion.token_ids)
    assert len(tokens) > 1
    with torch.no_grad():
        out = student.model(input_ids=torch.tensor([start + tokens]), output_hidden_states=True)
    states = out.hidden_states[-1][0, len(start) - 1 : -1]
    states = (states - states.mean(1, keepdim=True)) / (states.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    head = student.discriminator
    hidden = (head.dense.weight @ states.max(0).values + head.dense.bias).clamp(min=0)
    expected = torch.sigmoid(head.score.weight[0] @ hidden + head.score.bias[0]).item()
    assert explanation.quality == pytest.approx(expected, abs=1e-6)


def test_a_rationale_that_was_cut_is_scored_without_an_end(saved_student):
    """Training scores a sample that hit the limit without EOS: with one, it is another rationale."""
    student = RationaleStudent.from_pretrained(saved_student("full"))
    (cut,) = student.explain(QUESTIONS[1:2], max_new_tokens=3)  # of 1 + 1 = 2
    assert not cut.is_finished
    assert len(ids(cut.rationale)) == 3
    with_end = student.score(QUESTIONS[1:2], [cut.rationale])[0]
    assert cut.quality != with_end
    (whole,) = student.explain(QUESTIONS[1:2], **NEW)
    assert whole.quality == pytest.approx(student.score(QUESTIONS[1:2], [whole.rationale])[0], abs=1e-6)


@pytest.mark.parametrize("kind", ["adapter", "full_t5"])
def test_a_long_rationale_is_cut_as_in_training(tmp_path, kind):
    """The discriminator has never seen what `max_length` cut off."""
    folder = save_student(tmp_path, kind, max_length=12, max_steps=1)
    student = RationaleStudent.from_pretrained(folder)
    room = 12 if kind == "full_t5" else 12 - len(ids("<Explain> a + 0"))
    text = "1 + 1 = 2 so a b c d e f g".split()
    assert room < len(text)
    texts = [" ".join(text), " ".join([*text[:room], "5"]), " ".join(text[:room]), " ".join(text[: room - 2])]
    scores = student.score([QUESTIONS[0]] * 4, texts)
    assert scores[:2] == pytest.approx([scores[2]] * 2, abs=1e-6)
    assert scores[3] != pytest.approx(scores[2], abs=1e-6)  # a token less is read
    with pytest.raises(DataError, match=r"Question 1 .* max_length=12"):
        student.score([QUESTIONS[0], "a + " * 6 + "1"], ["a", "a"])


def test_sampled_rationales(student):
    """A sample that depended on its neighbours or on the random state could not be made again."""
    everything = student.explain(QUESTIONS, num_samples=3, temperature=2.0, seed=5, **NEW)
    assert all(len(explanation.samples) == 3 for explanation in everything)
    texts = [sample.text for explanation in everything for sample in explanation.samples]
    assert len(set(texts)) > 6
    assert len({sample.seed for explanation in everything for sample in explanation.samples}) == 12
    assert student.explain(QUESTIONS[2:3], num_samples=3, temperature=2.0, seed=5, batch_size=1, **NEW)[0].samples[
        1
    ].text == (everything[2].samples[1].text)
    other = student.explain(QUESTIONS, num_samples=3, temperature=2.0, seed=6, **NEW)
    assert [sample.text for explanation in other for sample in explanation.samples] != texts
    for explanation in everything:
        assert explanation.rationale == explanation.samples[explanation.best].text
        assert all(sample.temperature == 2.0 for sample in explanation.samples)


def test_a_sample_is_what_its_seed_draws(student):
    """The seed that a record names must be the one to draw it again by."""
    (explanation,) = student.explain(QUESTIONS[:1], num_samples=2, temperature=1.5, **NEW)
    prompts = [prompt_ids(QUESTIONS[0], "<Explain>", student.tokenizer, student.student_format)] * 2
    again = generate_completions(
        student.model,
        student.tokenizer,
        prompts,
        8,
        progress=False,
        temperature=1.5,
        seeds=[sample.seed for sample in explanation.samples],
    )
    assert [sample.text for sample in explanation.samples] == [completion.text for completion in again]


def test_default_temperatures(student):
    """Several greedy texts would be one text several times."""
    assert {s.temperature for e in student.explain(QUESTIONS[:1], num_samples=2, **NEW) for s in e.samples} == {0.7}
    assert student.explain(QUESTIONS[:1], temperature=0.3, **NEW)[0].samples[0].temperature == 0.3


def test_leaves_everything_as_it_was(saved_student):
    """A student that is asked in the middle of training must not change the run."""
    student = RationaleStudent.from_pretrained(saved_student("adapter"), task_kind="number")
    student.model.train()
    student.model.base_model.model.model.layers[0].eval()
    modes = [module.training for module in student.model.modules()]
    before = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].copy(),
        student.tokenizer.padding_side,
    )
    weights = {name: tensor.clone() for name, tensor in student.model.state_dict().items()}
    student.predict(QUESTIONS)
    student.explain(QUESTIONS, num_samples=2, **NEW)
    student.score(QUESTIONS, ["a is b"] * 4)
    assert [module.training for module in student.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    assert student.tokenizer.padding_side == before[3]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in student.model.state_dict().items())
    assert all(parameter.grad is None for parameter in student.model.parameters())


@pytest.mark.parametrize("kind", ["full", "full_t5"])
def test_batches_do_not_matter(saved_student, kind):
    """Answers are given back in the order of the questions, whatever length they were sorted by."""
    student = RationaleStudent.from_pretrained(saved_student(kind))
    one, many = student.explain(QUESTIONS, batch_size=1, **NEW), student.explain(QUESTIONS, batch_size=32, **NEW)
    assert [e.rationale for e in one] == [e.rationale for e in many]
    assert [e.quality for e in one] == pytest.approx([e.quality for e in many], abs=1e-5)
    assert [a.text for a in student.predict(QUESTIONS[::-1], batch_size=2)] == [
        a.text for a in student.predict(QUESTIONS)[::-1]
    ]


def test_choices():
    """An option named by its words is its letter."""
    student = RationaleStudent(tiny_gpt2(), word_tokenizer(), task_kind="choice")
    student._generate = lambda prompts, *args: [_completion("a hat") for _ in prompts]
    options = [["a hat", "a bank"], {"A": "a bank", "B": "a hat"}]
    assert [answer.label for answer in student.predict(["Which?"] * 2, options)] == ["A", "B"]
    assert [e.answer for e in student.explain(["Which?"] * 2, choices=options)] == ["A", "B"]
    with pytest.raises(DataError, match="2 questions and 1 sets of choices"):
        student.predict(["Which?"] * 2, options[:1])


def _completion(text):
    from qcrd_trl.sampling.generate import Completion

    return Completion(text, 2, True, (5, 1))


def test_a_task_kind_of_ones_own(saved_student):
    """What a function gives may be any value: it is shown as text."""
    student = RationaleStudent.from_pretrained(
        saved_student("full"), task_kind=lambda text: ("last", text.split()[-1])
    )
    assert student.predict(QUESTIONS[:1])[0].label == "('last', '1')"
    assert student.explain(QUESTIONS[:1], **NEW)[0].answer is not None


def test_nothing_to_ask(student):
    """An empty batch at the end of a stream is no error."""
    assert student.predict([]) == student.explain([]) == student.score([], []) == []


def test_a_student_without_a_discriminator(saved_student, tmp_path):
    """Its rationales have no quality, and to ask for one says why."""
    folder = save_student(tmp_path, "full", preset="dss_all", max_steps=1, beta=0.0)
    assert not (folder / "discriminator").exists()
    student = RationaleStudent.from_pretrained(folder)
    assert student.explain(QUESTIONS[:1], **NEW)[0].quality is None
    with pytest.raises(ModelError, match="no discriminator"):
        student.score(QUESTIONS[:1], ["a"])
    assert RationaleStudent.from_pretrained(saved_student("full"), with_discriminator=False).discriminator is None


def test_a_label_only_student(tmp_path):
    """It has learned no rationale: what it writes under the other prefix is noise that looks like an explanation."""
    folder = save_student(tmp_path, "full", preset="label_only", max_steps=1)
    student = RationaleStudent.from_pretrained(folder)
    assert StudentFormat.from_pretrained(folder).explains is False
    assert len(student.predict(QUESTIONS)) == 4
    with pytest.raises(ModelError, match="taught labels alone"):
        student.explain(QUESTIONS)


def test_a_student_without_labels(tmp_path):
    """The other way round."""
    folder = save_student(tmp_path, "full", alpha_1=0.0, max_steps=1)
    student = RationaleStudent.from_pretrained(folder)
    assert len(student.explain(QUESTIONS, **NEW)) == 4
    with pytest.raises(ModelError, match="taught rationales alone"):
        student.predict(QUESTIONS)


def test_a_folder_without_a_format(saved_student, tmp_path, caplog):
    """The default prefixes may be the wrong ones: that has to be said."""
    import shutil

    folder = shutil.copytree(saved_student("full"), tmp_path / "copy")
    (folder / "qcrd_format.json").unlink()
    student = RationaleStudent.from_pretrained(folder)
    assert "does not say in which form" in caplog.text
    assert student.student_format == StudentFormat()
    assert student.predict(QUESTIONS)[0].text == "1"


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("a + 1", "`questions` must be a list, got a single text"),
        (CHATS[0], "got a single conversation"),
        (["a", "  "], r"Question 1 \(counted from 0\) cannot be asked: it is empty"),
        (["a", None], "Question 1 .* it is null"),
        (["a", 3], "Question 1 .* expected a text or a list of messages, got int 3"),
        (["a \ud83d"], "Question 0 .* lone surrogate"),
        ([[{"role": "user", "content": None}]], "a message must have a 'role' and a text as 'content'"),
        ([[{"role": "assistant", "content": "a"}]], "no message of role 'user'"),
        (["a " * 300], r"Question 0 .* has 301 tokens .* knows 256 positions"),
    ],
    ids=lambda value: "" if isinstance(value, str) else None,
)
def test_what_cannot_be_asked_is_named(student, questions, message):
    """A text given for a list would be asked letter by letter."""
    for ask in (student.predict, student.explain, lambda q: student.score(q, ["a"] * len(q))):
        with pytest.raises(DataError, match=message):
            ask(questions)


def test_conversations_need_a_chat_template(student):
    """Messages glued together in some form would be another prompt than any student was taught."""
    with pytest.raises(ModelError, match="no chat template"):
        student.predict(CHATS)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.explain(QUESTIONS, num_samples=0), ConfigError, "`num_samples` must be at least 1, got 0"),
        (lambda s: s.explain(QUESTIONS, temperature=0.0), ConfigError, "greater than 0, got 0.0"),
        (lambda s: s.explain(QUESTIONS, max_new_tokens=0), ConfigError, "`max_new_tokens` must be at least 1"),
        (lambda s: s.predict(QUESTIONS, batch_size=0), ConfigError, "`batch_size` must be at least 1"),
        (lambda s: s.score(QUESTIONS, ["a"]), DataError, "4 questions and 1 rationales"),
        (lambda s: s.score(["a"], [None]), DataError, "Rationale 0 .* got NoneType"),
        (lambda s: s.score(["a"], ["\ud83d"]), DataError, "Rationale 0 .* UTF-8"),
        (lambda s: s.score(["a"], "b"), DataError, "`rationales` must be a list"),
    ],
)
def test_arguments_that_cannot_work(student, call, error, message):
    """Said before anything is generated."""
    with pytest.raises(error, match=message):
        call(student)


def test_a_rationale_without_text_has_no_quality(student):
    """Training leaves such rationales out, so the discriminator knows nothing of them."""
    scores = student.score(QUESTIONS[:2], ["  ", "a is b"])
    assert scores[0] is None
    assert 0 < scores[1] < 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"student_format": StudentFormat(is_encoder_decoder=True)},
            "the student is an encoder-decoder, but GPT2LMHead",
        ),
        ({"discriminator": RationaleDiscriminator(4)}, "width 4, the student's have 16"),
    ],
)
def test_parts_that_do_not_belong_together(parts, message):
    """Each would run, and give noise."""
    with pytest.raises(ModelError, match=message):
        RationaleStudent(tiny_gpt2(), word_tokenizer(), **parts)
    with pytest.raises(ConfigError, match="essay"):
        RationaleStudent(tiny_gpt2(), word_tokenizer(), task_kind="essay")


def test_the_parts_of_a_trainer(tmp_path):
    """A callback asks the student that is being trained, without a folder."""
    trainer = trainer_of_kind(tmp_path, "adapter_chat", max_steps=1)
    trainer.train()
    student = RationaleStudent(
        trainer.model, tokenizer_of("adapter_chat"), trainer.student_format, trainer.discriminator
    )
    assert len(student.explain(CHATS, **NEW)) == 4
    assert trainer.model.training
    assert RationaleStudent(tiny_llama(), word_tokenizer()).predict(QUESTIONS[:1])[0].label is None
    assert RationaleStudent(tiny_t5(), tokenizer_of("full_t5")).student_format.is_encoder_decoder
