"""Stage 1: sample G responses for every prompt."""
