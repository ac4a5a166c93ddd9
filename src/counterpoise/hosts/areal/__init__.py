"""Import the rollouts that AReaL dumps, a file for each task."""
