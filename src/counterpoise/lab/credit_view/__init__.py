"""`poise credit`: apply token weightings to the stored rollouts of a run and compare them."""
