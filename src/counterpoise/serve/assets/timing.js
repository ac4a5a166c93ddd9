// Where the time goes: seconds of every stage, stacked over iterations, and their shares.
import { nearest, nextFrame } from "./charts.js";
import { h, put, s } from "./elements.js";
import { number, percent, seconds, ticks } from "./format.js";

const HEIGHT = 132;
const [LEFT, RIGHT, TOP, BOTTOM] = [42, 7, 6, 16];
const COLOURS = { sample: "series", verify: "green", score: "gold", compose: "violet", update: "positive", monitor: "negative", probe: "soft" };
const MEAN = "mean iteration";
const SPARE = ["fate-aged", "fate-replaced", "fate-surplus"];

export function timing({ crosshair, open }) {
  const svg = s("svg", { class: "plot-svg", role: "img", height: HEIGHT });
  const canvas = h("div", { class: "canvas opens", "--height": `${HEIGHT}px` }, svg);
  const rows = h("tbody");
  const total = h("td", { class: "figure" });
  const which = h("th", { scope: "col" }, MEAN);
  const table = h("table", { class: "stages" },
    h("caption", { class: "unseen" }, "Seconds and share of every stage"),
    h("thead", {}, h("tr", {}, which, h("th", { scope: "col", class: "figure" }, "time"), h("th", { scope: "col", class: "figure" }, "share"), h("th", { "aria-hidden": "true" }))),
    rows,
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "together"), total, h("td"), h("td"))));
  const node = h("div", { class: "timing" }, canvas, table);
  let state = { xs: [], stages: [] };
  let across = null;
  let line = null;
  let width = 0;

  function draw() {
    const { xs, stages } = state;
    if (!width || !xs.length) return;
    // A bar has two pixels or more: in a long run it is the mean over neighbours.
    const bars = Math.min(xs.length, Math.floor((width - LEFT - RIGHT) / 2));
    const size = xs.length / bars;
    const means = stages.map(({ values }) =>
      Array.from({ length: bars }, (_, bar) => mean(values.slice(Math.floor(bar * size), Math.max(Math.floor(bar * size) + 1, Math.floor((bar + 1) * size))))));
    const sums = Array.from({ length: bars }, (_, bar) => means.reduce((sum, list) => sum + list[bar], 0));
    const most = quantile(sums, 0.995) * 1.08 || 1;
    const up = (y) => HEIGHT - BOTTOM - (Math.min(y, most) / most) * (HEIGHT - TOP - BOTTOM);
    const step = (width - LEFT - RIGHT) / bars;
    across = (k) => LEFT + ((k + 0.5) / xs.length) * (width - LEFT - RIGHT);
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const levels = ticks(0, most);
    for (const y of levels) {
      svg.append(s("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: up(y), y2: up(y) }));
      svg.append(s("text", { class: "tick", x: LEFT - 6, y: up(y) + 3.5, "text-anchor": "end" }, seconds.tick(y, levels.length > 1 ? levels[1] - levels[0] : y)));
    }
    const floor = new Array(bars).fill(0);
    stages.forEach(({ name }, k) => {
      let path = "";
      for (let bar = 0; bar < bars; bar++) {
        const [from, end] = [floor[bar], floor[bar] + means[k][bar]];
        floor[bar] = end;
        if (!(end > from)) continue;
        const gap = step > 4 ? 1 : 0;
        path += `M${(LEFT + bar * step).toFixed(2)},${up(end).toFixed(2)}h${(step - gap).toFixed(2)}V${up(from).toFixed(2)}h${(gap - step).toFixed(2)}Z`;
      }
      svg.append(s("path", { class: "stage", d: path, "--hue": `var(--${colour(name, k)})` }));
    });
    svg.append(s("text", { class: "tick", x: LEFT, y: HEIGHT - 3 }, number(xs[0])));
    svg.append(s("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" }, number(xs.at(-1))));
    line = svg.appendChild(s("line", { class: "cursor", y1: 0, y2: HEIGHT - BOTTOM, visibility: "hidden" }));
    svg.setAttribute("aria-label", `Seconds by stage, mean: ${stages.map(({ name, values }) => `${name} ${seconds(mean(values))}`).join(", ")}`);
    point(crosshair.at);
  }

  function point(at) {
    const { xs, stages } = state;
    if (!xs.length) return;
    const place = at === null ? null : nearest(xs, at);
    if (line && across) {
      line.setAttribute("visibility", place === null ? "hidden" : "visible");
      if (place !== null) for (const end of ["x1", "x2"]) line.setAttribute(end, across(place));
    }
    const shown = stages.map(({ values }) => (place === null ? mean(values) : values[place] ?? 0));
    const sum = shown.reduce((a, b) => a + b, 0);
    which.textContent = place === null ? MEAN : `iteration ${xs[place]}`;
    total.textContent = seconds(sum);
    [...rows.children].forEach((row, k) => {
      const share = sum ? shown[k] / sum : 0;
      row.children[1].textContent = seconds(shown[k]);
      row.children[2].textContent = percent(share, share < 0.0995 ? 1 : 0);
      row.querySelector(".share").style.setProperty("--share", share);
    });
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!across) return;
    const box = svg.getBoundingClientRect();
    const k = Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * state.xs.length);
    crosshair.set(state.xs[Math.max(0, Math.min(state.xs.length - 1, k))]);
  });
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && crosshair.set(null));
  canvas.addEventListener("click", () => crosshair.at !== null && open(crosshair.at));
  crosshair.on(point);
  new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    nextFrame(draw);
  }).observe(canvas);
  return {
    node,
    update(xs, timings) {
      const stages = Object.entries(timings)
        .map(([name, values]) => ({ name, values: values.map((x) => (Number.isFinite(x) ? x : 0)) }))
        .filter(({ values }) => values.some((x) => x > 0));
      state = { xs, stages };
      put(rows, ...stages.map(({ name }, k) =>
        h("tr", { "--hue": `var(--${colour(name, k)})` },
          h("th", { scope: "row" }, h("i", { class: "swatch", "aria-hidden": "true" }), name),
          h("td", { class: "figure" }), h("td", { class: "figure" }), h("td", { class: "share-cell", "aria-hidden": "true" }, h("span", { class: "share" })))));
      nextFrame(draw);
      point(crosshair.at);
    },
  };
}

const colour = (name, k) => COLOURS[name] ?? SPARE[k % SPARE.length];
const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0);
const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.floor(share * (values.length - 1))] ?? 0;
