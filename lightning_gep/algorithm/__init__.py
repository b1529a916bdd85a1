"""The paper: gradient embedding perturbation on flat gradients. No Lightning."""
