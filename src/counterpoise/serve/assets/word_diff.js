// The words of two texts, in common and not: the longest common subsequence, O(words^2) up to a limit.
import { h, visible } from "./elements.js";

const MOST = 1500; // words of a text; beyond, the rest is compared as a whole

export const parts = (left, right) => {
  const [a, b] = [left, right].map((text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? []);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let [endA, endB] = [a.length, b.length];
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA--;
    endB--;
  }
  const found = [{ kind: "same", text: a.slice(0, start).join("") }];
  const [x, y] = [a.slice(start, endA), b.slice(start, endB)];
  if (x.length > MOST || y.length > MOST) found.push({ kind: "left", text: x.join("") }, { kind: "right", text: y.join("") });
  else found.push(...between(x, y));
  found.push({ kind: "same", text: a.slice(endA).join("") });
  return found.filter((part) => part.text);
};

function between(x, y) {
  const width = y.length + 1;
  const common = new Uint16Array((x.length + 1) * width);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      common[i * width + j] = x[i] === y[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = [];
  const add = (kind, text) => {
    if (found.at(-1)?.kind === kind) found.at(-1).text += text;
    else found.push({ kind, text });
  };
  let [i, j] = [0, 0];
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) {
      add("same", x[i++]);
      j++;
    } else if (j < y.length && (i === x.length || common[i * width + j + 1] > common[(i + 1) * width + j])) add("right", y[j++]);
    else add("left", x[i++]);
  }
  return found;
}

const NAMES = { left: "del", right: "ins" };
export const marks = (list) => list.map(({ kind, text }) => (kind === "same" ? visible(text) : h(NAMES[kind] ?? "ins", {}, visible(text))));
export const wordDiff = (left, right) => marks(parts(left, right));
