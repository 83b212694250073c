"""What all pictures have in common."""

import struct
import subprocess
import sys

import matplotlib
import pytest
from matplotlib.figure import Figure

from qcrd_trl.plots.style import DPI, LOOKS, dress, house_style, new_figure, save_figure, stacked_bars


def draw():
    figure, (axes,) = new_figure(1, 1, "A title", size=(4, 3))
    axes.plot([1, 2], [1, 2])
    dress(axes, "What", "time, s", "samples")
    return figure


def test_a_png_of_the_size_asked_for(tmp_path):
    """A picture in screen resolution cannot be read in print; the folder is made."""
    path = tmp_path / "plots" / "a.png"
    save_figure(draw, path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (4 * DPI, 3 * DPI)
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]
    save_figure(draw, path)
    assert path.read_bytes() == data  # no date inside: the same values give the same file


def test_a_picture_that_fails_leaves_the_old_one(tmp_path):
    """Half a PNG where a whole one was."""

    class Broken(Figure):
        def savefig(self, path, **settings):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    path = tmp_path / "a.png"
    save_figure(draw, path)
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space"):
        save_figure(Broken, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_the_callers_settings_do_not_matter_and_stay():
    """LaTeX switched on in a matplotlibrc breaks every picture on a machine without it; a style that stays breaks the user's."""
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "black", "font.size": 3}):
        with house_style():
            figure = draw()
            (axes,) = figure.axes
        assert matplotlib.rcParams["font.size"] == 3
        assert not axes.title.get_usetex()
        assert axes.get_facecolor() == (1, 1, 1, 1)
        assert axes.xaxis.label.get_size() == 10


def test_axes_are_labelled():
    """An axis without a quantity and its unit can be read in two ways."""
    (axes,) = draw().axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("What", "time, s", "samples")


def test_looks_are_told_apart_without_colour():
    """One reader in twelve, and every print in grey."""
    for part in ("colour", "dash", "marker", "hatch"):
        assert len({str(getattr(look, part)) for look in LOOKS}) == len(LOOKS)


def test_stacked_bars_stand_on_each_other():
    """Bars from zero would hide each other, and the sum over them would be none."""
    _, (axes,) = new_figure(1, 1)
    stacked_bars(axes, ["x", "y"], {"a": (LOOKS[0], [1, 2]), "b": (LOOKS[1], [3, 0]), "c": (LOOKS[2], [0, 0])})
    boxes = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert boxes == [(0, 1), (0, 2), (1, 3), (2, 0)]
    assert [text.get_text() for text in axes.texts] == ["4", "2"]
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
    assert axes.get_ylim()[1] > 4


def test_no_display_is_needed():
    """`matplotlib.pyplot` picks a window system, which a server does not have, and keeps figures alive."""
    code = (
        "import sys, matplotlib; backend = dict.__getitem__(matplotlib.rcParams, 'backend')\n"
        "import qcrd_trl.plots.samples\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        "assert dict.__getitem__(matplotlib.rcParams, 'backend') is backend"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
