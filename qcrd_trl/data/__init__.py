"""From a dataset's rows to the tensors of a batch."""
