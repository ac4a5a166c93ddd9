// Words of the report show their line on hover and focus; the glossary lists all that occur.
(() => {
  const WHERE = ".facts dt, figcaption strong, .key, .types thead th, .tokens .card :is(dt, th), .mosaic fieldset label";
  const bare = (text) => text.trim().toLowerCase().replace(/, \d+ skipped$/, "");
  const occurring = new Map();

  poise.explain = (root) => {
    for (const node of root.querySelectorAll(WHERE)) {
      const word = bare(node.textContent);
      const line = Object.hasOwn(poise.words, word) ? poise.words[word] : null;
      if (!line || node.classList.contains("what")) continue;
      occurring.set(word, line);
      const hidden = document.createElement("span");
      hidden.className = "what-line";
      hidden.setAttribute("role", "tooltip");
      hidden.textContent = line;
      node.classList.add("what");
      node.tabIndex = 0;
      node.append(hidden);
    }
  };

  function write() {
    const list = document.querySelector(".all-words");
    const words = [...occurring, ...list.dataset.words.split("|").map((word) => [word, poise.words[word]])];
    const known = [...new Map(words)].filter(([, line]) => line).sort(([a], [b]) => a.localeCompare(b));
    list.replaceChildren(...known.map(([word, line]) => {
      const entry = document.createElement("div");
      const [name, text] = [document.createElement("dt"), document.createElement("dd")];
      name.textContent = word;
      text.textContent = line;
      entry.append(name, text);
      return entry;
    }));
  }
  poise.explain(document);
  write();
})();
