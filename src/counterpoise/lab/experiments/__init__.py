"""Training runs side by side: arms, rates and seeds of one file, judged by its own rule."""
