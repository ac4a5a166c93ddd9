"""Where a number becomes a warning or an alarm; calibrated as docs/results/audit.md says.

A threshold is compared with the bound of a 95 % interval that is nearer to harmless, so that a
short run has to show more than a long one. Shares are fractions, not percentages.
"""

from __future__ import annotations

MIN_ITERATIONS = 6  # a trend needs two iterations in its first and two in its last third
MIN_ROLLOUTS = 8  # of a prompt before it counts as never or always solved

# data
DUPLICATE_SHARE = (0.02, 0.10)  # prompts that repeat another one's text
BENCHMARK_SHARE = 0.01  # training prompts that are benchmark problems; any copy is a warning
UNUSABLE_PROMPTS = 0.5  # prompts never or always solved; never an alarm: data are often so

# sampler: mean |log pi_sampler - log pi_trainer| over mean |log pi_trainer|
MISMATCH = (0.05, 0.15)  # bfloat16 inference engines stay below 0.05
GROWING_MISMATCH = 3.0  # times, first to last third: weights that are not synchronised drift

# rewards
MIXED_GROUPS = 0.05  # fewer groups with unequal rewards than this teach nothing
FIRST_MIXED_GROUPS = 0.20  # in the first third: a run that learned or collapsed had more at first
INCONSISTENT_SHARE = (0.001, 0.01)  # repeated answers with two different rewards
REJECTED_SHARE = (0.005, 0.02)  # of rollouts that scored 0: right by our verifier
UNBOXED_SHARE = 0.10  # the same without a box, which may be the rule of the task
ACCEPTED_SHARE = (0.01, 0.05)  # of rollouts that scored 1: wrong by our verifier
TIMEOUT_SHARE = (0.001, 0.02)  # of rollouts

# spent rollouts
WITHOUT_SIGNAL = (0.5, 0.8)  # of rollouts, in groups whose rewards are equal
DROPPED_SHARE = (0.35, 0.6)  # of rollouts with signal, dropped before an update
IDLE_SHARE = (0.35, 0.6)  # of iterations without a batch

# batches
SPLIT_SHARE = (0.05, 0.5)  # of groups with signal, in more than one optimizer step
RARE_SIGN = 0.1  # a sign with a smaller share of a step's rows is rare
RARE_STEPS = (0.25, 0.75)  # of steps

# update
CLIP_SHARE = (0.05, 0.15)  # tokens whose gradient the clip removed
SKIPPED_SHARE = (1e-9, 0.02)  # optimizer steps that were not finite
COLLAPSE = 0.5  # success at the end over success at the beginning
ENTROPY_RATIO = (0.5, 0.25)  # last third over first third
ENTROPY_BLOWUP = 3.0

# outcome
LENGTH_RATIO = 1.25  # last third over first third
LENGTH_FALL = 0.6
LENGTH_REWARD_CORRELATION = (0.3, 0.6)  # within groups: with growth, and by itself
TRUNCATED_SHARE = (0.05, 0.25)
HACKING_GAP = (0.0, 0.1)  # gain of the training reward minus gain held out
ECHO_OVERLAP = 0.5  # of a response's six-word sequences: then it echoes the question
ECHO_SHARE = (0.05, 0.1)  # of rewarded rollouts
