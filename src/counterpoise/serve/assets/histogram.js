// A histogram that is a filter: click a bar, or drag over several, to keep those rewards only.
import { h, put, s } from "./elements.js";
import { count, number } from "./format.js";

const HEIGHT = 66;
const BASE = 14;

// `choose(low, high)` when a range was chosen, with nulls when the choice was taken back.
export function histogram({ title, choose }) {
  const svg = s("svg", { class: "plot-svg", height: HEIGHT, role: "img", "aria-label": title });
  const canvas = h("div", { class: "canvas histogram", "--height": `${HEIGHT}px` }, svg);
  const said = h("p", { class: "told" });
  const rows = h("tbody");
  const table = h("details", { class: "numbers-behind" }, h("summary", {}, "As a table"),
    h("table", { class: "figures-table" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "reward"), h("th", { scope: "col" }, "rollouts"))), rows));
  const node = h("div", { class: "histogram-box" }, canvas, said, table);
  let bars = [];
  let range = [null, null];
  let drag = null;

  // `low` and `high` are the edges of a bar, which its neighbours share; `least` and `largest` the rewards in it.
  const kept = (bar, [low, high] = range) => (low === null || bar.largest >= low) && (high === null || bar.least <= high);
  const rewardsIn = (from, end) => {
    const filled = bars.slice(Math.min(from, end), Math.max(from, end) + 1).filter((bar) => bar.count);
    return filled.length ? [filled[0].least, filled.at(-1).largest] : null;
  };

  function draw() {
    const width = canvas.clientWidth;
    if (!width) return;
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (!bars.length) return;
    const most = Math.max(...bars.map((bar) => bar.count), 1);
    const step = width / bars.length;
    const now = (drag && rewardsIn(drag.from, drag.end)) ?? range;
    bars.forEach((bar, k) => {
      const height = bar.count ? Math.max(2, (Math.sqrt(bar.count / most)) * (HEIGHT - BASE - 6)) : 0;
      const group = svg.appendChild(s("g", { class: kept(bar, now) ? "kept" : "left-out" }));
      group.append(s("rect", { class: "hit", x: k * step, y: 0, width: step, height: HEIGHT - BASE }));
      group.append(s("rect", { class: "bar", x: k * step + 1, y: HEIGHT - BASE - height, width: Math.max(1, step - 2), height, rx: 1 }));
      group.append(s("title", {}, `reward ${rangeText(bar)}: ${count(bar.count)} rollouts`));
    });
    svg.append(s("line", { class: "rule", x1: 0, x2: width, y1: HEIGHT - BASE + 0.5, y2: HEIGHT - BASE + 0.5 }));
    const label = (x, anchor, value) => svg.append(s("text", { class: "tick", x, y: HEIGHT - 2, "text-anchor": anchor }, number(value, 2)));
    if (bars.length <= 6 && bars.every((bar) => bar.low === bar.high)) bars.forEach((bar, k) => label((k + 0.5) * step, "middle", bar.low));
    else {
      label(0, "start", bars[0].low);
      label(width, "end", bars.at(-1).high);
    }
    svg.setAttribute("aria-label", `${title}: ${bars.filter((bar) => bar.count).map((bar) => `${rangeText(bar)}: ${bar.count}`).join("; ")}`);
  }

  const barAt = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(0, Math.min(bars.length - 1, Math.floor(((event.clientX - box.left) / box.width) * bars.length)));
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (!bars.length || event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { from: barAt(event), end: barAt(event) };
    draw();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.end = barAt(event);
    draw();
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
    draw();
  });
  canvas.addEventListener("pointerup", () => {
    if (!drag) return;
    const chosen = rewardsIn(drag.from, drag.end);
    drag = null;
    if (!chosen) { // only empty bars
      draw();
      return;
    }
    const same = chosen[0] === range[0] && chosen[1] === range[1];
    range = same ? [null, null] : chosen;
    draw();
    choose(...range);
  });
  new ResizeObserver(draw).observe(canvas);
  return {
    node,
    update(next, low, high) {
      bars = next ?? [];
      range = [low, high];
      said.textContent = low === null && high === null ? "Click a bar, or drag over several." : `Kept: ${low === null ? "any" : number(low)} to ${high === null ? "any" : number(high)}.`;
      put(rows, ...bars.map((bar) => h("tr", {}, h("th", { scope: "row" }, rangeText(bar)), h("td", {}, count(bar.count)))));
      draw();
    },
  };
}

const rangeText = (bar) => (bar.low === bar.high ? number(bar.low) : `${number(bar.low)} to ${number(bar.high)}`);
