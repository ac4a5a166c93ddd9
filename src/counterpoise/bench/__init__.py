"""`poise bench`: how fast, how large and how exact, against a peer and against a floor.

One part is one file and one line here; `run.py` runs them, `table.py` prints them.
"""

from counterpoise.registry import Registry

PARTS = Registry(
    "part",
    {
        "peer": "counterpoise.bench.peer:measure",
        "sampler": "counterpoise.bench.sampler:measure",
        "update": "counterpoise.bench.update:measure",
        "agreement": "counterpoise.bench.agreement:measure",
        "monitor": "counterpoise.bench.monitor:measure",
        "growth": "counterpoise.bench.growth:measure",
    },
)
