"""The search index of a run: parquet files in the user's cache folder, never in the run folder."""
