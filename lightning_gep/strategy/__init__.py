"""The Lightning glue: a strategy that makes a run private."""
