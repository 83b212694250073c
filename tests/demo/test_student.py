"""The tiny student and its tokenizer."""

from itertools import islice

import torch

from qcrd_trl import QCRDConfig
from qcrd_trl.demo.student import build_student, build_tokenizer
from qcrd_trl.demo.task import problems
from qcrd_trl.demo.teacher import sample_rationales


def test_tokenizer_round_trip():
    """An unknown word becomes `<unk>`: every such question would look the same to the student."""
    tokenizer = build_tokenizer()
    drawn = list(islice(problems(21), 300))
    texts = [problem.question for problem in drawn] + [t for texts in sample_rationales(drawn, 21) for t in texts]
    used = set()
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text.split())  # a token a word, none added
        assert tokenizer.decode(ids) == text
        used.update(ids)
    assert tokenizer.unk_token_id not in used
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    special = {tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    prefixes = set(tokenizer("<Predict> <Explain>")["input_ids"])
    assert used == set(range(len(tokenizer))) - special - prefixes  # no word that nothing uses


def test_prefixes_are_words(tmp_path):
    """Prefixes that both became `<unk>` would leave the student to guess which task it is asked for."""
    config = QCRDConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    tokenizer = build_tokenizer()
    ids = [tokenizer(prefix)["input_ids"] for prefix in (config.predict_prefix, config.explain_prefix)]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert [tokenizer.unk_token_id] not in ids


def test_student_depends_on_the_seed_alone():
    """The methods are compared from the same start, and building one must not shift another's random numbers."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, two, other = (build_student(tokenizer, seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    assert one["model.embed_tokens.weight"].shape[0] == len(tokenizer)
