"""Lower bounds on ε, measured through real fits, to be compared with the ε that the account claims."""
