"""Options of the stages, in the order of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config.option import option
from counterpoise.variants import (
    ADVANTAGES,
    AGGREGATIONS,
    BALANCE_UNITS,
    COMPOSERS,
    ENVIRONMENTS,
    EXTRA_REWARDS,
    IMPORTANCE_WEIGHTS,
    MIXTURES,
    PROMPT_TEMPLATES,
    SAMPLERS,
    STEP_RULES,
    SURROGATES,
    TASKS,
    TOKEN_WEIGHTS,
    TRAJECTORY_WEIGHTS,
    VERIFIERS,
)


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
        "how a problem becomes a prompt: 'chat' (the tokenizer's template), 'chat-boxed' (the same "
        "asking for a box), 'boxed' (plain text asking for one), 'qwen-math' (Qwen2.5-Math's); "
        "'auto' is chat when there is one, else boxed",
        choices=PROMPT_TEMPLATES,
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
    generic_field: str = option(
        "generic",
        "jsonl, hub: name of the field with the problem's generic text, if there is one; for "
        "sample.anchors",
    )
    dataset: str = option("", "reasoning_gym: name of its dataset")
    seed: int = option(
        0, "word_problems, reasoning_gym: seed of the generator, apart from the run's", at_least=0
    )
    environment: str = option(
        "none",
        "who answers a response: 'tries' says whether a wrong answer was too much or too little "
        "and asks again; what it says is read and never trained on",
        choices=("none", *ENVIRONMENTS),
    )
    turns: int = option(2, "with an environment: turns of an episode, at most", at_least=2)


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
    refills: int = option(
        0,
        "rounds of further prompts for groups whose rewards are all equal (DAPO's dynamic "
        "sampling); 0 is off",
        at_least=0,
    )
    anchors: int = option(
        0,
        "of a group's responses, those drawn after the prompt's generic text alone: a baseline "
        "that the others are to beat (CRPO takes 1 of 8)",
        at_least=0,
    )
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
    name: str = option(
        "math",
        "response -> reward; a function of your own, in a file or a MODULE:FUNCTION: "
        "docs/verify.md",
        choices=VERIFIERS.choices,
    )
    timeout_seconds: float = option(
        5.0, "hard limit for one answer; past it the reward is 0", at_least=0.01
    )
    workers: int = option(2, "verifier processes", at_least=1)
    also: list[str] = option(
        [],
        'further rewards, each "name" or "name=share": overlong (DAPO, the last tokens cost), '
        "equations (the share of them that is true) and functions of your own; credit.mixture says "
        "what is made of them",
        choices=EXTRA_REWARDS.choices,
    )
    overlong_tokens: int = option(
        0,
        "overlong: the last tokens before sample.max_new_tokens, over which it falls from 0 to -1; "
        "0 is a fifth of them",
        at_least=0,
    )


@dataclass(frozen=True)
class CreditConfig:
    name: str = option("grpo", "rewards of a group -> advantages", choices=tuple(ADVANTAGES))
    weights: str = option(
        "uniform", "token weights on top of the advantage", choices=tuple(TOKEN_WEIGHTS)
    )
    settings: list[str] = option(
        [], 'of the token weights, each "name=value"; docs/reference/credit-methods.md lists them'
    )
    mixture: str = option(
        "sum",
        "several rewards (verify.also): added before the advantage is taken, or an advantage for "
        "each in its group, then averaged (CRPO)",
        choices=tuple(MIXTURES),
    )
    rule: str = option(
        "off",
        "of an optimizer step: leaves some of its tokens out, or adds a term to its loss",
        choices=tuple(STEP_RULES),
    )
    rule_settings: list[str] = option(
        [], 'of the rule, each "name=value"; docs/reference/credit-methods.md lists them'
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
        choices=tuple(BALANCE_UNITS),
    )
    target: int = option(
        0, "rollouts of an update batch; 0 means sample.prompts * sample.group_size", at_least=0
    )
    max_age: int = option(4, "iterations a rollout may wait in the buffer", at_least=0)


@dataclass(frozen=True)
class BatchConfig:
    composer: str = option(
        "grouped",
        "which rows share an optimizer step; a function of your own, in a file or a "
        "MODULE:FUNCTION: docs/batch.md",
        choices=COMPOSERS.choices,
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
        choices=tuple(TRAJECTORY_WEIGHTS),
    )
    importance: str = option(
        "off",
        "against a sampler that is not quite the trainer: token losses times "
        "min(pi_old / pi_sampler, cap), the ratio a token's or the whole response's",
        choices=tuple(IMPORTANCE_WEIGHTS),
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
        False,
        "compute each layer again in the backward pass: far less memory, a third more time "
        "(small models on a GPU: twice, for want of `capture`)",
    )
