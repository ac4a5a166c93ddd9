// Two responses are chosen by their check boxes, then compared word by word. A third choice replaces the oldest.
import { to } from "./address.js";
import { h, localAddress } from "./elements.js";

// "5/GROUP/2" of /runs/NAME/rollouts/5/GROUP/2, decoded: what the diff's address takes.
export const shortPlace = (place) => (localAddress(place) ?? "").split("/").slice(4).map((text) => decodeURIComponent(text)).join("/");

// `link` opens the comparison; `box(place, label)` is the check box of a response.
export function comparison(run) {
  const chosen = new Map(); // place of a response -> its check box, the oldest choice first
  const link = h("a", { class: "button", "aria-disabled": "true", title: "Choose two responses" }, "Compare two");
  function choose(place, input) {
    if (input.checked) chosen.set(place, input);
    else chosen.delete(place);
    if (chosen.size > 2) {
      const [oldest, box] = chosen.entries().next().value;
      box.checked = false;
      chosen.delete(oldest);
    }
    const ready = chosen.size === 2;
    link.textContent = ready ? "Compare these two" : chosen.size ? "Compare 1 of 2" : "Compare two";
    link.setAttribute("aria-disabled", !ready);
    if (ready) link.href = to.diff(run, ...[...chosen.keys()].map(shortPlace));
    else link.removeAttribute("href");
  }
  function box(place, label) {
    const input = h("input", { type: "checkbox", "aria-label": label, change: () => choose(place, input) });
    input.checked = chosen.has(place);
    if (input.checked) chosen.set(place, input); // the list was redrawn: this is the new box of a chosen response
    return input;
  }
  return { link, box };
}
