// The token view of `poise credit`. Foreign text only ever enters the page as textContent.
(async () => {
  const { number, write, spoken, element, paint } = poise.text;
  const data = poise.data("tokens");
  const [value, vocabulary] = await Promise.all([poise.unpack(data.packed), poise.unpack(data.vocabulary)]);
  const root = document.querySelector(".credit");
  const find = (name) => root.querySelector(name);
  const [weighing, colouring, prompts] = [".weighing select", ".colouring select", ".prompts select"].map(find);
  const [columns, told] = [".columns", ".told"].map(find);
  const LONGEST = 24; // characters of a token in a strip
  const plain = (x) => number(x, { signed: false, digits: x !== 1 && Math.abs(x - 1) < 0.05 ? 4 : 3 });
  const sign = () => Number(root.querySelector("[name=sign]:checked").value);
  const shown = () => (weighing.value === "all" ? data.weighings.map((_, m) => m) : [Number(weighing.value)]);
  let active = null; // the token that the keyboard is at

  // -- what a token is coloured by -------------------------------------------------------------

  const weight = (row, m, place) => row.weights[m][place];
  const colour = (row, m, place) =>
    colouring.value === "0" ? weight(row, m, place) - 1 : row.advantage * weight(row, m, place);
  const full = (m) => data.weighings[m].full[Number(colouring.value)];

  function scale() {
    const chosen = shown();
    const many = chosen.length > 1;
    const centre = colouring.value === "0" ? 1 : 0;
    const size = full(chosen[0]);
    const digits = size < 0.05 ? 4 : size < 0.5 ? 3 : 2; // weights near 1 differ only in late digits
    const [least, most] = data.weighings[chosen[0]].span[Number(colouring.value)];
    const [low, high] = [Math.max(least, -size), Math.min(most, size)]; // the scale shows only colours that occur
    const share = (x) => (size ? Math.sign(x) * Math.sqrt(Math.abs(x) / size) : 0);
    const [left, right] = [Math.min(0, share(low)), Math.max(0, share(high))];
    const at = (x) => `${right > left ? (100 * (share(x) - left)) / (right - left) : 50}%`;
    const inner = [-size / 4, size / 4].filter((x) => share(x) - left >= 0.25 && right - share(x) >= 0.25);
    const ticks = [...new Set([Math.min(0, low), ...inner, 0, Math.max(0, high)])].sort((a, b) => a - b);
    const texts = ticks.map((x) => number(centre + x, { signed: !centre, digits }));
    find(".tints").hidden = many; // each has a scale of its own
    find(".tints").style.cssText = `--left: ${-left}; --right: ${right}; --centre: ${at(0)}`;
    find(".ticks").replaceChildren(...ticks.map((x, place) => {
      const tick = element("i", "", texts[place]);
      tick.style.left = at(x);
      return tick;
    }));
    find(".tints").setAttribute("aria-label", `Colour from ${texts[0]} to ${texts.at(-1)}`);
    find(".meaning").textContent =
      `${centre ? "Distance of the weight from 1." : "Advantage times weight: what the loss uses."} ` +
      `The colour strength is its square root, full from the 98th percentile of the iteration's tokens${many ? ", separately for each weighting" : ""}.`;
  }

  // -- strips ----------------------------------------------------------------------------------

  function strip(id, m) {
    const row = value.rows[id];
    const box = element("div", `strip ${row.advantage < 0 ? "wrong" : "right"}`);
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-label", `Response #${row.index}, ${data.weighings[m].label}`);
    const between = new Map(row.environment_tokens); // text of an environment: read, but without weights
    row.token.forEach((token, place) => {
      if (between.has(place)) {
        const words = element("span", "said");
        for (const id of between.get(place)) write(words, vocabulary[id], LONGEST);
        box.append(words);
      }
      const text = vocabulary[token];
      const node = element("span", "token");
      node.setAttribute("role", "option");
      node.setAttribute("aria-selected", "false");
      node.tabIndex = -1;
      Object.assign(node.dataset, { row: id, weighing: m, place });
      if (write(node, text, LONGEST)) node.setAttribute("aria-label", spoken(text));
      paint(node, colour(row, m, place), full(m), true);
      box.append(node);
      if (text.includes("\n")) box.append(element("br"));
      else if (/^[ \t]+$/.test(text)) box.append(element("wbr"));
    });
    return box;
  }

  function rollout(id) {
    const row = value.rows[id];
    const chosen = shown();
    const box = element("div", chosen.length > 1 ? "rollout wide" : "rollout");
    const about = element("p", "about");
    const outcome = `${row.outcome} · A ${number(row.advantage, { digits: 3 })}`;
    about.append(element("b", row.advantage < 0 ? "down" : "up", outcome), ` · response #${row.index}, ${row.token.length} tokens`);
    box.append(about);
    const mean = (m) => row.weights[m].reduce((sum, w) => sum + w, 0) / row.token.length;
    if (chosen.length === 1) {
      about.append(` · mean w ${plain(mean(chosen[0]))}`);
      box.append(strip(id, chosen[0]));
      return box;
    }
    const methods = element("div", "methods");
    for (const m of chosen) {
      const column = element("div");
      column.append(element("h4", "", `${data.weighings[m].label} · mean w ${plain(mean(m))}`), strip(id, m));
      methods.append(column);
    }
    box.append(methods);
    return box;
  }

  function show() {
    const group = value.groups[Number(prompts.value)];
    const wanted = sign();
    const rows = group.rows.filter((id) => !wanted || Math.sign(value.rows[id].advantage) === wanted);
    find(".question").textContent = group.prompt;
    find(".question").hidden = !group.prompt;
    columns.replaceChildren(...rows.map(rollout));
    if (!rows.length) columns.append(element("p", "none", "No rollout of this prompt has that sign."));
    for (const button of root.querySelectorAll("[data-by]")) {
      button.disabled = !value.groups[Number(prompts.value) + Number(button.dataset.by)];
    }
    active = columns.querySelector(".token");
    if (active) active.tabIndex = 0;
    told.replaceChildren("Point at a token for its weights.");
    scale();
  }

  // -- one token -------------------------------------------------------------------------------

  function say(node) {
    const { row: id, place } = node.dataset;
    const row = value.rows[id];
    const token = element("span", "token");
    write(token, vocabulary[row.token[place]], 80, true);
    told.replaceChildren(token, `token ${place} (first 0, last ${row.token.length - 1})`);
    const chosen = shown();
    data.weighings.forEach(({ label }, m) => {
      const w = weight(row, m, place);
      told.append(` · ${label} `, element("b", "", plain(w)));
      if (chosen.includes(m)) told.append(`, A w ${number(row.advantage * w)}`);
    });
  }

  function go(node) {
    if (!node) return;
    active.tabIndex = -1;
    active = node;
    node.tabIndex = 0;
    node.focus({ preventScroll: true });
    const [outer, inner] = [node.parentElement.getBoundingClientRect(), node.getBoundingClientRect()];
    if (inner.top < outer.top) node.parentElement.scrollTop -= outer.top - inner.top + 8;
    if (inner.bottom > outer.bottom) node.parentElement.scrollTop += inner.bottom - outer.bottom + 8;
    node.scrollIntoView({ block: "nearest" });
    say(node);
  }

  const along = (by) => {
    const mine = [...active.parentElement.querySelectorAll(".token")];
    go(mine[mine.indexOf(active) + by]);
  };
  const across = (by) => {
    const strips = [...columns.querySelectorAll(".strip")];
    const next = strips[strips.indexOf(active.parentElement) + by];
    const tokens = next?.querySelectorAll(".token");
    if (tokens) go(tokens[Math.min(tokens.length - 1, Number(active.dataset.place))]);
  };
  const turn = (by) => {
    const next = Number(prompts.value) + by;
    if (!value.groups[next]) return;
    prompts.value = next;
    show();
  };
  const keys = {
    ArrowRight: () => along(1),
    ArrowLeft: () => along(-1),
    ArrowDown: () => across(1),
    ArrowUp: () => across(-1),
    "]": () => (turn(1), go(active)),
    "[": () => (turn(-1), go(active)),
  };

  // -- events ----------------------------------------------------------------------------------

  columns.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const under = (event) => event.target.closest?.(".token");
  columns.addEventListener("pointerover", (event) => under(event) && say(under(event)));
  columns.addEventListener("click", (event) => under(event) && go(under(event)));
  root.querySelectorAll("[data-by]").forEach((button) => button.addEventListener("click", () => turn(Number(button.dataset.by))));
  root.querySelectorAll("select, [name=sign]").forEach((control) => control.addEventListener("change", show));
  told.style.setProperty("--lines", 1 + Math.ceil(data.weighings.length / 6)); // so that nothing jumps
  prompts.append(...value.groups.map((group, place) => {
    const option = element("option", "", `${group.outcome} · ${group.prompt || group.name}`.slice(0, 140));
    option.value = place;
    return option;
  }));
  show();
})();
