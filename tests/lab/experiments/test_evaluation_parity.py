"""Arms that are evaluated differently are refused, those that only train differently are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.small_experiment import EXPERIMENT, RUN, write

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.experiment_file import read_experiment

REST = ": arms that are evaluated differently cannot be compared"


def with_arm(folder: Path, *options: str, run: str = RUN) -> Path:
    listed = ", ".join(f'"{option}"' for option in options)
    return write(folder, f"{EXPERIMENT}other = [{listed}]\n", run)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("verify.name=exact", f"verify.name is 'exact', and 'math' for shuffled{REST}; to train"),
        ("verify.timeout_seconds=1", f"verify.timeout_seconds is 1.0, and 5.0 for shuffled{REST}"),
        ("evaluate.samples=3", f"evaluate.samples is 3, and 2 for shuffled{REST}"),
        ('evaluate.settings=[\\"1/1\\"]',
         f"evaluate.settings is ['1/1'], and ['1/1', '0.6/0.95'] for shuffled{REST}"),
        ("sample.max_new_tokens=8", "sample.max_new_tokens is 8, and "),
        ("model.template=boxed", "model.template is 'boxed', and "),
        ("task.levels=[1]", f"task.levels is [1], and [3] for shuffled{REST}"),
        ("task.dataset=a:b.c", f"task.dataset is 'a:b.c', and '' for shuffled{REST}"),
    ],
)  # fmt: skip
def test_an_arm_that_is_judged_otherwise(tmp_path: Path, option: str, said: str) -> None:
    path = with_arm(tmp_path, option)
    with pytest.raises(PoiseError) as fault:
        read_experiment(path)
    assert str(fault.value).startswith(f"{path}: [experiment.arms] other: {said}")
    assert "\n" not in str(fault.value)


def test_a_temperature_that_the_judging_follows(tmp_path: Path) -> None:
    """Not where the settings are written out."""
    read_experiment(with_arm(tmp_path, "sample.temperature=0.7"))
    follows = RUN.replace('["1/1", "0.6/0.95"]', '["training"]')
    with pytest.raises(
        PoiseError, match=r"evaluate.settings is \['0.7/1'\], and \['1/1'\] for shuf"
    ):
        read_experiment(with_arm(tmp_path, "sample.temperature=0.7", run=follows))


def test_what_only_training_depends_on(tmp_path: Path) -> None:
    options = ("task.size=32", "task.slips=0.1", "verify.workers=2")
    found = read_experiment(with_arm(tmp_path, *options, 'verify.also=[\\"equations\\"]'))
    assert list(found.design.arms) == ["shuffled", "QB", "other"]


def test_a_reward_of_ones_own_counts_by_its_content(tmp_path: Path) -> None:
    for name, text in (("a", "f = max\n"), ("b", "f = max\n"), ("c", "f = min\n")):
        (tmp_path / f"{name}.py").write_text(text)
    run = RUN.replace("workers = 1", 'name = "a.py:f"')
    read_experiment(with_arm(tmp_path, f"verify.name={tmp_path}/b.py:f", run=run))
    with pytest.raises(PoiseError, match=r"verify.name is c\.py:f, and a\.py:f for shuffled"):
        read_experiment(with_arm(tmp_path, f"verify.name={tmp_path}/c.py:f", run=run))
