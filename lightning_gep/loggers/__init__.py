"""Experiment trackers: Weights & Biases and TensorBoard."""
