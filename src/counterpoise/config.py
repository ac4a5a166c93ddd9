"""Every option of a run, with its default and its reason, in one place.

A run is a TOML file of these sections; `runfile.py` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from counterpoise.batch import COMPOSERS, UNITS
from counterpoise.credit import ADVANTAGES, WEIGHTS
from counterpoise.sample import SAMPLERS
from counterpoise.task import TASKS
from counterpoise.update import AGGREGATIONS, IMPORTANCE, SURROGATES, TRAJECTORIES
from counterpoise.verify import VERIFIERS


def option(
    default: Any,
    doc: str,
    *,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> Any:
    """A field that carries its own documentation and its own limits."""
    meta = {"doc": doc, "choices": tuple(choices), "at_least": at_least, "at_most": at_most}
    meta["may_be_empty"] = default == []  # a list that has a first entry by default keeps one
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class LoopConfig:
    iterations: int = option(40, "sampling rounds of the run", at_least=1)
    seed: int = option(0, "every random choice of the run follows from it", at_least=0)
    checkpoint_every: int = option(
        10, "iterations between checkpoints; the last is always kept", at_least=1
    )
    keep_checkpoints: int = option(
        2, "older ones are removed; two, so that a damaged one has a predecessor", at_least=1
    )
    threads: int = option(0, "CPU threads; 0 leaves torch's own choice", at_least=0)


@dataclass(frozen=True)
class ModelConfig:
    name: str = option(
        "embedded",
        "'embedded', 'smollm2' (a package), 'scratch' (warm-up only), a folder, a hub id (Llama, "
        "Qwen2, Qwen3), or 'shape:NAME' (a published shape with random weights)",
    )
    device: str = option(
        "auto", "'auto' takes a CUDA device when there is one", choices=("auto", "cpu", "cuda")
    )
    dtype: str = option(
        "auto",
        "of weights and activations; 'auto' is float32 on the CPU, bfloat16 on CUDA",
        choices=("auto", "float32", "bfloat16"),
    )
    template: str = option(
        "auto",
        "how a problem becomes a prompt: 'chat' (the tokenizer's template), 'boxed' (plain text "
        "asking for a box); 'auto' is chat when there is one",
        choices=("auto", "chat", "boxed"),
    )


@dataclass(frozen=True)
class TaskConfig:
    name: str = option("word_problems", "where prompts come from", choices=tuple(TASKS))
    levels: list[int] = option([3], "word_problems: difficulty, 1 to 4, taken in turn")
    slips: float = option(
        0.0,
        "word_problems: chance that a step of a worked solution goes wrong and is carried on",
        at_least=0.0,
        at_most=1.0,
    )
    size: int = option(
        4096, "word_problems, reasoning_gym: training problems to generate", at_least=1
    )
    heldout: int = option(
        256, "held-out problems; for jsonl without heldout_path, taken out of the file", at_least=0
    )
    path: str = option("", "jsonl: the file; hub: the dataset id or folder")
    heldout_path: str = option("", "jsonl: a second file of held-out problems")
    benchmarks: list[str] = option(
        [],
        "JSONL files of problems the model will be judged by later: the run warns of those that "
        "are among its training prompts",
    )
    train_split: str = option("train", "hub: split to train on")
    heldout_split: str = option(
        "", "hub: split to be judged by; empty takes `heldout` records out of training"
    )
    problem_field: str = option("problem", "jsonl, hub: name of the problem's field")
    answer_field: str = option("answer", "jsonl, hub: name of the answer's field")
    id_field: str = option("id", "jsonl, hub: name of the id's field")
    solution_field: str = option(
        "solution",
        "jsonl, hub: name of the worked solution's field, if there is one; read by `poise warmup`",
    )
    dataset: str = option("", "reasoning_gym: name of its dataset")
    seed: int = option(
        0, "word_problems, reasoning_gym: seed of the generator, apart from the run's", at_least=0
    )


@dataclass(frozen=True)
class SampleConfig:
    prompts: int = option(16, "prompts per iteration", at_least=1)
    group_size: int = option(
        8, "responses per prompt: the group an advantage is taken over", at_least=2
    )
    max_new_tokens: int = option(128, "a response is cut here", at_least=1)
    max_prompt_tokens: int = option(
        1024, "longer prompts are left out of training, and counted", at_least=1
    )
    temperature: float = option(
        1.0, "of sampling, and of the log-probabilities in the update", at_least=1e-3
    )
    top_p: float = option(
        1.0,
        "nucleus; 1 is off. Log-probabilities stay those of the whole distribution",
        at_least=1e-6,
        at_most=1.0,
    )
    top_k: int = option(0, "only the k likeliest tokens; 0 is off", at_least=0)
    engine: str = option(
        "native",
        "who draws: our own sampler on the trainer's weights, or vLLM in this process, which gets "
        "them before every draw",
        choices=tuple(SAMPLERS),
    )
    engine_memory: float = option(
        0.3,
        "vllm on a GPU: the share of its memory for the engine's weights, keys and values",
        at_least=0.01,
        at_most=0.95,
    )


@dataclass(frozen=True)
class VerifyConfig:
    name: str = option("math", "response -> reward", choices=tuple(VERIFIERS))
    timeout_seconds: float = option(
        5.0, "hard limit for one answer; past it the reward is 0", at_least=0.01
    )
    workers: int = option(2, "verifier processes", at_least=1)


@dataclass(frozen=True)
class CreditConfig:
    name: str = option("grpo", "rewards of a group -> advantages", choices=tuple(ADVANTAGES))
    weights: str = option(
        "uniform", "token weights on top of the advantage", choices=tuple(WEIGHTS)
    )
    settings: list[str] = option(
        [], 'of the token weights, each "name=value"; docs/credit.md lists them'
    )


@dataclass(frozen=True)
class BalanceConfig:
    tau: float = option(
        0.0,
        "update only on batches with min(N+, N-) >= tau |B|; 0 is off",
        at_least=0.0,
        at_most=0.5,
    )
    unit: str = option(
        "rollout",
        "what is chosen for balance: rollouts inside groups, or whole groups",
        choices=tuple(UNITS),
    )
    target: int = option(
        0, "rollouts of an update batch; 0 means sample.prompts * sample.group_size", at_least=0
    )
    max_age: int = option(4, "iterations a rollout may wait in the buffer", at_least=0)


@dataclass(frozen=True)
class BatchConfig:
    composer: str = option(
        "grouped", "which rows share an optimizer step", choices=tuple(COMPOSERS)
    )
    steps: int = option(4, "optimizer steps per batch", at_least=1)


@dataclass(frozen=True)
class UpdateConfig:
    lr: float = option(1e-6, "learning rate", at_least=0.0)
    optimizer: str = option("adamw", "adamw or plain sgd (no momentum)", choices=("adamw", "sgd"))
    weight_decay: float = option(0.0, "adamw only", at_least=0.0)
    beta2: float = option(0.999, "adamw: decay of the second moment", at_least=0.0, at_most=0.99999)
    warmup_steps: int = option(
        0, "optimizer steps over which the learning rate rises linearly", at_least=0
    )
    max_grad_norm: float = option(
        1.0, "gradients are scaled down to this norm; 0 is off", at_least=0.0
    )
    surrogate: str = option("grpo", "per-token objective", choices=tuple(SURROGATES))
    clip_low: float = option(0.2, "ratio clip below 1", at_least=0.0)
    clip_high: float = option(0.28, "ratio clip above 1 (clip-higher)", at_least=0.0)
    aggregate: str = option(
        "token_mean", "how token losses are averaged over a step", choices=tuple(AGGREGATIONS)
    )
    old_logprobs: str = option(
        "trainer",
        "whose log-probabilities are 'old': the trainer's own, by the weights that sampled the "
        "row (ratio 1 at the first step; only rows of later steps need a pass), or the sampler's",
        choices=("trainer", "sampler"),
    )
    trajectory: str = option(
        "off",
        "weights of whole rollouts by their ratio, made such that what a group shares cancels "
        "(DFPO); with update.surrogate=reinforce",
        choices=tuple(TRAJECTORIES),
    )
    importance: str = option(
        "off",
        "against a sampler that is not quite the trainer: token losses times "
        "min(pi_old / pi_sampler, cap), the ratio a token's or the whole response's",
        choices=tuple(IMPORTANCE),
    )
    importance_cap: float = option(
        2.0, "what an importance weight is at most; 1.5 to 5 for tokens is usual", at_least=1.0
    )
    micro_tokens: int = option(
        20480,
        "tokens of one forward pass: memory only, never the gradient. Halved where memory runs out",
        at_least=1,
    )
    capture: bool = option(
        True,
        "small models on a GPU: passes of one size are captured as CUDA graphs and replayed, which "
        "spares the host its launches and keeps the memory of a pass",
    )
    repeatable: bool = option(
        False, "on a GPU: sums in a fixed order, so that equal runs give equal weights; slower"
    )
    checkpointing: bool = option(
        False, "compute each layer again in the backward pass: far less memory, a third more time"
    )


@dataclass(frozen=True)
class EvaluateConfig:
    prompts: int = option(
        128, "held-out problems judged before and after training; 0 is off", at_least=0
    )
    samples: int = option(4, "responses for each", at_least=1)
    settings: list[str] = option(
        ["training"],
        "how they are sampled: 'training' (its temperature and top-p) or TEMPERATURE/TOP_P such as "
        "'0.6/0.95'; the first one counts, every one costs the same",
    )
    every: int = option(0, "also every so many iterations; 0 is off", at_least=0)


@dataclass(frozen=True)
class WarmupConfig:
    steps: int = option(400, "supervised steps on worked solutions", at_least=1)
    batch: int = option(128, "problems per step", at_least=1)
    lr: float = option(
        5e-5,
        "peak learning rate; linear warm-up over 5 %, cosine decay to a tenth. The default suits "
        "a pretrained model; one from nothing learns at about 2e-3",
        at_least=0.0,
    )
    evaluate_every: int = option(
        0, "steps between looks at held-out success; 0 looks at the end only", at_least=0
    )
    until: float = option(
        0.0,
        "stop as soon as held-out success is this high and keep that model: RL learns best from "
        "0.25 to 0.6; 0 is off",
        at_least=0.0,
        at_most=1.0,
    )
    hidden: int = option(160, "scratch model: hidden size", at_least=16)
    layers: int = option(4, "scratch model: layers", at_least=1)
    heads: int = option(4, "scratch model: query heads (half as many key/value heads)", at_least=2)
    intermediate: int = option(448, "scratch model: width of the gated MLP", at_least=16)


@dataclass(frozen=True)
class MonitorConfig:
    every: int = option(
        1,
        "iterations between looks at what the update did to every token; 0 is off. A look costs "
        "one forward pass of the batch and the coupling decomposition",
        at_least=0,
    )
    watch: int = option(
        2,
        "groups of an iteration for whose tokens the strongest pushes are stored, token by token",
        at_least=0,
    )


@dataclass(frozen=True)
class StoreConfig:
    rollouts: bool = option(True, "write every rollout to rollouts/")
    tokens: bool = option(True, "write every trained token to tokens/ (parquet)")
    model: bool = option(
        True, "keep the trained model, and the last checkpoint; false leaves neither at the end"
    )
    report: bool = option(
        True, "write report.html, and for it vocabulary.json and the rows of every plan"
    )


@dataclass(frozen=True)
class RunConfig:
    """The whole run. `RunConfig()` is a valid one: the embedded model on word problems."""

    loop: LoopConfig = field(default_factory=LoopConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    store: StoreConfig = field(default_factory=StoreConfig)

    @property
    def target(self) -> int:
        """Rollouts of an update batch under reward balance."""
        return self.balance.target or self.sample.prompts * self.sample.group_size
