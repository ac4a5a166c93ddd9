"""Import the completions that ms-swift's GRPO trainers log."""
