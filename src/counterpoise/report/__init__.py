"""Stage 8: a run folder becomes one HTML page that opens offline."""
