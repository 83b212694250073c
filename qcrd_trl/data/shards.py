"""Sharing questions out among machines: by their ids alone, so that every command and every machine agrees."""

import hashlib

from ..errors import ConfigError


def shard_of(id: str, num_shards: int) -> int:
    """
    The shard that a question belongs to: the first 8 bytes of its id's SHA-256, modulo `num_shards`.

    Args:
        id (`str`): key of the question.
        num_shards (`int`): number of shards.

    Returns:
        `int`: in `[0, num_shards)`, whatever the question's place in the dataset.
    """
    return int.from_bytes(hashlib.sha256(id.encode("utf-8")).digest()[:8], "big") % num_shards


def check_shard(num_shards: int, shard_index: int) -> None:
    """
    Raises:
        [`ConfigError`]: there is no such shard.
    """
    if num_shards < 1:
        raise ConfigError(f"--num_shards must be at least 1, got {num_shards}.")
    if not 0 <= shard_index < num_shards:
        raise ConfigError(
            f"--shard_index must be from 0 to {num_shards - 1} with --num_shards {num_shards}, got {shard_index}."
        )
