"""Import what NeMo-RL logs of its training batches."""
