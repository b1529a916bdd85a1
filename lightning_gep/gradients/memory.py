"""How many records fit: what they take in memory while they are differentiated, and what there is."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.interface import LossFunction

ENOUGH_FOR_ROWS, ENOUGH_FOR_ACTIVATIONS = 10**8, 3 * 10**8
"""Bytes that a CPU profits from: larger chunks leave its caches and are not faster."""
SHARE = 8
"""At most one part in so many of the free memory is taken for rows, and as much for activations."""
MOST_RECORDS, RECORDS_TRIED = 512, 8
WORKING_SPACE = 3
"""Memory of a vectorised backward pass in units of the activations an ordinary one keeps (measured: 2 to 3)."""


def microbatch_for(num_parameters: int, device: torch.device) -> int:
    """Records whose gradients are held at a time."""
    return _fitting(torch.float32.itemsize * num_parameters, _budget(device, ENOUGH_FOR_ROWS))


def largest_chunk(module: nn.Module, loss_function: LossFunction, public_batch: Any, num_parameters: int) -> int:
    """Records that can be differentiated together: the loss is called on public ones to see what it keeps of each."""
    some = take(public_batch, slice(0, RECORDS_TRIED))
    each = kept_for_backward(module, loss_function, some) / batch_size(some)
    device = next(module.parameters()).device
    row = torch.float32.itemsize * num_parameters
    return _fitting(WORKING_SPACE * each + row, _budget(device, ENOUGH_FOR_ACTIVATIONS))


def kept_for_backward(module: nn.Module, loss_function: LossFunction, batch: Any) -> int:
    """Bytes that autograd keeps between the forward and the backward pass of the loss, parameters not counted."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_function(batch)
    return sum(size for address, size in kept.items() if address not in parameters)


def free_memory(device: torch.device) -> int:
    """Bytes available on a device; a large number where nothing tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else 2**40


def _budget(device: torch.device, enough: int) -> int:
    share = free_memory(device) // SHARE
    return share if device.type == "cuda" else min(enough, share)


def _fitting(bytes_each: float, budget: int) -> int:
    return max(1, min(MOST_RECORDS, int(budget // max(1.0, bytes_each))))
