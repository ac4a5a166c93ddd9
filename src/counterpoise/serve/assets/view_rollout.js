// One rollout, token by token, and the tokens of other rollouts that pushed one of them.
import { to } from "./address.js";
import { empty, foreign, h, localAddress, put, responseText, visible } from "./elements.js";
import { advantage, chance, number, plural } from "./format.js";
import { outcome, rewardMark } from "./group.js";
import { load as get } from "./load.js";
import { term } from "./terms.js";
import { tokenView } from "./token_data.js";

const rolloutPath = (address) => `${to.run(address.run)}/rollouts/${address.iteration}/${encodeURIComponent(address.group)}/${address.index}`;
export async function load(address, signal) {
  const [rollout, token] = await Promise.all([
    get(rolloutPath(address), signal),
    address.position === undefined ? null : get(address.path, signal),
  ]);
  return { ...rollout, chosen: token };
}
export const trail = (address) => [[address.run, to.run(address.run)], ["rollouts", to.rollouts(address.run)], [`${address.group} · #${address.index}`, rolloutPath(address)]];
export const key = rolloutPath;

const LONGEST = 24; // characters of a token in the strip
const MOST = 4000; // tokens of the strip that are written at once
let colouredBy = "displacement"; // kept from one rollout to the next

export function show(root, data, address, page) {
  const here = rolloutPath(address);
  const about = h("p", { class: "about" });
  const question = h("p", { class: "question", dir: "auto" });
  const strip = h("div", { class: "strip", role: "listbox", "aria-label": "Tokens of the rollout. Left and right arrows move, Enter shows who pushed the token, Escape closes it." });
  const ramp = h("div", { class: "tints", role: "img" }, h("div", { class: "ramp" }), h("div", { class: "ticks" }));
  const meaning = h("p", { class: "meaning" });
  const card = h("aside", { class: "card", "aria-label": "The token" }, h("p", { class: "spoken", role: "status", "aria-live": "polite" }), h("div", { class: "numbers" }));
  const pushers = h("div", { class: "pushers", role: "region", "aria-label": "Tokens that pushed the chosen token", hidden: true });
  const select = h("select", { "aria-label": "Colour by" });
  const absent = h("details", { class: "absent" });
  const siblings = h("div", { class: "siblings", role: "group", "aria-label": "Responses of the group" });
  const bench = h("div", { class: "bench" },
    h("div", { class: "reading" }, about, question, strip, h("div", { class: "colours" }, ramp, meaning), absent), card, pushers);
  const [back, forward] = [h("a", { class: "button", "aria-label": "Previous rollout" }, "←"), h("a", { class: "button", "aria-label": "Next rollout" }, "→")];
  const plain = h("details", { class: "plain-text" });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Rollout"), rewardMark(data.reward), h("label", { class: "by" }, "Colour by ", select), h("div", { class: "head-tools" },
      h("a", { class: "button", href: to.prompt(address.run, data.prompt_id) }, "This prompt over time"),
      Number.isFinite(data.trained_in) ? h("a", { class: "button", href: to.group(address.run, data.trained_in, data.group) }, "Its group") : null,
      h("span", { class: "pair-of-buttons" }, back, forward))),
    siblings, h("div", { class: "tokens" }, bench), plain);
  let view = null;
  let active = 0;
  let tokens = [];

  // -- strip -------------------------------------------------------------------------------

  const tokenAt = (position) => tokens[position];

  function writeStrip(end) {
    const { text, write, spoken } = { ...poise.text, text: data.tokens?.text ?? [] };
    const environmentTexts = new Map(data.environment_texts ?? []);
    strip.className = `strip ${outcome(data.reward)}`;
    strip.replaceChildren();
    tokens = [];
    for (let position = 0; position < Math.min(end, text.length); position++) {
      if (environmentTexts.has(position)) strip.append(h("span", { class: "said" }, foreign(environmentTexts.get(position), "", 2000)));
      const shown = visible(text[position]);
      const token = h("span", { class: "token", role: "option", "aria-selected": "false", tabindex: -1, data: { position } });
      if (write(token, shown, LONGEST)) token.setAttribute("aria-label", spoken(shown));
      strip.append(token);
      tokens.push(token);
      if (shown.includes("\n")) strip.append(h("br"));
      else if (/^[ \t]+$/.test(shown)) strip.append(h("wbr"));
    }
    if (end < text.length) strip.append(h("button", { class: "link", type: "button", click: () => { writeStrip(end + 4 * MOST); colour(); } }, ` … ${plural(text.length - end, "more token")}`));
    else if (data.tokens?.total > text.length) strip.append(h("p", { class: "note" }, `The first ${text.length} of ${data.tokens.total} tokens; the others are in the JSON of this address (add ?format=json&from=${text.length}).`));
  }

  function colour() {
    const by = view.quantity(select.value);
    const { paint, element } = poise.text;
    const has = by && view.has(by.name);
    const centre = has ? view.centre(by.name) : 0;
    const signed = (by?.signed ?? true) || centre !== 0;
    tokens.forEach((token, position) => paint(token, has ? view.value(by.name, position) - centre : NaN, has ? view.full(by.name) : 0, signed));
    ramp.hidden = !has;
    if (has) {
      const full = view.full(by.name);
      const marks = signed ? [-full, -full / 4, 0, full / 4, full] : [0, full / 4, full];
      const mark = (x) => (centre ? number(centre + x, 4) : poise.text.number(by.name === "logprob" ? -x : x, { signed }));
      ramp.className = `tints ${signed ? "signed" : "size"}`;
      put(ramp.querySelector(".ticks"), ...marks.map((x) => element("i", "", mark(x))));
      ramp.setAttribute("aria-label", `Colour: ${by.title}, full from ${number(full)}`);
    }
    meaning.textContent = has ? `${visible(by.meaning)} Colour grows with the square root${centre ? " of the distance from 1" : "; full from the 98th percentile"}.` : `${by ? visible(by.title) : "This quantity"} is not there: ${visible(data.missing?.[by?.name] ?? "it was not stored")}`;
  }

  const say = (position) => view.length && poise.tokens.card(card, { view, row: 0, position, by: select.value || "advantage" });

  function activate(position, focus = true) {
    if (!tokens.length) return;
    tokenAt(active)?.setAttribute("tabindex", "-1");
    active = Math.max(0, Math.min(tokens.length - 1, position));
    tokenAt(active).tabIndex = 0;
    if (focus) {
      tokenAt(active).focus({ preventScroll: true });
      tokenAt(active).scrollIntoView({ block: "nearest" });
    }
    say(active);
  }

  // -- who pushed it -----------------------------------------------------------------------

  function writePushes() {
    for (const old of strip.querySelectorAll("[aria-selected=true]")) old.setAttribute("aria-selected", "false");
    for (const old of strip.querySelectorAll(".pushed")) old.classList.remove("pushed");
    const { chosen } = data;
    pushers.hidden = !chosen;
    if (!chosen || !tokenAt(address.position)) {
      pushers.replaceChildren();
      return;
    }
    tokenAt(address.position).setAttribute("aria-selected", "true");
    const pushed = tokenView(data, chosen);
    if (chosen.pushes?.length) {
      poise.tokens.pushers(pushers, { view: pushed, row: 0, position: address.position }, (row, position) => {
        const place = localAddress(pushed.places[row]);
        if (place) page.go(position === null ? place : `${place}/tokens/${position}`);
      });
      for (const push of chosen.pushes) if (push.same_rollout) tokenAt(push.position)?.classList.add("pushed");
    } else {
      const places = (data.watched_places ?? []).filter(localAddress);
      put(pushers, h("h3", {}, "Who pushed it"), h("p", { class: "note" }, visible(chosen.missing ?? "No token of the batch pushed this one.")),
        chosen.replay ? h("p", { class: "note" }, visible(chosen.replay.explanation), h("code", { class: "command" }, visible(chosen.replay.command))) : null,
        places.length ? h("p", { class: "note" }, "Stored for: ", places.slice(0, 6).map((place, k) => [k ? " · " : "", h("a", { href: place }, `rollout ${k + 1}`)])) : null);
    }
    const likely = chosen.distribution;
    if (!likely?.length && chosen.distribution_missing) pushers.append(h("p", { class: "note" }, `What else was likely here: ${visible(chosen.distribution_missing)}.`));
    if (likely?.length) {
      const sampled = data.tokens?.token?.[address.position];
      const moved = likely.some((one) => Number.isFinite(one.new_probability));
      const share = (one) => h("td", { class: "share-cell", "aria-hidden": "true" }, h("span", { class: "share", "--share": one.probability }));
      const row = (one) => {
        const cell = h("span", { class: "token" });
        poise.text.write(cell, visible(one.text), LONGEST, true);
        return h("tr", { class: one.token === sampled ? "sampled" : null }, h("th", { scope: "row" }, cell, one.token === sampled ? h("span", { class: "muted" }, " sampled") : null), h("td", { class: "figure" }, chance(one.probability)), moved ? h("td", { class: "figure" }, chance(one.new_probability)) : null, share(one));
      };
      // Unlikely ones are left out; the JSON of this address has all that the run stored.
      const shown = likely.filter((one, k) => k < 3 || one.token === sampled || Math.max(one.probability, one.new_probability ?? 0) >= 0.001);
      pushers.prepend(h("div", {}, h("h3", {}, term("likely tokens", "What else was likely here")), h("table", { class: "likely" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "token"), h("th", { scope: "col", class: "figure" }, "before"), moved ? h("th", { scope: "col", class: "figure" }, "after") : null, h("td"))),
        h("tbody", {}, shown.map(row)))));
    }
  }

  const pick = (position) => page.go(position === null ? here : `${here}/tokens/${position}`, { keep: true, replace: address.position !== undefined });

  // -- all of it ---------------------------------------------------------------------------

  function writeAbout() {
    put(about,
      h("b", { class: data.advantage < 0 ? "down" : data.advantage > 0 ? "up" : null }, `advantage ${advantage(data.advantage)}`),
      ` · ${plural(data.length ?? view.length, "token")} · sampled in `, h("a", { href: to.iteration(address.run, address.iteration) }, `iteration ${data.born ?? address.iteration}`),
      Number.isFinite(data.trained_in) ? ` · trained in iteration ${data.trained_in}${Number.isFinite(data.step) ? `, step ${data.step + 1}` : ""}` : data.has_plans === false ? " · its optimizer step is not known" : " · not trained on",
      data.finished === false ? [" · ", term("cut off")] : "",
      data.dropped ? [" · ", term(`dropped: ${data.dropped}`, `dropped: ${String(data.dropped).replaceAll("_", " ")}`)] : "",
      data.answer ? [" · reference answer ", foreign(data.answer, "", 200)] : "",
      Object.entries(data.further ?? {}).map(([name, value]) => ` · ${visible(name)} ${number(value)}`));
    put(question, foreign(data.prompt, "", 3000));
    put(plain, h("summary", {}, "Response as plain text"), h("pre", { dir: "auto" }, responseText(data.response)));
    for (const [link, place] of [[back, localAddress(data.previous)], [forward, localAddress(data.next)]]) {
      if (place) link.href = place;
      else link.removeAttribute("href");
    }
    put(siblings, ...(data.siblings ?? []).map((one) => {
      const mine = one.index === address.index;
      return h("a", { class: `sibling ${outcome(one.reward)}`, href: localAddress(one.place), "aria-current": mine ? "true" : null, title: `response #${one.index}, reward ${number(one.reward)}` }, rewardMark(one.reward), h("span", { class: "figure" }, advantage(one.advantage)));
    }));
    const missing = Object.entries(data.missing ?? {});
    absent.hidden = !missing.length;
    put(absent, h("summary", {}, `${plural(missing.length, "quantity", "quantities")} missing, and why`), h("dl", {}, missing.map(([name, why]) => h("div", {}, h("dt", {}, visible(name).replaceAll("_", " ")), h("dd", {}, visible(why))))));
  }

  function writeSelect() {
    const families = new Map();
    for (const one of view.quantities) families.set(one.family, [...(families.get(one.family) ?? []), one]);
    put(select, ...[...families].map(([family, list]) => h("optgroup", { label: visible(family) }, list.map((one) => h("option", { value: one.name, disabled: false }, `${visible(one.title)}${view.has(one.name) ? "" : " (missing)"}`)))));
    const wanted = view.has(colouredBy) ? colouredBy : view.quantities.find((one) => view.has(one.name))?.name;
    if (wanted) select.value = wanted;
  }

  function update(next, where) {
    const first = view === null;
    data = next;
    address = where;
    view = tokenView(data);
    if (first) {
      writeAbout();
      if (!view.length) {
        put(strip, empty("No tokens are stored for this rollout", visible(Object.values(data.missing ?? {})[0] ?? "Its text is below.")));
        plain.open = true;
        bench.classList.add("without-tokens");
        return;
      }
      writeSelect();
      bench.classList.toggle("without-values", !view.quantities.some((one) => view.has(one.name)));
      writeStrip(Math.max(MOST, (address.position ?? 0) + 1));
      colour();
      activate(address.position ?? view.strongest(select.value), false);
    } else if (view.length && address.position !== undefined) activate(address.position, document.activeElement?.classList.contains("token"));
    writePushes();
  }

  const under = (event) => event.target.closest?.(".token");
  strip.addEventListener("pointerover", (event) => under(event) && say(Number(under(event).dataset.position)));
  strip.addEventListener("pointerleave", () => say(active));
  strip.addEventListener("click", (event) => under(event) && pick(Number(under(event).dataset.position)));
  select.addEventListener("change", () => {
    colouredBy = select.value;
    colour();
    say(active);
  });
  const follow = (link) => link.href && page.go(link.href);
  update(data, address);
  return {
    update,
    skipsRefresh: () => true, // a rollout does not change
    keys: [
      { keys: ["ArrowRight"], does: "next token", act: () => activate(active + 1) },
      { keys: ["ArrowLeft"], does: "previous token", act: () => activate(active - 1) },
      { keys: ["Home"], does: "first token", act: () => activate(0) },
      { keys: ["End"], does: "last token", act: () => activate(tokens.length - 1) },
      { keys: ["Enter", " "], does: "who pushed the token", act: () => pick(active) },
      { keys: ["Escape"], does: "close it", act: () => address.position !== undefined && pick(null) },
      { keys: ["]"], does: "next rollout", act: () => follow(forward) },
      { keys: ["["], does: "previous rollout", act: () => follow(back) },
      { keys: ["c"], does: "colour by the next quantity", act: () => {
        const known = [...select.options].filter((option) => view.has(option.value));
        if (!known.length) return;
        select.value = known[(known.findIndex((option) => option.selected) + 1) % known.length].value;
        select.dispatchEvent(new Event("change"));
      } },
    ],
  };
}
