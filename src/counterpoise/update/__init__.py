"""Stage 5: plan -> gradient -> new policy."""
