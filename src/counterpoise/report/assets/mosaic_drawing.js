// Draws a plan as a mosaic: a column per optimizer step, a row per group, a cell per rollout.
poise.mosaic = (() => {
  const HEADER = 46;
  const AREA = 440; // height of the mosaic by tokens, where the screen has room for it

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

  // Where every part lies. Equal cells: a row has room for a whole group, and many steps scroll. By
  // tokens: the area of a cell is its tokens, so the height of a column is the load of its step, and
  // the whole batch fits the screen.
  function layout(steps, plan, { room, byTokens }) {
    const split = plan.describe.split_groups > 0;
    const gutter = Math.min(split ? 30 : 18, room / 20, byTokens ? (0.3 * room) / steps.length : Infinity);
    const width = byTokens ? room : Math.max(room, steps.length * (44 + gutter));
    const column = (width - gutter * (steps.length - 1)) / steps.length;
    const slots = Math.max(...sizesOfGroups(plan));
    const most = Math.max(...steps.map((parts) => parts.length));
    const row = Math.max(5, Math.min(38, 520 / most));
    const strip = byTokens && split ? 7 : 0; // where a cut row is hatched when its cells fill it
    const gap = row > 12 ? 5 : row > 7 ? 2 : 1;
    const load = Math.max(...steps.map((parts) => sum(parts.map((p) => tokens(p, plan)))));
    const area = Math.max(160, Math.min(AREA, innerHeight - HEADER - 60));
    const between = byTokens ? Math.min(gap, 2, (0.25 * area) / most) : gap;
    const filled = area - between * most;
    let height = 0;
    steps.forEach((parts, s) => {
      let y = HEADER;
      for (const part of parts) {
        part.x = s * (column + gutter);
        part.y = y;
        part.width = column;
        part.strip = strip;
        part.roomy = (byTokens ? area / most : row) > 10;
        part.height = byTokens ? (tokens(part, plan) / load) * filled : row;
        const total = byTokens ? tokens(part, plan) : slots;
        part.widths = part.rows.map((r) => ((byTokens ? plan.tokens[r] : 1) / total) * (column - strip));
        y += part.height + between;
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

  // Draws the plan into `svg` and returns its cells. `room`: pixels across; `largest`: the
  // |advantage| of full colour; `iteration`: rollouts that were sampled before it are marked.
  function draw(svg, plan, { room, largest, byTokens = false, iteration = -Infinity }) {
    svg.replaceChildren();
    const steps = partsOf(plan);
    const { width, height, column } = layout(steps, plan, { room, byTokens });
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    const pattern = add(add(svg, "defs", {}), "pattern", {
      id: "hatching", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
    });
    add(pattern, "line", { class: "hatching", y2: 5 });
    const sizes = sizesOfGroups(plan);
    const context = { svg, plan, largest, iteration, cells: [] };
    threads(svg, steps);
    steps.forEach((parts, s) => {
      if (parts.length) header(svg, parts, plan, s, column);
      for (const part of parts) drawPart(context, part, part.rows.length < sizes[part.group]);
    });
    return context.cells;
  }

  function header(svg, parts, plan, s, column) {
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

  function drawPart({ svg, plan, largest, iteration, cells }, part, split) {
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
      if (plan.born[row] < iteration && part.roomy) waited(g, plan.born[row], { x, y, width: part.widths[k], height });
      cells.push(cell);
      x += part.widths[k];
    });
    if (split) {
      const [from, width] = part.strip ? [part.x, part.strip] : [x, part.x + part.width - x];
      add(g, "rect", { class: "rest", x: from, y, width, height, fill: "url(#hatching)" });
    }
    const outline = part.roomy ? "outline" : "outline faint";
    add(g, "rect", { class: outline, x: part.x, y, width: part.width, height, rx: part.roomy ? 2 : 0 });
  }

  // A rollout that waited: the iteration that sampled it, or a dot where that has no room.
  function waited(g, born, { x, y, width, height }) {
    const [digits, cx, cy] = [String(born), x + width / 2, y + height / 2];
    if (width < 7 * digits.length + 4 || height < 12) add(g, "circle", { class: "waited", cx, cy, r: 1.75 });
    else add(g, "text", { class: "waited", x: cx, y: cy + 3.5, "text-anchor": "middle" }, digits);
  }

  // From each part of a split group to its next part on the right.
  function threads(svg, steps) {
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

  return { add, draw };
})();
