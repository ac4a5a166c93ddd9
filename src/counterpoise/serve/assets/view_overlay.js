// Several runs laid over each other: the same charts, a colour a run.
import { to } from "./address.js";
import { Crosshair, plot, tableOf } from "./charts.js";
import { empty, foreign, h, put, visible } from "./elements.js";
import { plural } from "./format.js";
import { load as get } from "./load.js";
import { QUANTITIES, chartsOf, leading } from "./metric_charts.js";
import { TERMS } from "./terms.js";
import { evaluations, heading } from "./view_run.js";
import { state } from "./view_runs.js";

export const load = (address, signal) => get(address.path + address.search, signal);
export const trail = (address) => [["Overlay", address.path + address.search]];
export const key = (address) => address.path + address.search;

const COLOURS = ["positive", "negative", "green", "violet", "gold", "series", "fate-aged", "soft"];

export function show(root, data) {
  const crosshair = new Crosshair();
  const hidden = new Set();
  const legend = h("div", { class: "legend-bar" });
  const sections = h("div");
  const options = h("section", { class: "panel" });
  root.append(h("div", { class: "head" }, h("h1", {}, "Overlay")), legend, options, sections);
  let charts = [];
  let tables = [];
  let shape = "";
  let runs = [];

  function update(data) {
    runs = data.runs ?? [];
    if (!runs.length) {
      put(sections, empty("No such runs", "Choose two runs or more in the list, then press Overlay."));
      return;
    }
    const columns = {};
    for (const run of runs) for (const [name, values] of Object.entries(run.metrics ?? {})) (columns[name] ??= []).push(...values);
    const found = chartsOf(columns, data.terms).map(([title, list]) => [title, list.flatMap((chart) => chart.columns.map((column) => ({ ...chart, title: chart.columns.length > 1 ? column.replaceAll("_", " ") : chart.title, column })))]);
    // If one run has graded rewards, all runs show the mean reward: where rewards are 0 or 1, it equals the success.
    const quantities = runs.flatMap((run) => evaluations(run).slice(0, 1).map((one) => one.quantity));
    const heldOut = quantities.includes("reward") ? "reward" : quantities[0];
    const next = JSON.stringify([heldOut, found.map(([title, list]) => [title, list.map((chart) => chart.column)]), runs.map((run) => run.name)]);
    if (next !== shape) {
      shape = next;
      charts = [];
      tables = [];
      put(sections, ...found.map(([title, list]) => {
        const made = list.map((spec) => {
          const chart = plot({ title: spec.title, term: visible(spec.line), format: spec.format, crosshair, height: 110 });
          charts.push({ chart, column: spec.column });
          return chart;
        });
        if (title === "Learning" && heldOut) {
          const chart = plot({ title: `held-out ${heldOut}`, term: TERMS[`held-out ${heldOut}`], format: QUANTITIES[heldOut].format, crosshair, height: 110 });
          charts.push({ chart, column: null });
          made.unshift(chart);
        }
        const table = tableOf(made, `${title}: numbers of every run and iteration`);
        tables.push(table);
        return h("section", { class: "panel" }, heading(title), h("div", { class: "plots" }, made.map((chart) => chart.node)), table.node);
      }));
    }
    put(options, differences(runs));
    draw();
  }

  function draw() {
    put(legend, ...runs.map((run, k) => {
      const on = !hidden.has(run.name);
      return h("span", { class: "legend-run", "--hue": `var(--${COLOURS[k % COLOURS.length]})` },
        h("button", { type: "button", "aria-pressed": on, title: on ? "Fade this run" : "Show this run", click: () => {
          if (on) hidden.add(run.name);
          else hidden.delete(run.name);
          draw();
          legend.children[k].querySelector("button").focus();
        } }, h("i", { class: "swatch", "aria-hidden": "true" }), foreign(run.name)),
        run.state && state(run.state), h("span", { class: "muted" }, `${plural(run.metrics?.iteration?.length ?? 0, "iteration")}, ${QUANTITIES[leading(run)].name} ${QUANTITIES[leading(run)].format(run.metrics?.[leading(run)]?.at(-1))}`),
        h("a", { href: to.run(run.name) }, "open"));
    }));
    for (const { chart, column } of charts) {
      chart.update(runs.map((run, k) => ({
        ...(column === null ? evaluations(run)[0] ?? { xs: [], values: [] } : { xs: run.metrics?.iteration ?? [], values: run.metrics?.[column] ?? [] }),
        label: visible(run.name), colour: COLOURS[k % COLOURS.length], faded: hidden.has(run.name),
      })).filter((series) => series.values.length));
    }
    for (const table of tables) table.update();
  }

  update(data);
  const longest = () => runs.reduce((a, b) => ((b.metrics?.iteration?.length ?? 0) > a.length ? b.metrics.iteration : a), []);
  const step = (by) => {
    const xs = longest();
    const place = crosshair.at === null ? (by > 0 ? -1 : xs.length) : xs.indexOf(crosshair.at);
    crosshair.set(xs[Math.max(0, Math.min(xs.length - 1, place + by))] ?? null);
  };
  return {
    update,
    keys: [
      { keys: ["ArrowRight"], does: "crosshair to the next iteration", act: () => step(1) },
      { keys: ["ArrowLeft"], does: "crosshair to the previous iteration", act: () => step(-1) },
      { keys: ["Escape"], does: "take the crosshair away", act: () => crosshair.set(null) },
    ],
  };
}

// Options that are not the same in all runs: what the curves below may be due to.
function differences(runs) {
  const names = new Set(runs.flatMap((run) => Object.entries(run.config ?? {}).flatMap(([section, options]) => Object.keys(options ?? {}).map((option) => `${section}.${option}`))));
  const valueOf = (run, name) => {
    const [section, ...option] = name.split(".");
    const value = run.config?.[section]?.[option.join(".")];
    return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  };
  const rows = [...names].map((name) => [name, runs.map((run) => valueOf(run, name))]).filter(([, values]) => new Set(values).size > 1);
  if (!rows.length) return null;
  return [heading("Options that differ"), h("div", { class: "scroll" }, h("table", { class: "options-table" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "option"), runs.map((run) => h("th", { scope: "col" }, foreign(run.name))))),
    h("tbody", {}, rows.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, visible(name)), values.map((value) => h("td", { class: "mono" }, foreign(value, "", 200))))))))];
}
