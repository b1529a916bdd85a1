"""Training runs of the tables: their settings, the processes that train them, and the results they leave."""
