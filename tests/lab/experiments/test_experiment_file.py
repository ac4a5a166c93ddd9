"""Experiment files: what they say, what is refused, when two are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lab.experiments.small_experiment import EXPERIMENT, RUN, write

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.reused_runs import matching_runs


def test_a_file_is_read(tmp_path: Path) -> None:
    found = read_experiment(write(tmp_path))
    assert found.name == "small"
    assert [key.name for key in found.design.run_keys()] == [
        "shuffled-lr0.0001-seed0", "QB-lr0.0001-seed0",
        "shuffled-lr0.0001-seed1", "QB-lr0.0001-seed1",
    ]  # fmt: skip
    assert found.hypotheses == (("QB", "better"),)
    assert found.heldout_columns == {"heldout": "1/1", "heldout@0.6/0.95": "0.6/0.95"}
    assert (found.baseline, found.family) == ("shuffled", 1)
    config = load_config(
        found.design.base, list(found.design.overrides(found.design.run_keys()[3]))
    )
    assert (config.batch.composer, config.update.lr, config.loop.seed) == ("grouped", 1e-4, 1)


def test_an_arm_may_train_at_a_share_of_the_rate(tmp_path: Path) -> None:
    shares = EXPERIMENT.replace("seeds = 2", 'seeds = 2\nrate_shares = ["QB=0.75"]')
    found = read_experiment(write(tmp_path, shares))
    rates = {
        key.arm: load_config(found.design.base, list(found.design.overrides(key))).update.lr
        for key in found.design.run_keys()
    }
    assert rates == {"shuffled": 1e-4, "QB": pytest.approx(7.5e-5)}
    assert "QB-lr0.0001-seed0" in [key.name for key in found.design.run_keys()]
    for wrong, message in (
        ("RB=0.5", "unknown arm 'RB'"),
        ("QB", "write ARM=SHARE"),
        ("QB=0", "write ARM=SHARE"),
        ("QB=nan", "write ARM=SHARE"),
        ('QB=0.5", "QB=0.75', "names QB twice"),
    ):
        with pytest.raises(PoiseError, match=message):
            read_experiment(write(tmp_path, shares.replace("QB=0.75", wrong)))


def test_names_of_arms_may_contain_an_equals_sign(tmp_path: Path) -> None:
    options = 'seeds = 2\nrate_shares = ["tau=0=0.75"]\nengines = ["tau=0=trl"]'
    text = EXPERIMENT.replace("seeds = 2", options).replace("QB = [", '"tau=0" = [')
    run = RUN + "[balance]\ntau = 0.0\n"
    design = read_experiment(write(tmp_path, text.replace("QB >", "tau=0 >"), run)).design
    assert (design.rate_shares, design.engines) == ({"tau=0": 0.75}, {"tau=0": "trl"})


@pytest.mark.parametrize("option", ["update.lr=1e-3", "loop.seed=7"])
def test_an_arm_cannot_set_what_the_design_sets(option: str, tmp_path: Path) -> None:
    """Its runs would have the rate and the seed of all others."""
    arm = EXPERIMENT.replace('composer=grouped"', f'composer=grouped", "{option}"')
    with pytest.raises(PoiseError, match=f"QB cannot set {option.partition('=')[0]}: experiment"):
        read_experiment(write(tmp_path, arm))


def test_an_experiment_needs_held_out_success(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match=r"evaluate\.prompts=0: an experiment compares arms by"):
        read_experiment(
            write(tmp_path, run=RUN.replace("prompts = 4\nsamples", "prompts = 0\nsamples"))
        )


def test_it_is_an_ordinary_run_as_well(tmp_path: Path) -> None:
    assert load_config(write(tmp_path)).loop.iterations == 2


def test_the_digest_is_of_what_decides(tmp_path: Path) -> None:
    """Comments and the place of the model do not; a seed more does."""
    first = read_experiment(write(tmp_path)).digest
    assert read_experiment(write(tmp_path, "# again\n" + EXPERIMENT)).digest == first
    assert read_experiment(write(tmp_path), model="elsewhere").digest == first
    more = EXPERIMENT.replace("seeds = 2", "seeds = 3")
    assert read_experiment(write(tmp_path, more)).digest != first
    assert read_experiment(write(tmp_path, run=RUN + "[update]\nclip_low = 0.1\n")).digest != first


def test_a_function_of_the_users_counts_by_its_content(tmp_path: Path) -> None:
    """For all arms, or one of them; where the file lies does not count."""
    plain = read_experiment(write(tmp_path)).digest
    for change in (
        {"run": RUN.replace("workers = 1", 'name = "mine.py:f"')},
        {"run": RUN.replace("workers = 1", 'also = ["overlong", "mine.py:f=0.5"]')},
        {"experiment": EXPERIMENT.replace("composer=grouped", f"composer={tmp_path}/mine.py:f")},
    ):
        found = []
        for text in ("f = max\n", "f = min\n", "f = max\n"):
            (tmp_path / "mine.py").write_text(text)
            found.append(read_experiment(write(tmp_path, **change)).digest)
        assert found[0] == found[2]
        assert len({plain, *found}) == 3


def test_a_file_without_such_functions_keeps_its_digest() -> None:
    """That of the runs that were made with it."""
    name, data = "smollm2-interventions", Path(__file__).parents[3] / "docs" / "data"
    stored = pq.read_schema(data / f"{name}.parquet").metadata[b"digest"]
    assert read_experiment(name).digest == stored.decode() == "0b031ea447cfd4a7"


def test_the_start_is_known_by_its_weights(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert read_experiment(file).start_digest() == "embedded"
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "model.safetensors").write_bytes(b"weights")
    a, b = (read_experiment(file, model=str(tmp_path / p)).start_digest() for p in ("a", "b"))
    assert a == b != "embedded"
    (tmp_path / "b" / "model.safetensors").write_bytes(b"others")
    assert read_experiment(file, model=str(tmp_path / "b")).start_digest() != a


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (EXPERIMENT, "", "no section"),
        ("seeds = 2", "sedes = 2", "did you mean 'seeds'"),
        ("seeds = 2", 'seeds = "two"', "experiment.seeds must be a whole number"),
        ('rule = "replicated when it is"', "", "experiment.rule is missing"),
        ('baseline = "shuffled"', 'baseline = "shufled"', "did you mean 'shuffled'"),
        ("rates = [1e-4]", "rates = [1e-4, 1e-4]", "a learning rate twice"),
        ("seeds = 2", 'engines = ["qb=trl"]', r"experiment\.engines: unknown arm 'qb'"),
        ("seeds = 2", 'engines = ["QB=trl", "QB=trl"]', r"experiment\.engines names QB twice"),
        ("seeds = 2", 'engines = ["QB=verl"]', r"experiment\.engines: unknown engine 'verl'"),
        ("rates = [1e-4]", "rates = [0.0]", "must be a number above 0, not 0$"),
        ("rates = [1e-4]", "rates = [1e-4, -1e-4]", "must be a number above 0, not -0.0001$"),
        ("rates = [1e-4]", "rates = [inf]", "must be a number above 0, not inf$"),
        ("rates = [1e-4]", "rates = [nan]", "must be a number above 0, not nan$"),
        ("QB > shuffled", "QB >= shuffled", "must be 'ARM > shuffled'"),
        ("QB > shuffled", "QB <> shuffled", "must be 'ARM > shuffled'"),
        ("QB > shuffled", "QD > shuffled", "unknown arm 'QD'"),
        ("QB > shuffled", "shuffled > shuffled", "compares an arm with itself"),
        ("QB = [", '"Q B" = [', "cannot be part of a file name"),
        ("seeds = 2", 'benchmarks = ["math500"]', r"set store\.model = true"),
        ("seeds = 2", "seeds = 1\ntuned = true", "raise experiment.seeds to 2 or more"),
        ("seeds = 2", 'rates_from = "p"\nrate_shares = ["QB=0.5"]', "pilot chooses the rate of"),
        ('["batch.composer=grouped"]', '"grouped"', "must be a list of options"),
        ("composer=grouped", "composer=groupd", "did you mean 'grouped'"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(PoiseError, match=said) as fault:
        read_experiment(write(tmp_path, EXPERIMENT.replace(before, after)))
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("composer=grouped", "composr=grouped",
         "[experiment.arms] QB: batch.composr=grouped: in [batch]: unknown option 'composr': "
         "did you mean 'composer'?"),
        ("composer=shuffled", "composer=whole",
         "[experiment.arms] shuffled: batch.composer=whole makes one step: set batch.steps=1"),
        ("composer=shuffled", "steps", "[experiment.arms] shuffled: batch.steps: write section."),
        (EXPERIMENT[EXPERIMENT.index("[experiment.arms]"):],
         'engines = ["QB=trl"]\n[experiment.arms]\nshuffled = []\nQB = ["batch.composer=coupled"]',
         "[experiment.arms] QB: --engine trl cannot honour batch.composer=coupled"),
        ("[1e-4]", "[1e-4, -1.0]",
         "experiment.rates: a learning rate must be a number above 0, not -1"),
    ],
)  # fmt: skip
def test_a_fault_of_an_arm_or_a_rate_is_told_with_its_place(
    tmp_path: Path, before: str, after: str, place: str
) -> None:
    path = write(tmp_path, EXPERIMENT.replace(before, after))
    with pytest.raises(PoiseError) as fault:
        read_experiment(path)
    assert str(fault.value).startswith(f"{path}: {place}")


def test_a_fault_of_the_run_itself_is_not_told_of_an_arm(tmp_path: Path) -> None:
    path = write(tmp_path, run=RUN.replace("prompts = 4\nmax", "promts = 4\nmax"))
    with pytest.raises(PoiseError) as fault:
        read_experiment(path)
    assert str(fault.value).startswith(f"{path}: in [sample]: unknown option 'promts'")


@pytest.mark.parametrize("name", ["smollm2-interventions", "smollm2-pilot"])
def test_the_experiments_of_the_repository(name: str) -> None:
    found = read_experiment(name)
    assert found.design.arms["shuffled"] == ("batch.composer=shuffled", "balance.tau=0")
    assert not found.run_config.store.model


def test_waiting_is_asked_of_the_same_run() -> None:
    first, second = (read_experiment(f"smollm2-{n}") for n in ("interventions", "waiting"))
    assert second.run_config.balance == first.run_config.balance
    assert second.run_config.batch == replace(first.run_config.batch, composer="shuffled")
    for stage in ("loop", "task", "sample", "update", "evaluate", "monitor", "store"):
        assert getattr(second.run_config, stage) == getattr(first.run_config, stage)
    known = matching_runs({key: [key._asdict()] for key in first.design.run_keys()}, first, second)
    assert [key for key in second.design.run_keys() if key not in known] == [
        key for key in second.design.run_keys() if key.arm == "waits"
    ]
    assert len(known) == 2 * 2 * 16  # RB and shuffled are trained once


def test_pilot_and_experiment_share_their_run_and_no_seed() -> None:
    pilot, experiment = (read_experiment(f"smollm2-{n}") for n in ("pilot", "interventions"))
    assert pilot.run_config == experiment.run_config
    assert not set(pilot.design.seeds) & set(experiment.design.seeds)
    assert len(experiment.design.run_keys()) == 7 * 2 * 16
