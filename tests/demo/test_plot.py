"""The demo's picture."""

import struct
import subprocess
import sys

from qcrd_trl.demo.plot import MEASURES, plot_demo


def methods():
    def history(*names):
        return [{"step": step, **dict.fromkeys(names, 1 / step)} for step in (1, 2, 3)]

    measured = {name: {"value": 0.5, "standard_error": 0.02} for name in MEASURES}
    untaught = {**dict.fromkeys(MEASURES), "label_accuracy": measured["label_accuracy"]}
    return {
        "label_only": {**untaught, "history": history("nll/label")},
        "dss": {**measured, "history": history("nll/label", "nll/positive")},
        "qcrd": {
            **measured,
            "history": history("nll/label", "nll/positive", "nll/negative", "loss/discriminator"),
        },
    }


def test_a_picture_is_written(tmp_path):
    """A method that was not taught a measure has no bar, which must not break the picture at the end of the run."""
    path = tmp_path / "demo.png"
    plot_demo(methods(), 0.1, "A title", path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) > (1000, 400)


def test_no_display_is_needed():
    """`matplotlib.pyplot` picks a window system, which a server does not have, and keeps figures alive."""
    code = "import sys, qcrd_trl.demo.plot; print('matplotlib.pyplot' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == "False"
