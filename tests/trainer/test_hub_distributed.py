"""Two processes that push to a Hub while they train: one does, and both end. Run by torchrun, this file is their script."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import TOKEN, Fault, HubServer
from saved import trainer_of_kind


pytestmark = pytest.mark.slow  # two processes that import everything anew


def run(folder: Path) -> None:
    trainer = trainer_of_kind(
        folder, "full", max_steps=2, per_device_train_batch_size=2, save_strategy="steps", save_steps=1, push_to_hub=True,
        hub_model_id="me/student", hub_strategy="every_save", hub_always_push=True, report_plots=True, logging_steps=1,
        hub_dataset_id="me/set", ddp_timeout=120,
    )  # fmt: skip
    trainer.train()
    trainer.push_to_hub()
    print(f"process {trainer.args.process_index} has ended")


def launch(folder: Path, hub: HubServer) -> subprocess.CompletedProcess:
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    env = {
        **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    return subprocess.run(
        [*command, __file__, str(folder)], env=env, capture_output=True, text=True, timeout=300, check=False
    )


def test_one_of_two_processes_pushes(tmp_path):
    """A process that knows nothing of the other's pushes would stop the run at its first checkpoint, or push the same again."""
    with HubServer() as hub:
        child = launch(tmp_path, hub)
        assert child.returncode == 0, child.stderr[-3000:]
        assert all(f"process {index} has ended" in child.stdout for index in (0, 1))
        # A step may write what the push before it is just sending: that push is refused, logged, and made good by the next.
        *before, last = hub.messages("me/student")
        assert last == "End of training"
        assert before in (
            ["Training in progress, step 1", "Training in progress, step 2"],
            ["Training in progress, step 1"],
            ["Training in progress, step 2"],
        )
        assert hub.messages("me/set", "dataset") == ["Upload training set"]
        assert {"model.safetensors", "README.md", "discriminator/model.safetensors", "plots/losses.png"} <= set(
            hub.files("me/student")
        )


def test_a_push_that_fails_ends_both(tmp_path):
    """The process that did not push must not wait for ever for the one whose push was refused."""
    with HubServer() as hub:
        hub.faults.append(Fault("/commit/", 413))
        child = launch(tmp_path, hub)
        assert child.returncode != 0
        assert "HubError" in child.stderr
        assert "The Hub answered 413" in child.stderr
        assert TOKEN not in child.stderr
        assert (tmp_path / "student" / "model.safetensors").is_file()
        assert (tmp_path / "student" / "checkpoint-2" / "trainer_state.json").is_file()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
