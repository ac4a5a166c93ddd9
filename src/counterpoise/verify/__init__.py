"""Stage 2: response -> reward."""
