"""Generated negatives in a batch, row by row, and the discriminator's scores back to them."""

import pytest
import torch
from datasets import Dataset

from qcrd_trl import DataCollatorForQCRD
from qcrd_trl.data.store import NegativeStore
from qcrd_trl.records import Negative
from qcrd_trl.trainer.negatives import GeneratedNegatives, add_negatives
from qcrd_trl.trainer.objective import RationaleRows


N = -100
FEATURES = [
    {
        "question_index": 7,
        "predict_prompt_ids": [5, 6],
        "label_ids": [7, 2],
        "explain_prompt_ids": [4, 6],
        "positive_ids": [[8, 2]],
        "negative_ids": [[3, 2]],
    },
    {
        "question_index": 3,
        "predict_prompt_ids": [5],
        "label_ids": [7, 2],
        "explain_prompt_ids": [4],
        "positive_ids": [],
        "negative_ids": [[3, 3, 2]],
    },
]
LABEL_TASK = ("question_index", "input_ids", "attention_mask", "labels")
RATIONALES = ("input_ids", "attention_mask", "labels", "question", "is_positive", "generated")


def collator(is_encoder_decoder=False, **kwargs):
    return DataCollatorForQCRD(0, is_encoder_decoder, **kwargs)


def added(generated, keeps_own, is_encoder_decoder=False, features=FEATURES, **kwargs):
    """The rationales of the batch with generated negatives in it, as lists; the label task must be as before."""
    pads = collator(is_encoder_decoder, **kwargs)
    batch = pads(features)
    before = {name: tensor.clone() for name, tensor in batch.items()}
    out = add_negatives(batch, generated, keeps_own, pads)
    assert all(torch.equal(batch[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(out[name], before[name]) for name in LABEL_TASK)
    assert set(out) == set(before) | {"rationale_generated"}
    assert {out[f"rationale_{name}"].dtype for name in RATIONALES if name != "is_positive"} == {torch.long}
    assert out["rationale_is_positive"].dtype == torch.bool
    return tuple(out[f"rationale_{name}"].tolist() for name in RATIONALES)


def test_decoder_only_in_place_of_the_datasets_own():
    """A negative beside the wrong question, or a label over its prompt, is trained at a plausible loss."""
    inputs, mask, labels, question, positive, generated = added(
        [(1, [4], [9, 9, 9, 9, 2]), (0, [4, 6], [9, 2])], False
    )
    assert inputs == [[4, 6, 8, 2, 0, 0], [4, 9, 9, 9, 9, 2], [4, 6, 9, 2, 0, 0]]
    assert mask == [[1, 1, 1, 1, 0, 0], [1] * 6, [1, 1, 1, 1, 0, 0]]
    assert labels == [[N, N, 8, 2, N, N], [N, 9, 9, 9, 9, 2], [N, N, 9, 2, N, N]]
    assert question == [0, 1, 0]
    assert positive == [True, False, False]
    assert generated == [-1, 0, 1]


def test_decoder_only_beside_the_datasets_own():
    """`both` that keeps only one of them would be `self` or `minority` under another name."""
    inputs, mask, labels, question, positive, generated = added([(0, [4, 6], [9])], True)
    assert inputs == [[4, 6, 8, 2], [4, 6, 3, 2], [4, 3, 3, 2], [4, 6, 9, 0]]
    assert mask == [[1] * 4, [1] * 4, [1] * 4, [1, 1, 1, 0]]
    assert labels == [[N, N, 8, 2], [N, N, 3, 2], [N, 3, 3, 2], [N, N, 9, N]]
    assert question == [0, 0, 1, 0]
    assert positive == [True, False, False, False]
    assert generated == [-1, -1, -1, 0]


@pytest.mark.parametrize("keeps_own", [False, True])
def test_encoder_decoder(keeps_own):
    """Inputs and labels have widths of their own: padded to one width, the decoder would be scored on padding."""
    new = [(0, [4, 6, 6], [9]), (1, [4], [9, 9, 9, 2])]
    inputs, mask, labels, question, positive, generated = added(new, keeps_own, is_encoder_decoder=True)
    own = [0, 1, 2] if keeps_own else [0]
    rows = [*own, 3, 4]
    assert inputs == [[[4, 6, 0], [4, 6, 0], [4, 0, 0], [4, 6, 6], [4, 0, 0]][row] for row in rows]
    assert mask == [[[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0]][row] for row in rows]
    expected = [[8, 2, N, N], [3, 2, N, N], [3, 3, 2, N], [9, N, N, N], [9, 9, 9, 2]]
    assert labels == [expected[row] for row in rows]
    assert question == [[0, 0, 1, 0, 1][row] for row in rows]
    assert positive == [row == 0 for row in rows]
    assert generated == [[-1, -1, -1, 0, 1][row] for row in rows]


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_none_generated(is_encoder_decoder):
    """Without negatives of its own a question has none: the dataset's must not stay in by mistake."""
    *_, question, positive, generated = added([], False, is_encoder_decoder)
    assert (question, positive, generated) == ([0], [True], [-1])
    *_, question, positive, generated = added([], True, is_encoder_decoder)
    assert (question, positive, generated) == ([0, 0, 1], [True, False, False], [-1] * 3)


@pytest.mark.parametrize("is_encoder_decoder", [False, True])
def test_a_batch_without_any_rationale(is_encoder_decoder):
    """Such a batch has tables of one column and no row: the first rows that come in must not be cut to it."""
    features = [{**feature, "positive_ids": [], "negative_ids": []} for feature in FEATURES]
    inputs, mask, labels, *rest = added([(1, [4], [9, 2])], False, is_encoder_decoder, features)
    assert (inputs, mask, labels) == (
        ([[4]], [[1]], [[9, 2]]) if is_encoder_decoder else ([[4, 9, 2]], [[1] * 3], [[N, 9, 2]])
    )
    assert rest == [[1], [False], [0]]
    assert added([], False, is_encoder_decoder, features)[3:] == ([], [], [])


def test_widths_stay_multiples():
    """Kernels that want such widths are slower or fail on the batches that have generated negatives."""
    inputs, _, labels, *_ = added([(0, [4, 6], [9] * 7)], False, pad_to_multiple_of=8)
    assert [len(row) for row in inputs + labels] == [16] * 4
    assert inputs[1] == [4, 6, *[9] * 7, *[0] * 7]


def negative(*token_ids):
    return Negative("n", token_ids, 0, 0, 1, 1.5, True)


def in_store():
    """A store of both questions, and the dataset, whose rows have other numbers than their questions."""
    store = NegativeStore()
    store.replace(0, {"q3": [negative(9), negative(9, 9)], "q7": [negative(8, 8)], "gone": [negative(1)]})
    return store, Dataset.from_list([{**feature, "id": f"q{feature['question_index']}"} for feature in FEATURES])


def test_each_question_gets_its_own():
    """Keys are those of the dataset, whatever row it has become: else a question learns against another's negatives."""
    store, dataset = in_store()
    negatives = GeneratedNegatives(store, dataset, collator(), "self")
    batch = negatives.in_batch(collator()(FEATURES))
    assert batch["rationale_input_ids"].tolist() == [[4, 6, 8, 2], [4, 6, 8, 8], [4, 9, 0, 0], [4, 9, 9, 0]]
    assert batch["rationale_question"].tolist() == [0, 0, 1, 1]
    assert batch["rationale_generated"].tolist() == [-1, 0, 1, 2]
    store.replace(1, {"q3": [negative(2)]})  # seen by the very next batch
    batch = negatives.in_batch(collator()(FEATURES[::-1]))
    assert batch["rationale_input_ids"].tolist() == [[4, 6, 8, 2], [4, 2, 0, 0]]
    assert batch["rationale_question"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("source", "trained", "held_out"),
    [
        ("self", [-1, 0, 1, 2], 3),
        ("fixed", [-1, 0, 1, 2], 3),
        ("both", [-1, -1, -1, 0, 1, 2], 3),
        ("minority", [-1, -1, -1], 3),
        ("none", [-1], 1),
    ],
)
def test_negatives_by_source(source, trained, held_out):
    """A comparison of sources says nothing if one of them trains on the negatives of another."""
    store, dataset = in_store()
    if source in ("minority", "none"):  # nothing generates
        store.clear()
    negatives = GeneratedNegatives(store, dataset, collator(), source)
    batch = collator()(FEATURES)
    assert negatives.in_batch(batch)["rationale_generated"].tolist() == trained
    assert negatives.in_batch(batch)["rationale_is_positive"].tolist() == [True] + [False] * (len(trained) - 1)
    # Held-out questions have the numbers of other rows: the store knows nothing of them.
    kept = negatives.in_batch(batch, is_held_out=True)
    assert kept["rationale_input_ids"].tolist() == [[4, 6, 8, 2], [4, 6, 3, 2], [4, 3, 3, 2]][:held_out]


def test_scores_go_to_the_negatives_that_got_them():
    """A reader of the store would see good rationales with low scores, and look for the fault in the discriminator."""
    store, dataset = in_store()
    negatives = GeneratedNegatives(store, dataset, collator(), "both")

    def score(features, keep, scores):
        batch = negatives.in_batch(collator()(features))
        picked = {name: batch[f"rationale_{name}"][torch.tensor(keep)] for name in RATIONALES}
        rows = RationaleRows(**picked, num_questions=len(features))
        negatives.note_scores(rows, torch.tensor(scores))

    # Rows: positive and negative of q7, negative of q3, then generated: q7's, q3's first, q3's second (left out).
    score(FEATURES, [0, 2, 4, 3], [0.5, 0.25, 0.125, 0.75])
    assert negatives.take_scores() == {("q3", 0): 0.125, ("q7", 0): 0.75}
    assert negatives.take_scores() == {}
    score(FEATURES[1:], [2, 1], [0.5, 0.25])  # negative of q3, then both of its generated
    negatives.in_batch(collator()(FEATURES), is_held_out=True)  # an evaluation comes between
    score(FEATURES[1:], [1], [0.75])
    assert negatives.take_scores() == {("q3", 1): 0.5, ("q3", 0): 0.75}  # the latest
    store.clear()
    score(FEATURES, [0], [0.5])
    assert negatives.take_scores() == {}
