// The card of one token: its numbers, and the tokens that pushed it.
(() => {
  const { number, percent, write, spoken, element, paint, quantities } = poise.tokens;
  const STABLE = 1e-6;
  const moved = (x) => (x > STABLE ? "boosted" : x < -STABLE ? "suppressed" : "stable");

  // -- the card --------------------------------------------------------------------------------

  poise.tokens.card = (card, { view, row, position, by }) => {
    const [start, end] = view.spans.get(row);
    const place = start + position;
    const id = view.token[place];
    const text = view.text(id);
    const value = (name) => view.value(name, place);
    const shown = quantities.get(by);
    card.querySelector(".spoken").textContent =
      `${spoken(text)}: ${shown.title} ${view.has(by) ? number(value(by), { signed: shown.signed }) : "unknown"}`;

    const head = element("p", "token big");
    write(head, text, Infinity, true);
    const centre = view.centre?.(by) ?? 0; // of a ratio or a weight: 1
    if (view.has(by)) paint(head, value(by) - centre, view.full(by), shown.signed || centre !== 0);
    const where = element("p", "where", `token ${position} (first 0, last ${end - start - 1}) · id ${id}`);
    const parts = [head, where];
    if (view.has("displacement")) parts.push(change(value("displacement"), value("logprob")));
    if (view.without_gradient.has(place)) parts.push(element("p", "where", "no gradient of its own: clipped, or masked by a step rule"));
    if (view.has("push")) parts.push(pushTable(view, place));
    parts.push(facts(view, value, by));
    card.querySelector(".numbers").replaceChildren(...parts);
    poise.explain?.(card.parentElement);
  };

  function change(delta, logprob) {
    const p = element("p", "change");
    if (!Number.isFinite(delta)) {
      p.append("not measured in this iteration (monitor.tokens)");
      return p;
    }
    const after = Math.min(1, Math.exp(logprob + delta));
    p.append(element("b", delta < 0 ? "down" : "up", number(delta)), ` displacement, ${moved(delta)}`);
    p.append(element("br"), `probability ${percent(Math.exp(logprob))} → ${percent(after)}`);
    return p;
  }

  // The eight parts of the push as a table, tinted on one scale.
  function pushTable(view, place) {
    const table = element("table", "parts");
    const full = Math.max(...["same", "other"].flatMap((t) => ["same", "other"].flatMap((q) =>
      ["positive", "negative"].map((s) => view.full(`${t}_token_${q}_query_${s}`)))));
    const cell = (x, span = 1) => {
      const td = element("td", "tint", number(x));
      td.colSpan = span;
      paint(td, x, full, true);
      return td;
    };
    const line = (title, ...cells) => {
      const tr = element("tr");
      const th = element("th", "", title);
      th.scope = "row";
      tr.append(th, ...cells);
      return tr;
    };
    const head = element("tr");
    const corner = element("th", "", "pushes from");
    const columns = [["+", "positive"], ["−", "negative"]].map(([sign, name]) => {
      const th = element("th", "", `${sign} rollouts`);
      th.scope = "col";
      th.title = `from tokens of ${name} rollouts`;
      return th;
    });
    head.append(corner, ...columns);
    table.append(head);
    for (const [token, name] of [["same", "same token"], ["other", "other token"]]) {
      for (const [query, prompt] of [["same", "same prompt"], ["other", "other prompts"]]) {
        const at = (sign) => view.value(`${token}_token_${query}_query_${sign}`, place);
        table.append(line(`${name}, ${prompt}`, cell(at("positive")), cell(at("negative"))));
      }
    }
    table.append(line("the token itself", cell(view.value("own", place), 2)));
    const total = line("all pushes", cell(view.value("push", place), 2));
    total.className = "total";
    table.append(total);
    return table;
  }

  // What the card has above or lists below; other quantities are listed while tokens are coloured by them.
  const LISTED = ["displacement", "logprob", "entropy", "advantage"];

  function facts(view, value, by) {
    const list = element("dl", "rest");
    const fact = (name, text) => {
      const div = element("div");
      div.append(element("dt", "", name), element("dd", "", text));
      list.append(div);
    };
    const shown = quantities.get(by);
    if (view.has(by) && shown && !LISTED.includes(by) && shown.family !== "Pushes") fact(shown.title, number(value(by), { signed: shown.signed, digits: 3 }));
    if (view.has("logprob") && !view.has("displacement")) fact("probability", percent(Math.exp(value("logprob"))));
    if (view.has("logprob")) fact("log-probability", number(value("logprob"), { digits: 3 }));
    if (view.has("entropy")) fact("entropy", `${number(value("entropy"), { signed: false })} nats`);
    if (view.has("advantage")) fact("advantage", number(value("advantage")));
    return list;
  }

  // -- the tokens that pushed it ---------------------------------------------------------------

  // `jump(row, position)` is called when one of them is chosen.
  poise.tokens.pushers = (box, { view, row, position }, jump) => {
    const place = view.spans.get(row)[0] + position;
    const found = view.pushes(place);
    const title = element("h3");
    title.append("Tokens that pushed ");
    const token = element("span", "token");
    write(token, view.text(view.token[place]), 40, true);
    title.append(token);
    box.replaceChildren(title);
    box.hidden = false;
    if (!found.length) {
      const watched = view.rows_shown.find((other) => view.watched.has(other));
      const why = !view.watched.size
        ? "No pushes between tokens are stored for this update."
        : view.watched.has(row)
          ? "No token of the batch pushed this one."
          : "Pushes between tokens are stored for a few prompts only (monitor.watch), those marked ●.";
      const p = element("p", "note", why);
      if (watched !== undefined && !view.watched.has(row)) {
        const button = element("button", "plain", "Show one of them");
        button.type = "button";
        button.addEventListener("click", () => jump(watched, null));
        p.append(" ", button);
      }
      box.append(p);
      if (!view.watched.has(row) && view.replay) {
        const [explanation, command] = view.replay;
        const line = element("p", "note", `${explanation} `);
        line.append(element("code", "", command));
        box.append(line);
      }
      return;
    }
    const largest = Math.max(...found.map((push) => Math.abs(push.push)));
    const sides = element("div", "sides");
    for (const [kind, name, sign] of [["up", "Up", 1], ["down", "Down", -1]]) {
      const mine = found.filter((push) => sign * push.push > 0).sort((a, b) => sign * (b.push - a.push));
      const side = element("div", kind);
      const sum = mine.reduce((total, push) => total + push.push, 0);
      const heading = element("h4", "", mine.length ? `${name}, ${mine.length} strongest: ${number(sum)}` : `${name}: none`);
      const list = element("ol");
      for (const push of mine) {
        const item = element("li");
        item.append(pusher(view, row, view.token[place], push, largest, jump));
        list.append(item);
      }
      side.append(heading, list);
      sides.append(side);
    }
    box.append(sides);
  };

  function pusher(view, row, id, push, largest, jump) {
    const button = element("button", "pusher");
    button.type = "button";
    const around = view.context(push.row, push.position);
    const bar = element("span", "bar");
    bar.style.setProperty("--length", `${(100 * Math.abs(push.push)) / largest}%`);
    const context = element("span", "context");
    const beside = (ids, kind) => {
      const span = element("span", `beside ${kind}`);
      for (const id of ids) write(span, view.text(id), 16);
      return span;
    };
    const token = element("mark");
    write(token, view.text(around.id), 24);
    context.append(beside(around.before, "before"), token, beside(around.after, "after"));
    const reward = view.reward[push.row];
    const kin = push.row === row ? "this rollout" : view.group[push.row] === view.group[row] ? "same prompt" : "other prompt";
    const from = element("span", "from");
    from.append(
      element("b", view.advantage[push.row] < 0 ? "down" : "up",
        `${reward === null ? "" : reward > 0 ? "✓ " : "✗ "}${number(view.advantage[push.row], { digits: 3 })}`),
      ` ${kin}, ${around.id === id ? "same token" : "other token"}`,
    );
    const prompt = view.group[push.row] === view.group[row] ? null : view.prompts[view.group[push.row]];
    const question = element("span", "asked");
    if (prompt) {
      const inside = element("bdi", "", prompt);
      question.append(inside);
    }
    button.append(element("span", "push", number(push.push)), bar, context, from, question);
    if (view.spans.has(push.row)) button.addEventListener("click", () => jump(push.row, push.position));
    else {
      button.disabled = true;
      button.title = "This rollout is not on the page.";
    }
    return button;
  }
})();
