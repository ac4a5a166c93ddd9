"""Rollouts that other trainers wrote -> a folder that `poise plan` and `poise report` read."""
