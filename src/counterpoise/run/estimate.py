"""Estimate what a run will do and need before it starts: `poise train X --dry-run`.

    device      the one that the run would use on this machine; `model.dtype=auto` is float32 on a
                CPU and bfloat16 on a GPU
    training    bytes for each parameter                        float32    bfloat16
                    weights, gradients, AdamW's two moments        16         20
                    each copy: initial weights, a teacher          +4         +2
                    LoRA: a parameter of the model                  4          2
                    LoRA: a parameter of the adapter               16         16
                    LoRA: each copy of the adapter                 +4         +4
                In bfloat16, AdamW keeps masters, gradients and moments in float32 (16) beside the
                bfloat16 weights and gradients (2 + 2); an adapter is always float32. `update.kl`
                and some settings of `credit.rule` read the initial weights, and `teacher_every`
                makes a teacher. An adapter has rank * (inputs + outputs) parameters in every
                adapted layer
    libraries   resident memory of Python, torch and transformers; counted on a CPU only, where they
                use the same memory as the model
    key/values  for each row: longest sequence * layers * 2 * key/value heads * head size
    activations tokens of a pass (micro_tokens, or those of a step if fewer) * layers * what a
                layer keeps for the backward pass: by autograd about 10 hidden + 3 intermediate; on
                a GPU without LoRA, if the layer is like Llama's (`model/layer.py`),
                2 hidden + 2 intermediate + (2 heads + 2 key/value heads) * head size; with
                checkpointing only the input of every layer, and one layer as above

These are estimates: attention workspaces and allocator overhead come on top.

Files of problems, benchmarks and probes on this machine are read, so that errors in them are found
now; missing files are named. The first prompt is shown if the tokenizer is on this machine. Nothing
is downloaded and no weights are loaded; the output says what was not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.config import RunConfig
from counterpoise.config.load import to_toml
from counterpoise.errors import format_count
from counterpoise.model.decoder_shape import DecoderShape, find_shape
from counterpoise.plugins import display_name
from counterpoise.run.first_prompt import PromptPreview, find_tokenizer
from counterpoise.sample.positions import describe_overflow
from counterpoise.task.contamination.training_overlap import load_benchmarks
from counterpoise.task.load import (
    FILE_TASKS,
    GENERATED_TASKS,
    check_enough_prompts,
    check_prompts_left,
    load_run_task,
)
from counterpoise.task.read_files import describe_folder
from counterpoise.task.task_prompts import TaskPrompts

if TYPE_CHECKING:
    import torch

GB = 1e9
# Measured: the process before its first iteration, embedded model.
LIBRARY_BYTES = 0.45 * GB


def describe_run(config: RunConfig, device: torch.device | None = None) -> str:
    """The resolved configuration, followed by counts, memory and the task as comments.

    Without `device`, memory is estimated for the one that the run would use on this machine.
    """
    sample, iterations = config.sample, config.loop.iterations
    rollouts = sample.prompts * sample.group_size
    tokens = rollouts * sample.max_new_tokens * _max_turns(config)
    update_count = f"{config.max_optimizer_steps:,}"
    if config.balance.tau:
        update_count = f"at most {update_count} (an update waits for a balanced batch)"
    elif config.batch.rows_per_step:
        rows_per_step = config.batch.rows_per_step
        update_count = f"at most {update_count} (one for every {rows_per_step} rows with signal)"
    # Dynamic sampling may repeat a round for groups whose rewards are all equal.
    max_rounds = 1 + sample.refills
    rollout_counts = f"{iterations * rollouts:,} rollouts"
    if sample.refills:
        most_rollouts = max_rounds * iterations * rollouts
        rollout_counts += (
            f", up to {most_rollouts:,} if groups with equal rewards are replaced "
            f"(sample.refills={sample.refills})"
        )
    summary = [
        f"per iteration  {format_count(sample.prompts, 'prompt')} x {sample.group_size} = "
        f"{rollouts:,} rollouts, {'at most ' if config.batch.rows_per_step else ''}"
        f"{format_count(config.max_steps_per_iteration, 'optimizer step')} "
        f"({display_name(config.batch.composer)})",
        f"in all         {rollout_counts}, updates: {update_count}",
        f"tokens         at most {max_rounds * tokens:,} sampled an iteration, "
        f"{iterations * max_rounds * tokens:,} in all",
        *describe_memory(config, device),
        *describe_task(config),
    ]
    lines = [to_toml(config), "# what this run does", *(f"#   {line}" for line in summary)]
    return "\n".join(lines)


def _max_turns(config: RunConfig) -> int:
    return config.task.turns if config.task.environment != "none" else 1


def _max_rows_of_step(config: RunConfig) -> int:
    """The most rows of an optimizer step that pass through the model.

    With batch.rows_per_step=n, s rows with signal are divided into max(1, s // n) steps. Each has
    fewer than 2 n of them, unless a single group has more. Rows without signal come on top if they
    have a loss too.
    """
    batch_rows = config.sample.prompts * config.sample.group_size
    if config.balance.tau:
        batch_rows = config.balance_target
    if not config.batch.rows_per_step:
        return -(-batch_rows // config.batch.steps)
    if config.update.trains_all_rows and not config.drops_silent_rows:
        return batch_rows
    return min(batch_rows, max(2 * config.batch.rows_per_step - 1, config.sample.group_size))


def describe_memory(config: RunConfig, device: torch.device | None = None) -> list[str]:
    """Lines about the model's size and the memory that the run needs on the device."""
    from counterpoise.model.load import GENERAL_PATH, choose_device, choose_dtype
    from counterpoise.update.rules.bind import reads_initial_weights, teacher_interval

    device = device or choose_device(config.model.device)
    shape = find_shape(config.model.name, config.model.path, device.type)
    if shape is None:
        return [
            f"memory         unknown: config.json of {config.model.name} is not on this machine"
        ]
    is_float32 = choose_dtype(config.model.dtype, device).itemsize == 4
    bytes_per_number = 4 if is_float32 else 2
    lora_rank = config.model.lora_rank
    adapter = shape.adapter_parameters(lora_rank, config.model.lora_targets)
    # Copies of the weights that are trained: as they were at the start, and those of a teacher.
    num_copies = int(bool(config.update.kl) or reads_initial_weights(config.credit))
    num_copies += bool(teacher_interval(config.credit))
    if lora_rank:
        # PEFT keeps the adapter in float32.
        training_bytes = bytes_per_number * shape.parameters + (16 + 4 * num_copies) * adapter
    else:
        # Mixed precision needs more than float32: it keeps float32 masters beside bfloat16 weights.
        bytes_per_parameter = (16 if is_float32 else 20) + bytes_per_number * num_copies
        training_bytes = bytes_per_parameter * shape.parameters
    floats_per_token = _activations_per_token(
        shape,
        fused=(
            shape.fused
            and config.model.path != GENERAL_PATH
            and device.type == "cuda"
            and not lora_rank
        ),
        checkpointing=config.update.checkpointing,
    )
    sample = config.sample
    # An environment may repeat the problem in every turn.
    max_row_length = (sample.max_prompt_tokens + sample.max_new_tokens) * _max_turns(config)
    activation_bytes = (
        min(config.update.micro_tokens, _max_rows_of_step(config) * max_row_length)
        * floats_per_token
        * bytes_per_number
    )
    kv_bytes_per_row = (
        max_row_length * shape.layers * 2 * shape.kv_heads * shape.head_dim * bytes_per_number
    )
    sampler_lines = [
        f"               keys and values {kv_bytes_per_row / GB:.3f} GB a row of full length; "
        "the sampler",
        "               decodes as many rows at once as memory allows, 512 at most on a CPU",
    ]
    if sample.engine == "vllm":
        memory_share = f"{100 * sample.engine_memory:.0f} % of a GPU's memory"
        sampler_lines = [f"               vLLM's weights, keys and values: {memory_share}"]
    # The length of prompts is unknown here: with 0, only a response that is too long by itself is
    # reported.
    overflow_warning = describe_overflow(0, sample.max_new_tokens, shape.positions)
    adapter_note = f"; a LoRA adapter of {adapter / 1e6:,.1f} M parameters is trained"
    return [
        f"model          {shape.parameters / 1e6:,.1f} M parameters, "
        f"{8 * bytes_per_number} bits on {device}{adapter_note if lora_rank else ''}",
        f"memory         training {training_bytes / GB:.2f} GB, "
        f"activations {activation_bytes / GB:.2f} GB"
        + (f", libraries {LIBRARY_BYTES / GB:.2f} GB" if device.type == "cpu" else ""),
        *sampler_lines,
        *([f"WARNING        {overflow_warning}"] if overflow_warning else []),
    ]


def _activations_per_token(shape: DecoderShape, *, fused: bool, checkpointing: bool) -> int:
    """Numbers that a pass keeps for each token until the backward pass."""
    per_layer = 10 * shape.hidden + 3 * shape.intermediate
    # The fused layer of the GPU keeps less for the backward pass than autograd would.
    if fused:
        attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        per_layer = 2 * shape.hidden + 2 * shape.intermediate + attention
    if checkpointing:
        return shape.layers * shape.hidden + per_layer
    return shape.layers * per_layer


# -- the task -----------------------------------------------------------------------------------


def describe_task(config: RunConfig) -> list[str]:
    """Lines about the task's problems and about what was not checked.

    A file that exists and is faulty raises an error; a missing file is only named.
    """
    task = config.task
    problem_files = [
        file for file in (task.path, task.heldout_path) if file and task.name in FILE_TASKS
    ]
    benchmark_folders = [config.evaluate.data] if config.evaluate.benchmarks else []
    further_files = [*task.benchmarks, *benchmark_folders, config.monitor.probe_file]
    missing_files = [
        file for file in (*problem_files, *further_files) if file and not Path(file).exists()
    ]
    # Loaded only for the errors that this raises.
    load_benchmarks([file for file in task.benchmarks if file not in missing_files])
    task_lines = [
        f"{file} does not exist{describe_folder(file)}: the run would fail"
        for file in missing_files
    ]
    unchecked = ["the model's weights and tokenizer, and so the length of prompts"]
    further_lines: list[str] = []
    if task.name == "hub" and task.path:
        task_lines.insert(0, f"{task.path}, by the package `datasets`")
        unchecked.insert(0, "the dataset and its fields")
    elif set(problem_files) & set(missing_files):
        unchecked.insert(0, "the problems")
    else:
        problems = _load_problems_for_dry_run(config)
        tokenizer = find_tokenizer(config.model.name)
        preview = None if tokenizer is None else PromptPreview(config, tokenizer, problems.train)
        # A dry run generates only one problem, so how many will be too long is unknown.
        is_generated = task.name in GENERATED_TASKS
        limit = config.sample.max_prompt_tokens
        too_long = 0 if is_generated or preview is None else preview.count_too_long(limit)
        task_lines.insert(0, _describe_problem_counts(config, problems, too_long))
        further_lines = _describe_prompts(config, problems, preview, too_long)
        if tokenizer is not None:
            unchecked = ["the model's weights"]
            if is_generated:
                unchecked.append("the length of prompts that are yet to be generated")
    evaluation_lines, unread_benchmarks = _describe_evaluation(config, missing_files)
    further_lines += evaluation_lines
    unchecked += [unread_benchmarks] if unread_benchmarks else []
    labels = ["task", *[""] * (len(task_lines) - 1)]
    labelled_lines = [
        f"{label:<15}{task_line}" for label, task_line in zip(labels, task_lines, strict=True)
    ]
    return [*labelled_lines, *further_lines, f"not checked    {'; '.join(unchecked)}"]


def _describe_evaluation(config: RunConfig, missing_files: Sequence[str]) -> tuple[list[str], str]:
    """(lines about evaluate.benchmarks and monitor.probe_file, what of them was not checked)."""
    from counterpoise.run.benchmarks import describe_run_benchmarks
    from counterpoise.run.probes import read_probe_records

    lines, benchmarks, unchecked = [], "", ""
    if config.evaluate.data not in missing_files:
        benchmarks, unchecked = describe_run_benchmarks(config)
    if benchmarks:
        lines.append(f"benchmarks     {benchmarks}")
    probe_file = config.monitor.probe_file
    if probe_file and probe_file not in missing_files:
        num_answers = len(read_probe_records(probe_file))
        lines.append(f"probes         {format_count(num_answers, 'answer')} in {probe_file}")
    return lines, unchecked


def _load_problems_for_dry_run(config: RunConfig) -> TaskPrompts:
    """All problems of a task that reads files, but only one of a task that generates them.

    Generating one is enough to find a wrong name or a missing package. (`load_first_problems` in
    run/try_plugins.py reads fewer: it needs examples, no counts and no held-out problems.)
    """
    task = config.task
    if task.name in GENERATED_TASKS:
        config = replace(config, task=replace(task, size=1, heldout=0))
    problems = load_run_task(config)
    if config.sample.anchors:
        from counterpoise.sample.anchors import check_generic_texts

        check_generic_texts(problems.train, config.sample)
    return problems


def _describe_problem_counts(config: RunConfig, problems: TaskPrompts, too_long: int) -> str:
    """How many problems are trained on, held out and evaluated; an error if they are too few."""
    task = config.task
    is_generated = task.name in GENERATED_TASKS
    num_train, num_heldout = len(problems.train), len(problems.heldout)
    if is_generated:
        num_train, num_heldout = task.size, task.heldout
    check_enough_prompts(num_train, config.sample.prompts)
    if too_long:
        num_train -= too_long
        check_prompts_left(num_train, too_long, config.sample)
    num_evaluated = min(num_heldout, config.evaluate.prompts)
    origin = ", made when the run starts" if is_generated else ""
    return (
        f"{problems.name}: {format_count(num_train, 'problem')} to train on{origin}; "
        f"{num_heldout:,} held out, {num_evaluated:,} of them are evaluated"
    )


def _describe_prompts(
    config: RunConfig, problems: TaskPrompts, preview: PromptPreview | None, too_long: int
) -> list[str]:
    """Lines about the columns that were read, the records left out and the first prompt."""
    lines = [f"columns        {problems.columns_line}"] if problems.columns_line else []
    if config.task.name not in GENERATED_TASKS:
        left_out = [f"{problems.repeats:,} repeat a held-out problem"] if problems.repeats else []
        if preview is None:
            left_out.append("how many prompts are too long is unknown without the tokenizer")
        elif too_long:
            limit = config.sample.max_prompt_tokens
            left_out.append(f"{too_long:,} longer than sample.max_prompt_tokens={limit}")
        lines.append(f"left out       {'; '.join(left_out) or 'no records'}")
    return [*lines, *(preview.describe_first() if preview else ())]
