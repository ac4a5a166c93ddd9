"""Stage 3: rewards -> advantages, one function over a group's rewards; token weights on top."""
