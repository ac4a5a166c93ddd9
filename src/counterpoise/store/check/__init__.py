"""`poise check`: whether a run folder is whole, and what can still be trusted if it is not."""
