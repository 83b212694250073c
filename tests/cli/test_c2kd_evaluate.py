"""`qcrd c2kd evaluate`: results as JSON and as a table, and errors in one line."""

import errno
import json

import pytest
import torch
from recommended import small_data
from tiny import byte_tokenizer, tiny_llama
from transformers import BitsAndBytesConfig

from qcrd_trl.cli.main import main
from qcrd_trl.recommendation import build_recommender, generation, load_recommender
from qcrd_trl.recommendation.evaluation import evaluate_model
from qcrd_trl.recommendation.folder import save_data
from qcrd_trl.recommendation.prompt_form import RecommendationPrompt
from qcrd_trl.recommendation.prompts import sample_users
from qcrd_trl.statistics import bootstrap_interval


BACKBONE = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.4,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with data in `data` and a model with a head over its items in `model`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    save_data(small_data(), tmp_path / "data")
    build_recommender("item_head", BACKBONE, 12).save_pretrained(tmp_path / "model")
    return tmp_path


def evaluate(*flags):
    return main(["c2kd", "evaluate", *map(str, flags)])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_popularity(folder, capsys):
    """Training parts 0 1 2 3, 5 4 3, 1: in line 1, 3, 0, 2, 4, 5. Test targets 5, 1, 1: ranks 6, 1, 1."""
    assert evaluate("--dataset", "data", "--baseline", "popularity", "--output", "new/p.json") == 0
    content = read(folder / "new" / "p.json")
    assert content["ranks"] == [6, 1, 1]
    assert content["metrics"]["hr@5"] == pytest.approx(2 / 3)
    assert content["intervals"]["hr@5"] == list(bootstrap_interval([0, 1, 1]))
    assert (content["model"], content["method"], content["task_mode"]) == ("popularity", "popularity", None)
    assert content["settings"]["dataset"] == "data"
    assert len(content["settings"]["fingerprint"]) == 64
    out = capsys.readouterr().out
    for part in ("popularity: 3 users, test, among 12 items", "hr@5", "0.666667", "Written to new/p.json"):
        assert part in out, part


def test_the_flags_reach_the_evaluation(folder, capsys):
    """A mask, a split or a length that is dropped on the way gives numbers of the same look."""
    flags = ["--dataset", "data", "--model_name_or_path", "model", "--output", "m.json", "--device", "cpu"]
    model = build_recommender("item_head", str(folder / "model"), 12).eval()
    for more, settings in (
        (["--split", "validation", "--mask_history"], {"split": "validation", "mask_history": True}),
        (["--candidates", "--ks", "1", "2"], {"candidates": True, "ks": (1, 2)}),
        (["--max_history", "1", "--batch_size", "2", "--item_chunk", "3"], {"max_history": 1}),
        (["--max_users", "2", "--user_seed", "1"], {"users": sample_users(small_data(), 2, 1)}),
    ):
        assert evaluate(*flags, *more, "--method", "none") == 0
        content, expected = read(folder / "m.json"), evaluate_model(model, small_data(), progress=False, **settings)
        assert content["ranks"] == expected.ranks.tolist(), more
        assert content["metrics"] == expected.metrics
        for name in ("user_set", "item_set", "split", "history_masked", "ranking", "task_mode"):
            assert content[name] == getattr(expected, name), name
        assert (content["model"], content["method"]) == ("model", "none")
    assert "history masked" in capsys.readouterr().out
    assert content["settings"]["max_users"] == 2


def test_four_bits_and_half_precision(folder):
    """A student that was trained on a quantized base is another one without it: the flag must reach the model."""
    pytest.importorskip("bitsandbytes")
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    flags = ["--dataset", "data", "--model_name_or_path", "model", "--output", "q.json", "--device", "cpu"]
    for more, loading, linear in (
        (["--load_in_4bit"], {"quantization_config": quantized, "dtype": "float32"}, "Linear4bit"),
        (["--dtype", "bfloat16"], {"dtype": "bfloat16"}, "Linear"),
    ):
        model = load_recommender(folder / "model", **loading)
        assert type(model.backbone.layers[0].mlp.up_proj).__name__ == linear
        expected = evaluate_model(model, small_data(), progress=False)
        assert evaluate(*flags, *more) == 0
        assert read(folder / "q.json")["ranks"] == expected.ranks.tolist()


def test_generative_models_are_asked_as_they_were_taught(folder, monkeypatch, capsys):
    """Another prompt than the student was trained on makes a good student bad."""
    tokenizer = byte_tokenizer()
    tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=1024).save_pretrained(folder / "writer")
    tokenizer.save_pretrained(folder / "writer")
    RecommendationPrompt(prompt="seen {history} of {candidates} :", max_history=1).save_pretrained(folder / "writer")
    asked = []

    def write(model, tokenizer, rows, batch_size, max_new_tokens, *settings):
        asked.append((rows["prompt"], batch_size, max_new_tokens))
        return ["title 5", "title 11", "nothing"]

    monkeypatch.setattr(generation, "recommend_titles", write)
    flags = ["--dataset", "data", "--model_name_or_path", "writer", "--output", "g.json", "--device", "cpu"]
    assert evaluate(*flags, "--max_new_tokens", 9, "--batch_size", 2) == 0
    assert asked[0][0][0].startswith("seen title 4 of title 11\n")
    assert asked[0][1:] == (2, 9)
    content = read(folder / "g.json")
    assert content["metrics"] == pytest.approx({"hr@1": 1 / 3, "valid_ratio": 2 / 3})
    assert content["settings"]["prompt_form"]["max_history"] == 1
    assert content["task_mode"] == "generative"
    (folder / "own.txt").write_text("{history}?")
    assert evaluate(*flags, "--prompt_file", "own.txt") == 0
    assert asked[1][0][0] == "title 0\ntitle 1\ntitle 2\ntitle 3\ntitle 4?"


def test_comparing(folder, capsys, monkeypatch):
    """The table is what is read: of which sign a difference is, and whether it is one at all."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        build_recommender("item_head", BACKBONE, 12, seed=seed).save_pretrained(folder / f"m{seed}")
        flags = ["--dataset", "data", "--device", "cpu", "--model_name_or_path", f"m{seed}"]
        assert evaluate(*flags, "--output", f"{seed}.json") == 0
    assert evaluate("--dataset", "data", "--baseline", "popularity", "--output", "p.json") == 0
    metrics = ["│ hr@1 ", "│ ndcg@20 ", "│ mrr "]
    capsys.readouterr()
    for width in ("80", "200"):  # names and figures are whole in a narrow terminal too
        monkeypatch.setenv("COLUMNS", width)
        assert evaluate("--compare", "p.json", "0.json,1.json", "--output", "c.json") == 0
        out = capsys.readouterr().out
        for part in ("run 1: p.json\n", "run 2: 0.json and 1 more\n", " 3 users ", "Differences from run 1"):
            assert part in out, part
        first, second = out.split("Differences from run 1")
        assert all(sum(name in line for line in first.splitlines()) == 2 for name in metrics)
        assert all(sum(name in line for line in second.splitlines()) == 1 for name in metrics)
        assert max(len(line) for line in out.splitlines() if line[:1] == "│") <= 80
        assert "paired permutation test" in second
    content = read(folder / "c.json")
    metrics = [read(folder / f"{name}.json")["metrics"]["mrr"] for name in ("p", "0", "1")]
    found = next(one for one in content["differences"] if one["metric"] == "mrr")
    assert found["difference"] == pytest.approx((metrics[1] + metrics[2]) / 2 - metrics[0])
    assert content["runs"][1]["files"] == ["0.json", "1.json"]
    assert evaluate("--compare", "0.json,1.json") == 0
    out = capsys.readouterr().out
    assert "sd of seeds" in out
    assert "difference" not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--baseline", "popularity", "--output", "o.json"], "--dataset is missing"),
        (["--dataset", "data", "--baseline", "popularity"], "--output is missing"),
        (["--dataset", "data", "--output", "o.json"], "Give --model_name_or_path or --baseline popularity"),
        (
            ["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--model_name_or_path", "model"],
            "one of the two",
        ),
        (["--dataset", "data", "--output", "o.json", "--baseline", "random"], "Unknown baseline 'random'"),
        (
            ["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--max_history", "3"],
            "--max_history is of models",
        ),
        (["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--split", "train"], "got 'train'"),
        (["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--ks", "0"], "ks must be positive"),
        (
            ["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--max_users", "0"],
            "at least 1, got 0",
        ),
        (
            ["--dataset", "data", "--output", "o.json", "--baseline", "popularity", "--mask_history", "--candidates"],
            "leave --mask_history out, or --candidates",
        ),
        (["--dataset", "model", "--output", "o.json", "--baseline", "popularity"], "holds no recommendation data"),
        (["--dataset", "data", "--output", ".", "--baseline", "popularity"], "is a folder: give a file"),
        (["--dataset", "data", "--output", "o.json", "--model_name_or_path", "./none"], "none"),
        (
            ["--dataset", "data", "--output", "o.json", "--model_name_or_path", "model", "--max_new_tokens", "4"],
            "are of generative mode",
        ),
        (
            ["--dataset", "data", "--output", "o.json", "--model_name_or_path", "model", "--task_mode", "x"],
            "must be item_head or generative, got 'x'",
        ),
        (["--compare", "o.json", "p.json"], "There are no results at o.json"),
        (["--compare", "o.json"], "needs two results or more, got one"),
        (["--compare", "o.json", "p.json", "--dataset", "data"], "leave --dataset out, or --compare"),
    ],
)
def test_what_cannot_be_done_ends_in_one_line(folder, capsys, flags, message):
    """And leaves no file that somebody takes for a result."""
    assert evaluate(*flags) == 2
    lines = [line for line in capsys.readouterr().err.strip().splitlines() if "Loading weights" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("qcrd c2kd: error: ")
    assert message in lines[0]
    assert not (folder / "o.json").exists()


def test_a_full_disk_does_not_cost_what_was_measured(folder, monkeypatch, capsys):
    """An evaluation of hours that ends in one line about the disk would have to be made again."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("qcrd_trl.recommendation.results.write_results", full)
    assert evaluate("--dataset", "data", "--baseline", "popularity", "--output", "p.json") == 2
    told = capsys.readouterr()
    assert "0.666667" in told.out
    assert "Written" not in told.out
    assert "No space left on device" in told.err
