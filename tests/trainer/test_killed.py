"""Runs that `kill -9` ends at any moment, and that are resumed: nothing may tell them from a run that was never killed."""

import copy

import killing
import pytest
import torch
from killing import SCENARIOS, differences, look, start


KILLED = [name for name, (_, points) in SCENARIOS.items() if points]
KINDS = ("lora", "full", "t5", "four_bit")
ASIDE = ["_unfinished-checkpoints"]

# What each kill must find: the newest checkpoint, the snapshots in `output_dir`, those of that checkpoint, what is half done.
# Iterations begin at steps 0, 2, 4, 6, 8, checkpoints follow steps 3, 6, 9, and three snapshots are kept.
FOUND = {
    "in_a_step": ("checkpoint-3", [0, 1, 2], [0, 1], []),
    "in_generation": ("checkpoint-6", [1, 2, 3], [0, 1, 2], []),
    "in_a_snapshot": ("checkpoint-6", [0, 1, 2], [0, 1, 2], ["_unfinished-iteration-0003"]),
    "after_pruning": ("checkpoint-6", [1, 2, 3], [0, 1, 2], []),
    "in_the_history": (
        *("checkpoint-6", [0, 1, 2], [0, 1, 2]),
        ["_unfinished-iteration-0002", "_unfinished-old-iteration-0002"],
    ),
    "after_a_refresh": ("checkpoint-6", [1, 2, 3], [0, 1, 2], []),
    "after_the_model": ("checkpoint-3", [0, 1, 2], [0, 1], ASIDE),
    "after_the_optimizer": ("checkpoint-3", [0, 1, 2], [0, 1], ASIDE),
    "among_the_parts": ("checkpoint-3", [0, 1, 2], [0, 1], ASIDE),
    "before_the_name": ("checkpoint-3", [0, 1, 2], [0, 1], ASIDE),
    "after_the_name": ("checkpoint-6", [0, 1, 2], [0, 1, 2], ASIDE),
    "in_the_rotation": ("checkpoint-9", [2, 3, 4], [2, 3, 4], None),
    "in_pruning": ("checkpoint-6", None, [0, 1, 2], None),
    "at_the_end": ("checkpoint-10", [2, 3, 4], [2, 3, 4], []),
    "in_the_first_iteration": (None, [0], [], []),
    "in_resuming": ("checkpoint-3", [0], [0, 1], []),
    # Each step begins an iteration: that which follows checkpoint-3 asks snapshot 1.
    "often, in_a_step": ("checkpoint-3", [3, 4, 5], [0, 1, 2], []),
    # Iterations begin at steps 0, 3 and 6, after the checkpoint of the epoch.
    "epochs, in_a_step": ("checkpoint-3", [0, 1], [0], []),
    "epochs, in_generation": ("checkpoint-6", [0, 1, 2], [0, 1], []),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Every scenario, and where."""
    folder = tmp_path_factory.mktemp("killed")
    ended = start(killing.__file__, folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.fixture
def one(played, request):
    """The scenario that the test is given."""
    if "skipped" in played[request.param]:
        pytest.skip(played[request.param]["skipped"])
    return request.param, played[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("one", KILLED, indirect=True)
def test_a_killed_run_is_the_run_that_was_never_killed(played, one):
    """One stale snapshot, draw, sum or optimizer, and the run learns something else from the kill on, at a like loss."""
    name, told = one
    kind, points = SCENARIOS[name]
    assert told["codes"] == [-9] * len(points) + [0]
    assert differences(played[kind]["result"], told["result"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("one", KILLED, indirect=True)
def test_a_kill_leaves_whole_checkpoints_alone(one):
    """What has a checkpoint's name is resumed from, or counted as one that is kept: half of one must never have it."""
    name, told = one
    for point, found in zip(SCENARIOS[name][1], told["found"], strict=True):
        assert found["broken"] == {}
        newest, snapshots, held, unfinished = FOUND.get(name, FOUND[point.__name__])
        assert (found["newest"], found["held"]) == (newest, held)
        assert snapshots is None or found["snapshots"] == snapshots
        assert unfinished is None or found["unfinished"] == unfinished
    assert told["result"]["unfinished"] == []


@pytest.mark.slow
@pytest.mark.parametrize("one", KINDS, indirect=True)
def test_the_runs_are_what_they_say(one):
    """Runs without negatives, without scores or that learned nothing would be equal after any kill."""
    kind, told = one
    result = told["result"]
    assert len(result["store"]) > 1
    assert any(negative["quality"] is not None for _, negative in result["store"])
    assert result["iteration"] == [5, 4]
    assert result["checkpoints"] == ["checkpoint-10", "checkpoint-9"]
    weights_of = {name.split("/")[1] for name in result["files"] if name.endswith(".safetensors")}
    assert weights_of == {"iteration-0002", "iteration-0003", "iteration-0004"}
    stores = [name for name in result["files"] if name.endswith(".parquet")]
    assert stores == [f"negatives/iteration-000{number}/negatives.parquet" for number in range(5)]
    # Lag 2: iterations 0 to 2 are asked of snapshot 0.
    refreshes = [entry for entry in result["logs"] if "negatives/kept" in entry]
    assert [(e["step"], e["negatives/snapshot"]) for e in refreshes] == [(0, 0), (2, 0), (4, 0), (6, 1), (8, 2)]
    assert all(entry["negatives/kept"] > 0 for entry in refreshes)
    first, second = (entry for entry in result["logs"] if "loss" in entry)
    assert (first["step"], second["step"]) == (4, 8)
    # The rate falls from 0.01 to 0 in 10 steps; that of the 4th step and of the 8th.
    assert (first["learning_rate"], second["learning_rate"]) == pytest.approx((0.007, 0.003))
    # 0.5 * 0.9^iteration, averaged over questions: of 4, 4, 4, 2 of them a step with accumulation (14 rows), else 2.
    of_steps = (4, 4, 4, 2) if kind == "lora" else (2, 2, 2, 2)
    for entry, decays in ((first, (1, 1, 0.9, 0.9)), (second, (0.81, 0.81, 0.729, 0.729))):
        mean = sum(0.5 * d * n for d, n in zip(decays, of_steps, strict=True)) / sum(of_steps)
        assert entry["alpha_3"] == pytest.approx(mean)
    assert "train_loss" in result["logs"][-1]
    assert {state["step"].item() for state in result["optimizer"]["state"].values()} == {10}
    assert {state["step"].item() for state in result["discriminator_optimizer"]["state"].values()} <= set(range(3, 11))
    assert any(tensor.is_floating_point() and tensor.abs().max() > 0 for tensor in result["student"].values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "iteration", "checkpoints", "refreshes"),
    [("epochs", [3, 2], ["6", "9"], [0, 3, 6]), ("often", [7, 6], ["6", "7"], list(range(7)))],
)
def test_the_other_runs_are_what_they_say(played, kind, iteration, checkpoints, refreshes):
    """By epochs, a checkpoint and a refresh fall together, as by default; often, a resume needs what was pruned."""
    result = played[kind]["result"]
    assert result["iteration"] == iteration
    assert result["checkpoints"] == [f"checkpoint-{number}" for number in checkpoints]
    assert [entry["step"] for entry in result["logs"] if entry.get("negatives/kept")] == refreshes


@pytest.mark.slow
def test_a_new_process_goes_on_with_a_killed_one(played, tmp_path):
    """A forked process inherits what was imported and drawn before: only a new one shows that nothing of it is needed."""
    place = tmp_path / "run"
    killed = start(killing.__file__, "alone", "lora", place, "in_generation")
    assert killed.returncode == -9, killed.stderr[-4000:]
    found = look(place)
    newest, snapshots, held, _ = FOUND["in_generation"]
    assert (found["broken"], found["newest"]) == ({}, newest)
    assert (found["snapshots"], found["held"]) == (snapshots, held)
    ended = start(killing.__file__, "alone", "lora", place, "to_the_end")
    assert ended.returncode == 0, ended.stderr[-4000:]
    result = torch.load(tmp_path / "alone.pt", weights_only=False)
    assert differences(played["lora"]["result"], result) == []


def test_the_comparison_sees_a_difference():
    """If it saw none, every run here would pass for exact."""
    one = {"a": torch.zeros(2), "logs": [{"loss": 1.0}, {"loss": 2.0}], "random": [(3, None)], "n": 1}
    assert differences(one, copy.deepcopy(one)) == []
    for path, value in (
        ("a", torch.tensor([0.0, 1e-30])),
        ("n", 1.0),
        ("random", [(3, 0)]),
        ("logs", [{"loss": 1.0}]),
    ):
        assert differences(one, {**copy.deepcopy(one), path: value}), path
    other = copy.deepcopy(one)
    other["logs"][1]["loss"] = 2.0 + 1e-15
    assert differences(one, other) == [".logs.1.loss"]
    assert differences(one, {}) != []
