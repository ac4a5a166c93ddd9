"""`poise audit`: what went wrong in a run, by its files alone. A file is a family of findings."""
