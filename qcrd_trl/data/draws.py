"""Draws that are pure functions of a key, and need neither torch nor a stream of random numbers."""

import hashlib


_MASK = (1 << 64) - 1


def draw(count: int, *key: int) -> int:
    """
    A number in `[0, count)` that is a pure function of `key`: the same however the data are batched, shared out among
    processes or resumed, which a stream of random numbers would not give. SplitMix64 over the parts of the key.
    """
    state = 0
    for part in key:
        state = (state ^ (int(part) & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state % count


def number_of(text: str) -> int:
    """A text as a number in `[0, 2**64)`: the first 8 bytes of its SHA-256, the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")
