"""gep-plan: what a run will cost, before it is trained."""
