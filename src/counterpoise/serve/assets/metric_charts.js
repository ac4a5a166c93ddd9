// Which columns of metrics.jsonl make a chart, in which section, and how their numbers are written.
import { number, percent, seconds } from "./format.js";

const share = (x, digits) => percent(x, digits === 2 ? 0 : 1);
// [title, columns, format]; several columns are drawn in one chart.
export const SECTIONS = [
  ["Learning", [
    ["success", ["success"], share],
    ["mean reward", ["reward"], number],
    ["response length", ["response_length"], number],
    ["cut off", ["truncated_share"], share],
    ["groups with unequal rewards", ["mixed_groups"], share],
    ["entropy", ["entropy"], number],
  ]],
  ["Batch", [
    ["positive rows", ["positive_share"], share],
    ["rows of the update", ["batch_rows"], number],
    ["rows without signal", ["rows_without_signal"], number],
    ["split groups", ["split_groups"], number],
    ["heaviest step / mean", ["token_imbalance"], number],
    ["waiting in the buffer", ["buffer_positive", "buffer_negative"], number],
    ["dropped", ["dropped_no_spread", "dropped_surplus", "dropped_aged"], number],
    ["shared token types", ["shared_token_share"], share],
    ["largest group advantage sum", ["max_abs_group_advantage_sum"], number],
  ]],
  ["Update", [
    ["gradient norm", ["grad_norm"], number],
    ["loss", ["loss"], number],
    ["clipped tokens", ["clipped_share"], share],
    ["KL from the initial policy", ["kl"], number],
    ["mean ratio", ["mean_ratio"], number],
    ["skipped steps", ["skipped_steps"], number],
    ["learning rate", ["lr"], number],
    ["sampler mismatch", ["sampler_mismatch", "sampler_mismatch_max"], number],
    ["spread of the importance ratio", ["sampler_ratio_std"], number],
    ["capped weights", ["capped_share"], share],
  ]],
  ["What the update did to tokens", [
    ["cancellation", ["cancellation"], share],
    ["moved against their advantage", ["flipped"], share],
    ["boosted, by sign of advantage", ["boosted_positive", "boosted_negative"], share],
    ["suppressed, by sign of advantage", ["suppressed_positive", "suppressed_negative"], share],
    ["mean |displacement|, by sign", ["moved_positive", "moved_negative"], number],
    ["push from equal tokens", ["same_token_share"], share],
    ["push of a token on itself", ["own_share"], share],
    ["predicted sign was right", ["proxy_agreement"], share],
    ["tokens on shared prefixes", ["shared_prefix_share"], share],
    ["net / gross pull on prefixes", ["exchangeability"], number],
    ["learning tax", ["learning_tax"], number],
    ["drift between right answers", ["solution_drift"], number],
  ]],
  ["Speed", [
    ["sampled tokens per second", ["tokens_per_second"], number],
    ["iteration", ["iteration_seconds"], seconds],
    ["sampled tokens", ["rollout_tokens"], number],
    ["rollouts", ["rollouts"], number],
  ]],
];
const ELSEWHERE = new Set(["iteration", "steps", "stable_positive", "stable_negative", "old_logprob", "sampling_rounds", "graded", "cancellation_types", "turn_success"]);
const COLOURS = [["positive", /positive$/], ["negative", /negative$/]];
const SPARE = ["series", "gold", "violet", "green"];

const known = (values) => Array.isArray(values) && values.some((x) => typeof x === "number" && Number.isFinite(x));

export const colourOf = (column, k) => COLOURS.find(([, pattern]) => pattern.test(column))?.[0] ?? SPARE[k % SPARE.length];
export const words = (column) => column.replaceAll("_", " ");

// Sections with the charts that these metrics can fill; columns that nobody named come last.
export function chartsOf(metrics) {
  const named = new Set(SECTIONS.flatMap(([, charts]) => charts.flatMap(([, columns]) => columns)));
  const sections = SECTIONS.map(([title, charts]) => [title, charts
    .map(([name, columns, format]) => ({ title: name, columns: columns.filter((column) => known(metrics[column])), format }))
    .filter((chart) => chart.columns.length)]);
  // A reward of 0 and 1 is its success: one chart is enough.
  const same = known(metrics.reward) && known(metrics.success) && metrics.reward.every((x, k) => x === metrics.success[k]);
  if (same) sections[0][1] = sections[0][1].filter((chart) => chart.columns[0] !== "reward");
  const others = Object.keys(metrics)
    .filter((column) => !named.has(column) && !ELSEWHERE.has(column) && !column.endsWith("_seconds") && known(metrics[column]))
    .map((column) => ({ title: words(column), columns: [column], format: /_share$|success$/.test(column) ? share : number }));
  return [...sections, ["Further numbers", others]].filter(([, charts]) => charts.length);
}
