"""Checks of the claimed ε through the real code path: audits, and the replay of real steps."""
