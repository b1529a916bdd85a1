"""The paper's tables and figures, one entry each: `python -m recipes.table1`; and a script of its own, tabular.py."""
