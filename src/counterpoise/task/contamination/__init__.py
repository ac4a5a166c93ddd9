"""Training prompts that are in a benchmark: copied, reworded or translated."""
