"""The run folder: what a run leaves behind and everything else reads."""
