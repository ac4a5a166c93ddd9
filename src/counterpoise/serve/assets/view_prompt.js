// One prompt over time: its success, its responses, and how their texts changed.
import { to } from "./address.js";
import { Crosshair, plot, tableOf } from "./charts.js";
import { comparison, shortPlace } from "./compare_two.js";
import { empty, foreign, h, localAddress, put, responseText } from "./elements.js";
import { advantage, number, percent, plural } from "./format.js";
import { outcome, rewardMark } from "./group.js";
import { load as get } from "./load.js";
import { marks } from "./view_diff.js";
import { heading } from "./view_run.js";

export const load = (address, signal) => get(address.path, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["prompts", to.prompts(address.run)], [address.prompt, address.path]];

export function show(root, data, address, page) {
  const crosshair = new Crosshair();
  const jump = (iteration) => root.querySelector(`[data-iteration="${iteration}"]`)?.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  const charts = [
    plot({ title: "success", term: "Share of its responses with a reward above 0.", format: percent, crosshair, open: jump }),
    plot({ title: "mean reward", term: "What the verifier gave its responses.", format: number, crosshair, open: jump }),
    plot({ title: "mean length", term: "Tokens of its responses.", format: number, crosshair, open: jump }),
  ];
  const columns = ["success", "mean_reward", "mean_length"];
  const table = tableOf(charts, "The prompt in every iteration");
  const told = h("p", { class: "told" });
  const compare = comparison(address.run);
  const question = h("p", { class: "question", dir: "auto" });
  const about = h("p", { class: "note" });
  const change = h("section", { class: "panel" });
  const visitSection = h("section", { class: "panel" });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "One prompt"), told, h("div", { class: "head-tools" }, h("a", { class: "button", href: to.rollouts(address.run, { prompt: address.prompt }) }, "Its rollouts as a table"), compare.link)),
    question, about,
    h("section", { class: "panel" }, h("div", { class: "plots" }, charts.map((one) => one.node)), table.node), change, visitSection);
  let shown = null; // which visits the page shows
  let again = null;

  const card = (response) =>
    h("article", { class: `response ${outcome(response.reward)}` },
      h("header", {}, h("label", { class: "pick" }, compare.box(response.place, `Compare response #${response.index}`)), rewardMark(response.reward), h("b", { class: "figure" }, advantage(response.advantage)), h("span", { class: "muted" }, plural(response.length, "token"), response.anchor && " · from the generic prompt, not in the success"), h("a", { class: "more", href: localAddress(response.place) }, "tokens →")),
      h("pre", { dir: "auto" }, responseText(response.response), response.response_cut ? h("a", { class: "more", href: localAddress(response.place) }, " … the whole response") : null));

  // The first wrong text against the last right one says most about what was learned.
  function chooseTwo(early, late) {
    const before = early.responses.find((one) => !(one.reward > 0)) ?? early.responses[0];
    const others = late.responses.filter((one) => one.place !== before.place);
    return [before, others.find((one) => one.reward > 0) ?? others[0]];
  }

  function writeChange(visits) {
    const known = visits.filter((visit) => visit.responses?.length);
    const [early, late] = [known[0], known.at(-1)];
    const [before, after] = known.length ? chooseTwo(early, late) : [];
    if (!after) { // a single response
      put(change);
      return;
    }
    const comparison = to.diff(address.run, shortPlace(before.place), shortPlace(after.place));
    const text = h("div", { class: "diff-text", dir: "auto" });
    get(comparison).then((diff) => put(text, marks(diff.parts)), (fault) => put(text, fault.message));
    put(change,
      heading("How the text changed", early === late
        ? `Sampled in iteration ${early.iteration} only: two of its responses. Choose any two below to compare them.`
        : `A response of iteration ${early.iteration} against one of iteration ${late.iteration}; choose any two below to compare them.`),
      h("p", { class: "diff-key" }, h("del", {}, "only in the first"), h("ins", {}, "only in the last"), h("a", { href: comparison }, "open this comparison")),
      text);
  }

  function update(next) {
    const visits = next.over_time ?? [];
    charts[1].node.hidden = visits.every((visit) => visit.mean_reward === visit.success); // rewards of 0 and 1
    charts.forEach((chart, k) => chart.update([{ label: chart.title, colour: "series", smooth: false, points: true, xs: visits.map((visit) => visit.iteration), values: visits.map((visit) => visit[columns[k]]) }]));
    table.update();
    const responses = visits.reduce((sum, visit) => sum + visit.count, 0);
    const isPartial = next.indexed < 1; // the index is being built, newest iterations first
    told.textContent = [
      `${plural(visits.length, "visit")}, ${plural(responses, "response")}`,
      next.left_out ? `; ${plural(next.left_out, "earlier visit")} left out` : "",
      isPartial ? `; ${percent(next.indexed, 0)} of the iterations indexed so far` : "",
    ].join("");
    clearTimeout(again);
    if (isPartial) again = setTimeout(() => page.refresh(), 1000);
    // Not their number alone: the page holds the newest 400, and then it no longer grows.
    const held = [visits[0]?.iteration, visits.at(-1)?.iteration, visits.length].join();
    if (held === shown) return; // nothing new: the reader's place stays
    shown = held;
    put(question, foreign(next.prompt, "", 4000));
    put(about, next.answer ? ["reference answer ", h("b", {}, foreign(next.answer, "", 400)), " · "] : "", foreign(address.prompt));
    writeChange(visits);
    put(visitSection, heading("Responses, newest first"), ...[...visits].reverse().map((visit) =>
      h("div", { class: "visit", data: { iteration: visit.iteration } },
        h("h3", {}, h("a", { href: to.iteration(address.run, visit.iteration) }, `iteration ${visit.iteration}`), h("span", { class: "muted" }, `  success ${percent(visit.success, 0)}${visit.count > visit.responses.length ? `, ${visit.responses.length} of ${visit.count} responses` : ""}`)),
        h("div", { class: "side-by-side", tabindex: 0, role: "region", "aria-label": `Responses of iteration ${visit.iteration}` }, (visit.responses ?? []).map(card)))));
    if (!visits.length) put(visitSection, empty("Not found yet", "The rollouts of the run are still being indexed."));
  }
  update(data);
  return {
    update,
    leave: () => clearTimeout(again),
    keys: [{ keys: ["d"], does: "compare the two chosen", act: () => compare.link.href && page.go(compare.link.href) }],
  };
}
