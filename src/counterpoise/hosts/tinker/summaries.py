"""Read tinker-cookbook's rollout summaries: a line for each trajectory.

    schema_version        1
    split, iteration      "train", or "eval/NAME", which is left out; the batch, from 0
    group_idx, traj_idx   from 0; a group is the trajectories that are compared with each other
    total_reward          the rewards of all steps, and final_reward, the grading of the group
    steps                 of each turn: ob_len and ac_len (tokens read and sampled), reward,
                          episode_done, metrics, logs
    tags, sampling_client_step, final_reward, trajectory_metrics, final_ob_len

`steps` may be without sampled tokens: a prompt that is over the token budget ends its trajectory at
once, and its reward still counts in the group's mean.

Read in tinker-cookbook at 9dfcc3a2: rl/rollout_logging.py, rl/rollout_runner.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.batch.plan_file import MOST_TOKENS
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import check_reward
from counterpoise.hosts.importing.json_lines import check_step, is_step, read_objects

KNOWN_FORMAT = "tinker-cookbook at 9dfcc3a2"
SUMMARY_SCHEMA = 1
REQUIRED_FIELDS = (
    "schema_version", "split", "iteration", "group_idx", "traj_idx", "total_reward", "steps",
)  # fmt: skip
STOP_PREFIX = "stop/"  # of the metric that says why a trajectory ended
LIMITS = {"max_tokens", "max_sampled_tokens", "context_overflow", "rollout_timeout"}
LIMIT_METRICS = ("max_tokens_reached", "context_overflow")  # also where stop/ is not written


@dataclass(frozen=True, slots=True)
class Summary:
    """A checked line.

    Example:
        Summary(group=0, member=3, reward=1.0, steps=[{"ob_len": 40, "ac_len": 57}], record={})
    """

    group: int
    member: int
    reward: float
    steps: list[dict[str, Any]]
    record: Mapping[str, Any]

    @property
    def sampled_tokens(self) -> int:
        return sum(step["ac_len"] for step in self.steps)

    @property
    def is_row(self) -> bool:
        """Whether the trainer makes a row of it: not where there are no tokens at all."""
        return any(step["ob_len"] + step["ac_len"] for step in self.steps)

    def is_finished(self, max_tokens: int | None) -> bool | None:
        """Whether it ended before any limit on tokens or time; None if that is not known.

        Where no metric says why it ended, a last turn of `max_tokens` tokens was cut off.
        """
        metrics = self.steps[-1].get("metrics")
        if not isinstance(metrics, dict):
            metrics = {}
        names = {name for name, value in metrics.items() if value}
        reasons = {name.removeprefix(STOP_PREFIX) for name in names if name.startswith(STOP_PREFIX)}
        if reasons:
            return not reasons & LIMITS
        if names.intersection(LIMIT_METRICS):
            return False
        return None if max_tokens is None else self.steps[-1]["ac_len"] < max_tokens


@dataclass(frozen=True, slots=True)
class SummaryFile:
    """The trajectories of one iteration; `evaluations` counts the lines that were left out.

    Example:
        SummaryFile(iteration=12, summaries=(...), evaluations=0)
    """

    iteration: int
    summaries: tuple[Summary, ...]
    evaluations: int


def read_summaries(file: Path) -> SummaryFile:
    summaries: dict[tuple[int, int], Summary] = {}
    evaluations = iteration = 0
    for where, record in read_objects(file, REQUIRED_FIELDS, KNOWN_FORMAT):
        if record["schema_version"] != SUMMARY_SCHEMA:
            raise PoiseError(
                f"{where}: schema_version {str(record['schema_version'])[:40]!r} is not known: "
                f"this reads {SUMMARY_SCHEMA}, as written by {KNOWN_FORMAT}"
            )
        if record["split"] != "train":
            evaluations += 1
            continue
        number = check_step(record["iteration"], where)
        if summaries and number != iteration:
            raise PoiseError(
                f"{where}: iteration {number} in a file of iteration {iteration}: give each its "
                "own file"
            )
        iteration = number
        summary = _parse_summary(record, where)
        place = (summary.group, summary.member)
        if place in summaries:
            raise PoiseError(
                f"{where}: trajectory {summary.member} of group {summary.group} is in the file "
                "twice: copy the file again"
            )
        summaries[place] = summary
    return SummaryFile(iteration, tuple(summaries.values()), evaluations)


def _parse_summary(record: dict[str, Any], where: str) -> Summary:
    group, member, steps = record["group_idx"], record["traj_idx"], record["steps"]
    if not is_step(group) or not is_step(member):
        raise PoiseError(
            f"{where}: group_idx and traj_idx must be whole numbers: written by another tool"
        )
    if not isinstance(steps, list) or not all(_has_lengths(step) for step in steps):
        raise PoiseError(
            f"{where}: each of 'steps' needs ob_len and ac_len, its numbers of tokens: written by "
            "another version or tool"
        )
    summary = Summary(group, member, check_reward(record["total_reward"], where), steps, record)
    if summary.sampled_tokens > MOST_TOKENS:
        raise PoiseError(f"{where}: more than {MOST_TOKENS} tokens: remove the line")
    return summary


def _has_lengths(step: Any) -> bool:
    return isinstance(step, dict) and is_step(step.get("ob_len")) and is_step(step.get("ac_len"))
