"""One run as the server sees it: its logs, followed as they grow, and its entry in the run list.

Numbers of metrics.jsonl are kept as columns of doubles, half a megabyte for 1,000 iterations.
Plans, drops and metrics that are lists are read from their lines when an address asks for them.
"""

from __future__ import annotations

import json
import math
import threading
import tomllib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterpoise.errors import first_line
from counterpoise.report.graded_rewards import is_graded_iteration
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.discover import is_inside
from counterpoise.serve.headlines import add_headlines
from counterpoise.serve.log_tail import LogTail, Record
from counterpoise.serve.run_state import run_state
from counterpoise.store.evaluation_records import is_graded_evaluation
from counterpoise.store.folder import CONFIG, REPLAY, is_imported
from counterpoise.store.replays import describe_replay
from counterpoise.store.schema import step_file_name

NAN = float("nan")
SPARKLINE_POINTS = 60
MOST_COLUMNS = 500  # of metrics.jsonl: a damaged or hostile log must not grow without bound
MOST_EVALUATIONS = 20_000
LONGEST_NAME = 200  # characters of a benchmark's name
LARGEST_CONFIG = 1 << 20


class RunReader:
    """The logs of one run folder.

    Example:
        reader = RunReader("demo", Path("out/demo"), roots)
        reader.refresh(); reader.columns["success"]
    """

    def __init__(self, name: str, folder: Path, roots: list[Path]) -> None:
        self.name = name
        self.folder = folder
        self.roots = roots
        self.lock = threading.RLock()
        self.iterations: array[int] = array("q")
        self._place_of_iteration: dict[int, int] = {}  # in `iterations` and in every column
        self.columns: dict[str, array[float]] = {}  # NaN: absent, or not a number
        self.not_finite: dict[str, set[int]] = {}  # column -> iterations with NaN or an infinity
        self.evaluations: list[Record] = []
        self.benchmarks: list[Record] = []
        self.is_graded = False  # rewards other than 0 and 1 occurred; see curve_name
        self.state = "torn"
        self.version = 0  # grows whenever a log or the state changes
        self._config: tuple[tuple[int, int] | None, dict[str, Any] | None, str | None] | None = None
        self.metrics = self._tail("metrics", self._take_metrics, self._clear_metrics)
        self.evaluation_log = self._tail(
            "evaluations", self._take_evaluation, lambda: self.evaluations.clear()
        )
        self.benchmark_log = self._tail(
            "benchmarks",
            lambda record: _keep_numbers(record, self.benchmarks),
            lambda: self.benchmarks.clear(),
        )
        self.plans = self._tail("plans")
        self.drops = self._tail("drops")
        self.gaps = self._tail("gaps")

    def _tail(
        self,
        log: str,
        on_record: Callable[[Record], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> LogTail:
        return LogTail(self.folder / f"{log}.jsonl", self.may_read, on_record, on_restart)

    # -- following -----------------------------------------------------------------------------

    def refresh(self, locks: set[tuple[int, int, int]] | None) -> bool:
        """Read what the logs gained; returns whether the run changed."""
        with self.lock:
            changed = [tail.poll() for tail in self._followed_logs()]
            state = run_state(
                self.folder,
                last_iteration=self.last_iteration,
                planned_iterations=self.planned_iterations,
                updated=self.updated,
                is_torn=self.problem is not None,
                locks=locks,
            )
            is_changed = any(changed) or state != self.state
            self.state = state
            self.version += is_changed
            return is_changed

    def follow_batches(self) -> None:
        """Read what plans.jsonl and drops.jsonl gained; only views of batches need them."""
        self.plans.poll()
        self.drops.poll()

    def _followed_logs(self) -> tuple[LogTail, ...]:
        return self.metrics, self.evaluation_log, self.benchmark_log

    def _take_metrics(self, record: Record) -> None:
        iteration = record["iteration"]
        self.is_graded = self.is_graded or is_graded_iteration(record)
        place = self._place_of_iteration.setdefault(iteration, len(self.iterations))
        if place == len(self.iterations):
            self.iterations.append(iteration)
            for column in self.columns.values():
                column.append(NAN)
        else:  # a line that repeats an iteration replaces the earlier one, in its place
            for column in self.columns.values():
                column[place] = NAN
            for iterations in self.not_finite.values():
                iterations.discard(iteration)
        for field, value in record.items():
            if isinstance(value, bool):
                value = float(value)
            if field in ("schema", "iteration") or not isinstance(value, int | float):
                continue
            if field not in self.columns:
                if len(self.columns) >= MOST_COLUMNS:
                    continue
                self.columns[field] = array("d", [NAN]) * len(self.iterations)
            try:
                self.columns[field][place] = float(value)
            except OverflowError:  # an integer of hundreds of digits
                continue
            if not math.isfinite(value):
                self.not_finite.setdefault(field, set()).add(iteration)

    def metrics_of(self, iteration: int) -> dict[str, float]:
        """The numbers of one line of metrics.jsonl, by column; empty if there is no such line."""
        with self.lock:
            place = self._place_of_iteration.get(iteration)
            if place is None:
                return {}
            return {name: column[place] for name, column in self.columns.items()}

    def _clear_metrics(self) -> None:
        self.iterations = array("q")
        self._place_of_iteration.clear()
        self.columns.clear()
        self.not_finite.clear()
        self.is_graded = any(map(is_graded_evaluation, self.evaluations))

    def _take_evaluation(self, record: Record) -> None:
        self.is_graded = self.is_graded or is_graded_evaluation(record)
        _keep_numbers(record, self.evaluations)

    # -- reading files -------------------------------------------------------------------------

    def may_read(self, path: Path) -> bool:
        """Whether a path, its links followed, lies in the served folders."""
        return is_inside(path, self.roots)

    def file(self, *parts: str) -> Path:
        """A file of the run that exists; NotFoundError if not, or if a link leads out."""
        path = self.folder.joinpath(*parts)
        if not self.may_read(path):
            raise NotFoundError(f"{'/'.join(parts)} is a link that leads out of the served folders")
        if not path.is_file():
            raise NotFoundError(f"{self.name} has no {'/'.join(parts)}")
        return path

    def step_file(self, kind: str, iteration: int) -> Path:
        return self.file(step_file_name(kind, iteration))

    # -- what is known of the run --------------------------------------------------------------

    @property
    def last_iteration(self) -> int:
        return self.iterations[-1] if self.iterations else 0

    @property
    def updated(self) -> float:
        """Time of the last change, in unix seconds."""
        return max(log.modified for log in self._followed_logs()) or _time_of(self.folder)

    @property
    def problem(self) -> str | None:
        """The first thing that is wrong with the folder; None if nothing is known."""
        logs = (*self._followed_logs(), self.plans, self.drops)
        return self._read_config()[1] or next((log.problem for log in logs if log.problem), None)

    @property
    def config(self) -> dict[str, Any] | None:
        """Options by section; None where config.toml is absent or damaged."""
        return self._read_config()[0]

    @property
    def planned_iterations(self) -> int | None:
        loop_options = (self.config or {}).get("loop")
        iterations = loop_options.get("iterations") if isinstance(loop_options, dict) else None
        return iterations if isinstance(iterations, int) else None

    @property
    def replay(self) -> dict[str, Any] | None:
        """Whose rollouts a replay took, and how many of their iterations; None for other runs.

        `planned` is None for an unfinished replay that was begun before release 0.3.0.
        """
        if not self.may_read(self.folder / REPLAY):
            return None
        try:
            description = describe_replay(self.folder)
        except OSError:  # a folder that may not be read
            return None
        if description is None:
            return None
        numbers = description.iterations
        planned = len(self.iterations) if self.state == "finished" else None
        return {
            "source": description.source,
            "made": len(self.iterations),
            "planned": planned if numbers is None else len(numbers),
        }

    @property
    def has_plans(self) -> bool:
        """Whether the logs tell which updates there were.

        plans.jsonl appears with the first update. Until then a run of ours is known by its count of
        waiting rollouts, which imports lack.
        """
        if self.plans.path.is_file():
            return True
        had_update = any(steps > 0 for steps in self.columns.get("steps", ()))
        return "buffer_positive" in self.columns and not had_update

    @property
    def longest_wait(self) -> int:
        """Iterations that a rollout may wait for its update, if the options say so; else 0."""
        balance_options = (self.config or {}).get("balance")
        max_age = balance_options.get("max_age") if isinstance(balance_options, dict) else None
        return max_age if isinstance(max_age, int) else 0

    def _read_config(self) -> tuple[dict[str, Any] | None, str | None]:
        path = self.folder / CONFIG
        try:
            status = path.stat()
            signature = (status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            signature = None
        except OSError as fault:  # a folder of somebody else's, say
            return None, f"{CONFIG} cannot be read: {fault.strerror}"
        if self._config is None or self._config[0] != signature:
            self._config = (signature, *self._parse_config(path, signature is not None))
        return self._config[1], self._config[2]

    def _parse_config(self, path: Path, is_there: bool) -> tuple[dict[str, Any] | None, str | None]:
        if not self.folder.is_dir():
            return None, "the folder is gone"
        if not is_there:
            missing = None if is_imported(self.folder) else f"{CONFIG} is missing"
            return None, missing
        if not self.may_read(path):
            return None, f"{CONFIG} is a link that leads out of the served folders"
        # Only read as TOML: checking the options would open the files of plugins that they name.
        try:
            tables = tomllib.loads(path.read_bytes()[:LARGEST_CONFIG].decode("utf-8"))
        except OSError as fault:
            return None, f"{CONFIG} cannot be read: {fault.strerror}"
        except (ValueError, RecursionError) as fault:
            return None, f"{CONFIG} is damaged: {first_line(fault)}"
        sections = {name: table for name, table in tables.items() if isinstance(table, dict)}
        return json.loads(json.dumps(sections, default=str)), None

    def summary(self) -> dict[str, Any]:
        """The run's entry in the list of runs."""
        with self.lock:
            curve_name = self.curve_name
            curve = self.columns.get(curve_name, array("d"))
            replay = self.replay
            return {
                "name": self.name,
                "folder": str(self.folder),
                "state": self.state,
                "iterations": self.last_iteration,
                "counted_iterations": len(self.iterations),
                # The iterations of a replay are its source's: their number is not their count.
                "planned_iterations": None if replay else self.planned_iterations,
                "replay": replay,
                "headline": self._headline(),
                "sparkline": thin_out(curve, SPARKLINE_POINTS),
                "sparkline_of": curve_name,
                "updated": self.updated,
                "problem": self.problem,
            }

    @property
    def curve_name(self) -> str:
        """The column that stands for the run in the list of runs and along the iterations.

        Success, or the mean reward where rewards are graded; an import may have rewards only.
        """
        has_success = "success" in self.columns or "reward" not in self.columns
        return "success" if has_success and not self.is_graded else "reward"

    def _headline(self) -> dict[str, Any] | None:
        """Held-out success or reward after the last evaluation, else of the last iteration.

        A run may evaluate at several sampling settings; the first one is its headline.
        """
        records = add_headlines(self.evaluations, is_graded=self.is_graded)
        settings = [(each.get("temperature"), each.get("top_p")) for each in records]
        for record, setting in zip(reversed(records), reversed(settings), strict=True):
            if setting == settings[0] and record["headline"] is not None:
                return {"label": f"held-out {record['quantity']}", "value": record["headline"]}
        curve = self.columns.get(self.curve_name)
        return {"label": self.curve_name, "value": curve[-1]} if curve else None


def thin_out(values: array[float], most: int) -> list[float]:
    """At most `most` values, each the mean of its stretch, rounded for the list.

    Example:
        >>> thin_out(array("d", [0.0, 1.0, 2.0, 4.0]), 2)
        [0.5, 3.0]
    """
    count = len(values)
    points = min(count, most)
    means = []
    for point in range(points):
        stretch = values[point * count // points : (point + 1) * count // points]
        numbers = [value for value in stretch if value == value]
        means.append(round(sum(numbers) / len(numbers), 5) if numbers else NAN)
    return means


def _keep_numbers(record: Record, records: list[Record]) -> None:
    """Append the numbers of an evaluation, and the names of a benchmark."""
    if len(records) >= MOST_EVALUATIONS:
        return
    records.append(
        {
            field: value[:LONGEST_NAME] if isinstance(value, str) else value
            for field, value in record.items()
            if value is None
            or isinstance(value, int | float)
            or (field in ("benchmark", "title") and isinstance(value, str))
        }
    )


def _time_of(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
