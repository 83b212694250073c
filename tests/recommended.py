"""Small recommendation data with titles, and models that answer. `from recommended import ...`."""

import numpy as np

from qcrd_trl.recommendation.folder import make_data


def small_data(titles=None, sequences=None, num_items=12, **more):
    """Three users and twelve items `title 0` to `title 11`; candidates of the test: the target and two that nobody met."""
    sequences = sequences or [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 0, 1]]
    titles = [f"title {i}" for i in range(num_items)] if titles is None else titles
    candidates = {
        split: np.array([[num_items - 1, sequence[place], num_items - 2] for sequence in sequences])
        for split, place in (("validation", -2), ("test", -1))
    }
    ids = [f"i{i}" for i in range(num_items)]
    return make_data([f"u{i}" for i in range(len(sequences))], sequences, ids, titles, candidates, **more)
