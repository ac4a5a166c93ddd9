// Token types that cancel: pushed up by some rollouts and down by others, over iterations.
import { to } from "./address.js";
import { Crosshair, plot } from "./charts.js";
import { h, put, visible } from "./elements.js";
import { count, percent } from "./format.js";
import { load as get } from "./load.js";
import { term } from "./terms.js";

export const load = (address, signal) => get(address.path, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["token types", to.types(address.run)]];

const mean = (values) => {
  const known = (values ?? []).filter(Number.isFinite);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : NaN;
};

export function show(root, data, address) {
  const crosshair = new Crosshair();
  const chart = plot({ title: "cancellation of the chosen type", term: null, format: percent, crosshair, height: 120 });
  const weight = plot({ title: "its share of the gross push", term: null, format: percent, crosshair, height: 120 });
  const body = h("tbody");
  const search = h("input", { type: "search", placeholder: "Find a token", "aria-label": "Find a token", input: () => write() });
  const told = h("p", { class: "told" });
  const table = h("table", { class: "types list" }, h("caption", { class: "unseen" }, "Token types"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, term("token type")), h("th", { scope: "col", class: "figure" }, "share of push"), h("th", { scope: "col", class: "figure" }, term("cancellation")), h("th", { scope: "col" }, h("span", { class: "unseen" }, "bar")), h("th", { scope: "col", class: "figure" }, "iterations"))), body);
  const charts = h("div", { class: "plots two" }, chart.node, weight.node);
  root.append(h("div", { class: "head" }, h("h1", {}, "Token types that cancel"), told, h("div", { class: "head-tools" }, search)),
    h("p", { class: "note" }, "A type at 100 % was pushed up as hard as it was pushed down, so that the update left it where it was; one near 0 % carried the learning."), charts, table);
  let types = [];
  let chosen = 0;

  function choose(k) {
    chosen = k;
    const one = types[k];
    if (!one) return;
    [...body.children].forEach((row) => row.classList.toggle("active", Number(row.dataset.place) === k));
    const xs = data.iterations ?? [];
    chart.update([{ label: visible(one.text), colour: "series", xs, values: one.cancellation ?? [] }]);
    weight.update([{ label: visible(one.text), colour: "violet", xs, values: one.share ?? [] }]);
  }

  function write() {
    const wanted = search.value.toLowerCase();
    const listed = types.map((one, place) => ({ ...one, place })).filter((one) => String(one.text).toLowerCase().includes(wanted)).slice(0, 300);
    put(body, ...listed.map((one) => {
      const cell = h("span", { class: "token-text mono" });
      poise.text.write(cell, visible(one.text), 40, true);
      const level = mean(one.cancellation);
      return h("tr", { data: { place: one.place } },
        h("th", { scope: "row" }, h("button", { class: "link", type: "button", click: () => choose(one.place) }, cell)),
        h("td", { class: "figure" }, percent(mean(one.share))), h("td", { class: "figure" }, percent(level, 0)), h("td", { class: "share-cell", "aria-hidden": "true" }, h("span", { class: "share", "--share": level })), h("td", { class: "figure muted" }, count((one.cancellation ?? []).filter(Number.isFinite).length)));
    }));
    choose(Math.min(chosen, types.length - 1));
  }

  function update(next) {
    data = next;
    types = next.types ?? [];
    told.textContent = `${count(types.length)} heaviest`;
    write();
  }
  update(data);
  return { update, keys: [{ keys: ["/"], does: "find a token", act: () => search.focus() }] };
}
