// The map of an evaluation (page.py, `benchmark_map`). Foreign text only ever enters as textContent.
(() => {
  const root = document.querySelector(".evaluation");
  const { benchmarks } = poise.data("problems");
  const [which, order] = [root.querySelector(".which"), root.querySelector(".order")];
  const [map, told, shown] = [".map", ".told", ".shown"].map((name) => root.querySelector(name));
  const SIDE = 18;
  let cells = []; // cells[row][column] in the order drawn
  let unpacked = new Map();

  const node = (parent, name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    parent.append(made);
    return made;
  };
  const bench = () => benchmarks[which.selectedIndex];

  benchmarks.forEach((b) => node(which, "option", b.title));

  // -- the order of problems ----------------------------------------------------------------

  // The share of samples that are right; null where there is no result.
  const share = (b, row, i) => (b.right[row][i] === null ? null : b.right[row][i] / b.samples[row]);
  const mean = (b, i) => {
    const known = b.rows.map((_, row) => share(b, row, i)).filter((x) => x !== null);
    return known.reduce((a, x) => a + x, 0) / Math.max(1, known.length);
  };
  const change = (b, i) => Math.abs((share(b, b.rows.length - 1, i) ?? 0) - (share(b, 0, i) ?? 0));
  function ordered(b) {
    const ids = b.ids.map((_, i) => i);
    if (order.value === "hard") ids.sort((i, j) => mean(b, i) - mean(b, j) || i - j);
    if (order.value === "change") ids.sort((i, j) => change(b, j) - change(b, i) || i - j);
    return ids;
  }

  // -- drawing ------------------------------------------------------------------------------

  const says = (b, row, i) => `${b.ids[i]}, ${b.rows[row]}: ${b.right[row][i]} of ${b.samples[row]} right`;

  function draw() {
    shown.replaceChildren();
    place();
  }

  function place() {
    const b = bench();
    const widest = Math.min(190, 16 + 7.4 * Math.max(...b.rows.map((label) => label.length)));
    const fit = Math.max(8, Math.floor((map.clientWidth - widest) / SIDE));
    const ids = ordered(b);
    map.replaceChildren();
    cells = b.rows.map(() => []);
    for (let start = 0; start < ids.length; start += fit) {
      const part = ids.slice(start, start + fit);
      const line = node(map, "div", undefined, "line");
      line.style.gridTemplateColumns = `${widest}px repeat(${fit}, ${SIDE}px)`;
      line.style.setProperty("--side", `${SIDE}px`);
      b.rows.forEach((label, row) => {
        const name = node(line, "span", label);
        name.title = label;
        name.style.gridRow = row + 1;
        part.forEach((i, place) => {
          const solved = b.right[row][i];
          const cell = node(line, solved === null ? "span" : "button");
          cell.className = solved === null ? "cell none" : "cell";
          cell.style.gridRow = row + 1;
          cell.style.gridColumn = place + 2;
          cells[row].push(cell);
          if (solved === null) return;
          cell.style.setProperty("--strength", `${100 * share(b, row, i)}%`);
          cell.type = "button";
          cell.tabIndex = -1;
          cell.setAttribute("aria-label", says(b, row, i));
          cell.addEventListener("pointerenter", () => tell(b, row, i));
          cell.addEventListener("focus", () => tell(b, row, i));
          cell.addEventListener("click", () => open(b, row, i, cell));
        });
      });
    }
    const first = map.querySelector("button.cell");
    if (first) first.tabIndex = 0;
    const solved = b.right.at(-1).filter((n) => n > 0).length;
    const counts = [...new Set(b.samples)].sort((x, y) => x - y).join(" or ");
    told.textContent = `${b.ids.length} problems, ${counts} ${counts === "1" ? "sample" : "samples"} each; ${b.rows.at(-1)} solves ${solved} at least once.`;
  }

  const tell = (b, row, i) => {
    told.textContent = says(b, row, i);
  };

  // -- the responses behind a cell ----------------------------------------------------------

  const texts = (packed) => {
    if (!unpacked.has(packed)) unpacked.set(packed, poise.unpack(packed));
    return unpacked.get(packed);
  };

  async function open(b, row, i, cell) {
    for (const other of map.querySelectorAll("[aria-pressed]")) other.removeAttribute("aria-pressed");
    cell.setAttribute("aria-pressed", "true");
    const [asked, responses] = await Promise.all([texts(b.asked), texts(b.texts[row])]);
    if (cell.getAttribute("aria-pressed") !== "true") return; // another was chosen meanwhile
    shown.replaceChildren();
    const [problem, answer] = asked[i];
    node(shown, "p", `${says(b, row, i)} · reference ${answer}`, "outcome");
    node(shown, "p", problem, "asked").dir = "auto";
    const pair = node(shown, "div", undefined, "pair");
    for (const [sample, reward, tokens, finished, text] of responses[i]) {
      const one = node(pair, "div");
      const line = node(one, "p", undefined, `outcome ${reward > 0 ? "right" : "wrong"}`);
      node(line, "b", reward > 0 ? "right" : "wrong");
      line.append(` · sample ${sample + 1} · ${tokens.toLocaleString("en")} tokens${finished ? "" : " · truncated"}`);
      const box = node(one, "pre", text);
      box.dir = "auto";
      box.tabIndex = 0;
    }
  }

  // -- keyboard -----------------------------------------------------------------------------

  map.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    const row = cells.findIndex((line) => line.includes(event.target));
    if (row < 0) return;
    let [r, c] = [row, cells[row].indexOf(event.target)];
    do {
      r += step[0];
      c += step[1];
    } while (cells[r]?.[c] && cells[r][c].tagName !== "BUTTON");
    const next = cells[r]?.[c];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  which.addEventListener("change", draw);
  order.addEventListener("change", draw);
  let width = map.clientWidth;
  addEventListener("resize", () => {
    if (map.clientWidth === width) return;
    width = map.clientWidth;
    place();
  });
  draw();
})();
