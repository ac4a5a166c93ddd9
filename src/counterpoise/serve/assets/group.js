// The rollouts of one group side by side; two of them can be compared word by word.
import { to } from "./address.js";
import { comparison } from "./compare_two.js";
import { foreign, h, localAddress, responseText, visible } from "./elements.js";
import { advantage, number, plural } from "./format.js";
import { term } from "./terms.js";

export const outcome = (reward) => (Number.isFinite(reward) ? (reward > 0 ? "right" : "wrong") : "unknown");

export function rewardMark(reward) {
  if (!Number.isFinite(reward)) return h("span", { class: "reward unknown", title: "The verifier gave no reward" }, "none");
  const graded = reward !== 0 && reward !== 1;
  return h("span", { class: `reward ${outcome(reward)}`, title: `reward ${number(reward)}` }, reward > 0 ? "✓" : "✗", graded ? ` ${number(reward, 2)}` : "");
}

export function groupPanel(data, address, page) {
  const compare = comparison(address.run);
  const rollouts = data.rollouts ?? [];
  const column = (rollout) => {
    const flags = [rollout.finished === false && term("cut off"), rollout.dropped && term(`dropped: ${rollout.dropped}`, `dropped: ${rollout.dropped.replaceAll("_", " ")}`)].filter(Boolean);
    return h("article", { class: `response ${outcome(rollout.reward)}` },
      h("header", {}, h("label", { class: "pick" }, compare.box(rollout.place, `Compare response #${rollout.index}`)), rewardMark(rollout.reward), h("b", { class: "figure" }, advantage(rollout.advantage)),
        h("span", { class: "muted" }, `${rollout.tokens ?? "–"} tok`, Number.isFinite(rollout.step) ? ` · step ${rollout.step + 1}` : "", flags.map((flag) => [" · ", flag])),
        h("a", { class: "more", href: localAddress(rollout.place) }, "tokens →")),
      h("pre", { dir: "auto" }, responseText(rollout.response, 6000)));
  };
  const close = h("a", { class: "button", href: to.iteration(address.run, address.iteration) }, "Close ", h("kbd", {}, "Esc"));
  close.addEventListener("click", (event) => {
    event.preventDefault();
    page.go(close.href, { keep: true });
  });
  return h("section", { class: "panel group-panel", "aria-label": "One group" },
    h("div", { class: "panel-head" }, h("h2", {}, foreign(data.group)), h("div", { class: "head-tools" },
      data.prompt_id !== undefined && h("a", { class: "button", href: to.prompt(address.run, data.prompt_id) }, "This prompt over time"), compare.link, close)),
    h("p", { class: "question", dir: "auto" }, foreign(data.prompt, "", 3000)),
    data.answer ? h("p", { class: "note" }, "reference answer ", h("b", {}, visible(data.answer))) : null,
    h("div", { class: "side-by-side", tabindex: 0, role: "region", "aria-label": "Responses" }, rollouts.length ? rollouts.map(column) : h("p", { class: "note" }, "No texts are stored for this group (store.rollouts).")));
}
