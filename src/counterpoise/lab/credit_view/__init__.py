"""`poise credit`: what a weighting of tokens makes of rollouts that a run has stored."""
