"""Options of the stages, in the order of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config.option import option
from counterpoise.variants import (
    ADVANTAGES,
    AGGREGATIONS,
    BALANCE_SIGNS,
    BALANCE_UNITS,
    COMPOSERS,
    ENVIRONMENTS,
    EXTRA_REWARDS,
    IMPORTANCE_WEIGHTS,
    KL_CONTROLS,
    KL_ESTIMATORS,
    MIXTURES,
    PROMPT_CHOICES,
    PROMPT_TEMPLATES,
    SAMPLERS,
    SCHEDULES,
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
        "the model to train: 'embedded', 'smollm2' (an installed package), 'scratch' (warm-up "
        "only), a folder, a .gguf file (dequantised once), a hub id of a causal language model, or "
        "'shape:NAME' (a published architecture with random weights)",
    )
    device: str = option(
        "auto",
        "where the model runs; 'auto' uses CUDA if available",
        choices=("auto", "cpu", "cuda"),
    )
    dtype: str = option(
        "auto",
        "data type of weights and activations; 'auto' is float32 on the CPU, bfloat16 on CUDA",
        choices=("auto", "float32", "bfloat16"),
    )
    path: str = option(
        "auto",
        "how the model is run: 'fast' (packed rows, fused layers; the families it knows), "
        "'general' (transformers' own forward pass, any causal language model) or 'auto' (fast "
        "where it can be)",
        choices=("auto", "fast", "general"),
    )
    lora_rank: int = option(
        0,
        "rank of a LoRA adapter (PEFT), which is trained while the model's own weights stay "
        "frozen; 0 trains all weights",
        at_least=0,
    )
    lora_alpha: float = option(
        0.0, "LoRA: the adapter's output is scaled by alpha / rank; 0 means 2 * rank", at_least=0.0
    )
    lora_targets: list[str] = option(
        ["all-linear"],
        "LoRA: names of the layers that get an adapter, such as ['q_proj', 'v_proj']; "
        "'all-linear' is every linear layer but the output layer",
    )
    template: str = option(
        "auto",
        "how a problem becomes a prompt: 'chat' (the tokenizer's chat template), 'chat-boxed' (the "
        "same, with a request for a boxed answer), 'boxed' (plain text with a shorter request) or "
        "'qwen-math' (Qwen2.5-Math's template). 'auto' is chat if the tokenizer has a template, "
        "else boxed",
        choices=PROMPT_TEMPLATES,
    )


@dataclass(frozen=True)
class TaskConfig:
    name: str = option("word_problems", "source of the problems", choices=tuple(TASKS))
    levels: list[int] = option(
        [3], "generated problems: difficulty levels from 1 to 4, used in rotation"
    )
    slips: float = option(
        0.0,
        "word_problems: probability that a step of a worked solution contains a mistake, which the "
        "following steps build on",
        at_least=0.0,
        at_most=1.0,
    )
    size: int = option(
        4096,
        "training problems to generate; verifiers: tasks to read",
        at_least=1,
    )
    heldout: int = option(
        256,
        "number of held-out problems; for files without heldout_path, they are split off the "
        "training file",
        at_least=0,
    )
    path: str = option(
        "",
        "files: a file of JSON lines, JSON or parquet, or a folder of them; hub: dataset id or "
        "folder; verifiers: taskset",
    )
    heldout_path: str = option("", "files: file of held-out problems")
    benchmarks: list[str] = option(
        [],
        "files of benchmarks that the model will be evaluated on later: the run warns if "
        "their problems are among its training prompts",
    )
    train_split: str = option("train", "hub: split to train on")
    heldout_split: str = option(
        "",
        "hub: split to evaluate on; if empty, `heldout` records are split off the training split",
    )
    problem_field: str = option(
        "problem",
        "files, hub: column that holds the problem, as text or as chat messages; at its default, "
        "prompt, messages, conversations, question and query are recognised too",
    )
    answer_field: str = option(
        "answer",
        "files, hub: column that holds the answer, with a dot for a field in a column; at its "
        "default, reward_model.ground_truth, ground_truth, final_answer, expected_answer, target, "
        "solution and the last turn of messages are recognised too",
    )
    id_field: str = option(
        "id", "files, hub: column that holds the id; row numbers if empty or missing"
    )
    solution_field: str = option(
        "solution",
        "files, hub: column that holds the worked solution, if there is one; used by "
        "`poise warmup`",
    )
    generic_field: str = option(
        "generic",
        "files, hub: column that holds the problem's generic text, if there is one; "
        "used by sample.anchors",
    )
    dataset: str = option("", "reasoning_gym: name of the dataset; textarena: name of the game")
    settings: list[str] = option(
        [], 'textarena: "name=value" of the game; "reward=win" gives 1 for a won game, else 0'
    )
    seed: int = option(0, "seed of the problem generator, independent of loop.seed", at_least=0)
    environment: str = option(
        "none",
        "environment that replies to a response: 'tries' says whether a wrong answer was too high "
        "or low and asks again, 'textarena' plays that task's games; replies are not trained on",
        choices=("none", *ENVIRONMENTS.choices),
    )
    turns: int = option(2, "with an environment: maximum number of turns in an episode", at_least=2)


@dataclass(frozen=True)
class SampleConfig:
    prompts: int = option(16, "prompts per iteration", at_least=1)
    group_size: int = option(
        8, "responses per prompt: the group over which advantages are computed", at_least=2
    )
    choose: str = option(
        "epochs",
        "how prompts are chosen: in shuffled epochs, or by a memory of past success "
        "(docs/reference/batching.md#groups)",
        choices=tuple(PROMPT_CHOICES),
    )
    memory_visits: int = option(
        2,
        "memory: a prompt is settled after so many groups in a row that were all right or all "
        "wrong",
        at_least=1,
    )
    retry_after: int = option(
        20, "memory: iterations after which a settled prompt is open again", at_least=1
    )
    max_new_tokens: int = option(128, "maximum length of a response in tokens", at_least=1)
    max_prompt_tokens: int = option(
        1024, "longer prompts are excluded from training, and the run reports how many", at_least=1
    )
    temperature: float = option(
        1.0, "temperature of sampling, and of the log-probabilities in the update", at_least=1e-3
    )
    top_p: float = option(
        1.0,
        "nucleus sampling; 1 is off. Log-probabilities remain those of the full distribution",
        at_least=1e-6,
        at_most=1.0,
    )
    top_k: int = option(0, "sample only from the k most likely tokens; 0 is off", at_least=0)
    refills: int = option(
        0,
        "extra sampling rounds that replace groups whose rewards are all equal (DAPO's dynamic "
        "sampling); 0 is off",
        at_least=0,
    )
    anchors: int = option(
        0,
        "number of responses in a group that are sampled from the prompt's generic text alone, as "
        "a baseline for the others (CRPO uses 1 of 8)",
        at_least=0,
    )
    engine: str = option(
        "native",
        "sampler: 'native' samples with the trainer's weights; 'vllm' runs vLLM in this process "
        "and sends it the weights before every iteration",
        choices=tuple(SAMPLERS),
    )
    engine_memory: float = option(
        0.3,
        "vllm on a GPU: share of the GPU's memory for vLLM's weights and KV cache",
        at_least=0.01,
        at_most=0.95,
    )


@dataclass(frozen=True)
class VerifyConfig:
    name: str = option(
        "math",
        "verifier that turns a response into a reward",
        choices=VERIFIERS.choices,
    )
    timeout_seconds: float = option(
        5.0, "CPU time limit for verifying one answer; beyond it the reward is 0", at_least=0.01
    )
    reward_timeout_seconds: float = option(
        600.0,
        "time limit for one call of a reward function of your own, which runs in a process of its "
        "own; 0: it runs in the main process, without a limit",
        at_least=0,
    )
    workers: int = option(2, "number of verifier processes", at_least=1)
    also: list[str] = option(
        [],
        'extra rewards, each "name" or "name=weight": overlong (DAPO, a penalty for length), '
        "equations (the share of equations that hold), style (overlap with the worked solution) or "
        "your own functions. credit.mixture combines them with the verifier's reward",
        choices=EXTRA_REWARDS.choices,
    )
    overlong_tokens: int = option(
        0,
        "overlong: number of tokens before sample.max_new_tokens over which the reward falls from "
        "0 to -1; 0 means a fifth of sample.max_new_tokens",
        at_least=0,
    )


@dataclass(frozen=True)
class CreditConfig:
    name: str = option(
        "grpo",
        "advantage estimator: turns the rewards of a group into advantages",
        choices=tuple(ADVANTAGES),
    )
    weights: str = option(
        "uniform",
        "method that weights tokens within a response",
        choices=TOKEN_WEIGHTS.choices,
    )
    settings: list[str] = option(
        [],
        'settings of credit.weights, each "name=value" (docs/reference/credit-methods.md)',
    )
    mixture: str = option(
        "sum",
        "how several rewards (verify.also) are combined: 'sum' adds them before advantages are "
        "computed; 'decoupled' computes an advantage for each and averages these (CRPO)",
        choices=tuple(MIXTURES),
    )
    rule: str = option(
        "off",
        "rule of an optimizer step that excludes some of its tokens or adds a term to its loss",
        choices=STEP_RULES.choices,
    )
    rule_settings: list[str] = option(
        [],
        'settings of credit.rule, each "name=value"; docs/reference/credit-methods.md lists them',
    )


@dataclass(frozen=True)
class BalanceConfig:
    tau: float = option(
        0.0,
        "reward balance: update only on batches with min(N+, N-) >= tau |B|; 0 is off",
        at_least=0.0,
        at_most=0.5,
    )
    unit: str = option(
        "rollout",
        "what reward balance selects: single rollouts within groups, or whole groups; "
        "experimental_anti_rollout holds the rarer sign down to a share of tau instead",
        choices=tuple(BALANCE_UNITS),
    )
    sign: str = option(
        "advantage",
        "what N+ and N- count: signs of advantages, or right and wrong answers (reward: keeps "
        "rows without signal and changes no advantage)",
        choices=tuple(BALANCE_SIGNS),
    )
    target: int = option(
        0, "rollouts in an update batch; 0 means sample.prompts * sample.group_size", at_least=0
    )
    max_age: int = option(4, "iterations that a rollout may wait in the buffer", at_least=0)


@dataclass(frozen=True)
class BatchConfig:
    composer: str = option(
        "grouped",
        "decides which rows share an optimizer step",
        choices=COMPOSERS.choices,
    )
    steps: int = option(4, "optimizer steps per batch", at_least=1)
    rows_per_step: int = option(
        0,
        "rows with signal per step: a batch takes as many steps as it can fill, at least one, "
        "instead of batch.steps; 0 is off",
        at_least=0,
    )
    drop_silent: bool = option(
        False,
        "leave rows without signal (advantage 0) out of the batch and of denominators, as reward "
        "balance by advantage always does; takes fewer steps if too few groups are left",
    )


@dataclass(frozen=True)
class UpdateConfig:
    lr: float = option(1e-6, "learning rate", at_least=0.0)
    optimizer: str = option("adamw", "AdamW, or SGD without momentum", choices=("adamw", "sgd"))
    weight_decay: float = option(0.0, "adamw: decoupled weight decay", at_least=0.0)
    beta2: float = option(0.999, "adamw: decay of the second moment", at_least=0.0, at_most=0.99999)
    warmup_steps: int = option(
        0, "optimizer steps over which the learning rate rises linearly from 0", at_least=0
    )
    schedule: str = option("constant", "learning rate after the warm-up", choices=tuple(SCHEDULES))
    final_lr_share: float = option(0.0, "final share of update.lr", at_least=0.0, at_most=1.0)
    max_grad_norm: float = option(
        1.0, "maximum gradient norm, above which gradients are scaled down; 0 is off", at_least=0.0
    )
    surrogate: str = option("grpo", "per-token objective", choices=tuple(SURROGATES))
    clip_low: float = option(
        0.2, "importance ratios are clipped at 1 - clip_low; 3e-4 with gspo", at_least=0.0
    )
    clip_high: float = option(
        0.28, "importance ratios are clipped at 1 + clip_high; 4e-4 with gspo", at_least=0.0
    )
    clip_dual: float = option(
        0.0,
        "upper bound of ratios for A < 0 (dual clip; 3 is usual); 0 is off",
        at_least=0.0,
    )
    aggregate: str = option(
        "token_mean", "how token losses are averaged over a step", choices=tuple(AGGREGATIONS)
    )
    mask_truncated: bool = option(
        False,
        "no loss for truncated responses (DAPO's overlong filtering)",
    )
    kl: float = option(0.0, "coefficient of the KL from the initial policy; 0 is off", at_least=0.0)
    kl_estimator: str = option(
        "k3",
        "estimate of the KL; k1 has no average effect in the loss",
        choices=tuple(KL_ESTIMATORS),
    )
    kl_in: str = option(
        "loss",
        "add the KL to token losses, or subtract its sum from rewards",
        choices=("loss", "reward"),
    )
    kl_control: str = option(
        "fixed",
        "moves update.kl during the run towards a target KL, the same for all prompts (adaptive) "
        "or one that grows with a prompt's complexity (CRPO)",
        choices=tuple(KL_CONTROLS),
    )
    kl_settings: list[str] = option(
        [],
        'settings of kl_control, each "name=value" (docs/reference/training.md#the-loss)',
    )
    entropy_bonus: float = option(0.0, "coefficient of the entropy; 0 is off", at_least=0.0)
    old_logprobs: str = option(
        "trainer",
        "source of the old log-probabilities: 'trainer' computes them with the weights that "
        "sampled the row; 'sampler' takes the sampler's",
        choices=("trainer", "sampler"),
    )
    trajectory: str = option(
        "off",
        "weight whole rollouts by their importance ratio so that what a group has in common "
        "cancels (DFPO); needs update.surrogate=reinforce",
        choices=tuple(TRAJECTORY_WEIGHTS),
    )
    importance: str = option(
        "off",
        "corrects for a sampler whose probabilities differ from the trainer's: multiplies token "
        "losses by min(pi_old / pi_sampler, cap), per token or per response",
        choices=tuple(IMPORTANCE_WEIGHTS),
    )
    importance_cap: float = option(
        2.0, "maximum importance weight; 1.5 to 5 is usual for tokens", at_least=1.0
    )
    importance_mode: str = option(
        "truncate",
        "weight of ratios above the cap: the cap or 0",
        choices=("truncate", "mask"),
    )
    micro_tokens: int = option(
        20480,
        "tokens in one forward pass; affects memory, not the gradient. Halved if memory runs out",
        at_least=1,
    )
    capture: bool = option(
        True,
        "small models on a GPU: replay passes of equal size as CUDA graphs, which keep a pass's "
        "memory allocated",
    )
    repeatable: bool = option(
        False, "on a GPU: sum in a fixed order, so that repeated runs give equal weights; slower"
    )
    checkpointing: bool = option(
        False,
        "activation checkpointing: recompute each layer in the backward pass, for far less memory "
        "and a third more time (twice the time for small models on a GPU, which then cannot use "
        "`capture`)",
    )

    @property
    def kl_in_loss(self) -> bool:
        return self.kl > 0 and self.kl_in == "loss"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl > 0 and self.kl_in == "reward"

    @property
    def trains_all_rows(self) -> bool:
        """Whether rows without an advantage have a loss too, by its KL or its entropy bonus."""
        return self.kl_in_loss or self.entropy_bonus > 0
