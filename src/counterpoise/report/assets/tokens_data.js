// Numbers and texts of the token view: the inverse of quantise.py and of `view_of` in tokens.py.
poise.tokens = (() => {
  const data = poise.data("tokens");
  const quantities = new Map(data.quantities.map((q) => [q.name, q]));
  const decode = ({ largest, codes }) =>
    Float64Array.from(codes, (k) =>
      k === null ? NaN : k === 0 ? 0 : Math.sign(k) * largest * data.step ** (Math.abs(k) - data.levels));

  // One iteration. A place counts the tokens of all kept rows; a position those of one row.
  function view(record, value, vocabulary) {
    const spans = new Map();
    let end = 0;
    value.kept.forEach((row, i) => spans.set(row, [end, (end += value.lengths[i])]));
    const columns = new Map();
    const column = (name) => {
      if (!columns.has(name)) columns.set(name, decode(value.columns[name]));
      return columns.get(name);
    };
    const pushed = pushesByPlace(value.pushes, spans);
    const snippets = new Map((value.pushes?.snippets ?? []).map(([key, start, ids]) => [key, { start, ids }]));
    return {
      ...value,
      iteration: record.iteration,
      spans,
      signal: new Set(value.signal),
      has: (name) => quantities.get(name)?.columns.every((c) => value.columns[c]) ?? false,
      value: (name, place) => quantities.get(name).columns.reduce((sum, c) => sum + column(c)[place], 0),
      full: (name) => value.full[name] ?? 0,
      text: (id) => vocabulary[id],
      watched: new Set(value.pushes?.row ?? []),
      pushes: (place) => pushed.get(place) ?? [],
      // The token and a few neighbours, wherever its row lies.
      context(row, position) {
        const span = spans.get(row);
        const known = snippets.get(`${row}:${position}`);
        const ids = span ? value.token.slice(...span) : known.ids;
        const at = span ? position : position - known.start;
        return { before: ids.slice(Math.max(0, at - data.context), at), id: ids[at], after: ids.slice(at + 1, at + 1 + data.context) };
      },
    };
  }

  function pushesByPlace(pushes, spans) {
    const found = new Map();
    if (!pushes) return found;
    const push = decode(pushes.push);
    pushes.row.forEach((row, i) => {
      const place = spans.get(row)[0] + pushes.position[i];
      if (!found.has(place)) found.set(place, []);
      found.get(place).push({ row: pushes.by_row[i], position: pushes.by_position[i], push: push[i] });
    });
    return found;
  }

  // -- as text ---------------------------------------------------------------------------------

  // Two digits: the numbers are stored in steps of one percent.
  function number(x, { signed = true, digits = 2 } = {}) {
    if (!Number.isFinite(x)) return "–";
    const size = Math.abs(x);
    const text =
      size === 0 ? "0"
      : size >= 10 ** digits ? size.toFixed(0)
      : size >= 0.001 ? size.toPrecision(digits)
      : size.toExponential(1).replace("-", "−");
    return `${x < 0 ? "−" : signed && x > 0 ? "+" : ""}${text}`;
  }
  const percent = (share) => `${share >= 0.0095 ? (100 * share).toFixed(1) : number(100 * share, { signed: false })} %`;

  // Text of a token into `parent`: blanks get a glyph, a long one is cut. Only ever textContent.
  // In running text a word keeps the space before it; by itself (`alone`) it shows it.
  const BLANKS = { " ": "·", "\n": "↵", "\t": "⇥" };
  function write(parent, text, longest = Infinity, alone = false) {
    const inside = document.createElement("bdi");
    const characters = [...text];
    const cut = characters.length > longest ? [...characters.slice(0, longest), "…"] : characters;
    const blank = /^[ \n\t]+$/.test(text);
    let run = "";
    const flush = () => {
      inside.append(run);
      run = "";
    };
    for (const c of cut) {
      if (c === "\n" || c === "\t" || ((blank || alone) && c === " ")) {
        flush();
        const glyph = document.createElement("span");
        glyph.className = "blank";
        glyph.textContent = BLANKS[c];
        inside.append(glyph);
      } else run += c;
    }
    flush();
    parent.append(inside);
    return blank;
  }

  // What a screen reader says for it.
  const NAMES = { " ": "space", "\n": "new line", "\t": "tab" };
  const spoken = (text) => (/^[ \n\t]+$/.test(text) ? [...text].map((c) => NAMES[c]).join(", ") : text.trim());

  const element = (name, kind = "", text = undefined) => {
    const node = document.createElement(name);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  // Colour as a class and a strength from 0 to 1; tokens.css mixes it with the paper.
  function paint(node, x, full, signed) {
    const share = full && Number.isFinite(x) ? Math.sqrt(Math.min(1, Math.abs(x) / full)) : 0;
    node.classList.remove("up", "down", "size");
    node.classList.add(!signed ? "size" : x < 0 ? "down" : "up");
    node.style.setProperty("--strength", share.toFixed(3));
  }

  return { data, quantities, view, number, percent, write, spoken, element, paint };
})();
