// The batch mosaic. A plan comes as parallel lists over its rows (mosaic.py, `compact_plan`); foreign text only ever enters the page as textContent.
(() => {
  const root = document.querySelector(".mosaic");
  const { iterations, largest } = poise.data("mosaic");
  const [slider, output] = [root.querySelector("input[type=range]"), root.querySelector("output")];
  const [frame, svg, card] = [".frame", "svg", ".card"].map((name) => root.querySelector(name));
  const told = root.querySelector(".told");
  let shown = { plan: null, texts: null, cells: [], chosen: -1 };

  function draw() {
    hide();
    const byTokens = root.querySelector("input[name=mosaic-size]:checked").value === "tokens";
    const iteration = iterations[Number(slider.value)].iteration;
    shown.cells = poise.mosaic.draw(svg, shown.plan, { room: frame.clientWidth, largest, byTokens, iteration });
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
    poise.mosaic.add(svg, "rect", {
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
    const passed = iterations[Number(slider.value)].iteration - plan.born[row];
    const waited = passed > 0 ? `, waited ${passed} ${passed === 1 ? "iteration" : "iterations"}` : "";
    card.replaceChildren(
      head,
      line(`${plan.groups[group]} · response ${plan.index[row] + 1} · sampled in iteration ${plan.born[row]}${waited}${where}`),
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
      told.textContent = positive + negative
        ? `No update: ${positive} positive and ${negative} negative rollouts are waiting in the buffer.`
        : "No update: no rollout with signal is left.";
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
  addEventListener("resize", () => shown.plan && draw());
  const lastUpdate = iterations.findLastIndex((record) => record.plan);
  show(lastUpdate);
})();
