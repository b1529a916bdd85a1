"""Gradients of a batch at a few steps of a training: what three recipes draw from."""
