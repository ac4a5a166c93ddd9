// All runs: state, progress, headline, a sparkline; several can be laid over each other.
import { to } from "./address.js";
import { sparkline } from "./charts.js";
import { empty, foreign, h, put, visible } from "./elements.js";
import { ago, count, number, percent } from "./format.js";
import { load as get } from "./load.js";

export const load = (address, signal) => get("/", signal);
export const trail = () => [];
export const STATES = {
  // As serve/run_state.py tells them apart.
  training: "a process is writing the run's folder",
  finished: "all planned iterations are there, or another trainer's run was imported",
  stopped: "no process writes it; its last iteration has a checkpoint: continue with poise train --resume",
  failed: "no process writes it, and the iterations after its newest checkpoint are lost: it crashed or was killed; poise train --resume repeats them",
  torn: "config.toml or a log cannot be read",
};

export const state = (word) => h("span", { class: `state ${word in STATES ? word : "torn"}`, title: STATES[word] ?? "" }, h("i", { "aria-hidden": "true" }), word);

export function headlineValue(headline) {
  if (!headline || headline.value === null || headline.value === undefined) return "–";
  if (typeof headline.value === "string") return visible(headline.value);
  return /success|share/i.test(headline.label ?? "") ? percent(headline.value) : number(headline.value);
}

export function show(root, data, address, page) {
  const chosen = new Set();
  const search = h("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter runs by name" });
  const overlay = h("a", { class: "button strong", "aria-disabled": "true" }, "Overlay");
  const told = h("p", { class: "told", role: "status" });
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {},
    h("th", { scope: "col" }, h("span", { class: "unseen" }, "choose")), h("th", { scope: "col" }, "state"), h("th", { scope: "col" }, "run"),
    h("th", { scope: "col" }, "iterations"), h("th", { scope: "col", class: "figure" }, "headline"), h("th", { scope: "col", title: "Success; mean reward where rewards are graded" }, "curve"), h("th", { scope: "col", class: "figure" }, "changed")));
  const table = h("table", { class: "runs list" }, h("caption", { class: "unseen" }, "Runs"), head, body);
  const nothing = h("div");
  const omissions = h("div", { class: "notes", role: "status" });
  root.append(h("div", { class: "head" }, h("h1", {}, "Runs"), told, h("div", { class: "head-tools" }, search, overlay)), table, nothing, omissions);
  let runs = [];
  let active = -1;

  function row(run) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${run.name}`, change: () => choose(run.name, box.checked) });
    box.checked = chosen.has(run.name);
    // A replay has the step numbers of its source, which may start anywhere: its updates are counted.
    // So are those of an import, which keeps the step numbers of its trainer.
    const planned = run.replay ? run.replay.planned : run.planned_iterations;
    const made = run.replay?.made ?? (planned ? run.iterations : run.counted_iterations);
    const lastNumber = !planned && run.iterations > made ? ` the last is ${count(run.iterations)}` : "";
    const share = planned ? Math.min(1, made / planned) : 0;
    const changed = h("td", { class: "figure muted changed", title: Number.isFinite(run.updated) ? new Date(run.updated * 1000).toLocaleString() : "" }, ago(run.updated));
    changed.dataset.updated = run.updated;
    return h("tr", { data: { run: run.name } },
      h("td", { class: "choose" }, box),
      h("td", { class: "state-cell" }, state(run.state)),
      h("th", { scope: "row" }, h("a", { class: "name", href: to.run(run.name) }, foreign(run.name)), h("span", { class: "folder" }, foreign(run.folder)), run.replay && h("span", { class: "folder" }, "a replay of ", foreign(run.replay.source)), run.problem && h("span", { class: "problem" }, visible(run.problem))),
      h("td", { class: "progress-cell" }, h("span", { class: "figure" }, count(made), planned ? h("span", { class: "muted" }, ` / ${count(planned)}`) : null, lastNumber && h("span", { class: "muted" }, lastNumber)), h("span", { class: "progress", "aria-hidden": "true", "--share": share })),
      h("td", { class: "figure headline" }, h("b", {}, headlineValue(run.headline)), h("span", { class: "muted" }, visible(run.headline?.label ?? ""))),
      h("td", { class: "spark-cell" }, sparkline(run.sparkline ?? [], { label: `${run.sparkline_of ?? "success"} of ${run.name}` })),
      changed);
  }

  function choose(name, on) {
    if (on) chosen.add(name);
    else chosen.delete(name);
    const ready = chosen.size > 1;
    overlay.textContent = chosen.size ? `Overlay ${chosen.size}` : "Overlay";
    overlay.setAttribute("aria-disabled", !ready);
    overlay.title = ready ? "" : "Choose two runs or more";
    if (ready) overlay.href = to.overlay([...chosen]);
    else overlay.removeAttribute("href");
  }

  function write() {
    const wanted = search.value.trim().toLowerCase();
    const listed = runs.filter((run) => `${run.name} ${run.folder}`.toLowerCase().includes(wanted));
    const focused = document.activeElement?.closest?.("tr")?.dataset.run;
    const inBox = document.activeElement?.type === "checkbox";
    put(body, ...listed.map(row));
    mark(Math.min(active, listed.length - 1));
    if (focused) [...body.children].find((line) => line.dataset.run === focused)?.querySelector(inBox ? "input" : "a").focus();
    const training = runs.filter((run) => run.state === "training").length;
    told.textContent = `${count(listed.length)} of ${count(runs.length)}${training ? `, ${training} training` : ""}`;
    table.hidden = !listed.length;
    put(nothing, ...(listed.length ? [] : [runs.length
      ? empty("No run has this name", "Clear the filter to see all of them.")
      : empty("No runs yet", h("p", {}, "A run appears here when its folder holds a ", h("code", {}, "config.toml"), ". Start one with ", h("code", {}, "poise demo"), ", or give the folder: ", h("code", {}, "poise serve out"), "."))]));
  }

  const mark = (place) => {
    active = place;
    [...body.children].forEach((line, k) => line.classList.toggle("active", k === place));
  };
  const move = (by) => {
    if (!body.children.length) return;
    mark(Math.max(0, Math.min(body.children.length - 1, active + by)));
    body.children[active].scrollIntoView({ block: "nearest" });
    body.children[active].querySelector("a").focus({ preventScroll: true });
  };
  search.addEventListener("input", write);
  const clock = setInterval(() => {
    for (const cell of body.querySelectorAll(".changed")) cell.textContent = ago(Number(cell.dataset.updated));
  }, 5000);
  const update = (next) => {
    runs = next.runs ?? [];
    for (const name of chosen) if (!runs.some((run) => run.name === name)) chosen.delete(name);
    choose(null, false);
    write();
    put(omissions, (next.omissions ?? []).map((line) => h("p", { class: "note" }, visible(line))));
  };
  update(data);
  return {
    update,
    leave: () => clearInterval(clock),
    keys: [
      { keys: ["/"], does: "filter", act: () => search.focus() },
      { keys: ["j"], does: "next run", act: () => move(1) },
      { keys: ["k"], does: "previous run", act: () => move(-1) },
      { keys: ["Enter"], does: "open it", act: () => active >= 0 && page.go(body.children[active].querySelector("a").href) },
      { keys: ["x"], does: "choose it", act: () => active >= 0 && body.children[active].querySelector("input").click() },
      { keys: ["o"], does: "overlay the chosen runs", act: () => chosen.size > 1 && page.go(to.overlay([...chosen])) },
    ],
  };
}
