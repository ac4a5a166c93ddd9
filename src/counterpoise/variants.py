"""Every variant that an option or a command can name, on one page: name -> where it is written.

A variant is one file (or one function in a file of small siblings), one line here and one test. The
tables hold strings, so reading them imports no stage; `Registry.load` imports a variant when it is
first used. Where a table has `own`, a function of the user's, FILE.py:FUNCTION, is taken as well.
"""

from counterpoise.registry import Registry

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
ENVIRONMENTS = Registry("environment", {"tries": "counterpoise.task.tries:Tries"})

# -- sample and verify ---------------------------------------------------------------------------

SAMPLERS = Registry(
    "sampler",
    {
        "native": "counterpoise.sample.native:Native",
        "vllm": "counterpoise.sample.vllm:VLLM",
    },
)

VERIFIERS = Registry(
    "verifier",
    {
        "math": "counterpoise.verify.math:MathVerifier",
        "exact": "counterpoise.verify.exact:ExactVerifier",
    },
    own="counterpoise.verify.own:verifier",
)

# Rewards beside the verifier's: verify.also
EXTRA_REWARDS = Registry(
    "reward",
    {
        "overlong": "counterpoise.verify.overlong:reward",
        "equations": "counterpoise.verify.equations:reward",
    },
    own="counterpoise.verify.own:verifier",
)

# -- credit --------------------------------------------------------------------------------------

# The rewards of a group -> its advantages
ADVANTAGES = Registry(
    "credit",
    {
        "grpo": "counterpoise.credit.grpo:advantages",
        "dr_grpo": "counterpoise.credit.dr_grpo:advantages",
        "rloo": "counterpoise.credit.rloo:advantages",
        "positive_only": "counterpoise.credit.positive_only:advantages",
        "w_reinforce": "counterpoise.credit.w_reinforce:advantages",
    },
)

# Several rewards -> one advantage
MIXTURES = Registry(
    "mixture of rewards",
    {
        "sum": "counterpoise.credit.summed:mixed",
        "decoupled": "counterpoise.credit.decoupled:mixed",
    },
)

# A weight for every token, on top of its rollout's advantage
TOKEN_WEIGHTS = Registry(
    "token weights",
    {
        "uniform": "counterpoise.credit.uniform:weights",
        "cancellation": "counterpoise.credit.cancellation:weights",
        "nthr": "counterpoise.credit.nthr:weights",
        "thr": "counterpoise.credit.thr:weights",
        "high_entropy": "counterpoise.credit.high_entropy:weights",
        "gtpo": "counterpoise.credit.gtpo:weights",
        "shear": "counterpoise.credit.shear:weights",
        "grail": "counterpoise.credit.grail:weights",
        "oar_g": "counterpoise.credit.oar_g:weights",
        "oar_p": "counterpoise.credit.oar_p:weights",
        "rlsd": "counterpoise.credit.rlsd:weights",
        "serl": "counterpoise.credit.serl:weights",
    },
)

# -- batch ---------------------------------------------------------------------------------------

# (rows, number of steps, seed) -> which rows share an optimizer step
COMPOSERS = Registry(
    "composer",
    {
        "grouped": "counterpoise.batch.grouped:compose",
        "shuffled": "counterpoise.batch.shuffled:compose",
        "token_balanced": "counterpoise.batch.token_balanced:compose",
        "zigzag": "counterpoise.batch.zigzag:compose",
        "by_sign": "counterpoise.batch.by_sign:compose",
        "half_groups": "counterpoise.batch.half_groups:compose",
        "whole": "counterpoise.batch.whole:compose",
        "coupled": "counterpoise.batch.coupled:compose",
    },
    own="counterpoise.batch.own:composer",
)

# They compare tokens, which rows have in a native run only.
COMPOSERS_THAT_READ_TOKENS = ("coupled",)

# What a composer guarantees beyond a partition: (rows, steps) -> what is broken, "" if nothing is
COMPOSER_PROMISES = Registry(
    "promise",
    {
        "grouped": "counterpoise.batch.grouped:broken",
        "coupled": "counterpoise.batch.grouped:broken",
        "by_sign": "counterpoise.batch.by_sign:broken",
        "half_groups": "counterpoise.batch.half_groups:broken",
    },
)

# What reward balancing selects: (groups, target, tau) -> the groups taken and their kept rows
BALANCE_UNITS = Registry(
    "balance unit",
    {
        "rollout": "counterpoise.batch.choose_rollouts:choose",
        "group": "counterpoise.batch.choose_groups:choose",
    },
)

# -- update --------------------------------------------------------------------------------------

SURROGATES = Registry(
    "surrogate",
    {
        "grpo": "counterpoise.update.grpo:surrogate",
        "gspo": "counterpoise.update.gspo:surrogate",
        "cispo": "counterpoise.update.cispo:surrogate",
        "reinforce": "counterpoise.update.reinforce:surrogate",
        "unclipped": "counterpoise.update.unclipped:surrogate",
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
        "off": "counterpoise.credit.rules:off",
        "clip_cov": "counterpoise.credit.clip_cov:rule",
        "kl_cov": "counterpoise.credit.kl_cov:rule",
        "sdpg": "counterpoise.credit.sdpg:rule",
    },
)

# -- around a run --------------------------------------------------------------------------------

TRACKERS = Registry(
    "tracker",
    {
        "tensorboard": "counterpoise.track.tensorboard:TensorBoard",
        "wandb": "counterpoise.track.wandb:WandB",
    },
)

# Rollouts that other trainers wrote: poise import
IMPORTERS = Registry(
    "source",
    {
        "trl": "counterpoise.import_runs.trl:SOURCE",
        "verl": "counterpoise.import_runs.verl:SOURCE",
        "prime-rl": "counterpoise.import_runs.prime_rl:SOURCE",
    },
)

# panel(run: RunData) -> Panel | None; the report shows them in this order
PANELS = Registry(
    "panel",
    {
        "summary": "counterpoise.report.summary:panel",
        "learning": "counterpoise.report.learning:panel",
        "contamination": "counterpoise.report.contamination:panel",
        "mosaic": "counterpoise.report.mosaic:panel",
        "tokens": "counterpoise.report.tokens:panel",
        "monitor": "counterpoise.report.monitor:panel",
        "buffer": "counterpoise.report.buffer:panel",
        "plans": "counterpoise.report.plans:panel",
        "rollouts": "counterpoise.report.rollouts:panel",
        "configuration": "counterpoise.report.configuration:panel",
    },
)

# poise study: a figure or table of the paper each
STUDIES = Registry(
    "study",
    {
        "flipping": "counterpoise.study.flipping:STUDY",
        "coupling": "counterpoise.study.coupling:STUDY",
        "masking": "counterpoise.study.masking:STUDY",
        "polarity": "counterpoise.study.polarity:STUDY",
        "value": "counterpoise.study.value:STUDY",
        "budget": "counterpoise.study.budget:STUDY",
        "composition": "counterpoise.study.composition:STUDY",
        "repeated": "counterpoise.study.repeated:STUDY",
        "variance": "counterpoise.study.variance:STUDY",
        "proxy": "counterpoise.study.proxy:STUDY",
        "sign_partition": "counterpoise.study.sign_partition:STUDY",
        "interventions": "counterpoise.study.interventions:STUDY",
        "credit": "counterpoise.study.credit:STUDY",
    },
)

# poise bench
SPEED_MEASUREMENTS = Registry(
    "part",
    {
        "peer": "counterpoise.bench.peer:measure",
        "sampler": "counterpoise.bench.sampler:measure",
        "update": "counterpoise.bench.update:measure",
        "agreement": "counterpoise.bench.agreement:measure",
        "monitor": "counterpoise.bench.monitor:measure",
        "growth": "counterpoise.bench.growth:measure",
    },
)
