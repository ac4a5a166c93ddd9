"""Rollouts of any trainer that logs a prompt, a response and a reward as rows of a table."""
