"""Each benchmark script runs, and writes the figures that docs/benchmarks.md names."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest
from datasets import Dataset
from tiny import byte_tokenizer, tiny_llama


FOLDER = Path(__file__).resolve().parents[2] / "examples" / "benchmarks"
MACHINE = {"device", "machine", "cores", "threads", "memory_gib", "python", "torch", "transformers", "trl"}


@pytest.fixture(scope="module")
def student(tmp_path_factory) -> Path:
    """A tiny student with a tokenizer that writes every text."""
    folder = tmp_path_factory.mktemp("student")
    tokenizer = byte_tokenizer()
    tiny_llama(vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def selected(tmp_path_factory) -> Path:
    """Questions with two positives, every other one with a negative."""
    rows = [
        {
            "prompt": f"What is {i} + 1?",
            "label": str(i + 1),
            "positive_rationales": [f"{i} + 1 is {i + 1}.", f"One more than {i} is {i + 1}."],
            "negative_rationales": [f"{i} + 1 is {i}."] * (i % 2),
        }
        for i in range(8)
    ]
    file = tmp_path_factory.mktemp("selected") / "train.parquet"
    Dataset.from_list(rows).to_parquet(file)
    return file


@pytest.fixture
def run(monkeypatch, student, tmp_path, capsys):
    """Runs a script by its name as `--quick`, and gives what it wrote and what it printed."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name: str, *options) -> tuple[dict, str]:
        for module in ("measuring", name):
            monkeypatch.delitem(sys.modules, module, raising=False)
        file = tmp_path / "figures.json"
        options = ["--model", student, "--quick", "--json", file, *options]
        importlib.import_module(name).main([str(option) for option in options])
        figures = json.loads(file.read_text(encoding="utf-8"))
        assert figures["machine"].keys() >= MACHINE
        assert figures["settings"]["quick"] is True
        return figures, capsys.readouterr().out

    return run


def table_of(printed: str) -> list[list[str]]:
    """Cells of all tables printed, without their headers."""
    lines = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|")]
    assert all(len(line) == len(lines[0]) for line in lines), "the rows of the table differ in width"
    rules = [place for place, line in enumerate(lines) if set(line) == {"---"}]
    assert rules, "no table was printed"
    return [line for place, line in enumerate(lines) if place not in rules and place + 1 not in rules]


def positive(*values: float) -> bool:
    """Whether all are numbers above 0: a figure that was never taken would be 0, None or NaN."""
    return all(value is not None and math.isfinite(value) and value > 0 for value in values)


def test_counted_ratios_by_hand(monkeypatch):
    """The column that measured times are judged by would let any engine pass if it counted wrongly."""
    monkeypatch.syspath_prepend(str(FOLDER))
    engine = importlib.import_module("engine")
    token = {"prompt": 1, "rationale": 1, "both": 0}
    counts = engine.counted(6, 60, 60, 2, token)  # LoRA: 2 * 6 * 120, 2 * (60 + 360), 420 + 2 * 180
    assert [counts[name] for name in ("plain", "+ shared prompt", "+ selection", "auto")] == [1440, 840, 780, 780]
    counts = engine.counted(6, 300, 60, 2, token)  # 2 * 6 * 360, 2 * 660, 660 + 2 * 420: sharing alone is cheaper
    assert [counts[name] for name in ("plain", "+ shared prompt", "+ selection", "auto")] == [4320, 1320, 1500, 1320]
    # A decoder that attends to 10 tokens of prompt for each of 3 rationales: 3 * (2 * 10 + 4 * 5 + 1 * 10) plain.
    counts = engine.counted(3, 10, 5, 1, {"prompt": 2, "rationale": 4, "both": 1})
    assert [counts["plain"], counts["+ shared prompt"]] == [150, 20 + 3 * 30]


@pytest.mark.slow
def test_engine(run):
    """A variant that is not what its row says, or was not measured, would be printed as a figure all the same."""
    figures, printed = run("engine", "--students", "model")
    rows = figures["rows"]
    assert [row["variant"] for row in rows] == ["plain", "+ shared prompt", "+ selection", "+ no full logits", "auto"]
    assert all(positive(row["speedup_wall"], row["speedup_cpu"], row["counted"], row["by_weights"]) for row in rows)
    assert rows[0]["speedup_wall"] == rows[0]["memory_ratio"] == 1
    assert positive(rows[0]["mib"], rows[-1]["memory_ratio"])
    assert len(table_of(printed)) == len(rows)


def test_variants_of_the_engine_differ(monkeypatch, student):
    """Switches that did not reach the engine would make all rows of the table the same computation."""
    monkeypatch.syspath_prepend(str(FOLDER))
    engine, measuring = (importlib.import_module(name) for name in ("engine", "measuring"))
    model = measuring.trained(measuring.load(str(student)), "lora", 2)
    seen = {}
    for name, form in engine.VARIANTS.items():
        step, tokens, graphs = measuring.ScoringStep(model, form, False), [], []

        def note(module, args, output, tokens=tokens, graphs=graphs):
            tokens.append(output.last_hidden_state.shape[:2].numel())
            graphs.append(output.last_hidden_state.requires_grad)

        handle = model.get_base_model().model.register_forward_hook(note)
        rows = step.rows(4, 20, 10)
        step.engine._get_ready()
        tokens.clear()
        graphs.clear()
        step(rows)
        handle.remove()
        seen[name] = (sum(tokens), all(graphs), step.engine.head.form is not None)
    # 4 rows of 20 + 10 tokens; a row of 19 + 4 * 10.
    assert seen["plain"] == (120, True, False)
    assert seen["+ shared prompt"][1:] == (True, False)
    assert 59 <= seen["+ shared prompt"][0] < 120
    assert seen["+ selection"][1:] == (False, False)
    assert seen["+ no full logits"][1:] == (False, True)
    assert seen["auto"][2]


@pytest.mark.slow
def test_peers(run, selected):
    """A trainer that was left out, or got no step, would win."""
    figures, printed = run("peers", "--dataset", selected)
    rows = {row["trainer"]: row for row in figures["rows"]}
    assert list(rows) == ["SFT", "DPO", "qcrd_paper", "qcrd"]
    for row in rows.values():
        assert positive(row["questions_per_second_wall"], row["mib"], row["memory_ratio"])
        assert positive(*(row[f"speed_beside_{other}_wall"] for other in ("SFT", "DPO")))
    assert rows["SFT"]["speed_beside_SFT_wall"] == rows["DPO"]["speed_beside_DPO_wall"] == 1
    assert len(table_of(printed)) == 4


def test_peers_get_the_same_texts(monkeypatch, selected):
    """Questions without a negative of their own would give DPO a pair less, and QCRD a rationale less to score."""
    monkeypatch.syspath_prepend(str(FOLDER))
    peers, measuring = (importlib.import_module(name) for name in ("peers", "measuring"))
    questions = measuring.questions_of(str(selected), 3)
    assert [row["negative_rationales"] for row in questions] == [["1 + 1 is 1."], ["1 + 1 is 1."], ["3 + 1 is 3."]]
    rows, pairs = peers.rows_of_positives(questions), peers.pairs(questions)
    assert len(rows) == len(pairs) == 6
    assert [row["completion"] for row in rows] == [pair["chosen"] for pair in pairs]
    assert pairs[4] == {
        "prompt": "<Explain> What is 2 + 1?\n",
        "chosen": "2 + 1 is 3.",
        "rejected": "3 + 1 is 3.",
    }


@pytest.mark.slow
def test_negatives(run, selected):
    """A speed of tokens that were never sampled."""
    figures, printed = run("negatives", "--dataset", selected, "--max_new_tokens", 6, "--shrinking")
    assert [row["temperature"] for row in figures["rows"]] == [1.5, 0.8]
    for row in figures["rows"]:
        assert positive(row["speedup_wall"], row["mean_length_sampler"], row["mean_length_plain"])
        assert positive(row["tokens_per_second_sampler_wall"], row["tokens_per_second_plain_wall"])
        assert positive(row["speedup_shrinking_wall"])
    assert 0 < figures["run"]["share"] < 1
    assert len(table_of(printed)) == 2


@pytest.mark.slow
def test_discriminator(run, selected):
    """A run whose discriminator was never made would cost nothing."""
    figures, printed = run("discriminator", "--dataset", selected)
    assert [row["discriminator"] for row in figures["rows"]] == ["without", "kind student"]
    assert all(positive(row["ratio_wall"], row["ratio_cpu"]) for row in figures["rows"])
    assert figures["rows"][0]["ratio_wall"] == 1
    assert len(table_of(printed)) == 2


@pytest.mark.slow
def test_growth(run, tmp_path):
    """Sizes that were left out, or a plot that was never drawn."""
    file = tmp_path / "growth.png"
    figures, printed = run("growth", "--plot", file)
    sizes = [(row["grows"], row["n"], row["P"]) for row in figures["rows"]]
    assert sizes == [("rationales", 2, 64), ("rationales", 4, 64), ("prompt", 4, 64), ("prompt", 4, 128)]
    assert all(positive(row["plain_wall"], row["auto_wall"], row["speedup_wall"]) for row in figures["rows"])
    assert file.read_bytes().startswith(b"\x89PNG")
    assert len(table_of(printed)) == 4


def test_ranking(monkeypatch, tmp_path, capsys):
    """Ways that rank something else would be compared by their speed all the same."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for module in ("measuring", "ranking"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    ranking = importlib.import_module("ranking")
    monkeypatch.setattr(ranking.measuring, "in_own_process", lambda work, *given: work(*given))
    monkeypatch.setattr(ranking, "TILES", ((1, 300), (7, 13)))
    file = tmp_path / "figures.json"
    ranking.main(["--quick", "--json", str(file)])
    figures, printed = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
    assert [(row["users"], row["items"]) for row in figures["rows"]] == [(50, 300), (100, 300), (50, 600)]
    for row in figures["rows"]:
        assert row["agree_loop"] == 1
        assert row["agree_product"] > 0.9  # in float32 two scores may change places
        assert positive(*(row[f"{name}_{clock}"] for name in ranking.WAYS for clock in ("wall", "cpu")))
    assert [row["target_ranks"] for row in figures["ties"]] == [0, 0]
    # 100,000 states and as many weights of 64 float32; all scores in float32.
    assert figures["on_paper"]["mib_given"] == 2 * 100_000 * 64 * 4 / 2**20
    assert figures["on_paper"]["mib_all_scores"] == 40_000_000_000 / 2**20
    assert "QUICK run" in printed
    assert figures["machine"].keys() >= MACHINE


@pytest.mark.slow
def test_teacher_cache(monkeypatch, tmp_path, capsys):
    """A run that reads the teacher where it says the cache, or the same figure twice, would be printed all the same."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for module in ("measuring", "teacher_cache"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    file = tmp_path / "figures.json"
    importlib.import_module("teacher_cache").main(["--quick", "--json", str(file)])
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["machine"].keys() >= MACHINE
    (row,) = figures["rows"]
    for form in ("loaded", "cached"):
        (run,) = row["runs"][form]
        assert positive(run["wall"], run["cpu"], run["mib"])
    assert positive(row["build"]["wall"], row["build"]["mib"], row["parameters"])
    assert 0 <= row["difference"] < 1e-3
    assert len(table_of(capsys.readouterr().out)) == 2


def test_tiles(monkeypatch, tmp_path, capsys):
    """Sizes that all are one tile, or a head whose weights get no gradient, would be compared all the same."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for module in ("measuring", "tiles"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    tiles = importlib.import_module("tiles")
    heights, trained, product, loss = [], set(), tiles.torch.mm, tiles.states_nll
    monkeypatch.setattr(tiles, "states_nll", lambda a, b, *c, **d: trained.add(b.requires_grad) or loss(a, b, *c, **d))
    monkeypatch.setattr(tiles.torch, "mm", lambda a, b: heights.append(a.shape[0]) or product(a, b))
    file = tmp_path / "tiles.json"
    tiles.main(["--quick", "--json", str(file)])
    figures = json.loads(file.read_text(encoding="utf-8"))
    rows = figures["tiles"]
    assert [(row["trained"], row["by_itself"], row["tokens"]) for row in rows] == [
        (kind, by_itself, tokens)
        for kind in (False, True)
        for by_itself, tokens in ((True, 391), (False, 8), (False, 32))
    ]
    assert trained == {False, True}
    assert {8, 32, 64} <= set(heights)  # of 64 tokens: by itself they are one tile
    assert all(
        positive(row["seconds"], row["beside_shortest"], *(time["cpu"] for time in row["times"])) for row in rows
    )
    assert [min(row["beside_shortest"] for row in rows if row["trained"] is kind) for kind in (False, True)] == [1, 1]
    assert len(table_of(capsys.readouterr().out)) == len(rows) == 6
    assert figures["machine"].keys() >= MACHINE
