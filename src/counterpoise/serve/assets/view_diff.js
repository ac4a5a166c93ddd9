// Two responses, word by word.
import { to } from "./address.js";
import { foreign, h, localAddress, responseText, visible } from "./elements.js";
import { number } from "./format.js";
import { outcome, rewardMark } from "./group.js";
import { load as get } from "./load.js";

export const load = (address, signal) => get(address.path + address.search, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["rollouts", to.rollouts(address.run)], ["comparison", address.path + address.search]];
export const key = (address) => address.path + address.search;

// Stretches of two texts, as the server compared them: in both, or in one of them.
const NAMES = { left: "del", right: "ins" };
export const marks = (list) => list.map(({ kind, text }) => (kind === "same" ? visible(text) : h(NAMES[kind] ?? "ins", {}, visible(text))));

export function show(root, data, address, page) {
  const { left = {}, right = {} } = data;
  const list = data.parts;
  const same = list.filter((part) => part.kind === "same").reduce((sum, part) => sum + part.text.length, 0);
  const longest = Math.max((left.response ?? "").length, (right.response ?? "").length, 1);
  const side = (one, kind) => {
    const mine = list.filter((part) => part.kind === "same" || part.kind === kind);
    return h("article", { class: `response ${outcome(one.reward)}` },
      h("header", {}, rewardMark(one.reward), h("span", { class: "muted" }, `iteration ${number(one.iteration)}, response ${(one.index ?? 0) + 1} · `, foreign(one.group)), h("a", { class: "more", href: localAddress(one.place) }, "tokens →")),
      h("pre", { dir: "auto" }, one.response === null ? responseText(null) : marks(mine)));
  };
  const swap = () => page.go(to.diff(address.run, address.query.get("right"), address.query.get("left")), { replace: true });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Comparison"), h("p", { class: "told" }, `${Math.round((100 * same) / longest)} % of the longer text in common`), h("div", { class: "head-tools" }, h("button", { class: "button", type: "button", click: swap }, "Swap sides"))),
    h("p", { class: "diff-key" }, h("del", {}, "only on the left"), h("ins", {}, "only on the right")),
    h("div", { class: "two-sides" }, side(left, "left"), side(right, "right")),
    h("h2", { class: "small" }, "In one text"), h("div", { class: "diff-text", dir: "auto" }, marks(list)));
  return { update: () => {}, skipsRefresh: () => true, keys: [{ keys: ["w"], does: "swap the sides", act: swap }] };
}
