// Rollouts of all iterations: search, filters, sort, pages, and the reward histogram as a filter.
import { queryString, to } from "./address.js";
import { comparison } from "./compare_two.js";
import { empty, foreign, h, localAddress, marked, put, responseText, visible } from "./elements.js";
import { advantage, count, number, percent, plural } from "./format.js";
import { outcome, rewardMark } from "./group.js";
import { histogram } from "./histogram.js";
import { load as get } from "./load.js";
import { term } from "./terms.js";

export const load = (address, signal) => get(address.path + address.search, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["rollouts", to.rollouts(address.run)]];
export const key = (address) => address.run;
export const saved = (address) => `${to.run(address.run)}/rollouts.html${address.search}`;

const SORTS = [["", "newest first"], ["iteration", "oldest first"], ["-reward", "highest reward"], ["reward", "lowest reward"], ["-length", "longest"], ["length", "shortest"]];
const DROPPED = [["", "any"], ["no_spread", "no spread"], ["no_signal", "no signal"], ["surplus", "surplus"], ["aged", "aged"]];
const MOST_PROBLEMS = 5; // files with damaged lines, or that cannot be read: so many are named
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
const SIGNS = [["", "any"], ["positive", "+"], ["negative", "−"], ["zero", "0"]];
const RANGES = ["length_min", "length_max", "iteration_min", "iteration_max", "reward_min", "reward_max"];
const NOT_FILTERS = ["sort", "after", "limit", "format"]; // parameters of the address that choose no rollouts
// [sort key, heading]; the key is null for a column that cannot be sorted, "" for one whose heading is hidden too.
const COLUMNS = [["", "choose"], ["iteration", "iter."], ["reward", "reward"], [null, "adv."], ["length", "tokens"], [null, "prompt"], [null, "response"], [null, "remarks"]];

// The text that is searched for; `set(changes, options)` goes to the address with these parameters.
function searchBox(set) {
  let typing = null;
  const node = h("input", { type: "search", name: "search", placeholder: "Search prompts and responses", "aria-label": "Search prompts and responses" });
  node.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ search: node.value }, { replace: true }), 250);
  });
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    clearTimeout(typing);
    set({ search: node.value });
  });
  return {
    node,
    leave: () => clearTimeout(typing),
    update(now) {
      if (document.activeElement !== node) node.value = now.search ?? "";
    },
  };
}

// The drawer of filters; `update` shows those of the address.
function filterDrawer(set, clearAll) {
  const ranged = (name) => {
    const label = name.endsWith("min") ? "from" : "to";
    const input = h("input", { type: "number", name, inputmode: "decimal", step: "any", placeholder: label, "aria-label": `${label} ${name.replace(/_(min|max)$/, "")}` });
    input.addEventListener("change", () => set({ [name]: input.value }));
    return input;
  };
  const inputs = Object.fromEntries(RANGES.map((name) => [name, ranged(name)]));
  const bars = histogram({ title: "Rollouts by reward", choose: (low, high) => set({ reward_min: low, reward_max: high }) });
  const signs = SIGNS.map(([value, label]) =>
    h("label", {}, h("input", { type: "radio", name: "sign", value, change: () => set({ sign: value }) }), h("span", { title: value || "any sign" }, label)));
  const flags = FLAGS.map(([name, label]) => h("label", { class: "flag" }, h("input", { type: "checkbox", name, change: (event) => set({ [name]: event.target.checked ? 1 : "" }) }), " ", term(label)));
  const dropped = h("select", { name: "dropped", "aria-label": "Dropped, and why", change: () => set({ dropped: dropped.value }) }, DROPPED.map(([value, label]) => h("option", { value }, label)));
  const prompt = h("p", { class: "prompt-filter", hidden: true });
  const clear = h("button", { class: "button", type: "button", click: clearAll }, "Clear all filters");
  const activeCount = h("span", { class: "filter-count" });
  const field = (title, ...inner) => h("div", { class: "field" }, h("span", { class: "field-title" }, title), ...inner);
  const form = h("form", { class: "filters", submit: (event) => event.preventDefault(), "aria-label": "Filters" },
    prompt,
    field(term("reward"), bars.node, h("div", { class: "span" }, inputs.reward_min, inputs.reward_max)),
    field(term("advantage", "sign of the advantage"), h("div", { class: "segments", role: "radiogroup", "aria-label": "Sign of the advantage" }, signs)),
    field(term("length", "length in tokens"), h("div", { class: "span" }, inputs.length_min, inputs.length_max)),
    field(term("iteration"), h("div", { class: "span" }, inputs.iteration_min, inputs.iteration_max)),
    field("only those that are", flags),
    field("dropped", dropped),
    clear);
  const node = h("details", { class: "drawer" }, h("summary", {}, "Filters ", activeCount), form);
  // The drawer is open where there is room for a column of filters.
  const wide = matchMedia("(min-width: 900px)");
  const fit = () => { node.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();
  return {
    node,
    update(now, bins, active) {
      for (const [name, input] of Object.entries(inputs)) if (document.activeElement !== input) input.value = now[name] ?? "";
      for (const label of signs) label.firstChild.checked = label.firstChild.value === (now.sign ?? "");
      FLAGS.forEach(([name], k) => { flags[k].querySelector("input").checked = now[name] === "1"; });
      dropped.value = now.dropped ?? "";
      prompt.hidden = !now.prompt;
      if (now.prompt) put(prompt, "prompt ", foreign(now.prompt), " ", h("button", { class: "link", type: "button", click: () => set({ prompt: "" }) }, "any prompt"));
      activeCount.textContent = active ? `(${active})` : "";
      clear.disabled = !active;
      bars.update(bins, "reward_min" in now ? Number(now.reward_min) : null, "reward_max" in now ? Number(now.reward_max) : null);
    },
  };
}

// The remarks on a rollout, as [word of the glossary, label].
const remarksOn = (rollout, hasPlans) => [
  [rollout.finished === false, "cut off", "cut off"],
  [rollout.dropped, `dropped: ${rollout.dropped}`, String(rollout.dropped).replaceAll("_", " ")],
  [rollout.timeout, "verifier timeout", "timeout"],
  [hasPlans && !rollout.dropped && !Number.isFinite(rollout.trained_in), "not used", "not used"],
].filter(([applies]) => applies).map(([, word, written]) => [word, written]);

function rolloutTable(run, sortBy, checkBox) {
  const body = h("tbody");
  const head = h("tr", {}, COLUMNS.map(([by, label]) => {
    if (by === "") return h("th", { scope: "col" }, h("span", { class: "unseen" }, label));
    if (by === null) return h("th", { scope: "col", class: label === "adv." ? "figure" : null }, label);
    return h("th", { scope: "col", class: "figure", data: { by } }, h("button", { type: "button", class: "sort", click: () => sortBy(by) }, label));
  }));
  const node = h("table", { class: "rollouts list" }, h("caption", { class: "unseen" }, "Rollouts"), h("thead", {}, head), body);
  const row = (rollout, words, hasPlans) =>
    h("tr", { class: outcome(rollout.reward), data: { place: rollout.place } },
      h("td", { class: "choose" }, checkBox(rollout.place, "Compare this response")),
      h("td", { class: "figure" }, h("a", { href: to.iteration(run, rollout.iteration) }, number(rollout.iteration))),
      h("td", { class: "figure" }, rewardMark(rollout.reward)),
      h("td", { class: "figure" }, advantage(rollout.advantage)),
      h("td", { class: "figure" }, count(rollout.length)),
      h("td", { class: "prompt-cell" }, h("a", { class: "clamp", href: to.prompt(run, rollout.prompt_id), title: "This prompt over time" }, marked(around(rollout, "prompt"), words))),
      h("td", { class: "text-cell" }, h("a", { class: "clamp mono open", href: localAddress(rollout.place) }, rollout.problem ? visible(rollout.problem) : rollout.response === null ? responseText(null) : marked(around(rollout, "response") || "(empty)", words))),
      h("td", { class: "remarks" }, remarksOn(rollout, hasPlans).map(([word, written]) => h("span", { class: "tag" }, term(word, written)))));
  return {
    node,
    move(by) {
      const lines = [...body.children];
      if (!lines.length) return;
      const at = lines.findIndex((line) => line.contains(document.activeElement));
      const line = lines[Math.max(0, Math.min(lines.length - 1, (at < 0 ? (by > 0 ? -1 : lines.length) : at) + by))];
      line.scrollIntoView({ block: "nearest" });
      line.querySelector("a.open").focus({ preventScroll: true });
    },
    update(data, now) {
      for (const cell of head.querySelectorAll("[data-by]")) {
        const order = now.sort || "-iteration";
        const mine = order.replace(/^-/, "") === cell.dataset.by;
        cell.setAttribute("aria-sort", mine ? (order.startsWith("-") ? "descending" : "ascending") : "none");
      }
      const words = data.search ?? [];
      const focused = document.activeElement?.closest?.("tr")?.dataset.place;
      put(body, ...(data.rows ?? []).map((rollout) => row(rollout, words, data.has_plans)));
      if (focused) [...body.children].find((line) => line.dataset.place === focused)?.querySelector("a.open").focus({ preventScroll: true });
      node.hidden = !data.rows?.length;
    },
  };
}

// What the files of the run lack, and what is wrong with them.
function problemLines(data) {
  const problems = (data.problems ?? []).slice(0, MOST_PROBLEMS);
  const more = (data.problem_count ?? 0) - problems.length;
  return [...Object.values(data.missing ?? {}), ...problems, ...(more > 0 ? [`${plural(more, "more file")} with such problems`] : [])];
}

export function show(root, data, address, page) {
  const previous = new Map(); // cursor of a page -> cursor of the page before it, whatever the browser's history did
  let state = { data, address };
  let again = null;
  let newest = 0; // iteration of the run when the table was loaded
  const query = () => Object.fromEntries(state.address.query);
  const go = (parameters, options) => page.go(`${to.run(address.run)}/rollouts${queryString(parameters)}`, options);
  function set(changes, options = {}) {
    previous.clear();
    const next = { ...query(), ...changes };
    delete next.after;
    go(next, { keep: true, ...options });
  }
  function sortBy(by) {
    const downwards = `-${by}`;
    const next = (query().sort ?? "-iteration") === downwards ? by : downwards;
    set({ sort: next === "-iteration" ? "" : next }); // the server's default
  }
  function turn(by) {
    const now = query();
    if (by > 0) {
      if (!state.data.next) return;
      previous.set(state.data.next, now.after ?? "");
      go({ ...now, after: state.data.next });
    } else go({ ...now, after: previous.get(now.after) ?? "" }); // opened by a link: the page before is not known, so the first
    scrollTo({ top: 0 });
  }

  const search = searchBox(set);
  const filters = filterDrawer(set, () => page.go(to.rollouts(address.run), { keep: true }));
  const compare = comparison(address.run);
  const table = rolloutTable(address.run, sortBy, compare.box);
  const sort = h("select", { name: "sort", "aria-label": "Sort", change: () => set({ sort: sort.value }) }, SORTS.map(([value, label]) => h("option", { value }, label)));
  const told = h("p", { class: "told", role: "status" });
  const fresh = h("button", { class: "button fresh", type: "button", hidden: true, click: () => page.refresh() });
  const nothing = h("div");
  const notes = h("div", { class: "notes", role: "status" });
  const [back, forward] = [h("button", { class: "button", type: "button", click: () => turn(-1) }, "← Previous"), h("button", { class: "button", type: "button", click: () => turn(1) }, "Next →")];
  const place = h("span", { class: "muted figure" });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Rollouts"), told, fresh, h("div", { class: "head-tools" }, compare.link)),
    h("div", { class: "search-row" }, search.node, sort),
    h("div", { class: "with-filters" }, filters.node, h("div", { class: "results" }, notes, table.node, nothing, h("div", { class: "paging" }, back, place, forward))));

  function update(next, where) {
    state = { data: next, address: where };
    address = where;
    const now = query();
    const rows = next.rows ?? [];
    const total = next.total ?? rows.length;
    const active = Object.keys(now).filter((name) => !NOT_FILTERS.includes(name)).length;
    const share = next.indexed ?? 1;
    fresh.hidden = true;
    newest = next.iterations ?? 0;
    search.update(now);
    filters.update(now, next.histogram, active);
    sort.value = SORTS.some(([value]) => value === now.sort) ? now.sort : "";
    table.update(next, now);
    told.textContent = `${plural(total, "rollout")}${share < 1 ? `, ${percent(share, 0)} of the iterations indexed so far` : ""}`;
    put(nothing, ...(rows.length ? [] : [active
      ? empty("No rollout matches", "Take a filter away, or search for fewer words.")
      : empty("No rollouts are stored", "The run has store.rollouts=false, or its first iteration is not written yet.")]));
    put(notes, problemLines(next).map((line) => h("p", { class: "note" }, visible(line))));
    clearTimeout(again);
    if (share < 1) again = setTimeout(() => page.refresh(), 1000); // the index is being built
    back.disabled = !now.after;
    forward.disabled = !next.next;
    place.textContent = rows.length ? `${count(rows.length)} of ${count(total)}` : "";
  }

  update(data, address);
  return {
    update,
    // Rows do not move under the reader: new iterations are announced, and shown when asked for.
    skipsRefresh: () => (state.data.rows?.length ?? 0) > 0,
    grew(event) {
      if (event.run !== address.run) return;
      if (event.state === "gone") put(notes, h("p", { class: "note" }, "The run was deleted or moved. This is what it held."));
      // Evaluations and a change of the state are events too.
      if (event.iterations <= newest) return;
      newest = event.iterations;
      fresh.hidden = false;
      fresh.textContent = `Iteration ${event.iterations} is there: show`;
    },
    leave() {
      search.leave();
      clearTimeout(again);
    },
    keys: [
      { keys: ["/"], does: "search", act: () => search.node.focus() },
      { keys: ["j"], does: "next row", act: () => table.move(1) },
      { keys: ["k"], does: "previous row", act: () => table.move(-1) },
      { keys: ["Enter"], does: "tokens of the row", act: () => false },
      { keys: ["x"], does: "choose the row; two can be compared", act: () => document.activeElement?.closest("tr")?.querySelector("input")?.click() },
      { keys: ["d"], does: "compare the two chosen", act: () => compare.link.href && page.go(compare.link.href) },
      { keys: ["n"], does: "next page", act: () => turn(1) },
      { keys: ["p"], does: "previous page", act: () => turn(-1) },
      { keys: ["r"], does: "show new rollouts", act: () => page.refresh() },
    ],
  };
}
