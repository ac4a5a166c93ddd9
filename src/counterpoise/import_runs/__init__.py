"""Rollouts that other trainers wrote -> a folder that `poise plan` and `poise report` read.

A source is one file with `SOURCE` (formats.py says what that is) and one line here.
"""

from counterpoise.registry import Registry

SOURCES = Registry(
    "source",
    {
        "trl": "counterpoise.import_runs.trl:SOURCE",
        "verl": "counterpoise.import_runs.verl:SOURCE",
        "prime-rl": "counterpoise.import_runs.prime_rl:SOURCE",
    },
)
