// Held-out answers: how they moved, and which training prompts moved them; a bar leads to the group.
import { to } from "./address.js";
import { Crosshair, plot, tableOf } from "./charts.js";
import { empty, foreign, h, localAddress, put } from "./elements.js";
import { advantage, count, number, percent, plural, signed } from "./format.js";
import { load as get } from "./load.js";
import { heading } from "./view_run.js";

export const load = (address, signal) => get(address.path, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["held-out answers", to.trace(address.run)]];

const total = (values) => {
  let sum = 0;
  return (values ?? []).map((x) => (sum += Number.isFinite(x) ? x : 0));
};

export function show(root, data, address, page) {
  const crosshair = new Crosshair();
  const open = (iteration) => page.go(to.iteration(address.run, iteration));
  const moved = plot({ title: "right and wrong answers", term: "Change of their mean log-probability, added up over the traced updates.", format: number, crosshair, open, height: 140 });
  const predicted = plot({ title: "predicted for the right ones", term: "Pushes of all trained rows, added up, on the scale of plain gradient descent.", format: number, crosshair, open, height: 140 });
  const table = tableOf([moved, predicted], "Held-out answers in every traced update");
  const told = h("p", { class: "told" });
  const trust = h("p", { class: "note" });
  const lists = h("div");
  root.append(h("div", { class: "head" }, h("h1", {}, "Held-out answers"), told), trust,
    h("section", { class: "panel" }, h("div", { class: "plots two" }, moved.node, predicted.node), table.node), lists);

  function update(next) {
    const xs = next.iterations ?? [];
    moved.update([{ label: "right", colour: "positive", xs, values: total(next.right) }, { label: "wrong", colour: "negative", xs, values: total(next.wrong) }]);
    predicted.update([{ label: "predicted", colour: "series", xs, values: total(next.predicted) }]);
    table.update();
    told.textContent = `${plural(next.problems, "held-out problem")}, ${plural(xs.length, "traced update")}, ${plural(next.prompts, "training prompt")}${next.left_out ? `; ${count(next.left_out)} earlier updates left out` : ""}`;
    const [value, low, high] = next.correlation ?? [];
    trust.textContent = `Rows push answers through ${next.through}. Trust the predictions as far as they agree with what happened: rank correlation of predicted and real change ${Number.isFinite(value) ? advantage(value) : "unknown"}${Number.isFinite(low) ? ` [${advantage(low)}, ${advantage(high)}]` : ""}, ${percent(next.explained, 0)} of the movement explained.`;
    const largest = Math.max(1e-300, ...[...(next.raising ?? []), ...(next.lowering ?? [])].flatMap((prompt) => prompt.updates.map((update) => Math.abs(update.change))));
    put(lists, ...[["Raised right answers most", next.raising], ["Lowered right answers most", next.lowering]].map(([title, list]) =>
      h("section", { class: "panel" }, heading(title, "Each bar is an update that trained on the prompt, blue where it raised the right answers on average; click it to open the group. Under AdamW read sign and order only."),
        list?.length ? prompts(title, list, largest) : empty("No such prompt", "No traced update moved the answers this way."))));
  }

  function prompts(title, list, largest) {
    return h("table", { class: "traced list" }, h("caption", { class: "unseen" }, title),
      h("thead", {}, h("tr", {}, ["prompt", "influence", "raised in", "updates"].map((name, k) => h("th", { scope: "col", class: k === 1 || k === 2 ? "figure" : null }, name)))),
      h("tbody", {}, list.map((prompt) => h("tr", {},
        h("th", { scope: "row" }, h("a", { class: "clamp", href: to.prompt(address.run, prompt.prompt_id) }, foreign(prompt.prompt || prompt.prompt_id)), prompt.prompt ? h("small", { class: "muted mono" }, foreign(prompt.prompt_id)) : null),
        h("td", { class: "figure" }, signed(prompt.total)),
        h("td", { class: "figure" }, `${count(prompt.raising)} of ${count(prompt.moving)}`),
        h("td", {}, h("span", { class: "visits" }, prompt.updates.map((update) => bar(update, largest))))))));
  }

  function bar({ iteration, change, place }, largest) {
    const label = `iteration ${iteration}: ${signed(change)} nats`;
    return h("a", { class: `visit ${change >= 0 ? "raises" : "lowers"}`, href: localAddress(place), title: label, "aria-label": label }, h("i", { "--size": Math.sqrt(Math.abs(change) / largest) }));
  }
  update(data);
  return { update };
}
