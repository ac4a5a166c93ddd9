// The token view: which iteration, which rollout, which token. Foreign text only ever enters the page as textContent.
(() => {
  const { data, quantities, view: makeView, number, write, spoken, element, paint, card, pushers } = poise.tokens;
  const root = document.querySelector(".tokens");
  const find = (name) => root.querySelector(name);
  const [slider, output, select, told] = ["input[type=range]", "output", "select", ".told"].map(find);
  const [picker, strip, cardBox, pushBox] = [".picker", ".strip", ".card", ".pushers"].map(find);
  const LONGEST = 24; // characters of a token in the strip
  const nearest = (iteration) => data.iterations
    .map((record, place) => [Math.abs(record.iteration - iteration), place])
    .reduce((a, b) => (b[0] < a[0] ? b : a))[1];
  const vocabulary = poise.unpack(data.vocabulary);
  const views = new Map(); // place of the slider -> promise of a view
  let now = { view: null, row: -1, active: 0, picked: null };
  const trail = []; // tokens to go back to after jumps

  // -- one rollout -----------------------------------------------------------------------------

  const tokenAt = (position) => strip.querySelector(`[data-position="${position}"]`);

  function showRow(row, { active = null, picked = null, focus = false } = {}) {
    const { view } = now;
    now = { view, row, active: active ?? strongest(view, row), picked };
    for (const chip of picker.querySelectorAll(".chip")) {
      const mine = Number(chip.dataset.row) === row;
      chip.setAttribute("aria-checked", mine);
      chip.tabIndex = mine ? 0 : -1;
      if (mine) reveal(picker, chip.closest(".group"));
    }
    about();
    const [start, end] = view.spans.get(row);
    strip.className = `strip ${view.advantage[row] < 0 ? "wrong" : "right"}`;
    strip.replaceChildren();
    const said = new Map(view.environment_tokens[view.rows_shown.indexOf(row)]); // text of an environment: read, not trained on
    for (let place = start; place < end; place++) {
      if (said.has(place - start)) {
        const words = element("span", "said");
        for (const id of said.get(place - start)) write(words, view.text(id), LONGEST);
        strip.append(words);
      }
      const text = view.text(view.token[place]);
      const token = element("span", "token");
      token.setAttribute("role", "option");
      token.setAttribute("aria-selected", "false");
      token.dataset.position = place - start;
      token.tabIndex = -1;
      if (write(token, text, LONGEST)) token.setAttribute("aria-label", spoken(text));
      strip.append(token);
      if (text.includes("\n")) strip.append(element("br"));
      else if (/^[ \t]+$/.test(text)) strip.append(element("wbr"));
    }
    colour();
    activate(now.active, { focus });
    pick(picked);
  }

  // What to look at first: the token that moved most.
  function strongest(view, row) {
    const [start, end] = view.spans.get(row);
    const name = view.has(select.value) ? select.value : "entropy";
    let best = start;
    for (let place = start; place < end; place++) {
      if (Math.abs(view.value(name, place)) > Math.abs(view.value(name, best))) best = place;
    }
    return best - start;
  }

  function about() {
    const { view, row } = now;
    const group = view.group[row];
    const reward = view.reward[row];
    const [start, end] = view.spans.get(row);
    const line = find(".about");
    const outcome = element("b", view.advantage[row] < 0 ? "down" : "up",
      `${reward === null ? "" : `${reward > 0 ? "✓" : "✗"} reward ${reward} · `}advantage ${number(view.advantage[row], { digits: 3 })}`);
    const name = element("bdi", "", view.groups[group]);
    const waited = view.born[row] < view.iteration ? ` · sampled in iteration ${view.born[row]}, it waited` : "";
    line.replaceChildren(outcome, ` · ${end - start} tokens · row ${row}, in step ${view.step[row] + 1} · `, name, `, response ${view.index[row] + 1}${waited}`);
    const prompt = view.prompts[group];
    find(".question").textContent = prompt ?? "";
    find(".question").hidden = !prompt;
  }

  // -- colour ----------------------------------------------------------------------------------

  function colour() {
    const { view, row } = now;
    const by = quantities.get(select.value);
    const [start] = view.spans.get(row);
    const known = view.has(by.name);
    for (const token of strip.querySelectorAll(".token")) {
      const x = known ? view.value(by.name, start + Number(token.dataset.position)) : NaN;
      paint(token, x, view.full(by.name), by.signed);
    }
    const full = view.full(by.name);
    const ticks = by.signed ? [-full, -full / 4, 0, full / 4, full] : [0, full / 4, full];
    const low = by.name === "logprob" ? -1 : 1;
    find(".tints").className = `tints ${by.signed ? "signed" : "size"}`;
    find(".ticks").replaceChildren(...ticks.map((x) => element("i", "", number(low * x, { signed: by.signed }))));
    find(".tints").setAttribute("aria-label", `Colour: ${by.title} from ${number(ticks[0])} to ${number(full)}`);
    find(".meaning").textContent = known ? `${by.meaning} Full colour from the 98th percentile of the iteration.` : `Iteration ${view.iteration} has no values of this quantity.`;
  }

  // -- one token -------------------------------------------------------------------------------

  const say = (position) => card(cardBox, { ...now, position, by: select.value });

  function activate(position, { focus = true } = {}) {
    tokenAt(now.active)?.setAttribute("tabindex", "-1");
    now.active = position;
    const token = tokenAt(position);
    token.tabIndex = 0;
    if (focus) {
      token.focus({ preventScroll: true });
      reveal(strip, token);
    }
    say(position);
  }

  function pick(position) {
    for (const old of strip.querySelectorAll("[aria-selected=true]")) old.setAttribute("aria-selected", "false");
    for (const old of strip.querySelectorAll(".pushed")) old.classList.remove("pushed");
    now.picked = position;
    if (position === null) {
      pushBox.hidden = true;
      pushBox.replaceChildren();
      return;
    }
    tokenAt(position).setAttribute("aria-selected", "true");
    pushers(pushBox, { ...now, position }, jump);
    if (trail.length) pushBox.prepend(back());
    const [start] = now.view.spans.get(now.row);
    for (const push of now.view.pushes(start + position)) {
      if (push.row === now.row) tokenAt(push.position).classList.add("pushed");
    }
  }

  function jump(row, position) {
    trail.push({ row: now.row, position: now.picked });
    showRow(row, { active: position, focus: true });
    pick(now.active);
    root.querySelector(".reading").scrollIntoView({ block: "nearest" });
  }

  function back() {
    const button = element("button", "plain back", "← Back");
    button.type = "button";
    button.addEventListener("click", () => {
      const { row, position } = trail.pop();
      showRow(row, { active: position, picked: position, focus: true });
    });
    return button;
  }

  // Scroll inside the box only: the page stays where it is.
  function reveal(box, node) {
    const [outer, inner] = [box.getBoundingClientRect(), node.getBoundingClientRect()];
    if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 8;
    if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 8;
  }

  // -- one iteration ---------------------------------------------------------------------------

  function load(place) {
    if (!views.has(place)) {
      const record = data.iterations[place];
      views.set(place, Promise.all([poise.unpack(record.packed), vocabulary])
        .then(([value, texts]) => makeView(record, value, texts)));
    }
    return views.get(place);
  }

  async function show(iteration, row = null, options = {}) {
    const place = nearest(iteration);
    const record = data.iterations[place];
    slider.value = place;
    slider.setAttribute("aria-valuetext", `iteration ${record.iteration}`);
    output.textContent = record.iteration;
    const view = await load(place);
    if (slider.value !== String(place)) return false; // the slider has moved on
    told.textContent = record.iteration === iteration ? "" : `Iteration ${iteration} has no tokens on this page; showing iteration ${record.iteration}, the nearest that has.`;
    if (now.view !== view) {
      now = { view, row: -1, active: 0, picked: null };
      trail.length = 0;
      chips(view);
    }
    if (record.iteration === iteration && row !== null && !view.spans.has(row)) {
      told.textContent = view.rows_stored.has(row) ? "This rollout is not on the page." : "This rollout has advantage 0, so nothing was trained on it.";
      return false;
    }
    showRow(row ?? view.rows_shown.find((r) => view.watched.has(r)) ?? view.rows_shown[0], options);
    return true;
  }

  function chips(view) {
    const largest = Math.max(...view.rows_shown.map((row) => Math.abs(view.advantage[row])));
    const groups = new Map();
    for (const row of view.rows_shown) {
      const group = view.group[row];
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(row);
    }
    picker.replaceChildren();
    picker.style.setProperty("--most", Math.min(8, Math.max(...[...groups.values()].map((rows) => rows.length))));
    find(".watching").hidden = !view.watched.size;
    for (const [group, rows] of groups) {
      const line = element("div", rows.some((row) => view.watched.has(row)) ? "group watched" : "group");
      const box = element("span", "chips");
      for (const row of rows) {
        const [A, reward] = [view.advantage[row], view.reward[row]];
        const outcome = reward === null ? "" : reward > 0 ? "✓" : "✗";
        const chip = element("button", "chip", `${outcome} ${number(A, { digits: 2 })}`);
        chip.type = "button";
        chip.dataset.row = row;
        chip.setAttribute("role", "radio");
        const watched = view.watched.has(row);
        const length = view.lengths[view.rows_shown.indexOf(row)];
        chip.title = `${reward === null ? "" : `reward ${reward}, `}advantage ${number(A, { digits: 3 })}, ${length} tokens${watched ? ", with pushes" : ""}`;
        chip.setAttribute("aria-label", `Response ${view.index[row] + 1}: ${chip.title}`);
        paint(chip, A, largest, true);
        box.append(chip);
      }
      const asked = element("span", "asked");
      asked.append(element("bdi", "", view.prompts[group] ?? view.groups[group]));
      line.append(box, asked);
      picker.append(line);
    }
  }

  // -- events ----------------------------------------------------------------------------------

  const shift = (by) => {
    const place = now.view.rows_shown.indexOf(now.row) + by;
    return now.view.rows_shown[Math.max(0, Math.min(now.view.rows_shown.length - 1, place))];
  };
  const last = () => strip.querySelectorAll(".token").length - 1;
  const rollout = (by) => shift(by) !== now.row && showRow(shift(by), { active: 0, focus: true });
  const keys = {
    ArrowRight: () => activate(Math.min(last(), now.active + 1)),
    ArrowLeft: () => activate(Math.max(0, now.active - 1)),
    Home: () => activate(0),
    End: () => activate(last()),
    ArrowDown: () => rollout(1),
    ArrowUp: () => rollout(-1),
    "]": () => rollout(1),
    "[": () => rollout(-1),
    Enter: () => pick(now.active),
    " ": () => pick(now.active),
    Escape: () => pick(null),
  };
  strip.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  pushBox.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    pick(null);
    activate(now.active);
  });
  const under = (event) => event.target.closest?.(".token");
  strip.addEventListener("pointerover", (event) => under(event) && say(Number(under(event).dataset.position)));
  strip.addEventListener("pointerleave", () => say(now.active));
  strip.addEventListener("click", (event) => {
    if (!under(event)) return;
    trail.length = 0;
    activate(Number(under(event).dataset.position));
    pick(now.active);
  });
  picker.addEventListener("click", (event) => {
    const chip = event.target.closest(".chip");
    if (!chip) return;
    trail.length = 0;
    showRow(Number(chip.dataset.row));
  });
  picker.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    showRow(shift(by));
    picker.querySelector("[aria-checked=true]").focus({ preventScroll: true });
  });
  select.addEventListener("change", () => {
    colour();
    say(now.active);
  });
  slider.addEventListener("input", () => poise.choose(data.iterations[Number(slider.value)].iteration));
  document.addEventListener("poise:iteration", (event) => show(event.detail));
  document.addEventListener("poise:rollout", async (event) => {
    const { iteration, row } = event.detail;
    if (await show(iteration, row)) document.getElementById("tokens").scrollIntoView({ behavior: "smooth" });
  });
  const final = data.iterations.at(-1).iteration;
  show(final).then(() => now.view.watched.has(now.row) && pick(now.active));
})();
