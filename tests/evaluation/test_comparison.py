"""Differences of students on the same questions, and results that cannot be compared."""

import json
import logging

import pytest
from evaluated import FIRST, SECOND, saved

from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.evaluation import compare_results, read_results, write_results
from qcrd_trl.statistics import bootstrap_interval, mcnemar_p, paired_bootstrap, sign_flip_p, wilson_interval


def test_two_students(tmp_path):
    """A difference with the wrong sign, or one of accuracies on other questions, would look like any other."""
    one, other = saved(tmp_path / "1.json", FIRST, SECOND), saved(tmp_path / "2.json", SECOND, SECOND)
    comparison = compare_results(one, other)
    assert comparison.questions == 10
    label, answer, agreement = comparison.differences
    assert [d.metric for d in comparison.differences] == ["label_accuracy", "answer_accuracy", "agreement"]
    assert label.difference == pytest.approx(0.7 - 0.3)
    assert (label.only_first, label.only_run, label.test) == (1, 5, "McNemar, exact")
    assert label.p_value == mcnemar_p(1, 5) == pytest.approx(14 / 64)
    assert label.interval == paired_bootstrap(FIRST, SECOND)
    assert (answer.difference, answer.interval, answer.p_value) == (0, (0, 0), 1)
    # The first agrees with itself on the four questions in which FIRST and SECOND are right alike (two of them right, and
    # two wrong, where "wrong" is not "wrong too"): 2 of 10. The second agrees on its seven right ones.
    assert comparison.runs[0].accuracies == pytest.approx(
        {"label_accuracy": 0.3, "answer_accuracy": 0.7, "agreement": 0.2}
    )
    assert agreement.difference == pytest.approx(0.5)
    assert comparison.runs[0].intervals["label_accuracy"] == wilson_interval(3, 10)
    assert comparison.notes == []
    assert json.loads(json.dumps(comparison.to_dict()))["differences"][0]["only_run"] == 5


def test_questions_are_paired_by_id(tmp_path):
    """Paired by their order in the files, two equal students differ."""
    ids = [f"q{number}" for number in range(10)]
    one = saved(tmp_path / "1.json", FIRST, ids=ids)
    other = saved(tmp_path / "2.json", FIRST[::-1], ids=ids[::-1])
    (label,) = compare_results(one, other).differences
    assert (label.only_first, label.only_run, label.difference) == (0, 0, 0)


def test_several_against_the_first(tmp_path):
    """Each later student against the first, not against the one before."""
    paths = [saved(tmp_path / f"{n}.json", right) for n, right in enumerate((FIRST, SECOND, FIRST))]
    differences = compare_results(*paths).differences
    assert [(d.run, d.difference) for d in differences] == [(1, pytest.approx(0.4)), (2, 0)]


def test_seeds_are_pooled_by_question(tmp_path):
    """Seeds counted as further questions would halve the width of the interval for nothing."""
    seeds = [[1, 0, 0, 1], [0, 0, 0, 1]], [[1, 1, 0, 1], [1, 0, 1, 1]]
    files = [[saved(tmp_path / f"{n}-{m}.json", s) for m, s in enumerate(group)] for n, group in enumerate(seeds)]
    comparison = compare_results(*files)
    first, second = [0.5, 0, 0, 1], [1, 0.5, 0.5, 1]
    (label,) = comparison.differences
    assert label.difference == pytest.approx(1.5 / 4)
    assert label.interval == paired_bootstrap(first, second)
    # 0.5, 0.5 and 0.5 all have one sign in 2 of 8 ways.
    assert label.p_value == sign_flip_p(first, second) == pytest.approx(2 / 8)
    assert (label.test, label.only_first, label.only_run) == ("paired permutation", None, None)
    assert comparison.runs[0].accuracies["label_accuracy"] == pytest.approx(1.5 / 4)
    assert comparison.runs[0].intervals["label_accuracy"] == bootstrap_interval(first)
    assert comparison.runs[1].files == ["1-0.json", "1-1.json"]
    # Seeds need not be as many: [2/3, 0, 0, 1] of three against [1, 1, 0, 1] of one.
    third = saved(tmp_path / "0-2.json", seeds[0][0])
    alone = compare_results([*files[0], third], files[1][0]).differences[0]
    assert alone.difference == pytest.approx((1 / 3 + 1) / 4)
    assert alone.test == "paired permutation"


def test_a_metric_that_one_of_them_lacks_is_left_out(tmp_path):
    """A student trained on labels alone has no answer accuracy, and 0 in its place would be a win."""
    comparison = compare_results(saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND, SECOND))
    assert [d.metric for d in comparison.differences] == ["label_accuracy"]
    assert comparison.notes == [
        "answer_accuracy is left out: it was not measured in student (1.json).",
        "agreement is left out: it was not measured in student (1.json).",
    ]


def test_a_file_given_twice(tmp_path, caplog):
    """Compared with itself under another name, a student would seem to be confirmed."""
    one, other = saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND)
    with caplog.at_level(logging.WARNING):
        comparison = compare_results(one, [other, tmp_path / "." / "1.json"])
    assert comparison.notes == ["1.json is given more than once: it does not count as further evidence."]
    assert comparison.notes[0] in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"ids": [*(f"q{n}" for n in range(9)), "new"]},
            r"only .*1\.json has 1 question \('q9'\); only .*2\.json has",
        ),
        ({"ids": [f"r{n}" for n in range(10)]}, r"has 10 questions \('q0', 'q1', 'q2', 'q3', 'q4' and 5 more\)"),
        ({"label": "8"}, r"the labels differ of 10 questions .*'7' and '8' for 'q0'"),
    ],
    ids=["one", "all", "labels"],
)
def test_other_questions(tmp_path, change, message):
    """Accuracies on other questions differ for reasons of the questions."""
    one, other = saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND, **change)
    with pytest.raises(DataError, match=rf"are of different questions: .*{message}"):
        compare_results(one, other)


def test_other_rules(tmp_path):
    """An answer read as a text is another answer than one read as a number; no switch makes that comparable."""
    one, other = saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND, task_kind="text")
    for allow in (False, True):
        with pytest.raises(ConfigError, match=r"task_kind is 'number' for student .* and 'text' for student"):
            compare_results(one, other, allow_settings=allow)


@pytest.mark.parametrize("setting", [{"num_samples": 8}, {"temperature": 0.7}, {"max_new_tokens": 20}])
def test_other_settings(tmp_path, setting):
    """A student that was cut short, or asked eight times, differs by that; who knows it may compare all the same."""
    one, other = saved(tmp_path / "1.json", FIRST), saved(tmp_path / "2.json", SECOND, **setting)
    name = next(iter(setting))
    with pytest.raises(ConfigError, match=rf"not measured alike: {name} is .*Pass --allow_settings"):
        compare_results(one, other)
    comparison = compare_results(one, other, allow_settings=True)
    assert len(comparison.notes) == 1
    assert comparison.notes[0].startswith(f"{name} is ")
    with pytest.raises(ConfigError, match=rf"{name} is .*Seeds that are averaged"):
        compare_results([one, other], one, allow_settings=True)


def test_nothing_to_compare(tmp_path):
    """One file, no file, or no metric in common."""
    one = saved(tmp_path / "1.json", FIRST)
    with pytest.raises(ConfigError, match="needs two results"):
        compare_results(one)
    with pytest.raises(ConfigError, match="needs one file or more, got none"):
        compare_results(one, [])
    content = json.loads(one.read_text(encoding="utf-8"))
    content["label_accuracy"] = None
    write_results(tmp_path / "2.json", content)
    with pytest.raises(ConfigError, match=r"no metric in common. label_accuracy is left out: .*2\.json"):
        compare_results(one, tmp_path / "2.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There are no results at"),
        ("{", "is not JSON"),
        ("[]", "does not hold the results of"),
        ('{"format": 1, "comparison": true}', "does not hold the results of"),
        ('{"questions": []}', "has the format None, and 1 is expected"),
        ('{"format": 2, "questions": []}', "has the format 2, and 1 is expected"),
        ('{"format": 1, "questions": [{"id": "q"}]}', "is damaged .*label"),
        ('{"format": 1, "questions": [], "settings": {}, "question_set": ""}', "is damaged: its questions are not"),
        (
            '{"format": 1, "questions": [{"id": "q", "label": "7"}], "settings": {}, "question_set": "0"}',
            "is damaged: ",
        ),
    ],
    ids=["absent", "broken", "list", "comparison", "older", "newer", "incomplete", "empty", "changed"],
)
def test_files_that_are_no_results(tmp_path, text, message):
    """A message from the depths of a parser does not say which of five files is wrong."""
    if text is not None:
        (tmp_path / "1.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"1\.json.*{message}|{message}.*1\.json"):
        read_results(tmp_path / "1.json")


def test_no_path_of_this_machine_is_written(tmp_path):
    """Results are published; the folders of whoever made them are not."""
    folder = tmp_path / "secret" / "qcrd-1"
    folder.mkdir(parents=True)
    one = saved(tmp_path / "secret" / "1.json", FIRST, model=str(folder))
    other = saved(tmp_path / "secret" / "2.json", SECOND, model="org/name", num_samples=2)
    assert read_results(one).content["model"] == "qcrd-1"
    assert read_results(other).content["model"] == "org/name"
    write_results(tmp_path / "compared.json", compare_results(one, other, allow_settings=True).to_dict())
    for path in (one, other, tmp_path / "compared.json"):
        assert "secret" not in path.read_text(encoding="utf-8")


def test_results_are_whole_or_not_there(tmp_path):
    """What cannot be written leaves the earlier file as it was, and nothing beside it."""
    path = saved(tmp_path / "1.json", FIRST)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        write_results(path, {"format": 1, "questions": object()})
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in tmp_path.iterdir()] == ["1.json"]
