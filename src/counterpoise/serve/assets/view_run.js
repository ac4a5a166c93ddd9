// One run: headline, alerts, curves with one crosshair, time by stage, its options.
import { to } from "./address.js";
import { Crosshair, plot, tableOf } from "./charts.js";
import { empty, foreign, h, put, visible } from "./elements.js";
import { ago, count, number, percent, seconds } from "./format.js";
import { load as get } from "./load.js";
import { QUANTITIES, chartsOf, colourOf, leading, words } from "./metric_charts.js";
import { TERMS, term } from "./terms.js";
import { timing } from "./timing.js";
import { state } from "./view_runs.js";

export const load = (address, signal) => get(address.path, signal);
export const trail = (address) => [[address.run, to.run(address.run)]];

const MOST_ALERTS = 8;
const last = (values) => values?.findLast?.((x) => typeof x === "number" && Number.isFinite(x));
const mean = (values) => {
  const known = (values ?? []).filter((x) => typeof x === "number" && Number.isFinite(x));
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : NaN;
};

export function show(root, data, address, page) {
  const crosshair = new Crosshair();
  const open = (iteration) => page.go(to.iteration(address.run, iteration));
  const facts = h("dl", { class: "facts" });
  const badge = h("span");
  const changed = h("span");
  const ageTimer = setInterval(() => { changed.textContent = ago(data.updated); }, 5000);
  const alerts = h("div", { class: "alerts" });
  const sections = h("div");
  const timingChart = timing({ crosshair, open });
  const timeSection = h("section", { class: "panel", id: "time" });
  const options = h("section", { class: "panel", id: "options" });
  root.append(h("div", { class: "head" }, h("h1", {}, foreign(address.run)), badge, h("div", { class: "head-tools" }, h("a", { class: "button", href: to.audit(address.run), title: "What went wrong, most serious first, with evidence, cost and remedy" }, "Audit this run"))), facts, alerts, sections, timeSection, options);
  let shape = "";
  let charts = [];
  let tables = [];
  let xs = [];

  function build(data) {
    const metrics = data.metrics ?? {};
    const found = chartsOf(metrics, data.terms);
    const evaluated = evaluations(data);
    const measured = benchmarks(data);
    // Before the first iteration there are evaluations only.
    if (evaluated.length && found[0]?.[0] !== "Learning") found.unshift(["Learning", []]);
    const next = JSON.stringify([found, evaluated.map((one) => one.quantity), [...measured].map(([name, { series }]) => [name, series[0].quantity])]);
    if (next !== shape) {
      shape = next;
      charts = [];
      tables = [];
      put(sections, ...found.map(([title, list]) => {
        const made = list.map((spec) => {
          const chart = plot({ title: spec.title, term: visible(spec.line), format: spec.format, crosshair, open });
          charts.push({ chart, columns: spec.columns });
          return chart;
        });
        if (title === "Learning" && evaluated.length) {
          const name = `held-out ${evaluated[0].quantity}`;
          const chart = plot({ title: name, term: TERMS[name], format: QUANTITIES[evaluated[0].quantity].format, crosshair, open });
          charts.push({ chart, columns: null });
          made.unshift(chart);
        }
        const table = tableOf(made, `${title}: numbers of every iteration`);
        tables.push(table);
        return h("section", { class: "panel" }, heading(title), h("div", { class: "plots" }, made.map((chart) => chart.node)), table.node);
      }));
      if (measured.size) {
        const made = [...measured].map(([name, { title, series }]) => {
          const { quantity } = series[0];
          const chart = plot({ title: visible(title), term: `${quantity === "reward" ? "Mean reward on" : "On"} the same problems every time, with 95 % intervals.`, format: QUANTITIES[quantity].format, crosshair, open });
          charts.push({ chart, benchmark: name });
          return chart;
        });
        const table = tableOf(made, "Benchmarks: numbers of every evaluation");
        tables.push(table);
        sections.append(h("section", { class: "panel", id: "benchmarks" }, heading("Benchmarks"), h("div", { class: "plots" }, made.map((chart) => chart.node)), table.node));
      }
      if (!found.length && !measured.size) put(sections, empty("No iterations yet", "The first one appears here by itself as soon as it is written."));
    }
    for (const { chart, columns, benchmark } of charts) {
      chart.update(benchmark !== undefined ? measured.get(benchmark).series : columns === null ? evaluated : columns.map((column, k) => ({ label: words(column), colour: columns.length > 1 ? colourOf(column, k) : "series", xs, values: metrics[column] ?? [] })));
    }
    for (const table of tables) table.update();
  }

  function update(data) {
    const metrics = data.metrics ?? {};
    xs = metrics.iteration ?? [];
    put(badge, state(data.state));
    changed.textContent = ago(data.updated);
    const first = evaluations(data)[0];
    const heldOut = last(first?.values);
    const gain = first && first.values.length > 1 ? heldOut - first.values[0] : NaN;
    const quantity = QUANTITIES[leading(data)];
    const fact = (name, value, more = "") => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), more && h("span", { class: "muted" }, ` ${more}`)));
    const recent = xs.length > 1 ? `mean of the last ${Math.min(5, xs.length)}` : "";
    const planned = data.planned_iterations;
    put(facts, ...[
      // An import keeps the step numbers of its trainer, which may leave some out.
      fact("iterations", count(planned ? data.iterations ?? xs.length : xs.length), planned ? `of ${count(planned)}` : data.iterations > xs.length ? `the last is ${count(data.iterations)}` : ""),
      first ? fact(term(`held-out ${first.quantity}`), QUANTITIES[first.quantity].format(heldOut), Number.isFinite(gain) ? QUANTITIES[first.quantity].difference(gain) : "") : null,
      fact(term(quantity.name), quantity.format(mean((metrics[leading(data)] ?? []).slice(-5))), recent),
      metrics.cancellation?.some(Number.isFinite) ? fact(term("cancellation"), percent(mean(metrics.cancellation.slice(-5)), 0), recent) : null,
      metrics.iteration_seconds?.some(Number.isFinite) ? fact("an iteration", seconds(mean(metrics.iteration_seconds.slice(-5))), recent) : null,
      metrics.tokens_per_second?.some(Number.isFinite) ? fact("sampled", number(mean(metrics.tokens_per_second.slice(-5))), "tokens/s") : null,
      fact("changed", changed),
    ].filter(Boolean));
    writeAlerts(data);
    build(data);
    timeSection.hidden = !xs.length;
    const timed = Object.values(data.timing ?? {}).some((values) => values.some(Number.isFinite));
    put(timeSection, ...(timed
      ? [heading("Time by stage", "Seconds of every stage in each iteration; click one to open it."), timingChart.node]
      : [heading("Time by stage"), h("p", { class: "note" }, "Its files hold no times: only the trainer that made the run knows them.")]));
    if (timed) timingChart.update(xs, data.timing);
    if (!options.children.length && data.config) options.append(...configuration(data.config));
  }

  function writeAlerts(data) {
    const list = data.alerts ?? []; // faults of the folder first, then newest first
    put(alerts, ...(list.length ? [h("ul", {}, list.slice(0, MOST_ALERTS).map((alert) =>
      h("li", { class: `alert ${["note", "warning", "error"].includes(alert.level) ? alert.level : "note"}` },
        Number.isFinite(alert.iteration) ? h("a", { href: to.iteration(address.run, alert.iteration) }, `iteration ${alert.iteration}`) : h("span", {}, "run"),
        h("span", {}, visible(alert.text)))))] : []));
    if (list.length > MOST_ALERTS) alerts.append(h("p", { class: "note" }, `The newest ${MOST_ALERTS} of ${list.length}.`));
  }

  update(data);
  const step = (by) => {
    if (!xs.length) return;
    const place = crosshair.at === null ? (by > 0 ? -1 : xs.length) : xs.indexOf(crosshair.at);
    crosshair.set(xs[Math.max(0, Math.min(xs.length - 1, place + by))]);
    const { name, format } = QUANTITIES[leading(data)];
    page.say(`iteration ${crosshair.at}: ${name} ${format(data.metrics?.[leading(data)]?.[xs.indexOf(crosshair.at)])}`);
  };
  return {
    update: (next) => {
      data = next;
      update(next);
    },
    leave: () => clearInterval(ageTimer),
    keys: [
      { keys: ["ArrowRight", "]"], does: "crosshair to the next iteration", act: () => step(1) },
      { keys: ["ArrowLeft", "["], does: "crosshair to the previous iteration", act: () => step(-1) },
      { keys: ["Enter"], does: "open the iteration at the crosshair", act: () => crosshair.at !== null && open(crosshair.at) },
      { keys: ["i"], does: "open the newest iteration", act: () => xs.length && open(xs.at(-1)) },
      { keys: ["Escape"], does: "take the crosshair away", act: () => crosshair.set(null) },
    ],
  };
}

// Held-out evaluations as series, one for each sampling setting; the first one is the headline.
export function evaluations({ evaluations: records = [] }) {
  const settings = new Map();
  for (const record of records) {
    const setting = record.temperature === undefined ? "as in training" : `T ${record.temperature}, top-p ${record.top_p ?? 1}`;
    if (!settings.has(setting)) settings.set(setting, []);
    settings.get(setting).push(record);
  }
  return [...settings].map(([label, list], k) => ({
    label, colour: ["positive", "gold", "violet", "green"][k % 4], points: true, quantity: list[0].quantity in QUANTITIES ? list[0].quantity : "success",
    xs: list.map((one) => one.iteration), values: list.map((one) => one.headline), lows: list.map((one) => one.headline_low), highs: list.map((one) => one.headline_high),
  }));
}

// Benchmarks by name, each with its title and its series.
function benchmarks({ benchmarks: records = [] }) {
  const byName = new Map();
  for (const record of records) {
    const name = String(record.benchmark);
    if (!byName.has(name)) byName.set(name, []);
    byName.get(name).push(record);
  }
  return new Map([...byName].map(([name, list]) => [name, { title: list[0].title ?? name, series: evaluations({ evaluations: list }) }]));
}

export const heading = (title, note = "") => h("div", { class: "panel-head" }, h("h2", {}, title), note && h("p", { class: "note" }, note));

function configuration(config) {
  const sections = Object.entries(config).map(([name, options]) =>
    h("div", { class: "option-section" }, h("h3", {}, visible(name)),
      h("dl", {}, Object.entries(options ?? {}).map(([option, value]) => h("div", {}, h("dt", {}, visible(option)), h("dd", {}, foreign(typeof value === "string" ? value : JSON.stringify(value))))))));
  return [h("details", { class: "options" }, h("summary", {}, "Options of the run"), h("div", { class: "option-grid" }, sections))];
}
