"""Audits of runs, in a process beside the server."""
