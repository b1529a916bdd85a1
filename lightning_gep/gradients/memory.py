"""How many records fit in memory while they are differentiated, and memory that is kept from one chunk to the next.

`keep_freed_memory` reaches below Python, to `mallopt` of glibc, whose parameters are documented (`man mallopt`). Where
the C library is another one, or refuses them, nothing happens, and a step takes up to a third longer.
"""

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_gep.errors import ConfigurationError
from lightning_gep.gradients.batches import batch_size, take
from lightning_gep.gradients.interface import LossFunction

ENOUGH_FOR_ROWS, ENOUGH_FOR_ACTIVATIONS = 10**8, 3 * 10**8
"""Bytes that a CPU profits from: larger chunks leave its caches and are not faster."""
SHARE = 8
"""At most one part in so many of the free memory is taken for rows, and as much for activations."""
MOST_RECORDS, RECORDS_TRIED = 512, 8
WORKING_SPACE = 3
"""Memory of a vectorised pass in units of the activations an ordinary one keeps. Measured: 1.8 for ResNet20; 3.3 for a
BERT, as an ordinary pass keeps no attention matrices."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`."""
KEPT, LARGEST_BLOCKS = 2**30, (2**30, 2**25)
"""Bytes: the most free memory that is kept, and the largest blocks it is used for (older glibc: the second value)."""
SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables with which a user has chosen otherwise."""


def microbatch_for(num_parameters: int, device: torch.device) -> int:
    """Records whose gradients are held at a time."""
    return _fitting(torch.float32.itemsize * num_parameters, device, ENOUGH_FOR_ROWS)


def largest_chunk(module: nn.Module, loss_function: LossFunction, public_batch: Any, held_per_record: int) -> int:
    """Records that can be differentiated together: the loss is called on public ones to see what it keeps of each."""
    some = take(public_batch, slice(0, RECORDS_TRIED))
    each = kept_for_backward(module, loss_function, some) / batch_size(some)
    row = torch.float32.itemsize * held_per_record
    return _fitting(WORKING_SPACE * each + row, next(module.parameters()).device, ENOUGH_FOR_ACTIVATIONS)


def kept_for_backward(module: nn.Module, loss_function: LossFunction, batch: Any) -> int:
    """Bytes that autograd keeps between the forward and the backward pass of the loss, parameters not counted."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # shares the storage; the tensor itself could keep its own graph alive forever

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


def check_basis_fits(sizes: Sequence[int], quotas: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Raises ConfigurationError if a basis with `quotas` rows for groups of `sizes` parameters exceeds the memory."""
    needed = dtype.itemsize * sum(rows * columns for rows, columns in zip(quotas, sizes, strict=True))
    _check_fits(f"The basis of k={sum(quotas)} vectors", needed, device, "Lower k, or train fewer parameters.", "k")


def check_rows_fit(records: int, num_parameters: int, device: torch.device) -> None:
    """Raises ConfigurationError if the gradients of so many records, held at a time, exceed the memory."""
    fix = "Lower microbatch_size, train fewer parameters (LoRA), or hold none: gradients='ghost' with mechanism='gp'."
    what = f"microbatch_size: the gradients of {records} records with {num_parameters} parameters each"
    _check_fits(what, torch.float32.itemsize * records * num_parameters, device, fix, "microbatch_size")


def _check_fits(what: str, needed: int, device: torch.device, fix: str, setting: str) -> None:
    free = free_memory(device)
    if needed > free:
        raise ConfigurationError(
            f"{what} takes {needed / 1e9:.2g} GB, but {device} has {free / 1e9:.2g} GB free. {fix}", setting=setting
        )


def keep_freed_memory(device: torch.device) -> bool:
    """Let activations and gradients reuse the memory of the previous chunk; returns whether that is set up.

    glibc gives large blocks back to the system when they are freed, and the system clears them page by page before it
    hands them out again: a quarter of the time of a step. In exchange the peak is a little higher (ResNet20: 2 to 3 %,
    a cold start on 2000 anchors 15 %), and up to `KEPT` bytes stay with the process. Other devices are left to torch.
    """
    if device.type != "cpu" or not sys.platform.startswith("linux") or any(name in os.environ for name in SET_BY_USER):
        return False
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT)) and any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST_BLOCKS)


def _fitting(bytes_each: float, device: torch.device, enough: int) -> int:
    share = free_memory(device) // SHARE
    budget = share if device.type == "cuda" else min(enough, share)
    return max(1, min(MOST_RECORDS, int(budget // max(1.0, bytes_each))))
