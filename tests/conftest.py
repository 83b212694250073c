"""Fixtures for all tests."""

import os
import signal
import sys
from pathlib import Path

import pytest


# The builders of tests/tiny.py are imported as `tiny`, whatever folder a test file is in.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# A shell starts jobs in the background with Ctrl-C ignored, and whatever they start: tests that press it would hang or fail.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of development data that is not part of the repository; tests that need it skip where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("QCRD_SHARED_DIR", default))
    if not path.is_dir():
        pytest.skip(f"no development data at {path} (set QCRD_SHARED_DIR)")
    return path


@pytest.fixture(scope="session")
def saved_student(tmp_path_factory):
    """Folder of a trained student of each kind of `saved.KINDS`, made when it is first asked for; never written to."""
    from saved import save_student

    made = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_student(tmp_path_factory.mktemp(kind), kind)
        return made[kind]

    return get


@pytest.fixture
def hub_server(tmp_path, monkeypatch):
    """A Hub on loopback, which `huggingface_hub` takes for the only one; its client waits for nothing and knows a token."""
    from types import SimpleNamespace

    import huggingface_hub.hf_api
    import huggingface_hub.utils._http as http
    import transformers.utils.hub
    from hub_server import TOKEN, HubServer
    from huggingface_hub import constants

    with HubServer() as server:
        for name, value in {
            "ENDPOINT": server.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # the large files go by LFS, which this Hub knows
            "HF_HUB_CACHE": str(tmp_path / "hub_cache"),
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", server.url)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setattr(http, "time", SimpleNamespace(**{**vars(http.time), "sleep": lambda seconds: None}))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
