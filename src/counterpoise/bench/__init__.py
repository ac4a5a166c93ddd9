"""`poise bench`: how fast, how large and how exact, against a peer and against a floor."""
