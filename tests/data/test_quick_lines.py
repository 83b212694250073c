"""Lines of JSON read by orjson, where it is installed, and by the standard library: the same cells, the same errors."""

import json
import sys

import pytest

from qcrd_trl.data.text_files import read_lines_at
from qcrd_trl.errors import DataError


NAMES = ("id", "text", "label", "absent")
# Each differs between the two readers, or might: what orjson refuses, and what it reads as another value.
ODD = {
    "an integer above 64 bits": (b'{"id": "a", "label": 123456789012345678901234}', 123456789012345678901234),
    "an integer below 64 bits": (b'{"id": "a", "label": -9223372036854775809}', -9223372036854775809),
    "the greatest integer of 64 bits": (b'{"id": "a", "label": 18446744073709551615}', 18446744073709551615),
    "half of a surrogate pair": (b'{"id": "a", "label": "\\ud800"}', "\ud800"),
    "a surrogate pair": (b'{"id": "a", "label": "\\ud83d\\ude00"}', "\U0001f600"),
    "a key that stands twice": (b'{"id": "a", "label": 1, "label": 2}', 2),
    "not a number in another column": (b'{"id": "a", "label": "1", "temperature": NaN}', "1"),
    "a number too great for a float": (b'{"id": "a", "label": 1e999}', float("inf")),
    "a float": (b'{"id": "a", "label": 0.1}', 0.1),
    "a boolean": (b'{"id": "a", "label": true}', True),
    "a list": (b'{"id": "a", "label": [1, 123456789012345678901234]}', [1, 123456789012345678901234]),
    "spaces around": (b' {"id": "a", "label": "1"} \r', "1"),
    "a line separator": ('{"id": "a", "label": "1\u2028"}'.encode(), "1\u2028"),
    "a zero character": (b'{"id": "a", "label": "\\u0000"}', "\x00"),
}
BROKEN = (
    *(b'{"id": "a", "text": "x\ty"}', b'{"id": "a",}', b'{"id": 01}', b'{"id": "\xff"}', b'{"id": "a"} {"id": "b"}'),
    *(b'["id"]', b'{"id": "\xed\xa0\x80"}', b"{"),
)


@pytest.fixture(params=[True, False], ids=["orjson", "json"])
def reader(request, monkeypatch):
    """Both readers; the first only where it is installed."""
    if request.param:
        pytest.importorskip("orjson")
    else:
        monkeypatch.setitem(sys.modules, "orjson", None)


def _read(path, lines):
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    offsets = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
    places = [(str(path), offset, number) for number, offset in enumerate(offsets, 1)]
    return list(read_lines_at(places, NAMES))


@pytest.mark.parametrize("what", ODD)
def test_the_cells_of_an_odd_line_do_not_depend_on_the_reader(what, reader, tmp_path):
    """A label of 24 digits that became a float would be another label, and no vote would reach it."""
    line, label = ODD[what]
    ((key, text, read, absent),) = _read(tmp_path / "odd.jsonl", [line])
    assert (key, text, read, type(read), absent) == ("a", None, label, type(label), None)


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named_whoever_reads_it(line, reader, tmp_path):
    """A line that one reader takes and the other does not would make the selection depend on what is installed."""
    with pytest.raises(DataError, match=r"broken\.jsonl, line 2"):
        _read(tmp_path / "broken.jsonl", [b'{"id": "a"}', line])


def test_lines_are_read_where_they_stand_in_any_order(reader, tmp_path):
    """A wrong offset gives a sample to another question."""
    path = tmp_path / "lines.jsonl"
    rows = [{"id": str(i), "text": "é" * i, "label": i} for i in range(3)]
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    path.write_bytes(b"".join(lines))
    places = [(str(path), len(b"".join(lines[:i])), i + 1) for i in (2, 0, 1)]
    assert list(read_lines_at(places, NAMES)) == [(str(i), "é" * i, i, None) for i in (2, 0, 1)]
