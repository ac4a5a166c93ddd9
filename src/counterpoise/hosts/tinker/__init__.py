"""Import the rollout summaries of tinker-cookbook."""
