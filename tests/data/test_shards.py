"""Which shard a question belongs to."""

import hashlib

import pytest

from qcrd_trl.data.draws import number_of
from qcrd_trl.data.shards import check_shard, shard_of
from qcrd_trl.errors import ConfigError


def test_by_hand():
    """A rule that differs between commands, machines or versions leaves questions out or asks them twice."""
    assert hashlib.sha256(b"abc").hexdigest()[:16] == "ba7816bf8f01cfea"  # the standard's own example
    assert number_of("abc") == 0xBA7816BF8F01CFEA
    assert shard_of("abc", 10) == 0xBA7816BF8F01CFEA % 10
    assert shard_of("é", 7) == int(hashlib.sha256("é".encode()).hexdigest()[:16], 16) % 7


def test_shares_are_even():
    """One machine with all the work is no sharing."""
    counts = [0] * 4
    for number in range(4000):
        counts[shard_of(f"q{number}", 4)] += 1
    assert min(counts) > 900  # 1000 each, one standard deviation is 27
    assert {shard_of(str(number), 1) for number in range(50)} == {0}


@pytest.mark.parametrize(("num_shards", "index"), [(0, 0), (-1, 0), (3, 3), (3, -1)])
def test_no_such_shard(num_shards, index):
    """A shard that does not exist would sample nothing, without an error."""
    with pytest.raises(ConfigError, match=r"--num_shards|--shard_index"):
        check_shard(num_shards, index)
