"""Import miles' debug dumps, train_data/N_RANK.pt with their schedule and rollout_data/N.pt.

miles grew out of slime: a training dump is what one rank was given; the rest is alike
(importer.py).
"""

from __future__ import annotations

from counterpoise.hosts.slime.importer import make_source

SOURCE = make_source("miles", "train_data/N_RANK.pt")
