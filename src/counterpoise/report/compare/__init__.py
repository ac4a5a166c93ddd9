"""Several runs on one page: numbers side by side, options that differ, curves overlaid."""
