// Numbers of the token view: the inverse of quantise.py and of `pack_iteration` in tokens.py.
poise.tokens = (() => {
  const data = poise.data("tokens");
  const quantities = new Map(data.quantities.map((q) => [q.name, q]));
  const decode = ({ largest, codes }) =>
    Float64Array.from(codes, (k) =>
      k === null ? NaN : k === 0 ? 0 : Math.sign(k) * largest * data.step ** (Math.abs(k) - data.levels));

  // One iteration. A place counts the tokens of all shown rows; a position those of one row.
  function view(record, value, vocabulary) {
    const spans = new Map();
    let end = 0;
    value.rows_shown.forEach((row, i) => spans.set(row, [end, (end += value.lengths[i])]));
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
      replay: record.replay,
      spans,
      rows_stored: new Set(value.rows_stored),
      has: (name) => quantities.get(name)?.columns.every((c) => value.columns[c]) ?? false,
      value: (name, place) => quantities.get(name).columns.reduce((sum, c) => sum + column(c)[place], 0),
      full: (name) => value.full[name] ?? 0,
      text: (id) => vocabulary[id],
      without_gradient: new Set(value.without_gradient),
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

  return { data, quantities, view, ...poise.text };
})();
