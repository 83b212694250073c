"""A miniature of the method: a small reasoning task, a noisy teacher and a tiny student, all made on the spot."""
