"""Estimate what a run will do and need before it starts: `poise train X --dry-run`.

    device      the one that the run would use on this machine; `model.dtype=auto` is float32 on a
                CPU and bfloat16 on a GPU
    training    16 bytes a parameter in float32 (weights, gradient, two AdamW moments); 20 in
                bfloat16 (2 + 2, and float32 masters, their gradient and moments); 4 or 2 more
                where a rule reads the first weights
    libraries   resident memory of Python, torch and transformers; on a CPU they share the memory
    key/values  a row: longest sequence * layers * 2 * key/value heads * head size
    activations tokens of a pass (micro_tokens, or those of a step if fewer) * layers * what a
                layer keeps for the backward pass: by autograd about 10 hidden + 3 intermediate; on
                a GPU (`model/layer.py`) 2 hidden + 2 intermediate + (2 heads + 2 key/value heads)
                * head size; with checkpointing only its input, and
                one layer as above

These are estimates: attention workspaces and allocator overhead come on top.

Problem files on this machine are read, so that errors in them are found now; missing files are
named. Nothing is downloaded and no model is loaded; the output says what was not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.config import RunConfig
from counterpoise.config.load import to_toml
from counterpoise.errors import PoiseError, first_line
from counterpoise.plugins import display_name
from counterpoise.sample.positions import describe_overflow
from counterpoise.task.contamination.training_overlap import load_benchmarks
from counterpoise.task.load import check_enough_prompts, load_problems

if TYPE_CHECKING:
    import torch

GB = 1e9
LIBRARIES = 0.45 * GB  # measured: the process before its first iteration, embedded model


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder that memory depends on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    positions: int  # that it was trained for

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden


# Published shapes of the paper's models, so that a dry run needs no download.
KNOWN_SHAPES = {
    "Qwen/Qwen2.5-Math-7B": DecoderShape(3584, 28, 28, 4, 128, 18944, 152064, False, 4096),
    "Qwen/Qwen3-1.7B-Base": DecoderShape(2048, 28, 16, 8, 128, 6144, 151936, True, 32768),
    "Qwen/Qwen3-4B-Base": DecoderShape(2560, 36, 32, 8, 128, 9728, 151936, True, 32768),
}


def find_shape(name: str) -> DecoderShape | None:
    """A model's shape: from the table above, by name, or from its config.json on this machine."""
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    from counterpoise.model.shapes import SHAPE_PREFIX, shape_config

    if name == "smollm2":
        name = f"{SHAPE_PREFIX}smollm2-135m"
    c = shape_config(name) if name.startswith(SHAPE_PREFIX) else _load_model_config(name)
    if c is None:
        return None
    return DecoderShape(
        hidden=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        intermediate=c.intermediate_size,
        vocabulary=c.vocab_size,
        tied=c.tie_word_embeddings,
        positions=c.max_position_embeddings,
    )


def _load_model_config(name: str) -> Any:
    """The model's configuration; None if the model is not on this machine."""
    from transformers import AutoConfig

    from counterpoise.model.decoder import check_architecture
    from counterpoise.model.load import EMBEDDED_FOLDER

    path = EMBEDDED_FOLDER if name == "embedded" else Path(name)
    if not (path / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as fault:  # transformers raises many types
        raise PoiseError(f"{path / 'config.json'}: {first_line(fault)}") from fault
    check_architecture(config)
    return config


def describe_run(config: RunConfig, device: torch.device | None = None) -> str:
    """The resolved configuration, followed by counts, memory and problems as comments.

    `device` is the one that the run would use on this machine, unless another is given.
    """
    s, n = config.sample, config.loop.iterations
    rollouts = s.prompts * s.group_size
    tokens = rollouts * s.max_new_tokens * _max_turns(config)
    balanced = f"at most {n * config.batch.steps:,} (an update waits for a balanced batch)"
    updates = balanced if config.balance.tau else f"{n * config.batch.steps:,}"
    max_rounds, rollout_counts = 1 + s.refills, f"{n * rollouts:,} rollouts"
    if s.refills:
        rollout_counts = (
            f"{rollout_counts}, up to {max_rounds * n * rollouts:,} where groups are replaced"
        )
    summary = [
        f"per iteration  {s.prompts:,} prompts x {s.group_size} = {rollouts:,} rollouts, "
        f"{config.batch.steps} optimizer steps ({display_name(config.batch.composer)})",
        f"in all         {rollout_counts}, updates: {updates}",
        f"tokens         at most {max_rounds * tokens:,} sampled an iteration, "
        f"{n * max_rounds * tokens:,} in all",
        *describe_memory(config, device),
        *describe_problems(config),
    ]
    lines = [to_toml(config), "# what this run does", *(f"#   {line}" for line in summary)]
    return "\n".join(lines)


def _max_turns(config: RunConfig) -> int:
    return config.task.turns if config.task.environment != "none" else 1


def describe_memory(config: RunConfig, device: torch.device | None = None) -> list[str]:
    """Lines about the model's size and its memory on the device, in lines."""
    shape = find_shape(config.model.name)
    if shape is None:
        return [f"memory         unknown: the shape of {config.model.name} is not here"]
    from counterpoise.model.load import choose_device, choose_dtype

    device = device or choose_device(config.model.device)
    is_float32 = choose_dtype(config.model.dtype, device).itemsize == 4
    width = 4 if is_float32 else 2
    training = (16 if is_float32 else 20) * shape.parameters
    if config.credit.rule != "off":
        from counterpoise.update.rules.bind import reads_initial_weights

        training += width * shape.parameters * reads_initial_weights(config.credit)
    per_layer = 10 * shape.hidden + 3 * shape.intermediate
    if device.type == "cuda":  # the fused layer keeps less than autograd would
        heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        per_layer = 2 * shape.hidden + 2 * shape.intermediate + heads
    activations_per_token = shape.layers * per_layer  # numbers a token
    if config.update.checkpointing:
        activations_per_token = shape.layers * shape.hidden + per_layer
    # An environment may repeat the problem in every turn.
    length = (config.sample.max_prompt_tokens + config.sample.max_new_tokens) * _max_turns(config)
    rows_of_step = -(-config.sample.prompts * config.sample.group_size // config.batch.steps)
    activations = (
        min(config.update.micro_tokens, rows_of_step * length) * activations_per_token * width
    )
    row_bytes = length * shape.layers * 2 * shape.kv_heads * shape.head_dim * width
    sampler_lines = [
        f"               keys and values {row_bytes / GB:.3f} GB a row of full length; the sampler",
        "               decodes as many rows at once as memory allows, 512 at most on a CPU",
    ]
    if config.sample.engine == "vllm":
        share = f"{100 * config.sample.engine_memory:.0f} % of a GPU's memory"
        sampler_lines = [f"               vLLM's weights, keys and values: {share}"]
    fault = describe_overflow(
        0, config.sample.max_new_tokens, shape.positions
    )  # the length of prompts is unknown
    return [
        f"model          {shape.parameters / 1e6:,.1f} M parameters, {8 * width} bits on {device}",
        f"memory         training {training / GB:.2f} GB, activations {activations / GB:.2f} GB"
        + (f", libraries {LIBRARIES / GB:.2f} GB" if device.type == "cpu" else ""),
        *sampler_lines,
        *([f"WARNING        {fault}"] if fault else []),
    ]


# -- problems -----------------------------------------------------------------------------------


def describe_problems(config: RunConfig) -> list[str]:
    """Lines about the problems and what was not checked; errors in files that exist are raised."""
    task = config.task
    problem_files = [
        name for name in (task.path, task.heldout_path) if name and task.name == "jsonl"
    ]
    missing = [name for name in (*problem_files, *task.benchmarks) if not Path(name).exists()]
    load_benchmarks([name for name in task.benchmarks if name not in missing])
    task_lines = [f"{name} does not exist: the run would fail" for name in missing]
    unchecked = ["the model's weights and tokenizer, and so the length of prompts"]
    if task.name == "hub" and task.path:
        task_lines.insert(0, f"{task.path}, by the package `datasets`")
        unchecked.insert(0, "the dataset and its fields")
    elif set(problem_files) & set(missing):
        unchecked.insert(0, "the problems")
    else:
        task_lines.insert(0, _describe_problem_counts(config))
    heads = ["task", *[""] * (len(task_lines) - 1)]
    lines = [f"{head:<15}{line}" for head, line in zip(heads, task_lines, strict=True)]
    return [*lines, f"not checked    {'; '.join(unchecked)}"]


def _describe_problem_counts(config: RunConfig) -> str:
    """Count the problems. Files are read completely; of generated problems only one is made, which
    is enough to find a wrong name or a missing package."""
    task = config.task
    generated = task.name in ("word_problems", "reasoning_gym")
    few = replace(config, task=replace(task, size=1, heldout=0)) if generated else config
    problems = load_problems(few)
    if config.sample.anchors:
        from counterpoise.sample.anchors import check_generic_texts

        check_generic_texts(problems.train, config.sample)
    train, heldout = len(problems.train), len(problems.heldout)
    if generated:
        train, heldout = task.size, task.heldout
    check_enough_prompts(train, config.sample.prompts)
    evaluated = min(heldout, config.evaluate.prompts)
    origin = ", made when the run starts" if generated else ""
    return (
        f"{problems.name}: {train:,} problems to train on{origin}; {heldout:,} held out, "
        f"{evaluated:,} of them to judge by"
    )
