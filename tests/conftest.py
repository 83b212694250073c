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
