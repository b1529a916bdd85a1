"""The promise: what a run may claim, and the account that backs the claim. No torch, no Lightning."""
