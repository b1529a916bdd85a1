"""Three figures of the paper, measured on gradients at a few steps of one training."""
