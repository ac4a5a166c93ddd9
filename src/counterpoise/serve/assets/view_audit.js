// The audit of a run: findings, most serious first, with evidence, threshold, cost and what to do.
import { to } from "./address.js";
import { empty, foreign, h, localAddress, put, visible } from "./elements.js";
import { count, plural, seconds } from "./format.js";
import { load as get } from "./load.js";
import { term } from "./terms.js";
import { heading } from "./view_run.js";

export const load = (address, signal) => get(address.path, signal);
export const trail = (address) => [[address.run, to.run(address.run)], ["audit", to.audit(address.run)]];
export const saved = (address) => `${to.audit(address.run)}.html`;

const TABLES = { clear: ["what was measured", "threshold"], unsupported: ["needs", "what to do"] };
const AGAIN = { reading: 1000, older: 5000 }; // milliseconds until the audit is asked for again

export function show(root, data, address, page) {
  const told = h("p", { class: "told" });
  const first = h("p", { class: "first-finding" });
  const facts = h("dl", { class: "facts" });
  const notes = h("div");
  const sections = h("div");
  const waiting = h("div");
  root.append(h("div", { class: "head" }, h("h1", {}, "Audit"), told), first, facts, notes, waiting, sections);
  let shape = "";
  let timer = null;

  function update(next) {
    clearTimeout(timer);
    if (AGAIN[next.state]) timer = setTimeout(() => page.refresh(), AGAIN[next.state]);
    const report = next.report;
    told.textContent = report ? describeAge(next, report) : "";
    for (const node of [first, facts, notes, sections]) node.hidden = !report;
    put(waiting, report ? null : reading(next.progress));
    // An audit that is still the same is left alone: somebody may be reading it.
    const drawn = JSON.stringify(report);
    if (!report || drawn === shape) return;
    shape = drawn;
    const findings = new Map(report.findings.map((finding) => [finding.name, finding]));
    const worst = findings.get(report.first);
    put(first, ...(worst ? ["First: ", h("a", { href: `#finding-${worst.name}` }, h("b", {}, visible(worst.title))), `. ${sentence(worst.verdict)}`] : ["Nothing is beyond its threshold."]));
    put(facts, ...Object.entries(report.facts ?? {}).map(([name, value]) => h("div", {}, h("dt", {}, term(name.replace(/s$/, ""), name)), h("dd", {}, h("b", {}, count(value))))));
    put(notes, h("p", { class: "note" }, "A run of ", foreign(report.source), ". Numbers in brackets are 95 % intervals."), ...(report.notes ?? []).map((note) => h("p", { class: "note" }, visible(note))));
    put(sections, ...(report.sections ?? []).map(({ level, title, caption }) => {
      const list = report.findings.filter((finding) => finding.level === level);
      return h("section", { class: "panel" }, heading(title, caption), TABLES[level] ? table(level, list) : list.map((finding) => article(finding, findings)));
    }));
  }

  // Jump to a finding without leaving the address.
  root.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#finding-']");
    if (!link) return;
    event.preventDefault();
    document.getElementById(link.getAttribute("href").slice(1))?.scrollIntoView({ block: "start" });
  });
  update(data);
  return { update, leave: () => clearTimeout(timer) };
}

// How old the audit is: a run that is being trained is audited again every few minutes at most.
function describeAge({ state, iterations_now: now, progress, seconds: took }, report) {
  const read = `${plural(report.iterations, "iteration")}, ${plural(report.rollouts, "rollout")}`;
  if (state === "ready") return `${read}; read in ${seconds(took)}`;
  const audited = now > report.iterations ? `${count(report.iterations)} of the ${plural(now, "iteration")} so far` : plural(report.iterations, "iteration");
  return `${audited}; ${progress ? "a newer audit is being made" : "the run has changed since, and is audited again soon"}`;
}

function reading(progress) {
  const files = progress?.total ? `${count(progress.done)} of ${count(progress.total)} files of ${progress.what}` : "It waits for its turn";
  return empty("The run is being read", `${files}. The audit reads every rollout once, beside the server and at low priority; it appears here by itself.`);
}

const sentence = (text) => {
  const shown = visible(text);
  return `${shown.charAt(0).toUpperCase()}${shown.slice(1)}.`;
};

function article(finding, findings) {
  const cause = findings.get(finding.consequence_of);
  const answers = [["what to do", finding.remedy], ["what it costs", finding.cost], ["threshold", finding.threshold], ["missing", (finding.missing ?? []).join(", ")]];
  return h("article", { class: `finding level-${["alarm", "warning"].includes(finding.level) ? finding.level : "note"}`, id: `finding-${finding.name}` },
    h("h3", {}, visible(finding.title)),
    h("p", { class: "verdict" }, sentence(finding.verdict)),
    cause && h("p", { class: "note" }, "A consequence of ", h("a", { href: `#finding-${cause.name}` }, visible(cause.title)), "."),
    h("dl", { class: "answers" }, answers.filter(([, text]) => text).map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(text))))),
    finding.measurements?.length ? h("table", { class: "measured" }, h("caption", { class: "unseen" }, "Evidence"), h("tbody", {}, finding.measurements.map((one) => h("tr", {}, h("th", { scope: "row" }, foreign(one.name)), h("td", {}, visible(one.text)))))) : null,
    finding.examples?.length ? h("ul", { class: "examples" }, finding.examples.map(example)) : null);
}

function example({ group, index, text, place }) {
  const name = h("code", {}, foreign(group), index === null ? "" : `, rollout ${index}`);
  const address = localAddress(place);
  return h("li", {}, address ? h("a", { href: address }, name) : name, " ", foreign(text));
}

function table(level, findings) {
  const [measured, last] = TABLES[level];
  const lacks = (finding) => (finding.missing ?? []).join(", ");
  const verdict = (finding) => (lacks(finding) ? `${finding.verdict} (not in this run: ${lacks(finding)})` : finding.verdict);
  const cells = (finding) => (level === "clear" ? [verdict(finding), finding.threshold] : [lacks(finding), finding.remedy]);
  return h("table", { class: "list checks" }, h("caption", { class: "unseen" }, "Checks"),
    h("thead", {}, h("tr", {}, ["check", measured, last].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, findings.map((finding) => h("tr", { id: `finding-${finding.name}` }, h("th", { scope: "row" }, visible(finding.title)), cells(finding).map((text, k) => h("td", { "data-label": [measured, last][k] }, visible(text)))))));
}
