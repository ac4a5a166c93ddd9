"""Stage 5, update: the rows of a plan become gradients, optimizer steps and a new policy."""
