"""Tasks: training and held-out problems, and environments that give feedback on a response."""
