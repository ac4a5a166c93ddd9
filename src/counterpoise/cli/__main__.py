"""`python -m counterpoise.cli` is `poise`."""

from counterpoise.cli import main

main()
