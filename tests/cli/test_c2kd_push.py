"""`qcrd c2kd train --push_to_hub`: a student that comes back with its items and its card, and nothing of this machine."""

import pytest
from recommending import BEST, c2kd, llama_config, prepare

from qcrd_trl.recommendation.recommender import Recommender


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("strategy", ["end", "every_save"])
def test_a_student_comes_back(data, hub_server, tmp_path, strategy):
    """Without its items a pushed model scores numbers, and a card with paths tells who trained where."""
    flags = ["--backbone_config", llama_config(4, 2), "--method", "none", *BEST, "--push_to_hub"]
    flags += ["--hub_model_id", "me/student", "--hub_strategy", strategy]
    assert c2kd("train", data, tmp_path / "out", *flags) == 0
    sent = hub_server.files("me/student")
    assert {"README.md", "config.json", "items.json", "model.safetensors", "results.json"} <= set(sent)
    assert not any("checkpoint" in name or name == "training_args.bin" for name in sent)
    card = sent["README.md"].decode()
    assert "NDCG@10" in card
    assert "Recommender.from_pretrained('me/student')" in card
    assert [name for name, content in sent.items() if str(tmp_path).encode() in content] == []
    there, here = Recommender.from_pretrained("me/student"), Recommender.from_pretrained(tmp_path / "out")
    assert there.recommend([["3", "7"]], k=5) == here.recommend([["3", "7"]], k=5)
    assert hub_server.rejected == []


def test_an_adapter_names_its_base_where_it_must(data, hub_server, tmp_path):
    """PEFT needs the base's path, which is of this machine; card, results, settings and the names of the items do not."""
    assert c2kd("teacher", data, tmp_path / "base", "--backbone_config", llama_config(8, 2), "--skip_test") == 0
    flags = ["--model_name_or_path", str(tmp_path / "base"), "--use_peft", "--lora_r", "2", "--push_to_hub"]
    assert c2kd("teacher", data, tmp_path / "out", *flags, *BEST, "--hub_model_id", "me/adapter") == 0
    sent = hub_server.files("me/adapter")
    assert {"README.md", "adapter_config.json", "config.json", "items.json", "results.json"} <= set(sent)
    assert [name for name, content in sent.items() if str(tmp_path).encode() in content] == ["adapter_config.json"]
    assert hub_server.rejected == []
