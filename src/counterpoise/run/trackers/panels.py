"""Names of numbers in a tracker: PANEL/FIELD, with the field's name in metrics.jsonl.

    reward/success   heldout/success   update/entropy   monitor/cancellation   time/sample_seconds

Trackers group by what precedes the slash. Null and tables are left out; a list of numbers becomes
several names (`sample/turn_success_1`).

Held-out success is `heldout/success`, with the ends of its interval. The mean reward is
`heldout/reward`, with an interval where rewards are graded. If responses to held-out problems are
sampled under several settings, `heldout/` is the first of them; the others are named by temperature
and top-p, such as `heldout_0.6_0.95/success`. Benchmarks are named in the same way:
`benchmark_math500/success`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.microscope.monitor_records import METRIC_NAMES
from counterpoise.store.schema import PROMPT_MEMORY_METRICS

# `groups` is a field of imported runs.
PANEL_FIELDS = {
    "reward": ("success", "reward", "reward_*", "anchor_success", "mixed_groups", "verifier_*",
               "graded", "unscored", "logged_*"),
    "sample": (
        "rollouts", "groups", "rollout_tokens", "response_length", "truncated_share",
        "sampling_rounds", "turns", "turn_success", "told_tokens", *PROMPT_MEMORY_METRICS,
    ),
    "batch": (
        "batch_rows", "rows_without_signal", "positive_share", "split_groups", "token_imbalance",
        "max_abs_group_advantage_sum", "shared_token_share", "buffer_*", "dropped_*",
    ),
    "update": (
        "steps", "skipped_steps", "not_finite_steps", "loss", "grad_norm", "clipped_share",
        "capped_share", "added_loss", "chosen_share", "entropy", "old_logprob", "mean_ratio", "kl",
        "kl_coefficient", "lr", "sampler_*",
    ),
    "monitor": (*METRIC_NAMES, "probe_right", "probe_wrong", "probe_correlation"),
    "time": ("*_seconds", "*_per_second"),
}  # fmt: skip
OTHER_PANEL = "other"
HELDOUT_NAMES = {  # field of evaluations.jsonl or benchmarks.jsonl -> its name
    "mean": "success", "low": "success_low", "high": "success_high", "pass_any": "pass_any",
    "mixed": "mixed", "reward": "reward", "reward_low": "reward_low", "reward_high": "reward_high",
    "truncated_share": "truncated_share", "evaluate_seconds": "seconds",
}  # fmt: skip


def find_panel(field: str) -> str:
    """The panel of a field of metrics.jsonl."""
    for panel, patterns in PANEL_FIELDS.items():
        if any(fnmatchcase(field, pattern) for pattern in patterns):
            return panel
    return OTHER_PANEL


def name_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl by their names.

    Example:
        >>> name_metrics({"schema": 1, "iteration": 3, "loss": None, "turn_success": [0.5, 0.25]})
        {'sample/turn_success_1': 0.5, 'sample/turn_success_2': 0.25}
    """
    metric_values: dict[str, float] = {}
    for field, value in record.items():
        if field in ("schema", "iteration"):
            continue
        metric_name = f"{find_panel(field)}/{field}"
        if isinstance(value, list):
            metric_values |= {
                f"{metric_name}_{position}": item
                for position, item in enumerate(value, 1)
                if _is_number(item)
            }
        elif _is_number(value):
            metric_values[metric_name] = value
    return metric_values


def name_evaluation(
    record: Mapping[str, Any],
    setting: EvaluationSetting | None,
    first_setting: EvaluationSetting | None,
) -> dict[str, float]:
    """The numbers of a line of evaluations or benchmarks.jsonl, which was sampled by `setting`."""
    panel = f"benchmark_{record['benchmark']}" if "benchmark" in record else "heldout"
    if setting and setting != first_setting:
        panel += f"_{setting.temperature:g}_{setting.top_p:g}"
    return {
        f"{panel}/{metric_name}": record[field]
        for field, metric_name in HELDOUT_NAMES.items()
        if _is_number(record.get(field))
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
