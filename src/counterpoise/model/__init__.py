"""The model itself, shared by the sampler and the trainer: loading, one forward, one head."""
