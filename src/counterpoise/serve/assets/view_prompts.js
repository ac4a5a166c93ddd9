// The prompts of a run: how often each was seen, and how its success changed.
import { queryString, to } from "./address.js";
import { sparkline } from "./charts.js";
import { empty, h, marked, put } from "./elements.js";
import { count, number, percent, plural } from "./format.js";
import { load as get } from "./load.js";

export function load(address, signal) {
  const query = Object.fromEntries(address.query);
  return get(address.path + queryString({ sort: SORTS[0][0], ...query }), signal);
}
export const trail = (address) => [[address.run, to.run(address.run)], ["prompts", to.prompts(address.run)]];
export const key = (address) => address.run;

const SORTS = [["-times", "most visits"], ["last_success", "lowest success"], ["-last_success", "highest success"], ["-first_success", "easiest at first"], ["mean_reward", "lowest mean reward"], ["prompt_id", "name"]];

export function show(root, data, address, page) {
  const told = h("p", { class: "told", role: "status" });
  const search = h("input", { type: "search", placeholder: "Search texts and ids of prompts", "aria-label": "Search texts and ids of prompts" });
  const sort = h("select", { "aria-label": "Sort", change: () => set({ sort: sort.value }) }, SORTS.map(([value, label]) => h("option", { value }, label)));
  const body = h("tbody");
  const table = h("table", { class: "prompts list" }, h("caption", { class: "unseen" }, "Prompts"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "prompt"), h("th", { scope: "col", class: "figure" }, "visits"), h("th", { scope: "col", class: "figure" }, "first"), h("th", { scope: "col", class: "figure" }, "last"), h("th", { scope: "col" }, "success"))), body);
  const nothing = h("div");
  const [first, forward] = [h("button", { class: "button", type: "button", click: () => set({}) }, "← First page"), h("button", { class: "button", type: "button", click: () => turn() }, "Next →")];
  const place = h("span", { class: "muted figure" });
  root.append(h("div", { class: "head" }, h("h1", {}, "Prompts"), told), h("div", { class: "search-row" }, search, sort), table, nothing, h("div", { class: "paging" }, first, place, forward));
  let typing = null;
  let again = null;
  let next = null;

  const query = () => Object.fromEntries(address.query);
  function set(changes, options = {}) {
    const wanted = { ...query(), ...changes };
    delete wanted.after;
    page.go(to.prompts(address.run) + queryString(wanted), { keep: true, ...options });
  }
  const turn = () => next && page.go(to.prompts(address.run) + queryString({ ...query(), after: next }));
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ search: search.value }, { replace: true }), 250);
  });

  function update(data, where) {
    address = where;
    const now = query();
    next = data.next ?? null;
    if (document.activeElement !== search) search.value = now.search ?? "";
    sort.value = SORTS.some(([value]) => value === now.sort) ? now.sort : SORTS[0][0];
    const rows = data.rows ?? [];
    const words = data.search ?? [];
    put(body, ...rows.map((row) => h("tr", {},
      h("th", { scope: "row", class: "prompt-cell" }, h("a", { class: "clamp", href: to.prompt(address.run, row.prompt_id) }, marked(row.prompt || row.prompt_id, words)), h("span", { class: "folder" }, marked(row.prompt_id, words))),
      h("td", { class: "figure" }, number(row.times)), h("td", { class: "figure" }, percent(row.first_success, 0)), h("td", { class: "figure" }, percent(row.last_success, 0)),
      h("td", { class: "spark-cell" }, row.successes?.length > 1 ? sparkline(row.successes, { width: 96, label: `success from ${percent(row.first_success, 0)} to ${percent(row.last_success, 0)}` }) : h("span", { class: "muted" }, "one visit")))));
    table.hidden = !rows.length;
    clearTimeout(again);
    if (data.indexed < 1) again = setTimeout(() => page.refresh(), 1000); // the index is being built
    told.textContent = `${plural(data.total ?? rows.length, "prompt")}${data.indexed < 1 ? `, ${percent(data.indexed, 0)} of the iterations indexed so far` : ""}`;
    put(nothing, ...(rows.length ? [] : [now.search ? empty("No prompt matches", "Search for fewer words.") : empty("No prompts yet", "They appear with the first stored iteration (store.rollouts).")]));
    first.disabled = !now.after;
    forward.disabled = !next;
    place.textContent = rows.length ? `${count(rows.length)} of ${count(data.total ?? rows.length)}` : "";
  }
  update(data, address);
  const move = (by) => {
    const links = [...body.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))]?.focus();
  };
  return {
    update,
    skipsRefresh: () => body.children.length > 0, // rows do not move under the reader
    leave: () => [typing, again].forEach(clearTimeout),
    keys: [
      { keys: ["/"], does: "search", act: () => search.focus() },
      { keys: ["j"], does: "next prompt", act: () => move(1) },
      { keys: ["k"], does: "previous prompt", act: () => move(-1) },
      { keys: ["Enter"], does: "open it", act: () => false },
      { keys: ["n"], does: "next page", act: turn },
    ],
  };
}
