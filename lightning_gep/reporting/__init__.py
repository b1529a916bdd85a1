"""What runs leave on disk, read and drawn: records, figures, and the pages of `gep-report` and `gep-plan`."""
