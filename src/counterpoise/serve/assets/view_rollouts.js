// Rollouts of all iterations: search, filters, sort, pages, and the reward histogram as a filter.
import { ask, to } from "./address.js";
import { empty, foreign, h, inside, marked, put, visible } from "./elements.js";
import { advantage, count, number, percent, plural } from "./format.js";
import { outcome, rewardMark, shortPlace } from "./group.js";
import { histogram } from "./histogram.js";
import { load as get } from "./load.js";
import { term } from "./terms.js";

export const load = (address, signal) => get(address.path + address.search, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["rollouts", to.rollouts(address.run)]];
export const key = (address) => address.run;
export const saved = (address) => `${to.run(address.run)}/rollouts.html${address.search}`;

const SORTS = [["", "newest first"], ["iteration", "oldest first"], ["-reward", "highest reward"], ["reward", "lowest reward"], ["-length", "longest"], ["length", "shortest"]];
const DROPPED = [["", "any"], ["no_spread", "no spread"], ["no_signal", "no signal"], ["surplus", "surplus"], ["aged", "aged"]];
const MOST_PROBLEMS = 5; // files with damaged lines that are named
const BEFORE = 24; // characters before a hit: it must be seen in a cell of two lines

// The text of a cell, from shortly before the place where the search found it.
function around(rollout, name) {
  const { match } = rollout;
  if (match?.in !== name) return rollout[name];
  const before = match.before ?? "";
  const cut = before.length > BEFORE ? `… ${before.slice(-BEFORE).replace(/^\S*\s/, "")}` : before;
  return `${cut}${match.text}${match.after ?? ""}`;
}

const FLAGS = [["cut", "cut off"], ["no_spread", "no spread"], ["timeout", "verifier timeout"]];

export function show(root, data, address, page) {
  const pages = []; // cursors of the pages before this one
  const chosen = new Set();
  let state = { data, address };
  let typing = null;

  // -- filters -----------------------------------------------------------------------------

  const ranged = (name, label, kind = "number") => {
    const input = h("input", { type: kind, name, inputmode: "decimal", step: "any", placeholder: label, "aria-label": `${label} ${name.replace(/_(min|max)$/, "")}` });
    input.addEventListener("change", () => set({ [name]: input.value }));
    return input;
  };
  const search = h("input", { type: "search", name: "search", placeholder: "Search prompts and responses", "aria-label": "Search prompts and responses" });
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ search: search.value }, { replace: true }), 250);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(typing);
    set({ search: search.value });
  });
  const bars = histogram({ title: "Rollouts by reward", choose: (low, high) => set({ reward_min: low, reward_max: high }) });
  const signs = [["", "any"], ["positive", "+"], ["negative", "−"], ["zero", "0"]].map(([value, label]) =>
    h("label", {}, h("input", { type: "radio", name: "sign", value, change: () => set({ sign: value }) }), h("span", { title: value || "any sign" }, label)));
  const flags = FLAGS.map(([name, label]) => h("label", { class: "flag" }, h("input", { type: "checkbox", name, change: (event) => set({ [name]: event.target.checked ? 1 : "" }) }), " ", term(label)));
  const dropped = h("select", { name: "dropped", "aria-label": "Dropped, and why", change: () => set({ dropped: dropped.value }) }, DROPPED.map(([value, label]) => h("option", { value }, label)));
  const inputs = Object.fromEntries(["length_min", "length_max", "iteration_min", "iteration_max", "reward_min", "reward_max"].map((name) => [name, ranged(name, name.endsWith("min") ? "from" : "to")]));
  const prompt = h("p", { class: "prompt-filter", hidden: true });
  const clear = h("button", { class: "button", type: "button", click: () => page.go(to.rollouts(address.run), { keep: true }) }, "Clear all filters");
  const field = (title, ...inner) => h("div", { class: "field" }, h("span", { class: "field-title" }, title), ...inner);
  const filters = h("form", { class: "filters", submit: (event) => event.preventDefault(), "aria-label": "Filters" },
    prompt,
    field(term("reward"), bars.node, h("div", { class: "span" }, inputs.reward_min, inputs.reward_max)),
    field(term("advantage", "sign of the advantage"), h("div", { class: "segments", role: "radiogroup", "aria-label": "Sign of the advantage" }, signs)),
    field(term("length", "length in tokens"), h("div", { class: "span" }, inputs.length_min, inputs.length_max)),
    field(term("iteration"), h("div", { class: "span" }, inputs.iteration_min, inputs.iteration_max)),
    field("only those that are", flags),
    field("dropped", dropped),
    clear);
  const drawer = h("details", { class: "drawer" }, h("summary", {}, "Filters ", h("span", { class: "filter-count" })), filters);

  // -- table -------------------------------------------------------------------------------

  const told = h("p", { class: "told", role: "status" });
  const fresh = h("button", { class: "button fresh", type: "button", hidden: true, click: () => page.refresh() });
  const compare = h("a", { class: "button", "aria-disabled": "true", title: "Choose two rows" }, "Compare two");
  const sort = h("select", { name: "sort", "aria-label": "Sort", change: () => set({ sort: sort.value }) }, SORTS.map(([value, label]) => h("option", { value }, label)));
  const body = h("tbody");
  const heads = [["", "choose"], ["iteration", "iter."], ["reward", "reward"], [null, "adv."], ["length", "tokens"], [null, "prompt"], [null, "response"], [null, "remarks"]];
  const head = h("tr", {}, heads.map(([by, label]) => {
    if (by === "") return h("th", { scope: "col" }, h("span", { class: "unseen" }, label));
    if (by === null) return h("th", { scope: "col", class: label === "adv." ? "figure" : null }, label);
    const button = h("button", { type: "button", class: "sort", click: () => sortBy(by) }, label);
    return h("th", { scope: "col", class: "figure", data: { by } }, button);
  }));
  const table = h("table", { class: "rollouts list" }, h("caption", { class: "unseen" }, "Rollouts"), h("thead", {}, head), body);
  const nothing = h("div");
  const notes = h("div", { class: "notes", role: "status" });
  let again = null;
  const [back, on] = [h("button", { class: "button", type: "button", click: () => turn(-1) }, "← Previous"), h("button", { class: "button", type: "button", click: () => turn(1) }, "Next →")];
  const place = h("span", { class: "muted figure" });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Rollouts"), told, fresh, h("div", { class: "head-tools" }, compare)),
    h("div", { class: "search-row" }, search, sort),
    h("div", { class: "with-filters" }, drawer, h("div", { class: "results" }, notes, table, nothing, h("div", { class: "paging" }, back, place, on))));
  // The drawer is open where there is room for a column of filters.
  const wide = matchMedia("(min-width: 900px)");
  const fit = () => { drawer.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();

  const query = () => Object.fromEntries(state.address.query);
  function set(changes, options = {}) {
    pages.length = 0;
    const next = { ...query(), ...changes };
    delete next.after;
    page.go(`${to.run(address.run)}/rollouts${ask(next)}`, { keep: true, ...options });
  }
  function sortBy(by) {
    const downwards = `-${by}`;
    const next = (query().sort ?? "-iteration") === downwards ? by : downwards;
    set({ sort: next === "-iteration" ? "" : next }); // the order of the server where none is named
  }
  function turn(by) {
    const now = query();
    if (by > 0) {
      if (!state.data.next) return;
      pages.push(now.after ?? "");
      page.go(`${to.run(address.run)}/rollouts${ask({ ...now, after: state.data.next })}`);
    } else if (pages.length) page.go(`${to.run(address.run)}/rollouts${ask({ ...now, after: pages.pop() })}`);
    else set({});
    scrollTo({ top: 0 });
  }

  function row(rollout) {
    const words = state.data.search ?? (query().search ?? "").split(/\s+/);
    const box = h("input", { type: "checkbox", "aria-label": "Compare this response", change: () => choose(rollout.place, box) });
    box.checked = chosen.has(rollout.place);
    const remarks = [[rollout.finished === false, "cut off", "cut off"], [rollout.dropped, `dropped: ${rollout.dropped}`, String(rollout.dropped).replaceAll("_", " ")], [rollout.timeout, "verifier timeout", "timeout"], [state.data.has_plans && !rollout.dropped && !Number.isFinite(rollout.trained_in), "not used", "not used"]].filter(([there]) => there);
    return h("tr", { class: outcome(rollout.reward), data: { place: rollout.place } },
      h("td", { class: "choose" }, box),
      h("td", { class: "figure" }, h("a", { href: to.iteration(address.run, rollout.iteration) }, number(rollout.iteration))),
      h("td", { class: "figure" }, rewardMark(rollout.reward)),
      h("td", { class: "figure" }, advantage(rollout.advantage)),
      h("td", { class: "figure" }, count(rollout.length)),
      h("td", { class: "prompt-cell" }, h("a", { class: "clamp", href: to.prompt(address.run, rollout.prompt_id), title: "This prompt over time" }, marked(around(rollout, "prompt"), words))),
      h("td", { class: "text-cell" }, h("a", { class: "clamp mono open", href: inside(rollout.place) }, marked(around(rollout, "response") || "(empty)", words))),
      h("td", { class: "remarks" }, remarks.map(([, name, short]) => h("span", { class: "tag" }, term(name, short)))));
  }

  function choose(where, box) {
    if (box.checked) chosen.add(where);
    else chosen.delete(where);
    const ready = chosen.size === 2;
    compare.textContent = chosen.size ? `Compare ${chosen.size} of 2` : "Compare two";
    if (ready) compare.textContent = "Compare these two";
    compare.setAttribute("aria-disabled", !ready);
    if (ready) compare.href = to.diff(address.run, ...[...chosen].map(shortPlace));
    else compare.removeAttribute("href");
  }

  function update(next, where) {
    state = { data: next, address: where };
    address = where;
    const now = query();
    fresh.hidden = true;
    if (document.activeElement !== search) search.value = now.search ?? "";
    for (const [name, input] of Object.entries(inputs)) if (document.activeElement !== input) input.value = now[name] ?? "";
    for (const label of signs) label.firstChild.checked = label.firstChild.value === (now.sign ?? "");
    FLAGS.forEach(([name], k) => { flags[k].querySelector("input").checked = now[name] === "1"; });
    dropped.value = now.dropped ?? "";
    sort.value = SORTS.some(([value]) => value === now.sort) ? now.sort : "";
    for (const cell of head.querySelectorAll("[data-by]")) {
      const order = now.sort || "-iteration";
      const mine = order.replace(/^-/, "") === cell.dataset.by;
      cell.setAttribute("aria-sort", mine ? (order.startsWith("-") ? "descending" : "ascending") : "none");
    }
    prompt.hidden = !now.prompt;
    if (now.prompt) put(prompt, "prompt ", foreign(now.prompt), " ", h("button", { class: "link", type: "button", click: () => set({ prompt: "" }) }, "any prompt"));
    const active = Object.keys(now).filter((name) => !["sort", "after", "limit", "format"].includes(name)).length;
    drawer.querySelector(".filter-count").textContent = active ? `(${active})` : "";
    clear.disabled = !active;
    bars.update(next.histogram, "reward_min" in now ? Number(now.reward_min) : null, "reward_max" in now ? Number(now.reward_max) : null);
    const rows = next.rows ?? [];
    const focused = document.activeElement?.closest?.("tr")?.dataset.place;
    put(body, ...rows.map(row));
    if (focused) [...body.children].find((line) => line.dataset.place === focused)?.querySelector("a.open").focus({ preventScroll: true });
    table.hidden = !rows.length;
    const share = next.indexed ?? 1;
    told.textContent = `${plural(next.total ?? rows.length, "rollout")}${share < 1 ? `, ${percent(share, 0)} of the iterations indexed so far` : ""}`;
    put(nothing, ...(rows.length ? [] : [active
      ? empty("No rollout matches", "Take a filter away, or search for fewer words.")
      : empty("No rollouts are stored", "The run has store.rollouts=false, or its first iteration is not written yet.")]));
    const problems = (next.problems ?? []).slice(0, MOST_PROBLEMS);
    const more = (next.problem_count ?? 0) - problems.length;
    put(notes, [...Object.values(next.missing ?? {}), ...problems, ...(more > 0 ? [`${plural(more, "more file")} with damaged lines`] : [])].map((line) => h("p", { class: "note" }, visible(line))));
    clearTimeout(again);
    if (share < 1) again = setTimeout(() => page.refresh(), 1000); // the index is being built
    back.disabled = !now.after;
    on.disabled = !next.next;
    place.textContent = rows.length ? `${count(rows.length)} of ${count(next.total ?? rows.length)}` : "";
  }

  let active = -1;
  const move = (by) => {
    const lines = [...body.children];
    if (!lines.length) return;
    const at = lines.findIndex((line) => line.contains(document.activeElement));
    active = Math.max(0, Math.min(lines.length - 1, (at < 0 ? (by > 0 ? -1 : lines.length) : at) + by));
    lines[active].scrollIntoView({ block: "nearest" });
    lines[active].querySelector("a.open").focus({ preventScroll: true });
  };
  update(data, address);
  return {
    update,
    // Rows do not move under the reader: new iterations are announced, and shown when asked for.
    quiet: () => (state.data.rows?.length ?? 0) > 0,
    grew(event) {
      if (event.run !== address.run) return;
      fresh.hidden = false;
      fresh.textContent = Number.isFinite(event.iterations) ? `Iteration ${event.iterations} is there: show` : "New rollouts: show";
    },
    leave: () => [typing, again].forEach(clearTimeout),
    keys: [
      { keys: ["/"], does: "search", act: () => search.focus() },
      { keys: ["j"], does: "next row", act: () => move(1) },
      { keys: ["k"], does: "previous row", act: () => move(-1) },
      { keys: ["Enter"], does: "tokens of the row", act: () => false },
      { keys: ["x"], does: "choose the row; two can be compared", act: () => document.activeElement?.closest("tr")?.querySelector("input")?.click() },
      { keys: ["d"], does: "compare the two chosen", act: () => compare.href && page.go(compare.href) },
      { keys: ["n"], does: "next page", act: () => turn(1) },
      { keys: ["p"], does: "previous page", act: () => turn(-1) },
      { keys: ["r"], does: "show new rollouts", act: () => page.refresh() },
    ],
  };
}
