// Elements. Strings become text nodes, never markup, and no style or handler is ever an attribute.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key.startsWith("--")) node.style.setProperty(key, value);
    else if (key === "data") Object.assign(node.dataset, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
}
const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

// New children of a node, nested lists and absent ones allowed.
export const put = (node, ...children) => node.replaceChildren(...present(children));

// h("a", { class: "x", href: "/", click: handler, "--share": 0.5 }, "text", child)
export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

// Control characters become visible symbols (␀); characters that change the writing direction or have
// no width become their code point (⟨U+200B⟩). report/texts.py does the same.
const PICTURE = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
const OVERRIDE = /[\u061c\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;
export const visible = (text) =>
  String(text ?? "")
    .replaceAll("\r\n", "\n")
    .replace(PICTURE, (c) => String.fromCharCode(c === "\u007f" ? 0x2421 : 0x2400 + c.charCodeAt(0)))
    .replace(/[\u0080-\u009f]/g, "\ufffd")
    .replace(OVERRIDE, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

const LONGEST = 20000; // characters of a text that are shown before one asks for all of it

// A text of somebody else: isolated, so that its direction does not move its neighbours.
export function foreign(text, kind = "", longest = LONGEST) {
  const shown = visible(text);
  if (shown.length <= longest) return h("bdi", { class: kind }, shown);
  const rest = h("button", { class: "link", type: "button" }, `… ${(shown.length - longest).toLocaleString("en")} more characters`);
  const box = h("bdi", { class: kind }, shown.slice(0, longest), rest);
  rest.addEventListener("click", (event) => {
    event.preventDefault();
    box.replaceChildren(shown);
  });
  return box;
}

// The text of a response, where it is stored: other trainers' files may hold its tokens only.
export const NO_TEXT = "no text stored";
export const responseText = (text, longest = LONGEST) => (typeof text === "string" ? foreign(text, "", longest) : h("span", { class: "muted" }, NO_TEXT));

// Where the search words occur, marked.
export function marked(text, words) {
  const shown = visible(text);
  const wanted = words.filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return h("bdi", {}, shown);
  const pieces = shown.split(new RegExp(`(${wanted.join("|")})`, "gi"));
  return h("bdi", {}, pieces.map((piece, k) => (k % 2 ? h("mark", {}, piece) : piece)));
}

// The address if it is a path on this server, else null: links may come from files of a run.
export const localAddress = (place) => (typeof place === "string" && /^\/(?!\/)/.test(place) ? place : null);

export const unseen = (...children) => h("span", { class: "unseen" }, ...children);

// Nothing to show, and what to do about it.
export const empty = (title, ...rest) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), rest.map((line) => (typeof line === "string" ? h("p", {}, line) : line)));
