"""`poise serve`: a local web server that shows run folders and never writes to them."""
