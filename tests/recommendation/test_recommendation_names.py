"""What `qcrd_trl.recommendation` gives, and what it loads for it."""

import subprocess
import sys

import pytest

import qcrd_trl.recommendation as recommendation


def test_the_front_loads_no_torch():
    """Data is prepared where no model is."""
    code = "import sys, qcrd_trl.recommendation\nassert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


def test_names_exist():
    """A name whose module moved is found by the first user, not by an import of the package."""
    assert len(recommendation.__all__) >= 6
    for name in recommendation.__all__:
        assert getattr(recommendation, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = recommendation.no_such_name
