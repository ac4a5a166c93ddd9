"""Every variant that an option or a command can name, on one page: name -> where it is written.

A variant is one file (or one function in a file of small siblings), one line here and one test. The
tables hold strings, so reading them imports no stage; `Registry.load` imports a variant when it is
first used. A table with a `plugin_loader` also takes a function of the user's, FILE.py:FUNCTION.
The comment above a table says how its variants are called; "A class (x)" is constructed with x.
"""

from counterpoise.plugins import Registry

ENGINES = ("native", "trl", "verl")  # poise train --engine

# -- task ----------------------------------------------------------------------------------------

# load(...) -> TaskPrompts: prompts to train on and held out; parameters are [task] options
TASKS = Registry(
    "task",
    {
        "word_problems": "counterpoise.task.word_problems:load",
        "code_problems": "counterpoise.task.code_problems:load",
        "role_play": "counterpoise.task.role_play:load",
        "files": "counterpoise.task.files_task:load",
        "jsonl": "counterpoise.task.files_task:load",  # the same, by its name in release 0.2.0
        "hub": "counterpoise.task.hub:load",
        "reasoning_gym": "counterpoise.task.reasoning_gym:load",
        "verifiers": "counterpoise.task.verifiers_tasks:load",
        "textarena": "counterpoise.task.textarena_games:load",
    },
)

# A class (turns) that is an Environment or a SessionEnvironment: replies to the turns of an episode
ENVIRONMENTS = Registry(
    "environment",
    {
        "tries": "counterpoise.task.environment:TriesEnvironment",
        "textarena": "counterpoise.task.textarena_games:TextArenaEnvironment",
    },
    plugin_loader="counterpoise.task.plugin_environment:load_environment",
)

# How a problem is put to a model; "auto": its chat template where it has one, else "boxed"
PROMPT_TEMPLATES = ("auto", "chat", "chat-boxed", "boxed", "qwen-math")

# -- sample and verify ---------------------------------------------------------------------------

# A class (policy, config), called as `native.sample` is, with `close`
SAMPLERS = Registry(
    "sampler",
    {
        "native": "counterpoise.sample.native:NativeSampler",
        "vllm": "counterpoise.sample.vllm:VLLMSampler",
    },
)

# choose(PromptRequest) -> (numbers of the prompts to sample, counts of settled ones passed over)
PROMPT_CHOICES = Registry(
    "choice of prompts",
    {
        "epochs": "counterpoise.sample.choose_prompts:epochs",
        "skip_settled": "counterpoise.sample.choose_prompts:skip_settled",
        "pools": "counterpoise.sample.choose_prompts:pools",
        "recent_mixed": "counterpoise.sample.choose_prompts:recent_mixed",
        "aligned": "counterpoise.sample.choose_prompts:aligned",
    },
)

# A class (timeout_seconds, workers) with `score` and `close`
VERIFIERS = Registry(
    "verifier",
    {
        "math": "counterpoise.verify.math.verifier:MathVerifier",
        "exact": "counterpoise.verify.exact:ExactVerifier",
        "last_number": "counterpoise.verify.last_number:LastNumberVerifier",
        "code": "counterpoise.verify.code.verifier:CodeVerifier",
        "verifiers": "counterpoise.verify.verifiers_tasks:VerifiersVerifier",
    },
    plugin_loader="counterpoise.verify.plugin_reward:bind_verifier",
)

# reward(prompt, response, config) -> float, beside the verifier's
EXTRA_REWARDS = Registry(
    "reward",
    {
        "overlong": "counterpoise.verify.overlong:reward",
        "equations": "counterpoise.verify.equations:reward",
        "style": "counterpoise.verify.style:reward",
    },
    plugin_loader="counterpoise.verify.plugin_reward:bind_verifier",
)

# -- credit --------------------------------------------------------------------------------------

# advantages(rewards_G) -> A_G; exact zeros when all rewards are equal, except by w_reinforce
ADVANTAGES = Registry(
    "credit",
    {
        "grpo": "counterpoise.credit.advantages:grpo",
        "dr_grpo": "counterpoise.credit.advantages:dr_grpo",
        "rloo": "counterpoise.credit.advantages:rloo",
        "positive_only": "counterpoise.credit.advantages:positive_only",
        "w_reinforce": "counterpoise.credit.advantages:w_reinforce",
        "maxrl": "counterpoise.credit.maxrl:maxrl",
        "f_grpo": "counterpoise.credit.f_grpo:f_grpo",
    },
)

# They do not sum to 0 in a group.
ONE_SIDED_ADVANTAGES = ("positive_only", "w_reinforce")

# mix(credit, rewards_KG, weights_K) -> A_G: several rewards, one advantage
MIXTURES = Registry(
    "mixture of rewards",
    {
        "sum": "counterpoise.credit.reward_mixtures:mix_by_sum",
        "decoupled": "counterpoise.credit.reward_mixtures:mix_decoupled",
    },
)

# weights(view, *, settings) -> [w_T of each row], or None for ones; they multiply the advantage
TOKEN_WEIGHTS = Registry(
    "token weights",
    {
        "uniform": "counterpoise.credit.uniform:weights",
        "cancellation": "counterpoise.credit.coupling_weights:cancellation",
        "nthr": "counterpoise.credit.coupling_weights:nthr",
        "thr": "counterpoise.credit.coupling_weights:thr",
        "high_entropy": "counterpoise.credit.high_entropy:weights",
        "rsi_s": "counterpoise.credit.rsi_s:weights",
        "negative_filter": "counterpoise.credit.negative_filter:weights",
        "otb": "counterpoise.credit.otb:weights",
        "gtpo": "counterpoise.credit.gtpo:weights",
        "shear": "counterpoise.credit.shear:weights",
        "grail": "counterpoise.credit.grail:weights",
        "oar_g": "counterpoise.credit.oar_g:weights",
        "oar_p": "counterpoise.credit.oar_p:weights",
        "oar_p_approximate": "counterpoise.credit.oar_p:approximate",
        "aligned": "counterpoise.credit.aligned:weights",
        "rlsd": "counterpoise.credit.rlsd:weights",
        "serl": "counterpoise.credit.serl:weights",
        "crpo": "counterpoise.credit.crpo:weights",
    },
    plugin_loader="counterpoise.credit.plugin_weights:PluginWeights",
)

# They read answers, an environment's messages or generic responses, which other trainers do not
# hand over: only the tokens of their batch.
WEIGHTS_THAT_READ_TEXTS = ("rlsd", "serl", "crpo")

# -- batch ---------------------------------------------------------------------------------------

# compose(rows, num_steps, seed) -> num_steps lists of row indices
COMPOSERS = Registry(
    "composer",
    {
        "grouped": "counterpoise.batch.grouped:compose",
        "shuffled": "counterpoise.batch.simple_composers:shuffled",
        "token_balanced": "counterpoise.batch.simple_composers:token_balanced",
        "zigzag": "counterpoise.batch.simple_composers:zigzag",
        "by_sign": "counterpoise.batch.simple_composers:by_sign",
        "half_groups": "counterpoise.batch.half_groups:compose",
        "whole": "counterpoise.batch.simple_composers:whole",
        "coupled": "counterpoise.batch.coupled:compose",
        "paired": "counterpoise.batch.paired:compose",
    },
    plugin_loader="counterpoise.batch.plugin_composer:load_composer",
)

# They compare tokens, which rows have in a native run only.
COMPOSERS_THAT_READ_TOKENS = ("coupled",)
# They need advantages, which verl computes only after its batch has been ordered.
COMPOSERS_THAT_READ_SIGNS = ("by_sign", "paired")

# They cut no group.
WHOLE_GROUP_COMPOSERS = ("grouped", "coupled", "paired", "whole")
# They place whole groups, or halves of groups, so each step needs one.
GROUP_COMPOSERS = ("grouped", "coupled", "paired", "half_groups")
# They separate rows, so one step is not enough.
TWO_STEP_COMPOSERS = ("by_sign", "half_groups")
# They work with some numbers of steps only.
FIXED_STEP_COMPOSERS = ("whole", *TWO_STEP_COMPOSERS)

# promise(rows, steps) -> what is broken, "" if nothing is: guarantees beyond a partition
COMPOSER_PROMISES = Registry(
    "promise",
    {
        "grouped": "counterpoise.batch.units:find_split_unit",
        "coupled": "counterpoise.batch.units:find_split_unit",
        "paired": "counterpoise.batch.paired:find_unpaired",
        "by_sign": "counterpoise.batch.simple_composers:find_mixed_signs",
        "half_groups": "counterpoise.batch.half_groups:find_uneven_split",
    },
)

# choose(groups, target, tau, sign_of) -> [(index, kept rows)] or None: what reward balance selects
BALANCE_UNITS = Registry(
    "balance unit",
    {
        "rollout": "counterpoise.batch.choose_rollouts:choose_rollouts",
        "group": "counterpoise.batch.choose_groups:choose_groups",
        "experimental_anti_rollout": "counterpoise.batch.choose_anti_rollouts:choose_anti_rollouts",
    },
)

# sign_of(row) -> +1, -1, or 0: what reward balance counts, and rows of 0 never wait
BALANCE_SIGNS = Registry(
    "balance sign",
    {
        "advantage": "counterpoise.batch.balance_signs:advantage_sign",
        "reward": "counterpoise.batch.balance_signs:reward_sign",
    },
)

# -- update --------------------------------------------------------------------------------------

# surrogate(SurrogateInputs) -> SurrogateOutputs: a loss per token, linear in the advantage
SURROGATES = Registry(
    "surrogate",
    {
        "grpo": "counterpoise.update.surrogates:grpo",
        "gspo": "counterpoise.update.surrogates:gspo",
        "cispo": "counterpoise.update.surrogates:cispo",
        "reinforce": "counterpoise.update.surrogates:reinforce",
        "unclipped": "counterpoise.update.surrogates:unclipped",
        "dppo": "counterpoise.update.surrogates:dppo",
        "drpo": "counterpoise.update.surrogates:drpo",
    },
)

# aggregate(rows, max_new_tokens) -> c_R: L = sum_i c_i sum_t L_it
AGGREGATIONS = Registry(
    "aggregation",
    {
        "token_mean": "counterpoise.update.aggregate:token_mean",
        "group_token_mean": "counterpoise.update.aggregate:group_token_mean",
        "sequence_mean": "counterpoise.update.aggregate:sequence_mean",
        "constant": "counterpoise.update.aggregate:constant",
    },
)

# (log_ratio_M, row_M, num_rows) -> ratio_M, not yet capped: for a sampler that is not the trainer
IMPORTANCE_WEIGHTS = Registry(
    "importance weight",
    {
        "off": "counterpoise.update.importance:off",
        "token": "counterpoise.update.importance:token",
        "sequence": "counterpoise.update.importance:sequence",
    },
)

# (log pi - log pi_ref) -> K: estimates of the KL from the initial policy
KL_ESTIMATORS = Registry(
    "KL estimator",
    {
        "k1": "counterpoise.update.kl_penalty:k1",
        "k2": "counterpoise.update.kl_penalty:k2",
        "k3": "counterpoise.update.kl_penalty:k3",
    },
)

# A class (initial, *, settings): moves the coefficient of the KL during a run
KL_CONTROLS = Registry(
    "KL control",
    {
        "fixed": "counterpoise.update.kl_control:keep_fixed",
        "adaptive": "counterpoise.update.kl_control:AdaptiveControl",
        "complexity": "counterpoise.update.kl_control:ComplexityControl",
        "complexity_released": "counterpoise.update.kl_control:ReleasedComplexityControl",
    },
)

# progress p from 0 to 1 -> f(p): decay of the learning rate
SCHEDULES = Registry(
    "schedule",
    {
        "constant": "counterpoise.update.schedules:constant",
        "linear": "counterpoise.update.schedules:linear",
        "cosine": "counterpoise.update.schedules:cosine",
    },
)

# (ratios_G, advantages_G) -> w_G: weights of whole rollouts (DFPO)
TRAJECTORY_WEIGHTS = Registry(
    "trajectory weight",
    {
        "off": "counterpoise.update.trajectory:off",
        "min_replace": "counterpoise.update.trajectory:min_replace",
        "orthogonal": "counterpoise.update.trajectory:orthogonal",
    },
)

# rule(OptimizerStepView, *, settings) -> RuleEffect: factors on advantages, a term of the loss
STEP_RULES = Registry(
    "rule",
    {
        "off": "counterpoise.update.rules.bind:off",
        "clip_cov": "counterpoise.update.rules.clip_cov:rule",
        "kl_cov": "counterpoise.update.rules.kl_cov:rule",
        "sdpg": "counterpoise.update.rules.sdpg:rule",
    },
    plugin_loader="counterpoise.update.rules.plugin_rule:PluginRule",
)

# Options whose values only their stage can judge: check(config) raises where they are wrong
STAGE_CHECKS = Registry(
    "check",
    {
        "balance.target": "counterpoise.batch.buffer:check_balance_target",
        "credit.settings": "counterpoise.credit.assign:check_settings",
        "credit.rule": "counterpoise.update.rules.bind:check_rule",
        "update.kl_settings": "counterpoise.update.kl_control:check_kl_control",
        "verify.also": "counterpoise.verify.extra_rewards:check_extra_rewards",
    },
)

# -- around a run --------------------------------------------------------------------------------

# A class (run_folder, out, run_options) with `log` and `close`
TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "counterpoise.run.trackers.tensorboard:TensorBoard",
        "wandb": "counterpoise.run.trackers.wandb:WandB",
        "trackio": "counterpoise.run.trackers.trackio:Trackio",
    },
)

# A RolloutSource: a format of rollouts that `poise import --from` reads
IMPORTERS = Registry(
    "source",
    {
        "trl": "counterpoise.hosts.trl.importer:SOURCE",
        "verl": "counterpoise.hosts.verl.importer:SOURCE",
        "prime-rl": "counterpoise.hosts.prime_rl.importer:SOURCE",
        "slime": "counterpoise.hosts.slime.importer:SOURCE",
        "miles": "counterpoise.hosts.slime.importer:MILES",
        "areal": "counterpoise.hosts.areal.importer:SOURCE",
        "ms-swift": "counterpoise.hosts.ms_swift.importer:SOURCE",
        "nemo-rl": "counterpoise.hosts.nemo_rl.importer:SOURCE",
        "tinker-cookbook": "counterpoise.hosts.tinker.importer:SOURCE",
        "wandb": "counterpoise.hosts.wandb_tables:SOURCE",
        "poise": "counterpoise.hosts.own_rollouts:SOURCE",
        "table": "counterpoise.hosts.tables.importer:SOURCE",
    },
)

# panel(run: RunData) -> Panel | None; the report shows them in this order
PANELS = Registry(
    "panel",
    {
        "summary": "counterpoise.report.panels.summary:panel",
        "learning": "counterpoise.report.panels.learning:panel",
        "benchmarks": "counterpoise.report.panels.benchmarks:panel",
        "contamination": "counterpoise.report.panels.contamination:panel",
        "mosaic": "counterpoise.report.panels.mosaic:panel",
        "tokens": "counterpoise.report.panels.tokens:panel",
        "monitor": "counterpoise.report.panels.monitor:panel",
        "heldout": "counterpoise.report.panels.heldout_answers:panel",
        "buffer": "counterpoise.report.panels.buffer:panel",
        "memory": "counterpoise.report.panels.memory:panel",
        "plans": "counterpoise.report.panels.plans:panel",
        "timing": "counterpoise.report.panels.timing:panel",
        "rollouts": "counterpoise.report.panels.rollouts:panel",
        "configuration": "counterpoise.report.panels.configuration:panel",
        "words": "counterpoise.report.panels.words:panel",
    },
)

# finding(run: AuditRun) -> AuditFinding: a check of `poise audit`. From the first stage of a run to
# the last: among equally serious findings the earlier stage comes first
FINDINGS = Registry(
    "finding",
    {
        "benchmark_prompts": "counterpoise.report.audit.prompts:benchmark_prompts",
        "duplicate_prompts": "counterpoise.report.audit.prompts:duplicate_prompts",
        "sampler_mismatch": "counterpoise.report.audit.sampler:sampler_mismatch",
        "equal_rewards": "counterpoise.report.audit.spent_rollouts:equal_rewards",
        "inconsistent_rewards": "counterpoise.report.audit.verifier:inconsistent_rewards",
        "rejected_answers": "counterpoise.report.audit.verifier:rejected_answers",
        "accepted_answers": "counterpoise.report.audit.verifier:accepted_answers",
        "verifier_timeouts": "counterpoise.report.audit.verifier:verifier_timeouts",
        "question_echo": "counterpoise.report.audit.hacking:question_echo",
        "learning_rate": "counterpoise.report.audit.learning:learning_rate",
        "not_finite_steps": "counterpoise.report.audit.learning:not_finite_steps",
        "cut_groups": "counterpoise.report.audit.batches:split_groups",
        "rare_sign": "counterpoise.report.audit.batches:rare_sign",
        "unused_rollouts": "counterpoise.report.audit.spent_rollouts:unused_rollouts",
        "entropy_collapse": "counterpoise.report.audit.learning:entropy_collapse",
        "length_drift": "counterpoise.report.audit.lengths:length_drift",
        "reward_gap": "counterpoise.report.audit.hacking:reward_gap",
        "rollouts_without_signal": (
            "counterpoise.report.audit.spent_rollouts:rollouts_without_signal"
        ),
        "unusable_prompts": "counterpoise.report.audit.prompts:unusable_prompts",
        "cancelling_types": "counterpoise.report.audit.token_types:cancelling_types",
        "lowering_prompts": "counterpoise.report.audit.heldout_pushes:lowering_prompts",
    },
)

# STUDY = Study(...): a figure or table of the paper, for `poise study`
STUDIES = Registry(
    "study",
    {
        "flipping": "counterpoise.lab.studies.flipping.measure:STUDY",
        "shared": "counterpoise.lab.studies.shared.measure:STUDY",
        "coupling": "counterpoise.lab.studies.coupling.measure:STUDY",
        "masking": "counterpoise.lab.studies.masking.measure:STUDY",
        "polarity": "counterpoise.lab.studies.polarity:STUDY",
        "value": "counterpoise.lab.studies.value.measure:STUDY",
        "budget": "counterpoise.lab.studies.budget:STUDY",
        "composition": "counterpoise.lab.studies.composition:STUDY",
        "repeated": "counterpoise.lab.studies.repeated:STUDY",
        "variance": "counterpoise.lab.studies.variance.measure:STUDY",
        "proxy": "counterpoise.lab.studies.proxy:STUDY",
        "sign_partition": "counterpoise.lab.studies.sign_partition:STUDY",
        "interventions": "counterpoise.lab.studies.interventions:STUDY",
        "credit": "counterpoise.lab.studies.credit.measure:STUDY",
        "trace": "counterpoise.lab.studies.trace:STUDY",
        "removal": "counterpoise.lab.studies.removal:STUDY",
        "plants": "counterpoise.lab.studies.plants:STUDY",
        "dfpo": "counterpoise.lab.studies.dfpo.measure:STUDY",
    },
)

# measure(SpeedSetup) -> MeasurementTable, for `poise bench --parts`
SPEED_MEASUREMENTS = Registry(
    "part",
    {
        "peer": "counterpoise.lab.speed.whole_iteration:measure",
        "sampler": "counterpoise.lab.speed.sampler:measure",
        "update": "counterpoise.lab.speed.update:measure",
        "agreement": "counterpoise.lab.speed.agreement:measure",
        "monitor": "counterpoise.lab.speed.monitor:measure",
        "probes": "counterpoise.lab.speed.probes:measure",
        "growth": "counterpoise.lab.speed.growth:measure",
        "lora": "counterpoise.lab.speed.lora:measure",
        "families": "counterpoise.lab.speed.families:measure",
        "serve": "counterpoise.lab.speed.serve:measure",
    },
)
