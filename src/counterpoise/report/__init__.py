"""Reports: turn a run folder into one HTML page that opens offline."""
