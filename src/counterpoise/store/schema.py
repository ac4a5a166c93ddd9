"""The files of a run folder, and the meaning of each of their fields.

Writers take their names from these tables; `docs/generate.py` turns them into
docs/reference/run-folder.md. A real run is compared with them in tests/store/test_schema.py. `*`
stands for a name that the run chooses, such as that of a further reward.
"""

from __future__ import annotations

Fields = dict[str, str]  # name -> meaning

FILES: Fields = {
    "config.toml": "every option; itself a run file",
    "vocabulary.json": "every token's text",
    "metrics.jsonl": "one line for each iteration",
    "plans.jsonl": "one line for each iteration with an update",
    "drops.jsonl": "one line for each iteration that dropped rollouts",
    "memory.jsonl": "unless sample.choose=epochs: one line for each iteration",
    "evaluations.jsonl": "one line for each held-out evaluation and sampling setting",
    "benchmarks.jsonl": "the same for evaluate.benchmarks, and for each of them",
    "alternatives.jsonl": "poise replay: one line for each plan",
    "probes.jsonl": "probe answers, a line per sampling",
    "gaps.jsonl": "lost logs that --accept-missing-logs accepted",
    "checksums.jsonl": "one line for each file and log line",
    "contamination.json": "training prompts found in task.benchmarks",
    "replay.json": "poise replay: its options",
    "rollouts/step_NNNNN.jsonl": "sampled rollouts",
    "tokens/step_NNNNN.parquet": "trained tokens",
    "pushes/step_NNNNN.parquet": "strongest pushes on the tokens of monitor.watch groups",
    "likely/step_NNNNN.parquet": "likeliest tokens at those positions",
    "probes/step_NNNNN.parquet": "tokens of probe answers",
    "probe_rows/step_NNNNN.parquet": "push of rows on probe answers",
    "probe_pushes/step_NNNNN.parquet": "strongest tokens of the rows that move a right answer most",
    "checkpoints/iteration_NNNNN/": "all that --resume needs",
    "unfinished/step_NNNNN/": "TRL: part of an iteration, for a checkpoint within it",
    "model/": "trained policy, as save_pretrained writes it",
    "report.html": "poise report",
    "comparison.html": "poise report, several runs",
    "audit.html": "poise audit",
    "credit.html": "poise credit",
    "credit/": "its token weights",
    "engine.json": "trl, verl: version",
    "train.parquet": "verl: training prompts",
    "heldout.parquet": "verl: held-out prompts",
    "finished.json": "written last: iterations run",
    "tensorboard/": "tracker",
    "wandb/": "tracker",
    "trackio/": "tracker",
}

# -- metrics.jsonl -------------------------------------------------------------------------------

PROMPT_MEMORY_METRICS: Fields = {
    "skipped_solved": "always solved prompts left out",
    "skipped_unsolved": "never solved ones",
}
SAMPLING_METRICS: Fields = {
    "iteration": "from 1",
    "success": "share of rollouts with reward above 0",
    "reward": "mean reward",
    "reward_*": "mean of a further reward",
    "graded": "true where rewards other than 0 and 1 occur",
    "unscored": "rollouts without a reward (None), if any",
    "logged_*": "mean of a number that your reward function logged",
    "anchor_success": "success of anchors, which success and reward leave out",
    "mixed_groups": "share of groups with unequal rewards",
    **PROMPT_MEMORY_METRICS,
    "sampling_rounds": "1 plus refills",
    "rollouts": "sampled",
    "rollout_tokens": "sampled",
    "response_length": "mean tokens",
    "turns": "mean turns of an episode",
    "turn_success": "list: success at each turn",
    "told_tokens": "tokens from the environment",
    "truncated_share": "cut at sample.max_new_tokens",
    "verifier_timeouts": "comparisons that hung",
    "verifier_crashes": "comparisons that killed their worker",
}
BATCH_METRICS: Fields = {
    "buffer_positive": "rows waiting",
    "buffer_negative": "rows waiting",
    "dropped_no_spread": "by dynamic sampling, this iteration",
    "dropped_surplus": "by the buffer, since the start",
    "dropped_aged": "by the buffer, since the start",
    "batch_rows": "0: no update",
    "rows_without_signal": "sampled with advantage 0",
}
PLAN_METRICS: Fields = {
    "positive_share": "of rows with signal",
    "split_groups": "groups in several steps",
    "token_imbalance": "heaviest step / mean",
    "max_abs_group_advantage_sum": "largest |S_B|",
    "shared_token_share": "token types of positive rows that negative rows share",
}
STEP_METRICS: Fields = {
    "steps": "optimizer steps taken",
    "skipped_steps": "no signal, or not finite",
    "not_finite_steps": "of these, not finite; TRL and verl take such steps. Not in release 0.3.0",
    "kl_coefficient": "mean over rows, with update.kl_control",
}
UPDATE_METRICS: Fields = {
    "loss": "mean over steps",
    "grad_norm": "before clipping",
    "clipped_share": "tokens whose gradient the clip removed",
    "capped_share": "importance weights at the cap",
    "added_loss": "loss that credit.rule adds",
    "chosen_share": "tokens that credit.rule chose",
    "entropy": "mean, nats",
    "old_logprob": "mean",
    "mean_ratio": "pi / pi_old, before each step",
    "kl": "from the initial policy, mean",
    "lr": "of the last step",
}
SAMPLER_METRICS: Fields = {
    "sampler_mismatch": "mean |log pi_sampler - log pi_trainer|",
    "sampler_mismatch_max": "its maximum",
    "sampler_ratio_std": "spread of the importance ratio",
}
MONITOR_METRICS: Fields = {
    "boosted_positive": "share of tokens boosted, A > 0",
    "suppressed_positive": "suppressed",
    "stable_positive": "unmoved",
    "moved_positive": "mean |displacement|",
    "boosted_negative": "the same, A < 0",
    "suppressed_negative": "",
    "stable_negative": "",
    "moved_negative": "",
    "flipped": "moved against their advantage",
    "cancellation": "1 - net push / gross push",
    "cancellation_types": "[token, cancellation, share] of the heaviest types",
    "own_share": "push of a token on itself",
    "same_token_share": "push from equal tokens",
    "proxy_agreement": "displacement has the predicted sign",
    "shared_prefix_share": "tokens on shared prefixes",
    "exchangeability": "net / gross pull there",
    "learning_tax": "KL(new, old) at shared tokens, nats",
    "solution_drift": "log-odds change between right answers",
    "lazy_likelihood": "share of A > 0 that did not rise",
}
PROBE_METRICS: Fields = {  # only with probes
    "probe_right": "mean change of right probe answers' log p",
    "probe_wrong": "wrong ones",
    "probe_correlation": "ranks of predicted and real change (monitor.probe_through)",
    "probe_seconds": "",
}
TIME_METRICS: Fields = {
    "sample_seconds": "",
    "verify_seconds": "",
    "score_seconds": "credit and old log-probabilities",
    "compose_seconds": "balance, compose, describe",
    "update_seconds": "",
    "monitor_seconds": "",
    "iteration_seconds": "without storing and evaluation",
    "tokens_per_second": "sampled",
}
METRICS: Fields = {
    **SAMPLING_METRICS,
    **BATCH_METRICS,
    **PLAN_METRICS,
    **STEP_METRICS,
    **UPDATE_METRICS,
    **SAMPLER_METRICS,
    **MONITOR_METRICS,
    **PROBE_METRICS,
    **TIME_METRICS,
}

# -- the other logs ------------------------------------------------------------------------------

PLANS: Fields = {
    "iteration": "",
    "rule": "composer, not credit.rule",
    "steps": "lists of row numbers, in order",
    "group": "of each row: index into groups",
    "groups": "group keys",
    "index": "of each row: place in its group",
    "advantage": "of each row, after re-centring",
    "tokens": "of each row",
    "born": "iteration that sampled the row",
    "describe": "numbers below; store.report=false stores only these",
}
SCHEDULE: Fields = {  # imported plans only, where the other trainer's files say so
    "rank": "of each row: data-parallel rank",
    "micro_batch": "of each row: on its rank, in its step",
}
DESCRIPTION: Fields = {
    "rows": "",
    "groups": "",
    "rows_without_signal": "",
    "split_groups": "",
    "split_share": "of all groups",
    "token_imbalance": "",
    "positive_share": "",
    "positive_share_per_step": "",
    "max_abs_group_advantage_sum": "",
    "cross_advantage_sum": "eq. 14, each step",
    "cross_advantage_ratio": "-1: whole groups",
    "tokens_per_step": "",
    "rows_per_step": "",
    "shared_token_share": "",
}
DROPS: Fields = {
    "iteration": "",
    "no_spread": "dynamic sampling: {group: [index, ...]}",
    "no_signal": "reward balance: advantage 0",
    "surplus": "reward balance: too many of their sign",
    "aged": "reward balance: waited too long",
}
MEMORY: Fields = {
    "iteration": "",
    "prompts": "{id: [right, scored, 1 if rewards differ]}",
    "influence": "{id: push on the steering probes}, with choose=aligned",
    **dict.fromkeys(PROMPT_MEMORY_METRICS, ""),
    "next_position": "in the shuffled epochs",
}
EVALUATIONS: Fields = {
    "iteration": "iterations finished; 0: before training",
    "temperature": "",
    "top_p": "",
    "mean": "success",
    "low": "95 % interval over problems",
    "high": "",
    "pass_any": "solved at least once",
    "mixed": "solved by some samples",
    "prompts": "",
    "samples": "of each prompt",
    "reward": "mean",
    "reward_low": "95 % interval, if rewards are graded; null: not known",
    "reward_high": "",
    "evaluate_seconds": "",
}
BENCHMARKS: Fields = {
    "benchmark": "its name",
    "title": "",
    **dict.fromkeys(EVALUATIONS, ""),
    "truncated_share": "of responses cut off",
}
ALTERNATIVES: Fields = {
    "iteration": "",
    "own": "the replayed plan: describe, rarer_sign (smallest share over steps), monitor",
    "grouped": "QB on the same rows; with --compare: monitor, same_direction, correlation",
    "balanced": "RB on the same rows: its largest batch",
}
PROBES: Fields = {
    "iteration": "first with these answers",
    "answers": "list of problem_id, problem, answer, response, reward, half (steer, judge), drawn "
    "(iteration; 0: given), response_tokens",
}
GAPS: Fields = {
    "iteration": "last one before the resume",
    "missing": "{file: [iteration, ...]}",
}
CHECKSUMS: Fields = {
    "iteration": "0: of the whole run",
    "file": "path; for a log, one of its lines",
    "bytes": "",
    "crc32": "hexadecimal",
}
LOGS: dict[str, Fields] = {
    "metrics": METRICS,
    "plans": PLANS,
    "drops": DROPS,
    "memory": MEMORY,
    "evaluations": EVALUATIONS,
    "benchmarks": BENCHMARKS,
    "alternatives": ALTERNATIVES,
    "probes": PROBES,
    "gaps": GAPS,
    "checksums": CHECKSUMS,
}

# -- files of an iteration -----------------------------------------------------------------------

ROLLOUTS: Fields = {
    "group": "iteration:prompt_id",
    "prompt_id": "",
    "prompt": "",
    "response": "",
    "answer": "reference",
    "reward": "of the verifier; NaN: it returned None",
    "advantage": "imports: the trainer's, where no plan has it",
    "finished": "false: cut off",
    "further": "other rewards by name, if any",
    "logged": "what your reward function logged about it, if anything",
    "anchor": "true for anchors only",
    "generic_logprob": "mean of the group's anchors after the generic text",
    "turns": "of an episode: start, told, action, feedback",
    "messages": "of a chat prompt: role, content",
    "first_message": "of an environment",
    "prompt_tokens": "",
    "response_tokens": "the policy's own",
    "num_tokens": "imports: how many, where only that is known",
    "sampled_logprobs": "six digits",
}
TOKEN_COLUMNS: Fields = {
    "step": "of the plan",
    "row": "of the plan",
    "position": "in the response",
    "token": "id",
    "advantage": "A_i w_it",
    "old_logprob": "by the policy that sampled it",
    "logprob": "just before this step",
    "entropy": "just before this step",
    "pull": "-dL / dlogprob",
}
MONITOR_COLUMNS: Fields = {
    "displacement": "change of logprob by this step",
    "own": "push of the token on itself",
    "{same,other}_token_{same,other}_query_{positive,negative}": "push of the others",
}
PUSH_COLUMNS: Fields = {
    "row": "pushed token",
    "position": "",
    "by_row": "pushing token",
    "by_position": "",
    "push": "signed",
}
LIKELY_COLUMNS: Fields = {
    "row": "",
    "position": "",
    "token": "id",
    "logprob": "before this step",
    "new_logprob": "after; nan in verl",
}
PROBE_SET_COLUMNS: Fields = {
    "probe_{right,wrong}_{steer,judge}": "push on such probe answers, mean",
}
PROBE_COLUMNS: Fields = {
    "answer": "index in probes.jsonl",
    "position": "",
    "token": "id",
    "logprob": "before the update",
    "displacement": "measured",
    "positive": "push of positive pulls",
    "negative": "",
    "same_token_positive": "of equal tokens",
    "same_token_negative": "",
}
PROBE_ROW_COLUMNS: Fields = {
    "step": "",
    "row": "of the plan",
    "answer": "",
    "push": "on the whole answer, through the output layer",
}
# Only where monitor.probe_through asks for it.
GRADIENT_PUSH_COLUMN: Fields = {
    "gradient_push": "the same, through the parameters of monitor.probe_through"
}
PROBE_PUSH_COLUMNS: Fields = {
    "step": "",
    "answer": "right ones",
    "row": "pushing token",
    "position": "",
    "push": "signed",
}
STEP_FILES: dict[str, Fields] = {
    "rollouts": ROLLOUTS,
    "tokens": {**TOKEN_COLUMNS, **MONITOR_COLUMNS, **PROBE_SET_COLUMNS},
    "pushes": PUSH_COLUMNS,
    "likely": LIKELY_COLUMNS,
    "probes": PROBE_COLUMNS,
    "probe_rows": {**PROBE_ROW_COLUMNS, **GRADIENT_PUSH_COLUMN},
    "probe_pushes": PROBE_PUSH_COLUMNS,
}


def step_file_name(kind: str, iteration: int) -> str:
    """The name of a file of STEP_FILES inside its run folder.

    Example:
        >>> step_file_name("tokens", 12)
        'tokens/step_00012.parquet'
    """
    return f"{kind}/step_{iteration:05d}.{'jsonl' if kind == 'rollouts' else 'parquet'}"


CHECKPOINT: Fields = {
    "model.safetensors": "parameters; a tied tensor once",
    "optimizer.safetensors": "steps, moments, float32 masters",
    "buffer.safetensors": "tokens and log-probabilities of waiting rows and probe answers",
    "state.json": "the rest of the buffer, counters, fitted memory sizes, prompt memory",
    "options.toml": "config.toml at that time",
    "manifest.json": "sha256 of the other files",
}
