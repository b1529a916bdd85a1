"""`gep-audit`: from overrides to lower bounds on ε, on the terminal, as JSON and as a page."""
