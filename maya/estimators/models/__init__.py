"""What predicts: one module for each class of kernels, on top of the bounds that no kernel beats."""
