"""Every variant that an option or a command can name, on one page: name -> where it is written.

A variant is one file (or one function in a file of small siblings), one line here and one test. The
tables hold strings, so reading them imports no stage; `Registry.load` imports a variant when it is
first used. Where a table has `own`, a function of the user's, FILE.py:FUNCTION, is taken as well.
"""

from counterpoise.plugins import Registry

ENGINES = ("native", "trl", "verl")  # poise train --engine

# -- task ----------------------------------------------------------------------------------------

# load(config) -> Task: prompts to train on, and prompts held out
TASKS = Registry(
    "task",
    {
        "word_problems": "counterpoise.task.word_problems:load",
        "jsonl": "counterpoise.task.jsonl:load",
        "hub": "counterpoise.task.hub:load",
        "reasoning_gym": "counterpoise.task.reasoning_gym:load",
    },
)

# What answers a response, so that the policy gets another turn
ENVIRONMENTS = Registry("environment", {"tries": "counterpoise.task.environment:TriesEnvironment"})

# How a problem is put to a model; "auto": its chat template where it has one, else "boxed"
PROMPT_TEMPLATES = ("auto", "chat", "chat-boxed", "boxed", "qwen-math")

# -- sample and verify ---------------------------------------------------------------------------

SAMPLERS = Registry(
    "sampler",
    {
        "native": "counterpoise.sample.native:NativeSampler",
        "vllm": "counterpoise.sample.vllm:VLLMSampler",
    },
)

VERIFIERS = Registry(
    "verifier",
    {
        "math": "counterpoise.verify.math.verifier:MathVerifier",
        "exact": "counterpoise.verify.exact:ExactVerifier",
    },
    own="counterpoise.verify.plugin_reward:bind_verifier",
)

# Rewards beside the verifier's: verify.also
EXTRA_REWARDS = Registry(
    "reward",
    {
        "overlong": "counterpoise.verify.overlong:reward",
        "equations": "counterpoise.verify.equations:reward",
    },
    own="counterpoise.verify.plugin_reward:bind_verifier",
)

# -- credit --------------------------------------------------------------------------------------

# The rewards of a group -> its advantages
ADVANTAGES = Registry(
    "credit",
    {
        "grpo": "counterpoise.credit.advantages:grpo",
        "dr_grpo": "counterpoise.credit.advantages:dr_grpo",
        "rloo": "counterpoise.credit.advantages:rloo",
        "positive_only": "counterpoise.credit.advantages:positive_only",
        "w_reinforce": "counterpoise.credit.advantages:w_reinforce",
    },
)

# Several rewards -> one advantage
MIXTURES = Registry(
    "mixture of rewards",
    {
        "sum": "counterpoise.credit.reward_mixtures:mix_by_sum",
        "decoupled": "counterpoise.credit.reward_mixtures:mix_decoupled",
    },
)

# A weight for every token, on top of its rollout's advantage
TOKEN_WEIGHTS = Registry(
    "token weights",
    {
        "uniform": "counterpoise.credit.uniform:weights",
        "cancellation": "counterpoise.credit.coupling_weights:cancellation",
        "nthr": "counterpoise.credit.coupling_weights:nthr",
        "thr": "counterpoise.credit.coupling_weights:thr",
        "high_entropy": "counterpoise.credit.high_entropy:weights",
        "gtpo": "counterpoise.credit.gtpo:weights",
        "shear": "counterpoise.credit.shear:weights",
        "grail": "counterpoise.credit.grail:weights",
        "oar_g": "counterpoise.credit.oar_g:weights",
        "oar_p": "counterpoise.credit.oar_p:weights",
        "rlsd": "counterpoise.credit.hindsight:rlsd",
        "serl": "counterpoise.credit.hindsight:serl",
    },
)

# -- batch ---------------------------------------------------------------------------------------

# (rows, number of steps, seed) -> which rows share an optimizer step
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
    },
    own="counterpoise.batch.plugin_composer:load_composer",
)

# They compare tokens, which rows have in a native run only.
COMPOSERS_THAT_READ_TOKENS = ("coupled",)

# What a composer guarantees beyond a partition: (rows, steps) -> what is broken, "" if nothing is
COMPOSER_PROMISES = Registry(
    "promise",
    {
        "grouped": "counterpoise.batch.grouped:find_split_group",
        "coupled": "counterpoise.batch.grouped:find_split_group",
        "by_sign": "counterpoise.batch.simple_composers:find_mixed_signs",
        "half_groups": "counterpoise.batch.half_groups:find_uneven_split",
    },
)

# What reward balancing selects: (groups, target, tau) -> the groups taken and their kept rows
BALANCE_UNITS = Registry(
    "balance unit",
    {
        "rollout": "counterpoise.batch.choose_rollouts:choose_rollouts",
        "group": "counterpoise.batch.choose_groups:choose_groups",
    },
)

# -- update --------------------------------------------------------------------------------------

SURROGATES = Registry(
    "surrogate",
    {
        "grpo": "counterpoise.update.surrogates:grpo",
        "gspo": "counterpoise.update.surrogates:gspo",
        "cispo": "counterpoise.update.surrogates:cispo",
        "reinforce": "counterpoise.update.surrogates:reinforce",
        "unclipped": "counterpoise.update.surrogates:unclipped",
    },
)

# How token losses become one number
AGGREGATIONS = Registry(
    "aggregation",
    {
        "token_mean": "counterpoise.update.aggregate:token_mean",
        "group_token_mean": "counterpoise.update.aggregate:group_token_mean",
        "sequence_mean": "counterpoise.update.aggregate:sequence_mean",
        "constant": "counterpoise.update.aggregate:constant",
    },
)

# For a sampler whose probabilities differ from the trainer's
IMPORTANCE_WEIGHTS = Registry(
    "importance weight",
    {
        "off": "counterpoise.update.importance:off",
        "token": "counterpoise.update.importance:token",
        "sequence": "counterpoise.update.importance:sequence",
    },
)

# Weights of whole rollouts (DFPO)
TRAJECTORY_WEIGHTS = Registry(
    "trajectory weight",
    {
        "off": "counterpoise.update.trajectory:off",
        "min_replace": "counterpoise.update.trajectory:min_replace",
        "orthogonal": "counterpoise.update.trajectory:orthogonal",
    },
)

# A rule of an optimizer step: tokens that it leaves out, terms that it adds to the loss
STEP_RULES = Registry(
    "rule",
    {
        "off": "counterpoise.update.rules.bind:off",
        "clip_cov": "counterpoise.update.rules.clip_cov:rule",
        "kl_cov": "counterpoise.update.rules.kl_cov:rule",
        "sdpg": "counterpoise.update.rules.sdpg:rule",
    },
)

# Options whose values only their stage can judge: check(config) raises where they are wrong
STAGE_CHECKS = Registry(
    "check",
    {
        "credit.settings": "counterpoise.credit.assign:check_settings",
        "credit.rule": "counterpoise.update.rules.bind:check_rule",
        "verify.also": "counterpoise.verify.extra_rewards:check_extra_rewards",
    },
)

# -- around a run --------------------------------------------------------------------------------

TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "counterpoise.run.trackers.tensorboard:TensorBoard",
        "wandb": "counterpoise.run.trackers.wandb:WandB",
    },
)

# Rollouts that other trainers wrote: poise import
IMPORTERS = Registry(
    "source",
    {
        "trl": "counterpoise.hosts.trl.importer:SOURCE",
        "verl": "counterpoise.hosts.verl.importer:SOURCE",
        "prime-rl": "counterpoise.hosts.prime_rl:SOURCE",
    },
)

# panel(run: RunData) -> Panel | None; the report shows them in this order
PANELS = Registry(
    "panel",
    {
        "summary": "counterpoise.report.panels.summary:panel",
        "learning": "counterpoise.report.panels.learning:panel",
        "contamination": "counterpoise.report.pages.contamination:panel",
        "mosaic": "counterpoise.report.panels.mosaic:panel",
        "tokens": "counterpoise.report.panels.tokens:panel",
        "monitor": "counterpoise.report.panels.monitor:panel",
        "buffer": "counterpoise.report.panels.buffer:panel",
        "plans": "counterpoise.report.panels.plans:panel",
        "rollouts": "counterpoise.report.panels.rollouts:panel",
        "configuration": "counterpoise.report.panels.configuration:panel",
    },
)

# poise study: a figure or table of the paper each
STUDIES = Registry(
    "study",
    {
        "flipping": "counterpoise.lab.studies.flipping.measure:STUDY",
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
    },
)

# poise bench
SPEED_MEASUREMENTS = Registry(
    "part",
    {
        "peer": "counterpoise.lab.speed.whole_iteration:measure",
        "sampler": "counterpoise.lab.speed.sampler:measure",
        "update": "counterpoise.lab.speed.update:measure",
        "agreement": "counterpoise.lab.speed.agreement:measure",
        "monitor": "counterpoise.lab.speed.monitor:measure",
        "growth": "counterpoise.lab.speed.growth:measure",
    },
)
