"""Stage 2: score every response with a reward."""
