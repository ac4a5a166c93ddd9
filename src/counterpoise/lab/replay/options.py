"""The options of the virtual updates: those of the run that stored the rollouts, as far as known.

A run of ours has them all in config.toml, and our TRL recorders keep a few in imported.json. For
other rollouts the defaults hold. `--lr`, `--optimizer` and `--set` override them. Only options that
a virtual update reads may be set; any other is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.load import config_from_tables, parse_override, read_tables
from counterpoise.errors import PoiseError
from counterpoise.lab.replay.folder import ReplayRequest
from counterpoise.lab.replay.source import StoredRollouts
from counterpoise.lab.replay.start import ReplayedModel, has_optimizer_state
from counterpoise.store.folder import CONFIG, is_imported, is_run
from counterpoise.store.imported import read_origin
from counterpoise.store.resume import load_stored_config
from counterpoise.variants import COMPOSERS, GROUP_COMPOSERS

DEFAULT_STEPS = 4  # as `poise plan`
# What a virtual update reads; an entry without a dot is a whole section.
SETTABLE = {
    "update", "credit", "monitor.every", "monitor.tokens", "monitor.watch",
    "monitor.probe_file", "monitor.probe_through",
    "sample.temperature", "sample.max_new_tokens",
    "loop.seed", "loop.threads", "model.dtype", "model.path",
}  # fmt: skip
Tables = dict[str, dict[str, Any]]


def replay_config(
    request: ReplayRequest, model: ReplayedModel, folder: Path, first: StoredRollouts
) -> RunConfig:
    """The options of a replay; `first` is its first iteration, `folder` holds the rollouts."""
    overrides = list(request.overrides)
    _check_overrides(request)
    tables = stored_tables(folder)
    is_own_run = is_run(folder)
    _set(tables, "model", **asdict(model.config))
    _set(tables, "loop", checkpoint_every=1, keep_checkpoints=1)
    _set(tables, "sample", engine="native")
    if not is_own_run:
        longest = max(len(r.response_tokens) for group in first.groups for r in group.rollouts)
        _set(
            tables,
            "sample",
            prompts=max(1, len(first.groups)),
            group_size=max(2, *(len(group.rollouts) for group in first.groups)),
        )
        tables["sample"].setdefault("max_new_tokens", longest)
    if first.batch is None or not is_own_run:
        _set(tables, "batch", **_batch_options(request, tables.get("batch", {}), first))
        # No RB: the batch is all rows of an iteration. (run.py reads the tau of the alternative.)
        _set(tables, "balance", target=0, tau=0.0)
    watched = max(2, int(tables.get("monitor", {}).get("watch", 2)))
    # Nothing is sampled, so there are no answers to follow unless they are given with --set.
    no_probes = {"probe": 0, "probe_file": "", "probe_through": "output_layer"}
    _set(tables, "monitor", every=1, watch=watched, probe_every=1, **no_probes)
    _set(tables, "store", rollouts=True, tokens=True, report=True, model=False)
    _set(tables, "track", to=[])
    _set(tables, "evaluate", prompts=0)
    config = config_from_tables(tables, overrides, where=str(folder))
    if has_optimizer_state(model, config) and not any(o.startswith("update.lr") for o in overrides):
        return config
    # Without the optimizer's step count, a schedule has no place to go on from.
    _set(tables, "update", schedule="constant", warmup_steps=0)
    return config_from_tables(tables, overrides, where=str(folder))


def stored_tables(folder: Path) -> Tables:
    """The options that the run stored, by section; empty if it stored none."""
    if is_run(folder):
        file_tables = read_tables(folder / CONFIG)
        tables = {
            name: dict(table) for name, table in file_tables.items() if isinstance(table, Mapping)
        }
        # With the defaults that credit methods had when the run was made.
        _set(tables, "credit", settings=load_stored_config(folder / CONFIG).credit.settings)
        return tables
    if not is_imported(folder):
        return {}
    return {name: dict(table) for name, table in read_origin(folder).options.items()}


def _batch_options(
    request: ReplayRequest, stored: Mapping[str, Any], first: StoredRollouts
) -> dict[str, Any]:
    """The composer and its number of steps, as config.toml can hold them."""
    if first.batch is not None:
        composer, num_steps = first.batch.plan.composer, len(first.batch.plan.steps)
        num_groups = len({row.group for row in first.batch.rows})
        # A trainer's plan need not be that of a composer of ours; "shuffled" promises nothing.
        is_ours = composer in COMPOSERS and (
            composer not in GROUP_COMPOSERS or num_groups >= num_steps
        )
        return {"composer": composer if is_ours else "shuffled", "steps": num_steps}
    composer = request.composer or str(stored.get("composer", "grouped"))
    steps = request.steps or int(stored.get("steps", DEFAULT_STEPS))
    num_rows = sum(len(group.rollouts) for group in first.groups)
    return {
        "composer": composer,
        "steps": fitting_steps(composer, steps, len(first.groups), num_rows),
    }


def fitting_steps(composer: str, steps: int, num_groups: int, num_rows: int) -> int:
    """The number of steps, or as many as the iteration can fill if that is less.

    Example:
        >>> fitting_steps("grouped", 4, num_groups=3, num_rows=24)
        3
    """
    if composer == "whole":
        return 1
    return min(steps, num_groups if composer in GROUP_COMPOSERS else num_rows)


def set_options(request: ReplayRequest) -> dict[str, str]:
    """The options that the user set, as section.option, with the text that sets each."""
    sections = {field.name: field for field in fields(RunConfig)}
    parsed = {override: parse_override(override, sections) for override in request.overrides}
    return {
        f"{section}.{option_name}": override
        for override, (section, option_name, _) in parsed.items()
    }


def _check_overrides(request: ReplayRequest) -> None:
    for option_name, override in set_options(request).items():
        if not {option_name, option_name.partition(".")[0]} & SETTABLE:
            raise PoiseError(
                f"--set {override}: a virtual update does not read {option_name}; it reads "
                f"{', '.join(sorted(SETTABLE))}"
            )


def _set(tables: Tables, section: str, **options: Any) -> None:
    tables.setdefault(section, {}).update(options)
