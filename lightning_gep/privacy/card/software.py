"""What a run was made with: versions, and the revision of the code in the user's working directory."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("lightning_gep", "torch", "lightning", "opacus", "dp_accounting", "numpy")


def software() -> dict[str, Any]:
    """Versions, git revision and kind of machine. Neither a path nor a name of machine or user is among them."""
    revision, dirty = git_revision()
    return {
        "python": platform.python_version(),
        **{package: version_of(package) for package in PACKAGES},
        "git_revision": revision,
        "git_dirty": dirty,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def git_revision() -> tuple[str | None, bool | None]:
    """The commit of the working directory, and whether files that git tracks differ from it; None outside of git.

    Files that git does not track do not count as a difference: a run's own outputs are such files.
    """
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=none"]
    unlocked = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # looking must not get in the way of a commit
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=unlocked)
    except (OSError, subprocess.SubprocessError):
        return None, None
    lines = done.stdout.splitlines()
    revision = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    if revision in (None, "(initial)"):
        return None, None
    return revision, any(not line.startswith("#") for line in lines)


def version_of(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
