"""Read an experiment file: a run file with an [experiment] section (arms, rates, hypotheses).

    [experiment]
    title = "..."
    rule = "in words: what would count for the hypothesis, what against it"  # only shown
    baseline = "shuffled"
    rates = [1e-5, 4e-5]
    hypotheses = ["QB+RB > shuffled", "by_sign < shuffled"]     # the first is the verdict

    [experiment.arms]                       # name = what --set would be given
    shuffled = ["batch.composer=shuffled", "balance.tau=0"]
    QB = ["batch.composer=grouped", "balance.tau=0"]

Everything that decides the outcome is in the file before anything is trained: `margin`, `level`
and `hypotheses` (decision_rule.py). The text of `rule` is the author's and decides nothing. Every
result carries the file's digest, so pieces trained on different machines are merged only if they
come from the same file. The digest ignores comments and the path of the model (its weights have
their own digest). A plugin of the user (plugins.py) counts by the content of its file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import parse_benchmarks, parse_settings
from counterpoise.config.load import (
    find_run_file,
    load_config,
    read_section,
    read_tables,
)
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.hosts.trl import run_options as trl_options
from counterpoise.lab.experiments.arm_plugins import pin_arms, plugin_digests
from counterpoise.lab.experiments.compare import Direction
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, benchmark_column
from counterpoise.lab.experiments.design import Design
from counterpoise.lab.experiments.evaluation_parity import check_evaluated_alike
from counterpoise.lab.experiments.experiment_options import (
    ExperimentConfig,
    check_options,
    parse_engines,
    parse_rate_shares,
)
from counterpoise.lab.weights_digest import weights_digest

DESIGN_OPTIONS = {
    "update.lr": "experiment.rates has the rates; experiment.rate_shares scales them for an arm",
    "loop.seed": "experiment.first_seed and experiment.seeds have the seeds",
}


class Hypothesis(NamedTuple):
    """A claim that an arm is better or worse than the baseline.

    Example: Hypothesis("QB+RB", "better")
    """

    arm: str
    direction: Direction

    def __str__(self) -> str:
        return f"{self.arm} is {self.direction}"


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment file after reading and checking.

    Example:
        experiment = read_experiment("runs/smollm2-interventions.toml")
        experiment.design.run_keys()[0].name                      # "shuffled-lr1e-05-seed1000"
    """

    name: str  # of the file, without .toml
    options: ExperimentConfig
    run_config: RunConfig  # without any arm's options
    design: Design
    hypotheses: tuple[Hypothesis, ...]
    digest: str

    @property
    def baseline(self) -> str:
        return self.options.baseline or next(iter(self.design.arms))

    @property
    def family(self) -> int:
        """Number of comparisons whose intervals hold together: every other arm at every rate."""
        return max(1, (len(self.design.arms) - 1) * len(self.design.rates))

    @property
    def verdict_family(self) -> int:
        """Number of comparisons behind the verdicts: one per arm where arms are tuned."""
        return max(1, len(self.design.arms) - 1) if self.options.tuned else self.family

    @property
    def heldout_columns(self) -> dict[str, str]:
        """Column of success in the records -> the setting, and the benchmark if it is one."""
        options = self.run_config.evaluate
        settings = parse_settings(options.settings, self.run_config.sample)
        main_setting, *other_settings = settings
        return (
            {HELDOUT_COLUMN: str(main_setting)}
            | {f"{HELDOUT_COLUMN}@{setting}": str(setting) for setting in other_settings}
            | {
                benchmark_column(setting, benchmark): f"{setting} on {benchmark}"
                for setting in settings
                for benchmark in parse_benchmarks(options.benchmarks)
            }
        )

    def start_digest(self) -> str:
        """The starting weights of all runs: a digest of the model's files, or its name."""
        return weights_digest(self.run_config.model.name)

    def problems_digest(self) -> str:
        """A digest of the files of problems; empty if the options name no file."""
        task = self.run_config.task
        digests = []
        for path in (task.path, task.heldout_path):
            if path and Path(path).is_file():
                with Path(path).open("rb") as opened_file:
                    digests.append(file_digest(opened_file, "sha256").hexdigest())
        # One file alone keeps the digest that existing results have.
        if len(digests) > 1:
            digests = [sha256("".join(digests).encode()).hexdigest()]
        return digests[0][:16] if digests else ""


def read_experiment(
    source: str | Path, model: str | None = None, data: str | None = None
) -> Experiment:
    """Read and check an experiment file.

    `model` and `data` are the paths of the starting weights and of the problems (task.path) on this
    machine, if they differ from the file's.
    """
    path = find_run_file(source)
    tables, file_name = read_tables(path), str(path)
    experiment_table = tables.get("experiment")
    if not isinstance(experiment_table, Mapping):
        raise PoiseError(
            f"{file_name}: no section [experiment]: use `poise train` for a single run"
        )
    arms = pin_arms(_parse_arms(experiment_table.get("arms"), file_name), path)
    # Arms are free-form, so only the other options are read as a section with known names.
    plain_options = {name: value for name, value in experiment_table.items() if name != "arms"}
    options: ExperimentConfig = read_section(
        ExperimentConfig, "experiment", plain_options, file_name, {}
    )
    paths = {"model.name": model, "task.path": data}
    common = tuple(f"{option_name}={path}" for option_name, path in paths.items() if path)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rate_shares = parse_rate_shares(options.rate_shares, arms, file_name)
    engines = parse_engines(options.engines, arms, file_name)
    check_options(options, arms, file_name)
    design = Design(path, common, arms, sorted(options.rates), seeds, rate_shares, engines=engines)
    run_config = load_config(path, list(common))
    if not run_config.evaluate.prompts:
        raise PoiseError(
            f"{file_name}: evaluate.prompts=0: an experiment compares arms by held-out success"
        )
    if options.benchmarks and not run_config.store.model:
        raise PoiseError(
            f"{file_name}: experiment.benchmarks are for the trained models, which have to be "
            "kept: set store.model = true"
        )
    _check_runs(design, options.baseline or next(iter(arms)), file_name)
    hypotheses = tuple(
        _parse_hypothesis(hypothesis_text, options, arms, file_name)
        for hypothesis_text in options.hypotheses
        if hypothesis_text
    )
    return Experiment(
        path.stem, options, run_config, design, hypotheses, _digest(tables, plugin_digests(design))
    )


def _parse_arms(arm_table: Any, file_name: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(arm_table, Mapping) or not arm_table:
        raise PoiseError(f"{file_name}: [experiment.arms] names no arm")
    for arm, options in arm_table.items():
        if not isinstance(options, list) or any(not isinstance(entry, str) for entry in options):
            raise PoiseError(
                f"{file_name}: [experiment.arms] {arm} must be a list of options such as "
                '["batch.composer=grouped"]'
            )
        # The design sets these two for every run, after the options of its arm.
        for option_name, remedy in DESIGN_OPTIONS.items():
            if any(entry.partition("=")[0].strip() == option_name for entry in options):
                raise PoiseError(
                    f"{file_name}: [experiment.arms] {arm} cannot set {option_name}: {remedy}"
                )
        # The name of an arm becomes part of the names of run folders.
        if not arm or any(character in arm for character in "/\\ \t\n") or arm.startswith("."):
            raise PoiseError(
                f"{file_name}: [experiment.arms] '{arm}' cannot be part of a file name"
            )
    return {arm: tuple(options) for arm, options in arm_table.items()}


def _check_runs(design: Design, baseline: str, file_name: str) -> None:
    """Check that every rate and arm gives a valid run, and that all arms are evaluated alike."""
    # Rates are tried on the base alone first, so that a bad rate is not blamed on the first arm.
    for rate in design.rates:
        with prefix_errors(f"{file_name}: experiment.rates"):
            if not 0 < rate < math.inf:
                raise PoiseError(f"a learning rate must be a number above 0, not {rate:g}")
            load_config(design.base, [*design.common, f"update.lr={rate!r}"])
    configs = {}
    for run_key in design.run_keys()[: len(design.arms) * len(design.rates)]:
        with prefix_errors(f"{file_name}: [experiment.arms] {run_key.arm}"):
            configs[run_key.arm] = load_config(design.base, list(design.overrides(run_key)))
            if design.engine(run_key) == "trl":
                trl_options.check_options(configs[run_key.arm])
    for arm, config in configs.items():
        with prefix_errors(f"{file_name}: [experiment.arms] {arm}"):
            check_evaluated_alike(config, configs[baseline], baseline)


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Name the place in the experiment file in front of any error raised inside."""
    try:
        yield
    except PoiseError as fault:
        raise PoiseError(f"{place}: {str(fault).removeprefix('--set ')}") from fault


def _parse_hypothesis(
    hypothesis_text: str, options: ExperimentConfig, arms: Mapping[str, Any], file_name: str
) -> Hypothesis:
    baseline = options.baseline or next(iter(arms))
    words = hypothesis_text.split()
    if len(words) != 3 or words[1] not in ("<", ">") or words[2] != baseline:
        raise PoiseError(
            f"{file_name}: experiment.hypotheses: '{hypothesis_text}' must be "
            f"'ARM > {baseline}' or 'ARM < {baseline}'"
        )
    arm, relation, _ = words
    if arm not in arms:
        raise PoiseError(f"{file_name}: experiment.hypotheses: {unknown_name('arm', arm, arms)}")
    if arm == baseline:
        raise PoiseError(
            f"{file_name}: experiment.hypotheses: '{hypothesis_text}' compares an arm with itself"
        )
    return Hypothesis(arm, "better" if relation == ">" else "worse")


def _digest(tables: Mapping[str, Any], plugin_digests: Mapping[str, Any]) -> str:
    model_options = {
        option_name: option_value
        for option_name, option_value in tables.get("model", {}).items()
        if option_name != "name"
    }
    # The key "own functions" is part of the digest of existing results: keep it.
    content = {**tables, "model": model_options}
    content |= {"own functions": plugin_digests} if plugin_digests else {}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
