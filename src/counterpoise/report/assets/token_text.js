// Tokens and numbers as text and colour: what every view of tokens writes with.
poise.text = (() => {
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

  return { number, percent, write, spoken, element, paint };
})();
