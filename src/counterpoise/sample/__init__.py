"""Stage 1: draw G responses for every prompt."""
