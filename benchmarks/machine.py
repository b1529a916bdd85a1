"""What the figures were measured on, in words that name no one's machine."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "opacus", "numpy", "lightning-gep")


def description() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }
