"""How long a private step takes and how much memory, beside what a user would pick instead."""
