// The glossary: words, each with one line that explains it. Explanations of the columns of metrics.jsonl come
// from the server.
import { h } from "./elements.js";

export const TERMS = poise.words; // report/assets/words.js

// A single box, kept inside the window, explains the word under the pointer or the focus.
const box = h("div", { class: "what-line", "aria-hidden": "true", hidden: true });
function explain(event) {
  const word = event.target.closest?.(".what");
  box.hidden = !word;
  if (!word) return;
  if (!box.isConnected) document.body.append(box);
  box.textContent = word.querySelector(".unseen").textContent;
  const at = word.getBoundingClientRect();
  const below = at.bottom + 8 + box.offsetHeight < innerHeight;
  box.style.left = `${Math.max(8, Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${below ? at.bottom + 6 : at.top - box.offsetHeight - 6}px`;
}
for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, explain);
for (const kind of ["scroll", "focusout", "keydown"]) document.addEventListener(kind, () => { box.hidden = true; }, { passive: true });

// A word whose explanation appears on hover and focus and is read out.
let last = 0;
export function term(word, shown = word) {
  const line = TERMS[word];
  if (!line) return shown;
  const id = `what-${++last}`;
  return h("span", { class: "what", tabindex: 0, "aria-describedby": id }, shown, h("span", { class: "unseen", id, hidden: true }, line));
}
