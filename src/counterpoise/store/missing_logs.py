"""Find lines and files of past iterations that are missing from the folder of a resumed run.

    metrics.jsonl       every iteration
    plans.jsonl         iterations with a batch, as metrics.jsonl says
    drops.jsonl         iterations that dropped rollouts, as metrics.jsonl says
    evaluations.jsonl   0 and every `evaluate.every`, a line for each of evaluate.settings; the
                        evaluation after the checkpoint's own iteration may still follow
    rollouts/           every iteration, with store.rollouts
    tokens/             iterations that took an optimizer step, with store.tokens

None of them can be rebuilt exactly from the others: rollouts/ holds rounded log-probabilities and
no credit, and the weights of past iterations are gone. The user may let a run continue without
them; gaps.jsonl then records what is missing, and the next resume accepts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import parse_settings
from counterpoise.errors import PoiseError, format_ranges
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import ResumePermissions

MissingLogs = dict[str, list[int]]  # log or folder -> iterations that it lacks


def settle_missing_logs(
    folder: RunFolder,
    config: RunConfig,
    iteration: int,
    evaluated: bool,
    permissions: ResumePermissions,
    notify: Callable[[str], None],
) -> None:
    """Refuse to resume after `iteration` with incomplete logs, or record the gap if permitted."""
    missing = find_missing_logs(folder, config, iteration, evaluated=evaluated)
    if not missing:
        return
    if not permissions.missing_logs:
        raise PoiseError(
            f"{folder.path} has lost part of its logs: {describe_missing(missing)}. They cannot be "
            "rebuilt: restore the files from a backup, or continue without them with --resume "
            "--accept-missing-logs, which records the gap in gaps.jsonl"
        )
    folder.append("gaps", {"iteration": iteration, "missing": missing})
    notify(f"continuing although {describe_missing(missing)}: recorded in gaps.jsonl")


def find_missing_logs(
    folder: RunFolder, config: RunConfig, iteration: int, *, evaluated: bool
) -> MissingLogs:
    """What iterations 1 to `iteration` should have left but is neither there nor a known gap."""
    past = range(1, iteration + 1)
    lines = {line["iteration"]: line for line in folder.read("metrics")}
    absent: MissingLogs = {
        "metrics.jsonl": _absent_from(past, lines),
        "plans.jsonl": _absent_from(
            _iterations_with_plan(lines), _iterations_in_log(folder, "plans")
        ),
        "drops.jsonl": _absent_from(
            _iterations_with_drops(lines, config), _iterations_in_log(folder, "drops")
        ),
    }
    if evaluated:
        counts = Counter(line["iteration"] for line in folder.read("evaluations"))
        lines_per_evaluation = len(parse_settings(config.evaluate.settings, config.sample))
        every = config.evaluate.every
        due = [
            number for number in range(iteration) if number == 0 or (every and number % every == 0)
        ]
        absent["evaluations.jsonl"] = [
            number for number in due if counts[number] < lines_per_evaluation
        ]
    if config.store.rollouts:
        absent["rollouts/"] = _absent_from(past, _iterations_with_file(folder, "rollouts"))
    if config.store.tokens:
        stepped = [number for number, line in lines.items() if line.get("steps")]
        absent["tokens/"] = _absent_from(stepped, _iterations_with_file(folder, "tokens"))
    recorded = _recorded_gaps(folder)
    unrecorded = {
        name: sorted(n for n in numbers if n <= iteration and n not in recorded.get(name, ()))
        for name, numbers in absent.items()
    }
    return {name: numbers for name, numbers in unrecorded.items() if numbers}


def describe_missing(missing: MissingLogs) -> str:
    """What is missing, for a message.

    Example:
        >>> described({"metrics.jsonl": [1, 2, 3], "plans.jsonl": [7]})
        'metrics.jsonl lacks iterations 1-3, plans.jsonl lacks iteration 7'
    """
    return ", ".join(
        f"{name} lacks iteration{'s' if len(numbers) > 1 else ''} {format_ranges(numbers)}"
        for name, numbers in missing.items()
    )


def _iterations_with_plan(lines: dict[int, dict[str, Any]]) -> list[int]:
    return [number for number, line in lines.items() if line.get("batch_rows")]


def _iterations_with_drops(lines: dict[int, dict[str, Any]], config: RunConfig) -> list[int]:
    """Iterations whose metrics prove a drop."""
    iterations = []
    for number, line in lines.items():
        previous = lines.get(number - 1) if number > 1 else {}
        # These counts are totals since the run began, so a drop shows as growth.
        counts = ("dropped_surplus", "dropped_aged")
        grown = previous is not None and any(line.get(c, 0) > previous.get(c, 0) for c in counts)
        no_signal = config.balance.tau > 0 and line.get("rows_without_signal")
        if grown or no_signal or line.get("dropped_no_spread"):
            iterations.append(number)
    return iterations


def _iterations_in_log(folder: RunFolder, log: str) -> set[int]:
    return {line["iteration"] for line in folder.read(log)}


def _iterations_with_file(folder: RunFolder, kind: str) -> set[int]:
    """Iterations with a file that is not empty; a power cut may leave empty ones."""
    return {n for n, path in folder.step_files(kind).items() if path.stat().st_size}


def _absent_from(due: Iterable[int], there: Iterable[int]) -> list[int]:
    present = set(there)
    return [number for number in due if number not in present]


def _recorded_gaps(folder: RunFolder) -> dict[str, set[int]]:
    gaps: dict[str, set[int]] = {}
    for line in folder.read("gaps"):
        for name, numbers in line["missing"].items():
            gaps.setdefault(name, set()).update(numbers)
    return gaps
