"""The claimed ε put to the test through the real code path: lower bounds from canaries, and replays of real steps."""

from lightning_gep.audit.findings import Finding, audit
from lightning_gep.audit.fits import Subject

__all__ = ["Finding", "Subject", "audit"]
