"""`counterpoise.verl` under its name of version 0.1."""

from counterpoise.adapters import point_to

point_to("counterpoise.adapters.verl", "counterpoise.verl")
