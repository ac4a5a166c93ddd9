// The batch mosaic. A plan comes as parallel lists over its rows (mosaic.py, `compact_plan`); foreign text only ever enters the page as textContent.
(() => {
  const root = document.querySelector(".mosaic");
  const { iterations, largest } = poise.data("mosaic");
  const [slider, output] = [root.querySelector("input[type=range]"), root.querySelector("output")];
  const [frame, svg, card] = [".frame", "svg", ".card"].map((name) => root.querySelector(name));
  const told = root.querySelector(".told");
  const HEADER = 46;
  let shown = { plan: null, texts: null, cells: [], chosen: -1 };

  // -- drawing -----------------------------------------------------------------------------

  const add = (parent, name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const sign = (A) => (A > 0 ? "positive" : A < 0 ? "negative" : "none");
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  // Steps -> parts: the rows of one group that share a step, positive rows first.
  function partsOf(plan) {
    const steps = Array.from({ length: plan.steps }, () => new Map());
    plan.group.forEach((group, row) => {
      const parts = steps[plan.step[row]];
      if (!parts.has(group)) parts.set(group, { group, rows: [] });
      parts.get(group).rows.push(row);
    });
    for (const part of steps.flatMap((parts) => [...parts.values()])) {
      part.rows.sort((a, b) => plan.advantage[b] - plan.advantage[a]);
    }
    return steps.map((parts) => [...parts.values()].sort((a, b) => a.group - b.group));
  }

  // Where every part lies. Equal cells: a row has room for a whole group. By tokens: the area of a
  // cell is its tokens, so the height of a column is the load of its step.
  function layout(steps, plan, byTokens) {
    const split = plan.describe.split_groups > 0;
    const gutter = Math.min(split ? 30 : 18, frame.clientWidth / 20);
    const width = Math.max(frame.clientWidth, steps.length * (44 + gutter));
    const column = (width - gutter * (steps.length - 1)) / steps.length;
    const slots = Math.max(...sizesOfGroups(plan));
    const most = Math.max(...steps.map((parts) => parts.length));
    const row = Math.max(5, Math.min(38, 520 / most));
    const strip = byTokens && split ? 7 : 0; // where a cut row is hatched when its cells fill it
    const gap = row > 12 ? 5 : row > 7 ? 2 : 1;
    const load = Math.max(...steps.map((parts) => sum(parts.map((p) => tokens(p, plan)))));
    let height = 0;
    steps.forEach((parts, s) => {
      let y = HEADER;
      for (const part of parts) {
        part.x = s * (column + gutter);
        part.y = y;
        part.width = column;
        part.strip = strip;
        part.roomy = (byTokens ? 440 / most : row) > 10;
        part.height = byTokens ? Math.max(1, (tokens(part, plan) / load) * 440) : row;
        const total = byTokens ? tokens(part, plan) : slots;
        part.widths = part.rows.map((r) => ((byTokens ? plan.tokens[r] : 1) / total) * (column - strip));
        y += part.height + (byTokens ? Math.min(gap, 2) : gap);
      }
      height = Math.max(height, y);
    });
    return { width, height: height + 4, column, gutter };
  }
  const tokens = (part, plan) => sum(part.rows.map((r) => plan.tokens[r]));
  const sizesOfGroups = (plan) => {
    const sizes = plan.groups.map(() => 0);
    for (const group of plan.group) sizes[group]++;
    return sizes;
  };

  function draw() {
    const { plan } = shown;
    const byTokens = root.querySelector("input[name=mosaic-size]:checked").value === "tokens";
    svg.replaceChildren();
    shown.cells = [];
    hide();
    const steps = partsOf(plan);
    const { width, height, column } = layout(steps, plan, byTokens);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const pattern = add(add(svg, "defs", {}), "pattern", {
      id: "hatching", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    });
    add(pattern, "line", { class: "hatching", y2: 5 });
    const sizes = sizesOfGroups(plan);
    threads(steps);
    steps.forEach((parts, s) => {
      header(parts, plan, s, column);
      for (const part of parts) drawPart(part, plan, part.rows.length < sizes[part.group]);
    });
  }

  function header(parts, plan, s, column) {
    const x = parts[0].x;
    const rows = parts.flatMap((part) => part.rows);
    const positive = rows.filter((r) => plan.advantage[r] > 0).length;
    const negative = rows.filter((r) => plan.advantage[r] < 0).length;
    add(svg, "text", { class: "step", x, y: 12 }, column > 70 ? `step ${s + 1}` : s + 1);
    const load = sum(rows.map((r) => plan.tokens[r])).toLocaleString("en");
    if (column > 120) add(svg, "text", { x: x + column, y: 12, "text-anchor": "end" }, `${load} tokens`);
    add(svg, "text", { x, y: 28 }, `+${positive}`);
    add(svg, "text", { x: x + column, y: 28, "text-anchor": "end" }, `−${negative}`);
    const share = positive / Math.max(1, positive + negative);
    add(svg, "rect", { class: "bar positive", x, y: 33, width: share * column, height: 3 });
    add(svg, "rect", { class: "bar negative", x: x + share * column, y: 33, width: (1 - share) * column, height: 3 });
  }

  function drawPart(part, plan, split) {
    const g = add(svg, "g", { "data-group": part.group, class: split ? "split" : "whole" });
    const { y, height } = part;
    add(g, "rect", { class: "ground", x: part.x, y, width: part.width, height });
    let x = part.x + part.strip;
    part.rows.forEach((row, k) => {
      const A = plan.advantage[row];
      const cell = add(g, "rect", {
        class: `cell ${sign(A)}`, "data-row": row, x, y, width: part.widths[k], height,
      });
      cell.style.setProperty("--strength", `${28 + 72 * Math.min(1, Math.abs(A) / largest)}%`);
      if (!part.roomy) cell.style.strokeWidth = 0.4;
      shown.cells.push(cell);
      x += part.widths[k];
    });
    if (split) {
      const [from, width] = part.strip ? [part.x, part.strip] : [x, part.x + part.width - x];
      add(g, "rect", { class: "rest", x: from, y, width, height, fill: "url(#hatching)" });
    }
    const outline = part.roomy ? "outline" : "outline faint";
    add(g, "rect", { class: outline, x: part.x, y, width: part.width, height, rx: part.roomy ? 2 : 0 });
  }

  // From each part of a split group to its next part on the right.
  function threads(steps) {
    const last = new Map();
    for (const part of steps.flat()) {
      const from = last.get(part.group);
      last.set(part.group, part);
      if (!from) continue;
      const [x1, y1] = [from.x + from.width, from.y + from.height / 2];
      const [x2, y2] = [part.x, part.y + part.height / 2];
      const middle = x2 - (x2 - x1 > 60 ? 15 : (x2 - x1) / 2);
      add(svg, "path", {
        class: "thread", "data-group": part.group,
        d: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`,
      });
    }
  }

  // -- one rollout -------------------------------------------------------------------------

  const line = (text, kind = "") => {
    const p = document.createElement("p");
    p.className = kind;
    p.dir = "auto";
    p.textContent = text;
    return p;
  };

  function choose(cell) {
    hide();
    if (!cell) return;
    const { plan, texts } = shown;
    const row = Number(cell.dataset.row);
    shown.chosen = shown.cells.indexOf(cell);
    const group = plan.group[row];
    add(svg, "rect", {
      class: "chosen",
      ...Object.fromEntries(["x", "y", "width", "height"].map((a) => [a, cell.getAttribute(a)])),
    });
    for (const node of svg.querySelectorAll(`[data-group="${group}"]`)) node.classList.add("lit");
    const A = plan.advantage[row];
    const head = document.createElement("p");
    const strong = document.createElement("b");
    strong.textContent = `${A > 0 ? "+" : A < 0 ? "−" : ""}${Math.abs(A).toFixed(3)}`;
    const reward = texts?.rewards[row];
    const known = reward === undefined || reward === null ? "" : ` · reward ${reward}`;
    head.append("advantage ", strong, `${known} · ${plan.tokens[row].toLocaleString("en")} tokens`);
    const parts = new Set(svg.querySelectorAll(`g[data-group="${group}"]`)).size;
    const where = parts > 1 ? `, group split into ${parts} parts` : "";
    card.replaceChildren(
      head,
      line(`${plan.groups[group]} · response ${plan.index[row] + 1} · sampled in iteration ${plan.born[row]}${where}`),
    );
    if (texts?.prompts[group]) card.append(line(texts.prompts[group]));
    if (texts?.responses[row]) card.append(line(texts.responses[row], "text"));
    card.hidden = false;
    place(cell);
  }

  // Below the cell's row, or above it, so that the row stays in view; beside its column if it can.
  function place(cell) {
    const [box, at] = [frame.getBoundingClientRect(), cell.getBoundingClientRect()];
    const part = cell.parentElement.querySelector(".ground").getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = card;
    let [left, top] = [part.right + 10, part.bottom + 10];
    if (left + width > box.right) left = part.left - width - 10;
    if (left < box.left) {
      left = Math.max(box.left, Math.min(at.left, box.right - width));
    }
    if (top + height > innerHeight) top = Math.max(0, part.top - height - 10);
    card.style.left = `${left - box.left}px`;
    card.style.top = `${top - box.top}px`;
  }

  function hide() {
    card.hidden = true;
    shown.chosen = -1;
    svg.querySelector(".chosen")?.remove();
    for (const node of svg.querySelectorAll(".lit")) node.classList.remove("lit");
  }

  // -- one iteration -----------------------------------------------------------------------

  async function show(place) {
    const record = iterations[place];
    slider.value = place;
    slider.setAttribute("aria-valuetext", `iteration ${record.iteration}`);
    output.textContent = record.iteration;
    if (!record.plan) {
      svg.replaceChildren();
      hide();
      shown = { plan: null, texts: null, cells: [], chosen: -1 };
      const [positive, negative] = record.waiting;
      told.textContent = `No update: ${positive} positive and ${negative} negative rollouts are waiting in the buffer.`;
      svg.setAttribute("aria-label", told.textContent);
      return;
    }
    const plan = await poise.unpack(record.plan);
    const texts = record.texts ? await poise.unpack(record.texts) : null;
    if (slider.value !== String(place)) return; // the slider has moved on
    shown = { plan, texts, cells: [], chosen: -1 };
    const { split_groups: split, token_imbalance: load, max_abs_group_advantage_sum: remainder } = plan.describe;
    told.textContent =
      `${plan.rule}: ${plan.group.length} rollouts of ${plan.groups.length} groups in ${plan.steps} steps, ` +
      `${split} ${split === 1 ? "group" : "groups"} split, largest advantage remainder of a group in a step ${remainder.toFixed(2)}, ` +
      `largest step ${load.toFixed(2)} × the mean number of tokens.`;
    svg.setAttribute("aria-label", told.textContent);
    draw();
  }

  const go = (place) => poise.choose(iterations[Math.min(iterations.length - 1, Math.max(0, place))].iteration);
  const move = (by) => go(Number(slider.value) + by);
  const open = (cell) => cell && poise.open(iterations[Number(slider.value)].iteration, Number(cell.dataset.row));
  slider.addEventListener("input", () => go(Number(slider.value)));
  document.addEventListener("poise:iteration", (event) => {
    const place = iterations.findIndex((record) => record.iteration === event.detail);
    if (place >= 0) show(place);
  });
  for (const radio of root.querySelectorAll("input[type=radio]")) {
    radio.addEventListener("change", () => shown.plan && draw());
  }
  const keys = {
    ArrowLeft: () => move(-1),
    ArrowRight: () => move(1),
    ArrowDown: () => choose(shown.cells[Math.min(shown.cells.length - 1, shown.chosen + 1)]),
    ArrowUp: () => choose(shown.cells[Math.max(0, shown.chosen - 1)]),
    Home: () => go(0),
    End: () => go(iterations.length - 1),
    Enter: () => open(shown.cells[shown.chosen]),
    Escape: hide,
  };
  frame.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  svg.addEventListener("pointerover", (event) => choose(event.target.closest(".cell")));
  svg.addEventListener("click", (event) => open(event.target.closest(".cell")));
  svg.addEventListener("pointerleave", hide);
  new ResizeObserver(() => shown.plan && draw()).observe(frame);
  const lastUpdate = iterations.findLastIndex((record) => record.plan);
  show(lastUpdate);
})();
