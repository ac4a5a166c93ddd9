// Which columns of metrics.jsonl make a chart, in which section, and how their numbers are written.
import { number, percent, seconds, signed } from "./format.js";

// [title, columns, format, what it is]; several columns are drawn in one chart.
export const SECTIONS = [
  ["Learning", [
    ["success", ["success"], percent, "Share of rollouts with a reward above 0."],
    ["mean reward", ["reward"], number, "Mean of what the verifier gave."],
    ["response length", ["response_length"], number, "Mean tokens of a response."],
    ["cut off", ["truncated_share"], percent, "Responses that reached sample.max_new_tokens."],
    ["groups with unequal rewards", ["mixed_groups"], percent, "Groups that teach something: not all right, not all wrong."],
    ["entropy", ["entropy"], number, "How undecided the policy is at a token, in nats; near 0 it has collapsed."],
  ]],
  ["Batch", [
    ["positive rows", ["positive_share"], percent, "Rollouts with a positive advantage, of those with signal."],
    ["rows of the update", ["batch_rows"], number, "Rollouts of the batch; 0 where nothing was updated."],
    ["rows without signal", ["rows_without_signal"], number, "Sampled rollouts with advantage 0."],
    ["split groups", ["split_groups"], number, "Groups whose rollouts lie in several optimizer steps."],
    ["heaviest step / mean", ["token_imbalance"], number, "Tokens of the heaviest optimizer step, divided by the mean of all steps."],
    ["waiting in the buffer", ["buffer_positive", "buffer_negative"], number, "Rollouts that wait until both signs are there."],
    ["dropped for lack of spread", ["dropped_no_spread"], number, "Rollouts of this iteration whose group has equal rewards."],
    ["dropped by reward balance", ["dropped_surplus", "dropped_aged"], number, "Since the start: surplus of one sign, and rollouts that waited too long."],
    ["shared token types", ["shared_token_share"], percent, "Token types of positive rollouts that negative ones have too."],
    ["largest group advantage sum", ["max_abs_group_advantage_sum"], number, "0 where every step holds whole groups."],
  ]],
  ["Update", [
    ["gradient norm", ["grad_norm"], number, "Before clipping."],
    ["loss", ["loss"], number, "Mean over the optimizer steps."],
    ["clipped tokens", ["clipped_share"], percent, "Tokens whose gradient the ratio clip removed."],
    ["KL from the initial policy", ["kl"], number, "How far the policy went from where it began."],
    ["mean ratio", ["mean_ratio"], number, "Probability now over probability when sampled; 1 on policy."],
    ["skipped steps", ["skipped_steps"], number, "Steps without signal, or with a gradient that is not finite."],
    ["learning rate", ["lr"], number, "Of the last optimizer step."],
    ["sampler mismatch", ["sampler_mismatch", "sampler_mismatch_max"], number, "|log p by the trainer − log p by the sampler|: mean and largest."],
    ["spread of the importance ratio", ["sampler_ratio_std"], number, "How much sampler and trainer disagree from token to token."],
    ["capped weights", ["capped_share"], percent, "Importance weights that reached the cap."],
  ]],
  ["What the update did to tokens", [
    ["cancellation", ["cancellation"], percent, "1 − net push / gross push: what right and wrong rollouts share cancels."],
    ["moved against their advantage", ["flipped"], percent, "Tokens that moved against the sign of their own advantage."],
    ["boosted, by sign of advantage", ["boosted_positive", "boosted_negative"], percent, "Tokens that became more likely: A > 0 and A < 0."],
    ["suppressed, by sign of advantage", ["suppressed_positive", "suppressed_negative"], percent, "Tokens that became less likely: A > 0 and A < 0."],
    ["mean |displacement|, by sign", ["moved_positive", "moved_negative"], number, "How far a token's log-probability moved: A > 0 and A < 0."],
    ["push from equal tokens", ["same_token_share"], percent, "Share of the push that comes from the same token elsewhere."],
    ["push of a token on itself", ["own_share"], percent, "Share of the push that is the token's own."],
    ["predicted sign was right", ["proxy_agreement"], percent, "Tokens that moved as the output layer alone predicts."],
    ["tokens on shared prefixes", ["shared_prefix_share"], percent, "Tokens that several rollouts of a group begin with."],
    ["net / gross pull on prefixes", ["exchangeability"], number, "0 where right and wrong rollouts pull a prefix equally."],
    ["learning tax", ["learning_tax"], number, "KL(new, old) at tokens that should not move, in nats."],
    ["drift between right answers", ["solution_drift"], number, "Change of log-odds between right answers: one way wins over others."],
  ]],
  ["Speed", [
    ["sampled tokens per second", ["tokens_per_second"], number, "Sampled tokens over the time of sampling."],
    ["iteration", ["iteration_seconds"], seconds, "Without storing and evaluation."],
    ["sampled tokens", ["rollout_tokens"], number, "In one iteration."],
    ["rollouts", ["rollouts"], number, "Sampled in one iteration."],
  ]],
];
const ELSEWHERE = new Set(["iteration", "steps", "stable_positive", "stable_negative", "old_logprob", "sampling_rounds", "graded", "cancellation_types", "turn_success"]);
const COLOURS = [["positive", /positive$/], ["negative", /negative$/]];
const SPARE = ["series", "gold", "violet", "green"];

// Name and format of the headline quantity: success, or mean reward where rewards are graded. A run names its
// own in `sparkline_of`, an evaluation in `quantity`.
export const QUANTITIES = {
  success: { name: "success", format: percent, difference: (x) => `${x >= 0 ? "+" : "−"}${Math.abs(100 * x).toFixed(1)} points` },
  reward: { name: "mean reward", format: number, difference: signed },
};
export const leading = (run) => (run?.sparkline_of in QUANTITIES ? run.sparkline_of : "success");

const known = (values) => Array.isArray(values) && values.some((x) => typeof x === "number" && Number.isFinite(x));

export const colourOf = (column, k) => COLOURS.find(([, pattern]) => pattern.test(column))?.[0] ?? SPARE[k % SPARE.length];
export const words = (column) => column.replaceAll("_", " ");

// Title and line of every chart, for the list of words.
export const CHART_TERMS = Object.fromEntries(SECTIONS.flatMap(([, charts]) => charts.map(([title, , , line]) => [title, line])));

// Sections with the charts that these metrics can fill; columns that nobody named come last.
export function chartsOf(metrics, terms = {}) {
  const named = new Set(SECTIONS.flatMap(([, charts]) => charts.flatMap(([, columns]) => columns)));
  const sections = SECTIONS.map(([title, charts]) => [title, charts
    .map(([name, columns, format, line]) => ({ title: name, columns: columns.filter((column) => known(metrics[column])), format, line }))
    .filter((chart) => chart.columns.length)]);
  // A reward of 0 and 1 is its success: one chart is enough.
  const same = known(metrics.reward) && known(metrics.success) && metrics.reward.every((x, k) => x === metrics.success[k]);
  if (same) sections[0][1] = sections[0][1].filter((chart) => chart.columns[0] !== "reward");
  const others = Object.keys(metrics)
    .filter((column) => !named.has(column) && !ELSEWHERE.has(column) && !column.endsWith("_seconds") && known(metrics[column]) && metrics[column].some((x) => x)) // only zeros: not worth a chart
    .map((column) => ({ title: words(column), columns: [column], format: /_share$|success$/.test(column) ? percent : number, line: terms[column] ?? "" }));
  return [...sections, ["Further numbers", others]].filter(([, charts]) => charts.length);
}
