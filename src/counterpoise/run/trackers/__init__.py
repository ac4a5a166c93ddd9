"""Show a run in TensorBoard, Weights & Biases or Trackio: the logs of its folder, line by line."""
