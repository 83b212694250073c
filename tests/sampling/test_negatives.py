"""From samples to negatives: what is left out, what is marked, and that the counts say so."""

from fractions import Fraction

import pytest
import torch
from datasets import Dataset
from tiny import ids, tiny_llama, word_tokenizer

from qcrd_trl import StudentFormat
from qcrd_trl.data.dataset import prepare_dataset
from qcrd_trl.data.tokenize import RowTokenizer
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.sampling import negatives as module
from qcrd_trl.sampling.generate import Completion
from qcrd_trl.sampling.negatives import (
    NegativeQuestion,
    NegativeReport,
    NegativeSampler,
    NegativeSettings,
    negative_questions,
)


@pytest.fixture
def sampler_of(monkeypatch):
    """A sampler whose model completes prompts by given texts: `(text, tokens, is_finished)` each."""

    def build(texts, **settings):
        settings = NegativeSettings(**{"max_new_tokens": 8, "batch_size": 3, **settings})
        calls = []

        def generate(model, tokenizer, prompts, max_new_tokens, batch_size, share, **kwargs):
            calls.append({"prompts": prompts, "max_new_tokens": max_new_tokens, "batch_size": batch_size, **kwargs})
            assert len(prompts) == len(texts)
            order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
            batch = {i: place // batch_size for place, i in enumerate(order)}
            return [
                Completion(text, tokens, finished, tuple(range(tokens))) if batch[i] % share[1] == share[0] else None
                for i, (text, tokens, finished) in enumerate(texts)
            ]

        monkeypatch.setattr(module, "generate_completions", generate)
        sampler = NegativeSampler(None, None, settings)
        return sampler, calls

    return build


QUESTIONS = [
    NegativeQuestion("q0", [5, 6], frozenset({"a is 3"}), Fraction(3)),
    NegativeQuestion("q1", [5, 6, 7], frozenset({"x", "y z"}), Fraction(4)),
    NegativeQuestion("q2", [5], frozenset({"z"}), None),
]
# Two a question. The longest first, three at a time: places 2, 3, 0 and 1, 4, 5.
TEXTS = [
    ("a  is\n3", 4, True),  # the positive, up to white space; right
    ("so 5", 3, True),
    (" \n", 8, False),  # empty
    ("so 4", 2, True),  # right
    ("b c", 2, True),  # no label to be right by
    ("b  c", 8, False),  # that again
]
COMMON = {"sampled": 6, "equal_to_positive": 1, "empty": 1, "duplicate": 1, "cut": 2, "tokens": 27}


@pytest.mark.parametrize(
    ("correct", "places", "marks", "right"),
    [
        ("keep", [1, 3, 4], [None, None, None], 0),
        ("mark", [1, 3, 4], [False, True, None], 2),
        ("drop", [1, 4], [False, None], 2),
    ],
)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_what_becomes_a_negative(sampler_of, correct, places, marks, right, processes):
    """A positive that is pushed away as a negative undoes what the other half of the loss teaches."""
    sampler, calls = sampler_of(TEXTS, num_negatives=2, task_kind="number", correct=correct, temperature=0.8, seed=9)
    shares = [
        sampler.sample(QUESTIONS, iteration=7, snapshot=2, share=(process, processes), progress=False)
        for process in range(processes)
    ]
    negatives, report = sampler.collect(QUESTIONS, shares)
    owner = {1: "q0", 3: "q1", 4: "q2"}
    assert list(negatives) == [owner[place] for place in places]
    found = [negative for values in negatives.values() for negative in values]
    assert [n.text for n in found] == [TEXTS[place][0] for place in places]
    assert [n.reaches_label for n in found] == marks
    for place, negative in zip(places, found, strict=True):
        _, tokens, finished = TEXTS[place]
        assert (negative.token_ids, negative.is_finished) == (tuple(range(tokens)), finished)
        assert (negative.iteration, negative.snapshot, negative.temperature) == (7, 2, 0.8)
        assert negative.quality is None
        assert negative.seed == calls[0]["seeds"][place]
    counts = {name: value for name, value in vars(report).items() if name != "seconds"}
    assert counts == {**COMMON, "kept": len(places), "correct": right}
    assert report.seconds >= max(part.seconds for _, part in shares)
    assert len(set(calls[0]["seeds"])) == 6
    for call in calls:
        assert call["seeds"] == calls[0]["seeds"]
        assert call["prompts"] == [[5, 6], [5, 6], [5, 6, 7], [5, 6, 7], [5], [5]]
        assert (call["max_new_tokens"], call["batch_size"], call["temperature"]) == (8, 3, 0.8)


def test_duplicates_of_different_processes(sampler_of):
    """Each process sees its own samples only: one text twice would weigh double, with several processes alone."""
    questions = [NegativeQuestion("q0", [5], frozenset()), NegativeQuestion("q1", [6], frozenset())]
    texts = [
        ("b c", 2, True),
        ("b\tc", 2, True),
        (" b c", 2, True),
        ("b c", 2, True),
        ("d", 2, True),
        ("b c", 2, True),
    ]
    sampler, _ = sampler_of(texts, num_negatives=3, batch_size=1)
    shares = [sampler.sample(questions, 0, 0, (process, 2), False) for process in (0, 1)]
    for order in (shares, shares[::-1]):
        negatives, report = sampler.collect(questions, order)
        assert {key: [n.text for n in values] for key, values in negatives.items()} == {
            "q0": ["b c"],
            "q1": ["b c", "d"],  # the same text is no duplicate under another question
        }
        assert (report.kept, report.duplicate, report.sampled) == (3, 3, 6)
    assert negatives["q0"][0].seed == shares[0][0][0][1].seed  # the first by place, whoever sampled it


NLI = ("entailment", "The answer is entailment.", "The answer is contradiction.")
KINDS = {
    "number": ("number", "1,234", None, "so it is 1234.0", "so it is 1235"),
    "choice": ("choice", "bank", {"A": "tree", "B": "bank"}, "So the answer is (B).", "So the answer is (A)."),
    "nli": ("nli", NLI[0], None, *NLI[1:]),
    "text": ("text", "Paris", None, "The answer is Paris.", "The answer is London."),
    "function": (lambda text: text.split()[-1], "g", None, "a b g", "g b a"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("correct", ["mark", "drop"])
def test_right_answers_by_kind(sampler_of, kind, correct):
    """Read by another kind, no negative is right or all are, and the filter silently does nothing or everything."""
    task_kind, label, choices, right, wrong = KINDS[kind]
    rows = Dataset.from_list([{"prompt": "a", "label": label, "positive_rationales": ["b"], "options": choices}])
    [question] = questions_of(rows, task_kind=task_kind, choices_column="options" if choices else None)
    texts = [(right, 1, True), (wrong, 1, True), ("...", 1, True)]
    sampler, _ = sampler_of(texts, num_negatives=3, task_kind=task_kind, correct=correct)
    negatives, report = sampler.collect([question], [sampler.sample([question], 0, 0, progress=False)])
    kept = [(right, True)] * (correct == "mark") + [(wrong, False), ("...", False)]
    assert [(n.text, n.reaches_label) for n in negatives["0"]] == kept
    assert (report.correct, report.kept) == (1, len(kept))


def test_what_is_sampled_is_a_function_of_run_and_iteration():
    """A resumed run that samples other negatives than the run that was stopped is another run."""
    questions = [NegativeQuestion(f"q{i}", ids(f"a + {i} =" + " b" * (i % 3)), frozenset()) for i in range(5)]

    def sampled(iteration, processes=1, **settings):
        settings = NegativeSettings(**{"num_negatives": 2, "max_new_tokens": 6, "batch_size": 4, **settings})
        sampler = NegativeSampler(tiny_llama(), word_tokenizer(), settings)
        torch.manual_seed(iteration * 100 + processes)
        shares = [sampler.sample(questions, iteration, 0, (p, processes), False) for p in range(processes)]
        return sampler.collect(questions, shares)

    one, report = sampled(3)
    two, both = sampled(3, processes=2)
    assert one == two
    assert {**vars(report), "seconds": 0} == {**vars(both), "seconds": 0}
    assert (report.sampled, report.kept > 5) == (10, True)
    assert report.sampled == report.kept + report.empty + report.duplicate
    negative = one["q1"][0]
    assert word_tokenizer().decode(negative.token_ids, skip_special_tokens=True).strip() == negative.text
    assert (negative.is_finished, len(negative.token_ids) <= 6) == (negative.token_ids[-1] == 1, True)
    assert len({n.seed for values in one.values() for n in values}) == report.kept  # each has its own
    texts = {key: [n.text for n in values] for key, values in one.items()}
    for other in (sampled(4), sampled(3, seed=1), sampled(3, temperature=0.5)):
        assert {key: [n.text for n in values] for key, values in other[0].items()} != texts


def test_reports_of_several_processes_add_up():
    """Counts of one process alone would make the share kept too small by the number of processes."""
    one = NegativeReport(5, 1, 1, 1, 1, 2, 3, 40, 1.5)
    other = NegativeReport(3, 3, 0, 0, 0, 0, 1, 40, 2.0)
    total = one + other
    assert total == NegativeReport(8, 4, 1, 1, 1, 2, 4, 80, 2.0)  # at the same time: the longest counts
    logs = total.to_logs()
    assert logs == {
        **{"negatives/kept": 4 / 8, "negatives/equal_to_positive": 1 / 8, "negatives/empty": 1 / 8},
        **{"negatives/duplicate": 1 / 8, "negatives/correct": 2 / 8, "negatives/cut": 4 / 8},
        **{"negatives/sampled": 8, "negatives/mean_length": 80 / 8, "negatives/seconds": 2.0},
        **{"negatives/tokens_per_second": 80 / 2},
    }
    assert set(NegativeReport().to_logs("x/").values()) == {0}


def questions_of(rows, form=None, tokenizer=None, with_rows=True, **kwargs):
    tokenizer = tokenizer or word_tokenizer()
    tokenized = prepare_dataset(rows, RowTokenizer(tokenizer, form or StudentFormat()))
    return negative_questions(tokenized, rows if with_rows else None, tokenizer, **kwargs)


ROWS = [
    {"id": "x", "prompt": "a + 1", "label": "1", "positive_rationales": ["a  is 1", "b"], "options": ["c", "d"]},
    {"id": "y", "prompt": None, "label": "2", "positive_rationales": ["b"], "options": ["c", "d"]},  # dropped
    {"id": "z", "prompt": "b", "label": None, "positive_rationales": ["c"], "options": ["e", "f"]},
    {"id": "w", "prompt": "c", "label": "#### 4", "positive_rationales": [], "options": ["g", "a"]},
]


def test_the_questions_of_a_dataset():
    """A row that was left out shifts those behind it: each question would be judged by the label of another."""
    form = StudentFormat(explain_prefix="<Explain> ")
    first, second, third = questions_of(Dataset.from_list(ROWS), form, task_kind="number", choices_column="options")
    assert list(first.prompt_ids) == ids("<Explain> a + 1")
    assert (first.id, first.positives, first.label, first.prompt) == ("x", {"a is 1", "b"}, Fraction(1), "a + 1")
    assert first.choices == {"A": "c", "B": "d"}
    assert (second.id, second.positives, second.label, second.prompt) == ("z", {"c"}, None, "b")
    assert second.choices == {"A": "e", "B": "f"}
    assert (third.id, third.positives, third.label, third.prompt) == ("w", frozenset(), Fraction(4), "c")
    plain = questions_of(Dataset.from_list(ROWS), form)
    assert [(q.id, q.label, q.choices) for q in plain] == [("x", None, None), ("z", None, None), ("w", None, None)]
    bare = questions_of(Dataset.from_list(ROWS), form, with_rows=False, task_kind="number")
    assert [(q.id, q.label, q.prompt) for q in bare] == [("x", None, None), ("z", None, None), ("w", None, None)]


def test_a_question_without_an_id_is_its_number():
    """The number must be that of the row, so that an export can be joined with the dataset."""
    rows = Dataset.from_list([{key: value for key, value in row.items() if key != "id"} for row in ROWS])
    assert [question.id for question in questions_of(rows)] == ["0", "2", "3"]


@pytest.mark.parametrize("ids_of_rows", [("x", "y", "x"), (7, 8, 7)])
def test_ids_that_are_not_unique_name_both_rows(ids_of_rows):
    """Two questions would share their negatives, and each learn against those of the other."""
    rows = Dataset.from_list([{**ROWS[0], "id": key} for key in ids_of_rows])
    with pytest.raises(DataError, match=rf"Rows 0 and 2 have the same id '?{ids_of_rows[0]}'?, "):
        questions_of(rows)


def test_ids_that_are_numbers_are_written_as_texts():
    """The store writes texts and is read by the ids of the batch: a key that stays a number would be found nowhere."""
    rows = Dataset.from_list([{**ROWS[0], "id": key} for key in (7, 8)])
    tokenized = prepare_dataset(rows, RowTokenizer(word_tokenizer(), StudentFormat()))
    assert [question.id for question in negative_questions(tokenized, rows, word_tokenizer())] == ["7", "8"]
    assert list(tokenized["id"]) == ["7", "8"]


def test_labels_that_cannot_be_read_name_their_row():
    """Found at the first refresh, such a label costs the run; read as none, its right negatives are kept."""
    rows = Dataset.from_list([ROWS[0], {**ROWS[0], "id": "v", "label": "many"}])
    with pytest.raises(DataError, match=r"Row 1, column 'label': .*'many'"):
        questions_of(rows, task_kind="number")
    assert len(questions_of(rows)) == 2  # nobody asks
    with pytest.raises(DataError, match=r"no column 'label'.*'id', 'prompt', 'positive_rationales', 'options'"):
        questions_of(rows.remove_columns(["label"]), task_kind="number")
    with pytest.raises(DataError, match=r"no column 'choices'.*'options'"):
        questions_of(rows, task_kind="choice", choices_column="choices")
    bad = Dataset.from_list([{**ROWS[0], "label": "c"}, {**ROWS[0], "id": "v", "options": []}])
    with pytest.raises(DataError, match=r"'options', row 1"):
        questions_of(bad, task_kind="choice", choices_column="options")
    with pytest.raises(ConfigError, match="'numbr'"):
        questions_of(rows, task_kind="numbr")
