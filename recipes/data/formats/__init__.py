"""Readers of images as they come: one file for each format, all giving the same arrays."""
