// Small charts that share one crosshair. The height of a chart is fixed from the start, so that the
// page does not jump when numbers arrive; the heading shows the values at the crosshair, instead of a
// box over the lines.
import { h, put, s, unseen } from "./elements.js";
import { number, tick, ticks } from "./format.js";

const LEFT = 42;
const RIGHT = 7;
const TOP = 6;
const BOTTOM = 16;
const SMOOTH_FROM = 40; // points from which a moving mean is drawn over the values

// Run `work` in the next frame, once however often it is asked for: dozens of charts change together.
// Widths come from ResizeObserver, so that drawing never forces the browser to lay out the page.
const frame = new Set();
export function nextFrame(work) {
  if (!frame.size) {
    requestAnimationFrame(() => {
      const pieces = [...frame];
      frame.clear();
      for (const piece of pieces) piece();
    });
  }
  frame.add(work);
}

// The iteration that the pointer or the keyboard is at, for every chart of a view.
export class Crosshair {
  constructor() {
    this.at = null;
    this.home = null; // where it rests when the pointer is elsewhere
    this.listeners = new Set();
  }
  on(listener) {
    this.listeners.add(listener);
    listener(this.at);
  }
  set(wanted) {
    const at = wanted ?? this.home;
    if (at === this.at) return;
    this.at = at;
    nextFrame(this.tell);
  }
  tell = () => {
    for (const listener of this.listeners) listener(this.at);
  };
}

const finite = (x) => x !== null && x !== undefined && Number.isFinite(x);

// Index of the point nearest to `x` in sorted `xs`.
export function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

function verticalDomain(series) {
  let [low, high] = [Infinity, -Infinity];
  for (const { values, lows, highs } of series) {
    for (const list of [values, lows ?? [], highs ?? []]) {
      for (const x of list) {
        if (!finite(x)) continue;
        const seen = Math.abs(x) < 1e-12 ? 0 : x; // a rounding error of 0 must not set the scale
        if (seen < low) low = seen;
        if (seen > high) high = seen;
      }
    }
  }
  if (low > high) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low * 1.4), Math.max(0, low * 1.4)];
  if (low >= 0 && low < 0.4 * high) low = 0;
  const pad = 0.06 * (high - low);
  return [low === 0 ? 0 : low - (low >= 0 ? Math.min(pad, low) : pad), high + pad];
}

// One path of a series. Where several points share a pixel, their least and largest are kept, so
// that a spike in a long run stays visible.
function linePath(xs, values, across, up, width) {
  const keep = xs.length > 2 * width ? thin(xs, values, Math.floor(width / 2)) : xs.keys();
  let path = "";
  let pen = false;
  for (const k of keep) {
    if (!finite(values[k])) continue; // no update in that iteration: the line goes on to the next
    path += `${pen ? "L" : "M"}${across(xs[k]).toFixed(1)},${up(values[k]).toFixed(1)}`;
    pen = true;
  }
  return path;
}

function* thin(xs, values, bins) {
  const size = xs.length / bins;
  for (let bin = 0; bin < bins; bin++) {
    const [from, end] = [Math.floor(bin * size), Math.floor((bin + 1) * size)];
    let [least, most] = [-1, -1];
    for (let k = from; k < end; k++) {
      if (!finite(values[k])) continue;
      if (least < 0 || values[k] < values[least]) least = k;
      if (most < 0 || values[k] > values[most]) most = k;
    }
    if (least < 0) continue; // no value in this stretch
    yield Math.min(least, most);
    if (least !== most) yield Math.max(least, most);
  }
}

const smoothingWindow = (n) => Math.max(5, Math.round(n / 16));

function movingMean(values, window) {
  const half = window >> 1;
  const [sums, counts] = [[0], [0]];
  values.forEach((value, k) => {
    sums.push(sums[k] + (finite(value) ? value : 0));
    counts.push(counts[k] + (finite(value) ? 1 : 0));
  });
  return values.map((value, k) => {
    if (!finite(value)) return null;
    const [from, end] = [Math.max(0, k - half), Math.min(values.length, k + half + 1)];
    return (sums[end] - sums[from]) / (counts[end] - counts[from]);
  });
}

// A chart of one or several series over iterations.
// series: [{ label, colour, xs, values, lows?, highs?, points? }]; `open(iteration)` on a click.
export function plot({ title, term = "", format = number, crosshair, open = null, height = 92 }) {
  const readout = h("span", { class: "readout" });
  const heading = h("figcaption", {}, h("span", { class: "plot-title" }, title), readout, term !== null && h("span", { class: "term", title: term }, term || "\u00a0"));
  const svg = s("svg", { class: "plot-svg", role: "img", height });
  const canvas = h("div", { class: "canvas", "--height": `${height}px` }, svg);
  const node = h("figure", { class: "plot" }, heading, canvas);
  let series = [];
  let across = null;
  let marks = [];
  let line = null;
  let width = 0;

  function draw() {
    if (!width || !series.length) return;
    const nonEmpty = series.filter((one) => one.xs.length);
    const low = Math.min(...nonEmpty.map((one) => one.xs[0]));
    const high = Math.max(...nonEmpty.map((one) => one.xs.at(-1)), low + 1);
    const [bottom, top] = verticalDomain(series);
    across = (x) => LEFT + ((x - low) / (high - low)) * (width - LEFT - RIGHT);
    across.inverse = (pixel) => low + ((pixel - LEFT) / (width - LEFT - RIGHT)) * (high - low);
    const up = (y) => height - BOTTOM - ((y - bottom) / (top - bottom)) * (height - TOP - BOTTOM);
    svg.replaceChildren();
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const levels = ticks(bottom, top);
    const written = format.tick ?? tick;
    for (const y of levels) {
      svg.append(s("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: up(y), y2: up(y) }));
      svg.append(s("text", { class: "tick", x: LEFT - 6, y: up(y) + 3.5, "text-anchor": "end" }, written(y, levels.length > 1 ? levels[1] - levels[0] : Math.abs(y) || 1)));
    }
    svg.append(s("text", { class: "tick", x: LEFT, y: height - 3 }, number(low)));
    if (nonEmpty.some((one) => one.xs.at(-1) > low)) svg.append(s("text", { class: "tick", x: width - RIGHT, y: height - 3, "text-anchor": "end" }, number(high)));
    line = svg.appendChild(s("line", { class: "cursor", y1: TOP - 4, y2: height - BOTTOM, visibility: "hidden" }));
    marks = series.map((one) => drawSeries(one, up));
    put(readout, marks.map((mark) => mark.value));
    point(crosshair.at);
    svg.setAttribute("aria-label", summary());
  }

  function drawSeries(one, up) {
    const hue = { "--hue": `var(--${one.colour ?? "series"})` };
    const group = svg.appendChild(s("g", { class: one.faded ? "faded" : null, ...hue }));
    if (one.points) {
      one.xs.forEach((x, k) => {
        if (finite(one.lows?.[k])) group.append(s("line", { class: "interval", x1: across(x), x2: across(x), y1: up(one.lows[k]), y2: up(one.highs[k]) }));
        if (finite(one.values[k])) group.append(s("circle", { class: "point", cx: across(x), cy: up(one.values[k]), r: 2.5 }));
      });
    }
    // A line through a single value has no length: a dot shows it.
    const shown = one.xs.flatMap((x, k) => (finite(one.values[k]) ? [k] : []));
    if (!one.points && shown.length === 1) group.append(s("circle", { class: "point", cx: across(one.xs[shown[0]]), cy: up(one.values[shown[0]]), r: 2.5 }));
    const longest = Math.max(...series.map((other) => other.xs.length));
    const smooth = !one.points && longest >= SMOOTH_FROM && one.smooth !== false;
    group.append(s("path", { class: smooth || one.points ? "line raw" : "line", d: linePath(one.xs, one.values, across, up, width) }));
    if (smooth) group.append(s("path", { class: "line", d: linePath(one.xs, movingMean(one.values, smoothingWindow(longest)), across, up, width) }));
    const dot = group.appendChild(s("circle", { class: "dot", r: 3, visibility: "hidden" }));
    const text = document.createTextNode("");
    const labelled = series.length > 1;
    const value = h("span", { class: "value", title: one.label, ...hue }, labelled && h("i", { class: "swatch", "aria-hidden": "true" }), labelled && unseen(`${one.label} `), text);
    return { one, up, dot, text, value };
  }

  function point(at) {
    if (!across) return;
    line.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) for (const end of ["x1", "x2"]) line.setAttribute(end, across(at));
    for (const { one, up, dot, text } of marks) {
      const k = at === null ? one.values.findLastIndex(finite) : nearest(one.xs, at);
      // Evaluations are sparse: read the last before the crosshair.
      const place = at !== null && one.points ? one.xs.findLastIndex((x) => x <= at) : k;
      const value = place < 0 || (at !== null && at > one.xs.at(-1) && !one.points) ? null : one.values[place];
      const visible = at !== null && finite(value);
      dot.setAttribute("visibility", visible ? "visible" : "hidden");
      if (visible) {
        dot.setAttribute("cx", across(one.xs[place]));
        dot.setAttribute("cy", up(value));
      }
      text.data = format(value);
    }
  }

  const summary = () =>
    `${title}: ${series.map((one) => {
      const known = one.values.filter(finite);
      return known.length
        ? `${series.length > 1 ? `${one.label} ` : ""}from ${format(known[0])} to ${format(known.at(-1))}, least ${format(Math.min(...sample(known)))}, largest ${format(Math.max(...sample(known)))}`
        : "no values";
    }).join("; ")}`;

  const iterationAt = (event) => {
    const x = across.inverse(event.clientX - svg.getBoundingClientRect().left);
    const longest = series.reduce((a, b) => (b.xs.length > a.xs.length ? b : a));
    return longest.xs[nearest(longest.xs, x)];
  };
  canvas.addEventListener("pointermove", (event) => across && crosshair.set(iterationAt(event)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && crosshair.set(null));
  // A finger points first and opens with a second tap.
  let pointed = null;
  canvas.addEventListener("pointerdown", () => { pointed = crosshair.at; });
  canvas.addEventListener("click", (event) => {
    if (!across) return;
    const iteration = iterationAt(event);
    crosshair.set(iteration);
    if (event.pointerType !== "touch" || pointed === iteration) open?.(iteration);
  });
  if (open) canvas.classList.add("opens");
  crosshair.on(point);
  new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    nextFrame(draw);
  }).observe(canvas);
  return {
    node,
    update(next) {
      series = next.filter((one) => one.xs.length);
      nextFrame(draw);
    },
    get series() {
      return series;
    },
    title,
    format,
  };
}

const sample = (values) => (values.length > 50000 ? values.slice(-50000) : values); // Math.min has a limit of arguments

// The numbers of charts as a table, made when it is opened: for screen readers and for copying.
export function tableOf(plots, caption) {
  const box = h("div", { class: "scroll table-box", tabindex: 0, role: "region", "aria-label": caption });
  const details = h("details", { class: "numbers-behind" }, h("summary", {}, "As a table"), box);
  const MOST = 500; // rows that are written at once
  const write = () => {
    if (!details.open) return;
    const columns = plots.flatMap((chart) => chart.series.map((one) => ({ ...one, format: chart.format, name: chart.series.length > 1 ? `${chart.title}, ${one.label}` : chart.title })));
    const xs = [...new Set(columns.flatMap((one) => [...one.xs]))].sort((a, b) => b - a);
    const places = columns.map((one) => new Map(one.xs.map((x, k) => [x, k])));
    const head = h("tr", {}, h("th", { scope: "col" }, "iteration"), columns.map((one) => h("th", { scope: "col" }, one.name)));
    const rows = xs.slice(0, MOST).map((x) =>
      h("tr", {}, h("th", { scope: "row" }, number(x)), columns.map((one, k) => h("td", {}, places[k].has(x) ? one.format(one.values[places[k].get(x)]) : ""))));
    put(box, h("table", { class: "figures-table" }, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, rows)));
    if (xs.length > MOST) box.append(h("p", { class: "note" }, `The newest ${MOST} of ${xs.length} iterations; all of them are in the JSON of this address (add ?format=json).`));
  };
  details.addEventListener("toggle", write);
  return { node: details, update: write };
}

export function sparkline(values, { width = 128, height = 26, label = "" } = {}) {
  const known = values.filter(finite);
  const svg = s("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  if (!known.length) return svg;
  const [low, high] = [Math.min(0, ...known), Math.max(...known, 1e-12)];
  const across = (k) => 2 + (k / Math.max(1, values.length - 1)) * (width - 6);
  const up = (y) => height - 3 - ((y - low) / (high - low || 1)) * (height - 6);
  const path = linePath([...values.keys()], values, across, up, width);
  svg.append(s("path", { class: "spark-area", d: `${path}L${across(values.length - 1)},${height - 2}L2,${height - 2}Z` }));
  svg.append(s("path", { class: "line", d: path }));
  const last = values.findLastIndex(finite);
  svg.append(s("circle", { class: "point", cx: across(last), cy: up(values[last]), r: 2 }));
  return svg;
}
