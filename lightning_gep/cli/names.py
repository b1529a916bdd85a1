"""Names of sweeps and of their jobs: the same settings give the same directory, so a sweep can be started again."""

import hashlib
import re
from collections.abc import Sequence

LONGEST_NAME = 150
"""Characters; file systems take 255 bytes."""


def job_name(overrides: Sequence[str]) -> str:
    """What tells a job from the others of its sweep, fit for a directory: `mechanism.k=100,seed=0`."""
    parts = sorted(overrides)
    name = re.sub(r"[^\w.,=+-]", "_", ",".join(parts)) or "default"
    # Two settings may read the same once their special characters are gone, or be too long to be read at all.
    plain = name == ",".join(parts) or not parts
    return name if plain and len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{_digest(parts)}"


def sweep_name(given: str | None, overrides: Sequence[str]) -> str:
    """The name given, or one made of what is swept over: the same command always has the same name."""
    if given is not None:
        return given
    swept = [override.split("=", 1)[0].lstrip("+~").rsplit(".", 1)[-1] for override in overrides if "," in override]
    name = re.sub(r"[^\w-]", "_", "-".join(sorted(swept)))[:60] or "sweep"
    return f"{name}-{_digest(sorted(overrides))}"


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()
