"""The paper's data sets, networks, tables and figures: `python -m recipes.results`; and an example, tabular.py."""
