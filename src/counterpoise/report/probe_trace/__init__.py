"""What moved the held-out answers of a run: `poise trace`."""
