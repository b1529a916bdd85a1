"""Lower bounds on ε, measured through real fits, to be compared with the ε that the account claims."""

from lightning_gep.audit.findings import Finding, audit
from lightning_gep.audit.fits import Subject

__all__ = ["Finding", "Subject", "audit"]
