"""Runs with one planted fault each, and how often `poise audit` names it."""
