"""What tensors a computation makes. `from tensors import ...`."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """The numbers of the largest tensor that any operation made."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage().nbytes() // one.element_size()
                self.size = max(self.size, min(storage, one.numel()))
        return made
