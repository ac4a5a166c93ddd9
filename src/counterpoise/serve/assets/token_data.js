// Turns a rollout that the server sent into the object that the report's tokens_card.js reads. Row 0 is
// the rollout itself; the rollouts that pushed one of its tokens are rows 1, 2, ...
import { visible } from "./elements.js";

export function tokenView(data, chosen = null) {
  const columns = data.tokens ?? {};
  const length = columns.text?.length ?? 0;
  const quantities = data.quantities ?? [];
  const named = new Map(quantities.map((one) => [one.name, one]));
  for (const [name, one] of named) poise.tokens.quantities.set(name, one); // tokens_card.js looks them up
  const partsOf = (name) => named.get(name)?.columns ?? [name];
  const has = (name) => partsOf(name).every((column) => columns[column]?.some?.((x) => Number.isFinite(x)));
  // Ratios and weights are coloured by their distance from 1: a policy that has not moved since it sampled the
  // rollout, a weight that leaves the advantage as it is.
  const centre = (name) => named.get(name)?.centre ?? 0;
  const value = (name, place) => partsOf(name).reduce((sum, column) => sum + (columns[column]?.[place] ?? NaN), 0);
  const texts = new Map((columns.token ?? []).map((id, k) => [id, columns.text[k]]));

  const rollouts = [{ place: null, group: data.group, reward: data.reward, advantage: data.advantage, prompt: data.prompt }];
  const rowOf = new Map([[`${data.group} ${data.index}`, 0]]);
  const pushes = (chosen?.pushes ?? []).map((push) => {
    const name = `${push.group} ${push.index}`;
    if (!rowOf.has(name)) {
      rowOf.set(name, rollouts.length);
      rollouts.push(push);
    }
    const row = rowOf.get(name);
    rollouts[row].place ??= push.place;
    return { ...push, row };
  });
  const groups = [...new Set(rollouts.map((one) => one.group))];
  const around = new Map(pushes.map((push) => [`${push.row}:${push.position}`, push]));
  const known = (x) => (Number.isFinite(x) ? x : null);
  // Texts of neighbours are looked up by id in tokens_card.js; those that came as text are their own id.
  const text = (id) => visible(typeof id === "string" ? id : texts.get(id) ?? `⟨${id}⟩`);
  return {
    length,
    quantities,
    quantity: (name) => named.get(name),
    token: columns.token?.some?.((id) => id !== null) ? columns.token : (columns.text ?? []),
    spans: new Map(rollouts.map((_, row) => [row, row ? [0, 0] : [0, length]])),
    places: rollouts.map((one) => one.place),
    has,
    value,
    text,
    centre,
    full: (name) => (centre(name) ? 0 : data.full?.[name]) || largest(length, (place) => Math.abs(value(name, place) - centre(name))),
    // As `tokens_without_gradient` of report/traces.py: without an advantage there is nothing to clip.
    without_gradient: new Set((columns.pull ?? []).flatMap((pull, place) => (pull === 0 && columns.advantage?.[place] ? [place] : []))),
    watched: new Set(data.watched ? [0] : []),
    rows_shown: [0],
    group: rollouts.map((one) => groups.indexOf(one.group)),
    prompts: groups.map((group) => {
      const prompt = rollouts.find((one) => one.group === group).prompt;
      return prompt ? visible(prompt).slice(0, 200) : null;
    }),
    reward: rollouts.map((one) => known(one.reward)),
    advantage: rollouts.map((one) => one.advantage ?? NaN),
    pushes: () => pushes,
    context(row, position) {
      const push = around.get(`${row}:${position}`);
      const id = Number.isFinite(push.token) && texts.has(push.token) ? push.token : push.text;
      return { before: push.before ?? [], id, after: push.after ?? [] };
    },
    // What to look at first: the token with the largest value.
    strongest: (name) => {
      if (!has(name)) return 0;
      let best = 0;
      for (let place = 1; place < length; place++) if (Math.abs(value(name, place) - centre(name)) > (Math.abs(value(name, best) - centre(name)) || 0)) best = place;
      return best;
    },
  };
}

function largest(length, sizeAt) {
  let most = 0;
  for (let place = 0; place < length; place++) if (sizeAt(place) > most) most = sizeAt(place);
  return most;
}
