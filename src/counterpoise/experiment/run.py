"""`poise experiment`: train every arm, rate and seed of a file, then judge and draw what is there.

    DIR/NAME.toml         the experiment file, as it was
    DIR/runs/             one folder a run, small: no rollouts, no model
    DIR/curves.parquet    all finished runs, a row an iteration; written anew whenever one ends
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
from counterpoise.experiment import finding as findings
from counterpoise.experiment import pilot
from counterpoise.experiment.curves import Runs, read_run
from counterpoise.experiment.design import Key
from counterpoise.experiment.file import Experiment, read_experiment
from counterpoise.experiment.pieces import (
    NAME,
    check_starts,
    in_order,
    read_pieces,
    starts,
    write_piece,
)
from counterpoise.experiment.runs import Fleet, Standing
from counterpoise.statistics.finding import Finding, as_json
from counterpoise.store.atomic import replacing
from counterpoise.store.folder import RunFolder, check_no_run


@dataclass
class Bench:
    """An experiment and where it is made."""

    experiment: Experiment
    out: Path
    runs: Runs = field(default_factory=dict)  # finished
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, experiment: Experiment, source: Path, out: Path) -> Bench:
        """Read what is known; the file is copied, so that the folder explains itself."""
        check_no_run(out, "an experiment")
        copy = out / f"{experiment.name}.toml"
        if copy.is_file() and read_experiment(copy).digest != experiment.digest:
            raise PoiseError(
                f"{out} holds the experiment of another {copy.name}: choose another --out"
            )
        try:
            (out / "pieces").mkdir(parents=True, exist_ok=True)
            with replacing(copy) as temporary:
                temporary.write_bytes(source.read_bytes())
        except OSError as fault:
            raise PoiseError(f"{out} cannot be used: {fault.strerror}") from fault
        return cls(experiment, out, read_pieces(out, experiment))

    def train(
        self,
        keys: Sequence[Key],
        jobs: int,
        tell: Callable[[Standing], None],
        minutes: float | None = None,
    ) -> None:
        """The runs of `keys` that are not known yet."""
        wanted = {key.name: key for key in keys if key not in self.runs}
        if not wanted:
            return
        start = self.experiment.start()
        check_starts(starts(self.runs) | {start}, self.experiment, self.experiment.run.model.name)
        plan = self.experiment.design
        options = {name: plan.overrides(key) for name, key in wanted.items()}
        fleet = Fleet(options, self.out / "runs", base=plan.base)
        for name, key in wanted.items():
            if fleet.finished(name):
                self._take(key, start)
        self.save()

        def ended(name: str) -> None:
            self._take(wanted[name], start)
            self.save()

        try:
            fleet.train(jobs, tell, ended, minutes)
        finally:
            self.failures = fleet.failures

    def _take(self, key: Key, start: str) -> None:
        curve = read_run(RunFolder.open(self.out / "runs" / key.name))
        self.runs[key] = [{"start": start, **r} for r in curve]

    def save(self) -> None:
        """curves.parquet, whole."""
        self.runs = in_order(self.runs, self.experiment)
        if self.runs:
            write_piece(self.out / NAME, self.runs, self.experiment)

    # -- what it came to -----------------------------------------------------------------------

    def conclude(self) -> str:
        """Judge, write tables, and return what is to be said in the end."""
        if self.experiment.options.pilot:
            choice = pilot.choose(self.runs, self.experiment)
            self._write("results.md", pilot.markdown(choice))
            return str(choice)
        finding = findings.judge(self.runs, self.experiment)
        self._write("results.md", findings.markdown(self.runs, self.experiment))
        self._write(f"{self.experiment.name}.json", self._found(finding))
        return f"{finding.verdict}. {finding.because}"

    def _found(self, finding: Finding) -> str:
        """As a study's, so that `poise report` shows it among them."""
        options, run = self.experiment.options, self.experiment.run
        seconds = sum(r.get("iteration_seconds") or 0.0 for c in self.runs.values() for r in c)
        about = {
            "study": self.experiment.name,
            "title": options.title or self.experiment.name,
            "shows": options.shows,
            "claim": options.claim,
            "rule": options.rule,
            "model": run.model.name,
            "sizes": {
                "arms": list(self.experiment.design.arms),
                "rates": list(self.experiment.design.rates),
                "seeds": options.seeds,
                "iterations": run.loop.iterations,
                "rollouts": f"{run.sample.prompts} x {run.sample.group_size}",
                "steps": run.batch.steps,
                "heldout": f"{run.evaluate.prompts} x {run.evaluate.samples}",
                "digest": self.experiment.digest,
            },
        }
        return as_json(about, finding, seconds)

    def _write(self, name: str, text: str) -> None:
        with replacing(self.out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def draw(self) -> list[Path]:
        """Figures and the page; needs altair, which a machine that only trains may not have."""
        from counterpoise.experiment.charts import figures
        from counterpoise.report.figures import write_figures
        from counterpoise.report.studies import write_studies

        written = []
        for part, drawn in figures(self.runs, self.experiment).items():
            if not drawn:  # nothing to compare yet
                continue
            write_figures(drawn, self.out, f"{self.experiment.name}-{part}")
            written.append(self.out / f"{self.experiment.name}-{part}.png")
        if not self.experiment.options.pilot:
            written.append(write_studies(self.out, self.out / "report.html"))
        return written
