"""An experiment file for tests: two arms of a tiny run, one rate, two seeds."""

from __future__ import annotations

from pathlib import Path

RUN = """
[loop]
iterations = 2
checkpoint_every = 1
[task]
size = 16
[sample]
prompts = 4
max_new_tokens = 24
[batch]
steps = 2
[evaluate]
prompts = 4
samples = 2
settings = ["1/1", "0.6/0.95"]
[monitor]
every = 1
watch = 0
[verify]
workers = 1
[store]
rollouts = false
tokens = false
model = false
report = false
"""
EXPERIMENT = """
[experiment]
rule = "replicated when it is"
baseline = "shuffled"
rates = [1e-4]
seeds = 2
hypotheses = ["QB > shuffled"]
[experiment.arms]
shuffled = ["batch.composer=shuffled"]
QB = ["batch.composer=grouped"]
"""


def write(folder: Path, experiment: str = EXPERIMENT, run: str = RUN) -> Path:
    path = folder / "small.toml"
    path.write_text(run + experiment)
    return path
