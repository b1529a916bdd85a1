"""Data sets of the paper and of the first example, as Lightning data modules."""
