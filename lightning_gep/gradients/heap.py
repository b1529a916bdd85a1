"""Freed memory that is kept for the next microbatch instead of going back to the system."""

import ctypes
import os
import sys
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
KEPT, LARGEST_BLOCKS = 2**30, (2**30, 2**25)
"""Bytes: the most free memory that is kept, and blocks up to which size it is used for; older versions of glibc accept
no more than the second of these."""
OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables with which a user has decided it otherwise."""


def keep_freed_memory(device: torch.device) -> bool:
    """Let activations and gradients use again what those of the microbatch before have freed. Whether that was done.

    glibc asks the system for every large block and gives it back when it is freed, and the system clears it anew, page
    by page. For per-sample gradients, which fill and free some megabytes at a time, that was a fourth of the time of a
    step. For that, pieces that do not fit each other take a little more at the peak (ResNet20: GP and GEP 2 to 3 %, a
    cold start on 2000 anchors 15 %), and up to `KEPT` stay with the process after it. Nothing is done where the C
    library is another one, where the user has set its environment variables, and for other devices, whose memory torch
    keeps by itself.
    """
    if device.type != "cpu" or not sys.platform.startswith("linux") or any(name in os.environ for name in OF_THE_USER):
        return False
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT)) and any(mallopt(M_MMAP_THRESHOLD, size) for size in LARGEST_BLOCKS)
