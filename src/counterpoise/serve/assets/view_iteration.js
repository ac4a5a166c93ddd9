// One iteration: its batch as a mosaic, and one group of it side by side.
import { to } from "./address.js";
import { Crosshair, plot } from "./charts.js";
import { empty, foreign, h, localAddress, put, s, visible } from "./elements.js";
import { advantage, count, number, percent, plural } from "./format.js";
import { groupPanel } from "./group.js";
import { load as get } from "./load.js";
import { QUANTITIES, leading } from "./metric_charts.js";
import { TERMS, term } from "./terms.js";
import { heading } from "./view_run.js";

export async function load(address, signal) {
  const [iteration, run, group] = await Promise.all([
    get(to.iteration(address.run, address.iteration), signal),
    get(to.run(address.run), signal),
    address.group === undefined ? null : get(address.path, signal),
  ]);
  return { ...iteration, run, open: group };
}
export const trail = (address) => [
  [address.run, to.run(address.run)],
  [`iteration ${address.iteration}`, to.iteration(address.run, address.iteration)],
  ...(address.group === undefined ? [] : [[address.group, address.path]]),
];
export const key = (address) => address.run;

const DESCRIBED = [
  ["rows", "rollouts"], ["groups", "groups"], ["split_groups", "split groups"], ["positive_share", "positive"], ["token_imbalance", "heaviest step / mean"],
  ["max_abs_group_advantage_sum", "largest group advantage sum"], ["rows_without_signal", "without signal"], ["shared_token_share", "shared token types"],
];

// What an iteration without an update has to tell.
const SAMPLED = [["rollouts", "rollouts", count], ["mixed_groups", "groups with unequal rewards", percent], ["response_length", "response length", number], ["rows_without_signal", "without signal", number]];

export function show(root, data, address, page) {
  const crosshair = new Crosshair();
  const title = h("h1");
  const rule = h("span", { class: "muted" });
  const [back, forward] = [h("a", { class: "button", "aria-label": "Previous iteration" }, "←"), h("a", { class: "button", "aria-label": "Next iteration" }, "→")];
  const leads = leading(data.run);
  const quantity = QUANTITIES[leads];
  const scrubber = plot({ title: quantity.name, term: null, format: quantity.format, crosshair, open: (iteration) => page.go(to.iteration(address.run, iteration), { keep: true }), height: 64 });
  const pin = h("div", { class: "scrubber" }, scrubber.node);
  const facts = h("dl", { class: "facts" });
  const stage = h("div");
  const group = h("div");
  const leftOut = h("div");
  root.append(h("div", { class: "head" }, title, rule, h("div", { class: "head-tools pair-of-buttons" }, back, forward)), pin, facts, stage, group, leftOut);
  const picture = mosaic(page);
  let opened = "null";
  let listed = "";

  function update(next, where) {
    address = where;
    const metrics = next.run?.metrics ?? {};
    const xs = metrics.iteration ?? [];
    title.textContent = `Iteration ${where.iteration}`;
    rule.textContent = next.rule ? visible(next.rule) : "";
    for (const [link, iteration] of [[back, next.previous], [forward, next.next]]) {
      if (Number.isFinite(iteration)) link.href = to.iteration(address.run, iteration); // an import may count from 0
      else link.removeAttribute("href");
    }
    scrubber.update([{ label: quantity.name, colour: "series", xs, values: metrics[leads] ?? [], smooth: false }]);
    crosshair.home = where.iteration;
    crosshair.set(where.iteration);
    const k = xs.indexOf(where.iteration);
    const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value)));
    const describe = next.steps?.length ? next.describe ?? {} : {};
    const sampled = next.steps?.length ? [] : SAMPLED.filter(([name]) => Number.isFinite(next.metrics?.[name]));
    put(facts,
      fact(term(quantity.name), quantity.format(metrics[leads]?.[k])),
      ...sampled.map(([name, label, written]) => fact(label, written(next.metrics[name]))),
      ...DESCRIBED.filter(([name]) => Number.isFinite(describe[name])).map(([name, label]) => fact(name === "split_groups" ? term("split", label) : label, /share/.test(name) ? percent(describe[name], 0) : number(describe[name]))));
    writeBatch(next);
    // A live update leaves lists and an open group as they are: what was opened, chosen and scrolled stays.
    const lists = JSON.stringify(next.dropped ?? null);
    if (lists !== listed) put(leftOut, dropped(next));
    listed = lists;
    const open = JSON.stringify(next.open ?? null);
    if (open === opened) return;
    opened = open;
    put(group, next.open && groupPanel(next.open, address, page));
    if (next.open) group.scrollIntoView({ block: "nearest" });
  }

  function writeBatch(next) {
    if (!next.steps?.length) {
      // Our own runs count the rollouts that wait; of others it is not known whether there was an update.
      const isKnown = Number.isFinite(next.waiting?.positive);
      put(stage,
        empty(isKnown && !next.update ? "No update in this iteration" : "Its optimizer steps are not known", `No batch can be shown: ${visible(next.missing?.steps ?? "no plan is stored")}.`,
          h("a", { class: "button", href: to.rollouts(address.run, { iteration_min: address.iteration, iteration_max: address.iteration }) }, "Its rollouts")));
      return;
    }
    if (!stage.contains(picture.node)) {
      put(stage, h("section", { class: "panel" }, heading("Batch", "A column is an optimizer step, a row the rollouts of one prompt in it, a cell one rollout. Click a cell for its group."), picture.node));
    }
    picture.update(next, address);
  }

  update(data, address);
  const toIteration = (link) => link.href && page.go(link.href, { keep: true });
  return {
    update,
    keys: [
      { keys: ["]", "ArrowRight"], does: "next iteration", act: () => toIteration(forward) },
      { keys: ["[", "ArrowLeft"], does: "previous iteration", act: () => toIteration(back) },
      { keys: ["j", "ArrowDown"], does: "next rollout of the mosaic", act: (event) => picture.move(1, event) },
      { keys: ["k", "ArrowUp"], does: "previous rollout", act: (event) => picture.move(-1, event) },
      { keys: ["Enter"], does: "its group, side by side", act: () => picture.open() },
      { keys: ["Escape"], does: "close the group", act: () => address.group !== undefined && page.go(to.iteration(address.run, address.iteration), { keep: true }) },
    ],
  };
}

// Rollouts that were sampled and left out of the update, and why.
function dropped(data) {
  const kinds = Object.entries(data.dropped ?? {}).filter(([, list]) => list?.length);
  return h("div", { class: "dropped" }, kinds.map(([why, list]) => {
    const groups = new Map();
    for (const rollout of list) groups.set(rollout.group, [...(groups.get(rollout.group) ?? []), rollout]);
    return h("details", {}, h("summary", {}, `${plural(list.length, "rollout")} dropped: ${why.replaceAll("_", " ")}`), h("p", { class: "note" }, TERMS[`dropped: ${why}`] ?? ""),
      h("ul", { class: "dropped-groups" }, [...groups].map(([name, rollouts]) => h("li", {}, foreign(name), " ", rollouts.map((rollout) => [h("a", { href: localAddress(rollout.place) }, `#${rollout.index}`), " "])))));
  }));
}

// The mosaic of the report with the server's cells: drawing and colours are shared.
function mosaic(page) {
  const svg = s("svg", { role: "img" });
  const card = h("div", { class: "card", role: "status", hidden: true });
  const frame = h("div", { class: "frame", tabindex: 0, role: "group", "aria-label": "Batch mosaic. Up and down select a rollout, Enter shows its group." }, h("div", { class: "scroll" }, svg), card);
  const sizes = ["equal", "tokens"].map((value) => h("label", {}, h("input", { type: "radio", name: "mosaic-size", value, checked: value === "equal", change: () => draw() }), value === "equal" ? " equal" : " area ∝ tokens"));
  const ramp = [h("i"), h("i")];
  const legend = h("div", { class: "legend" },
    h("span", {}, h("span", { class: "ramp" }, ramp[0], h("span"), ramp[1]), " ", term("advantage")),
    h("span", {}, h("span", { class: "sample hatch" }), term("split", "the rest of the group is in another step")),
    h("span", {}, h("span", { class: "dot" }), term("waited", "it waited: the number is the iteration that sampled it")),
    h("fieldset", {}, h("legend", {}, "Cells"), sizes));
  const numbers = h("tbody");
  const table = h("details", { class: "numbers-behind" }, h("summary", {}, "As a table"), h("div", { class: "scroll table-box" }, h("table", { class: "figures-table" },
    h("thead", {}, h("tr", {}, ["step", "group", "response", "advantage", "tokens", "reward", "sampled in"].map((name) => h("th", { scope: "col" }, name)))), numbers)));
  const node = h("div", { class: "mosaic opens" }, frame, legend, table);
  let [cells, rows, plan, data, address, chosen, lit] = [[], [], null, null, null, -1, null];

  function draw() {
    if (!plan || !frame.clientWidth) return;
    hide();
    const byTokens = node.querySelector("input[name=mosaic-size]:checked").value === "tokens";
    cells = poise.mosaic.draw(svg, plan, { room: frame.clientWidth, largest: data.largest || 1, byTokens, iteration: data.iteration });
    light(lit);
  }

  function light(group) {
    lit = group;
    for (const old of svg.querySelectorAll(".lit")) old.classList.remove("lit");
    if (group === null || !plan) return;
    const at = plan.groups.indexOf(group);
    for (const part of svg.querySelectorAll(`[data-group="${at}"]`)) part.classList.add("lit");
  }

  function choose(cell) {
    hide();
    if (!cell) return;
    chosen = cells.indexOf(cell);
    const rollout = rows[Number(cell.dataset.row)];
    const group = data.groups[rollout.group];
    poise.mosaic.add(svg, "rect", { class: "chosen", ...Object.fromEntries(["x", "y", "width", "height"].map((name) => [name, cell.getAttribute(name)])) });
    for (const part of svg.querySelectorAll(`[data-group="${rollout.group}"]`)) part.classList.add("lit");
    const waited = rollout.waited > 0 ? ` · sampled in iteration ${rollout.born}, waited ${plural(rollout.waited, "iteration")}` : "";
    put(card,
      h("p", {}, "advantage ", h("b", {}, advantage(rollout.advantage)), Number.isFinite(rollout.reward) ? ` · reward ${number(rollout.reward)}` : "", ` · ${plural(rollout.tokens, "token")}`),
      h("p", {}, foreign(group?.group), ` · response #${rollout.index}${waited}`),
      group?.prompt ? h("p", { dir: "auto" }, visible(group.prompt)) : "",
      rollout.response ? h("p", { class: "text", dir: "auto" }, visible(rollout.response)) : "");
    card.hidden = false;
    const [box, at] = [frame.getBoundingClientRect(), cell.getBoundingClientRect()];
    const left = Math.max(0, Math.min(at.left - box.left, box.width - card.offsetWidth));
    const below = at.bottom + 8 + card.offsetHeight < innerHeight || at.top - 8 - card.offsetHeight < 0;
    card.style.left = `${left}px`;
    card.style.top = `${below ? at.bottom - box.top + 8 : at.top - box.top - card.offsetHeight - 8}px`;
  }

  function hide() {
    card.hidden = true;
    chosen = -1;
    svg.querySelector(".chosen")?.remove();
    light(lit);
  }

  const open = (cell = cells[chosen]) => {
    if (!cell) return;
    const rollout = rows[Number(cell.dataset.row)];
    page.go(to.group(address.run, address.iteration, data.groups[rollout.group].group), { keep: true });
  };
  svg.addEventListener("pointerover", (event) => event.pointerType === "mouse" && choose(event.target.closest(".cell")));
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("click", (event) => open(event.target.closest(".cell") ?? undefined));
  frame.addEventListener("blur", hide);
  new ResizeObserver(draw).observe(frame);
  return {
    node,
    open,
    move: (by, event) => {
      if (event.key.startsWith("Arrow") && document.activeElement !== frame) return false; // the page scrolls
      choose(cells[Math.max(0, Math.min(cells.length - 1, chosen + by))]);
      return true;
    },
    update(next, where) {
      const same = data?.iteration === next.iteration && plan && data.steps.length === next.steps.length;
      [data, address] = [next, where];
      lit = next.open?.group ?? null;
      if (!same) {
        rows = [];
        const step = [];
        next.steps.forEach((cells, k) => cells.forEach((cell) => {
          rows.push(cell);
          step.push(k);
        }));
        plan = {
          steps: next.steps.length, step, groups: next.groups.map((group) => group.group), describe: { split_groups: next.describe?.split_groups ?? 0 },
          ...Object.fromEntries(["group", "index", "advantage", "tokens", "born"].map((name) => [name, rows.map((cell) => cell[name])])),
        };
        const full = Math.max(next.largest || 0, 0.1).toFixed(1);
        ramp[0].textContent = `−${full}`;
        ramp[1].textContent = `+${full}`;
        svg.setAttribute("aria-label", `${plural(rows.length, "rollout")} of ${plural(plan.groups.length, "group")} in ${plural(plan.steps, "step")}, ${plural(plan.describe.split_groups, "group")} split`);
        put(numbers, ...rows.slice(0, 2000).map((cell, k) => h("tr", {},
          h("td", {}, count(step[k] + 1)), h("td", {}, h("a", { href: to.group(where.run, where.iteration, plan.groups[cell.group]) }, foreign(plan.groups[cell.group]))), h("td", {}, h("a", { href: localAddress(cell.place) }, `#${cell.index}`)),
          h("td", {}, advantage(cell.advantage)), h("td", {}, count(cell.tokens)), h("td", {}, number(cell.reward)), h("td", {}, number(cell.born)))));
        draw();
      } else light(lit);
    },
  };
}
