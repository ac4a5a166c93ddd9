"""Whole pages: the report of a run, of imported rollouts and of a contamination search."""
