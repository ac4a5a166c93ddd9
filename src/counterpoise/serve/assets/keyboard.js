// Shortcuts: those of the view, then those of the page; none while one types.
import { h, put } from "./elements.js";
import { CHART_TERMS } from "./metric_charts.js";
import { TERMS } from "./terms.js";

const typing = (node) => node instanceof Element && node.closest("input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]");

export function listen(shortcuts) {
  let before = null; // the g of "g r"
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const key = before ? `${before} ${event.key}` : event.key;
    before = null;
    if (key === "g") {
      before = "g";
      return;
    }
    // Enter and space belong to the button or link that has the focus.
    if ((key === "Enter" || key === " ") && event.target.closest?.("a, button, summary, [role=option], input")) return;
    for (const { keys, act } of shortcuts()) {
      if (!keys.includes(key)) continue;
      if (act(event) !== false) event.preventDefault();
      return;
    }
  });
}

const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc", " ": "Space" };
const caps = (keys) => keys.map((key, k) => [k ? " or " : "", (key === " " ? [key] : key.split(" ")).map((cap, j) => [j ? " " : "", h("kbd", {}, NAMES[cap] ?? cap)])]);

// The overlay of `?`: the shortcuts that act here, and every word of the page.
export function help(dialog, groups) {
  const close = h("button", { class: "button", type: "button", click: () => dialog.close() }, "Close ", h("kbd", {}, "Esc"));
  const words = Object.entries({ ...CHART_TERMS, ...TERMS }).sort(([a], [b]) => a.localeCompare(b));
  const search = h("input", { type: "search", placeholder: "Find a word", "aria-label": "Find a word" });
  const list = h("dl", { class: "words" });
  const write = () => {
    const wanted = search.value.trim().toLowerCase();
    put(list, ...words
      .filter(([word, line]) => `${word} ${line}`.toLowerCase().includes(wanted))
      .map(([word, line]) => h("div", {}, h("dt", {}, word.replaceAll("_", " ")), h("dd", {}, line))));
  };
  search.addEventListener("input", write);
  write();
  put(dialog,
    h("div", { class: "help-head" }, h("h2", {}, "Keyboard and words"), close),
    h("div", { class: "help-body" },
      h("section", {}, groups.filter((group) => group.shortcuts.length).map((group) => [
        h("h3", {}, group.title),
        h("dl", { class: "shortcuts" }, group.shortcuts.map(({ keys, does }) => h("div", {}, h("dt", {}, caps(keys)), h("dd", {}, does)))),
      ])),
      h("section", {}, h("h3", {}, "What is this"), search, list)),
  );
  dialog.showModal();
}
