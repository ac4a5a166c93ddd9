"""Run an experiment: train all arms, rates and seeds, then write tables, verdict and figures.

    DIR/NAME.toml         a copy of the experiment file, and of plugins in its folder
    DIR/runs/             a small folder for each run: no rollouts, no model
    DIR/curves.parquet    all finished runs, one row per iteration, and the failures; rewritten
                          whenever a run ends
    DIR/pieces/           curves.parquet of other folders: their runs count as finished here
    DIR/NAME.json         numbers and verdict        DIR/results.md     the same as tables
    DIR/NAME-*.svg .png   figures                    DIR/report.html    one page

Runs in the table or in a piece are not trained again, even if their folder is gone. Only finished
runs count in tables and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.lab.experiments import verdicts
from counterpoise.lab.experiments.arm_plugins import plugin_files
from counterpoise.lab.experiments.curves import Runs, read_curve, run_seconds
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.header import markdown_heading, result_header
from counterpoise.lab.experiments.missing_packages import missing_packages
from counterpoise.lab.experiments.pieces import (
    CURVES_FILE,
    PROBLEMS_COLUMN,
    Piece,
    check_pilot_start,
    check_problems,
    check_starts,
    order_runs,
    problem_digests,
    read_pieces,
    start_digests,
    write_piece,
)
from counterpoise.lab.experiments.pilot import choose_rates, pilot_markdown
from counterpoise.lab.experiments.pilot_rates import (
    RATE_COLUMN,
    PilotChoice,
    PilotRuns,
    explain_missing_rates,
)
from counterpoise.lab.experiments.processes import Fleet, FleetProgress
from counterpoise.lab.experiments.reused_runs import run_origins
from counterpoise.statistics.finding import Finding, finding_to_json
from counterpoise.store.finished import has_ended
from counterpoise.store.folder import RunFolder, check_no_run


@dataclass
class ExperimentRunner:
    """An experiment, its output folder, and the runs that are known so far."""

    experiment: Experiment
    out: Path
    runs: Runs  # finished
    failures: dict[RunKey, str]  # in this folder and in pieces, from this call and earlier ones
    new_failures: list[RunKey] = field(default_factory=list)
    problems: str = ""  # digest of the file of problems, if there is one
    pilot: PilotRuns | None = None  # what the folder had of it when it was opened

    @classmethod
    def open(cls, experiment: Experiment, source: Path, out: Path) -> ExperimentRunner:
        """Open or create the output folder, and read the runs it already has."""
        check_no_run(out, "an experiment")
        # The experiment file is copied into the folder, so that its results can be understood and
        # drawn again without the original.
        stored_copy = out / f"{experiment.name}.toml"
        file_content = source.read_bytes()
        # A file that differs only in comments has the same digest and may replace the copy.
        copy_differs = stored_copy.is_file() and stored_copy.read_bytes() != file_content
        if copy_differs and read_experiment(stored_copy).digest != experiment.digest:
            raise PoiseError(
                f"{out} holds the experiment of another {stored_copy.name}: choose another --out; "
                f'to keep its runs (more seeds, say) write shares = ["{stored_copy}"] into the '
                f"file and put {out / CURVES_FILE} into pieces/ of the new folder"
            )
        try:
            (out / "pieces").mkdir(parents=True, exist_ok=True)
            with atomic_write(stored_copy) as temporary:
                temporary.write_bytes(file_content)
        except OSError as fault:
            raise PoiseError(f"{out} cannot be used: {fault.strerror}") from fault
        pieces = read_pieces(out, experiment)
        # Not before the pieces have been read: they are refused if they belong to other plugins.
        for relative_path, plugin_file in plugin_files(experiment.design).items():
            (out / relative_path).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(out / relative_path) as temporary:
                temporary.write_bytes(plugin_file.read_bytes())
        return cls(
            experiment,
            out,
            pieces.runs,
            dict(pieces.failures),
            problems=experiment.problems_digest(),
            pilot=pieces.pilot,
        )

    @property
    def pilot_choice(self) -> PilotChoice:
        """What the pilot has chosen; nothing where the file fixes the rates."""
        return self.pilot.choice if self.pilot else PilotChoice()

    def train(
        self,
        keys: Sequence[RunKey],
        jobs: int,
        on_progress: Callable[[FleetProgress], None],
        minutes: float | None = None,
    ) -> None:
        """Train the runs of `keys` that are not finished yet; `minutes=0` trains none."""
        keys_by_name = {run_key.name: run_key for run_key in keys if run_key not in self.runs}
        if minutes == 0:
            # Only runs that have ended are read. If there are none, neither the model nor the pilot
            # has to be on this machine.
            keys_by_name = {
                run_name: run_key
                for run_name, run_key in keys_by_name.items()
                if has_ended(self.out / "runs" / run_name)
            }
        if not keys_by_name:
            return
        # Hashing the weights takes a while for a large model, so it is done once.
        start_weights_digest = self.experiment.start_digest()
        check_starts(
            start_digests(self.runs) | {start_weights_digest},
            self.experiment,
            self.experiment.run_config.model.name,
        )
        check_problems(
            problem_digests(self.runs) | ({self.problems} if self.problems else set()),
            self.experiment.run_config.task.path,
        )
        self._check_pilot(keys_by_name.values(), start_weights_digest)
        design = replace(self.experiment.design, arm_rates=self.pilot_choice.rates)
        options = {
            run_name: design.overrides(run_key) for run_name, run_key in keys_by_name.items()
        }
        if minutes != 0:
            faults = missing_packages(design, keys_by_name.values())
            if faults:
                raise PoiseError("; ".join(faults))
        fleet = Fleet(
            options,
            self.out / "runs",
            base=design.base,
            start_digest=start_weights_digest,
            engines={run_name: design.engine(key) for run_name, key in keys_by_name.items()},
        )
        # Runs that finished in an earlier call, but are not in the table yet.
        for run_name, run_key in keys_by_name.items():
            if fleet.finished(run_name):
                self._add_finished(run_key, fleet.stored_start(run_name))
        check_starts(start_digests(self.runs), self.experiment, str(fleet.folder))
        self.save_curves()

        if minutes == 0:
            return

        def store_finished(name: str) -> None:
            self._add_finished(keys_by_name[name], fleet.stored_start(name))
            self.save_curves()

        try:
            fleet.train(jobs, on_progress, store_finished, minutes)
        finally:  # also after Ctrl-C: failures so far belong in the table
            self.new_failures = [keys_by_name[run_name] for run_name in fleet.failures]
            self.failures |= {
                keys_by_name[run_name]: reason for run_name, reason in fleet.failures.items()
            }

    def _check_pilot(self, keys: Iterable[RunKey], start_weights_digest: str) -> None:
        """Raise an error if a pilot is to choose the rates and cannot do so for these runs."""
        if self.pilot:
            model = self.experiment.run_config.model.name
            check_pilot_start(self.pilot, start_weights_digest, model)
        if message := explain_missing_rates(self.pilot_choice, keys, self.experiment):
            raise PoiseError(message)

    def _add_finished(self, key: RunKey, start: str) -> None:
        curve = read_curve(RunFolder.open(self.out / "runs" / key.name))
        about: dict[str, Any] = {"start": start}
        if self.problems:
            about[PROBLEMS_COLUMN] = self.problems
        if (rate := self.pilot_choice.rates.get(key.arm)) is not None:
            about[RATE_COLUMN] = rate
        self.runs[key] = [{**about, **record} for record in curve]

    def save_curves(self) -> None:
        """Rewrite curves.parquet with everything that is known."""
        ordered = order_runs(Piece(self.runs, self.failures), self.experiment)
        self.runs, self.failures = ordered.runs, dict(ordered.failures)
        if self.runs or self.failures:
            write_piece(self.out / CURVES_FILE, ordered, self.experiment)

    # -- results -------------------------------------------------------------------------------

    def conclude(self) -> str:
        """Judge the finished runs, write the tables, and return the verdict in one line."""
        if self.experiment.options.pilot:
            choice = choose_rates(self.runs, self.experiment)
            tables = pilot_markdown(choice, self.runs, self.failures, self.experiment)
            self._write("results.md", markdown_heading(self.experiment, self.runs) + tables)
            return str(choice)
        finding = verdicts.judge_experiment(self.runs, self.experiment, self.failures)
        tables = verdicts.results_markdown(self.runs, self.experiment, self.failures)
        self._write("results.md", markdown_heading(self.experiment, self.runs) + tables)
        self._write(f"{self.experiment.name}.json", self._result_json(finding))
        return f"{finding.verdict}. {finding.because}"

    def _result_json(self, finding: Finding) -> str:
        """The content of NAME.json."""
        seconds = sum(run_seconds(curve) for curve in self.runs.values())
        experiment_keys = {
            "hypotheses": verdicts.hypothesis_verdicts(self.runs, self.experiment),
            "shared": run_origins(self.runs),
        }
        return finding_to_json(result_header(self.experiment) | experiment_keys, finding, seconds)

    def _write(self, file_name: str, content: str) -> None:
        with atomic_write(self.out / file_name) as temporary:
            temporary.write_text(content, encoding="utf-8")

    def draw_figures(self) -> list[Path]:
        """Write the figures and the page; returns their paths."""
        # Imported here: a machine that only trains may not have altair.
        from counterpoise.lab.experiments.charts import experiment_figures
        from counterpoise.lab.studies.page import write_studies_page
        from counterpoise.report.charts.figures import write_figures

        written_paths = []
        for figure_group, figures in experiment_figures(self.runs, self.experiment).items():
            # A group is empty while no arm can be compared with the baseline.
            if not figures:
                continue
            write_figures(figures, self.out, f"{self.experiment.name}-{figure_group}")
            written_paths.append(self.out / f"{self.experiment.name}-{figure_group}.png")
        if not self.experiment.options.pilot:
            written_paths.append(write_studies_page(self.out, self.out / "report.html"))
        return written_paths
