"""What a run will do and need, before it starts: `poise train X --dry-run`.

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

Estimates, not promises: attention workspaces and the allocator's waste come on top.

Files of problems that lie here are read, and a fault in them is found now; one that does not lie
here is named. Nothing is fetched and no model is loaded, and what was left unread is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.config import RunConfig
from counterpoise.config.load import to_toml
from counterpoise.errors import PoiseError, first_line
from counterpoise.plugins import shown
from counterpoise.sample.positions import describe_overflow
from counterpoise.task.contamination.training_overlap import load_benchmarks
from counterpoise.task.load import check_enough_prompts, load_problems

if TYPE_CHECKING:
    import torch

GB = 1e9
LIBRARIES = 0.45 * GB  # measured: the process before its first iteration, embedded model


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder that memory depends on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    positions: int  # it was made for

    @property
    def parameters(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden


# Published shapes of the paper's models, so that a dry run needs no download.
KNOWN = {
    "Qwen/Qwen2.5-Math-7B": Shape(3584, 28, 28, 4, 128, 18944, 152064, False, 4096),
    "Qwen/Qwen3-1.7B-Base": Shape(2048, 28, 16, 8, 128, 6144, 151936, True, 32768),
    "Qwen/Qwen3-4B-Base": Shape(2560, 36, 32, 8, 128, 9728, 151936, True, 32768),
}


def shape_of(name: str) -> Shape | None:
    """From the table above, a shape by name, or the model's own config.json on this machine."""
    if name in KNOWN:
        return KNOWN[name]
    from counterpoise.model.shapes import SHAPE_PREFIX, shape_config

    if name == "smollm2":
        name = f"{SHAPE_PREFIX}smollm2-135m"
    c = shape_config(name) if name.startswith(SHAPE_PREFIX) else _config_of(name)
    if c is None:
        return None
    return Shape(
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


def _config_of(name: str) -> Any:
    """None where the model is not on this machine."""
    from transformers import AutoConfig

    from counterpoise.model.decoder import check_architecture
    from counterpoise.model.load import EMBEDDED_FOLDER

    path = EMBEDDED_FOLDER if name == "embedded" else Path(name)
    if not (path / "config.json").is_file():
        return None
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as fault:  # transformers raises as it pleases
        raise PoiseError(f"{path / 'config.json'}: {first_line(fault)}") from fault
    check_architecture(config)
    return config


def describe_run(config: RunConfig, device: torch.device | None = None) -> str:
    """The resolved configuration, then counts and memory in plain words.

    `device` is the one that the run would use on this machine, unless another is given.
    """
    s, n = config.sample, config.loop.iterations
    rollouts = s.prompts * s.group_size
    tokens = rollouts * s.max_new_tokens * _turns(config)
    balanced = f"at most {n * config.batch.steps:,} (an update waits for a balanced batch)"
    updates = balanced if config.balance.tau else f"{n * config.batch.steps:,}"
    most, drawn = 1 + s.refills, f"{n * rollouts:,} rollouts"
    if s.refills:
        drawn = f"{drawn}, up to {most * n * rollouts:,} where groups are replaced"
    told = [
        f"per iteration  {s.prompts:,} prompts x {s.group_size} = {rollouts:,} rollouts, "
        f"{config.batch.steps} optimizer steps ({shown(config.batch.composer)})",
        f"in all         {drawn}, updates: {updates}",
        f"tokens         at most {most * tokens:,} sampled an iteration, "
        f"{n * most * tokens:,} in all",
        *memory(config, device),
        *data(config),
    ]
    lines = [to_toml(config), "# what this run does", *(f"#   {line}" for line in told)]
    return "\n".join(lines)


def _turns(config: RunConfig) -> int:
    return config.task.turns if config.task.environment != "none" else 1


def memory(config: RunConfig, device: torch.device | None = None) -> list[str]:
    """The model and its memory on the device, in lines."""
    shape = shape_of(config.model.name)
    if shape is None:
        return [f"memory         unknown: the shape of {config.model.name} is not here"]
    from counterpoise.model.load import choose_device, choose_dtype

    device = device or choose_device(config.model.device)
    single = choose_dtype(config.model.dtype, device).itemsize == 4
    width = 4 if single else 2
    training = (16 if single else 20) * shape.parameters
    if config.credit.rule != "off":
        from counterpoise.update.rules.bind import reads_initial_weights

        training += width * shape.parameters * reads_initial_weights(config.credit)
    per_layer = 10 * shape.hidden + 3 * shape.intermediate
    if device.type == "cuda":  # the fused layer keeps less than autograd would
        heads = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        per_layer = 2 * shape.hidden + 2 * shape.intermediate + heads
    kept = shape.layers * per_layer  # numbers a token
    if config.update.checkpointing:
        kept = shape.layers * shape.hidden + per_layer
    # an environment may tell the problem again
    length = (config.sample.max_prompt_tokens + config.sample.max_new_tokens) * _turns(config)
    rows_of_step = -(-config.sample.prompts * config.sample.group_size // config.batch.steps)
    activations = min(config.update.micro_tokens, rows_of_step * length) * kept * width
    row = length * shape.layers * 2 * shape.kv_heads * shape.head_dim * width
    drawing = [
        f"               keys and values {row / GB:.3f} GB a row of full length; the sampler",
        "               decodes as many rows at once as memory allows, 512 at most on a CPU",
    ]
    if config.sample.engine == "vllm":
        share = f"{100 * config.sample.engine_memory:.0f} % of a GPU's memory"
        drawing = [f"               vLLM's weights, keys and values: {share}"]
    fault = describe_overflow(
        0, config.sample.max_new_tokens, shape.positions
    )  # of prompts nobody knows
    return [
        f"model          {shape.parameters / 1e6:,.1f} M parameters, {8 * width} bits on {device}",
        f"memory         training {training / GB:.2f} GB, activations {activations / GB:.2f} GB"
        + (f", libraries {LIBRARIES / GB:.2f} GB" if device.type == "cpu" else ""),
        *drawing,
        *([f"WARNING        {fault}"] if fault else []),
    ]


# -- problems -----------------------------------------------------------------------------------


def data(config: RunConfig) -> list[str]:
    """The problems and what was not checked, in lines; a fault in a file that is here is raised."""
    task = config.task
    own = [name for name in (task.path, task.heldout_path) if name and task.name == "jsonl"]
    missing = [name for name in (*own, *task.benchmarks) if not Path(name).exists()]
    load_benchmarks([name for name in task.benchmarks if name not in missing])
    told = [f"{name} is not here: the run would stop for it" for name in missing]
    unread = ["the model's weights and tokenizer, and so the length of prompts"]
    if task.name == "hub" and task.path:
        told.insert(0, f"{task.path}, by the package `datasets`")
        unread.insert(0, "the dataset and its fields")
    elif set(own) & set(missing):
        unread.insert(0, "the problems")
    else:
        told.insert(0, _problems(config))
    heads = ["task", *[""] * (len(told) - 1)]
    lines = [f"{head:<15}{line}" for head, line in zip(heads, told, strict=True)]
    return [*lines, f"not checked    {'; '.join(unread)}"]


def _problems(config: RunConfig) -> str:
    """Files are read whole; of problems that are generated one is made, so that a wrong name or a
    missing package is found."""
    task = config.task
    generated = task.name in ("word_problems", "reasoning_gym")
    few = replace(config, task=replace(task, size=1, heldout=0)) if generated else config
    found = load_problems(few)
    if config.sample.anchors:
        from counterpoise.sample.anchors import check_generic_texts

        check_generic_texts(found.train, config.sample)
    train, heldout = len(found.train), len(found.heldout)
    if generated:
        train, heldout = task.size, task.heldout
    check_enough_prompts(train, config.sample.prompts)
    judged = min(heldout, config.evaluate.prompts)
    made = ", made when the run starts" if generated else ""
    return (
        f"{found.name}: {train:,} problems to train on{made}; {heldout:,} held out, "
        f"{judged:,} of them to judge by"
    )
