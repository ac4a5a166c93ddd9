"""A run in TensorBoard or Weights & Biases: what its folder's logs hold, row by row."""
