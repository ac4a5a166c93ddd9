"""`poise experiment`: train every arm, rate and seed of a file, then judge and draw what is there.

    DIR/NAME.toml         the experiment file, as it was
    DIR/runs/             one folder a run, small: no rollouts, no model
    DIR/curves.parquet    all finished runs, a row an iteration, and which failed; written anew
                          whenever one ends
    DIR/pieces/           curves.parquet of other folders: their runs count as finished here
    DIR/NAME.json         numbers and verdict        DIR/results.md     the same as tables
    DIR/NAME-*.svg .png   figures                    DIR/report.html    one page

Runs that are in the table or in a piece are not trained again, whether or not their folder is
there. Nothing is judged on half a run: one that is not finished does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.files import replacing
from counterpoise.lab.experiments import pilot
from counterpoise.lab.experiments import verdicts as findings
from counterpoise.lab.experiments.curves import Runs, read_curve, run_seconds
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.failures import describe_pilot_failures
from counterpoise.lab.experiments.header import markdown_heading, result_header
from counterpoise.lab.experiments.pieces import (
    CURVES_FILE,
    Piece,
    check_starts,
    order_runs,
    read_pieces,
    start_digests,
    write_piece,
)
from counterpoise.lab.experiments.processes import Fleet, FleetProgress
from counterpoise.lab.experiments.reused_runs import run_origins
from counterpoise.statistics.finding import Finding, as_json
from counterpoise.store.folder import RunFolder, check_no_run


@dataclass
class ExperimentRunner:
    """An experiment and where it is made."""

    experiment: Experiment
    out: Path
    runs: Runs  # finished
    failures: dict[RunKey, str]  # here and in pieces, now and before
    new_failures: list[RunKey] = field(default_factory=list)

    @classmethod
    def open(cls, experiment: Experiment, source: Path, out: Path) -> ExperimentRunner:
        """Read what is known; the file is copied, so that the folder explains itself."""
        check_no_run(out, "an experiment")
        copy, text = out / f"{experiment.name}.toml", source.read_bytes()
        edited = copy.is_file() and copy.read_bytes() != text
        if edited and read_experiment(copy).digest != experiment.digest:
            raise PoiseError(
                f"{out} holds the experiment of another {copy.name}: choose another --out; to keep "
                f'its runs (more seeds, say) write shares = ["{copy}"] into the file and put '
                f"{out / CURVES_FILE} into pieces/ of the new folder"
            )
        try:
            (out / "pieces").mkdir(parents=True, exist_ok=True)
            with replacing(copy) as temporary:
                temporary.write_bytes(text)
        except OSError as fault:
            raise PoiseError(f"{out} cannot be used: {fault.strerror}") from fault
        known = read_pieces(out, experiment)
        return cls(experiment, out, known.runs, dict(known.failures))

    def train(
        self,
        keys: Sequence[RunKey],
        jobs: int,
        on_progress: Callable[[FleetProgress], None],
        minutes: float | None = None,
    ) -> None:
        """The runs of `keys` that are not known yet; in no time none, and no model is asked for."""
        wanted = {key.name: key for key in keys if key not in self.runs}
        if not wanted or minutes == 0:
            return
        start = self.experiment.start_digest()
        check_starts(
            start_digests(self.runs) | {start},
            self.experiment,
            self.experiment.run_config.model.name,
        )
        plan = self.experiment.design
        options = {name: plan.overrides(key) for name, key in wanted.items()}
        fleet = Fleet(options, self.out / "runs", base=plan.base)
        for name, key in wanted.items():
            if fleet.finished(name):
                self._take(key, start)
        self.save_curves()

        def ended(name: str) -> None:
            self._take(wanted[name], start)
            self.save_curves()

        try:
            fleet.train(jobs, on_progress, ended, minutes)
        finally:
            self.new_failures = [wanted[name] for name in fleet.failures]
            self.failures |= {wanted[name]: said for name, said in fleet.failures.items()}

    def _take(self, key: RunKey, start: str) -> None:
        curve = read_curve(RunFolder.open(self.out / "runs" / key.name))
        self.runs[key] = [{"start": start, **r} for r in curve]

    def save_curves(self) -> None:
        """curves.parquet, whole."""
        known = order_runs(Piece(self.runs, self.failures), self.experiment)
        self.runs, self.failures = known.runs, dict(known.failures)
        if self.runs or self.failures:
            write_piece(self.out / CURVES_FILE, known, self.experiment)

    # -- what it came to -----------------------------------------------------------------------

    def conclude(self) -> str:
        """Judge, write tables, and return what is to be said in the end."""
        if self.experiment.options.pilot:
            choice = pilot.choose_rates(self.runs, self.experiment)
            failed = describe_pilot_failures(self.failures, self.runs)
            tables = pilot.pilot_markdown(choice, failed)
            self._write("results.md", markdown_heading(self.experiment, self.runs) + tables)
            return str(choice)
        finding = findings.judge_experiment(self.runs, self.experiment, self.failures)
        tables = findings.results_markdown(self.runs, self.experiment, self.failures)
        self._write("results.md", markdown_heading(self.experiment, self.runs) + tables)
        self._write(f"{self.experiment.name}.json", self._found(finding))
        return f"{finding.verdict}. {finding.because}"

    def _found(self, finding: Finding) -> str:
        """NAME.json."""
        seconds = sum(run_seconds(curve) for curve in self.runs.values())
        found = {
            "hypotheses": findings.hypothesis_verdicts(self.runs, self.experiment),
            "shared": run_origins(self.runs),
        }
        return as_json(result_header(self.experiment) | found, finding, seconds)

    def _write(self, name: str, text: str) -> None:
        with replacing(self.out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def draw_figures(self) -> list[Path]:
        """Figures and the page; needs altair, which a machine that only trains may not have."""
        from counterpoise.lab.experiments.charts import experiment_figures
        from counterpoise.lab.studies.page import write_studies
        from counterpoise.report.charts.figures import write_figures

        written = []
        for part, drawn in experiment_figures(self.runs, self.experiment).items():
            if not drawn:  # nothing to compare yet
                continue
            write_figures(drawn, self.out, f"{self.experiment.name}-{part}")
            written.append(self.out / f"{self.experiment.name}-{part}.png")
        if not self.experiment.options.pilot:
            written.append(write_studies(self.out, self.out / "report.html"))
        return written
