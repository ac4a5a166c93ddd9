"""Stage 6: what an update did to every token, and which tokens of the batch did it."""
